"""The plog server: commands, holes, lines, captures, faults and hostile senders."""

from __future__ import annotations

import errno
import json
import os
import random
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient._ext.plog import fragments
from logclient.errors import ConfigError, ConnectFailed
from logclient.files import capture as captures
from logclient.files.capture import CaptureReader
from logclient.testing import plog_datagrams as datagrams
from logclient.testing.plog import Collector
from logclient.testing.plog_datagrams import Datagrams, batch_of
from logclient.testing.plog_device import Lines, Listener, ReplyLimit, Taken
from tests import support
from tests.plog.client import Client, event, name
from tests.support import clean_environment
from tests.support.measured_process import MIB, MeasuredProcess
from tests.support.patience import PATIENCE


def fed(listener: Listener, datagrams: list[bytes], port: int = 9, now: float = 0.0) -> Taken:
    return listener.feed(batch_of(datagrams, []), [port] * len(datagrams), now)


def units(directory: Path) -> list[bytes]:
    return [unit.raw for unit in CaptureReader(directory) if unit.direction == 0]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector(keep=True, tcp_port=0) as collector:
        yield collector


# --- the rules, without sockets ----------------------------------------------------------------


class TestCommands:
    def test_ping_returns_its_payload(self) -> None:
        for asked in (b"PING", b"ping", b"pInG"):
            taken = fed(Listener(0.0), [b"\0\0" + asked + b"\0\xff for 1"])
            assert taken.replies == [(0, b"PONG\0\xff for 1")]

    def test_stat_counts_the_commands_before_it(self) -> None:
        listener = Listener(1.0)
        taken = fed(listener, [b"\0\0STAT", b"\0\0stat please", b"one"], now=3.5)
        first, second = (json.loads(reply) for _, reply in taken.replies)
        assert (first["v0_commands"], second["v0_commands"]) == (0, 1)
        assert listener.stat(4.0)["v0_commands"] == 2
        assert first["uptime"] == 2500
        assert listener.stat(4.0)["handlers"] == [{"seen_messages": 1, "seen_bytes": 3, "name": "capture"}]

    def test_unknown_command_is_counted_and_unanswered(self) -> None:
        listener = Listener(0.0)
        assert fed(listener, [b"\0\0", b"\0\0pin", b"\0\0what is"]).replies == []
        stat = listener.stat(0.0)
        assert (stat["unknown_command"], stat["v0_commands"]) == (3, 0)
        assert fed(listener, [b"\0"]).replies == []  # the real server reads on, in what was there before
        assert listener.stat(0.0)["v0_invalid_type"] == stat["v0_invalid_type"] + 1

    def test_envi_has_the_form_of_the_real_server(self) -> None:
        ((_, reply),) = fed(Listener(0.0, environment={"a": 1}), [b"\0\0ENVI"]).replies
        assert reply == b'Config(SimpleConfigObject({"a": 1}))'

    def test_kill_works_only_if_allowed(self) -> None:
        for allowed, row in ((False, -1), (True, 1)):
            listener = Listener(0.0, allow_kill=allowed)
            taken = fed(listener, [b"x", b"\0\0kill"])
            assert (taken.killed, taken.replies, listener.kills) == (row, [], 1)


def as_java_int(value: int) -> int:
    """Wrap a number as Java's int does."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


class ReferenceHoleDetector:
    """The real server's detector in plain Python: an array of ten ids, and the holes between leaving ones."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.entries, self.low, self.high = [-(1 << 31)] * 10, 1 << 63, -(1 << 63)

    def add(self, number: int) -> int:
        if number < self.low:
            if self.low != 1 << 63 and self.low - number > 10:
                self.clear()
            else:
                self.low = number
        if number > self.high:
            if self.high != -(1 << 63) and number - self.high > 10:
                self.clear()
            else:
                self.high = number
        if number in self.entries:
            return 0
        every = sorted([*self.entries, number])
        gone, self.entries = every[0], every[1:]
        hole = as_java_int(self.entries[0] - gone - 1)
        return hole if gone != -(1 << 31) and 0 < hole <= 10 else 0


