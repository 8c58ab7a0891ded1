"""A program may change its directory, or have none: every path is absolute from the moment it is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.config.option import all_options
from logclient.config.parsing import resolve
from logclient.config.secrets import Secret
from logclient.errors import ConfigError
from logclient.testing import Delivery
from logclient.testing.lumberjack import Collector
from tests.support.patience import PATIENCE

PATHS = sorted(name for name, found in all_options().items() if found[0].reader.kind in ("path", "directory"))
SECRETS = sorted(name for name, found in all_options().items() if found[0].reader.secret)
URLS = {
    "lumberjack": "lumberjack+tls://h",
    "logux": "logux+tls://h",
    "logjam": "logjam://h/app-env",
    "plog": "plog://h",
}
WAYS = ("keyword", "path", "url", "variable")


def read(way: str, url: str, name: str, value: str, more: dict[str, str]) -> Any:
    """Parse with the option given in one of several ways."""
    if way == "url":
        return resolve(f"{url}?{name}={value}", more, environ={})
    if way == "variable":
        return resolve(url, more, environ={f"LOGCLIENT_{name.upper()}": value})
    return resolve(url, more | {name: Path(value) if way == "path" else value}, environ={})


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    return first, second


def test_the_options_with_paths_are_these() -> None:
    """A new one is tried by the tests below; this only shows that they try something."""
    assert {"ca", "cert", "fallback", "key", "ledger", "spool", "state"} <= set(PATHS)
    assert {"curve_secret", "http_headers", "tls_password", "token"} <= set(SECRETS)


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in PATHS for way in WAYS if way != "variable" or all_options()[name][0].variable],
)
def test_a_relative_path_means_the_directory_at_the_time_it_is_read(
    name: str, way: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = places
    tried = 0
    for url in URLS.values():
        more = {"cert": "given.pem"} if name == "key" else {}
        try:
            config = read(way, url, name, "some/./place", more)
        except ConfigError:
            continue
        if name in config.given:
            tried += 1
            monkeypatch.chdir(second)
            found = getattr(config, name)
            assert os.path.isabs(found)
            assert os.path.normpath(found) == str(first / "some/place")
            monkeypatch.chdir(first)
    assert tried


@pytest.mark.parametrize("name", SECRETS)
def test_the_file_of_a_secret_is_found_again(
    name: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = places
    place = first / "secret"
    more: dict[str, Any] = {"cert": "c.pem"} if name == "tls_password" else {}
    if name == "curve_secret":
        more = {"curve_server": "k" * 40}
    for old, new in ((b"k" * 40, b"l" * 40), (b"Cookie: old", b"Cookie: new")):
        if (name == "http_headers") != (b":" in old):
            continue
        for url in URLS.values():
            place.write_bytes(old)
            try:
                config = read("url", url, name, "file:secret", more)
            except ConfigError as error:
                assert f"{name}: must" not in str(error)
                continue
            monkeypatch.chdir(second)
            place.write_bytes(new)
            value = getattr(config, name)
            secret: Secret = value[0][1] if name == "http_headers" else value
            secret.renew()
            assert secret.reveal().encode() == new.removeprefix(b"Cookie: ")
            if secret.source:
                assert secret.source == f"file:{place}"
            monkeypatch.chdir(first)
            return
    pytest.fail("no protocol takes it")


def test_stderr_is_no_path(places: tuple[Path, Path]) -> None:
    assert resolve("lumberjack://h", {"fallback": "stderr"}, environ={}).fallback == "stderr"
    assert resolve("lumberjack://h", {"fallback": "./stderr"}, environ={}).fallback == f"{places[0]}/./stderr"


def test_an_absolute_path_and_a_tilde_stay_as_given(places: tuple[Path, Path]) -> None:
    config = resolve("lumberjack://h", {"ledger": "/a/../b/", "spool": "~/spool"}, environ={})
    assert config.ledger == "/a/../b/"
    assert config.spool == f"{places[0]}/~/spool"  # a shell expands it, nobody else


@pytest.mark.parametrize("name", PATHS)
def test_without_a_directory_a_relative_path_is_a_clear_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    config = resolve("logux+tls://h", {name: "/absolute", "cert": "/c"}, environ={})
    assert getattr(config, name) == ("/c" if name == "cert" else "/absolute")
    with pytest.raises(ConfigError, match=rf"^{name}: must be an absolute path, got 'relative'"):
        resolve("logux+tls://h", {"cert": "/c", name: "relative"}, environ={})
    if name == "state":
        with pytest.raises(ConfigError, match=r"^token: must be an absolute path, got 'x'"):
            resolve("logux+tls://h", {"token": "file:x"}, environ={})


def test_spool_ledger_and_fallback_go_on_after_a_change_of_directory(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = places
    with Collector(keep=True) as collector:
        url = collector.url
    options: dict[str, Any] = {"spool": "spool", "spool_mode": "always", "timeout": 0.1}
    client = logclient.connect(url, ledger="ledger", fallback="lost.jsonl", **options)
    for n in range(100):
        client.send({"n": n})
    monkeypatch.chdir(second)
    for n in range(100):
        client.send({"n": n})
    client.close(0.1)
    stats = client.stats()
    assert (stats.stored, sum(stats.failed.values())) == (200, 0), stats
    assert list(second.iterdir()) == []
    assert {path.name for path in first.iterdir()} == {"spool", "ledger"}
    plain = logclient.connect(url, fallback="lost.jsonl", ledger=os.curdir + "/ledger", timeout=0.1)
    plain.send({"n": 1})
    monkeypatch.chdir(first)
    plain.close(0.1)
    assert json.loads((second / "lost.jsonl").read_text())["event"]["n"] == 1
    assert list((second / "ledger").iterdir())


def test_the_servers_and_fixtures_of_tests_keep_their_folder(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    first, second = places
    delivery = Delivery(lambda capture: Collector(capture=capture), Path("run"))
    monkeypatch.chdir(second)
    with delivery, logclient.connect(delivery.url, ledger=delivery.ledger) as client:
        monkeypatch.chdir(first)
        client.send({"message": "x"})
        assert client.flush(PATIENCE) == 0
    collector = Collector(capture="other", fault_log="faults.jsonl")
    monkeypatch.chdir(second)
    with collector:
        pass
    assert {path.name for path in first.iterdir()} == {"run", "other", "faults.jsonl"}
    assert list(second.iterdir()) == []
