"""``logclient ping``: is it there, does it speak the protocol, how far is it, who does it say it is.

Each endpoint is asked by a thread of its own, with the ``Probe`` of the protocol over a link of the
transport. A probe puts no event into anybody's index; ``--event`` does, through a client like any other.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from logclient import config, registry
from logclient.cli import Complaints
from logclient.errors import CredentialError, ExitCode, ProtocolError
from logclient.protocols.readable import escape, shown
from logclient.transports.attempt import Attempt

__all__ = ["Call", "calls", "duration", "identity", "run", "words_of"]

_GRACE_S = 1.0  # a connection attempt looks at the clock now and then

# How others begin to speak. What they say is shown too.
_OTHERS = (
    (b"http/", "an HTTP server"),
    (b"<html", "an HTTP server"),
    (b"<!doctype html", "an HTTP server"),
    (b"\x15\x03", "a TLS server"),
    (b"ssh-", "an SSH server"),
)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each endpoint; `UNREACHABLE` unless all of them answer as they should."""
    code = ExitCode.OK
    given = config.parse(arguments.url)
    found = calls(given, arguments.timeout, count=arguments.count, event=arguments.event)
    with Complaints():  # what they say is in the line
        for call in found:
            print(json.dumps(call.fields()) if arguments.json else escape(call.line()), flush=True)
            if call.status != "ok":
                code = ExitCode.UNREACHABLE
    return code


def calls(given: config.Config, timeout: float, *, count: int = 1, event: bool = False) -> Iterator[Call]:
    """Ask each endpoint, all at once; what is known of each, in their order.

    Args:
        given: whom, and how.
        timeout: seconds for the connection, and for each answer.
        count: round trips to measure.
        event: whether to send an event, too.
    """
    given = given._replace(connect_timeout=min(given.connect_timeout, timeout), ledger=None, state=None)
    transport = registry.load(registry.lookup(given.scheme).transport).from_config(given)
    asked = [Call(given, endpoint, transport, timeout, count, event) for endpoint in given.endpoints]
    threads = [threading.Thread(target=call.run, daemon=True) for call in asked]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout + _GRACE_S
    for call, thread in zip(asked, threads, strict=True):
        # In slices: a Ctrl-C that comes a moment before a wait does not end that wait.
        while thread.is_alive() and not (call.connecting and time.monotonic() > end):
            thread.join(0.1)
        if call.connecting:  # in a name look-up, which nobody can stop: leave it to itself
            call = Call(given, call.endpoint, transport, timeout, count, event)
            call.words = f"cannot connect: no answer to the name look-up in {timeout:g} s"
        if call.failure is not None:
            raise call.failure
        yield call


