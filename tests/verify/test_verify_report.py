"""The report: its words, and that it runs and fetches nothing and holds no secret."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import verify
from logclient.cli import main
from logclient.errors import ExitCode
from logclient.testing.lumberjack import Collector
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Scene
from tests.verify.page import EVIL, HIDDEN, Page, read_page

support.need("numpy")
support.need("pyarrow")
report = pytest.importorskip("logclient.verify.report")
pages = pytest.importorskip("logclient.verify.report.pages")
charts = pytest.importorskip("logclient.verify.report.charts")
verdicts = pytest.importorskip("logclient.verify.verdict")

Run = Callable[..., Any]


def test_no_log_line_becomes_markup(scene: Scene, run: Run) -> None:
    """Bodies, ids of users, peers, names of segments and reasons, wherever the page shows them."""
    scene.bodies = {
        seq: files.body(files.event_id(P, seq), f"{EVIL[seq % len(EVIL)]} {seq}") for seq in range(1, 61)
    }
    # JSON allows control characters outside ASCII unescaped.
    raw = '{"message":"\u202e \x9b2J \x7f \u2028 <script>alert(2)</script>"'
    bad = f'{raw},"event.id":"{files.event_id(P, 5)}"}}'.encode()
    broken = [b'{"a":"\x1b[2J\xff\xfe\xed\xa0\x80"}', b'[1, "</pre><script>alert(3)']
    outcomes = {"acked": range(1, 31), "failed": range(31, 61)}
    scene.write_ledger(outcomes=outcomes, tail=[b'{"t":"<script>"}\n'])
    foreign = [files.body(None, evil, user=evil) for evil in EVIL[:-1]] + [
        files.body(None, evil) for evil in EVIL
    ]
    arrived = [*range(1, 5), bad, *range(7, 20), 6, *range(21, 55), 30, *foreign, *broken]
    scene.write_capture(arrived, listener="<script>alert(4)<\x1b[1m")
    [path] = scene.capture.iterdir()
    data = path.read_bytes()[: -len(files.end_record(0))]
    n = 2 * -(-len(arrived) // 4) + 1
    unit = b"2W\0\0\0\2" + b"2J\0\0\0\1\0\0\0\x17<script>alert(5)</scrip" + b"junk"
    peer = '"><img src=x onerror=alert(6)>\x1b[0m'
    known = b"2W\0\0\0\1" + files.window([scene.bodies[6]])[6:]
    path.write_bytes(
        data
        + files.stream_record(9, peer)
        + files.unit_record(n, unit, stream=9, received_us=7)
        + files.unit_record(n + 1, known, stream=9, received_us=8)
        + files.unit_record(n + 2, known, stream=9, received_us=9)
        + files.end_record(n + 3)
    )
    verdict = run(examples=100)
    assert verdict.exit_code == ExitCode.BROKEN
    assert {"lost", "missing", "corrupted", "reordered", "unknown", "recovered"} <= set(verdict.examples)
    page = read_page(scene)
    for shown in (
        "<script>alert(1)</script>", "</pre></td></table></div><h1>owned</h1>", "onerror=alert(1)",
        "alert(2)", "alert(3)", "alert(4)", "alert(5)", r"<\x1b[1m", r"\u{202e} \u{9b}2J \x7f \u{2028}",
    ):  # fmt: skip
        assert shown in page.text, shown
    # Text for a terminal has line ends and printable characters only.
    assert not HIDDEN.search(report.text(verdict).replace("\n", ""))
    assert json.dumps(verdict.to_json()).isascii()


def test_only_our_style_and_script_may_run(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture()
    run()
    page = read_page(scene)
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    for kind in ("style", "script"):
        [content] = page.content[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules.pop(f"{kind}-src") == f"'sha256-{digest}'"
        # Nothing is fetched, nothing becomes markup.
        assert not re.search(
            r"https?:|//[a-z]|@import|url\(|innerHTML|insertAdjacent|eval|fetch|document\.write", content
        )
    assert not rules
    assert "prefers-color-scheme: dark" in page.content["style"][0]
    assert page.policy in (scene.out / "report.html").read_text()[:2000]  # ahead of all style and script


SECRET = "correct-horse-battery-staple"


def test_secrets_in_a_ledger_url_are_hidden(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign ledger may hold a URL that was never redacted."""
    line = files.open_line(P)
    line["url"] = (
        f"lumberjack+tls://me:{SECRET}@host:5044?tls_password={SECRET}&window=7&token={SECRET}&x={SECRET}"
    )
    events = [(seq, 1000 * seq, files.xxh64(raw)) for seq, raw in scene.bodies.items()]
    lines = [line, files.batch_line(events), files.outcome_line("acked", range(1, 21)), files.close_line(20)]
    files.write_part(scene.ledger, P, 1, lines)
    scene.write_capture(range(2, 21))
    places = ["--ledger", str(scene.ledger), "--capture", str(scene.capture), "--out", str(scene.out)]
    assert main(["verify", "--local", *places]) == ExitCode.BROKEN
    assert main(["verify", "--local", *places, "--json"]) == ExitCode.BROKEN
    printed = capsys.readouterr()
    assert "***@host:5044?tls_password=***&window=7&token=***&x=***" in printed.out
    kept = [path.read_bytes() for path in scene.out.rglob("*") if path.is_file()]
    assert len(kept) >= 3
    assert not [
        data for data in (*kept, printed.out.encode(), printed.err.encode()) if SECRET.encode() in data
    ]