class TestHoles:
    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from([1] * 9 + [-3, -1, 2, 3, 5, 10, 11, 12]), min_size=20, max_size=60),
           st.integers(0, 1 << 30))  # fmt: skip
    def test_holes_equal_the_reference_detector(self, steps: list[int], number: int) -> None:
        listener, detector, holes = Listener(0.0), ReferenceHoleDetector(), 0
        for step in steps:
            number = max(0, number + step)
            fed(listener, [fragments(b"x", number)[0]])
            holes += detector.add(number)
        assert listener.stat(0.0)["holes_from_new_message"] == holes

    def test_holes_of_a_port_silent_for_a_minute_are_counted(self) -> None:
        listener = Listener(0.0)
        for number in (1, 2, 5, 6):
            fed(listener, fragments(b"x", number))
        assert listener.stat(59.0)["holes_from_dead_port"] == 0
        stat = listener.stat(61.0)
        assert (stat["holes_from_dead_port"], stat["holes_from_new_message"]) == (2, 0)

    def test_only_the_latest_1024_ports_are_remembered(self) -> None:
        listener = Listener(0.0)
        for number in (1, 3):
            fed(listener, fragments(b"x", number), port=1)
        for port in range(2, 1025):
            fed(listener, fragments(b"x", 1), port=port)
        assert listener.stat(0.0)["holes_from_dead_port"] == 0
        fed(listener, fragments(b"x", 1), port=1025)
        assert listener.stat(0.0)["holes_from_dead_port"] == 1

    def test_id_below_zero_counts_for_the_port_below(self) -> None:
        listener = Listener(0.0)
        raw = bytearray(fragments(b"x", 1)[0])
        for number in (-20, -18, 1, 2, *range(-17, -7)):  # ids above 0 are of another port
            raw[8:12] = number.to_bytes(4, "big", signed=True)
            fed(listener, [bytes(raw)], port=10)
        assert listener.stat(0.0)["holes_from_new_message"] == 1


class TestLines:
    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=60).map(lambda b: bytes(c % 4 + 9 for c in b)), st.data())
    def test_lines_are_the_same_for_every_split(self, data: bytes, draw: st.DataObject) -> None:
        """Bytes are tabs, LF, VT and FF; the limit is three bytes."""
        cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=5)))
        at_once, pieces = Lines(3), Lines(3)
        want = at_once.receive(data)
        got = []
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            got += pieces.receive(data[begin:end])
        whole = data.split(b"\n")[:-1]
        assert got == want == [line for line in whole if len(line) <= 3]

    def test_lines_end_with_lf_or_crlf(self) -> None:
        assert Lines(5).receive(b"abcde\r\nabcdef\n\r\n\nx") == [b"abcde", b"", b""]

    def test_line_beyond_the_limit_is_counted_and_skipped(self) -> None:
        lines = Lines(1000)
        for _ in range(100):
            assert lines.receive(b"x" * 500) == []
        assert lines.too_long == 1
        assert lines.receive(b"\nnext\n") == [b"next"]


# --- over sockets ------------------------------------------------------------------------------


