"""The table of names in docs/coming-from.md: what the other libraries really write, and what we write."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from logclient._ext.record import Encoder
from logclient.records.formats import form
from logclient.records.host import fields_of
from tests.oracle.ecs_fields import flatten
from tests.support import ROOT

TABLE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8").partition("## Names of fields")[2]
ROWS = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("| ")]
HEAD = [re.sub(r"[` ]", "", cell) for cell in ROWS[0]]
PREFIXED = [row for row in ROWS[1:] if "extra_prefix" in row[0]]
PLAIN = [row for row in ROWS[1:] if row not in PREFIXED]


def names(cell: str) -> list[str]:
    """Return the names of fields in a cell."""
    return [name for name in re.findall(r"`([^`]+)`", cell) if "=" not in name]


def column(head: str, rows: list[list[str]] = PLAIN) -> dict[str, list[str]]:
    """Return the names in a column, by what they are of."""
    return {row[0].strip(): names(row[HEAD.index(head)]) for row in rows}


def record() -> logging.LogRecord:
    """Return a record with an exception and a field."""
    try:
        raise ValueError("too late")
    except ValueError:
        exc_info = sys.exc_info()
    args = ("shop.orders", logging.WARNING, "/srv/shop/orders.py", 17, "order %d", (17,), exc_info, "pay")
    made = logging.LogRecord(*args)
    made.customer = "ann"
    return made


def of_logstash(kind: str) -> Callable[[logging.LogRecord], str]:
    formatters = pytest.importorskip("logstash_async.formatter")
    return getattr(formatters, kind)(extra_prefix="extra").format  # type: ignore[no-any-return]


def of_ecs_logging() -> Callable[[logging.LogRecord], str]:
    return pytest.importorskip("ecs_logging").StdlibFormatter().format  # type: ignore[no-any-return]


def of_json_logger() -> Callable[[logging.LogRecord], str]:
    written = [name for of in column("python-json-logger").values() for name in of]
    listed = [f"%({name})s" for name in written if name not in ("customer", "exc_info")]
    json_formatter = pytest.importorskip("pythonjsonlogger.json").JsonFormatter
    return json_formatter(" ".join(listed)).format  # type: ignore[no-any-return]


PEERS: dict[str, Callable[[], Callable[[logging.LogRecord], str]]] = {
    "LogstashFormatter": lambda: of_logstash("LogstashFormatter"),
    "LogstashEcsFormatter": lambda: of_logstash("LogstashEcsFormatter"),
    "ecs-logging": of_ecs_logging,
    "python-json-logger": of_json_logger,
}
OURS: dict[str, dict[str, Any]] = {
    "logclient": {"nested": True},
    'format="logstash"': {"form": form("logstash", "web1")},
}


def ours(head: str, **options: Any) -> dict[str, Any]:
    made = Encoder(fields=fields_of(("host",)), **OURS[head], **options).encode_record(record())[0]
    return flatten(json.loads(made))


def value(name: str, found: Any) -> Any:
    """Return a value as all write it: a level in small letters, a file without folders, no time."""
    if name.endswith("timestamp") or name == "asctime":
        return ""
    if name in ("level", "log.level", "levelname"):
        return found.lower()
    if name.endswith(("stack_trace", "exc_info")):
        return 'raise ValueError("too late")' in found
    return found.rpartition("/")[2] if name in ("extra.path", "log.origin.file.name") else found


@pytest.mark.parametrize("head", PEERS)
def test_the_table_has_each_name_of_another_library_and_ours_for_it(head: str) -> None:
    """Values are compared, of the first name of each cell with the first name, and so on."""
    there, old, new = flatten(json.loads(PEERS[head]()(record()))), column(head), column("logclient")
    assert sorted(name for of in old.values() for name in of) == sorted(there)
    for what, of in old.items():
        if what not in ("host", "version of the form"):
            for ecs_name, name in zip(new[what], of, strict=False):
                assert value(name, there[name]) == value(ecs_name, ours("logclient")[ecs_name]), what
    assert not new["no equivalent"]


@pytest.mark.parametrize("head", OURS)
def test_the_table_has_each_name_of_ours(head: str) -> None:
    listed = [name for of in column(head).values() for name in of]
    found = [name for name in ours(head) if not name.startswith("host.")]
    assert sorted(listed) == sorted([*found, "host.name"])
    (prefixed,) = column(head, PREFIXED).values()
    assert [ours(head, extra_prefix="extra")[name] for name in prefixed] == ["ann"]
    for what, of in column(head).items():
        for name, other in zip(of, column("logclient")[what], strict=False):
            if what != "version of the form":
                assert value(name, ours(head)[name]) == value(other, ours("logclient")[other]), what
