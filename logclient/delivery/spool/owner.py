"""The spool of one client in one process: opening, growth, end.

A thread of its own adds segments ahead of need, because that makes system calls; it does without the GIL.
Another looks for dead owners (`Adoption`), and a third one writes the log, if there is one. The sender marks
outcomes and frees slots (``_ext/inflight``); callers only store (``_ext/queue``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient._ext.spool import SEGMENT, SUPPORTED, Log, Segments
from logclient.delivery import lifecycle
from logclient.delivery.spool import owner_files
from logclient.delivery.spool.adoption import Adoption
from logclient.errors import LedgerError, describe_error
from logclient.files import private_directory
from logclient.standard import os, time

if TYPE_CHECKING:
    from logclient._ext.queue import EventQueue
    from logclient.config.common import Config
    from logclient.delivery.error_log import Diagnostics

LOOK_EVERY = 5.0
"""Seconds between two looks for dead owners, and for segments that are not needed."""

LOOK_ENDS = 0.5
"""Seconds that the end of the process waits for a look that goes on."""

LONGEST = 3600.0
"""Seconds for which the thread that adds segments stays without the GIL."""

SYNC_EVERY = 0.05
"""Seconds from one beginning of a sync to the next, so that the disk has every event within 100 ms."""

SEGMENTS_SHARE = 0.4
"""Of the bytes of a spool with a log, how many the segments may have: the log has the rest."""

BEGIN = 0.1
"""Seconds that a caller waits for a new thread to begin its work."""

TRY_AGAIN = 10.0
"""Seconds after which a disk that was full is tried again."""


class Spool:
    """The spool of one client."""

    def __init__(
        self,
        config: Config,
        queue: EventQueue,
        diagnostics: Diagnostics,
        make_replayer: Callable[[owner_files.OrphanSpool, Callable[[], object]], Any],
        ledger: str | None,
    ) -> None:
        assert config.spool is not None
        self.directory = config.spool
        """Where the files are."""
        self._config = config
        self._always = config.spool_mode == "always"
        self._queue = queue
        self._diagnostics = diagnostics
        self._adoption = Adoption(config.spool, ledger, make_replayer, diagnostics)
        self._lock = threads.RLock()
        self._opener = 0  # the thread that opens or leaves the files
        self._files: owner_files.OwnerFiles | None = None
        self._segments: Segments | None = None
        self._boot = b""
        self._log: Log | None = None
        self._log_ended = False  # by an error, which was reported
        self._thread: threads.AnyThread | None = None
        self._log_thread: threads.AnyThread | None = None
        self._look_thread: threads.AnyThread | None = None
        self._growing = threads.RLock()  # by one thread at a time
        self._looking = threads.RLock()  # for dead owners
        self._starting = threads.RLock()  # its threads
        self._look_now = threads.Event()
        self._serving = threads.Event()
        self._stopping = False
        self._closed = False
        self._ending = False
        self._full_until = 0.0
        self.error = ""  # why it stopped

    # -- opening -----------------------------------------------------------------------------------

    def open(self, producer: bytes) -> None:
        """Make the files of this owner; delivery goes on in memory if that cannot be done."""
        caller = threads.get_ident()
        if self._opener == caller:  # a signal handler logs meanwhile
            return
        with self._lock:
            if self._files is not None or self._closed:
                return
            self._opener = caller
            try:
                with self._growing:
                    self._open(producer)
            except (OSError, LedgerError) as error:
                self._warn(describe_error(error) if isinstance(error, OSError) else str(error))
                if self._segments is not None:
                    self._pause_growth(self._segments)
                elif self._files is not None:
                    self._files.remove()
                    self._files = None
            finally:
                self._queue.open_first(False)
                self._opener = 0
        if self._segments is not None and (self._always or self._adoption.has_candidates()):
            self.start()  # else the sender does

    def _open(self, producer: bytes) -> None:
        directory, config = self.directory, self._config
        if not SUPPORTED:
            raise LedgerError("spool: only Linux can map its files")
        private_directory(directory, "spool")
        if words := owner_files.refusal(directory):
            raise LedgerError(f"spool: {directory}: {words}")
        files = owner_files.OwnerFiles(directory, producer.hex())
        files.create()
        self._files = files
        self._boot = owner_files.boot_id()
        logs = config.spool_sync != "none"
        most = max(2, round(config.spool_bytes * (SEGMENTS_SHARE if logs else 1.0) / SEGMENT))
        segments = self._segments
        if segments is not None:
            segments.reopen()
        else:
            segments = self._segments = Segments(
                self._queue,
                directory,
                producer,
                self._boot,
                os.getpid(),
                most,
                self._always,
                config.max_bytes,
            )
        if logs:
            size = int(config.spool_bytes * (1 - SEGMENTS_SHARE))
            self._log = Log(segments, config.spool_sync == "batch", size)
            self._log_ended = False
        if self._ending:
            if self._always:
                segments.grow()
            segments.limit(True)
        elif self._always:
            # All: a burst is faster than a disk that is busy. What dead owners left is sent meanwhile.
            self._start_looking()
            for _ in range(most):
                segments.grow()

    def _warn(self, text: str) -> None:
        self.error = text
        self._diagnostics.report("spool", f"the spool stopped, delivery goes on in memory: {text}")

    def _warn_of_log(self, error: OSError) -> None:
        words = f"the spool's log ended, events are not safe from the machine's end: {describe_error(error)}"
        self._diagnostics.report("spool log", words)

    def _pause_growth(self, segments: Segments) -> None:
        """Go on with the segments that are there, and try again later: the disk is full."""
        segments.limit(True)
        self._full_until = time.monotonic() + TRY_AGAIN

    # -- the thread --------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        """Whether its threads are to end."""
        return self._stopping or self._closed or self._ending

    def start(self) -> None:
        """Have the thread run, unless it does, or none can."""
        segments = self._segments
        if self._is_over or segments is None:
            return
        if lifecycle.forks_unseen():  # no thread would come along into a child: callers do its work
            with self._growing:
                self._serve(segments, 0.0)
            return
        if not self._starting.acquire(blocking=False):
            return  # another thread is at it
        try:
            if self._thread is None or not self._thread.is_alive():
                self._serving.clear()
                self._thread = _started(self._thread, self._grow)
                if self._thread is not None and not threads.is_green():
                    # A burst would use up the segments before a thread that is new gets the GIL.
                    self._serving.wait(BEGIN)
            self._start_looking()
            if self._log is not None and not self._log_ended:
                self._log_thread = _started(self._log_thread, self._write_log)
        finally:
            self._starting.release()

    def _start_looking(self) -> None:
        if not lifecycle.forks_unseen() and self._starting.acquire(blocking=False):
            try:
                self._look_thread = _started(self._look_thread, self._look_around)
            finally:
                self._starting.release()

    def _write_log(self) -> None:
        log = self._log
        try:
            while log is not None and not self._is_over:
                log.serve(1.0, SYNC_EVERY)
        except OSError as error:
            self._log_ended = True
            self._warn_of_log(error)

    def _grow(self) -> None:
        """Add segments, in a thread that needs no GIL for it: a caller never waits for this one."""
        segments = self._segments
        while segments is not None and not self._is_over:
            with self._growing:
                self._serve(segments, LONGEST)

    def _serve(self, segments: Segments, seconds: float) -> None:
        """Add segments for so long; when the disk is full, go on with those that are there."""
        if self._is_over:
            return
        if self._full_until:
            seconds = min(seconds, max(0.0, self._full_until - time.monotonic()))
        try:
            self._serving.set()
            segments.serve(seconds, LOOK_EVERY)
            if self._full_until and time.monotonic() >= self._full_until:
                self._full_until = 0.0
                segments.limit(False)
                self.error = ""
        except OSError as error:
            self._pause_growth(segments)
            self._warn(describe_error(error))

    def _look_around(self) -> None:
        while not self._is_over:
            with self._looking:
                if not self._is_over:
                    files = self._files
                    own = files.producer if files is not None else ""
                    self._adoption.look(own, self._boot, self._look_now.set)
            self._keep_lock()
            self._look_now.wait(LOOK_EVERY)
            self._look_now.clear()

    def _keep_lock(self) -> None:
        """Lock our files again if the program has closed the lock's descriptor."""
        with self._lock:
            files = self._files
            if files is not None and not files.locked and not self._is_over and not files.lock():
                self._warn(
                    "the program closed its lock, and it cannot be locked again: events may be sent twice"
                )

    # -- the end -----------------------------------------------------------------------------------

    def store(self, keep: Callable[[bool], bool]) -> None:
        """Add a segment as often as ``keep(False)`` finds no room for an event: delivery ends."""
        segments = self._segments
        if segments is None:
            return
        self._stopping = True
        segments.wake()
        with self._growing:
            try:
                while not keep(False) and segments.grow():
                    pass
            except OSError as error:
                self._warn(describe_error(error))
            finally:
                self._stopping = False

    @property
    def events(self) -> int:
        """Events that lie in the files now."""
        return self._segments.events if self._segments is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether events can be left here: not when the directory was removed meanwhile."""
        files = self._files
        return files is not None and self._segments is not None and not self._closed and files.exist()

    def close(self, deadline: float) -> None:
        """End: stop adopting, and remove the files unless events are left in them.

        Args:
            deadline: the monotonic second by which an adoption must end.
        """
        self._closed = True
        self._look_now.set()
        if self._segments is not None:
            self._segments.wake()
        with self._lock:
            pass
        ended = threads.acquire(self._looking, max(0.0, deadline - time.monotonic()))
        if ended:
            self._looking.release()
        self._adoption.close(deadline)
        segments, files = self._segments, self._files
        if segments is None or files is None or not ended:  # then the next owner adopts them
            return
        segments.wake()
        with self._growing:
            used = segments.is_used
            if used:
                segments.shrink()
            self._close_files(segments, files, used)

    def keep_used(self) -> None:
        """At the end of the process, keep only files that events lie in; a later event makes them again."""
        self._ending = True
        self._look_now.set()
        # A look that reads a large ledger may take long; the files stay then, and the next owner adopts them.
        if threads.acquire(self._looking, LOOK_ENDS):
            try:
                self._keep_used()
            finally:
                self._looking.release()

    def _keep_used(self) -> None:
        caller = threads.get_ident()
        with self._lock:
            segments, files = self._segments, self._files
            if self._opener or self._closed or segments is None or files is None:
                return
            self._opener = caller
            segments.wake()
            try:
                with self._growing:
                    if segments.let_go():
                        self._close_files(segments, files, False)
                    else:
                        segments.shrink()
            finally:
                self._opener = 0

    def _close_files(self, segments: Segments, files: owner_files.OwnerFiles, used: bool) -> None:
        """Close the files, and remove them unless events are left in them."""
        self._close_log(segments, used)
        segments.close()
        if used:
            files.unlock()
        else:
            files.remove()
        self._files = self._log = None

    def _close_log(self, segments: Segments, used: bool) -> None:
        """Have the disk keep what is left in the segments, and end the log."""
        log = self._log
        if log is None and used:
            log = Log(segments, False, 1 << 62)
        if log is None:
            return
        if used:
            try:
                log.write_all()
            except OSError as error:
                self._warn_of_log(error)
        log.close(used)
        if self._log_thread is not None:
            threads.join(self._log_thread, 1.0)

    # -- forks -------------------------------------------------------------------------------------

    def park(self) -> None:
        """Before a fork: ask the thread to end."""
        self._stopping = True
        self._look_now.set()
        if self._segments is not None:
            self._segments.wake()

    def wait_parked(self, timeout: float) -> None:
        """Wait for the end of the thread that was asked to end."""
        deadline = time.monotonic() + timeout
        for thread in (self._thread, self._look_thread, self._log_thread):
            if thread is not None and thread.is_alive():
                threads.join(thread, max(0.0, deadline - time.monotonic()))

    def unpark(self) -> None:
        """Go on in the parent after a fork."""
        self._stopping = False
        if self._thread is not None:
            self.start()

    def abandon(self) -> None:
        """In a forked child: unmap the parent's files, and close its lock."""
        self._lock = threads.RLock()
        self._growing = threads.RLock()
        self._looking = threads.RLock()
        self._look_now = threads.Event()
        self._closed = True
        self._thread = self._log_thread = self._look_thread = None
        self._adoption.abandon()
        if self._log is not None:
            self._log.abandon()
        if self._segments is not None:
            self._segments.close()
        if self._files is not None:
            with suppress(OSError):
                self._files.unlock()


def _started(thread: threads.AnyThread | None, target: Callable[[], object]) -> threads.AnyThread | None:
    """Return a thread that runs `target`: `thread` if it does; None if none can be started."""
    if thread is not None and thread.is_alive():
        return thread
    thread = threads.make_thread(target, threads.SPOOL)
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return None
    return thread