class TestCollector:
    def test_datagrams_and_lines_at_once(self, collector: Collector, client: Client) -> None:
        client.send(b"simple", *fragments(b"y" * 5000, 1, datagram=1000))
        with socket.create_connection((collector.host, collector.tcp_port or 0)) as sock:
            sock.sendall(b"line\n")
            assert collector.wait_for(events=3)
        assert sorted(collector.messages()) == [b"line", b"simple", b"y" * 5000]
        counts = collector.counts
        assert (counts.datagrams, counts.lines, counts.events) == (7, 1, 3)
        assert counts.kernel_drops == 0

    def test_events_returns_decoded_documents(self, collector: Collector, client: Client) -> None:
        client.send(event(1), *fragments(event(2), 1))
        assert [one["uuid"] for one in collector.events(2)] == [name(1), name(2)]

    def test_hold_delays_replies_until_release(self, collector: Collector, client: Client) -> None:
        collector.hold()
        client.send(b"\0\0PING1", b"x")
        assert collector.wait_for(events=1)
        client.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.sock.recv(100)
        client.sock.settimeout(PATIENCE)
        collector.release()
        assert client.sock.recv(100) == b"PONG1"

    def test_idle_connection_is_closed(self) -> None:
        with Collector(tcp_port=0, idle=0.1) as collector:
            with socket.create_connection((collector.host, collector.tcp_port or 0)) as sock:
                sock.settimeout(PATIENCE)
                sock.sendall(b"one\nhalf")
                assert sock.recv(100) == b""
            counts = collector.counts
            assert (counts.lines, counts.idle_closes, counts.open) == (1, 1, 0)

    def test_connection_beyond_the_maximum_is_closed(self) -> None:
        with Collector(tcp_port=0, max_connections=1) as collector:
            address = (collector.host, collector.tcp_port or 0)
            with socket.create_connection(address) as first, socket.create_connection(address) as second:
                second.settimeout(PATIENCE)
                assert second.recv(100) == b""
                first.sendall(b"one\n")
                assert collector.wait_for(events=1)
            assert collector.reasons == {"connections: too many": 1}

    def test_replies_longer_than_their_question_are_limited(self) -> None:
        """The source address of a question may be forged."""
        with Collector(reply_rate=0.01) as collector:
            client = Client(collector)
            client.send(b"\0\0STAT", b"\0\0STAT", b"\0\0ENVI", b"\0\0PING1", b"\0\0PING2")
            replies = [client.sock.recv(65536) for _ in range(3)]
            client.close()
            assert replies[0].startswith(b"{") and replies[1:] == [b"PONG1", b"PONG2"]
            assert collector.reasons == {"replies: asked for too often": 2}
            assert collector.counts.replies == 3

    @pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this machine's on Linux only")
    def test_reply_limit_counts_for_each_host(self) -> None:
        def answered(host: str) -> bool:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.settimeout(PATIENCE)
                sock.bind((host, 0))
                sock.connect((collector.host, collector.port))
                sock.send(b"\0\0STAT")
                sock.send(b"\0\0PING")
                return sock.recv(65536).startswith(b"{")

        with Collector(reply_rate=0.1) as collector:
            hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.1"]
            assert [answered(host) for host in hosts] == [True, True, False, False]

    def test_replies_to_all_hosts_together_are_limited(self) -> None:
        limit = ReplyLimit(1.0)
        hosts = [f"10.0.{n >> 8}.{n & 255}" for n in range(30_000)]
        assert sum(limit.take(host, 0.0) for host in hosts) == 20
        assert not limit.take("10.9.9.9", 0.01)
        assert limit.take("10.9.9.9", 1.0)

    def test_cut_ends_connections(self, collector: Collector) -> None:
        with socket.create_connection((collector.host, collector.tcp_port or 0)) as sock:
            sock.settimeout(PATIENCE)
            assert collector.wait_for(lambda now: now.open == 1)
            collector.cut()
            assert sock.recv(1) == b""

    def test_restart_keeps_ports_and_capture(self, tmp_path: Path) -> None:
        collector = Collector(capture=str(tmp_path / "c"), tcp_port=0)
        places = []
        for text in (b"one", b"two"):
            with collector:
                places.append((collector.port, collector.tcp_port))
                client = Client(collector)
                client.send(text)
                client.settle()
                client.close()
                assert collector.stat()["handlers"][0]["seen_messages"] == 1  # counters restart
        assert places[0] == places[1]
        assert [unit for unit in units(tmp_path / "c") if b"\0" not in unit] == [b"one", b"two"]
        assert collector.counts.captured_events == 2

    def test_collector_listens_on_ipv6(self) -> None:
        if not socket.has_ipv6:
            pytest.skip("no IPv6")
        collector = Collector("::1", keep=True)
        try:
            collector.start()
        except ConnectFailed as error:
            pytest.skip(str(error))
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"six", ("::1", collector.port))
            came = collector.wait_for(events=1)
        collector.stop()
        assert came
        assert collector.url == f"plog://[::1]:{collector.port}"

    def test_taken_port_is_named(self, collector: Collector) -> None:
        with pytest.raises(ConnectFailed, match=f"port {collector.port}: "):
            Collector(port=collector.port).start()
        with pytest.raises(ConnectFailed, match=f"TCP port {collector.tcp_port}: "):
            Collector(tcp_port=collector.tcp_port).start()

    @pytest.mark.parametrize("wrong", [
        {"port": 65536}, {"tcp_port": -1}, {"expire_time": 0}, {"max_size": 100}, {"kafka": "h:1"},
        {"kafka_topic": "t"}, {"faults": "cut-before-ack=every:1"},
    ], ids=lambda wrong: next(iter(wrong)))  # fmt: skip
    def test_wrong_argument_is_named(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}\\b"):
            Collector(**wrong)

    def test_kill_ends_the_collector_with_an_error(self) -> None:
        with Collector(allow_kill=True) as collector:
            client = Client(collector)
            client.send(b"\0\0KILL")
            assert not collector.wait_for(lambda now: False, timeout=PATIENCE)
            assert f"KILL from 127.0.0.1:{client.sock.getsockname()[1]}" == str(collector.error)
            assert collector.counts.kills == 1
            client.close()

    def test_kill_that_is_not_allowed_is_reported(self, collector: Collector, client: Client) -> None:
        client.send(b"\0\0KILL")
        client.settle()
        assert collector.reasons == {"kill: not allowed": 1}

    def test_environment_shows_no_secret(self) -> None:
        support.need("confluent_kafka")
        secret = "hunter2-5f0c9ad1"
        settings = {
            "bootstrap.servers": "127.0.0.1:1", "sasl.password": secret, "sasl.username": secret,
            "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "message.timeout.ms": 100,
        }  # fmt: skip
        with Collector(kafka=settings, kafka_topic="t") as collector:
            client = Client(collector)
            reply = client.ask(b"\0\0ENVI")
            client.close()
        assert secret.encode() not in reply
        assert b'"sasl.password": "***"' in reply


