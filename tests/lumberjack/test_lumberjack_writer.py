"""The writer: windows as the protocol has them, the id in them, and acks that become outcomes."""

import base64
import gc
import json
import re
import struct
import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient._ext.constants import ACKED
from logclient._ext.constants import K_BYTES as BYTES
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.inflight import InflightBatches
from logclient._ext.lumberjack import Codec
from logclient._ext.queue import EventQueue
from logclient.lumberjack.reader import Reader
from tests.oracle import lumberjack as oracle
from tests.oracle.xxh64 import xxh64
from tests.support.batches import inflight_of
from tests.support.lumberjack_inputs import near_objects, objects, pair_block

pytestmark = pytest.mark.unit

PRODUCER = bytes.fromhex("00ff10203040506070a0")
ID1, ID2, OPEN = oracle.ID1_TAKEN, oracle.ID2_TAKEN, oracle.METADATA_OPEN
NESTED, EVENT = oracle.NESTED, oracle.EVENT_OPEN
METADATA = b'"beat":"shop","version":"8"'


def connected_codec(**options: object) -> Codec:
    options.setdefault("compression", 0)
    codec = Codec(PRODUCER, **options)  # type: ignore[arg-type]
    codec.connected(0.0)
    return codec


def wire(codec: Codec) -> bytes:
    return codec.take_bytes()


def carried_body(body: bytes, kind: int = RAW, **options: object) -> bytes | None:
    """Return the body of one event as it is carried, or None when the event failed."""
    codec = connected_codec(**options)
    in_flight, batch = inflight_of([(body, kind)])
    if codec.encode(batch.capsule, 1, 0.0) == 0:
        assert wire(codec) == b""
        in_flight.encoded(batch)
        return None
    (window,) = Reader().receive_data(wire(codec))
    return window.events[0]


def ack(number: int, version: int = 2) -> bytes:
    return b"%dA" % version + struct.pack(">I", number)


class TestWindow:
    def test_uncompressed_window_has_one_frame_per_event(self) -> None:
        codec = connected_codec(identity=False)
        _in_flight, batch = inflight_of([(b'{"a":1}', DOCUMENT), (b"{}", DOCUMENT)])
        assert codec.encode(batch.capsule, 10, 0.0) == 2
        assert wire(codec) == (
            b"2W\0\0\0\2"  # two frames follow
            b'2J\0\0\0\1\0\0\0\7{"a":1}'  # sequence, length, body
            b"2J\0\0\0\2\0\0\0\2{}"
        )

    def test_numbers_begin_at_1_in_each_window(self) -> None:
        codec = connected_codec(window=2, identity=False)
        in_flight, batch = inflight_of([(b'{"n":%d}' % i, DOCUMENT) for i in range(4)])
        for _ in range(2):
            assert codec.encode(batch.capsule, 10, 0.0) == 2
            in_flight.encoded(batch)
        windows = Reader().receive_data(wire(codec))
        assert [w.sequences for w in windows] == [[1, 2], [1, 2]]
        assert [w.events for w in windows] == [[b'{"n":0}', b'{"n":1}'], [b'{"n":2}', b'{"n":3}']]

    @pytest.mark.parametrize("compression", range(1, 10))
    def test_compressed_window_has_exactly_one_frame(self, compression: int) -> None:
        codec = connected_codec(compression=compression)
        _in_flight, batch = inflight_of([(b'{"n":%d}' % i, DOCUMENT) for i in range(500)])
        assert codec.encode(batch.capsule, 2048, 0.0) == 500
        data = wire(codec)
        assert data[:8] == b"2W" + struct.pack(">I", 500) + b"2C"
        assert struct.unpack(">I", data[8:12])[0] == len(data) - 12
        plain = connected_codec()
        _in_flight, batch = inflight_of([(b'{"n":%d}' % i, DOCUMENT) for i in range(500)])
        plain.encode(batch.capsule, 2048, 0.0)
        assert zlib.decompress(data[12:]) == wire(plain)[6:]

    def test_version_1_is_always_compressed(self) -> None:
        for compression in (0, 3):
            codec = connected_codec(version=1, compression=compression, identity=False)
            _in_flight, batch = inflight_of([(pair_block({"line": "hello"}), DOCUMENT)])
            assert codec.encode(batch.capsule, 1, 0.0) == 1
            data = wire(codec)
            assert data[:8] == b"1W\0\0\0\x011C"
            assert zlib.decompress(data[12:]) == (b"1D\0\0\0\1\0\0\0\1\0\0\0\4line\0\0\0\5hello")

    def test_window_ends_at_window_bytes(self) -> None:
        bodies = [b'{"a":"%s"}' % (b"x" * 500) for _ in range(10)]
        codec = connected_codec(window_bytes=2000)
        _in_flight, batch = inflight_of([(b, DOCUMENT) for b in bodies])
        assert codec.encode(batch.capsule, 100, 0.0) == 3
        large = [b'{"a":"%s"}' % (b"x" * 5000), b"{}"]
        codec = connected_codec(window_bytes=2000)
        _in_flight, batch = inflight_of([(b, DOCUMENT) for b in large])
        assert codec.encode(batch.capsule, 100, 0.0) == 1  # alone, but it goes
        assert len(Reader().receive_data(wire(codec))[0].events[0]) > 5000

    @pytest.mark.parametrize("size", [8, 300, 1024, 5000])
    def test_batch_of_window_bytes_fits_one_window(self, size: int) -> None:
        codec = connected_codec(window_bytes=100_000)
        queue = EventQueue()
        for _ in range(3000):
            queue.push(b'{"a":"%s"}' % (b"x" * size), 2, RAW)
        batch = InflightBatches(queue).take(2048, 100_000)
        assert batch is not None
        assert codec.encode(batch.capsule, 2048, 0.0) == len(batch.statuses())

    def test_no_credit_while_inflight_windows_are_out(self) -> None:
        codec = connected_codec(window=5, inflight=2, window_bytes=1234)
        assert codec.credit(0.0) == (5, 1234)
        in_flight, batch = inflight_of([(b"{}", DOCUMENT)] * 20)
        assert codec.encode(batch.capsule, 100, 0.0) == 5
        in_flight.encoded(batch)
        assert codec.credit(0.0) == (5, 1234)
        assert codec.encode(batch.capsule, 3, 0.0) == 3
        in_flight.encoded(batch)
        assert codec.credit(0.0) == (0, 0)
        assert codec.encode(batch.capsule, 100, 0.0) == 0  # refused without credit, too
        assert codec.windows == 2

    def test_bytes_are_kept_until_they_are_taken(self) -> None:
        codec = connected_codec()
        in_flight, batch = inflight_of([(b'{"n":%d}' % i, DOCUMENT) for i in range(3000)])
        for _ in range(2):
            codec.encode(batch.capsule, 1, 0.0)
            in_flight.encoded(batch)
        assert len(Reader().receive_data(wire(codec))) == 2
        assert wire(codec) == b""

    @pytest.mark.parametrize(("name", "value"), [
        ("version", 3), ("window", 0), ("window", 10_001), ("inflight", 0), ("compression", 10),
        ("silence", 0.0), ("silence", float("nan")), ("window_bytes", 0),
    ])  # fmt: skip
    def test_codec_asserts_its_options(self, name: str, value: object) -> None:
        with pytest.raises(AssertionError):
            Codec(PRODUCER, **{name: value})  # type: ignore[arg-type]

    def test_producer_must_have_ten_bytes(self) -> None:
        with pytest.raises(ValueError, match="producer: 10 bytes, not 9"):
            Codec(b"123456789")


