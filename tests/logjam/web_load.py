"""Load for web applications, and the check of their Logjam documents.

Clients make requests over kept connections and note the responses. Each request has a marker, which is in
each line that the application logs for it. `assert_documents` compares the notes with the device's capture:
there is one document for every request, with its own lines only.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from logclient.files.capture import FROM_PEER, CaptureReader
from logclient.logjam.messages import decompress, frames
from logclient.testing.logjam_device import Device
from tests.oracle.logjam_document import judge
from tests.support.patience import PATIENCE

CLIENTS = 16
MARKER = re.compile(r"\bm\d+x\d+x\d+\b")

TRACEBACK = "Traceback (most recent call last):"

LINES_DROPPED = "... [LINES DROPPED]"
GONE = "client disconnected before the end of the response"

FRONT = "web-production"
"""The calling application that clients name."""


class Kind(NamedTuple):
    """A kind of request and its expected document. ``{m}`` is the marker, ``{size}`` its length."""

    path: str
    status: int
    action: str
    lines: tuple[str, ...]
    """The beginnings of the lines; those with an exception continue."""
    severity: int = 1
    form: bool = False
    exception: str = ""
    soft_exception: str = ""
    fields: Mapping[str, Any] = {}
    """Further fields of the document; None stands for any value."""
    ends: str = ""
    """``torn``: the response may break off; ``left``: the client leaves in the middle of it."""
    weight: float = 1.0
    """How often it is asked for. Large documents are rare, as the queue would drop some."""
    besides: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(action, lines) of each further document, ordered by action."""


class Asked(NamedTuple):
    kind: str
    marker: str
    target: str
    status: int
    name: str | None
    """``<app>-<environment>-<request_id>``, from the response header."""
    caller_id: str | None
    trace_id: str | None


def load(
    port: int, kinds: Mapping[str, Kind], count: int, *, seed: int, asked: list[Asked] | None = None
) -> list[Asked]:
    """Make `count` requests in all with many clients at once, each over a kept connection.

    If a list is given, it is filled, and the clients stop quietly when the server ends.
    """
    found: list[Asked] = [] if asked is None else asked

    weights = [kind.weight for kind in kinds.values()]

    def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * PATIENCE)
        try:
            for n in range(number, count, CLIENTS):
                (kind,) = rng.choices(list(kinds), weights)
                found.append(_ask(connection, kind, kinds[kind], f"m{seed}x{number}x{n}", rng))
        except (OSError, http.client.HTTPException):
            if asked is None:
                raise
        finally:
            connection.close()

    with ThreadPoolExecutor(CLIENTS) as executor:
        for done in [executor.submit(client, number) for number in range(CLIENTS)]:
            done.result()
    return found


def _ask(
    connection: http.client.HTTPConnection, name: str, kind: Kind, marker: str, rng: random.Random
) -> Asked:
    caller = f"{FRONT}-{rng.getrandbits(128):032x}" if rng.random() < 0.5 else None
    trace = f"{rng.getrandbits(128):032x}" if rng.random() < 0.5 else None
    headers = {"X-Marker": marker, "Cookie": f"session={marker}"}
    if caller:
        headers |= {"X-Logjam-Caller-Id": caller, "X-Logjam-Action": "Web#index"}
    if trace:
        headers["traceparent"] = f"00-{trace}-{rng.getrandbits(64):016x}-01"
    target = f"{kind.path.format(m=marker)}?m={marker}&n=1&n=2&token=hunter2"
    if kind.form:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        form = urlencode({"number": marker, "card_number": "hunter2"})
        connection.request("POST", target, form, headers)
    else:
        connection.request("POST" if kind.status == 201 else "GET", target, headers=headers)
    answer = connection.getresponse()
    try:
        body = answer.read(1000 if kind.ends == "left" else None)
    except http.client.IncompleteRead as error:
        assert kind.ends == "torn"
        body = error.partial
    if kind.ends or answer.status == 500:
        connection.close()  # uvicorn closes after an exception without announcing it
    assert marker.encode() in body or kind.status == 500, body
    return Asked(name, marker, target, answer.status, answer.headers["X-Logjam-Request-Id"], caller, trace)


ODD_HEADERS = (
    "Cookie", "Referer", "User-Agent", "Authorization", "X-Logjam-Caller-Id", "X-Logjam-Action",
    "X-Logjam-Trace-Id", "X-Request-Start", "traceparent", "X-$.odd", "Content-Type", "Forwarded",
)  # fmt: skip


def odd_requests(port: int, count: int, *, seed: int) -> set[str]:
    """Make requests of random bytes; return the ids of those that the server lets through."""
    rng = random.Random(seed)
    names = set()
    for _ in range(count):
        path = quote(rng.randbytes(rng.choice([0, 3, 30, 2000])), safe="")
        query = "&".join(
            f"{quote(rng.randbytes(rng.randrange(9)))}={quote(rng.randbytes(rng.choice([0, 5, 500])))}"
            for _ in range(rng.choice([0, 1, 3, 40]))
        )
        head = [f"{rng.choice(['GET', 'PUT', 'OPTIONS'])} /{path}?{query} HTTP/1.1".encode(), b"Host: x"]
        for name in rng.sample(ODD_HEADERS, rng.randrange(len(ODD_HEADERS))):
            words = rng.randbytes(rng.choice([1, 20, 200, 1500]))
            value = words if rng.random() < 0.5 else words.hex().encode()
            head.append(name.encode() + b": x" + bytes(b for b in value if b >= 0x20 and b != 0x7F) + b"x")
        with socket.create_connection(("127.0.0.1", port), 2 * PATIENCE) as sock:
            sock.sendall(b"\r\n".join([*head, b"Connection: close", b"", b""]))
            with sock.makefile("rb") as file:
                answer = file.read()
        given = re.search(rb"(?i)^x-logjam-request-id: (\S+)", answer, re.MULTILINE)
        if given is not None:
            names.add(given[1].decode())
    return names


