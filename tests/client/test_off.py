"""The off switch: URLs that ship nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.client import connect
from logclient.config.parsing import parse
from logclient.errors import ConfigError
from logclient.integrations.loguru import Sink
from logclient.integrations.structlog import LoggerFactory
from tests.support import clean_environment
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

URLS = ["none", "none:", "none://", "NONE:", "none:?window=5", "none?window=5", "none://host:5044/a?window=5"]


def descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("make", [connect, logclient.Handler, Sink, LoggerFactory, logclient.AsyncClient])
def test_every_front_end_takes_it(make: Any, url: str) -> None:
    made = make(url)
    client = getattr(made, "client", made)
    assert isinstance(client, logclient.Client) and client.config.protocol == "none"
    assert repr(client).startswith("<Client none://")


@pytest.mark.parametrize("text", ["", " ", "none", "none:"])
def test_the_variable_may_be_empty_or_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOGCLIENT_URL", text)
    assert logclient.Handler(overflow="drop_new", keep_level="INFO").client.config.overflow == "drop_new"
    assert connect().config.protocol == "none"
    assert parse("lumberjack://host").protocol == "lumberjack"


@pytest.mark.parametrize("url", ["", "nothing:", "none-sense://host", "nones"])
def test_what_only_resembles_it_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError):
        connect(url)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"windw": 5}, "windw: unknown option; did you mean window?"),
        ({"window": "many"}, "window: must be a whole number"),
        ({"key": "k.pem"}, "key: needs cert"),
        ({"spool_mode": "always"}, "spool_mode: needs spool"),
        ({"compression": "brotli"}, "compression: must be"),
    ],
)
def test_options_are_checked(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect("none:", **options)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy", "app": None},
        {"compression": 3, "window": 10_000, "ack": "synced", "pace": 5},
        {"token": "env:NOT_SET_HERE", "tls_password": "file:/not/there", "ca": "/not/there"},
    ],
)
def test_options_of_every_protocol_are_taken_and_secrets_not_read(options: dict[str, Any]) -> None:
    options.pop("app", None)
    connect("none:", **options).close()


def test_nothing_is_opened_started_or_written(tmp_path: Path) -> None:
    before, threads = descriptors(), threading.active_count()
    paths = {name: str(tmp_path / name) for name in ("ledger", "spool", "fallback")}
    handler = logclient.Handler("none:", **paths)  # type: ignore[arg-type]
    logger = logging.Logger("off")
    logger.addHandler(handler)
    logger.error("one %s", 1)
    handler.client.send({"a": 1})
    handler.client.submit("text")
    handler.flush()
    handler.close()
    handler.client.close()
    assert (descriptors(), threading.active_count(), list(tmp_path.iterdir())) == (before, threads, [])


def test_counts_add_up() -> None:
    client = connect("none:")
    assert client.send({"a": 1}) == 0 and client.send(b"no json", "ERROR") == 0
    delivery = client.submit("text")
    called = threading.Event()
    delivery.add_done_callback(lambda _: called.set())
    assert delivery.result(0) == ("dropped", "disabled") and called.wait(PATIENCE)
    assert client.flush() == client.close() == 0 and client.closed
    assert client.submit("text").result(0) == ("dropped", "closed")
    stats = client.stats()
    assert (stats.sent, stats.dropped, stats.refused) == (3, {"disabled": 3}, 1)
    assert stats == client.stats()


def test_asyncio() -> None:
    async def work() -> None:
        async with logclient.AsyncClient("none:") as client:
            assert client.send("x") == 0
            assert await client.submit("x") == ("dropped", "disabled")
            assert await client.flush() == 0
            with pytest.raises(ConfigError, match="ping: not available for none"):
                await client.ping()

    asyncio.run(work())


def test_it_can_be_reconfigured_and_stays_off() -> None:
    client = connect("none:")
    handler = logclient.Handler(client=client)
    client.reconfigure(level="ERROR", fields={"a": 1})
    assert handler.level == logging.ERROR and client.config.protocol == "none"
    with pytest.raises(ConfigError, match="windw"):
        client.reconfigure(windw=5)  # type: ignore[call-arg]


def test_requests_of_logjam_run() -> None:
    client: Any = connect("none:")
    with client.request("Orders#show") as request:
        request.line(logging.INFO, "one")
    client.event("deployed")
    assert client.stats().dropped == {"disabled": 2}


def test_a_logger_of_ours_makes_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logclient.Logger("off", logging.INFO)
    logger.addHandler(logclient.Handler("none:"))
    made: list[str] = []

    class Told:
        def __str__(self) -> str:
            made.append("text")
            return "text"

    logger.info("%s", Told())
    assert not made and logger.obstacle() in ("", "this Python has no GIL")
    caught: list[str] = []
    other = logging.Handler()
    other.emit = lambda record: caught.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(other)
    logger.info("%s", "seen")
    assert caught == ["seen"]
    logger.removeHandler(other)
    logger.addHandler(logclient.Handler("lumberjack://127.0.0.1:1", timeout=0, atexit_timeout=0))
    logger.info("%s", "sent")
    assert logger.handlers[-1].client.close(0) == 1  # type: ignore[attr-defined]


def test_a_process_says_it_once() -> None:
    program = "import logclient; [logclient.Handler('none:') for _ in range(3)]; logclient.connect('none')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stderr == "logclient: nothing is shipped: the URL is none, or LOGCLIENT_URL is empty\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "none:", os.devnull],
        ["check", "none:"],
        ["stat", "none"],
        ["collect", "none:", "--print"],
        ["spool", "drain", ".", "--to", "none:"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_say_what_it_is(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from logclient.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert "none is the off switch, which ships nothing" in capsys.readouterr().err
