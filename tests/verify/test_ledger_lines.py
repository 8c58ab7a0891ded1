"""The compiled reader of ledger lines, and base64, against the reference; lines in other forms."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient._ext import ledger
from tests import support
from tests.oracle import ledger as oracle
from tests.support import verify_files as files
from tests.support.examples import examples
from tests.support.patience import PATIENCE

np = support.need("numpy")
selection = pytest.importorskip("logclient.evidence.selection")
ledger_files = pytest.importorskip("logclient.evidence.ledger_files")
ledger_merge = pytest.importorskip("logclient.verify.ledger_merge")
ledger_lines = pytest.importorskip("logclient.verify.ledger_lines")

P = "0a" * 10
DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


# -- lines


LAST = (1 << 48) - 1
small = st.integers(1, 40)
sequences = small | st.sampled_from([0, LAST - 1, LAST, LAST + 1, 10**18 - 1, 10**18])
times = st.integers(900, 1100) | st.sampled_from([0, -1, 10**18 - 1, -(10**18) + 1, 10**18, 1 << 60])
reasons = st.sampled_from(["", "refused", "full", "refused twice", "not known"])
rising = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=4).flatmap(
    lambda steps: small.map(lambda first: _ranges(first, steps))
)
any_ranges = rising | st.lists(st.tuples(sequences, sequences).map(list), max_size=3)


def _ranges(first: int, steps: list[tuple[int, int]]) -> list[list[int]]:
    """Return ranges with so many sequences between them and in them."""
    found = []
    for gap, size in steps:
        found.append([first + gap, first + gap + size])
        first += gap + size + 1
    return found


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    seqs = draw(rising)
    n = sum(last - first + 1 for first, last in seqs)
    near = st.integers(-20, 20) | st.sampled_from([-(1 << 31), (1 << 31) - 1])
    deltas = draw(st.lists(near, min_size=n, max_size=n))
    made = {
        "t": "batch",
        "seqs": seqs,
        "n": n,
        "base": draw(times),
        "created": base64.b64encode(np.array(deltas, "<i4").tobytes()).decode(),
        "hashes": base64.b64encode(draw(st.binary(min_size=8 * n, max_size=8 * n))).decode(),
    }
    name = draw(st.sampled_from([None] * 8 + ["seqs", "n"]))
    if name:
        made[name] = draw(any_ranges if name == "seqs" else st.integers(-1, 40))
    return made


outcomes = st.fixed_dictionaries(
    {
        "t": st.just("outcome"),
        "at_us": times,
        "status": st.sampled_from(["acked", "handed", "failed", "dropped"]),
        "reason": reasons,
        "seqs": any_ranges,
    }
)
dropped = st.fixed_dictionaries(
    {"t": st.just("dropped"), "at_us": times, "reason": reasons, "seqs": any_ranges}
)
others = st.just({"t": "stopped", "reason": "disk full"})


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Draw some lines. Some bytes of some of them are changed, removed or added."""
    text = b""
    for made in draw(st.lists(batches() | outcomes | dropped | others, max_size=6)):
        line = json.dumps(made, separators=(",", ":")).encode() + b"\n"
        if draw(st.integers(0, 5)) == 0:
            at = draw(st.integers(0, len(line) - 1))
            new = draw(st.sampled_from([b"", *(bytes([b]) for b in b'"\\,[]{}0-1:=/\n \xff')]))
            line = line[:at] + new + line[at + draw(st.integers(0, 1)) :]
        text += line
    return text


def rows_of(table: Any, columns: int) -> list[list[int]]:
    found: list[list[int]] = np.frombuffer(table.rows(), np.int64).reshape(-1, columns).tolist()
    assert len(table) == len(found)
    return found


def compare(ours: Any, theirs: oracle.LineReader) -> None:
    """Compare everything that two readers have read."""
    for name, columns in (("spans", 4), ("outcomes", 5), ("drops", 3), ("when", 4)):
        assert rows_of(getattr(ours, name), columns) == getattr(theirs, name), name
    assert (ours.index, ours.lines, ours.last) == (theirs.index, theirs.lines, theirs.last)
    assert ours.position == theirs.position
    if theirs.times:
        assert ours.begin_us == min(theirs.times)
    if theirs.selected:
        assert (ours.first_us, ours.last_us) == (min(theirs.selected), max(theirs.selected))
    else:
        assert ours.first_us > ours.last_us


