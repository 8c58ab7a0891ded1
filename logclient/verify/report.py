"""The verdict for people: a few lines for a terminal, one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from logclient.errors import ExitCode
from logclient.readable import escape, hexdump
from logclient.verify import charts
from logclient.verify.charts import clock, duration
from logclient.verify.markup import Html, el, join
from logclient.verify.markup import text as escaped

if TYPE_CHECKING:
    from logclient.verify.devices import Device
    from logclient.verify.verdict import (
        Counts,
        Destination,
        Latency,
        Listener,
        Map,
        ProducerVerdict,
        Verdict,
    )

__all__ = ["page", "text"]

PRODUCERS = 500  # rows of the table
NEWLINE = Html("\n")
STRIPS = 6  # producers whose strips are open
MAPS = 20  # and with those behind a click
PROBLEMS = 200
DEVICES = 200
RUNS = 200
PLACES = 200  # listeners, and URLs
BLAMED = 10  # producers of which who, where and why is told in words
BODY = 2048  # characters of a body

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
    ("pending", "newer than --until, and not decided yet"),
)
QUANTILES = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max"))
# What is broken, said of n events.
PLAIN = {
    "lost": ("was acknowledged and never arrived", "were acknowledged and never arrived"),
    "corrupted": ("arrived with other bytes than were sent", "arrived with other bytes than were sent"),
    "unexpected": ("arrived that nobody sent", "arrived that nobody sent"),
    "reordered": ("arrived after a later one", "arrived after later ones"),
}

_EVIDENCE = {
    "unclosed": "ledger not closed", "stopped": "ledger stopped", "holes": "ledger with holes",
}  # fmt: skip

_WORD_COLOURS = {  # light, dark: apart in lightness too, so that they differ in grey
    "ok": ("#2e7d4f", "#4caf7d"),
    "lost": ("#c3221a", "#ff6b5e"),
    "corrupted": ("#a3126b", "#f06ebc"),
    "unexpected": ("#6f35b5", "#b68cff"),
    "reordered": ("#9a4a12", "#e39a5b"),
    "missing": ("#e08a00", "#ffc24d"),
    "unknown": ("#7d8590", "#aeb6c0"),
    "pending": ("#b3b9c1", "#565d66"),
    "dropped": ("#4a5361", "#7b8696"),
    "recovered": ("#1c8a94", "#58c7d0"),
    "duplicated": ("#2f6fd0", "#79aefc"),
    "events": ("#8fa3bb", "#56677d"),
}


def _colours(which: int) -> str:
    return " ".join(f"--{word}: {pair[which]};" for word, pair in _WORD_COLOURS.items())


_STYLE = (
    """
