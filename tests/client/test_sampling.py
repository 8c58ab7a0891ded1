"""Records that are held back: samples, rates of a message, repetitions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient._ext.constants import FILTERS
from logclient.records.sampling import LARGEST, SUPPRESSED, Sampling, draw_of_trace
from logclient.testing.lumberjack import Collector
from tests.support.documents import dotted
from tests.support.examples import examples
from tests.support.patience import PATIENCE


def _record(msg: Any, *args: Any, name: str = "shop", level: int = logging.INFO) -> logging.LogRecord:
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


class TestTraces:
    @examples(200)
    @given(st.integers(1, 2**128 - 1), st.integers(0, 1000).map(lambda n: n / 1000))
    def test_the_trace_decides_as_in_opentelemetry(self, trace: int, share: float) -> None:
        sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
        ours = Sampling({"INFO": share}, 0, 0.0, lambda why: None, random=draw_of_trace)
        theirs = sampling.TraceIdRatioBased(share).should_sample(None, trace, "a span")
        with logclient.bind({"trace.id": f"{trace:032x}", "http.request.id": "r"}):
            assert (ours.record(_record("x")) is not None) == theirs.decision.is_sampled()

    def test_without_a_trace_the_request_decides(self) -> None:
        ours = Sampling({"DEBUG": 0.3, "INFO": 0.5}, 0, 0.0, lambda why: None, random=draw_of_trace)
        kept: dict[int, int] = {}
        for n in range(1000):
            with logclient.bind({"http.request.id": f"r-{n}"}):
                levels = [logging.DEBUG, logging.INFO] * 3
                found = [ours.record(_record("x", level=level)) is not None for level in levels]
            assert found[:2] * 3 == found and found[0] <= found[1]
            kept[sum(found)] = kept.get(sum(found), 0) + 1
        assert 230 < kept[6] < 370 and 430 < kept[6] + kept[3] < 570

    @pytest.mark.parametrize("trace", ["", "x" * 32, 7])
    def test_what_is_no_trace_is_a_record_by_itself(self, trace: object) -> None:
        ours = Sampling({"INFO": 0.5}, 0, 0.0, lambda why: None, random=draw_of_trace)
        with logclient.bind({"trace.id": trace}):
            assert {ours.record(_record("x")) is None for _ in range(100)} == {True, False}

    def test_what_has_no_text_is_a_record_by_itself(self) -> None:
        class Broken:
            def __str__(self) -> str:
                raise RuntimeError("broken")

        ours = Sampling({"INFO": 0.5}, 0, 0.0, lambda why: None, random=draw_of_trace)
        with logclient.bind({"http.request.id": Broken()}):
            assert {ours.record(_record("x")) is None for _ in range(100)} == {True, False}
        with logclient.bind({"http.request.id": "\udc80"}):
            assert len({ours.record(_record("x")) is None for _ in range(100)}) == 1

    def test_a_handler_takes_the_option(self) -> None:
        """The choice is that of one trace in all its processes, so it is the same in each client."""
        with Collector(keep=True) as server:
            for _ in range(2):
                handler = logclient.Handler(server.url, sample={"INFO": 0.5}, sample_by="trace")
                for n in range(16):
                    with logclient.bind({"trace.id": f"{n:x}" * 32}):
                        handler.handle(_record("%d", n))
                handler.client.close()
            assert sorted(int(event["message"]) for event in server.events()) == sorted([*range(8)] * 2)


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


class _Braces:
    """As the logging cookbook of Python has it."""

    def __init__(self, text: str, *args: Any) -> None:
        self.fmt = text
        self.args = args

    def __str__(self) -> str:
        return self.fmt.format(*self.args)


class _Attribute:
    """An object that formats itself, and keeps its format under a name of its own."""

    def __init__(self, name: str, text: str, **values: Any) -> None:
        self.values = values
        self.name = name
        setattr(self, name, text)

    def __str__(self) -> str:
        return str(getattr(self, self.name)).format(**self.values)


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Mapping(Mapping[str, Any]):
    def __init__(self, **values: Any) -> None:
        self.values_ = values

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


class _OddText(str):
    def __hash__(self) -> int:
        raise TypeError("no hash")


KINDS: dict[str, Callable[[str, int], Any]] = {
    "text": lambda text, n: text,
    "text of a subclass": lambda text, n: _OddText(text),
    "long text": lambda text, n: text.rjust(100_000),
    "message": lambda text, n: {"message": text, "n": n},
    "event": lambda text, n: {"n": n, "event": text},
    "msg": lambda text, n: {"msg": text, "n": n},
    "an empty message": lambda text, n: {"message": "", "event": text, "n": n},
    "event of a mapping": lambda text, n: _Mapping(event=text, n=n),
    "event that formats itself": lambda text, n: {"event": _Braces(text + " {}", n)},
    "fields": lambda text, n: {"kind": text},
    "braces": lambda text, n: _Braces(text + " {}", n),
    "braces without a place": lambda text, n: _Braces(text),
    "format": lambda text, n: _Attribute("format", text + " {n}", n=n),
    "template": lambda text, n: _Attribute("template", text + " {n}", n=n),
    "no format": lambda text, n: _Attribute("fmt", text),
    "exception": lambda text, n: OSError(text),
    "number": lambda text, n: len(text),
    "tuple": lambda text, n: (text, 1),
    "bytes": lambda text, n: text.encode(),
}


class TestMessages:
    """What a reader calls the same message, of whatever type."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_another_message_passes(self, kind: str) -> None:
        make, scene = KINDS[kind], Scene(rate=5)
        found = [scene.passes(_record(make("heartbeat", n))) for n in range(50)]
        assert found == [0] * 5 + [-1] * 45
        assert scene.passes(_record(make("payment failed", 1), level=logging.ERROR)) == 0
        scene.now += 1.0
        assert scene.passes(_record(make("heartbeat", 50))) == 45
        assert len(scene.counts) == 45

    @pytest.mark.parametrize("text", ["%s", "[%-8.8s] %r", "%(text)s", "%s: %d%%"])
    def test_a_text_without_words_is_told_apart_by_its_arguments(self, text: str) -> None:
        scene = Scene(rate=1)

        def passes(said: str) -> int:
            args: Any = ({"text": said},) if "(" in text else (said, 1)[: text.count("%") - text.count("%%")]
            return scene.passes(_record(text, *args))

        assert [passes(said) for said in ("a", "b", "a", "b")] == [0, 0, -1, -1]
        assert scene.passes(_record("%s and %s")) == 0
        assert scene.passes(_record(text, 1, 2, 3, 4)) == 0

    def test_exceptions_of_other_types_are_others(self) -> None:
        scene = Scene(rate=1)
        for error, expected in (
            (OSError("x"), 0),
            (ValueError("x"), 0),
            (OSError("y"), 0),
            (OSError("x"), -1),
        ):
            assert scene.passes(_record(error)) == expected

    @pytest.mark.parametrize("scene", [Scene(rate=1), Scene(dedupe=5.0), Scene(rate=1, dedupe=5.0)])
    def test_an_object_without_a_text_stays_one_message(self, scene: Scene) -> None:
        messages = [_Unprintable(), "other", _Unprintable(), "other"]
        assert [scene.passes(_record(message)) for message in messages] == [0, 0, -1, -1]

    def test_an_object_that_logs_its_text_is_counted_exactly(self) -> None:
        scene = Scene(rate=1, dedupe=5.0)

        class Logs:
            def __str__(self) -> str:
                scene.passes(_record("inner"))
                return "outer"

        assert [scene.passes(_record(Logs())) for _ in range(3)] == [0, -1, -1]
        assert scene.counts.count("dedupe") + scene.counts.count("rate_limit") == len(scene.counts)

    def test_long_messages_are_not_kept(self) -> None:
        scene = Scene(rate=1)
        for n in range(10):
            scene.passes(_record(str(n) * 100_000))
        assert sum(len(str(key)) for key in scene.sampling._windows) < 1000

    def test_what_both_hold_back_is_said_once(self) -> None:
        scene = Scene(rate=1, dedupe=0.5)
        assert [scene.passes(_record("a %d", n)) for n in (1, 1, 1)] == [0, -1, -1]
        scene.now += 0.6
        assert scene.passes(_record("a %d", 1)) == -1  # for the rate, with the two of before
        scene.now += 0.6
        assert scene.passes(_record("a %d", 1)) == 3
        assert scene.counts == ["dedupe"] * 2 + ["rate_limit"]


