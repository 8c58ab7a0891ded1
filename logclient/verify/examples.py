"""Examples of each fault with their bytes, read from ledgers and captures after everything is counted."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from logclient._ext.hash import xxh64
from logclient.errors import LedgerError
from logclient.evidence import decode
from logclient.evidence.frames import Frame
from logclient.evidence.segments import Segment, SegmentReader, unit_at
from logclient.evidence.storage import redact_url
from logclient.verify.ledger_facts import OUTCOMES, LedgerFacts
from logclient.verify.plan import Plan
from logclient.verify.schema import DEVICE_BITS, EVENT_BITS, Example

BODY_BYTES = 4096  # of a body that are shown
FRAME_BYTES = 192  # of a frame that are shown

_SPELLINGS: dict[str, Callable[[str], str]] = {
    "in lower case": str.lower,
    "in upper case": str.upper,
    "without blanks": lambda name: "".join(name.split()),
    "without dashes": lambda name: name.replace("-", ""),
}
_Place = tuple[int, int, dict[str, Any]]  # a unit, an event in it, and the example
Pick = Callable[[Iterable[tuple[int, int]]], dict[tuple[int, int], dict[str, Any]]]


def resolve(
    found: dict[str, list[Example]], plan: Plan, doubtful: set[str], facts: LedgerFacts, pick: Pick | None
) -> dict[str, list[dict[str, Any]]]:
    """Name the examples, and add their data from the ledgers and their bytes, as in ``verdict.json``.

    `doubtful` are the protocols with an incomplete capture, whose unseen events are unknown. `pick` fetches
    records by listener and number; None: a capture arrived.
    """
    find = functools.cache(facts.find)
    shown: dict[str, list[dict[str, Any]]] = {}
    wanted: dict[int, list[_Place]] = {}  # by listener
    for word, rows in sorted(found.items()):
        for producer, sequence, other, listener, position, copies, sent, hash_, created_us in rows:
            id_ = f"{producer}{sequence:012x}" if producer else None
            example: dict[str, Any] = {"id": id_, "producer": producer, "seq": sequence, "copies": copies}
            if other:
                example["hash"] = other
            p = find(producer) if producer else -1
            doubt = p >= 0 and facts.families[facts.family[p]] in doubtful
            uncertain = sent and word in ("lost", "missing") and doubt
            examples = shown.setdefault("unknown" if uncertain else word, [])
            if len(examples) >= plan.examples:
                continue
            examples.append(example)
            if p >= 0 and sequence is not None:
                x = facts.producers[p]
                example.update(host=x.host, pid=x.pid, started_us=x.started_us, url=redact_url(x.url))
                example["fate"] = OUTCOMES[int(facts.outcomes_at(p, np.array([sequence], np.int64))[0])]
                if reason := facts.reason(p, sequence):
                    example["reason"] = reason
            if hash_ is not None:
                example |= {} if plan.by_id else {"sent_hash": f"{hash_:016x}"}
                example["created_us"] = created_us
            if listener >= 0:
                place = *divmod(position, 1 << EVENT_BITS), example
                wanted.setdefault(listener >> DEVICE_BITS, []).append(place)
    if pick is not None:
        _records(wanted, plan, pick)
        return shown
    of_segment: dict[int, list[_Place]] = {}
    last: dict[int, int] = {}  # listener -> the last segment with an example
    for listener, some in wanted.items():
        found_in = plan.segments_of(listener, np.array([unit for unit, *_ in some]) << EVENT_BITS).tolist()
        last[listener] = max(found_in)
        for segment, (unit, within, example) in zip(found_in, some, strict=True):
            of_segment.setdefault(segment, []).append((unit - plan.segments[segment][2], within, example))
    carried: dict[int, Any] = {}
    for segment, (file, listener, _, protocol) in enumerate(plan.segments):
        places = sorted(of_segment.get(segment, ()), key=lambda place: place[:2])
        messages = None
        if protocol and decode.carries(protocol) and segment <= last.get(listener, -1):
            make: Any = decode.wire(protocol).reassembler
            messages = carried.setdefault(listener, make())
        if places or messages is not None:
            _read(file, protocol, places, plan, messages)
    return shown


def _read(segment: Segment, protocol: str, places: list[_Place], plan: Plan, messages: Any) -> None:
    """Add the data of one segment to the examples at some places (unit, event in the unit), which ascend.

    Where an event may come in several units, `messages` has the open ones of the listener.
    """
    reader = SegmentReader(segment, units=plan.units, chunk=plan.chunk)
    spec, find = decode.wire(protocol), decode.decoder(protocol)
    for batch in reader:
        which = np.flatnonzero(batch.direction == 0)
        if messages is not None and len(which):
            some = batch.take(which)
            now = float(some.received_us[0]) / 1e6
            judged = messages.feed(some.data, some.offset, some.length, some.stream, now)
        while places and places[0][0] < batch.ordinal + len(batch.offset):
            unit, within, example = places.pop(0)
            i = unit - batch.ordinal
            at = int(batch.offset[i])
            raw = bytes(batch.data[at : at + int(batch.length[i])])
            frames = list(spec.frames(raw))
            if messages is not None:
                body = judged.payload(int(np.searchsorted(which, i)))
                offset, begin, data = max(raw.find(body[:FRAME_BYTES]), 0), 0, raw
                shown = raw[:FRAME_BYTES]
            else:
                events = find(batch.take(np.array([i])))
                if within >= len(events.unit):
                    continue
                data = spec.expand(raw)
                offset = int(events.offset[within])
                body = data[offset : offset + int(events.length[within])]
                head = spec.frame_head
                frames, begin = _path(frames, offset) if head is None else _message(frames, offset, head)
                shown = data[begin : min(offset + len(body), begin + FRAME_BYTES)]
            example.update(
                listener=segment.listener,
                segment=segment.name,
                unit_at=batch.base + at,
                peer=reader.peers.get(int(batch.stream[i]), ""),
                arrival=int(batch.arrival[i]),
                received_us=int(batch.received_us[i]),
            )
            _add_body(example, body, offset, frames, data != raw, begin, shown)
        if not places and messages is None:
            return


def _add_body(
    example: dict[str, Any], body: bytes, offset: int, frames: list[Frame], opened: bool, at: int, data: bytes
) -> None:
    """Add the body of an example, at an offset of its unit, with the frames around it and the bytes there."""
    example.update(
        size=len(body),
        body=_text(body),
        arrived_hash=f"{xxh64(body):016x}",
        offset=offset,
        frames=[{"offset": x.offset, "depth": x.depth, "size": x.size, "title": x.title} for x in frames],
        opened=opened,
        bytes_at=at,
        bytes=data.hex(),
    )


def _records(wanted: dict[int, list[_Place]], plan: Plan, pick: Pick) -> None:
    assert plan.records is not None
    first = [place.first for place in plan.records["places"]]
    places: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for listener, some in wanted.items():
        for unit, _, example in some:
            places.setdefault((listener, unit + first[listener]), []).append(example)
    for place, record in pick(places).items():
        body = record["body"]
        for example in places[place]:
            example.update(
                listener=record["place"],
                segment=record["place"],
                unit_at=record["at"],
                peer="",
                arrival=record["at"] if plan.records["numbered"] else None,
                received_us=record["received_us"],
                key=None if record["key"] is None else _text(record["key"]),
            )
            _add_body(example, body, 0, [], False, 0, body[:FRAME_BYTES])


def _text(data: bytes) -> str:
    return data[:BODY_BYTES].decode("utf-8", "backslashreplace")


def explain_ids(unexpected: list[dict[str, Any]], facts: LedgerFacts) -> list[str]:
    """Show an id that is in no ledger beside one that is, if they differ only in how they are written."""
    for example in unexpected:
        if name := _own_id(example.get("body", "")):
            for n in range(1, len(_SPELLINGS)):
                for some in itertools.combinations(_SPELLINGS, n):
                    other = functools.reduce(lambda text, word: _SPELLINGS[word](text), some, name)
                    if other != name and _is_sent(other, facts):
                        how = " and ".join(some)
                        return [f"ids: {name[:100]!r} arrived, and {other!r} was sent: {how} they are equal"]
    return []


def _own_id(body: str) -> str | None:
    try:
        document = json.loads(body)
        name = document.get("event.id") or document["event"]["id"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def _is_sent(name: str, facts: LedgerFacts) -> bool:
    """Return whether the ledgers have an id, of ours or of an application's own."""
    ours = re.fullmatch("[0-9a-f]{32}", name) is not None
    halves = [int(name[:16], 16), int(name[16:], 16)] if ours else [xxh64(name.encode(), x) for x in (42, 43)]
    if bool((facts.ids[:, :2] == np.array(halves, np.uint64)).all(axis=1).any()):
        return True
    p = facts.find(name[:20]) if ours else -1
    return p >= 0 and 1 <= int(name[20:], 16) <= int(facts.last[p])


