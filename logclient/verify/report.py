"""The verdict for people: a few lines for a terminal, one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from logclient.errors import ExitCode

if TYPE_CHECKING:
    from logclient.verify.verdict import Latency, Verdict

__all__ = ["page", "text"]

PRODUCERS = 200  # rows of the table; the rest is one line, verdict.json has them all

WORDS = (
    ("ok", "acknowledged or handed over, and arrived as it was sent"),
    ("lost", "acknowledged, never seen"),
    ("missing", "handed over, failed or undecided, never seen"),
    ("recovered", "failed or undecided, but seen"),
    ("duplicated", "copies beyond the first"),
    ("unexpected", "seen, but never sent"),
    ("corrupted", "seen with another body than was sent"),
    ("reordered", "its first copy came after that of a later event, at one listener"),
    ("dropped", "refused or pushed out by a bound, never sent"),
    ("unknown", "it cannot be told: the ledger or the capture is not complete there"),
)
BREAKS = ("lost", "corrupted", "unexpected")

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --soft: #5b6470; --line: #d9dee4; --page: #fff;
  --box: #f5f7f9; --good: #14713d; --bad: #b3261e; --maybe: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4b0; --line: #363d46;
  --page: #14171a; --box: #1d2126; --good: #5ecb8d; --bad: #ff8a80; --maybe: #f0b95b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
h1.good { color: var(--good); } h1.bad { color: var(--bad); } h1.maybe { color: var(--maybe); }
p { margin: .25rem 0 .75rem; } .soft { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .25rem 0 1rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem 1.25rem .3rem 0; white-space: nowrap;
  border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
td.n, th.n { text-align: right; }
td.bad { color: var(--bad); font-weight: 600; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--box); padding: .5rem .75rem; margin: .25rem 0 .75rem; white-space: pre-wrap;
  overflow-wrap: anywhere; border-radius: 4px; }
details { border-bottom: 1px solid var(--line); padding: .35rem 0; }
summary { cursor: pointer; } details p { margin: 0; } ul { margin: .25rem 0; padding-left: 1.25rem; }
"""


def _ms(us: float) -> str:
    return f"{us / 1000:,.1f} ms" if us < 10_000_000 else f"{us / 1_000_000:,.1f} s"


def _latency(latency: Latency) -> str:
    return ", ".join(f"{word} {_ms(getattr(latency, word))}" for word in ("p50", "p90", "p99", "p999", "max"))


def text(verdict: Verdict) -> str:
    """A table and a sentence, for a terminal."""
    lines = [f"{'events':<12}{verdict.counts.events:>14,}"]
    for word, meaning in WORDS:
        n = getattr(verdict.counts, word)
        if n or word in ("ok", "lost"):
            lines.append(f"{word:<12}{n:>14,}  {meaning}")
    if verdict.order != "checked":
        lines.append(f"order: {verdict.order}")
    if verdict.gaps:
        lines.append(f"gaps: {verdict.gaps:,}, the longest of {verdict.longest_gaps[0].events:,} events")
    if verdict.latency:
        lines.append(f"latency: {_latency(verdict.latency)}")
    if verdict.undecodable:
        lines.append(
            "undecodable: " + ", ".join(f"{n:,} {word}" for word, n in sorted(verdict.undecodable.items()))
        )
    lines += [_printable(problem) for problem in verdict.problems[:10]]
    if len(verdict.problems) > 10:
        lines.append(f"... and {len(verdict.problems) - 10:,} more problems")
    lines.append(verdict.sentence)
    return "\n".join(lines)


def _printable(words: str) -> str:
    """No control character of a log reaches a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def page(verdict: Verdict) -> str:
    """The whole report as one page: no script, nothing fetched, every byte of a log line escaped."""
    style = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    tone = {ExitCode.OK: "good", ExitCode.BROKEN: "bad"}.get(verdict.exit_code, "maybe")
    body = [
        f'<h1 class="{tone}">{_e(verdict.sentence)}</h1>',
        f'<p class="soft">{_e(_facts(verdict))}</p>',
        "<h2>What became of the events</h2>",
        _totals(verdict),
        *_order(verdict),
        "<h2>Producers</h2>",
        _producers(verdict),
    ]
    if verdict.problems:
        shown = "".join(f"<li>{_e(problem)}</li>" for problem in verdict.problems[:PRODUCERS])
        more = len(verdict.problems) - PRODUCERS
        body += ["<h2>Ledger and capture</h2>", f"<ul>{shown}</ul>"]
        if more > 0:
            body.append(f'<p class="soft">and {more:,} more</p>')
    if verdict.undecodable:
        reasons = [(name, f"{n:,}") for name, n in sorted(verdict.undecodable.items())]
        body += ["<h2>What did not decode</h2>", _table(("reason", "#rows"), reasons)]
        rows = [
            (str(row["segment"]), str(row["unit_at"]), str(row["offset"]), str(row["reason"]))
            for row in verdict.undecoded
        ]
        body.append(_table(("segment", "#unit at byte", "#offset in it", "reason"), rows))
    if verdict.examples:
        body.append("<h2>Examples</h2>")
        for word, _ in WORDS:
            if word in verdict.examples:
                body.append(_examples(word, verdict.examples[word], getattr(verdict.counts, word)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>logclient verify: {_e(tone_words(verdict.exit_code))}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def tone_words(code: ExitCode) -> str:
    return {ExitCode.OK: "the promise holds", ExitCode.BROKEN: "broken"}.get(code, "cannot tell")


def _e(value: object) -> str:
    """Escaped, and what a browser would not show made visible."""
    return html.escape(_printable(str(value)))


def _facts(verdict: Verdict) -> str:
    capture, ledger = verdict.capture, verdict.ledger
    return (
        f"{ledger['producers']:,} producers, {ledger['listed']:,} events listed; "
        f"{capture['units']:,} wire units in {capture['segments']:,} segments "
        f"({capture['bytes'] / 1e6:,.1f} MB) of {', '.join(capture['listeners'])}, "
        f"{capture['events']:,} events in them. Exit code {int(verdict.exit_code)}."
    )


def _table(
    head: tuple[str, ...], rows: Sequence[tuple[str, ...]], bad: frozenset[tuple[int, int]] = frozenset()
) -> str:
    """Columns whose heading begins with # are numbers."""
    numbers = [name.startswith("#") for name in head]

    def cell(tag: str, value: str, i: int, row: int) -> str:
        classes = " ".join((["n"] if numbers[i] else []) + (["bad"] if (row, i) in bad else []))
        return f'<{tag} class="{classes}">{_e(value)}</{tag}>' if classes else f"<{tag}>{_e(value)}</{tag}>"

    top = "".join(cell("th", name.removeprefix("#"), i, -1) for i, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(cell("td", value, i, row) for i, value in enumerate(values)) + "</tr>\n"
        for row, values in enumerate(rows)
    )
    return f'<div class="wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