class TestRepetitions:
    def test_arguments_that_do_not_fit_are_as_good_as_none(self) -> None:
        scene = Scene(dedupe=5.0)
        texts = ["%d items", "%d items", "%d others", "%s and %s"]
        assert [scene.passes(_record(text, "two")) for text in texts] == [0, -1, 0, 0]

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

    def test_a_table_that_forgets_meanwhile_changes_nothing(self) -> None:
        """Another thread may fill the table, which forgets a message while a record of it is decided."""
        scene = Scene(rate=1)
        looked_up = 0

        class Name(str):
            __slots__ = ()

            def __hash__(self) -> int:
                nonlocal looked_up
                looked_up += 1
                if looked_up == 4:
                    for n in range(LARGEST):
                        scene.passes(_record(f"message {n}"))
                return super().__hash__()

        name = Name("shop")
        assert [scene.passes(_record("x", name=name)) for _ in range(2)] == [0, -1]

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

    def test_structlog_through_logging(self, server: Collector) -> None:
        structlog = pytest.importorskip("structlog")
        handler = logclient.Handler(server.url, rate_limit=5)
        logger = structlog.wrap_logger(
            logging.Logger("shop"),
            [structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        logger._logger.addHandler(handler)
        for n in range(50):
            logger.info("heartbeat", n=n)
        logger.error("payment failed", order=17)
        logger.info("user logged in", user=7)
        assert handler.client.flush(PATIENCE) == 0
        handler.close()
        texts = [event["message"] for event in server.events(7, PATIENCE)]
        assert texts == ["heartbeat"] * 5 + ["payment failed", "user logged in"]

    @pytest.mark.parametrize("kind", [logging.Logger, logclient.Logger])
    @pytest.mark.parametrize("option", [{"rate_limit": 1}, {"dedupe": "1h"}])
    def test_what_ships_is_no_error(self, server: Collector, kind: Any, option: Any, capsys: Any) -> None:
        handler = logclient.Handler(server.url, **option)
        logger = kind("shop")
        logger.addHandler(handler)
        for _ in range(3):
            logger.error("%d items", "two")
            logger.error(_Unprintable())
            logger.error(_Braces("{} items", 2))
        assert handler.client.flush(PATIENCE) == 0
        assert handler.client.stats().filtered == {next(iter(option)): 6}
        handler.close()
        assert len(server.events(3, PATIENCE)) == 3
        assert capsys.readouterr().err == ""

    def test_events_without_a_message_are_told_apart(self, server: Collector) -> None:
        structlog = pytest.importorskip("structlog")
        from logclient.integrations.structlog import LoggerFactory

        factory = LoggerFactory(server.url, rate_limit=5, dedupe="1h")
        logger = structlog.wrap_logger(factory(), [])
        for n in (1, 1, 2, 3, 4, 5, 6, 7):
            logger.info("", order=n)
        assert factory.client.flush(PATIENCE) == 0
        assert dict(factory.client.stats().filtered) == {"dedupe": 1}
        factory.client.close()

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
