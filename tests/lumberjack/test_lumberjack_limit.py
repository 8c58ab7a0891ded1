"""How many windows are in flight: readers far away, slow ones, and both.

Readers are simulated. Each handles one window after another, at a speed and a distance, and all times are
arguments of the codec.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.lumberjack import Codec
from logclient.config.parsing import parse
from logclient.lumberjack.core import Lumberjack
from logclient.lumberjack.reader import Reader
from tests.oracle.lumberjack_limit import FOREVER, MOST, Limit, Piece, Trip
from tests.support.batches import inflight_of
from tests.support.configs import record_codecs
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

PRODUCER = bytes(range(10))
BODY = b'{"a":1}'
KEEP_ALIVE = 5.0  # seconds between two of Logstash's


def ack(number: int) -> bytes:
    return b"2A" + struct.pack(">I", number)


def adaptive_codec(**options: object) -> Codec:
    given = {"compression": 0, "adaptive": True, "window": 10, **options}
    codec = Codec(PRODUCER, **given)  # type: ignore[arg-type]
    codec.connected(0.0)
    return codec


class Flying(NamedTuple):
    """A window in flight: the number of its events, and when the reader's ack arrives."""

    events: int
    acked: float


class Run(NamedTuple):
    """What a simulated reader saw."""

    most: int  # windows in flight
    limits: list[int]  # after each ack
    events: int
    seconds: float
    lost: list[int]  # events delivered and not acknowledged, at each break


