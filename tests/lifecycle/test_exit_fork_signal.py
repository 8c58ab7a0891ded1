"""Whole processes, under this Python and the newest other: exit, fork, signals, garbage collection.

Each scenario is a program of its own, run with ``-W error`` against an acknowledging server in the
test's process (Lumberjack; some over ZeroMQ too, where another library has threads), which then must have
every event exactly once, in order. The programs count for themselves; nothing of ours is asked what was sent.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cores.recount import recount
from tests.cores.sink import Arrived, Sink
from tests.support import NO_FALLBACK, clean_environment, missing, need
from tests.support.patience import PATIENCE
from tests.support.processes import LOGGING
from tools import pythons

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.timeout(30 * PATIENCE),  # the first time, extensions for other Pythons are compiled
]

LIMIT_S = 4 * PATIENCE
"""A program that takes longer hangs."""

THREADS_OF_THE_USER = ("-W", "ignore:This process:DeprecationWarning")
"""Since 3.12 a fork beside any thread warns; in these programs the threads are not ours: the user's own,
or those that ZeroMQ has for a connection."""

PRELUDE = (
    f"PATIENCE = {PATIENCE}"
    """
import atexit, json, logging, os, signal, socket, sys, threading, time
URL, FOLDER = sys.argv[1:3]

""" + LOGGING
)


class Run(NamedTuple):
    """A program that has ended."""

    facts: list[dict[str, Any]]
    code: int
    err: str
    sink: Arrived
    folder: Path

    @property
    def clean(self) -> bool:
        return self.code == 0 and self.err == ""

    def one(self, n: int) -> str:
        """One producer only, and all of its events."""
        (producer,) = self.sink.got
        self.sink.exact(producer, n)
        return producer


def run_under_each_python(
    text: str,
    check: Callable[[Run], object],
    folder: Path,
    *options: str,
    url: str | None = None,
    peer: Callable[[], Any] = Sink,
) -> None:
    """Run `text` under each interpreter and `check` the result; report all failures together."""
    wrong = []
    for number, interpreter in enumerate(pythons.interpreters()):
        where = folder / f"{number}"
        where.mkdir()
        path = where / "program.py"
        path.write_text(PRELUDE + text)
        with peer() as sink:
            process = subprocess.Popen(
                [interpreter.path, "-W", "error", *options, str(path), url or sink.url, str(where)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=where,
                env=clean_environment(PYTHONFAULTHANDLER="1"),
                start_new_session=True,
            )
            try:
                out, err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                # faulthandler shows where it hangs, and its children too.
                os.killpg(process.pid, signal.SIGABRT)
                out, err = process.communicate()
                wrong.append(f"Python {interpreter.version}: hangs\n{out}\n{err}")
                continue
        try:
            facts = [json.loads(line) for line in out.splitlines()]
            check(Run(facts, process.returncode, err, sink, where))
        except (AssertionError, ValueError, LookupError) as error:
            told = f"{error}\n{out[-500:]}\n{err[-3000:]}"
            wrong.append(f"Python {interpreter.version}: exit {process.returncode}\n{told}")
    assert not wrong, "\n\n".join(wrong)


@pytest.fixture(params=["lumberjack", "logjam", "logjam+push"])
def peer(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "lumberjack":
        return Sink
    need("zmq")
    from tests.support.logjam_rig import DeviceSink

    return partial(DeviceSink, request.param)


# -- exit ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(0)", "raise SystemExit", "handler.close()", "logging.shutdown()", "del log, handler"],
)
def test_every_ordinary_exit_delivers_all(end: str, tmp_path: Path) -> None:
    text = f"""
log, handler = log_to(ledger=FOLDER + "/run")
for i in range(5000):
    log.info("event %d", i)
{end}
"""

    def check(run: Run) -> None:
        assert run.clean
        producer = run.one(5000)
        books = recount(run.folder / "run", producer)
        assert books.closed is not None and books.closed["acked"] == 5000
        assert books.count("acked") == {"": 5000}

    run_under_each_python(text, check, tmp_path)


def test_an_unhandled_exception_delivers_all(tmp_path: Path) -> None:
    text = """