@pytest.mark.parametrize(("end_us", "late"), [(999, True), (1000, True), (1001, False)])
def test_an_outcome_in_the_microsecond_of_the_end_is_late(end_us: int, late: bool) -> None:
    reader = ledger.LineReader(None, None)
    reader.know(b"", 0)
    reader.begin_file(0)
    reader.end_us = end_us
    line = b'{"t":"outcome","at_us":1000,"status":"acked","reason":"","seqs":[[1,1]]}\n'
    assert reader.read(line, 0, len(line), np.zeros(1, np.uint64), np.zeros(1, np.int64)) == len(line)
    assert rows_of(reader.outcomes, 5) == [[0, 1, 1, 4 + 8 * late, 0]]


bounds = st.none() | st.integers(900, 1100)


@examples(300)
@given(st.lists(texts(), min_size=1, max_size=3), bounds, bounds, bounds, st.integers(0, 200), st.data())
def test_lines_equal_the_reference(
    parts: list[bytes],
    since_us: int | None,
    until_us: int | None,
    end_us: int | None,
    room: int,
    draw: st.DataObject,
) -> None:
    ours, theirs = ledger.LineReader(since_us, until_us), oracle.LineReader(since_us, until_us)
    hashes, created = np.zeros(room, np.uint64), np.zeros(room, np.int64)
    for reader in (ours, theirs):
        reader.know(b"", 0)
        reader.know(b"refused", 3)
        reader.know(b"full", 1)
    for index, data in enumerate(parts):
        for reader in (ours, theirs):
            reader.begin_file(index)
            if end_us is not None:
                reader.end_us = end_us
        stop = draw.draw(st.just(len(data)) | st.integers(0, len(data)))
        start = 0
        while start < stop:
            end = ours.read(data, start, stop, hashes, created)
            assert end == theirs.read(data, start, stop, room)
            assert (hashes[: ours.events].tolist(), created[: ours.events].tolist()) == (
                theirs.hashes, theirs.created,
            )  # fmt: skip
            compare(ours, theirs)
            start = data.find(b"\n", end) + 1 or stop


@pytest.mark.parametrize(
    ("seqs", "read"),
    [
        ([[1, 3], [4, 4]], True),
        ([[LAST, LAST]], True),
        ([[1, 3], [3, 4]], False),
        ([[5, 6], [1, 2]], False),
        ([[2, 1]], False),
        ([[0, 1]], False),
        ([[-1, 1]], False),
        ([[LAST, LAST + 1]], False),
        ([], False),
    ],
)
def test_only_ranges_that_rise_are_read(seqs: list[list[int]], read: bool) -> None:
    line = files.encode_line({**files.outcome_line("acked", [1]), "seqs": seqs})
    reader, reference = ledger.LineReader(), oracle.LineReader()
    for one in (reader, reference):
        one.begin_file(0)
        one.know(b"", 0)
    end = len(line) if read else 0
    assert reader.read(line, 0, len(line), np.zeros(1, np.uint64), np.zeros(1, np.int64)) == end
    assert reference.read(line, 0, len(line), 1) == end
    assert rows_of(reader.outcomes, 5) == reference.outcomes


def read_all(reader: Any, *lines: dict[str, Any]) -> None:
    """Read these lines of the first file."""
    data = b"".join(map(files.encode_line, lines))
    reader.begin_file(0)
    reader.know(b"", 0)
    reader.know(b"overflow", 1)
    room = np.zeros(100, np.uint64), np.zeros(100, np.int64)
    assert reader.read(data, 0, len(data), *room) == len(data)


def test_selected_time_begins_with_since_and_ends_before_until() -> None:
    reader = ledger.LineReader(1000, 2000)
    times = [999, 1000, 1999, 2000]
    read_all(reader, *(files.batch_line([(2 * i + 1, at, 0)]) for i, at in enumerate(times)))
    assert rows_of(reader.when, 4) == [[0, 1, 1, -1], [0, 3, 3, 0], [0, 5, 5, 0], [0, 7, 7, 1]]
    assert (reader.first_us, reader.last_us) == (1000, 1999)
    reader = ledger.LineReader(1000, 2000)
    read_all(reader, *(files.dropped_line([i], at) for i, at in enumerate(times, 1)))
    assert rows_of(reader.drops, 3) == [[0, 1000, 1], [0, 1999, 1]]


