"""Credentials that change while a client runs: the next connection has the new ones, without a restart."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.delivery.attempt import Attempt
from logclient.errors import CredentialError
from logclient.testing.lumberjack import Collector
from logclient.transports import tls as tls_module
from logclient.transports.tls import server_context
from tests.support import transports
from tests.support.patience import PATIENCE, wait_until
from tests.support.tls import Authority, assert_arrived, replace_certificate, serving

QUICK = {"backoff_max": 0.02}

pytestmark = pytest.mark.usefixtures("tls_pump")


@pytest.fixture(autouse=True)
def quick(slow_pace: Callable[[float, float], None]) -> None:
    slow_pace(0.02, 0.05)


@pytest.fixture(params=["young files", "settled files"])
def settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files count as settled at once, or never during the test: then each connection reads them."""
    if request.param == "settled files":
        monkeypatch.setattr(tls_module, "SETTLED_NS", 0)
    return str(request.param)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


def send(client: logclient.Client, n: int) -> None:
    first = client.stats().sent
    for i in range(first, first + n):
        client.send({"n": i})


def reconnect(client: logclient.Client, collector: Any) -> None:
    """End the connection, and deliver over the next one."""
    before = client.stats().connects
    wait_until(collector.cut, "the connection ends")
    send(client, 10)
    wait_until(lambda: client.stats().connects > before, "the next connection")
    assert client.flush(PATIENCE) == 0


