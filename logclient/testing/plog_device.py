"""The rules of a plog server, datagrams in; messages, replies and statistics out. No I/O.

They differ from those of the real server where that one is unsafe: an empty datagram is not a message (the
real one reads the rest of an earlier one), KILL is obeyed only on request, and ENVI shows no secrets.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from logclient._ext.plog import COMMAND, SIMPLE, Judged, Reassembler
from logclient.errors import ConfigError
from logclient.plog.messages import split_tags
from logclient.testing.plog_datagrams import Batch

_SEGMENTS = 4  # of the real server's cache: a message gets a quarter of it at most
_IDS = 10  # ids of each port among which holes are looked for
_HOLE_MAX = 10
_PORTS = 1024
_PORT_IDLE = 60.0  # seconds
HOLES = {
    "ids_per_port": _IDS, "maximum_hole": _HOLE_MAX, "ports": _PORTS, "expire_time": f"{_PORT_IDLE:g}s"
}  # fmt: skip
"""The settings of the detection of holes, as ENVI shows them."""
_HOSTS = 20  # that may get their full rate of answers at the same time
_HOSTS_KEPT = 10_000
_NEVER = float("inf")
_LOWEST = -(1 << 31)  # stands for a place without an id
_STAT = (  # counters in the order of the real server
    "version", "uptime", "udp_simple_messages", "udp_invalid_version", "v0_invalid_type",
    "v0_invalid_multipart_header", "unknown_command", "v0_commands", "exceptions", "unhandled_objects",
    "holes_from_dead_port", "holes_from_new_message", "v0_fragments", "v0_invalid_checksum",
    "v0_invalid_fragments", "dropped_fragments", "defragmenter", "handlers",
)  # fmt: skip


Handlers = Sequence[Mapping[str, Any]]
"""The receivers of messages, as STAT shows them; None: one that has seen all messages."""


class _Port:
    """The last ids that came from one port, ascending."""

    __slots__ = ("ids", "max", "min", "touched")

    def __init__(self) -> None:
        self.reset()
        self.touched = 0.0

    def reset(self) -> None:
        self.ids = [_LOWEST] * _IDS
        self.min, self.max = _NEVER, -_NEVER

    def add(self, number: int) -> int:
        """Add an id; return the number of missing messages when the lowest one leaves the window."""
        if number < self.min:
            if self.min != _NEVER and self.min - number > _HOLE_MAX:
                self.reset()
            else:
                self.min = number
        if number > self.max:
            if self.max != -_NEVER and number - self.max > _HOLE_MAX:
                self.reset()
            else:
                self.max = number
        ids = self.ids
        at = bisect_left(ids, number)
        if at < _IDS and ids[at] == number:
            return 0
        if at:
            gone = ids.pop(0)
            ids.insert(at - 1, number)
        else:
            gone = number
        hole = ids[0] - gone - 1
        return hole if gone != _LOWEST and 0 < hole <= _HOLE_MAX else 0

    def holes(self) -> int:
        holes = [two - one - 1 for one, two in pairwise(self.ids) if one != _LOWEST]
        return sum(hole for hole in holes if 0 < hole <= _HOLE_MAX)


class _Holes:
    """Messages that never came, judged by gaps in the ids of each port; the host does not count."""

    def __init__(self) -> None:
        self.from_new_message = 0
        self.from_dead_port = 0
        self._ports: OrderedDict[int, _Port] = OrderedDict()

    def add(self, port: int, number: int, now: float) -> None:
        if number > 0x7FFFFFFF:  # negative: it borrows from the port
            port, number = port - 1, number - (1 << 32)
        found = self._ports.get(port)
        if found is None:
            found = self._ports[port] = _Port()
            if len(self._ports) > _PORTS:
                self._forget()
        else:
            self._ports.move_to_end(port)
        found.touched = now
        self.from_new_message += found.add(number)

    def _forget(self) -> None:
        _, port = self._ports.popitem(last=False)
        self.from_dead_port += port.holes()

    def expire(self, now: float) -> None:
        """Forget the ports that were silent for a minute, and count the holes in their windows."""
        while self._ports and now - next(iter(self._ports.values())).touched >= _PORT_IDLE:
            self._forget()


class Taken(NamedTuple):
    """The result of a batch of datagrams, valid as long as their bytes are."""

    judged: Judged
    rows: list[int]  # the rows with which a message was whole
    replies: list[tuple[int, bytes]]  # row of the question, answer
    killed: int = -1  # row of a KILL that is to be obeyed

    def messages(self) -> Iterator[tuple[bytes, list[str]]]:
        judged = self.judged
        for row in self.rows:
            yield judged.payload(row), split_tags(judged.tags(row)) if judged.tags_length[row] else []


class Listener:
    """The rules of one UDP listener. All times are monotonic seconds.

    `max_size` bounds the bytes of all incomplete messages; one of several fragments may have a quarter of it.
    After `expire_time` seconds without a further fragment an incomplete message is dropped.
    """

    def __init__(
        self,
        now: float,
        *,
        max_size: int = 1 << 20,
        expire_time: float = 10.0,
        allow_kill: bool = False,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            self._defragmenter = Reassembler(
                max_message=max_size // _SEGMENTS, max_bytes=max_size, expire=expire_time
            )
        except ValueError as error:
            raise ConfigError(f"max_size, expire_time: {error}") from None
        self._started = now
        self._allow_kill = allow_kill
        self._environment = dict(environment or {})
        self._holes = _Holes()
        self.commands = 0
        self.unknown_commands = 0
        self.kills = 0  # asked for, obeyed or not
        self.seen_messages = 0
        self.seen_bytes = 0

    def feed(self, batch: Batch, ports: Sequence[int], now: float, handlers: Handlers | None = None) -> Taken:
        """Take a batch of datagrams, in order. A STAT among them counts all of them.

        As in the real server two hosts with the same port are one.
        """
        judged = self._defragmenter.feed(batch.data, batch.offsets, batch.lengths, array("Q", ports), now)
        verdicts = judged.verdict.tolist()
        rows = [row for row, verdict in enumerate(verdicts) if verdict <= SIMPLE]
        self.seen_messages += len(rows)
        sizes = judged.length.tolist()
        self.seen_bytes += sum([sizes[row] for row in rows])
        numbers, add = judged.id.tolist(), self._holes.add
        for row, opened in enumerate(judged.opened.tolist()):
            if opened:
                add(ports[row], numbers[row], now)
        replies: list[tuple[int, bytes]] = []
        killed = -1
        for row in [row for row, verdict in enumerate(verdicts) if verdict == COMMAND]:
            command = judged.payload(row)
            if command[:4].lower() == b"kill":
                self.kills += 1
                killed = row if self._allow_kill else -1
            elif (reply := self._answer(command, now, handlers)) is not None:
                replies.append((row, reply))
        return Taken(judged, rows, replies, killed)

    def _answer(self, command: bytes, now: float, handlers: Handlers | None) -> bytes | None:
        name = command[:4].lower()
        if name == b"ping":
            reply = b"PONG" + command[4:]
        elif name == b"stat":
            reply = json.dumps(self.stat(now, handlers), separators=(",", ":")).encode()
        elif name == b"envi":
            reply = f"Config(SimpleConfigObject({json.dumps(self._environment)}))".encode()
        else:
            self.unknown_commands += 1
            return None
        self.commands += 1  # after the reply, which shows the commands before it
        return reply

    def stat(self, now: float, handlers: Handlers | None = None) -> dict[str, Any]:
        """Return the answer to STAT, with the real server's names."""
        self._defragmenter.expire(now)
        self._holes.expire(now)
        counted = self._defragmenter.counters()
        if handlers is None:
            seen = {"seen_messages": self.seen_messages, "seen_bytes": self.seen_bytes}
            handlers = [{**seen, "name": "capture"}]
        found = {
            **counted,
            "version": "logclient",
            "uptime": int((now - self._started) * 1000),
            "unknown_command": self.unknown_commands,
            "v0_commands": self.commands,
            "unhandled_objects": 0,
            "holes_from_dead_port": self._holes.from_dead_port,
            "holes_from_new_message": self._holes.from_new_message,
            "handlers": [dict(handler) for handler in handlers],
        }
        return {name: found[name] for name in _STAT}


