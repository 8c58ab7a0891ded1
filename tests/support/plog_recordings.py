"""Recorded datagrams of plog: the cases that tests replay, their bytes and their kinds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import recordings

RECORDED = recordings.cases(recordings.PLOG)


def each_case(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    """Run a test for each case, by its name."""
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def payload_of(given: dict[str, Any]) -> bytes:
    """Return the payload of a Java fragmenter; a long one is recorded as the rule that makes it."""
    text = given["payload_hex"]
    rule = re.fullmatch(r"bytes\(i\*7&255 for i in range\((\d+)\)\)", text)
    return bytes(i * 7 & 255 for i in range(int(rule[1]))) if rule else bytes.fromhex(text)


def bytes_of(case: dict[str, Any]) -> list[bytes]:
    """Return the datagrams of a case; of long ones only the head and a rule are recorded.

    Raises:
        ValueError: The rule is unknown.
    """
    found = case.get("datagrams", [])
    if not found or isinstance(found[0], str):
        return [bytes.fromhex(one) for one in found]
    heads = [bytes.fromhex(one["head64"]) for one in found]
    sizes = [one["len"] for one in found]
    if "input" in case:
        payload = payload_of(case["input"])
    else:
        payload = heads[0][24:25] * (sum(sizes) - 24 * len(sizes))
    made, at = [], 0
    for head, size in zip(heads, sizes, strict=True):
        made.append(head[:24] + payload[at : at + size - 24])
        at += size - 24
        if made[-1][:64] != head:
            raise ValueError(f"{case['name']}: only the heads of its datagrams are known")
    return made


def is_complete(case: dict[str, Any]) -> bool:
    try:
        bytes_of(case)
    except ValueError:
        return False
    return True


CASES = list(filter(is_complete, RECORDED))


def flat(counters: dict[str, Any]) -> dict[str, int]:
    """Flatten as in the file: ``v0_fragments[2]``, ``defragmenter.hits``; leave out zeroes."""
    out: dict[str, int] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else key, inner)
        elif isinstance(value, list):
            for i, inner in enumerate(value):
                walk(f"{name}[{i}]", inner)
        elif value:
            out[name] = value

    walk("", counters)
    return out


def is_not_ascii(case: dict[str, Any]) -> bool:
    """Return whether a text is not ASCII: the Java client writes ISO-8859-1 with '?', ours UTF-8."""
    return not all(map(str.isascii, case.get("input", {}).get("messages", [])))


def has_negative_id(case: dict[str, Any]) -> bool:
    """Return whether the id is below 0; ours are 1 to 2**31 - 1."""
    return bool(case.get("input", {}).get("id", 1) < 0)


def source(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda case: case["source"] == name


def verdict(words: str) -> Callable[[dict[str, Any]], bool]:
    return lambda case: case["verdict"].startswith(words)


KINDS: recordings.Kinds = {
    "Fragmenter.java": source("plog Fragmenter.java"),
    "PlogClient.java": source("plog PlogClient.java"),
    "crafted datagrams": source("crafted"),
    "a text that is not ASCII": is_not_ascii,
    "an id below 0": has_negative_id,
    "messages that are delivered": verdict("delivered"),
    "messages that are not": verdict("not delivered"),
    "a command": verdict("command"),
    "several fragments": lambda case: len(case.get("datagrams", [])) > 1,
    "tags": lambda case: any(one["tags"] for one in case.get("delivered", [])),
}
