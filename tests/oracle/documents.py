"""The columns of a body in plain Python: the reference of `_ext.documents`, with each protocol's rules."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, NamedTuple

from tests.oracle.lumberjack import MAX_DEPTH, depth, split_pairs
from tests.oracle.lumberjack import _members as members

LEVELS = ("debug", "info", "warning", "error", "critical", "any")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Rules(NamedTuple):
    time: tuple[str, ...]
    level: tuple[str, ...]
    message: tuple[str, ...]
    nested: str = ""
    levels: tuple[str, ...] = ()
    pairs: bool = False
    text: bool = False


RULES = {
    "lumberjack": Rules(("@timestamp",), ("log.level", "level"), ("message", "line"), pairs=True),
    "logjam": Rules(
        ("started_ms", "@timestamp"), ("severity", "log.level"), ("message", "lines", "label"), levels=LEVELS
    ),
    "plog": Rules(
        ("@timestamp", "timestamp"), ("log.level", "level"), ("message", "data"), nested="data", text=True
    ),
    "logux": Rules(("@timestamp",), ("log.level", "level"), ("message",), nested="data"),
}


class Document(NamedTuple):
    time: int | None  # microseconds since 1970
    level: str | None
    message: str | None
    fields: dict[str, str | None] | None


def whole(text: str) -> str:
    """Return text with a replacement for each lone surrogate."""
    return "".join("�" if "\ud800" <= c <= "\udfff" else c for c in text)


def shown(raw: str) -> str | None:
    if raw == "null":
        return None
    return whole(json.loads(raw)) if raw.startswith('"') else raw


def time_of(raw: str) -> int | None:
    if not raw.startswith('"'):
        match = re.fullmatch(r"(-?)(\d+)(?:\.(\d*))?", raw)
        if not match or int(match[2]) > 253402300799999:
            return None
        us = int(match[2]) * 1000 + int(((match[3] or "") + "000")[:3])
        us = -us if match[1] else us
        return us if us >= -62135596800000000 else None
    match = re.fullmatch(
        r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d):(\d\d)(?:[.,](\d+))?(?:[Zz]|([+-])(\d\d):?(\d\d))?",
        json.loads(raw),
    )
    if not match or not match.string.isascii():
        return None
    second = int(match[3])
    try:
        at = datetime.datetime.fromisoformat(f"{match[1]}T{match[2]}:00+00:00")
    except ValueError:
        return None
    if second > 60 or (match[5] and (int(match[6]) > 23 or int(match[7]) > 59)):
        return None
    us = (at - EPOCH) // datetime.timedelta(microseconds=1) + second * 1_000_000
    us += int(((match[4] or "") + "000000")[:6])
    if match[5]:
        offset = (int(match[6]) * 60 + int(match[7])) * 60_000_000
        us += offset if match[5] == "-" else -offset
    return us


def lines(raw: str) -> str | None:
    """Return the third elements of a list of lists; the text itself if it is none, None if it is empty."""
    value = json.loads(raw)
    if not value:
        return None
    if all(isinstance(line, list) and len(line) > 2 and isinstance(line[2], str) for line in value):
        return whole("\n".join(line[2] for line in value))
    return raw


def document(protocol: str, body: bytes) -> Document:
    rules = RULES[protocol]
    if rules.pairs and body and body[0] < 9:
        return _pairs(rules, body)
    try:
        text = body.decode()
        found = list(members(text.strip(" \t\r\n"), 0))[:-1]
        json.loads(text)
        if depth(text) > MAX_DEPTH:
            raise ValueError
    except (ValueError, RecursionError):
        return Document(None, None, body_text(body) if rules.text and body else None, None)
    outer = [(key, raw) for key, raw, _ in found]
    inner: list[tuple[str, str]] = []
    fields: dict[str, str | None] = {}
    inside: set[str] = set()
    for key, raw in outer:
        if rules.nested and key == rules.nested and raw.startswith("{"):
            part = [(name, value) for name, value, _ in list(members(raw, 0))[:-1]]
            inner += part
            for name, value in part:
                fields[whole(name)] = shown(value)
                inside.add(whole(name))
        elif whole(key) not in inside:
            fields[whole(key)] = shown(raw)

    def best(names: tuple[str, ...], usable: Any) -> str | None:
        for name in names:
            for where in (inner, outer):
                chosen = None
                for key, raw in where:
                    candidates = [(key, raw)]
                    unread = where is outer and key == rules.nested
                    if raw.startswith("{") and name.startswith(f"{key}.") and not unread:
                        candidates += [(f"{key}.{n}", v) for n, v, _ in list(members(raw, 0))[:-1]]
                    for full, value in candidates:
                        if full == name and value != "null" and usable(name, value):
                            chosen = value
                if chosen is not None:
                    return chosen
        return None

    time = best(rules.time, lambda _, raw: time_of(raw) is not None)
    level = best(rules.level, lambda _, raw: not raw.startswith("{"))
    message = best(rules.message, lambda name, raw: not (name == rules.nested and raw.startswith("{")))
    named = None
    if level is not None:
        named = shown(level)
        assert named is not None
        if re.fullmatch(r"\d", level) and int(level) < len(rules.levels):
            named = rules.levels[int(level)]
        named = re.sub("[A-Z]", lambda match: match[0].lower(), named)
    said = None
    if message is not None:
        said = lines(message) if message.startswith("[") else shown(message)
    return Document(None if time is None else time_of(time), named, said, fields)


def body_text(body: bytes) -> str:
    """Return bytes as text: each that is not part of UTF-8 is replaced."""
    out = ""
    while body:
        for n in (1, 2, 3, 4):
            try:
                out += body[:n].decode()
            except UnicodeDecodeError:
                continue
            body = body[n:]
            break
        else:
            out += "�"
            body = body[1:]
    return out


def _pairs(rules: Rules, body: bytes) -> Document:
    pairs = split_pairs(body)
    try:
        found = [(key.decode(), value.decode()) for key, value in pairs] if pairs is not None else None
    except UnicodeDecodeError:
        found = None
    if found is None:
        return Document(None, None, None, None)
    fields = dict(found)
    time = fields.get("@timestamp")
    level = next((fields[name] for name in rules.level if name in fields), None)
    if level is not None:
        level = re.sub("[A-Z]", lambda match: match[0].lower(), level)
    return Document(
        None if time is None else time_of(json.dumps(time)),
        level,
        next((fields[name] for name in rules.message if name in fields), None),
        dict(fields),
    )
