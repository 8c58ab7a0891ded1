"""Recorded bytes: what go-lumber's client, pylogbeat and logstash-forwarder wrote, and what two servers did.

``lumberjack.json``: our writer writes what they wrote (but for compressed bytes and running numbers), our
reader takes what the server took and answers with its acks. ``lumberjack-edge.json``: writers that break
rules; ours does what one of the two servers does, or closes without an ack for what it did not keep.
"""

import functools
import json
import struct
import zlib
from typing import Any

import pytest

from logclient._ext.lumberjack import Hot, Reader, decode_acks, encode_ack
from tests import shared
from tests.batches import flight_of

READER_DELIBERATE: dict[str, str] = {}
EDGE_DELIBERATE = {
    "seq_all_same_7_x3": "one ack 7 instead of one for each event that has the number",
}


@functools.cache
def load(name: str) -> list[dict[str, Any]]:
    return json.loads(shared.shared_path("vectors").joinpath(name).read_text())


def cases(name: str) -> list[Any]:
    """The cases as parameters, or one that skips (or fails) when the file is not there."""
    try:
        found = load(name)
    except (Exception, pytest.skip.Exception, pytest.fail.Exception):
        return [pytest.param(None, id="missing")]
    return [
        pytest.param(case, id=f"{i}-{case['name']}-{case.get('server', 'edge')}")
        for i, case in enumerate(found)
    ]


def need(case: dict[str, Any] | None, name: str) -> dict[str, Any]:
    return case if case is not None else load(name)[0]


def normalised(data: bytes, *, running: bool = False) -> bytes:
    """A writer's bytes with compressed frames opened and, if asked, numbered from 1 in each window."""
    out, number = [], 0

    def walk(part: bytes) -> None:
        nonlocal number
        at = 0
        while at < len(part):
            kind = part[at + 1 : at + 2]
            if kind == b"W":
                number, size = 0, 6
            elif kind == b"C":
                (length,) = struct.unpack_from(">I", part, at + 2)
                out.append(part[at : at + 2] + b"....")
                walk(zlib.decompress(part[at + 6 : at + 6 + length]))
                at += 6 + length
                continue
            elif kind == b"J":
                size = 10 + struct.unpack_from(">I", part, at + 6)[0]
            else:
                (count,) = struct.unpack_from(">I", part, at + 6)
                size = 10
                for _ in range(2 * count):
                    size += 4 + struct.unpack_from(">I", part, at + size)[0]
            frame = part[at : at + size]
            if kind != b"W" and running:
                number += 1
                frame = frame[:2] + struct.pack(">I", number) + frame[6:]
            out.append(frame)
            at += size

    walk(data)
    return b"".join(out)


def events_of(frames: list[dict[str, Any]]) -> list[list[bytes]]:
    """The bodies of each window."""
    windows: list[list[bytes]] = []
    for frame in frames:
        if frame["t"] == "W":
            windows.append([])
        for one in frame.get("inner", [frame]):
            if one["t"] == "J":
                windows[-1].append(one["json"].encode())
            elif one["t"] == "D":
                texts = [text.encode() for pair in one["pairs"] for text in pair]
                windows[-1].append(
                    struct.pack(">I", len(one["pairs"]))
                    + b"".join(struct.pack(">I", len(t)) + t for t in texts)
                )
    return windows


def write(case: dict[str, Any]) -> bytes:
    """The same events by our writer, acknowledged as the server did."""
    frames = case["writer_frames"]
    compressed = any(f["t"] == "C" for f in frames)
    hot = Hot(bytes(10), version=int(frames[0]["v"]), identity=False, compression=3 if compressed else 0)
    hot.connected(0.0)
    sent = b""
    for bodies in events_of(frames):
        flight, batch = flight_of([(body, 1) for body in bodies])
        hot.encode(batch.capsule, len(bodies), 0.0)
        flight.encoded(batch)
        sent += b"".join(map(bytes, hot.buffers()))
        hot.sent()
        if hot.windows:
            assert hot.receive(encode_ack(int(frames[0]["v"]), len(bodies)), 0.0) == 0
        assert hot.windows == 0
    return sent


def by_a_client(case: dict[str, Any] | None) -> bool:
    """Hand-made cases are for readers: no writer was recorded."""
    return case is None or not case["name"].startswith("synthetic_")