def assert_unreported(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was said but that the server has ended connections."""
    said = capsys.readouterr().err.splitlines()
    assert not [line for line in said if "the server closed the connection" not in line]


class TestFiles:
    """The server has TLS 1.2, so that a refusal comes in the handshake."""

    def server(self, authority: Authority) -> ssl.SSLContext:
        context = server_context(authority.issue("server"), ca=authority.ca)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context

    def test_a_renewed_client_certificate_is_used(
        self, settled: str, ours: Authority, theirs: Authority, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """First of one authority, then of another, which alone the server trusts by then."""
        context = self.server(ours)
        mine = ours.issue("client", "me@example.org")
        with (
            Collector(keep=True, tls=context) as collector,
            logclient.connect(collector.url, ca=ours.ca, cert=mine, **QUICK) as client,
        ):
            send(client, 10)
            assert client.flush(PATIENCE) == 0
            replace_certificate(context, ours.issue("server"), ca=theirs.ca)
            os.replace(theirs.issue("client", "me@example.org"), mine)
            reconnect(client, collector)
            assert_arrived(collector, client, 20)
        assert_unreported(capsys)

    @pytest.mark.parametrize("form", ["file", "directory"])
    def test_another_authority_is_trusted(
        self,
        form: str,
        settled: str,
        ours: Authority,
        theirs: Authority,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        context = server_context(ours.issue("server"))
        folder = tmp_path / "trusted"
        folder.mkdir()
        trusted = shutil.copy(ours.ca, folder / "ca.pem")
        with (
            Collector(keep=True, tls=context) as collector,
            logclient.connect(
                collector.url, ca=str(trusted if form == "file" else folder), **QUICK
            ) as client,
        ):
            send(client, 10)
            assert client.flush(PATIENCE) == 0
            replace_certificate(context, theirs.issue("server"))
            if form == "file":
                shutil.copy(theirs.ca, trusted)
            else:
                trusted.unlink()
                shutil.copy(theirs.ca, folder / "another.pem")
            reconnect(client, collector)
            assert_arrived(collector, client, 20)
        assert_unreported(capsys)

    @pytest.mark.parametrize(
        ("option", "how"),
        [(option, how) for option in ("ca", "cert", "key") for how in ("lost", "half written")]
        + [("cert", "another key"), ("key", "another key")],
    )
    def test_a_file_that_cannot_be_used_is_reported_and_the_last_one_used(
        self,
        option: str,
        how: str,
        settled: str,
        ours: Authority,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        whole = ours.issue("client", "me@example.org")
        files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
        for name, path in files.items():
            shutil.copy(ours.ca if name == "ca" else whole, path)
        with (
            Collector(keep=True, tls=self.server(ours)) as collector,
            logclient.connect(
                collector.url, **{name: str(p) for name, p in files.items()}, **QUICK
            ) as client,
        ):
            send(client, 10)
            assert client.flush(PATIENCE) == 0
            path = files[option]
            good = path.read_bytes()
            if how == "lost":
                path.unlink()
            elif how == "half written":
                path.write_bytes(good[:100])
            else:
                path.write_bytes(Path(ours.issue("other", "me@example.org")).read_bytes())
            for _ in range(3):
                reconnect(client, collector)
            path.write_bytes(good)
            reconnect(client, collector)
            assert_arrived(collector, client, 50)
        said = [line for line in capsys.readouterr().err.splitlines() if "the last good one is used" in line]
        assert len(said) == 1
        assert str(tmp_path) in said[0]

    def test_files_are_read_only_after_a_change(self, ours: Authority, settled: str, tmp_path: Path) -> None:
        ca, cert = (tmp_path / name for name in ("ca.pem", "cert.pem"))
        shutil.copy(ours.ca, ca)
        shutil.copy(ours.issue("client"), cert)
        transport = transports.tls(PATIENCE, ca=str(ca), cert=str(cert))
        first = transport.prepare(Attempt())
        assert (transport.prepare(Attempt()) is first) == (settled == "settled files")
        os.replace(shutil.copy(cert, tmp_path / "new.pem"), cert)
        second = transport.prepare(Attempt())
        assert second is not first
        os.utime(ca, ns=(1, 1))
        assert transport.prepare(Attempt()) is not second

    @pytest.mark.parametrize("source", ["file", "function"])
    def test_the_key_and_its_password_change_together(
        self, source: str, settled: str, ours: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        whole = ours.issue("client", "me@example.org")
        key, password = tmp_path / "key.pem", tmp_path / "password"
        encrypt(whole, key, "first")
        password.write_text("first\n")
        password.chmod(0o600)
        functions: dict[str, Any] = {"function": lambda: password.read_text().strip()}
        given = functions.get(source, f"file:{password}")
        with (
            Collector(keep=True, tls=self.server(ours)) as collector,
            logclient.connect(
                collector.url, ca=ours.ca, cert=whole, key=str(key), tls_password=given, **QUICK
            ) as client,
        ):
            send(client, 10)
            assert client.flush(PATIENCE) == 0
            encrypt(whole, key, "second")
            password.write_text("second\n")
            reconnect(client, collector)
            assert_arrived(collector, client, 20)
        assert_unreported(capsys)


class TestSecrets:
    """Tokens, headers, keys of ZeroMQ, and passwords of proxies."""

    @pytest.mark.parametrize("source", ["file", "env", "function"])
    def test_a_rotated_token_is_used(
        self,
        source: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        logux = pytest.importorskip("logclient.testing.logux")
        accepted = {"first"}
        file = tmp_path / "token"
        file.touch(0o600)

        def rotate(token: str) -> None:
            file.write_text(token)
            monkeypatch.setenv("TEST_TOKEN", token)

        rotate("first")
        given = {"file": f"file:{file}", "env": "env:TEST_TOKEN", "function": file.read_text}[source]
        with (
            logux.Collector(authenticate=lambda login: login.token in accepted) as collector,
            logclient.connect(collector.url, token=given, user="u", **QUICK) as client,
        ):
            send(client, 10)
            assert client.flush(PATIENCE) == 0
            accepted.clear()
            accepted.add("second")
            rotate("second")
            reconnect(client, collector)
            assert client.stats().acked == 20
            if source != "env":
                file.unlink()
                reconnect(client, collector)
        said = capsys.readouterr().err
        assert "credentials" not in said and "first" not in said and "second" not in said
        assert said.count("the last value is used") == (source != "env")

    def test_a_function_that_fails_at_first_is_called_again(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Slowly, as after rejected credentials. Its error may have the secret and is not shown."""
        logux = pytest.importorskip("logclient.testing.logux")
        answers: list[Any] = [5, "", None]
        calls = 0

        def token() -> str:
            nonlocal calls
            calls += 1
            if answers:
                answer: str = answers.pop()
                return answer
            if calls < 6:
                raise RuntimeError("hunter2 is wrong")
            return "right"

        with (
            logux.Collector(authenticate=lambda login: login.token == "right") as collector,
            logclient.connect(collector.url, token=token, user="u", **QUICK) as client,
        ):
            assert not calls
            send(client, 10)
            assert client.flush(PATIENCE) == 0
            assert "hunter2" not in repr(client.config)
        said = capsys.readouterr().err
        assert "token: its function must return a text" in said and "hunter2" not in said
        assert calls == 6

    def test_headers_are_read_anew(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        peers = pytest.importorskip("tests.logux.peer")
        monkeypatch.setenv("TEST_COOKIE", "a=1")
        lines = tmp_path / "headers"
        lines.touch(0o600)
        lines.write_text("X-One: 1\nX-Two: 2\n")
        with peers.LoguxPeer() as peer:
            for given in ({"Cookie": "env:TEST_COOKIE", "X-One": lambda: "1"}, f"file:{lines}"):
                with logclient.connect(peer.url, http_headers=given, **QUICK) as client:
                    send(client, 1)
                    assert client.flush(PATIENCE) == 0
                    first = peer.lines[-1]
                    monkeypatch.setenv("TEST_COOKIE", "a=2")
                    lines.write_text("X-One: 3\n")
                    first.close()
                    send(client, 1)
                    assert client.flush(PATIENCE) == 0
                    second = peer.lines[-1]
                if isinstance(given, dict):
                    assert (first.http["Cookie"], second.http["Cookie"]) == ("a=1", "a=2")
                    assert second.http["X-One"] == "1"
                    lines.write_text("X-One: 1\nX-Two: 2\n")
                else:
                    assert (first.http["X-One"], second.http["X-One"]) == ("1", "3")
                    assert second.http["X-Two"] == "2"  # it is not there any more: the last value

    def test_a_rotated_curve_key_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        zmq = pytest.importorskip("zmq")
        from zmq.auth.thread import ThreadAuthenticator

        from logclient.config.parsing import parse
        from logclient.transports.zmq import Zmq

        if not zmq.has("curve"):
            pytest.skip("this libzmq has no CURVE")
        server, server_secret = zmq.curve_keypair()
        pairs = [zmq.curve_keypair() for _ in range(2)]
        shown: list[bytes] = []

        class Keys:
            def callback(self, domain: str, key: bytes) -> bool:
                shown.append(key)
                return True

        file = tmp_path / "secret"
        file.touch(0o600)
        file.write_bytes(pairs[0][1])
        context = zmq.Context()
        keeper = ThreadAuthenticator(context)
        keeper.start()
        router = context.socket(zmq.ROUTER)
        try:
            keeper.configure_curve_callback("*", Keys())
            router.curve_server, router.curve_secretkey = True, server_secret
            port = router.bind_to_random_port("tcp://127.0.0.1")
            given: dict[str, Any] = {"curve_server": server.decode(), "curve_secret": f"file:{file}"}
            transport = Zmq(parse(f"logjam://127.0.0.1:{port}/a-b", **given))
            for _, secret in pairs:
                file.write_bytes(secret)
                transport.connect(("127.0.0.1", port), Attempt()).close()
            warnings: list[str] = []
            attempt = Attempt()
            monkeypatch.setattr(attempt, "warn", warnings.append)
            file.write_text("no key")
            transport.connect(("127.0.0.1", port), attempt).close()
            assert warnings == ["curve_secret: must be a key of 40 characters of Z85; the last key is used"]
            given["curve_secret"] = lambda: "no key"
            transport = Zmq(parse(f"logjam://127.0.0.1:{port}/a-b", **given))
            with pytest.raises(CredentialError, match="curve_secret: must be a key"):
                transport.connect(("127.0.0.1", port), Attempt())
        finally:
            router.close(0)
            keeper.stop()
            context.term()
        assert shown == [pairs[0][0], pairs[1][0], pairs[1][0]]

    def test_a_password_of_a_proxy_is_read_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("websockets")
        from logclient.config.parsing import parse
        from logclient.transports.websocket import WebSocket

        seen: list[str] = []

        def refuse(sock: socket.socket) -> None:
            request = b""
            while b"\r\n\r\n" not in request:
                request += sock.recv(4096)
            seen.extend(line for line in request.decode().split("\r\n") if "Authorization" in line)
            sock.sendall(b"HTTP/1.1 407 No\r\n\r\n")

        for name in list(os.environ):
            if name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        with serving(refuse) as port:
            monkeypatch.setenv("http_proxy", f"http://me:first@127.0.0.1:{port}")
            transport = WebSocket(parse("logux://logs.example.org"))
            for password in ("first", "second"):
                monkeypatch.setenv("http_proxy", f"http://me:{password}@127.0.0.1:{port}")
                with pytest.raises(CredentialError):
                    transport.connect(("logs.example.org", 80), Attempt())
            monkeypatch.setenv("http_proxy", "socks5://me:third@127.0.0.1")
            warnings: list[str] = []
            attempt = Attempt()
            monkeypatch.setattr(attempt, "warn", warnings.append)
            with pytest.raises(CredentialError):
                transport.connect(("logs.example.org", 80), attempt)
        pairs = [b64decode(line.rpartition(" ")[2]) for line in seen]
        assert pairs == [b"me:first", b"me:second", b"me:second"]
        assert len(warnings) == 1 and "the last proxy is used" in warnings[0] and "third" not in warnings[0]


def encrypt(whole: str, path: Path, password: str) -> None:
    """Write the key of a file with a password."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(whole).read_bytes(), None)
    new = path.with_suffix(".new")
    new.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )
    new.chmod(0o600)
    new.replace(path)