class TestCapture:
    def test_capture_has_every_datagram_and_reply(self, tmp_path: Path) -> None:
        sent = [b"simple", *fragments(b"z" * 300, 5, datagram=100), b"\x07bad", b"\0\0STAT"]
        with Collector(capture=str(tmp_path / "c")) as collector:
            client = Client(collector)
            client.send(*sent)
            reply = client.sock.recv(65536)
            client.close()
        found = list(CaptureReader(tmp_path / "c"))
        assert [unit.raw for unit in found if unit.direction == 0] == sent
        assert [unit.raw for unit in found if unit.direction == 1] == [reply]
        assert {unit.protocol for unit in found} == {"plog"}
        assert [unit.arrival for unit in found] == list(range(1, len(found) + 1))

    def test_lines_are_captured_as_their_own_listener(self, tmp_path: Path) -> None:
        with (
            Collector(capture=str(tmp_path / "c"), tcp_port=0) as collector,
            socket.create_connection((collector.host, collector.tcp_port or 0)) as sock,
        ):
            sock.sendall(b"one\n\0\0ping\r\n")
            assert collector.wait_for(events=2)
        found = list(CaptureReader(tmp_path / "c"))
        assert [(unit.protocol, unit.raw) for unit in found] == [
            ("plog+tcp", b"one"), ("plog+tcp", b"\0\0ping"),
        ]  # fmt: skip

    def test_datagrams_received_before_stop_are_captured(self, tmp_path: Path) -> None:
        sent = [b"%d" % n for n in range(5000)]
        with Collector(capture=str(tmp_path / "c")) as collector:
            client = Client(collector)
            with collector._changed:  # the collector cannot read
                client.send(*sent)
                collector._stopping = True
        drops = collector.counts.kernel_drops
        assert drops is not None
        assert len(units(tmp_path / "c")) + drops == len(sent)
        client.close()

    def test_uncaptured_datagram_is_not_kept_or_answered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with Collector(capture=str(tmp_path / "c"), keep=True) as collector:
            client = Client(collector)
            client.send(b"one")
            client.settle()
            with collector._changed:
                monkeypatch.setattr(captures, "_write", refuse)
            client.send(b"two", b"\0\0PINGnot answered")
            assert collector.wait_for(lambda now: now.capture_errors > 0 and now.datagrams == 4)
            with collector._changed:
                monkeypatch.undo()
            client.send(b"three")
            client.settle()
            client.close()
            assert collector.messages() == [b"one", b"three"]
            assert collector.stat()["udp_simple_messages"] == 2
        assert [raw for raw in units(tmp_path / "c") if raw[0]] == [b"one", b"three"]

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts dropped datagrams")
    def test_kernel_drops_are_counted_and_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(datagrams, "BESIDE", False)  # its thread would empty the socket
        with Collector(receive_buffer=4096) as collector:
            client = Client(collector)
            with collector._changed:  # the collector cannot read
                client.send(*[b"x" * 1000] * 200)
                client.send(b"last")
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                counts = collector.counts
                if counts.datagrams + (counts.kernel_drops or 0) == 201:
                    break
            client.close()
        assert counts.kernel_drops
        assert counts.datagrams + counts.kernel_drops == 201
        assert collector.counts.kernel_drops == counts.kernel_drops  # kept after the stop


