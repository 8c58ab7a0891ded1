"""structlog with our logger factory: 2,000 events beside structlog's own JSON."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.integrations.structlog import LoggerFactory
from logclient.testing.lumberjack import Collector
from tests.integrations.odd_records import (
    RECORDS,
    Broken,
    arrived,
    draw_fields,
    expected_field,
    fail,
    shown,
)
from tests.support.documents import dotted
from tests.support.patience import PATIENCE

structlog = pytest.importorskip("structlog")

METHODS = ("debug", "info", "warning", "error", "critical")


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def _own_json(event: dict[str, Any]) -> dict[str, Any]:
    """Return what structlog itself writes."""
    made = structlog.processors.format_exc_info(None, "", dict(event))
    try:
        text = structlog.processors.JSONRenderer()(None, "", made)
    except Exception:  # one value without a repr loses the event
        made = {name: value for name, value in made.items() if not isinstance(value, Broken)}
        text = structlog.processors.JSONRenderer()(None, "", made)
    found: dict[str, Any] = json.loads(text)
    return found


def test_events_equal_structlogs_own_json(tmp_path: Path) -> None:
    draw = random.Random("structlog")
    given: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def note(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        if event.get("exc_info") is True:
            event["exc_info"] = sys.exc_info()
        given.append((dict(event), _own_json(event)))
        return event

    with Collector(capture=str(tmp_path)) as server:
        factory = LoggerFactory(server.url, overflow="block")
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                note,
            ],
            logger_factory=factory,
        )
        log = structlog.get_logger("shop").bind(bound="größe")
        for n in range(RECORDS):
            with structlog.contextvars.bound_contextvars(request=n):
                if n % 10 == 0:
                    try:
                        fail(draw)
                    except Exception:
                        log.exception(f"failed {n}", **draw_fields(draw))
                else:
                    getattr(log, draw.choice(METHODS))(f"event {n} 😀", **draw_fields(draw))
        assert factory.client.flush(PATIENCE) == 0
        assert factory.client.stats().failed == {}
        factory.client.close()
    documents = [dotted(document) for document in arrived(tmp_path)]
    assert len(documents) == len(given) == RECORDS
    for document, (event, theirs) in zip(documents, given, strict=True):
        expected = {"log.logger": "shop", "message": event.pop("event"), "log.level": event.pop("level")}
        exc_info = event.pop("exc_info", None)
        if exc_info:
            expected["error.type"] = exc_info[0].__name__
            expected["error.stack_trace"] = theirs["exception"]
            assert document.pop("error.message")
        assert document["@timestamp"] == event.pop("timestamp")
        for name, value in event.items():
            name, value = expected_field(name, value, theirs.get(name))
            expected[name] = value
        assert shown(document) == dotted(expected)


def _logged(tmp_path: Path, processors: list[Any], *names: str) -> Iterator[Any]:
    with Collector(keep=True) as server:
        factory = LoggerFactory(server.url)
        structlog.configure(processors=processors, logger_factory=factory)
        yield structlog.get_logger(*names)
        assert factory.client.flush(PATIENCE) == 0
        yield [dotted(event) for event in server.events(factory.client.stats().acked)]
        factory.client.close()


def test_names_of_structlog_become_those_of_ecs(tmp_path: Path) -> None:
    callsite = structlog.processors.CallsiteParameterAdder()
    run = _logged(tmp_path, [callsite, structlog.processors.StackInfoRenderer()], "shop")
    log = next(run)
    log.warning("hello", stack_info=True, process_count=2)
    [event] = next(run)
    assert event["log.origin.file.name"] == "test_structlog.py"
    assert event["log.origin.function"] == "test_names_of_structlog_become_those_of_ecs"
    assert event["process.thread.name"] == "MainThread"
    assert event["error.stack_trace"].startswith("Stack (most recent call last)")
    assert (event["log.level"], event["process_count"]) == ("warning", 2)
    assert not {"stack", "stack_info", "func_name", "lineno", "process", "thread"} & set(event)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        (1767323045.5, "2026-01-02T03:04:05.500000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05.000000Z"),
        (1e300, None),
        (datetime.min, None),
        (True, None),
        (None, None),
    ],
)
def test_times_of_any_kind_are_taken(given: Any, expected: str | None, tmp_path: Path) -> None:
    run = _logged(tmp_path, [lambda *a: {**a[2], "timestamp": given}])
    next(run).info("hello")
    [event] = next(run)
    if expected is None:
        now = datetime.fromisoformat(event["@timestamp"])
        assert abs((datetime.now(UTC) - now).total_seconds()) < 60
    else:
        assert event["@timestamp"] == expected


@pytest.mark.parametrize("given", [True, 1, "yes", 0, "", None])
def test_exc_info_may_be_any_true_value(given: Any, tmp_path: Path) -> None:
    run = _logged(tmp_path, [])
    log = next(run)
    try:
        raise LookupError("gone")
    except LookupError:
        log.error("failed", exc_info=given)
    [event] = next(run)
    assert event.get("error.type") == ("LookupError" if given else None)


def test_a_field_message_is_beside_the_event(tmp_path: Path) -> None:
    run = _logged(tmp_path, [])
    log = next(run)
    log.error("payment failed", message="card declined")
    log.error(None, message="card declined")
    beside, alone = next(run)
    assert (beside["message"], beside["labels.message"]) == ("payment failed", "card declined")
    assert alone["message"] == "card declined" and "labels.message" not in alone


@pytest.mark.parametrize("name", ["exc_info", "exception", "stack", "timestamp"])
def test_an_odd_object_in_a_place_of_ours_is_a_field(name: str, tmp_path: Path) -> None:
    run = _logged(tmp_path, [])
    next(run).error("failed", **{name: Odd()})
    [event] = next(run)
    assert (event["message"], event.get(name, event.get(f"labels.{name}"))) == ("failed", "odd")
    assert "error.type" not in event


def test_a_log_call_never_raises(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with Collector() as server:
        factory = LoggerFactory(server.url, overflow="raise", max_events=1)
        structlog.configure(processors=[], logger_factory=factory)
        log = structlog.get_logger("logclient.test")
        log.info("ours are left out")
        log = structlog.get_logger()
        log.info("circle", cycle=cycle, text="x" * (2 << 20))
        log.info("no name", logger=Odd())
        for n in range(100):
            log.info(Broken(), n=n, logger=Broken())
        log.fatal("end")
        factory.client.close()
        stats = factory.client.stats()
    assert stats.failed == {"too_large": 1}
    assert stats.sent == 1 + stats.acked + sum(stats.dropped.values())
    said = capfd.readouterr().err
    assert "EncodeError" in said and "a record of structlog: ValueError: neither" in said


def test_a_log_call_leaves_nothing_to_the_garbage_collection() -> None:
    structlog.configure(processors=[], logger_factory=LoggerFactory("none:"))
    log = structlog.get_logger()  # makes a logger of ours for each call
    log.info("first")
    gc.collect()
    gc.disable()
    try:
        for _ in range(1000):
            log.info("next")
        assert gc.collect() < 1000
    finally:
        gc.enable()


def test_unknown_methods_are_refused() -> None:
    client = logclient.connect("lumberjack://127.0.0.1:9")
    log = LoggerFactory(client=client)("a")
    with pytest.raises(AttributeError, match="inform"):
        log.inform("x")
    with pytest.raises(TypeError, match="window: options belong to the client"):
        LoggerFactory(client=client, window=5)
    with pytest.raises(logclient.ConfigError, match="URL: give one, or set the variable LOGCLIENT_URL"):
        LoggerFactory()
    client.close()


def test_text_of_a_renderer_is_shipped_and_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = _logged(tmp_path, [structlog.processors.JSONRenderer()], "shop")
    log = next(run)
    for _ in range(3):
        log.warning("late", days=3)
    events = next(run)
    assert [event["message"] for event in events] == ['{"days": 3, "event": "late"}'] * 3
    assert {event["log.level"] for event in events} == {"warning"}
    assert capfd.readouterr().err.count("leave that processor out") == 1


def test_filter_by_level_of_structlog_works() -> None:
    passed: list[str] = []

    def note(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        passed.append(method)
        return event

    with Collector(keep=True) as server:
        factory = LoggerFactory(server.url)
        structlog.configure(
            processors=[structlog.stdlib.filter_by_level, structlog.stdlib.add_logger_name, note],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=factory,
        )
        log = structlog.get_logger("shop")
        log.debug("sent")
        factory.client.reconfigure(level="WARNING")
        log.info("below the level")
        log.warning("late")
        assert factory.client.flush(PATIENCE) == 0
        events = [dotted(event) for event in server.events(2)]
        factory.client.close()
    found = [(event["message"], event["log.logger"]) for event in events]
    assert found == [("sent", "shop"), ("late", "shop")]
    assert passed == ["debug", "warning"]


def test_the_handler_takes_event_dicts_of_the_standard_librarys_route() -> None:
    with Collector(keep=True) as server:
        handler = logclient.Handler(server.url)
        logger = logging.getLogger("test-structlog")
        logger.propagate = False
        logger.addHandler(handler)
        structlog.configure(
            processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        structlog.get_logger("test-structlog").warning("hello", order=7)
        [event] = map(dotted, server.events(1, PATIENCE))
        logger.removeHandler(handler)
        handler.close()
    assert (event["message"], event["order"], event["log.level"]) == ("hello", 7, "warning")
    assert not {"_logger", "_name", "event"} & set(event)


class Empty(Exception):
    """An exception with a length."""

    def __len__(self) -> int:
        return 0


class Odd:
    """What has no truth, and is no exception."""

    def __bool__(self) -> bool:
        raise ValueError("neither")

    def __str__(self) -> str:
        return "odd"


def test_exceptions_of_event_dicts_are_those_of_the_event() -> None:
    """However they are given; the fields of the same names are no fields of the event."""
    with Collector(keep=True) as server:
        handler = logclient.Handler(server.url)
        logger = logging.getLogger("test-structlog")
        logger.propagate = False
        shown = io.StringIO()
        console = logging.StreamHandler(shown)
        last = structlog.dev.ConsoleRenderer(colors=False)
        console.setFormatter(structlog.stdlib.ProcessorFormatter(processor=last))
        for one in (handler, console):
            logger.addHandler(one)
        structlog.configure(
            processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        log = structlog.get_logger("test-structlog")
        try:
            raise ValueError("late")
        except ValueError as error:
            late = error
            log.exception("a")
            log.error("a", exc_info=True)  # noqa: G201
            log.error("a", exc_info=sys.exc_info())  # noqa: G201
            asyncio.run(log.aexception("a"))
        log.error("a", exc_info=late)
        log.error("b", exc_info=True)
        log.error("b", exc_info=None)
        log.error("d", exc_info=Empty("none"))
        log.error("e", exc_info=Odd())
        log.error("c", exception="made text", stack="made stack")
        events = [dotted(event) for event in server.events(10, PATIENCE)]
        for one in (handler, console):
            logger.removeHandler(one)
        handler.close()
    odd = events.pop(8)
    assert odd["exc_info"] == "odd" and "error.type" not in odd
    assert not {"exc_info", "exception", "stack"} & {name for event in events for name in event}
    assert events.pop(7)["error.type"] == "Empty"
    for event in events[:5]:
        assert (event["message"], event["error.type"], event["error.message"]) == ("a", "ValueError", "late")
        assert event["error.stack_trace"].endswith("ValueError: late")
    assert not [name for event in events[5:7] for name in event if name.startswith("error.")]
    assert events[7]["error.stack_trace"] == "made text\nmade stack"
