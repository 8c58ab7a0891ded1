"""The Spark jobs of one verification: how far they are, and how they are cancelled.

A session with a SparkContext groups jobs, and its JVM tells their progress. In a session of Spark Connect
operations have tags, and the server sends their progress.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Protocol

__all__ = ["ConnectJobs", "ContextJobs", "Jobs"]


class Jobs(Protocol):
    """The jobs that one thread starts on a session."""

    def begin(self) -> None:
        """Follow the jobs that the calling thread starts from now on."""

    def end(self) -> None:
        """Stop following, in the same thread."""

    def next_stage(self) -> None:
        """Forget the jobs that have ended."""

    def share(self) -> float | None:
        """Return the share of this stage's tasks that are done; None: no task is known yet."""

    def cancel(self) -> None:
        """Cancel the running job, from any thread; the thread that waits for it gets an error."""


class ContextJobs:
    """The jobs on a session with a SparkContext.

    Args:
        context: the SparkContext.
        group: a name for the group of jobs.
    """

    def __init__(self, context: Any, group: str) -> None:
        self._context = context
        self._group = group
        self._previous: str | None = None  # the thread's group before
        self._tracker: Any = None
        self._finished: set[int] = set()  # jobs of earlier stages

    def begin(self) -> None:
        """Set the group of the thread's jobs."""
        self._previous = self._context.getLocalProperty("spark.jobGroup.id")
        self._context.setLocalProperty("spark.jobGroup.id", self._group)
        self._tracker = self._context.statusTracker()

    def end(self) -> None:
        """Restore the group."""
        with contextlib.suppress(Exception):
            self._context.setLocalProperty("spark.jobGroup.id", self._previous)

    def next_stage(self) -> None:
        """See `Jobs`."""
        with contextlib.suppress(Exception):
            self._finished = set(self._tracker.getJobIdsForGroup(self._group))

    def share(self) -> float | None:
        """See `Jobs`."""
        done = total = 0
        with contextlib.suppress(Exception):
            for job in set(self._tracker.getJobIdsForGroup(self._group)) - self._finished:
                info = self._tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    about = self._tracker.getStageInfo(stage)
                    if about is not None:
                        total += about.numTasks
                        done += about.numCompletedTasks
        return done / total if total else None

    def cancel(self) -> None:
        """See `Jobs`."""
        with contextlib.suppress(Exception):
            self._context.cancelJobGroup(self._group)


class ConnectJobs:
    """The jobs on a session of Spark Connect.

    Args:
        spark: the session.
        tag: a name for the operations.
    """

    def __init__(self, spark: Any, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._thread = 0
        self._tasks: dict[str, tuple[int, int]] = {}  # operation -> tasks that are done, and all

    def begin(self) -> None:
        """Tag the thread's operations, and ask for their progress."""
        self._thread = threading.get_ident()
        self._spark.addTag(self._tag)
        self._spark.registerProgressHandler(self._progress)

    def end(self) -> None:
        """Remove the tag."""
        with contextlib.suppress(Exception):
            self._spark.removeProgressHandler(self._progress)
            self._spark.removeTag(self._tag)

    def next_stage(self) -> None:
        """See `Jobs`."""
        self._tasks = {}

    def share(self) -> float | None:
        """See `Jobs`."""
        tasks = list(self._tasks.values())
        total = sum(all_ for _, all_ in tasks)
        return sum(done for done, _ in tasks) / total if total else None

    def cancel(self) -> None:
        """See `Jobs`."""
        with contextlib.suppress(Exception):
            self._spark.interruptTag(self._tag)

    def _progress(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        # The session calls this in the thread that waits for the operation.
        if threading.get_ident() == self._thread and stages is not None:
            counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages]
            self._tasks[operation_id or ""] = (sum(one for one, _ in counts), sum(all_ for _, all_ in counts))
