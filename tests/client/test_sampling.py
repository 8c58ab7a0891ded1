"""Records that are held back: samples, rates of a message, repetitions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient._ext.constants import FILTERS
from logclient.records.sampling import LARGEST, SUPPRESSED, Sampling
from logclient.testing.lumberjack import Collector
from tests.support.documents import dotted
from tests.support.examples import examples
from tests.support.patience import PATIENCE


def _record(msg: str, *args: Any, name: str = "shop", level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord(name, level, "/srv/shop.py", 7, msg, args, None, "pay")


class Scene:
    """A `Sampling` with a clock and random numbers of the test."""

    def __init__(self, sample: dict[str, float] | None = None, rate: int = 0, dedupe: float = 0.0) -> None:
        self.now = 100.0
        self.drawn = 0.5
        self.counts: list[str] = []
        self.sampling = Sampling(
            sample or {},
            rate,
            dedupe,
            lambda why: self.counts.append(FILTERS[why]),
            clock=lambda: self.now,
            random=lambda: self.drawn,
        )

    def passes(self, record: logging.LogRecord) -> int:
        """Return how many were suppressed before the record, or -1 if it is held back itself."""
        found = self.sampling.record(record)
        return -1 if found is None else getattr(found, SUPPRESSED, 0)


class TestSamples:
    def test_the_longest_logger_counts_before_the_level(self) -> None:
        scene = Scene({"DEBUG": 0.1, "shop": 0.2, "shop.db": 0.9, "ERROR": 0.3})
        debug = logging.DEBUG
        assert scene.passes(_record("x", name="other", level=debug)) == -1
        assert scene.passes(_record("x", name="shop", level=debug)) == -1
        assert scene.passes(_record("x", name="shop.db.pool", level=debug)) == 0
        assert scene.passes(_record("x", name="shopping")) == 0
        assert scene.passes(_record("x", name="other", level=logging.ERROR)) == -1
        assert scene.passes(_record("x", name="shop", level=logging.WARNING)) == 0
        assert scene.counts == ["sample"] * 3

    @examples(100)
    @given(st.floats(0, 1), st.lists(st.floats(0, 1, exclude_max=True), max_size=50))
    def test_the_share_decides_with_the_draw(self, share: float, draws: list[float]) -> None:
        scene = Scene({"INFO": share})
        for scene.drawn in draws:
            assert (scene.passes(_record("x")) == 0) == (scene.drawn < share)


class TestRates:
    def test_the_next_record_says_how_many_were_held_back(self) -> None:
        scene = Scene(rate=3)
        assert [scene.passes(_record("a %d", n)) for n in range(10)] == [0] * 3 + [-1] * 7
        assert scene.passes(_record("b")) == 0
        assert scene.passes(_record("a %d", 1, name="other")) == 0
        scene.now += 1.0
        assert [scene.passes(_record("a %d", n)) for n in range(2)] == [7, 0]
        assert scene.counts == ["rate_limit"] * 7

    def test_the_record_of_other_handlers_is_not_changed(self) -> None:
        scene = Scene(rate=1)
        records = [_record("a") for _ in range(3)]
        for record in records[:2]:
            scene.sampling.record(record)
        scene.now += 1.0
        made = scene.sampling.record(records[2])
        assert getattr(made, SUPPRESSED) == 1 and not hasattr(records[2], SUPPRESSED)

    @examples(50)
    @given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.7)), max_size=60), st.integers(1, 4))
    def test_no_record_goes_uncounted(self, steps: list[tuple[int, float]], rate: int) -> None:
        scene = Scene(rate=rate)
        passed = suppressed = 0
        for which, pause in steps:
            scene.now += pause
            found = scene.passes(_record(f"m{which}"))
            passed += found >= 0
            suppressed += max(0, found)
        assert passed + len(scene.counts) == len(steps)
        assert suppressed <= len(scene.counts)


class TestRepetitions:
    def test_equal_texts_are_held_back_for_a_while(self) -> None:
        scene = Scene(dedupe=5.0)
        assert [scene.passes(_record("a %d", n)) for n in (1, 1, 2, 1)] == [0, -1, 0, -1]
        scene.now += 5.0
        assert scene.passes(_record("a %d", 1)) == 2
        assert scene.counts == ["dedupe"] * 2

    def test_another_exception_is_another_text(self) -> None:
        scene = Scene(dedupe=5.0)
        for kind, expected in ((ValueError, 0), (KeyError, 0), (ValueError, -1)):
            record = _record("failed")
            try:
                raise kind("x")
            except (ValueError, KeyError):
                record.exc_info = sys.exc_info()
            assert scene.passes(record) == expected

    def test_memory_is_bounded(self) -> None:
        scene = Scene(rate=1, dedupe=60.0, sample={"x": 0.5})
        for n in range(3 * LARGEST):
            scene.passes(_record(f"message {n}", name=f"logger.{n}"))
        assert len(scene.sampling._windows) <= LARGEST + 1
        assert scene.sampling._share is not None
        assert scene.sampling._share.cache_info().currsize <= LARGEST


class TestHandlers:
    @pytest.fixture
    def server(self) -> Iterator[Collector]:
        with Collector(keep=True) as server:
            yield server

    def test_held_back_records_are_counted(self, server: Collector) -> None:
        options: Any = {"sample": "DEBUG=0,shop.db=0", "rate_limit": 5, "dedupe": "1h"}
        handler = logclient.Handler(server.url, **options)
        for n in range(100):
            handler.handle(_record("debug", level=logging.DEBUG))
            handler.handle(_record("db", name="shop.db"))
            handler.handle(_record("same"))
            handler.handle(_record("each %d", n, name=f"each.{n}"))
        assert handler.client.flush(PATIENCE) == 0
        stats = handler.client.stats()
        handler.close()
        texts = [event["message"] for event in server.events(101, PATIENCE)]
        assert texts == ["same", *(f"each {n}" for n in range(100))]
        assert stats.filtered == {"sample": 200, "dedupe": 99} and stats.sent == 101

    def test_the_number_held_back_is_a_field(self, server: Collector) -> None:
        handler = logclient.Handler(server.url, dedupe="200ms")
        sent = 0
        while handler.client.stats().sent < 2:
            handler.handle(_record("same"))
            sent += 1
        assert handler.client.flush(PATIENCE) == 0
        handler.close()
        first, second = map(dotted, server.events(2, PATIENCE))
        assert SUPPRESSED not in first and second[SUPPRESSED] == sent - 2

    def test_other_front_ends_sample_too(self, server: Collector) -> None:
        loguru = pytest.importorskip("loguru")
        from logclient.integrations.loguru import Sink

        sink = Sink(server.url, dedupe="1h", sample={"DEBUG": 0})
        number = loguru.logger.add(sink, format="{message}", level=0)
        for _ in range(5):
            loguru.logger.info("same")
            loguru.logger.debug("never")
        assert sink.client.flush(PATIENCE) == 0
        stats = sink.client.stats()
        loguru.logger.remove(number)
        assert [event["message"] for event in server.events(1, PATIENCE)] == ["same"]
        assert stats.filtered == {"sample": 5, "dedupe": 4}
