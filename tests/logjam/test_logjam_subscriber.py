"""The subscriber: the messages it gets and those it counts as missing, from bare frames and over sockets."""

import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import ConfigError, LedgerError, MissingExtra, ProtocolError
from logclient.files.capture import CaptureReader
from logclient.logjam.messages import SEQUENCE_MAX, Meta, frames, read_meta
from logclient.logjam.subscriber import Device, Gap, Message, Subscriber, Tracker
from tests.oracle import logjam as oracle

zmq = pytest.importorskip("zmq")

from logclient.testing.logjam import Collector  # noqa: E402
from tests.support.logjam_rig import (  # noqa: E402
    APP_ENV,
    TOPIC,
    Frames,
    Producer,
    event,
    message,
    meta,
    name,
)
from tests.support.patience import PATIENCE  # noqa: E402


def data(sequence: int, device: int = 1, app_env: bytes = APP_ENV, topic: bytes = TOPIC) -> Frames:
    return [app_env, topic, b"{}", Meta(0, device, 5, sequence).pack()]


def beat(sequence: int, device: int = 1) -> Frames:
    return [b"heartbeat", b"tcp://h:9606", b"{}", Meta(0, device, 5, sequence).pack()]


def gaps_of(*sequences: int) -> list[tuple[int, int]]:
    tracker = Tracker()
    for sequence in sequences:
        assert tracker.take(data(sequence), 0.0) is not None
    missing = sum(gap.last - gap.first + 1 for gap in tracker.gaps)
    assert tracker.devices[1].missing_at_least == missing
    return [(gap.first, gap.last) for gap in tracker.gaps]


