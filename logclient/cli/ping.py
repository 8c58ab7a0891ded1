"""``logclient ping``: check that servers can be reached and answer in their protocol, and how fast.

Each endpoint is checked in its own thread, with the protocol's ``Probe`` over a link of the transport. A
probe adds no event to any index. ``--event`` does, through an ordinary client.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from logclient import config, registry
from logclient.cli.messages import ClientMessages
from logclient.cli.parser import add_endpoint_arguments, positive
from logclient.errors import CredentialError, ExitCode, ProtocolError
from logclient.readable import escape, shown
from logclient.transports.attempt import Attempt

__all__ = [
    "EndpointCheck",
    "add_arguments",
    "describe_error",
    "describe_security",
    "milliseconds",
    "run",
    "check_endpoints",
]

_GRACE_S = 1.0
"""Seconds beyond the time-out for an attempt to connect, which looks at the clock only now and then."""

# How the answers of other servers begin.
_OTHER_SERVERS = (
    (b"http/", "an HTTP server"),
    (b"<html", "an HTTP server"),
    (b"<!doctype html", "an HTTP server"),
    (b"\x15\x03", "a TLS server"),
    (b"ssh-", "an SSH server"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "checked", "each answer", "results")
    parser.add_argument(
        "--count", type=positive, default=1, metavar="N", help="round trips to measure (default: 1)"
    )
    parser.add_argument(
        "--event", action="store_true", help="also send one event and wait for its acknowledgement"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each endpoint; returns UNREACHABLE unless all of them answer correctly."""
    code = ExitCode.OK
    given = config.parse(arguments.url)
    checks = check_endpoints(given, arguments.timeout, count=arguments.count, event=arguments.event)
    with ClientMessages():  # the line says it
        for check in checks:
            print(json.dumps(check.fields()) if arguments.json else escape(check.line()), flush=True)
            if check.status != "ok":
                code = ExitCode.UNREACHABLE
    return code


