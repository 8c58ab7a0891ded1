"""plog: tags, commands and the statistics of a server.

No I/O: bytes in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from logclient._ext.plog import HEADER, MAX_DATAGRAM
from logclient.errors import ProtocolError

COMMANDS = ("ping", "stat", "envi", "kill")

_TOPIC = re.compile(r"[\w.-]{1,249}", re.ASCII)


def join_tags(tags: Iterable[str]) -> bytes:
    """Encode tags as they travel: in UTF-8, separated by NUL; a ValueError: a tag breaks a rule.

    Servers drop an empty tag, cut a tag at a NUL, discard messages for the topic ``null``, and use the last
    of two topics or keys.
    """
    found: list[bytes] = []
    seen = {"kt:": False, "pk:": False}
    for tag in tags:
        if not isinstance(tag, str):
            raise ValueError(f"tags: each must be text, not {type(tag).__name__}")
        if not tag or "\0" in tag:
            raise ValueError("tags: none may be empty or hold a NUL")
        kind, value = tag[:3], tag[3:]
        if kind in seen:
            if seen[kind]:
                raise ValueError(f"tags: two that begin with {kind}")
            seen[kind] = True
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


def kafka_tags(topic: str = "", key: str = "") -> list[str]:
    """Return the tags that send a message to a Kafka topic, with a key: ``kt:TOPIC``, ``pk:KEY``."""
    return ([f"kt:{topic}"] if topic else []) + ([f"pk:{key}"] if key else [])


def command(name: str, payload: bytes = b"") -> bytes:
    """Return the datagram of a command, one of `COMMANDS`. ``ping`` sends the payload back."""
    if name not in COMMANDS:
        raise ValueError(f"command: {name!r} is none of {', '.join(COMMANDS)}")
    return b"\0\0" + name.upper().encode() + payload


class Defragmenter(NamedTuple):
    """Counters of the server's cache of incomplete messages.

    Attributes:
        evictions: incomplete messages that were removed.
        hits: fragments of a message that was in the cache.
        misses: fragments of a message that was not.
    """

    evictions: int = 0
    hits: int = 0
    misses: int = 0


class Stat(NamedTuple):
    """The counters of a server since its start, summed over all clients of the listener.

    A counter that is a tuple has 17 places for numbers of different size: place 0 counts the number 0, place
    n the numbers from 2**(n-1) to 2**n - 1. The number is the index of a fragment, or the number of fragments
    of a message less one. In a counter of two indices, the first one is for the fragments of the message, the
    second for the index of the fragment.

    Values that a server does not report are 0 or empty. Names in camelCase are read as well, and ``cache``
    for ``defragmenter``.

    Attributes:
        version: the server's version.
        uptime: milliseconds since its start. A value below an earlier one means that it has restarted.
        udp_simple_messages: unboxed messages.
        udp_invalid_version: datagrams with an unknown version.
        v0_invalid_type: datagrams with an unknown type.
        v0_invalid_multipart_header: fragments with a wrong header.
        unknown_command: commands that the server does not know.
        v0_commands: commands.
        exceptions: errors inside the server.
        unhandled_objects: objects that no handler took.
        holes_from_dead_port, holes_from_new_message: messages that did not arrive, by the gaps in their
            numbers. A gap of 10 or more is not counted.
        v0_fragments: fragments, by their index.
        v0_invalid_checksum: messages with a wrong checksum, by their number of fragments.
        v0_invalid_fragments: fragments that do not fit their message; two indices.
        dropped_fragments: fragments that were missing when their message was given up; two indices.
        defragmenter: counters of the cache of incomplete messages.
        handlers: what each handler reports, in the order in which messages pass them.
        raw: the whole answer, under the server's own names.
    """

    version: str = ""
    uptime: int = 0
    udp_simple_messages: int = 0
    udp_invalid_version: int = 0
    v0_invalid_type: int = 0
    v0_invalid_multipart_header: int = 0
    unknown_command: int = 0
    v0_commands: int = 0
    exceptions: int = 0
    unhandled_objects: int = 0
    holes_from_dead_port: int = 0
    holes_from_new_message: int = 0
    v0_fragments: tuple[int, ...] = ()
    v0_invalid_checksum: tuple[int, ...] = ()
    v0_invalid_fragments: tuple[tuple[int, ...], ...] = ()
    dropped_fragments: tuple[tuple[int, ...], ...] = ()
    defragmenter: Defragmenter = Defragmenter()
    handlers: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] = {}

    @property
    def seen_messages(self) -> int | None:
        """Messages that reached the first handler; None if the server does not report it."""
        for name in ("seen_messages", "logged"):
            value = self.handlers[0].get(name) if self.handlers else None
            if isinstance(value, int):
                return value
        return None

    @property
    def failed_to_send(self) -> int | None:
        """Messages that the handlers could not pass on to Kafka; None if they do not report it."""
        found = [handler.get("failed_to_send") for handler in self.handlers]
        found.append(self.raw.get("failed_to_send", self.raw.get("failedToSend")))
        known = [value for value in found if isinstance(value, int)]
        return sum(known) if known else None

    @property
    def boxed_messages(self) -> int:
        """Boxed messages whose first fragment arrived; the others may be missing."""
        return self.v0_fragments[0] if self.v0_fragments else 0


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1 << 63:
        raise ValueError("a counter that is no number")
    return int(value)


def _counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("counters that are no list")
    return tuple(map(_count, value))


def _objects(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("handlers that are no list of objects")
    return tuple(value)


def _defragmenter(value: Any) -> Defragmenter:
    if not isinstance(value, dict):
        raise ValueError("a cache that is no object")
    return Defragmenter(*(_count(value.get(name, 0)) for name in Defragmenter._fields))


_READERS: dict[str, Callable[[Any], Any]] = {
    "version": str,
    "v0_fragments": _counts,
    "v0_invalid_checksum": _counts,
    "v0_invalid_fragments": lambda value: tuple(map(_counts, value)),
    "dropped_fragments": lambda value: tuple(map(_counts, value)),
    "defragmenter": _defragmenter,
    "handlers": _objects,
}


def parse_stat(data: bytes) -> Stat:
    """Parse the answer to the command ``stat``; a ProtocolError: it is none."""
    import json

    try:
        raw = json.loads(data)
        if not isinstance(raw, dict) or "uptime" not in raw:
            raise ValueError("no JSON object with uptime")
        fields: dict[str, Any] = {}
        for name, value in raw.items():
            name = re.sub("([A-Z])", r"_\1", name).lower()
            name = "defragmenter" if name == "cache" else name
            if name in Stat._fields and name != "raw":
                read: Callable[[Any], Any] = _READERS.get(name, _count)
                fields[name] = read(value)
        return Stat(**fields, raw=raw)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"stat: {error}") from None


class Loss(NamedTuple):
    """An estimate of how many messages did not arrive, from a server's counters.

    Attributes:
        lost: messages that did not arrive; None if this is unknown.
        sent: messages that the client has sent.
        seen: messages that the server has seen; None if this is unknown.
        reason: the reason for which `lost` is unknown; empty if it is known.
    """

    lost: int | None
    sent: int
    seen: int | None
    reason: str


def estimate_loss(before: Stat, after: Stat, sent: int, commands: int = 1) -> Loss:
    """Estimate how many of the messages `sent` between two answers to ``stat`` were lost.

    A counter that grew by more than we sent reveals another client of the listener, whose messages it
    includes; `commands` includes the second ``stat``. The counters of holes miss gaps of ten or more
    messages.
    """
    if after.uptime < before.uptime:
        return Loss(None, sent, None, "the server has restarted")
    if before.seen_messages is None or after.seen_messages is None:
        return Loss(None, sent, None, "the server does not say how many messages it has seen")
    seen = after.seen_messages - before.seen_messages
    begun = after.boxed_messages - before.boxed_messages
    begun += after.udp_simple_messages - before.udp_simple_messages
    asked = after.v0_commands - before.v0_commands
    if min(seen, begun, asked) < 0:
        return Loss(None, sent, seen, "counters of the server went back")
    if seen > sent or begun > sent or asked > commands:
        return Loss(None, sent, seen, "another client's traffic is in the counters")
    return Loss(sent - seen, sent, seen, "")