log, handler = log_to()
for i in range(5000):
    log.info("event %d", i)
raise KeyError("the application's")
"""

    def check(run: Run) -> None:
        assert run.code == 1 and run.err.count("\n") == 4 and "KeyError" in run.err
        run.one(5000)

    run_under_each_python(text, check, tmp_path)


@pytest.mark.slow
def test_the_first_event_may_come_from_atexit(tmp_path: Path, peer: Callable[[], Any]) -> None:
    """Before our own exit hook, after it, and with the whole client created there."""
    text = """
def late():
    log.info("late")
def later():
    import logclient
    with logclient.connect(URL) as client:
        client.send("latest but one")
    other = logclient.connect(URL)
    other.send("latest")
def early():
    log.info("early")
atexit.register(later)    # last in, first out: these run after ours
if sys.argv[0].endswith("program.py"):
    atexit.register(late)
log, handler = log_to()
if len(FOLDER) % 2:
    atexit.register(early)
"""

    def check(run: Run) -> None:
        assert run.clean
        said = sorted(message for producer in run.sink.got for message in run.sink.messages(producer))
        early = ["early"] if len(str(run.folder)) % 2 else []
        assert said == sorted([*early, "late", "latest", "latest but one"])

    for name in ("a", "bb"):  # one of them an odd length
        (tmp_path / name).mkdir()
        run_under_each_python(text, check, tmp_path / name, peer=peer)


def test_a_thread_may_log_after_the_main_thread_ended(tmp_path: Path) -> None:
    text = """
log, handler = log_to()
def work():
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    for i in range(2000):
        log.info("after main %d", i)
threading.Thread(target=work).start()
log.info("main")
"""

    def check(run: Run) -> None:
        assert run.clean
        run.one(2001)

    run_under_each_python(text, check, tmp_path)


def test_events_after_logging_shutdown_are_delivered(tmp_path: Path, peer: Callable[[], Any]) -> None:
    text = """
def late():
    for i in range(100):
        log.info("late %d", i)
        stats = handler.client.stats()
        assert stats.acked + stats.handed == 1001 + i
atexit.register(late)     # runs after logging.shutdown and after our hook
log, handler = log_to(ledger=FOLDER + "/run")
for i in range(1000):
    log.info("event %d", i)
"""

    def check(run: Run) -> None:
        assert run.clean
        books = recount(run.folder / "run", run.one(1100))
        assert books.closed is not None
        assert books.closed["last"] == books.closed["acked"] + books.closed["handed"] == 1100
        assert len(list((run.folder / "run").iterdir())) == 1

    run_under_each_python(text, check, tmp_path, peer=peer)


@pytest.mark.slow
def test_daemon_threads_may_log_until_the_end(tmp_path: Path, peer: Callable[[], Any]) -> None:
    text = f"""
# Whether the server keeps up with them is not the question here: the queue has room for all.
log, handler = log_to(atexit_timeout={PATIENCE}, max_events=10_000_000, max_bytes=1 << 32)
def work():
    while True:
        for _ in range(10):
            log.info("on and on")
        time.sleep(0.005)     # a busy machine must deliver all of it before the exit's time is over
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
while handler.client.stats().sent < 3000:
    time.sleep(0.001)
"""

    def check(run: Run) -> None:
        # What they log while the process dies may stay behind; what arrives is without a hole.
        assert run.clean
        (producer,) = run.sink.got
        n = len(run.sink.got[producer])
        assert n >= 3000
        run.sink.exact(producer, n)

    run_under_each_python(text, check, tmp_path, peer=peer)


def test_exit_with_a_dead_server_reports_the_loss(tmp_path: Path) -> None:
    text = """
log, handler = log_to(atexit_timeout=0.3)
for i in range(5):
    log.info("event %d", i)
while not handler.client.stats().last_error:
    time.sleep(0.001)