class TestId:
    ID = "00ff10203040506070a0000000000001"

    @pytest.mark.parametrize(("body", "kind", "carried"), [
        (b'{"a":1}', DOCUMENT, '{"a":1,"@metadata":{"_id":"%s"},"event.id":"%s"}'),
        (b"{}", DOCUMENT, '{"@metadata":{"_id":"%s"},"event.id":"%s"}'),
        (b" {\n} ", RAW, '{\n"@metadata":{"_id":"%s"},"event.id":"%s"}'),
        (b'\t{"a":1 }\n', RAW, '{"a":1 ,"@metadata":{"_id":"%s"},"event.id":"%s"}'),
        (b'{"@metadata":{"x":1}}', RAW, '{"@metadata":{"x":1},"event.id":"%s"}'),
        (b'{"event.id":"mine"}', RAW, '{"event.id":"mine"}'),
        (b'{"event":{"id":7}}', RAW, '{"event":{"id":7}}'),
        (b'{"event":"login"}', RAW, '{"event":"login","@metadata":{"_id":"%s"}}'),
        (b'{"event":"login","@metadata":{}}', RAW, '{"event":"login","@metadata":{},"event.id":"%s"}'),
        (b'{"\\u0065vent.id":""}', RAW, '{"\\u0065vent.id":""}'),
        (b'{"@metadata":{"_id":"m"},"event.id":"n"}', RAW, '{"@metadata":{"_id":"m"},"event.id":"n"}'),
        (b'{"a":1}', DOCUMENT | ID1, '{"a":1,"event.id":"%s"}'),
        (b"{}", DOCUMENT | ID1, '{"event.id":"%s"}'),
        (b'{"a":1}', DOCUMENT | ID2, '{"a":1,"@metadata":{"_id":"%s"}}'),
        (b"{}", DOCUMENT | ID2, '{"@metadata":{"_id":"%s"}}'),
        (b'{"event.id":"n"}', DOCUMENT | ID1 | ID2, '{"event.id":"n"}'),
        (b'{"@metadata":{"x":1}}', DOCUMENT | OPEN, '{"@metadata":{"x":1,"_id":"%s"},"event.id":"%s"}'),
        (b'{"event.id":"n","@metadata":{"x":1}}', DOCUMENT | OPEN | ID2,
         '{"event.id":"n","@metadata":{"x":1,"_id":"%s"}}'),
        (b'{"a":1}', DOCUMENT | NESTED, '{"a":1,"@metadata":{"_id":"%s"},"event":{"id":"%s"}}'),
        (b"{}", DOCUMENT | NESTED, '{"@metadata":{"_id":"%s"},"event":{"id":"%s"}}'),
        (b'{"a":1}', DOCUMENT | NESTED | ID1, '{"a":1,"event":{"id":"%s"}}'),
        (b'{"@metadata":{"x":1}}', DOCUMENT | NESTED | OPEN,
         '{"@metadata":{"x":1,"_id":"%s"},"event":{"id":"%s"}}'),
        (b'{"event":{"a":1}}', DOCUMENT | EVENT, '{"event":{"a":1,"id":"%s"},"@metadata":{"_id":"%s"}}'),
        (b'{"event":{"a":1}}', DOCUMENT | EVENT | ID1, '{"event":{"a":1,"id":"%s"}}'),
        (b'{"event":{"id":"n"}}', DOCUMENT | EVENT | ID2, '{"event":{"id":"n"},"@metadata":{"_id":"%s"}}'),
        (b'{"event":{"id":"n"}}', DOCUMENT | EVENT | ID1 | ID2, '{"event":{"id":"n"}}'),
        (b'{"@metadata":{"_id":"m"}}', DOCUMENT | ID1 | ID2, '{"@metadata":{"_id":"m"}}'),
        (b'{"event.id":"n"}', DOCUMENT | ID2, '{"event.id":"n","@metadata":{"_id":"%s"}}'),
    ])  # fmt: skip
    def test_id_goes_into_the_free_carriers_of_version_2(self, body: bytes, kind: int, carried: str) -> None:
        want = carried.replace("%s", self.ID).encode()
        assert carried_body(body, kind) == want
        json.loads(want)

    @pytest.mark.parametrize(("body", "kind", "carried"), [
        (b'{"a":1}', DOCUMENT, '{"a":1,"@metadata":{M,"_id":"%s"},"event.id":"%s"}'),
        (b"{}", RAW, '{"@metadata":{M,"_id":"%s"},"event.id":"%s"}'),
        (b'{"a":1}', DOCUMENT | NESTED, '{"a":1,"@metadata":{M,"_id":"%s"},"event":{"id":"%s"}}'),
        (b'{"event":{"a":1}}', DOCUMENT | EVENT, '{"event":{"a":1,"id":"%s"},"@metadata":{M,"_id":"%s"}}'),
        # Its formatter has put them into an object of the application.
        (b'{"@metadata":{"x":1}}', DOCUMENT | OPEN, '{"@metadata":{"x":1,"_id":"%s"},"event.id":"%s"}'),
        (b'{"event":"login"}', RAW, '{"event":"login","@metadata":{M,"_id":"%s"}}'),
        # An id of the application, and none of ours:
        (b'{"event.id":"n"}', RAW, '{"event.id":"n","@metadata":{M}}'),
        (b'{"event":{"id":7}}', DOCUMENT | ID1 | ID2, '{"event":{"id":7},"@metadata":{M}}'),
        # Raw bytes keep an `@metadata`, whatever it is.
        (b'{"@metadata":{"_id":"m"}}', RAW, '{"@metadata":{"_id":"m"}}'),
        (b'{"@metadata":{"x":1}}', RAW, '{"@metadata":{"x":1},"event.id":"%s"}'),
        (b'{"@metadata":7}', RAW, '{"@metadata":7,"event.id":"%s"}'),
    ])  # fmt: skip
    def test_constant_metadata_stands_before_the_id(self, body: bytes, kind: int, carried: str) -> None:
        want = carried.replace("%s", self.ID).replace("M", METADATA.decode()).encode()
        assert carried_body(body, kind, metadata=METADATA) == want
        json.loads(want)

    @pytest.mark.parametrize(("body", "kind", "carried"), [
        (b' {"a":1}\n', RAW, '{"a":1,"@metadata":{M}}'),
        (b"{ }", DOCUMENT, '{ "@metadata":{M}}'),
        (b'{"@metadata":{"x":1}}', RAW, '{"@metadata":{"x":1}}'),
        (b'{"@metadata":{"x":1}}', DOCUMENT | ID1, '{"@metadata":{"x":1}}'),
        (b'{"@metadata":{"x":1}}', DOCUMENT | OPEN, '{"@metadata":{"x":1}}'),
    ])  # fmt: skip
    def test_constant_metadata_needs_no_identity(self, body: bytes, kind: int, carried: str) -> None:
        want = carried.replace("M", METADATA.decode()).encode()
        assert carried_body(body, kind, identity=False, metadata=METADATA) == want

    @pytest.mark.parametrize("kind", [DOCUMENT, RAW])
    def test_id_becomes_a_pair_in_version_1(self, kind: int) -> None:
        body = pair_block({"line": "hello", "host": ""})
        carried = pair_block({"line": "hello", "host": "", "event.id": self.ID})
        assert carried_body(body, kind, version=1) == carried
        assert carried_body(b"\0\0\0\0", kind, version=1) == pair_block({"event.id": self.ID})

    def test_own_id_of_version_1_is_kept(self) -> None:
        body = pair_block({"event.id": "mine", "line": "x"})
        assert carried_body(body, RAW, version=1) == body
        assert carried_body(body, DOCUMENT | ID1, version=1) == body
        assert carried_body(body, DOCUMENT | ID2, version=1) == body

    def test_no_id_is_inserted_without_identity(self) -> None:
        assert carried_body(b' {"a":1}\n', identity=False) == b'{"a":1}'
        assert carried_body(pair_block({"a": "b"}), version=1, identity=False) == pair_block({"a": "b"})

    def test_resend_keeps_ids_and_hashes(self) -> None:
        codec = connected_codec(window=3)
        in_flight, batch = inflight_of([(b'{"n":%d}' % i, RAW) for i in range(5)])
        codec.encode(batch.capsule, 3, 0.0)
        in_flight.encoded(batch)
        hashes = batch.hashes()
        first = Reader().receive_data(wire(codec))[0].events
        codec.receive(ack(1), 0.0)
        assert codec.outcomes()[0] == [(1, 1, ACKED, 0)]
        in_flight.apply([(1, 1)], ACKED)
        codec.connection_lost()
        in_flight.requeue()
        codec.connected(1.0)
        assert codec.encode(batch.capsule, 3, 1.0) == 3
        in_flight.encoded(batch)
        (window,) = Reader().receive_data(wire(codec))
        assert window.sequences == [1, 2, 3]
        assert window.events[:2] == first[1:]
        assert {s: h for s, h in batch.hashes().items() if s < 4} == {
            s: h for s, h in hashes.items() if s < 4
        }


