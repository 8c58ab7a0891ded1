"""plog: tags and commands. No I/O: bytes in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from logclient._ext.plog import HEADER, MAX_DATAGRAM
from logclient.errors import ProtocolError

COMMANDS = ("ping", "stat", "envi", "kill")

_TOPIC = re.compile(r"[\w.-]{1,249}", re.ASCII)


def join_tags(tags: Iterable[str], topic: str = "", key: str = "") -> bytes:
    """Encode tags as they travel: in UTF-8, separated by NUL; a ValueError: a tag breaks a rule.

    Those of a Kafka topic and a key, ``kt:TOPIC`` and ``pk:KEY``, come first.
    Servers drop an empty tag, cut a tag at a NUL, discard messages for the topic ``null``, and use the last
    of two topics or keys.
    """
    found: list[bytes] = []
    seen: set[str] = set()
    for tag in (*([f"kt:{topic}"] if topic else ()), *([f"pk:{key}"] if key else ()), *tags):
        if not isinstance(tag, str):
            raise ValueError(f"tags: each must be text, not {type(tag).__name__}")
        if not tag or "\0" in tag:
            raise ValueError("tags: none may be empty or hold a NUL")
        kind, value = tag[:3], tag[3:]
        if kind in seen:
            raise ValueError(f"tags: two that begin with {kind}")
        if kind in ("kt:", "pk:"):
            seen.add(kind)
            if not value:
                raise ValueError(f"tags: nothing behind {kind}")
        if tag == "kt:null":
            raise ValueError("topic: servers discard what goes to 'null'")
        if kind == "kt:" and (value in (".", "..") or not _TOPIC.fullmatch(value)):
            raise ValueError("topic: 1 to 249 letters, digits, dots, underscores and dashes, as in Kafka")
        try:
            found.append(tag.encode())
        except UnicodeEncodeError:
            raise ValueError("tags: must be encodable in UTF-8") from None
    joined = b"\0".join(found)
    if len(joined) > MAX_DATAGRAM - HEADER:
        raise ValueError(f"tags: {len(joined)} bytes; the limit is {MAX_DATAGRAM - HEADER}")
    return joined


def split_tags(data: bytes) -> list[str]:
    """Decode tags as the server does: without empty ones, and with U+FFFD for bytes that are not UTF-8."""
    return [tag.decode("utf-8", "replace") for tag in data.split(b"\0") if tag]


def command(name: str, payload: bytes = b"") -> bytes:
    """Return the datagram of a command, one of `COMMANDS`. ``ping`` sends the payload back."""
    if name not in COMMANDS:
        raise ValueError(f"command: {name!r} is none of {', '.join(COMMANDS)}")
    return b"\0\0" + name.upper().encode() + payload


def parse_stat(data: bytes) -> dict[str, Any]:
    """Parse the answer to ``stat``, the counters of a server under its own names.

    Raises:
        ProtocolError: it is no JSON object with the milliseconds since the server's start (``uptime``).
    """
    import json

    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"stat: {error}") from None
    if not isinstance(found, dict) or type(found.get("uptime")) is not int:
        raise ProtocolError("stat: no JSON object with a whole number as uptime")
    return found