class TestTracker:
    def test_gaps_equal_the_reference(self) -> None:
        rng = random.Random(5)
        for _ in range(40):
            last: dict[int, int] = {}
            rows: list[oracle.Published] = []
            for _ in range(rng.choice((1, 5, 60))):
                device = rng.choice((1, 1, 2, 7, (1 << 32) - 1))
                before = last.get(device, rng.choice((0, 5, (1 << 53) + 4, (1 << 64) - 3)))
                step = rng.choice((1, 1, 1, 1, 2, 9, 0, -3, -before, -before + 1, 1 << 62))
                last[device] = min(max(before + step, 0), (1 << 64) - 1)
                rows.append(oracle.Published(device, last[device], rng.random() < 0.2))
            tracker = Tracker()
            for device, number, heartbeat in rows:
                tracker.take((beat if heartbeat else data)(number, device), 0.0)
            found = {
                x.number: (x.received, x.heartbeats, x.last, x.missing_at_least, x.gaps, x.restarts_at_least)
                for x in tracker.devices.values()
            }  # fmt: skip
            assert found == oracle.gaps_of(rows)

    def test_message_has_body_document_and_meta(self):
        frame = Meta(1, 7, 1234, 99).pack()
        taken = Tracker().take([APP_ENV, TOPIC, zlib.compress(b'{"a":1}'), frame], 0.0)
        assert taken == Message(
            "shop-production", "logs.shop.production", zlib.compress(b'{"a":1}'), 1, 7, 1234, 99
        )
        assert taken.body() == b'{"a":1}'
        assert taken.document() == {"a": 1}
        with pytest.raises(ProtocolError, match="more than 6 bytes"):
            taken.body(6)
        with pytest.raises(ProtocolError, match="compression 9"):
            taken._replace(compression=9).document()
        with pytest.raises(ProtocolError, match="body: nested too deep"):
            taken._replace(payload=b"[" * 200_000, compression=0).document()

    @pytest.mark.parametrize(
        ("sequences", "expected"),
        [
            ([5, 6, 7], []),  # joined in mid-stream: what came before is not missing
            ([1, 2, 4, 5, 9], [(3, 3), (6, 8)]),
            ([10, 11, 1, 2], []),  # restarted
            ([10, 11, 4, 5], [(1, 3)]),  # ... and three missed
            ([10, 10], [(1, 9)]),
            ([SEQUENCE_MAX - 1, SEQUENCE_MAX, 1, 2], []),
            ([SEQUENCE_MAX, 3], [(1, 2)]),
        ],
    )
    def test_gaps_are_the_missing_sequences(self, sequences, expected):
        assert gaps_of(*sequences) == expected

    def test_restarts_are_counted(self):
        tracker = Tracker()
        for sequence in (8, 1, (1 << 62) - 1, 1, 2, 1):
            tracker.take(data(sequence), 0.0)
        device = tracker.devices[1]
        assert (device.restarts_at_least, device.received, device.last) == (3, 6, 1)

    def test_gaps_are_counted_for_each_device_but_0(self):
        tracker = Tracker()
        for parts in (data(1), data(1, 2), data(2), data(3, 2), data(9, 0), data(3), data(4, 0)):
            assert tracker.take(parts, 1.5) is not None
        assert list(tracker.gaps) == [Gap(2, 2, 2)]
        one, two = tracker.devices[1], tracker.devices[2]
        assert (one.received, one.missing_at_least, one.restarts_at_least, one.seen) == (3, 0, 0, 1.5)
        assert (two.received, two.missing_at_least, two.restarts_at_least, two.seen) == (2, 1, 0, 1.5)
        assert len(tracker.devices) == 2

    def test_heartbeats_count_and_are_no_messages(self):
        tracker = Tracker()
        assert [tracker.take(parts, 2.0) for parts in (beat(1), beat(2), beat(4))] == [None] * 3
        device = tracker.devices[1]
        assert (device.heartbeats, device.received, device.missing_at_least, device.seen) == (3, 3, 1, 2.0)

    def test_unwanted_message_is_no_gap(self):
        tracker = Tracker(["shop-production"], ["logs", "events.a"])
        wanted = [
            tracker.take(data(n, app_env=app_env, topic=topic), 0.0) is not None
            for n, (app_env, topic) in enumerate(
                [
                    (b"shop-production", b"logs"),
                    (b"shop-production", b"logs.shop"),
                    (b"shop-production", b"logsX"),
                    (b"shop-production2", b"logs"),
                    (b"shop-production", b"events"),
                    (b"shop-production", b"events.a.b"),
                ],
                1,
            )
        ]
        assert wanted == [True, True, False, False, False, True]
        assert list(tracker.gaps) == []

    def test_gaps_are_not_counted_when_switched_off(self):
        tracker = Tracker(gaps=False)
        for sequence in (1, 5, 2):
            tracker.take(data(sequence), 0.0)
        device = tracker.devices[1]
        assert (list(tracker.gaps), device.missing_at_least, device.restarts_at_least) == ([], 0, 1)

    def test_frames_that_are_no_message_are_refused(self):
        tracker = Tracker()
        for parts in ([b"stats", b"1", b"5"], data(1)[:3] + [b"meta"], [b""], [b""] * 7):
            assert tracker.take(parts, 0.0) is None
        assert tracker.refused == {"frames: a message has 4": 3, "meta: not valid": 1}

    def test_devices_are_limited_to_4096(self):
        tracker = Tracker()
        for number in range(1, 5001):
            assert tracker.take(data(1, number), 0.0) is not None
        assert len(tracker.devices) == 4096
        assert sum(tracker.refused.values()) == 5000 - 4096

    @given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 5)), max_size=60))
    def test_missing_messages_equal_the_full_record(self, steps):
        """Random devices of which some messages are lost, and some devices restart."""
        tracker = Tracker()
        sent: dict[int, int] = {}
        seen: dict[int, int] = {}  # last number that got through
        missing: dict[int, int] = {}
        for number, restart, step in steps:
            if not number:
                continue
            sequence = step if restart else sent.get(number, 0) + step
            if number in seen and restart and sequence > seen[number]:
                continue  # a restart beyond the last number looks like a gap
            sent[number] = sequence
            if number in seen:
                before = seen[number] if sequence > seen[number] else 0
                missing[number] = missing.get(number, 0) + sequence - before - 1
            seen[number] = sequence
            tracker.take(data(sequence, number), 0.0)
        found = {n: d.missing_at_least for n, d in tracker.devices.items()}
        assert found == {n: missing.get(n, 0) for n in seen}

    def test_restart_beyond_the_last_number_hides_losses(self):
        """The device publishes 1 to 110, dies, restarts and publishes 1 to 120. Seen are 1 to 100, and
        120. Of 10 and 119 missing messages 19 can be counted, and no restart."""
        tracker = Tracker()
        for sequence in (*range(1, 101), 120):
            tracker.take(data(sequence), 0.0)
        device = tracker.devices[1]
        assert (device.missing_at_least, device.restarts_at_least, device.gaps) == (19, 0, 1)

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 4)), max_size=60))
    def test_missing_messages_are_a_lower_bound(self, steps):
        """Random lives of a device, whose numbers may overtake those of the life before."""
        tracker = Tracker()
        sequence = restarts = lost = 0
        seen = False
        for restart, gone, got in steps:
            if restart:
                sequence, restarts = 0, restarts + seen
            sequence, lost = sequence + gone, lost + gone * seen
            for _ in range(got):
                sequence += 1
                seen = True
                tracker.take(data(sequence), 0.0)
        device = tracker.devices.get(1, Device(1))
        assert device.missing_at_least <= lost
        assert device.restarts_at_least <= restarts

    @given(st.lists(st.binary(max_size=40), min_size=1, max_size=7))
    def test_any_frames_are_messages_or_refused(self, parts):
        tracker = Tracker()
        taken = tracker.take(parts, 0.0)
        assert taken is None or read_meta(parts[-1])[1]
        assert sum(tracker.refused.values()) == (taken is None)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"app_envs": ["shop"]}, "app_envs: 'shop' must be printable"),
            ({"topics": [""]}, "topics: one of them"),
            ({"topics": "logs"}, "topics: must be several names"),
            ({"app_envs": "shop-production"}, "app_envs: must be several names"),
        ],
    )
    def test_wrong_argument_of_the_tracker_is_named(self, options, words):
        with pytest.raises(ConfigError, match=words):
            Tracker(**options)


