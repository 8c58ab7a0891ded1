"""Stops a thread of another process between two instructions of a push into the queue, with ``ptrace``."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import random
import shutil
import subprocess
from pathlib import Path

from logclient._ext import queue

SEIZE, INTERRUPT, SINGLESTEP, CONTINUE, PEEK, POKE_USER, GETREGSET = 0x4206, 0x4207, 9, 7, 2, 6, 0x4204
DEBUG_REGISTERS = 848
"""Their offset in ``struct user``: the first has an address to stop at, the eighth says whether to."""
ANY_CHILD = 0x40000000
"""``__WALL``: wait for threads, too."""
NT_PRSTATUS = 1
PUSH = "lc_put"
MOST_STEPS = 4_000_000


class Registers(ctypes.Structure):
    """Where the kernel writes the registers (``struct iovec``)."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def refusal() -> str:
    """Return why no thread can be stepped here; empty: one can."""
    if platform.machine() != "x86_64":
        return "the registers are those of x86-64"
    if shutil.which("nm") is None:
        return "no nm, which names the functions of a module (Debian: apt-get install binutils)"
    return ""


@functools.cache
def _entry() -> int:
    """Return the offset of the push in the file of the queue's module."""
    path = queue.__file__
    lines = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
    (entry,) = (int(line.split()[0], 16) for line in lines if line.endswith(f"_{PUSH}"))
    return entry


def _base(pid: int) -> int:
    """Return where a process has the module."""
    path = str(Path(str(queue.__file__)).resolve())
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith(path):
            return int(line.split("-")[0], 16)
    raise ValueError(f"{pid}: has no {path}")


class Stepper:
    """A thread of a child process, stopped, and run by one instruction at a time.

    Args:
        pid: the process.
        thread: its id in the kernel.
    """

    def __init__(self, pid: int, thread: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.restype = ctypes.c_long
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.thread = thread
        self.entry = _base(pid) + _entry()
        self.over = False
        self._words = (ctypes.c_uint64 * 64)()
        self._call(SEIZE)
        self._call(INTERRUPT)
        self._wait()

    def _call(self, request: int, address: int = 0, data: int = 0) -> int:
        ctypes.set_errno(0)
        result = int(self._libc.ptrace(request, self.thread, address, data))
        if result == -1 and ctypes.get_errno():
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}")
        return result

    def _wait(self) -> None:
        _, status = os.waitpid(self.thread, ANY_CHILD)
        self.over = os.WIFEXITED(status) or os.WIFSIGNALED(status)

    def step(self) -> int:
        """Run one instruction; return the address of the next, or 0: the thread has ended."""
        self._call(SINGLESTEP)
        self._wait()
        return 0 if self.over else self._registers()[16]

    def _registers(self) -> ctypes.Array[ctypes.c_uint64]:
        place = Registers(ctypes.addressof(self._words), ctypes.sizeof(self._words))
        self._call(GETREGSET, NT_PRSTATUS, ctypes.addressof(place))
        return self._words

    def enter(self) -> int:
        """Run to the first instruction of a push; return where it returns to, or 0: the thread has ended."""
        if not self.run_to(self.entry):
            return 0
        return self._call(PEEK, self._registers()[19]) & (1 << 64) - 1

    def run_to(self, address: int) -> bool:
        """Run to an address at full speed; return whether it came there."""
        self._call(POKE_USER, DEBUG_REGISTERS, address)
        self._call(POKE_USER, DEBUG_REGISTERS + 7 * 8, 1)
        while not self.over:
            self._call(CONTINUE)
            self._wait()
            if not self.over and self._registers()[16] == address:
                self._call(POKE_USER, DEBUG_REGISTERS + 7 * 8, 0)
                return True
        return False

    def steps_to(self, address: int, most: int = MOST_STEPS) -> int:
        """Step to an address, by `most` instructions at most; return how many were run."""
        for n in range(most):
            if self.step() in (0, address):
                return n + 1
        return most

    def reap(self) -> None:
        """Wait for the end of the thread, once its process is killed."""
        while not self.over:
            self._wait()


def kill_inside_push(pid: int, thread: int, draw: random.Random, kill: int) -> tuple[int, bool]:
    """Kill a process while a thread of it is between two instructions of a push.

    The first push of the thread says how many instructions one has.

    Returns:
        Instructions run of the push, and whether it had not returned.
    """
    stepper = Stepper(pid, thread)
    done, inside = 0, False
    if back := stepper.enter():
        length = stepper.steps_to(back)
        if back := stepper.enter():
            most = draw.randint(1, draw.choice((200, 600, max(length, 1))))
            done = stepper.steps_to(back, most)
            inside = done == most and not stepper.over
    os.kill(pid, kill)
    stepper.reap()
    return done, inside
