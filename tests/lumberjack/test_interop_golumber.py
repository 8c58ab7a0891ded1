"""Interoperation with go-lumber, Elastic's own implementation of Lumberjack: its server and its clients.

The program is in tests/interop/golumber. Go builds it from pinned modules, go-lumber 0.1.0 among them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import logclient
from logclient import cli
from logclient.lumberjack.config import LumberjackConfig
from logclient.testing.lumberjack import Collector
from tests.support.golumber import Missing, program
from tests.support.patience import PATIENCE
from tests.support.tls import Authority

# Builds in the tree. The first build takes longest: Go compiles its own library then.
pytestmark = [pytest.mark.tree, pytest.mark.timeout(10 * PATIENCE)]

EVENTS = 20_000
KILLS = 5


@pytest.fixture(scope="session")
def golumber() -> Path:
    """Build the program; skip without Go, which `make deps` does not install."""
    try:
        return program()
    except Missing as reason:
        pytest.skip(str(reason))


class Server:
    """go-lumber's server, for versions 1 and 2."""

    def __init__(self, golumber: Path, out: Path, *options: str) -> None:
        self._out = out
        # A file, not a pipe, which would fill up while the server runs.
        with out.with_suffix(".log").open("w") as errors:
            self.process = subprocess.Popen(
                [golumber, "serve", "-out", out, *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        try:
            self.port: int = self.read_line()["port"]
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def url(self) -> str:
        return f"lumberjack://127.0.0.1:{self.port}"

    def read_line(self) -> Any:
        """Read one line of JSON that the server prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._out.with_suffix(".log").read_text()
        return json.loads(line)

    def release(self) -> None:
        """Acknowledge the first window (`-hold`)."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> list[int]:
        """Stop the server and return the sizes of the windows it received."""
        said, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, self._out.with_suffix(".log").read_text()
        return json.loads(said.splitlines()[-1])["windows"]

    def events(self) -> list[Any]:
        """Return the received events without a line that a kill cut off: that one was not acknowledged."""
        return [json.loads(line) for line in self._out.read_bytes().split(b"\n")[:-1]]

    def accepted(self) -> int:
        """Count the connections; more than one means that it closed one over what we wrote."""
        return self._out.with_suffix(".log").read_text().count("New connection from ")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate(timeout=PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within 30 s"
        threading.Event().wait(0.001)


def event(version: int, n: int) -> dict[str, Any]:
    """Return the n-th event; version 1 carries strings only."""
    return {"message": f"größte Zeile {n} <&> \u2028 \U0001f680", "n": str(n) if version == 1 else n}


def assert_exact(found: list[Any], client: logclient.Client, version: int) -> None:
    """Assert that every event arrived in order, unchanged and under its id."""
    assert len(found) == client.stats().sent
    for n, got in enumerate(found):
        event_id = client.event_id(n + 1)
        if version == 1:
            wanted = event(version, n) | {"event.id": event_id}
        else:
            wanted = event(version, n) | {"event": {"id": event_id}, "@metadata": {"_id": event_id}}
        assert got == wanted


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("compression", [0, 3])
def test_go_lumber_server_receives_every_event_exactly(
    pump: None, golumber: Path, tmp_path: Path, version: int, compression: int
) -> None:
    with Server(golumber, tmp_path / "out") as server:
        client = logclient.connect(
            server.url, version=version, compression=compression, overflow="block",
            timestamp=False,
        )  # fmt: skip
        for n in range(EVENTS):
            client.send(event(version, n))
        assert client.close(PATIENCE) == 0
        windows = server.end()
    stats = client.stats()
    assert (stats.acked, stats.resent, stats.connects, stats.last_error) == (EVENTS, 0, 1, "")
    assert stats.batches == len(windows)
    assert max(windows) <= 2048
    assert_exact(server.events(), client, version)


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("compression", [0, 3])
def test_only_two_windows_of_10000_events_are_in_flight(
    pump: None,
    golumber: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    compression: int,
) -> None:
    """The second window goes out before the first is acknowledged, and a third does not. What was queued
    meanwhile goes in windows of 10,000, the most that go-lumber accepts."""
    monkeypatch.setattr(LumberjackConfig, "window_bytes", 16 << 20)
    with Server(golumber, tmp_path / "out", "-hold") as server:
        client = logclient.connect(
            server.url, version=version, compression=compression, window=10_000, inflight=2,
            timestamp=False,
        )  # fmt: skip
        client.send(event(version, 0))
        first = server.read_line()["held"]
        sent = 1
        for sent in range(2, 3 * 10_000 + 1):
            client.send(event(version, sent - 1))
        # A window is counted at once, its events a moment later.
        wait_for(lambda: client.stats().inflight > first, "a second window")
        held = client.stats()
        server.release()
        assert client.close(PATIENCE) == 0
        windows = server.end()
    assert first == windows[0] == 1
    assert (held.acked, held.batches, held.inflight) == (0, 2, windows[0] + windows[1])
    assert max(windows) == 10_000
    stats = client.stats()
    assert (stats.acked, stats.resent, stats.connects, stats.last_error) == (sent, 0, 1, "")
    assert_exact(server.events(), client, version)


@pytest.mark.parametrize("version", [1, 2])
def test_killed_go_lumber_server_loses_no_acknowledged_event(
    pump: None, golumber: Path, tmp_path: Path, version: int
) -> None:
    """The server is killed in turn by itself, between write and ack, and by the test in mid-stream."""
    server = Server(golumber, tmp_path / "out0", "-die", "2000")
    client = logclient.connect(
        server.url, version=version, overflow="block", window=200, max_events=2000,
        backoff_max=0.01, timestamp=False,
    )  # fmt: skip
    done = threading.Event()

    def send() -> None:
        n = 0
        while not done.is_set() or n < EVENTS:
            client.send(event(version, n))
            n += 1

    def is_disconnected() -> bool:
        stats = client.stats()
        return stats.connects == stats.disconnects

    received: list[Any] = []
    sender = threading.Thread(target=send)
    sender.start()
    try:
        for life in range(1, KILLS + 1):
            if life % 2:  # the server kills itself
                server.process.wait(PATIENCE)
            else:
                before = client.stats().acked
                wait_for(lambda n=before: client.stats().acked >= n + 2000, "acks")
                server.process.kill()
                server.process.wait(PATIENCE)
            wait_for(is_disconnected, "a broken connection")
            received += server.events()
            # Acks come in order: the files of this server and its predecessors have every acked event.
            acked = client.stats().acked
            assert {int(e["n"]) for e in received} >= set(range(acked))
            assert server.accepted() == 1
            server.__exit__(None, None, None)
            options = ["-die", "2000"] if life % 2 == 0 and life < KILLS else []
            server = Server(golumber, tmp_path / f"out{life}", "-port", str(server.port), *options)
        done.set()
        sender.join()
        assert client.close(PATIENCE) == 0
        server.end()
        assert server.accepted() == 1
        received += server.events()
    finally:
        done.set()
        client.close(0)
        sender.join()
        server.__exit__(None, None, None)
    stats = client.stats()
    assert stats.acked == stats.sent
    # The kernel may accept a connection for a server that is already dead.
    assert stats.connects == stats.disconnects + 1 >= KILLS + 1
    first: dict[int, Any] = {}
    assert all(first.setdefault(int(e["n"]), e) == e for e in received)
    assert list(first) == list(range(stats.sent))  # nothing missing, first copies in order
    assert_exact(list(first.values()), client, version)
    # Each of the three servers that killed itself wrote a window that it did not acknowledge.
    assert 3 <= len(received) - stats.sent <= stats.resent


@pytest.mark.slow
def test_event_that_go_lumber_cannot_read_fails_alone(pump: None, golumber: Path, tmp_path: Path) -> None:
    """go-lumber ends the connection over a number that it cannot read. Our own check is off, as it would
    refuse that number."""
    poison = {0, 1, 777, 2500, 2501}
    with Server(golumber, tmp_path / "out") as server:
        client = logclient.connect(server.url, check=False, overflow="block", backoff_max=0.01)
        for n in range(3000):
            client.send(b'{"n":1e400}' if n in poison else b'{"n":%d}' % n)
        assert client.close(2 * PATIENCE) == 0
        server.end()
    stats = client.stats()
    assert (stats.acked, stats.failed) == (3000 - len(poison), {"poison": len(poison)})
    first = dict.fromkeys(got["n"] for got in server.events())
    assert list(first) == [n for n in range(3000) if n not in poison], "nothing missing, in order"


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("inflight", [0, 2], ids=["SyncClient", "AsyncClient"])
@pytest.mark.parametrize("faults", ["", "keepalive=every:3:2,partial-ack=every:4"], ids=["plain", "partial"])
def test_collector_acknowledges_go_lumber_clients(
    golumber: Path, level: int, inflight: int, faults: str
) -> None:
    """Keep-alives and partial acks may come before the last ack."""
    with Collector(keep=True, faults=faults) as collector:
        done = subprocess.run(
            [golumber, "send", "-port", str(collector.port), "-n", str(EVENTS), "-window", "700",
             "-level", str(level), "-inflight", str(inflight)],
            capture_output=True, text=True, timeout=2 * PATIENCE,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == {"acked": EVENTS}
        counts = collector.counts
        found = collector.events(EVENTS)
    windows = -(-EVENTS // 700)
    assert (counts.captured_events, counts.captured_windows, counts.acks) == (EVENTS, windows, windows)
    assert bool(faults) == bool(counts.keepalives) == bool(counts.partial_acks)
    assert (counts.protocol_errors, counts.truncated, counts.connections) == (0, 0, 1)
    assert found == [{"n": n, "message": f"größte Zeile {n} <&>"} for n in range(EVENTS)]


@pytest.mark.parametrize("version", [1, 2])
def test_check_of_go_lumber_leaves_an_event_unless_forbidden(
    golumber: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    """go-lumber answers events only, so it is silent with `--no-event`."""
    with Server(golumber, tmp_path / "out") as server:
        arguments = ["check", f"{server.url}?version={version}", "--timeout", "1s", "--json"]
        assert cli.main([*arguments, "--no-event"]) == 3
        assert json.loads(capsys.readouterr().out)["steps"][-1]["found"].startswith("silence for 1 s: ")
        assert server.events() == []
        assert cli.main(arguments) == 0
        assert json.loads(capsys.readouterr().out)["steps"][-1]["ms"] > 0
        assert set(server.end()) == {1}
        event, full, *_ = server.events()
    assert event["tags"] == full["tags"] == "logclient-check"
    assert event["message"].startswith("logclient check from ")
    assert full["message"].startswith(event["message"])


@pytest.mark.usefixtures("tls_pump")
@pytest.mark.parametrize("tls", ["1.2", "1.3"])
class TestTls:
    @pytest.fixture
    def ours(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path / "ours")

    def test_client_and_server_verify_each_others_certificate(
        self, golumber: Path, tmp_path: Path, ours: Authority, tls: str, tls_pump: str
    ) -> None:
        mine = ours.issue("me", "me@example.org")
        options = ["-cert", ours.issue("server"), "-ca", ours.ca, "-tls", tls]
        with Server(golumber, tmp_path / "out", *options) as server:
            client = logclient.connect(
                server.url.replace("://", "+tls://"), ca=ours.ca, cert=mine, overflow="block", inflight=8,
                timestamp=False,
            )  # fmt: skip
            for n in range(EVENTS):
                client.send(event(2, n))
            assert client.close(PATIENCE) == 0
            windows = server.end()
        stats = client.stats()
        assert (stats.acked, stats.resent, stats.connects, stats.last_error) == (EVENTS, 0, 1, "")
        assert stats.tls.startswith(f"TLSv{tls} ")
        assert stats.pump.startswith(tls_pump)
        assert stats.batches == len(windows)
        assert_exact(server.events(), client, 2)

    @pytest.mark.parametrize("shown", ["nothing", "of another authority"])
    def test_replaced_client_certificate_resumes_delivery(
        self,
        golumber: Path,
        tmp_path: Path,
        ours: Authority,
        slow_pace: Callable[[float, float], None],
        tls: str,
        shown: str,
    ) -> None:
        """The refused certificate is replaced in its file, and delivery resumes by itself."""
        slow_pace(0.05, 0.1)
        mine = tmp_path / "me.pem"
        shutil.copy(Authority(tmp_path / "theirs").issue("me", "me@example.org"), mine)
        options = ["-cert", ours.issue("server"), "-ca", ours.ca, "-tls", tls]
        with Server(golumber, tmp_path / "out", *options) as server:
            client = logclient.connect(
                server.url.replace("://", "+tls://"), ca=ours.ca,
                cert=None if shown == "nothing" else str(mine), timestamp=False,
            )  # fmt: skip
            for n in range(100):
                client.send(event(2, n))
            wait_for(lambda: "nothing is sent there" in client.stats().last_error, "a refusal")
            said = client.stats().last_error
            if shown == "nothing":
                assert "want" in said and " a client certificate" in said
                client.close(0)
            else:
                assert "the server does not accept our certificate" in said
                shutil.copy(ours.issue("right", "me@example.org"), mine)
                assert client.close(PATIENCE) == 0
                assert_exact(server.events(), client, 2)
            server.end()
