"""The source of ``lumberjack_literal.json``: ``python -m tests.vectors.make_lumberjack_literal``.

Lumberjack as its protocol text has it, and no released server. What is expected is written here by hand, from
the text alone. Bytes are put together by ``struct``; compressed frames hold stored blocks, so that every
machine makes the same.

A case to the collector has steps of a writer's bytes and the acks that answer them. With ``acknowledge``
false the reader is told of no ack, as if none had gone out yet. ``refused`` is a part of the words with which
the connection ends, ``events`` what was taken: a letter for the type of frame, and the body.

A case to the client has options, and steps of four kinds: ``send`` (bodies) with the ``wire`` that they
become, empty when the window does not allow any; ``receive`` (a reader's bytes) with ``acked``, the events
that these settle, counted from 1 in the order of sending; the same with the words of ``refused``; and
``connect``, a new connection.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("lumberjack_literal.json")
LAST = 0xFFFFFFFF
ID = "0" * 31 + "1"
A, B, C3, D4 = '{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}'


def u32(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def w(size: int) -> bytes:
    return b"1W" + u32(size)


def j(number: int, body: str = A) -> bytes:
    return b"1J" + u32(number, len(body)) + body.encode()


def pairs(**fields: str) -> bytes:
    texts = [text.encode() for pair in fields.items() for text in pair]
    return u32(len(fields)) + b"".join(u32(len(text)) + text for text in texts)


def d(number: int, **fields: str) -> bytes:
    return b"1D" + u32(number) + pairs(**fields)


def stored(content: bytes) -> bytes:
    """A zlib stream of one stored block."""
    size = len(content)
    block = b"\x01" + struct.pack("<HH", size, size ^ 0xFFFF) + content
    return b"\x78\x01" + block + u32(zlib.adler32(content))


def c(*frames: bytes) -> bytes:
    stream = stored(b"".join(frames))
    return b"1C" + u32(len(stream)) + stream


def a(number: int, version: int = 1) -> bytes:
    return b"%dA" % version + u32(number)


CASES: list[dict[str, Any]] = []


def to_collector(
    name: str, *steps: tuple[bytes, list[int]], events: list[tuple[str, str | bytes]], refused: str = "",
    acknowledge: bool = True, end: bool = False,
) -> None:  # fmt: skip
    CASES.append({
        "name": name,
        "direction": "to collector",
        "acknowledge": acknowledge,
        "steps": [{"receive": data.hex(), "acks": acks} for data, acks in steps],
        "end": end,  # the writer closes
        "events": [[kind, (body.encode() if isinstance(body, str) else body).hex()] for kind, body in events],
        "refused": refused,
    })  # fmt: skip


def send(wire: bytes, *bodies: str | bytes) -> dict[str, Any]:
    data = [(body.encode() if isinstance(body, str) else body).hex() for body in bodies]
    return {"send": data, "wire": wire.hex()}


def receive(data: bytes, *acked: int) -> dict[str, Any]:
    return {"receive": data.hex(), "acked": list(acked)}


def refused(data: bytes, words: str) -> dict[str, Any]:
    return {"receive": data.hex(), "acked": [], "refused": words}


def connect() -> dict[str, Any]:
    return {"connect": True}


def to_client(name: str, *steps: dict[str, Any], **options: Any) -> None:
    whole = {"window": 4, "inflight": 2, "compression": 0, "identity": False, "frames": "json", "first": 1}
    CASES.append({"name": name, "direction": "to client", "options": whole | options, "steps": list(steps)})


# -- to the collector: what a writer may do

to_collector("one json frame", (w(1) + j(1), [1]), events=[("J", A)])
to_collector("one data frame", (w(1) + d(1, line="x"), [1]), events=[("D", pairs(line="x"))])
to_collector(
    "json and data frames side by side", (w(3) + j(1) + d(2, k="v") + j(3, B), [1, 2, 3]),
    events=[("J", A), ("D", pairs(k="v")), ("J", B)],
)  # fmt: skip
to_collector("a map without pairs", (w(1) + d(1), [1]), events=[("D", pairs())])
to_collector(
    "one window frame for all that follows", (w(2) + j(1) + j(2, B), [1, 2]), (j(3, C3), [3]),
    (j(4, D4), [4]), events=[("J", A), ("J", B), ("J", C3), ("J", D4)],
)  # fmt: skip
to_collector("fewer frames than the window", (w(100) + j(1) + j(2, B), [1, 2]), events=[("J", A), ("J", B)])
to_collector("no window frame", (j(1) + j(2, B), [1, 2]), events=[("J", A), ("J", B)])
to_collector(
    "a window frame anew", (w(1) + j(1), [1]), (w(2) + j(2, B) + j(3, C3), [2, 3]),
    events=[("J", A), ("J", B), ("J", C3)],
)  # fmt: skip
to_collector(
    "a wider window before the acks", (w(1) + j(1) + w(2) + j(2, B), [1, 2]), events=[("J", A), ("J", B)],
    acknowledge=False,
)  # fmt: skip

# -- numbers

to_collector("the first number is any", (w(1) + j(1000), [1000]), events=[("J", A)])
to_collector(
    "numbers run over windows", (w(2) + j(7) + j(8, B), [7, 8]), (w(1) + j(9, C3), [9]),
    events=[("J", A), ("J", B), ("J", C3)],
)  # fmt: skip
to_collector("the highest bit", (w(2) + j(0x7FFFFFFF) + j(0x80000000, B), [0x7FFFFFFF, 0x80000000]),
             events=[("J", A), ("J", B)])  # fmt: skip
to_collector("roll-over to 1", (w(3) + j(LAST - 1) + j(LAST, B) + j(1, C3), [LAST - 1, LAST, 1]),
             events=[("J", A), ("J", B), ("J", C3)])  # fmt: skip
to_collector("roll-over to 0", (w(3) + j(LAST) + j(0, B) + j(1, C3), [LAST, 0, 1]),
             events=[("J", A), ("J", B), ("J", C3)])  # fmt: skip
to_collector("roll-over in a compressed frame", (w(3) + c(j(LAST - 1), j(LAST, B), j(1, C3)), [1]),
             events=[("J", A), ("J", B), ("J", C3)])  # fmt: skip
to_collector("a number less than the one before", (w(2) + j(10) + j(5, B), [10, 5]),
             events=[("J", A), ("J", B)])  # fmt: skip

# -- compressed frames

to_collector("a compressed frame has one ack", (w(3) + c(j(1), j(2, B), j(3, C3)), [3]),
             events=[("J", A), ("J", B), ("J", C3)])  # fmt: skip
to_collector("both kinds in a compressed frame", (w(2) + c(d(1, line="x"), j(2, B)), [2]),
             events=[("D", pairs(line="x")), ("J", B)])  # fmt: skip
to_collector("two compressed frames in a window", (w(3) + c(j(1), j(2, B)) + c(j(3, C3)), [2, 3]),
             events=[("J", A), ("J", B), ("J", C3)])  # fmt: skip
to_collector("plain behind compressed", (w(3) + c(j(1), j(2, B)) + j(3, C3), [2, 3]),
             events=[("J", A), ("J", B), ("J", C3)])  # fmt: skip
to_collector("compressed in compressed", (w(2) + c(j(1), c(j(2, B))), [2]), events=[("J", A), ("J", B)])
to_collector("a window frame in a compressed frame", (c(w(2), j(1), j(2, B)), [2]), (j(3, C3), [3]),
             events=[("J", A), ("J", B), ("J", C3)])  # fmt: skip
to_collector("a compressed frame without events", (w(1) + c() + j(1), [1]), events=[("J", A)])
to_collector("only a window frame in a compressed frame", (c(w(1)), []), (j(1), [1]), events=[("J", A)])
to_collector(
    "byte by byte", *[(bytes([byte]), []) for byte in (w(2) + c(j(1), d(2, k="v")))[:-1]],
    ((w(2) + c(j(1), d(2, k="v")))[-1:], [2]), events=[("J", A), ("D", pairs(k="v"))],
)  # fmt: skip

# -- what a writer may not do

to_collector("more than the window", (w(2) + j(1) + j(2, B) + j(3, C3), [1, 2]),
             events=[("J", A), ("J", B)], acknowledge=False,
             refused="more than the 2 frames without an acknowledgement")  # fmt: skip
to_collector("more than the window in a compressed frame", (w(2) + c(j(1), j(2, B), j(3, C3)), []), events=[],
             refused="more than the 2 frames without an acknowledgement")  # fmt: skip
to_collector("a window of 0", (w(0) + j(1), []), events=[], refused="more than the 0 frames")
to_collector("version 2", (b"2W" + u32(1), []), events=[], refused="expected version '1', received byte 0x32")
to_collector("version 2 inside", (w(1) + c(b"2J" + u32(1, 2) + b"{}"), []), events=[],
             refused="expected version '1', received byte 0x32")  # fmt: skip
to_collector("an ack", (w(1) + a(1), []), events=[], refused="frame type 0x41 from a writer of version 1")
to_collector("json of length 0", (w(1) + j(1, ""), []), events=[], refused="a 'J' frame of length 0")
to_collector("a frame cut in a compressed frame", (w(1) + c(j(1)[:-1]), []), events=[],
             refused="a compressed frame that ends inside a frame")  # fmt: skip
to_collector("compressed three times", (w(1) + c(c(c(j(1)))), []), events=[],
             refused="a compressed frame nested more than once")  # fmt: skip
to_collector("closed inside a frame", (w(2) + j(1) + j(2, B)[:-1], [1]), events=[("J", A)], end=True,
             refused="closed inside a frame")  # fmt: skip
to_collector("closed between two frames", (w(2) + j(1), [1]), events=[("J", A)], end=True)

# -- to the client: what it sends

to_client("json frames", send(w(8) + j(1) + j(2, B), A, B))
to_client("data frames", send(w(8) + d(1, line="x") + d(2, line="y"), pairs(line="x"), pairs(line="y")),
          frames="data")  # fmt: skip
to_client("json frames, compressed", send(w(8) + c(j(1), j(2, B)), A, B), compression=3)
to_client("data frames, compressed", send(w(8) + c(d(1, line="x")), pairs(line="x")), frames="data",
          compression=3)  # fmt: skip
to_client("one window frame on a connection", send(w(8) + j(1), A), send(j(2, B), B), receive(a(2), 1, 2),
          send(j(3, C3), C3))  # fmt: skip
to_client("the window is all that may be on its way", send(w(6) + j(1), A), window=3, inflight=2)
to_client("a full window waits", send(w(2) + j(1), A), send(j(2, B), B), send(b"", C3), receive(a(1), 1),
          send(j(3, C3), C3), window=1, inflight=2)  # fmt: skip
to_client("numbers run over the batches", send(w(8) + j(1) + j(2, B), A, B), receive(a(2), 1, 2),
          send(j(3, C3) + j(4, D4), C3, D4))  # fmt: skip
to_client(
    "numbers roll over to 1", send(w(8) + j(LAST - 1) + j(LAST, B) + j(1, C3), A, B, C3), first=LAST - 1
)
to_client("a new connection begins anew", send(w(8) + j(1), A), receive(a(1), 1), connect(),
          send(w(8) + j(1, B), B), receive(a(1), 2))  # fmt: skip
to_client(
    "the id in a json frame",
    send(w(8) + j(1, f'{{"@metadata":{{"_id":"{ID}"}},"event.id":"{ID}"}}'), "{}"),
    identity=True,
)
to_client("the id in a data frame", send(w(8) + b"1D" + u32(1) + u32(2) + u32(4) + b"line" + u32(1) + b"x"
          + u32(8) + b"event.id" + u32(32) + ID.encode(), pairs(line="x")),
          frames="data", identity=True)  # fmt: skip

# -- and what it makes of acks

to_client("an ack for each frame", send(w(8) + j(1) + j(2, B), A, B), receive(a(1), 1), receive(a(2), 2))
to_client("an ack for all frames", send(w(8) + j(1) + j(2, B) + j(3, C3), A, B, C3), receive(a(3), 1, 2, 3))
to_client("an ack over two batches", send(w(8) + j(1) + j(2, B), A, B), send(j(3, C3) + j(4, D4), C3, D4),
          receive(a(3), 1, 2, 3), receive(a(4), 4))  # fmt: skip
to_client("the same ack again", send(w(8) + j(1) + j(2, B), A, B), receive(a(1) + a(1), 1), receive(a(2), 2))
to_client("an older ack", send(w(8) + j(1) + j(2, B), A, B), receive(a(2) + a(1), 1, 2))
to_client("a keep-alive", send(w(8) + j(1), A), receive(a(0) + a(0, 2)), receive(a(1), 1))
to_client("acks of version 2", send(w(8) + j(1), A), receive(a(1, 2), 1))
to_client("an ack in two pieces", send(w(8) + j(1), A), receive(a(1)[:3]), receive(a(1)[3:], 1))
to_client("an ack over the roll-over", send(w(8) + j(LAST) + j(1, B), A, B), receive(a(1), 1, 2), first=LAST)
to_client("an older ack after the roll-over", send(w(8) + j(LAST) + j(1, B) + j(2, C3), A, B, C3),
          receive(a(1), 1, 2), receive(a(LAST)), receive(a(2), 3), first=LAST)  # fmt: skip
to_client("the highest bit in an ack", send(w(8) + j(0x7FFFFFFF) + j(0x80000000, B), A, B),
          receive(a(0x80000000), 1, 2), first=0x7FFFFFFF)  # fmt: skip
to_client("an ack of what was not sent", send(w(8) + j(1) + j(2, B), A, B),
          refused(a(3), "ack 3 although the frames sent and not acknowledged are 1 to 2"))  # fmt: skip
to_client("an ack before anything was sent", refused(a(1), "ack 1 although no window is in flight"))
to_client("an ack of the number before the first", send(w(8) + j(5), A),
          refused(a(4), "ack 4 although the frames sent and not acknowledged are 5 to 5"),
          first=5)  # fmt: skip
to_client("an ack ahead over the roll-over", send(w(8) + j(LAST), A),
          refused(a(1), f"ack 1 although the frames sent and not acknowledged are {LAST} to {LAST}"),
          first=LAST)  # fmt: skip
to_client("no ack frame", send(w(8) + j(1), A), refused(b"HTTP/1.1 400", "expected an ack frame"))


def text() -> str:
    """The whole file: a line a case."""
    return "[\n" + ",\n".join(json.dumps(case) for case in CASES) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text())