:root { color-scheme: light dark; --ink: #1a1d21; --soft: #5b6470; --line: #dde2e8; --page: #fff;
  --box: #f4f6f8; --good: #176c3c; --bad: #b3261e; --maybe: #855400; --goodbox: #eaf6ef;
  --badbox: #fdeeec; --maybebox: #fdf4e3; --hover: #0001; --shade: #0002; """
    + _colours(0)
    + """ }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4b0; --line: #333a43;
  --page: #131619; --box: #1c2025; --good: #6ad39a; --bad: #ff8a80; --maybe: #f0b95b; --goodbox: #14261c;
  --badbox: #2e1816; --maybebox: #2b2213; --hover: #fff2; --shade: #fff2; """
    + _colours(1)
    + """ } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 80rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
h1 { font-size: 1.45rem; line-height: 1.3; margin: 0; text-wrap: balance; }
h2 { font-size: 1.15rem; line-height: 1.3; margin: 2.5rem 0 .25rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; } ul { margin: .5rem 0; padding-left: 1.25rem; }
.soft { color: var(--soft); } .small { font-size: 13px; }
a { color: inherit; text-underline-offset: 2px; }
.verdict { display: flex; gap: 1rem; padding: 1.1rem 1.25rem; border-radius: 8px; border-left: 6px solid; }
.verdict svg { flex: none; width: 44px; height: 44px; }
.verdict > div { min-width: 0; } .verdict li { margin: .1rem 0; } .verdict h1 { margin-top: .35rem; }
.verdict ul { color: var(--ink); margin-bottom: 0; }
.good { color: var(--good); background: var(--goodbox); }
.bad { color: var(--bad); background: var(--badbox); }
.maybe { color: var(--maybe); background: var(--maybebox); }
.verdict h1 { color: var(--ink); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem 1.5rem;
  margin: 1.25rem 0 0; }
.facts div { min-width: 0; } dt { color: var(--soft); font-size: 13px; } dd { margin: 0; }
.wide { overflow-x: auto; background:
  linear-gradient(to left, var(--page) 35%, transparent) 100% 0 / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--shade), transparent) 100% 0 / .7rem 100% no-repeat scroll; }
.wide table { margin: 0; } .wide { margin: .25rem 0 .5rem; }
.wide:focus-visible, summary:focus-visible, button:focus-visible, a:focus-visible {
  outline: 2px solid var(--duplicated); outline-offset: 2px; }
table { border-collapse: collapse; margin: .25rem 0 .5rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); font-size: 13px; vertical-align: bottom; }
td.n, th.n { text-align: right; } td.say { white-space: normal; } tr.none td { color: var(--soft); }
td.zero { color: var(--soft); opacity: .6; }
td.bad, tr.bad td { font-weight: 600; color: var(--bad); } td.bad { background: var(--badbox); }
tr.bad { background: var(--badbox); } tr.bad td { background: none; }
tr.bad td.say { font-weight: 400; color: var(--ink); } .tag { color: var(--bad); font-weight: 600; }
.totals { width: 100%; } .totals td:first-child, .totals th:first-child { padding-left: .5rem; }
.totals td.say { width: 100%; }
th button { all: unset; cursor: pointer; font: inherit; color: inherit; text-decoration: underline dotted;
  text-underline-offset: 3px; } th button:hover, th[aria-sort] button { color: var(--ink); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.producers { font-size: 13.5px; }
.producers th, .producers td { padding: .35rem .5rem; } .producers th { font-size: 12px; }
.producers td.url { max-width: 22rem; overflow: hidden; text-overflow: ellipsis; }
.tall { max-height: 34rem; overflow: auto; } .tall thead th { position: sticky; top: 0; z-index: 1;
  background: var(--page); } .tall thead th:first-child { z-index: 2; }
.producers th:first-child, .producers td:first-child { position: sticky; left: 0; background: var(--page);
  padding-left: 0; }
.producers td:first-child { border-right: 1px solid var(--line); }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .45em; }
code, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--box); padding: .55rem .75rem; margin: .35rem 0 .75rem; border-radius: 6px;
  overflow-x: auto; }
pre.body { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
figure { margin: .75rem 0 1.5rem; } figcaption { display: flex; flex-wrap: wrap; gap: .1rem 1rem; }
figcaption b { font-weight: 600; } .key { white-space: nowrap; color: var(--soft); font-size: 13px; }
output { display: block; color: var(--soft); font-size: 13px; min-height: 1.5em; }
svg { display: block; } .chart { margin-top: .35rem; overflow: visible; }
.chart rect { shape-rendering: crispEdges; }
.tick { font-size: 11px; fill: var(--soft); paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
 .axis { stroke: var(--soft); } .level { stroke: var(--line); }
.hit { fill: transparent; } .hit:hover { fill: var(--hover); }
.line { fill: none; stroke-width: 1.5; } .l-max { stroke: var(--dropped); stroke-dasharray: 2 2; }
.l-p99 { stroke: var(--missing); } .l-p50 { stroke: var(--duplicated); stroke-width: 2; }
.keyline { display: inline-block; width: 1.2em; height: 0; border-top: 2px solid; margin-right: .4em;
  vertical-align: middle; }
.k-max { border-color: var(--dropped); border-top-style: dashed; } .k-p99 { border-color: var(--missing); }
.k-p50 { border-color: var(--duplicated); }
.share { border-radius: 4px; margin: .5rem 0 .75rem; } .ground { fill: var(--box); }
.strip { border-radius: 3px; }
.s0 { opacity: .6; } .s1 { opacity: .7; } .s2 { opacity: .8; } .s3 { opacity: .9; }
.map { display: grid; grid-template-columns: 11rem 1fr; gap: .2rem .75rem; align-items: center;
  margin: .25rem 0 1rem; }
.map > p { grid-column: 1 / -1; margin: .35rem 0 0; } .ends { display: flex; justify-content: space-between;
  grid-column: 2; color: var(--soft); font-size: 11px; }
details { border-bottom: 1px solid var(--line); } summary { cursor: pointer; padding: .4rem 0; }
details > div { padding: 0 0 .75rem 1.1rem; }
.who { border-left: 3px solid var(--line); padding: .1rem 0 .1rem .9rem; margin: .75rem 0 1.1rem; }
.who p { margin: 0; }
.who li { padding-left: 1.15em; text-indent: -1.15em; } .who ul { margin: .15rem 0; }
.who li.bad { color: var(--bad); background: none; }
.who .told { margin: .15rem 0 0; } .who b { font-weight: 600; }
.who dt { font-size: 13px; } .bad.soft, span.bad { color: var(--bad); }
ul.plain { list-style: none; margin: 0; padding: 0; }
.told { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .25rem 0 .75rem; }
.told dd { min-width: 0; }
.path { padding: 0; margin: .25rem 0; list-style: none; } .path li + li::before { content: "\\2514  "; }
footer { margin-top: 3rem; padding-top: .75rem; border-top: 1px solid var(--line); }
"""
    + "".join(
        f".c-{word} {{ fill: var(--{word}); }} .d-{word} {{ background: var(--{word}); }}\n"
        for word in _WORD_COLOURS
    )
    + """
@media (max-width: 40rem) {
  body { padding: .75rem .9rem 3rem; font-size: 15px; } h1 { font-size: 1.2rem; }
  .verdict { padding: .9rem; gap: .7rem; } .verdict svg { width: 30px; height: 30px; }
  .facts { grid-template-columns: 1fr; gap: .5rem; }
  .map { grid-template-columns: 8.6rem 1fr; column-gap: .4rem; }
  .producers th:first-child, .producers td:first-child { min-width: 6.2rem; max-width: 6.2rem;
    white-space: normal; }
  .totals thead { display: none; } .totals tbody { display: block; }
  .totals tr { display: grid; grid-template-columns: 1fr auto 5.5rem; border-bottom: 1px solid var(--line);
    padding: .3rem .5rem; } .totals td { padding: 0; border: 0; } .totals td:first-child { padding: 0; }
  .totals td.say { grid-column: 1 / -1; color: var(--soft); font-size: 13px; }
  .told { grid-template-columns: 1fr; } .told dd { margin-bottom: .3rem; } details > div { padding-left: 0; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 11px; } .wide, pre { overflow: visible; max-height: none; }
  h2, h3, figcaption, h2 + p { break-after: avoid; }
  figure, .verdict, tr, .map, .who, .path, pre:not(.body) { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
  dt, .who dt, .small, .key, code, pre { font-size: 10px; }
  .wide th, .wide td { overflow-wrap: break-word; padding-right: .45rem; font-size: 10px; }
  .wide td { white-space: normal; } .wide td.n, .totals td:first-child { white-space: nowrap; }
  .wide code { font-size: inherit; }
  .wide td.url { overflow-wrap: anywhere; min-width: 5rem; max-width: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } output { display: none; }
  .wide .producers th, .wide .producers td { position: static; padding: .2rem .12rem; font-size: 7px; }
  .tall thead th { position: static; } .producers td:nth-last-child(3) { white-space: nowrap; }
  th button { display: contents; } th button::after { content: ""; }
}
"""
)

# Sorts the table of producers and says what a step of a chart is; the page has all it says without it.
_SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const number = head.classList.contains("n"), before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : number;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => {
        const cell = row.cells[column];
        return number ? Number(cell.dataset.v ?? -1) : cell.textContent;
      };
      const rows = [...body.rows].map(row => [key(row), row]);
      rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