def test_only_adjacent_ranges_of_the_same_outcome_are_joined() -> None:
    reader = ledger.LineReader()
    words = ["acked", "acked", "handed"]
    read_all(reader, *(files.outcome_line(word, [i]) for i, word in enumerate(words, 1)))
    assert [row[1:3] for row in rows_of(reader.outcomes, 5)] == [[1, 2], [3, 3]]


def test_last_sequence_is_the_highest_of_all_lines() -> None:
    lower = [files.batch_line([(2, 1000, 0)]), files.outcome_line("acked", [2]), files.dropped_line([2])]
    for line in lower:
        reader = ledger.LineReader()
        read_all(reader, files.outcome_line("acked", [9]), line)
        assert reader.last == 9


@pytest.mark.parametrize(
    "seqs",
    ["[[1,1][2,2]]", "[[1,1],]", "[,[1,1]]", "[[1,1]", "[1,1]", "[[1, 1]]", "[[01,1]]", "[[1]]", "[[-0,1]]"],
)
def test_ranges_in_another_form_are_not_read(seqs: str) -> None:
    line = files.encode_line(files.outcome_line("acked", [1])).replace(b"[[1,1]]", seqs.encode())
    reader, reference = ledger.LineReader(), oracle.LineReader()
    for one in (reader, reference):
        one.begin_file(0)
        one.know(b"", 0)
    assert reader.read(line, 0, len(line), np.zeros(1, np.uint64), np.zeros(1, np.int64)) == 0
    assert reference.read(line, 0, len(line), 1) == 0


@pytest.mark.parametrize(
    "line",
    [
        files.batch_line([(7, 1000, 5), (8, 1002, 1 << 60), (10, 999, 0)]),
        {**files.outcome_line("failed", [1, 2, 5]), "reason": "full"},
        {**files.dropped_line([10, 12]), "reason": "full"},
    ],
)
def test_each_change_of_a_byte_is_read_as_the_reference_does(line: dict[str, Any]) -> None:
    text = files.encode_line(line)
    hashes, created = np.zeros(3, np.uint64), np.zeros(3, np.int64)
    read = 0
    for at in range(len(text)):
        for new in (b"", *(bytes([byte]) for byte in b'"\\,[]{}0-19:=/A \n\xff')):
            changed = text[:at] + new + text[at + 1 :]
            ours, theirs = ledger.LineReader(), oracle.LineReader()
            for reader in (ours, theirs):
                reader.begin_file(0)
                reader.know(b"full", 1)
            end = ours.read(changed, 0, len(changed), hashes, created)
            assert end == theirs.read(changed, 0, len(changed), 3), changed
            compare(ours, theirs)
            read += end > 0
    assert read  # another character of base64, or another digit


def test_each_character_at_each_place_is_decoded_or_refused() -> None:
    text = "AbCd" * 24
    line = {"t": "batch", "seqs": [[1, 9]], "n": 9, "base": 1, "created": "AQAAAA" * 8, "hashes": text}
    head, tail = files.encode_line(line).split(text.encode())
    hashes, created = np.zeros(9, np.uint64), np.zeros(9, np.int64)
    for place in range(len(text)):
        for character in range(256):
            changed = bytes([*text[:place].encode(), character, *text[place + 1 :].encode()])
            expected = oracle.unbase64(changed, 72)
            reader = ledger.LineReader()
            reader.begin_file(0)
            whole = head + changed + tail
            assert reader.read(whole, 0, len(whole), hashes, created) == (
                0 if expected is None else len(whole)
            )
            assert expected is None or hashes.tobytes() == expected


def test_large_batches_equal_the_reference() -> None:
    """Batches of more events than are decoded at a time."""
    ours, theirs = ledger.LineReader(), oracle.LineReader()
    made = [(seq, 10**15 + seq * 7919 % 100_003, seq * 0x9E3779B97F4A7C15 % 2**64) for seq in range(1, 6000)]
    sizes = (766, 767, 768, 769, 776, 1536, 1, 7, 8, 9)
    data = b""
    low = 0
    for size in sizes:
        data += files.encode_line(files.batch_line(made[low : low + size]))
        low += size
    hashes, created = np.zeros(low, np.uint64), np.zeros(low, np.int64)
    for reader in (ours, theirs):
        reader.begin_file(0)
    assert ours.read(data, 0, len(data), hashes, created) == theirs.read(data, 0, len(data), low) == len(data)
    assert (hashes.tolist(), created.tolist()) == (theirs.hashes, theirs.created)
    compare(ours, theirs)


