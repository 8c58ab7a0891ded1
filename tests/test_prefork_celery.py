"""Celery's prefork pool with the sample tasks of docs/examples/celery; broker and results in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.prefork import EXAMPLES, Answer, Server, Site, gone, owed, program, serving, wait_for
from tests.shared import ROOT, clean_environment

pytestmark = pytest.mark.tree

RECENT_S = 0.2

SEND = """
import sys, tasks
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    tasks.price.delay(f"{number}")
"""


class Running(NamedTuple):
    site: Site
    server: Server

    def send(self, first: int, end: int) -> None:
        """Tasks with these numbers, from a process that is no worker."""
        environment = clean_environment(
            PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1", BROKER_FOLDER=str(self.site.folder)
        )
        command = [sys.executable, "-c", SEND, str(first), str(end)]
        subprocess.run(command, cwd=EXAMPLES / "celery", env=environment, check=True)

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


@contextmanager
def celery(site: Site, *options: str) -> Iterator[Running]:
    command = [program("celery"), "--app", "tasks", "worker", "--concurrency", "3", *options]
    environment = {"LOG_URL": site.url, "BROKER_FOLDER": str(site.folder)}
    with serving(command, EXAMPLES / "celery", site.folder / "celery.out", **environment) as server:
        yield Running(site, server)


def test_pool_processes_end_and_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One by -9, one by SIGTERM, others because they have had enough; in the end the worker by SIGTERM."""
    with Site(tmp_path) as site, celery(site, "--max-tasks-per-child", "100") as run:
        run.send(0, 200)
        wait_for(lambda: len(run.answers()) >= 100, "results")
        killed = max(run.answers(), key=lambda a: a.at).worker
        os.kill(killed, signal.SIGKILL)
        moment = time.time()
        wait_for(lambda: len(run.answers()) >= 190, "results after the kill")
        ended = max(run.answers(), key=lambda a: a.at).worker
        os.kill(ended, signal.SIGTERM)
        wait_for(lambda: gone(ended), "the end of a pool process")
        run.send(200, 500)
        wait_for(lambda: len(run.answers()) >= 490, "results of new processes")
        assert run.server.end(signal.SIGTERM) == 0

        messages, answers = site.messages(), run.answers()
        assert owed([a for a in answers if a.worker != killed], messages) == []
        of_killed = [a for a in answers if a.worker == killed]
        assert owed([a for a in of_killed if a.at < moment - RECENT_S], messages) == []
        verdict = site.verdict(monkeypatch)
        with capsys.disabled():
            print(f"\n{len(answers)} tasks by {len(run.workers())} processes; {verdict.counts}")
        closed = {lines[0]["pid"]: lines[-1]["t"] == "close" for lines in site.ledgers().values()}
        assert {pid for pid, end in closed.items() if not end} == {killed}
        for producer in verdict.producers:
            if producer.closed:
                assert producer.counts.ok == producer.counts.events
