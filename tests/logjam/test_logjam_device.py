"""The Logjam device over real sockets: replies, captures, publications, refusals and faults."""

# ruff: noqa: SIM117 - nested blocks show the device around its producers

import json
import os
import re
import resource
import socket
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient._ext.logjam import LINKED
from logclient.cli.collect import collect
from logclient.delivery.attempt import Attempt
from logclient.errors import (
    ConfigError,
    ConnectFailed,
    CredentialError,
    LedgerError,
    MissingExtra,
    ProtocolError,
)
from logclient.files.capture import CaptureReader
from logclient.logjam import messages
from logclient.logjam.messages import METHODS, SEQUENCE_MAX, compress, decompress, frames, read_meta, unit
from tests.support import need, transports
from tests.support.patience import PATIENCE

zmq = pytest.importorskip("zmq")

from logclient.logjam.subscriber import Subscriber  # noqa: E402
from logclient.testing import logjam_sockets  # noqa: E402
from logclient.testing.logjam import Collector, decode  # noqa: E402
from logclient.testing.logjam_device import Device  # noqa: E402
from tests.support.logjam_rig import (  # noqa: E402
    ACCEPTED,
    APP_ENV,
    DEADLINE,
    NOW,
    REFUSED,
    TOPIC,
    DeviceProcess,
    Frames,
    Producer,
    event,
    message,
    meta,
    name,
)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector(keep=True) as collector:
        yield collector


def captured(directory: Path, direction: int = 0) -> list[Frames]:
    return [frames(row.raw) for row in CaptureReader(directory) if row.direction == direction]


def ids(directory: Path) -> list[str]:
    """Return the ids of the captured events in order."""
    return [decode(unit(parts))[0].get("request_id", "") for parts in captured(directory)]


def logged_faults(path: Path) -> list[tuple[str, list[str]]]:
    return [(entry["fault"], entry["ids"]) for entry in map(json.loads, path.read_text().splitlines())]


def subscriber(producer: Producer, collector: Collector) -> Any:
    """Return a SUB socket that receives everything from now on."""
    sub = producer.context.socket(zmq.SUB)
    sub.subscribe(b"")
    sub.connect(collector.publish_url)
    assert collector.wait_for(lambda counts: counts.subscriptions > 0)
    return sub


