"""What a verdict and its page say about a fault: its producer, host, destination, time and reason."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from logclient.errors import ExitCode
from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene
from tests.verify.page import Page, read_page

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
report = pytest.importorskip("logclient.verify.report")
summaries = pytest.importorskip("logclient.verify.summary")

Run = Callable[..., Any]

DAY = 1_777_600_800_000_000  # 2026-05-01T02:00:00Z
SECOND = 1_000_000
HOUR = 3600 * SECOND
WEB = {"host": "web-1", "pid": 4242, "at_us": DAY - HOUR}
WORKER = {"host": "worker-7", "pid": 17, "at_us": DAY - 2 * HOUR}


def created(seq: int) -> int:
    """The sequences are a second apart."""
    return DAY + seq * SECOND


def received(unit: int) -> int:
    return DAY + 30 * SECOND + unit


def bodies(producer: str, n: int = 20) -> dict[int, bytes]:
    return {seq: files.body(files.event_id(producer, seq), f"event {seq}") for seq in range(1, n + 1)}


def producer_section(page: Page, producer: str) -> str:
    """The text about one producer under "Faulty producers"."""
    found = re.search(
        rf"{producer}(.*?)(?=[0-9a-f]{{20}}|no producer of these|$)", producer_sections(page), re.DOTALL
    )
    assert found, page.text
    return found[1]


def producer_sections(page: Page) -> str:
    return page.text.partition("Faulty producers")[2].partition("Over time")[0]


def assert_contains(text: str, *words: str) -> None:
    for word in words:
        assert word in text, (word, text)


# -- each field of the verdict


def test_fault_names_producer_place_time_and_reason(scene: Scene, run: Run) -> None:
    scene.write_ledger(
        created=created,
        outcomes={"acked": [*range(1, 11), 19, 20]},
        extra=[files.dropped_line([21, 22, 23], created(21)),
               files.outcome_line("failed", [11, 12], "rejected"),
               files.outcome_line("failed", range(13, 19), "timeout"),
               files.outcome_line("failed", [1], "timeout")],
        tail=[files.close_line(23, acked=12, failed=8, dropped=3)],
        **WEB,
    )  # fmt: skip
    scene.write_ledger(producer=Q, bodies=bodies(Q), created=created, **WORKER)
    other = bodies(Q)
    scene.write_capture([*range(1, 4), *range(6, 16), 19, *other.values()], received=received, host="log-1")
    verdict = run()
    mine, theirs = verdict.producers
    assert (mine.host, mine.pid, mine.started_us) == ("web-1", 4242, DAY - HOUR)
    assert (theirs.host, theirs.pid, theirs.started_us) == ("worker-7", 17, DAY - 2 * HOUR)
    # The stronger word holds, also for its reason.
    assert mine.reasons == {"failed": {"timeout": 6, "rejected": 2}, "dropped": {"overflow": 3}}
    assert theirs.reasons == {}
    assert mine.when == {
        "lost": [created(4), created(20)],
        "missing": [created(16), created(18)],
        "recovered": [created(11), created(15)],
    }
    assert (mine.listeners, theirs.listeners) == ({"main": 14}, {"main": 20})
    [listener] = verdict.listeners
    assert (listener.listener, listener.hosts, listener.runs) == ("main", ["log-1"], ["r"])
    assert (listener.events, listener.seen, listener.lost, listener.missing) == (34, 34, 3, 3)
    assert (listener.first_us, listener.last_us) == (received(0), received(8))
    [place] = verdict.destinations
    assert place.endpoints == [["127.0.0.1:5044", "main"]]
    assert (place.captured, place.producers, place.counts) == (True, 2, verdict.counts)
    examples = {example["seq"]: example for word in verdict.examples for example in verdict.examples[word]}
    assert (examples[4]["host"], examples[4]["pid"], examples[4]["url"]) == ("web-1", 4242, mine.url)
    assert {seq: examples[seq].get("reason") for seq in (4, 16)} == {4: None, 16: "timeout"}
    found = verdict.to_json()
    assert found["producers"][0]["host"] == "web-1"
    assert found["listeners"][0]["lost"] == 3
    assert found["destinations"][0]["endpoints"] == [["127.0.0.1:5044", "main"]]
    section = producer_section(read_page(scene), P)
    assert_contains(
        section, "host web-1, pid 4242, since 2026-05-01 01:00:00",
        "3 lost, made 2026-05-01 02:00:04.000 to 02:00:20.000", "3 missing",
        "lost: acknowledged, but never arrived; failed: 6 timeout, 2 rejected; dropped: 3 overflow",
        "127.0.0.1:5044 (listener main)",
    )  # fmt: skip
    assert Q not in producer_sections(read_page(scene))
    assert_contains(report.text(verdict), f"{P}: host web-1, pid 4242", "listener main")


def test_times_of_faults_span_all_buckets(scene: Scene, run: Run) -> None:
    scene.write_ledger(bodies=bodies(P, 100), created=created)
    scene.bodies = bodies(P, 100)
    # 8 is late because of later buckets alone.
    some = [2, 3, 5, 6, 7, *range(9, 90), 8, *range(91, 100)]
    scene.write_capture(some, size=1, received=received)
    [mine] = run(bits=3).producers
    assert (mine.counts.lost, mine.counts.reordered) == (4, 1)
    assert mine.when == {"lost": [created(1), created(100)], "reordered": [created(8), created(8)]}


def test_ledger_without_origin_is_still_judged(scene: Scene, run: Run) -> None:
    """The page says what the ledger lacks."""
    line = files.open_line(P)
    for name, value in (("host", 5), ("pid", "x"), ("at_us", 1.5)):
        line[name] = value
    events = [(seq, created(seq), files.xxh64(raw)) for seq, raw in scene.bodies.items()]
    lines: list[Any] = [line, files.batch_line(events)]
    lines += [{"t": "outcome", "status": "failed", "reason": None, "seqs": [[1, 20]]}, files.close_line(20)]
    files.write_part(scene.ledger, P, 1, lines)
    scene.write_capture(range(1, 20), received=received)
    verdict = run()
    [mine] = verdict.producers
    assert (mine.host, mine.pid, mine.started_us) == ("", 0, 0)
    assert mine.reasons == {"failed": {"": 20}}
    assert (verdict.exit_code, mine.ledger) == (ExitCode.OK, "whole")
    assert_contains(
        producer_section(read_page(scene), P),
        "process not recorded in the ledger",
        "failed: 20 without a reason",
    )


def test_reasons_are_bounded_in_number_and_length(scene: Scene, run: Run) -> None:
    extra = [files.outcome_line("failed", [seq], f"reason {seq} " + "x" * 500) for seq in range(1, 401)]
    scene.write_ledger(bodies=bodies(P, 400), outcomes={}, extra=extra)
    scene.write_capture([])
    [mine] = run().producers
    reasons = mine.reasons["failed"]
    assert sum(reasons.values()) == 400
    assert len(reasons) <= 256
    assert max(map(len, reasons)) <= 200
    assert reasons["other reasons"] > 100


def test_faults_are_counted_at_their_listener(scene: Scene, run: Run) -> None:
    """Copies, order and bodies are counted where they were wrong."""
    scene.write_ledger(url="lumberjack://10.0.0.1:5044,10.0.0.2:5044", created=created)
    bad = files.body(files.event_id(P, 14), "other")
    at = {"received": received, "size": 1}
    scene.write_capture([1, 3, 2, 4, 4, 5], listener="a", url="lumberjack://10.0.0.1:5044", **at)
    scene.write_capture(
        [*range(6, 14), bad, *range(15, 19), 5], listener="b", url="lumberjack://10.0.0.2:5044", **at
    )
    verdict = run(bits=3)
    a, b = verdict.listeners
    assert (a.seen, a.duplicated, a.corrupted, a.reordered) == (5, 1, 0, 1)
    assert (b.seen, b.duplicated, b.corrupted, b.reordered) == (14, 0, 1, 1)
    assert verdict.counts.duplicated == 2  # one of them at another listener
    assert verdict.counts.lost == 2
    # The two lost events could have been sent to either.
    assert (a.lost, a.elsewhere, b.lost, b.elsewhere) == (0, {"lost": 2}, 0, {"lost": 2})
    assert verdict.producers[0].listeners == {"a": 5, "b": 14}
    page = read_page(scene)
    assert_contains(
        producer_section(page, P), "10.0.0.1:5044 (listener a) or 10.0.0.2:5044 (listener b)", "a (5), b (14)"
    )
    assert_contains(page.text, "0, up to 2")


def test_losses_of_unlisted_producers_are_summed(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "MAX_NAMED", 4)
    for n in range(6):
        producer = f"{n:02x}" * 10
        scene.write_ledger(producer=producer, bodies=bodies(producer, 2))
    scene.write_capture([bodies(f"{n:02x}" * 10)[1] for n in range(6)])
    verdict = run()
    assert (len(verdict.producers), verdict.producers_left_out.producers) == (4, 2)
    assert "... and 1 more producers, and 2 lost of 2 producers not listed" in report.text(verdict)
    assert "and 2 lost of 2 producers not listed" in producer_sections(read_page(scene))


def test_capture_is_blamed_only_where_it_is_in_doubt(scene: Scene, run: Run) -> None:
    """An event of the ledger that is open may have the same id, and the other body."""
    own = {seq: files.body(None, f"event {seq}", user=f"user {seq}") for seq in (1, 2, 3)}
    scene.write_ledger(producer=Q, bodies=bodies(Q, 2), tail=[], created=created, **WEB)
    scene.write_ledger(
        bodies=own, extra=[files.ids_line([(s, f"user {s}") for s in own])], created=created, **WEB
    )
    arrived = [own[1], files.body(None, "changed", user="user 2"), own[3], *bodies(Q, 2).values()]
    scene.write_capture(arrived, received=received)
    (scene.capture / "copy").mkdir()
    shutil.copy(scene.capture / "main-000001.cap", scene.capture / "copy")
    assert run().producers[0].counts.unknown == 1
    section = producer_section(read_page(scene), P)
    assert_contains(section, "another ledger is not whole")
    assert "the capture is incomplete" not in section
    shutil.rmtree(scene.capture / "copy")
    scene.write_capture(arrived, received=received, closed=False)
    run()
    assert_contains(producer_section(read_page(scene), P), "the capture is incomplete")


def test_unexpected_events_have_a_section(scene: Scene, run: Run) -> None:
    scene.write_ledger(created=created, **WEB)
    strange = [files.body(files.event_id("0c" * 10, 1), "whose?"), b'{"message":"no id"}']
    scene.write_capture([*scene.bodies, *strange], received=received)
    verdict = run()
    assert verdict.counts.unexpected == 2
    section = read_page(scene).text.partition("no producer of these ledgers")[2].partition("Over time")[0]
    assert_contains(section, "2 unexpected", "listener main from 127.0.0.1:9")


# -- what happens in the field


def test_killed_producer_is_named(scene: Scene, run: Run) -> None:
    scene.write_ledger(created=created, outcomes={"acked": range(1, 15)}, tail=[], **WEB)
    scene.write_ledger(producer=Q, bodies=bodies(Q), created=created, **WORKER)
    scene.write_capture([*range(1, 17), *bodies(Q).values()], received=received)
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert_contains(verdict.sentence, f"the ledger of {P} (host web-1, pid 4242) has no end")
    page = read_page(scene)
    assert_contains(
        producer_section(page, P), "host web-1, pid 4242, since 2026-05-01 01:00:00", "4 unknown",
        "made 2026-05-01 02:00:17.000 to 02:00:20.000", "2 recovered",
        "ledger not closed: killed, or still running", "127.0.0.1:5044 (listener main)",
    )  # fmt: skip
    assert "worker-7" not in producer_sections(page)


def test_missing_listener_is_named(scene: Scene, run: Run) -> None:
    here, gone = "lumberjack://10.0.0.1:5044", "lumberjack://10.0.0.2:5044"
    scene.write_ledger(created=created, url=here, **WEB)
    scene.write_ledger(producer=Q, bodies=bodies(Q), created=created, url=gone, **WORKER)
    scene.write_capture(received=received, url=here, host="log-1")
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert [(x.url, x.captured, x.counts.unknown) for x in verdict.destinations] == [
        (gone, False, 20), (here, True, 0),
    ]  # fmt: skip
    page = read_page(scene)
    assert_contains(
        producer_section(page, Q),
        "host worker-7, pid 17",
        "20 unknown",
        "the capture is incomplete",
        "10.0.0.2:5044 (no listener in this capture",
    )
    assert_contains(page.text.partition("Endpoints")[2], "10.0.0.2:5044 no listener in this capture")
    assert P not in producer_sections(page)


def test_clock_that_is_an_hour_off_is_named(scene: Scene, run: Run) -> None:
    scene.write_ledger(created=lambda seq: created(seq) + HOUR, **WEB)
    scene.write_ledger(producer=Q, bodies=bodies(Q), created=created, **WORKER)
    scene.write_capture([*scene.bodies, *bodies(Q).values()], received=received)
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    page = read_page(scene)
    assert_contains(
        producer_section(page, P), "host web-1, pid 4242", "20 arrived before they were sent: its clock and",
        "differ by at least 59.8 min",
    )  # fmt: skip
    assert_contains(
        page.text, f"clocks: 20 events of {P} (host web-1, pid 4242) arrived before they were sent"
    )
    assert "worker-7" not in producer_sections(page)


def test_other_run_in_the_folder_is_named(scene: Scene, run: Run) -> None:
    scene.write_ledger(created=created, **WEB)
    scene.write_capture(range(1, 20), received=received, run="may-1", host="log-1")
    theirs = list(bodies("0c" * 10, 8).values())
    scene.write_capture(
        theirs, listener="old", received=lambda unit: DAY - HOUR, run="april-30", host="log-2"
    )
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    assert [x.listener for x in verdict.listeners] == ["main"]
    page = read_page(scene)
    assert_contains(
        producer_section(page, P), "host web-1, pid 4242", "1 lost", "127.0.0.1:5044 (listener main)"
    )
    section = page.text.partition("no producer of these ledgers")[2].partition("Over time")[0]
    assert_contains(
        section, "8 unknown", "april-30 of host log-2, listener old: 8 events, received 2026-05-01 01:00:00"
    )
    assert_contains(page.text, "april-30 (another run: not compared)", "8 not compared")
    assert_contains(verdict.sentence, "1 lost", "the capture is incomplete")


def test_other_run_without_times_has_none(scene: Scene, run: Run) -> None:
    scene.write_ledger(created=created, **WEB)
    scene.write_capture(received=received, run="may-1", host="log-1")
    theirs = list(bodies("0c" * 10, 8).values())
    scene.write_capture(theirs, listener="old", received=lambda unit: -1, run="april-30", host="log-2")
    run()
    page = read_page(scene)
    assert_contains(page.text, "april-30 of host log-2, listener old: 8 events")
    assert "1970" not in page.text and "1969" not in page.text


def test_repeated_ids_are_distinguished_by_bodies(scene: Scene, run: Run) -> None:
    """An application used the ids of two events of another producer."""
    theirs = {seq: files.body(None, f"forged {seq}", user=files.event_id(P, seq)) for seq in (1, 2)}
    theirs |= {seq: raw for seq, raw in bodies(Q, 6).items() if seq > 2}
    events = [(seq, created(seq), files.xxh64(raw)) for seq, raw in theirs.items()]
    lines: list[Any] = [files.open_line(Q) | WORKER, files.batch_line(events, own=[1, 2])]
    lines += [files.ids_line([(seq, files.event_id(P, seq)) for seq in (1, 2)])]
    lines += [files.outcome_line("acked", range(1, 7)), files.close_line(6)]
    files.write_part(scene.ledger, Q, 1, lines)
    scene.write_ledger(created=created, **WEB)
    # An event of each of the two is lost: 1 of the victim's, 2 of the application's.
    scene.write_capture([*range(2, 21), *(raw for seq, raw in theirs.items() if seq != 2)], received=received)
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    mine, forger = verdict.producers
    assert (mine.shared, mine.counts.lost, forger.shared, forger.counts.lost) == (2, 1, 2, 1)
    assert {(x["producer"], x["seq"]) for x in verdict.examples["lost"]} == {(P, 1), (Q, 2)}
    page = read_page(scene)
    alike = "2 with an id that another event has: identified by their bytes alone"
    assert_contains(producer_section(page, P), "host web-1, pid 4242", "1 lost", alike, "listener main")
    assert_contains(producer_section(page, Q), "host worker-7, pid 17", "1 lost", alike, "listener main")
