"""Nothing of ours is open before the first event, and a number that is another file's is left alone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient._ext.queue import socket_identity, socket_recv, socket_send
from logclient.descriptors import File, identity, standard_taken
from logclient.files.ledger import Ledger
from logclient.testing import lumberjack
from tests.lifecycle.daemon_rounds import CASES, WRONG, Case, Site
from tests.support import clean_environment
from tests.support.forks import needs_fork, passes_in_own_process, run_in_child
from tests.support.patience import PATIENCE

pytestmark = [needs_fork, pytest.mark.skipif(sys.platform != "linux", reason="/proc lists descriptors")]

URLS = {
    "lumberjack": "lumberjack://127.0.0.1:1",
    "lumberjack+tls": "lumberjack+tls://127.0.0.1:1",
    "logux": "logux://127.0.0.1:1",
    "logux+tls": "logux+tls://127.0.0.1:1",
    "logjam": "logjam://127.0.0.1:1/shop-production",
    "logjam+push": "logjam+push://127.0.0.1:1/shop-production",
    "plog": "plog://127.0.0.1:1",
    "plog+tcp": "plog+tcp://127.0.0.1:1",
}


def run(text: str, *arguments: str, closed: tuple[int, ...] = ()) -> list[str]:
    """Run a program, with some of its standard descriptors closed; return the lines of its file."""
    environment = clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    close = "".join(f"os.close({fd});" for fd in closed)
    start = f"import os,sys;{close}os.execv(sys.executable,[sys.executable,'-c',*sys.argv[1:]])"
    command = [sys.executable, "-c", start, text, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return Path(arguments[0]).read_text().splitlines()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    pytest.importorskip("zmq")
    pytest.importorskip("websockets")
    with Site(tmp_path_factory.mktemp("site")) as found:
        yield found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_that_closes_all_descriptors_keeps_its_own(site: Site, case: Case) -> None:
    if case.way == "library":
        pytest.importorskip("daemon")
    found = site.run(case)
    assert not any(found.get(name) for name in WRONG), found


OPENS = """
import os, sys, logclient
def look(what):
    with open(sys.argv[1], "a") as file:
        for fd in sorted(set(os.listdir("/proc/self/fd")) - before - {str(file.fileno())}, key=int):
            if os.path.exists(f"/proc/self/fd/{fd}"):
                print(what, fd, os.readlink(f"/proc/self/fd/{fd}"), file=file)
open(sys.argv[1], "w").close()
ledger = sys.argv[2]
make = {"Handler": logclient.Handler, "connect": logclient.connect}
before = set(os.listdir("/proc/self/fd"))
kept = []
for url in sys.argv[3:]:
    for name, one in make.items():
        kept.append(one(url, ledger=ledger))
        look(f"{name} {url}")
pid = os.fork()
look("forked")
if not pid:
    pid = os.fork()
    look("forked again")
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_nothing_is_opened_before_the_first_event(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    pytest.importorskip("websockets")
    assert run(OPENS, str(tmp_path / "found"), str(tmp_path / "ledger"), *URLS.values()) == []


LOW = """
import os, sys, logclient
out, url, spool, ledger = sys.argv[1:]
with logclient.connect(url, spool=spool, ledger=ledger, spool_mode="always", spool_sync="batch") as client:
    client.send("one")
    left = client.flush(20)
    low = [fd for fd in range(3) if os.path.exists(f"/proc/self/fd/{fd}")]
    kept = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2]
    flags = [int(line.split()[1], 8) for fd in kept if os.path.exists(f"/proc/self/fdinfo/{fd}")
             for line in open(f"/proc/self/fdinfo/{fd}") if line.startswith("flags")]
with open(out, "w") as file:
    print(left, low, len(flags) >= 4, all(flag & os.O_CLOEXEC for flag in flags), file=file)
"""


@pytest.mark.parametrize("scheme", ["lumberjack", "logux", "logjam", "plog"])
@pytest.mark.parametrize("closed", [(0,), (0, 1, 2)], ids=str)
def test_our_descriptors_are_above_the_standard_ones_and_end_at_exec(
    site: Site, scheme: str, closed: tuple[int, ...], tmp_path: Path
) -> None:
    url = site.url(scheme)
    folders = [str(tmp_path / name) for name in ("spool", "ledger")]
    standard = [fd for fd in range(3) if fd not in closed]
    assert run(LOW, str(tmp_path / "out"), url, *folders, closed=closed) == [f"0 {standard} True True"]


@pytest.mark.parametrize("name", ["own", os.devnull])
def test_a_file_in_the_place_of_what_held_a_standard_number_stays(name: str, tmp_path: Path) -> None:
    def replace() -> None:
        os.close(1)
        with standard_taken():
            assert identity(1) is not None
            file = os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY)
            os.dup2(file, 1)
        assert identity(1) == identity(file)

    run_in_child(replace)


