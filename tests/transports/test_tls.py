"""TLS end to end: delivery, refusals and their reports, and recovery once the cause is removed."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logclient
from logclient import cli
from logclient.cli.collect import collect
from logclient.client import Client
from logclient.errors import ConfigError
from logclient.testing.lumberjack import Collector
from logclient.transports.tls import server_context
from logclient.transports.tls_link import COALESCE_BYTES, TlsLink
from tests.support import clean_environment
from tests.support.patience import PATIENCE, wait_until
from tests.support.tls import (
    HOST,
    Authority,
    assert_arrived,
    context,
    replace_certificate,
    serving,
)

QUICK = {"backoff_max": 0.02}


pytestmark = pytest.mark.usefixtures("tls_pump")


@pytest.fixture(autouse=True)
def quick(slow_pace: Callable[[float, float], None]) -> None:
    """Try soon what refused credentials, and what these were refused by."""
    slow_pace(0.02, 0.05)


@pytest.fixture
def never(quick: None, slow_pace: Callable[[float, float], None]) -> None:
    """Try nothing again that refused credentials."""
    slow_pace(1000, 1000)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    """An authority that the client does not trust."""
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
    @pytest.mark.slow
    def test_delivery_over_tls_passes_the_verifier(
        self, version: str, ours: Authority, tmp_path: Path
    ) -> None:
        inprocess = pytest.importorskip("tests.support.verify_inprocess")
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
        verdict = inprocess.run(ledger, capture)
        assert verdict.exit_code == 0
        assert (verdict.counts.events, verdict.counts.ok) == (3000, 3000)
        assert verdict.counts.duplicated == counts.copies

    def test_a_window_that_ends_in_the_middle_of_the_servers_buffer_is_acknowledged(
        self, version: str, ours: Authority
    ) -> None:
        """The buffer has 1 MiB, and is full in the middle of the last record."""
        body = json.dumps({"message": "x" * (1 << 20)}).encode()
        whole = struct.pack(">2sI2sII", b"2W", 1, b"2J", 1, len(body)) + body
        with Collector(tls=context(version, ours.issue("server")), keepalive=0) as collector:
            trusting = ssl.create_default_context(cafile=ours.ca)
            with (
                socket.create_connection((collector.host, collector.port), PATIENCE) as raw,
                trusting.wrap_socket(raw, server_hostname=collector.host) as sock,
            ):
                sock.settimeout(PATIENCE)
                for _ in range(3):
                    sock.sendall(whole[:100])  # a record of its own, so that the others straddle the end
                    sock.sendall(whole[100:])
                    assert sock.recv(6) == b"2A\0\0\0\1"

    def test_mutual_certificates_are_accepted(self, version: str, ours: Authority) -> None:
        tls = context(version, ours.issue("server"), ca=ours.ca)
        with (
            Collector(keep=True, tls=tls) as collector,
            logclient.connect(collector.url, ca=ours.ca, cert=ours.issue("me", "me@example.org")) as client,
        ):
            ship(client, 10)
            assert_arrived(collector, client, 10)
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
    def test_the_certificate_must_match_host_or_server_name(
        self, ours: Authority, names: tuple[str, ...], host: str, server_name: str | None
    ) -> None:
        with Collector(keep=True, tls=context("1.3", ours.issue("server", *names))) as collector:
            url = collector.url.replace("127.0.0.1", host)
            with logclient.connect(url, ca=ours.ca, server_name=server_name) as client:
                ship(client, 1)
                assert_arrived(collector, client, 1)

    def test_ipv6_addresses_are_checked_too(self, ours: Authority) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
        with (
            Collector("::1", keep=True, tls=context("1.3", ours.issue("server", "::1"))) as collector,
            logclient.connect(collector.url, ca=ours.ca) as client,
        ):
            ship(client, 1)
            assert_arrived(collector, client, 1)

    @pytest.mark.parametrize("form", ["hashed", "files"])
    def test_ca_may_be_a_directory(
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
            assert_arrived(collector, client, 1)

    def test_the_tls_fixture_of_the_pytest_plugin(
        self, ours: Authority, tls_log_collector: Collector
    ) -> None:
        with logclient.connect(
            tls_log_collector.url, ca=ours.ca, cert=ours.issue("me", "me@example.org")
        ) as client:
            ship(client, 1)
            assert_arrived(tls_log_collector, client, 1)

    @pytest.fixture
    def log_collector_options(self, ours: Authority) -> dict[str, Any]:
        return {"tls": context("1.3", ours.issue("server"), ca=ours.ca)}

    @pytest.fixture
    def tls_log_collector(self, log_collector: Collector) -> Collector:
        return log_collector


class Refusal(NamedTuple):
    """Something that one side refuses, its message, and how the cause is removed."""

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
}


def case(name: str, version: str, ours: Authority, theirs: Authority) -> Refusal:
    good = ours.issue("good")
    options: dict[str, Any] = {"ca": ours.ca}
    says = CASES[name]
    if name.startswith(("no client", "client")):
        tls = context(version, good, ca=ours.ca)
        if name == "no client certificate":

            def stop_asking() -> None:
                tls.verify_mode = ssl.CERT_NONE

            return Refusal(says, options, tls, stop_asking)
        wrong = theirs if "another" in name else ours
        mine = wrong.issue("client", "me@example.org", expired="expired" in name)

        def renew() -> None:
            right = ours.issue("renewed", "me@example.org")
            os.replace(right, mine)

        return Refusal(says, options | {"cert": mine}, tls, renew)
    shown = {
        "wrong host": lambda: ours.issue("shown", "a.example", "b.example"),
        "unknown authority": lambda: theirs.issue("shown"),
        "signed by itself": lambda: theirs.alone(),
        "expired": lambda: ours.issue("shown", expired=True),
    }[name]()
    tls = context(version, shown)
    return Refusal(says, options, tls, lambda: replace_certificate(tls, good))


class TestRefusals:
    @pytest.mark.parametrize("name", CASES)
    def test_a_refusal_is_reported_once_and_delivery_recovers(
        self, name: str, version: str, ours: Authority, theirs: Authority, said: Said
    ) -> None:
        one = case(name, version, ours, theirs)
        with (
            Collector(keep=True, tls=one.tls) as collector,
            logclient.connect(collector.url, **one.options, **QUICK) as client,
        ):
            ship(client, 100)
            wait_until(said)
            reported = client.stats()
            # Many attempts, and no second word.
            tries = collector.counts.connections
            wait_until(lambda: collector.counts.connections > tries + 6)
            assert client.flush(0.1) == 100
            assert (client.stats().acked, collector.counts.events) == (0, 0)
            one.mend()
            ship(client, 100, first=100)
            assert_arrived(collector, client, 200)
            assert client.stats().failed == client.stats().dropped == {}
        lines = said()
        assert len(lines) == 1
        (line,) = lines
        where = f"127.0.0.1:{collector.port}"
        found = re.fullmatch(
            rf"logclient: lumberjack\+tls://{where}: {where}: (.*); nothing is sent there until that is "
            r"corrected; next try in 0\.0\d+ s",
            line,
        )
        assert found, line
        assert found[1] == one.says or re.search(one.says, found[1])
        assert reported.last_error in line

    @pytest.mark.usefixtures("never")
    @pytest.mark.parametrize(
        ("version", "alert"), [("1.2", "handshake_failure"), ("1.3", "certificate_required")]
    )
    def test_a_missing_client_certificate_is_reported(
        self, version: str, alert: str, ours: Authority
    ) -> None:
        tls = context(version, ours.issue("server"), ca=ours.ca)
        with Collector(tls=tls) as collector, logclient.connect(collector.url, ca=ours.ca, **QUICK) as client:
            ship(client, 1)
            wait_until(lambda: alert in client.stats().last_error)
            # After a handshake that the client thought was done, or in it.
            assert client.stats().connects == client.stats().disconnects == (version == "1.3")
            assert client.flush(0.5) == 1  # many times the usual pace
            assert collector.counts.connections == 1
            client.close(0)

    def test_the_credential_backoff_grows_to_its_bound(
        self,
        theirs: Authority,
        ours: Authority,
        slow_pace: Callable[[float, float], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Half of each bound is certain, the other half random."""
        from logclient.delivery import backoff

        slow_pace(0.01, 0.04)
        monkeypatch.setattr(backoff, "random", lambda: 0.5)
        tls = context("1.3", theirs.issue("server"))
        with (
            Collector(tls=tls) as collector,
            logclient.connect(collector.url, ca=ours.ca) as client,
        ):
            delays: list[float] = []
            delay = backoff.Backoff.delay

            def watched(self: Any) -> float:
                delays.append(delay(self))
                return delays[-1]

            monkeypatch.setattr(backoff.Backoff, "delay", watched)
            ship(client, 1)
            wait_until(lambda: len(delays) >= 5)
            client.close(0)
        assert delays[:5] == [pytest.approx(0.75 * bound) for bound in (0.01, 0.03, 0.04, 0.04, 0.04)]

    @pytest.mark.usefixtures("never")
    def test_other_endpoints_keep_the_usual_backoff(
        self, ours: Authority, theirs: Authority, said: Said
    ) -> None:
        tls = context("1.3", theirs.issue("bad"))
        with Collector(tls=tls) as bad, Collector(keep=True, tls=context("1.3", ours.issue("good"))) as good:
            port = good.port
            good.stop()
            url = f"lumberjack+tls://127.0.0.1:{bad.port},127.0.0.1:{port}"
            with logclient.connect(url, ca=ours.ca, **QUICK) as client:
                ship(client, 10)
                wait_until(lambda: "cannot connect" in client.stats().last_error)
                assert bad.counts.connections == 1
                good.start()
                assert_arrived(good, client, 10)
                # Cut off, it does not go back to the one that is not mended either.
                good.stop()
                ship(client, 10, first=10)
                wait_until(lambda: f"cannot connect to 127.0.0.1:{port}" in client.stats().last_error)
                good.start()
                assert_arrived(good, client, 20)
                assert bad.counts.connections == 1
        (line,) = (line for line in said() if "nothing is sent there" in line)
        assert line.startswith(f"logclient: {url}: 127.0.0.1:{bad.port}: {CASES['unknown authority']}; ")

    def test_each_refusing_endpoint_is_reported(self, ours: Authority, theirs: Authority, said: Said) -> None:
        one, two = context("1.3", theirs.issue("one")), context("1.3", ours.issue("two", "other.example"))
        with Collector(tls=one) as first, Collector(keep=True, tls=two) as second:
            url = f"lumberjack+tls://127.0.0.1:{first.port},127.0.0.1:{second.port}"
            with logclient.connect(url, ca=ours.ca, **QUICK) as client:
                ship(client, 1)
                wait_until(lambda: first.counts.connections > 3 and second.counts.connections > 3)
                replace_certificate(two, ours.issue("right"))
                assert_arrived(second, client, 1)
        lines = sorted(said())
        assert len(lines) == 2, lines
        assert f"127.0.0.1:{first.port}: {CASES['unknown authority']}" in "".join(lines)
        assert f"127.0.0.1:{second.port}: the server's certificate is not for" in "".join(lines)

    @pytest.mark.usefixtures("never")
    def test_close_tries_a_refusing_server_once_more(self, ours: Authority, theirs: Authority) -> None:
        with Collector(tls=context("1.3", theirs.issue("server"))) as collector:
            client = logclient.connect(collector.url, ca=ours.ca, **QUICK)
            ship(client, 5)
            wait_until(lambda: client.stats().last_error)
            assert client.close(0.2) == 5
            assert collector.counts.connections == 2
            assert client.stats().failed == {"closed": 5}

    @pytest.mark.usefixtures("never")
    def test_an_alert_before_a_reset_is_reported(self, ours: Authority, said: Said) -> None:
        """The server sends its alert and closes with our bytes unread: a reset follows."""
        tls = context("1.3", ours.issue("server"), ca=ours.ca)

        def refuse(sock: socket.socket) -> None:
            sock.recv(1, socket.MSG_PEEK)
            tls.wrap_socket(sock, server_side=True)

        with serving(refuse) as port:
            client = logclient.connect(
                f"lumberjack+tls://{HOST}:{port}", ca=ours.ca, compression=0, inflight=64, window=500, **QUICK
            )
            for _ in range(20_000):
                client.send({"message": "x" * 500})
            wait_until(said)
            client.close(0)
        assert "certificate_required" in said()[0]


