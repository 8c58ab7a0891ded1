"""The Lumberjack collector over real sockets: acknowledgements, captures, refusals and faults."""

import importlib
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logclient.cli.collect import collect
from logclient.errors import ConfigError, ConnectFailed, LedgerError, ProtocolError
from logclient.files.capture import CaptureReader
from logclient.testing.lumberjack import Collector, decode
from tests.support import clean_environment, recordings
from tests.support.patience import PATIENCE, wait_until

PRODUCER = "0a" * 10


# --- the writer's side, by hand ----------------------------------------------------------------


def event(sequence: int, producer: str = PRODUCER, **more: object) -> bytes:
    """Return a document as our writer carries it."""
    text = json.dumps({"message": f"line {sequence}", **more}, separators=(",", ":"))
    event_id = f"{producer}{sequence:012x}"
    return f'{text[:-1]},"@metadata":{{"_id":"{event_id}"}},"event.id":"{event_id}"}}'.encode()


def block(**pairs: str) -> bytes:
    """Return the map of version 1."""
    texts = [text.encode() for pair in pairs.items() for text in pair]
    return struct.pack(">I", len(pairs)) + b"".join(struct.pack(">I", len(text)) + text for text in texts)


def frame(version: int, kind: bytes, number: int, rest: bytes = b"") -> bytes:
    return b"%d%b" % (version, kind) + struct.pack(">I", number) + rest


def window(*bodies: bytes, version: int = 2, compressed: bool = False, first: int = 1) -> bytes:
    parts = []
    for seq, body in enumerate(bodies, first):
        if version == 2:
            body = struct.pack(">I", len(body)) + body
        parts.append(frame(version, b"J" if version == 2 else b"D", seq, body))
    frames = b"".join(parts)
    if compressed:
        frames = zlib.compress(frames)
        frames = frame(version, b"C", len(frames), frames)
    return frame(version, b"W", len(bodies)) + frames