def test_password_of_a_client_is_in_no_file_or_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From an option to the report: ledger, capture, verdict, what is printed."""
    rig = pytest.importorskip("tests.support.tls")
    form = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    ours = rig.Authority(tmp_path / "keys")
    cert = Path(ours.issue("me", "me@example.org"))
    sealed = form.load_pem_private_key(cert.read_bytes(), None).private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(SECRET.encode())
    )
    cert.with_name("me.key").write_bytes(sealed)
    monkeypatch.setenv("TLS_PASSWORD", SECRET)
    run = tmp_path / "run"
    with Collector(
        capture=str(run / "capture"), tls=rig.context("1.3", ours.issue("server"), ca=ours.ca)
    ) as collector:
        options = f"ca={ours.ca}&cert={cert}&key={cert.with_name('me.key')}&tls_password=env:TLS_PASSWORD"
        with logclient.connect(f"{collector.url}?{options}", ledger=run / "ledger") as client:
            for evil in EVIL[:-1]:
                client.send({"message": evil})
            assert client.flush(PATIENCE) == 0
    folders = (f"--{name}={run / name}" for name in ("ledger", "capture", "out"))
    given = ["verify", "--local", *folders]
    assert main(given) == ExitCode.OK
    assert main([*given, "--json"]) == ExitCode.OK
    printed = capsys.readouterr()
    assert "tls_password=***" in printed.out
    assert "tls_password=***" in Page((run / "out" / "report.html").read_text()).text
    kept = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    assert len(kept) >= 4  # ledger, capture, verdict, report
    assert not [
        data for data in (*kept, printed.out.encode(), printed.err.encode()) if SECRET.encode() in data
    ]


# -- what it says


def bad_cells(page: Page) -> list[str]:
    return [text for classes, text in page.cells if classes == "n bad"]


def test_broken_promises_are_highlighted(scene: Scene, run: Run) -> None:
    """Reordered too, where the protocol promises order."""
    scene.write_ledger().write_capture([2, 1, *range(3, 20)])
    verdict = run()
    assert verdict.producers[0].breaks == ("lost", "reordered")
    page = read_page(scene)
    assert bad_cells(page) == ["1", "1"] * 3  # of the producer, its endpoint, the listener
    assert "1 event was acknowledged and never arrived." in page.text
    assert "1 event arrived after a later one." in page.text
    assert "!" in next(line for line in report.text(verdict).splitlines() if line.startswith("reordered"))
    assert "undecodable" not in report.text(verdict)


def test_order_without_promise_is_not_highlighted(scene: Scene, run: Run) -> None:
    scene.write_ledger(protocol="plog").write_capture([2, 1, *range(3, 21)])
    verdict = run()
    assert verdict.counts.reordered == 1
    assert verdict.producers[0].breaks == ()
    assert bad_cells(read_page(scene)) == []


def test_exceeded_limit_is_highlighted(scene: Scene, run: Run) -> None:
    scene.write_ledger(outcomes={"acked": range(1, 19)}).write_capture(range(1, 19))
    run(max_missing=1)
    page = read_page(scene)
    assert bad_cells(page) == ["2"] * 3
    assert "2 missing; the limit was 1." in page.text


@pytest.mark.parametrize(
    ("seqs", "options", "sentence", "icon"),
    [
        (range(1, 21), {}, "The promise holds: 20 of 20 events arrived intact.", "good"),
        (range(2, 21), {}, "The promise is broken: 1 lost, of 20 events.", "bad"),
        (range(2, 21), {"closed": False}, "The promise is unproven: 1 of 20 events are unknown", "maybe"),
    ],
)
def test_page_begins_with_the_verdict(
    scene: Scene, run: Run, seqs: range, options: dict[str, Any], sentence: str, icon: str
) -> None:
    scene.write_ledger().write_capture(seqs, **options)
    run()
    page = read_page(scene)
    first = page.text.partition("logclient verify")[2].lstrip()  # behind the title
    assert first.startswith(sentence)
    # Not by colour alone.
    assert f'd="{pages.ICONS[icon]}"' in (scene.out / "report.html").read_text()
    assert len(set(pages.ICONS.values())) == 3


def test_example_shows_its_bytes_and_frames(scene: Scene, run: Run) -> None:
    """An event in a compressed frame: its place, its neighbours, its bytes, and what the ledger has."""
    bad = files.body(files.event_id(P, 2), "<b>other</b>")
    unit = files.window([scene.bodies[1], bad, scene.bodies[3]], compress=True)
    plain = files.window([scene.bodies[s] for s in range(4, 21)] + [b"[]"])
    scene.write_ledger()
    files.write_segments(scene.capture, "main", [(unit, 0, 70_000), (plain, 0, 70_001)])
    verdict = run()
    [example] = verdict.examples["corrupted"]
    assert example["fate"] == "acked"
    assert example["created_us"] == 2000
    assert example["sent_hash"] == f"{files.xxh64(scene.bodies[2]):016x}"
    assert example["arrived_hash"] == f"{files.xxh64(bad):016x}"
    window, compressed, frame = example["frames"]
    assert window == {"offset": 0, "depth": 0, "size": 6, "title": "2W window of 3 events"}
    assert (compressed["offset"], compressed["depth"], compressed["size"]) == (6, 0, len(unit) - 6)
    assert frame["depth"] == 1 and frame["title"] == f"2J sequence 2, {len(bad)} bytes"
    # `offset` counts in the unit with its frames inflated in place.
    whole = files.window([scene.bodies[1], bad, scene.bodies[3]])
    assert example["offset"] == whole.index(bad)
    assert example["bytes_at"] == whole.index(bad) - 10
    assert bytes.fromhex(example["bytes"]) == b"2J\0\0\0\2" + len(bad).to_bytes(4, "big") + bad
    assert frame["offset"] == example["bytes_at"] - 6
    data = (scene.capture / example["segment"]).read_bytes()
    assert data[example["unit_at"] :].startswith(unit)
    [row] = verdict.undecoded
    assert row["wrong"] == "not one JSON object in UTF-8"
    assert b"[]" in bytes.fromhex(row["bytes"])
    assert f"undecodable: 1 {row['reason']}" in report.text(verdict).splitlines()
    page = read_page(scene)
    assert f"{example['sent_hash']} was sent, {example['arrived_hash']} arrived" in page.text
    assert f"{example['bytes_at']:08x}  32 4a 00 00 00 02" in page.text


def test_first_example_of_a_broken_promise_is_open(scene: Scene, run: Run) -> None:
    """The first of each word that breaks the promise, of those that arrived."""
    copies = [files.body(files.event_id(P, seq), "other") for seq in (2, 3)]
    scene.write_ledger().write_capture([1, *copies, 4, 4, 5, 5, *range(6, 21)])
    verdict = run()
    assert (verdict.counts.corrupted, verdict.counts.duplicated) == (2, 2)
    html = (scene.out / "report.html").read_text()
    shown = re.findall(r"<details( open)?[^>]*><summary><code>(\w+)", html)
    assert [(seq, bool(opened)) for opened, name in shown for seq in [int(name[20:], 16)]] == [
        (2, True), (3, False), (4, False), (5, False)
    ]  # fmt: skip


def test_foreign_events_are_named_by_hash(scene: Scene, run: Run) -> None:
    """The hash is that of its own id, or of its body."""
    foreign = [files.body(None, "theirs", user="an id of theirs"), files.body(None, "without any")]
    scene.write_ledger().write_capture([*scene.bodies, *foreign])
    found = run().examples["unexpected"]
    named = sorted(example["hash"] for example in found)
    assert named == sorted(ident.removeprefix("~") for _, ident in verify.violation_ids(scene.out))
    assert {example["id"] for example in found} == {None}
    page = read_page(scene)
    assert all(f"hash {name}" in page.text for name in named)


def test_faults_are_listed_without_examples(scene: Scene, run: Run) -> None:
    """Every fault is listed all the same."""
    scene.write_ledger().write_capture([*range(2, 21), files.body(files.event_id("ee" * 10, 9), "?")])
    assert run(examples=0).examples == {}
    assert sorted(verify.violation_ids(scene.out)) == [
        ("lost", files.event_id(P, 1)), ("unexpected", files.event_id("ee" * 10, 9))
    ]  # fmt: skip


def test_examples_come_from_many_producers(scene: Scene, run: Run) -> None:
    scene.write_ledger()
    for i in range(5):
        name = f"{i:020x}"
        mine = {seq: files.body(files.event_id(name, seq), "x") for seq in range(1, 21)}
        scene.write_ledger(producer=name, bodies=mine)
    scene.write_capture()
    found = [(x["producer"], x["seq"]) for x in run(examples=7).examples["lost"]]
    assert found == [(f"{i:020x}", seq) for i in range(5) for seq in ((1, 2) if i < 2 else (1,))]


def test_events_that_never_arrived_are_named_by_id(scene: Scene, run: Run) -> None:
    """By what can be searched for in the store: the first id of each range."""
    scene.write_ledger().write_capture([seq for seq in range(1, 21) if seq not in (4, 5, 6, 9)])
    run()
    page = read_page(scene)
    named = [seq for seq in range(1, 21) if files.event_id(P, seq) in page.text]
    assert named == [4, 9]


def test_charts_show_faults_by_time_and_sequence(scene: Scene, run: Run) -> None:
    day = 1_763_596_800_000_000
    scene.bodies = {seq: files.body(files.event_id(P, seq), "x") for seq in range(1, 1001)}
    gone = [*range(401, 501), 900]
    scene.write_ledger(created=lambda seq: day + seq * 1_000_000)
    scene.write_capture([s for s in scene.bodies if s not in gone], received=lambda unit: day + 1_001_000_000)
    verdict = run(bits=6)
    times = verdict.timeline
    assert (times.start_us, times.width_us, len(times.events)) == (day, 5_000_000, 201)
    assert sum(times.events) == 1000
    assert {i: n for i, n in enumerate(times.lost) if n} == {
        80: 4, **dict.fromkeys(range(81, 100), 5), 100: 1, 180: 1
    }  # fmt: skip
    [place] = verdict.maps
    assert (place.producer, place.last, place.width) == (P, 1000, 5)
    assert place.parts == {"lost": [*([part, 5] for part in range(80, 100)), [179, 1]]}
    page = read_page(scene)
    assert "2025-11-20 00:06:45 UTC: 5 lost" in page.titles
    assert "100 lost in 401 to 500" in page.titles
    assert "1 lost in 896 to 900" in page.titles
    html = (scene.out / "report.html").read_text()
    ticks = re.findall(r'<text x="([\d.]+%)"[^>]* class="tick">([^<]*)</text>', html)
    assert ticks[:3] == [("0%", "00:00:00"), ("49.75%", "00:08:20"), ("100%", "00:16:45")]
    levels = re.findall(r'<text x="-6" [^>]* class="tick">([^<]*)</text>', html)
    assert levels[:2] == ["5", "5"]  # the most of a step: events, and what went wrong


@pytest.mark.parametrize(
    ("first", "last", "width"),
    [
        (0, 0, 1_000),
        (5, 239_999, 1_000),
        (0, 240_000, 2_000),
        (1_763_596_800_123_456, 1_763_596_800_123_456 + 60_000_000, 500_000),
        (-1, 0, 1_000),
        (0, 86_400_000_000 * 365, 2 * 86_400_000_000),
        (-(1 << 60), 1 << 60, None),
    ],
)
def test_steps_of_time_cover_the_range(first: int, last: int, width: int | None) -> None:
    overview = pytest.importorskip("logclient.verify.overview")
    grid = overview.Grid.over(first, last)
    assert width in (None, grid.width_us)
    assert 1 <= grid.n <= overview.STEPS
    assert grid.start_us % grid.width_us == 0
    assert grid.start_us <= first < grid.start_us + grid.width_us
    assert grid.start_us + (grid.n - 1) * grid.width_us <= last < grid.start_us + grid.n * grid.width_us


def test_times_outside_the_calendar_are_microseconds(scene: Scene, run: Run) -> None:
    scene.write_ledger(created=lambda seq: -(1 << 59) if seq == 1 else (1 << 59), per_batch=1)
    scene.write_capture(range(2, 21))
    assert run().timeline is not None
    assert " us UTC: " in "".join(read_page(scene).titles)


def test_report_without_events_has_no_timeline(scene: Scene, run: Run) -> None:
    scene.write_ledger(bodies={}).write_capture([])
    assert run().timeline is None
    assert "Over time" not in read_page(scene).text


@pytest.mark.slow
def test_page_of_many_producers_is_bounded(scene: Scene) -> None:
    n = 5000
    long_ = "lumberjack://" + "a-very-long-name." * 40
    counts = verdicts.Counts(*[10**9] * 11)
    latency = verdicts.Latency(10**9, 1.5, 2.5, 3.5, 4.5, 10**12)
    one = verdicts.ProducerVerdict(
        P, "lumberjack", long_, "id", "checked", True, counts, 10**6, latency, ("lost", "corrupted")
    )
    parts = {word: [[i, 1 + i % 5 * 10**6] for i in range(200)] for word in charts.FAULTS}
    place = verdicts.Map(P, 10**9, 5 * 10**6, parts)
    numbers = list(range(10**6, 10**6 + 240))
    words = [f for f in verdicts.Timeline._fields if f not in ("start_us", "width_us", "latency")]
    times = verdicts.Timeline(
        start_us=0, width_us=10**6, latency={q: [1.5 * n for n in numbers] for q in ("p50", "p99", "max")},
        **dict.fromkeys(words, numbers),
    )  # fmt: skip
    verdict = verdicts.Verdict(
        ExitCode.BROKEN, "s", ("1 lost",), counts,
        tuple(one._replace(producer=f"{i:020x}") for i in range(n)),
        5, tuple(verdicts.Gap(P, 1, 5) for _ in range(5)),
        latency, "checked", {}, {}, [],
        {"units": 0, "segments": 0, "bytes": 0, "listeners": [], "events": 0},
        {"producers": n, "closed": n, "listed": 0}, ("problem \x1b " + "x" * 300,) * n, verdicts.Limits(), {},
        timeline=times,
        maps=tuple(place._replace(producer=f"{i:020x}") for i in range(50)),
        maps_left_out=n - 50,
    )  # fmt: skip
    text = report.page(verdict)
    page = Page(text)
    assert f"4,500 more producers, in all: {4500 * 10**9:,} events, " in page.text
    assert "4,980 more producers with faults" in page.text
    assert "4,800 more" in page.text
    assert len(text) < 8_000_000
    assert "4,990 more problems" in report.text(verdict)
    assert "\x1b" not in report.text(verdict)


def test_json_of_many_producers_is_bounded(scene: Scene, run: Run) -> None:
    """It has the worst producers in their order, and the sums of the others."""
    n = 1100
    bad = {7, 1090}
    raws = []
    for i in range(n):
        name = f"{i:020x}"
        mine = {1: files.body(files.event_id(name, 1), "x")}
        scene.write_ledger(producer=name, bodies=mine, tail=[] if i % 2 else None)
        raws += [] if i in bad else [mine[1]]
    scene.write_capture(raws, size=500)
    verdict = run()
    found = verdict.to_json()
    listed = [int(one["producer"], 16) for one in found["producers"]]
    assert len(listed) == 1000
    assert listed == sorted(listed)
    assert bad < set(listed)
    left_out = found["producers_left_out"]
    assert left_out["producers"] == n - 1000
    assert {word: count for word, count in left_out["counts"].items() if count} == {
        "events": 100,
        "ok": 100,
    }
    assert len(found["problems"]) == n // 2
    assert found["problems_left_out"] == 0
    text = (scene.out / "report.html").read_text()
    assert "600 more producers, in all: 600 events, 600 ok" in Page(text).text
    # Listed problems are bounded, and all are counted.
    for i in range(0, n, 2):
        name = f"{i:020x}"
        scene.write_ledger(producer=name, bodies={1: files.body(files.event_id(name, 1), "x")}, tail=[])
    found = run().to_json()
    assert (len(found["problems"]), found["problems_left_out"]) == (1000, n - 1000)


def test_columns_of_zeros_are_named_and_left_out(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(range(2, 21))
    run()
    page = read_page(scene)
    table = page.text.partition("Producers\n")[2].partition("Endpoints\n")[0]
    heads, _, note = table.partition("Zero in every row: ")
    assert "missing" not in heads and "lost" in heads
    assert note.startswith("missing, recovered, duplicated, unexpected,")


def test_report_needs_jinja_and_says_so_before_anything_is_compared(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write_ledger().write_capture()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    said = r'jinja2 is not installed: pip install "logclient\[verify\]"'
    with pytest.raises(logclient.MissingExtra, match=said):
        run()
    assert not scene.out.exists()


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (0, "0 µs"), (1.26, "1.3 µs"), (999, "999 µs"), (1500, "1.5 ms"), (250_000, "250 ms"),
        (60_000_000, "60 s"), (150_000_000, "2.5 min"), (7_200_000_000, "2 h"), (1e12, "11.6 days"),
    ],
)  # fmt: skip
def test_durations_have_readable_units(us: float, shown: str) -> None:
    assert charts.duration(us) == shown


@pytest.mark.parametrize(
    ("finest_us", "shown"),
    [
        (1, "2025-11-20 00:00:01.234567"),
        (999, "2025-11-20 00:00:01.234567"),
        (1_000, "2025-11-20 00:00:01.234"),
        (999_999, "2025-11-20 00:00:01.234"),
        (1_000_000, "2025-11-20 00:00:01"),
        (86_400_000_000 - 1, "2025-11-20 00:00:01"),
        (86_400_000_000, "2025-11-20"),
    ],
)
def test_time_of_day_is_as_fine_as_the_step(finest_us: int, shown: str) -> None:
    """As fine as a step of time is wide."""
    assert charts.clock(1_763_596_801_234_567, finest_us) == shown