def test_a_file_that_was_closed_and_replaced_is_left_alone(tmp_path: Path) -> None:
    ours = File(os.open(tmp_path / "ours", os.O_CREAT | os.O_RDWR))
    assert ours.is_ours and ours.use() == ours.fd
    mine, peer = socket.socketpair()
    with mine, peer:
        number = ours.fd
        os.dup2(mine.fileno(), number)
        assert not ours.is_ours
        with pytest.raises(OSError, match="Bad file descriptor"):
            ours.use()
        ours.close()
        assert ours.fd == -1
        assert identity(number) == identity(mine.fileno()), "still open"
        os.close(number)
    missing = File()
    assert not missing.is_ours
    missing.close()


def test_a_ledger_that_is_closed_and_cannot_begin_anew_says_why(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"), "ab" * 10, {})
    (tmp_path / "ledger").mkdir()
    os.close(ledger.open())
    shutil.rmtree(tmp_path / "ledger")
    ledger.write("alive", waiting=1)
    assert ledger.stopped.endswith("0002.ledger: No such file or directory")


def test_a_socket_is_identified_as_other_files_are() -> None:
    with socket.socket() as one, socket.socket() as other:
        assert socket_identity(one.fileno()) == identity(one.fileno()) is not None
        assert socket_identity(one.fileno()) != socket_identity(other.fileno())
        number = one.fileno()
    assert socket_identity(number) is identity(number) is socket_identity(-1) is None


def test_a_call_on_another_files_number_moves_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        known = socket_identity(ours.fileno())
        assert known is not None
        assert socket_send(ours.fileno(), known, b"ours", 0) == 4
        theirs.send(b"answer")
        assert socket_recv(ours.fileno(), known, 100) == b"answer"
        theirs.setblocking(False)
        for call in (
            lambda: socket_send(theirs.fileno(), known, b"alien", 0),
            lambda: socket_recv(theirs.fileno(), known, 100),
        ):
            with pytest.raises(OSError, match=r"[Bb]ad file descriptor"):
                call()
        assert theirs.recv(100) == b"ours"
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            socket_recv(ours.fileno(), known, 100)


def test_a_child_closes_what_it_inherited_only_if_it_is_ours(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The ledger and the connection of the parent, in a child whose fork no hook has seen."""
    import logclient
    from tests.support.forks import c_fork

    if passes_in_own_process(request.node.nodeid):
        return
    with (
        lumberjack.Collector(keep=True) as server,
        logclient.connect(server.url, ledger=str(tmp_path / "ledger")) as client,
    ):
        client.send("one")
        assert client.flush(PATIENCE) == 0
        numbers = map(int, os.listdir("/proc/self/fd"))
        ours = [fd for fd in numbers if identity(fd) and _is_of(fd, tmp_path, server.port)]
        assert len(ours) == 2

        def work() -> None:
            mine, peer = socket.socketpair()
            for fd in ours:
                os.dup2(mine.fileno(), fd)
            client.send("two")
            assert client.flush(PATIENCE) == 0
            client.close()
            assert all(identity(fd) == identity(mine.fileno()) for fd in ours)
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                peer.recv(1)
            assert client.stats().ledger_error == ""

        run_in_child(work, c_fork)
        client.send("three")
        assert client.flush(PATIENCE) == 0
        assert len(server.events(3, PATIENCE)) == 3


def _is_of(fd: int, folder: Path, port: int) -> bool:
    path = os.readlink(f"/proc/self/fd/{fd}")
    if path.startswith(f"{folder}/"):
        return True
    if not path.startswith("socket:"):
        return False
    with socket.socket(fileno=os.dup(fd)) as sock:
        try:
            return bool(sock.getpeername()[1] == port)
        except (OSError, IndexError, TypeError):
            return False
