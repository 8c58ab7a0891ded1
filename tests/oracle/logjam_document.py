"""A check of Logjam documents by the importer's rules, independent of our code.

Each rule is named by the importer's treatment of a document that breaks it.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

LOGS, EVENTS, PAGE, AJAX, JAVASCRIPT, MOBILE = range(6)

DRIFT = 48 * 3600  # seconds; beyond, the document is dropped
STRING = 10_000  # bytes; beyond, the importer cuts
PAGE_NAME = 1_900  # bytes; an action goes into a buffer of 2,000, with a number and dashes before it
KEY = 1_000
LINES = 10_000
LINE = 2_048 + len(" ... [LINE TRUNCATED]")
TOTAL = (1 << 20) + 64
DEPTH = 32  # of the importer's JSON parser

# Names that the importer sets itself, or that are its database's.
ADDED = {"page", "response_code", "minute", "other_time", "metrics", "_id"}


def judge(
    body: bytes, topic: int = LOGS, *, now: float, zone: datetime.tzinfo | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the document, and the rules that it breaks."""
    wrong: list[str] = []

    def twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            wrong.append("a key is there twice")
        return found

    def constant(name: str) -> None:
        wrong.append(f"{name} is no JSON: parse error, dropped")

    made = json.loads(body.decode("utf-8"), object_pairs_hook=twice, parse_constant=constant)
    if not isinstance(made, dict):
        return {}, ["not an object"]
    _walk(made, 1, "", wrong)
    if b"\n" in body:
        wrong.append("more than one line")
    _times(made, now, zone, wrong)
    wrong += [f"{name} is the importer's" for name in ADDED & set(made)]
    {
        LOGS: _logs,
        EVENTS: _event,
        PAGE: _frontend,
        AJAX: _frontend,
        JAVASCRIPT: _javascript,
        MOBILE: lambda made, wrong: None,
    }[topic](made, wrong)
    if topic in (PAGE, AJAX) and isinstance(made.get("rts"), str):
        count = 16 if topic == PAGE else 2
        if not re.fullmatch(rf"\d+(,\d+){{{count - 1}}}", made["rts"]):
            wrong.append("rts: wrong number of timings, or another character: dropped")
    return made, wrong


def _walk(value: Any, depth: int, where: str, wrong: list[str]) -> None:
    if depth > DEPTH:
        wrong.append(f"{where}: nested too deep: parse error, dropped")
    if isinstance(value, dict):
        for key, inner in value.items():
            _text(key, KEY, f"{where}: key", wrong)
            if not key or "." in key or "$" in key:
                wrong.append(f"{where}: key {key!r}: empty, or with '.' or '$', which the importer replaces")
            _walk(inner, depth + 1, f"{where}.{key[:20]}", wrong)
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            _walk(inner, depth + 1, f"{where}[{n}]", wrong)
    elif isinstance(value, str):
        _text(value, STRING, where, wrong)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        wrong.append(f"{where}: integer beyond 64 bits")


def _text(value: str, limit: int, where: str, wrong: list[str]) -> None:
    if "\0" in value:
        wrong.append(f"{where}: NUL, which the importer takes for bytes that are no UTF-8")
    try:
        if len(value.encode()) > limit:
            wrong.append(f"{where}: over {limit} bytes")
    except UnicodeEncodeError:
        wrong.append(f"{where}: lone surrogate")


