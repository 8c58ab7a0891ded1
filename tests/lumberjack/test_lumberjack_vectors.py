"""Recorded bytes of go-lumber's client, pylogbeat and logstash-forwarder, and the answers of two servers.

Sessions of clients: our writer writes the same bytes (except for compressed ones and running numbers), and
our reader accepts the same events and answers with the same acks. Invalid bytes: our reader does as one of
the two servers, or closes without an ack for an event that it did not keep.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from logclient._ext.lumberjack import Codec
from logclient.lumberjack.reader import Reader, encode_ack
from tests.lumberjack.frames import decode_acks
from tests.support import recordings
from tests.support.batches import inflight_of

pytestmark = pytest.mark.unit

SESSIONS = recordings.cases(recordings.LUMBERJACK)
EDGE = recordings.cases(recordings.LUMBERJACK_EDGE)


def each_case(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    ids = [f"{i}-{case['name']}-{case.get('server', 'edge')}" for i, case in enumerate(cases)]
    return pytest.mark.parametrize("case", cases, ids=ids)


def normalised(data: bytes, *, running: bool = False) -> bytes:
    """Open the compressed frames of a writer's bytes and, if asked, number from 1 in each window."""
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
    """Return the bodies of each window."""
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
    """Write the same events with our writer, acknowledged as the server did."""
    frames = case["writer_frames"]
    compressed = any(f["t"] == "C" for f in frames)
    codec = Codec(bytes(10), version=int(frames[0]["v"]), identity=False, compression=3 if compressed else 0)
    codec.connected(0.0)
    sent = b""
    for bodies in events_of(frames):
        in_flight, batch = inflight_of([(body, 1) for body in bodies])
        codec.encode(batch.capsule, len(bodies), 0.0)
        in_flight.encoded(batch)
        sent += codec.take_bytes()
        if codec.windows:
            assert codec.receive(encode_ack(int(frames[0]["v"]), len(bodies)), 0.0) == 0
        assert codec.windows == 0
    return sent


def is_of_a_client(case: dict[str, Any]) -> bool:
    """Return whether a real client wrote it; hand-made cases are for readers only."""
    return not case["client"].startswith("synthetic")


def is_plain_version_1(case: dict[str, Any]) -> bool:
    """Return whether it is one window of uncompressed events of version 1."""
    window, *events = case["writer_frames"]
    return (
        window["v"] + window["t"] == "1W"
        and len(events) > 0
        and all(frame["v"] + frame["t"] == "1D" and frame["pairs"] for frame in events)
    )


class TestWriter:
    @each_case(list(filter(is_of_a_client, SESSIONS)))
    def test_writer_equals_the_recorded_client(self, case: dict[str, Any]) -> None:
        recorded = bytes.fromhex(case["writer_hex"])
        # pylogbeat and logstash-forwarder number on over the connection, which hangs against go-lumber
        running = "running sequence" in case["client"]
        assert normalised(write(case)) == normalised(recorded, running=running)

    @each_case(list(filter(is_plain_version_1, SESSIONS)))
    def test_version_1_is_sent_compressed_only(self, case: dict[str, Any]) -> None:
        """Logstash misreads an uncompressed frame of version 1 that comes in two reads; it waits for a
        compressed one."""
        sent = write(case)
        assert sent[6:8] == b"1C"
        plain = normalised(sent)
        assert plain[:6] + plain[12:] == bytes.fromhex(case["writer_hex"])

    def test_empty_map_is_not_sent(self) -> None:
        """Logstash resets the connection over it."""
        assert write(recordings.example(recordings.LUMBERJACK, "synthetic_v1D_empty_map")) == b""


def answer(reader: Reader, data: bytes) -> tuple[bytes, int]:
    """Return (acks, number of events kept) as a server on this reader gives them."""
    windows = reader.receive_data(data)
    return b"".join(encode_ack(x.version, x.ack) for x in windows), sum(map(len, windows))


