"""Lumberjack, versions 1 and 2: the writer's core, and the reader for whoever plays the server.

States of a connection, as the writer sees it::

    state     in flight      encode            ack 0     ack 1..n of the oldest   any other ack
    IDLE      0              -> WAITING        alive     broken                   broken
    WAITING   1 .. limit-1   -> WAITING, FULL  alive     k < n: same state        broken
                                                         n: -> WAITING, IDLE
    FULL      limit          refused           alive     n: -> WAITING, IDLE      broken
    BROKEN    as it was      refused           ignored   ignored                  ignored

    connected: any -> IDLE          connection_lost: any -> IDLE, the windows are forgotten
    limit: `inflight`, or 1 for the next 10 windows after a break with more than one out

A window is ``W n`` and n frames, numbered from 1 in each window; compressed, all of them in exactly
one ``C`` frame. Acks of different windows look alike, so they are matched first in, first out, and
after any doubt the connection is dropped.

With ``strict_spec`` frames are written as the protocol's text has them, which no released server reads.
The one ``W`` of a connection says how many frames may be without an ack: `window` times `inflight`.
Numbers run on over the connection, and after 4,294,967,295 comes 1, as an ack of 0 stays a keep-alive. An
ack is for all frames up to its number: one that was acknowledged before is ignored, any other that is not
awaited is BROKEN.

=========  ==================================================  ====================
           first carrier of the id                             second carrier
=========  ==================================================  ====================
version 2  ``"@metadata": {"_id": ...}``                       ``"event.id"``
version 1  the pair ``event.id`` (either flag leaves it out)
=========  ==================================================  ====================

All the work is done in ``logclient._ext.lumberjack``; this class gives it the words of
``delivery.contract``, and the compiled pump drives the same object through ``hot``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from logclient._ext.lumberjack import (
    MAX_WINDOW,
    Hot,
    Reader,
    Window,
    check_json,
    decode_acks,
    encode_ack,
)
from logclient.config import options_of
from logclient.delivery.compiled import CompiledCore
from logclient.errors import ConfigError
from logclient.protocols.readable import BODY_KEPT, Bytes, Frame, around

__all__ = [
    "MAX_WINDOW",
    "Lumberjack",
    "Options",
    "Probe",
    "Reader",
    "Window",
    "decode_acks",
    "encode_ack",
    "frames",
    "pair_block",
]


class Options(NamedTuple):
    """What a Lumberjack core can be told."""

    version: int = 2
    """2: 'json' frames; 1: 'data' frames, always in a compressed frame."""
    window: int = 2048
    """Events in a window, at most; 1 to 10,000."""
    inflight: int = 2
    """Windows without an ack at one time."""
    compression: int = 3
    """0: none (version 1: an envelope of stored blocks); 1 to 9: zlib's levels."""
    identity: str = "id"
    """``id``: splice the id into each event; ``none``: do not."""
    check: bool = True
    """Check that raw bodies are what the protocol carries."""
    silence: float = 30.0
    """Seconds without a byte from the reader before it counts as dead."""
    window_bytes: int = 1 << 20
    """Bytes in a window before compression, at most; a longer event travels alone."""
    frames: str = ""
    """``json`` or ``data``; empty: as the version has it, and ``json`` with `strict_spec`."""
    strict_spec: bool = False
    """Write the literal form, in version 1."""


class Lumberjack(CompiledCore):
    """The writer's side of one connection at a time. See ``delivery.contract.Core``.

    When ``begin_close`` has been asked for, never shut one direction down before ``CloseWanted``: both real
    servers drop the acks then.

    Args:
        options: see `Options`.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        if options.identity not in ("id", "own", "none"):
            raise ConfigError(f"identity: id, own or none, not {options.identity!r}")
        self.options = options
        try:
            hot = Hot(
                producer,
                version=options.version,
                window=options.window,
                window_bytes=options.window_bytes,
                inflight=options.inflight,
                compression=options.compression,
                identity=options.identity != "none",
                check=options.check,
                silence=options.silence,
                frames=options.frames,
                strict_spec=options.strict_spec,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(hot)

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Lumberjack:
        """From whatever has the options as attributes (a ``logclient.config.Config``)."""
        return cls(options_of(Options, config), producer)

    @property
    def windows(self) -> int:
        """Windows in flight."""
        return int(self._hot.windows)

    @property
    def careful(self) -> int:
        """Windows that still go one at a time."""
        return int(self._hot.careful)

    @property
    def awaited(self) -> int:
        return self.windows

    def silent(self) -> str:
        waiting = self.windows
        return (
            f"silence: no byte from the reader in time, with {waiting} window{'s'[: waiting != 1]} in flight"
        )

    def call(self, kind: str, payload: Any) -> int:
        raise ValueError(f"call: Lumberjack has no {kind!r}")


def pair_block(fields: Mapping[str, str]) -> bytes:
    """Version 1's body: u32 count, then u32 length and bytes of each key and value (UTF-8)."""
    parts = [len(fields).to_bytes(4, "big")]
    for text in (text for pair in fields.items() for text in pair):
        data = text.encode("utf-8", "replace")
        parts += [len(data).to_bytes(4, "big"), data]
    return b"".join(parts)