class TestDatagrams:
    @pytest.fixture(params=["beside", "plain"])
    def bound(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Datagrams]:
        if request.param == "plain":
            monkeypatch.setattr(datagrams, "BESIDE", False)
        elif sys.platform != "linux":
            pytest.skip("Linux")
        bound = Datagrams("127.0.0.1", 0, 8 << 20)
        yield bound
        bound.close()

    def test_datagrams_are_read_in_order_with_their_source(self, bound: Datagrams) -> None:
        rng = random.Random(4)
        socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        sent: list[tuple[bytes, Any]] = []
        got: list[tuple[bytes, Any]] = []
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
            sock.connect(("127.0.0.1", bound.port))
        for _ in range(60):
            for _ in range(50):
                sock = rng.choice(socks)
                raw = rng.randbytes(rng.choice((0, 1, 300, 1400, 65507 if rng.random() < 0.1 else 20)))
                sock.send(raw)
                sent.append((raw, sock.getsockname()))
            deadline = time.monotonic() + PATIENCE
            while len(got) < len(sent) and time.monotonic() < deadline:
                select.select([bound], [], [], 0 if bound.more else 1)
                batch = bound.read()
                if batch is not None:
                    rows = range(len(batch))
                    got += [(bytes(batch.raw(row)), batch.sources[row]) for row in rows]
                    if batch.times is not None:
                        now = time.time_ns() // 1000
                        assert all(now - 60_000_000 < at <= now for at in batch.times)
        assert got == sent
        assert bound.read() is None
        for sock in socks:
            sock.close()

    def test_datagrams_before_finish_are_still_read(self, bound: Datagrams) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for n in range(3000):
                sock.sendto(b"%d" % n, ("127.0.0.1", bound.port))
        bound.finish()
        got: list[bytes] = []
        while (batch := bound.read()) is not None:
            got += [bytes(batch.raw(row)) for row in range(len(batch))]
        assert len(got) + (bound.drops or 0) == 3000
        assert got[:500] == [b"%d" % n for n in range(500)]

    @pytest.mark.skipif(sys.platform != "linux", reason="Linux")
    def test_waiting_datagrams_are_bounded(self) -> None:
        """Further ones stay in the kernel and are read when there is room; none is lost."""
        bound = Datagrams("127.0.0.1", 0, 8 << 20)

        def left_to_the_kernel() -> bool:
            end = time.monotonic() + 1
            while time.monotonic() < end:
                if not select.select([bound.sock], [], [], 0)[0]:
                    return False
            return True

        sent = got = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            while not left_to_the_kernel() and sent < 1000:
                for _ in range(10):
                    sock.sendto(bytes(60_000), ("127.0.0.1", bound.port))
                sent += 10
        assert 10 * MIB < sent * 60_000 < 24 * MIB
        deadline = time.monotonic() + PATIENCE
        while got + (bound.drops or 0) < sent and time.monotonic() < deadline:
            batch = bound.read()
            got += 0 if batch is None else len(batch)
        assert (got, bound.drops) == (sent, 0)
        bound.close()


# --- faults ------------------------------------------------------------------------------------


class Run:
    """Events sent over one socket, and what the collector made of them."""

    def __init__(self, tmp_path: Path, faults: str, events: list[list[bytes]]) -> None:
        capture, fault_log = tmp_path / "capture", tmp_path / "fault_log"
        with Collector(
            capture=str(capture), faults=faults, fault_log=str(fault_log), keep=True, count_duplicates=True
        ) as collector:
            client = Client(collector)
            for number, datagrams in enumerate(events):
                client.send(*datagrams)
                if number % 20 == 19:
                    client.settle()
            client.settle()
            client.close()
            self.stat = collector.stat()
        self.counts = collector.counts
        self.faults = collector.report["faults"]
        self.payloads = collector.messages()
        self.ids = [json.loads(payload).get("uuid") for payload in self.payloads]
        self.acts = [json.loads(line) for line in fault_log.read_text().splitlines()]
        # The capture equals what was passed on.
        shown = Listener(0.0)
        assert [payload for payload, _ in fed(shown, units(capture)).messages()] == self.payloads

    def ids_hit_by(self, *faults: str) -> list[str]:
        """Return the ids of the events that these faults hit."""
        return [one for act in self.acts if act["fault"] in faults for one in act["ids"]]