class TestReader:
    @each_case(SESSIONS)
    def test_reader_acknowledges_as_a_recorded_server(self, case: dict[str, Any]) -> None:
        recorded = bytes.fromhex(case["writer_hex"])
        reader = Reader()
        acks, kept = answer(reader, recorded)
        others = [
            c["reader_hex"] for c in SESSIONS
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

    @each_case(SESSIONS)
    def test_reading_bytewise_equals_reading_at_once(self, case: dict[str, Any]) -> None:
        recorded = bytes.fromhex(case["writer_hex"])
        whole, split = Reader(), Reader()
        acks = b"".join(answer(split, recorded[i : i + 1])[0] for i in range(len(recorded)))
        assert (acks, split.error is None) == (answer(whole, recorded)[0], whole.error is None)

    @each_case(SESSIONS)
    def test_recorded_bodies_are_read_unchanged(self, case: dict[str, Any]) -> None:
        windows = Reader().receive_data(bytes.fromhex(case["writer_hex"]))
        if windows and windows[0].unit != b"1W\0\0\0\0":
            assert [w.events for w in windows] == events_of(case["writer_frames"])


def classify(case: dict[str, Any]) -> str:
    """Classify what our reader makes of an edge case.

    Returns:
        ``same``: as one of the two servers. ``closed``: exactly the kept events were acknowledged.
        ``one ack``: one ack for a window where a server wrote one for each event with the window's last
        number. A second one could be taken for the next window's.

    Raises:
        AssertionError: It is none of these.
    """
    reader = Reader()
    acks, kept = [], 0
    for chunk in case["writer_chunks_hex"]:
        some, events = answer(reader, bytes.fromhex(chunk))
        acks += decode_acks(some)
        kept += events
    servers = [case["logstash_beats"], case["go_lumber"]]
    for server in servers:
        theirs = [(int(version), number) for version, number in server["acks"]]
        if (server["state"] == "open") != (reader.error is None):
            continue
        if acks == theirs:
            return "same"
        if acks == [ack for ack, _ in groupby(theirs)] and kept == server["events_delivered"]:
            return "one ack"
    assert reader.error is not None and kept == sum(number for _, number in acks), (acks, kept, servers)
    return "closed"


@each_case(EDGE)
def test_invalid_bytes_are_answered_as_by_a_real_server(case: dict[str, Any]) -> None:
    """Or the connection is closed without a false ack."""
    assert classify(case) in ("same", "one ack", "closed")


def test_window_of_equal_numbers_gets_one_ack() -> None:
    case = recordings.example(recordings.LUMBERJACK_EDGE, "seq_all_same_7_x3")
    acks, kept = answer(Reader(), bytes.fromhex(case["writer_chunks_hex"][0]))
    assert decode_acks(acks) == [(2, 7)]
    assert kept == 3


def client(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda case: case["client"].startswith(name)


def server(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda case: case["server"].startswith(name)


def writes(frame: str) -> Callable[[dict[str, Any]], bool]:
    """Return a predicate: the writer wrote a frame of this version and type."""
    return lambda case: any(f["v"] + f["t"] == frame for f in case["writer_frames"])


KINDS: recordings.Kinds = {
    "go-lumber's client": client("go-lumber"),
    "pylogbeat": client("pylogbeat"),
    "logstash-forwarder": client("logstash-forwarder"),
    "bytes made by hand": client("synthetic"),
    "go-lumber's server": server("go-lumber"),
    "the Beats input": server("logstash-input-beats"),
    "version 1, uncompressed": is_plain_version_1,
    "version 1, compressed": writes("1C"),
    "version 2, uncompressed": writes("2J"),
    "version 2, compressed": writes("2C"),
    "several windows on one connection": lambda case: len(events_of(case["writer_frames"])) > 1,
    "a server that closes": lambda case: case["client_result"] in ("EOF", "ConnectionResetError"),
}
EDGE_KINDS: recordings.Kinds = {
    "several writes": lambda case: len(case["writer_chunks_hex"]) > 1,
    "servers that differ": lambda case: case["logstash_beats"]["acks"] != case["go_lumber"]["acks"],
    "no server that acknowledges": lambda case: (
        not case["logstash_beats"]["acks"] and not case["go_lumber"]["acks"]
    ),
}


def test_recordings_cover_every_kind_of_session(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = Counter(map(classify, EDGE))
    deliberate = outcomes["one ack"]
    recordings.assert_replayed("Lumberjack, sessions", SESSIONS, SESSIONS, KINDS)
    recordings.assert_replayed("Lumberjack, edge", EDGE, EDGE, EDGE_KINDS, deliberate=deliberate)
    assert any(map(is_of_a_client, SESSIONS)) or not SESSIONS
    with capsys.disabled():
        print()
        print(recordings.summary("Lumberjack, sessions", SESSIONS, SESSIONS, KINDS))
        print(f"{sum(map(is_of_a_client, SESSIONS))} of them by a client, for our writer")
        print(recordings.summary("Lumberjack, edge", EDGE, EDGE, EDGE_KINDS, deliberate=deliberate))
        print("of them", ", ".join(f"{n} {done}" for done, n in sorted(outcomes.items())))
