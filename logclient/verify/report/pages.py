"""The HTML pages: the report of a verdict, and that of many hours.

All data on a page is text, never markup: Jinja escapes it, and unprintable characters are shown as escapes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import Any

from logclient.errors import ExitCode, MissingExtra
from logclient.evidence.frames import counted, hexdump
from logclient.readable import escape
from logclient.verify.report import charts, tables, words
from logclient.verify.report.words import clock, duration
from logclient.verify.verdict import Verdict

try:
    import jinja2
    from markupsafe import Markup
except ImportError as error:
    raise MissingExtra("jinja2", "verify") from error

ICONS = {
    "good": "M24 4a20 20 0 1 0 0 40a20 20 0 1 0 0-40M14 25l7 7 14-15",
    "bad": "M16 4h16l12 12v16l-12 12h-16l-12-12v-16zM17 17l14 14M31 17l-14 14",
    "maybe": "M24 5l21 37h-42zM24 19v11M24 35v1.5",
}
_HEADLINES = {"good": "The promise holds", "bad": "Broken promise", "maybe": "Unproven promise"}


def page(verdict: Verdict) -> str:
    """Return the whole report as a page that loads nothing, and has the same content without its script."""
    tone = {ExitCode.OK: "good", ExitCode.BROKEN: "bad"}.get(verdict.exit_code, "maybe")
    template = _environment().get_template("report.html.j2")
    return template.render(v=verdict, tone=tone, icon=ICONS[tone], headline=_HEADLINES[tone])


def hours(tone: str, **shown: Any) -> str:
    return _environment().get_template("hours.html.j2").render(tone=tone, icon=ICONS[tone], **shown)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("logclient.verify.report", "assets"),
        autoescape=True,
        finalize=_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"digest": _digest, "grouped": "{:,}".format, "percent": _percent}
    environment.globals |= {"charts": charts, "tables": tables, "words": words, "facts": _facts}
    environment.globals |= {"example_facts": _example_facts, "hexdump": hexdump, "unhex": bytes.fromhex}
    return environment


def _printable(value: object) -> object:
    return value if isinstance(value, Markup) else escape(str(value))


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _percent(part: float) -> str:
    return f"{100 * part:.2f}%".replace(".00%", "%")


def _facts(verdict: Verdict) -> dict[str, tuple[str, str]]:
    """Return what was compared, when, and how long it took: name -> text and folder; empty: not known."""
    capture, ledger, times = verdict.capture, verdict.ledger, verdict.timeline
    sent = f"{counted(ledger['listed'], 'event')} listed by {counted(ledger['producers'], 'producer')}"
    n = capture["bytes"]
    size = f"{n / 1e9:,.1f} GB" if n >= 1e9 else f"{n / 1e6:,.1f} MB" if n >= 1e5 else f"{n:,} bytes"
    units = f"{counted(capture['events'], 'event')} in {counted(capture['units'], 'wire unit')}, {size}"
    places = ", ".join(map(words.listener_name, capture["listeners"])) or "no listener"
    when = ""
    if times:
        first, last = times.start_us, times.start_us + len(times.events) * times.width_us
        # The last step may end long after the last event.
        last = max(capture.get("last_us") or 0, min(last, capture.get("last_us") or last))
        when = words.span(first, last, 1_000_000 if last - first >= 10_000_000 else 1_000)
        when += f", {duration(max(last - first, 0))}"
    published = ", ".join(capture.get("published", ()))
    note = "in the order of devices: reordered events are reported and do not break the promise"
    took = duration(1e6 * verdict.seconds.get("total", 0.0))
    verified = f"{clock(verdict.made_us, 1_000_000)}, in {took}; exit code {int(verdict.exit_code)}"
    limits = (
        f"latency at most {limit}" if word == "latency" else f"at most {limit} {word}"
        for word, limit in verdict.limits._asdict().items()
        if limit is not None
    )
    return {
        "Selected": (words.selected_line(verdict) if verdict.selection else "", ""),
        "Sent, by the ledgers": (sent, ledger.get("folder", "")),
        "Arrived, by the capture": (f"{units}, at {places}", capture.get("folder", "")),
        "When": (when, ""),
        "Latency, send to collector": (words.quantiles(verdict), ""),
        "Other writers": (words.others_line(verdict), ""),
        "Order": (f"{published}: {note}" if published else "", ""),
        "Verified": (verified if verdict.made_us else "", ""),
        "Limits": (", ".join(limits), ""),
    }


def _example_facts(row: dict[str, Any]) -> dict[str, str]:
    """Return what is known about an example that arrived: name -> text; empty: not known."""
    made = row.get("created_us")
    took = -1 if made is None else row["received_us"] - made
    after = f", {duration(took)} after it was made" * (took >= 0)
    listener = words.listener_name(row["listener"])
    arrival = "" if row["arrival"] is None else f"{row['arrival']:,}"
    received = f"at {listener}, arrival {arrival} from {row['peer'] or 'unknown'}"
    if "key" in row:
        received = f"{listener}, record {arrival}" if arrival else listener
    copies = "the only copy" if row["copies"] == 1 else f"one of {row['copies']:,} copies"
    sent, arrived = row.get("sent_hash", row["arrived_hash"]), row["arrived_hash"]
    never_sent = made is None and row.get("fate") not in (None, "dropped")
    return {
        "process": words.process_line(row.get("host", ""), row.get("pid", 0)),
        "made": "" if made is None else clock(made),
        "outcome in the ledger": "never sent" if never_sent else words.outcome(row),
        "arrived": "" if row["received_us"] < 0 else clock(row["received_us"]) + after,
        "received": f"{received}, {copies}",
        "captured in": "" if "key" in row else f"{row['segment']}, unit at byte {row['unit_at']:,}",
        "key": "" if "key" not in row else "none" if row["key"] is None else row["key"],
        "hash": "" if sent == arrived else f"{sent} was sent, {arrived} arrived",
    }