def boxed(count: int, size: int = 0, seed: int = 1) -> list[list[bytes]]:
    """Make events as fragments, every other one several."""
    rng = random.Random(seed)
    return [fragments(event(n, size or rng.choice((10, 2000))), n, datagram=700) for n in range(1, count + 1)]


class TestFaults:
    def test_fault_log_tells_dropped_and_doubled_events(self, tmp_path: Path) -> None:
        run = Run(tmp_path, "drop=p:0.05,duplicate=p:0.05,seed=7", boxed(600))
        missing = {act["event"] for act in run.acts if act["fault"] == "drop"}
        doubled = {act["event"] for act in run.acts if act["fault"] == "duplicate" and act["count"] <= 1}
        assert set(run.ids_hit_by("drop")) == missing
        assert set(run.ids_hit_by("duplicate")) == doubled
        seen = Counter(run.ids)
        assert {name(n) for n in range(1, 601)} - seen.keys() == missing
        assert {one for one, times in seen.items() if times > 1} == doubled
        assert any(act["count"] > 1 for act in run.acts if act["fault"] == "drop")
        assert len(missing) > 20
        assert len(doubled) > 5
        assert (run.counts.duplicates, run.counts.copies) == (len(doubled), len(doubled))
        # The server counts only what arrived.
        assert run.stat["handlers"][0]["seen_messages"] == len(run.ids) == run.counts.captured_events

    def test_discard_keeps_counters_and_loses_events(self, tmp_path: Path) -> None:
        run = Run(tmp_path, "discard=every:9:max:20,seed=3", boxed(300))
        assert run.faults == {"discard": 20}
        assert set(run.ids_hit_by("discard")) == {name(n) for n in range(1, 301)} - set(run.ids)
        assert run.stat["handlers"][0]["seen_messages"] == 300  # it claims all of them
        assert (run.counts.events, run.counts.captured_events) == (300, len(run.ids))

    def test_swap_duplicate_corrupt_and_add_are_logged(self, tmp_path: Path) -> None:
        spec = "swap=every:31:max:3,duplicate=every:41:max:3,corrupt=every:53:max:3,add=every:61:max:3,seed=5"
        run = Run(tmp_path, spec, boxed(300, size=20))
        assert run.faults == {"swap": 3, "duplicate": 3, "corrupt": 3, "add": 3}
        assert run.stat["v0_invalid_checksum"][0] == 0
        genuine = [name(n) for n in range(1, 301)]
        assert set(run.ids_hit_by("add")) == set(run.ids) - set(genuine)
        seen = Counter(run.ids)
        assert set(run.ids_hit_by("duplicate")) == {one for one, times in seen.items() if times > 1}
        changed = {
            json.loads(payload)["uuid"]
            for payload in run.payloads
            if payload not in {event(n, 20) for n in range(1, 301)}
        }
        assert changed - set(run.ids_hit_by("add")) == set(run.ids_hit_by("corrupt"))
        places = {one: run.ids.index(one) for one in genuine}
        overtaken = {one for one, next_ in pairwise(genuine)
                     if places[one] > places[next_]}  # fmt: skip
        assert overtaken == set(run.ids_hit_by("swap"))

    def test_corrupt_and_add_work_on_unboxed_events(self, tmp_path: Path) -> None:
        spec = "corrupt=every:7:max:2,add=every:11:max:2"
        run = Run(tmp_path, spec, [[event(n)] for n in range(1, 41)])
        assert run.faults == {"corrupt": 2, "add": 2}
        assert set(run.ids_hit_by("add")) == set(run.ids) - {name(n) for n in range(1, 41)}
        assert len(set(run.payloads) - {event(n) for n in range(1, 41)}) == 4

    def test_garbled_datagram_fails_its_checksum(self, tmp_path: Path) -> None:
        run = Run(tmp_path, "garble=every:7,seed=1", boxed(200))
        missing = {name(n) for n in range(1, 201)} - set(run.ids)
        assert set(run.ids_hit_by("garble")) == missing
        bad = sum(run.stat["v0_invalid_checksum"])
        assert bad == len(missing)

    def test_reorder_delays_events_without_losing_any(self, tmp_path: Path) -> None:
        run = Run(tmp_path, "reorder=every:10,seed=1", boxed(100, size=20))
        assert sorted(run.ids) == [name(n) for n in range(1, 101)]
        late = {one for one, other in pairwise(run.ids) if one > other}
        assert len(late) >= 9
        assert run.stat["holes_from_new_message"] == 0

    def test_swap_without_a_second_unit_is_given_up(self, tmp_path: Path) -> None:
        with Collector(capture=str(tmp_path / "c"), faults="swap=every:1:10ms") as collector:
            client = Client(collector)
            client.send(event(1))
            assert collector.wait_for(events=1)
            client.close()
        assert collector.report["faults"] == {"swap": 0}

    def test_same_seed_gives_the_same_faults(self, tmp_path: Path) -> None:
        acts = []
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            acts.append(Run(tmp_path / folder, "drop=p:0.1,garble=p:0.1,seed=9", boxed(100)).acts)
        assert acts[0] == acts[1]
        assert acts[0]


