"""A standalone Spark cluster on this machine: a master, and workers that have addresses of their own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests import support
from tests.support.patience import PATIENCE


class Cluster:
    """A running cluster, as a context manager.

    Args:
        folder: for logs, and what executors write.
        workers: how many, with one core each.
        hidden: each worker has an empty, private folder at this path, as each machine has its own ``/tmp``.
            The source tree and this Python stay where they are.
    """

    def __init__(self, folder: Path, workers: int = 2, hidden: Path | None = None) -> None:
        self.folder = folder
        self.workers = workers
        self.hidden = hidden
        self.url = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.folder.mkdir()
        try:
            master = self._start(
                "master", [], "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", "0"
            )
            self.url = self._wait_for_log(master, r"Starting Spark master at (spark://\S+)")
            for i in range(self.workers):
                private = [] if self.hidden is None else without(self.hidden)
                log = self._start(
                    f"worker{i}", private, "org.apache.spark.deploy.worker.Worker", "-h", f"127.0.0.{2 + i}",
                    "-c", "1", "-m", "1g", "-d", str(self.folder / f"work{i}"), self.url,
                )  # fmt: skip
                self._wait_for_log(log, "Successfully registered with master")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, name: str, before: list[str], kind: str, *arguments: str) -> Path:
        log = self.folder / f"{name}.log"
        home = Path(support.need("pyspark").__file__).parent
        command = [*before, str(home / "bin" / "spark-class"), kind, "--webui-port", "0", *arguments]
        paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
        environment = support.clean_environment(
            PYTHONPATH=paths, SPARK_LOCAL_IP="127.0.0.1", SPARK_NO_DAEMONIZE="1",
            SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )  # fmt: skip
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, start_new_session=True
            )
        self._processes.append(process)
        return log

    def _wait_for_log(self, log: Path, words: str) -> str:
        end = time.monotonic() + 4 * PATIENCE
        while True:
            found = re.search(words, log.read_text(errors="replace"))
            if found is not None:
                return found[found.re.groups]
            assert time.monotonic() < end, log.read_text(errors="replace")[-2000:]
            assert all(process.poll() is None for process in self._processes), log.read_text()[-2000:]
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _kill(find_processes(lambda _, where: where.startswith(str(self.folder))))

    def executors(self, worker: int | str = "") -> list[int]:
        """Return the process ids of the JVMs that run tasks.

        Args:
            worker: the number of the worker that they belong to; empty: of any.
        """
        work = str(self.folder / f"work{worker}")
        return find_processes(
            lambda name, where: "CoarseGrainedExecutorBackend" in name and where.startswith(work)
        )

    def kill(self, worker: int) -> None:
        """Kill a worker and all that it runs, as if its machine had lost its power."""
        work = str(self.folder / f"work{worker}")
        self._processes[1 + worker].kill()
        _kill(find_processes(lambda _, where: where.startswith(work)))
        self._processes[1 + worker].wait()

    def pythons(self, executor: int) -> list[int]:
        """Return the Python workers of an executor, without the daemon that forks them."""
        folder = os.readlink(f"/proc/{executor}/cwd")
        found = find_processes(lambda name, where: "pyspark" in name and where.startswith(folder))
        return [pid for pid in found if _parent(pid) in found]


def _kill(pids: list[int]) -> None:
    """Kill processes, some of which may have ended after the death of their parent."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def can_mount() -> bool:
    """Whether this process may give another one a folder of its own."""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def without(folder: Path) -> list[str]:
    """Return the beginning of a command that runs another one with an empty folder in place of this one."""
    lines = ["set -e", "mount -t tmpfs none /mnt"]
    hide = [f"mount -t tmpfs none {folder}"]
    for name, path in (("tree", support.ROOT), ("python", Path(sys.prefix))):
        if path.is_relative_to(folder):
            lines += [f"mkdir /mnt/{name}", f"mount --bind {path} /mnt/{name}"]
            hide += [f"mkdir -p {path}", f"mount --bind /mnt/{name} {path}"]
    return ["unshare", "-m", "sh", "-c", "\n".join([*lines, *hide, 'exec "$@"']), "sh"]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def find_processes(wanted: Callable[[str, str], bool]) -> list[int]:
    """Return the processes whose command line and folder are wanted, in order."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if wanted(name, os.readlink(path / "cwd")):
                found.append(int(path.name))
        except OSError:
            continue  # it has ended
    return sorted(found)
