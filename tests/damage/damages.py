"""Realistic damage to ledgers and captures: on the disk while they are written, and afterwards."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

Folder = dict[str, bytes]
"""The files in a folder and its subfolders: name -> content."""


class Evidence:
    """The files of a case during damage, with the facts that become undetectable."""

    def __init__(self, ledger: Folder, capture: Folder, rng: random.Random) -> None:
        self.ledger = ledger
        self.capture = capture
        self.rng = rng
        self.said: list[str] = []
        self.limits: set[str] = set()

    def say(self, text: str) -> None:
        self.said.append(text)

    # -- choices

    def parts(self) -> list[str]:
        return sorted(name for name in self.ledger if re.fullmatch(r"[0-9a-f]{20}-\d{4}\.ledger", name))

    def segments(self) -> list[str]:
        return sorted(name for name in self.capture if name.endswith(".cap"))

    def part(self) -> str:
        return self.rng.choice(self.parts())

    def segment(self) -> str:
        return self.rng.choice(self.segments())

    def closed(self, producer: str) -> bool:
        last = max(name for name in self.parts() if name.startswith(producer))
        lines = self.ledger[last].split(b"\n")
        return not lines[-1] and len(lines) > 1 and lines[-2].startswith(b'{"t":"close"')

    def gone(self, producer: str) -> None:
        """Note that a file of the producer was removed."""
        if not any(name.startswith(producer) for name in self.parts()):
            self.limits.add("no part of a ledger is left")
        else:
            self.cut(producer)

    def cut(self, producer: str) -> None:
        """Note that a ledger lost its end: cut behind an earlier `close`, it looks whole."""
        if self.closed(producer):
            self.limits.add("a ledger ends at an earlier close line")


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def records_of(data: bytes) -> list[bytes]:
    """Return the records of an undamaged segment; a torn rest is one more."""
    found, at = [], 0
    while len(data) - at >= 8:
        (length,) = struct.unpack_from("<I", data, at)
        found.append(data[at : at + 8 + length])
        at += 8 + length
    return [*found, data[at:]] if at < len(data) else found


def some_place(rng: random.Random, data: bytes) -> int:
    """Choose a place, often at the edges."""
    return rng.choice((0, 1, max(len(data) - 1, 0), rng.randint(0, len(data)), rng.randint(0, len(data))))


# -- both kinds of files: a file is a sequence of pieces, lines or records


def _pieces(evidence: Evidence, folder: Folder, name: str) -> list[bytes]:
    return lines_of(folder[name]) if folder is evidence.ledger else records_of(folder[name])


def _cut(e: Evidence, folder: Folder, name: str) -> None:
    data = folder[name]
    pieces = _pieces(e, folder, name)
    if e.rng.random() < 0.5:
        at = len(b"".join(pieces[: e.rng.randint(0, len(pieces))]))
    else:
        at = some_place(e.rng, data)
    e.say(f"{name}: cut at {at} of {len(data)}")
    folder[name] = data[:at]
    if folder is e.ledger and at < len(data):
        e.cut(name[:20])


def _piece_lost(e: Evidence, folder: Folder, name: str) -> None:
    pieces = _pieces(e, folder, name)
    if not pieces:
        return
    at = e.rng.randrange(len(pieces))
    if folder is e.ledger and not e.closed(name[:20]):
        # Without an end, the loss of this line is undetectable.
        while pieces[at].startswith(b'{"t":"deferred"'):
            at = e.rng.randrange(len(pieces))
    e.say(f"{name}: piece {at} of {len(pieces)} is lost: {pieces[at][:50]!r}")
    folder[name] = b"".join(pieces[:at] + pieces[at + 1 :])
    if folder is e.ledger and at == len(pieces) - 1:
        e.cut(name[:20])


def _bytes_lost(e: Evidence, folder: Folder, name: str) -> None:
    data = folder[name]
    at = some_place(e.rng, data)
    n = e.rng.choice((1, 2, 17, 200))
    e.say(f"{name}: {n} bytes from {at} of {len(data)} are lost")
    folder[name] = data[:at] + data[at + n :]


def _bytes_changed(e: Evidence, folder: Folder, name: str) -> None:
    data = bytearray(folder[name])
    if not data:
        return
    at = e.rng.randrange(len(data))
    n = e.rng.choice((1, 1, 8, 64))
    zeros = e.rng.random() < 0.5
    for i in range(at, min(at + n, len(data))):
        data[i] = 0 if zeros else data[i] ^ e.rng.randint(1, 255)
    e.say(f"{name}: {n} bytes from {at} are {'zeros' if zeros else 'others'}")
    folder[name] = bytes(data)


def _piece_doubled(e: Evidence, folder: Folder, name: str) -> None:
    pieces = _pieces(e, folder, name)
    if not pieces:
        return
    at = e.rng.randrange(len(pieces))
    to = e.rng.choice((at, at, e.rng.randint(0, len(pieces))))
    e.say(f"{name}: piece {at} stands at {to} once more: {pieces[at][:50]!r}")
    folder[name] = b"".join([*pieces[:to], pieces[at], *pieces[to:]])


def _pieces_swapped(e: Evidence, folder: Folder, name: str) -> None:
    pieces = _pieces(e, folder, name)
    if len(pieces) < 2:
        return
    a = e.rng.randrange(len(pieces) - 1)
    b = e.rng.choice((a + 1, e.rng.randrange(a + 1, len(pieces))))
    pieces[a], pieces[b] = pieces[b], pieces[a]
    e.say(f"{name}: pieces {a} and {b} are swapped")
    folder[name] = b"".join(pieces)


def _zeros(e: Evidence, folder: Folder, name: str) -> None:
    n = e.rng.choice((1, 8, 300, 4096))
    data = folder[name]
    at = len(data) if e.rng.random() < 0.5 else some_place(e.rng, data)
    e.say(f"{name}: {n} zeros from {at} of {len(data)} to the end")
    folder[name] = data[:at] + n * b"\0"


def _empty(e: Evidence, folder: Folder, name: str) -> None:
    e.say(f"{name}: is empty")
    folder[name] = b""


def _onto_itself(e: Evidence, folder: Folder, name: str) -> None:
    e.say(f"{name}: stands in its file twice")
    folder[name] *= 2


def _onto_another(e: Evidence, folder: Folder, names: list[str]) -> None:
    if len(names) < 2:
        return
    a, b = e.rng.sample(names, 2)
    kept = e.rng.random() < 0.5
    e.say(f"{b}: {'copied' if kept else 'moved'} to the end of {a}")
    folder[a] += folder[b]
    if not kept:
        del folder[b]
        if folder is e.ledger:
            e.gone(b[:20])


def _exchanged(e: Evidence, folder: Folder, names: list[str]) -> None:
    if len(names) < 2:
        return
    a, b = e.rng.sample(names, 2)
    e.say(f"{a} and {b} have each other's name")
    folder[a], folder[b] = folder[b], folder[a]


# -- ledgers


def _part_lost(e: Evidence) -> None:
    name = e.part()
    e.say(f"{name}: is lost")
    del e.ledger[name]
    e.gone(name[:20])


def _part_elsewhere(e: Evidence) -> None:
    """Rename a part: to a later part, to another producer's, to an unread name, or into a subfolder."""
    name = e.part()
    others = [other for other in e.parts() if other[:20] != name[:20]]
    last = max(other for other in e.parts() if other[:20] == name[:20])
    to = e.rng.choice(
        (
            f"{name[:20]}-{int(last[21:25]) + e.rng.choice((1, 1, 2)):04d}.ledger",
            f"{e.rng.choice(others)[:20] if others else '0d' * 10}-0001.ledger",
            f"{'0d' * 10}-0001.ledger",
            f"{name}.bak",
            f"host/{name}",
            f"old {name}",
            name.upper(),
        )
    )
    kept = e.rng.random() < 0.6
    e.say(f"{name}: {'copied' if kept else 'moved'} to {to}")
    data = e.ledger[name]
    if not kept:
        del e.ledger[name]
    e.ledger[to] = data
    if not kept and to != f"host/{name}" and any(other.startswith(name[:20]) for other in e.parts()):
        e.cut(name[:20])


