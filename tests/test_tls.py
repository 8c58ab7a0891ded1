"""TLS end to end: delivery, what is refused and how it is said, and that it goes on once it is mended."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.client import Client
from logclient.collectors.lumberjack import Collector
from tests.tls_rig import PATIENCE, Authority, arrived, context

QUICK = {"slow_min": 0.02, "slow_max": 0.05, "backoff_min": 0.001, "backoff_max": 0.02}
NEVER = {"slow_min": 1000, "slow_max": 1000, "backoff_min": 0.001, "backoff_max": 0.01}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path / "theirs")


@pytest.fixture(params=["1.2", "1.3"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Said:
    """The lines that logclient wrote on stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._lines: list[str] = []

    def __call__(self) -> list[str]:
        self._lines += self._capsys.readouterr().err.splitlines()
        return self._lines


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


def ship(client: Client, n: int, first: int = 0) -> None:
    for i in range(first, first + n):
        client.send({"message": f"größte Zeile {i}", "n": i})


class TestDelivery:
    def test_the_capture_holds_the_plain_bytes_and_the_verifier_is_content(
        self, version: str, ours: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inprocess = pytest.importorskip("tests.verify_inprocess")
        ledger, capture = tmp_path / "ledger", tmp_path / "capture"
        faults = "cut-before-ack=every:4,cut-before-write=every:7,keepalive=every:3:2,partial-ack=every:5"
        with Collector(
            capture=str(capture), faults=faults, count_duplicates=True,
            tls=context(version, ours.issue("server")),
        ) as collector:  # fmt: skip
            with logclient.connect(
                collector.url, ca=ours.ca, ledger=ledger, window=100, inflight=8, **QUICK
            ) as client:
                ship(client, 3000)
                assert client.flush(PATIENCE) == 0
                stats = client.stats()
            counts = collector.counts
        assert stats.tls.startswith(f"TLSv{version} ")
        assert counts.cuts > 2 and counts.copies and stats.resent >= counts.copies
        verdict = inprocess.run(monkeypatch, ledger, capture)
        assert verdict.exit_code == 0
        assert (verdict.counts.events, verdict.counts.ok) == (3000, 3000)
        assert verdict.counts.duplicated == counts.copies

    def test_both_sides_show_certificates(self, version: str, ours: Authority) -> None:
        tls = context(version, ours.issue("server"), ca=ours.ca)
        with (
            Collector(keep=True, tls=tls) as collector,
            logclient.connect(collector.url, ca=ours.ca, cert=ours.issue("me", "me@example.org")) as client,
        ):
            ship(client, 10)
            arrived(collector, client, 10)
            assert collector.counts.connections == client.stats().connects == 1

    @pytest.mark.parametrize(
        ("names", "host", "server_name"),
        [
            (("127.0.0.1",), "127.0.0.1", None),
            (("localhost",), "localhost", None),
            (("localhost",), "127.0.0.1", "localhost"),
            (("logs.example.org",), "127.0.0.1", "logs.example.org."),
            (("*.example.org",), "localhost", "logs.example.org"),
            (("xn--bcher-kva.example",), "localhost", "bücher.example"),
            (("10.1.2.3",), "localhost", "10.1.2.3"),
        ],
    )
    def test_the_name_that_is_checked(
        self, ours: Authority, names: tuple[str, ...], host: str, server_name: str | None
    ) -> None:
        with Collector(keep=True, tls=context("1.3", ours.issue("server", *names))) as collector:
            url = collector.url.replace("127.0.0.1", host)
            with logclient.connect(url, ca=ours.ca, server_name=server_name) as client:
                ship(client, 1)
                arrived(collector, client, 1)

    def test_version_6_addresses(self, ours: Authority) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
        with (
            Collector("::1", keep=True, tls=context("1.3", ours.issue("server", "::1"))) as collector,
            logclient.connect(collector.url, ca=ours.ca) as client,
        ):
            ship(client, 1)
            arrived(collector, client, 1)

    @pytest.mark.parametrize("form", ["hashed", "files"])
    def test_a_directory_of_authorities(
        self, ours: Authority, theirs: Authority, tmp_path: Path, form: str
    ) -> None:
        folder = tmp_path / "authorities"
        folder.mkdir()
        for i, one in enumerate((theirs, ours)):
            der = ssl.PEM_cert_to_DER_cert(Path(one.ca).read_text())
            assert der
            name = f"{i}.pem"
            if form == "hashed":
                done = subprocess.run(
                    ["openssl", "x509", "-hash", "-noout", "-in", one.ca], capture_output=True, text=True
                )
                name = f"{done.stdout.strip()}.0"
            (folder / name).write_bytes(Path(one.ca).read_bytes())
        with (
            Collector(keep=True, tls=context("1.3", ours.issue("server"))) as collector,
            logclient.connect(collector.url, ca=folder) as client,
        ):
            ship(client, 1)
            arrived(collector, client, 1)

    def test_the_fixture_of_the_pytest_plugin(self, ours: Authority, tls_log_collector: Collector) -> None:
        with logclient.connect(
            tls_log_collector.url, ca=ours.ca, cert=ours.issue("me", "me@example.org")
        ) as client:
            ship(client, 1)
            arrived(tls_log_collector, client, 1)

    @pytest.fixture
    def log_collector_options(self, ours: Authority) -> dict[str, Any]:
        return {"tls": context("1.3", ours.issue("server"), ca=ours.ca)}

    @pytest.fixture
    def tls_log_collector(self, log_collector: Collector) -> Collector:
        return log_collector
