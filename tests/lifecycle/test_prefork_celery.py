"""Celery's prefork pool with the sample tasks of docs/examples/celery; broker and results in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import ROOT, clean_environment
from tests.support.app_servers import EXAMPLES, Answer, Server, Site, gone, owed, program, serving, wait_for

pytestmark = pytest.mark.tree

RECENT_S = 0.2

# A pool process that is killed while it waits for a task holds the pool's lock, and nobody gets a task any
# more: that is Celery's own. So these end in the middle of one.
ENDS = """
import faulthandler, os, signal, time
from pathlib import Path
from tasks import app, log

faulthandler.register(signal.SIGUSR2, all_threads=True)

@app.task
def end(number, folder):
    log.info("ends by %d", number)
    Path(folder, f"end-{number}").write_text(f"{os.getpid()} {time.time()}")
    os.kill(os.getpid(), number)
    time.sleep(60)
"""

SEND = """
import sys, ends, tasks
count, number, folder = sys.argv[1:]
for order in range(int(count)):
    tasks.price.delay(f"{order}")
if number != "0":
    ends.end.delay(int(number), folder)
"""


class Running(NamedTuple):
    site: Site
    server: Server

    def stop(self) -> bool:
        """End the worker by SIGTERM, and return whether its pool has ended with it.

        About one time in a hundred, without logclient too, Celery's pool never ends: it takes the lock of
        its queue of tasks, and a process that is gone has it.
        """
        try:
            assert self.server.end(signal.SIGTERM) == 0
        except subprocess.TimeoutExpired:
            os.kill(self.server.pid, signal.SIGUSR2)
            self.server.said("_help_stuff_finish")
            return False
        return True

    def ended(self, number: int) -> tuple[int, float]:
        """The pool process that has ended by this signal, and when it sent it to itself."""
        path = self.site.folder / f"end-{number:d}"
        pid, at = wait_for(lambda: path.exists() and path.read_text().split(), "a pool process's last task")
        wait_for(lambda: gone(int(pid)), "the end of a pool process")
        return int(pid), float(at)

    def answers(self) -> list[Answer]:
        """The results that are there; `at` is a wall time."""
        found = []
        for path in (self.site.folder / "results").glob("celery-task-meta-*"):
            try:
                result = json.loads(path.read_text())
            except ValueError:  # still being written
                continue
            if result["status"] == "SUCCESS":
                answer = result["result"]
                found.append(Answer(answer["order"], answer["worker"], path.stat().st_mtime))
        return found

    def workers(self) -> set[int]:
        return {answer.worker for answer in self.answers()}


def send(folder: Path, tasks: int, number: int) -> None:
    """Add tasks, from a process that is no worker; the last one ends by signal `number`, unless it is 0."""
    environment = clean_environment(
        PYTHONPATH=f"{folder}{os.pathsep}{ROOT}", PYTHONDONTWRITEBYTECODE="1", BROKER_FOLDER=str(folder)
    )
    command = [sys.executable, "-c", SEND, str(tasks), str(int(number)), str(folder)]
    subprocess.run(command, cwd=EXAMPLES / "celery", env=environment, check=True)


@contextmanager
def celery(site: Site, *options: str, tasks: int, number: int = 0) -> Iterator[Running]:
    """A worker that finds all its tasks: its broker's files may be read while they are being written."""
    (site.folder / "ends.py").write_text(ENDS)
    send(site.folder, tasks, number)
    command = [program("celery"), "--app", "ends", "worker", "--concurrency", "3", *options]
    environment = {"LOG_URL": site.url, "BROKER_FOLDER": str(site.folder)}
    with serving(command, EXAMPLES / "celery", site.folder / "celery.out", **environment) as server:
        yield Running(site, server)


def test_celery_pool_processes_deliver_and_are_replaced(tmp_path: Path) -> None:
    """Pool processes with enough tasks are replaced; the worker ends by SIGTERM."""
    with Site(tmp_path) as site, celery(site, "--max-tasks-per-child", "40", tasks=200) as run:
        wait_for(lambda: len(run.answers()) >= 200, "all results")
        ended = run.stop()
        if ended:  # the worker does not wait for the last moments of its processes
            wait_for(lambda: all(map(gone, run.workers())), "the end of the pool's processes")
        messages = site.messages()
        assert owed(run.answers(), messages) == []
        assert len(run.workers()) >= 5
        verdict = site.verdict()
        assert verdict.counts.ok == verdict.counts.events
        assert verdict.exit_code == 0 or not ended
        assert all(producer.closed for producer in verdict.producers) or not ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_killed_celery_process_loses_only_its_queue(
    number: signal.Signals,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ends in the middle of a task; then the worker ends by -9, and its pool with it."""
    killed = number == signal.SIGKILL
    with Site(tmp_path) as site, celery(site, tasks=300, number=number) as run:
        ended, moment = run.ended(number)
        answers = run.answers()
        sure = [a for a in answers if a.worker != ended or not killed or a.at < moment - RECENT_S]
        assert len(sure) > 30
        others = [a for a in sure if a.worker != ended]
        wait_for(lambda: not owed(others, site.messages()), "the others' records")
        pool = run.workers()
        run.server.end(signal.SIGKILL)
        wait_for(lambda: all(map(gone, pool)), "the end of the pool")
        assert owed(sure, site.messages()) == []
        assert killed or site.messages()[f"ends by {number:d}"] == 1
        verdict = site.verdict()
        with capsys.disabled():
            print(f"\n{len(answers)} tasks by {len(run.workers())} processes; {verdict.counts}")
        (last,) = (lines[-1] for lines in site.ledgers().values() if lines[0]["pid"] == ended)
        assert (last["t"] == "close") is not killed
        for producer in verdict.producers:
            if producer.closed:
                assert producer.counts.ok == producer.counts.events
