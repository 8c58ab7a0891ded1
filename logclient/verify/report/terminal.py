"""The verdict as a table and a sentence for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.readable import escape
from logclient.verify.report.words import (
    WORDS,
    breaking_words,
    devices_line,
    explain,
    fault_line,
    fault_words,
    faulty_producers,
    process_line,
    quantiles,
    selected_line,
    unlisted_faults,
)

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict

__all__ = ["text"]


def text(verdict: Verdict) -> str:
    """Return the verdict as a table and a sentence.

    Control characters from logs are escaped.
    """
    breaking = breaking_words(verdict)
    lines = [f"{'events':<12}{verdict.counts.events:>14,}"]
    for word, meaning in WORDS:
        n = getattr(verdict.counts, word)
        if n or word in ("ok", "lost"):
            mark = "!" if word in breaking else " "
            lines.append(f"{word:<12}{n:>14,} {mark}{meaning}")
    if verdict.selection:
        lines.append(f"selected: {selected_line(verdict)}")
    if verdict.order != "checked":
        lines.append(f"order: {verdict.order}")
    if verdict.gaps:
        lines.append(f"gaps: {verdict.gaps:,}, the longest of {verdict.longest_gaps[0].events:,} events")
    if verdict.latency:
        lines.append(f"latency: {quantiles(verdict.latency)}")
    if verdict.devices:
        lines.append(devices_line(verdict))
    if verdict.undecodable:
        reasons = ", ".join(f"{n:,} {word}" for word, n in sorted(verdict.undecodable.items()))
        lines.append(f"undecodable: {reasons}")
    faulty = faulty_producers(verdict) if verdict.exit_code else []
    for x in faulty[:3]:
        parts = [process_line(x), *(fault_line(x, word) for word in fault_words(x))]
        parts += [f"{name} {words}" for name, words in explain(verdict, x)]
        lines.append(f"{x.producer}: {'; '.join(filter(None, parts))}")
    others = [f"{len(faulty) - 3:,} more producers"] if len(faulty) > 3 else []
    if faulty and (unlisted := unlisted_faults(verdict)):
        others.append(unlisted)
    if others:
        lines.append(f"... and {', and '.join(others)}")
    lines += verdict.problems[:10]
    more = len(verdict.problems) - 10 + verdict.problems_left_out
    if more > 0:
        lines.append(f"... and {more:,} more problems")
    lines.append(verdict.sentence)
    return "\n".join(map(escape, lines))
