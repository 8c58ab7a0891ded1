"""``send`` and ``ping`` with closed ports, silent hosts and servers of other protocols."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from logclient import cli
from logclient.testing.lumberjack import Collector
from tests import support
from tests.support.dead_servers import BlackHole
from tests.support.patience import PATIENCE


@contextmanager
def serve_each(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Run a server that handles each connection with `answer` in its own thread; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as open_ones:
        end = threading.Event()

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                if end.is_set():
                    sock.close()
                    return
                open_ones.enter_context(sock)
                threading.Thread(target=answer, args=(sock,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        end.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


@contextmanager
def dead() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextmanager
def black_hole() -> Iterator[int]:
    try:
        hole = BlackHole()
    except RuntimeError as error:
        support.missing(str(error))
    with hole:
        yield int(hole.url.rpartition(":")[2])


def never_reads() -> AbstractContextManager[int]:
    return serve_each(lambda sock: None)


def closes() -> AbstractContextManager[int]:
    return serve_each(lambda sock: (sock.recv(65536), sock.close()))


def banner() -> AbstractContextManager[int]:
    return serve_each(lambda sock: sock.sendall(b"SSH-2.0-\x1b[31mserver\r\n"))


def takes_one_byte_at_a_time(sock: socket.socket) -> None:
    for byte in b"2A\0\0\0\0":
        sock.sendall(bytes([byte]))


@contextmanager
def web() -> Iterator[int]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def tls(tmp_path: Path) -> Iterator[int]:
    trustme = support.need("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def shake(sock: socket.socket) -> None:
        try:
            context.wrap_socket(sock, server_side=True).close()
        except OSError:
            pass

    with serve_each(shake) as port:
        yield port


def command(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "logclient", *arguments],
        input=stdin.decode(),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


class TestSend:
    """Exit 3 and one line that names address and cause, in every case."""

    def refused(self, url: str, stdin: bytes = b"a line\n") -> str:
        done = command("send", url, "--timeout", "800ms", stdin=stdin)
        assert done.returncode == 3, done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout.startswith("sent ")
        assert "acked 0" in done.stdout
        return done.stderr

    @pytest.mark.parametrize("stdin", [b"a line\n", b"x" * 1000 + b"\n" + b"y\n" * 100_000])
    def test_send_to_a_closed_port(self, stdin: bytes) -> None:
        with dead() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}", stdin)
        assert said == (
            f"logclient: lumberjack://127.0.0.1:{port}: nothing could be reached for 0.8s: "
            f"cannot connect to 127.0.0.1:{port}: connection refused\n"
        )

    def test_send_to_a_black_hole(self) -> None:
        with black_hole() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}")
        assert "nothing could be reached for 0.8s: cannot connect to" in said
        assert "no answer to the connection attempt in time" in said

    def test_send_to_a_server_that_never_reads(self) -> None:
        with never_reads() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}?compression=0", (b"x" * 6000 + b"\n") * 2000)
        assert said.endswith("connected, but nothing was acknowledged for 0.8s\n")

    def test_send_to_a_server_that_closes_at_once(self) -> None:
        with closes() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}")
        assert "connected, but nothing was acknowledged for 0.8s: 127.0.0.1" in said

    def test_send_to_a_server_of_another_protocol(self) -> None:
        with banner() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}")
        assert "expected an ack frame" in said
        assert "\x1b" not in said

    def test_send_to_an_unknown_name(self) -> None:
        said = self.refused("lumberjack://nosuch.invalid")
        assert "nothing could be reached for 0.8s: cannot connect to nosuch.invalid:5044: " in said

    def test_send_needs_one_live_endpoint_of_several(self, tmp_path: Path) -> None:
        with dead() as port, Collector() as server:
            url = f"lumberjack://127.0.0.1:{port},127.0.0.1:{server.port}?backoff_max=50ms"
            done = command("send", url, stdin=b"a\n")
        assert done.returncode == 0
        assert "acked 1" in done.stdout
        # It went on, so what happened on the way is told, once.
        assert done.stderr.count("\n") == 1
        assert "connection refused" in done.stderr

    def test_send_to_a_server_that_dies_midway_is_exit_1(self, tmp_path: Path) -> None:
        with Collector(faults="stall=every:2") as server:
            url = f"{server.url}?window=1&compression=0"
            done = command("send", url, "--timeout", "500ms", stdin=b"a\nb\nc\n")
        assert done.returncode == 1
        assert "acked 1" in done.stdout
        assert "no progress for 0.5s" in done.stderr.splitlines()[-1]


class TestPing:
    def ping(self, *arguments: str, code: int = 0) -> str:
        done = command("ping", *arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert done.stderr == ""
        return done.stdout

    def test_ping_of_a_live_server(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector(keep=True) as server:
            said = self.ping(server.url)
            assert said.startswith(f"127.0.0.1:{server.port}: connected in ")
            assert ", lumberjack answers in " in said
            assert "median" in self.ping(f"{server.url}?version=1", "--count", "5")
            assert cli.main(["ping", server.url, "--count", "3", "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert (found["status"], found["why"], found["event_ms"]) == ("ok", "", None)
            assert len(found["round_trip_ms"]) == 3
            assert server.counts.events == 0
            assert server.counts.protocol_errors == 0

    def test_ping_sends_an_event_on_request(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector(keep=True) as server:
            assert ", an event was acknowledged in " in self.ping(server.url, "--event")
            (event,) = server.events(1)
        assert event["message"].startswith("logclient ping from ")
        assert event["tags"] == "logclient-ping"
        assert event["@timestamp"].endswith("Z")

    def test_ping_needs_every_endpoint(self, tmp_path: Path) -> None:
        with (
            Collector() as server,
            dead() as nobody,
            black_hole() as hole,
            never_reads() as silent,
            closes() as closing,
            banner() as other,
            web() as page,
            tls(tmp_path) as secure,
            serve_each(takes_one_byte_at_a_time) as slow,
        ):
            ports = [server.port, nobody, hole, silent, closing, other, page, secure, slow]
            url = "lumberjack://" + ",".join(f"127.0.0.1:{port}" for port in ports) + ",nosuch.invalid"
            lines = self.ping(url, "--timeout", "1s", code=3).splitlines()
        assert len(lines) == len(ports) + 1
        for line, says in zip(
            lines,
            [
                "lumberjack answers in",
                ": cannot connect: connection refused",
                ": cannot connect: no answer",
                "then silence for 1 s: it may be one that answers only events",
                "then it closed the connection, without an answer",
                r"but an SSH server answers: SSH-2.0-\x1b[31mserver\x0d\x0a",
                "but an HTTP server answers: ",
                "but a TLS server answers",
                "lumberjack answers in",
                "nosuch.invalid:5044: cannot connect: ",
            ],
            strict=True,
        ):
            assert says in line
            assert line.isprintable()

    def test_ping_json_fails_with_one_dead_endpoint(self) -> None:
        with (
            dead() as nobody,
            never_reads() as silent,
            closes() as closing,
            web() as page,
            Collector() as server,
        ):
            ports = (nobody, silent, closing, page, server.port)
            url = "lumberjack://" + ",".join(f"127.0.0.1:{port}" for port in ports)
            said = self.ping(url, "--timeout", "500ms", "--json", code=3)
        found = [json.loads(line) for line in said.splitlines()]
        assert [one["status"] for one in found] == ["unreachable", "silent", "broken", "foreign", "ok"]
        assert [one["connect_ms"] is None for one in found] == [True, False, False, False, False]
        assert [bool(one["why"]) for one in found] == [True, True, True, True, False]
        assert all(one["tls"] is None for one in found)

    def test_ping_reports_an_unacknowledged_event(self) -> None:
        with never_reads() as port:
            said = self.ping(f"lumberjack://127.0.0.1:{port}", "--event", "--timeout", "400ms", code=3)
        assert "an event was not acknowledged in 0.4 s" in said

    def test_ping_of_a_server_that_answers_events_only(self) -> None:
        """As go-lumber's does."""

        def serve(sock: socket.socket) -> None:
            while data := sock.recv(65536):
                if b"C" in data or b"J" in data:
                    sock.sendall(b"2A\0\0\0\1")

        with serve_each(serve) as port:
            url = f"lumberjack://127.0.0.1:{port}"
            assert "then silence" in self.ping(url, "--timeout", "400ms", code=3)
            assert "an event was acknowledged" in self.ping(url, "--timeout", "400ms", "--event")

    def test_wrong_ping_usage_is_explained(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments, says in (
            (["ping"], "required: URL"),
            (["ping", "http://h"], "scheme: 'http' is none of"),
            (["ping", "lumberjack://h", "--count", "0"], "--count: must be a whole number from 1"),
            (["ping", "lumberjack://h", "--timeout", "x"], "--timeout: must be a duration"),
            (["ping", "lumberjack://h", "--timeout", "0"], "--timeout: must be a duration above 0"),
        ):
            assert cli.main(arguments) == 2
            assert says in capsys.readouterr().err


class TestTls:
    """Over TLS: one line that names the cause and its remedy."""

    @pytest.fixture
    def ours(self, tmp_path: Path) -> Any:
        support.need("trustme")
        from tests.support.tls import Authority

        return Authority(tmp_path / "ours")

    def lines(self, url: str) -> tuple[str, str, str]:
        """What send and ping say, and the status of ping; both end with exit 3."""
        sent = command("send", url, "--timeout", "800ms", stdin=b"a line\n")
        assert sent.returncode == 3
        assert sent.stderr.count("\n") == 1
        pinged = command("ping", url, "--timeout", "2s", "--json")
        assert pinged.returncode == 3
        assert pinged.stderr == ""
        found = json.loads(pinged.stdout)
        return sent.stderr, found["why"], found["status"]

    @pytest.mark.parametrize("version", ["1.2", "1.3"])
    def test_a_missing_client_certificate_is_named(self, ours: Any, version: str) -> None:
        from tests.support.tls import context

        with Collector(tls=context(version, ours.issue("server"), ca=ours.ca)) as server:
            for said in self.lines(f"{server.url}?ca={ours.ca}")[:2]:
                assert "client certificate" in said

    def test_refused_certificates_are_explained(self, ours: Any, tmp_path: Path) -> None:
        from tests.support.tls import Authority, context

        theirs = Authority(tmp_path / "theirs")
        for cert, ca, says in (
            (ours.issue("expired", expired=True), ours.ca, "the server's certificate has expired"),
            (ours.issue("other", "elsewhere.example"), ours.ca, "it names elsewhere.example"),
            (ours.issue("server"), theirs.ca, "is not signed by an authority that is trusted here"),
        ):
            with Collector(tls=context("1.3", cert)) as server:
                sent, pinged, status = self.lines(f"{server.url}?ca={ca}")
                assert says in sent
                assert says in pinged
                assert status == "refused"

    def test_tls_to_a_plain_server_is_explained(self) -> None:
        with Collector() as server:
            sent, pinged, status = self.lines(f"lumberjack+tls://127.0.0.1:{server.port}")
        assert "TLS" in sent
        assert "TLS" in pinged
        assert status in ("refused", "unreachable")

    @pytest.mark.parametrize("scheme", ["lumberjack", "logux"])
    def test_plain_to_a_tls_server_is_explained(self, scheme: str, tmp_path: Path) -> None:
        if scheme == "logux":
            support.need("websockets")
        with tls(tmp_path) as port:
            sent = command("send", f"{scheme}://127.0.0.1:{port}", "--timeout", "800ms", stdin=b"a line\n")
        assert sent.returncode == 3
        assert sent.stderr.count("\n") == 1
        # As the system lets the alert through, or not.
        hints = ("does the server want TLS?", "the server speaks TLS", "does it require TLS")
        assert any(hint in sent.stderr for hint in hints)

    def test_a_server_that_took_events_gets_no_tls_advice(self) -> None:
        with Collector(faults="cut-before-ack=from:2:per-connection") as server:
            done = command("send", f"{server.url}?window=1&inflight=1", stdin=b"a\nb\nc\n")
        assert "acked 3" in done.stdout
        assert done.stderr  # a connection was lost
        assert "TLS" not in done.stderr

    def test_ping_over_tls_to_a_black_hole(self) -> None:
        with black_hole() as port:
            sent, pinged, status = self.lines(f"lumberjack+tls://127.0.0.1:{port}")
        assert "no answer to the connection attempt in time" in sent
        assert pinged == "cannot connect: no answer to the connection attempt in time"
        assert status == "unreachable"

    def test_ping_reports_the_servers_certificate(self, ours: Any) -> None:
        from tests.support.tls import context

        with Collector(tls=context("1.3", ours.issue("server"))) as server:
            done = command("ping", f"{server.url}?ca={ours.ca}", "--event")
            assert done.returncode == 0
            assert ", TLSv1.3 TLS_" in done.stdout
            assert ", certificate for 127.0.0.1 from O=trustme" in done.stdout
            assert " days left), lumberjack answers in " in done.stdout
            assert "an event was acknowledged" in done.stdout
            found = json.loads(command("ping", f"{server.url}?ca={ours.ca}", "--json").stdout)["tls"]
            assert (found["version"], found["verified"], found["names"]) == ("TLSv1.3", True, ["127.0.0.1"])
            assert found["days_left"] > 0
            assert found["not_after"].endswith("Z")
            assert found["subject"].startswith("O=trustme")
            done = command("ping", f"{server.url}?verify=none")
            assert done.returncode == 0
            assert "certificate not verified" in done.stdout
