"""A `Subscriber` in a thread of its own, which captures what Logjam devices publish until it is stopped."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from logclient.collectors.subscriber import Device, Subscriber
from logclient.config import host_port
from logclient.errors import LedgerError

__all__ = ["Consumer", "Counts"]

SCHEME = "logjam+sub"

_LOOK = 0.1  # seconds between two looks whether it is to stop
_DRAIN = 2.0  # seconds at most, at the end, for what has come and was not read yet


class Counts(NamedTuple):
    """What a consumer has got; messages of all app-envs, but for the first field."""

    messages: int = 0  # of the app-envs and topics that are wanted
    captured_messages: int = 0  # heartbeats too
    heartbeats: int = 0
    devices: int = 0
    missing_at_least: int = 0
    restarts_at_least: int = 0
    refused: int = 0  # that were no messages


class Consumer:
    """See the module. A context manager.

    Args:
        endpoints: hosts and ports where devices publish.
        capture: directory of the capture.
        options: see `Subscriber`.

    Attributes:
        error: what ended the thread, if anything did.
        capture_error: why messages could not be captured; from then on none is.
        counts: in the end; before, of a moment ago.
        known: what is known of each device, the same.
        reasons: why something that came was no message, and how often, the same.
    """

    def __init__(self, endpoints: Iterable[tuple[str, int]], *, capture: str | None, **options: Any) -> None:
        places = [host_port(*endpoint) for endpoint in endpoints]
        self.url = f"{SCHEME}://{','.join(places)}"
        self.error: BaseException | None = None
        self.capture_error = ""
        self.counts = Counts()
        self.known: list[Device] = []
        self.reasons: dict[str, int] = {}
        self.unreached: list[str] = []  # endpoints where no device ever answered
        self._endpoints = [f"tcp://{place}" for place in places]
        listener = re.sub(r"[^A-Za-z0-9.-]", "_", f"logjam-sub-{places[0].replace(':', '-')}")
        self._options = {"capture": capture, "listener": listener, **options}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def listens(self) -> dict[str, Any]:
        """What it is connected to, for whoever started it."""
        return {"url": self.url, "connects": self._endpoints}

    @property
    def report(self) -> dict[str, Any]:
        """What it has got, for programs."""
        known = [{k: v for k, v in device._asdict().items() if k != "seen"} for device in self.known]
        return {**self.counts._asdict(), "known": known, "reasons": self.reasons}

    @property
    def summary(self) -> str:
        """The same in a few words, for people."""
        counts = self.counts
        return (
            f"{counts.messages} messages of {counts.devices} devices, at least {counts.missing_at_least} "
            f"missing, at least {counts.restarts_at_least} restarts"
        )

    def start(self) -> Self:
        """Connect, and read from now on.

        Raises:
            ConfigError, LedgerError, MissingExtra: see `Subscriber`.
        """
        subscriber = Subscriber(self._endpoints, **self._options)
        self._thread = threading.Thread(
            target=self._serve, args=(subscriber,), name="logclient-consumer", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Read what has come, and close the capture. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self, subscriber: Subscriber) -> None:
        try:
            with subscriber:
                messages = 0
                look = 0.0
                while not self._stopping.is_set():
                    messages += subscriber.receive(_LOOK) is not None
                    if time.monotonic() >= look:
                        self._note(subscriber, messages)
                        look = time.monotonic() + _LOOK
                end = time.monotonic() + _DRAIN
                more = True
                while more and time.monotonic() < end:
                    before = subscriber.taken
                    wanted = subscriber.receive(0.0) is not None
                    messages += wanted
                    more = wanted or subscriber.taken != before
                self._note(subscriber, messages)
        except LedgerError as error:
            self.capture_error = str(error)
        except BaseException as error:
            self.error = error
            raise

    def _note(self, subscriber: Subscriber, messages: int) -> None:
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
