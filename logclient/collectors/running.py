"""A collector as its user's threads see it: a thread that serves until it is stopped, and what it counts.

A collector for a protocol adds the sockets, the rules and the faults.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from logclient.collectors.faults import Faults
from logclient.errors import ConfigError, LedgerError, ProtocolError

__all__ = ["IDLE", "MAX_CONNECTIONS", "TOO_MANY", "Running"]

IDLE = 900.0
"""Seconds after which a connection on which nothing happens is closed, unless somebody says otherwise."""
MAX_CONNECTIONS = 1000
"""That are open at one time, unless somebody says otherwise; who comes then is sent away."""
TOO_MANY = "connections: too many"

_REASONS_MAX = 1000


class _Counted(Protocol):
    @property
    def captured_events(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def cuts(self) -> int: ...
    def _asdict(self) -> dict[str, Any]: ...


C = TypeVar("C", bound=_Counted)


class Running(Generic[C]):
    """See the module. All methods may be called from any thread."""

    _faults: Faults

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._count = dict.fromkeys(fields, 0)
        self._kept: list[bytes] = []
        # Held by the thread for a whole turn, so that whoever has got an ack finds it counted.
        self._changed = threading.Condition(threading.Lock())
        self._reasons: dict[str, int] = {}
        self._holding = False
        self._cut_all = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None  #: what ended the thread, if anything did
        self.capture_error = ""  #: why units could not be captured, the first time they could not

    def _counts(self) -> C:
        """What is counted now; the lock is held."""
        raise NotImplementedError

    @property
    def listens(self) -> dict[str, Any]:
        """Where it can be reached, for whoever started it: ``url``, ``port``, and what else there is."""
        raise NotImplementedError

    def _values(self, raw: bytes) -> list[Any]:
        """The events of a captured unit."""
        raise NotImplementedError

    @property
    def counts(self) -> C:
        with self._changed:
            return self._counts()

    @property
    def reasons(self) -> dict[str, int]:
        """Why something was refused, dropped or ended for breaking the protocol, and how often."""
        with self._changed:
            return dict(self._reasons)

    @property
    def faults_done(self) -> dict[str, int]:
        """How often each fault has struck."""
        with self._changed:
            return self._faults.done

    @property
    def report(self) -> dict[str, Any]:
        """What it has counted, for programs."""
        counts = self.counts
        found = {**counts._asdict(), "cuts": counts.cuts, "faults": self.faults_done}
        return {**found, "reasons": self.reasons}

    @property
    def summary(self) -> str:
        """The same in a few words, for people."""
        counts = self.counts
        return f"{counts.captured_events} events over {counts.connections} connections"

    def start(self) -> Self:
        """Listen. Returns the collector itself."""
        raise NotImplementedError

    def _note(self, reason: str) -> None:
        """Count why something was refused; bounded, whatever peers come up with."""
        reason = reason if len(self._reasons) < _REASONS_MAX else "other"
        self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def _not_captured(self, error: LedgerError) -> None:
        self._count["capture_errors"] += 1
        self.capture_error = self.capture_error or str(error)

    def _check_stopped(self) -> None:
        if self._thread is not None:
            raise ConfigError("start: the collector is running")

    def _run_in_thread(self, serve: Callable[..., None], *args: Any) -> None:
        self._stopping = False
        self.error = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=serve, args=args, name="logclient-collector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close every connection, what listens and the capture; what waits for an answer gets none.

        Idempotent.
        """
        thread = self._thread
        if thread is None:
            return
        with self._changed:
            self._stopping = True
        self._wake()
        thread.join()
        self._thread = None
        self._wake_in.close()
        self._wake_out.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def hold(self) -> None:
        """Answer nothing until ``release``; what comes is read and captured all the same."""
        with self._changed:
            self._holding = True

    def release(self) -> None:
        """Give the answers that were held back."""
        with self._changed:
            self._holding = False
        self._wake()

    def cut(self, timeout: float = 10.0) -> bool:
        """Cut every connection that is open now, and wait for it: what is sent after that needs a new one.

        Returns:
            False when it did not come about within `timeout` seconds, or the collector is dead.
        """
        with self._changed:
            if self._thread is None:
                return True
            self._cut_all = True
            self._wake()
            done = self._changed.wait_for(lambda: not self._cut_all or self.error is not None, timeout)
            return done and self.error is None

    def wait_for(
        self, predicate: Callable[[C], bool] | None = None, *, events: int = 0, timeout: float = 10.0
    ) -> bool:
        """Wait until so much is captured and `predicate` of the counts holds.

        Returns:
            False when that did not come about within `timeout` seconds, or the collector is dead.
        """

        def reached() -> bool:
            counts = self._counts()
            enough = counts.captured_events >= events
            return self.error is not None or (enough and (predicate is None or predicate(counts)))

        with self._changed:
            return self._changed.wait_for(reached, timeout) and self.error is None

    def events(self, n: int | None = None, timeout: float = 10.0) -> list[Any]:
        """The events captured so far, decoded, in the order of arrival (``keep=True``).

        Args:
            n: wait for so many first.

        Raises:
            TimeoutError: fewer than `n` came within `timeout` seconds.
            ValueError: the body of one is not JSON in the framing it names, or is nested too deep.
        """
        if n is not None and not self.wait_for(events=n, timeout=timeout):
            raise TimeoutError(f"{self.counts.captured_events} of {n} events came within {timeout} s")
        with self._changed:
            kept = list(self._kept)
        try:
            return [event for raw in kept for event in self._values(raw)]
        except RecursionError:
            raise ProtocolError("event: nested too deep") from None

    def clear(self) -> None:
        """Forget the events kept for ``events``."""
        with self._changed:
            self._kept.clear()

    def _wake(self) -> None:
        try:
            self._wake_out.send(b"!")
        except (OSError, AttributeError):
            pass  # awake already, or not started