for (const figure of document.querySelectorAll("figure")) {
  const out = figure.querySelector("output");
  const tell = event => {
    const title = event.target.querySelector && event.target.querySelector(":scope > title");
    if (out && title) out.textContent = title.textContent;
  };
  figure.addEventListener("pointerover", tell);
  figure.addEventListener("pointerdown", tell);
}
"""


# -- for a terminal


def _quantiles(latency: Latency) -> str:
    return ", ".join(f"{word} {duration(getattr(latency, field))}" for field, word in QUANTILES)


def text(verdict: Verdict) -> str:
    """A table and a sentence, for a terminal: no byte of a log reaches it as a control character."""
    breaking = _breaking(verdict)
    lines = [f"{'events':<12}{verdict.counts.events:>14,}"]
    for word, meaning in WORDS:
        n = getattr(verdict.counts, word)
        if n or word in ("ok", "lost"):
            mark = "!" if word in breaking else " "
            lines.append(f"{word:<12}{n:>14,} {mark}{meaning}")
    if verdict.order != "checked":
        lines.append(f"order: {verdict.order}")
    if verdict.gaps:
        lines.append(f"gaps: {verdict.gaps:,}, the longest of {verdict.longest_gaps[0].events:,} events")
    if verdict.latency:
        lines.append(f"latency: {_quantiles(verdict.latency)}")
    if verdict.devices:
        lines.append(_devices_in_words(verdict))
    if verdict.undecodable:
        reasons = ", ".join(f"{n:,} {word}" for word, n in sorted(verdict.undecodable.items()))
        lines.append(f"undecodable: {reasons}")
    blamed = _blamed(verdict) if verdict.exit_code else []
    for x in blamed[:3]:
        told = [_process(x), *(_what(x, word) for word in _faults(x))]
        told += [f"{name} {said}" for name, said in _blame(verdict, x)]
        lines.append(f"{x.producer}: {'; '.join(filter(None, told))}")
    others = [f"{len(blamed) - 3:,} more producers"] if len(blamed) > 3 else []
    if blamed and (unlisted := _unlisted(verdict)):
        others.append(unlisted)
    if others:
        lines.append(f"... and {', and '.join(others)}")
    lines += verdict.problems[:10]
    more = len(verdict.problems) - 10 + verdict.problems_left_out
    if more > 0:
        lines.append(f"... and {more:,} more problems")
    lines.append(verdict.sentence)
    return "\n".join(map(escape, lines))


def _devices_in_words(verdict: Verdict) -> str:
    lacking = [x for x in _worst_devices(verdict) if x.missing_at_least]
    some = [f"at least {x.missing_at_least:,} of device {x.device} at {x.listener}" for x in lacking[:3]]
    if len(lacking) > 3:
        some.append(f"of {len(lacking) - 3:,} more too")
    told = f"missing messages: {', '.join(some)}" if some else "no message of theirs is seen to be missing"
    return f"devices: {len(verdict.devices):,}, {told}"


def _worst_devices(verdict: Verdict) -> list[Device]:
    def rank(x: Device) -> tuple[int, int, str, int]:
        return -x.missing_at_least, -x.restarts_at_least, x.listener, x.device

    return sorted(verdict.devices, key=rank)


# -- who, where and why

# Of a producer, what somebody is asked about, the worst first.
_ASKED = ("lost", "corrupted", "unexpected", "reordered", "missing", "unknown", "dropped", "recovered")


def _blamed(verdict: Verdict) -> list[ProducerVerdict]:
    """The producers of which something is to be told, the worst first."""

    def weight(x: ProducerVerdict) -> tuple[int, ...]:
        return (-sum(getattr(x.counts, word) for word in x.breaks), *(-getattr(x.counts, w) for w in _ASKED))

    found = [
        x for x in verdict.producers if x.producer and (_faults(x) or x.ledger in _EVIDENCE or _clock(x))
    ]
    return sorted(found, key=lambda x: (*weight(x), -x.early_us, x.producer))


def _faults(x: ProducerVerdict) -> list[str]:
    return [word for word in _ASKED if getattr(x.counts, word)]


def _unlisted(verdict: Verdict) -> str:
    """What is amiss with the producers that the verdict does not list."""
    left = verdict.producers_left_out
    if left is None:
        return ""
    told = [f"{n:,} {word}" for word in _ASKED if (n := getattr(left.counts, word))]
    return f"{', '.join(told)} of {left.producers:,} producers not listed" if told else ""


def _at(listener: str) -> str:
    """A listener; the rows of a table may name none."""
    return listener or "the table"


def _clock(x: ProducerVerdict) -> str:
    """What is said of a clock: a millisecond is no word."""
    if x.early_us < 1_000:
        return ""
    apart = f"its clock and the collector's differ by at least {duration(x.early_us)}"
    return f"{x.early:,} arrived before they were sent: {apart}"


def _process(x: ProducerVerdict) -> str:
    """Where a producer ran, and since when."""
    told = [f"host {x.host}"] * bool(x.host) + [f"pid {x.pid}"] * bool(x.pid)
    if x.started_us:
        told.append(f"since {clock(x.started_us, 1_000)}")
    return ", ".join(told)


def _span(times: Sequence[int]) -> str:
    """The time between the first and the last of something."""
    first, last = times
    if first == last:
        return clock(first, 1_000)
    return f"{clock(first, 1_000)} to {clock(last, 1_000, clock(first)[:10] != clock(last)[:10])}"


_NO_REASON = "without a reason"


def _what(x: ProducerVerdict, word: str) -> str:
    """How many of a fault, and when they were made."""
    return f"{getattr(x.counts, word):,} {word}" + (f", made {_span(x.when[word])}" if word in x.when else "")


def _blame(verdict: Verdict, x: ProducerVerdict) -> list[tuple[str, str]]:
    """What there is to tell of a producer's faults."""
    rows = []
    why = ["lost: acknowledged, and it did not arrive"] * ("lost" in x.breaks)
    why += [
        f"{fate}: {', '.join(f'{n:,} {reason or _NO_REASON}' for reason, n in reasons.items())}"
        for fate, reasons in x.reasons.items()
    ]
    if x.ledger in _EVIDENCE:
        why.append(_EVIDENCE[x.ledger] + (": killed, or still running" if x.ledger == "unclosed" else ""))
    elif x.counts.unknown:
        why.append("the capture is not complete")
    if x.shared:
        why.append(f"{x.shared:,} with an id that another event has: told apart by their bytes alone")
    if told := _clock(x):
        why.append(told)
    rows.append(("why", "; ".join(why)))
    rows.append(("sent to", _led(verdict, x.url) or x.url))
    if x.listeners:
        rows.append(("arrived at", ", ".join(f"{_at(name)} ({n:,})" for name, n in x.listeners.items())))
    return [row for row in rows if row[1]]