# --- hostile senders ---------------------------------------------------------------------------

_COLLECT = """
import json, sys
from logclient.testing.plog import Collector
with Collector(tcp_port=0) as collector:
    print(json.dumps([collector.port, collector.tcp_port]), flush=True)
    for line in sys.stdin:
        if line == "hold\\n":
            with collector._changed:  # the collector cannot read
                print(json.dumps("held"), flush=True)
                sys.stdin.readline()
            print(json.dumps("gone on"), flush=True)
            continue
        counts = collector.counts
        incomplete = len(collector._listener._defragmenter.open)
        print(json.dumps([counts.datagrams, counts.kernel_drops, incomplete]), flush=True)
"""

_FEED = """
import json, sys
from logclient.testing.plog_datagrams import batch_of
from logclient.testing.plog_device import Listener
listener = Listener(0.0)
print("0", flush=True)
sys.stdin.readline()
messages, = json.loads(sys.argv[1])
header = bytes.fromhex("000100020000000100000000000000c800000000") + bytes(4) + b"x"
for first in range(0, messages, 1000):
    ids = range(first, first + 1000)
    batch = batch_of([header[:8] + n.to_bytes(4, "big") + header[12:] for n in ids], [])
    listener.feed(batch, [n % 60000 for n in ids], 0.0)
print(len(listener._defragmenter.open), flush=True)
sys.stdin.readline()
"""


def header(count: int, index: int, size: int, number: int, total: int, tags: int = 0) -> bytes:
    return b"\0\1" + b"".join(
        value.to_bytes(width, "big")
        for value, width in (
            (count, 2),
            (index, 2),
            (size, 2),
            (number, 4),
            (total, 4),
            (7, 4),
            (tags, 2),
            (0, 2),
        )
    )


