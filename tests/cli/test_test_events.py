"""The events by which ``check`` tests a server: their ids, and their verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import cli
from logclient.testing import logjam as logjam
from logclient.testing import logux as logux
from logclient.testing import lumberjack as lumberjack
from logclient.testing import plog as plog
from tests import support

SERVERS = pytest.mark.parametrize(
    ("server", "path"),
    [
        pytest.param(lumberjack.Collector, "", id="lumberjack"),
        pytest.param(logjam.Collector, "/shop-test", id="logjam"),
        pytest.param(plog.Collector, "", id="plog"),
        pytest.param(logux.Collector, "", id="logux"),
    ],
)


def ids_of(event: Any) -> list[str]:
    """Return all texts of an event that have the form of an id."""
    return re.findall(r'"([0-9a-f]{32})"', json.dumps(event))


@SERVERS
@pytest.mark.parametrize("options", ["", "identity=none"])
def test_ids_of_test_events_say_what_they_are(server: Callable[..., Any], path: str, options: str) -> None:
    """The rest of the producer is drawn anew each time, and up to three events are the first of each."""
    with server(keep=True) as collector:
        url = f"{collector.url}{path}?{options}"
        for _ in range(2):
            assert cli.main(["check", url, "--timeout", "5s"]) == 0
        ids = [ident for event in collector.events(2) for ident in ids_of(event)]
    assert len({ident[:20] for ident in ids}) == 2 and sum(ident.endswith("01") for ident in set(ids)) == 2
    assert all(re.fullmatch("c4ec0000[0-9a-f]{12}00000000000[123]", ident) for ident in ids)


@SERVERS
def test_test_events_do_not_break_the_promise(server: Callable[..., Any], path: str, tmp_path: Path) -> None:
    for module in ("numpy", "pyarrow"):
        support.need(module)
    from tests.support import verify_inprocess as inprocess

    with server(keep=True, capture=str(tmp_path / "capture")) as collector:
        for _ in range(2):
            assert cli.main(["check", f"{collector.url}{path}"]) == 0
        ledger = str(tmp_path / "ledger")
        with logclient.connect(f"{collector.url}{path}", ledger=ledger) as client:
            for number in range(5):
                client.send(f"event {number}")
        events = collector.events(7)
    verdict = inprocess.run(ledger, tmp_path / "capture")
    assert (verdict.exit_code, verdict.counts.events, verdict.counts.ok) == (0, 5, 5), verdict.problems
    assert verdict.capture["checks"] == len(events) - 5
