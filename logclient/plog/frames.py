"""plog: datagrams as readable frames, and the probe of ``logclient check``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Any

from logclient import readable
from logclient._ext.hash import murmur3
from logclient._ext.plog import COMMAND as IS_COMMAND
from logclient._ext.plog import HEADER, MAX_DATAGRAM, SIMPLE, VERDICT_NAMES, Reassembler, datagrams
from logclient.plog.messages import COMMANDS, command, split_tags
from logclient.readable import BODY_KEPT, Bytes, Frame

_RUN = Struct("<II")  # the head of a run of datagrams


class Probe(readable.Probe):
    """Asks whether a plog server listens, by pings."""

    silence = "no server listens there, or UDP is blocked on the way"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._lines = config.scheme == "plog+tcp"
        self._payload = b""
        self._asked = 0

    def ask(self) -> list[bytes]:
        """Return the next ping; nothing over TCP, which has no commands."""
        if self._lines:
            return []
        self._asked += 1
        self._payload = b"%x-%d" % (id(self), self._asked)
        return self.insist()

    def insist(self) -> list[bytes]:
        """Return the last question again: a datagram may be lost."""
        ping = command("ping", self._payload)
        return [_RUN.pack(len(ping), len(ping)) + ping]

    def receive_data(self, data: bytes) -> bool | None:
        """Read the answer to the last ping."""
        for datagram in datagrams(data):
            if not datagram.startswith(b"PONG"):
                return False
            if datagram[4:] == self._payload:
                return True
        return None


def frames(data: Bytes) -> Iterator[Frame]:
    """Describe a datagram as one frame.

    A fragment is checked alone: the other fragments of its message are not considered.
    """
    view = memoryview(data)
    if len(view) > MAX_DATAGRAM:
        yield Frame(0, 0, len(view), "", {}).marked(f"{len(view):,} bytes are no datagram", view)
        return
    judged = Reassembler(max_message=(1 << 31) - 1, max_bytes=1 << 32).feed(
        view, array("q", [0]), array("q", [len(view)]), array("Q", [0]), 0.0
    )
    verdict = judged.verdict[0]
    name = VERDICT_NAMES[verdict]
    body = judged.payload(0)
    fields: dict[str, Any] = {"type": name}
    if verdict == SIMPLE:
        title = "unboxed message"
    elif verdict == IS_COMMAND:
        letters = body[:4].decode("latin-1").upper()
        fields = {"type": "command", "command": letters}
        title, body = f"command {letters}", body[4:]
        if letters.lower() not in COMMANDS:
            name = "unknown_command"
    elif judged.count[0]:
        title = f"fragment {judged.index[0] + 1} of {judged.count[0]} of message {judged.id[0]}"
        header = bytes(view[:HEADER])
        size, total, hash_ = (int.from_bytes(header[a:b], "big") for a, b in ((6, 8), (12, 16), (16, 20)))
        tags = split_tags(judged.tags(0))
        fields = {
            "type": "fragment", "count": judged.count[0], "index": judged.index[0], "size": size,
            "id": judged.id[0], "total": total, "hash": f"{hash_:08x}", "tags": tags,
        }  # fmt: skip
        title += f", {total:,} bytes in all, hash {hash_:08x}"
        title += "".join(f", tag {tag}" for tag in tags)
    else:
        title, body = "", b""
    frame = Frame(0, 0, len(view), title, fields, body[:BODY_KEPT], len(body))
    wrong = _WRONG.get(name, "")
    if name == "bad_checksum":
        wrong += f": {murmur3(judged.payload(0)):08x}"
    yield frame.marked(wrong, view) if wrong else frame


_WRONG = {
    "empty": "an empty datagram: servers read the rest of an earlier one in their buffer",
    "bad_version": "a first byte of 1 to 31: only version 0 is known, and no unboxed message begins so",
    "bad_type": "neither a command (0) nor a fragment (1)",
    "bad_header": "no header of a fragment: 24 bytes, an index below the count, a total, tags that are there",
    "out_of_bounds": "a payload beyond the total, or tags beyond the buffer of a server",
    "bad_fragment": "its payload has another length than size and total require",
    "bad_checksum": "the hash of its payload is another",
    "unknown_command": "a command that no server knows",
}
