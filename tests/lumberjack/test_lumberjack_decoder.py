"""The decoder of captures: ids, hashes, offsets, and a row with a status for everything damaged."""

import struct
import zlib
from array import array
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.decoder import Events
from logclient._ext.hash import xxh64
from logclient._ext.lumberjack import (
    BAD_FRAME,
    BAD_ZLIB,
    FOREIGN,
    NO_ID,
    NOT_JSON,
    OK,
    STATUS_NAMES,
    TORN,
    Codec,
    Decoder,
)
from logclient.evidence.frames.lumberjack import expand
from logclient.lumberjack.reader import Reader
from tests.lumberjack.frames import c, d, j, random_stream, u32, w
from tests.oracle import lumberjack as oracle
from tests.support.batches import inflight_of
from tests.support.examples import examples
from tests.support.lumberjack_inputs import HEX_ID, near_objects

pytestmark = pytest.mark.unit

OURS = bytes.fromhex("00ff10203040506070a0")
OTHER = bytes.fromhex("ffffffffffffffffffff")


def decode(units: list[bytes], producers: list[bytes] | None = None, **options: object) -> Events:
    """Decode the units from one buffer with some bytes between them."""
    data, offsets = b"-", []
    for unit in units:
        offsets.append(len(data))
        data += unit + b"--"
    decoder = Decoder(b"".join(producers or []), **options)  # type: ignore[arg-type]
    return decoder.decode(data, array("q", offsets), array("q", map(len, units)))


def rows_of(got: Events) -> list[tuple[int, oracle.Row]]:
    """Return (unit, row) for each row."""
    hashes = got.id_hash.tolist()
    columns = zip(
        got.status.tolist(), got.producer.tolist(), got.prefix_high.tolist(), got.prefix_low.tolist(),
        got.sequence.tolist(), got.hash.tolist(), got.offset.tolist(),
        got.length.tolist(), zip(hashes[::2], hashes[1::2], strict=True), strict=True,
    )  # fmt: skip
    return list(zip(got.unit.tolist(), [oracle.Row(*row) for row in columns], strict=True))


def window_of(bodies: list[bytes], producer: bytes = OURS, **options: object) -> tuple[bytes, dict[int, int]]:
    """Encode a window and return it with the hashes for its ledger."""
    codec = Codec(producer, **options)  # type: ignore[arg-type]
    codec.connected(0.0)
    in_flight, batch = inflight_of([(b, 1) for b in bodies])
    assert codec.encode(batch.capsule, 10_000, 0.0) == len(bodies)
    in_flight.encoded(batch)
    return codec.take_bytes(), batch.hashes()


class TestColumns:
    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("compression", [0, 3])
    @pytest.mark.parametrize("producers", [[], [OURS], sorted([b"0" * 10, OURS, OTHER])])
    def test_windows_of_our_writer_decode_to_their_events(
        self, version: int, compression: int, producers: list[bytes]
    ) -> None:
        bodies = [b"{}", b'{"a":1}', b'{"event":"x"}', b'{"@metadata":{}}', b' { "b" : [] } ']
        if version == 1:
            bodies = [oracle.join_pairs([(b"line", b"x" * i)]) for i in range(5)]
        unit, hashes = window_of(bodies, version=version, compression=compression)
        got = decode([unit, unit], producers)
        assert len(got) == 10
        assert got.status.tolist() == [OK] * 10
        assert got.sequence.tolist() == [1, 2, 3, 4, 5] * 2
        assert got.hash.tolist() == list(hashes.values()) * 2
        assert got.unit.tolist() == [0] * 5 + [1] * 5
        assert set(got.producer.tolist()) == {producers.index(OURS) if producers else -1}
        assert set(got.prefix_high.tolist()) == {int.from_bytes(OURS[:8], "big")}
        assert set(got.prefix_low.tolist()) == {int.from_bytes(OURS[8:], "big")}
        assert set(got.id_hash.tolist()) == {0}
        whole = expand(unit)
        (window,) = Reader().receive_data(unit)
        places = zip(got.offset.tolist(), got.length.tolist(), strict=True)
        assert [whole[at : at + size] for at, size in places][:5] == window.events

    def test_columns_are_typed_read_only_views(self) -> None:
        unit, _ = window_of([b"{}"] * 3)
        got = decode([unit])
        kinds = {
            "status": "B", "producer": "i", "prefix_high": "Q", "prefix_low": "H", "sequence": "q",
            "hash": "Q",
            "unit": "i", "offset": "q", "length": "i", "id_hash": "Q",
        }  # fmt: skip
        for name, kind in kinds.items():
            column = getattr(got, name)
            view = memoryview(column)
            assert column.format == view.format == kind
            assert view.readonly
            assert len(column) == len(view) == (6 if name == "id_hash" else 3)
            assert column[0] == view[0] == column.tolist()[0]
            with pytest.raises(IndexError):
                column[len(column)]
        view = memoryview(got.sequence)
        del got
        assert view.tolist() == [1, 2, 3]

    def test_columns_and_inputs_may_be_numpy_arrays(self) -> None:
        numpy = pytest.importorskip("numpy")
        unit, hashes = window_of([b"{}"] * 3)
        offsets, lengths = numpy.array([0], dtype="int64"), numpy.array([len(unit)], dtype="int64")
        got = Decoder().decode(numpy.frombuffer(unit, dtype="uint8"), offsets, lengths)
        assert numpy.frombuffer(got.hash, dtype=numpy.uint64).tolist() == list(hashes.values())
        assert numpy.frombuffer(decode([]).hash, dtype=numpy.uint64).tolist() == []