# -- captures


def _segment_lost(e: Evidence) -> None:
    if len(e.segments()) < 2:
        return
    name = e.segment()
    e.say(f"{name}: is lost")
    del e.capture[name]


def _listener_lost(e: Evidence) -> None:
    listeners = sorted({name[:-11] for name in e.segments()})
    if len(listeners) < 2:
        return
    which = e.rng.choice(listeners)
    e.say(f"{which}: all of its capture is lost")
    for name in e.segments():
        if name[:-11] == which:
            del e.capture[name]


def _segment_elsewhere(e: Evidence) -> None:
    name = e.segment()
    listener, number = name[:-11], int(name[-10:-4])
    last = max(int(other[-10:-4]) for other in e.segments() if other[:-11] == listener)
    to = e.rng.choice(
        (
            f"{listener}-{last + e.rng.choice((1, 1, 2)):06d}.cap",
            f"copy-{number:06d}.cap",
            f"host.{listener}-{number:06d}.cap",
            f"{listener}-000001 (1).cap",
            f"{name}.bak",
            f"{name[:-4]}.old.cap",
        )
    )
    kept = e.rng.random() < 0.6 or (not to.endswith(".cap") and len(e.segments()) < 2)
    e.say(f"{name}: {'copied' if kept else 'moved'} to {to}")
    data = e.capture[name]
    if not kept:
        del e.capture[name]
    e.capture[to] = data


