"""The reports of a verdict: a few lines for a terminal, and self-contained HTML pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.lazy import lazy_names
from logclient.readable import escape
from logclient.verify.report import words

if TYPE_CHECKING:
    from logclient.verify.report.hours import hours_page
    from logclient.verify.report.pages import page
    from logclient.verify.verdict import Verdict

__all__ = ["hours_page", "page", "text"]

# Only pages need Jinja.
__getattr__, __dir__ = lazy_names(__name__, {"hours_page": "hours", "page": "pages"})


def text(verdict: Verdict) -> str:
    """Return the verdict as a table and a sentence. Control characters from logs are escaped."""
    breaking = words.breaking_words(verdict)
    lines = [f"{'events':<12}{verdict.counts.events:>14,}"]
    for word, meaning in words.meanings(verdict):
        n = getattr(verdict.counts, word)
        if n or word in ("ok", "lost"):
            lines.append(f"{word:<12}{n:>14,} {'!' if word in breaking else ' '}{meaning}")
    longest = verdict.longest_gaps[0].events if verdict.gaps else 0
    facts = {
        "selected": words.selected_line(verdict) if verdict.selection else "",
        "others": words.others_line(verdict),
        "order": verdict.order if verdict.order != "checked" else "",
        "bodies": verdict.bodies if verdict.bodies != "compared" else "",
        "gaps": f"{verdict.gaps:,}, the longest of {longest:,} events" if verdict.gaps else "",
        "latency": words.quantiles(verdict),
        "undecodable": words.undecodable_line(verdict),
    }
    lines += [f"{name}: {line}" for name, line in facts.items() if line]
    faulty = words.faulty_producers(verdict) if verdict.exit_code else []
    for x in faulty[:3]:
        parts = [words.process_line(x.host, x.pid, x.started_us), *words.fault_lines(x).values()]
        parts += [f"{name} {texts}" for name, texts in words.explain(verdict, x).items() if texts]
        lines.append(f"{x.producer}: {'; '.join(filter(None, parts))}")
    if faulty and (further := words.further_faults(verdict, faulty, 3)):
        lines.append(f"... and {further}")
    more = len(verdict.problems) - 10 + verdict.problems_left_out
    rest = [f"... and {more:,} more problems"] * (more > 0)
    lines += [*verdict.problems[:10], *rest, verdict.sentence]
    return "\n".join(map(escape, lines))
