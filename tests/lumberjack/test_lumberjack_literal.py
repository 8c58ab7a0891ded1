"""Lumberjack as the text of its protocol has it (``strict_spec``): vectors, properties, both ends together.

The vectors are our own. ``tests/vectors/make_lumberjack_literal.py`` makes them and states what is expected.
Each is compared with the compiled code and with the reference in plain Python.
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from array import array
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logclient
from logclient import cli
from logclient._ext.hash import xxh64
from logclient._ext.lumberjack import TORN, Codec, Decoder
from logclient.config.parsing import parse
from logclient.errors import ConfigError, ExitCode
from logclient.evidence.frames.lumberjack import expand, frames
from logclient.files.capture import CaptureReader
from logclient.lumberjack.reader import Reader, Window, encode_ack
from logclient.testing.lumberjack import Collector, decode
from tests.lumberjack.frames import decode_acks, mutated
from tests.oracle import lumberjack as oracle
from tests.support.batches import inflight_of
from tests.support.lumberjack_inputs import near_objects, pair_block
from tests.support.patience import PATIENCE
from tests.support.processes import CollectorProcess
from tests.vectors import make_lumberjack_literal as made
from tests.vectors.make_lumberjack_literal import a, c, d, j, pairs, w

PRODUCER = bytes(10)
LAST = made.LAST
CASES: list[dict[str, Any]] = json.loads(made.FILE.read_text())


def cases_of(direction: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in CASES if case["direction"] == direction]


def as_read(window: Window) -> oracle.Read:
    return oracle.Read(window.version, window.ack, window.unit, window.events, window.sequences, window.types)


def opened(data: bytes) -> bytes:
    """Replace each compressed frame by its content: compressors differ in their output."""
    out, at = b"", 0
    while at < len(data):
        kind = data[at + 1 : at + 2]
        size = 6
        if kind == b"C":
            size += struct.unpack_from(">I", data, at + 2)[0]
            out += data[at : at + 2] + b"(" + opened(zlib.decompress(data[at + 6 : at + size])) + b")"
        elif kind == b"J":
            size = 10 + struct.unpack_from(">I", data, at + 6)[0]
        elif kind == b"D":
            size = oracle.one_frame(data[at:], 1, oracle.Limits())[0]
        out += data[at : at + size] if kind != b"C" else b""
        at += size
    return out


def wire(codec: Codec) -> bytes:
    return codec.take_bytes()


def acked_by(codec: Codec) -> list[int]:
    return [seq for first, last, *_ in codec.outcomes()[0] for seq in range(first, last + 1)]


class TestVectors:
    def test_vector_file_equals_what_its_source_makes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert made.FILE.read_text() == made.text()
        there, back = len(cases_of("to collector")), len(cases_of("to client"))
        with capsys.disabled():
            print(f"\nvectors lumberjack_literal.json: {there} to the collector, {back} to the client")
        assert min(there, back) >= 20
        assert len({case["name"] for case in CASES}) == len(CASES)

    @pytest.mark.parametrize("case", cases_of("to collector"))
    def test_reader_equals_vectors_and_reference(self, case: dict[str, Any]) -> None:
        reader, reference = Reader(strict_spec=True), oracle.LiteralReader()
        taken = []
        for step in case["steps"]:
            data = bytes.fromhex(step["receive"])
            windows = reader.receive_data(data)
            assert list(map(as_read, windows)) == reference.feed(data)
            assert [window.ack for window in windows] == step["acks"]
            for window in windows if case["acknowledge"] else []:
                reader.acknowledge(len(window))
                reference.acknowledge(len(window))
            taken += [
                [k, e.hex()] for window in windows for k, e in zip(window.types, window.events, strict=True)
            ]
        assert taken == case["events"]
        if case["end"]:
            assert (reader.error, reference.broken) == (None, False)
            assert bool(reference.left) is bool(case["refused"])
            reader.receive_eof()
        else:
            assert reference.broken is bool(case["refused"])
        assert case["refused"] in (reader.error or "") and (reader.error is None) == (not case["refused"])

    @pytest.mark.parametrize("case", cases_of("to collector"))
    def test_decoder_equals_the_reference_on_each_unit(self, case: dict[str, Any]) -> None:
        windows = Reader(strict_spec=True).receive_data(
            b"".join(bytes.fromhex(step["receive"]) for step in case["steps"])
        ) if case["acknowledge"] and not case["refused"] else []  # fmt: skip
        for window in windows:
            assert rows_of(window.unit) == oracle.decode_unit(window.unit, [])
            assert [row.hash for row in rows_of(window.unit)] == list(map(xxh64, window.events))
            assert len(decode(window.unit)) == len(window)
            assert not any(frame.wrong for frame in frames(window.unit))

    @pytest.mark.parametrize("case", [p for p in cases_of("to collector") if p.values[0]["acknowledge"]])
    def test_collector_acknowledges_the_vectors_over_a_socket(
        self, case: dict[str, Any], tmp_path: Path
    ) -> None:
        with Collector(strict_spec=True, capture=str(tmp_path)) as collector:
            with socket.create_connection((collector.host, collector.port), timeout=PATIENCE) as writer:
                for step in case["steps"]:
                    writer.sendall(bytes.fromhex(step["receive"]))
                    wanted = b"".join(map(a, step["acks"]))
                    assert receive(writer, len(wanted)) == wanted
                if case["refused"] and not case["end"]:
                    assert is_closed(writer)
            assert collector.wait_for(lambda counts: counts.open == 0)
            counts = collector.counts
        taken = [event.hex() for window in windows_in(tmp_path) for event in window.events]
        assert taken == [body for _, body in case["events"]]
        assert counts.protocol_errors == bool(case["refused"] and not case["end"])
        assert counts.truncated == bool(case["refused"] and case["end"])

    @pytest.mark.parametrize("case", cases_of("to client"))
    def test_writer_equals_vectors_and_reference(self, case: dict[str, Any]) -> None:
        options = dict(case["options"])
        codec = Codec(PRODUCER, version=1, strict_spec=True, **options)
        codec.connected(0.0)
        reference = oracle.RunningAcks(options["first"])
        credit: int | None = options["window"] * options["inflight"]
        seq = 0
        for step in case["steps"]:
            if "connect" in step:
                codec.connection_lost()
                codec.connected(0.0)
                reference = oracle.RunningAcks(options["first"])
                credit = options["window"] * options["inflight"]
            elif "send" in step:
                bodies = [bytes.fromhex(body) for body in step["send"]]
                in_flight, batch = inflight_of([(b"{}", 1)] * seq + [(body, 1) for body in bodies],
                                          holes=range(1, seq + 1))  # fmt: skip
                encoded = codec.encode(batch.capsule, len(bodies), 0.0)
                in_flight.encoded(batch)
                written = wire(codec)
                assert opened(written) == opened(bytes.fromhex(step["wire"]))
                assert encoded == (len(bodies) if step["wire"] else 0)
                if not step["wire"]:
                    assert codec.credit(0.0)[0] == 0
                    continue
                want = oracle.encode_window(
                    [(seq + i, 1, body) for i, body in enumerate(bodies, 1)], PRODUCER, version=1,
                    identity=options["identity"], compress=options["compression"] > 0,
                    literal=oracle.Literal(reference.number, credit, options["frames"] == "json"),
                )  # fmt: skip
                assert opened(written) == opened(want.data)
                reference.send(want.sequences)
                credit = None
                seq += len(bodies)
            else:
                data = bytes.fromhex(step["receive"])
                before = len(reference.acked)
                stop = codec.receive(data, 0.0)
                if "refused" in step:
                    assert stop < 0
                    assert step["refused"] in (codec.error or "")
                    with pytest.raises(oracle.BrokenError):
                        reference.feed(data)
                else:
                    assert stop == 0
                    reference.feed(data)
                    assert acked_by(codec) == step["acked"] == reference.acked[before:]


def windows_in(capture: Path) -> list[Window]:
    """Return the windows of a capture, unit by unit."""
    return [
        window for unit in CaptureReader(capture) if unit.direction == 0
        for window in Reader(strict_spec=True).receive_data(unit.raw)
    ]  # fmt: skip


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more, "closed"
        data += more
    return data


def rows_of(unit: bytes, **options: Any) -> list[oracle.Row]:
    got = Decoder(**options).decode(unit, array("q", [0]), array("q", [len(unit)]))
    hashes = got.id_hash.tolist()
    columns = zip(
        got.status.tolist(), got.producer.tolist(), got.prefix_high.tolist(), got.prefix_low.tolist(),
        got.sequence.tolist(), got.hash.tolist(), got.offset.tolist(),
        got.length.tolist(), zip(hashes[::2], hashes[1::2], strict=True), strict=True,
    )  # fmt: skip
    return [oracle.Row(*row) for row in columns]


# -- properties


def literal_stream(seed: int) -> bytes:
    """Make frames that are mostly valid; damage some of the streams."""
    random = Random(seed)

    def frame(depth: int) -> bytes:
        number = random.choice([random.randrange(1, 9), LAST, 0, 0x80000000])
        kind = random.choice("JJJDDCW")
        if kind == "W":
            return w(random.choice([0, 1, 2, 5, 100, LAST]))
        if kind == "C" and depth < 3:
            return c(*[frame(depth + 1) for _ in range(random.randrange(4))])
        if kind == "D":
            return d(number, **{"k" * random.randrange(4): "v" * random.randrange(30)})
        return j(number, random.choice(["{}", '{"a":1}', "[", '{"event.id":"x"}', "{" + " " * 50 + "}"]))

    stream = b"".join(frame(0) for _ in range(random.randrange(1, 12)))
    return mutated(stream, random) if random.random() < 0.4 else stream


streams = st.integers(0, 2**32).map(literal_stream) | st.binary(max_size=30).map(lambda data: b"1" + data)
small = st.sampled_from([oracle.Limits(), oracle.Limits(), oracle.Limits(3, 40, 120, 80)])


class TestReader:
    @pytest.mark.slow
    @settings(max_examples=300, deadline=None)
    @given(streams, small, st.data())
    def test_reader_equals_the_reference_on_any_pieces(
        self, stream: bytes, limits: oracle.Limits, data: st.DataObject
    ) -> None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        reader, reference = Reader(**limits._asdict(), strict_spec=True), oracle.LiteralReader(limits)
        for at, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            windows = reader.receive_data(stream[at:end])
            assert list(map(as_read, windows)) == reference.feed(stream[at:end])
            number = data.draw(st.integers(0, 4))
            reader.acknowledge(number)
            reference.acknowledge(number)
            assert (reader.error is not None) is reference.broken
            assert reader.window_size == reference.credit
        if not reference.broken:
            assert reader.pending == len(reference.left)

    @settings(deadline=None)
    @given(streams)
    def test_reading_bytewise_equals_reading_at_once(self, stream: bytes) -> None:
        whole, split = Reader(strict_spec=True), Reader(strict_spec=True)
        want = list(map(as_read, whole.receive_data(stream)))
        got = [as_read(x) for i in range(len(stream)) for x in split.receive_data(stream[i : i + 1])]
        assert (got, split.error) == (want, whole.error)

    def test_json_frames_of_version_1_need_strict_spec(self) -> None:
        reader = Reader()
        assert reader.receive_data(w(1) + j(1)) == []
        assert reader.error == "frame type 0x4a from a writer of version 1 (byte 6 of the window)"


class TestDecoder:
    @settings(deadline=None)
    @given(streams, st.booleans(), st.sampled_from([1 << 26, 60]))
    def test_decoder_equals_the_reference_on_any_unit(self, unit: bytes, identity: bool, bound: int) -> None:
        assert rows_of(unit, identity=identity, max_inflated=bound) == oracle.decode_unit(
            unit, [], identity, bound
        )

    @settings(deadline=None)
    @given(streams)
    def test_offset_and_length_delimit_the_hashed_body(self, unit: bytes) -> None:
        whole = expand(unit)
        for row in rows_of(unit):
            if row.status < TORN:
                assert xxh64(whole[row.offset : row.offset + row.length]) == row.hash


pair_bodies = st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3).map(pair_block)


class TestWriter:
    @pytest.mark.slow
    @settings(deadline=None)
    @given(st.data(), st.booleans(), st.booleans(), st.sampled_from([1, 5, 0x7FFFFFFF, LAST - 3, LAST]))
    def test_writer_and_acks_equal_the_reference(
        self, data: st.DataObject, as_json: bool, compress: bool, first: int
    ) -> None:
        window, inflight = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
        kind = "json" if as_json else "data"
        codec = Codec(PRODUCER, version=1, strict_spec=True, frames=kind, first=first,
                  window=window, inflight=inflight, compression=3 if compress else 0)  # fmt: skip
        codec.connected(0.0)
        bodies = data.draw(st.lists(near_objects if as_json else pair_bodies, min_size=1, max_size=12))
        in_flight, batch = inflight_of([(body, 1) for body in bodies])
        left = [(i, 1, body) for i, body in enumerate(bodies, 1)]
        reference, reader = oracle.RunningAcks(first), Reader(strict_spec=True)
        credit: int | None = window * inflight
        batches: list[int] = []  # the last number of each in flight
        for _ in range(20):
            if data.draw(st.booleans()):
                want = oracle.encode_window(
                    left, PRODUCER, version=1, window=window, compress=compress,
                    literal=oracle.Literal(reference.number, credit, as_json),
                )  # fmt: skip
                room = len(batches) < inflight
                assert codec.credit(0.0)[0] == (window if room else 0)
                assert codec.encode(batch.capsule, 100, 0.0) == (len(want.sequences) if room else 0)
                in_flight.encoded(batch)
                if not room:
                    continue
                sent = wire(codec)
                assert opened(sent) == opened(want.data)
                decided = {*want.sequences, *want.failed}
                left = [event for event in left if event[0] not in decided]
                if want.sequences:
                    reference.send(want.sequences)
                    batches.append(len(reference.sent))
                    credit = None
                    # the reader accepts what the writer makes, and never more than its window
                    got = reader.receive_data(sent)
                    assert reader.error is None
                    assert sum(map(len, got)) == len(want.sequences)
                    assert got[-1].ack == reference.sent[-1][0]
            elif reference.sent:
                upto = data.draw(st.integers(0, len(reference.sent) - 1))
                before = len(reference.acked)
                ack = encode_ack(1, reference.sent[upto][0])
                assert codec.receive(ack, 0.0) == 0
                reference.feed(ack)
                assert acked_by(codec) == reference.acked[before:]
                reader.acknowledge(len(reference.acked) - before)
                batches = [last for last in batches if last > len(reference.acked)]
                assert codec.windows == len(batches)
        assert reference.unacked <= window * inflight

    def test_strict_version_1_may_send_uncompressed_frames(self) -> None:
        """Released servers misread uncompressed 'data' frames; without strict_spec version 1 always
        compresses."""
        for strict, kind in ((True, b"1D"), (False, b"1C")):
            codec = Codec(PRODUCER, version=1, frames="data", strict_spec=strict, compression=0)
            codec.connected(0.0)
            _in_flight, batch = inflight_of([(pairs(a="b"), 1)])
            codec.encode(batch.capsule, 1, 0.0)
            assert wire(codec)[6:8] == kind

    @pytest.mark.parametrize("options", [
        {"version": 2, "strict_spec": True}, {"version": 1, "frames": "json"},
        {"version": 2, "frames": "data"}, {"frames": "xml"}, {"version": 1, "strict_spec": True, "first": 0},
    ])  # fmt: skip
    def test_codec_asserts_contradicting_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(AssertionError):
            Codec(PRODUCER, **options)


# -- the option


class TestConfig:
    @pytest.mark.parametrize(("query", "version", "frames"), [
        ("", 2, "json"), ("?version=1", 1, "data"), ("?version=1&frames=data", 1, "data"),
        ("?strict_spec=true", 1, "json"), ("?strict_spec=true&version=1", 1, "json"),
        ("?strict_spec=true&frames=data", 1, "data"),
    ])  # fmt: skip
    def test_frames_default_to_those_of_the_version(self, query: str, version: int, frames: str) -> None:
        given = parse(f"lumberjack://host{query}")
        assert (given.version, given.frames) == (version, frames)

    @pytest.mark.parametrize(("query", "words"), [
        ("strict_spec=true&version=2", "version: the protocol's text has 1 alone"),
        ("frames=data", "frames: version 2 has json alone"),
        ("version=1&frames=json", "frames: version 1 has data alone; strict_spec=true has both"),
        ("frames=xml", "frames: must be one of json, data"),
    ])  # fmt: skip
    def test_contradicting_options_are_refused_by_name(self, query: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            parse(f"lumberjack://host?{query}")


# -- both ends


class TestClientAndCollector:
    @pytest.mark.parametrize("frames", ["json", "data"])
    @pytest.mark.parametrize("compression", [0, 3])
    def test_client_delivers_all_to_the_collector(self, frames: str, compression: int) -> None:
        with Collector(strict_spec=True, keep=True, count_duplicates=True) as collector:
            url = f"lumberjack://127.0.0.1:{collector.port}?strict_spec=true"
            with logclient.connect(url, frames=frames, compression=compression, window=50) as client:
                for number in range(500):
                    client.send({"message": f"line {number}"})
                assert client.flush(PATIENCE) == 0
                stats = client.stats()
            assert (stats.acked, stats.disconnects, stats.resent) == (500, 0, 0)
            assert [event["message"] for event in collector.events(500)] == [f"line {n}" for n in range(500)]
            counts = collector.counts
        assert (counts.protocol_errors, counts.duplicates, counts.keepalives) == (0, 0, 0)

    def test_sequence_numbers_roll_over_on_a_connection(self) -> None:
        """A codec with a high first number writes to the collector's socket."""
        with Collector(strict_spec=True, keep=True) as collector:
            codec = Codec(PRODUCER, version=1, strict_spec=True, first=LAST - 4, window=3, inflight=2)
            codec.connected(0.0)
            in_flight, batch = inflight_of([(b'{"n":%d}' % n, 1) for n in range(12)])
            acked: list[int] = []
            with socket.create_connection((collector.host, collector.port), timeout=PATIENCE) as link:
                while len(acked) < 12:
                    while codec.encode(batch.capsule, 3, 0.0):
                        in_flight.encoded(batch)
                        link.sendall(wire(codec))
                    assert codec.receive(link.recv(65536), 0.0) == 0, codec.error
                    acked += acked_by(codec)
            assert acked == list(range(1, 13))
            assert [event["n"] for event in collector.events(12)] == list(range(12))

    def test_cuts_and_partial_acks_lose_no_strict_event(self) -> None:
        faults = "cut-before-ack=every:7,partial-ack=every:3,delay-ack=every:5:20ms,seed=3"
        with Collector(strict_spec=True, keep=True, faults=faults) as collector:
            url = f"lumberjack://127.0.0.1:{collector.port}?strict_spec=true"
            with logclient.connect(url, window=20, backoff_max=0.1) as client:
                for number in range(600):
                    client.send({"number": number})
                assert client.flush(PATIENCE) == 0
                assert client.stats().acked == 600
            counts = collector.counts
            assert {event["number"] for event in collector.events(600)} == set(range(600))
        assert counts.cuts_before_ack > 0 and counts.partial_acks > 0 and counts.protocol_errors == 0

    @pytest.mark.parametrize("fault", ["corrupt", "add"])
    def test_data_faults_leave_a_valid_unit(self, fault: str, tmp_path: Path) -> None:
        faults = f"{fault}=every:1,seed=1"
        with (
            Collector(strict_spec=True, capture=str(tmp_path), faults=faults) as collector,
            socket.create_connection((collector.host, collector.port), timeout=PATIENCE) as writer,
        ):
            writer.sendall(w(2) + c(j(LAST, '{"message":"hello hello"}'), d(1, line="hello hello")))
            assert decode_acks(receive(writer, 6)) == [(1, 1)]
        (window,) = windows_in(tmp_path)
        assert window.types[:2] == "JD"
        assert len(window) == (3 if fault == "add" else 2)

    def test_discarded_windows_are_judged_lost(self, tmp_path: Path) -> None:
        verdict = pytest.importorskip("tests.support.verify_inprocess")
        capture, ledger = str(tmp_path / "capture"), str(tmp_path / "ledger")
        with Collector(strict_spec=True, capture=capture, faults="discard=every:4,seed=1") as collector:
            url = f"lumberjack://127.0.0.1:{collector.port}?strict_spec=true"
            with logclient.connect(url, ledger=ledger, window=10) as client:
                for number in range(200):
                    client.send({"number": number})
                assert client.flush(PATIENCE) == 0
            discarded = collector.report["faults"]["discard"]
        verdict.run(Path(ledger), Path(capture), out=tmp_path / "out")
        found = verdict.found(tmp_path / "out")
        assert set(found) == {"lost"}
        assert discarded <= len(found["lost"]) <= 10 * discarded

    def test_send_collect_and_decode_take_strict_spec(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        lines = tmp_path / "lines.txt"
        lines.write_text("one\ntwo\n")
        capture = tmp_path / "capture"
        with CollectorProcess(capture, query="?strict_spec=true") as server:
            assert cli.main(["send", f"{server.url}?strict_spec=true", str(lines)]) == ExitCode.OK
        assert cli.main(["decode", str(capture)]) == ExitCode.OK
        assert "1J sequence 2" in capsys.readouterr().out
