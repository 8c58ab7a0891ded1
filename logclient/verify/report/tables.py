"""Tables of the page: producers, endpoints, listeners, devices, captures, and problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.verify.report.charts import clock, duration
from logclient.verify.report.elements import NEWLINE, number_cell, scrolling, table
from logclient.verify.report.markup import Html, el, join
from logclient.verify.report.words import (
    EVIDENCE,
    WORDS,
    breaking_words,
    listener_name,
    where_it_leads,
    worst_devices,
)

if TYPE_CHECKING:
    from logclient.verify.verdict import Listener, ProducerVerdict, Verdict

__all__ = ["destinations", "devices", "listeners", "problems", "producers", "runs"]


# The most rows that are shown.
MAX_PRODUCERS = 500
MAX_PROBLEMS = 200
MAX_DEVICES = 200
MAX_RUNS = 200
MAX_PLACES = 200  # listeners, and URLs


def destinations(verdict: Verdict) -> Html | None:
    """Return the section of endpoints: their listeners, and the events sent to them by word."""
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
    for x in verdict.destinations[:MAX_PLACES]:
        places = [
            el(
                "li",
                endpoint,
                el("span", f" {place}", class_="soft" if listener else "bad") if place else None,
            )
            for endpoint, listener in x.endpoints
            for place in (where_it_leads(x, listener),)
        ]
        rows.append(
            el(
                "tr",
                el("td", el("ul", *places, class_="plain") if places else x.url or x.protocol, title=x.url),
                number_cell(x.producers),
                number_cell(x.counts.events),
                *(number_cell(getattr(x.counts, word), word in breaking_words(verdict)) for word in words),
            )
        )
    more = len(verdict.destinations) - len(rows)
    return join(
        el("h2", "Endpoints"),
        el(
            "p",
            "The endpoints in the URLs of producers, with the listeners behind them.",
            class_="soft small",
        ),
        table(("endpoint", "producers", "events", *words), rows, "Endpoints", ("endpoint",)),
        el("p", f"and {more:,} more, see verdict.json", class_="soft") if more > 0 else None,
    )


def listeners(verdict: Verdict) -> Html | None:
    """Return the section of listeners: events that arrived at each, and events that did not."""
    if not verdict.listeners:
        return None
    breaking = breaking_words(verdict)
    copies = ("duplicated", "corrupted", "reordered")
    unseen = ("lost", "missing", "unknown")
    rows = [
        el(
            "tr",
            el("td", listener_name(x.listener)),
            el("td", ", ".join(x.hosts)),
            number_cell(x.events),
            number_cell(x.seen),
            *(number_cell(getattr(x, word), word in breaking) for word in copies),
            *(_unseen_at(x, word, word in breaking) for word in unseen),
            number_cell(x.problems),
            el("td", clock(x.first_us, 1_000) if x.first_us else ""),
            el("td", clock(x.last_us, 1_000) if x.last_us else ""),
            el("td", ", ".join(x.urls), class_="url soft", title=", ".join(x.urls)),
        )
        for x in verdict.listeners[:MAX_PLACES]
    ]
    more = len(verdict.listeners) - len(rows)
    numbers = ("arrived", "listed", *copies, *unseen, "problems")
    texts = ("listener", "host", "first", "last", "listens at")
    return join(
        el("h2", "Listeners"),
        el(
            "p",
            "Duplicated: copies beyond the first one at the listener. Lost, missing and unknown: events of "
            "producers that sent to this listener only; “up to” adds those of producers that also sent to "
            "others.",
            class_="soft small",
        ),
        table((*texts[:2], *numbers, *texts[2:]), rows, "Listeners", texts),
        el("p", f"and {more:,} more, see verdict.json", class_="soft") if more > 0 else None,
    )


def _unseen_at(x: Listener, word: str, bad: bool) -> Html:
    n, others = getattr(x, word), x.elsewhere.get(word, 0)
    return number_cell(n + others, bad, f"{n:,}, up to {n + others:,}" if others else "")


def producers(verdict: Verdict) -> Html:
    """Return the table of producers."""
    worst, (more, rest) = verdict.worst(MAX_PRODUCERS)
    limited = {word for word in breaking_words(verdict) if word in verdict.limits._fields}
    head = [
        el("th", "producer", scope="col"),
        el("th", "host", scope="col"),
        el("th", "pid", scope="col", class_="n"),
        *(
            el("th", word, scope="col", class_="n")
            for word in ("events", *(word for word, _ in WORDS), "gaps", "p50", "p99")
        ),
        el("th", "started", scope="col"),
        el("th", "remarks", scope="col"),
        el("th", "URL", scope="col"),
    ]
    rows = [_producer(x, limited) for x in worst]
    rest_text = ", ".join(f"{n:,} {word}" for word, n in rest._asdict().items() if n)
    return join(
        el("h2", "Producers"),
        scrolling(
            el("table", el("thead", el("tr", *head)), NEWLINE, el("tbody", *rows), class_="producers sorts"),
            "Producers",
            tall=True,
        ),
        el("p", f"and {more:,} more producers, in all: {rest_text}", class_="soft") if more > 0 else None,
    )


def _producer(x: ProducerVerdict, limited: set[str]) -> Html:
    def number(n: float | None, shown: str, bad: bool = False) -> Html:
        classes = "n bad" if bad else "n" if n else "n zero"
        return el("td", shown, class_=classes, data_v=None if n is None else n)

    remarks = []
    if x.ledger in EVIDENCE:
        remarks.append(EVIDENCE[x.ledger])
    if x.producer and x.order != "checked":
        remarks.append(f"order {x.order}")
    if x.mode == "async":
        remarks.append("async: not acknowledged")
    for outcome, reasons in x.reasons.items():
        remarks.append(f"{outcome}: {', '.join(reasons)}")
    if x.early_us >= 1_000:
        remarks.append(f"clocks differ by {duration(x.early_us)} or more")
    if x.shared:
        remarks.append(f"{x.shared:,} ids shared")
    counts = x.counts
    words = [word for word, _ in WORDS]
    latency = x.latency
    return el(
        "tr",
        el("td", el("code", x.producer or "none")),
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


def devices(verdict: Verdict) -> Html | None:
    """Return the section of Logjam devices: messages published, and missing at consumers."""
    if not verdict.devices:
        return None
    ranked = worst_devices(verdict)
    rows = []
    for x in ranked[:MAX_DEVICES]:
        numbers = x.received, x.first, x.last, x.missing_at_least, x.gaps, x.restarts_at_least
        gaps = "; ".join(f"{low:,} to {high:,}" if high > low else f"{low:,}" for low, high in x.longest_gaps)
        cells = (el("td", f"{n:,}", class_="n" if n else "n zero") for n in numbers)
        which = el("td", x.device, class_="n")  # a name, not a quantity
        rows.append(el("tr", el("td", x.listener), which, *cells, el("td", gaps)))
    heads = ("device", "messages", "first", "last", "missing, at least", "gaps seen", "restarts, at least")
    head = el("tr", el("th", "listener"), *(el("th", x, class_="n") for x in heads), el("th", "longest gaps"))
    more = len(ranked) - MAX_DEVICES
    return join(
        el("h2", "Devices"),
        el(
            "p",
            "Logjam devices number everything that they publish, including heartbeats. A number missing "
            "between the first and the last of a device is a message that did not reach the consumer. More "
            "may be missing: a restarted device counts from 1 again, which hides its last messages before "
            "the restart.",
            class_="soft small",
        ),
        scrolling(el("table", el("thead", head), el("tbody", *rows)), "Devices"),
        el("p", f"and {more:,} more devices, see verdict.json", class_="soft") if more > 0 else None,
    )


def runs(verdict: Verdict) -> Html | None:
    """Return the section of the runs in the captures, if there are several."""
    runs = verdict.capture.get("runs", [])
    if len(runs) < 2 and not any(not run["ours"] for run in runs):
        return None
    heads = ("listener", "host", "run", "listened at", "segments", "events", "from", "to")
    rows = [
        el(
            "tr",
            el("td", run["listener"]),
            el("td", run["host"] or "unknown"),
            el("td", run["run"] + ("" if run["ours"] else " (another run: not compared)")),
            el("td", run["url"]),
            *(el("td", f"{run[name]:,}", class_="n") for name in ("segments", "events")),
            *(el("td", clock(run[name]) if run[name] else "") for name in ("first_us", "last_us")),
        )
        for run in runs[:MAX_RUNS]
    ]
    more = len(runs) - MAX_RUNS
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


def problems(verdict: Verdict) -> Html | None:
    """Return the section of problems with ledgers and captures."""
    if not verdict.problems:
        return None
    more = len(verdict.problems) - MAX_PROBLEMS + verdict.problems_left_out
    return join(
        el("h2", "Problems of the evidence"),
        el("p", "Defects of ledgers and captures.", class_="soft small"),
        el("ul", *(el("li", problem) for problem in verdict.problems[:MAX_PROBLEMS])),
        el("p", f"and {more:,} more", class_="soft") if more > 0 else None,
    )