class Simulation:
    """A writer that always has events, and a reader.

    Args:
        round_trip: seconds of the network, both ways.
        seconds_for: seconds in which the reader handles a window of so many events, the n-th of all.
        codec: the writer.
        keep_alives: the reader sends one for every 5 seconds of its work on a window, as Logstash does.
        events: how many there are at a time; None: as many as a window takes.
    """

    def __init__(
        self, round_trip: float, seconds_for: Callable[[int, int], float], codec: Codec,
        keep_alives: bool = True, events: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        self.round_trip, self.seconds_for, self.codec = round_trip, seconds_for, codec
        self.keep_alives, self.events = keep_alives, events
        self.now = self.reader_free = 0.0
        self.flying: deque[Flying] = deque()
        self.windows = 0

    def send(self) -> None:
        """Send windows while the writer allows it."""
        while self.codec.credit(self.now)[0]:
            n = 1_000_000 if self.events is None else self.events(self.windows)
            _in_flight, batch = inflight_of([(BODY, DOCUMENT)] * min(n, 10))
            n = self.codec.encode(batch.capsule, n, self.now)
            assert n > 0
            self.codec.take_bytes()
            begin = max(self.now + self.round_trip / 2, self.reader_free)
            self.reader_free = begin + self.seconds_for(n, self.windows)
            if self.keep_alives and self.reader_free - begin > KEEP_ALIVE:
                self.flying.append(Flying(0, begin + KEEP_ALIVE + self.round_trip / 2))
            self.flying.append(Flying(n, self.reader_free + self.round_trip / 2))
            self.windows += 1

    def drain(self) -> None:
        """Acknowledge all windows in flight, and send no more."""
        while self.flying:
            flying = self.flying.popleft()
            self.now = max(self.now, flying.acked)
            assert self.codec.receive(ack(flying.events), self.now) == 0
        assert self.codec.windows == 0

    def run(self, windows: int, breaks: int = 0) -> Run:
        """Send and acknowledge windows; cut the connection after every `breaks` of them."""
        most, limits, total, lost = 0, [], 0, []
        while len(limits) < windows:
            self.send()
            most = max(most, self.codec.windows)
            flying = self.flying.popleft()
            self.now = max(self.now, flying.acked)
            assert self.codec.receive(ack(flying.events), self.now) == 0
            if flying.events == 0:
                continue
            total += flying.events
            limits.append(self.codec.limit)
            if breaks and len(limits) % breaks == 0:
                lost.append(sum(f.events for f in self.flying))
                self.codec.connection_lost()
                self.flying.clear()
                self.codec.connected(self.now)
        return Run(most, limits, total, self.now, lost)


def constant(seconds: float) -> Callable[[int, int], float]:
    return lambda _events, _windows: seconds


class TestFarReaders:
    @pytest.mark.parametrize("round_trip", [0.02, 0.1, 0.6])
    def test_far_reader_gets_sixteen_windows(self, round_trip: float) -> None:
        run = Simulation(round_trip, constant(round_trip / 1000), adaptive_codec()).run(300)
        assert run.limits[0] == 2
        assert run.limits[-1] == run.most == MOST
        assert all(run.limits[n] <= run.limits[n + 1] for n in range(299))

    def test_limit_grows_with_each_window_at_the_start(self) -> None:
        run = Simulation(0.04, constant(0.0), adaptive_codec()).run(27)
        assert run.limits[-1] == 16
        assert run.seconds <= 6 * 0.0401

    def test_limit_follows_bandwidth_times_delay(self) -> None:
        """Windows of 10 ms over 50 ms: six keep the reader busy."""
        run = Simulation(0.05, constant(0.01), adaptive_codec()).run(2000)
        assert 5 <= run.limits[-1] <= 8
        busy = run.events / 10 * 0.01 / run.seconds
        assert busy > 0.95

    def test_limit_falls_when_the_reader_slows_down(self) -> None:
        def slower(_events: int, window: int) -> float:
            return 0.0001 if window < 300 else 0.5

        run = Simulation(0.04, slower, adaptive_codec()).run(400)
        assert max(run.limits) == 16
        assert run.limits[-1] == 2

    def test_a_new_connection_begins_with_two_windows(self) -> None:
        codec = adaptive_codec()
        Simulation(0.02, constant(0.0), codec).run(200)
        assert codec.limit == 16
        codec.connected(1000.0)
        assert codec.limit == 2

    def test_ten_seconds_of_rest_begin_with_two_windows(self) -> None:
        simulation = Simulation(0.02, constant(0.0), adaptive_codec())
        simulation.run(200)
        simulation.drain()
        simulation.now += 9.9
        simulation.send()
        assert simulation.codec.windows == 16
        simulation.drain()
        simulation.now += 10.001
        simulation.send()
        assert simulation.codec.windows == 2

    def test_single_windows_after_a_break_come_first(self) -> None:
        simulation = Simulation(0.02, constant(0.0), adaptive_codec())
        run = simulation.run(420, breaks=210)
        assert run.lost[0] == 15 * 10
        assert run.limits[210:219] == [1] * 9
        assert run.limits[-2] == 16

    def test_writer_without_more_to_send_keeps_two(self) -> None:
        """The limit grows only while it is what holds the writer back."""
        codec = adaptive_codec()
        for turn in range(200):
            now = float(turn)
            _in_flight, batch = inflight_of([(BODY, DOCUMENT)])
            assert codec.encode(batch.capsule, 1, now) == 1
            codec.take_bytes()
            assert codec.receive(ack(1), now + 0.02) == 0
            assert codec.limit == 2


class TestBytes:
    def test_half_of_max_bytes_bounds_windows_in_flight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = record_codecs(monkeypatch, "logclient.lumberjack.core")
        Lumberjack(parse("lumberjack://h?max_bytes=16MiB"), PRODUCER)
        assert (made[0][-1]["adaptive"], made[0][-1]["inflight_bytes"]) == (True, 8 << 20)

    def test_bytes_in_flight_stay_within_the_bound(self) -> None:
        """Each event counts as 32 bytes, a window as 320."""
        codec = adaptive_codec(window_bytes=320, inflight_bytes=5 * 320)
        run = Simulation(0.05, constant(0.0), codec).run(500)
        assert run.most == 5
        assert max(run.limits) <= 2 * 5

    def test_two_windows_need_no_room_in_the_bound(self) -> None:
        run = Simulation(0.05, constant(0.0), adaptive_codec(inflight_bytes=0)).run(50)
        assert run.most == 2


class TestNearReaders:
    @pytest.mark.parametrize("seconds", [0.00001, 0.001, 0.004])
    def test_near_reader_keeps_two_windows(self, seconds: float) -> None:
        run = Simulation(0.0005, constant(seconds), adaptive_codec()).run(500)
        assert run.most == 2

    @pytest.mark.parametrize("seconds", [0.02, 0.1, 0.9])
    def test_near_reader_that_needs_time_keeps_two(self, seconds: float) -> None:
        """A window of this reader takes as long as that of a distant one, but the second waits behind it."""
        run = Simulation(0.0005, constant(seconds), adaptive_codec()).run(500)
        assert run.most == 2

    def test_reader_that_warms_up_keeps_two_most_of_the_time(self) -> None:
        """The first window takes long, so the shortest round trip is that of two windows."""

        def warm(_events: int, window: int) -> float:
            return 1.0 if window == 0 else 0.05

        run = Simulation(0.0005, warm, adaptive_codec()).run(3000)
        assert run.most == 4
        assert sum(limit > 2 for limit in run.limits) < 150

    def test_fixed_number_never_changes(self) -> None:
        for inflight in (1, 2, 5):
            codec = adaptive_codec(inflight=inflight, adaptive=False)
            run = Simulation(0.1, constant(0.0), codec).run(200)
            assert set(run.limits) == {inflight} and run.most == inflight

    @pytest.mark.parametrize("options", ["inflight=2", "strict_spec=true"])
    def test_given_number_or_literal_form_is_fixed(
        self, options: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = record_codecs(monkeypatch, "logclient.lumberjack.core")
        core = Lumberjack(parse(f"lumberjack://h?{options}"), PRODUCER)
        assert (made[0][-1]["inflight"], made[0][-1]["adaptive"], core._codec.limit) == (2, False, 2)


class TestSlowLogstash:
    """A Logstash that takes an event a second: more windows in flight would only be more duplicates."""

    @pytest.mark.parametrize("round_trip", [0.0005, 0.04, 0.3])
    @pytest.mark.parametrize("size", [1, 3, 10])
    def test_an_event_a_second_has_as_few_duplicates(self, round_trip: float, size: int) -> None:
        def duplicates(adaptive: bool) -> Run:
            def events(window: int) -> int:
                return 1 if window == 0 else 1 + window * 7 % size

            codec = adaptive_codec(adaptive=adaptive)
            simulation = Simulation(round_trip, lambda n, _: float(n), codec, events=events)
            return simulation.run(400, breaks=23)

        ours, two = duplicates(True), duplicates(False)
        assert len(ours.lost) == len(two.lost) == 17
        assert sum(ours.lost) == sum(two.lost) > 0
        assert ours.most == two.most == 2

    @pytest.mark.slow
    @given(st.lists(st.floats(1.0, 20.0), min_size=5, max_size=60))
    def test_no_slow_reader_gets_more_than_two(self, times: list[float]) -> None:
        def seconds_for(_events: int, window: int) -> float:
            return times[window % len(times)]

        run = Simulation(0.02, seconds_for, adaptive_codec()).run(100)
        assert run.most <= 2

    @pytest.mark.parametrize("sign", [ack(0), ack(1)], ids=["keep-alive", "partial ack"])
    def test_sign_of_work_on_a_window_returns_to_two(self, sign: bytes) -> None:
        simulation = Simulation(0.02, constant(0.0), adaptive_codec())
        simulation.run(200)
        assert simulation.codec.limit == 16 and simulation.codec.windows == 15
        assert simulation.codec.receive(sign, simulation.now) == 0
        assert simulation.codec.limit == 2
        assert max(simulation.run(500).limits) == 2

    def test_keep_alive_without_windows_changes_nothing(self) -> None:
        simulation = Simulation(0.02, constant(0.0), adaptive_codec())
        simulation.run(200)
        simulation.drain()
        assert simulation.codec.receive(ack(0), simulation.now) == 0
        assert simulation.codec.limit == 16


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "ack", "ack", "partial", "alive", "break"]),
              st.sampled_from([0.0, 0.0, 0.001, 0.004, 0.005, 0.01, 0.02, 0.05, 0.3, 1.1, 11.0])),
    max_size=400,
)  # fmt: skip
DELAYS = st.tuples(st.sampled_from([0.004, 0.006, 0.02, 0.3, 0.9, 1.2]), st.floats(0.0, 2.0))


