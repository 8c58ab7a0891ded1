"""Recorded bytes: what go-lumber's client, pylogbeat and logstash-forwarder wrote, and what two servers did.

Sessions of clients: our writer writes what they wrote (but for compressed bytes and running numbers), our
reader takes what the server took and answers with its acks. Bytes that break rules: ours does what one of the
two servers does, or closes without an ack for what it did not keep.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from logclient._ext.lumberjack import Codec, Reader, decode_acks, encode_ack
from tests.support import recordings
from tests.support.batches import inflight_of

pytestmark = pytest.mark.unit

SESSIONS = recordings.cases(recordings.LUMBERJACK)
EDGE = recordings.cases(recordings.LUMBERJACK_EDGE)


def each(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    ids = [f"{i}-{case['name']}-{case.get('server', 'edge')}" for i, case in enumerate(cases)]
    return pytest.mark.parametrize("case", cases, ids=ids)


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
    codec = Codec(bytes(10), version=int(frames[0]["v"]), identity=False, compression=3 if compressed else 0)
    codec.connected(0.0)
    sent = b""
    for bodies in events_of(frames):
        in_flight, batch = inflight_of([(body, 1) for body in bodies])
        codec.encode(batch.capsule, len(bodies), 0.0)
        in_flight.encoded(batch)
        sent += b"".join(map(bytes, codec.buffers()))
        codec.sent()
        if codec.windows:
            assert codec.receive(encode_ack(int(frames[0]["v"]), len(bodies)), 0.0) == 0
        assert codec.windows == 0
    return sent


def by_a_client(case: dict[str, Any]) -> bool:
    """Hand-made cases are for readers: no writer was recorded."""
    return not case["client"].startswith("synthetic")


def bare(case: dict[str, Any]) -> bool:
    """Events of version 1, uncompressed, in one window of version 1."""
    window, *events = case["writer_frames"]
    return (
        window["v"] + window["t"] == "1W"
        and len(events) > 0
        and all(frame["v"] + frame["t"] == "1D" and frame["pairs"] for frame in events)
    )


class TestWriter:
    @each(list(filter(by_a_client, SESSIONS)))
    def test_writes_the_same(self, case: dict[str, Any]) -> None:
        recorded = bytes.fromhex(case["writer_hex"])
        # pylogbeat and logstash-forwarder number on over the connection, which hangs against go-lumber
        running = "running sequence" in case["client"]
        assert normalised(write(case)) == normalised(recorded, running=running)

    @each(list(filter(bare, SESSIONS)))
    def test_version_1_never_goes_uncompressed(self, case: dict[str, Any]) -> None:
        """Logstash misreads such a frame when it comes in two reads: a compressed one it waits for."""
        sent = write(case)
        assert sent[6:8] == b"1C"
        plain = normalised(sent)
        assert plain[:6] + plain[12:] == bytes.fromhex(case["writer_hex"])

    def test_an_empty_map_never_goes(self) -> None:
        """Logstash resets the connection over it."""
        assert write(recordings.example(recordings.LUMBERJACK, "synthetic_v1D_empty_map")) == b""


def answer(reader: Reader, data: bytes) -> tuple[bytes, int]:
    """(acks, events kept) as a server on this reader gives them."""
    windows = reader.receive_data(data)
    return b"".join(encode_ack(x.version, x.ack) for x in windows), sum(map(len, windows))


class TestReader:
    @each(SESSIONS)
    def test_answers_the_same(self, case: dict[str, Any]) -> None:
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

    @each(SESSIONS)
    def test_byte_by_byte(self, case: dict[str, Any]) -> None:
        recorded = bytes.fromhex(case["writer_hex"])
        whole, split = Reader(), Reader()
        acks = b"".join(answer(split, recorded[i : i + 1])[0] for i in range(len(recorded)))
        assert (acks, split.error is None) == (answer(whole, recorded)[0], whole.error is None)

    @each(SESSIONS)
    def test_bodies_are_exact(self, case: dict[str, Any]) -> None:
        windows = Reader().receive_data(bytes.fromhex(case["writer_hex"]))
        if windows and windows[0].unit != b"1W\0\0\0\0":
            assert [w.events for w in windows] == events_of(case["writer_frames"])


def outcome(case: dict[str, Any]) -> str:
    """What our reader makes of an edge case.

    Returns:
        ``same``: what one of the two servers did. ``closed``: every event that was acknowledged was kept, and
        nothing else was acknowledged. ``one ack``: one ack for a window where a server wrote one for each
        event that has the window's last number, so that a second one is never taken for the next window's.

    Raises:
        AssertionError: None of these.
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


@each(EDGE)
def test_edge(case: dict[str, Any]) -> None:
    """Like one of the two servers, or closed without a false ack."""
    assert outcome(case)


def test_one_ack_is_safer() -> None:
    case = recordings.example(recordings.LUMBERJACK_EDGE, "seq_all_same_7_x3")
    acks, kept = answer(Reader(), bytes.fromhex(case["writer_chunks_hex"][0]))
    assert decode_acks(acks) == [(2, 7)]
    assert kept == 3


def client(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda case: case["client"].startswith(name)


def server(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda case: case["server"].startswith(name)


def writes(frame: str) -> Callable[[dict[str, Any]], bool]:
    """Whether the writer wrote a frame of this version and type."""
    return lambda case: any(f["v"] + f["t"] == frame for f in case["writer_frames"])


KINDS: recordings.Kinds = {
    "go-lumber's client": client("go-lumber"),
    "pylogbeat": client("pylogbeat"),
    "logstash-forwarder": client("logstash-forwarder"),
    "bytes made by hand": client("synthetic"),
    "go-lumber's server": server("go-lumber"),
    "the Beats input": server("logstash-input-beats"),
    "version 1, uncompressed": bare,
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


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = Counter(map(outcome, EDGE))
    deliberate = outcomes["one ack"]
    lacks = recordings.lacking(SESSIONS, KINDS)
    edge_lacks = recordings.lacking(EDGE, EDGE_KINDS)
    with capsys.disabled():
        print()
        print(recordings.summary("Lumberjack, sessions", len(SESSIONS), lacks=lacks))
        print(f"{sum(map(by_a_client, SESSIONS))} of them by a client, for our writer")
        passed = len(EDGE) - deliberate
        print(recordings.summary("Lumberjack, edge", passed, deliberate=deliberate, lacks=edge_lacks))
        print("of them", ", ".join(f"{n} {done}" for done, n in sorted(outcomes.items())))
