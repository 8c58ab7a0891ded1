"""The fuzz targets run their seeds in the normal build: the start of ``make fuzz``, in seconds."""

from __future__ import annotations

import re
from importlib.util import find_spec
from random import Random

import pytest

from tests import support

pytestmark = [pytest.mark.slow, pytest.mark.tree]
if find_spec("fuzz") is None:  # tests that run from a copy have none either
    pytest.skip("no fuzz targets beside these tests", allow_module_level=True)

from fuzz import build, lines, memory  # noqa: E402
from fuzz.target import ROOT, Plant, exact, load, names, pieces, seeds_of  # noqa: E402

PLANTS = [
    pytest.param(name, plant, id=f"{name}-{plant.name}") for name in names() for plant in load(name).PLANTS
]


@pytest.fixture(params=names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seeds(name: str) -> list[bytes]:
    if name.startswith("tls"):
        support.need("trustme")
    if name.startswith("websocket"):
        support.need("websockets")
    if name.startswith("logjam"):
        support.need("snappy")
        support.need("lz4.block")
    found = seeds_of(name)
    assert len(found) > 100
    return found


def test_targets_accept_their_seeds(name: str, seeds: list[bytes]) -> None:
    target = load(name)
    for seed in seeds:
        target.run(exact(seed))


def test_targets_accept_damaged_seeds(name: str, seeds: list[bytes]) -> None:
    """As the fuzzer makes them, but a few hundred and without guidance by coverage."""
    target, random = load(name), Random(7)
    for _ in range(300):
        data = bytearray(random.choice(seeds))
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(data) + 1)
            how = random.randrange(4)
            if how == 0 and at < len(data):
                data[at] ^= 1 << random.randrange(8)
            elif how == 1:
                del data[at : at + random.randint(1, 8)]
            elif how == 2:
                data[at:at] = random.choice(target.DICTIONARY)
            else:
                data[at:at] = data[at : at + random.randint(1, 20)]
        target.run(exact(bytes(data)))


def test_targets_accept_short_inputs(name: str) -> None:
    target = load(name)
    for size in range(8):
        target.run(exact(bytes(size)))
        target.run(exact(b"\xff" * size))


@pytest.mark.parametrize("name", ["logjam_replies", "logux_replies", "lumberjack_acks"])
def test_a_difference_from_the_reference_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their handling of answers: the rows of decoders are compared cell by cell."""
    target = load(name)
    if name == "logux_replies":
        monkeypatch.setattr(target.oracle.Target, "acknowledge", lambda self, ms, counter, now: False)
    else:
        kind, method = {"logjam_replies": ("Replies", "take"), "lumberjack_acks": ("Acks", "feed")}[name]
        monkeypatch.setattr(getattr(target.oracle, kind), method, lambda self, data: None)
    with pytest.raises(AssertionError):
        for seed in seeds_of(name):
            target.run(exact(seed))


@pytest.mark.parametrize(("name", "plant"), PLANTS)
def test_planted_bugs_still_apply(name: str, plant: Plant) -> None:
    text = (ROOT / plant.file).read_text()
    assert text.count(plant.old) == 1
    assert plant.old.count("\n") == plant.new.count("\n")
    assert plant.old != plant.new
    assert plant.new not in text


@pytest.mark.parametrize("file, old, new", build.CHANGES)
def test_changes_still_apply(file: str, old: str, new: str) -> None:
    assert (ROOT / file).read_text().count(old) == 1


def test_a_codec_has_at_least_three_planted_bugs() -> None:
    for name in names():
        assert len({plant.name for plant in load(name).PLANTS}) >= 3


def test_planted_bugs_are_only_in_fuzz() -> None:
    sources = (p for p in (ROOT / "_ext").rglob("*") if p.suffix in (".pyx", ".pxi", ".pxd", ".pyi", ".h"))
    for path in [ROOT / "setup.py", *sources]:
        assert not re.search(r"(?i)\bplant|\bfuzz", path.read_text()), path.name


REACHED = [
    (
        "logjam_decoder",
        {"read_message", "unpack_body", "inflate_more", "scan_object", "number_end", "read_id"},
    ),
    ("logjam_replies", {"client_receive", "next_reply", "take_reply", "outcome_add", "frames_shown"}),
    ("logux_decoder", {"scan_message", "take_element", "add_action", "number_end", "read_id", "xxh64_of"}),
    ("logux_replies", {"receive_message", "skip_meta", "take_id", "find", "settle", "take_undone"}),
    ("lumberjack_frames", {"decode_region", "scan_pairs"}),
    ("lumberjack_acks", {"writer_receive", "take_ack", "give_acked", "outcome_add"}),
    ("websocket_frames", {"take_payload", "take_close", "check_reason", "unpack", "pack", "add_close"}),
    ("tls_records", {"read", "write", "flush", "_fill", "_explain"}),
    (
        "records",
        {
            "_write_attributes",
            "_take_references",
            "_write_steps",
            "_write_step_in_python",
            "_clean_dict",
            "_merge_message_fields",
            "_ship_bytes",
        },
    ),
    ("ledger_lines", {"_batch", "_decided", "_read_ranges", "_append", "read_integer"}),
    ("plog_lines", {"lines_encode", "finish_body", "handing_took", "keep_hash", "keep_id"}),
    ("plog_datagrams", {"judge_part", "add_open", "make_room", "murmur3_of", "decode_body", "open"}),
]


@pytest.mark.parametrize(("name", "wanted"), REACHED)
def test_lines_reachable_from_a_target_are_found(name: str, wanted: set[str]) -> None:
    """They include the lines that read the bytes, and not the parts declared apart."""
    target = load(name)
    found = {f.name for f in lines.reachable(ROOT, target.EXTENSIONS, target.ROOTS, target.APART)}
    assert wanted <= found
    assert not found & {"client_encode", "writer_encode", "plog_encode", "encode_sync"}
    assert "python_inflate" not in found


def test_every_target_names_existing_roots(name: str) -> None:
    target = load(name)
    assert lines.reachable(ROOT, target.EXTENSIONS, target.ROOTS, target.APART)


def test_inputs_are_cut_into_pieces() -> None:
    view = memoryview(b"12345")
    assert [bytes(p) for p in pieces(view, 0)] == [b"12345"]
    assert [bytes(p) for p in pieces(view, 2)] == [b"12", b"34", b"5"]
    assert [bytes(p) for p in pieces(view[:0], 2)] == [b""]
    assert bytes(exact(b"ab")) == b"ab"
    assert len(exact(b"")) == 0


def test_allocations_fail_only_in_the_fuzz_build() -> None:
    assert not memory.CAN_FAIL
    memory.fail_at(1)
