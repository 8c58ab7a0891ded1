"""Examples of each fault with their bytes, fetched from ledger and capture when all is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from logclient import registry
from logclient._ext.hash import xxh64
from logclient.protocols.readable import Frame
from logclient.verify import decode, sources
from logclient.verify.compare import EVENT_BITS, LISTENER, UNIT_BITS, Example, Plan
from logclient.verify.ledger import FATES, Ledger
from logclient.verify.verdict import harmless

__all__ = ["resolve", "undecoded"]

MOST = 4096  # bytes of a body that are shown
BYTES = 192  # bytes of a frame that are shown as they are
HELD = 64 << 20  # bytes of messages that are not whole, as the decoder keeps them

Pick = Callable[[Iterable[tuple[int, int]]], dict[tuple[int, int], dict[str, Any]]]


def resolve(
    found: dict[str, list[Example]], plan: Plan, doubtful: set[str], packed: Ledger, pick: Pick | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Name the examples, say what the ledger knows of them, and read their bytes.

    Args:
        found: word -> examples, as `verdict.Tally.chosen` gives them.
        doubtful: protocols of which what was sent and not seen is unknown.
        pick: where what arrived is records, not segments: gets those at (listener, number).
    """
    numbers: dict[str, int] = {"": -1}
    shown: dict[str, list[dict[str, Any]]] = {}
    wanted: dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]] = {}
    for word, rows in sorted(found.items()):
        for producer, sequence, other, listener, x, copies, sent in rows:
            example: dict[str, Any] = {
                "id": f"{producer}{sequence:012x}" if producer else None,
                "producer": producer,
                "seq": sequence,
                "copies": copies,
            }
            if other:
                example["hash"] = other
            name = producer or ""
            if name not in numbers:
                numbers[name] = packed.find(name)
            p = numbers[name]
            doubt = p >= 0 and packed.families[packed.family[p]] in doubtful
            turned = sent and word in ("lost", "missing") and doubt
            mine = shown.setdefault("unknown" if turned else word, [])
            if len(mine) >= plan.examples:
                continue
            mine.append(example)
            if p >= 0 and sequence is not None:
                _sent(example, packed, p, sequence)
            if listener >= 0:
                unit = x >> EVENT_BITS
                place = listener & LISTENER, unit >> UNIT_BITS
                wanted.setdefault(place, []).append(
                    (unit & ((1 << UNIT_BITS) - 1), x & ((1 << EVENT_BITS) - 1), example)
                )
    if pick is not None:
        _records(wanted, plan, pick)
    carried: dict[int, _Carried] = {}
    for entry in plan.segments:
        fields, listener, rank, protocol = entry
        places = sorted(wanted.get((listener, rank), ()), key=lambda place: place[:2])
        if protocol and decode.carries(protocol):
            if any(at[0] == listener and at[1] >= rank for at in wanted):
                carried.setdefault(listener, _Carried(protocol)).read(sources.Segment(*fields), places, plan)
        elif places:
            _read(sources.Segment(*fields), protocol, places, plan)
    return shown


def _sent(example: dict[str, Any], packed: Ledger, p: int, sequence: int) -> None:
    """What the producer wrote down of an event."""
    x = packed.producers[p]
    example.update(host=x.host, pid=x.pid, started_us=x.started_us, url=harmless(x.url))
    example["fate"] = FATES[int(packed.fates_at(p, np.array([sequence], np.int64))[0])]
    if reason := packed.reason(p, sequence):
        example["reason"] = reason
    listed = packed.event(p, sequence)
    if listed is not None:
        example["sent_hash"] = f"{listed[0]:016x}"
        example["created_us"] = listed[1]


def _read(
    segment: sources.Segment, protocol: str, places: list[tuple[int, int, dict[str, Any]]], plan: Plan
) -> None:
    """Fill in what one segment has; `places` are (unit, event in the unit, example), rising."""
    reader = sources.SegmentReader(segment, units=plan.units, chunk=plan.chunk)
    find = decode.decoder(protocol)
    at = 0
    known = -1
    frames: list[Frame] = []
    for batch in reader:
        while at < len(places) and places[at][0] < batch.ordinal + len(batch.offset):
            unit, within, example = places[at]
            at += 1
            i = unit - batch.ordinal
            one = batch.take(np.array([i]))
            events = find(one)
            if within >= len(events.unit):
                continue
            raw = bytes(one.data[int(one.offset[0]) : int(one.offset[0] + one.length[0])])
            data = decode.expand(protocol, raw)
            offset = int(events.offset[within])
            body = data[offset : offset + int(events.length[within])]
            if unit != known:
                known, frames = unit, _frames(protocol, raw)
            # A message is what its frames are counted in, a window what is left when it is opened.
            head = _HEADS.get(decode.protocol_of(protocol))
            path, begin = _path(frames, offset) if head is None else _message(frames, offset, head)
            example.update(
                listener=segment.listener,
                segment=segment.name,
                unit_at=int(batch.base + batch.offset[i]),
                peer=reader.peers.get(int(batch.stream[i]), ""),
                arrival=int(batch.arrival[i]),
                received_us=int(batch.received_us[i]),
                size=len(body),
                body=_text(body),
                arrived_hash=f"{xxh64(body):016x}",
                offset=offset,
                frames=[_plain(frame) for frame in path],
                opened=data != raw,
                bytes_at=begin,
                bytes=data[begin : min(offset + len(body), begin + BYTES)].hex(),
            )
        if at == len(places):
            return