# -- whether a reader is there


class Probe:
    """Questions that a Lumberjack reader answers, and of which no event can come.

    First an empty window. Logstash acknowledges it at once, with 0; go-lumber's server takes it without a
    word, and there is nothing but events that it does answer. So before silence is called silence the head
    of another window is sent, with nothing in it either: its number ends in line feeds, and for those an
    HTTP server waits before it complains.
    """

    silence = "it may be one that answers to events only, as go-lumber's does: --event would tell"

    def __init__(self, config: Any) -> None:
        self._version = str(config.version).encode()
        self._data = b""
        self.about: dict[str, Any] = {}

    def ask(self) -> list[bytes]:
        """What to send; may be asked again after an answer."""
        self._data = b""
        return [self._version + b"W\0\0\0\0"]

    def insist(self) -> list[bytes]:
        """What to send when nothing was answered for a while."""
        return [self._version + b"W\0\0\n\n"]

    def receive_data(self, data: bytes) -> bool | None:
        """True: answered as Lumberjack does; False: as it never does; None: not yet."""
        self._data = (self._data + data)[:6]
        if self._data[:1] not in (b"", b"1", b"2") or self._data[1:2] not in (b"", b"A"):
            return False
        return True if len(self._data) == 6 else None


# -- what travelled, for people

MAX_INFLATED = 64 << 20
"""Bytes that a compressed frame, and all in it, may inflate to: as the reader's bound."""

_HEADS = {b"W": 6, b"A": 6, b"C": 6, b"J": 10, b"D": 10}
_DEEPEST = 2  # compressed frames in one another, as the reader takes them
_PIECE = 1 << 16
_PAIRS_KEPT = 1000


def frames(data: Bytes, *, max_inflated: int = MAX_INFLATED) -> Iterator[Frame]:
    """The frames of one direction of a connection, in order, compressed ones opened.

    Here it is told what is there; what is allowed is told by the `Reader`. After a fault the walk goes
    on as long as one frame can be told from the next, and is judged again from the next window on.
    Bytes that begin with an ack are a reader's, all others a writer's. Those that begin with an event's frame
    of version 1 are taken for the literal form, as it is captured.

    Args:
        max_inflated: a compressed frame that inflates further is not opened.
    """
    view = memoryview(data)
    head = bytes(view[:2])
    judge = _Judge(head[1:] == b"A", head in (b"1J", b"1D", b"1C"), max_inflated)
    for frame, whole, content in _walk(view, 0, max_inflated):
        wrong = judge.look(frame, view) if whole else ""
        if wrong:
            frame = _marked(frame, f"{wrong}; {frame.wrong}" if frame.wrong else wrong, view)
        yield frame
        if content is not None:
            yield from _inside(content, 1, max_inflated - len(content))
        if not whole:
            return
    wrong = judge.end()
    if wrong:
        yield _marked(Frame(len(view), 0, 0, "", {}), wrong, view)


class _Judge:
    """What is wrong with a frame that is whole."""

    def __init__(self, acks: bool, literal: bool, max_inflated: int) -> None:
        self.acks = acks
        self.max_inflated = max_inflated
        # A unit of the literal form has no window frame of its own.
        self.reader: Reader | None = None if acks else Reader(max_inflated=max_inflated, strict_spec=literal)

    def look(self, frame: Frame, view: memoryview) -> str:
        kind = frame.fields["type"]
        if self.acks:
            return "" if kind == "A" else f"a '{kind}' frame among acks"
        if self.reader is None:
            if kind != "W":
                return ""  # of a window that is wrong already
            self.reader = Reader(max_inflated=self.max_inflated)
        chunk = view[frame.offset : frame.offset + frame.size]
        wrong = self._read(chunk)
        if wrong and kind == "W":
            # Most likely too early, and the first frame of the next window all the same.
            self.reader = Reader(max_inflated=self.max_inflated)
            self._read(chunk)
        return wrong

    def _read(self, chunk: memoryview) -> str:
        assert self.reader is not None
        self.reader.receive_data(chunk)
        wrong = self.reader.error
        if wrong is None:
            return ""
        self.reader = None
        return wrong

    def end(self) -> str:
        if self.reader is None:
            return ""
        self.reader.receive_eof()
        return self.reader.error or ""


def _inside(content: Bytes, depth: int, budget: int) -> Iterator[Frame]:
    for frame, _, inner in _walk(memoryview(content), depth, budget):
        yield frame
        if inner is not None:
            yield from _inside(inner, depth + 1, budget - len(inner))


def _marked(frame: Frame, wrong: str, view: memoryview) -> Frame:
    data, begin = around(view, frame.offset)
    return frame._replace(wrong=wrong, around=data, around_at=begin)


def _walk(view: memoryview, depth: int, budget: int) -> Iterator[tuple[Frame, bool, Bytes | None]]:
    """(frame, whether the next can be told from it, what it holds compressed); `budget` for the latter."""
    at = 0
    whole = True
    while whole and at < len(view):
        frame, whole, content = _frame(view, at, depth, budget)
        yield _marked(frame, frame.wrong, view) if frame.wrong else frame, whole, content
        at += frame.size