"""

    def check(run: Run) -> None:
        assert run.code == 0
        lines = [line.split(": ", 2)[2] for line in run.err.splitlines()]
        refused = f"cannot connect to {where}: connection refused"
        assert lines == [
            refused,
            f"5 events were not delivered before exit{NO_FALLBACK} ({refused})",
        ]

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        where = f"127.0.0.1:{bound.getsockname()[1]}"
        run_under_each_python(text, check, tmp_path, url=f"lumberjack://{where}")


def test_exit_with_a_silent_server_reports_the_loss(tmp_path: Path) -> None:
    text = """
log, handler = log_to(atexit_timeout=0.3)
for i in range(5):
    log.info("event %d", i)
"""

    def check(run: Run) -> None:
        assert run.code == 0
        (line,) = run.err.splitlines()
        what = f"5 events were not delivered before exit{NO_FALLBACK} ("
        assert line.split(": ", 2)[2].startswith(what)
        assert line.endswith(f" of them not acknowledged by 127.0.0.1:{silent.getsockname()[1]})")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        run_under_each_python(text, check, tmp_path, url=f"lumberjack://127.0.0.1:{silent.getsockname()[1]}")


# -- signals and garbage ------------------------------------------------------------------------------


@pytest.mark.slow
def test_log_calls_may_nest(tmp_path: Path) -> None:
    """Inside destructors in a garbage collection and inside a signal handler, 10,000 times each.

    Handlers nest too, but only ten deep: where a machine is so slow that the next signal always comes within
    the handler of the one before, they would nest until Python's limit, where calls are refused.
    """
    text = """
import gc
log, handler = log_to(max_events=10_000_000, max_bytes=1 << 32)
made = {"main": 0, "del": 0, "signal": 0}
inside = {"log": 0, "del": 0, "signal": 0, "handlers": 0}
PERIOD = 0.0001

class Noisy:
    def __init__(self):
        self.me = self    # only the collector frees it
    def __del__(self):
        made["del"] += 1
        inside["del"] += inside["log"] > 0
        log.info("from a destructor")

def handle(number, frame):
    made["signal"] += 1
    inside["signal"] += inside["log"] > 0
    inside["handlers"] += 1
    if inside["handlers"] < 10:
        signal.setitimer(signal.ITIMER_REAL, PERIOD)
    log.warning("from a signal handler")
    inside["handlers"] -= 1
    signal.setitimer(signal.ITIMER_REAL, PERIOD)

signal.signal(signal.SIGALRM, handle)
gc.set_threshold(20, 2, 2)
signal.setitimer(signal.ITIMER_REAL, PERIOD)
while inside["del"] < 10_000 or inside["signal"] < 10_000:
    Noisy()
    made["main"] += 1
    inside["log"] += 1
    log.info("from main %s", [made["main"]])
    inside["log"] -= 1
PERIOD = 0
signal.setitimer(signal.ITIMER_REAL, PERIOD)
gc.set_threshold(0)
left = gc.collect()
handler.client.flush(60)
say(made=made, inside=inside, stats=handler.client.stats()._asdict())
"""

    def check(run: Run) -> None:
        assert run.clean
        (facts,) = run.facts
        assert facts["stats"]["dropped"] == {} and facts["stats"]["failed"] == {}
        run.one(sum(facts["made"].values()))

    run_under_each_python(text, check, tmp_path)


@pytest.mark.slow
def test_flush_on_sigterm_delivers_all(tmp_path: Path, peer: Callable[[], Any]) -> None:
    text = """
import logclient
log, handler = log_to(ledger=FOLDER + "/run")
logclient.flush_on_sigterm()
for i in range(3000):
    log.info("event %d", i)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""

    def check(run: Run) -> None:
        assert run.code == -signal.SIGTERM and run.err == ""
        books = recount(run.folder / "run", run.one(3000))
        assert books.closed is not None
        assert books.closed["acked"] + books.closed["handed"] == 3000

    run_under_each_python(text, check, tmp_path, peer=peer)