class TestInvalidBodies:
    """A body that the protocol cannot carry fails alone."""

    @pytest.mark.parametrize("compression", [0, 3])
    @pytest.mark.parametrize("kind", [RAW, BYTES])
    def test_neighbours_of_an_invalid_body_are_sent(self, compression: int, kind: int) -> None:
        bad = {2, 3, 7}
        bodies = [b"[]" if i in bad else b'{"n":%d}' % i for i in range(1, 8)]
        in_flight, batch = inflight_of([(b, kind) for b in bodies])
        codec = connected_codec(compression=compression)
        assert codec.encode(batch.capsule, 10, 0.0) == 4
        in_flight.encoded(batch)
        (window,) = Reader().receive_data(wire(codec))
        assert [json.loads(e)["n"] for e in window.events] == [1, 4, 5, 6]
        assert window.sequences == [1, 2, 3, 4]
        assert {s for s, status in batch.statuses().items() if status == "failed"} == bad
        assert in_flight.take_report() == [(2, 3, "failed", "not_json"), (7, 7, "failed", "not_json")]
        codec.receive(ack(4), 0.0)
        assert codec.outcomes()[0] == [(1, 1, ACKED, 0), (4, 6, ACKED, 0)]

    def test_only_invalid_bodies_send_nothing(self) -> None:
        in_flight, batch = inflight_of([(b"x", RAW)] * 3)
        codec = connected_codec()
        assert codec.encode(batch.capsule, 10, 0.0) == 0
        assert wire(codec) == b""
        assert codec.windows == 0
        in_flight.encoded(batch)
        assert in_flight.take_report() == [(1, 3, "failed", "not_json")]

    def test_invalid_pairs_of_version_1_fail(self) -> None:
        for body in (b"", b"\0\0", b"\0\0\0\1", pair_block({"a": "b"}) + b"x", pair_block({"a": "b"})[:-1]):
            assert carried_body(body, RAW, version=1) is None
        assert carried_body(b"\0\0\0\0", RAW, version=1, identity=False) is None  # Logstash hangs up

    def test_check_off_requires_an_object_only(self) -> None:
        assert carried_body(b'{"a":nonsense}', check=False) is not None
        assert carried_body(b'{"event.id":1}', check=False, identity=False) == b'{"event.id":1}'
        for body in (b"", b" ", b"[]", b'{"a":1', b"}", b"{", b'"a":1}'):
            assert carried_body(body, check=False) is None

    def test_documents_of_our_formatter_skip_the_check(self) -> None:
        assert carried_body(b'{"a":nonsense}', DOCUMENT) is not None
        assert carried_body(b"[1]", DOCUMENT) is None


