"""picologging with our handler: 2,000 records beside what picologging's own formatter writes."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.testing.lumberjack import Collector
from tests import support
from tests.integrations.odd_records import (
    DIFFERENCES,
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

if sys.version_info >= (3, 13):
    pytest.skip("picologging has no release for this Python", allow_module_level=True)
picologging = support.need("picologging")

METHODS = ("debug", "info", "warning", "error", "critical")
ATTRIBUTES = {
    "log.level": "levelname",
    "message": "message",
    "log.logger": "name",
    "log.origin.file.name": "filename",
    "log.origin.file.line": "lineno",
    "log.origin.function": "funcName",
    "process.pid": "process",
    "process.thread.id": "thread",
}
"""Our fields, and what picologging calls them. It records no name of a process or of a thread."""
SEPARATOR, END = "\x01", "\x02"


class Own(picologging.Handler):  # type: ignore[misc, name-defined]
    """Keeps what picologging's formatter writes: the text, and the time of the record."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, float]] = []
        names = SEPARATOR.join(f"%({name})s" for name in ATTRIBUTES.values())
        self.setFormatter(picologging.Formatter(names + END))

    def emit(self, record: Any) -> None:
        self.found.append((self.format(record), record.created))
        record.exc_text = None  # else the next handler would take it


@pytest.fixture
def logger(request: pytest.FixtureRequest) -> Iterator[Any]:
    logger = picologging.getLogger(request.node.name)
    logger.setLevel(picologging.DEBUG)
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    for one in list(logger.filters):
        logger.removeFilter(one)


def _log(logger: Any, draw: random.Random, n: int) -> None:
    if n % 10 == 0:
        try:
            fail(draw)
        except Exception:
            logger.exception("failed %d 😀", n)
    elif n % 10 == 1:
        getattr(logger, draw.choice(METHODS))("%(n)d of %(all)s", {"n": n, "all": "größe"})
    else:
        getattr(logger, draw.choice(METHODS))("event %d %s", n, draw.choice(("é€😀", 2.5, None)))


def test_records_equal_picologgings_own_output(logger: Any, tmp_path: Path) -> None:
    draw = random.Random("picologging")
    own = Own()
    logger.addHandler(own)
    given: list[dict[str, Any]] = []

    class Fields(picologging.Filter):  # type: ignore[misc, name-defined]
        """What an application does to add fields: picologging ignores ``extra``."""

        def filter(self, record: Any) -> bool:
            for name, value in given[-1].items():
                setattr(record, name, value)
            return True

    logger.addFilter(Fields())
    with Collector(capture=str(tmp_path)) as server:
        handler = logclient.Handler(server.url, overflow="block")
        logger.addHandler(handler)
        for n in range(RECORDS):
            given.append(draw_fields(draw))
            with logclient.bind(request=n, bound="größe"):
                _log(logger, draw, n)
        assert handler.client.flush(PATIENCE) == 0
        assert handler.client.stats().failed == {}
        handler.client.close()
    documents = arrived(tmp_path)
    assert len(documents) == len(own.found) == RECORDS
    for n, (found, (text, created), fields) in enumerate(zip(documents, own.found, given, strict=True)):
        document = dotted(found)
        line, _, trace = text.partition(END)
        expected: dict[str, Any] = dict(zip(ATTRIBUTES, line.split(SEPARATOR), strict=True))
        expected["log.level"] = expected["log.level"].lower()
        for name in ("log.origin.file.line", "process.pid", "process.thread.id"):
            expected[name] = int(expected[name])
        if trace:
            expected["error.stack_trace"] = trace.strip("\n")
            assert document["error.stack_trace"].rstrip("\n") == expected["error.stack_trace"]
            expected["error.type"] = document["error.type"]
            expected["error.message"] = document["error.message"]
            assert document["error.type"] in trace
        for name, value in fields.items():
            odd = any(value is difference.value for difference in DIFFERENCES)
            theirs = None if odd else json.loads(json.dumps(value))
            name, value = expected_field(name, value, theirs)
            expected[name] = value
        expected |= {"request": n, "bound": "größe"}
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(created * 1e6))
        assert datetime.fromisoformat(document["@timestamp"]) == time
        assert shown(found) == dotted(expected)


def test_a_log_call_never_raises(logger: Any, capfd: pytest.CaptureFixture[str]) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with Collector(keep=True) as server:
        handler = logclient.Handler(server.url, rate_limit=1000, before_send=lambda document: document)
        logger.addHandler(handler)
        logger.info("%d of %d", 1)
        logger.info(Broken())
        logger.info({"order": 17})
        logger.info("%s", {"cycle": cycle})
        logger.info({"cycle": cycle})
        logger.info("no error", exc_info=True)
        logger.log(25, "custom level")
        assert handler.client.flush(PATIENCE) == 0
        events = [dotted(event) for event in server.events(7, PATIENCE)]
        assert handler.client.stats().failed == {}
        handler.client.close()
    assert [event.get("message") for event in events] == [
        "%d of %d % (1,)",
        "<unprintable Broken>",
        None,
        "{'cycle': [[...]]}",
        None,
        "no error",
        "custom level",
    ]
    assert events[2]["order"] == 17
    assert events[4]["cycle"] == ["<cycle>"]
    assert events[6]["log.level"] == "25"
    assert {event["log.logger"] for event in events} == {logger.name}
    assert "EncodeError" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["logjam", "plog"])
def test_other_protocols_have_the_document_too(kind: str, logger: Any) -> None:
    collector = support.need(f"logclient.testing.{kind}").Collector
    with collector(keep=True) as server:
        handler = logclient.Handler(server.url + ("/shop-test" if kind == "logjam" else ""))
        logger.addHandler(handler)
        logger.error("größe %d", 7)
        assert handler.client.flush(PATIENCE) == 0
        [event] = server.events(1, PATIENCE)
        handler.client.close()
    if kind == "logjam":
        [[severity, _, text]] = event["lines"]
        assert (severity, text, event["action"].split("#")[0]) == (3, "größe 7", logger.name)
    else:
        data = dotted(event["data"])
        assert (data["log.level"], data["message"], data["log.logger"]) == ("error", "größe 7", logger.name)
        assert data["log.origin.file.name"] and data["process.pid"]


def test_a_formatter_of_picologging_changes_the_message(logger: Any) -> None:
    with Collector(keep=True) as server:
        handler = logclient.Handler(server.url, level="WARNING")
        handler.setFormatter(picologging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.info("below the level")
        logger.warning("late")
        logger.handlers[0].flush()
        [event] = server.events(1, PATIENCE)
        handler.client.close()
    assert event["message"] == "WARNING: late"
