"""What ``logclient collect`` says about peers that speak something else."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import logclient
from logclient.testing.lumberjack import Collector
from tests.support import clean_environment
from tests.support.patience import PATIENCE
from tests.support.tls import Authority

HTTP = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /bulk HTTP/1.0\r\n\r\n", b"OPTIONS * HTTP/1.1\r\n\r\n"]
FOREIGN = {
    "it speaks HTTP": HTTP,
    "it speaks TLS": [b"\x16\x03\x01\2\0\1\0\1\xfc\3\3" + bytes(40), b"\x16\x03\x03\0\5\1\0\0\1\0"],
    "it speaks syslog": [
        b"<34>Oct 11 22:14:15 host su: x\r\n",
        b"42 <165>1 2026-01-01T00:00:00Z h a - - x\n",
    ],
    "it sends JSON as lines": [b'{"message":"x"}\n', b' [{"a":1}]\n'],
    "it speaks SSH": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "the PROXY protocol": [
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12),
    ],
}


def collected(url: str, pokes: list[bytes]) -> str:
    """Run the command, let peers send bytes until it closes each, and an event; return its standard error."""
    process = subprocess.Popen(
        [sys.executable, "-m", "logclient", "collect", url, "--print"],
        env=clean_environment(PYTHONPATH=":".join(filter(None, sys.path))),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        listens = json.loads(process.stdout.readline())
        for data in pokes:
            with socket.create_connection(("127.0.0.1", listens["port"]), PATIENCE) as sock:
                sock.sendall(data)
                with suppress(OSError):  # the server may reset it, also before this end is closed
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4096):
                        pass
        options = {"verify": "none"} if "+tls" in url else {}
        with logclient.connect(listens["url"], **options) as client:  # type: ignore[arg-type]
            assert client.submit({"type": "a"}).result(PATIENCE) == ("acked", "")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        return errors
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("says", FOREIGN)
def test_lumberjack_says_what_a_peer_speaks(says: str) -> None:
    pokes = [data for data in FOREIGN[says] for _ in range(4)]
    line, summary = collected("lumberjack://127.0.0.1:0", pokes).splitlines()
    assert re.search(rf": refused 127\.0\.0\.1:\d+: .*{re.escape(says)}", line), line
    assert re.search(rf"1 events in 1 windows .*; refused: .*{re.escape(says)}\)? {len(pokes)}$", summary), (
        summary
    )


def test_the_bytes_of_one_peer_do_not_describe_the_next() -> None:
    with Collector() as collector:
        for data in (HTTP[0], b"G"):
            with socket.create_connection((collector.host, collector.port), PATIENCE) as sock:
                sock.sendall(data)
                assert not sock.recv(1)
        first, second = collector.take_refusals()
    assert first.endswith("it speaks HTTP") and second.endswith("0x47 (byte 0 of the window)")


def test_logux_says_what_a_peer_speaks() -> None:
    pytest.importorskip("websockets")
    shown = collected(
        "logux://127.0.0.1:0", [HTTP[0], *FOREIGN["it speaks TLS"], FOREIGN["it speaks syslog"][0]]
    )
    for says in ("it speaks HTTP", "it speaks TLS", "it speaks syslog"):
        assert len(re.findall(rf": refused 127\.0\.0\.1:\d+: {says}", shown)) >= 1, shown
    assert "; refused: " in shown.splitlines()[-1]


def test_a_server_with_tls_says_that_a_peer_has_none(tmp_path: Path) -> None:
    certificate = Authority(tmp_path / "ca").issue("far", "127.0.0.1")
    shown = collected(f"lumberjack+tls://127.0.0.1:0?cert={certificate}", [HTTP[0], b"2W\0\0\0\1"])
    assert re.search(r"refused 127\.0\.0\.1:\d+: tls: http request", shown), shown
    assert len(re.findall(r"refused 127\.0\.0\.1:\d+: tls: ", shown)) == 2, shown


def test_a_quiet_run_says_nothing() -> None:
    [summary] = collected("lumberjack://127.0.0.1:0", [b""]).splitlines()
    assert summary.endswith("1 events in 1 windows over 2 connections")