kinds = st.sampled_from([DOCUMENT, RAW, RAW, BYTES])
flags = st.sampled_from([0, 0, 0, 0, ID1, ID2, ID1 | ID2, NESTED, NESTED | ID1])
pair_bodies = st.lists(
    st.tuples(st.sampled_from([b"event.id", b"line", b""]), st.binary(max_size=9)), max_size=3
).map(oracle.join_pairs) | st.binary(max_size=12)  # fmt: skip


class TestReference:
    @pytest.mark.slow
    @given(st.data(), st.sampled_from([1, 2]), st.booleans(), st.booleans(), st.booleans(), st.booleans())
    def test_encoding_equals_the_reference(
        self, data: st.DataObject, version: int, identity: bool, check: bool, compress: bool, constant: bool
    ) -> None:
        bodies = near_objects if version == 2 else pair_bodies
        events = data.draw(st.lists(st.tuples(bodies, kinds, flags), min_size=1, max_size=8))
        limit = data.draw(st.integers(1, 9))
        size = data.draw(st.sampled_from([1, 300, 1 << 20]))
        # documents come from our formatter: complete, with true flags
        events = [
            (body, kind, flag) for body, kind, flag in events
            if kind != DOCUMENT or version == 1 or oracle.check_json(body) is not None
        ]  # fmt: skip
        if not events:
            return
        in_flight, batch = inflight_of([(body, kind | flag) for body, kind, flag in events])
        codec = connected_codec(
            version=version, identity=identity, check=check, window=limit, window_bytes=size,
            compression=3 if compress else 0, metadata=METADATA if constant and version == 2 else b"",
        )  # fmt: skip
        want = oracle.encode_window(
            [(i, kind | flag, body) for i, (body, kind, flag) in enumerate(events, 1)],
            PRODUCER, version=version, window=limit, window_bytes=size, identity=identity, check=check,
            metadata=METADATA.decode() if constant and version == 2 else "",
        )  # fmt: skip
        assert codec.encode(batch.capsule, 100, 0.0) == len(want.sequences)
        lines = in_flight.encoded(batch)
        assert inflated(wire(codec)) == inflated(want.data)
        statuses = batch.statuses() if in_flight.waiting or in_flight.inflight else {}
        assert {s for s, f in statuses.items() if f == "inflight"} == set(want.sequences)
        report = {s: r for first, last, _, r in in_flight.take_report() for s in range(first, last + 1)}
        assert report == {s: {5: "not_json", 4: "unencodable"}[r] for s, r in want.failed.items()}
        if want.sequences:
            assert {s: h for s, h in batch.hashes().items() if s in want.hashes} == want.hashes
            assert ids_of(lines) == {s: w for s, w in want.id_hashes.items() if w}

    @pytest.mark.slow
    @pytest.mark.parametrize("identity", [True, False])
    @pytest.mark.parametrize("kind", [RAW, DOCUMENT])
    def test_body_of_every_length_is_carried_and_hashed(self, kind: int, identity: bool) -> None:
        # neighbours of very different length: hashes are made a few at a time
        sizes = [*range(8, 400), *range(8170, 8210)]
        Random(7).shuffle(sizes)
        bodies = [b'{"a":"' + bytes(97 + i % 26 for i in range(n)) + b'"}' for n in sizes]
        codec = connected_codec(identity=identity, window_bytes=1 << 22)
        _in_flight, batch = inflight_of([(b, kind) for b in bodies])
        assert codec.encode(batch.capsule, 2048, 0.0) == len(bodies)
        want = [oracle.finish(b, RAW, i, PRODUCER, identity=identity)[0] for i, b in enumerate(bodies, 1)]
        assert Reader().receive_data(wire(codec))[0].events == want
        assert batch.hashes() == {i: xxh64(b) for i, b in enumerate(want, 1)}

    @pytest.mark.slow
    @given(st.lists(objects, min_size=1, max_size=20), st.integers(1, 9), st.sampled_from([0, 3, 6]))
    def test_decoding_an_encoded_window_gives_its_bodies(
        self, bodies: list[bytes], window: int, compression: int
    ) -> None:
        in_flight, batch = inflight_of([(b, RAW) for b in bodies])
        codec = connected_codec(window=window, compression=compression, inflight=20)
        while codec.encode(batch.capsule, 100, 0.0):
            in_flight.encoded(batch)
        got = [e for w in Reader().receive_data(wire(codec)) for e in w.events]
        want = [oracle.finish(b, RAW, i, PRODUCER) for i, b in enumerate(bodies, 1)]
        assert got == [w[0] for w in want if not isinstance(w, int)]


