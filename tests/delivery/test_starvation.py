"""Out of descriptors, threads or memory: the application goes on, and delivery resumes afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.testing import lumberjack as lumberjack
from logclient.testing.loop import CollectorBase
from tests.cores.recount import recount
from tests.support.patience import PATIENCE
from tests.support.tls import Authority, server_context

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it counts descriptors in /proc")


def run_starved(*what: str) -> str:
    """Run a function of tests/delivery/starved_process.py in its own process; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.delivery.starved_process", *what],
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert done.stdout.endswith("alive\n")
    return done.stdout + done.stderr


def url_of(server: CollectorBase[Any], scheme: str) -> str:
    url = str(server.push_url if scheme == "logjam+push" else server.url)
    return url + ("/shop-production" if "logjam" in scheme else "")


def collector(scheme: str, **options: Any) -> CollectorBase[Any]:
    """A server of this scheme on 127.0.0.1."""
    if scheme.startswith("lumberjack"):
        return lumberjack.Collector(keep=True, **options)
    if scheme.startswith("logjam"):
        pytest.importorskip("zmq")
        from logclient.testing import logjam as logjam

        return logjam.Collector(push_port=0, **options)
    if scheme.startswith("logux"):
        pytest.importorskip("websockets")
        from logclient.testing import logux as logux

        return logux.Collector(**options)
    from logclient.testing import plog as plog

    return plog.Collector(**options)


def subject_hash(certificate: str) -> str:
    """The name under which OpenSSL looks for it in a directory."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    command = ["openssl", "x509", "-hash", "-noout", "-in", certificate]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class TestZeroMq:
    """libzmq ends the process where it wants a descriptor for its threads or a name, and gets none."""

    @pytest.mark.parametrize("kind", ["DEALER", "PUSH"])
    def test_zmq_connects_or_fails_cleanly_at_any_limit(self, kind: str) -> None:
        pytest.importorskip("zmq")
        run_starved("zmq_connects", kind, "localhost")

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["DEALER", "PUSH"])
    @pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
    def test_zmq_breaks_cleanly_without_descriptors(self, kind: str, address: str) -> None:
        pytest.importorskip("zmq")
        run_starved("zmq_breaks", kind, address)

    @pytest.mark.slow
    @pytest.mark.parametrize("seconds", ["1", pytest.param("60", marks=pytest.mark.long)])
    def test_zmq_beside_a_thread_that_takes_all_descriptors(self, seconds: str) -> None:
        pytest.importorskip("zmq")
        run_starved("zmq_contended", seconds)


class TestDelivery:
    """A client with too few descriptors connects and delivers once there are enough."""

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["lumberjack", "logjam", "logjam+push", "plog", "logux"])
    def test_delivery_starts_once_there_are_descriptors(self, scheme: str, tmp_path: Path) -> None:
        with collector(scheme) as server:
            url = url_of(server, scheme).replace("127.0.0.1", "localhost")
            said = run_starved("delivers", url, str(tmp_path / "ledger"), "20" if "logjam" in scheme else "6")
            assert "oo many open files" in said

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["lumberjack+tls", "logux+tls"])
    @pytest.mark.parametrize("ca", ["file", "directory", "hashed"])
    def test_tls_delivery_starts_once_there_are_descriptors(
        self, scheme: str, ca: str, tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path / "authority")
        cert = authority.issue("server")
        ours = authority.issue("client", "client")
        with collector(scheme, tls=server_context(cert, ca=authority.ca)) as server:
            trusted = authority.ca
            if ca != "file":
                folder = tmp_path / "trusted"
                folder.mkdir()
                name = f"{subject_hash(authority.ca)}.0" if ca == "hashed" else "ca.pem"
                (folder / name).write_bytes(Path(authority.ca).read_bytes())
                trusted = str(folder)
            url = f"{server.url}?ca={trusted}&cert={ours}"
            # No name to look up and no ledger: its files are the first that it wants a descriptor for.
            assert "oo many open files" in run_starved("delivers", url, "", "4")

    def test_drops_before_the_ledger_could_be_opened_are_listed(self, tmp_path: Path) -> None:
        with collector("lumberjack") as server:
            said = run_starved("drops", server.url, str(tmp_path))
            assert "the ledger cannot be opened: too many open files" in said
        (path,) = tmp_path.glob("*.ledger")
        books = recount(tmp_path, path.name.partition("-")[0])
        assert books.count("dropped") == {"overflow": 400}
        assert books.closed is not None and books.closed["dropped"] == {"overflow": 400}
        assert len(books.outcomes) == 500

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs another user's limits")
    @pytest.mark.parametrize("scheme", ["lumberjack", "logjam"])
    def test_delivery_starts_once_there_are_threads(self, scheme: str) -> None:
        with collector(scheme) as server:
            path = "/shop-production" if scheme == "logjam" else ""
            assert "can't start new thread" in run_starved("threads", server.url + path, "5")

    def test_a_child_forked_without_descriptors_delivers(self) -> None:
        with collector("lumberjack") as server:
            run_starved("forks", server.url)
            assert sorted(event["n"] for event in server.events(3)) == [0, 1, 2]


def test_memory_of_a_burst_returns_to_the_system() -> None:
    run_starved("memory")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["silent", "refused", "no name"])
@pytest.mark.parametrize("scheme", ["lumberjack", "lumberjack+tls", "logjam", "logux"])
def test_events_given_up_at_exit_are_in_the_ledger(scheme: str, how: str, tmp_path: Path) -> None:
    """A process that logs and ends at once lists each event's outcome, whatever keeps it from its server."""
    if scheme == "logjam":
        pytest.importorskip("zmq")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if how == "refused":
            listener.close()
        url = f"{scheme}://127.0.0.1:{port}" + ("/shop-production" if scheme == "logjam" else "")
        said = run_starved("ends", url, str(tmp_path), how)
    assert "100 events were not delivered before exit" in said
    (path,) = tmp_path.glob("*.ledger")
    books = recount(tmp_path, path.name.partition("-")[0])
    assert books.closed is not None and books.closed["last"] == 100
    assert books.count("failed") == books.closed["failed"] == {"closed": 100}
    assert len(books.outcomes) == 100


@pytest.mark.parametrize("scheme", ["logjam", "logjam+push"])
def test_logjam_delivers_when_python_starts_no_thread(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts no thread once its shutdown has begun, but libzmq does; the text is Python's
    error."""
    zmq = pytest.importorskip("logclient.transports.zmq", exc_type=ImportError)

    class Refused:
        def __init__(self, *_: object) -> None:
            pass

        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(zmq, "make_thread", Refused)
    with collector(scheme) as server, logclient.connect(url_of(server, scheme)) as client:
        client.send("one")
        assert client.flush(PATIENCE) == 0 and not client.stats().last_error
