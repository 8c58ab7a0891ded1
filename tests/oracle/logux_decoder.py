"""Logux's decoder of captures in plain Python: tokens, a syntax tree, then the rules."""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

from tests.oracle.xxh64 import words, xxh64

OK, FOREIGN, NO_ID, NOT_JSON = range(4)
BAD_JSON, BAD_MESSAGE, UNKNOWN_MESSAGE, BAD_SYNC, BAD_ACTION, BAD_META, PING, CONTROL = range(4, 12)
MAX_DEPTH, MAX_DIGITS = 1024, 1000

SPACE = re.compile(rb"[ \t\r\n]*")
TOKEN = re.compile(
    rb'(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    rb"|(?P<number>-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?)"
    rb"|(?P<other>true|false|null)|(?P<mark>[\[\]{},:])"
)


class Wrong(Exception):
    """The error of invalid JSON from this byte on, or of a broken rule there."""

    def __init__(self, at: int, status: int = BAD_JSON) -> None:
        super().__init__(at, status)
        self.at = at
        self.status = status


class Node:
    """A value of a JSON text: kind and place, and the content of containers."""

    def __init__(self, kind: str, begin: int, end: int = 0) -> None:
        self.kind = kind
        self.begin = begin
        self.end = end
        self.items: list[Node] = []
        self.members: dict[str, Node] = {}  # the last one of each name

    def text(self, unit: bytes) -> bytes:
        return unit[self.begin : self.end]

    def kinds(self) -> list[str]:
        return [item.kind for item in self.items]


def _token(unit: bytes, at: int) -> tuple[str, int, int]:
    """Return kind, begin and end of the next token; a mark is its own kind, and the end has an empty one."""
    at = SPACE.match(unit, at).end()  # type: ignore[union-attr]
    if at == len(unit):
        return "", at, at
    found = TOKEN.match(unit, at)
    if found is None:
        raise Wrong(at)
    kind, end = found.lastgroup or "number", found.end()
    if found["string"]:
        try:
            found[0].decode("utf-8")
        except UnicodeDecodeError:
            raise Wrong(at) from None
    elif found["number"]:
        kind, then = "number", unit[end : end + 1]
        if then == b"." and not found["fraction"] and not found["exponent"]:
            raise Wrong(at)
        if then in (b"e", b"E") and not found["exponent"]:
            raise Wrong(at)
        if len(found[0]) > MAX_DIGITS or math.isinf(float(found[0])):
            raise Wrong(at)
    elif found["mark"]:
        kind = found[0].decode()
    return kind, at, end


def parse(unit: bytes) -> Node:
    """Parse a JSON text to a tree.

    Raises:
        Wrong: it is not JSON.
    """
    top: Node | None = None
    around: list[tuple[Node, str]] = []  # what is open, and the name of the member that comes
    at = 0
    fresh = False  # a container was just opened
    while True:
        name = ""
        kind, begin, at = _token(unit, at)
        if around and fresh and kind == ("}" if around[-1][0].kind == "object" else "]"):
            node = around.pop()[0]
            node.end = at
        else:
            if around and around[-1][0].kind == "object":
                if kind != "string":
                    raise Wrong(begin)
                name = json.loads(unit[begin:at])
                kind, begin, at = _token(unit, at)
                if kind != ":":
                    raise Wrong(begin)
                kind, begin, at = _token(unit, at)
            if kind in ("{", "["):
                if len(around) == MAX_DEPTH:
                    raise Wrong(begin)
                node = Node("object" if kind == "{" else "list", begin)
                if around:
                    _put(around[-1][0], name, node)
                else:
                    top = node
                around.append((node, name))
                fresh = True
                continue
            if kind not in ("string", "number", "other"):
                raise Wrong(begin)
            node = Node(kind, begin, at)
            if around:
                _put(around[-1][0], name, node)
            else:
                top = node
        fresh = False
        while True:
            kind, begin, after = _token(unit, at)
            if not around:
                if kind:
                    raise Wrong(begin)
                assert top is not None
                return top
            if kind == ",":
                at = after
                break
            if kind != ("}" if around[-1][0].kind == "object" else "]"):
                raise Wrong(begin)
            around.pop()[0].end = at = after


def _put(into: Node, name: str, node: Node) -> None:
    if into.kind == "object":
        into.members[name] = node
    else:
        into.items.append(node)


class Row(NamedTuple):
    status: int
    offset: int
    length: int
    producer: int = -1
    prefix_high: int = 0
    prefix_low: int = 0
    sequence: int = 0
    hash: int = 0
    id_hash: tuple[int, int] = (0, 0)