def _path(frames: list[Frame], offset: int) -> tuple[list[Frame], int]:
    """Return the frames around an event, outermost first, and the offset of the last one.

    `offset` is that of the body, counted with compressed frames inflated in place. A frame's own offset
    counts in the frame around it.
    """
    before: list[Frame] = []  # the head of the unit, and the enclosing frames
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


def _message(frames: list[Frame], offset: int, head: int) -> tuple[list[Frame], int]:
    """Find the frames around an event in a message, whose frames count in the message as it came."""
    body = [frame for frame in frames if frame.depth and frame.offset + head == offset]
    return [*frames[:1], *body], offset - head if body else offset


def explain_undecoded(rows: list[dict[str, Any]], plan: Plan, pick: Pick | None) -> None:
    """Add the error and the bytes to each entry of `Verdict.undecoded`. For `pick` see `resolve`."""
    if pick is not None:
        picked = pick({(row["listener"], row["unit_at"]) for row in rows})
        for row in rows:
            record = picked.get((row.pop("listener"), row["unit_at"]))
            if record is not None and record["body"] is not None:
                shown = record["body"][:FRAME_BYTES].hex()
                row.update(wrong=row["reason"].replace("_", " "), bytes_at=0, bytes=shown)
        return
    by_name = {segment.name: (segment, protocol) for segment, _, _, protocol in plan.segments}
    found: dict[tuple[str, int], list[Frame]] = {}
    for row in rows:
        segment, protocol = by_name[row["segment"]]
        place = row["segment"], row["unit_at"]
        if place not in found:
            try:
                unit = unit_at(segment, row["unit_at"])
            except LedgerError:
                raise  # a server, which may fail for all of them
            except OSError:
                found[place] = []  # the segment was removed meanwhile
                continue
            found[place] = [frame for frame in decode.wire(protocol).frames(unit) if frame.wrong]
        if wrong := found[place]:
            frame = wrong.pop(0) if len(wrong) > 1 else wrong[0]
            row.update(wrong=frame.wrong, bytes_at=frame.around_at, bytes=frame.around.hex())