# -- what arrived ----------------------------------------------------------------------------------------


class Arrived(NamedTuple):
    app_env: str
    document: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.app_env}-{self.document['request_id']}"


def arrived(capture: Path) -> list[Arrived]:
    """Return the documents of a capture in order; assert that each obeys the importer's rules."""
    found, wrong = [], []
    reader = CaptureReader(capture)
    for unit in reader:
        if unit.direction != FROM_PEER:
            continue
        message = Device().receive(frames(unit.raw)).message
        assert message is not None and message.first == 1  # a request
        name = message.parts[message.first].decode()
        body = decompress(message.meta.compression, message.body, 64 << 20)
        document, rules = judge(body, now=time.time())
        assert message.topic == f"logs.{name.replace('-', '.')}".encode()
        assert "hunter2" not in body.decode()
        wrong += [f"{rule}: {body[:300]!r}" for rule in rules]
        found.append(Arrived(name, document))
    assert wrong == [] and list(reader.problems) == []
    return found


def texts(document: Mapping[str, Any]) -> list[str]:
    return [line[2] for line in document.get("lines", [])]


def of_requests(found: Sequence[Arrived], app_env: str) -> dict[str, dict[str, Any]]:
    """Return the documents of one application's HTTP requests by marker; assert one marker in each."""
    by_marker = {}
    for one in found:
        if one.app_env != app_env or "request_info" not in one.document:
            continue
        # No line, name or value of the document has the marker of another.
        markers = set(MARKER.findall(json.dumps(one.document)))
        assert len(markers) == 1, markers
        marker = markers.pop()
        assert marker not in by_marker, f"{marker}: two documents"
        by_marker[marker] = one.document
    ids = [document["request_id"] for document in by_marker.values()]
    assert len(set(ids)) == len(ids)
    return by_marker


def of_others(found: Sequence[Arrived], app_env: str) -> dict[str, list[dict[str, Any]]]:
    """Return the other documents of an application by marker, ordered by action."""
    by_marker: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        if one.app_env == app_env and "request_info" not in one.document:
            (marker,) = set(MARKER.findall(json.dumps(one.document)))
            by_marker.setdefault(marker, []).append(one.document)
    for documents in by_marker.values():
        documents.sort(key=lambda document: document["action"])
    return by_marker


def assert_lines(document: Mapping[str, Any], kind: Kind, marker: str) -> None:
    lines = texts(document)
    wanted = [line.format(m=marker, size=len(marker)) for line in kind.lines]
    if LINES_DROPPED in lines:
        assert lines.pop() == LINES_DROPPED
        assert sum(len(line.encode()) for line in [*lines, wanted[len(lines)]]) > 1 << 20
        wanted = wanted[: len(lines)]
    assert len(lines) == len(wanted), (wanted, lines)
    for line, start in zip(lines, wanted, strict=True):
        assert line == start or (line.startswith(f"{start}\n") and TRACEBACK in line), (start, line)
        assert marker in line or line == GONE


def assert_documents(
    documents: dict[str, dict[str, Any]],
    app_env: str,
    kinds: Mapping[str, Kind],
    asked: Sequence[Asked],
) -> None:
    """Assert that each request has its document, complete and correct."""
    for one in asked:
        document = documents[one.marker]
        kind = kinds[one.kind]
        assert_lines(document, kind, one.marker)
        assert document["code"] == one.status == kind.status
        assert (document["action"], document["severity"]) == (kind.action, kind.severity)
        assert one.name == f"{app_env}-{document['request_id']}"
        assert document.get("exceptions", []) == [kind.exception][: bool(kind.exception)]
        assert document.get("soft_exceptions", []) == [kind.soft_exception][: bool(kind.soft_exception)]
        info = document["request_info"]
        assert info["method"] == ("POST" if kind.status == 201 else "GET")
        assert info["url"] == one.target.replace("hunter2", "[FILTERED]")
        assert info["query_parameters"] == {"m": one.marker, "n": ["1", "2"], "token": "[FILTERED]"}
        assert info["headers"]["X-Marker"] == one.marker
        assert info["headers"]["Cookie"] == "[FILTERED]"
        form = {"number": one.marker, "card_number": "[FILTERED]"} if kind.form else None
        assert info.get("body_parameters") == form
        assert document["ip"] == "127.0.0.1"
        assert document.get("caller_id") == one.caller_id
        assert document.get("caller_action") == ("Web#index" if one.caller_id else None)
        assert document.get("trace_id") == one.trace_id
        assert document.get("client_disconnected", False) == (kind.ends == "left")
        for name, value in kind.fields.items():
            assert document[name] == (document[name] if value is None else value.format(m=one.marker))
