"""A first event after all exit handlers, from destructors and generators: delivered, or said to be lost."""

from __future__ import annotations

import datetime
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from logclient.logjam.document import local_time
from logclient.testing.logjam import Collector as LogjamServer
from logclient.testing.logux import Collector as LoguxServer
from logclient.testing.lumberjack import Collector
from logclient.testing.plog import Collector as PlogServer
from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE, wait_until

SERVERS: dict[str, Any] = {
    "lumberjack": Collector,
    "plog": PlogServer,
    "logux": LoguxServer,
    "logjam": LogjamServer,
}

LAST = {
    "destructor": "last = Last()",
    "cycle": "last = Last(); last.me = last",
    "generator": "last = late(); next(last)",
    "builtins": "import builtins; builtins.last = Last()",
}
"""Whose end comes after all exit handlers."""

SAYS = {
    "handler": "log.info('the end')",
    "handler, flush": "log.info('the end'); handler.flush()",
    "send": "client.send({'message': 'the end'})",
    "flush": "client.send({'message': 'the end'}); assert client.flush(60) == 0",
    "result": "assert client.submit({'message': 'the end'}).result(60).ok",
    "callback": "client.submit({'message': 'the end'}).add_done_callback(str); client.flush(60)",
    "close": "client.send({'message': 'the end'}); client.close(60)",
}

PROGRAM = """
import logging, sys
import logclient
handler = logclient.Handler({url!r})
log = logging.getLogger("work")
log.addHandler(handler)
log.setLevel(logging.INFO)
client = handler.client
if {used}:
    client.send({{"message": "before"}})
    client.flush(60)
def say():
    {says}
class Last:
    say = staticmethod(say)
    def __del__(self):
        self.say()
def late():
    try:
        yield
    finally:
        say()
{last}
"""


def run(url: str, last: str, says: str, used: bool) -> str:
    """Run a program to its end; return what it says on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(url=url, last=LAST[last], says=SAYS[says], used=used)],
        cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=2 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("used", [False, True], ids=["not used before", "used before"])
@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("scheme", ["lumberjack", "plog", "logux"])
def test_the_last_words_of_a_program_arrive(scheme: str, says: str, used: bool) -> None:
    with SERVERS[scheme](keep=True) as server:
        assert run(server.url, "destructor", says, used) == ""
        wait_until(lambda: sum("the end" in str(event) for event in server.events()) == 1)


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("option", ["", "?ledger={}", "?spool={}", "?fallback={}/lost"])
def test_the_last_words_arrive_with_files(last: str, option: str, tmp_path: Path) -> None:
    with Collector(keep=True) as server:
        assert run(server.url + option.format(tmp_path), last, "send", False) == ""
        assert [event["message"] for event in server.events()] == ["the end"]


@pytest.mark.parametrize("says", SAYS)
def test_last_words_that_pyzmq_cannot_send_are_said_to_be_lost(says: str) -> None:
    """It imports when an attribute of a socket is read, which Python does not do any more."""
    with LogjamServer(keep=True) as server:
        said = run(f"{server.url}/shop-production", "destructor", says, False)
    assert "logclient: logjam://" in said and ": events of destructors are not delivered: ImportError" in said
    if says not in ("flush", "result"):  # these tell their caller
        assert "Traceback" not in said


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu", "Africa/Monrovia"])
def test_local_times_are_those_of_datetime(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`astimezone` without a zone is not asked: in a late destructor it ends Python 3.13 by SIGSEGV."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        rng = random.Random(59)
        for seconds in [0, -1, 0.9, -0.5, *(rng.uniform(-5e9, 2e10) for _ in range(500))]:
            moment = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
            assert local_time(seconds, None) == moment.astimezone(None).isoformat()
    finally:
        monkeypatch.undo()
        time.tzset()