class TestOptions:
    def test_verify_none_accepts_anything_and_warns_once(
        self, version: str, theirs: Authority, said: Said
    ) -> None:
        tls = context(version, theirs.issue("server", "elsewhere.example", expired=True))
        with (
            Collector(keep=True, tls=tls) as collector,
            logclient.connect(f"{collector.url}?verify=none") as client,
        ):
            ship(client, 10)
            assert_arrived(collector, client, 10)
            assert collector.cut(PATIENCE)
            ship(client, 10, first=10)
            assert_arrived(collector, client, 20)
            stats = client.stats()
        assert stats.tls.endswith(", not verified")
        (line,) = (line for line in said() if "attacker" in line)
        assert line == (
            f"logclient: {collector.url}?verify=none: verify=none: the server's identity is not checked, "
            "so an attacker may read and change events"
        )

    @pytest.mark.parametrize("word", ["no", "off", "false", "None", "0", ""])
    def test_only_verify_none_disables_verification(self, word: str) -> None:
        with pytest.raises(ConfigError, match="verify: must be one of full, none"):
            logclient.connect("lumberjack+tls://host", verify=word)

    def test_an_unreadable_file_raises_at_connect(self, tmp_path: Path) -> None:
        missing = str(tmp_path / "no.pem")
        with pytest.raises(ConfigError, match=re.escape(f"ca: {missing!r} cannot be read")):
            logclient.connect("lumberjack+tls://host", ca=missing)
        with pytest.raises(ConfigError, match=re.escape(f"cert: {missing!r} cannot be read")):
            logclient.Handler("lumberjack+tls://host", cert=missing)

    def test_a_certificate_may_be_renewed_while_it_is_read(self, ours: Authority, tmp_path: Path) -> None:
        """The certificate and its key come from one file, in two reads."""
        pairs = [ours.issue(f"renewed {n}") for n in range(2)]
        path, over = tmp_path / "cert.pem", threading.Event()
        shutil.copy(pairs[0], path)

        def renew() -> None:
            for pair in itertools.cycle(pairs):
                if over.is_set():
                    return
                os.replace(shutil.copy(pair, tmp_path / "new.pem"), path)

        thread = threading.Thread(target=renew)
        thread.start()
        try:
            for _ in range(100):
                server_context(str(path))
        finally:
            over.set()
            thread.join()

    def test_ssl_is_imported_only_when_used(self, ours: Authority) -> None:
        program = """
import sys, logclient
logclient.connect("lumberjack://127.0.0.1:1")
assert "ssl" not in sys.modules
logclient.connect("lumberjack+tls://127.0.0.1:1")
assert "ssl" in sys.modules  # not by the sender's thread: a child may be forked in the middle of an import
"""
        done = subprocess.run(
            [sys.executable, "-c", program], env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
            capture_output=True, text=True, timeout=2 * PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


PASSWORD = "correct-horse-battery"


class TestPassword:
    @pytest.fixture
    def mine(self, ours: Authority) -> dict[str, str]:
        """A client certificate whose key has a password."""
        from cryptography.hazmat.primitives import serialization as form

        cert = Path(ours.issue("me", "me@example.org"))
        key = form.load_pem_private_key(cert.read_bytes(), None)
        sealed = cert.with_name("me.key")
        sealed.write_bytes(
            key.private_bytes(
                form.Encoding.PEM, form.PrivateFormat.PKCS8,
                form.BestAvailableEncryption(PASSWORD.encode()),
            )
        )  # fmt: skip
        return {"ca": ours.ca, "cert": str(cert), "key": str(sealed)}

    def test_a_wrong_or_missing_key_password_is_named(self, ours: Authority, mine: dict[str, str]) -> None:
        tls = context("1.3", ours.issue("server"), ca=ours.ca)
        with (
            Collector(keep=True, tls=tls) as collector,
            logclient.connect(collector.url, **mine, tls_password=PASSWORD) as client,
        ):
            ship(client, 1)
            assert_arrived(collector, client, 1)
        with pytest.raises(ConfigError) as wrong:
            logclient.connect(collector.url, **mine, tls_password="sesame")
        assert str(wrong.value) == f"tls_password: does not open the key in {mine['key']!r}"
        with pytest.raises(ConfigError) as none:
            logclient.connect(collector.url, **mine)
        assert str(none.value) == f"tls_password: needed, the key in {mine['key']!r} is encrypted"

    def test_the_key_password_appears_in_no_output(
        self, ours: Authority, mine: dict[str, str], tmp_path: Path, said: Said,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setenv("TLS_PASSWORD", PASSWORD)
        tls = context("1.3", ours.issue("server", "elsewhere.example"), ca=ours.ca)
        shown = []
        with Collector(capture=str(tmp_path / "capture"), tls=tls) as collector:
            options = "&".join(f"{name}={value}" for name, value in mine.items())
            url = f"{collector.url}?{options}&tls_password=env:TLS_PASSWORD"
            with logclient.connect(url, ledger=tmp_path / "ledger", **QUICK) as client:
                ship(client, 10)
                wait_until(said)
                shown += [repr(client), repr(client.stats()), repr(client.config), str(client.config.options)]
                replace_certificate(tls, ours.issue("mended"), ours.ca)
                assert client.flush(PATIENCE) == 0
                shown += [repr(client.stats()), repr(vars(client._sender.engine.lanes.first.transport))]
            monkeypatch.setenv("TLS_PASSWORD", PASSWORD + "!")
            with pytest.raises(ConfigError) as caught:
                logclient.connect(url)
            shown += [str(caught.value), repr(caught.value)]
        shown += said()
        kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert len(kept) > 5 and all("tls_password=***" in text for text in shown[:2])
        assert not [text for text in shown if PASSWORD in text]
        assert not [data for data in kept if PASSWORD.encode() in data]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestFork:
    def test_parent_and_child_deliver_after_a_fork(
        self, version: str, ours: Authority, tmp_path: Path
    ) -> None:
        tls = context(version, ours.issue("server"))
        with Collector(keep=True, tls=tls) as collector:
            program = f"""
import os, sys, logclient
client = logclient.connect({collector.url!r}, ca={ours.ca!r})
def ship(who, n):
    for i in range(n):
        client.send({{"message": who, "n": i}})
    assert client.flush({PATIENCE}) == 0, client.stats()
ship("before", 100)
children = []
for k in range(3):
    pid = os.fork()
    if pid == 0:
        ship(f"child {{k}}", 100)
        assert client.stats().connects == 1
        client.close()
        os._exit(0)
    children.append(pid)
    ship(f"parent {{k}}", 100)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
ship("after", 100)
stats = client.stats()
# One connection for all of it: no child's end has ended it.
assert (stats.connects, stats.disconnects, stats.resent, stats.last_error) == (1, 0, 0, ""), stats
client.close()
# The sender's thread imported nothing: a child born in the middle of an import never gets that module.
assert "encodings.idna" not in sys.modules
"""
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", program],
                env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
                capture_output=True, text=True, timeout=2 * PATIENCE,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
            found: dict[str, list[int]] = {}
            for event in collector.events(800):
                found.setdefault(event["message"], []).append(event["n"])
            assert collector.counts.connections == 4
            assert collector.reasons == {}
        whos = ["before", "after", *(f"{who} {k}" for who in ("parent", "child") for k in range(3))]
        assert found == {who: list(range(100)) for who in whos}


class TestCoalescing:
    def test_several_windows_share_one_write(
        self, tls_pump: str, ours: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Up to a megabyte is coalesced; each window still has its own ack and its ledger line."""
        if tls_pump == "compiled":
            pytest.skip("only where a write takes the GIL do windows share one")
        sizes: list[int] = []
        send = TlsLink.send

        def watched(self: TlsLink, buffers: Any) -> bool:
            sizes.append(sum(len(b) for b in buffers))
            return send(self, buffers)

        monkeypatch.setattr(TlsLink, "send", watched)
        with Collector(keep=True, tls=context("1.3", ours.issue("server"))) as collector:
            port = collector.port
            collector.stop()
            with logclient.connect(
                collector.url, ca=ours.ca, window=100, inflight=64, compression=0, ledger=tmp_path / "run",
                **QUICK,
            ) as client:  # fmt: skip
                for i in range(20_000):
                    client.send({"message": "x" * 300, "n": i})
                wait_until(lambda: client.stats().last_error)
                collector.start()
                assert collector.port == port
                assert_arrived(collector, client, 20_000)
                windows = client.stats().batches
            assert collector.counts.captured_windows == windows >= 200
        assert len(sizes) < windows / 4
        assert COALESCE_BYTES / 4 < max(sizes) < 2 * COALESCE_BYTES
        (ledger,) = (tmp_path / "run").glob("*.ledger")
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        assert sum(line["t"] == "batch" for line in lines) == windows


class TestCollector:
    def test_a_stalled_handshake_delays_no_other_client(self, ours: Authority) -> None:
        with Collector(keep=True, idle=0.3, tls=context("1.3", ours.issue("server"))) as collector:
            with socket.create_connection((HOST, collector.port)) as slow:
                slow.sendall(b"\x16\x03\x01\x02\x00")
                with logclient.connect(collector.url, ca=ours.ca) as client:
                    ship(client, 10)
                    assert_arrived(collector, client, 10)
                slow.settimeout(PATIENCE)
                assert slow.recv(100) == b""
            assert collector.counts.idle_closes >= 1

    def test_a_client_without_tls_is_cut_off(self, ours: Authority) -> None:
        with Collector(keep=True, tls=context("1.3", ours.issue("server"))) as collector:
            plain = collector.url.replace("+tls", "")
            with logclient.connect(plain) as client:
                ship(client, 1)
                wait_until(lambda: client.stats().last_error)
                client.close(0)
            assert collector.reasons and all(reason.startswith("tls: ") for reason in collector.reasons)
            assert collector.counts.events == 0

    def test_collector_urls_need_matching_tls_options(
        self, ours: Authority, theirs: Authority, tmp_path: Path
    ) -> None:
        cert = ours.issue("server")
        for url, says in (
            ("lumberjack+tls://127.0.0.1:0", "cert: needed to listen on"),
            (
                f"lumberjack+tls://127.0.0.1:0?cert={cert}&verify=none",
                "verify: not an option of a collector's URL",
            ),
            (f"lumberjack+tls://127.0.0.1:0?cert={tmp_path}/no.pem", "cert: "),
            (f"lumberjack+tls://127.0.0.1:0?cert={cert}&ca={tmp_path}/no.pem", "ca: "),
            (f"lumberjack://127.0.0.1:0?cert={cert}", "cert: only for a scheme with TLS"),
        ):
            with pytest.raises(ConfigError, match=re.escape(says)):
                collect([url], capture=str(tmp_path / "capture"), seconds=0)


class TestCommands:
    @pytest.mark.slow
    def test_send_to_collect_with_certificates_on_both_sides(self, ours: Authority, tmp_path: Path) -> None:
        inprocess = pytest.importorskip("tests.support.verify_inprocess")
        lines = tmp_path / "lines.log"
        lines.write_text("".join(f"line {i}\n" for i in range(5000)))
        environment = clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
        command = [sys.executable, "-m", "logclient"]
        with subprocess.Popen(
            [*command, "collect", f"lumberjack+tls://127.0.0.1:0?cert={ours.issue('server')}&ca={ours.ca}",
             "--capture", tmp_path / "capture", "--faults", "cut-before-ack=every:2"],
            env=environment, stdout=subprocess.PIPE, text=True,
        ) as collector:  # fmt: skip
            try:
                assert collector.stdout is not None
                said = json.loads(collector.stdout.readline())
                assert said["url"] == f"lumberjack+tls://127.0.0.1:{said['port']}"
                url = f"{said['url']}?ca={ours.ca}&cert={ours.issue('me', 'me@example.org')}&window=500"
                sent = subprocess.run(
                    [*command, "send", url, lines, "--ledger", tmp_path / "ledger", "--json"],
                    env=environment, capture_output=True, text=True, timeout=2 * PATIENCE,
                )  # fmt: skip
            finally:
                collector.terminate()
        assert sent.returncode == 0, sent.stderr
        assert json.loads(sent.stdout)["acked"] == 5000
        verdict = inprocess.run(tmp_path / "ledger", tmp_path / "capture")
        assert (verdict.exit_code, verdict.counts.ok) == (0, 5000)
        assert verdict.counts.duplicated > 0

    def test_send_reports_the_refusal_of_a_certificate(
        self, ours: Authority, theirs: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = tmp_path / "lines.log"
        lines.write_text("a line\n")
        assert cli.main(["send", f"lumberjack+tls://127.0.0.1:1?ca={tmp_path}/no.pem", str(lines)]) == 2
        assert capsys.readouterr().err.startswith("logclient: ca: ")
        with Collector(tls=context("1.3", theirs.issue("server"))) as collector:
            url = f"{collector.url}?ca={ours.ca}"
            assert cli.main(["send", url, str(lines), "--timeout", "200ms"]) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert CASES["unknown authority"] in line
