"""``logclient ping``: check that servers answer in their protocol, and measure how fast.

Each endpoint is checked in its own thread, with the protocol's ``Probe`` over a link of the transport.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from logclient import config
from logclient.cli.parser import add_endpoint_arguments, positive
from logclient.cli.progress import ClientMessages
from logclient.client import open_client
from logclient.config import registry
from logclient.config.documents import DocumentConfig
from logclient.delivery.attempt import Attempt
from logclient.errors import CredentialError, ExitCode, ProtocolError, describe_error
from logclient.readable import Probe, escape, shown
from logclient.records.formatters import timestamp

_GRACE_S = 1.0  # beyond the time-out for an attempt to connect, which checks the clock only at intervals

# The first bytes of answers from other servers, in lower case.
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
    """Print a line for each endpoint. UNREACHABLE: one does not answer correctly."""
    code = ExitCode.OK
    given = config.parse(arguments.url)
    checks = check_endpoints(given, arguments.timeout, count=arguments.count, event=arguments.event)
    with ClientMessages():  # the line includes them
        for check in checks:
            print(json.dumps(check.fields()) if arguments.json else escape(check.line()), flush=True)
            if check.status != "ok":
                code = ExitCode.UNREACHABLE
    return code


def check_endpoints(
    given: config.Config, timeout: float, *, count: int = 1, event: bool = False
) -> Iterator[EndpointCheck]:
    """Test all endpoints of a configuration at once; yield the checks in the order of the endpoints."""
    given = given.for_tests().replace(connect_timeout=min(given.connect_timeout, timeout))
    transport = registry.load(registry.lookup(given.scheme).transport)(given)
    checks = [
        EndpointCheck(given, endpoint, transport, timeout, count, event) for endpoint in given.endpoints
    ]
    threads = [threading.Thread(target=check.run, daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout + _GRACE_S
    for check, thread in zip(checks, threads, strict=True):
        # Wait in slices: a Ctrl-C that comes just before a wait does not end that wait.
        while thread.is_alive() and not (check.connecting and time.monotonic() > end):
            thread.join(0.1)
        if check.connecting:  # in a name look-up, which cannot be stopped: abandon the thread
            check = EndpointCheck(given, check.endpoint, transport, timeout, count, event)
            check.explanation = f"cannot connect: no answer to the name look-up in {timeout:g} s"
        if check.failure is not None:
            raise check.failure
        yield check


@dataclass(eq=False)
class EndpointCheck:
    """The check of one endpoint, and its results.

    Attributes:
        status: ``unreachable`` (no connection), ``refused`` (one side does not accept the other's
            credentials), ``broken`` (the connection ended without an answer), ``foreign`` (the server speaks
            another protocol), ``silent`` (no answer), or ``ok``.
        stage: The last stage that was reached: ``connect``, ``ask`` or ``event``.
        explanation: The status in words; empty: ok.
    """

    given: config.Config
    endpoint: config.Endpoint
    transport: Any
    timeout: float
    count: int
    event: bool
    connecting: bool = True
    stage: str = "connect"
    answers_tls: bool = False  # whether a TLS server answers, although the scheme is without TLS
    failure: Exception | None = None
    status: str = "unreachable"
    explanation: str = ""
    connect_s: float | None = None
    round_trips_s: list[float] = field(default_factory=list)
    event_s: float | None = None
    event_outcome: str = ""
    security: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def pump(self) -> str:
        """Which pump a client has on this machine, in the words of ``stats().pump``."""
        why_python = self.transport.why_python()
        return f"python: {why_python}" if why_python else "compiled"

    def run(self) -> None:
        """Run the check in the calling thread, and keep an unexpected exception in `failure`."""
        try:
            probe: Probe = registry.load_sibling(self.given.protocol, "Probe")(self.given)
            self._ask(probe)
            if self.status == "broken" and probe.begin_again():
                self._ask(probe)
            if self.event and self.status in ("ok", "silent"):
                self.stage = "event"
                self._send_event()
        except Exception as error:
            self.failure = error

    def _ask(self, probe: Probe) -> None:
        begun = time.monotonic()
        # One address of a name may use the whole time-out; all of them together get half a second more.
        end = begun + self.timeout + _GRACE_S / 2
        try:
            link = self.transport.connect(self.endpoint, Attempt(lambda: time.monotonic() > end))
            self.connect_s = time.monotonic() - begun
        except CredentialError as error:
            self.status, self.explanation = "refused", str(error)
            return
        except OSError as error:
            self.explanation = f"cannot connect: {describe_error(error)}"
            return
        finally:
            self.connecting = False
        self.stage = "ask"
        try:
            self._measure(link, probe)
        except (CredentialError, ProtocolError) as error:
            # After the handshake in TLS 1.3; or an answer of Logux.
            self.status, self.explanation = "refused", str(error)
        except OSError as error:
            self._broken(describe_error(error))
        finally:
            link.close()

    def _measure(self, link: Any, probe: Probe) -> None:
        self.security = link.facts()
        self.about = probe.about
        for _ in range(self.count):
            begun = time.monotonic()
            question = probe.ask()
            if not question:
                self.explanation = "but this protocol has no answers"
                break
            link.send(question)
            if not self._await_answer(link, probe, begun):
                return
            self.round_trips_s.append(time.monotonic() - begun)
            if "time_ms" in self.about:
                middle = time.time() - self.round_trips_s[-1] / 2
                self.about["clock_ms"] = round(self.about.pop("time_ms") - middle * 1000)
        self.status = "ok"

    def _await_answer(self, link: Any, probe: Probe, begun: float) -> bool:
        """Wait for the right answer; without it the status is set."""
        repeated = False
        while True:
            waited = time.monotonic() - begun
            if waited >= self.timeout:
                self.status = "silent"
                self.explanation = f"then silence for {self.timeout:g} s: {probe.silence}"
                return False
            if not repeated and waited >= self.timeout / 2:
                repeated = True
                if again := probe.insist():
                    link.send(again)
            link.wait(min(self.timeout - waited, 0.05), False)
            data = link.receive()
            if data is None:
                continue
            if not data:
                self._broken("it closed the connection")
                return False
            answered = probe.receive_data(data)
            if answered is None:
                continue
            if answered:
                return True
            found = [server for begin, server in _OTHER_SERVERS if data.lower().startswith(begin)]
            server = found[0] if found else "something else"
            self.status = "foreign"
            self.answers_tls = server == "a TLS server"
            if (secret := self.given.options.get("token")) is not None:  # a server may echo the request
                data = data.replace(json.dumps(secret.reveal(), ensure_ascii=False)[1:-1].encode(), b"***")
            self.explanation = f"but {server} answers: {shown(data, 60)}"
            return False

    def _broken(self, why: str) -> None:
        self.status = "broken"
        self.explanation = f"then {why}, without an answer"
        if not self.given.tls and self._is_tls_server():
            self.answers_tls = True
            self.status = "foreign"
            self.explanation = "but a TLS server answers"

    def _is_tls_server(self) -> bool:
        """Try a TLS handshake: most TLS servers close other connections without an answer."""
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
        """Send one event through a client. Its text names the ping."""
        # Logjam's client turns a text into a document that the importer accepts.
        text = f"logclient ping from {socket.gethostname()}"
        event: str | dict[str, str] = text
        if isinstance(self.given, DocumentConfig):
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
                self.stage = "ask"  # the kernel took the event, which does not prove that a server exists
            else:
                self.status, self.explanation = "ok", ""
            return
        if outcome is not None:
            why = f"{outcome.status}, {outcome.reason}"
        self.status = "silent"
        self.explanation = f"an event was not acknowledged in {self.timeout:g} s{why and f': {why}'}"

    def line(self) -> str:
        """Describe the results in one line."""
        parts = []
        if self.connect_s is not None:
            parts.append(f"connected in {milliseconds(self.connect_s)}")
        if self.security:
            parts.append(describe_security(self.security))
            if self.given.tls and self.pump != "compiled":
                parts.append(f"pump in Python ({self.pump.removeprefix('python: ')})")
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
                words = f"clock {value:+d} ms" if name == "clock_ms" else f"{name.replace('_', ' ')} {value}"
                parts.append(words)
        if self.event_s is not None:
            parts.append(f"an event was {self.event_outcome} in {milliseconds(self.event_s)}")
        if self.explanation:
            parts.append(self.explanation)
        return f"{config.host_port(*self.endpoint)}: {', '.join(parts)}"

    def fields(self) -> dict[str, Any]:
        """Return the results as ``--json`` prints them."""
        return {
            "endpoint": config.host_port(*self.endpoint),
            "protocol": self.given.protocol,
            "status": self.status,
            "why": self.explanation,
            "connect_ms": self.connect_s and round(self.connect_s * 1000, 3),
            "round_trip_ms": [round(trip * 1000, 3) for trip in self.round_trips_s],
            "event_ms": self.event_s and round(self.event_s * 1000, 3),
            "about": self.about or None,
            "tls": self.security or None,
            "pump": self.pump,
        }


def describe_security(facts: dict[str, Any]) -> str:
    """Describe the encryption of a connection and the server's certificate or key; `facts` are a link's."""
    if "mechanism" in facts:  # of ZeroMQ
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


def milliseconds(seconds: float) -> str:
    """Format a short time in milliseconds."""
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