class TestIds:
    MINE = OURS.hex() + "000000000007"
    THEIRS = OTHER.hex() + "000000000009"

    def row(self, body: bytes, producers: list[bytes] | None = None, **options: object) -> oracle.Row:
        ((_, row),) = rows_of(decode([w(1) + j(1, body)], producers, **options))
        return row

    @pytest.mark.parametrize(("text", "status", "sequence"), [
        ('{"@metadata":{"_id":"MINE"},"event.id":"MINE"}', OK, 7),
        ('{"a":1,"@metadata":{"_id":"MINE"},"event.id":"MINE"}', OK, 7),
        ('{"a":1, "@metadata":{"_id":"MINE"},"event.id":"MINE"}', OK, 7),
        ('{"@metadata":{"_id":"MINE"},"event":{"id":"MINE"}}', OK, 7),
        ('{"a":1,"@metadata":{"_id":"MINE"},"event":{"id":"MINE"}}', OK, 7),
        ('{"a":{"b":1,"@metadata":{"_id":"MINE"},"event":{"id":"MINE"}}}', NO_ID, 0),
        ('{"event":{"a":1,"id":"MINE"},"@metadata":{"_id":"MINE"}}', OK, 7),
        ('{"@metadata":{"_id":"THEIRS"},"event":{"id":"MINE"}}', FOREIGN, 9),
        ('{"a":1,,"@metadata":{"_id":"MINX"},"event":{"id":"MINX"}}', NOT_JSON, 0),
        ('{"@metadata":{"_id":"THEIRS"},"event.id":"MINE"}', FOREIGN, 9),
        ('{"@metadata":{"_id":"x"},"event.id":"MINE"}', FOREIGN, 0),
        ('{"@metadata":{"x":"x"},"event.id":"MINE"}', OK, 7),
        ('{"@metadata":{"_id":"MINE"},"event.id":"THEIRS"}', OK, 7),
        ('{"@metadata":{"_id":"MINE"}}', OK, 7),
        ('{"event":{"id":"MINE"}}', OK, 7),
        ('{"event.id":"x","event":{"id":"MINE"}}', FOREIGN, 0),
        ('{"event.id":"MINE","event.i\\u0064":"x"}', FOREIGN, 0),
        ('{"event.id":"x","\\u0065vent.id":"MINE"}', OK, 7),
        ('{"a":1,"@metadata":{"_id":"THEIRS"},"event.id":"THEIRS"}', FOREIGN, 9),
        ('{"event.id":"x"}', FOREIGN, 0),
        ('{"event.id":"MINEx"}', FOREIGN, 0),
        ('{"event.id":null}', FOREIGN, 0),
        ('{"a":{"event.id":"MINE"}}', NO_ID, 0),
        ("{}", NO_ID, 0),
        ('{"a":1,,"@metadata":{"_id":"MINX"},"event.id":"MINX"}', NOT_JSON, 0),
        ("nonsense", NOT_JSON, 0),
        ("null", NOT_JSON, 0),
    ])  # fmt: skip
    def test_first_valid_carrier_decides_the_id(self, text: str, status: int, sequence: int) -> None:
        body = text.replace("MINE", self.MINE).replace("THEIRS", self.THEIRS).encode()
        row = self.row(body, [OURS])
        assert (row.status, row.sequence) == (status, sequence)
        assert row.hash == xxh64(body)
        assert row.producer == (0 if status == OK else -1)
        assert (row.id_hash != (0, 0)) is (status == FOREIGN)
        assert row == oracle.decode_unit(w(1) + j(1, body), [OURS])[0]

    def test_any_producer_is_accepted_when_none_is_given(self) -> None:
        body = b'{"@metadata":{"_id":"%s"},"event.id":"%s"}' % (self.THEIRS.encode(), self.MINE.encode())
        assert self.row(body).sequence == 9
        assert self.row(b'{"event.id":"x"}').status == FOREIGN

    def test_own_id_hash_equals_the_one_in_the_ledger(self) -> None:
        body = b'{"@metadata":{"_id":"%s"},"event.id":"y"}' % HEX_ID.encode()
        assert self.row(body, [OURS]).id_hash == (int(HEX_ID[:16], 16), int(HEX_ID[16:], 16))

    def test_upper_case_id_is_foreign(self) -> None:
        upper = self.MINE.upper().encode()
        assert (
            self.row(b'{"a":1,"@metadata":{"_id":"%s"},"event.id":"%s"}' % (upper, upper)).status == FOREIGN
        )

    def test_ids_are_ignored_with_identity_none(self) -> None:
        row = self.row(b'{"event.id":"x"}', identity=False)
        assert (row.status, row.id_hash) == (NO_ID, (0, 0))
        assert self.row(b"nonsense", identity=False).status == NO_ID

    def test_producers_must_be_sorted_unique_and_ten_bytes_each(self) -> None:
        for wrong in (b"123456789", OURS + OURS, OTHER + OURS):
            with pytest.raises(ValueError, match="producers: "):
                Decoder(wrong)

    @pytest.mark.slow
    @examples(100)
    @given(near_objects, st.sampled_from([[], [OURS], [bytes.fromhex(HEX_ID)[:10]]]))
    def test_decoding_equals_the_reference_on_damaged_json(self, body: bytes, producers: list[bytes]) -> None:
        if body:
            unit = w(1) + j(5, body)
            assert [row for _, row in rows_of(decode([unit], producers))] == oracle.decode_unit(
                unit, producers
            )

    @pytest.mark.slow
    @given(near_objects, st.binary(min_size=1, max_size=3), st.integers(0, 110))
    @example(b"{}", b"x", 0)
    def test_damage_near_the_inserted_id_is_found(self, body: bytes, put: bytes, at: int) -> None:
        carried = oracle.finish(body, 1, 7, OURS)
        if isinstance(carried, int):
            return
        raw = bytearray(carried[0])
        raw[-1 - at : len(raw) - at] = put
        unit = w(1) + j(1, bytes(raw))
        for producers in ([], [OURS]):
            ((_, row),) = rows_of(decode([unit], producers))
            (want,) = oracle.decode_unit(unit, producers)
            # the decoder trusts our own ending without reading the JSON before it
            if not (want.status == NOT_JSON and row.status == OK):
                assert row == want


