"""Signals belong to the program: our threads take none, and no write of ours raises SIGPIPE."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from logclient import threads
from logclient.transports.tls import server_context
from tests.support import TESTED, clean_environment, need
from tests.support.patience import PATIENCE
from tests.support.tls import Authority

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="this system has no sigtimedwait"),
    pytest.mark.timeout(20 * PATIENCE),
]


def run(text: str, *given: object, env: dict[str, str] | None = None, **options: Any) -> Any:
    """Run a program whose ``ARGS`` are these; return the facts in its last line."""
    head = "import json, logging, os, signal, sys, threading, time\nARGS = json.loads(sys.argv[1])\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{head}PATIENCE = {PATIENCE}\n{text}", json.dumps(given)],
        env=clean_environment(PYTHONPATH=str(TESTED), **(env or {})),
        capture_output=True,
        text=True,
        timeout=8 * PATIENCE,
        **options,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def server(scheme: str, folder: Path, faults: str | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """A server for the scheme; its URL for a client, and the client's options for it."""
    protocol = scheme.partition("+")[0]
    if protocol in ("logjam", "logux"):
        need({"logjam": "zmq", "logux": "websockets"}[protocol])
    made: dict[str, Any] = {"keep": True, "faults": faults}
    options: dict[str, str] = {}
    if scheme.endswith("+tls"):
        ours = Authority(folder / "ours")
        made["tls"] = server_context(ours.issue("server"))
        options["ca"] = ours.ca
    if scheme == "plog+tcp":
        made["tcp_port"] = 0
    if scheme == "logjam+push":
        made["push_port"] = 0
    with import_module(f"logclient.testing.{protocol}").Collector(**made) as collector:
        if scheme == "plog+tcp":
            url = f"plog+tcp://127.0.0.1:{collector.tcp_port}"
        elif scheme == "logjam+push":
            url = f"logjam+push://127.0.0.1:{collector.push_port}"
        else:
            url = collector.url
        yield url + ("/shop-production" if protocol == "logjam" else ""), options


SCHEMES = ["lumberjack", "lumberjack+tls", "logux", "logux+tls", "plog", "plog+tcp", "logjam", "logjam+push"]

# -- masks ----------------------------------------------------------------------------------------

GUEST = """
import logclient
url, options, kinds = ARGS
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
client = logclient.connect(url, **options)
go, begun = threading.Event(), threading.Event()
def callback(delivery):
    begun.set()
    go.wait(PATIENCE)
client.send({"message": "first"})
assert client.flush(PATIENCE) == 0, client.stats()
if "callbacks" in kinds:
    client.submit({"message": "second"}).add_done_callback(callback)
    assert begun.wait(PATIENCE)
for n in range(100):
    client.send({"message": "more"})
numbers = set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}
numbers -= {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
taken, ours = {}, 0
for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
    if int(task) != os.getpid():
        try:
            status = dict(line.split(":", 1) for line in open(f"/proc/self/task/{task}/status"))
        except OSError:
            continue
        mask = int(status["SigBlk"], 16)
        ours += 1
        taken[status["Name"].strip()] = sorted(n for n in numbers if not mask >> (n - 1) & 1)
after = signal.pthread_sigmask(signal.SIG_BLOCK, ())
waited = [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]
signal.pthread_sigmask(signal.SIG_BLOCK, waited)
got = []
for number in waited:
    os.kill(os.getpid(), number)
    client.send({"message": "the sender is awake"})
    got.append(signal.sigtimedwait([number], PATIENCE) is not None)
go.set()
left = client.flush(PATIENCE)
names = [thread.name for thread in threading.enumerate()]
client.close()
print(json.dumps({"taken": {k: v for k, v in taken.items() if v}, "ours": ours, "got": got, "left": left,
                  "same": before == after, "names": names}))
"""


