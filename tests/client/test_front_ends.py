"""Which value an option has: the keyword's, the URL's, the variable's, that of the front end, or its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import cli
from logclient.delivery import lifecycle
from logclient.errors import ConfigError
from logclient.integrations.loguru import Sink
from logclient.integrations.structlog import LoggerFactory
from logclient.lumberjack.client import Writer
from logclient.testing import lumberjack as collector
from tests.support import need

URL = "lumberjack://127.0.0.1:1"
CHOICES = ("drop_oldest", "drop_new", "block", "block:5s", "raise")


def exporter(*url: str, **options: Any) -> Any:
    need("opentelemetry.sdk._logs")
    from logclient.integrations.opentelemetry import LogExporter

    return LogExporter(*url, **options)


FRONT_ENDS: list[tuple[Callable[..., Any], str, str, str]] = [
    # what it is, a URL, its default of `overflow`, the value that it refuses
    (logclient.connect, URL, "drop_new", ""),
    (logclient.connect, "logjam://127.0.0.1:1/shop-test", "drop_new", ""),
    (logclient.connect, "plog://127.0.0.1:1", "drop_new", ""),
    (logclient.connect, "logux://127.0.0.1:1", "drop_new", ""),
    (logclient.AsyncClient, URL, "drop_new", "block"),
    (logclient.Handler, URL, "drop_oldest", "raise"),
    (logclient.Handler, "plog://127.0.0.1:1", "drop_oldest", "raise"),
    (Sink, URL, "drop_oldest", ""),
    (LoggerFactory, URL, "drop_oldest", ""),
    (exporter, URL, "drop_oldest", ""),
    (Writer, URL, "block", ""),
]


EACH = pytest.mark.parametrize(
    ("make", "url", "default", "refused"),
    FRONT_ENDS,
    ids=[f"{make.__name__}-{url.partition(':')[0]}" for make, url, *_ in FRONT_ENDS],
)


def overflow_of(made: Any) -> str:
    """Return the option of a front end, which is closed."""
    client = getattr(made, "client", made)
    client.close(0.0)
    return str(client.config.overflow)


@EACH
def test_a_keyword_wins_over_the_url_and_the_url_over_the_front_end(
    make: Callable[..., Any], url: str, default: str, refused: str
) -> None:
    def overflow(query: str, **options: Any) -> str:
        return overflow_of(make(url + query, **options))

    assert overflow("") == default
    assert overflow("", overflow=None) == default
    for value in CHOICES:
        for query, options in (
            (f"?overflow={value}", {}),
            (f"?overflow={value}", {"overflow": None}),
            ("", {"overflow": value}),
            ("?overflow=drop_new", {"overflow": value}),
        ):
            if refused and value.startswith(refused):
                with pytest.raises(ConfigError, match="overflow: "):
                    overflow(query, **options)
            else:
                assert overflow(query, **options) == value, (query, options)


@EACH
def test_the_environment_wins_over_the_front_end(
    make: Callable[..., Any], url: str, default: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in CHOICES:
        monkeypatch.setenv("LOGCLIENT_URL", f"{url}?overflow={value}")
        if refused and value.startswith(refused):
            with pytest.raises(ConfigError, match=r"overflow: "):
                make()
        else:
            assert overflow_of(make()) == value
    monkeypatch.setenv("LOGCLIENT_URL", url)
    assert overflow_of(make()) == default
    monkeypatch.delenv("LOGCLIENT_URL")
    with pytest.raises(ConfigError, match=r"^URL: give one, or set the variable LOGCLIENT_URL$"):
        make()


class Limits:
    """Notes the limits of every client that is made."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def add(self, sender: Any) -> None:
        self.found.append(sender.setup.config)

    def after_fork(self) -> None: ...
    def process_ends(self) -> None: ...


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "block:67.000s"),
        ("?overflow=drop_new", "drop_new"),
        ("?overflow=block", "block"),
        ("?overflow=block:3s", "block:3s"),
    ],
)
def test_the_url_wins_over_the_defaults_of_the_command_send(
    query: str, expected: str, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n", encoding="ascii")
    limits = Limits()
    with collector.Collector(keep=True) as server:
        lifecycle.observe(limits)
        limits.found.clear()  # those of other clients
        assert cli.main(["send", f"{server.url}{query}", str(lines), "--timeout", "7s"]) == 0
    assert [one.overflow for one in limits.found] == [expected]