def test_only_so_many_reasons_are_known() -> None:
    reader = ledger.LineReader()
    nothing = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    reader.begin_file(0)
    for number in range(70):
        reader.know(b"r%d" % number, number)
    for number in (0, 63, 64, 69):
        line = files.encode_line({**files.outcome_line("failed", [5]), "reason": f"r{number}"})
        assert reader.read(line, 0, len(line), *nothing) == (len(line) if number < 64 else 0)
    reader.begin_file(1)
    line = files.encode_line({**files.outcome_line("failed", [5]), "reason": "r0"})
    assert reader.read(line, 0, len(line), *nothing) == len(line)


def test_callers_mistakes_are_errors() -> None:
    reader = ledger.LineReader()
    hashes, created = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    for start, stop in ((-1, 2), (2, 1), (0, 4)):
        with pytest.raises(ValueError, match="not inside 3 bytes"):
            reader.read(b"abc", start, stop, hashes, created)
    assert reader.read(b"", 0, 0, hashes, created) == 0
    with pytest.raises(ValueError, match="6 columns"):
        ledger.Table(6)
    with pytest.raises(ValueError, match="tags 1"):
        ledger.Table(3, 1)
    table = ledger.Table(3)
    with pytest.raises(ValueError, match="2 columns, this table has 3"):
        table.append(1, 2)
    with pytest.raises(OverflowError):
        table.append(1, 2, 1 << 63)
    assert len(table) == 0


# -- whole files


def read(tmp_path: Path, data: bytes, **selected: Any) -> dict[str, Any]:
    """Read one file; everything that is found, but for its size."""
    folder = tmp_path / "ledger"
    folder.mkdir(exist_ok=True)
    (folder / f"{P}-0001.ledger").write_bytes(data)
    parts = ledger_files.find_ledgers([str(folder)]).parts
    found = ledger_lines.survey(parts, selection.Selection(**selected))
    said = found.pop("facts")
    [stated] = said.pop("files")
    facts = {**ledger_lines.UNSTATED, **stated}
    assert facts.pop("size") == len(data)
    if facts["closed"]:
        facts["closed"].pop("before")
    pieces = [*ledger_lines.events(parts, 7)]
    assert all(len(hashes) == len(created) >= 7 for hashes, created in pieces[:-1])
    found["hashes"], found["created"] = map(np.concatenate, zip(*pieces, strict=True)) if pieces else ([], [])
    return {**{name: np.asarray(table).tolist() for name, table in found.items()}, **said, **facts}


def events(*seqs: int) -> list[tuple[int, int, int]]:
    return [(seq, 1000 + seq, seq * 11) for seq in seqs]


LINES = [
    files.open_line(P),
    files.batch_line(events(1, 2, 3, 7)),
    files.batch_line(events(8, 9), own=[9]),
    files.ids_line([(9, "mine")]),
    files.outcome_line("acked", [1, 2]),
    {**files.outcome_line("failed", [3]), "reason": "refused"},
    {**files.outcome_line("failed", [7]), "reason": "refused"},
    {**files.outcome_line("failed", [8]), "reason": 'of "another" kind'},
    {**files.outcome_line("failed", [9]), "reason": 'of "another" kind'},
    {**files.outcome_line("handed", [9]), "reason": "x" * 201},
    files.dropped_line([4, 5]),
    {**files.dropped_line([6]), "at_us": 1003},
    {**files.batch_line(events(10)), "hashes": "damage"},
    files.deferred_line([3]),
    files.batch_line(events(*range(11, 40))),
    *({**files.outcome_line("failed", [seq]), "reason": f"reason {seq % 270}"} for seq in range(11, 320)),
    {"t": "stopped", "reason": "disk full"},
    files.close_line(40, acked=2),
]  # fmt: skip


@pytest.mark.parametrize(
    "selected", [{}, {"since_us": 1003}, {"until_us": 1003}, {"since_us": 1002, "until_us": 1015}]
)
@pytest.mark.parametrize("lines", [LINES, LINES[:-1]])
def test_lines_with_spaces_say_the_same(
    tmp_path: Path, lines: list[dict[str, Any]], selected: dict[str, int]
) -> None:
    """Lines with spaces are read as JSON."""
    usual = read(tmp_path, b"".join(map(files.encode_line, lines)), **selected)
    spaced = read(tmp_path, b"".join(json.dumps(line).encode() + b"\n" for line in lines), **selected)
    assert usual == spaced
    assert usual["holes"] == 1
    assert len(usual["reasons"]) == ledger_lines.MAX_REASONS + 1