ATTACKS = {
    "totals of 2 GiB": lambda n: header(2, 0, 1000, n, (1 << 31) - 1) + bytes(1000),
    "totals of what is just kept": lambda n: header(5, 0, 1000, n, 262144) + bytes(1000),
    "an index beyond the count": lambda n: header(3, 3 + n % 9, 1000, n, 3000) + bytes(1000),
    "fragments over each other": lambda n: header(9, n % 9, n % 700, n // 9, 3000) + bytes(n % 700),
    "65,535 fragments": lambda n: header(65535, n % 65535, 1, n // 4, 65535) + b"x",
    "open messages": lambda n: header(2, 0, 100, n, 200) + bytes(100),
    "tags beyond everything": lambda n: header(1, 0, 10, n, 10, 65535 - n % 3) + bytes(10),
    "tags that are all": lambda n: header(2, 0, 0, n // 2, 10, 20000) + bytes(20000),
    "noise": lambda n: random.Random(n).randbytes(n % 100 + 1),
    "commands": lambda n: b"\0\0WHAT%d" % n,
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[MeasuredProcess, int, int]]:
    with MeasuredProcess(_COLLECT) as process:
        yield process, *process.read()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
class TestHostileSenders:
    """Each attack costs at most 16 MiB."""

    @pytest.mark.slow
    @pytest.mark.parametrize("attack", ATTACKS)
    def test_hostile_datagrams_cost_at_most_16_mib(
        self, server: tuple[MeasuredProcess, int, int], attack: str
    ) -> None:
        process, port, _ = server
        make = ATTACKS[attack]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))
            sock.settimeout(PATIENCE)

            def settle() -> None:
                sock.send(b"\0\0PING")
                assert sock.recv(100) == b"PONG"

            sock.send(make(0))
            settle()
            before = process.reset_peak()
            for n in range(5000):
                sock.send(make(n))
                if n % 100 == 99:
                    settle()
            assert process.peak() - before < 16 * MIB
            assert process.ask()[1] == 0

    def test_endless_line_costs_at_most_16_mib(self, server: tuple[MeasuredProcess, int, int]) -> None:
        process, _, port = server
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"x" * (2 << 20))
            before = process.reset_peak()
            for _ in range(64):
                sock.sendall(b"x" * MIB)
            assert process.peak() - before < 16 * MIB

    def test_unread_flood_costs_at_most_64_mib(self, server: tuple[MeasuredProcess, int, int]) -> None:
        """At most 64 MiB wait, however small the datagrams are; the kernel drops the rest."""
        process, port, _ = server
        assert process.ask("hold") == "held"
        before = process.reset_peak()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))
            for _ in range(600_000):
                sock.send(b"x")
            assert process.ask("go on") == "gone on"
            sock.settimeout(2 * PATIENCE)
            deadline = time.monotonic() + 2 * PATIENCE
            while process.ask()[0] < 200_000 and time.monotonic() < deadline:
                pass
            assert process.ask()[0] >= 200_000
            assert process.ask()[1] > 0
        assert process.peak() - before < 64 * MIB

    @pytest.mark.slow
    @pytest.mark.parametrize("messages", [200_000, pytest.param(1_000_000, marks=pytest.mark.long)])
    def test_many_open_messages_cost_at_most_16_mib(self, messages: int) -> None:
        with MeasuredProcess(_FEED, messages) as process:
            process.read()
            before = process.reset_peak()
            still = process.ask(seconds=4 * PATIENCE)
            assert 0 < still < 10_000
            assert process.peak() - before < 16 * MIB


# --- as a command ------------------------------------------------------------------------------


class Process:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "logclient", "collect", *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
        )
        assert self.process.stdout is not None
        self.listens: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")

    def end(self, terminate: bool = True) -> tuple[int, dict[str, Any], str]:
        if terminate:
            self.process.terminate()
        out, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, json.loads(out or "{}"), errors


class TestCommand:
    def test_collect_listens_on_udp_and_tcp_and_reports(self, tmp_path: Path) -> None:
        process = Process(
            "plog://127.0.0.1:0?tcp=0&max_size=8MiB&expire_time=2s", "--capture", str(tmp_path / "c")
        )
        listens = process.listens
        assert listens["url"] == f"plog://127.0.0.1:{listens['port']}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", listens["port"]))
            for one in fragments(b"x" * (2 << 20), 1, datagram=60000):
                sock.send(one)
            sock.send(b"\0\0ENVI")
            assert b'"max_size": 8388608' in sock.recv(65536)
        with socket.create_connection(("127.0.0.1", listens["tcp"])) as sock:
            sock.sendall(b"one\n")
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(PATIENCE)
            assert sock.recv(1) == b""
        code, report, _ = process.end()
        assert code == 0
        assert (report["events"], report["lines"], report["kernel_drops"], report["cuts"]) == (2, 1, 0, 0)
        assert report["port"] == listens["port"]

    @pytest.mark.slow
    def test_kill_ends_the_command_with_one_line(self, tmp_path: Path) -> None:
        process = Process("plog://127.0.0.1:0?allow_kill=yes", "--capture", str(tmp_path / "c"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"\0\0kill", ("127.0.0.1", process.listens["port"]))
        code, report, errors = process.end(terminate=False)
        assert (code, report["kills"]) == (1, 1)
        assert errors.count("\n") == 1
        assert "KILL from 127.0.0.1" in errors

    def test_wrong_option_of_the_url_is_one_line(self, tmp_path: Path) -> None:
        for query, what in (
            ("tcp=70000", "tcp: "), ("allow_kill=perhaps", "allow_kill: "), ("mtu=1400", "mtu: "),
            ("max_size=1", "max_size: "), ("kafka=127.0.0.1:1", "kafka_topic: "),
            ("tcp=1&tcp=2", "tcp: given"),
        ):  # fmt: skip
            process = Process(f"plog://127.0.0.1:0?{query}", "--capture", str(tmp_path / "c"))
            code, _, errors = process.end(terminate=False)
            assert code == 2
            assert what in errors
            assert errors.count("\n") == 1
