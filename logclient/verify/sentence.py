"""The verdict in one sentence."""

from __future__ import annotations

from logclient.errors import ExitCode
from logclient.verify.verdict import Counts

_MAY_BE_OPEN = "a ledger is still open"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def sentence(
    code: ExitCode,
    broken: list[str],
    counts: Counts,
    faults: list[str],
    still_open: int,
    selected: str = "",
    by_id: bool = False,
) -> str:
    """Return the verdict in a sentence."""
    events = f"{counts.events:,} events{' ' * bool(selected)}{selected}{' (bodies not compared)' * by_id}"
    because = ", and ".join(faults)
    if code == ExitCode.BROKEN:
        parts = [
            f"{words} ({limit})" if limit else words
            for words, _, limit in (x.partition(", ") for x in broken)
        ]
        also = f"; also, {because}" if faults else ""
        return f"The promise is broken: {', '.join(parts)}, of {events}{also}."
    if code == ExitCode.UNREACHABLE:
        if not counts.events and selected:
            return f"The promise is unproven: {because}."
        unknown = f"{counts.unknown:,} of {events} are unknown"
        return f"The promise is unproven: {unknown}, because {because or _MAY_BE_OPEN}."
    if still_open:
        open_ = f"; {counted(still_open, 'ledger')} {'is' if still_open == 1 else 'are'} still open"
    else:
        open_ = ""
    if not counts.events:
        return f"The promise holds, but nothing was sent{open_}."
    rest = [
        f"{n:,} {word}"
        for word in ("missing", "dropped", "recovered", "duplicated", "reordered", "pending")
        if (n := getattr(counts, word))
    ]
    more = f"; {', '.join(rest)}" if rest else ""
    return f"The promise holds: {counts.ok:,} of {events} arrived{'' if by_id else ' intact'}{more}{open_}."
