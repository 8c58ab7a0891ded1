"""A program in a terminal of its own, for tests that type and look."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from types import TracebackType

from tests.support.patience import PATIENCE


class Terminal:
    """Run `command` in a new terminal of 24 lines and 200 columns.

    Args:
        command: the program, and its arguments.
        environment: all of its environment.
        folder: where it begins.
    """

    def __init__(self, *command: str, environment: dict[str, str], folder: str | os.PathLike[str]) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 200, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.screen = ""

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for it on the screen, behind what was waited for before.

        Raises:
            TimeoutError: it did not come; the screen is in the words.
        """
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.screen)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {pattern!r} on the screen: {self.screen!r}")
            if select.select([self._fd], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self._fd, 65536).decode(errors="replace")
                except OSError:  # the program has ended
                    deadline = 0.0
        self.screen = self.screen[found.end() :]
        return found

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