@pytest.fixture
def device() -> Iterator[Collector]:
    with Collector(device=3, heartbeat=0.05) as collector:
        yield collector


def wait_joined(device: Collector, subscriptions: int = 1) -> None:
    assert device.wait_for(lambda counts: counts.subscriptions >= subscriptions)


def wait_rejoined(device: Collector, subscriber: Subscriber, subscriptions: int) -> None:
    """Wait for the new subscription; a socket sends it when it is read."""
    end = time.monotonic() + PATIENCE
    while device.counts.subscriptions < subscriptions:
        assert subscriber.receive(0.02) is None
        assert time.monotonic() < end


def collect(subscriber: Subscriber, count: int) -> list[Message]:
    got = []
    for _ in range(count):
        one = subscriber.receive(20)
        assert one is not None
        got.append(one)
    return got


class TestSubscriber:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"hwm": -1}, "hwm: must be a number from 0"),
            ({"hwm": 1 << 31}, "hwm: must be"),
            ({"max_bytes": "64MiB"}, "max_bytes: must be a number from 1"),
        ],
    )
    def test_wrong_numbers_are_named(self, options, words):
        with pytest.raises(ConfigError, match=words):
            Subscriber("tcp://127.0.0.1:9606", **options)

    def test_a_subscriber_that_fails_lets_the_capture_go(self, tmp_path: Path):
        with pytest.raises(zmq.ZMQError):
            Subscriber("tcp://-:9606", capture=str(tmp_path))
        with Subscriber("tcp://127.0.0.1:9606", capture=str(tmp_path)) as subscriber:
            assert subscriber.receive(0) is None

    def test_subset_of_messages_shows_no_false_gaps(self, device):
        with (
            Subscriber(device.publish_url, app_envs=["shop-production"], topics=["logs"]) as subscriber,
            Producer(device.port) as producer,
        ):
            wait_joined(device)
            producer.ship(1, 2)
            producer.ask([b"other-production", TOPIC, event(3), meta()])
            producer.ask(message(4, topic=b"events.a"))
            producer.ship(5)
            got = collect(subscriber, 3)
            assert [one.document()["message"] for one in got] == ["line 1", "line 2", "line 5"]
            assert {one.device for one in got} == {3}
            assert subscriber.gaps == []
            assert subscriber.devices[3].missing_at_least == 0
            assert got[-1].sequence - got[0].sequence >= 4

    def test_without_gaps_the_device_filters(self, device):
        with (
            Subscriber(device.publish_url, app_envs=["shop-production"], gaps=False) as subscriber,
            Producer(device.port) as producer,
        ):
            wait_joined(device, 2)
            producer.ask([b"other-production", TOPIC, event(1), meta()])
            producer.ask([b"shop-production2", TOPIC, event(1), meta()])
            producer.ship(2)
            (one,) = collect(subscriber, 1)
            assert one.app_env == "shop-production"
            assert subscriber.gaps == []
            # Two messages of ours and heartbeats; those of the other app never arrived.
            assert subscriber.devices[3].received - subscriber.devices[3].heartbeats <= 2

    def test_restarted_device_is_counted(self):
        device = Collector(device=3, heartbeat=0)
        with device, Subscriber(device.publish_url) as subscriber:
            for life in (1, 2):
                wait_rejoined(device, subscriber, life)
                with Producer(device.port) as producer:
                    producer.ship(1, 2, 3)
                assert [one.sequence for one in collect(subscriber, 3)] == [1, 2, 3]
                if life == 1:
                    device.stop()
                    device.start()
            known = subscriber.devices[3]
            assert (known.restarts_at_least, known.missing_at_least) == (1, 0)

    def test_one_subscriber_follows_several_devices(self):
        with (
            Collector(device=1, heartbeat=0) as one,
            Collector(device=2, heartbeat=0) as two,
            Subscriber([one.publish_url, two.publish_url]) as subscriber,
        ):
            for device in (one, two):
                wait_joined(device)
                with Producer(device.port) as producer:
                    producer.ship(1)
            assert {message.device for message in collect(subscriber, 2)} == {1, 2}

    def test_heartbeats_are_not_returned(self, device):
        with Subscriber(device.publish_url) as subscriber:
            assert subscriber.receive(0) is None
            end = time.monotonic() + PATIENCE
            while not subscriber.devices or subscriber.devices[3].heartbeats < 2:
                assert subscriber.receive(0.05) is None
                assert time.monotonic() < end

    def test_subscriber_is_an_iterator(self, device):
        with Subscriber(device.publish_url) as subscriber, Producer(device.port) as producer:
            wait_joined(device)
            producer.ship(1, 2)
            several = iter(subscriber)
            assert [next(several).document()["message"] for _ in range(2)] == ["line 1", "line 2"]

    def test_message_is_captured_before_it_is_returned(self, device, tmp_path: Path):
        with (
            Subscriber(device.publish_url, topics=["logs"], capture=str(tmp_path)) as subscriber,
            Producer(device.port) as producer,
        ):
            wait_joined(device)
            producer.ask(message(1, topic=b"mobile"))
            producer.ship(2)
            collect(subscriber, 1)
            rows = list(CaptureReader(tmp_path))
            kept = [frames(row.raw) for row in rows]
            assert [parts[2] for parts in kept if parts[0] == APP_ENV] == [event(1), event(2)]
            assert name(2).encode() in kept[-1][2] or kept[-1][0] == b"heartbeat"
        assert {(row.protocol, row.listener, row.peer) for row in rows} == {
            ("logjam", "logjam-sub", "device 3")
        }
        reader = CaptureReader(tmp_path)
        sequences = [read_meta(frames(row.raw)[3])[0].sequence for row in reader]
        assert not reader.problems
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))

    def test_too_large_frame_reconnects_and_is_missing(self, device):
        with (
            Subscriber(device.publish_url, max_bytes=1000) as subscriber,
            Producer(device.port) as producer,
        ):
            wait_joined(device)
            producer.ship(1)
            collect(subscriber, 1)
            producer.ship(b"x" * 2000)
            wait_rejoined(device, subscriber, 2)  # the subscriber was cut off and reconnected
            producer.ship(2)
            assert collect(subscriber, 1)[0].document()["message"] == "line 2"
            assert subscriber.devices[3].missing_at_least >= 1

    def test_publications_that_are_no_logjam_are_refused(self):
        """1,000 frames, a single frame, and invalid metas."""
        with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
            port = publisher.bind_to_random_port("tcp://127.0.0.1")
            with Subscriber(f"tcp://127.0.0.1:{port}") as subscriber:
                assert publisher.poll(20_000)
                for parts in ([b"x"] * 1000, [b""], [b"a-b", b"logs", b"", b"\xff" * 24], data(1)):
                    publisher.send_multipart(parts)
                assert collect(subscriber, 1)[0].sequence == 1
                assert subscriber.refused == {"frames: a message has 4": 2, "meta: not valid": 1}
            publisher.close(linger=0)

    @pytest.mark.parametrize(
        ("endpoints", "words"),
        [
            ([], "endpoints: none is given"),
            ("ipc:///tmp/x", "endpoints: 'ipc:///tmp/x' must be tcp://host:port"),
            ("tcp://h:0", "must be tcp://host:port"),
            ("tcp://h:70000", "must be tcp://host:port"),
        ],
    )
    def test_wrong_endpoint_is_named(self, endpoints, words):
        with pytest.raises(ConfigError, match=words):
            Subscriber(endpoints)

    def test_endpoints_have_a_default_port(self):
        with Subscriber(["h", "tcp://[::1]", "tcp://h:1"]) as subscriber:
            assert subscriber.endpoints == ["tcp://h:9606", "tcp://[::1]:9606", "tcp://h:1"]
            subscriber.close()

    def test_capture_that_is_a_file_is_refused(self, tmp_path: Path):
        (tmp_path / "file").write_text("")
        with pytest.raises(LedgerError):
            Subscriber("tcp://h", capture=str(tmp_path / "file"))

    def test_missing_pyzmq_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "zmq", None)
        with pytest.raises(MissingExtra, match=r"logclient\[logjam\]"):
            Subscriber("tcp://h")
