"""Which endpoint is tried next, and when.

After a failure the next endpoint is tried after a back-off with full jitter, which an acknowledgement
resets. An endpoint that refuses our credentials, or whose credentials we refuse, is reported once and tried
at the slower pace of its own credential back-off, while the others are tried as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logclient.config.hosts import host_port
from logclient.delivery.backoff import Backoff, random
from logclient.standard import time

if TYPE_CHECKING:
    from logclient.config.common import Config
    from logclient.delivery.error_log import Diagnostics
    from logclient.errors import CredentialError


HOPE = 1.0
"""Seconds after which an attempt to connect is not waited for by a caller that has no time."""


class CredentialBackoff:
    """The wait for an endpoint until its credentials, or ours, are corrected."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.not_before = 0.0
        self.reported: tuple[object, ...] = ()  # the error that was reported last


class Endpoints:
    """The endpoints of one client, tried in turn from the last one that worked, and its back-off."""

    def __init__(self, endpoints: tuple[Any, ...], config: Config, diagnostics: Diagnostics) -> None:
        self._endpoints = endpoints
        self._config = config
        self._diagnostics = diagnostics
        self._index = 0
        self._refused: dict[int, CredentialBackoff] = {}  # by the endpoint's index
        self.backoff = Backoff(config.backoff_min, config.backoff_max)
        self.not_before = 0.0
        """The monotonic second of the next attempt."""
        self.failing = False
        """Whether the last attempt to connect failed."""
        self.attempt_at = 0.0
        """The monotonic second at which the attempt under way began; 0: there is none."""
        self._away_since = 0.0  # the first failure to connect, and whether the error log has a line of one
        self._away_said = False

    @property
    def current(self) -> Any:
        return self._endpoints[self._index]

    @property
    def peer(self) -> str:
        """The name of `current` in reports."""
        endpoint = self.current
        return host_port(*endpoint) if isinstance(endpoint, tuple) else str(endpoint)

    @property
    def hopeful(self) -> bool:
        """Whether the next connection may be quick: none was tried yet, or the last attempt succeeded."""
        begun = self.attempt_at
        return not self.failing and (not begun or time.monotonic() - begun < HOPE)

    @property
    def all_refused(self) -> bool:
        return len(self._refused) >= len(self._endpoints)

    @property
    def at_first(self) -> bool:
        return self._index == 0

    def return_to_first(self) -> float:
        """Go on to the first endpoint; return the monotonic second from which on it may be tried."""
        self._index = 0
        refused = self._refused.get(0)
        return 0.0 if refused is None else refused.not_before

    def others(self, now: float) -> list[Any]:
        """Return the endpoints besides `current` that may be tried now, in their order."""
        count = len(self._endpoints)
        waits = {index for index, refused in list(self._refused.items()) if refused.not_before > now}
        found = ((self._index + further) % count for further in range(1, count))
        return [self._endpoints[index] for index in found if index not in waits]

    def use(self, endpoint: Any) -> None:
        if endpoint != self.current:  # which may be there twice
            self._index = self._endpoints.index(endpoint)

    def advance(self) -> None:
        self._index = (self._index + 1) % len(self._endpoints)

    def skip_refused(self, now: float) -> None:
        for _ in self._endpoints:
            refused = self._refused.get(self._index)
            if refused is None or refused.not_before <= now:
                break
            self.advance()

    def acknowledged(self) -> None:
        """Reset all back-off of the current endpoint: it has acknowledged something."""
        self.recovered()
        self._refused.pop(self._index, None)

    def recovered(self) -> None:
        """Reset the back-off, and report the end of a failure that was reported."""
        self.backoff.reset()
        if self._away_said:
            seconds = time.monotonic() - self._away_since
            self._diagnostics.recovered(f"delivers to {self.peer}, after {seconds:.1f} s without a server")
        self._away_since, self._away_said = 0.0, False

    def _delay(self) -> float:
        """Return the seconds until the next attempt: one wait for each round of all endpoints."""
        return self.backoff.delay() if self.at_first else self.backoff.shortest * random()

    def failed(self, text: str, kind: str, peer: str = "") -> None:
        """Report a failure, of a server or of this process, and set the time of the next attempt."""
        now = time.monotonic()
        self.not_before = now + (self.backoff.delay() if kind == "shortage" else self._delay())
        said = self._diagnostics.report(kind, text, peer)
        if kind == "connect":
            self._away_since = self._away_since or now
            self._away_said = self._away_said or said

    def refused(self, peer: str, error: CredentialError) -> None:
        """Report refused credentials once, and try this endpoint at the slow pace."""
        refused = self._refused.get(self._index)
        if refused is None:
            slow = Backoff(self._config.auth_backoff_min, self._config.auth_backoff_max, certain=0.5)
            refused = self._refused[self._index] = CredentialBackoff(slow)
        delay = refused.backoff.delay()
        refused.not_before = time.monotonic() + delay
        self.advance()
        # With another endpoint to try, the usual pace; else until the first of them is due.
        if self.all_refused:
            self.not_before = min(one.not_before for one in self._refused.values())
        else:
            self.not_before = time.monotonic() + self._delay()
        words = f"{peer}: {error}; nothing is sent there until that is corrected"
        if refused.reported != error.args:
            refused.reported = error.args
            soon = f"{delay:.0f}" if delay >= 10 else f"{delay:.2g}"
            self._diagnostics.report(f"credentials {peer} {error}", f"{words}; next try in {soon} s")
        self._diagnostics.note(words)
