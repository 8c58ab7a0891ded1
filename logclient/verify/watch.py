"""Progress of a verification, and a way to stop it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from logclient.verify.spark import Session, VerifyError

__all__ = ["Watch"]

INTERVAL_S = 0.25  # seconds between two checks of Spark's progress


class Watch:
    """A context manager that reports progress and stops a verification on request.

    Args:
        progress: called a few times a second, from a thread of its own, with a line of text; with an empty
            line at the end.
        stop: once it is set, the verification ends with a `VerifyError`.
    """

    def __init__(
        self, progress: Callable[[str], None] | None = None, stop: threading.Event | None = None
    ) -> None:
        self.progress = progress
        self.stop = stop or threading.Event()
        self.stage = "starting Spark"
        self.began = time.monotonic()
        self.session: Session | None = None
        self._tracker: Any = None
        self._previous_group: str | None = None  # the job group of an active session
        self._finished_jobs: set[int] = set()  # of earlier stages
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logclient-verify", daemon=True)
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
        if not self._runs:
            return
        self._previous_group = session.context.getLocalProperty("spark.jobGroup.id")
        session.context.setLocalProperty("spark.jobGroup.id", session.group)
        self._tracker = session.context.statusTracker()
        self.session = session

    def release(self) -> None:
        """Stop following the session, and restore its job group."""
        session, self.session = self.session, None
        if session is not None and not session.stops:
            with contextlib.suppress(Exception):
                session.context.setLocalProperty("spark.jobGroup.id", self._previous_group)

    def step(self, stage: str) -> None:
        """Begin a stage.

        Args:
            stage: its name in progress lines.

        Raises:
            VerifyError: a stop was requested.
        """
        self.check()
        if self.session is not None:
            with contextlib.suppress(Exception):
                self._finished_jobs = set(self._tracker.getJobIdsForGroup(self.session.group))
        self.stage = stage

    def check(self) -> None:
        """End the verification if a stop was requested.

        Raises:
            VerifyError: a stop was requested.
        """
        if self.stop.is_set():
            raise VerifyError("stopped")

    def line(self) -> str:
        """Return the stage with its share and the seconds, such as ``comparing 43%, 12 s``."""
        share = self._share()
        percent = "" if share is None else f" {share:.0%}"
        return f"{self.stage}{percent}, {time.monotonic() - self.began:.0f} s"

    def _share(self) -> float | None:
        """Return the share of this stage's tasks that are done; None: no task is known yet."""
        done = total = 0
        session = self.session
        if session is None:
            return None
        with contextlib.suppress(Exception):
            for job in set(self._tracker.getJobIdsForGroup(session.group)) - self._finished_jobs:
                info = self._tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    about = self._tracker.getStageInfo(stage)
                    if about is not None:
                        total += about.numTasks
                        done += about.numCompletedTasks
        return done / total if total else None

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            if self.stop.is_set() and self.session is not None:
                self.session.cancel()
            if self.progress is not None and not self.stop.is_set():
                self.progress(self.line())
        if self.progress is not None:
            self.progress("")
