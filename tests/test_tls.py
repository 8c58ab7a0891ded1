"""TLS end to end: delivery, what is refused and how it is said, and that it goes on once it is mended."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logclient
from logclient.client import Client
from logclient.collectors.lumberjack import Collector
from tests.tls_rig import HOST, PATIENCE, Authority, arrived, context, serving, until

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


class Case(NamedTuple):
    """Something that one side does not accept of the other, and how it is mended."""

    says: str
    options: dict[str, Any]
    tls: ssl.SSLContext
    mend: Callable[[], object]


CASES = {
    "wrong host": 'the server\'s certificate is not for "127.0.0.1": connect to the name it has, '
    "or give that as server_name (it names a.example, b.example)",
    "unknown authority": "the server's certificate is not signed by an authority that is trusted here: "
    "give that authority's certificate as ca",
    "signed by itself": "the server's certificate is signed by itself alone: if it is the right one, "
    "give it as ca",
    "expired": "the server's certificate has expired, or one above it: it must be renewed at the server",
    "no client certificate": "wants? a client certificate",
    "client of another authority": "the server does not accept our certificate (alert unknown_ca): "
    "see cert here, and ca there",
    "client has expired": "the server does not accept our certificate (alert certificate_expired): "
    "see cert here, and ca there",
    "the ca file was lost": "ca: '{ca}' cannot be read: No such file or directory",
    "the key was lost": "key: '{key}' cannot be read: No such file or directory",
}


def case(name: str, version: str, ours: Authority, theirs: Authority) -> Case:
    good = ours.issue("good")
    options: dict[str, Any] = {"ca": ours.ca}
    says = CASES[name]
    if name.startswith(("no client", "client")):
        tls = context(version, good, ca=ours.ca)
        if name == "no client certificate":

            def stop_asking() -> None:
                tls.verify_mode = ssl.CERT_NONE

            return Case(says, options, tls, stop_asking)
        wrong = theirs if "another" in name else ours
        mine = wrong.issue("client", "me@example.org", expired="expired" in name)

        def renew() -> None:
            right = ours.issue("renewed", "me@example.org")
            os.replace(right, mine)

        return Case(says, options | {"cert": mine}, tls, renew)
    if name.startswith("the "):
        mine = ours.issue("client", "me@example.org")
        key = shutil.copy(mine, mine.replace(".pem", ".key"))
        lost = options["ca"] if "ca" in name else key
        options |= {"cert": mine, "key": key}
        says = says.format(ca=lost, key=lost)
        return Case(says, options, context(version, good), lambda: os.replace(f"{lost}.lost", lost))
    shown = {
        "wrong host": lambda: ours.issue("shown", "a.example", "b.example"),
        "unknown authority": lambda: theirs.issue("shown"),
        "signed by itself": lambda: theirs.alone(),
        "expired": lambda: ours.issue("shown", expired=True),
    }[name]()
    tls = context(version, shown)
    return Case(says, options, tls, lambda: tls.load_cert_chain(good))


class TestRefusals:
    @pytest.mark.parametrize("name", CASES)
    def test_one_report_the_slow_pace_and_on_it_goes_once_it_is_mended(
        self, name: str, version: str, ours: Authority, theirs: Authority, said: Said
    ) -> None:
        one = case(name, version, ours, theirs)
        with (
            Collector(keep=True, tls=one.tls) as collector,
            logclient.connect(collector.url, **one.options, **QUICK) as client,
        ):
            lost = re.search(r"'(.*)' cannot be read", one.says)
            if lost:
                os.replace(lost[1], f"{lost[1]}.lost")
            ship(client, 100)
            until(said)
            reported = client.stats()
            # Many attempts, and no second word.
            tries = collector.counts.connections
            until(lambda: lost or collector.counts.connections > tries + 6)
            assert client.flush(0.1) == 100
            assert (client.stats().acked, collector.counts.events) == (0, 0)
            one.mend()
            ship(client, 100, first=100)
            arrived(collector, client, 200)
            assert client.stats().failed == client.stats().dropped == {}
        (line,) = said()
        where = f"127.0.0.1:{collector.port}"
        found = re.fullmatch(
            rf"logclient: lumberjack\+tls://{where}: {where}: (.*); nothing is sent there until that is "
            r"mended; next try in 0\.0\d+ s",
            line,
        )
        assert found, line
        assert found[1] == one.says or re.search(one.says, found[1])
        assert reported.last_error in line

    @pytest.mark.parametrize(
        ("version", "alert"), [("1.2", "handshake_failure"), ("1.3", "certificate_required")]
    )
    def test_a_missing_client_certificate_is_a_late_alert_in_tls_1_3(
        self, version: str, alert: str, ours: Authority
    ) -> None:
        tls = context(version, ours.issue("server"), ca=ours.ca)
        with Collector(tls=tls) as collector, logclient.connect(collector.url, ca=ours.ca, **NEVER) as client:
            ship(client, 1)
            until(lambda: alert in client.stats().last_error)
            # After a handshake that the client thought was done, or in it.
            assert client.stats().connects == client.stats().disconnects == (version == "1.3")
            assert collector.counts.connections == 1
            client.close(0)

    def test_the_pace(self, theirs: Authority, ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        """Bounds that double, half of them certain."""
        from logclient.delivery import engine

        monkeypatch.setattr(engine, "random", lambda: 0.5)
        tls = context("1.3", theirs.issue("server"))
        with (
            Collector(tls=tls) as collector,
            logclient.connect(collector.url, ca=ours.ca, slow_min=0.01, slow_max=0.04) as client,
        ):
            delays: list[float] = []
            delay = engine.Backoff.delay

            def watched(self: Any) -> float:
                delays.append(delay(self))
                return delays[-1]

            monkeypatch.setattr(engine.Backoff, "delay", watched)
            ship(client, 1)
            until(lambda: len(delays) >= 5)
            client.close(0)
        assert delays[:5] == [pytest.approx(0.75 * bound) for bound in (0.01, 0.02, 0.04, 0.04, 0.04)]

    def test_the_other_endpoints_are_tried_at_the_usual_pace(
        self, ours: Authority, theirs: Authority, said: Said
    ) -> None:
        tls = context("1.3", theirs.issue("bad"))
        with Collector(tls=tls) as bad, Collector(keep=True, tls=context("1.3", ours.issue("good"))) as good:
            port = good.port
            good.stop()
            url = f"lumberjack+tls://127.0.0.1:{bad.port},127.0.0.1:{port}"
            with logclient.connect(url, ca=ours.ca, **NEVER) as client:
                ship(client, 10)
                until(lambda: "cannot connect" in client.stats().last_error)
                assert bad.counts.connections == 1
                good.start()
                arrived(good, client, 10)
                # Cut off, it does not go back to the one that is not mended either.
                good.stop()
                ship(client, 10, first=10)
                until(lambda: f"cannot connect to 127.0.0.1:{port}" in client.stats().last_error)
                good.start()
                arrived(good, client, 20)
                assert bad.counts.connections == 1
        (line,) = (line for line in said() if "nothing is sent there" in line)
        assert line.startswith(f"logclient: {url}: 127.0.0.1:{bad.port}: {CASES['unknown authority']}; ")

    def test_each_endpoint_is_said(self, ours: Authority, theirs: Authority, said: Said) -> None:
        one, two = context("1.3", theirs.issue("one")), context("1.3", ours.issue("two", "other.example"))
        with Collector(tls=one) as first, Collector(keep=True, tls=two) as second:
            url = f"lumberjack+tls://127.0.0.1:{first.port},127.0.0.1:{second.port}"
            with logclient.connect(url, ca=ours.ca, **QUICK) as client:
                ship(client, 1)
                until(lambda: first.counts.connections > 3 and second.counts.connections > 3)
                two.load_cert_chain(ours.issue("right"))
                arrived(second, client, 1)
        lines = sorted(said())
        assert len(lines) == 2
        assert f"127.0.0.1:{first.port}: {CASES['unknown authority']}" in "".join(lines)
        assert f"127.0.0.1:{second.port}: the server's certificate is not for" in "".join(lines)

    def test_close_tries_once_more_and_gives_up_in_time(self, ours: Authority, theirs: Authority) -> None:
        with Collector(tls=context("1.3", theirs.issue("server"))) as collector:
            client = logclient.connect(collector.url, ca=ours.ca, **NEVER)
            ship(client, 5)
            until(lambda: client.stats().last_error)
            assert client.close(0.2) == 5
            assert collector.counts.connections == 2
            assert client.stats().failed == {"closed": 5}

    def test_no_certificate_that_came_late_is_lost_in_a_reset(self, ours: Authority, said: Said) -> None:
        """The server says what it wants and goes, with our bytes unread: a reset follows its alert."""
        tls = context("1.3", ours.issue("server"), ca=ours.ca)

        def refuse(sock: socket.socket) -> None:
            sock.recv(1, socket.MSG_PEEK)
            tls.wrap_socket(sock, server_side=True)

        with serving(refuse) as port:
            client = logclient.connect(
                f"lumberjack+tls://{HOST}:{port}", ca=ours.ca, compression=0, inflight=64, window=500, **NEVER
            )
            for _ in range(20_000):
                client.send({"message": "x" * 500})
            until(said)
            client.close(0)
        assert "certificate_required" in said()[0]