def inflated(data: bytes) -> bytes:
    """Open the compressed frame of a window."""
    if data[7:8] != b"C":
        return data
    return data[:6] + zlib.decompress(data[12:])


def ids_of(lines: bytes) -> dict[int, list[tuple[int, int]]]:
    """Return the user's own ids in the lines of a ledger."""
    found: dict[int, list[tuple[int, int]]] = {}
    announced = []
    for line in map(json.loads, lines.splitlines()):
        if line["t"] == "batch":
            announced += [s for first, last in line.get("own", ()) for s in range(first, last + 1)]
        if line["t"] == "ids":
            for at, name in (("seqs", "ids"), ("beside", "second")):
                seqs = [s for first, last in line.get(at, ()) for s in range(first, last + 1)]
                raw = struct.iter_unpack("<QQ", base64.b64decode(line.get(name, "")))
                for seq, words in zip(seqs, raw, strict=True):
                    found.setdefault(seq, []).append(words)
    assert announced == list(found)
    return found


class TestUsersOwnId:
    def test_own_ids_are_hashed_as_raw_bytes(self) -> None:
        bodies = [
            b'{"@metadata":{"_id":"a\\"b"},"event.id":"x"}',
            b'{"a":1}',
            b'{"@metadata":{},"event":{"id":12}}',
            b'{"@metadata":{"_id":"one"},"event.id":"one"}',
            b'{"@metadata":{"_id":"one"},"event":{"id":"two"}}',
        ]
        in_flight, batch = inflight_of([(b, RAW) for b in bodies])
        connected_codec().encode(batch.capsule, 10, 0.0)
        named = {1: [b'a\\"b', b"x"], 3: [b"12"], 4: [b"one"], 5: [b"one", b"two"]}
        want = {n: [oracle.words(x) for x in own] for n, own in named.items()}
        assert ids_of(in_flight.encoded(batch)) == want

    def test_no_own_ids_without_identity(self) -> None:
        in_flight, batch = inflight_of([(b'{"@metadata":{"_id":"a"},"event.id":"x"}', RAW)])
        connected_codec(identity=False).encode(batch.capsule, 10, 0.0)
        assert ids_of(in_flight.encoded(batch)) == {}