def _frame(view: memoryview, at: int, depth: int, budget: int) -> tuple[Frame, bool, Bytes | None]:
    head = bytes(view[at : at + 10])
    left = len(view) - at
    kind = head[1:2]
    wrong = ""
    if head[0] not in b"12":
        wrong = f"no frame: its version is byte 0x{head[0]:02x}, not '1' or '2'"
    elif kind and kind not in _HEADS:
        wrong = f"no frame: its type is byte 0x{kind[0]:02x}"
    elif not kind or left < _HEADS[kind]:
        wrong = f"cut inside the head of a frame: {left} byte{'s'[: left != 1]} of it"
    if wrong:
        return Frame(at, depth, left, "", {}, wrong=wrong), False, None
    number = int.from_bytes(head[2:6], "big")
    name = head[:2].decode()
    fields: dict[str, Any] = {"version": int(name[0]), "type": name[1]}
    if kind == b"W":
        fields["window"] = number
        return Frame(at, depth, 6, f"{name} window of {_count(number, 'event')}", fields), True, None
    if kind == b"A":
        fields["ack"] = number
        title = f"{name} ack {number}" + ("" if number else " (keep-alive)")
        return Frame(at, depth, 6, title, fields), True, None
    body: bytes | list[tuple[bytes, bytes]]
    content = None
    if kind == b"D":
        fields["sequence"] = number
        count = int.from_bytes(head[6:10], "big")
        size, body = _pairs(view, at, count)
        length = min(size, left) - 6
        title = f"{name} sequence {number}, {_count(count, 'pair')}"
    else:
        begin = _HEADS[kind]
        length = int.from_bytes(head[begin - 4 : begin], "big")
        size = begin + length
        payload = view[at + begin : at + size]
        body = bytes(payload[:BODY_KEPT]) if kind == b"J" else b""
        if kind == b"J":
            fields["sequence"] = number
            title = f"{name} sequence {number}, {_count(length, 'byte')}"
            if size <= left and check_json(payload) is None:
                wrong = "not one JSON object in UTF-8"
        else:
            title = f"{name} compressed, {_count(length, 'byte')}"
            if depth >= _DEEPEST:
                wrong = "a compressed frame nested more than once is not opened"
            elif size <= left:
                content, behind, wrong = _inflated(payload, budget)
                if content is not None:
                    fields["inflated"] = len(content)
                    title += f", {len(content):,} inflated"
                if behind:
                    title += f", {_count(behind, 'byte')} behind the stream"
    fields["length"] = length
    if size > left:
        wrong = f"cut: {left:,} of its {size:,} bytes" if kind != b"D" else f"cut after {left:,} bytes"
    frame = Frame(at, depth, min(size, left), title, fields, body, length, wrong)
    return frame, size <= left, content


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s'[: n != 1]}"


def _pairs(view: memoryview, at: int, count: int) -> tuple[int, list[tuple[bytes, bytes]]]:
    """(size of the 'data' frame at `at`, the first of its pairs); more than there is when it is cut."""
    kept: list[tuple[bytes, bytes]] = []
    here = at + 10
    key = b""
    for n in range(2 * count):
        if here + 4 > len(view):
            return len(view) - at + 1, kept
        size = int.from_bytes(view[here : here + 4], "big")
        here += 4
        if here + size > len(view):
            return len(view) - at + 1, kept
        if len(kept) < _PAIRS_KEPT:
            text = bytes(view[here : here + min(size, BODY_KEPT)])
            if n % 2:
                kept.append((key, text))
            key = text
        here += size
    return here - at, kept


def _inflated(payload: memoryview, budget: int) -> tuple[Bytes | None, int, str]:
    """(what it inflates to, as far as it does; bytes behind its end; what is wrong).

    None where it is more than `budget` bytes.
    """
    import zlib

    content, behind, wrong = _inflate(payload, budget, zlib.MAX_WBITS)
    if wrong and content is not None and len(payload) > 1 and payload[0] & 15 == 8:
        # A zlib stream, but damaged: once more without its checksum, to see what can be seen.
        content, _, _ = _inflate(payload[2:], budget, -zlib.MAX_WBITS, 64)
    return content, behind, wrong


def _inflate(
    payload: memoryview, budget: int, wbits: int, step: int = _PIECE
) -> tuple[Bytes | None, int, str]:
    import zlib

    inflater = zlib.decompressobj(wbits)
    content = bytearray()
    try:
        for at in range(0, len(payload), step):
            piece: Bytes = payload[at : at + step]
            while len(piece):
                content += inflater.decompress(piece, _PIECE)
                if len(content) > budget:
                    return None, 0, f"not opened: it inflates to more than {budget:,} bytes"
                if inflater.eof:
                    return content, len(inflater.unused_data) + max(0, len(payload) - at - step), ""
                piece = inflater.unconsumed_tail
    except zlib.error as error:
        return content, 0, str(error).rpartition(": ")[2]
    return content, 0, ""