@pytest.mark.parametrize("last", ["", "os.kill(os.getpid(), signal.SIGTERM)"], ids=["exit", "term"])
def test_callbacks_are_told_of_what_the_end_gave_up(last: str) -> None:
    text = f"""
import logclient, os, signal, threading
from logclient.delivery import lifecycle

class Seen(lifecycle.Observer):
    def process_ends(self): print("ends", flush=True)

def lost(some):
    threading.Event().wait(0.1)
    print("lost", len(some), flush=True)

seen = Seen()
lifecycle.observe(seen)
client = logclient.connect("lumberjack://127.0.0.1:9", on_drop=lost, atexit_timeout=0.01)
logclient.flush_on_sigterm(0.01)
client.send({{"n": 1}})
{last}
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=clean_environment(),
    )  # fmt: skip
    assert done.stdout.startswith("lost 1\nends\n"), done.stderr
    assert done.returncode == (-signal.SIGTERM if last else 0)


def test_a_child_reports_nothing_of_what_its_parent_gave_up() -> None:
    text = """
import logclient, os, sys
for _ in range(2):  # the second line is held back
    client = logclient.connect("lumberjack://127.0.0.1:9")
    client.send({"n": 1})
    client.close(0.0)
child = os.fork()
if child:
    os.waitpid(child, 0)
    os._exit(0)
print("child", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT_S, check=True,
        env=clean_environment(),
    )  # fmt: skip
    assert "1 event was given up" in done.stderr and done.stderr.endswith("child\n")


def test_an_observer_that_fails_keeps_nothing_from_a_forked_child() -> None:
    text = """
import logclient, os, sys
from logclient.delivery import lifecycle

class Broken(lifecycle.Observer):
    def after_fork(self): raise RuntimeError("no")
    def process_ends(self): raise RuntimeError("no")

broken = Broken()
lifecycle.observe(broken)
client = logclient.connect(sys.argv[1])
client.send({"n": 1})
assert client.flush(20) == 0
child = os.fork()
client.send({"n": 2})
assert client.flush(20) == 0
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    from logclient.testing.lumberjack import Collector

    with Collector(keep=True) as server:
        done = subprocess.run(
            [sys.executable, "-c", text, server.url], capture_output=True, text=True, timeout=LIMIT_S,
            check=False, env=clean_environment(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert sorted(event["n"] for event in server.events(3, PATIENCE)) == [1, 2, 2]
    assert done.stderr == 2 * "logclient: Broken: RuntimeError: no\n"


def test_flush_on_sigterm_ends_process_1() -> None:
    """The program of a container is process 1, which SIGTERM's default action does not end."""
    from logclient.testing.lumberjack import Collector

    text = """
import logclient, os, signal, sys, time
client = logclient.connect(sys.argv[1])
logclient.flush_on_sigterm()
for n in range(3000):
    client.send({"n": n})
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    namespace = ["unshare", *user, "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*namespace, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        missing("unshare --pid is not allowed here")
    with Collector(keep=True) as server:
        done = subprocess.run(
            [*namespace, sys.executable, "-c", text, server.url],
            capture_output=True, text=True, timeout=LIMIT_S, check=False, env=clean_environment(),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
        assert [event["n"] for event in server.events(3000, PATIENCE)] == list(range(3000))


def test_flush_on_sigterm_calls_the_previous_handler(tmp_path: Path) -> None:
    text = """
import logclient
log, handler = log_to()
def theirs(number, frame):
    say(acked=handler.client.stats().acked)
    log.info("their own handler")
    sys.exit(7)
signal.signal(signal.SIGTERM, theirs)
logclient.flush_on_sigterm()
for i in range(3000):
    log.info("event %d", i)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""

    def check(run: Run) -> None:
        assert run.code == 7 and run.err == ""
        assert run.facts == [{"acked": 3000}]
        run.one(3001)

    run_under_each_python(text, check, tmp_path)