class Lines:
    """Split the bytes of a TCP connection into lines that end with LF or CRLF.

    A line that is too long is dropped, as is a line without an end when the connection is closed.
    """

    def __init__(self, max_line: int) -> None:
        self._max = max_line
        self._rest = bytearray()
        self._skipping = False
        self.too_long = 0

    def receive(self, data: bytes) -> list[bytes]:
        self._rest += data
        *whole, rest = self._rest.split(b"\n")
        lines = []
        for line in whole:
            line = line.removesuffix(b"\r")
            if self._skipping:
                self._skipping = False
            elif len(line) > self._max:
                self.too_long += 1
            else:
                lines.append(bytes(line))
        if len(rest) > self._max + 1:  # a CR may be the first half of its end
            if not self._skipping:
                self.too_long += 1
            self._skipping = True
        if self._skipping:
            rest.clear()
        self._rest = rest
        return lines


class ReplyLimit:
    """A limit of answers a second to one host; all hosts get twenty times as many. 0: no limit."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # host -> answers left, when

    def take(self, host: str, now: float) -> bool:
        """Take one answer to a host; return False when the limit is reached."""
        if not self._rate:
            return True
        mine, common = self._now(host, self._rate, now), self._now("", self._rate * _HOSTS, now)
        allowed = mine >= 1.0 and common >= 1.0
        for name, left in ((host, mine), ("", common)):
            self._left[name] = (left - allowed, now)
            self._left.move_to_end(name)
        if len(self._left) > _HOSTS_KEPT:
            self._left.popitem(last=False)
        return allowed

    def _now(self, name: str, rate: float, now: float) -> float:
        most = max(1.0, rate)
        left, at = self._left.get(name, (most, now))
        return min(most, left + (now - at) * rate)