NUMBER = ("number",)
ID_FORMS = (["number", "number"], ["number", "string", "number"])
# What stands at 1, 2, ...; and how many of these there must be.
FORMS = {
    "connect": (("number", "string", "number", "object"), 3),
    "connected": (("number", "string", "pair", "object"), 3),
    "debug": (("error", "string"), 2),
    "duilian": (("string",), 1),
    "error": (("string", "any"), 1),
    "headers": (("object",), 1),
    "ping": (NUMBER, 1),
    "pong": (NUMBER, 1),
    "synced": (NUMBER, 1),
}


def _is_object(node: Node) -> bool:
    return node.kind == "object" and ("length" not in node.members or node.members["length"].kind != "number")


def _is(node: Node, what: str, unit: bytes) -> bool:
    if what == "object":
        return _is_object(node)
    if what == "pair":
        return node.kind == "list" and node.kinds() == ["number", "number"]
    if what == "error":
        return node.kind == "string" and json.loads(node.text(unit)) == "error"
    return what in ("any", node.kind)


def decode(unit: bytes, producers: list[bytes], identity: bool = True) -> list[Row]:
    """Return the rows of a message."""
    try:
        found = _actions(unit, parse(unit))
    except Wrong as wrong:
        return [Row(wrong.status, wrong.at, len(unit) - wrong.at)]
    if isinstance(found, int):
        return [Row(found, 0, len(unit))]
    return [_row(unit, action, producers, identity) for action in found]


def decode_body(body: bytes, producers: list[bytes], identity: bool = True) -> Row:
    """Return the row of a single action."""
    row = Row(NOT_JSON, 0, len(body), hash=xxh64(body, 42))
    if not identity:
        return row._replace(status=NO_ID)
    try:
        node = parse(body)
    except Wrong:
        return row
    if node.kind != "object":
        return row
    return _row(body, node, producers, identity)._replace(offset=0, length=len(body), hash=row.hash)


def _actions(unit: bytes, message: Node) -> list[Node] | int:
    """Return the actions of a sync, or the status of another message."""
    if message.kind != "list":
        raise Wrong(message.begin, BAD_MESSAGE)
    end = message.end - 1
    items = message.items
    if not items or items[0].kind != "string":
        raise Wrong(items[0].begin if items else end, BAD_MESSAGE)
    name = json.loads(items[0].text(unit))
    if name != "sync":
        if name not in FORMS:
            raise Wrong(items[0].begin, UNKNOWN_MESSAGE)
        forms, least = FORMS[name]
        for i, item in enumerate(items[1:]):
            if i == len(forms) or not _is(item, forms[i], unit):
                raise Wrong(item.begin, BAD_MESSAGE)
        if len(items) - 1 < least:
            raise Wrong(end, BAD_MESSAGE)
        return PING if name in ("ping", "pong") else CONTROL
    if len(items) > 1 and items[1].kind != "number":
        raise Wrong(items[1].begin, BAD_SYNC)
    for action, meta in zip(items[2::2], [*items[3::2], None], strict=False):
        kind = action.members.get("type")
        if not _is_object(action) or kind is None or kind.kind != "string":
            raise Wrong(action.begin, BAD_ACTION)
        if meta is not None and not _is_meta(meta):
            raise Wrong(meta.begin, BAD_META)
    if len(items) < 2 or len(items) % 2:
        raise Wrong(end, BAD_SYNC)
    return items[2::2]


def _is_meta(meta: Node) -> bool:
    ident, time = meta.members.get("id"), meta.members.get("time")
    if not _is_object(meta) or time is None or time.kind != "number" or ident is None:
        return False
    return ident.kind == "number" or (ident.kind == "list" and ident.kinds() in ID_FORMS)


def _row(unit: bytes, action: Node, producers: list[bytes], identity: bool) -> Row:
    body = action.text(unit)
    row = Row(NO_ID, action.begin, len(body), hash=xxh64(body, 42))
    if not identity or "id" not in action.members:
        return row
    own = action.members["id"].text(unit)
    if own.startswith(b'"'):
        own = own[1:-1]
    if re.fullmatch(rb"[0-9a-f]{32}", own):
        raw = bytes.fromhex(own.decode())
        row = row._replace(
            producer=producers.index(raw[:10]) if raw[:10] in producers else -1,
            prefix_high=int.from_bytes(raw[:8], "big"),
            prefix_low=int.from_bytes(raw[8:10], "big"),
            sequence=int.from_bytes(raw[10:], "big"),
        )
        if row.producer >= 0 or not producers:
            return row._replace(status=OK)
    return row._replace(status=FOREIGN, id_hash=words(own))