def _strange(verdict: Verdict) -> list[tuple[str, str]]:
    """What there is to tell of what nobody of these ledgers sent."""
    rows: list[tuple[str, str]] = []
    for run in verdict.capture.get("runs", ()):
        if not run["ours"] and len(rows) < BLAMED:
            host = f" of host {run['host']}" * bool(run["host"])
            what = f"{run['events']:,} events, received {_span((run['first_us'], run['last_us']))}"
            rows.append(("another run", f"{run['run']}{host}, listener {run['listener']}: {what}"))
    known = {x.producer for x in verdict.producers if x.producer}
    places: dict[str, int] = {}
    for word in ("unexpected", "unknown"):
        for row in verdict.examples.get(word, ()):
            if "segment" in row and (row["producer"] or "") not in known:
                place = f"listener {row['listener']}" if row["listener"] else _at("")
                place += f" from {row['peer']}" * bool(row["peer"])
                places[place] = places.get(place, 0) + 1
    if places:
        rows.append(("arrived at", "; ".join([*places][:BLAMED])))
    return rows


def _led(verdict: Verdict, url: str) -> str:
    """Endpoints of a URL, and where each leads to."""
    found = [x for x in verdict.destinations if x.url == url]
    return (
        " or ".join(
            f"{endpoint} ({said})" if (said := _leads(found[0], listener)) else endpoint
            for endpoint, listener in found[0].endpoints
        )
        if found
        else ""
    )


def _leads(x: Destination, listener: str) -> str:
    if listener:
        return f"listener {listener}"
    return "" if x.captured else "no listener of this capture has it"


def _breaking(verdict: Verdict) -> set[str]:
    """The words whose numbers are what is broken, limits too."""
    return {word for word, _ in WORDS if any(f" {word}" in broken for broken in verdict.broken)}


# -- the page


def page(verdict: Verdict) -> str:
    """The whole report as one page: nothing is fetched, nothing runs but the one script that is ours."""
    policy = (
        f"default-src 'none'; style-src '{_digest(_STYLE)}'; script-src '{_digest(_SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = join(
        el("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{_tone(verdict.exit_code)[1]} - logclient verify"),
        el("style", Html(_STYLE)),
    )
    body = join(
        _head(verdict),
        _facts(verdict),
        _became(verdict),
        _who(verdict),
        _over_time(verdict),
        _producers(verdict),
        _destinations(verdict),
        _listeners(verdict),
        _by_sequence(verdict),
        _devices(verdict),
        _examples(verdict),
        _undecoded(verdict),
        _runs(verdict),
        _problems(verdict),
        el(
            "footer",
            "The words are explained in docs/verify.md. verdict.json beside this page has the same numbers, "
            "violations/ every single fault. Times are UTC.",
            class_="soft small",
        ),
        el("script", Html(_SCRIPT)),
    )
    return join(
        Html("<!DOCTYPE html>\n"), el("html", el("head", head), NEWLINE, el("body", body), lang="en"), NEWLINE
    )


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


_ICONS = {
    "good": "M24 4a20 20 0 1 0 0 40a20 20 0 1 0 0-40M14 25l7 7 14-15",
    "bad": "M16 4h16l12 12v16l-12 12h-16l-12-12v-16zM17 17l14 14M31 17l-14 14",
    "maybe": "M24 5l21 37h-42zM24 19v11M24 35v1.5",
}


def _tone(code: ExitCode) -> tuple[str, str]:
    if code == ExitCode.OK:
        return "good", "The promise holds"
    return ("bad", "Broken promise") if code == ExitCode.BROKEN else ("maybe", "It cannot be told")


def _head(verdict: Verdict) -> Html:
    tone, _ = _tone(verdict.exit_code)
    icon = el(
        "svg",
        el(
            "path",
            d=_ICONS[tone],
            fill="none",
            stroke="currentColor",
            stroke_width=4,
            stroke_linecap="round",
            stroke_linejoin="round",
        ),
        viewBox="0 0 48 48",
        aria_hidden="true",
    )
    told = []
    for broken in verdict.broken:
        number, _, word = broken.partition(" ")
        if word in PLAIN:
            one = number == "1"
            told.append(el("li", f"{number} event{'' if one else 's'} {PLAIN[word][not one]}."))
        else:
            word, _, limit = word.partition(", more than ")
            told.append(el("li", f"{number} {word}; the limit was {limit}."))
    if verdict.exit_code == ExitCode.UNREACHABLE:
        # Why, before anything else: it is the evidence that wants mending.
        told = [el("li", problem) for problem in verdict.problems[:3]]
        open_ = verdict.ledger["producers"] - verdict.ledger["closed"]
        if open_:
            told.append(
                el("li", f"{_many(open_, 'ledger')} without an end: the producer was killed, or runs.")
            )
    return el(
        "header",
        icon,
        el(
            "div",
            el("h1", verdict.sentence),
            el("ul", *told) if told else None,
        ),
        class_=f"verdict {tone}",
    )


