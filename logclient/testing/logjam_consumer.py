"""A `Subscriber` in a thread of its own that captures the messages of Logjam devices, until it is stopped."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from logclient.config.hosts import host_port
from logclient.errors import LedgerError, LogclientError
from logclient.logjam.subscriber import Device, Message, Subscriber
from logclient.threads import Thread

__all__ = ["Consumer", "Counts"]

SCHEME = "logjam+sub"

_LOOK = 0.1  # seconds between two checks for the stop
_DRAIN = 2.0  # seconds, at most, to read the messages that have arrived at the end


class Counts(NamedTuple):
    """Counters of a consumer. All but the first one count messages of any app-env."""

    messages: int = 0  # of the chosen app-envs and topics
    captured_messages: int = 0  # heartbeats included
    heartbeats: int = 0
    devices: int = 0
    missing_at_least: int = 0
    restarts_at_least: int = 0
    refused: int = 0  # invalid messages


class Consumer:
    """Captures the messages of devices, in a thread of its own. A context manager; see `Subscriber`."""

    def __init__(
        self, endpoints: Iterable[tuple[str, int]], *, capture: str | None, keep: bool = False, **options: Any
    ) -> None:
        places = [host_port(*endpoint) for endpoint in endpoints]
        self.url = f"{SCHEME}://{','.join(places)}"
        self.error: BaseException | None = None  #: the error that ended the thread, if any
        self.capture_error = ""  #: the reason for which capturing stopped
        # While the thread runs, these are of a moment ago.
        self.counts = Counts()
        self.known: list[Device] = []
        self.reasons: dict[str, int] = {}  #: why messages were refused, and how often
        self.unreached: list[str] = []  #: endpoints where no device has answered yet
        self._endpoints = [f"tcp://{place}" for place in places]
        listener = re.sub(r"[^A-Za-z0-9.-]", "_", f"logjam-sub-{places[0].replace(':', '-')}")
        capture = None if capture is None else os.path.abspath(capture)
        self._options = {"capture": capture, "listener": listener, **options}
        self._keep = keep
        self._kept: deque[Message] = deque()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def listens(self) -> dict[str, Any]:
        return {"url": self.url, "connects": self._endpoints}

    @property
    def report(self) -> dict[str, Any]:
        known = [{k: v for k, v in device._asdict().items() if k != "seen"} for device in self.known]
        return {**self.counts._asdict(), "known": known, "reasons": self.reasons}

    @property
    def summary(self) -> str:
        counts = self.counts
        return (
            f"{counts.messages} messages of {counts.devices} devices, at least {counts.missing_at_least} "
            f"missing, at least {counts.restarts_at_least} restarts"
        )

    def start(self) -> Self:
        """Connect, and begin to read. The errors are those of `Subscriber`."""
        subscriber = Subscriber(self._endpoints, **self._options)
        self._thread = Thread(target=self._serve, args=(subscriber,), name="logclient-consumer", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Read the messages that have arrived, and close the capture. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self, subscriber: Subscriber) -> None:
        try:
            with subscriber:
                messages = 0
                look = 0.0
                while not self._stopping.is_set():
                    messages += self._receive(subscriber, _LOOK)
                    if time.monotonic() >= look:
                        self._update(subscriber, messages)
                        look = time.monotonic() + _LOOK
                end = time.monotonic() + _DRAIN
                more = True
                while more and time.monotonic() < end:
                    before = subscriber.taken
                    wanted = self._receive(subscriber, 0.0)
                    messages += wanted
                    more = wanted or subscriber.taken != before
                self._update(subscriber, messages)
        except LedgerError as error:
            self.capture_error = str(error)
        except BaseException as error:
            self.error = error
            raise

    def _receive(self, subscriber: Subscriber, timeout: float) -> bool:
        message = subscriber.receive(timeout)
        if message is not None and self._keep:
            self._kept.append(message)
        return message is not None

    def take(self) -> list[Any]:
        """Return the bodies that came since the last call, as JSON values; what is no JSON becomes a text."""
        found: list[Any] = []
        while self._kept:
            message = self._kept.popleft()
            try:
                found.append(message.document())
            except (LogclientError, ValueError):
                found.append(message.payload.decode("utf-8", "backslashreplace"))
        return found

    def _update(self, subscriber: Subscriber, messages: int) -> None:
        known = list(subscriber.devices.values())
        self.known, self.reasons, self.unreached = known, subscriber.refused, subscriber.unreached
        self.counts = Counts(
            messages,
            subscriber.captured,
            sum(device.heartbeats for device in known),
            len(known),
            sum(device.missing_at_least for device in known),
            sum(device.restarts_at_least for device in known),
            sum(self.reasons.values()),
        )