class Call:
    """One endpoint, and what is known of it.

    ``status``: ``unreachable`` (no connection), ``refused`` (one side does not accept who the other is),
    ``broken`` (the connection ended without an answer), ``foreign`` (it speaks something else),
    ``silent`` (nothing came back), ``ok``.
    """

    def __init__(
        self,
        given: config.Config,
        endpoint: config.Endpoint,
        transport: Any,
        timeout: float,
        count: int,
        event: bool,
    ) -> None:
        self.given = given
        self.endpoint = endpoint
        self.transport = transport
        self.timeout = timeout
        self.count = count
        self.event = event
        self.connecting = True
        self.stage = "connect"  # then ask, then event: how far it came
        self.is_tls = False  # it turned out to be, though it was not meant to
        self.failure: Exception | None = None
        self.status = "unreachable"
        self.words = ""
        self.connect_s: float | None = None
        self.round_trips_s: list[float] = []
        self.event_s: float | None = None
        self.event_fate = ""
        self.facts: dict[str, Any] = {}
        self.about: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return config.host_port(*self.endpoint)

    def run(self) -> None:
        try:
            self._call()
        except Exception as error:  # a bug of ours: for the main thread to raise
            self.failure = error

    def _call(self) -> None:
        begun = time.monotonic()
        # Each address of a name has the time-out; all of them together hardly more.
        end = begun + self.timeout + _GRACE_S / 2
        try:
            link = self.transport.connect(self.endpoint, Attempt(lambda: time.monotonic() > end))
            self.connect_s = time.monotonic() - begun
        except CredentialError as error:
            self.status, self.words = "refused", str(error)
            return
        except OSError as error:
            self.words = f"cannot connect: {words_of(error)}"
            return
        finally:
            self.connecting = False
        self.stage = "ask"
        try:
            self._ask(link)
        except (CredentialError, ProtocolError) as error:  # in TLS 1.3 after the handshake; Logux's answer
            self.status, self.words = "refused", str(error)
        except OSError as error:
            self._broken(words_of(error))
        finally:
            link.close()
        if self.event and self.status in ("ok", "silent"):
            self.stage = "event"
            self._send()

    def _ask(self, link: Any) -> None:
        self.facts = link.facts()
        probe = registry.load_sibling(self.given.protocol, "Probe")(self.given)
        self.about = probe.about
        for _ in range(self.count):
            begun = time.monotonic()
            question = probe.ask()
            if not question:
                self.words = "where nothing is ever answered"
                break
            link.send(question)
            if not self._heard(link, probe, begun):
                return
            self.round_trips_s.append(time.monotonic() - begun)
            if "time_ms" in self.about:
                middle = time.time() - self.round_trips_s[-1] / 2
                self.about["clock_ms"] = round(self.about.pop("time_ms") - middle * 1000)
        self.status = "ok"

    def _heard(self, link: Any, probe: Any, begun: float) -> bool:
        """Wait for the answer; False when another status was found."""
        insisted = False
        while True:
            waited = time.monotonic() - begun
            if waited >= self.timeout:
                self.status = "silent"
                self.words = f"then silence for {self.timeout:g} s: {probe.silence}"
                return False
            if not insisted and waited >= self.timeout / 2:
                insisted = True
                if again := probe.insist():
                    link.send(again)
            link.wait(-1, min(self.timeout - waited, 0.05), False)
            data = link.receive()
            if data is None:
                continue
            if not data:
                self._broken("it closed the connection")
                return False
            answered: bool | None = probe.receive_data(data)
            if answered is None:
                continue
            if not answered:
                self.status = "foreign"
                who = next(
                    (who for begin, who in _OTHERS if data.lower().startswith(begin)), "something else"
                )
                self.is_tls = who == "a TLS server"
                self.words = f"but {who} answers: {shown(self._without_token(data), 60)}"
            return answered

    def _without_token(self, data: bytes) -> bytes:
        """What answers may send back what it was told."""
        token = getattr(self.given, "token", None)
        if token is None:
            return data
        return data.replace(json.dumps(token.reveal(), ensure_ascii=False)[1:-1].encode(), b"***")

    def _broken(self, why: str) -> None:
        self.status = "broken"
        self.words = f"then {why}, without an answer"
        if not self.given.tls and self._shakes_hands():
            self.is_tls = True
            self.status = "foreign"
            self.words = "but a TLS server answers"

    def _shakes_hands(self) -> bool:
        """Whether a handshake gets anywhere: most TLS servers hang up on what is none, without a word."""
        import socket
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with socket.create_connection(self.endpoint, self.timeout) as plain:
                context.wrap_socket(plain).close()
        except ssl.SSLError as error:
            return "_ALERT_" in (error.reason or "")  # it refuses, in TLS
        except OSError:
            return False
        return True

    def _send(self) -> None:
        """One event through a client, marked as what it is."""
        from socket import gethostname

        from logclient.client import open_client
        from logclient.formatters import timestamp

        # Logjam's client makes a document of a text that its importer takes.
        text = f"logclient ping from {gethostname()}"
        event: str | dict[str, str] = text
        if registry.lookup(self.given.scheme).document == "ecs":
            event = {"@timestamp": timestamp(), "message": text, "tags": "logclient-ping"}
        begun = time.monotonic()
        client = open_client(self.given._replace(endpoints=(self.endpoint,)))
        try:
            outcome = client.submit(event).result(self.timeout)
            taken = time.monotonic() - begun
            why = client.stats().last_error.removeprefix(f"{self.given.redacted}: ")
        finally:
            client.close(timeout=0.0)
        if outcome is not None and outcome.status in ("acked", "handed"):
            self.event_s = taken
            self.event_fate = "acknowledged" if outcome.status == "acked" else "handed over"
            if self.status == "silent" and outcome.status == "handed":
                self.stage = "ask"  # that the kernel took it says nothing of a server
            else:
                self.status, self.words = "ok", ""
            return
        if outcome is not None:
            why = f"{outcome.status}, {outcome.reason}"
        self.status = "silent"
        self.words = f"an event was not acknowledged in {self.timeout:g} s{why and f': {why}'}"

    # -- what was found

    def line(self) -> str:
        parts = []
        if self.connect_s is not None:
            parts.append(f"connected in {duration(self.connect_s)}")
        if self.facts:
            parts.append(identity(self.facts))
        if self.round_trips_s and self.status != "foreign":
            trips = sorted(self.round_trips_s)
            if self.count == 1:
                words = duration(trips[0])
            else:
                middle = trips[len(trips) // 2]
                words = f"{duration(trips[0])} to {duration(trips[-1])}"
                words += f", median {duration(middle)} of {len(trips)}"
            parts.append(f"{self.given.protocol} answers in {words}")
            for name, value in self.about.items():
                parts.append(
                    f"clock {value:+d} ms" if name == "clock_ms" else f"{name.replace('_', ' ')} {value}"
                )
        if self.event_s is not None:
            parts.append(f"an event was {self.event_fate} in {duration(self.event_s)}")
        if self.words:
            parts.append(self.words)
        return f"{self.name}: {', '.join(parts)}"

    def fields(self) -> dict[str, Any]:
        return {
            "endpoint": self.name,
            "protocol": self.given.protocol,
            "status": self.status,
            "why": self.words,
            "connect_ms": _rounded(self.connect_s),
            "round_trip_ms": [_rounded(trip) for trip in self.round_trips_s],
            "event_ms": _rounded(self.event_s),
            "about": self.about or None,
            "tls": self.facts or None,
        }


def identity(facts: dict[str, Any]) -> str:
    """What protects it, in words."""
    if "mechanism" in facts:  # ZeroMQ's
        return f"{facts['mechanism']}, the server has the key that was expected"
    words = f"{facts['version']} {facts['cipher']}"
    if "not_after" not in facts:
        return f"{words}, certificate not verified"
    names = facts["names"]
    who = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    days = facts["days_left"]
    return (
        f"{words}, certificate for {who or facts['subject']} from {facts['issuer']} "
        f"until {facts['not_after'][:10]} ({days} day{'s'[: days != 1]} left)"
    )


def words_of(error: OSError) -> str:
    text = str(error.strerror or error or type(error).__name__)
    return text[:1].lower() + text[1:] if error.strerror else text


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