class _Carried:
    """Reads the segments of a listener, in order, where an event may have several units."""

    def __init__(self, protocol: str) -> None:
        from logclient._ext import plog

        self.protocol = protocol
        self.messages: Any = plog.Reassembler(max_message=plog.MAX_MESSAGE, max_bytes=plog.MAX_MESSAGE + HELD)

    def read(
        self, segment: sources.Segment, places: list[tuple[int, int, dict[str, Any]]], plan: Plan
    ) -> None:
        """Fill in what one segment has; `places` are (unit, 0, example), rising."""
        reader = sources.SegmentReader(segment, units=plan.units, chunk=plan.chunk)
        for batch in reader:
            which = np.flatnonzero(batch.direction == 0)
            if not len(which):
                continue
            some = batch.take(which)
            now = float(some.received_us[0]) / 1e6
            judged = self.messages.feed(some.data, some.offset, some.length, some.stream, now)
            while places and places[0][0] < batch.ordinal + len(batch.offset):
                unit, _, example = places.pop(0)
                row = int(np.searchsorted(which, unit - batch.ordinal))
                at = int(some.offset[row])
                raw = bytes(some.data[at : at + int(some.length[row])])
                body = judged.payload(row)
                example.update(
                    listener=segment.listener,
                    segment=segment.name,
                    unit_at=int(some.base + at),
                    peer=reader.peers.get(int(some.stream[row]), ""),
                    arrival=int(some.arrival[row]),
                    received_us=int(some.received_us[row]),
                    size=len(body),
                    body=_text(body),
                    arrived_hash=f"{xxh64(body):016x}",
                    offset=max(raw.find(body[:BYTES]), 0),
                    frames=[_plain(frame) for frame in _frames(self.protocol, raw)],
                    opened=False,
                    bytes_at=0,
                    bytes=raw[:BYTES].hex(),
                )


def _records(
    wanted: dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]], plan: Plan, pick: Pick
) -> None:
    """Fill in what records have."""
    assert plan.records is not None
    first = [place[1] for place in plan.records["places"]]
    places: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for (listener, rank), some in wanted.items():
        for unit, _, example in some:
            at = (rank << UNIT_BITS) + unit + (first[listener] if plan.records["numbered"] else 0)
            places.setdefault((listener, at), []).append(example)
    for place, record in pick(places).items():
        body = record["body"]
        for example in places[place]:
            example.update(
                listener=record["place"],
                segment=record["place"],
                unit_at=record["at"],
                peer="",
                arrival=record["at"],
                received_us=record["received_us"],
                key=None if record["key"] is None else _text(record["key"]),
                size=len(body),
                body=_text(body),
                arrived_hash=f"{xxh64(body):016x}",
                offset=0,
                frames=[],
                opened=False,
                bytes_at=0,
                bytes=body[:BYTES].hex(),
            )


def _text(data: bytes) -> str:
    return data[:MOST].decode("utf-8", "backslashreplace")


def _frames(protocol: str, unit: bytes) -> list[Frame]:
    return list(registry.load_sibling(decode.protocol_of(protocol), "frames")(unit))


def _path(frames: list[Frame], offset: int) -> tuple[list[Frame], int]:
    """The frames around the event whose body is at `offset`, outermost first, and where the last begins.

    `offset` counts with compressed frames inflated in place, a frame's own in what it lies in.
    """
    before: list[Frame] = []  # the unit's head, and the frames that are open
    here = 0
    for frame, then in zip(frames, [*frames[1:], None], strict=True):
        before = [x for x in before if x is frames[0] or x.depth < frame.depth]
        if then is not None and then.depth > frame.depth:
            before.append(frame)
            continue
        if here + frame.size - frame.length == offset and frame.size:
            return [*before, frame], here
        if frame is frames[0]:
            before.append(frame)
        here += frame.size
    return before[:1], offset


_HEADS = {"logjam": 4, "logux": 0}
"""Of messages: bytes of a frame before what it carries."""


def _message(frames: list[Frame], offset: int, head: int) -> tuple[list[Frame], int]:
    """The same of a message: it, and the frame that the body is."""
    body = [frame for frame in frames if frame.depth and frame.offset + head == offset]
    return [*frames[:1], *body], offset - head if body else offset


def _plain(frame: Frame) -> dict[str, Any]:
    return {"offset": frame.offset, "depth": frame.depth, "size": frame.size, "title": frame.title}


def undecoded(rows: list[dict[str, Any]], plan: Plan, pick: Pick | None = None) -> None:
    """Say of things that did not decode what is wrong with them, and show the bytes there."""
    if pick is not None:
        picked = pick({(row["listener"], row["unit_at"]) for row in rows})
        for row in rows:
            record = picked.get((row.pop("listener"), row["unit_at"]))
            if record is not None and record["body"] is not None:
                row.update(
                    wrong=row["reason"].replace("_", " "), bytes_at=0, bytes=record["body"][:BYTES].hex()
                )
        return
    segments = {}
    for fields, _, _, protocol in plan.segments:
        segment = sources.Segment(*fields)
        segments[segment.name] = segment, protocol
    found: dict[tuple[str, int], list[Frame]] = {}
    for row in rows:
        segment, protocol = segments[row["segment"]]
        place = row["segment"], row["unit_at"]
        if place not in found:
            unit = sources.unit_at(segment, row["unit_at"])
            found[place] = [frame for frame in _frames(protocol, unit) if frame.wrong]
        wrong = found[place]
        if wrong:
            frame = wrong.pop(0) if len(wrong) > 1 else wrong[0]
            row.update(wrong=frame.wrong, bytes_at=frame.around_at, bytes=frame.around.hex())