def _facts(verdict: Verdict) -> Html:
    capture, ledger = verdict.capture, verdict.ledger
    rows: list[tuple[str, object]] = [
        (
            "Sent, by the ledger",
            join(
                f"{_many(ledger['listed'], 'event')} listed by {_many(ledger['producers'], 'producer')}",
                _folder(ledger),
            ),
        ),
        (
            "Arrived, by the capture",
            join(
                f"{_many(capture['events'], 'event')} in {_many(capture['units'], 'wire unit')}, "
                f"{_size(capture['bytes'])}, at {', '.join(map(_at, capture['listeners'])) or 'no listener'}",
                _folder(capture),
            ),
        ),
    ]
    times = verdict.timeline
    if times is not None:
        first, last = times.start_us, times.start_us + len(times.events) * times.width_us
        # The last step may reach far beyond the last event.
        last = max(capture.get("last_us") or 0, min(last, capture.get("last_us") or last))
        fine = 1_000_000 if last - first >= 10_000_000 else 1_000
        until = clock(last, fine, clock(first)[:10] != clock(last)[:10])
        rows.append(("When", f"{clock(first, fine)} to {until}, {duration(max(last - first, 0))}"))
    if verdict.latency:
        latency = verdict.latency
        rows.append(("Latency, send to collector", _quantiles(latency)))
    if capture.get("published"):
        said = "as devices published it: what is reordered is reported and breaks nothing"
        rows.append(("Order", f"{', '.join(capture['published'])}: {said}"))
    if verdict.made_us:
        took = duration(1e6 * verdict.seconds.get("total", 0.0))
        made = clock(verdict.made_us, 1_000_000)
        rows.append(("Verified", f"{made}, in {took}; exit code {int(verdict.exit_code)}"))
    limits = ", ".join(
        f"at most {most} {word}" for word, most in verdict.limits._asdict().items() if most is not None
    )
    if limits:
        rows.append(("Limits", limits))
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in rows), class_="facts")


def _folder(side: dict[str, Any]) -> Html | None:
    return join(el("br"), el("code", side["folder"])) if side.get("folder") else None