def _breaking(verdict: Verdict) -> set[str]:
    """The words whose numbers are what is broken."""
    return {word for word, _ in WORDS if any(f" {word}" in text for text in verdict.broken)}


def _totals(verdict: Verdict) -> str:
    counts = verdict.counts
    rows = [("events", f"{counts.events:,}", "made by the producers")]
    rows += [(word, f"{getattr(counts, word):,}", meaning) for word, meaning in WORDS]
    breaking = _breaking(verdict)
    bad = {(i, 1) for i, row in enumerate(rows) if row[0] in breaking}
    return _table(("", "#", "meaning"), [*rows], frozenset(bad))


def _order(verdict: Verdict) -> list[str]:
    out = []
    if verdict.order != "checked":
        out.append(
            f"<p>Order: {_e(verdict.order)} (events without an id are compared as a multiset of hashes).</p>"
        )
    if verdict.gaps:
        longest = "; ".join(
            f"{gap.events:,} from sequence {gap.first:,} of {gap.producer}" for gap in verdict.longest_gaps
        )
        out.append(f"<p>{verdict.gaps:,} gaps of events that never arrived. The longest: {_e(longest)}.</p>")
    if verdict.latency:
        out.append(
            f"<p>Latency from send to the collector, within 1.6 %: {_e(_latency(verdict.latency))}.</p>"
        )
    return out


def _producers(verdict: Verdict) -> str:
    words = [word for word, _ in WORDS if word == "ok" or getattr(verdict.counts, word)]
    head = (
        "producer",
        "protocol",
        "#events",
        *(f"#{word}" for word in words),
        "#p50",
        "#p99",
        "order",
        "ledger",
    )
    rows, bad = [], set()
    breaking = _breaking(verdict)
    # What is broken first, then the largest.
    ranked = sorted(
        verdict.producers,
        key=lambda x: (-sum(getattr(x.counts, word) for word in BREAKS), -x.counts.events, x.producer),
    )
    for i, x in enumerate(ranked[:PRODUCERS]):
        bad |= {(i, 3 + j) for j, word in enumerate(words) if word in breaking and getattr(x.counts, word)}
        rows.append(
            (
                x.producer or "(nobody's)",
                x.protocol,
                f"{x.counts.events:,}",
                *(f"{getattr(x.counts, word):,}" for word in words),
                _ms(x.latency.p50) if x.latency else "",
                _ms(x.latency.p99) if x.latency else "",
                x.order,
                "" if not x.producer else "closed" if x.closed else "not closed",
            )
        )
    more = len(ranked) - PRODUCERS
    rest = f'<p class="soft">and {more:,} more producers, see verdict.json</p>' if more > 0 else ""
    return _table(head, rows, frozenset(bad)) + rest


def _examples(word: str, rows: list[dict[str, Any]], n: int) -> str:
    out = [
        f"<details{' open' if word in BREAKS else ''}><summary>{_e(word)}: {len(rows):,} of {n:,}</summary>"
    ]
    for row in rows:
        named = row["id"] or f"no id; hash {row.get('hash', '')}"
        where = ""
        if "body" in row:
            where = (
                f" &middot; {_e(row['listener'])} arrival {row['arrival']:,} "
                f"from {_e(row['peer']) or 'unknown'}, "
                f"{row['copies']:,} cop{'y' if row['copies'] == 1 else 'ies'}, {row['size']:,} bytes"
            )
        sequence = "" if row["seq"] is None else f" &middot; sequence {row['seq']:,}"
        out.append(f"<p><code>{_e(named)}</code>{sequence}{where}</p>")
        if "body" in row:
            cut = "" if len(row["body"].encode()) >= row["size"] else " ..."
            out.append(f"<pre>{_e(row['body'])}{cut}</pre>")
    return "\n".join([*out, "</details>"])
