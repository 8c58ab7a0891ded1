"""``send`` and ``check`` with closed ports, silent hosts and servers of other protocols."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logclient.testing.lumberjack import Collector
from tests import support
from tests.support.patience import PATIENCE
from tests.support.wrong_servers import banner, black_hole, closes, dead, never_reads, serve_each, tls, web


def takes_one_byte_at_a_time(sock: socket.socket) -> None:
    with suppress(OSError):  # the first connection is only tried
        for byte in b"2A\0\0\0\0":
            sock.sendall(bytes([byte]))


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

    @pytest.mark.slow
    def test_send_to_a_black_hole(self) -> None:
        with black_hole() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}")
        assert "nothing could be reached for 0.8s: cannot connect to" in said
        assert "no answer to the connection attempt in time" in said

    def test_send_to_a_server_that_never_reads(self) -> None:
        with never_reads() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}?compression=0", (b"x" * 6000 + b"\n") * 2000)
        assert said.endswith("connected, but nothing was acknowledged for 0.8s\n")

    @pytest.mark.slow
    def test_send_to_a_server_that_closes_at_once(self) -> None:
        with closes() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}")
        assert "connected, but nothing was acknowledged for 0.8s: 127.0.0.1" in said

    @pytest.mark.slow
    def test_send_to_a_server_of_another_protocol(self) -> None:
        with banner() as port:
            said = self.refused(f"lumberjack://127.0.0.1:{port}")
        assert "expected an ack frame" in said
        assert "\x1b" not in said

    @pytest.mark.slow
    def test_send_to_an_unknown_name(self) -> None:
        said = self.refused("lumberjack://nosuch.invalid")
        assert "nothing could be reached for 0.8s: cannot connect to nosuch.invalid:5044: " in said

    def test_send_needs_one_live_endpoint_of_several(self, tmp_path: Path) -> None:
        with dead() as port, Collector() as server:
            url = f"lumberjack://127.0.0.1:{port},127.0.0.1:{server.port}?backoff_max=50ms"
            done = command("send", url, stdin=b"a\n")
        assert done.returncode == 0
        assert "acked 1" in done.stdout
        # One line for the server that refused. The other one was tried at once.
        (refused,) = done.stderr.splitlines()
        assert refused.endswith(f" cannot connect to 127.0.0.1:{port}: connection refused")

    @pytest.mark.slow
    def test_send_to_a_server_that_dies_midway_is_exit_1(self, tmp_path: Path) -> None:
        with Collector(faults="stall=every:2") as server:
            url = f"{server.url}?window=1&compression=0"
            done = command("send", url, "--timeout", "500ms", stdin=b"a\nb\nc\n")
        assert done.returncode == 1
        assert "acked 1" in done.stdout
        assert "no progress for 0.5s" in done.stderr.splitlines()[-1]


def checked(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """Run ``check --json``; return what it says of each endpoint."""
    done = command("check", *arguments, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def last(found: dict[str, Any]) -> tuple[str, str]:
    """Return the step with which a check ended, and what it found."""
    return found["steps"][-1]["step"], found["steps"][-1]["found"]


class TestCheck:
    def test_every_endpoint_is_needed(self) -> None:
        with (
            Collector() as server,
            dead() as nobody,
            black_hole() as hole,
            never_reads() as silent,
            closes() as closing,
            banner() as other,
            web() as page,
            tls() as secure,
            serve_each(takes_one_byte_at_a_time) as slow,
        ):
            ports = [server.port, nobody, hole, silent, closing, other, page, secure, slow]
            url = "lumberjack://" + ",".join(f"127.0.0.1:{port}" for port in ports) + ",nosuch.invalid"
            done = command("check", url, "--timeout", "1s", "--no-event")
        assert (done.returncode, done.stderr) == (3, "")
        assert all(line.isprintable() for line in done.stdout.splitlines())
        _, *sections = done.stdout.split("lumberjack://")
        assert len(sections) == len(ports) + 1
        for section, says in zip(
            sections,
            [
                "lumberjack answers in",
                ": connection refused",
                ": timed out",
                "silence for 1 s: it may be one that answers only events",
                "it closed the connection, without an answer",
                r"an SSH server answers: SSH-2.0-\x1b[31mserver\x0d\x0a",
                "an HTTP server answers: ",
                "a TLS server answers",
                "lumberjack answers in",
                "nosuch.invalid: ",
            ],
            strict=True,
        ):
            assert says in section
            assert ("FAILED" in section) == ("lumberjack answers" not in says)

    def test_json_fails_with_one_dead_endpoint(self) -> None:
        with (
            dead() as nobody,
            never_reads() as silent,
            closes() as closing,
            web() as page,
            Collector() as server,
        ):
            ports = (nobody, silent, closing, page, server.port)
            url = "lumberjack://" + ",".join(f"127.0.0.1:{port}" for port in ports)
            found = checked(url, "--timeout", "500ms", "--no-event", code=3)
        assert [one["endpoint"] for one in found] == [f"127.0.0.1:{port}" for port in ports]
        assert [one["ok"] for one in found] == [False, False, False, False, True]
        assert [last(one)[0] for one in found] == ["connect", "protocol", "protocol", "protocol", "event"]
        assert all(one["tls"] is None for one in found)


class TestTls:
    """Over TLS: one line that names the cause and its remedy."""

    @pytest.fixture
    def ours(self, tmp_path: Path) -> Any:
        support.need("trustme")
        from tests.support.tls import Authority

        return Authority(tmp_path / "ours")

    def lines(self, url: str) -> tuple[str, str, str]:
        """What send and check say, and the step that fails; both end with exit 3."""
        sent = command("send", url, "--timeout", "800ms", stdin=b"a line\n")
        assert sent.returncode == 3
        assert sent.stderr.count("\n") == 1
        (found,) = checked(url, "--timeout", "2s", "--no-event", code=3)
        step, says = last(found)
        return sent.stderr, says, step

    @pytest.mark.slow
    @pytest.mark.parametrize("version", ["1.2", "1.3"])
    def test_a_missing_client_certificate_is_named(self, ours: Any, version: str) -> None:
        from tests.support.tls import context

        with Collector(tls=context(version, ours.issue("server"), ca=ours.ca)) as server:
            for said in self.lines(f"{server.url}?ca={ours.ca}")[:2]:
                assert "client certificate" in said

    @pytest.mark.slow
    def test_refused_certificates_are_explained(self, ours: Any, tmp_path: Path) -> None:
        from tests.support.tls import Authority, context

        theirs = Authority(tmp_path / "theirs")
        for cert, ca, says in (
            (ours.issue("expired", expired=True), ours.ca, "the server's certificate has expired"),
            (ours.issue("other", "elsewhere.example"), ours.ca, "it names elsewhere.example"),
            (ours.issue("server"), theirs.ca, "is not signed by an authority that is trusted here"),
        ):
            with Collector(tls=context("1.3", cert)) as server:
                sent, checks, step = self.lines(f"{server.url}?ca={ca}")
                assert says in sent
                assert says in checks
                assert step == "TLS"

    @pytest.mark.slow
    def test_tls_to_a_plain_server_is_explained(self) -> None:
        with Collector() as server:
            sent, checks, step = self.lines(f"lumberjack+tls://127.0.0.1:{server.port}")
        assert "TLS" in sent
        assert "TLS" in checks
        assert step == "TLS"

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["lumberjack", "logux"])
    def test_plain_to_a_tls_server_is_explained(self, scheme: str) -> None:
        if scheme == "logux":
            support.need("websockets")
        with tls() as port:
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

    def test_a_black_hole_is_named(self) -> None:
        with black_hole() as port:
            sent, checks, step = self.lines(f"lumberjack+tls://127.0.0.1:{port}")
        assert "no answer to the connection attempt in time" in sent
        assert (checks, step) == (f"127.0.0.1:{port}: timed out", "connect")

    def test_the_servers_certificate_is_reported(self, ours: Any) -> None:
        from tests.support.tls import context

        with Collector(tls=context("1.3", ours.issue("server"))) as server:
            done = command("check", f"{server.url}?ca={ours.ca}")
            assert done.returncode == 0
            assert " TLSv1.3 TLS_" in done.stdout
            assert ", certificate for 127.0.0.1 from O=trustme" in done.stdout
            assert " days left)\n" in done.stdout
            assert "acknowledged in " in done.stdout
            found = checked(f"{server.url}?ca={ours.ca}")[0]["tls"]
            assert (found["version"], found["verified"], found["names"]) == ("TLSv1.3", True, ["127.0.0.1"])
            assert found["days_left"] > 0
            assert found["not_after"].endswith("Z")
            assert found["subject"].startswith("O=trustme")
            done = command("check", f"{server.url}?verify=none", "--no-event")
            assert done.returncode == 0
            assert "certificate not verified" in done.stdout