class TestAcks:
    def codec_with_windows(self, *sizes: int, **options: object) -> Codec:
        """Return a codec with windows of these sizes in flight; sequences begin at 1."""
        codec = connected_codec(inflight=max(2, len(sizes)), **options)
        in_flight, batch = inflight_of([(b"{}", DOCUMENT)] * sum(sizes))
        for size in sizes:
            assert codec.encode(batch.capsule, size, 0.0) == size
            in_flight.encoded(batch)
        codec.take_bytes()
        return codec

    def test_acks_settle_windows_first_in_first_out(self) -> None:
        codec = self.codec_with_windows(3, 2)
        assert codec.receive(ack(3) + ack(2), 1.0) == 0
        assert codec.outcomes() == ([(1, 5, ACKED, 0)], 2, 0)
        assert codec.windows == 0
        assert codec.outcomes() == ([], 0, 0)

    def test_partial_acks_settle_each_event_once(self) -> None:
        codec = self.codec_with_windows(5)
        for number, want in (
            (2, [(1, 2, ACKED, 0)]),
            (2, []),
            (1, []),
            (4, [(3, 4, ACKED, 0)]),
            (5, [(5, 5, ACKED, 0)]),
        ):
            assert codec.receive(ack(number), 0.0) == 0
            assert codec.outcomes()[0] == want
        assert codec.windows == 0

    def test_ack_of_0_is_no_progress(self) -> None:
        codec = self.codec_with_windows(2)
        codec.receive(ack(0) * 3, 0.0)
        assert codec.outcomes() == ([], 0, 0)

    def test_ack_of_either_version_byte_is_accepted(self) -> None:
        codec = self.codec_with_windows(1, 1)
        codec.receive(ack(0, 1) + ack(1, 1) + ack(1, 2), 0.0)
        assert codec.outcomes() == ([(1, 2, ACKED, 0)], 2, 0)

    def test_acks_skip_sequences_that_were_not_sent(self) -> None:
        _in_flight, batch = inflight_of([(b"{}", DOCUMENT)] * 9, holes=[2, 5, 6])
        codec = connected_codec()
        codec.encode(batch.capsule, 5, 0.0)
        codec.receive(ack(4), 0.0)
        assert codec.outcomes()[0] == [(1, 1, ACKED, 0), (3, 4, ACKED, 0), (7, 7, ACKED, 0)]
        codec.receive(ack(5), 0.0)
        assert codec.outcomes()[0] == [(8, 8, ACKED, 0)]

    @pytest.mark.parametrize(("data", "words"), [
        (b"HTTP/1.1 400 Bad Request", "expected an ack frame .* received b'HTTP/1'"),
        (b"S", "received b'S'"),
        (b"2J\0\0\0\1", "received b'2J"),
        (b"\x02A\0\0\0\1", r"received b'\\x02A"),
        (ack(6), "ack 6 for a window of 5 events"),
        (ack(0xFFFFFFFF), "ack 4294967295 for a window of 5 events"),
        (ack(5) + ack(1), "ack 1 although no window is in flight"),
    ])  # fmt: skip
    def test_invalid_ack_is_fatal_until_reconnected(self, data: bytes, words: str) -> None:
        codec = self.codec_with_windows(5)
        assert codec.receive(data, 0.0) == -2
        assert codec.error is not None
        assert re.search(words, codec.error), codec.error
        assert "\n" not in codec.error
        # earlier acks hold; later ones are ignored, and nothing more is sent
        assert codec.outcomes()[0] == ([(1, 5, ACKED, 0)] if data[:6] == ack(5) else [])
        assert codec.receive(ack(1), 0.0) == -2
        assert codec.credit(0.0) == (0, 0)
        codec.connection_lost()
        codec.connected(1.0)
        assert codec.error is None
        assert codec.credit(1.0)[0] > 0

    def test_ack_frames_may_arrive_byte_by_byte(self) -> None:
        codec = self.codec_with_windows(2, 3)
        for byte in ack(0) + ack(1) + ack(2) + ack(3):
            assert codec.receive(bytes([byte]), 0.0) == 0
        assert codec.outcomes() == ([(1, 5, ACKED, 0)], 3, 0)

    numbers = st.lists(st.integers(0, 6) | st.sampled_from([7, 2**32 - 1]), max_size=12)
    streams = st.builds(
        lambda numbers, versions, tail: b"".join(map(ack, numbers, versions)) + tail,
        numbers, st.lists(st.sampled_from([1, 2]), min_size=12, max_size=12),
        st.binary(max_size=8) | st.sampled_from([b"2", b"2A\0", b"1A\0\0\0"]),
    )  # fmt: skip

    @given(st.lists(st.integers(1, 6), min_size=1, max_size=4), streams, st.data())
    def test_acks_equal_the_reference_on_any_bytes(
        self, sizes: list[int], stream: bytes, data: st.DataObject
    ) -> None:
        codec, reference = self.codec_with_windows(*sizes), oracle.Acks()
        first = 1
        for size in sizes:
            reference.windows.append((list(range(first, first + size)), 0))
            first += size
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        for at, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            broken = False
            try:
                reference.feed(stream[at:end])
            except oracle.BrokenError:
                broken = True
            assert (codec.receive(stream[at:end], 0.0) == -2) is broken
            if broken:
                break
        ranges, progress, _ = codec.outcomes()
        assert [s for a, b, _, _ in ranges for s in range(a, b + 1)] == reference.acked
        assert (progress, codec.windows) == (reference.progress, len(reference.windows))

    def test_outcomes_are_the_same_for_every_split(self) -> None:
        stream = ack(0) + ack(1, 1) + ack(3) + ack(2) + ack(0)
        for at in range(len(stream) + 1):
            codec = self.codec_with_windows(3, 2)
            assert codec.receive(stream[:at], 0.0) == codec.receive(stream[at:], 0.0) == 0
            assert codec.outcomes() == ([(1, 5, ACKED, 0)], 3, 0)