def keys() -> tuple[str, str]:
    """Make a key pair for CURVE: public and secret."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def published(sub: Any) -> Frames:
    assert sub.poll(DEADLINE), "nothing was published"
    return sub.recv_multipart()


# --- replies -----------------------------------------------------------------------------------


class TestReplies:
    def test_requests_are_answered_in_order(self, collector):
        with Producer(collector.port) as one, Producer(collector.port) as two:
            one.ask(message(1))
            two.ask([b"other-test", TOPIC, event(2), meta()])
            one.ask([b"no dash", TOPIC, event(3), meta()])
            one.ask(message(4))
            assert [one.reply() for _ in range(3)] == [ACCEPTED, [b"no dash", b"400 Bad Request"], ACCEPTED]
            assert two.reply() == [b"other-test", b"202 Accepted"]
        assert collector.counts.acks == 3
        assert collector.counts.refusals == 1
        assert {e["message"] for e in collector.events(3)} == {"line 1", "line 2", "line 4"}

    def test_message_without_empty_frame_gets_no_reply(self, collector):
        with Producer(collector.port) as producer:
            producer.tell(message(1))
            producer.tell([APP_ENV])
            assert producer.ship(2) == [ACCEPTED]
            assert producer.silent()
        assert [e["message"] for e in collector.events(2)] == ["line 1", "line 2"]
        assert collector.reasons == {"frames: a message has 4, not 1": 1}

    def test_pushed_messages_are_kept_if_valid(self, collector):
        with Producer(collector.push_port, zmq.PUSH) as producer:
            producer.tell(message(1))
            producer.tell(message(2)[:3])
            producer.tell([b"", *message(3)])
            producer.tell(message(4))
            assert [e["message"] for e in collector.events(3)] == ["line 1", "line 2", "line 4"]

    def test_message_of_unknown_topic_is_accepted_but_dropped(self, collector):
        """The real device, too, looks at the topic after its reply."""
        with Producer(collector.port) as producer:
            producer.ask(message(1, topic=b"bogus"))
            assert producer.reply() == ACCEPTED
        counts = collector.counts
        assert (counts.acks, counts.captured_events, counts.dropped) == (1, 0, 1)

    def test_ping_is_answered_or_refused_and_not_captured(self, collector):
        with Producer(collector.port) as producer:
            producer.ask([b"ping", APP_ENV, b"{}", meta()])
            assert producer.reply() == [b"ping", b"200 OK", socket.gethostname().encode()]
            producer.ask([b"ping", b"", b"{}", b"meta"])
            assert producer.reply() == [b"ping", b"400 Bad Request"]
        counts = collector.counts
        assert (counts.pings, counts.refusals, counts.captured_events, counts.dropped) == (1, 1, 0, 0)

    def test_each_socket_has_its_port_and_url(self, collector):
        assert collector.url == f"logjam://127.0.0.1:{collector.port}"
        assert collector.push_url == f"logjam+push://127.0.0.1:{collector.push_port}"
        assert collector.publish_url == f"tcp://127.0.0.1:{collector.publish_port}"
        with Collector(port=None, publish_port=None) as pull, Producer(pull.push_port, zmq.PUSH) as producer:
            assert pull.url == pull.push_url
            producer.tell(message(1))
            assert pull.wait_for(events=1)
        with Collector(push_port=None, publish_port=None) as router, Producer(router.port) as producer:
            assert (router.push_port, router.publish_port) == (None, None)
            assert producer.ship(1) == [ACCEPTED]

    def test_device_listens_on_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as sock:
                sock.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6")
        with Collector("::1", keep=True) as collector, zmq.Context() as context:
            assert collector.url.startswith("logjam://[::1]:")
            with context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.IPV6, 1)
                dealer.connect(f"tcp://[::1]:{collector.port}")
                dealer.send_multipart([b"", *message(1)])
                assert dealer.poll(DEADLINE)

    def test_hold_delays_replies_until_release(self, collector):
        with Producer(collector.port) as producer:
            collector.hold()
            producer.ask(message(1))
            producer.ask(message(2))
            assert collector.wait_for(events=2)
            assert producer.silent()
            collector.release()
            assert [producer.reply(), producer.reply()] == [ACCEPTED, ACCEPTED]

    def test_cut_ends_every_connection(self, collector):
        with Producer(collector.port) as one, Producer(collector.push_port, zmq.PUSH) as two:
            assert one.ship(1) == [ACCEPTED]
            two.tell(message(2))
            assert collector.wait_for(lambda counts: counts.open == 2 and counts.captured_events == 2)
            collector.cut()
            assert one.cut()
            assert two.cut()
        assert collector.wait_for(lambda counts: counts.open == 0)
        assert collector.counts.connections == 2

    def test_reply_to_a_closed_connection_is_counted(self, collector):
        with Producer(collector.port) as stays:
            collector.hold()
            with Producer(collector.port) as goes:
                goes.ask(message(1))
                stays.ask(message(2))
                assert collector.wait_for(events=2)
            assert collector.wait_for(lambda counts: counts.open == 1)
            # libzmq reports the end of a connection before its socket knows; a later one comes after both.
            with Producer(collector.port) as later:
                later.ask(message(3))
                assert collector.wait_for(events=3)
                collector.release()
                assert later.reply() == ACCEPTED
            assert stays.reply() == ACCEPTED
        assert collector.counts.acks == 3
        assert collector.counts.replies_lost == 1


class TestPublishing:
    def test_publications_are_renumbered_with_device_number(self):
        clock = iter(range(5_000_000, 6_000_000, 1000))
        with Collector(device=9, heartbeat=0, clock=lambda: next(clock)) as collector:
            with Producer(collector.port) as producer:
                sub = subscriber(producer, collector)
                producer.ask([APP_ENV, TOPIC, event(1), meta(77, created_ms=12)])
                producer.ask([APP_ENV, TOPIC, event(2), meta(78, created_ms=0)])
                producer.ask([APP_ENV, b"bogus", event(3), meta(79)])
                producer.ask([APP_ENV, TOPIC, event(4), meta(80, tag=0xBDCA)])
                got = [published(sub) for _ in range(3)]
        assert [parts[:3] for parts in got] == [[APP_ENV, TOPIC, event(n)] for n in (1, 2, 4)]
        metas = [read_meta(parts[3]) for parts in got]
        assert all(valid for _, valid in metas)
        assert [(m.device, m.sequence) for m, _ in metas] == [(9, 1), (9, 2), (9, 3)]
        assert metas[0][0].created_ms == 12
        assert 5000 <= metas[1][0].created_ms < 6000
        assert metas[2][0].created_ms == NOW

    def test_publications_restart_at_1(self):
        collector = Collector(heartbeat=0)
        for _ in range(2):
            with collector, Producer(collector.port) as producer:
                sub = subscriber(producer, collector)
                producer.ask(message(1))
                assert read_meta(published(sub)[3])[0].sequence == 1
                sub.close()
                collector._count["subscriptions"] = 0

    def test_heartbeats_are_numbered_like_publications(self):
        with Collector(heartbeat=0.05) as collector, Producer(collector.port) as producer:
            sub = subscriber(producer, collector)
            one, two = published(sub), published(sub)
        assert one[:3] == [b"heartbeat", collector.publish_url.encode(), b"{}"]
        assert read_meta(two[3])[0].sequence == read_meta(one[3])[0].sequence + 1

    def test_publication_numbers_wrap_to_1(self):
        device = Device()
        device.sequence = SEQUENCE_MAX - 1
        seen = [read_meta(device.heartbeat("tcp://h:1", 5)[3])[0].sequence for _ in range(3)]
        assert seen == [SEQUENCE_MAX, 1, 2]

    @pytest.mark.parametrize("method", ["zlib", "snappy", "lz4"])
    def test_recompress_compresses_plain_bodies_only(self, method):
        need({"zlib": "zlib", "snappy": "snappy", "lz4": "lz4.block"}[method])
        body = event(1, text="x" * 5000)
        with Collector(recompress=method, heartbeat=0, keep=True) as collector:
            with Producer(collector.port) as producer:
                sub = subscriber(producer, collector)
                producer.ask(message(body))
                producer.ask(message(zlib.compress(body), METHODS["zlib"]))
                one, two = published(sub), published(sub)
            assert decompress(METHODS[method], one[2], len(body)) == body
            assert read_meta(one[3])[0].compression == METHODS[method]
            assert two[2] == zlib.compress(body)  # not touched
            assert [e["text"] for e in collector.events(2)] == ["x" * 5000] * 2

    def test_allowed_invalid_meta_is_published_yet_refused(self):
        with Collector(allow_invalid=True, heartbeat=0) as collector:
            with Producer(collector.port) as producer:
                sub = subscriber(producer, collector)
                producer.ask([APP_ENV, TOPIC, event(1), b"no meta"])
                assert producer.reply() == REFUSED
                assert published(sub)[2] == event(1)


# --- the capture -------------------------------------------------------------------------------


class TestCapture:
    def test_capture_has_messages_replies_and_their_stream(self, tmp_path):
        with Collector(capture=str(tmp_path), run="r1") as collector:
            with Producer(collector.port) as one, Producer(collector.push_port, zmq.PUSH) as two:
                assert one.ship(1) == [ACCEPTED]
                one.tell(message(2))
                assert collector.wait_for(events=2)
                two.tell(message(3)[:3])
                assert collector.wait_for(events=3)
                one.ask([b"x", b"y"])
                assert one.reply() == [b"x", b"400 Bad Request"]
        rows = list(reader := CaptureReader(tmp_path))
        assert not reader.problems
        assert [(row.direction, frames(row.raw)) for row in rows] == [
            (0, [b"", *message(1)]),
            (1, ACCEPTED),
            (0, message(2)),
            (0, message(3)[:3]),
            (1, [b"x", b"400 Bad Request"]),
        ]
        assert {row.protocol for row in rows} == {"logjam"}
        assert {row.listener for row in rows} == {f"logjam-127.0.0.1-{collector.port}"}
        assert [row.arrival for row in rows] == [1, 2, 3, 4, 5]
        streams = [row.stream for row in rows]
        assert streams[0] == streams[1] == streams[2] == streams[4] != streams[3]
        assert rows[3].peer == "push"
        assert re.fullmatch(r"127\.0\.0\.1:\d+ 00[0-9a-f]{8}", rows[0].peer)

    def test_every_connection_is_a_stream(self, tmp_path):
        with Collector(capture=str(tmp_path)) as collector:
            for n in (1, 2):
                with Producer(collector.port) as producer:
                    assert producer.ship(n) == [ACCEPTED]
        assert len({row.stream for row in CaptureReader(tmp_path)}) == 2

    def test_message_is_captured_before_its_reply(self, tmp_path):
        with Collector(capture=str(tmp_path)) as collector, Producer(collector.port) as producer:
            for n in range(1, 51):
                producer.ship(n)
                assert len(captured(tmp_path)) == n

    def test_replies_are_captured_without_further_traffic(self, tmp_path):
        with Collector(capture=str(tmp_path), heartbeat=0) as collector, Producer(collector.port) as producer:
            producer.ship(1)
            end = time.monotonic() + PATIENCE
            while not captured(tmp_path, 1):
                assert time.monotonic() < end

    def test_uncaptured_message_is_not_acked_or_published(self, tmp_path):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with Collector(capture=str(tmp_path), heartbeat=0) as collector:
            try:
                with Producer(collector.port) as producer, Producer(collector.port) as idle:
                    sub = subscriber(producer, collector)
                    assert producer.ship(1) == [ACCEPTED]
                    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
                    producer.ask(message(event(2, text="x" * 3000)))
                    assert producer.cut()
                    assert idle.ship(3) == [ACCEPTED]
                    assert collector.counts.acks == 2
                    assert [published(sub)[2] for _ in range(2)] == [event(1), event(3)]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            with Producer(collector.port) as producer:
                assert producer.ship(2) == [ACCEPTED]
            assert collector.counts.capture_errors >= 1
        assert ids(tmp_path) == [name(1), name(3), name(2)]

    def test_restart_continues_the_capture(self, tmp_path):
        collector = Collector(capture=str(tmp_path), keep=True)
        for n in (1, 2):
            with collector, Producer(collector.port) as producer:
                producer.ship(n)
        rows = list(reader := CaptureReader(tmp_path))
        assert [row.arrival for row in rows if row.direction == 0] == [1, 3]
        assert not reader.problems

    def test_duplicates_are_counted_by_id(self):
        with Collector(count_duplicates=True) as collector, Producer(collector.port) as producer:
            other = event(4, producer="ff" * 10)
            packed = [message(zlib.compress(event(2)), 1), message(event(2) + b" \n")]
            producer.ship(1, 2, 3, 2, other, other, b"{}", b"{}", b"no JSON")
            for parts in [*packed, message(b'{"uuid":"%s"}' % name(3).encode(), topic=b"events.a.b")]:
                producer.ask(parts)
                producer.reply()
            counts = collector.counts
        assert (counts.duplicates, counts.copies) == (3, 5)


@pytest.mark.slow
def test_killed_device_has_captured_all_it_answered(tmp_path):
    """The next device continues that capture."""
    acked = sent = 0
    port = 0
    for life in range(4):
        with DeviceProcess(port=port, capture=str(tmp_path), listener="here") as process:
            port = process.port
            with Producer(port) as producer:
                for _ in range(300):
                    producer.sock.send_multipart([b"", *message(sent + 1)])
                    sent += 1
                ours = [producer.reply() for _ in range(100)]
                process.end()
                with suppress(zmq.Again):  # a libzmq client may lose what it has not read when it is cut
                    while producer.sock.poll(50):
                        ours.append(producer.sock.recv_multipart(zmq.NOBLOCK))
        assert set(map(tuple, ours)) == {tuple(ACCEPTED)}
        kept = ids(tmp_path)
        # Messages are answered in order: those with a reply are the first ones of this life.
        first = life * 300 + 1
        assert {name(n) for n in range(first, first + len(ours))} <= set(kept)
        assert len(kept) == len(set(kept))
        acked += len(ours)
    with Collector(port=port, capture=str(tmp_path), listener="here") as last, Producer(port) as producer:
        assert producer.ship(sent + 1) == [ACCEPTED]
        assert last.port == port
    rows = list(reader := CaptureReader(tmp_path))
    assert not reader.problems  # each segment was closed by the next device, without a hole
    assert [row.arrival for row in rows] == list(range(1, len(rows) + 1))
    assert acked >= 400


# --- faults ------------------------------------------------------------------------------------


class TestFaults:
    def test_cut_before_ack_captures_and_ends_one_connection(self, tmp_path):
        with Collector(capture=str(tmp_path), faults="cut-before-ack=from:2:every:1:max:1") as collector:
            with Producer(collector.port) as other, Producer(collector.port) as producer:
                assert producer.ship(1) == [ACCEPTED]
                producer.ask(message(2))
                assert producer.cut()
                assert producer.silent()
                assert other.ship(3) == [ACCEPTED]
                assert other.connected()
            assert collector.counts.cuts_before_ack == 1
        assert ids(tmp_path) == [name(1), name(2), name(3)]

    def test_messages_behind_a_cut_are_not_captured(self, tmp_path):
        with Collector(capture=str(tmp_path), faults="cut-before-ack=from:3:max:1") as collector:
            with Producer(collector.port) as producer:
                with suppress(zmq.Again):  # it may be cut by then
                    for n in range(1, 200):
                        producer.sock.send_multipart([b"", *message(n)], zmq.NOBLOCK)
                assert producer.cut()
            assert collector.counts.acks == 2
        assert ids(tmp_path) == [name(1), name(2), name(3)]

    def test_cut_before_write_captures_nothing(self, tmp_path):
        with Collector(capture=str(tmp_path), faults="cut-before-write=max:1") as collector:
            with Producer(collector.port) as producer:
                producer.ask(message(1))
                assert producer.cut()
            with Producer(collector.port) as producer:
                assert producer.ship(2) == [ACCEPTED]
            assert collector.counts.cuts == 1
        assert ids(tmp_path) == [name(2)]

    def test_cut_after_ack_sends_the_reply_first(self):
        """A libzmq client may still lose the reply, if it has not read it before the cut."""
        with Collector(faults="cut-after-ack=max:20") as collector:
            for _ in range(20):
                with dealer_connection(collector.port) as sock:
                    sock.sendall(wire([b"", *message(b"{}")]))
                    reply = b""
                    while more := sock.recv(1000):
                        reply += more
                    assert reply.endswith(wire(ACCEPTED))
            assert collector.counts.cuts_after_ack == 20

    def test_cut_of_a_push_leaves_other_connections(self, tmp_path):
        with Collector(capture=str(tmp_path), faults="cut-before-write=max:1") as collector:
            with (
                Producer(collector.push_port, zmq.PUSH) as one,
                Producer(collector.push_port, zmq.PUSH) as two,
            ):
                one.tell(message(1))
                assert one.cut()
                two.tell(message(2))
                assert collector.wait_for(events=1)
                assert two.connected()
        assert ids(tmp_path) == [name(2)]

    def test_push_that_cannot_be_captured_ends_its_connection(self, tmp_path):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with Collector(capture=str(tmp_path)) as collector:
            with (
                Producer(collector.push_port, zmq.PUSH) as one,
                Producer(collector.push_port, zmq.PUSH) as two,
            ):
                two.tell(message(1))
                assert collector.wait_for(events=1)
                try:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
                    one.tell(message(event(2, text="x" * 3000)))
                    assert one.cut()
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, before)
                two.tell(message(3))
                assert collector.wait_for(events=2)
                assert two.connected()
            assert collector.counts.capture_errors >= 1
        assert ids(tmp_path) == [name(1), name(3)]

    def test_reconnecting_with_a_routing_id_is_served(self):
        with Collector(faults="cut-before-ack=max:1") as collector:
            with Producer(collector.port, ROUTING_ID=b"me", RECONNECT_IVL=20) as producer:
                producer.ask(message(1))
                assert producer.cut()
                end = time.monotonic() + PATIENCE
                while not producer.sock.poll(100):
                    assert time.monotonic() < end
                    producer.ask(message(2))
                assert producer.reply() == ACCEPTED

    def test_delayed_reply_delays_only_its_connection(self):
        with Collector(faults="delay-ack=max:1:300ms") as collector, Producer(collector.port) as producer:
            with Producer(collector.port) as other:
                begin = time.monotonic()
                producer.ask(message(1))
                producer.ask(message(2))
                assert collector.wait_for(events=2)
                assert other.ship(3) == [ACCEPTED]
                assert [producer.reply() for _ in range(2)] == [ACCEPTED] * 2
                assert time.monotonic() - begin >= 0.3

    def test_no_reply_skips_one_reply_and_stall_all_later(self, tmp_path):
        with Collector(capture=str(tmp_path), faults="no-reply=from:2:max:1,stall=from:4:max:1") as collector:
            with Producer(collector.port) as producer, Producer(collector.port) as other:
                assert producer.ship(1) == [ACCEPTED]
                producer.ask(message(2))
                assert producer.ship(3) == [ACCEPTED]
                producer.ask(message(4))
                producer.ask(message(5))
                assert collector.wait_for(events=5)
                assert other.ship(6) == [ACCEPTED]
                assert producer.silent()
            counts = collector.counts
            assert (counts.unanswered, counts.stalls, counts.acks) == (1, 1, 3)
        assert ids(tmp_path) == [name(n) for n in range(1, 7)]

    def test_reply_faults_spare_messages_without_reply(self):
        with (
            Collector(faults="stall=max:1,delay-ack=max:1:1s") as collector,
            Producer(collector.port) as producer,
        ):
            producer.tell(message(1))
            assert collector.wait_for(events=1)
            assert collector.report["faults"] == {"stall": 0, "delay-ack": 0}

    @pytest.mark.parametrize("method", ["none", "zlib", "snappy", "lz4"])
    def test_data_faults_are_logged_captured_and_published(self, tmp_path, method):
        need({"none": "zlib", "zlib": "zlib", "snappy": "snappy", "lz4": "lz4.block"}[method])
        capture, fault_log = tmp_path / "capture", tmp_path / "fault_log"
        faults = "discard=every:10,swap=every:7,duplicate=every:11,corrupt=every:13,add=every:17,seed=4"
        sent = {name(n): event(n, padding="abc" * 20) for n in range(1, 121)}
        number = METHODS[method]
        options: dict[str, Any] = {"capture": str(capture), "fault_log": str(fault_log)}
        with Collector(faults=faults, heartbeat=0, **options) as collector:
            with Producer(collector.port) as producer:
                sub = subscriber(producer, collector)
                for body in sent.values():
                    producer.ask(message(compress(number, body), number))
                assert [producer.reply() for _ in sent] == [ACCEPTED] * len(sent)
                count = collector.counts.captured_events
                out = [published(sub) for _ in range(count)]
        kept = captured(capture)
        assert [parts[1:4] for parts in kept] == [parts[:3] for parts in out]
        faulty: dict[str, list[str]] = {}
        for fault, names in logged_faults(fault_log):
            faulty.setdefault(fault, []).extend(names)
        assert {fault: len(names) for fault, names in faulty.items()} == collector.report["faults"]
        assert min(map(len, faulty.values())) >= 4
        bodies = [decompress(number, parts[3], 1 << 20) for parts in kept]
        got = ids(capture)
        times = Counter(got)
        assert set(faulty["discard"]) == sent.keys() - times.keys()
        assert set(faulty["add"]) == times.keys() - sent.keys()
        assert set(faulty["duplicate"]) == {one for one in sent if times[one] == 2}
        assert set(faulty["corrupt"]) == {
            one for one, body in zip(got, bodies, strict=True) if one in sent and sent[one] != body
        }
        order = [one for one in got if one in sent]
        late = {one for i, one in enumerate(order) if any(other > one for other in order[:i])}
        assert late - set(faulty["duplicate"]) == set(faulty["swap"])

    def test_swap_without_a_second_message_is_given_up(self, tmp_path):
        with Collector(capture=str(tmp_path), faults="swap=max:1:100ms") as collector:
            with Producer(collector.port) as producer:
                assert producer.ship(1) == [ACCEPTED]
                assert collector.report["faults"] == {"swap": 0}
        assert ids(tmp_path) == [name(1)]

    def test_corruption_of_a_body_without_its_library_is_given_up(self, monkeypatch):
        def unlinked(*_: object) -> bytes:
            raise ValueError("no library for lz4")

        monkeypatch.setattr(messages, "unpack", unlinked)
        monkeypatch.setattr(messages, "compress", unlinked)
        with Collector(faults="corrupt=every:1") as collector, Producer(collector.port) as producer:
            producer.ask([APP_ENV, TOPIC, b"x", meta(method=METHODS["lz4"])])
            assert producer.reply() == ACCEPTED
            assert collector.report["faults"] == {"corrupt": 0}

    def test_corruption_of_a_body_without_json_is_given_up(self, tmp_path):
        with Collector(faults="corrupt=every:1") as collector, Producer(collector.port) as producer:
            producer.ship(b"no JSON")
            assert collector.report["faults"] == {"corrupt": 0}


# --- starting ----------------------------------------------------------------------------------


class TestStart:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"port": 65536}, "port: 65536 must be 0 to 65535"),
            ({"publish_port": -1}, "publish_port: -1 must be"),
            ({"port": None, "push_port": None}, "nothing to listen on"),
            ({"device": 0}, "device: 0 must be 1 to 4294967295"),
            ({"device": 1 << 32}, "device: 4294967296 must be 1 to 4294967295"),
            ({"faults": "keepalive=every:1"}, "'keepalive' is not a fault"),
        ],
    )
    def test_wrong_argument_is_named(self, options, words):
        with pytest.raises(ConfigError, match=words):
            Collector(**options)

    def test_unknown_recompress_is_refused(self):
        with pytest.raises(ConfigError, match="recompress: 'gzip' is none of none, zlib, snappy, lz4"):
            Collector(recompress="gzip").start()

    def test_port_in_use_is_named(self, collector):
        for where in ("port", "push_port", "publish_port"):
            with pytest.raises(
                ConnectFailed, match=f"127.0.0.1 port {collector.port}: Address already in use"
            ):
                Collector(**{where: collector.port}).start()

    def test_capture_in_use_is_refused(self, tmp_path):
        with Collector(capture=str(tmp_path), listener="x"):
            second = Collector(capture=str(tmp_path), listener="x")
            with pytest.raises(LedgerError, match="in use"):
                second.start()
            second.stop()

    def test_start_of_a_running_device_is_refused(self, collector):
        with pytest.raises(ConfigError, match="running"):
            collector.start()
        collector.stop()
        collector.stop()

    @pytest.mark.parametrize(
        ("module", "options"),
        [("zmq", {}), ("snappy", {"recompress": "snappy"}), ("lz4", {"recompress": "lz4"})],
    )
    def test_missing_package_names_the_extra(self, monkeypatch, module, options):
        for loaded in [one for one in sys.modules if one.split(".")[0] == module]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, module, None)
        if module in LINKED:
            with Collector(**options):
                return
        with pytest.raises(MissingExtra, match=rf"{module} is not installed: .*logclient\[logjam\]"):
            Collector(**options).start()


# --- bodies and units --------------------------------------------------------------------------


class TestBounds:
    def test_connection_beyond_the_maximum_is_closed(self):
        with Collector(max_connections=2) as collector, Producer(collector.port) as first:
            assert first.ship(1) == [ACCEPTED]
            with Producer(collector.push_port, zmq.PUSH) as second:
                second.tell(message(2))
                assert collector.wait_for(events=2)
                with socket.create_connection(("127.0.0.1", collector.port), timeout=PATIENCE) as third:
                    assert closed(third)
                assert collector.reasons == {"connections: too many": 1}
            assert collector.wait_for(lambda counts: counts.open == 1)
            assert first.ship(3) == [ACCEPTED]

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what came over a connection")
    def test_idle_producer_is_cut(self):
        with Collector(idle=0.3) as collector, Producer(collector.port) as producer:
            sub = subscriber(producer, collector)
            assert producer.ship(1) == [ACCEPTED]
            assert producer.cut()
            assert collector.wait_for(lambda counts: counts.idle_closes == 1 and counts.open == 1)
            with Producer(collector.port) as other:
                assert other.ship(2) == [ACCEPTED]
            assert published(sub)[2] and published(sub)[2], "silent consumers stay connected"


@pytest.mark.skipif(not zmq.has("curve"), reason="this libzmq has no CURVE")
class TestCurve:
    def test_client_with_the_server_key_is_served(self):
        _, secret = keys()
        with Collector(curve_secret=secret, keep=True) as collector:
            assert collector.listens["curve_server"] == collector.curve_server
            options = {"curve_server": collector.curve_server}
            with Subscriber(collector.publish_url, **options) as subscriber:
                assert collector.wait_for(lambda counts: counts.subscriptions > 0)
                for url in (collector.url, collector.push_url):
                    with logclient.connect(f"{url}/shop-production", **options) as client:
                        assert client.submit({"message": url}).result(PATIENCE).ok
                        assert client.stats().tls == "CURVE"
                assert len(collector.events(2)) == 2
                found = [subscriber.receive(PATIENCE) for _ in range(2)]
            assert [message and message.topic for message in found] == ["logs.shop.production"] * 2

    def test_client_without_the_server_key_is_refused(self):
        public, secret = keys()
        other, _ = keys()
        with Collector(curve_secret=secret) as collector:
            assert collector.curve_server == public
            for curve, error in (
                ((other, *keys()), "is curve_server the server's key"),
                (None, "wants CURVE keys"),
            ):
                for kind, port in (("DEALER", collector.port), ("PUSH", collector.push_port)):
                    with pytest.raises((CredentialError, ConnectionError), match=error):
                        made = transports.zmq(PATIENCE, kind=kind, curve=curve)
                        made.connect(("127.0.0.1", port), Attempt()).close()
            assert collector.counts.messages == 0

    def test_only_listed_client_keys_are_accepted(self):
        public, secret = keys()
        ours, theirs = keys(), keys()
        with Collector(curve_secret=secret, curve_clients=[ours[0]]) as collector:
            address = ("127.0.0.1", collector.port)
            transports.zmq(PATIENCE, curve=(public, *ours)).connect(address, Attempt()).close()
            with pytest.raises(CredentialError, match="does not accept our CURVE key"):
                transports.zmq(PATIENCE, curve=(public, *theirs)).connect(address, Attempt()).close()
            assert collector.reasons == {"curve: a key that is not let in": 1}

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"curve_secret": "short"}, "curve_secret: must be a key of 40 characters of Z85"),
            ({"curve_clients": ["a" * 40]}, "curve_clients: needs curve_secret"),
            ({"curve_secret": "a" * 40, "curve_clients": ["x"]}, "curve_clients: each must be a key"),
        ],
    )
    def test_wrong_key_of_the_device_is_named(self, options, words):
        with pytest.raises(ConfigError, match=words):
            Collector(**options).start()

    def test_wrong_key_of_a_subscriber_is_named(self):
        for options, words in (
            ({"curve_server": "x"}, "curve_server: must"),
            ({"curve_secret": "x"}, "curve_secret: needs curve_server"),
        ):
            with pytest.raises(ConfigError, match=words):
                Subscriber("tcp://127.0.0.1", **options)

    def test_keys_come_from_files_not_from_the_url(self, tmp_path, capsys):
        public, secret = keys()
        ours, _ = keys()
        (tmp_path / "secret").write_text(secret)
        (tmp_path / "secret").chmod(0o644)
        (tmp_path / "clients").write_text(f"{ours}\n\n")
        url = f"logjam://127.0.0.1:0?curve_secret=file:{tmp_path}/secret&curve_clients={tmp_path}/clients"
        collect([url], capture=None, seconds=0)
        said = capsys.readouterr()
        assert json.loads(said.out)["curve_server"] == public
        assert f"{tmp_path}/secret: every user of this machine may read" in said.err
        for text, words in (
            (f"curve_secret={quote(secret, safe='')}", "curve_secret: must not be written in a URL"),
            (
                f"curve_secret=file:{tmp_path}/secret&curve_clients={tmp_path}/none",
                "curve_clients: No such file",
            ),
            (f"curve_secret=file:{tmp_path}/secret&curve_clients={__file__}", "curve_clients: each line of "),
        ):
            with pytest.raises(ConfigError, match=words):
                collect([f"logjam://127.0.0.1:0?{text}"], capture=None, seconds=0)


class TestMessages:
    @pytest.mark.parametrize("parts", [[b""], [b"a"], [b"", b"", b""], [b"x" * 70000, b"y"]])
    def test_unit_and_frames_are_inverse(self, parts):
        assert frames(unit(parts)) == parts

    @pytest.mark.parametrize(
        ("raw", "words"),
        [
            (b"", "no head of a frame at offset 0"),
            (b"\1\0\0\0", "not whole"),
            (b"\0\0\0\x80", "no head of a frame at offset 4"),
            (b"\0\0\0\0x", "1 bytes after the last frame"),
        ],
    )
    def test_damaged_unit_is_refused(self, raw, words):
        with pytest.raises(ValueError, match=words):
            frames(raw)

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize(
        "body", [b"", b"x", Random(1).randbytes(1000) * 70], ids=["empty", "short", "long"]
    )
    def test_compressed_body_is_opened_up_to_the_bound(self, method, body):
        need({"snappy": "snappy", "lz4": "lz4.block"}.get(method, "zlib"))
        packed = compress(METHODS[method], body)
        assert decompress(METHODS[method], packed, len(body)) == body
        if len(body) > 1:
            with pytest.raises(ProtocolError, match=str(len(body) - 1)):
                decompress(METHODS[method], packed, len(body) - 1)

    @pytest.mark.parametrize(
        ("method", "body"),
        [
            (1, b""),
            (1, zlib.compress(b"x")[:-1]),
            (1, zlib.compress(b"x", wbits=31)),
            (1, zlib.compress(b"x", wbits=-15)),
            (2, b""),
            (2, b"\xff\xff\xff\xff\xff\xff"),
            (2, b"\xff\x06\0\0sNaPpY"),
            (2, b"\5garbage"),
            (3, b""),
            (3, b"\0\0\0\5garbage"),
            (3, b'\4"M\x18' + bytes(20)),
            (3, struct.pack(">I", 0xFFFFFFFF) + b"\x10x"),
            (9, b"x"),
            (255, b""),
        ],
    )
    def test_other_framings_are_protocol_errors(self, method, body):
        need("snappy")
        need("lz4.block")
        words = {1: "no zlib stream", 2: "no snappy block|unpacks to", 3: "no LZ4 block|unpacks to"}
        with pytest.raises(ProtocolError, match=words.get(method, f"unknown compression {method}")):
            decompress(method, body, 64 << 20)

    @pytest.mark.parametrize(
        ("parts", "words"),
        [
            ([b"", b"ping", b"", b"{}", meta()], "a ping"),
            ([b"x"], "a message has 4, not 1"),
            (message(b"{"), "delimiter|property name"),
            (message(b"{}", 7), "unknown compression 7"),
        ],
    )
    def test_decode_refuses_units_that_are_no_events(self, parts, words):
        with pytest.raises(ValueError, match=words):
            decode(unit(parts))


class TestDevice:
    """The device without sockets."""

    @given(
        st.lists(
            st.sampled_from([b"", APP_ENV, TOPIC, b"ping", b"{}", meta(), meta(1, 9), b"no dash", b"bogus"])
            | st.binary(max_size=30),
            min_size=1,
            max_size=7,
        ),
        st.booleans(),
        st.booleans(),
    )
    def test_any_frames_are_replied_to_kept_or_refused(self, parts, push, allow_invalid):
        device = Device(allow_invalid=allow_invalid)
        answer = device.receive(parts, push=push)
        asked = not push and parts[0] == b""
        assert (answer.reply is not None) == asked
        assert answer.message is not None or answer.ping or answer.reason
        if answer.message is None:
            return
        out = device.publication(answer.message, 1)
        first = 1 if asked else 0
        assert out[:3] == parts[first : first + 3]
        found, valid = read_meta(out[3])
        assert valid
        assert (found.device, found.sequence) == (1, 1)
        assert found.created_ms > 0
        try:
            decode(unit(parts))
        except ValueError:
            pass


# --- hostile peers -----------------------------------------------------------------------------

MIB = 1 << 20


def dealer_connection(port: int, receive_buffer: int = 0) -> socket.socket:
    """Open a raw connection as a DEALER, with its handshake done."""
    sock = socket.socket()
    sock.settimeout(PATIENCE)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(("127.0.0.1", port))
    sock.sendall(b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\5READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\0"
    sock.sendall(b"\4" + bytes((len(ready),)) + ready)
    greeting = b""
    while b"Identity\0\0\0\0" not in greeting:  # libzmq accepts no message before it has sent READY
        greeting += sock.recv(1000)
    return sock


def wire(parts: Frames) -> bytes:
    """Return a message of short frames as ZMTP 3 sends it."""
    last = len(parts) - 1
    return b"".join(bytes((i < last, len(part))) + part for i, part in enumerate(parts))


def closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture(scope="class")
def process() -> Iterator[DeviceProcess]:
    with DeviceProcess(count_duplicates=True, heartbeat=0.1, max_bytes=4 * MIB) as process:
        with Producer(process.port) as producer:
            producer.ship(1)
        yield process


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
class TestHostile:
    """After each attack the device lives, serves others, and has kept to its memory, measured from
    outside."""

    BOUND = 48 * MIB

    @pytest.fixture(autouse=True)
    def bound(self, process: DeviceProcess) -> Iterator[None]:
        before = process.reset_peak()
        yield
        assert process.alive
        with Producer(process.port) as producer:
            assert producer.ship(1) == [ACCEPTED]
        assert process.peak() - before <= self.BOUND

    @pytest.mark.slow
    def test_message_of_many_frames_is_refused(self, process):
        for count in (10, 11, 12, 13, 30, 1000, 50_000):
            parts = [*message(1), *[b"x"] * (count - 4)]
            with Producer(process.port) as producer, Producer(process.push_port, zmq.PUSH) as push:
                push.tell(parts)
                producer.tell(parts)
                producer.ask(parts)
                assert producer.reply() == REFUSED
                assert producer.ship(2) == [ACCEPTED]

    @pytest.mark.parametrize("size", [4 * MIB + 1, 1 << 30, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
    def test_announced_huge_frame_closes_the_connection(self, process, size):
        with dealer_connection(process.port) as sock:
            sock.sendall(b"\2" + struct.pack(">Q", size) + b"x" * 1000)
            assert closed(sock)

    def test_frame_of_max_bytes_is_accepted(self, process):
        with Producer(process.port) as producer:
            assert producer.ship(b"x" * (4 * MIB)) == [ACCEPTED]

    def test_frame_beyond_max_bytes_is_cut(self, process):
        with Producer(process.port) as producer:
            producer.ask(message(b"x" * (4 * MIB + 1)))
            assert producer.cut()

    @pytest.mark.slow
    def test_bodies_that_cannot_be_opened_are_accepted(self, process):
        bomb = zlib.compress(bytes(256 * MIB), 9)
        bodies = [(9, b"x"), (255, b""), (1, b"\x1f\x8b"), (2, b"\xff\xff\xff\xff\x0f"), (1, bomb)]
        bodies += [(3, b"\xff\xff\xff\xff\0"), (3, b"\3\0\0\0"), (1, zlib.compress(b"{}")[:-1])]
        with Producer(process.port) as producer:
            for method, body in bodies:
                producer.ask(message(body, method))
                assert producer.reply() == ACCEPTED  # the real device opens no body, either

    def test_long_app_env_is_not_sent_back(self, process):
        with Producer(process.port) as producer:
            for n in range(100):
                producer.ask([b"a-" + b"b" * MIB, TOPIC, b"{}", meta(n)])
            assert {producer.reply()[0] for _ in range(100)} == {b"unknown-unknown"}
            producer.ask([APP_ENV, b"logs" * MIB, b"{}", meta()])
            assert producer.reply() == ACCEPTED  # the topic is not checked before the reply

    def test_peer_that_reads_no_replies_is_cut(self, process):
        """It is cut when too many replies wait; others are served meanwhile."""
        request = wire([b"", *message(b"{}")])
        with dealer_connection(process.port, receive_buffer=4096) as sock, pytest.raises(ConnectionError):
            for _ in range(300):
                sock.sendall(request * 2000)
                with Producer(process.port) as other:
                    assert other.ship(1) == [ACCEPTED]

    def test_other_protocols_do_no_harm(self, process):
        for data in (
            b"",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\xff" * 100,
            Random(2).randbytes(10_000),
            b"\x01\x00",
        ):
            for port in (process.port, process.push_port, process.publish_port):
                with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
                    sock.sendall(data)

    def test_garbage_behind_the_handshake_does_no_harm(self, process):
        for seed in range(20):
            with dealer_connection(process.port) as sock:
                try:
                    sock.sendall(b"\4\5\4PING" + Random(seed).randbytes(2000 + seed))
                except ConnectionError:
                    pass


def test_a_descriptor_of_another_kind_has_no_address() -> None:
    """Of a connection that has ended, libzmq's descriptor may be any other by now."""
    one, two = socket.socketpair()
    with one, two:
        assert logjam_sockets.address_of(one.fileno()) == ""
    assert logjam_sockets.address_of(-1) == ""
