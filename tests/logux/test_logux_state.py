"""The state file of a Logux client: its client id, and the number of the last received action."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.errors import ConfigError
from logclient.logux import Client
from tests.logux.peer import LoguxPeer, processed, until
from tests.support import clean_environment
from tests.support.forks import needs_fork, run_in_child
from tests.support.patience import PATIENCE, assert_returns


@pytest.fixture
def peer() -> Iterator[LoguxPeer]:
    with LoguxPeer() as peer:
        yield peer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state"


def connect(peer: LoguxPeer, file: Path, **options: Any) -> Client:
    client = logclient.connect(peer.url, state=file, **options)
    assert isinstance(client, Client)
    return client


def run_client(peer: LoguxPeer, file: Path, **options: Any) -> list[Any]:
    """Run a client that sends one event; return its `connect`."""
    with connect(peer, file, **options) as client:
        client.send("a")
        assert client.flush(PATIENCE) == 0
    return peer.lines[-1].connect


def client_id_of(connect: list[Any]) -> str:
    user, client, _ = connect[2].split(":")
    return f"{user}:{client}"


def kept(file: Path) -> Any:
    return json.loads(file.read_bytes())


def sync(peer: LoguxPeer, added: int, n: int = 0) -> None:
    """Send an action of the server, which its log keeps under this number."""
    peer.lines[-1].say("sync", added, {"type": "news", "n": n}, {"id": [0, "server:peer", added], "time": 0})


def test_client_id_is_kept_over_restarts(peer: LoguxPeer, file: Path) -> None:
    first, second = run_client(peer, file), run_client(peer, file)
    assert client_id_of(first) == client_id_of(second)
    assert first[2] != second[2]  # another tab, so that ids of actions never repeat
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert client_id_of(run_client(peer, file.with_name("other"))) != client_id_of(first)
    assert client_id_of(run_client(peer, file, user="10")) == f"10:{first[2].split(':')[1]}"
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "other", "other.lock", "state", "state.lock",
    ]  # fmt: skip


def test_received_number_is_kept_over_restarts(peer: LoguxPeer, file: Path) -> None:
    received: list[int] = []
    with connect(peer, file) as client:
        client.on("news", lambda action, meta: received.append(action["n"]))
        peer.line()
        for n in (1, 2, 3):
            sync(peer, 10 * n, n)
        until(lambda: received == [1, 2, 3])
    assert kept(file)["received"] == 30
    with connect(peer, file) as client:
        client.on("news", lambda action, meta: received.append(action["n"]))
        assert peer.line(1).connect[3] == 30
        sync(peer, 20, 4)  # as from a server that has lost its log
        until(lambda: received == [1, 2, 3, 4])
    assert run_client(peer, file)[3] == 30


def test_received_number_is_kept_after_its_callbacks(peer: LoguxPeer, file: Path) -> None:
    """A client killed within a callback receives the action again."""
    began, go_on = threading.Event(), threading.Event()

    def slow(action: dict[str, Any], meta: dict[str, Any]) -> None:
        if action["n"] == 2:
            began.set()
            assert go_on.wait(PATIENCE)

    with connect(peer, file) as client:
        client.on("news", slow)
        peer.line()
        sync(peer, 7, 1)
        until(lambda: file.exists() and kept(file)["received"] == 7)
        sync(peer, 8, 2)
        sync(peer, 9, 3)
        assert began.wait(PATIENCE)
        assert client.submit("a").result(PATIENCE) == ("acked", "")
        assert kept(file)["received"] == 7
        go_on.set()
    assert kept(file)["received"] == 9


def test_new_client_id_after_doubt_is_kept(peer: LoguxPeer, file: Path) -> None:
    """The server's queue of the old one may be jammed."""
    peer.answer = lambda action: {}
    with connect(peer, file, backoff_max=0.02) as client:
        client.add({"type": "a"})
        peer.wait(lambda: peer.actions)
        peer.answer = processed
        peer.lines[0].close()
        assert client.flush(PATIENCE) == 0
    first, second = (client_id_of(line.connect) for line in peer.lines)
    assert second == f"{first}-2"
    assert client_id_of(run_client(peer, file)) == second


