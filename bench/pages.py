"""The record of the benchmarks: a file in ``bench/results`` for each row and processor, and its pages.

``bench/results/README.md`` has all figures, ``docs/performance.md`` the claims with a target, and the README
those named in `NUMBERS`. What is between two comments on these pages is made of the record; the rest is
written by hand.

``python -m bench.pages`` writes the pages anew; with files of ``build/bench`` it records runs made before.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import (
    OUT,
    PAGES,
    QUIET,
    ROOT,
    Line,
    Row,
    Spread,
    Verdict,
    git,
    jsonable,
    markdown,
    target_text,
    value_text,
)  # fmt: skip

RESULTS = ROOT / "bench" / "results"
MEASUREMENTS, PERFORMANCE, README = (ROOT / page for page in PAGES)
BLOCK = re.compile(r"(<!-- (bench|claims):([\w-]+) -->\n).*?(<!-- \2:/\3 -->)", re.DOTALL)
NUMBERS_BLOCK = re.compile(r"(<!-- numbers -->\n).*?(<!-- /numbers -->)", re.DOTALL)
UNRECORDED = "Not recorded.\n"
SET = "complete-set.txt"  # in the record: the newest complete set, by kind of processor and commit
FACTS = ("date", "cpu", "cores", "system", "python", "packages", "commit", "load", "seconds", "others")


class Number(NamedTuple):
    """A line of the README: claims of a row (the worst of those that match), and what they say."""

    row: str
    claim: str
    text: str
    unit: str = " ×"


NUMBERS = (
    Number("logger", "logclient.Logger / logging.Logger, NullHandler",
           "`logger.info` with `logclient.Logger` and our handler, beside the standard library's logger "
           "with a `NullHandler`"),
    Number("handler", "QueueHandler / logclient.Handler", "`QueueHandler`, beside our handler"),
    Number("saturated", "*: dropped or failed, *", "four threads that only log: events lost", ""),
    Number("compressed", "pylogbeat / *", "compressed, to acknowledged: pylogbeat, beside ours"),
)  # fmt: skip


class Claimed(NamedTuple):
    """A claim of a recorded row."""

    row: Row
    verdict: Verdict
    letter: str = ""  # of the row's processor
    who: str = ""  # the contender, where claims only differ in that


def kind(cpu: str) -> str:
    """Name a kind of processor: maker, family, model and stepping, without frequency and product number."""
    words = re.sub(r"\(.*?\)|,.*", " ", cpu).split()
    name = " ".join([word for word in words if word not in ("CPU", "Processor")][:2]) or "unknown"
    found = re.search(r"\(family .*?\)", cpu)
    return f"{name} {found[0] if found else '(model not recorded)'}"


def refusals(row: Row) -> list[str]:
    """Return why a run may not be recorded."""
    found, others, commit = [], row.facts["others"], row.facts["commit"] or ""
    if row.facts.get("quick"):
        found.append("the run was quick")
    if others is None or math.isnan(others):
        found.append("it is unknown whether other programs used the processor")
    elif others > QUIET:
        found.append(f"busy: other programs used {others:.2f} cores, more than {QUIET}")
    if not commit:
        found.append("no commit is known")
    elif commit.endswith("-dirty"):
        found.append(f"the tree differed from its commit: {commit}")
    elif git("merge-base", "--is-ancestor", commit, "HEAD").returncode:
        found.append(f"commit {commit} is not in the history of HEAD")
    controls = [v for v in row.verdicts if v.what.startswith("A/A")]
    off = [v for v in controls if not 0.95 <= v.value <= 1.05]
    found += [f"{v.what}: {value_text(v)}, not within 0.95-1.05" for v in off]
    if not controls and not row.uncontrolled:
        found.append("there is no A/A, nor a reason for that")
    found += [f"{v.what}: {v.why}" for v in row.verdicts if v.reached is None and v.why.startswith("invalid")]
    return found


class Refused(Exception):
    """The error of a run that may not be recorded."""


def record(row: Row, root: Path = ROOT) -> None:
    """Put a run into the record, in place of an older one of this row and kind of processor.

    Raises:
        Refused: it may not be recorded; nothing was written.
    """
    if why := refusals(row):
        raise Refused(f"{row.name}: not recorded: {'; '.join(why)}")
    facts = {name: row.facts[name] for name in FACTS}
    folder = root / RESULTS.relative_to(ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join(re.findall(r"\w+", kind(row.facts["cpu"])))
    (folder / f"{row.name}-{stem}.json").write_text(dumps(row._replace(facts=facts)), encoding="utf-8")
    for picture in row.facts.get("pictures", ()):
        shutil.copy(OUT / picture, folder / picture)
    write_pages(root)


def record_set(cpu: str, commit: str, root: Path = ROOT) -> None:
    """Note that every row is recorded at this commit; the record forgets what this processor had before.

    The pages quote the newest complete set, and beside it the range over the other processors.
    """
    folder = root / RESULTS.relative_to(ROOT)
    for path in folder.glob("*.json"):
        row = read(path)
        if kind(row.facts["cpu"]) == kind(cpu) and row.facts["commit"] != commit:
            path.unlink()
    (folder / SET).write_text(f"{kind(cpu)}\n{commit}\n", encoding="utf-8")
    write_pages(root)


def has(name: str, cpu: str, commit: str) -> bool:
    """Return whether the record has this row, measured at this commit on this kind of processor."""
    found = (row for row in recorded().get(name, ()) if kind(row.facts["cpu"]) == kind(cpu))
    return any(row.facts["commit"] == commit for row in found)


def dumps(row: Row) -> str:
    """Format a row as JSON with a line for each contender, claim and note, and six digits."""

    def rounded(x: Any) -> Any:
        if isinstance(x, Mapping):
            return {k: rounded(v) for k, v in x.items()}
        if isinstance(x, list):
            return [rounded(v) for v in x]
        return float(f"{x:.6g}") if isinstance(x, float) else x

    def text(x: Any) -> str:
        if isinstance(x, list):
            return "[\n  " + ",\n  ".join(map(json.dumps, x)) + "\n ]" if x else "[]"
        return json.dumps(x)

    made = rounded(jsonable(row))
    return "{\n" + ",\n".join(f' "{name}": {text(x)}' for name, x in made.items()) + "\n}\n"


def read(path: Path) -> Row:
    """Read a row from the JSON of a run or of the record; figures that were no number are nan."""
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


def recorded(folder: Path = RESULTS) -> dict[str, list[Row]]:
    """Return the record: row -> its runs, one for each kind of processor."""
    rows: dict[str, list[Row]] = {}
    for row in map(read, sorted(folder.glob("*.json"))):
        rows.setdefault(row.name, []).append(row)
    return rows


def _newest(folder: Path) -> list[str]:
    """Return the kind of processor and the commit of the newest complete set, or nothing."""
    path = folder / SET
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _is_of(row: Row, newest: Sequence[str]) -> bool:
    return [kind(row.facts["cpu"]), row.facts["commit"]] == list(newest)


def _chosen(found: list[Claimed], newest: Sequence[str]) -> Claimed:
    """Return the claim to quote: that of the newest complete set, or else the one farthest from its bound."""
    of_set = [one for one in found if _is_of(one.row, newest)]
    return min(of_set or found, key=lambda one: worst_first(one.row, one.verdict))


def _range(found: list[Claimed]) -> str:
    values = sorted({value_text(one.verdict): one.verdict.value for one in found}.items(), key=lambda x: x[1])
    return f"{values[0][0]}–{values[-1][0]}" if len(values) > 1 else ""


def worst_first(row: Row, v: Verdict) -> float:
    """Return a key that sorts claims of one bound by how far they are from it."""
    if v.value != v.value:
        return math.inf
    return {"<=": -v.value, ">=": v.value, "==": -abs(v.value - v.bound)}[v.op]


def _said(row: Row) -> str:
    return f"{kind(row.facts['cpu'])}, {row.facts['date'][:10]}, {row.facts['commit']}"


def claims(rows: Sequence[Row], newest: Sequence[str] = ()) -> str:
    """Say of each claim of a row its figure, its target if that was missed, and the processor.

    The figure is that of the newest complete set, or else the worst one. Claims that only differ in the
    contender before the last colon are one, and the worst contender is named.
    """
    found: dict[tuple[str, str], list[Claimed]] = {}
    letters = "ABCDEFGH"
    for row, letter in zip(rows, letters, strict=False):
        judged = [v for v in row.verdicts if v.op]
        parts = [v.what.rpartition(": ") for v in judged]
        repeated = Counter(what for who, _, what in parts if " / " not in who)
        for v in judged:
            who, _, what = v.what.rpartition(": ")
            if " / " in who or repeated[what] == 1:
                who, what = "", v.what
            found.setdefault((what, target_text(v)), []).append(Claimed(row, v, letter, who))
    if not found:
        return UNRECORDED
    out, others = [], False  # whether a figure is of another run than the set
    for (what, target), figures in found.items():
        quoted = _chosen(figures, newest)
        letter, who, v = quoted.letter, quoted.who, quoted.verdict
        contenders, equal = len({x.who for x in figures}), len({x.verdict.value for x in figures}) == 1
        where = [f"{contenders} contenders" if equal else f"{who}, the worst of {contenders}"]
        of_set = _is_of(quoted.row, newest)
        others = others or not of_set
        where = (where if contenders > 1 else []) + ([letter] if len(rows) > 1 and not of_set else [])
        if newest and len({x.letter for x in figures}) > 1 and (spread := _range(figures)):
            where.append(spread)
        said = f"- {what}: {value_text(v)}"
        said += f" ({'; '.join(where)})" if where else ""
        if not v.reached:
            said += f", target {target}"
            said += " **not reached**" if v.reached is False else " not decided"
            said += f": {v.why}" if v.why else ""
        out.append(said)
    if not others:
        return "\n".join(out) + "\n"
    named = zip(letters, map(_said, rows), strict=False)
    sources = "; ".join(f"{letter}: {said}" if len(rows) > 1 else said for letter, said in named)
    return "\n".join([*out, "", f"{sources}."]) + "\n"


def sections(rows: Sequence[Row]) -> str:
    """Make the sections with all figures of a row, one for each processor."""
    made = []
    for row in rows:
        named = f"### {row.name} on {kind(row.facts['cpu'])}: "
        made.append(markdown(row).replace(f"### {row.name}: ", named, 1))
    return "\n".join(made) or UNRECORDED


def numbers(record: Mapping[str, Sequence[Row]], newest: Sequence[str] = ()) -> str:
    """Make the README's table: of each claim its figure, the range over processors, and the processor.

    The figure is that of the newest complete set, or else the worst one.

    Raises:
        LookupError: a recorded row has no such claim.
    """
    out = ["| | target | measured | range | on |", "|---|---|---|---|---|"]
    for number in NUMBERS:
        found = [
            Claimed(row, v)
            for row in record.get(number.row, ())
            for v in row.verdicts
            if v.op and fnmatchcase(v.what, number.claim) and v.value == v.value
        ]
        if found:
            quoted = _chosen(found, newest)
            row, v = quoted.row, quoted.verdict
            bound = {"<=": "≤", ">=": "≥", "==": "="}[v.op] + target_text(v)[2:] + number.unit
            missed = "" if v.reached else f" **not reached**{': ' + v.why if v.why else ''}"
            measured = f"{value_text(v)}{number.unit}{missed}"
            out.append(f"| {number.text} | {bound} | {measured} | {_range(found)} | {_said(row)} |")
        elif record.get(number.row):
            raise LookupError(f"row {number.row} has no claim {number.claim!r}")
    return "\n".join(out) + "\n"


def filled(page: str, folder: Path = RESULTS) -> str:
    """Return the text of a page with all that is between comments made anew."""
    record, newest = recorded(folder), _newest(folder)

    def block(m: re.Match[str]) -> str:
        rows = record.get(m[3], ())
        return m[1] + (sections(rows) if m[2] == "bench" else claims(rows, newest)) + m[4]

    page = BLOCK.sub(block, page)
    return NUMBERS_BLOCK.sub(lambda m: m[1] + numbers(record, newest) + m[2], page)


def write_pages(root: Path = ROOT) -> None:
    """Write what is made of the record into the pages.

    Raises:
        LookupError: a recorded row has no place on a page, or the README names a claim that it has not.
    """
    folder = root / RESULTS.relative_to(ROOT)
    record = recorded(folder)
    texts = {page: page.read_text(encoding="utf-8") for page in pages(root)}
    for name in record:
        for what, text in zip(("bench", "claims"), texts.values(), strict=False):
            if what == "claims" and claims(record[name]) == UNRECORDED:
                continue  # it has no targets
            if f"<!-- {what}:{name} -->" not in text:
                raise LookupError(f"no place for row {name}: {what} page")
    for page, text in texts.items():
        page.write_text(filled(text, folder), encoding="utf-8")


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages with figures of the record."""
    return [root / page.relative_to(ROOT) for page in (MEASUREMENTS, PERFORMANCE, README)]


def main(files: Sequence[str]) -> int:
    """Record runs from files, or only write the pages anew."""
    refused = False
    for name in files:
        try:
            record(read(Path(name)))
        except Refused as why:
            print(why, file=sys.stderr)
            refused = True
    if not files:
        write_pages()
    return int(refused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
