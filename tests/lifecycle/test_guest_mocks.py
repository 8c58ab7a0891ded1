"""A program's tests replace parts of the standard library: not for us, and we use none of their values up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from logclient.testing.lumberjack import Collector
from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.timeout(40 * PATIENCE)

NAMES = {
    "time": """
        monotonic monotonic_ns time time_ns sleep perf_counter perf_counter_ns strftime gmtime
        localtime process_time thread_time clock_gettime
    """,
    "threading": """
        Thread Thread.start Thread.run Thread.join Thread.is_alive _start_new_thread Lock RLock
        Event Condition Semaphore Timer get_ident current_thread main_thread enumerate
        active_count _allocate_lock _active
    """,
    "_thread": "start_new_thread allocate_lock get_ident RLock get_native_id",
    "socket": """
        socket create_connection getaddrinfo gethostname getfqdn gethostbyname inet_pton
        socketpair
    """,
    "select": "poll select epoll",
    "os": """
        getpid urandom open read write close stat fstat lstat listdir scandir makedirs mkdir
        unlink remove rename replace pread pwrite path.exists path.isdir path.isfile path.join
        path.abspath getcwd kill fork _exit fsencode fspath fdopen geteuid strerror pipe dup2
        isatty sched_yield cpu_count
    """,
    "json": "dumps loads load dump",
    "random": "random randint choice Random SystemRandom uniform",
    "queue": "Queue Queue.get Queue.put SimpleQueue",
    "signal": "signal getsignal pthread_sigmask valid_signals sigpending",
    "builtins": "open print",
    "io": "open",
    "atexit": "register",
    "sys": "exit stderr stdout",
    "subprocess": "Popen run",
    "uuid": "uuid4 uuid1",
    "datetime": "datetime date",
    "collections": "deque OrderedDict",
    "functools": "partial",
    "contextlib": "contextmanager suppress",
    "logging": "Formatter.formatTime Handler.handleError lastResort shutdown",
    "ssl": "create_default_context SSLContext wrap_socket get_default_verify_paths",
    "weakref": "ref WeakSet",
    "traceback": "print_exc format_exc",
    "struct": "pack unpack",
    "fcntl": "flock fcntl",
    "errno": "errorcode",
    "gc": "collect",
}
"""What is replaced, by module."""

PROGRAM = """
import faulthandler, importlib, json, os, sys
from unittest import mock
import ctypes
faulthandler.dump_traceback_later(10 * float(sys.argv[3]), exit=True)
import logclient
url, names, patience, folder = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
pause, write = ctypes.CDLL(None).usleep, os.write

class Wrong(Exception):
    pass

WAYS = [("first", dict(side_effect=[3, 4, 5])), ("later", dict(side_effect=Wrong("a mock"))), ("later", {}),
        ("later", dict(side_effect=[3, 4, 5])), ("first", dict(side_effect=Wrong("a mock"))), ("first", {})]

def exists(name):
    try:
        found = importlib.import_module(name.partition(".")[0])
        for part in name.split(".")[1:]:
            found = getattr(found, part)
    except AttributeError:
        return False
    return True

made, failures = 0, []
logclient.connect(url).close()
for name in filter(exists, names):
    for when, options in WAYS[made % 2::2]:
        made += 1
        client = logclient.connect(url, ledger=folder, fallback=f"{folder}/lost", linger=0)
        if when == "later":
            client.send({"n": "before"})
            client.flush(patience)
        used = error = None
        patch = mock.patch(name, **options)
        it = patch.start()
        try:
            client.send({"n": "mocked"})
            pause(3000)
            client.send({"n": "again"})
            used = it.call_count
        except BaseException as raised:
            error = raised
        finally:
            patch.stop()
        left = client.flush(patience)
        acked = client.stats().acked
        client.close()
        if used or error or left or acked != 2 + (when == "later"):
            failures.append(f"{name} {when} {options}: used {used} {error!r}, left {left}, acked {acked}")
write(1, json.dumps({"made": made, "failures": failures}).encode())
"""


def run(program: str, *given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, given)],
        env=clean_environment(PYTHONPATH=str(TESTED)),
        capture_output=True,
        text=True,
        timeout=12 * PATIENCE,
    )


@pytest.mark.parametrize("module", NAMES)
def test_no_mocked_name_is_used_and_all_events_arrive(module: str, tmp_path: Path) -> None:
    names = [f"{module}.{name}" for name in NAMES[module].split()]
    with Collector() as collector:
        done = run(PROGRAM, collector.url, json.dumps(names), PATIENCE, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["failures"], done.stderr) == ([], "")
    assert found["made"] >= 3


HOOKED = """
import sys, threading
def hook(*given):
    return None
for change in (threading.settrace, threading.setprofile):
    change(hook)
import logclient.client
for change in (threading.settrace, threading.setprofile):
    change(None)
threading.excepthook = hook
with logclient.connect(sys.argv[1]) as client:
    client.send("one")
    left = client.flush(float(sys.argv[2]))
    print(left, [thread.name for thread in threading.enumerate() if thread.name == "logclient-sender"])
"""


def test_a_hook_for_threads_is_no_mock() -> None:
    """Debuggers and coverage set them when they start, and take them away when they end."""
    with Collector() as collector:
        done = run(HOOKED, collector.url, PATIENCE)
    assert (done.stdout, done.stderr) == ("0 ['logclient-sender']\n", "")