# -- fork ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_our_threads_cause_no_fork_warning(tmp_path: Path) -> None:
    text = """
log, handler = log_to()
called = []
for i in range(30):
    delivery = handler.client.submit({"message": "parent"})
    delivery.result(2 * PATIENCE)
    delivery.add_done_callback(called.append)
    while len(called) <= i:
        time.sleep(0.0005)
    pid = os.fork()
    if pid == 0:
        log.info("child")
        left = handler.client.flush(PATIENCE)
        os._exit(left)
    assert os.waitpid(pid, 0)[1] == 0
"""

    def check(run: Run) -> None:
        assert run.clean
        sizes = sorted(len(events) for events in run.sink.got.values())
        assert sizes == [1] * 30 + [30]

    run_under_each_python(text, check, tmp_path)


def test_the_sender_imports_nothing(tmp_path: Path) -> None:
    """A child that is forked in the middle of an import never gets that module."""
    text = """
log, handler = log_to(ledger=FOLDER + "/run", backoff_max=0.01)
with socket.socket() as bound:
    bound.bind(("127.0.0.1", 0))
    dead = logclient.connect(f"lumberjack://127.0.0.1:{bound.getsockname()[1]}", ledger=FOLDER + "/run")
    loaded = set(sys.modules)
    log.info("one")
    assert handler.client.flush(2 * PATIENCE) == 0
    dead.send("two")
    while not dead.stats().last_error:
        time.sleep(0.001)
    assert dead.flush(0.05) == 1 and dead.close(0.05) == 1
    handler.close()
    new = set(sys.modules) - loaded
say(new=sorted(new))
"""

    def check(run: Run) -> None:
        refused, given_up = run.err.splitlines()
        assert run.code == 0 and refused.endswith(": connection refused")
        assert "1 event was given up" in given_up
        assert run.facts == [{"new": []}]

    run_under_each_python(text, check, tmp_path)


@pytest.mark.slow
def test_a_fork_right_after_the_first_event_loses_nothing(tmp_path: Path) -> None:
    """The sender has only begun, and busy threads keep it from parking in time."""
    text = """
log, handler = log_to()
over = False
def busy():
    while not over:
        pass
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
log.info("parent")
pid = os.fork()
if pid == 0:
    code = 9
    try:
        log.info("child")
        code = handler.client.flush(PATIENCE)
    finally:
        os._exit(code)
code = os.waitpid(pid, 0)[1]
over = True
for thread in threads:
    thread.join()
say(code=code)
"""

    def check(run: Run) -> None:
        assert run.clean and run.facts == [{"code": 0}]
        assert [len(events) for events in run.sink.got.values()] == [1, 1]

    for i in range(3):
        (tmp_path / str(i)).mkdir()
        run_under_each_python(text, check, tmp_path / str(i), *THREADS_OF_THE_USER)


@pytest.mark.slow
def test_many_forks_beside_three_threads_lose_nothing(tmp_path: Path, peer: Callable[[], Any]) -> None:
    forks = 100 if peer is Sink else 20  # a device is slower
    text = """
log, handler = log_to(max_events=10_000_000, max_bytes=1 << 32)
counts = [0, 0, 0]
over = threading.Event()
def work(k):
    while not over.is_set():
        log.info("thread %d", k)
        counts[k] += 1
        if counts[k] % 20 == 0:
            time.sleep(0.0005)    # the machine has other work
            while handler.client.stats().queued > 20_000 and not over.is_set():
                time.sleep(0.01)  # and the server may be slower than we are
threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
for thread in threads:
    thread.start()
parent = handler.client.producer
codes = []
for i in range(FORKS):
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            for j in range(50):
                log.info("child %d", i)
            code = handler.client.close(2 * PATIENCE)
        finally:
            os._exit(code)
    codes.append(os.waitpid(pid, 0)[1])
over.set()
for thread in threads:
    thread.join()
assert handler.client.flush(2 * PATIENCE) == 0
say(parent=parent, sent=sum(counts), codes=codes, stats=handler.client.stats()._asdict())
"""

    def check(run: Run) -> None:
        assert run.clean
        (facts,) = run.facts
        assert facts["codes"] == [0] * forks
        assert facts["stats"]["dropped"] == {}
        run.sink.exact(facts["parent"], facts["sent"])
        children = [producer for producer in run.sink.got if producer != facts["parent"]]
        assert len(children) == forks
        for producer in children:
            run.sink.exact(producer, 50)
        names = {message for producer in children for message in run.sink.messages(producer)}
        assert names == {f"child {i}" for i in range(forks)}

    run_under_each_python(f"FORKS = {forks}\n{text}", check, tmp_path, *THREADS_OF_THE_USER, peer=peer)


