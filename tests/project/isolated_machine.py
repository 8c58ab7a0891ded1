"""A machine of its own for commands that name hosts, ports and files: namespaces of Linux.

In it 127.0.0.1 belongs to nobody else, names of hosts lead there, and /etc and /var/log hold files of a
test. Programs and everything else are those of this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.support import clean_environment
from tests.support.patience import PATIENCE

# Mount what argv[1] has over /etc and /var/log, switch the loopback device on, and stay until input ends.
_SETUP = """
import fcntl, os, socket, struct, subprocess, sys
mine = sys.argv[1]
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
for place in "/etc", "/var/log":
    theirs = mine + "/theirs" + place
    os.makedirs(theirs)
    mount("--rbind", place, theirs)
    mount("-t", "tmpfs", "none", place)
    for name in os.listdir(theirs):
        if not os.path.exists(mine + place + "/" + name):
            os.symlink(theirs + "/" + name, place + "/" + name)
    for name in os.listdir(mine + place):
        os.symlink(mine + place + "/" + name, place + "/" + name)
print("ready", flush=True)
sys.stdin.read()
"""


class Unavailable(Exception):
    """This machine gives no namespaces, and why."""


class IsolatedMachine:
    """Commands run in it as they would in a shell of its user. A context manager.

    Args:
        folder: its ``etc`` and ``var/log`` are seen in /etc and /var/log, beside what is there.
        names: of hosts, which all are 127.0.0.1.
        environment: more variables.

    Raises:
        Unavailable: namespaces are not to be had.
    """

    def __init__(self, folder: Path, names: Iterable[str], environment: Mapping[str, str]) -> None:
        for name in ("etc", "var/log", "home"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "etc" / "hosts").write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        self.environment = clean_environment(PATH=path, HOME=str(folder / "home"), **environment)
        user = ["--user", "--map-root-user"] if os.geteuid() else []
        for program in ("unshare", "nsenter", "mount"):
            if shutil.which(program) is None:
                raise Unavailable(f"there is no {program}")
        self._process = subprocess.Popen(
            ["unshare", *user, "--net", "--mount", sys.executable, "-c", _SETUP, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._process.stdout.readline() != "ready\n":
            why = self._process.stderr.read().strip().splitlines()
            self.close()
            raise Unavailable(why[-1] if why else "no namespaces")
        user = ["--user", "--preserve-credentials"] if user else []
        self._enter = ["nsenter", "--target", str(self._process.pid), *user, "--net", "--mount"]

    def start(self, command: str | list[str], folder: Path) -> subprocess.Popen[str]:
        """Begin a command; a text is one for bash."""
        if isinstance(command, str):
            command = ["bash", "-ec", command]
        return subprocess.Popen(
            [*self._enter, f"--wd={folder}", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=self.environment, start_new_session=True,
        )  # fmt: skip

    def run(self, command: str | list[str], folder: Path, given: str = "") -> str:
        """Run it to its end; what it says.

        Raises:
            AssertionError: its exit code is not 0.
        """
        process = self.start(command, folder)
        try:
            said, _ = process.communicate(given, timeout=2 * PATIENCE)
        finally:
            end(process)
        assert process.returncode == 0, f"{command}: exit code {process.returncode}\n{said}"
        return said

    def close(self) -> None:
        """End what holds it; processes in it are the caller's to end."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> IsolatedMachine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def end(process: subprocess.Popen[str]) -> str:
    """Kill it with all that it has started; what it says, unless somebody has read that."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is None or process.stdout.closed:
        return ""
    if process.stdin is not None:
        process.stdin.close()
    with process.stdout:
        return process.stdout.read()


class Server:
    """A command that serves: ``logclient collect``, which says in a line of JSON that it listens."""

    def __init__(self, machine: IsolatedMachine, command: str, folder: Path) -> None:
        self.command = command
        self._process = machine.start(command, folder)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            self.listens = json.loads(line)
        except ValueError:
            raise AssertionError(f"{command}: {line}{end(self._process)}") from None

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            said, _ = self._process.communicate(timeout=PATIENCE)
        finally:
            end(self._process)
        if error is None:
            assert self._process.returncode == 0, said