class TestDamage:
    @pytest.mark.parametrize(("unit", "want"), [
        (b"", [(TORN, 0, 0)]),
        (b"2", [(TORN, 0, 1)]),
        (b"2W\0\0\0", [(TORN, 0, 5)]),
        (w(0), []),
        (w(1), [(TORN, 6, 0)]),
        (b"3W\0\0\0\1", [(BAD_FRAME, 0, 6)]),
        (j(1), [(BAD_FRAME, 0, 12)]),
        (w(2) + j(1), [(NO_ID, 16, 2), (TORN, 18, 0)]),
        (w(2) + j(1) + j(2)[:-1], [(NO_ID, 16, 2), (TORN, 18, 11)]),
        (w(2) + j(1) + b"2", [(NO_ID, 16, 2), (TORN, 18, 1)]),
        (w(1) + j(1) + j(2), [(NO_ID, 16, 2), (BAD_FRAME, 18, 12)]),
        (w(1) + b"2X\0\0\0\1", [(BAD_FRAME, 6, 6)]),
        (w(1) + d(1), [(BAD_FRAME, 6, 10)]),
        (w(1) + b"2J" + u32(1, 0xFFFFFFFF) + b"{}", [(TORN, 6, 12)]),
        (w(1) + b"2J" + u32(1, 0), [(NOT_JSON, 16, 0)]),
        (w(1, 1) + b"1D" + u32(1, 0xFFFFFFFF), [(TORN, 6, 10)]),
        (w(1, 1) + b"1D" + u32(1, 1, 0xFFFFFFFF), [(TORN, 6, 14)]),
        (w(1) + b"2C" + u32(9) + b"x", [(TORN, 6, 7)]),
        (w(1) + b"2C" + u32(4) + b"xxxx", [(BAD_ZLIB, 6, 10)]),
        (w(3) + j(1) + c(j(2) + j(3)), [(NO_ID, 16, 2), (NO_ID, 28, 2), (NO_ID, 40, 2)]),
        (w(3) + c(j(1) + c(j(2))) + j(3), [(NO_ID, 16, 2), (NO_ID, 28, 2), (NO_ID, 40, 2)]),
        (w(3) + c(j(1) + j(2)[:-1]), [(NO_ID, 16, 2), (TORN, 18, 11)]),
        (w(1) + c(c(c(j(1)))), [(BAD_FRAME, 6, len(c(j(1))))]),
    ])  # fmt: skip
    def test_damaged_unit_has_one_row_with_its_status(
        self, unit: bytes, want: list[tuple[int, int, int]]
    ) -> None:
        rows = rows_of(decode([unit]))
        assert [(r.status, r.offset, r.length) for _, r in rows] == want
        assert [r for _, r in rows] == oracle.decode_unit(unit, [])

    def test_damaged_unit_does_not_affect_the_next(self) -> None:
        unit, _ = window_of([b"{}"] * 2, compression=0)
        got = decode([unit[:-1], b"", b"garbage", unit])
        assert list(zip(got.unit.tolist(), got.status.tolist(), strict=True)) == [
            (0, OK), (0, TORN), (1, TORN), (2, BAD_FRAME), (3, OK), (3, OK),
        ]  # fmt: skip

    def test_inflated_bytes_of_a_unit_are_bounded(self) -> None:
        bomb = w(1) + c(bytes(10_000_000), level=9)
        got = decode([bomb], max_inflated=100_000)
        assert got.status.tolist() == [BAD_ZLIB]
        assert expand(bomb, 100_000) == bomb
        good = w(2) + c(j(1)) + c(j(2))
        assert decode([good], max_inflated=24).status.tolist() == [NO_ID, NO_ID]
        assert decode([good], max_inflated=23).status.tolist() == [NO_ID, BAD_ZLIB]
        assert decode([good], max_inflated=2**64 - 1).status.tolist() == [NO_ID, NO_ID]
        assert expand(good) == w(2) + j(1) + j(2)

    @pytest.mark.parametrize(("at", "size"), [(-1, 1), (0, -1), (0, 5), (5, 0), (1 << 62, 1), (2, 1 << 62)])
    def test_unit_outside_of_the_data_is_refused(self, at: int, size: int) -> None:
        with pytest.raises(ValueError, match="unit 1 leaves the data of 4 bytes"):
            Decoder().decode(b"four", array("q", [0, at]), array("q", [4, size]))

    def test_offsets_and_lengths_must_be_equal_int64_columns(self) -> None:
        for offsets, lengths in ((array("q", [0]), array("q")), (b"1234567", b"1234567")):
            with pytest.raises(ValueError, match="int64, equally many"):
                Decoder().decode(b"", offsets, lengths)
        odd = memoryview(bytes(17))[1:9]
        for offsets, lengths in ((odd, array("q", [0])), (array("q", [0]), odd)):
            with pytest.raises(ValueError, match="an address that 8 divides"):
                Decoder().decode(b"", offsets, lengths)

    @examples(120)
    @given(st.lists(st.integers(0, 2**32).map(random_stream) | st.binary(max_size=20), max_size=4),
    st.booleans(),
           st.sampled_from([1 << 26, 60]))  # fmt: skip
    def test_decoding_equals_the_reference_on_damaged_units(
        self, units: list[bytes], identity: bool, max_inflated: int
    ) -> None:
        got = rows_of(decode(units, identity=identity, max_inflated=max_inflated))
        want = [
            (i, row) for i, unit in enumerate(units)
            for row in oracle.decode_unit(unit, [], identity, max_inflated)
        ]  # fmt: skip
        assert got == want

    @examples(60)
    @given(st.lists(st.integers(0, 2**32).map(random_stream) | st.binary(max_size=120), max_size=30))
    def test_many_producers_change_no_damaged_unit(self, units: list[bytes]) -> None:
        many = [i.to_bytes(10, "big") for i in range(3000)]
        got = rows_of(decode(units, many))
        assert got == [(i, row) for i, unit in enumerate(units) for row in oracle.decode_unit(unit, many)]

    @given(st.integers(0, 2**32).map(random_stream))
    def test_offset_and_length_delimit_the_hashed_body(self, unit: bytes) -> None:
        whole = expand(unit)
        for _, row in rows_of(decode([unit])):
            if row.status < TORN:
                assert xxh64(whole[row.offset : row.offset + row.length]) == row.hash