class TestWriter:
    @pytest.mark.parametrize("case", [p for p in cases("lumberjack.json") if by_a_client(p.values[0])])
    def test_writes_the_same(self, case: dict[str, Any] | None) -> None:
        case = need(case, "lumberjack.json")
        recorded = bytes.fromhex(case["writer_hex"])
        # pylogbeat and logstash-forwarder number on over the connection, which hangs against go-lumber
        running = "running sequence" in case["client"]
        assert normalised(write(case)) == normalised(recorded, running=running)

    @pytest.mark.parametrize("name", ["synthetic_v1D_1_uncompressed", "synthetic_v1D_3_uncompressed"])
    def test_version_1_never_goes_uncompressed(self, name: str) -> None:
        """Logstash misreads such a frame when it comes in two reads: a compressed one it waits for."""
        case = next(c for c in load("lumberjack.json") if c["name"] == name)
        sent = write(case)
        assert sent[6:8] == b"1C"
        plain = normalised(sent)
        assert plain[:6] + plain[12:] == bytes.fromhex(case["writer_hex"])

    def test_an_empty_map_never_goes(self) -> None:
        """Logstash resets the connection over it."""
        case = next(c for c in load("lumberjack.json") if c["name"] == "synthetic_v1D_empty_map")
        assert write(case) == b""


def answer(reader: Reader, data: bytes) -> tuple[bytes, int]:
    """(acks, events kept) as a server on this reader gives them."""
    windows = reader.receive_data(data)
    return b"".join(encode_ack(x.version, x.ack) for x in windows), sum(map(len, windows))


class TestReader:
    @pytest.mark.parametrize("case", cases("lumberjack.json"))
    def test_answers_the_same(self, case: dict[str, Any] | None) -> None:
        case = need(case, "lumberjack.json")
        recorded = bytes.fromhex(case["writer_hex"])
        reader = Reader()
        acks, kept = answer(reader, recorded)
        others = [
            c["reader_hex"] for c in load("lumberjack.json")
            if c["name"] == case["name"] and c["writer_hex"] == case["writer_hex"]
        ]  # fmt: skip
        if case["client_result"] in ("EOF", "ConnectionResetError") and not acks:
            assert reader.error is not None
            assert kept == 0
        else:
            assert acks.hex() in others
            assert reader.error is None
            assert kept == sum(map(len, events_of(case["writer_frames"])))
            assert reader.pending == 0

    @pytest.mark.parametrize("case", cases("lumberjack.json"))
    def test_byte_by_byte(self, case: dict[str, Any] | None) -> None:
        recorded = bytes.fromhex(need(case, "lumberjack.json")["writer_hex"])
        whole, split = Reader(), Reader()
        acks = b"".join(answer(split, recorded[i : i + 1])[0] for i in range(len(recorded)))
        assert (acks, split.error is None) == (answer(whole, recorded)[0], whole.error is None)

    @pytest.mark.parametrize("case", cases("lumberjack.json"))
    def test_bodies_are_exact(self, case: dict[str, Any] | None) -> None:
        case = need(case, "lumberjack.json")
        windows = Reader().receive_data(bytes.fromhex(case["writer_hex"]))
        if windows and windows[0].unit != b"1W\0\0\0\0":
            assert [w.events for w in windows] == events_of(case["writer_frames"])


class TestEdge:
    @pytest.mark.parametrize("case", cases("lumberjack-edge.json"))
    def test_like_one_of_the_two_or_closed_without_a_lie(self, case: dict[str, Any] | None) -> None:
        case = need(case, "lumberjack-edge.json")
        reader = Reader()
        acks, kept = [], 0
        for chunk in case["writer_chunks_hex"]:
            some, events = answer(reader, bytes.fromhex(chunk))
            acks += decode_acks(some)
            kept += events
        if case["name"] in EDGE_DELIBERATE:
            return
        recorded = [case["logstash_beats"], case["go_lumber"]]
        same = any(
            acks == [(int(version), number) for version, number in one["acks"]]
            and (one["state"] == "open") == (reader.error is None)
            for one in recorded
        )
        # closed: every event that was acknowledged was kept, and nothing else was acknowledged
        safe = reader.error is not None and kept == sum(number for _, number in acks)
        assert same or safe, (acks, kept, reader.error, recorded)

    def test_what_differs_is_safer(self) -> None:
        """One ack for a window, so that a second one is never taken for the next window's."""
        case = next(c for c in load("lumberjack-edge.json") if c["name"] == "seq_all_same_7_x3")
        acks, kept = answer(Reader(), bytes.fromhex(case["writer_chunks_hex"][0]))
        assert decode_acks(acks) == [(2, 7)]
        assert kept == 3


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    found, edge = load("lumberjack.json"), load("lumberjack-edge.json")
    with capsys.disabled():
        print(
            f"\nvectors lumberjack.json: {len(found)} passed, {len(READER_DELIBERATE)} deliberate, 0 skipped "
            f"({sum(map(by_a_client, found))} of them writers'); lumberjack-edge.json: "
            f"{len(edge) - len(EDGE_DELIBERATE)} passed, {len(EDGE_DELIBERATE)} deliberate, 0 skipped"
        )
    assert len(READER_DELIBERATE) <= len(found) * 0.05
    assert len(EDGE_DELIBERATE) <= len(edge) * 0.05