DAMAGE = {
    "nothing": b"",
    "half": b'{"client": "abc", "cli',
    "no JSON": b"\xff\xfe\0",
    "deep": b"[" * 4000,
    "a list": b"[]",
    "no client": b'{"clients": 1, "received": 0}',
    "a colon": b'{"client": "a:b", "clients": 1, "received": 0}',
    "a space": b'{"client": "a b", "clients": 1, "received": 0}',
    "an empty client": b'{"client": "", "clients": 1, "received": 0}',
    "no count": b'{"client": "a", "clients": true, "received": 0}',
    "below 0": b'{"client": "a", "clients": 1, "received": -1}',
    "no number": b'{"client": "a", "clients": 1, "received": NaN}',
    "too much": b'{"client": "a", "clients": 1, "received": 0}' + b" " * 5000 + b"x",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_is_reported_once_and_replaced(
    peer: LoguxPeer, file: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(DAMAGE[damage])
    first = run_client(peer, file)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"state: {file}: damaged; going on under a new client id" in line
    assert first[3] == 0 and client_id_of(first) != "false:a"
    assert client_id_of(run_client(peer, file)) == client_id_of(first)
    assert capsys.readouterr().err == ""


def test_two_clients_do_not_share_a_file(
    peer: LoguxPeer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(peer, file) as first:
        first.send("a")
        assert first.flush(PATIENCE) == 0
        until(file.exists)
        before = file.read_bytes()
        other = run_client(peer, file)
        (line,) = capsys.readouterr().err.splitlines()
        assert f"state: {file}: another client has it; this one has a client id of its own" in line
        assert client_id_of(other) != client_id_of(peer.lines[0].connect)
        assert file.read_bytes() == before
    assert client_id_of(run_client(peer, file)) == client_id_of(peer.lines[0].connect)
    assert capsys.readouterr().err == ""


def test_closed_handler_that_was_idle_releases_the_file(
    peer: LoguxPeer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logclient.Handler(peer.url, state=file)
    handler.close()
    run_client(peer, file)
    assert capsys.readouterr().err == ""


PROCESS = """
import sys, logclient
client = logclient.connect(sys.argv[1], state=sys.argv[2])
assert client.submit("a").result(60) == ("acked", "")
print(client.node_id, flush=True)
sys.stdin.read()
"""


def test_two_processes_do_not_share_a_file(peer: LoguxPeer, file: Path) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS, peer.url, str(file)], env=clean_environment(),
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    found, errors = [], []
    processes = [start(), start()]
    try:
        found = [one.stdout.readline().split(":")[1] for one in processes if one.stdout is not None]
        until(file.exists)
        processes[0].kill()
        processes[1].kill()
        errors = [one.communicate()[1] for one in processes]
        assert found[0] != found[1]
        assert sum("another client has it" in text for text in errors) == 1
        processes.append(start())
        third = processes[2].stdout
        assert third is not None
        assert third.readline().split(":")[1] == kept(file)["client"] in found  # kill -9 releases the file
    finally:
        for one in processes:
            one.kill()
            one.communicate()


@needs_fork
def test_forked_child_has_its_own_client_id(peer: LoguxPeer, file: Path) -> None:
    with connect(peer, file) as client:
        client.send("a")
        assert client.flush(PATIENCE) == 0
        until(file.exists)
        before = file.read_bytes()

        def child() -> None:
            assert client.submit("b").result(PATIENCE) == ("acked", "")
            client.close()

        run_in_child(child)
        assert file.read_bytes() == before
        ours, childs = peer.lines
        assert client_id_of(ours.connect) != client_id_of(childs.connect)
    again = run_client(peer, file)
    assert client_id_of(again) == client_id_of(ours.connect)


FORKS = """
import os, sys, logclient
client = logclient.connect(sys.argv[1], state=sys.argv[2])
assert client.submit("a").result(60) == ("acked", "")
child = os.fork() == 0
print("child" if child else "parent", flush=True)
sys.stdin.read()
os._exit(0)
"""


@needs_fork
def test_forked_child_does_not_hold_the_file(peer: LoguxPeer, file: Path) -> None:
    """It survives when its parent is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, peer.url, str(file)], env=clean_environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert {process.stdout.readline() for _ in range(2)} == {"child\n", "parent\n"}
        process.kill()
        process.wait(PATIENCE)
        assert client_id_of(run_client(peer, file)) == client_id_of(peer.lines[0].connect)
    finally:
        process.kill()
        process.stdin.close()
        assert process.stdout.read() == ""  # the child has ended
        process.stdout.close()
        process.wait(PATIENCE)


def test_unreferenced_client_releases_the_file(peer: LoguxPeer, file: Path) -> None:
    client = connect(peer, file)
    client.send("a")
    del client
    until(lambda: peer.actions)
    until(lambda: client_id_of(run_client(peer, file)) == client_id_of(peer.lines[0].connect))


def test_file_that_cannot_be_written_is_reported(
    peer: LoguxPeer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "state.new").mkdir()
    run_client(peer, file)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"state: {file}: cannot be written: " in line
    assert not file.exists()


@pytest.mark.parametrize("kind", ["fifo", "file"])
def test_what_stands_in_the_place_of_the_new_file_is_replaced(peer: LoguxPeer, file: Path, kind: str) -> None:
    part = file.with_name("state.new")
    if kind == "fifo":
        os.mkfifo(part)
    else:
        part.write_bytes(b"old")
        part.chmod(0o666)
    assert_returns(lambda: run_client(peer, file))
    assert stat.S_ISREG(file.stat().st_mode) and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert client_id_of(run_client(peer, file)) == client_id_of(peer.lines[0].connect)


@pytest.mark.parametrize("kind", ["no directory", "directory", "link", "lock", "other"])
def test_unsafe_file_is_refused(file: Path, kind: str) -> None:
    if kind == "no directory":
        file = file / "deeper"
    elif kind == "directory":
        file.mkdir()
    elif kind == "link":
        file.symlink_to(file.parent / "target")
    elif kind == "lock":
        (file.parent / "state.lock").symlink_to(file.parent / "target")
    elif not hasattr(os, "geteuid") or os.geteuid():
        pytest.skip("only root can give files away")
    else:
        file.write_bytes(b"{}")
        os.chown(file, 12345, 12345)
    with pytest.raises(ConfigError, match=f"^state: {file}: "):
        logclient.connect("logux://127.0.0.1:1", state=file)
    assert not (file.parent / "target").exists()
