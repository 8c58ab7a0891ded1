"""The page over a table of hours: what it shows first, its bounds, and tables that others wrote."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient import cli, verify
from logclient.errors import ExitCode, LedgerError
from tests import support
from tests.support.s3 import Bucket
from tests.support.verify_scene import Scene
from tests.verify.page import EVIL, Page

pytestmark = pytest.mark.slow

support.need("numpy")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")
report = pytest.importorskip("logclient.verify.report")
hours = pytest.importorskip("logclient.verify.report.hours")
verdicts = pytest.importorskip("logclient.verify.verdict")

HOUR = datetime.timedelta(hours=1)
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
START = int(NOON.timestamp()) * 1_000_000
SPAN = {"since": "2026-05-01T12:00:00Z", "until": "2026-05-01T14:00:00Z"}
WORDS = verdicts.Counts._fields


def append(scene: Scene, table: Path, seqs: Any = None) -> ExitCode:
    """Judge two hours, which have the events 1 to 9, and 10 to 19."""
    scene.write_ledger(
        created=lambda seq: START + seq * 360_000_000, per_batch=5, at_us=START, service="shop", host="h1"
    )
    scene.write_capture(seqs, received=lambda unit: START + 3_600_000_000 + unit)
    return verify.append(table, scene.ledger, scene.capture, runner="local", **SPAN)


def row(at: datetime.datetime = NOON, code: int = 0, **values: Any) -> dict[str, Any]:
    """Return a row as `append` writes it."""
    return {
        "hour": at, "until": at + HOUR, "producer": "0a" * 10, "service": "shop", "host": "h1",
        **dict.fromkeys(WORDS, 0), "breaks": [], "exit_code": code, "sentence": "It is so.",
        **dict.fromkeys(hours._LATENCIES), **values,
    }  # fmt: skip


def write(table: Path, *rows: dict[str, Any], name: str = "2026-05-01T12.parquet", **types: Any) -> Path:
    table.mkdir(exist_ok=True)
    latencies = dict.fromkeys(hours._LATENCIES, pa.float64())
    kinds = {"breaks": pa.list_(pa.string()), "hour": pa.timestamp("us", "UTC"), **latencies, **types}
    kinds["until"] = pa.timestamp("us", "UTC")
    columns = {key: pa.array([one[key] for one in rows], kinds.get(key)) for key in rows[0]}
    parquet.write_table(pa.table(columns), table / name)
    return table


class Found(Page):
    """The page, and the cells of its map."""

    def __init__(self, text: str) -> None:
        self.map: list[list[tuple[str, str, str]]] = []  # for each row: colour, anchor, title
        self.heads: list[str] = []
        self.anchors: list[str] = []
        super().__init__(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        values = {name: value or "" for name, value in attrs}
        if tag == "tr" and "id" in values:
            self.anchors.append(values["id"])
        if tag == "th" and values.get("scope") == "row":
            self.heads.append("")
            self.map.append([])
        if tag == "a":
            self.map[-1].append((values["class"], values["href"][1:], values["title"]))

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if self.inside[-1:] == ["th"] and self.heads and "table" in self.inside and data.strip():
            self.heads[-1] = self.heads[-1] or data

    @property
    def rows(self) -> dict[str, list[str]]:
        """The colours of each row of the map."""
        return {head: [cell[0] for cell in cells] for head, cells in zip(self.heads, self.map, strict=True)}


def read(table: Any) -> Found:
    return Found(report.hours_page(table))


def column(page: Found, head: str) -> list[str]:
    return [text for classes, text in page.cells if classes == head]


def test_hours_of_a_run(scene: Scene, table: Path) -> None:
    assert append(scene, table, [*range(1, 13), *range(14, 21)]) == ExitCode.BROKEN
    page = read(table)
    assert page.rows == {"all, by exit code": ["good", "bad"], "shop": ["good", "bad"]}
    assert "The promise is broken in 1 of 2 intervals" in page.text
    for shown in ("2026-05-01 12:00:00 to 14:00:00", "2: 1 red, 1 green", "19", "94.74 %", "1 lost"):
        assert shown in page.words, shown
    assert page.map[1][1] == ("bad", page.anchors[0], "2026-05-01 13:00 UTC: 10 events, 9 ok, 1 lost")
    assert {cell[1] for cells in page.map for cell in cells} == set(page.anchors)
    assert column(page, "time (UTC)") == [
        "2026-05-01 13:00:00 to 14:00:00",
        "2026-05-01 12:00:00 to 13:00:00",
    ]
    assert column(page, "exit code") == ["✗ 1 red", "0 green"]
    assert column(page, "worst services") == ["shop: 1 lost", ""]
    assert column(page, "sentence")[0].startswith("The promise is broken: 1 lost")
    assert "Latency" in page.words


def test_latency_of_an_hour_is_in_all_its_rows(scene: Scene, table: Path) -> None:
    found: list[Any] = []
    append(scene, table)
    verify.append(table, scene.ledger, scene.capture, runner="local", each=found.append, **SPAN)
    rows = parquet.read_table(table / "2026-05-01T12.parquet").to_pylist()
    assert len(rows) == 2
    for one in rows:
        assert [one[name] for name in hours._LATENCIES] == [
            found[0].latency.p50, found[0].latency.p99, found[0].latency.max
        ]  # fmt: skip
    later = {"since": "2026-05-01T15:00:00Z", "until": "2026-05-01T16:00:00Z"}
    verify.append(table, scene.ledger, scene.capture, runner="local", **later)
    schema = parquet.read_schema(table / "2026-05-01T15.parquet")
    assert {str(schema.field(name).type) for name in hours._LATENCIES} == {"double"}
    assert parquet.read_table(table / "2026-05-01T15.parquet")["latency_max"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("values", "colour"),
    [
        ({"ok": 9}, "good"), ({"ok": 8, "recovered": 1, "duplicated": 3}, "good"),
        ({"missing": 1}, "maybe"), ({"dropped": 1}, "maybe"), ({"unknown": 1}, "maybe"),
        ({"pending": 1}, "maybe"),
        ({"lost": 1, "missing": 1}, "bad"), ({"corrupted": 1}, "bad"), ({"unexpected": 1}, "bad"),
        ({"reordered": 1, "breaks": ["reordered"]}, "bad"), ({"reordered": 1}, "good"),
    ],
)  # fmt: skip
def test_colours_of_a_service(table: Path, values: dict[str, Any], colour: str) -> None:
    assert read(write(table, row(events=9, **values))).rows["shop"] == [colour]


@pytest.mark.parametrize(
    ("code", "colour", "words"),
    [
        (0, "good", "The promise holds in 1 interval"),
        (1, "bad", "The promise is broken in 1 of 1 interval"),
        (3, "maybe", "The promise is unproven in 1 of 1 interval"),
        (77, "maybe", "The promise is unproven in 1 of 1 interval"),
    ],
)
def test_colours_of_an_interval(table: Path, code: int, colour: str, words: str) -> None:
    page = read(write(table, row(code=code)))
    assert page.rows == {"all, by exit code": [colour]}  # a service without events has no row
    assert words in page.words
    assert "no events" in page.words


def test_worst_come_first(table: Path) -> None:
    places = [
        ("a", {"ok": 9}),
        ("b", {"lost": 1}),
        ("c", {"lost": 2}),
        ("d", {"missing": 5}),
        ("", {"ok": 10}),
    ]
    rows = [row(service=name, events=10, code=3, **counts) for name, counts in places]
    rows += [
        row(service="b", host="h2", events=1, ok=1, code=3),
        row(producer="", service="", host="", unexpected=1),
    ]
    write(table, *[one | {"exit_code": 3} for one in rows])
    for n, code in enumerate((0, 1, 3), 1):
        write(table, row(NOON + n * HOUR, code), name=f"2026-05-01T1{n + 2}.parquet")
    page = read(table)
    names = ["c", "b @ h1", "no ledger", "d", "a", "not known", "b @ h2"]
    assert page.heads[1:] == names
    assert column(page, "exit code") == ["✗ 1 red", "! 3 unproven", "! 3 unproven", "0 green"]
    assert (
        column(page, "worst services")[1] == "c: 2 lost; no ledger: 1 unexpected; b @ h1: 1 lost; and 1 more"
    )
    assert page.rows["all, by exit code"] == ["maybe", "good", "bad", "maybe"]


def test_hours_that_were_not_judged_have_their_place(table: Path) -> None:
    write(table, row(ok=1))
    text = report.hours_page(write(table, row(NOON + 3 * HOUR, ok=1), name="2026-05-01T15.parquet"))
    [line] = re.findall(r'<tr><th scope="row" title="shop.*', text)
    cells = re.sub(r"<a [^>]*></a>", "x", line.partition("</th>")[2])
    assert cells == "<td>x</td><td></td><td></td><td>x</td></tr>"


def test_intervals_of_two_lengths_show_the_worst(table: Path) -> None:
    """As after a change of --every."""
    write(table, row(events=1, ok=1))
    short = row(code=1, events=1, lost=1) | {"until": NOON + HOUR / 12}
    page = read(write(table, short, name="2026-05-01T12-00.parquet"))
    assert page.rows == {"all, by exit code": ["bad"], "shop": ["bad"]}
    assert column(page, "exit code") == ["✗ 1 red", "0 green"]


@pytest.mark.parametrize("codes", [(0, 1), (1, 0)])
def test_an_interval_in_two_files_has_the_worst_verdict(table: Path, codes: tuple[int, int]) -> None:
    for name, code in zip("ab", codes, strict=True):
        write(table, row(code=code, events=1, ok=1 - code, lost=code), name=f"{name}.parquet")
    page = read(table)
    assert page.rows == {"all, by exit code": ["bad"], "shop": ["bad"]}
    assert "The promise is broken in 1 of 1 interval" in page.words


def test_no_text_becomes_markup(table: Path) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in EVIL]
    rows = [row(service=text, host=text, lost=1, breaks=[text]) for text in texts]
    write(table, *[one | {"sentence": texts[n % 3]} for n, one in enumerate(rows)])
    page = read(table)
    assert "<script>alert(1)</script>" in page.words
    assert r"\x1b[31mred\x1b]0;title\x07\u{9b}2J" in page.text
    assert "default-src 'none'" in page.policy


def test_page_has_bounds(table: Path) -> None:
    for n in range(hours.MAX_INTERVALS + 4):
        rows = [row(NOON + n * HOUR, code=int(n == 2), service=f"s{i:03}", ok=1, events=1) for i in range(70)]
        write(table, *rows, name=f"{n:05}.parquet")
    page = read(table)
    assert len(page.map) == 1 + hours.MAX_SERVICES
    assert {len(cells) for cells in page.map} == {hours.MAX_INTERVALS}
    left = hours.MAX_INTERVALS * 20
    assert f"and 20 more rows, in all: {left:,} events, {left:,} ok" in page.words
    assert "and 4 older intervals: 1 red, 3 green" in page.words
    assert f"{70 * (hours.MAX_INTERVALS + 4):,}" in page.words
    assert f"The promise is broken in 1 of {hours.MAX_INTERVALS + 4} intervals" in page.words


def test_numbers_and_texts_without_measure(table: Path) -> None:
    strange = {"latency_p50": float("nan"), "latency_p99": float("inf"), "latency_max": -1.0}
    far = NOON.replace(year=9998)
    write(table, row(ok=2**62, lost=-5, service="s" * 10_000, sentence="x" * 10_000, **strange))
    page = read(write(table, row(far, ok=1) | {"until": far}, name="b.parquet"))
    assert max(map(len, page.heads + column(page, "sentence"))) < 600
    assert "Latency" not in page.words


def test_older_tables_have_fewer_columns(scene: Scene, table: Path) -> None:
    append(scene, table)
    for path in table.iterdir():
        found = parquet.read_table(path)
        parquet.write_table(found.drop_columns(["until", "service", *hours._LATENCIES]), path)
    page = read(table)
    assert page.rows == {"all, by exit code": ["good", "good"], "not known": ["good", "good"]}
    assert "2026-05-01 12:00:00 to 14:00:00" in page.words
    assert "Latency" not in page.words


@pytest.mark.parametrize("name", ["hour", "producer", "host", "lost", "exit_code", "sentence", "breaks"])
def test_missing_columns_are_named(table: Path, name: str) -> None:
    write(table, {key: value for key, value in row().items() if key != name})
    with pytest.raises(
        LedgerError, match=f"^report: {table}/2026-05-01T12.parquet: it must have one column {name}$"
    ):
        read(table)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("lost", ["many"], "column lost must be int64, and is string"),
        ("hour", ["noon"], r"column hour must be timestamp\[us, tz=UTC\], and is string"),
        ("hour", pa.nulls(1, pa.timestamp("us", "UTC")), "column hour has no value"),
        ("exit_code", pa.nulls(1, pa.int64()), "column exit_code has no value"),
        ("service", pa.array([b"\xff"]), "column service must be string, and is binary"),
        ("breaks", [1], "column breaks must be list.*, and is int64"),
    ],
)
def test_wrong_columns_are_named(table: Path, name: str, values: Any, words: str) -> None:
    path = write(table, row()) / "2026-05-01T12.parquet"
    found = parquet.read_table(path)
    at = found.column_names.index(name)
    parquet.write_table(
        found.set_column(at, name, pa.array(values) if isinstance(values, list) else values), path
    )
    with pytest.raises(LedgerError, match=f"^report: {path}: {words}"):
        read(table)


# -- the command


def test_command_replaces_the_page(scene: Scene, table: Path, tmp_path: Path) -> None:
    append(scene, table)
    out = tmp_path / "page.html"
    out.write_text("old")
    out.chmod(0o644)
    assert cli.main(["report", str(table), "--out", str(out)]) == ExitCode.OK
    assert out.read_text() == report.hours_page(table)
    assert out.stat().st_mode & 0o777 == 0o600
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_command_with_a_bucket(scene: Scene, table: Path, bucket: Bucket) -> None:
    append(scene, table)
    bucket.put("hours/2026-05-01T12.parquet", (table / "2026-05-01T12.parquet").read_bytes())
    page = bucket.url("pages/hours.html")
    assert cli.main(["report", bucket.url("hours"), "--out", page]) == ExitCode.OK
    assert b"The promise holds in 1 interval" in bucket.get("pages/hours.html")


def test_missing_bucket_is_named_once(bucket: Bucket) -> None:
    with pytest.raises(LedgerError, match=r"^report: s3://no-such-bucket/hours: there is no such bucket"):
        report.hours_page("s3://no-such-bucket/hours")


def empty(table: Path) -> str:
    table.mkdir()
    (table / ".2026-05-01T12.parquet-0a").touch()
    return f"report: {table} has no Parquet files: give the table of verify --append"


def no_table(table: Path) -> str:
    return f"report: {table}: No such file or directory"


def a_file(table: Path) -> str:
    table.touch()
    return f"report: {table}: Not a directory"


def no_parquet(table: Path) -> str:
    table.mkdir()
    (table / "a.parquet").write_text("text, and no table")
    return f"report: {table}/a.parquet: Parquet magic bytes not found"


def no_rows(table: Path) -> str:
    write(table, row())
    path = table / "2026-05-01T12.parquet"
    parquet.write_table(parquet.read_table(path).slice(1), path)
    return f"report: {table} has no rows"


@pytest.mark.parametrize("make", [empty, no_table, a_file, no_parquet, no_rows])
def test_what_is_no_table_is_an_error(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], str]
) -> None:
    words = make(table)
    assert cli.main(["report", str(table), "--out", str(tmp_path / "page.html")]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"logclient: {words}")
    assert error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_page_that_cannot_be_written_is_an_error(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(table, row())
    for place in (tmp_path / "none" / "page.html", tmp_path):
        assert cli.main(["report", str(table), "--out", str(place)]) == ExitCode.USAGE
        assert capsys.readouterr().err.startswith(f"logclient: out: {place}: ")
    assert not [name for name in os.listdir(tmp_path.parent) if name.startswith(f".{tmp_path.name}")]