@pytest.mark.slow
def test_forks_by_c_code_lose_nothing(tmp_path: Path, peer: Callable[[], Any]) -> None:
    """No Python hook runs: the queue notices by itself.

    The pause lets our sender go to sleep outside Python: a thread that waits for the interpreter's lock
    at such a fork leaves the child with a broken lock.
    """
    text = """
import ctypes
fork = ctypes.PyDLL(None).fork
log, handler = log_to()
codes = []
for i in range(30):
    log.info("parent %d", i)
    assert handler.client.flush(2 * PATIENCE) == 0
    time.sleep(0.02)
    pid = fork()
    if pid == 0:
        code = 9
        try:
            assert handler.client.stats().sent == 0
            for j in range(50):
                log.info("child %d", i)
            code = handler.client.close(2 * PATIENCE)    # for flush, what ZeroMQ has taken is gone
        finally:
            os._exit(code)
    codes.append(os.waitpid(pid, 0)[1])
say(codes=codes)
"""

    def check(run: Run) -> None:
        assert run.clean and run.facts == [{"codes": [0] * 30}]
        assert sorted(len(events) for events in run.sink.got.values()) == [30, *[50] * 30]
        for producer, events in run.sink.got.items():
            run.sink.exact(producer, len(events))

    run_under_each_python(text, check, tmp_path, peer=peer)


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["lumberjack", "logjam"], indirect=True)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_deliver_at_their_end(
    method: str, tmp_path: Path, peer: Callable[[], Any]
) -> None:
    """The children call no flush. One has its client from the parent."""
    text = f"""
import multiprocessing
def born_here(k):
    log, handler = log_to()
    for i in range(500):
        log.info("child %d", k)
def inherited(k):
    for i in range(500):
        logging.getLogger("app").info("child %d", k)
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=born_here, args=(k,)) for k in range(2)]
    for child in children:
        child.start()
        child.join()
    log, handler = log_to()
    for i in range(500):
        log.info("parent")
    work = inherited if {method!r} == "fork" else born_here
    children += [context.Process(target=work, args=(2,))]
    children[-1].start()
    children[-1].join()
    say(codes=[child.exitcode for child in children])
"""

    def check(run: Run) -> None:
        assert run.clean and run.facts == [{"codes": [0, 0, 0]}]
        for producer in run.sink.got:
            run.sink.exact(producer, 500)
        said = sorted(run.sink.messages(producer)[0] for producer in run.sink.got)
        assert said == ["child 0", "child 1", "child 2", "parent"]

    options = () if peer is Sink else THREADS_OF_THE_USER
    run_under_each_python(text, check, tmp_path, *options, peer=peer)


@pytest.mark.slow
def test_prefork_workers_deliver_their_own_events(tmp_path: Path, peer: Callable[[], Any]) -> None:
    """As with gunicorn and uwsgi: the master loads the application, workers serve, SIGTERM ends them."""
    text = """
log, handler = log_to()
log.info("loaded")
workers = []
for k in range(4):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        for i in range(300):
            log.info("worker %d", k)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    workers.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in workers]
log.info("done")
say(codes=codes)
"""

    def check(run: Run) -> None:
        assert run.clean and run.facts == [{"codes": [0] * 4}]
        assert sorted(len(events) for events in run.sink.got.values()) == [2, 300, 300, 300, 300]
        for producer, events in run.sink.got.items():
            run.sink.exact(producer, len(events))

    options = () if peer is Sink else THREADS_OF_THE_USER
    run_under_each_python(text, check, tmp_path, *options, peer=peer)
