"""Examples of each fault with their bytes, fetched from the capture when all is counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from logclient.verify import decode, sources
from logclient.verify.compare import EVENT_BITS, UNIT_BITS, Example, Plan
from logclient.verify.ledger import Ledger

__all__ = ["resolve"]

MOST = 4096  # bytes of a body that are shown


def resolve(
    found: dict[str, list[Example]], plan: Plan, doubtful: set[str], packed: Ledger
) -> dict[str, list[dict[str, Any]]]:
    """Name the examples and read their bytes.

    Args:
        found: word -> examples, as `verdict.Tally` keeps them.
        doubtful: protocols of which what was sent and not seen is unknown.
    """
    touched = {x.producer for x in packed.producers if decode.protocol_of(x.protocol) in doubtful}
    shown: dict[str, list[dict[str, Any]]] = {}
    wanted: dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]] = {}
    for word, rows in found.items():
        for producer, sequence, other, listener, x, copies, sent in rows:
            example: dict[str, Any] = {
                "id": f"{producer}{sequence:012x}" if producer else None,
                "producer": producer,
                "seq": sequence,
                "copies": copies,
            }
            if other:
                example["hash"] = other
            if listener >= 0:
                unit = x >> EVENT_BITS
                place = listener, unit >> UNIT_BITS
                wanted.setdefault(place, []).append(
                    (unit & ((1 << UNIT_BITS) - 1), x & ((1 << EVENT_BITS) - 1), example)
                )
            turned = sent and word in ("lost", "missing") and producer in touched
            shown.setdefault("unknown" if turned else word, []).append(example)
    for entry in plan.segments:
        fields, listener, rank, protocol = entry
        places = wanted.get((listener, rank))
        if places:
            _read(sources.Segment(*fields), protocol, sorted(places, key=lambda place: place[:2]), plan)
    return {word: rows[: plan.examples] for word, rows in shown.items() if rows}


def _read(
    segment: sources.Segment, protocol: str, places: list[tuple[int, int, dict[str, Any]]], plan: Plan
) -> None:
    """Fill in what one segment has; `places` are (unit, event in the unit, example), rising."""
    reader = sources.SegmentReader(segment, units=plan.units, chunk=plan.chunk)
    find = decode.decoder(protocol)
    at = 0
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
            body = decode.body(protocol, raw, int(events.offset[within]), int(events.length[within]))
            example.update(
                listener=segment.listener,
                segment=segment.name,
                peer=reader.peers.get(int(batch.stream[i]), ""),
                arrival=int(batch.arrival[i]),
                received_us=int(batch.received_us[i]),
                size=len(body),
                body=body[:MOST].decode("utf-8", "backslashreplace"),
            )
        if at == len(places):
            return