def _many(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _size(n: int) -> str:
    return f"{n / 1e9:,.1f} GB" if n >= 1e9 else f"{n / 1e6:,.1f} MB" if n >= 1e5 else f"{n:,} bytes"


def _dot(word: str) -> Html:
    return el("span", class_=f"dot d-{word}")


def _share(n: int, total: int) -> str:
    if not n or not total:
        return ""
    part = 100 * n / total
    return (
        "< 0.01 %"
        if part < 0.01
        else "> 99.99 %"
        if 99.99 < part < 100
        else f"{part:.2f} %".replace(".00 ", " ")
    )


def _wide(content: Html, what: str, tall: bool = False) -> Html:
    """What may be wider than the page scrolls in a box of its own, by keys too."""
    classes = "wide tall" if tall else "wide"
    return el("div", content, class_=classes, tabindex=0, role="region", aria_label=what)


def _became(verdict: Verdict) -> Html:
    counts = verdict.counts
    breaking = _breaking(verdict)
    rows = [
        el("tr", el("td", "events"), el("td", f"{counts.events:,}", class_="n"), el("td", "", class_="n"),
           el("td", "made by the producers", class_="say")),
    ]  # fmt: skip
    for word, meaning in WORDS:
        n = getattr(counts, word)
        name = el("a", word, href=f"#{word}") if verdict.examples.get(word) else word
        tag = el("span", "breaks the promise", class_="tag") if word in breaking else None
        rows.append(
            el(
                "tr",
                el("td", _dot(word), name, " \u2717" if word in breaking else None),
                el("td", f"{n:,}", class_="n"),
                el("td", _share(n, counts.events), class_="n"),
                el("td", meaning, ". " if tag else None, tag, class_="say"),
                class_="bad" if word in breaking else None if n else "none",
            )
        )
    head = el(
        "tr", el("th", ""), el("th", "number", class_="n"), el("th", "share", class_="n"), el("th", "meaning")
    )
    stack = [(word, getattr(counts, word)) for word, _ in WORDS if word not in ("duplicated", "reordered")]
    return join(
        el("h2", "What became of the events"),
        charts.share(stack),
        _wide(
            el("table", el("thead", head), el("tbody", *rows), class_="totals"), "What became of the events"
        ),
    )


def _figure(title: str, chart: Html, keys: Sequence[Html]) -> Html:
    return el("figure", el("figcaption", el("b", title), *keys), chart, el("output"))


def _over_time(verdict: Verdict) -> Html | None:
    timeline = verdict.timeline
    if timeline is None:
        return None
    breaking = _breaking(verdict)
    figures = [_figure("Events sent", charts.events_over_time(timeline), [])]
    words = [word for word in charts.FAULTS if any(getattr(timeline, word))]
    for title, mine in (
        ("Breaks the promise", [word for word in words if word in breaking]),
        ("Neither ok nor broken", [word for word in words if word not in breaking]),
    ):
        if mine:
            keys = [el("span", _dot(word), word, class_="key") for word in mine]
            figures.append(_figure(title, charts.faults_over_time(timeline, mine), keys))
    if any(value is not None for value in timeline.latency["max"]):
        keys = [
            el("span", el("span", class_=f"keyline k-{word}"), word, class_="key")
            for word in reversed(charts.LINES)
        ]
        figures.append(_figure("Latency", charts.latency_over_time(timeline), keys))
    note = f"By the time the events were made, in steps of {duration(timeline.width_us)}."
    if any(timeline.dropped):
        note += " What was dropped: by the time it was noted."
    return join(el("h2", "Over time"), el("p", note, class_="soft small"), *figures)


def _by_sequence(verdict: Verdict) -> Html | None:
    if not verdict.maps:
        return None
    shown = [_map(place) for place in verdict.maps[:MAPS]]
    more = None
    if len(shown) > STRIPS:
        more = el(
            "details",
            el("summary", f"{_many(len(shown) - STRIPS, 'more producer')}"),
            el("div", *shown[STRIPS:]),
        )
    longest = None
    if verdict.gaps:
        rows = []
        for gap in verdict.longest_gaps:
            numbers = gap.first, gap.first + gap.events - 1, gap.events
            cells = (el("td", f"{n:,}", class_="n") for n in numbers)
            rows.append(el("tr", el("td", el("code", gap.producer)), *cells))
        head = el("tr", el("th", "producer"), *(el("th", x, class_="n") for x in ("from", "to", "events")))
        name = f"{_many(verdict.gaps, 'gap')} of events that were not seen"
        longest = join(
            el("h3", f"{name}; the longest" if verdict.gaps > 1 else name),
            _wide(el("table", el("thead", head), el("tbody", *rows)), "Longest gaps"),
        )
    left = verdict.maps_left_out + len(verdict.maps) - len(shown)
    return join(
        el("h2", "By sequence"),
        el(
            "p",
            "Where the faults are in each producer's sequences, from its first to its last; the worst first.",
            class_="soft small",
        ),
        *shown[:STRIPS],
        more,
        el(
            "p",
            f"{_many(left, 'more producer')} with faults left out here; verdict.json counts them.",
            class_="soft small",
        )
        if left
        else None,
        longest,
    )


def _map(place: Map) -> Html:
    rows = []
    for word in charts.PLACES:
        if word in place.parts:
            n = sum(count for _, count in place.parts[word])
            rows += [el("span", _dot(word), f"{n:,} {word}", class_="small"), charts.strip(place, word)]
    ends = el("div", el("span", "1"), el("span", f"{place.last:,}"), class_="ends")
    return el("div", el("p", el("code", place.producer)), *rows, ends, class_="map")


def _who(verdict: Verdict) -> Html | None:
    """Who, where, when and why, in words."""
    blamed = _blamed(verdict)
    nobodys = [x for x in verdict.producers if not x.producer]
    if not blamed and not nobodys:
        return None
    items = []
    for x in (*blamed[:BLAMED], *nobodys):
        words = [
            el("li", _dot(word), _what(x, word), class_="bad" if word in x.breaks else None)
            for word in _faults(x)
        ]
        told = _blame(verdict, x) if x.producer else _strange(verdict)
        process = (_process(x) or "its ledger does not say where it ran") if x.producer else ""
        items.append(
            el(
                "div",
                el("p", el("code", x.producer or "nobody of these ledgers"), " ", el("b", process)),
                el("ul", *words, class_="plain") if words else None,
                el("dl", *(join(el("dt", name), el("dd", words)) for name, words in told), class_="told"),
                class_="who",
            )
        )
    listed = len(blamed) - BLAMED
    more = [f"{listed:,} more, in the table of producers"] if listed > 0 else []
    if unlisted := _unlisted(verdict):
        more.append(unlisted)
    return join(
        el("h2", "Who, where and why"),
        el("p", "Producers with anything but ok, the worst first.", class_="soft small"),
        *items,
        el("p", f"and {', and '.join(more)}", class_="soft") if more else None,
    )


def _table(heads: Sequence[str], rows: Sequence[Html], what: str, texts: Sequence[str]) -> Html:
    """A table that scrolls; columns are numbers but for those in `texts`."""
    head = (el("th", x, class_=None if x in texts else "n") for x in heads)
    return _wide(el("table", el("thead", el("tr", *head)), el("tbody", *rows)), what)


def _number(n: int, bad: bool = False, shown: str = "") -> Html:
    return el("td", shown or f"{n:,}", class_="n bad" if bad and n else "n" if n else "n zero")


def _destinations(verdict: Verdict) -> Html | None:
    """Where producers sent to, and what became of it."""
    if not verdict.destinations:
        return None
    words = (
        "ok",
        "lost",
        "missing",
        "unknown",
        "dropped",
        "recovered",
        "duplicated",
        "corrupted",
        "reordered",
    )
    rows = []
    for x in verdict.destinations[:PLACES]:
        places = [
            el("li", endpoint, el("span", f" {said}", class_="soft" if listener else "bad") if said else None)
            for endpoint, listener in x.endpoints
            for said in (_leads(x, listener),)
        ]
        rows.append(
            el(
                "tr",
                el("td", el("ul", *places, class_="plain") if places else x.url or x.protocol, title=x.url),
                _number(x.producers),
                _number(x.counts.events),
                *(_number(getattr(x.counts, word), word in _breaking(verdict)) for word in words),
            )
        )
    more = len(verdict.destinations) - len(rows)
    return join(
        el("h2", "Where it was sent"),
        el(
            "p",
            "The endpoints that producers were given, and the listeners that have them.",
            class_="soft small",
        ),
        _table(("endpoint", "producers", "events", *words), rows, "Endpoints", ("endpoint",)),
        el("p", f"and {more:,} more, see verdict.json", class_="soft") if more > 0 else None,
    )


def _listeners(verdict: Verdict) -> Html | None:
    """What came to each listener, and what did not."""
    if not verdict.listeners:
        return None
    breaking = _breaking(verdict)
    copies = ("duplicated", "corrupted", "reordered")
    unseen = ("lost", "missing", "unknown")
    rows = [
        el(
            "tr",
            el("td", _at(x.listener)),
            el("td", ", ".join(x.hosts)),
            _number(x.events),
            _number(x.seen),
            *(_number(getattr(x, word), word in breaking) for word in copies),
            *(_unseen_at(x, word, word in breaking) for word in unseen),
            _number(x.problems),
            el("td", clock(x.first_us, 1_000) if x.first_us else ""),
            el("td", clock(x.last_us, 1_000) if x.last_us else ""),
            el("td", ", ".join(x.urls), class_="url soft", title=", ".join(x.urls)),
        )
        for x in verdict.listeners[:PLACES]
    ]
    more = len(verdict.listeners) - len(rows)
    numbers = ("arrived", "listed", *copies, *unseen, "problems")
    texts = ("listener", "host", "first", "last", "listens at")
    return join(
        el("h2", "Where it arrived"),
        el(
            "p",
            "Each listener. Duplicated: copies beyond the first one there. What was not seen is told of "
            "producers that sent to no other listener, and, as “up to”, of those that did.",
            class_="soft small",
        ),
        _table((*texts[:2], *numbers, *texts[2:]), rows, "Listeners", texts),
        el("p", f"and {more:,} more, see verdict.json", class_="soft") if more > 0 else None,
    )


def _unseen_at(x: Listener, word: str, bad: bool) -> Html:
    n, others = getattr(x, word), x.elsewhere.get(word, 0)
    return _number(n + others, bad, f"{n:,}, up to {n + others:,}" if others else "")


def _producers(verdict: Verdict) -> Html:
    worst, (more, rest) = verdict.worst(PRODUCERS)
    limited = {word for word in _breaking(verdict) if word in verdict.limits._fields}
    head = [
        el("th", "producer", scope="col"),
        el("th", "host", scope="col"),
        el("th", "pid", scope="col", class_="n"),
        *(
            el("th", word, scope="col", class_="n")
            for word in ("events", *(word for word, _ in WORDS), "gaps", "p50", "p99")
        ),
        el("th", "since", scope="col"),
        el("th", "remarks", scope="col"),
        el("th", "where to", scope="col"),
    ]
    rows = [_producer(x, limited) for x in worst]
    told = ", ".join(f"{n:,} {word}" for word, n in rest._asdict().items() if n)
    return join(
        el("h2", "Producers"),
        _wide(
            el("table", el("thead", el("tr", *head)), NEWLINE, el("tbody", *rows), class_="producers sorts"),
            "Producers, a row each",
            tall=True,
        ),
        el("p", f"and {more:,} more producers, in all: {told}", class_="soft") if more > 0 else None,
    )


def _producer(x: ProducerVerdict, limited: set[str]) -> Html:
    def number(n: float | None, shown: str, bad: bool = False) -> Html:
        classes = "n bad" if bad else "n" if n else "n zero"
        return el("td", shown, class_=classes, data_v=None if n is None else n)

    remarks = []
    if x.ledger in _EVIDENCE:
        remarks.append(_EVIDENCE[x.ledger])
    if x.producer and x.order != "checked":
        remarks.append(f"order {x.order}")
    if x.mode == "async":
        remarks.append("async: not acknowledged")
    for fate, reasons in x.reasons.items():
        remarks.append(f"{fate}: {', '.join(reasons)}")
    if x.early_us >= 1_000:
        remarks.append(f"clocks differ by {duration(x.early_us)} or more")
    if x.shared:
        remarks.append(f"{x.shared:,} ids shared")
    counts: Counts = x.counts
    words = [word for word, _ in WORDS]
    latency = x.latency
    return el(
        "tr",
        el("td", el("code", x.producer or "nobody's")),
        el("td", x.host),
        number(x.pid or None, str(x.pid or "")),
        number(counts.events, f"{counts.events:,}"),
        *(
            number(n, f"{n:,}", bool(n) and (word in x.breaks or word in limited))
            for word in words
            for n in (getattr(counts, word),)
        ),
        number(x.gaps, f"{x.gaps:,}"),
        *(
            number(v, "" if v is None else duration(v))
            for v in ((latency.p50, latency.p99) if latency else (None, None))
        ),
        el("td", clock(x.started_us, 1_000_000) if x.started_us else ""),
        el("td", "; ".join(remarks)),
        el("td", x.url or x.protocol, class_="url soft", title=x.url),
        NEWLINE,
    )


def _devices(verdict: Verdict) -> Html | None:
    """What Logjam devices published, and what consumers did not get of it."""
    if not verdict.devices:
        return None
    ranked = _worst_devices(verdict)
    rows = []
    for x in ranked[:DEVICES]:
        numbers = x.received, x.first, x.last, x.missing_at_least, x.gaps, x.restarts_at_least
        gaps = "; ".join(f"{low:,} to {high:,}" if high > low else f"{low:,}" for low, high in x.longest_gaps)
        cells = (el("td", f"{n:,}", class_="n" if n else "n zero") for n in numbers)
        which = el("td", x.device, class_="n")  # a name, not a quantity
        rows.append(el("tr", el("td", x.listener), which, *cells, el("td", gaps)))
    heads = ("device", "messages", "first", "last", "missing, at least", "gaps seen", "restarts, at least")
    head = el("tr", el("th", "listener"), *(el("th", x, class_="n") for x in heads), el("th", "longest gaps"))
    more = len(ranked) - DEVICES
    return join(
        el("h2", "Devices"),
        el(
            "p",
            "Logjam devices number what they publish, heartbeats too. What is missing between the first and "
            "the last number of a device did not reach the consumer. More may be missing: a device that was "
            "started again begins anew, and hides what it published last before.",
            class_="soft small",
        ),
        _wide(el("table", el("thead", head), el("tbody", *rows)), "Devices"),
        el("p", f"and {more:,} more devices, see verdict.json", class_="soft") if more > 0 else None,
    )


# -- examples


def _examples(verdict: Verdict) -> Html | None:
    breaking = _breaking(verdict)
    # What breaks the promise first.
    words = sorted(
        (word for word, _ in WORDS if verdict.examples.get(word)), key=lambda word: word not in breaking
    )
    if not words:
        return None
    sections = []
    for word in words:
        rows = verdict.examples[word]
        arrived = [row for row in rows if "segment" in row]
        n = getattr(verdict.counts, word)
        sections.append(
            join(
                el(
                    "h3",
                    _dot(word),
                    word,
                    el("span", f" {len(rows):,} of {n:,}", class_="soft small"),
                    id=word,
                ),
                _unseen(verdict, [row for row in rows if "segment" not in row]),
                *(_example(row, word in breaking and i == 0) for i, row in enumerate(arrived)),
            )
        )
    return join(el("h2", "Examples"), *sections)


def _unseen(verdict: Verdict, rows: list[dict[str, Any]]) -> Html | None:
    """What never arrived, or is not known where: what the ledger has of it, neighbours in one row."""
    if not rows:
        return None
    groups: list[list[dict[str, Any]]] = []
    for row in rows:
        last = groups[-1][-1] if groups else None
        if (
            last
            and row["seq"] is not None
            and (row["producer"], row["seq"]) == (last["producer"], (last["seq"] or 0) + 1)
            and (row.get("fate"), row.get("reason")) == (last.get("fate"), last.get("reason"))
        ):
            groups[-1].append(row)
        else:
            groups.append([row])
    out = []
    for group in groups:
        first, last = group[0], group[-1]
        seqs = "" if first["seq"] is None else f"{first['seq']:,}"
        made = clock(first["created_us"]) if "created_us" in first else "not listed"
        if len(group) > 1:
            seqs += f" to {last['seq']:,}"
        if len(group) > 1 and "created_us" in last:
            made += f" to {clock(last['created_us'], 1, False)}"
        name = first["producer"] or f"hash {first.get('hash', '')}"
        process = ", ".join(
            filter(None, (first.get("host", ""), f"pid {first['pid']}" if first.get("pid") else ""))
        )
        fate = ": ".join(filter(None, (first.get("fate", ""), first.get("reason", ""))))
        where = _led(verdict, first["url"]) if first.get("url") else ""
        cells = (el("code", name), process, seqs, fate, made, where)
        out.append(el("tr", *(el("td", cell) for cell in cells)))
    heads = ("producer", "process", "sequence", "the ledger says", "made", "sent to")
    head = el("tr", *(el("th", name) for name in heads))
    return _wide(el("table", el("thead", head), el("tbody", *out)), "Examples of what never arrived")


def _example(row: dict[str, Any], opened: bool) -> Html:
    """One event that arrived: what is known of it, the frames around it, its bytes, its text."""
    named = row["id"] or (f"hash {row['hash']}" if row.get("hash") else "no id")
    about: list[tuple[str, object]] = []
    if row.get("host") or row.get("pid"):
        about.append(("who", ", ".join(filter(None, (f"host {row['host']}", f"pid {row['pid']}")))))
    if "created_us" in row:
        about.append(("made", clock(row["created_us"])))
    if "fate" in row:
        known = "created_us" in row or row["fate"] == "dropped"
        fate = f"{row['fate']}: {row['reason']}" if row.get("reason") else row["fate"]
        about.append(("the ledger says", fate if known else "never sent"))
    took = row["received_us"] - row["created_us"] if "created_us" in row else -1
    copies = "the only copy" if row["copies"] == 1 else f"one of {row['copies']:,} copies"
    about += [
        (
            "arrived",
            clock(row["received_us"]) + (f", {duration(took)} after it was made" if took >= 0 else ""),
        ),
        (
            "where",
            f"at {row['listener']}, arrival {row['arrival']:,} from {row['peer'] or 'unknown'}, {copies}",
        )
        if "key" not in row
        else ("where", f"{_at(row['listener'])}, record {row['arrival']:,}, {copies}"),
        ("captured in", f"{row['segment']}, unit at byte {row['unit_at']:,}")
        if "key" not in row
        else ("key", "none" if row["key"] is None else row["key"]),
    ]
    if row.get("sent_hash", row["arrived_hash"]) != row["arrived_hash"]:
        about.append(("hash", f"{row['sent_hash']} was sent, {row['arrived_hash']} arrived"))
    path = [el("li", f"byte {frame['offset']:,}: {frame['title']}") for frame in row["frames"]]
    body = row["body"][:BODY]
    cut = " ..." if len(body.encode("utf-8", "surrogatepass")) < row["size"] else ""
    sequence = None if row["seq"] is None else el("span", f" sequence {row['seq']:,}", class_="key")
    return el(
        "details",
        el("summary", el("code", named), " ", sequence),
        el(
            "div",
            el("dl", *(join(el("dt", name), el("dd", value)) for name, value in about), class_="told"),
            el("ol", *path, class_="path small soft") if path else None,
            el("p", "Its bytes, counted with what is compressed opened:", class_="small soft")
            if row.get("opened")
            else None,
            _bytes(row),
            el("pre", escaped(body), cut, class_="body"),
        ),
        open="" if opened else None,
    )


def _bytes(row: dict[str, Any]) -> Html:
    """A hexdump: reached by keys because it scrolls."""
    rows = hexdump(bytes.fromhex(row["bytes"]), row["bytes_at"])
    return el("pre", Html("\n".join(map(escaped, rows))), tabindex=0)


def _undecoded(verdict: Verdict) -> Html | None:
    if not verdict.undecodable:
        return None
    reasons = ", ".join(f"{n:,} {name}" for name, n in sorted(verdict.undecodable.items()))
    shown = []
    for row in verdict.undecoded:
        where = f" unit at byte {row['unit_at']:,}: {row['reason']} at byte {row['offset']:,} of it"
        inside = el("div", el("p", row["wrong"]), _bytes(row)) if "bytes" in row else None
        shown.append(el("details", el("summary", el("code", row["segment"]), where), inside))
    return join(el("h2", "What did not decode"), el("p", f"{reasons}. It is not counted as arrived."), *shown)


def _runs(verdict: Verdict) -> Html | None:
    """Whose captures these are, when there are several."""
    runs = verdict.capture.get("runs", [])
    if len(runs) < 2 and not any(not run["ours"] for run in runs):
        return None
    heads = ("listener", "host", "run", "listened at", "segments", "events", "from", "to")
    rows = [
        el(
            "tr",
            el("td", run["listener"]),
            el("td", run["host"] or "not said"),
            el("td", run["run"] + ("" if run["ours"] else " (another run: not compared)")),
            el("td", run["url"]),
            *(el("td", f"{run[name]:,}", class_="n") for name in ("segments", "events")),
            *(el("td", clock(run[name]) if run[name] else "") for name in ("first_us", "last_us")),
        )
        for run in runs[:RUNS]
    ]
    more = len(runs) - RUNS
    return join(
        el("h2", "Captures"),
        el("p", "The runs of each listener, in the order of its segments.", class_="soft small"),
        el(
            "div",
            el("table", el("thead", el("tr", *(el("th", head) for head in heads))), el("tbody", *rows)),
            class_="wide",
        ),
        el("p", f"and {more:,} more", class_="soft") if more > 0 else None,
    )


def _problems(verdict: Verdict) -> Html | None:
    if not verdict.problems:
        return None
    more = len(verdict.problems) - PROBLEMS + verdict.problems_left_out
    return join(
        el("h2", "Ledger and capture"),
        el("p", "What is wrong with the evidence itself.", class_="soft small"),
        el("ul", *(el("li", problem) for problem in verdict.problems[:PROBLEMS])),
        el("p", f"and {more:,} more", class_="soft") if more > 0 else None,
    )
