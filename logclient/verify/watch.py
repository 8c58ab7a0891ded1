"""Progress of a verification, and a way to stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
        session.jobs.begin()
        self.session = session

    def release(self) -> None:
        """Stop following the session."""
        session, self.session = self.session, None
        if session is not None and not session.stops:
            session.jobs.end()

    def step(self, stage: str) -> None:
        """Begin a stage.

        Args:
            stage: its name in progress lines.

        Raises:
            VerifyError: a stop was requested.
        """
        self.check()
        if self.session is not None:
            self.session.jobs.next_stage()
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
        session = self.session
        share = None if session is None else session.jobs.share()
        percent = "" if share is None else f" {share:.0%}"
        return f"{self.stage}{percent}, {time.monotonic() - self.began:.0f} s"

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            if self.stop.is_set() and self.session is not None:
                self.session.cancel()
            if self.progress is not None and not self.stop.is_set():
                self.progress(self.line())
        if self.progress is not None:
            self.progress("")