def check_endpoints(
    given: config.Config, timeout: float, *, count: int = 1, event: bool = False
) -> Iterator[EndpointCheck]:
    """Test all endpoints of a configuration at once.

    Args:
        given: The configuration; its ledger and state file are not used.
        timeout: Seconds for the connection, and for each answer.
        count: Round trips to measure.
        event: Send an event, too.

    Returns:
        The finished checks, in the order of the endpoints.
    """
    given = given.without_files().replace(connect_timeout=min(given.connect_timeout, timeout))
    transport = registry.load(registry.lookup(given.scheme).transport).from_config(given)
    checks = [
        EndpointCheck(given, endpoint, transport, timeout, count, event) for endpoint in given.endpoints
    ]
    threads = [threading.Thread(target=check.run, daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout + _GRACE_S
    for check, thread in zip(checks, threads, strict=True):
        # In slices: a Ctrl-C that comes just before a wait does not end that wait.
        while thread.is_alive() and not (check.connecting and time.monotonic() > end):
            thread.join(0.1)
        if check.connecting:  # in a name look-up, which cannot be stopped: leave that thread behind
            check = EndpointCheck(given, check.endpoint, transport, timeout, count, event)
            check.words = f"cannot connect: no answer to the name look-up in {timeout:g} s"
        if check.failure is not None:
            raise check.failure
        yield check


class EndpointCheck:
    """The check of one endpoint, and its results.

    ``status`` is one of: ``unreachable`` (no connection), ``refused`` (one side does not accept the other's
    credentials), ``broken`` (the connection ended without an answer), ``foreign`` (the server speaks
    something else), ``silent`` (no answer), ``ok``. ``stage`` is how far it came: ``connect``, ``ask`` or
    ``event``.
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
        self.stage = "connect"
        self.answers_tls = False  # although the scheme is without TLS
        self.failure: Exception | None = None
        self.status = "unreachable"
        self.words = ""
        self.connect_s: float | None = None
        self.round_trips_s: list[float] = []
        self.event_s: float | None = None
        self.event_outcome = ""
        self.security: dict[str, Any] = {}
        self.about: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Host and port."""
        return config.host_port(*self.endpoint)

    def run(self) -> None:
        """Run the check in the calling thread; an unexpected exception is kept in `failure`."""
        try:
            self._run()
        except Exception as error:
            self.failure = error

    def _run(self) -> None:
        begun = time.monotonic()
        # Each address of a name has the whole time-out; all of them together hardly more.
        end = begun + self.timeout + _GRACE_S / 2
        try:
            link = self.transport.connect(self.endpoint, Attempt(lambda: time.monotonic() > end))
            self.connect_s = time.monotonic() - begun
        except CredentialError as error:
            self.status, self.words = "refused", str(error)
            return
        except OSError as error:
            self.words = f"cannot connect: {describe_error(error)}"
            return
        finally:
            self.connecting = False
        self.stage = "ask"
        try:
            self._probe(link)
        except (
            CredentialError,
            ProtocolError,
        ) as error:  # after the handshake in TLS 1.3; an answer of Logux
            self.status, self.words = "refused", str(error)
        except OSError as error:
            self._broken(describe_error(error))
        finally:
            link.close()
        if self.event and self.status in ("ok", "silent"):
            self.stage = "event"
            self._send_event()

    def _probe(self, link: Any) -> None:
        self.security = link.facts()
        probe = registry.load_sibling(self.given.protocol, "Probe")(self.given)
        self.about = probe.about
        for _ in range(self.count):
            begun = time.monotonic()
            question = probe.ask()
            if not question:
                self.words = "but this protocol has no answers"
                break
            link.send(question)
            if not self._await_answer(link, probe, begun):
                return
            self.round_trips_s.append(time.monotonic() - begun)
            if "time_ms" in self.about:
                middle = time.time() - self.round_trips_s[-1] / 2
                self.about["clock_ms"] = round(self.about.pop("time_ms") - middle * 1000)
        self.status = "ok"

    def _await_answer(self, link: Any, probe: Any, begun: float) -> bool:
        """Wait for the answer; returns False when there is none, and sets the status."""
        repeated = False
        while True:
            waited = time.monotonic() - begun
            if waited >= self.timeout:
                self.status = "silent"
                self.words = f"then silence for {self.timeout:g} s: {probe.silence}"
                return False
            if not repeated and waited >= self.timeout / 2:
                repeated = True
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
                self._foreign(data)
            return answered

    def _foreign(self, data: bytes) -> None:
        server = next(
            (server for begin, server in _OTHER_SERVERS if data.lower().startswith(begin)), "something else"
        )
        self.status = "foreign"
        self.answers_tls = server == "a TLS server"
        self.words = f"but {server} answers: {shown(self._without_token(data), 60)}"

    def _without_token(self, data: bytes) -> bytes:
        """Mask our token in an answer: a server may send back what it received."""
        secret = self.given.options.get("token")
        if secret is None:
            return data
        token = json.dumps(secret.reveal(), ensure_ascii=False)[1:-1]
        return data.replace(token.encode(), b"***")

    def _broken(self, why: str) -> None:
        self.status = "broken"
        self.words = f"then {why}, without an answer"
        if not self.given.tls and self._tries_tls():
            self.answers_tls = True
            self.status = "foreign"
            self.words = "but a TLS server answers"

    def _tries_tls(self) -> bool:
        """Try a TLS handshake: most TLS servers end other connections without an answer."""
        import socket
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with socket.create_connection(self.endpoint, self.timeout) as plain:
                context.wrap_socket(plain).close()
        except ssl.SSLError as error:
            return "_ALERT_" in (error.reason or "")  # refused, but in TLS
        except OSError:
            return False
        return True

    def _send_event(self) -> None:
        """Send one event through a client; its text says that it is a ping."""
        from socket import gethostname

        from logclient.client import open_client
        from logclient.formatters import timestamp

        # Logjam's client makes a document of a text that its importer takes.
        text = f"logclient ping from {gethostname()}"
        event: str | dict[str, str] = text
        if registry.lookup(self.given.scheme).document == "ecs":
            event = {"@timestamp": timestamp(), "message": text, "tags": "logclient-ping"}
        begun = time.monotonic()
        client = open_client(self.given.replace(endpoints=(self.endpoint,)))
        try:
            outcome = client.submit(event).result(self.timeout)
            taken = time.monotonic() - begun
            why = client.stats().last_error.removeprefix(f"{self.given.redacted}: ")
        finally:
            client.close(timeout=0.0)
        if outcome is not None and outcome.status in ("acked", "handed"):
            self.event_s = taken
            self.event_outcome = "acknowledged" if outcome.status == "acked" else "handed over"
            if self.status == "silent" and outcome.status == "handed":
                self.stage = "ask"  # the kernel took it, which says nothing of a server
            else:
                self.status, self.words = "ok", ""
            return
        if outcome is not None:
            why = f"{outcome.status}, {outcome.reason}"
        self.status = "silent"
        self.words = f"an event was not acknowledged in {self.timeout:g} s{why and f': {why}'}"

    # -- the results

    def line(self) -> str:
        """Describe the results in one line."""
        parts = []
        if self.connect_s is not None:
            parts.append(f"connected in {milliseconds(self.connect_s)}")
        if self.security:
            parts.append(describe_security(self.security))
        if self.round_trips_s and self.status != "foreign":
            trips = sorted(self.round_trips_s)
            if self.count == 1:
                words = milliseconds(trips[0])
            else:
                median = trips[len(trips) // 2]
                words = f"{milliseconds(trips[0])} to {milliseconds(trips[-1])}"
                words += f", median {milliseconds(median)} of {len(trips)}"
            parts.append(f"{self.given.protocol} answers in {words}")
            for name, value in self.about.items():
                parts.append(
                    f"clock {value:+d} ms" if name == "clock_ms" else f"{name.replace('_', ' ')} {value}"
                )
        if self.event_s is not None:
            parts.append(f"an event was {self.event_outcome} in {milliseconds(self.event_s)}")
        if self.words:
            parts.append(self.words)
        return f"{self.name}: {', '.join(parts)}"

    def fields(self) -> dict[str, Any]:
        """Return the results as ``--json`` prints them."""
        return {
            "endpoint": self.name,
            "protocol": self.given.protocol,
            "status": self.status,
            "why": self.words,
            "connect_ms": _rounded(self.connect_s),
            "round_trip_ms": [_rounded(trip) for trip in self.round_trips_s],
            "event_ms": _rounded(self.event_s),
            "about": self.about or None,
            "tls": self.security or None,
        }


def describe_security(facts: dict[str, Any]) -> str:
    """Describe the encryption of a connection and the server's certificate or key.

    Args:
        facts: Of a link, as its ``facts()`` returns them.
    """
    if "mechanism" in facts:  # ZeroMQ's
        return f"{facts['mechanism']}, the server has the expected key"
    words = f"{facts['version']} {facts['cipher']}"
    if "not_after" not in facts:
        return f"{words}, certificate not verified"
    names = facts["names"]
    subject = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    days = facts["days_left"]
    return (
        f"{words}, certificate for {subject or facts['subject']} from {facts['issuer']} "
        f"until {facts['not_after'][:10]} ({days} day{'s'[: days != 1]} left)"
    )


def describe_error(error: OSError) -> str:
    """Describe an error in the middle of a sentence."""
    text = str(error.strerror or error or type(error).__name__)
    return text[:1].lower() + text[1:] if error.strerror else text


def milliseconds(seconds: float) -> str:
    """Write a short time in milliseconds."""
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
