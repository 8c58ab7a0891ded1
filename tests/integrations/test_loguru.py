"""loguru with our sink: 2,000 records beside loguru's own JSON."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.integrations.loguru import Sink
from logclient.testing.lumberjack import Collector
from tests.integrations.odd_records import RECORDS, Broken, arrived, draw_fields, expected_field, fail, shown
from tests.support.documents import dotted
from tests.support.patience import PATIENCE

loguru = pytest.importorskip("loguru")

METHODS = ("trace", "debug", "info", "success", "warning", "error", "critical")


@pytest.fixture
def logger() -> Iterator[Any]:
    loguru.logger.remove()
    yield loguru.logger
    loguru.logger.remove()


def _own_json(message: Any) -> dict[str, Any]:
    """Return what loguru itself writes, without the values that have no repr."""
    found: dict[str, Any] = json.loads(message)["record"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("enqueue", [False, True])
def test_records_equal_logurus_own_json(enqueue: bool, logger: Any, tmp_path: Path) -> None:
    draw = random.Random("loguru")
    theirs: list[dict[str, Any]] = []
    traces: list[str] = []
    given: list[dict[str, Any]] = []
    with Collector(capture=str(tmp_path)) as server:
        sink = Sink(server.url, overflow="block")
        logger.add(sink, level=0, enqueue=enqueue)
        logger.add(lambda message: theirs.append(_own_json(message)), level=0, serialize=True)
        for n in range(RECORDS):
            fields = draw_fields(draw, odd=not enqueue)  # which pickles them
            if isinstance(fields.get("odd"), Broken):
                del fields["odd"]  # loguru cannot write it
            given.append(fields)
            if n % 10 == 0 and not enqueue:
                try:
                    fail(draw, 3)  # loguru cannot write one without a text
                except Exception as error:
                    traces.append(
                        logging.Formatter().formatException((type(error), error, error.__traceback__))
                    )
                    logger.bind(**fields).exception("failed {}", n)
            else:
                with logger.contextualize(request=n):
                    getattr(logger.bind(**fields), draw.choice(METHODS))("event {} 😀", n)
        logger.complete()
        assert sink.client.flush(PATIENCE) == 0
        assert sink.client.stats().failed == {}
        logger.remove()
        assert sink.client.closed
    documents = [dotted(document) for document in arrived(tmp_path)]
    assert len(documents) == len(theirs) == RECORDS
    for document, record, fields in zip(documents, theirs, given, strict=True):
        expected = {
            "log.level": record["level"]["name"].lower(),
            "message": record["message"],
            "log.logger": record["name"],
            "log.origin.file.name": record["file"]["name"],
            "log.origin.file.line": record["line"],
            "log.origin.function": record["function"],
            "process.pid": record["process"]["id"],
            "process.name": record["process"]["name"],
            "process.thread.id": record["thread"]["id"],
            "process.thread.name": record["thread"]["name"],
        }
        assert datetime.fromisoformat(document["@timestamp"]).timestamp() == record["time"]["timestamp"]
        if record["exception"]:
            expected["error.type"] = record["exception"]["type"]
            expected["error.stack_trace"] = traces.pop(0)
            assert document.pop("error.message")
        for name, value in record["extra"].items():
            name, value = expected_field(name, fields.get(name, value), value)
            expected[name] = value
        assert shown(document) == dotted(expected)


def test_a_log_call_never_raises(logger: Any, capfd: pytest.CaptureFixture[str]) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with Collector(keep=True) as server:
        client = logclient.connect(server.url)
        logger.add(Sink(client=client), catch=False)
        logger.bind(cycle=cycle).info("circle")
        logger.bind(broken=Broken(), message=2, **{"@timestamp": "x", "log.level": 1}).info("sent")
        logger.remove()
        assert not client.closed
        circle, event = map(dotted, server.events(2, PATIENCE))
        assert circle["cycle"] == ["<cycle>"] and client.stats().failed == {}
        client.close()
    assert event["broken"] == "<unprintable Broken>"
    assert (event["labels.timestamp"], event["labels.log_level"]) == ("x", 1)
    assert (event["message"], event["labels.message"]) == ("sent", 2)
    assert capfd.readouterr().err == ""


def test_levels_of_the_application_are_kept(logger: Any) -> None:
    with Collector(keep=True) as server:
        logger.level("NOTICE-9", no=29)
        logger.add(Sink(server.url, service="shop"))
        logger.log("NOTICE-9", "hello")
        [event] = map(dotted, server.events(1, PATIENCE))
        logger.remove()
    assert (event["log.level"], event["service.name"]) == ("notice-9", "shop")
