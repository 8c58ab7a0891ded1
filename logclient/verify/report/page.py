"""The whole page: its head, the verdict at the top, and the order of the sections."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any

from logclient.errors import ExitCode
from logclient.verify.report.charts import clock, duration
from logclient.verify.report.elements import NEWLINE, counted
from logclient.verify.report.examples import examples, undecoded
from logclient.verify.report.markup import Html, el, join
from logclient.verify.report.sections import by_sequence, faulty, over_time, totals
from logclient.verify.report.tables import destinations, devices, listeners, problems, producers, runs
from logclient.verify.report.words import listener_name, quantiles, selected_line

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict

__all__ = ["page"]


# Phrases for the words that break the promise, for one event and for several.
_PHRASES = {
    "lost": ("was acknowledged and never arrived", "were acknowledged and never arrived"),
    "corrupted": ("arrived with other bytes than were sent", "arrived with other bytes than were sent"),
    "unexpected": ("arrived but was never sent", "arrived but were never sent"),
    "reordered": ("arrived after a later one", "arrived after later ones"),
}


def page(verdict: Verdict) -> str:
    """Return the whole report as one page.

    The page loads nothing. Its only script is its own, which sorts tables and describes charts. Without the
    script the page has the same content.
    """
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = join(
        el("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{_tone(verdict.exit_code)[1]} - logclient verify"),
        el("style", Html(style)),
    )
    body = join(
        _head(verdict),
        _facts(verdict),
        totals(verdict),
        faulty(verdict),
        over_time(verdict),
        producers(verdict),
        destinations(verdict),
        listeners(verdict),
        by_sequence(verdict),
        devices(verdict),
        examples(verdict),
        undecoded(verdict),
        runs(verdict),
        problems(verdict),
        el(
            "footer",
            "docs/verify.md explains the words. In the folder of this page, verdict.json has the same "
            "numbers, and violations/ has every single fault. Times are in UTC.",
            class_="soft small",
        ),
        el("script", Html(script)),
    )
    return join(
        Html("<!DOCTYPE html>\n"), el("html", el("head", head), NEWLINE, el("body", body), lang="en"), NEWLINE
    )


@functools.cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


ICONS = {
    "good": "M24 4a20 20 0 1 0 0 40a20 20 0 1 0 0-40M14 25l7 7 14-15",
    "bad": "M16 4h16l12 12v16l-12 12h-16l-12-12v-16zM17 17l14 14M31 17l-14 14",
    "maybe": "M24 5l21 37h-42zM24 19v11M24 35v1.5",
}


def _tone(code: ExitCode) -> tuple[str, str]:
    """Return the style of a verdict, and its headline."""
    if code == ExitCode.OK:
        return "good", "The promise holds"
    return ("bad", "Broken promise") if code == ExitCode.BROKEN else ("maybe", "Unproven promise")


def _head(verdict: Verdict) -> Html:
    tone, _ = _tone(verdict.exit_code)
    icon = el(
        "svg",
        el(
            "path",
            d=ICONS[tone],
            fill="none",
            stroke="currentColor",
            stroke_width=4,
            stroke_linecap="round",
            stroke_linejoin="round",
        ),
        viewBox="0 0 48 48",
        aria_hidden="true",
    )
    items = []
    for broken in verdict.broken:
        number, _, word = broken.partition(" ")
        if word in _PHRASES:
            one = number == "1"
            items.append(el("li", f"{number} event{'' if one else 's'} {_PHRASES[word][not one]}."))
        else:
            word, _, limit = word.partition(", more than ")
            items.append(el("li", f"{number} {word}; the limit was {limit}."))
    if verdict.exit_code == ExitCode.UNREACHABLE:
        # Name the problems of the evidence first: they have to be repaired.
        items = [el("li", problem) for problem in verdict.problems[:3]]
        open_ = verdict.ledger["producers"] - verdict.ledger["closed"]
        if open_:
            items.append(
                el("li", f"{counted(open_, 'ledger')} without an end: the producer was killed or still runs.")
            )
    return el(
        "header",
        icon,
        el(
            "div",
            el("h1", verdict.sentence),
            el("ul", *items) if items else None,
        ),
        class_=f"verdict {tone}",
    )


def _facts(verdict: Verdict) -> Html:
    capture, ledger = verdict.capture, verdict.ledger
    places = ", ".join(map(listener_name, capture["listeners"])) or "no listener"
    rows: list[tuple[str, object]] = [
        (
            "Sent, by the ledgers",
            join(
                f"{counted(ledger['listed'], 'event')} listed by {counted(ledger['producers'], 'producer')}",
                _folder(ledger),
            ),
        ),
        (
            "Arrived, by the capture",
            join(
                f"{counted(capture['events'], 'event')} in {counted(capture['units'], 'wire unit')}, "
                f"{_size(capture['bytes'])}, at {places}",
                _folder(capture),
            ),
        ),
    ]
    if verdict.selection:
        rows.insert(0, ("Selected", selected_line(verdict)))
    times = verdict.timeline
    if times is not None:
        first, last = times.start_us, times.start_us + len(times.events) * times.width_us
        # The last step may end long after the last event.
        last = max(capture.get("last_us") or 0, min(last, capture.get("last_us") or last))
        fine = 1_000_000 if last - first >= 10_000_000 else 1_000
        until = clock(last, fine, clock(first)[:10] != clock(last)[:10])
        rows.append(("When", f"{clock(first, fine)} to {until}, {duration(max(last - first, 0))}"))
    if verdict.latency:
        latency = verdict.latency
        rows.append(("Latency, send to collector", quantiles(latency)))
    if capture.get("published"):
        note = "in the order of devices: reordered events are reported and do not break the promise"
        rows.append(("Order", f"{', '.join(capture['published'])}: {note}"))
    if verdict.made_us:
        took = duration(1e6 * verdict.seconds.get("total", 0.0))
        made = clock(verdict.made_us, 1_000_000)
        rows.append(("Verified", f"{made}, in {took}; exit code {int(verdict.exit_code)}"))
    limits = ", ".join(
        f"at most {limit} {word}" for word, limit in verdict.limits._asdict().items() if limit is not None
    )
    if limits:
        rows.append(("Limits", limits))
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in rows), class_="facts")


def _folder(side: dict[str, Any]) -> Html | None:
    return join(el("br"), el("code", side["folder"])) if side.get("folder") else None


def _size(n: int) -> str:
    return f"{n / 1e9:,.1f} GB" if n >= 1e9 else f"{n / 1e6:,.1f} MB" if n >= 1e5 else f"{n:,} bytes"