@pytest.mark.parametrize("kind", ["", "callbacks", "spool", "python"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_signal_that_the_program_blocks_waits_for_it(scheme: str, kind: str, tmp_path: Path) -> None:
    """Also in threads of libraries, such as libzmq's."""
    if kind == "callbacks" and scheme in ("plog", "plog+tcp", "logjam+push"):
        scheme = "lumberjack"
    with server(scheme, tmp_path) as (url, options):
        if kind == "spool":
            options |= {"spool": str(tmp_path / "spool"), "spool_mode": "always"}
        env = {"SSLKEYLOGFILE": str(tmp_path / "keys")} if kind == "python" else None
        found = run(GUEST, url, options, [kind], env=env)
    assert (found["taken"], found["got"], found["same"], found["left"]) == ({}, [True] * 3, True, 0)
    assert threads.SENDER in found["names"]
    assert kind != "callbacks" or threads.CALLBACKS in found["names"]
    assert found["ours"] or sys.platform != "linux"


def test_the_thread_of_an_attempt_takes_no_signal(tmp_path: Path) -> None:
    """With several servers each connection is made by a thread of its own: here to one that never answers."""
    text = """
import logclient
from logclient import threads
client = logclient.connect(ARGS[0], balance=True, connect_timeout=PATIENCE)
client.send({"message": "x"})
end = time.monotonic() + PATIENCE
while threads.CONNECT not in {t.name for t in threading.enumerate()} and time.monotonic() < end:
    time.sleep(0.01)
assert threads.CONNECT in {t.name for t in threading.enumerate()}
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(json.dumps(signal.sigtimedwait([signal.SIGUSR1], PATIENCE) is not None), flush=True)
os._exit(0)
"""
    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            sock.listen(0)
            for _ in range(4):  # its backlog is full
                one = stack.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(sock.getsockname())
            ports.append(sock.getsockname()[1])
        assert run(text, "lumberjack://" + ",".join(f"127.0.0.1:{port}" for port in ports))


def test_every_way_to_start_a_thread_blocks_signals_and_restores_the_mask() -> None:
    """Also when no thread can be started, and when a handler raises in the middle."""
    seen: list[set[int]] = []

    def look() -> None:
        seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    ours = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        for thread in (threads.make_thread(look, "a"), threads.NativeThread(look)):
            thread.start()
            thread.join(PATIENCE)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == ours | {signal.SIGUSR2}
        assert len(seen) == 2
        for mask in seen:
            assert signal.valid_signals() - mask - threads.FAULTS == {signal.SIGKILL, signal.SIGSTOP}
            assert not mask & threads.FAULTS

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        previous = signal.signal(signal.SIGINT, interrupt)
        try:
            with pytest.raises(KeyboardInterrupt), threads.signals_blocked():
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, previous)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == ours | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)


# -- SIGPIPE --------------------------------------------------------------------------------------

PIPE = """
import logclient
url, options, inline = ARGS
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if inline:
    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    threading.Thread.start = refuse
client = logclient.connect(url, timeout=PATIENCE, backoff_max=0.01, **options)
for n in range(60):
    client.send({"message": "x" * 500})
    if n % 6 == 5:
        client.flush(0.05 if inline else 0.02)
client.close(0.5)
blocked = signal.SIGPIPE in signal.pthread_sigmask(signal.SIG_BLOCK, ())
print(json.dumps({"pending": signal.SIGPIPE in signal.sigpending(), "blocked": blocked}))
"""


def answer_websocket(sock: Any) -> None:
    """Open a WebSocket for the client, as far as the handshake goes."""
    from websockets.server import ServerProtocol

    protocol = ServerProtocol()
    while not (found := protocol.events_received()):
        protocol.receive_data(sock.recv(65536))
    protocol.send_response(protocol.accept(found[0]))
    sock.sendall(b"".join(protocol.data_to_send()))