class TestDeadlines:
    """Monotonic seconds are arguments; no test waits."""

    def codec_with_windows(self, windows: int, now: float = 100.0, **options: object) -> Codec:
        codec = connected_codec(inflight=max(windows, 2), **options)
        in_flight, batch = inflight_of([(b"{}", DOCUMENT)] * windows)
        for _ in range(windows):
            assert codec.encode(batch.capsule, 1, now) == 1
            in_flight.encoded(batch)
        return codec

    def test_no_deadline_without_windows_in_flight(self) -> None:
        codec = connected_codec()
        assert codec.deadline() == 0
        codec = self.codec_with_windows(1)
        codec.receive(ack(1), 101.0)
        assert codec.deadline() == 0

    def test_any_byte_moves_the_silence_deadline(self) -> None:
        codec = self.codec_with_windows(1, silence=30.0)
        assert codec.deadline() == 130.0
        codec.receive(ack(0), 105.0)
        assert codec.deadline() == 135.0
        codec.receive(b"", 110.0)
        assert codec.deadline() == 135.0
        codec.receive(b"2", 111.0)
        assert codec.deadline() == 141.0

    def test_window_behind_another_has_the_same_time(self) -> None:
        codec = self.codec_with_windows(2)
        assert codec.deadline() == 130.0
        codec.receive(ack(1), 120.0)
        assert codec.deadline() == 150.0

    def test_peer_that_takes_bytes_is_alive(self) -> None:
        codec = self.codec_with_windows(2)
        codec.moved(129.0)
        assert codec.deadline() == 159.0
        codec.connection_lost()
        codec.connected(200.0)
        assert codec.deadline() == 0

    def test_second_window_does_not_move_the_deadline(self) -> None:
        codec = connected_codec()
        in_flight, batch = inflight_of([(b"{}", DOCUMENT)] * 2)
        codec.encode(batch.capsule, 1, 100.0)
        in_flight.encoded(batch)
        codec.encode(batch.capsule, 1, 125.0)
        assert codec.deadline() == 130.0