class TestReference:
    @given(STEPS, st.integers(1, 4), st.integers(0, 4000))
    def test_any_steps_give_the_limit_of_the_reference(
        self, steps: list[tuple[str, float]], least: int, most_bytes: int
    ) -> None:
        codec = adaptive_codec(inflight=least, inflight_bytes=most_bytes, window_bytes=320)
        limit, trips, now, careful = Limit(least), deque[Trip](), 0.0, 0
        piece, sizes = Piece(320, 320), deque[int]()
        for what, seconds in steps:
            now += seconds
            if what == "send":
                n = min(2, max(1, piece.size // 32))
                _in_flight, batch = inflight_of([(BODY, DOCUMENT)] * 2)
                size = sum(trip.size for trip in trips)
                room = len(trips) < limit.now and (len(trips) < least or size + 320 <= most_bytes)
                if careful:
                    room = not trips
                assert codec.credit(now) == ((10, piece.size) if room else (0, 0))
                assert codec.encode(batch.capsule, 2, now) == (n if room else 0)
                codec.take_bytes()
                if room:
                    trips.append(limit.sent(len(trips) + 1, now, n * 32))
                    sizes.append(n)
            elif what == "ack" and trips:
                limit.acked(trips[0], len(trips), now)
                trip, n = trips.popleft(), sizes.popleft()
                piece.settle(trip.size, trip.sent, now)
                piece.acked = True
                careful = max(0, careful - 1)
                assert codec.receive(ack(n), now) == 0
            elif what in ("partial", "alive"):
                if trips and (what == "alive" or sizes[0] > 1):
                    limit.busy()
                piece.acked |= what == "partial" and len(trips) > 0 and sizes[0] > 1
                if what == "alive" or (trips and sizes[0] > 1):
                    assert codec.receive(ack(0 if what == "alive" else 1), now) == 0
            elif what == "break":
                careful = 10 if len(trips) > 1 else careful
                if trips:
                    piece.lose(sizes[0], trips[0].size)
                trips.clear()
                sizes.clear()
                piece.begin()
                codec.connection_lost()
                codec.connected(now)
                limit.reset()
            assert codec.limit == (1 if careful else limit.now)
            assert codec.windows == len(trips)

    @given(DELAYS, st.integers(50, 300), st.randoms(use_true_random=False))
    def test_full_rounds_give_the_limit_of_the_reference(
        self, delay: tuple[float, float], windows: int, random: object
    ) -> None:
        """A writer that always has events, with round trips that vary."""
        shortest, spread = delay
        codec, limit = adaptive_codec(), Limit()
        flying: deque[tuple[Trip, float]] = deque()
        now = arrives = 0.0
        for _ in range(windows):
            while codec.credit(now)[0]:
                _in_flight, batch = inflight_of([(BODY, DOCUMENT)])
                assert codec.encode(batch.capsule, 1, now) == 1
                codec.take_bytes()
                trip = shortest * (1 + spread * random.random())  # type: ignore[attr-defined]
                arrives = max(arrives, now + trip)
                flying.append((limit.sent(len(flying) + 1, now), arrives))
            assert len(flying) == limit.now or len(flying) > limit.now
            trip_, now = flying[0]
            limit.acked(trip_, len(flying), now)
            flying.popleft()
            assert codec.receive(ack(1), now) == 0
            assert codec.limit == limit.now
        assert limit.base < FOREVER


def test_sixteen_windows_in_flight_are_whole() -> None:
    """Sixteen windows in flight come out of the reader as they went in."""
    codec = adaptive_codec()
    simulation = Simulation(0.02, constant(0.0), codec)
    simulation.run(200)
    simulation.drain()
    in_flight, batch = inflight_of([(b'{"n":%d}' % n, DOCUMENT) for n in range(160)])
    while codec.encode(batch.capsule, 10, simulation.now) > 0:
        in_flight.encoded(batch)
    data = codec.take_bytes()
    windows = Reader().receive_data(data)
    assert [len(window) for window in windows] == [10] * 16


class FarServer:
    """A server that acknowledges each window some time after it arrived, whatever else is in flight.

    Args:
        seconds: the length of the round trip.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.most = self.events = 0
        self.changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"lumberjack://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        reader, due = Reader(), deque[tuple[float, int]]()
        sock, _ = self._listener.accept()
        with sock:
            while True:
                while due and due[0][0] <= time.monotonic():
                    sock.sendall(ack(due.popleft()[1]))
                sock.settimeout(max(0.0001, due[0][0] - time.monotonic()) if due else None)
                try:
                    data = sock.recv(1 << 20)
                except TimeoutError:
                    continue
                if not data:
                    return
                for window in reader.receive_data(data):
                    due.append((time.monotonic() + self.seconds, len(window)))
                    with self.changed:
                        self.events += len(window)
                        self.most = max(self.most, len(due))
                        self.changed.notify_all()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def sends_until(server: FarServer, client: logclient.Client, enough: Callable[[], bool]) -> int:
    """Send events as fast as the client takes them, until the server has seen enough; return how many."""
    deadline = time.monotonic() + PATIENCE
    for n in itertools.count(1):
        client.send(BODY)
        if n % 100 == 0:
            with server.changed:
                if enough():
                    return n
            assert time.monotonic() < deadline, f"{server.most} windows in flight"
    raise AssertionError


class TestDelayLine:
    """A client and a server with a long round trip, over a socket."""

    @pytest.mark.slow
    def test_far_server_has_more_windows_in_flight(self, pump: None) -> None:
        server = FarServer(0.05)
        with logclient.connect(server.url, overflow="block", window=50, max_events=5000) as client:
            sent = sends_until(server, client, lambda: server.most > 8)
            assert client.flush(PATIENCE) == 0
            assert client.stats().acked == sent == server.events
        server.close()
        assert 8 < server.most <= 16

    @pytest.mark.slow
    def test_given_number_bounds_the_windows_in_flight(self, pump: None) -> None:
        server = FarServer(0.01)
        with logclient.connect(
            server.url, overflow="block", window=50, max_events=5000, inflight=3
        ) as client:
            sent = sends_until(server, client, lambda: server.events > 5000)
            assert client.flush(PATIENCE) == 0
            assert client.stats().acked == sent == server.events
        server.close()
        assert server.most == 3
