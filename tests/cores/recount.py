"""An independent recount of one producer's ledger, by docs/formats.md only."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple


class Books(NamedTuple):
    """The content of one producer's ledger."""

    opened: dict[str, Any]
    last: int
    """The highest sequence of any line."""
    outcomes: dict[int, tuple[str, str]]
    """{seq: (status, reason)}; `sent`: without an outcome."""
    hashes: dict[int, int]
    created: dict[int, int]
    closed: dict[str, Any] | None
    stopped: bool
    deferred: set[int]
    """Sequences that later ones may overtake."""
    before: int
    """The number of bytes before the last ``close``, in all parts."""

    def count(self, status: str) -> dict[str, int]:
        return dict(Counter(why for kind, why in self.outcomes.values() if kind == status))


def seqs_of(line: dict[str, Any]) -> list[int]:
    """Return the sequences of a line, whose ranges must rise without touching."""
    before = 0
    found = []
    for first, last in line["seqs"]:
        assert before < first <= last, f"ranges do not rise: {line['seqs']}"
        assert not found or first > before + 1, f"neighbours are not joined: {line['seqs']}"
        found += range(first, last + 1)
        before = last
    return found


def recount(directory: Path, producer: str) -> Books:
    """Read all parts of a ledger.

    Raises:
        AssertionError: an event has two outcomes, or a line breaks the format.
    """
    opened: dict[str, Any] = {}
    outcomes: dict[int, tuple[str, str]] = {}
    hashes: dict[int, int] = {}
    created: dict[int, int] = {}
    deferred: set[int] = set()
    closed, stopped, last = None, False, 0
    size = before_close = 0
    parts = sorted(directory.glob(f"{producer}-*.ledger"))
    for number, part in enumerate(parts, 1):
        assert part.name == f"{producer}-{number:04d}.ledger"
        lines = part.read_bytes().split(b"\n")
        for text in lines[:-1]:  # the text behind the last newline is torn
            begin, size = size, size + len(text) + 1
            if not text:
                continue
            try:
                line = json.loads(text)
            except ValueError:
                # Allowed only for a line that a full disk has cut, right before the `stopped` line.
                stopped = True
                continue
            kind = line["t"]
            if kind == "open":
                assert line["version"] == 1 and line["producer"] == producer and line["part"] == number
                opened = line
            elif kind == "batch":
                found = seqs_of(line)
                assert len(found) == line["n"]
                deltas = struct.unpack(f"<{line['n']}i", base64.b64decode(line["created"]))
                sums = struct.unpack(f"<{line['n']}Q", base64.b64decode(line["hashes"]))
                for seq, delta, hash_ in zip(found, deltas, sums, strict=True):
                    assert seq not in hashes, f"{seq} is listed twice"
                    assert seq not in outcomes, f"{seq} is listed after its outcome"
                    hashes[seq] = hash_
                    created[seq] = line["base"] + delta
                    outcomes[seq] = ("sent", "")
                last = max(last, *found)
            elif kind in ("outcome", "dropped"):
                status = line.get("status", "dropped")
                assert status in ("acked", "handed", "failed", "dropped") and line["at_us"] > 0
                for seq in seqs_of(line):
                    before = outcomes.get(seq, ("", ""))[0]
                    assert before in ("", "sent"), f"{seq} was {before} and is {status}"
                    assert before == "sent" or status not in ("acked", "handed"), (
                        f"{seq}: {status}, never sent"
                    )
                    assert before == "" or status != "dropped", f"{seq} was sent and is dropped"
                    outcomes[seq] = (status, line["reason"])
                    last = max(last, seq)
            elif kind == "deferred":
                deferred.update(seqs_of(line))
            elif kind == "close":
                closed, before_close = line, begin
                last = max(last, line["last"])
            elif kind == "stopped":
                stopped = True
            elif kind == "alive":
                assert line["at_us"] > 0 and line["waiting"] >= 0
            elif kind in ("continued", "ended"):
                assert text is lines[-2], "it is not the last line of its part"
            else:
                raise AssertionError(f"no such line: {kind}")
    return Books(opened, last, outcomes, hashes, created, closed, stopped, deferred, before_close)


if __name__ == "__main__":
    books = recount(Path(sys.argv[1]), sys.argv[2])
    print({status: books.count(status) for status in ("acked", "handed", "failed", "dropped", "sent")})