class TestAfterABreak:
    """After a break with several windows in flight, the next ten go one at a time."""

    def most_in_flight(self, codec: Codec, windows: int) -> int:
        """Send and acknowledge windows; return the most that were in flight."""
        most = 0
        in_flight, batch = inflight_of([(b"{}", DOCUMENT)] * (windows + 5))
        for _ in range(windows):
            while codec.credit(0.0)[0]:
                codec.encode(batch.capsule, 1, 0.0)
                in_flight.encoded(batch)
            most = max(most, codec.windows)
            assert codec.receive(ack(1), 0.0) == 0
        return most

    def test_ten_single_windows_follow_a_break_with_two(self) -> None:
        codec = TestDeadlines().codec_with_windows(2)
        codec.connection_lost()
        codec.connected(0.0)
        assert self.most_in_flight(codec, 10) == 1
        assert self.most_in_flight(codec, 3) == 2

    def test_break_with_one_window_changes_nothing(self) -> None:
        codec = TestDeadlines().codec_with_windows(1)
        codec.connection_lost()
        assert codec.limit == 2

    def test_second_break_does_not_restart_the_count(self) -> None:
        codec = TestDeadlines().codec_with_windows(2)
        codec.connection_lost()
        codec.connected(0.0)
        self.most_in_flight(codec, 4)
        codec.connection_lost()
        codec.connected(0.0)
        assert self.most_in_flight(codec, 6) == 1
        assert self.most_in_flight(codec, 3) == 2


class TestPieces:
    """Windows shrink on a path that is too slow for them, and grow again."""

    BODY = b'{"a":"%b"}' % (b"x" * 968)  # 1,000 bytes as they are counted

    def windows(self, codec: Codec, events: int, now: float, taken: float | None = None) -> list[int]:
        """Send so many events, each window acknowledged at once; return the sizes of the windows.

        At `taken` the peer's TCP is seen to have all bytes.
        """
        found = []
        in_flight, batch = inflight_of([(self.BODY, DOCUMENT)] * events)
        while batch.pending():
            found.append(codec.encode(batch.capsule, codec.credit(now)[0], now))
            in_flight.encoded(batch)
            codec.take_bytes()
            if taken is not None:
                codec.moved(taken)
            assert codec.receive(ack(found[-1]), now if taken is None else taken) == 0
        return found

    def lost_at(self, codec: Codec, events: int, sent: float, lost: float) -> int:
        """Send a window on a connection that is lost; return how many of these events it had."""
        _in_flight, batch = inflight_of([(self.BODY, DOCUMENT)] * events)
        size = codec.encode(batch.capsule, codec.credit(sent)[0], sent)
        codec.connection_lost()
        codec.connected(lost)
        return size

    def test_windows_begin_small_and_grow(self) -> None:
        codec = connected_codec(adaptive=True, compression=0)
        assert self.windows(codec, 2015, 1.0) == [65, 130, 260, 520, 1040]

    def test_break_without_an_ack_halves_the_next_window(self) -> None:
        codec = connected_codec(compression=0)
        sizes = [self.lost_at(codec, 64, n, n + 0.5) for n in range(8)]
        assert sizes == [64, 32, 16, 8, 4, 2, 1, 1]
        assert self.windows(codec, 16, 100.0) == [1, 2, 4, 8, 1]

    def test_break_after_an_ack_changes_nothing(self) -> None:
        codec = connected_codec(compression=0)
        self.windows(codec, 1, 1.0)
        self.lost_at(codec, 64, 2.0, 3.0)
        assert self.windows(codec, 64, 50.0)[0] == 64

    def test_break_with_one_event_changes_nothing(self) -> None:
        codec = connected_codec(compression=0)
        self.lost_at(codec, 1, 2.0, 3.0)
        assert self.windows(codec, 64, 50.0) == [64]

    def test_window_that_was_long_under_way_halves_the_next_one(self) -> None:
        codec = connected_codec(compression=0, window=64)
        assert self.windows(codec, 64, 1.0, taken=12.0) == [64]
        assert self.windows(codec, 32, 20.0, taken=31.0) == [32]
        assert self.windows(codec, 16, 40.0, taken=48.0) == [16]
        assert self.windows(codec, 16, 50.0, taken=52.0) == [16]
        assert self.windows(codec, 32, 60.0, taken=62.0) == [32]

    def test_slow_server_that_takes_all_at_once_keeps_its_windows(self) -> None:
        codec = connected_codec(compression=0, window=64)
        in_flight, batch = inflight_of([(self.BODY, DOCUMENT)] * 64)
        codec.encode(batch.capsule, 64, 1.0)
        codec.moved(2.0)
        assert codec.receive(ack(64), 60.0) == 0
        assert codec.credit(60.0)[0] == 64
        del in_flight


class TestMemory:
    def test_three_hundred_windows_reuse_memory(self) -> None:
        resource = pytest.importorskip("resource")
        random = Random(3)
        codec = connected_codec(compression=3)
        bodies = [(b'{"a":"%s"}' % random.randbytes(150).hex().encode(), RAW) for _ in range(500)]

        def turn() -> None:
            in_flight, batch = inflight_of(bodies)
            codec.encode(batch.capsule, 500, 0.0)
            in_flight.encoded(batch)
            codec.take_bytes()
            codec.receive(ack(500), 0.0)
            codec.outcomes()

        for _ in range(20):
            turn()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(300):
            turn()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8192

    @pytest.mark.slow
    def test_capsule_keeps_its_codec_alive(self) -> None:
        capsules = [connected_codec().capsule for _ in range(3)]
        gc.collect()
        assert all("logclient.codec" in repr(c) for c in capsules)
