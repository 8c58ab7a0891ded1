"""plog: datagrams for people."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from logclient._ext.hash import murmur3
from logclient._ext.plog import COMMAND, HEADER, MAX_DATAGRAM, SIMPLE, VERDICT_NAMES, Reassembler
from logclient.evidence.frames import BODY_KEPT, Bytes, Frame
from logclient.plog.messages import COMMANDS, split_tags


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
    elif verdict == COMMAND:
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
    wrong = _WRONG.get(name, "")
    if name == "bad_checksum":
        wrong += f": {murmur3(judged.payload(0)):08x}"
    yield Frame(0, 0, len(view), title, fields, body[:BODY_KEPT], len(body)).marked(wrong, view)


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