class TestReuse:
    def test_decoder_works_on_after_damage_and_errors(self) -> None:
        unit, _ = window_of([b"{}"] * 2, compression=3)
        decoder = Decoder(OURS)
        for data in (unit, w(1) + b"2C\0\0\0\2xx", unit):
            got = decoder.decode(data, array("q", [0]), array("q", [len(data)]))
            assert got.status.tolist() == ([OK, OK] if data == unit else [BAD_ZLIB])
        with pytest.raises(ValueError, match="leaves the data"):
            decoder.decode(unit, array("q", [0, 0]), array("q", [len(unit), len(unit) + 1]))
        assert len(decoder.decode(unit, array("q", [0]), array("q", [len(unit)]))) == 2

    @pytest.mark.parametrize("many", [300, 3000])
    def test_events_of_many_producers_are_told_apart(self, many: int) -> None:
        random = Random(5)
        producers = sorted(random.randbytes(10) for _ in range(many))
        units, want = [], []
        for i in range(1000):
            producer = random.randrange(many)
            unit, hashes = window_of(
                [b'{"n":%d}' % i] * random.randint(1, 3), producers[producer], compression=0
            )
            units.append(unit)
            want += [(producer, seq, hash_) for seq, hash_ in hashes.items()]
        got = decode(units, producers)
        columns = zip(got.producer.tolist(), got.sequence.tolist(), got.hash.tolist(), strict=True)
        assert list(columns) == want

    def test_statuses_have_seven_names(self) -> None:
        assert len(STATUS_NAMES) == 7
        assert STATUS_NAMES[TORN] == "torn"
        assert list(range(7)) == [OK, FOREIGN, NO_ID, NOT_JSON, TORN, BAD_ZLIB, BAD_FRAME]


class TestExpand:
    def test_uncompressed_unit_is_unchanged(self) -> None:
        for unit in (
            b"",
            b"2",
            w(0),
            w(2) + j(1) + j(2),
            w(1, 1) + d(1, (b"a", b"b")),
            b"garbage, all of it",
        ):
            assert expand(unit) == unit

    def test_compressed_frames_are_replaced_by_content(self) -> None:
        assert expand(w(2) + c(j(1) + c(j(2)))) == w(2) + j(1) + j(2)
        assert expand(w(2) + j(1) + c(j(2)) + b"rest") == w(2) + j(1) + j(2) + b"rest"

    def test_damaged_stream_is_kept_and_torn_one_opened(self) -> None:
        bad = w(2) + j(1) + b"2C" + struct.pack(">I", 5) + b"xxxxx"
        assert expand(bad) == bad
        torn = zlib.compress(j(1) + j(2))[:-4]
        assert expand(w(2) + b"2C" + u32(len(torn)) + torn) == w(2) + j(1) + j(2)
