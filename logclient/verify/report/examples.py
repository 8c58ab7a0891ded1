"""The sections of the page with examples of faults, and with undecoded data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logclient.verify.report.charts import clock, duration
from logclient.verify.report.elements import dot, hexdump_block, scrolling
from logclient.verify.report.markup import Html, el, join
from logclient.verify.report.markup import text as escaped
from logclient.verify.report.words import WORDS, breaking_words, endpoints_line, listener_name

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict

__all__ = ["examples", "undecoded"]


BODY_CHARS = 2048  # of a body


def examples(verdict: Verdict) -> Html | None:
    """Return the examples of each fault."""
    breaking = breaking_words(verdict)
    # Words that break the promise come first.
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
                    dot(word),
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
    """Return the table of events without a known arrival, by the ledger; neighbours share a row."""
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
        outcome = ": ".join(filter(None, (first.get("fate", ""), first.get("reason", ""))))
        where = endpoints_line(verdict, first["url"]) if first.get("url") else ""
        cells = (el("code", name), process, seqs, outcome, made, where)
        out.append(el("tr", *(el("td", cell) for cell in cells)))
    heads = ("producer", "process", "sequence", "outcome in the ledger", "made", "sent to")
    head = el("tr", *(el("th", name) for name in heads))
    return scrolling(el("table", el("thead", head), el("tbody", *out)), "Events that never arrived")


def _example(row: dict[str, Any], opened: bool) -> Html:
    """Return one event that arrived: its origin, the frames around it, its bytes, and its text."""
    named = row["id"] or (f"hash {row['hash']}" if row.get("hash") else "no id")
    about: list[tuple[str, object]] = []
    if row.get("host") or row.get("pid"):
        about.append(("process", ", ".join(filter(None, (f"host {row['host']}", f"pid {row['pid']}")))))
    if "created_us" in row:
        about.append(("made", clock(row["created_us"])))
    if "fate" in row:
        known = "created_us" in row or row["fate"] == "dropped"
        outcome = f"{row['fate']}: {row['reason']}" if row.get("reason") else row["fate"]
        about.append(("outcome in the ledger", outcome if known else "never sent"))
    took = row["received_us"] - row["created_us"] if "created_us" in row else -1
    copies = "the only copy" if row["copies"] == 1 else f"one of {row['copies']:,} copies"
    about += [
        (
            "arrived",
            clock(row["received_us"]) + (f", {duration(took)} after it was made" if took >= 0 else ""),
        ),
        (
            "received",
            f"at {row['listener']}, arrival {row['arrival']:,} from {row['peer'] or 'unknown'}, {copies}",
        )
        if "key" not in row
        else ("received", f"{listener_name(row['listener'])}, record {row['arrival']:,}, {copies}"),
        ("captured in", f"{row['segment']}, unit at byte {row['unit_at']:,}")
        if "key" not in row
        else ("key", "none" if row["key"] is None else row["key"]),
    ]
    if row.get("sent_hash", row["arrived_hash"]) != row["arrived_hash"]:
        about.append(("hash", f"{row['sent_hash']} was sent, {row['arrived_hash']} arrived"))
    path = [el("li", f"byte {frame['offset']:,}: {frame['title']}") for frame in row["frames"]]
    body = row["body"][:BODY_CHARS]
    cut = " ..." if len(body.encode("utf-8", "surrogatepass")) < row["size"] else ""
    sequence = None if row["seq"] is None else el("span", f" sequence {row['seq']:,}", class_="key")
    return el(
        "details",
        el("summary", el("code", named), " ", sequence),
        el(
            "div",
            el("dl", *(join(el("dt", name), el("dd", value)) for name, value in about), class_="reasons"),
            el("ol", *path, class_="path small soft") if path else None,
            el("p", "The bytes, with offsets in the decompressed unit:", class_="small soft")
            if row.get("opened")
            else None,
            hexdump_block(row),
            el("pre", escaped(body), cut, class_="body"),
        ),
        open="" if opened else None,
    )


def undecoded(verdict: Verdict) -> Html | None:
    """Return the section with data that could not be decoded."""
    if not verdict.undecodable:
        return None
    reasons = ", ".join(f"{n:,} {name}" for name, n in sorted(verdict.undecodable.items()))
    shown = []
    for row in verdict.undecoded:
        where = f" unit at byte {row['unit_at']:,}: {row['reason']} at byte {row['offset']:,} of it"
        inside = el("div", el("p", row["wrong"]), hexdump_block(row)) if "bytes" in row else None
        shown.append(el("details", el("summary", el("code", row["segment"]), where), inside))
    note = f"{reasons}. Undecoded data does not count as arrived."
    return join(el("h2", "Undecoded data"), el("p", note), *shown)
