"""Web applications under load, and what they are owed in Logjam.

Clients ask over kept connections and note what they got; each request has a marker, which is in each line
that the application logs for it. The capture of the device says what arrived. `check` holds one against
the other: a document for every request and none besides, with its lines and nobody else's.
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

from logclient.collectors.capture import FROM_PEER, CaptureReader
from logclient.logjam.device import Device
from logclient.logjam.messages import decompress, frames
from tests.oracle.logjam_document import judge
from tests.support.patience import PATIENCE

CLIENTS = 16
MARKER = re.compile(r"\bm\d+x\d+x\d+\b")

TRACEBACK = "Traceback (most recent call last):"

LINES_DROPPED = "... [LINES DROPPED]"
GONE = "client disconnected before the end of the response"

FRONT = "web-production"
"""Who asks, as the clients say."""


class Kind(NamedTuple):
    """A kind of request, and what is owed for it. ``{m}`` is the marker, ``{size}`` its length."""

    path: str
    status: int
    action: str
    lines: tuple[str, ...]
    """As they begin; those that show an exception go on."""
    severity: int = 1
    form: bool = False
    exception: str = ""
    soft_exception: str = ""
    fields: Mapping[str, Any] = {}
    """What else the document has; a value of None: whatever it is."""
    ends: str = ""
    """``torn``: the answer may break off; ``left``: the client goes away in the middle of it."""
    weight: float = 1.0
    """How often it is asked for. A megabyte is rare: more of them than the queue holds would be dropped."""
    besides: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(action, lines) of each further document that it makes, in their order of actions."""


class Asked(NamedTuple):
    kind: str
    marker: str
    target: str
    status: int
    name: str | None
    """As the answer's header has it: ``<app>-<environment>-<request_id>``."""
    caller_id: str | None
    trace_id: str | None


def load(
    port: int, kinds: Mapping[str, Kind], count: int, *, seed: int, asked: list[Asked] | None = None
) -> list[Asked]:
    """`count` requests in all by many clients at once, each over a connection that is kept.

    With a list, which then fills, the server may end in the middle: the clients stop.
    """
    found: list[Asked] = [] if asked is None else asked

    weights = [kind.weight for kind in kinds.values()]

    def client(number: int) -> None:
        dice = random.Random(f"{seed} {number}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * PATIENCE)
        try:
            for n in range(number, count, CLIENTS):
                (kind,) = dice.choices(list(kinds), weights)
                found.append(_ask(connection, kind, kinds[kind], f"m{seed}x{number}x{n}", dice))
        except (OSError, http.client.HTTPException):
            if asked is None:
                raise
        finally:
            connection.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(client, number) for number in range(CLIENTS)]:
            done.result()
    return found


def _ask(
    connection: http.client.HTTPConnection, name: str, kind: Kind, marker: str, dice: random.Random
) -> Asked:
    caller = f"{FRONT}-{dice.getrandbits(128):032x}" if dice.random() < 0.5 else None
    trace = f"{dice.getrandbits(128):032x}" if dice.random() < 0.5 else None
    headers = {"X-Marker": marker, "Cookie": f"session={marker}"}
    if caller:
        headers |= {"X-Logjam-Caller-Id": caller, "X-Logjam-Action": "Web#index"}
    if trace:
        headers["traceparent"] = f"00-{trace}-{dice.getrandbits(64):016x}-01"
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
        connection.close()  # uvicorn does so, behind what raised, and says nothing of it in the answer
    assert marker.encode() in body or kind.status == 500, body
    return Asked(name, marker, target, answer.status, answer.headers["X-Logjam-Request-Id"], caller, trace)


ODD_HEADERS = (
    "Cookie", "Referer", "User-Agent", "Authorization", "X-Logjam-Caller-Id", "X-Logjam-Action",
    "X-Logjam-Trace-Id", "X-Request-Start", "traceparent", "X-$.odd", "Content-Type", "Forwarded",
)  # fmt: skip


def odd_requests(port: int, count: int, *, seed: int) -> set[str]:
    """Requests of random bytes; the names that answers give to those which a server lets through."""
    dice = random.Random(seed)
    names = set()
    for _ in range(count):
        path = quote(dice.randbytes(dice.choice([0, 3, 30, 2000])), safe="")
        query = "&".join(
            f"{quote(dice.randbytes(dice.randrange(9)))}={quote(dice.randbytes(dice.choice([0, 5, 500])))}"
            for _ in range(dice.choice([0, 1, 3, 40]))
        )
        head = [f"{dice.choice(['GET', 'PUT', 'OPTIONS'])} /{path}?{query} HTTP/1.1".encode(), b"Host: x"]
        for name in dice.sample(ODD_HEADERS, dice.randrange(len(ODD_HEADERS))):
            words = dice.randbytes(dice.choice([1, 20, 200, 1500]))
            value = words if dice.random() < 0.5 else words.hex().encode()
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
    """The documents of a capture, in their order; each must be as the importer wants it."""
    found, wrong = [], []
    reader = CaptureReader(capture)
    for unit in reader:
        if unit.direction != FROM_PEER:
            continue
        message = Device().receive(frames(unit.raw)).message
        assert message is not None and message.request
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
    """The documents of HTTP requests of one application: by their markers, of which each has one."""
    by_marker = {}
    for one in found:
        if one.app_env != app_env or "request_info" not in one.document:
            continue
        # In no line, name or value of the document is the marker of another.
        markers = set(MARKER.findall(json.dumps(one.document)))
        assert len(markers) == 1, markers
        marker = markers.pop()
        assert marker not in by_marker, f"{marker}: two documents"
        by_marker[marker] = one.document
    ids = [document["request_id"] for document in by_marker.values()]
    assert len(set(ids)) == len(ids)
    return by_marker


def of_others(found: Sequence[Arrived], app_env: str) -> dict[str, list[dict[str, Any]]]:
    """The other documents of an application: each marker's, by their actions."""
    by_marker: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        if one.app_env == app_env and "request_info" not in one.document:
            (marker,) = set(MARKER.findall(json.dumps(one.document)))
            by_marker.setdefault(marker, []).append(one.document)
    for documents in by_marker.values():
        documents.sort(key=lambda document: document["action"])
    return by_marker


def check_lines(document: Mapping[str, Any], kind: Kind, marker: str) -> None:
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


def check(
    documents: dict[str, dict[str, Any]],
    app_env: str,
    kinds: Mapping[str, Kind],
    asked: Sequence[Asked],
) -> None:
    """A document for each request, and it says what it must."""
    for one in asked:
        document = documents[one.marker]
        kind = kinds[one.kind]
        check_lines(document, kind, one.marker)
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