def _times(made: dict[str, Any], now: float, zone: datetime.tzinfo | None, wrong: list[str]) -> None:
    started = made.get("started_at")
    if not isinstance(started, str) or not re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", started):
        wrong.append("started_at: none, or not as strptime wants it: dropped")
        return
    # The importer: 19 characters, read as its own local time.
    try:
        read = datetime.datetime.strptime(started[:19].replace(" ", "T"), "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        wrong.append("started_at: no such time: dropped")
        return
    here = datetime.datetime.fromtimestamp(now, zone).replace(tzinfo=None)
    if abs((read - here).total_seconds()) > DRIFT:
        wrong.append("started_at: more than 48 hours away: dropped")
    ms = made.get("started_ms")
    if type(ms) is not int:
        wrong.append("started_ms: no integer")
    elif datetime.datetime.fromtimestamp(ms // 1000, zone).replace(tzinfo=None) != read:
        wrong.append("started_ms: another time than started_at in the importer's zone")


def _logs(made: dict[str, Any], wrong: list[str]) -> None:
    action = made.get("action")
    if not isinstance(action, str) or not action:
        wrong.append("action: none, or not a string: the importer dies of it")
    elif "#" not in action or action.endswith("#") or len(action.encode()) > PAGE_NAME:
        wrong.append("action: no method, or too long for the importer's buffer")
    if not _number(made.get("total_time")) or made["total_time"] <= 0:
        wrong.append("total_time: none, no number or 0: read as 1.0")
    code = made.get("code")
    if type(code) is not int or not -(1 << 31) <= code < 1 << 31:
        wrong.append("code: none or no int: read as 500")
    severity = made.get("severity")
    if type(severity) is not int or not 0 <= severity <= 5:
        wrong.append("severity: not 0 to 5")
        severity = 5
    if "request_id" in made and not re.fullmatch("[0-9a-f]{32}", str(made["request_id"])):
        wrong.append("request_id: not 32 hex digits")
    strings = ("caller_id", "caller_action", "trace_id", "host", "ip")
    wrong += [f"{name}: not a string" for name in strings if not isinstance(made.get(name, ""), str)]
    if type(made.get("process_id")) is not int:
        wrong.append("process_id: no integer")
    for name in ("exceptions", "soft_exceptions"):
        names = made.get(name, [])
        if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
            wrong.append(f"{name}: not an array of strings: the importer dies of it")
        elif any("." in one or "$" in one for one in names):
            wrong.append(f"{name}: '.' or '$', which the importer replaces")
    for name, value in made.items():
        if name.endswith("_time") and not _number(value):
            wrong.append(f"{name}: no number")
        if name.endswith("_calls") and not _number(value):
            wrong.append(f"{name}: no number")
    if _number(made.get("wait_time")) and made["wait_time"] > made["total_time"]:
        wrong.append("wait_time: more than total_time, of which it is a part")
    _lines(made.get("lines", []), severity, wrong)
    _info(made.get("request_info", {}), wrong)


def _lines(lines: Any, severity: int, wrong: list[str]) -> None:
    if not isinstance(lines, list) or len(lines) > LINES:
        wrong.append("lines: no array, or more than 10,000")
        return
    total = 0
    for line in lines:
        if not (
            isinstance(line, list)
            and len(line) == 3
            and type(line[0]) is int
            and 0 <= line[0] <= 5
            and isinstance(line[1], str)
            and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}", line[1])
            and isinstance(line[2], str)
        ):
            wrong.append(f"lines: {str(line)[:60]}: not [severity, time, text]")
            return
        if line[0] > severity:
            wrong.append("severity: below that of a line")
        if line[0] < 3 and len(line[2]) > LINE:
            wrong.append("lines: one is too long")
        total += len(line[2].encode())
    if total > TOTAL:
        wrong.append("lines: over 1 MiB in all")


def _info(info: Any, wrong: list[str]) -> None:
    if not isinstance(info, dict):
        wrong.append("request_info: not an object")
        return
    kinds = {"method": str, "url": str, "headers": dict, "query_parameters": dict, "body_parameters": dict}
    wrong += [
        f"request_info.{name}: not of its kind, which may be the importer's end"
        for name, kind in kinds.items()
        if name in info and not isinstance(info[name], kind)
    ]


def _event(made: dict[str, Any], wrong: list[str]) -> None:
    if not isinstance(made.get("label"), str) or not made["label"]:
        wrong.append("label: none")
    if "uuid" in made:
        wrong.append("uuid: the event's own id goes there")


def _frontend(made: dict[str, Any], wrong: list[str]) -> None:
    if not isinstance(made.get("rts"), str):
        wrong.append("rts: none: dropped, or the importer dies of it")
    if not re.fullmatch(r".+-[^-]+-[0-9A-Fa-f]{32}", str(made.get("logjam_request_id"))):
        wrong.append("logjam_request_id: unknown to the tracker: dropped")
    _browser_action(made, wrong)


def _javascript(made: dict[str, Any], wrong: list[str]) -> None:
    if not isinstance(made.get("description"), str) or not made["description"]:
        wrong.append("description: none: dropped, or the importer dies of it")
    _browser_action(made, wrong)


def _browser_action(made: dict[str, Any], wrong: list[str]) -> None:
    action = made.get("logjam_action")
    if not isinstance(action, str) or "#" not in action or len(action.encode()) > PAGE_NAME:
        wrong.append("logjam_action: none, no method, or too long")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