class Writer:
    def __init__(self, collector: Collector | int) -> None:
        host, port = (
            ("127.0.0.1", collector) if isinstance(collector, int) else (collector.host, collector.port)
        )
        self.sock = socket.create_connection((host, port), timeout=PATIENCE)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ack(self) -> tuple[int, int]:
        """The next ack: version and number. Raises ConnectionError when there is none."""
        data = b""
        while len(data) < 6:
            more = self.sock.recv(6 - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        version, kind, number = struct.unpack(">BsI", data)
        assert kind == b"A"
        return version - 48, number

    def ship(self, *bodies: bytes, **how: object) -> tuple[int, int]:
        self.send(window(*bodies, **how))  # type: ignore[arg-type]
        return self.ack()

    def rest(self) -> bytes:
        """Say that all is said, and read until the collector has nothing more to say."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return self.until_closed()

    def until_closed(self) -> bytes:
        data = b""
        try:
            while more := self.sock.recv(65536):
                data += more
        except ConnectionError:
            pass
        return data

    def closed(self) -> bool:
        return self.until_closed() == b""


def captured_windows(directory: Path) -> list[bytes]:
    """Return the windows in a capture."""
    return [unit.raw for unit in CaptureReader(directory) if unit.direction == 0]


def ids(units: list[bytes]) -> list[str]:
    return [document["@metadata"]["_id"] for unit in units for document in decode(unit)]


def name(sequence: int, producer: str = PRODUCER) -> str:
    return f"{producer}{sequence:012x}"


def logged_faults(path: Path) -> list[tuple[str, list[str]]]:
    return [(entry["fault"], entry["ids"]) for entry in map(json.loads, path.read_text().splitlines())]


@pytest.fixture
def collector():
    with Collector(keep=True) as collector:
        yield collector


# --- what any writer may expect ----------------------------------------------------------------


class TestWindows:
    def test_recorded_writers_get_the_recorded_answers(self, collector, capsys):
        """Where one server wrote no ack and closed, closing without one is right, too."""
        cases = recordings.cases(recordings.LUMBERJACK)
        answers: dict[str, set[bytes]] = {}
        for case in cases:
            answers.setdefault(case["writer_hex"], set()).add(bytes.fromhex(case["reader_hex"]))
        failed = []
        for number, case in enumerate(cases):
            with Writer(collector) as writer:
                try:
                    writer.send(bytes.fromhex(case["writer_hex"]))
                except ConnectionError:
                    pass
                answer = writer.rest()
            if answer not in answers[case["writer_hex"]]:
                failed.append((number, case["server"], case["name"], answer.hex()))
        with capsys.disabled():
            print(f"\n{recordings.summary('Lumberjack, collector over a socket', cases, cases, {})}")
        assert not failed

    def test_one_connection_may_mix_protocol_versions(self, collector):
        with Writer(collector) as writer:
            assert writer.ship(event(1), event(2)) == (2, 2)
            assert writer.ship(block(line="a"), version=1, compressed=True) == (1, 1)
            assert writer.ship(event(3), compressed=True) == (2, 1)
        events = collector.events(4)
        assert [e.get("message") for e in events] == ["line 1", "line 2", None, "line 3"]
        assert events[2] == {"line": "a"}

    def test_the_highest_sequence_is_acknowledged(self, collector):
        with Writer(collector) as writer:
            assert writer.ship(event(1), event(2), first=101) == (2, 102)

    def test_windows_may_come_byte_by_byte(self, collector):
        data = window(event(1), event(2)) + window(event(3), compressed=True)
        with Writer(collector) as writer:
            writer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(len(data)):
                writer.send(data[at : at + 1])
            assert [writer.ack(), writer.ack()] == [(2, 2), (2, 1)]

    def test_each_window_of_one_write_is_acknowledged(self, collector):
        with Writer(collector) as writer:
            writer.send(b"".join(window(*[event(k)] * n) for k, n in enumerate([3, 1, 2, 7], 1)))
            assert [writer.ack()[1] for _ in range(4)] == [3, 1, 2, 7]

    def test_connections_do_not_wait_for_each_other(self, collector):
        with Writer(collector) as slow, Writer(collector) as quick:
            slow.send(window(event(1), event(2))[:-5])
            assert quick.ship(event(3)) == (2, 1)
            slow.send(window(event(1), event(2))[-5:])
            assert slow.ack() == (2, 2)
        assert collector.counts.connections == 2

    def test_half_closed_writers_get_their_acks(self, collector):
        with Writer(collector) as writer:
            writer.send(window(event(1)) + window(event(2)))
            assert writer.rest() == b"2A\0\0\0\1" * 2

    @pytest.mark.slow
    def test_a_window_of_5000_events_is_taken(self, collector):
        bodies = [event(n, text="x" * 700) for n in range(1, 5001)]
        with Writer(collector) as writer:
            assert writer.ship(*bodies) == (2, 5000)
            assert writer.ship(*bodies, compressed=True) == (2, 5000)
        assert collector.events() == [json.loads(body) for body in bodies] * 2


class TestCounts:
    def test_counters_are_current_when_the_ack_arrives(self, collector):
        data = window(event(1), event(2)), window(event(3))
        with Writer(collector) as writer:
            for part in data:
                writer.send(part)
                writer.ack()
            counts = collector.counts
        assert (counts.connections, counts.open, counts.windows, counts.events) == (1, 1, 2, 3)
        assert (counts.captured_windows, counts.captured_events, counts.acks) == (2, 3, 2)
        assert counts.bytes == sum(map(len, data))
        assert counts.cuts == counts.protocol_errors == counts.keepalives == 0
        assert collector.wait_for(lambda now: now.open == 0)

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        windows=st.lists(
            st.lists(
                st.tuples(
                    st.sampled_from([PRODUCER, "0b" * 10]), st.integers(0, 6) | st.integers(4090, 4100)
                ),
                min_size=1,
                max_size=8,
            ),
            max_size=8,
        )
    )
    def test_duplicates_are_counted_by_id(self, windows):
        seen = Counter()
        with Collector(count_duplicates=True) as collector:
            with Writer(collector) as writer:
                for pairs in windows:
                    writer.ship(*(event(n, producer) for producer, n in pairs))
                    seen.update(pair for pair in pairs if pair[1])
                runs = list(range(4000, 4200))
                writer.ship(*(event(n) for n in runs))
                seen.update((PRODUCER, n) for n in runs)
            counts = collector.counts
        assert counts.duplicates == sum(times > 1 for times in seen.values())
        assert counts.copies == sum(times - 1 for times in seen.values())

    def test_events_without_ids_are_no_duplicates(self):
        with Collector(count_duplicates=True) as collector, Writer(collector) as writer:
            for _ in range(3):
                writer.ship(b'{"message":"hi"}')
            writer.ship(block(line="a"), version=1)
            assert collector.counts.duplicates == 0


class TestKeepalive:
    def test_keepalives_are_sent_while_an_ack_is_due(self):
        with Collector(keepalive=0.02) as collector, Writer(collector) as writer:
            collector.hold()
            writer.send(window(block(line="a"), version=1))
            assert [writer.ack(), writer.ack()] == [(2, 0), (2, 0)]  # version 2 for a writer of version 1
            collector.release()
            while (ack := writer.ack()) == (2, 0):
                pass
            assert ack == (1, 1)
            assert collector.counts.keepalives >= 2

    def test_keepalives_are_sent_while_a_window_is_incomplete(self):
        with Collector(keepalive=0.02) as collector, Writer(collector) as writer:
            writer.send(window(event(1))[:-1])
            assert writer.ack() == (2, 0)

    def test_no_keepalive_is_sent_on_an_idle_connection(self):
        with Collector(keepalive=0.01, idle=0.2) as collector, Writer(collector) as writer:
            assert writer.closed()
            assert collector.counts.idle_closes == 1

    def test_keepalive_0_sends_none(self):
        with Collector(keepalive=0, idle=0.1) as collector, Writer(collector) as writer:
            writer.send(window(event(1))[:-1])
            assert writer.closed()


class TestMaxConnections:
    def test_connections_beyond_the_maximum_are_closed(self):
        with Collector(max_connections=2) as collector, Writer(collector) as first:
            assert first.ship(event(1)) == (2, 1)
            with Writer(collector) as second:
                assert second.ship(event(2)) == (2, 1)
                with Writer(collector) as third:
                    assert third.closed()
                assert collector.reasons == {"connections: too many": 1}
                assert collector.counts.protocol_errors == 0
            assert collector.wait_for(lambda counts: counts.open == 1)
            with Writer(collector) as fourth:
                assert fourth.ship(event(3)) == (2, 1)
            assert first.ship(event(4)) == (2, 1)


class TestBadWriters:
    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"3W\0\0\0\1",
            b"\x01W\0\0\0\1",
            b"2X\0\0\0\1",
            b"2A\0\0\0\1",
            frame(2, b"W", 1) + frame(2, b"A", 1),
            frame(2, b"W", 0xFFFFFFFF),
            frame(2, b"W", 1) + frame(2, b"C", 9, b"no zlib!!"),
            frame(2, b"W", 1) + frame(2, b"J", 1, b"\xff\xff\xff\xff"),
            window(event(1), b"{} {}"),
            window(b"\xff", compressed=True),
            window(b"[]"),
            window(b"null"),
        ],
    )
    def test_invalid_bytes_close_the_connection_with_a_reason(self, collector, data):
        with Writer(collector) as writer, Writer(collector) as honest:
            honest.ship(event(1))
            writer.send(data)
            assert writer.closed()
            assert collector.counts.protocol_errors == 1
            (reason,) = collector.reasons
            assert reason
            assert "\n" not in reason
            assert honest.ship(event(2)) == (2, 1)
        assert len(collector.events(2)) == 2

    def test_windows_before_an_error_are_acknowledged(self, collector):
        with Writer(collector) as writer:
            writer.send(window(event(1)) + b"garbage")
            assert writer.until_closed() == b"2A\0\0\0\1"
        assert len(collector.events()) == 1

    def test_deep_nesting_has_its_own_error(self):
        deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
        with Collector(check=False, keep=True) as collector, Writer(collector) as writer:
            writer.ship(deep)
            with pytest.raises(ProtocolError, match="event: nested too deep"):
                collector.events(1)

    def test_check_false_takes_invalid_json(self):
        with Collector(check=False) as collector, Writer(collector) as writer:
            assert writer.ship(b"null", b"{") == (2, 2)

    def test_windows_beyond_the_bounds_are_refused(self):
        with Collector(max_window=3, max_bytes=2000) as collector:
            for data in (
                window(*[event(1)] * 4),
                window(event(1, text="x" * 3000)),
                window(event(1, text="x" * 100_000), compressed=True),
            ):
                with Writer(collector) as writer:
                    writer.send(data)
                    assert writer.closed()
            with Writer(collector) as writer:
                assert writer.ship(*[event(1)] * 3) == (2, 3)
            assert collector.counts.protocol_errors == 3

    def test_a_writer_may_disappear_inside_a_window(self, collector):
        for data in (window(event(1))[:-1], b"2", b""):
            with Writer(collector) as writer:
                writer.send(data)
                writer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert collector.wait_for(lambda now: now.connections == 3 and now.open == 0, timeout=PATIENCE)
        assert collector.counts.captured_events == 0
        with Writer(collector) as writer:
            writer.send(window(event(1))[:-1])
            assert writer.rest() == b""
        assert collector.counts.truncated >= 1

    @pytest.mark.slow
    def test_a_writer_that_never_reads_is_not_read_from(self):
        """A thousand keep-alives a window fill every buffer on the way; none is lost, memory is bounded."""
        n, data = 600, window(event(1))
        with Collector(faults="keepalive=every:1:1000") as collector, Writer(collector) as writer:
            sender = threading.Thread(target=writer.send, args=(data * n,))
            sender.start()
            acks = [writer.ack()[1] for _ in range(1001 * n)]
            sender.join()
            assert sum(acks) == n
            assert collector.counts.keepalives == 1000 * n

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_damaged_windows_are_answered_or_refused(self, collector, data):
        """Something is cut out of valid windows or put in: an answer or a close follows, never a hang."""
        stream = (
            window(event(1), event(2)) + window(block(a="b"), version=1) + window(event(3), compressed=True)
        )
        at = data.draw(st.integers(0, len(stream)))
        stream = (
            stream[:at] + data.draw(st.binary(max_size=12)) + stream[at + data.draw(st.integers(0, 12)) :]
        )
        with Writer(collector) as writer:
            try:
                writer.send(stream)
            except ConnectionError:
                pass
            writer.rest()
        with Writer(collector) as writer:
            assert writer.ship(event(1)) == (2, 1)


# --- starting, stopping, waiting ---------------------------------------------------------------


class TestLifecycle:
    def test_url_names_the_port(self, collector):
        assert collector.url == f"lumberjack://127.0.0.1:{collector.port}"
        assert collector.port > 0

    def test_an_ipv6_address_is_listened_on(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        with Collector("::1") as collector, Writer(collector) as writer:
            assert collector.url == f"lumberjack://[::1]:{collector.port}"
            assert writer.ship(event(1)) == (2, 1)

    def test_an_address_in_use_is_refused(self, collector, tmp_path):
        with pytest.raises(ConnectFailed, match=f"port {collector.port}: .*in use"):
            Collector(port=collector.port, capture=str(tmp_path / "c")).start()
        assert not (tmp_path / "c").exists()

    def test_an_impossible_address_is_refused(self):
        with pytest.raises(ConnectFailed, match="listen"):
            Collector("no.such.host.invalid").start()
        with pytest.raises(ConfigError, match="port"):
            Collector(port=65536)

    def test_an_unusable_capture_is_refused(self, tmp_path):
        (tmp_path / "c").touch()
        collector = Collector(capture=str(tmp_path / "c"))
        with pytest.raises(LedgerError):
            collector.start()
        collector.stop()

    def test_a_restart_keeps_port_and_capture(self, tmp_path):
        collector = Collector(capture=str(tmp_path))
        ports = set()
        for n in range(3):
            with collector:
                ports.add(collector.port)
                with Writer(collector) as writer:
                    writer.ship(event(n))
        assert len(ports) == 1
        reader = CaptureReader(tmp_path)
        assert [unit.arrival for unit in reader] == [1, 2, 3, 4, 5, 6]
        assert reader.problems == []
        assert collector.counts.acks == 3

    def test_only_the_second_start_is_an_error(self, collector):
        with pytest.raises(ConfigError, match="running"):
            collector.start()
        collector.stop()
        collector.stop()

    def test_stop_closes_all_connections(self, collector):
        with Writer(collector) as writer:
            writer.ship(event(1))
            collector.stop()
            assert writer.closed()

    def test_hold_delays_acknowledgements_until_release(self, collector):
        with Writer(collector) as writer:
            collector.hold()
            writer.send(window(event(1)) + window(event(2), event(3)))
            assert collector.wait_for(lambda counts: counts.captured_windows == 2, timeout=PATIENCE)
            assert collector.counts.acks == 0
            collector.release()
            assert [writer.ack()[1], writer.ack()[1]] == [1, 2]

    def test_cut_closes_connections_and_keeps_listening(self, collector):
        with Writer(collector) as one, Writer(collector) as two:
            one.ship(event(1))
            two.ship(event(2))
            assert collector.cut(PATIENCE)
            assert collector.counts.open == 0
            assert one.closed()
            assert two.closed()
        with Writer(collector) as writer:
            assert writer.ship(event(3)) == (2, 1)

    def test_wait_for_and_events_time_out(self, collector):
        assert not collector.wait_for(events=1, timeout=0.01)
        with pytest.raises(TimeoutError, match="0 of 3 events"):
            collector.events(3, timeout=0.01)

    @pytest.mark.parametrize(
        "fault", ["add", "corrupt", "discard", "duplicate", "partial-ack", "partial-cut"]
    )
    def test_an_empty_window_is_answered_in_spite_of_faults(self, tmp_path, fault):
        with FaultyCollector(tmp_path, f"{fault}=every:1") as faulty, faulty.connect() as writer:
            assert writer.ship() == (2, 0)
            assert faulty.collector.error is None

    def test_a_window_that_the_collector_takes_can_be_read(self):
        with Collector(max_window=20_000, keep=True) as collector, Writer(collector) as writer:
            assert writer.ship(*[b"{}"] * 10_001) == (2, 10_001)
            assert collector.events() == [{}] * 10_001

    def test_take_forgets_the_events_that_it_returns(self, collector):
        with Writer(collector) as writer:
            writer.ship(event(1))
            assert [e["message"] for e in collector.take()] == ["line 1"]
            writer.ship(event(2))
        assert [e["message"] for e in collector.events()] == ["line 2"]

    def test_a_connection_may_be_idle_for_weeks(self):
        with Collector(idle=30 * 86400.0) as collector, Writer(collector) as writer:
            assert [writer.ship(event(n)) for n in (1, 2)] == [(2, 1)] * 2

    @pytest.mark.parametrize("protocol", ["lumberjack", "logjam", "plog", "logux"])
    def test_a_collector_that_keeps_nothing_says_so(self, protocol):
        """Not even an empty list: a test that compares it with nothing would pass."""
        make = importlib.import_module(f"logclient.testing.{protocol}").Collector
        with make() as collector:
            asks = [collector.events, lambda: collector.events(0)]
            asks += [collector.messages] if protocol == "plog" else []
            for ask in asks:
                with pytest.raises(ConfigError, match="without keep=True"):
                    ask()

    def test_the_error_of_a_dead_thread_is_kept(self, monkeypatch):
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        with Collector() as collector:
            monkeypatch.setattr(collector, "_admit", lambda *_: 1 // 0)
            with Writer(collector) as writer:
                writer.send(window(event(1)))
                assert writer.closed()
            assert not collector.wait_for(events=1, timeout=PATIENCE)
            assert isinstance(collector.error, ZeroDivisionError)

    def test_decode_needs_exactly_one_window(self):
        assert decode(window(b'{"a":1}', b"{}")) == [{"a": 1}, {}]
        for wrong in (b"", b"2A\0\0\0\1", window(b"{}")[:-1], window(b"{}") * 2):
            with pytest.raises(ValueError, match="unit"):
                decode(wrong)


class TestCapture:
    def test_windows_and_acks_are_captured_in_order(self, tmp_path):
        data = [
            window(event(1), event(2)),
            window(event(3), compressed=True),
            window(block(a="b"), version=1),
        ]
        with Collector(capture=str(tmp_path), run="r") as collector, Writer(collector) as writer:
            for part in data:
                writer.send(part)
                writer.ack()
            peer = f"127.0.0.1:{writer.sock.getsockname()[1]}"
        reader = CaptureReader(tmp_path)
        units = list(reader)
        assert reader.problems == []
        assert [unit.raw for unit in units if not unit.direction] == data
        assert [unit.raw for unit in units if unit.direction] == [b"2A\0\0\0\2", b"2A\0\0\0\1", b"1A\0\0\0\1"]
        assert [unit.direction for unit in units] == [0, 1] * 3
        assert {(u.protocol, u.peer) for u in units} == {("lumberjack", peer)}
        [segment] = tmp_path.glob("*.cap")
        assert b'"run": "r"' in segment.read_bytes()
        assert len({unit.stream for unit in units}) == 1

    def test_each_connection_is_a_stream(self, tmp_path):
        with Collector(capture=str(tmp_path)) as collector:
            for n in range(3):
                with Writer(collector) as writer:
                    writer.ship(event(n))
        assert len({unit.stream for unit in CaptureReader(tmp_path)}) == 3

    def test_windows_are_captured_before_the_ack(self, tmp_path):
        with Collector(capture=str(tmp_path)) as collector, Writer(collector) as writer:
            for n in range(1, 30):
                writer.send(window(event(n)))
                writer.ack()
                assert len(captured_windows(tmp_path)) == n

    def test_acks_are_captured_without_further_traffic(self, tmp_path):
        with Collector(capture=str(tmp_path)) as collector, Writer(collector) as writer:
            writer.ship(event(1))
            end = time.monotonic() + PATIENCE
            while len(list(CaptureReader(tmp_path))) < 2:
                assert time.monotonic() < end

    def test_windows_not_captured_are_not_acknowledged(self, tmp_path):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with Collector(capture=str(tmp_path)) as collector:
            try:
                with Writer(collector) as writer, Writer(collector) as idle:
                    assert writer.ship(event(1)) == (2, 1)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
                    writer.send(window(event(2, text="x" * 3000)))
                    assert writer.closed()
                    assert idle.ship(event(3)) == (2, 1)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            with Writer(collector) as writer:
                assert writer.ship(event(2)) == (2, 1)
            assert collector.counts.capture_errors >= 1
        reader = CaptureReader(tmp_path)
        assert ids([unit.raw for unit in reader if not unit.direction]) == [name(1), name(3), name(2)]
        assert reader.problems == []

    def test_the_listener_is_named_after_its_address(self, tmp_path):
        with Collector(capture=str(tmp_path / "a")) as collector:
            assert CaptureReader(tmp_path / "a").listeners == [f"lumberjack-127.0.0.1-{collector.port}"]
        with Collector(capture=str(tmp_path / "b"), listener="mine"):
            assert CaptureReader(tmp_path / "b").listeners == ["mine"]


# --- faults --------------------------------------------------------------------------------------


class FaultyCollector:
    """A collector with faults, its capture and its fault log."""

    def __init__(self, tmp_path: Path, faults: str) -> None:
        self.capture, self.fault_log = tmp_path / "capture", tmp_path / "fault_log"
        self.collector = Collector(
            capture=str(self.capture), faults=faults, fault_log=str(self.fault_log), count_duplicates=True
        )

    def __enter__(self) -> "FaultyCollector":
        self.collector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.collector.stop()

    def connect(self) -> Writer:
        return Writer(self.collector)

    def captured(self) -> list[list[int]]:
        """The sequences of the events in each captured window."""
        return [
            [int(event_id[20:], 16) for event_id in ids([unit])] for unit in captured_windows(self.capture)
        ]

    def logged_faults(self) -> list[tuple[str, list[str]]]:
        return logged_faults(self.fault_log)


class TestCuts:
    def test_cut_before_write_captures_nothing(self, tmp_path):
        with FaultyCollector(tmp_path, "cut-before-write=every:2") as faulty, faulty.connect() as writer:
            assert writer.ship(event(1)) == (2, 1)
            writer.send(window(event(2)))
            assert writer.closed()
            counts = faulty.collector.counts
        assert faulty.captured() == [[1]]
        assert (counts.cuts, counts.cuts_before_write) == (1, 1)

    def test_cut_before_ack_captures_the_window(self, tmp_path):
        with FaultyCollector(tmp_path, "cut-before-ack=every:2") as faulty:
            with faulty.connect() as writer:
                assert writer.ship(event(1)) == (2, 1)
                writer.send(window(event(2)))
                assert writer.closed()
            with faulty.connect() as writer:
                assert writer.ship(event(2)) == (2, 1)
            counts = faulty.collector.counts
        assert faulty.captured() == [[1], [2], [2]]
        assert (counts.cuts, counts.cuts_before_ack) == (1, 1)
        assert (counts.duplicates, counts.copies) == (1, 1)

    def test_cut_after_ack_acknowledges_first(self, tmp_path):
        with FaultyCollector(tmp_path, "cut-after-ack=every:2") as faulty, faulty.connect() as writer:
            writer.send(window(event(1)) + window(event(2), event(3)))
            assert writer.until_closed() == b"2A\0\0\0\1" + b"2A\0\0\0\2"
            assert faulty.collector.counts.cuts_after_ack == 1
        assert faulty.captured() == [[1], [2, 3]]

    @pytest.mark.parametrize("fault", ["cut-before-write", "cut-before-ack", "cut-after-ack"])
    def test_windows_behind_a_cut_never_arrive(self, tmp_path, fault):
        with FaultyCollector(tmp_path, f"{fault}=from:2:max:1") as faulty, faulty.connect() as writer:
            writer.send(b"".join(window(event(n)) for n in range(1, 6)))
            acks = writer.until_closed()
            assert acks == b"2A\0\0\0\1" * (2 if fault == "cut-after-ack" else 1)
        assert faulty.captured() == ([[1]] if fault == "cut-before-write" else [[1], [2]])

    def test_partial_cut_acknowledges_a_part(self, tmp_path):
        with FaultyCollector(tmp_path, "partial-cut=every:1:2:max:1") as faulty:
            with faulty.connect() as writer:
                writer.send(window(event(1), event(2), event(3), first=11))
                assert writer.until_closed() == b"2A\0\0\0\x0c"
            with faulty.connect() as writer:
                assert writer.ship(event(3)) == (2, 1)
            counts = faulty.collector.counts
        assert (counts.partial_acks, counts.cuts_before_ack, counts.duplicates) == (1, 1, 1)

    def test_a_single_event_is_never_acknowledged_in_part(self, tmp_path):
        with (
            FaultyCollector(tmp_path, "partial-cut=every:1,partial-ack=every:1") as faulty,
            faulty.connect() as writer,
        ):
            assert writer.ship(event(1)) == (2, 1)
            assert faulty.collector.report["faults"] == {"partial-cut": 0, "partial-ack": 0}


class TestAckFaults:
    def test_partial_ack_acknowledges_in_two_steps(self, tmp_path):
        with FaultyCollector(tmp_path, "partial-ack=every:1") as faulty, faulty.connect() as writer:
            writer.send(window(*(event(n) for n in range(1, 6))))
            assert [writer.ack(), writer.ack()] == [(2, 2), (2, 5)]
            counts = faulty.collector.counts
        assert (counts.acks, counts.partial_acks) == (1, 1)

    def test_keepalive_fault_sends_keepalives_before_the_ack(self, tmp_path):
        with FaultyCollector(tmp_path, "keepalive=every:1:3") as faulty, faulty.connect() as writer:
            writer.send(window(event(1)))
            assert [writer.ack()[1] for _ in range(4)] == [0, 0, 0, 1]

    def test_a_delayed_ack_keeps_its_place(self, tmp_path):
        with FaultyCollector(tmp_path, "delay-ack=from:1:max:1:100ms") as faulty, faulty.connect() as writer:
            begun = time.monotonic()
            writer.send(window(event(1), event(2)) + window(event(3)))
            assert [writer.ack()[1], writer.ack()[1]] == [2, 1]
            assert time.monotonic() - begun >= 0.1
            assert faulty.collector.report["faults"] == {"delay-ack": 1}

    def test_a_delayed_ack_delays_only_its_connection(self, tmp_path):
        with (
            FaultyCollector(tmp_path, "delay-ack=from:1:max:1:3s") as faulty,
            faulty.connect() as late,
            faulty.connect() as other,
        ):
            late.send(window(event(1)))
            faulty.collector.wait_for(lambda counts: counts.captured_windows == 1, timeout=PATIENCE)
            assert other.ship(event(2)) == (2, 1)
            assert faulty.collector.counts.acks == 1

    def test_stall_silences_one_connection(self, tmp_path):
        with FaultyCollector(tmp_path, "stall=from:2:max:1") as faulty:
            with faulty.connect() as writer, faulty.connect() as other:
                assert writer.ship(event(1)) == (2, 1)
                writer.send(window(event(2)) + window(event(3)))
                assert faulty.collector.wait_for(
                    lambda counts: counts.captured_windows == 3, timeout=PATIENCE
                )
                assert other.ship(event(4)) == (2, 1)
                assert faulty.collector.counts.open == 2
                assert writer.rest() == b""
            assert faulty.collector.counts.stalls == 1
        assert faulty.captured() == [[1], [2], [3], [4]]

    def test_stall_alive_sends_keepalives(self):
        with (
            Collector(faults="stall=every:1:alive", keepalive=0.02) as collector,
            Writer(collector) as writer,
        ):
            writer.send(window(event(1)))
            assert [writer.ack() for _ in range(3)] == [(2, 0)] * 3

    def test_stall_sends_no_keepalives(self):
        with (
            Collector(faults="stall=every:1", keepalive=0.01, idle=0.2) as collector,
            Writer(collector) as writer,
        ):
            writer.send(window(event(1)))
            assert writer.closed()


class TestDataFaults:
    def test_discard_acknowledges_without_capturing(self, tmp_path):
        with FaultyCollector(tmp_path, "discard=every:2:per-connection,seed=1") as faulty:
            for base in (0, 100):
                with faulty.connect() as writer:
                    for n in range(1, 5):
                        assert writer.ship(event(base + n), event(base + n + 50)) == (2, 2)
            counts = faulty.collector.counts
        assert faulty.captured() == [[1, 51], [3, 53], [101, 151], [103, 153]]
        assert faulty.logged_faults() == [
            ("discard", [name(n), name(n + 50)]) for base in (0, 100) for n in (base + 2, base + 4)
        ]
        assert (counts.windows, counts.captured_windows, counts.acks) == (8, 4, 8)
        assert (counts.events, counts.captured_events) == (16, 8)

    @pytest.mark.parametrize("compressed", [False, True])
    def test_swap_captures_two_windows_in_reverse(self, tmp_path, compressed):
        with FaultyCollector(tmp_path, "swap=every:2:max:1:20s") as faulty, faulty.connect() as writer:
            parts = [window(event(n), event(n + 1), compressed=compressed) for n in (1, 3, 5, 7)]
            assert writer.ship(event(1), event(2), compressed=compressed) == (2, 2)
            writer.send(b"".join(parts[1:]))
            assert [writer.ack()[1] for _ in range(3)] == [2, 2, 2]
        assert captured_windows(faulty.capture) == [parts[0], parts[2], parts[1], parts[3]]
        assert faulty.logged_faults() == [("swap", [name(3), name(4)])]

    def test_a_swapped_window_is_acknowledged_after_capture(self, tmp_path):
        with FaultyCollector(tmp_path, "swap=every:1:max:1:20s") as faulty, faulty.connect() as writer:
            writer.send(window(event(1)))
            other = faulty.connect()
            assert other.ship(event(9)) == (2, 1)  # not of this connection: no partner
            assert faulty.collector.counts.acks == 1
            writer.send(window(event(2), event(3)))
            assert [writer.ack()[1], writer.ack()[1]] == [1, 2]
            other.sock.close()
        assert faulty.captured() == [[9], [2, 3], [1]]

    def test_a_swap_without_a_partner_is_withdrawn(self, tmp_path):
        with FaultyCollector(tmp_path, "swap=every:1:50ms:max:1") as faulty:
            with faulty.connect() as writer:
                assert writer.ship(event(1)) == (2, 1)
            with faulty.connect() as writer:
                writer.send(window(event(2)))
                assert writer.rest() == b"2A\0\0\0\1"
            assert faulty.collector.report["faults"] == {"swap": 0}
            with faulty.connect() as writer:
                writer.send(window(event(3)) + window(event(4)))
                assert [writer.ack()[1], writer.ack()[1]] == [1, 1]
        assert faulty.captured() == [[1], [2], [4], [3]]
        assert faulty.logged_faults() == [("swap", [name(3)])]

    def test_stop_captures_a_window_held_for_a_swap(self, tmp_path):
        with FaultyCollector(tmp_path, "swap=every:1:20s") as faulty, faulty.connect() as writer:
            writer.send(window(event(1)))
            assert faulty.collector.wait_for(lambda now: now.windows == 1, timeout=PATIENCE)
            faulty.collector.stop()
            assert writer.closed()
        assert faulty.captured() == [[1]]
        assert faulty.logged_faults() == []

    def test_duplicate_captures_a_window_twice(self, tmp_path):
        with FaultyCollector(tmp_path, "duplicate=every:2") as faulty, faulty.connect() as writer:
            for n in (1, 3):
                writer.ship(event(n), event(n + 1))
            counts = faulty.collector.counts
        assert faulty.captured() == [[1, 2], [3, 4], [3, 4]]
        assert faulty.logged_faults() == [("duplicate", [name(3), name(4)])]
        assert (counts.duplicates, counts.copies, counts.acks) == (2, 2, 2)

    @pytest.mark.parametrize("compressed", [False, True])
    def test_corrupt_changes_one_event(self, tmp_path, compressed):
        with FaultyCollector(tmp_path, "corrupt=every:1,seed=7") as faulty, faulty.connect() as writer:
            sent = [[event(n), event(n + 1), event(n + 2)] for n in range(1, 61, 3)]
            for bodies in sent:
                assert writer.ship(*bodies, compressed=compressed) == (2, 3)
        for bodies, unit, (fault, (event_id,)) in zip(
            sent, captured_windows(faulty.capture), faulty.logged_faults(), strict=True
        ):
            before, after = [json.loads(body) for body in bodies], decode(unit)
            changed = [n for n in range(3) if before[n] != after[n]]
            assert ids([unit]) == ids([window(*bodies)])  # all of them still readable
            assert [event_id] == [ids([unit])[n] for n in changed]
            assert fault == "corrupt"

    def test_add_captures_one_event_more(self, tmp_path):
        with FaultyCollector(tmp_path, "add=every:1,seed=2") as faulty, faulty.connect() as writer:
            for n in range(1, 30):
                assert writer.ship(event(2 * n), event(2 * n + 1), compressed=n % 2 == 0) == (2, 2)
        sent = {name(n) for n in range(100)}
        producers = set()
        for unit, (fault, (event_id,)) in zip(
            captured_windows(faulty.capture), faulty.logged_faults(), strict=True
        ):
            assert (fault, ids([unit])[2:]) == ("add", [event_id])
            assert event_id not in sent
            producers.add(event_id[:20] == PRODUCER)
            document = decode(unit)[2]
            assert document["event.id"] == event_id
            assert document["message"].startswith("line ")
        assert producers == {True, False}

    @pytest.mark.parametrize("fault", ["corrupt", "add", "duplicate", "discard", "swap"])
    def test_data_faults_apply_to_version_1(self, tmp_path, fault):
        blocks = block(line="first"), block(**{"line": "second", "event.id": name(5)})
        with FaultyCollector(tmp_path, f"{fault}=from:1:max:1,seed=3") as faulty, faulty.connect() as writer:
            writer.send(window(*blocks, version=1) + window(*blocks, version=1, compressed=True))
            assert [writer.ack(), writer.ack()] == [(1, 2), (1, 2)]
        units = [decode(unit) for unit in captured_windows(faulty.capture)]
        plain = [{"line": "first"}, {"line": "second", "event.id": name(5)}]
        ((found, named),) = faulty.logged_faults()
        assert found == fault
        if fault == "corrupt":
            assert units[0] != plain
            assert units[1] == plain
        elif fault == "add":
            assert units[0][:2] == plain
            assert len(units[0]) == 3
        else:
            assert units == [plain] * {"duplicate": 3, "discard": 1, "swap": 2}[fault]
            assert named == [name(5)]

    def test_a_window_that_cannot_be_corrupted_stays(self, tmp_path):
        with FaultyCollector(tmp_path, "corrupt=every:1:max:1") as faulty, faulty.connect() as writer:
            writer.ship(b"{}")
            assert faulty.collector.report["faults"] == {"corrupt": 0}
            writer.ship(b'{"a":"b"}')
            assert faulty.collector.report["faults"] == {"corrupt": 1}

    def test_a_data_fault_excludes_connection_faults(self, tmp_path):
        spec = "discard=every:2,cut-before-ack=every:2,stall=every:2,partial-cut=every:2"
        with FaultyCollector(tmp_path, spec) as faulty, faulty.connect() as writer:
            for n in range(1, 5):
                assert writer.ship(event(n), event(n + 10)) == (2, 2)

    def test_a_seed_determines_the_capture(self, tmp_path):
        spec = "corrupt=p:0.3,add=p:0.3,discard=p:0.2,partial-ack=p:0.5,seed=%d"
        found = {}
        for run, seed in (("a", 5), ("b", 5), ("c", 6)):
            (tmp_path / run).mkdir()
            with FaultyCollector(tmp_path / run, spec % seed) as faulty, faulty.connect() as writer:
                for n in range(1, 40):
                    writer.send(window(event(n), event(n + 100)))
                    while writer.ack()[1] < 2:
                        pass
            found[run] = captured_windows(faulty.capture), faulty.logged_faults()
        assert found["a"] == found["b"] != found["c"]

    def test_the_fault_log_must_be_outside_the_capture(self, tmp_path):
        with pytest.raises(ConfigError, match="outside the capture"):
            Collector(capture=str(tmp_path), fault_log=str(tmp_path / "w"), faults="discard=every:2").start()

    def test_the_fault_log_is_optional(self, tmp_path):
        with Collector(faults="discard=every:1") as collector, Writer(collector) as writer:
            assert writer.ship(event(1)) == (2, 1)
            assert collector.counts.captured_events == 0


# --- the fixture and the command -----------------------------------------------------------------


class TestFixture:
    def test_the_fixture_collects_events(self, log_collector):
        with Writer(log_collector) as writer:
            writer.ship(event(1))
        assert log_collector.events(1)[0]["message"] == "line 1"

    @pytest.mark.slow
    def test_the_fixture_takes_a_scheme(self, tmp_path):
        """As in a project that has this package installed."""
        pytest.importorskip("zmq")
        tests = """
import logclient, pytest

def ships(url):
    with logclient.connect(url) as client:
        client.send({"n": 1})

def test_nothing_said(log_collector):
    ships(log_collector.url)
    assert log_collector.events(1)[0]["n"] == 1

@pytest.mark.parametrize("log_collector_scheme", ["logjam"])
def test_said(log_collector):
    ships(f"{log_collector.url}/shop-production")
    assert log_collector.events(1)[0]["n"] == 1

@pytest.mark.parametrize("log_collector_scheme", ["plog"])
def test_datagrams(log_collector):
    ships(log_collector.url)
    assert log_collector.events(1)[0]["n"] == 1

@pytest.mark.parametrize("log_collector_scheme", ["gopher"])
def test_none(log_collector):
    pass

class TestPushed:
    @pytest.fixture
    def log_collector_scheme(self):
        return "logjam"

    @pytest.fixture
    def log_collector_options(self):
        return {"port": None, "device": 7}

    def test_ships(self, log_collector):
        ships(f"{log_collector.url}/shop-production")
        assert log_collector.url.startswith("logjam+push:")
        assert log_collector.events(1)[0]["n"] == 1
"""
        (tmp_path / "test_theirs.py").write_text(tests)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "logclient.testing.pytest_plugin"],
            cwd=tmp_path,
            env=clean_environment(
                PYTHONPATH=os.pathsep.join(p for p in sys.path if p), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
            ),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert done.stdout.splitlines()[-1].startswith("4 passed, 1 error"), done.stdout + done.stderr
        assert "log_collector_scheme: 'gopher' is none of lumberjack, logjam, plog, logux" in done.stdout

    def test_the_plugin_imports_nothing_at_first(self):
        code = """
import sys, pytest
before = set(sys.modules)
import logclient.testing.pytest_plugin
new = {name for name in set(sys.modules) - before}
assert new <= {"logclient", "logclient.lazy", "logclient.testing", "logclient.testing.pytest_plugin"}, new
"""
        program = [sys.executable, "-c", code]
        subprocess.run(program, check=True, env=clean_environment(), timeout=2 * PATIENCE)


class Command:
    """``logclient collect`` as a process."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "logclient", "collect", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def line(self) -> dict:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=2 * PATIENCE)
        return self.process.returncode, out, err


class TestCommand:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_collect_runs_until_a_signal(self, tmp_path, number):
        command = Command("lumberjack://127.0.0.1:0", "--capture", str(tmp_path / "c"), "--json")
        ready = command.line()
        assert ready == {"url": f"lumberjack://127.0.0.1:{ready['port']}", "port": ready["port"]}
        with Writer(ready["port"]) as writer:
            for _ in range(2):
                assert writer.ship(event(1), event(2)) == (2, 2)
        code, out, err = command.end(number)
        assert (code, err) == (0, "")
        (report,) = map(json.loads, out.splitlines())
        assert report["url"] == ready["url"]
        assert (report["windows"], report["duplicates"], report["cuts"]) == (2, 2, 0)
        assert CaptureReader(tmp_path / "c").problems == []
        assert len(captured_windows(tmp_path / "c")) == 2

    def test_an_ignored_signal_stays_ignored(self, tmp_path):
        """As in a background job of a script: Ctrl-C is meant for the script."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            command = Command("lumberjack://127.0.0.1:0", "--capture", str(tmp_path / "c"), "--json")
        finally:
            signal.signal(signal.SIGINT, before)
        port = command.line()["port"]
        command.process.send_signal(signal.SIGINT)
        with Writer(port) as writer:
            assert writer.ship(event(1)) == (2, 1)
        code, out, err = command.end(signal.SIGTERM)
        assert (code, err) == (0, "")
        assert json.loads(out)["windows"] == 1

    @pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs limits of another process")
    def test_a_failing_capture_is_reported_with_exit_code_3(self, tmp_path):
        command = Command("lumberjack://127.0.0.1:0", "--capture", str(tmp_path / "c"))
        port = command.line()["port"]
        resource.prlimit(command.process.pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        with Writer(port) as writer:
            writer.send(window(event(1, text="x" * 3000)))
            assert writer.closed()
        assert command.process.stderr is not None
        said = command.process.stderr.readline()  # while it runs
        assert said.startswith(f"lumberjack://127.0.0.1:{port}: not captured: capture: ")
        code, _, err = command.end()
        assert code == 3
        assert "not captured" not in err

    def test_events_are_printed_as_they_come(self):
        """Without a capture, and so that a terminal obeys none of them."""
        command = Command("lumberjack://127.0.0.1:0", "plog://127.0.0.1:0", "--print")
        port, datagrams = command.line()["port"], command.line()["port"]
        with Writer(port) as writer, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for text in ("größte", "\x1b[31m\u202e"):
                assert writer.ship(event(1, text=text), event(2)) == (2, 2)
                line = command.process.stdout.readline().rstrip("\n")
                assert line.isprintable() and json.loads(line)["text"] == text
                assert command.line()["message"] == "line 2"
            sender.sendto(b"no JSON \x1b", ("127.0.0.1", datagrams))
            assert command.line() == "no JSON \x1b"
        assert command.end()[:2] == (0, "")

    def test_url_options_bound_connections(self, tmp_path):
        command = Command("lumberjack://127.0.0.1:0?max_connections=1&idle=60s", "--capture", str(tmp_path))
        port = command.line()["port"]
        with Writer(port) as first:
            assert first.ship(event(1)) == (2, 1)
            with Writer(port) as second:
                assert second.closed()
        assert command.end()[0] == 0

    def test_several_collectors_run_for_a_time(self, tmp_path, capsys):
        urls = ["lumberjack://127.0.0.1:0", "lumberjack://127.0.0.1:0,127.0.0.1:0"]
        code = collect(urls, capture=str(tmp_path), faults="discard=every:2", seconds=0.01)
        said = capsys.readouterr()
        lines = [json.loads(line) for line in said.out.splitlines()]
        assert code == 0
        assert len({line["port"] for line in lines}) == 3
        assert len(CaptureReader(tmp_path).listeners) == 3
        assert said.err.count("0 events in 0 windows over 0 connections\n") == 3

    def test_json_reports_faults_and_reasons(self, capsys):
        collect(["lumberjack://127.0.0.1:0"], capture=None, seconds=0.01, as_json=True)
        report = json.loads(capsys.readouterr().out.splitlines()[1])
        assert report["faults"] == report["reasons"] == {}

    def test_collect_runs_in_another_thread(self, capsys):
        options = {"capture": None, "seconds": 0}
        thread = threading.Thread(target=collect, args=(["lumberjack://127.0.0.1:0"],), kwargs=options)
        thread.start()
        thread.join(PATIENCE)
        assert json.loads(capsys.readouterr().out)["port"]

    def test_a_dead_server_ends_the_command(self, monkeypatch):
        def die(self):
            raise RuntimeError("boom")

        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        monkeypatch.setattr(Collector, "_due_at", die)
        with pytest.raises(RuntimeError, match="boom"):
            collect(["lumberjack://127.0.0.1:0"], capture=None)

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("ftp://127.0.0.1:1", "scheme"),
            ("lumberjack://127.0.0.1:0?window=5", "window: not an option of a collector"),
            ("lumberjack://u:p@127.0.0.1:0", "user:password@"),
        ],
    )
    def test_invalid_collector_urls_are_refused(self, tmp_path, url, words):
        with pytest.raises(ConfigError, match=words):
            collect([url], capture=str(tmp_path / "c"), seconds=0)
        assert not (tmp_path / "c").exists()

    def test_an_address_in_use_ends_the_command(self, collector):
        with pytest.raises(ConnectFailed):
            collect(["lumberjack://127.0.0.1:0", collector.url], capture=None)


# --- kill -9 -------------------------------------------------------------------------------------


class ResendingWriter:
    """A writer with its own thread: two windows in flight, unacknowledged ones sent again, in order."""

    def __init__(self, port: int, producer: str, window: int) -> None:
        self.port = port
        self.producer = producer
        self.window = window
        self.changed = threading.Condition()
        self.sent = 0  # sequences 1..sent went out at least once
        self.acked = 0  # sequences 1..acked
        self.resent = 0  # events
        self.losses = 0  # connections lost with a window in flight
        self.done = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.done:
            try:
                with Writer(self.port) as writer:
                    self._ship(writer)
            except OSError:
                continue

    def _ship(self, writer: Writer) -> None:
        at, flying = self.acked, 0
        try:
            while not self.done or flying:
                if flying < 2 and not self.done:
                    numbers = range(at + 1, at + 1 + self.window)
                    with self.changed:
                        self.resent += max(0, min(self.sent, numbers[-1]) - at)
                        self.sent = max(self.sent, numbers[-1])
                    at, flying = numbers[-1], flying + 1
                    writer.send(window(*(event(n, self.producer) for n in numbers)))
                else:
                    version, number = writer.ack()
                    assert (version, number) == (2, self.window)
                    flying -= 1
                    with self.changed:
                        self.acked += self.window
                        self.changed.notify_all()
        finally:
            self.losses += bool(flying)


@pytest.mark.slow
def test_killed_collectors_lose_no_acknowledged_window(tmp_path):
    """kill -9 of the collector, ten times under load.

    Acks are late at random, so that some kills fall between the write and the ack.
    """
    rng = random.Random(1)
    capture = tmp_path / "capture"
    shippers: list[ResendingWriter] = []
    kills = port = 0
    for kill in range(11):
        command = Command(
            f"lumberjack://127.0.0.1:{port}",
            "--capture",
            str(capture),
            "--faults",
            f"delay-ack=p:0.3:10ms,seed={kill}",
        )
        port = command.line()["port"]
        shippers = shippers or [ResendingWriter(port, f"{n:020x}", 60) for n in (1, 2)]
        for shipper in shippers:
            target = shipper.acked + 60 * rng.randrange(1, 30)
            with shipper.changed:
                assert shipper.changed.wait_for(lambda s=shipper, t=target: s.acked >= t, PATIENCE)
        if kill < 10:
            command.end(signal.SIGKILL)
            kills += 1
            assert [problem.kind for problem in _problems(capture)] == ["unclosed"]
    for shipper in shippers:
        shipper.done = True
        shipper.thread.join(PATIENCE)
    assert command.end()[0] == 0

    reader = CaptureReader(capture)
    counted = Counter(event_id for unit in reader if not unit.direction for event_id in ids([unit.raw]))
    assert reader.problems == []
    for shipper in shippers:
        missing = [n for n in range(1, shipper.acked + 1) if not counted[name(n, shipper.producer)]]
        assert missing == []
    resent, losses = sum(s.resent for s in shippers), sum(s.losses for s in shippers)
    duplicated = sum(times > 1 for times in counted.values())  # killed after the write, before the ack
    print(
        f"{kills} kills, {losses} connections lost in flight, {resent} events resent, {duplicated} duplicated"
    )
    assert losses >= kills
    assert resent >= 1000
    assert duplicated > 0


def _problems(capture: Path) -> list:
    reader = CaptureReader(capture)
    for _ in reader:
        pass
    return reader.problems


def test_an_idle_collector_ends_its_segment_in_time(tmp_path):
    """So that ``push`` copies the last events of an hour that nobody follows."""
    with Collector(capture=str(tmp_path), rotate=0.05) as collector, Writer(collector) as writer:
        writer.send(window(event(1)))
        wait_until(lambda: len([*tmp_path.glob("*.cap")]) == 2)
    first, second = sorted(tmp_path.glob("*.cap"))
    assert [unit.direction for unit in CaptureReader(first)][:1] == [0]
    assert [*CaptureReader(second)] == []
