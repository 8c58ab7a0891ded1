"""Forks of the process that runs the tests, by Python and by C code."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import TESTED
from tests.support.patience import PATIENCE

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def other_threads() -> dict[str, str]:
    """Return what Linux says of each other thread: its state and how often it was switched; else nothing."""
    found = {}
    tasks = Path("/proc/self/task")
    for task in tasks.iterdir() if tasks.is_dir() else ():
        if int(task.name) != threading.get_native_id():
            with suppress(OSError):
                found[task.name] = "".join(
                    re.findall(r"^(?:State|\w+_ctxt_switches):.*\n", (task / "status").read_text(), re.M)
                )
    return found


def c_fork() -> int:
    """Call fork(2) as a C library does: no Python hook runs.

    The child hangs if another thread asks for the interpreter's lock at that moment. So wait until all
    sleep outside Python. One that wakes later may wait for the lock, but asks its holder only after the
    switch interval. Without that a child of 1.5 GB, which takes 0.1 s to fork, often hangs. And a child
    during whose fork a thread woke is killed before it does anything, and another is made.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            before = other_threads()
            time.sleep(0.05)
            late = time.monotonic() > deadline
            awake = other_threads() != before or any("(running)" in status for status in before.values())
            if awake and not late:
                continue
            pid = _fork_once(before, late)
            if pid >= 0:
                return pid
    finally:
        sys.setswitchinterval(interval)


def _fork_once(before: dict[str, str], anyway: bool) -> int:
    """Fork; return -1 if another thread woke meanwhile, unless `anyway`, with no child left."""
    begin, may_begin = os.pipe()
    pid = int(ctypes.PyDLL(None).fork())
    if pid == 0:
        os.close(may_begin)
        if not os.read(begin, 1):
            os._exit(0)
        os.close(begin)
        return 0
    good = anyway or other_threads() == before
    os.close(begin)
    if good:
        os.write(may_begin, b"1")
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(may_begin)
    return pid if good else -1


def passes_in_own_process(test: str) -> bool:
    """Run this test in a process that runs no other, whose fork takes 1 ms; return False within it.

    There, hardly ever does another thread ask for the interpreter's lock during a `c_fork`.
    """
    if os.environ.get("LOGCLIENT_TEST_ALONE"):
        return False
    command = [sys.executable, "-m", "pytest", "-q", test]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    environment["LOGCLIENT_TEST_ALONE"] = "1"
    done = subprocess.run(command, cwd=TESTED, env=environment, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return True


FORKS = {"os.fork": os.fork if hasattr(os, "fork") else None, "from C": c_fork}


def run_in_child(work: Callable[[], object], fork: Callable[[], int] | None = None) -> None:
    """Run `work` in a forked child (of os.fork), which must end successfully and in time."""
    pid = (fork or os.fork)()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + PATIENCE
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.002)
