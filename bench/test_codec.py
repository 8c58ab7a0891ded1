"""The codecs alone; run by `make bench ROW=functions`. A round: 2048 events of 300 bytes.

``test_copy`` is the lower bound of everything that writes or reads these bytes once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from bench.lumberjack import carriers, event, window
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.hash import murmur3
from logclient._ext.inflight import InflightBatches
from logclient._ext.logjam import Codec as LogjamHot
from logclient._ext.logjam import Decoder as LogjamDecoder
from logclient._ext.logjam import pack, unpack
from logclient._ext.logux import Codec as LoguxCodec
from logclient._ext.logux import Decoder as LoguxDecoder
from logclient._ext.lumberjack import Codec, Decoder, check_json
from logclient._ext.plog import Codec as PlogHot
from logclient._ext.plog import Decoder as PlogDecoder
from logclient._ext.plog import Reassembler, fragments
from logclient._ext.queue import EventQueue
from logclient.lumberjack.reader import Reader
from tests.oracle import logjam as reference
from tests.oracle import logux_client
from tests.oracle import logux_decoder as logux_reference
from tests.oracle import plog as plog_reference

EVENTS = 2048
BODY = event(300)
CARRIED = event(300, carriers())
PRODUCER = bytes.fromhex("0123456789abcdef0123")
ROUNDS = {"rounds": 200, "warmup_rounds": 20}


def writer(kind: int, **options: Any) -> tuple[Callable[[], tuple[tuple[Any, Any], dict[str, Any]]], Any]:
    """Return setup and function for `pedantic`: a fresh batch, encoded as one window."""
    codec = Codec(PRODUCER, window_bytes=1 << 24, **options)

    def setup() -> tuple[tuple[Any, Any], dict[str, Any]]:
        queue = EventQueue()
        for _ in range(EVENTS):
            queue.push(BODY, 2, kind)
        in_flight = InflightBatches(queue)
        codec.connected(0.0)
        codec.take_bytes()
        return (in_flight, in_flight.take(EVENTS, 1 << 30).capsule), {}

    def encode(in_flight: InflightBatches, capsule: object) -> None:
        assert codec.encode(capsule, EVENTS, 0.0) == EVENTS

    return setup, encode


@pytest.mark.benchmark(group="Lumberjack, encode a window")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(RAW, {"compression": 0}, id="checked"),
        pytest.param(RAW, {"compression": 0, "check": False}, id="unchecked"),
        pytest.param(DOCUMENT, {"compression": 0}, id="document"),
        pytest.param(DOCUMENT, {"compression": 0, "identity": False}, id="no-id"),
        pytest.param(DOCUMENT, {"compression": 3}, id="compressed"),
        pytest.param(DOCUMENT, {"compression": 6}, id="zlib-6"),
    ],
)
def test_encode(benchmark: Any, kind: int, options: dict[str, Any]) -> None:
    setup, encode = writer(kind, **options)
    benchmark.pedantic(encode, setup=setup, **ROUNDS)


@pytest.mark.benchmark(group="Lumberjack, encode a window")
def test_copy(benchmark: Any) -> None:
    data, to = window(CARRIED, EVENTS), bytearray(len(window(CARRIED, EVENTS)))

    def copy() -> None:
        to[:] = data

    benchmark(copy)


@pytest.mark.benchmark(group="Lumberjack, decode")
@pytest.mark.parametrize("events", [1, EVENTS])
def test_decode(benchmark: Any, events: int) -> None:
    """Decode like the verifier: units of one event, or of a whole window."""
    body = CARRIED.replace(b"0123456789abcdef" * 2, PRODUCER.hex().encode() + b"000000000007")
    unit, units = window(body, events), EVENTS // events
    offsets, lengths = array("q", range(0, units * len(unit), len(unit))), array("q", [len(unit)] * units)
    data, decoder = unit * units, Decoder(PRODUCER)
    got = benchmark(decoder.decode, data, offsets, lengths)
    assert len(got) == EVENTS
    assert set(got.status.tolist()) == {0}


@pytest.mark.benchmark(group="Lumberjack, decode")
def test_reader(benchmark: Any) -> None:
    """Read like the collector, without a look at bodies."""
    data, reader = window(CARRIED, EVENTS), Reader()
    (got,) = benchmark(reader.receive_data, data)
    assert len(got) == EVENTS


@pytest.mark.benchmark(group="Lumberjack, checking pass, 2048 calls")
@pytest.mark.parametrize("body", [BODY, CARRIED], ids=["4-members", "6-members"])
def test_check(benchmark: Any, body: bytes) -> None:
    bodies = [body] * EVENTS
    assert all(benchmark(lambda: [check_json(b) for b in bodies]))


@pytest.mark.benchmark(group="Lumberjack, acks of 1024 windows")
def test_acks(benchmark: Any) -> None:
    codec = Codec(PRODUCER, compression=0, window=1, inflight=1024)
    acks = b"2A\0\0\0\1" * 1024

    def setup() -> tuple[tuple[()], dict[str, Any]]:
        queue = EventQueue()
        for _ in range(1024):
            queue.push(b"{}", 2, DOCUMENT)
        in_flight = InflightBatches(queue)
        codec.connected(0.0)
        batch = in_flight.take(1024, 1 << 30)
        for _ in range(1024):
            assert codec.encode(batch.capsule, 1, 0.0) == 1
            in_flight.encoded(batch)
        codec.take_bytes()
        codec.outcomes()
        return (), {}

    def receive() -> None:
        assert codec.receive(acks, 0.0) == 0

    benchmark.pedantic(receive, setup=setup, rounds=50)


# -- Logjam: 2048 requests with the bodies of the rows above; the reference is plain Python

TOPICS = [b"logs.shop.production", b"events", b"frontend.page", b"frontend.ajax", b"javascript", b"mobile"]
APP_ENV = b"shop-production"
METHODS = ("none", "zlib", "snappy", "lz4")
REFERENCES = {"rounds": 5, "warmup_rounds": 1}
FEW = 128  # bodies that are compressed by separate calls


def logjam(compression: int) -> LogjamHot:
    codec = LogjamHot(
        PRODUCER, APP_ENV, TOPICS,
        inflight=EVENTS, batch_bytes=1 << 24, compression=compression, compress_over=0,
    )  # fmt: skip
    codec.connected(0.0)
    return codec


def messages(compression: int) -> tuple[bytes, array[int], array[int]]:
    """Return all messages joined, with the offset and length of each."""
    units = []
    for number in range(1, EVENTS + 1):
        body = reference.carried(BODY, number, PRODUCER, TOPICS[0])
        assert body is not None
        meta = reference.META.pack(0xCABD, compression, 1, 0, 1, number)
        units.append(reference.join([b"", APP_ENV, TOPICS[0], reference.pack(compression, body), meta]))
    lengths = array("q", map(len, units))
    return b"".join(units), array("q", accumulate(lengths, initial=0))[:-1], lengths


@pytest.mark.benchmark(group="Logjam, encode 2048 requests")
@pytest.mark.parametrize("compression", range(4), ids=METHODS)
def test_logjam_encode(benchmark: Any, compression: int) -> None:
    def setup() -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        queue = EventQueue()
        for _ in range(EVENTS):
            queue.push(BODY, 2, RAW)
        in_flight = InflightBatches(queue)
        return (logjam(compression), in_flight, in_flight.take(EVENTS, 1 << 30).capsule), {}

    def encode(codec: LogjamHot, in_flight: InflightBatches, capsule: object) -> None:
        assert codec.encode(capsule, EVENTS, 0.0) == EVENTS

    benchmark.pedantic(encode, setup=setup, **ROUNDS)


@pytest.mark.benchmark(group="Logjam, encode 2048 requests")
def test_logjam_encode_reference(benchmark: Any) -> None:
    def encode() -> None:
        for number in range(1, EVENTS + 1):
            body = reference.carried(BODY, number, PRODUCER, TOPICS[0])
            assert body is not None
            meta = reference.META.pack(0xCABD, 0, 1, 0, 1, number)
            reference.xxh64(body)
            reference.join([b"", APP_ENV, TOPICS[0], body, meta])

    benchmark.pedantic(encode, **REFERENCES)


@pytest.mark.benchmark(group="Logjam, decode 2048 messages")
@pytest.mark.parametrize("compression", range(4), ids=METHODS)
def test_logjam_decode(benchmark: Any, compression: int) -> None:
    data, offsets, lengths = messages(compression)
    decoder = LogjamDecoder(PRODUCER)
    got = benchmark(decoder.decode, data, offsets, lengths)
    assert set(got.status.tolist()) == {0}


@pytest.mark.benchmark(group="Logjam, decode 2048 messages")
def test_logjam_decode_reference(benchmark: Any) -> None:
    data, offsets, lengths = messages(0)
    units = [data[at : at + size] for at, size in zip(offsets, lengths, strict=True)]
    benchmark.pedantic(lambda: [reference.decode(unit, [PRODUCER]) for unit in units], **REFERENCES)


@pytest.mark.benchmark(group="Logjam, compress 128 bodies")
@pytest.mark.parametrize("function", [pack, reference.pack], ids=["ours", "reference"])
@pytest.mark.parametrize("compression", range(1, 4), ids=METHODS[1:])
def test_logjam_pack(benchmark: Any, function: Any, compression: int) -> None:
    benchmark.pedantic(lambda: [function(compression, BODY) for _ in range(FEW)], **REFERENCES)


@pytest.mark.benchmark(group="Logjam, open 128 bodies")
@pytest.mark.parametrize("function", [unpack, reference.unpack], ids=["ours", "reference"])
@pytest.mark.parametrize("compression", range(1, 4), ids=METHODS[1:])
def test_logjam_unpack(benchmark: Any, function: Any, compression: int) -> None:
    packed = reference.pack(compression, BODY)
    got = benchmark.pedantic(lambda: [function(compression, packed) for _ in range(FEW)], **REFERENCES)
    assert set(got) == {BODY}


@pytest.mark.benchmark(group="Logjam, 2048 replies")
def test_logjam_replies(benchmark: Any) -> None:
    replies = reference.join([APP_ENV, b"202 Accepted"]) * EVENTS

    def setup() -> tuple[tuple[LogjamHot], dict[str, Any]]:
        queue = EventQueue()
        for _ in range(EVENTS):
            queue.push(b"{}", 2, RAW)
        codec = logjam(0)
        in_flight = InflightBatches(queue)
        assert codec.encode(in_flight.take(EVENTS, 1 << 30).capsule, EVENTS, 0.0) == EVENTS
        return (codec,), {}

    def receive(codec: LogjamHot) -> None:
        assert codec.receive(replies, 0.0) == 0
        assert codec.deadline() == 0

    benchmark.pedantic(receive, setup=setup, rounds=50)


# -- plog: 2048 events of 300 bytes, or 32 of 64 KiB in datagrams for Ethernet

LARGE = b'{"message":"' + b"x" * (65536 - 57) + b'"}'
MTU = 1472


def plog_fragments(body: bytes, events: int) -> tuple[bytes, array[int], array[int]]:
    """Return all datagrams joined, with the offset and length of each."""
    units = []
    for number in range(1, events + 1):
        carried, _ = plog_reference.carried(body, RAW, number, PRODUCER)
        units += fragments(carried, number, datagram=MTU)
    lengths = array("q", map(len, units))
    return b"".join(units), array("q", accumulate(lengths, initial=0))[:-1], lengths


@pytest.mark.benchmark(group="plog, encode")
@pytest.mark.parametrize("boxed", [True, False], ids=["boxed", "unboxed"])
@pytest.mark.parametrize(("body", "events"), [(BODY, EVENTS), (LARGE, 32)], ids=["300B", "64KiB"])
def test_plog_encode(benchmark: Any, body: bytes, events: int, boxed: bool) -> None:
    def setup() -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        queue = EventQueue()
        for _ in range(events):
            queue.push(body, 2, RAW)
        codec = PlogHot(PRODUCER, datagram=MTU, unboxed=not boxed, batch_bytes=1 << 24, packets=0, size=0)
        codec.connected(0.0)
        in_flight = InflightBatches(queue)
        return (codec, in_flight, in_flight.take(events, 1 << 30).capsule), {}

    def encode(codec: PlogHot, in_flight: InflightBatches, capsule: object) -> None:
        assert codec.encode(capsule, events, 0.0) == events

    benchmark.pedantic(encode, setup=setup, **ROUNDS)


@pytest.mark.benchmark(group="plog, encode")
def test_plog_encode_reference(benchmark: Any) -> None:
    events = [(BODY, RAW)] * EVENTS
    benchmark.pedantic(lambda: plog_reference.encode(events, PRODUCER, room=MTU), **REFERENCES)


@pytest.mark.benchmark(group="plog, encode")
def test_plog_encode_plainly(benchmark: Any) -> None:
    """Encode by straightforward Python with mmh3, without an id, a check of the body or XXH64."""
    hashed = pytest.importorskip("mmh3").hash
    header = plog_reference.HEADER.pack

    def encode() -> None:
        for number in range(1, EVENTS + 1):
            header(0, 1, 1, 0, 1448, number, len(CARRIED), hashed(CARRIED, 0, signed=False), 0, 0) + CARRIED

    benchmark.pedantic(encode, **REFERENCES)


@pytest.mark.benchmark(group="plog, put together")
@pytest.mark.parametrize(("body", "events"), [(BODY, EVENTS), (LARGE, 32)], ids=["300B", "64KiB"])
def test_plog_reassemble(benchmark: Any, body: bytes, events: int) -> None:
    """Reassemble like the collector."""
    data, offsets, lengths = plog_fragments(body, events)
    streams = array("Q", [1]) * len(offsets)
    server = Reassembler()
    got = benchmark(server.feed, data, offsets, lengths, streams, 0.0)
    assert got.verdict.tolist().count(0) == events


@pytest.mark.benchmark(group="plog, put together")
@pytest.mark.parametrize(("body", "events"), [(BODY, EVENTS), (LARGE, 32)], ids=["300B", "64KiB"])
def test_plog_decode(benchmark: Any, body: bytes, events: int) -> None:
    """Decode like the verifier."""
    data, offsets, lengths = plog_fragments(body, events)
    decoder = PlogDecoder(PRODUCER)
    got = benchmark(decoder.decode, data, offsets, lengths)
    assert set(got.status.tolist()) == {0}


@pytest.mark.benchmark(group="plog, put together")
def test_plog_decode_reference(benchmark: Any) -> None:
    data, offsets, lengths = plog_fragments(BODY, EVENTS)
    units = [data[at : at + size] for at, size in zip(offsets, lengths, strict=True)]
    benchmark.pedantic(lambda: plog_reference.decode(units, [PRODUCER]), **REFERENCES)


@pytest.mark.benchmark(group="plog, MurmurHash3 of 64 KiB")
@pytest.mark.parametrize("whose", ["ours", "mmh3"])
def test_murmur3(benchmark: Any, whose: str) -> None:
    """Hash one text; messages of one datagram are hashed four at a time."""
    reference = pytest.importorskip("mmh3").hash
    function = murmur3 if whose == "ours" else lambda data: reference(data, 0, signed=False)
    assert benchmark(function, LARGE) == murmur3(LARGE)


# -- Logux: 2048 actions of 300 bytes, 100 a sync


def syncs() -> tuple[bytes, array[int], array[int]]:
    """Return all messages joined, with the offset and length of each."""
    units = []
    for first in range(1, EVENTS + 1, 100):
        numbers = range(first, min(first + 100, EVENTS + 1))
        pairs = (
            b',{"type":"log/add","data":%b,"id":"%b%012x"},{"id":[%d,%d],"time":%d}'
            % (BODY, PRODUCER.hex().encode(), number, number, number, number)
            for number in numbers
        )
        units.append(b'["sync",%d%b]' % (numbers[-1], b"".join(pairs)))
    lengths = array("q", map(len, units))
    return b"".join(units), array("q", accumulate(lengths, initial=0))[:-1], lengths


@pytest.mark.benchmark(group="Logux, decode 2048 actions")
def test_logux_decode(benchmark: Any) -> None:
    data, offsets, lengths = syncs()
    decoder = LoguxDecoder(PRODUCER)
    got = benchmark(decoder.decode, data, offsets, lengths)
    assert got.status.tolist() == [0] * EVENTS


@pytest.mark.benchmark(group="Logux, decode 2048 actions")
def test_logux_decode_reference(benchmark: Any) -> None:
    data, offsets, lengths = syncs()
    units = [data[at : at + size] for at, size in zip(offsets, lengths, strict=True)]
    benchmark.pedantic(lambda: [logux_reference.decode(unit, [PRODUCER]) for unit in units], **REFERENCES)


@pytest.mark.benchmark(group="Logux, decode 2048 actions")
@pytest.mark.parametrize("whose", ["json", "msgspec", "orjson"])
def test_logux_load(benchmark: Any, whose: str) -> None:
    """Parse with JSON libraries, which make objects and handle neither ids nor hashes."""
    module: Any = pytest.importorskip(whose)
    load = module.json.decode if whose == "msgspec" else module.loads
    data, offsets, lengths = syncs()
    units = [data[at : at + size] for at, size in zip(offsets, lengths, strict=True)]
    benchmark(lambda: [load(unit) for unit in units])


# encoding: a sync of 100 events at a time, with ids and hashes


@pytest.mark.benchmark(group="Logux, encode 2048 actions")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(RAW, BODY, id="checked"),
        pytest.param(DOCUMENT, BODY, id="document"),
        pytest.param(RAW | 0x10, b'{"type":"log/add","data":%b}' % BODY, id="whole-action"),
    ],
)
def test_logux_encode(benchmark: Any, kind: int, body: bytes) -> None:
    codec = LoguxCodec(PRODUCER, b'"log/add"', inflight=EVENTS // 100 + 1)

    def setup() -> tuple[tuple[Any, Any], dict[str, Any]]:
        queue = EventQueue()
        for _ in range(EVENTS):
            queue.push(body, 2, kind)
        in_flight = InflightBatches(queue)
        codec.connecting(0.0)
        codec.connected(b"a:b:c", 0, 0.0, 0.0)
        codec.sample(0.0, 1e9)
        return (in_flight, in_flight.take(EVENTS, 1 << 30)), {}

    def encode(in_flight: InflightBatches, batch: Any) -> None:
        left = EVENTS
        while left:
            n = codec.encode(batch.capsule, 100, 0.0)
            codec.take_bytes()
            in_flight.encoded(batch)
            left -= n

    benchmark.pedantic(encode, setup=setup, **ROUNDS)


@pytest.mark.benchmark(group="Logux, encode 2048 actions")
@pytest.mark.parametrize("whose", ["json", "msgspec", "orjson"])
def test_logux_dump(benchmark: Any, whose: str) -> None:
    """Encode with JSON libraries and ready bodies (json: objects), without checks and hashes."""
    module: Any = pytest.importorskip(whose)
    raw: Any
    dump: Any
    if whose == "json":
        value = module.loads(BODY)
        raw, dump = (
            (lambda body: value),
            lambda message: module.dumps(message, separators=(",", ":")).encode(),
        )
    elif whose == "msgspec":
        raw, dump = module.Raw, module.json.Encoder().encode
    else:
        raw, dump = module.Fragment, module.dumps
    bodies, producer = [BODY] * EVENTS, PRODUCER.hex()

    def encode() -> None:
        for first in range(0, EVENTS, 100):
            message: list[Any] = ["sync", min(first + 100, EVENTS)]
            for number, body in enumerate(bodies[first : first + 100], first):
                message.append({"type": "log/add", "data": raw(body), "id": f"{producer}{number:012x}"})
                message.append({"id": [5, number], "time": 5})
            dump(message)

    benchmark(encode)


@pytest.mark.benchmark(group="Logux, encode 2048 actions")
def test_logux_encode_reference(benchmark: Any) -> None:
    def encode() -> None:
        for first in range(0, EVENTS, 100):
            made = [
                logux_client.action(BODY, RAW, number, PRODUCER)
                for number in range(first, min(first + 100, EVENTS))
            ]
            logux_client.sync(first, [(a.text, 5, 5, 5, -1) for a in made if not isinstance(a, str)], 0)

    benchmark.pedantic(encode, **REFERENCES)


@pytest.mark.benchmark(group="Logux, 2048 answers: processed")
@pytest.mark.parametrize("whose", ["ours", "json", "msgspec", "orjson", "reference"])
def test_logux_processed(benchmark: Any, whose: str) -> None:
    """Match answers to actions with ours, or parse them to objects with JSON libraries."""
    text = '["sync",0,{"id":"1795155086015 a:b:c %d","type":"logux/processed"},{"id":4,"time":4}]'
    frames = [(text % n).encode() for n in range(EVENTS)]
    take: Any
    if whose == "ours":
        codec = LoguxCodec(PRODUCER, b'"log/add"')
        codec.connecting(0.0)
        codec.connected(b"a:b:c", 0, 0.0, 0.0)

        def answer() -> None:
            assert not any(codec.receive(frame, 0.0) for frame in frames)
            codec.answers()
            codec.take_bytes()

        benchmark(answer)
        return
    if whose == "reference":
        benchmark.pedantic(lambda: [logux_client.recognise(f, "a:b:c") for f in frames], **REFERENCES)
        return
    module: Any = pytest.importorskip(whose)
    take = module.json.decode if whose == "msgspec" else module.loads
    benchmark(lambda: [take(frame) for frame in frames])