@contextmanager
def resetting(scheme: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A server that reads what comes first on each connection, and then resets it."""
    options: dict[str, str] = {}
    context = None
    if scheme.endswith("+tls"):
        ours = Authority(folder / "ours")
        context = server_context(ours.issue("server"))
        options["ca"] = ours.ca
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(sock: Any) -> None:
        sock.settimeout(PATIENCE)
        try:
            if context is not None:
                sock = context.wrap_socket(sock, server_side=True)
            if scheme.startswith("logux"):
                answer_websocket(sock)
            sock.recv(100)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        sock.close()

    def accept() -> None:
        while True:
            try:
                talk(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", options
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)


@pytest.mark.parametrize("inline", [False, True], ids=["sender", "caller"])
@pytest.mark.parametrize("pump", ["compiled", "python"])
@pytest.mark.parametrize("scheme", ["lumberjack", "lumberjack+tls", "logux", "logux+tls", "plog+tcp"])
def test_a_reset_connection_does_not_end_a_program_without_a_handler_of_sigpipe(
    scheme: str, pump: str, inline: bool, tmp_path: Path
) -> None:
    need("websockets")
    env = {"SSLKEYLOGFILE": str(tmp_path / "keys")} if pump == "python" else None
    with resetting(scheme, tmp_path) as (url, options):
        found = run(PIPE, url, options, inline, env=env)
    assert found == {"pending": False, "blocked": False}


LINK = """
from logclient.delivery.attempt import Attempt
from logclient.config.parsing import parse
from logclient.transports import tls, tcp, websocket
import select, socket
url, ca, pump, times = ARGS
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if pump == "python":
    def find(): raise ImportError("a test")
    tls.find_openssl = find
config = parse(url, **({"ca": ca} if ca else {}))
kind = websocket.WebSocket if config.scheme.startswith("logux") else tls.Tls if config.tls else tcp.Tcp
link = kind(config).connect(config.endpoints[0], Attempt())
link.send([b"x" * 100])
link.flush()
poll = select.poll()
poll.register(getattr(link, "inner", link).fileno(), select.POLLHUP)
assert poll.poll(PATIENCE * 1000), "no reset"
for n in range(times):
    try:
        link.send([b"y" * 100])
        link.flush()
    except OSError:
        pass
link.close(0.1)
print(json.dumps(signal.SIGPIPE in signal.sigpending()))
"""


@pytest.mark.parametrize("times", [0, 1, 3])
@pytest.mark.parametrize("pump", ["compiled", "python"])
@pytest.mark.parametrize("scheme", ["lumberjack", "lumberjack+tls", "logux", "logux+tls"])
def test_a_caller_that_writes_to_a_dead_connection_gets_no_sigpipe(
    scheme: str, pump: str, times: int, tmp_path: Path
) -> None:
    need("websockets")
    with resetting(scheme, tmp_path) as (url, options):
        assert run(LINK, url, options.get("ca"), pump, times) is False


@pytest.mark.parametrize("way", ["descriptor", "stream"])
def test_a_line_for_a_stderr_that_nobody_reads_does_not_end_the_program(way: str) -> None:
    text = """
from logclient.delivery import error_log
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
os.close(reader)
if ARGS[0] == "descriptor":
    os.dup2(writer, 2)
else:
    sys.stderr = os.fdopen(writer, "w", buffering=1)
for n in range(3):
    error_log.process.warn_limited(f"kind {n}", "a line")
print(json.dumps(signal.SIGPIPE in signal.sigpending()), flush=True)
os._exit(0)
"""
    assert run(text, way) is False


def test_a_sigpipe_of_the_program_stays_pending() -> None:
    """Only what came of our own write is consumed."""
    text = """
from logclient import threads
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
os.kill(os.getpid(), signal.SIGPIPE)
with threads.without_sigpipe():
    pass
print(json.dumps(signal.sigtimedwait([signal.SIGPIPE], 0) is not None))
"""
    assert run(text) is True
