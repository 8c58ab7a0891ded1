"""The pages with recorded results: ``docs/measurements.md`` has all, ``docs/performance.md`` the claims.

In ``measurements.md`` each row has a section for each kind of processor, between two comments.
In ``performance.md`` each row has one table of its claims with a target, with a column for each kind.
Recording a row replaces its own section and column. All else on both pages is written by hand and stays.

``python -m bench.pages build/bench/ROW.json`` records a run that was written before.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import QUIET, ROOT, Line, Row, Spread, Verdict, markdown, target_text, value_text

MEASUREMENTS = ROOT / "docs" / "measurements.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
SECTION = "<!-- bench:{name}, {processor} -->"
TABLE = "<!-- claims:{name} -->"
RECORDED = "recorded"
ABSENT = "-"


def processor(model: str) -> str:
    """Return the maker and family of a processor: "AMD EPYC" of "AMD EPYC 7763 64-Core Processor"."""
    words = re.sub(r"\((?:R|TM|C)\)", " ", model, flags=re.I).split()
    return " ".join([word for word in words if word not in ("CPU", "Processor")][:2]) or "unknown"


class Claim(NamedTuple):
    """A line of a table: a claim, its target, and the result as text."""

    what: str
    target: str
    result: str


def claims(verdicts: Sequence[Verdict]) -> list[Claim]:
    """Return those verdicts that have a target."""
    return [Claim(v.what, target_text(v), _result(v)) for v in verdicts if v.op]


def _result(v: Verdict) -> str:
    if v.reached:
        return value_text(v)
    if v.reached is None:
        return f"{value_text(v)}: {v.why or 'not decided'}"
    return f"{value_text(v)}, **not reached**{': ' + v.why if v.why else ''}"


def merged(old: str, kind: str, new: Sequence[Claim], recorded: str) -> str:
    """Return the table `old` (maybe empty) with the column of this kind of processor replaced or added.

    A claim that the row has no longer stays while another column has it. The same claim with another target
    is another line, because results of other columns were judged by the old one.
    """
    kinds, rows = _parse(old)
    if kind not in kinds:
        kinds.append(kind)
    for cells in rows.values():
        cells.pop(kind, None)
    lines = {(c.what, c.target): rows.pop((c.what, c.target), {}) | {kind: c.result} for c in new}
    dates = rows.pop((RECORDED, ""), {}) | {kind: recorded}
    lines |= {key: cells for key, cells in rows.items() if cells}
    lines[RECORDED, ""] = dates
    out = ["| claim | target | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 2) + "|"]
    for (what, target), cells in lines.items():
        out.append(f"| {what} | {target} | " + " | ".join(cells.get(k, ABSENT) for k in kinds) + " |")
    return "\n".join(out) + "\n"


def _parse(table: str) -> tuple[list[str], dict[tuple[str, str], dict[str, str]]]:
    # The kinds of processors, and (claim, target) -> kind -> result.
    rows_of_text = [line for line in table.splitlines() if line.startswith("|")]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in rows_of_text]
    if not lines:
        return [], {}
    kinds = lines[0][2:]
    rows = {}
    for what, target, *results in lines[2:]:
        found = zip(kinds, results, strict=True)
        rows[what, target] = {kind: result for kind, result in found if result != ABSENT}
    return kinds, rows


def record(row: Row, measurements: Path = MEASUREMENTS, performance: Path = PERFORMANCE) -> None:
    """Write the row's section and its column of claims for this machine's kind of processor."""
    kind = processor(row.facts["cpu"])
    heading = markdown(row).replace(f"### {row.name}: ", f"### {row.name} on {kind}: ", 1)
    put_section(measurements, row.name, kind, heading)
    busy = ", busy" if row.facts["others"] > QUIET else ""
    put_claims(performance, row.name, kind, claims(row.verdicts), row.facts["date"][:10] + busy)


def put_section(page: Path, name: str, kind: str, section: str) -> None:
    """Replace the section of this row and kind of processor, or add it after the row's last one."""
    start, end = SECTION.format(name=name, processor=kind), SECTION.format(name="/" + name, processor=kind)
    text = page.read_text(encoding="utf-8") if page.exists() else "# Measurements\n"
    whole = f"{start}\n{section}{end}"
    if start in text and end in text:
        text = text[: text.index(start)] + whole + text[text.index(end) + len(end) :]
    elif others := list(re.finditer(rf"<!-- bench:/{re.escape(name)}, .*? -->", text)):
        after = others[-1].end()
        text = f"{text[:after]}\n\n{whole}{text[after:]}"
    else:
        text = text.rstrip("\n") + "\n\n" + whole + "\n"
    _write(page, text)


def put_claims(page: Path, name: str, kind: str, new: Sequence[Claim], recorded: str) -> None:
    """Replace the column of this kind of processor in the row's table, or add it."""
    start, end = TABLE.format(name=name), TABLE.format(name="/" + name)
    text = page.read_text(encoding="utf-8") if page.exists() else "# Performance\n"
    if start not in text or end not in text:
        text = text.rstrip("\n") + f"\n\n### {name}\n\n{start}\n{end}\n"
    first, last = text.index(start) + len(start), text.index(end)
    _write(page, f"{text[:first]}\n{merged(text[first:last], kind, new, recorded)}{text[last:]}")


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def read(path: Path) -> Row:
    """Read a row from the JSON that `harness.show` has written; figures that were no number are nan."""
    made = json.loads(path.read_text(encoding="utf-8"))
    numbers = ("value", "low", "high", "bound")
    return Row(**made)._replace(
        lines=[
            Line(line["name"], {k: Spread(**_numbers(s, Spread._fields)) for k, s in line["spread"].items()})
            for line in made["lines"]
        ],
        verdicts=[Verdict(**_numbers(v, numbers)) for v in made["verdicts"]],
    )


def _numbers(made: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return made | {name: float("nan") for name in names if made[name] is None}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(read(Path(name)))
