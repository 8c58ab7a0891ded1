"""Progress of a verification, and a way to stop it."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from logclient.errors import VerifyError
from logclient.threads import Thread
from logclient.verify.spark import Session

INTERVAL_S = 0.25  # seconds between two checks of Spark's progress


class Watch:
    """A context manager that reports progress and stops a verification on request."""

    def __init__(
        self, progress: Callable[[str], None] | None = None, stop: threading.Event | None = None
    ) -> None:
        self.progress = progress
        self.stop = stop or threading.Event()
        self.stage = "looking for files"
        self.began = time.monotonic()
        self._jobs: _Jobs | _Operations | None = None
        self._stays = False  # whether the session goes on afterwards
        self._done = threading.Event()
        self._thread = Thread(target=self._run, name="logclient-verify", daemon=True)
        self._runs = progress is not None or stop is not None

    def __enter__(self) -> Watch:
        if self._runs:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._runs:
            self._thread.join()

    def use(self, session: Session) -> None:
        """Follow the jobs that the calling thread starts on this session."""
        self._stays = not session.stops
        if self._runs and session.context is not None:
            self._jobs = _Jobs(session.context)
        elif self._runs and session.spark is not None:
            self._jobs = _Operations(session.spark)

    def release(self) -> None:
        """Stop following the session, in the same thread."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None and self._stays:
            with contextlib.suppress(Exception):
                jobs.end()

    def step(self, stage: str) -> None:
        """Begin a stage."""
        self.check()
        if self._jobs is not None:
            with contextlib.suppress(Exception):
                self._jobs.next_stage()
        self.stage = stage

    def check(self) -> None:
        """End the verification if a stop was requested."""
        if self.stop.is_set():
            raise VerifyError("stopped")

    def line(self) -> str:
        """Return the stage with its share and the seconds, such as ``comparing 43%, 12 s``."""
        done, total = 0, 0
        if (jobs := self._jobs) is not None:
            with contextlib.suppress(Exception):
                done, total = jobs.tasks()
        percent = f" {done / total:.0%}" if total else ""
        return f"{self.stage}{percent}, {time.monotonic() - self.began:.0f} s"

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            if self.stop.is_set():
                if (jobs := self._jobs) is not None:
                    with contextlib.suppress(Exception):
                        jobs.cancel()
            elif self.progress is not None:
                self.progress(self.line())
        if self.progress is not None:
            self.progress("")


class _Jobs:
    """The jobs that this thread starts on a SparkContext, as a group."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._previous = context.getLocalProperty("spark.jobGroup.id")
        self._tracker = context.statusTracker()
        self._finished: set[int] = set()  # jobs of earlier stages
        self._group = f"logclient-{uuid.uuid4().hex}"
        context.setLocalProperty("spark.jobGroup.id", self._group)

    def end(self) -> None:
        self._context.setLocalProperty("spark.jobGroup.id", self._previous)

    def next_stage(self) -> None:
        self._finished = set(self._tracker.getJobIdsForGroup(self._group))

    def tasks(self) -> tuple[int, int]:
        jobs = set(self._tracker.getJobIdsForGroup(self._group)) - self._finished
        infos = filter(None, map(self._tracker.getJobInfo, jobs))
        stages = [self._tracker.getStageInfo(stage) for info in infos for stage in info.stageIds]
        known = [stage for stage in stages if stage is not None]
        return sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)


class _Operations:
    """The operations that this thread starts on a session of Spark Connect, which sends their progress."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._thread = threading.get_ident()
        self._tasks: dict[str, tuple[int, int]] = {}  # operation -> tasks that are done, and all
        self._tag = f"logclient-{uuid.uuid4().hex}"
        spark.addTag(self._tag)
        spark.registerProgressHandler(self._progress)

    def end(self) -> None:
        self._spark.removeProgressHandler(self._progress)
        self._spark.removeTag(self._tag)

    def next_stage(self) -> None:
        self._tasks = {}

    def tasks(self) -> tuple[int, int]:
        counts = list(self._tasks.values())
        return sum(done for done, _ in counts), sum(total for _, total in counts)

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def _progress(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        # The session calls this in the thread that waits for the operation.
        if threading.get_ident() == self._thread and stages is not None:
            self._tasks[operation_id or ""] = (
                sum(stage.num_completed_tasks for stage in stages),
                sum(stage.num_tasks for stage in stages),
            )