def test_reasons_of_several_tasks_are_merged(tmp_path: Path) -> None:
    """A task numbers reasons in the order of its lines."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    names = [f"{number:020x}" for number in range(3)]
    for name, order in zip(names, ("ab", "ba", "b"), strict=True):
        lines = [files.open_line(name), files.batch_line(events(1, 2))]
        lines += [files.outcome_line("failed", [seq], reason) for seq, reason in enumerate(order, 1)]
        files.write_part(folder, name, 1, lines)
    parts = ledger_files.find_ledgers([str(folder)]).parts
    merged = ledger_merge.merge([ledger_lines.survey(some) for some in (parts[:1], parts[1:])], 18)
    found = [[merged.reason(p, 1), merged.reason(p, 2)] for p in range(3)]
    assert found == [["a", "b"], ["b", "a"], ["b", ""]]


def test_usual_line_after_the_close_reopens_the_ledger(tmp_path: Path) -> None:
    lines = [files.open_line(P), files.close_line(0, acked=0)]
    assert read(tmp_path, b"".join(map(files.encode_line, lines)))["closed"]
    lines.append(files.batch_line(events(1)))
    assert not read(tmp_path, b"".join(map(files.encode_line, lines)))["closed"]


@pytest.mark.parametrize("size", [150, 151, 152, 400, 1 << 20])
def test_lines_may_be_longer_than_what_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    data = b"".join(map(files.encode_line, LINES)) + b'{"t":"bat'
    expected = read(tmp_path, data)
    assert (expected["last"], expected["holes"], expected["torn"]) == (319, 1, True)
    monkeypatch.setattr(ledger_lines, "READ_BYTES", size)
    assert read(tmp_path, data) == expected


@pytest.mark.parametrize("size", [64, 100, 1 << 20])
@pytest.mark.parametrize("more", [0, 1, 99, 100, 101, 1000])
def test_too_long_line_is_damage_and_the_next_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, more: int
) -> None:
    """A line counts with its newline."""
    first, last = files.encode_line(files.open_line(P)), files.encode_line(files.batch_line(events(1)))
    most = len(first)
    assert most > len(last)
    monkeypatch.setattr(ledger_lines, "READ_BYTES", size)
    monkeypatch.setattr(ledger_lines, "MAX_LINE", most)
    line = b'{"t":"later","x":"%s"}\n'
    line %= b"x" * (most - len(line) + 2 + more)
    assert len(line) == most + more
    found = read(tmp_path, first + last + line + last)
    problem = f"{P}-0001.ledger line 3: longer than {most} bytes"
    assert found["problems"] == ([problem] if more else [])
    assert (found["spans"], found["torn"]) == ([[0, 1, 1, 0], [0, 1, 1, 1]], False)
    # Without its newline it is as long as allowed, or longer.
    found = read(tmp_path, first + last + line[:-1])
    assert (found["holes"], found["torn"]) == ((1, False) if more else (0, True))


def test_file_that_became_shorter_ends_torn(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    path = files.write_part(folder, P, 1, [files.open_line(P), files.batch_line(events(1))])
    parts = ledger_files.find_ledgers([str(folder)]).parts
    size = path.stat().st_size
    os.truncate(path, size - 10)
    found = ledger_lines.survey(parts)
    [stated] = found["facts"]["files"]
    facts = {**ledger_lines.UNSTATED, **stated}
    assert (facts["torn"], facts["size"], len(found["spans"])) == (True, size, 0)


def test_a_reader_is_for_one_thread_at_a_time() -> None:
    line = b'{"t":"outcome","at_us":1,"status":"acked","reason":"","seqs":[[1,1]]}\n'
    data, hashes, created = line * 200_000, np.zeros(0, np.uint64), np.zeros(0, np.int64)
    refusals: list[str] = []

    def read(text: bytes) -> None:
        try:
            reader.read(text, 0, len(text), hashes, created)
        except RuntimeError as error:
            refusals.append(str(error))

    end = time.monotonic() + PATIENCE
    while not refusals and time.monotonic() < end:
        reader = ledger.LineReader(None, None)
        reader.know(b"", 0)
        reader.begin_file(0)
        thread = threading.Thread(target=read, args=[data])
        thread.start()
        while thread.is_alive() and not refusals:
            read(line)
        thread.join()
    assert refusals[0] == "another thread uses this reader"