def _stale_segment(e: Evidence) -> None:
    """Add an empty segment of an earlier collector, with or without a header."""
    name = e.rng.choice(("stale-000001.cap", "main-000099.cap"))
    data = e.rng.choice((b"", e.capture[e.segment()][:40], records_of(e.capture[e.segment()])[:1] or [b""]))
    e.capture[name] = data if isinstance(data, bytes) else data[0]
    e.say(f"{name}: {len(e.capture[name])} bytes")


class Kind(NamedTuple):
    name: str
    act: Callable[[Evidence], None]


def _of_ledger(act: Callable[[Evidence, Folder, str], None]) -> Callable[[Evidence], None]:
    return lambda e: act(e, e.ledger, e.part())


def _of_capture(act: Callable[[Evidence, Folder, str], None]) -> Callable[[Evidence], None]:
    return lambda e: act(e, e.capture, e.segment())


AFTERWARDS: tuple[Kind, ...] = (
    Kind("ledger: cut", _of_ledger(_cut)),
    Kind("ledger: line lost", _of_ledger(_piece_lost)),
    Kind("ledger: bytes lost", _of_ledger(_bytes_lost)),
    Kind("ledger: bytes changed", _of_ledger(_bytes_changed)),
    Kind("ledger: line doubled", _of_ledger(_piece_doubled)),
    Kind("ledger: lines swapped", _of_ledger(_pieces_swapped)),
    Kind("ledger: zeros", _of_ledger(_zeros)),
    Kind("ledger: empty", _of_ledger(_empty)),
    Kind("ledger: part lost", _part_lost),
    Kind("ledger: part doubled", _of_ledger(_onto_itself)),
    Kind("ledger: parts concatenated", lambda e: _onto_another(e, e.ledger, e.parts())),
    Kind("ledger: parts exchanged", lambda e: _exchanged(e, e.ledger, e.parts())),
    Kind("ledger: another name", _part_elsewhere),
    Kind("capture: cut", _of_capture(_cut)),
    Kind("capture: record lost", _of_capture(_piece_lost)),
    Kind("capture: bytes lost", _of_capture(_bytes_lost)),
    Kind("capture: bytes changed", _of_capture(_bytes_changed)),
    Kind("capture: record doubled", _of_capture(_piece_doubled)),
    Kind("capture: records swapped", _of_capture(_pieces_swapped)),
    Kind("capture: zeros", _of_capture(_zeros)),
    Kind("capture: empty", _of_capture(_empty)),
    Kind("capture: segment lost", _segment_lost),
    Kind("capture: listener lost", _listener_lost),
    Kind("capture: segment doubled", _of_capture(_onto_itself)),
    Kind("capture: segments concatenated", lambda e: _onto_another(e, e.capture, e.segments())),
    Kind("capture: segments exchanged", lambda e: _exchanged(e, e.capture, e.segments())),
    Kind("capture: another name", _segment_elsewhere),
    Kind("capture: stale segment", _stale_segment),
)
"""The kinds of damage to files after they were written, by a process that ended normally or was killed."""
