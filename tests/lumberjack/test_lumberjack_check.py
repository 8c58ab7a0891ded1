"""The check of bodies: whether they are one JSON object, which carriers are taken, and the user's own id."""

import json
import struct
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.lumberjack import FOREIGN, NO_ID, Decoder, check_json
from tests.oracle import lumberjack as oracle
from tests.support.lumberjack_inputs import near_objects, objects, plain_objects

pytestmark = pytest.mark.unit

ID1, ID2 = oracle.ID1_TAKEN, oracle.ID2_TAKEN
BOTH = ID1 | ID2
TOO_BIG = str(2**1024 - 2**970)  # rounds to infinity; one less does not


@pytest.mark.slow
@given(objects)
def test_every_generated_json_object_is_accepted(body: bytes) -> None:
    json.loads(body.decode("utf-8"))
    assert check_json(body) == oracle.check_json(body) is not None


@pytest.mark.slow
@given(near_objects)
@example(b'{"a":1}\x00')
@example(b"\xef\xbb\xbf{}")
def test_check_equals_the_reference_on_damaged_json(body: bytes) -> None:
    assert check_json(body) == oracle.check_json(body)


@pytest.mark.slow
@given(plain_objects)
def test_check_equals_the_reference_on_flat_objects(body: bytes) -> None:
    assert check_json(body) == oracle.check_json(body)


class TestFlatObjects:
    """The fast path: flat objects of 64 bytes to 8 KiB in ASCII, without escapes."""

    BODY = b'{"@timestamp":"2026-01-01T12:34:56.789Z", "log.level":"INFO","n":-12.5e1,"ok":true, "no": null}'

    def test_flat_object_of_any_length_is_accepted(self) -> None:
        for size in (*range(40, 400), *range(8100, 8300)):
            body = self.BODY[:-1] + b',"message":"' + b"x" * (size - len(self.BODY) - 13) + b'"}'
            assert check_json(body) == (0, len(body), 0, None)
            assert check_json(body[:-2] + body[-1:]) is None

    def test_flat_object_cut_anywhere_is_refused(self) -> None:
        for at in range(len(self.BODY)):
            assert check_json(self.BODY[:at]) is None

    @pytest.mark.parametrize("more", [b" ", b"}", b"x", b'"', b"\n", b"\x00", b",", b' "'])
    def test_bytes_after_the_object_are_judged_as_by_the_reference(self, more: bytes) -> None:
        assert check_json(self.BODY + more) == oracle.check_json(self.BODY + more)

    def test_any_changed_byte_is_judged_as_by_the_reference(self) -> None:
        for at in range(len(self.BODY)):
            for c in b'"\\{}[],: \x00\x1f\x7f\x80e@0-tn':
                body = self.BODY[:at] + bytes([c]) + self.BODY[at + 1 :]
                assert check_json(body) == oracle.check_json(body)

    @pytest.mark.parametrize("key", ["@metadata", "event.id", "event", "event.ix", "@metadatx", "evenx"])
    def test_carriers_are_found_at_every_offset(self, key: str) -> None:
        for fill in range(130):
            filler = "x" * fill
            for value in ('"a"', "1", "null"):
                body = f'{{"a":"{filler}","{key}":{value},"b":"{"y" * 64}"}}'.encode()
                assert check_json(body) == oracle.check_json(body)


class TestGrammar:
    @pytest.mark.parametrize("text", [
        "{}", " { } ", '\r\n\t{"a":1}\n', '{"a":"\\ud800"}', '{"":""}', '{"a":-0}', '{"a":0.0e-0}',
        '{"a":[[],{}]}',
        '{"a":1e308}', '{"a":1e-400}', '{"a":0e999999999999}', '{"a":-1.7976931348623157e308}',
        '{"a":"\x7f"}',
        '{"a":true,"b":false,"c":null}', '{"a":"\\u0000"}', '{"a":"\U0010ffff"}', '{"a":1,"a":2}',
        '{"a":12345678901234567890123456789}',
    ])  # fmt: skip
    def test_valid_json_object_is_accepted(self, text: str) -> None:
        json.loads(text)
        assert check_json(text.encode()) is not None

    @pytest.mark.parametrize("text", [
        "", " ", "null", "1", '"a"', "[]", "[{}]", "{", "}", '{"a"', '{"a":', '{"a":1', '{"a":1,',
        '{"a":1,}', "{,}",
        '{"a":1}}', '{"a":1} x', "{} {}", "{'a':1}", '{a:1}', '{"a" 1}', '{"a":01}', '{"a":+1}', '{"a":.5}',
        '{"a":5.}',
        '{"a":1e}', '{"a":1e+}', '{"a":-}', '{"a":0x1}', '{"a":NaN}', '{"a":Infinity}', '{"a":-Infinity}',
        '{"a":tru}',
        '{"a":True}', '{"a":nul}', '{"a":falsey}', '{"a":"\n"}', '{"a":"\t"}', '{"a":"\x00"}',
        '{"a":"\\x41"}',
        '{"a":"\\u12g4"}', '{"a":"\\u123"}', '{"a":"\\', '{"a":[1,]}', '{"a":[1 2]}', '{"a":[}', '{"a":{]}',
        '{"a":1]',
        '{"a":1//\n}', '\ufeff{}', '\u00a0{}', '{"a":1\x00}',
    ])  # fmt: skip
    def test_anything_but_one_json_object_is_refused(self, text: str) -> None:
        assert check_json(text.encode()) is None

    @pytest.mark.parametrize("bad", [
        b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xc3(", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
        b"\xe2\x82",
        b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff", b"\xf0\x9f\x98",
    ])  # fmt: skip
    def test_invalid_utf8_is_refused_at_every_offset(self, bad: bytes) -> None:
        with pytest.raises(UnicodeDecodeError):
            bad.decode()
        for fill in range(70):  # at each place in a block of the vector code
            assert check_json(b'{"a":"' + b"x" * fill + bad + b'"}') is None
            assert check_json(b'{"' + b"x" * fill + bad + b'":1}') is None

    def test_strings_of_every_length_need_their_closing_quote(self) -> None:
        for size in range(200):
            for text in ("x" * size, "é" * size, "x" * size + "\\", "x" * size + '"'):
                body = json.dumps({text: text}, ensure_ascii=False).encode()
                assert check_json(body) == (0, len(body), 0, None)
                assert check_json(body[:-2] + body[-1:]) is None

    def test_nested_object_cut_anywhere_is_refused(self) -> None:
        body = '{"a":["x\\u00e9é",{"b":-1.5e-3,"c":null}],"d":true}'.encode()
        assert check_json(body)
        for at in range(len(body)):
            assert check_json(body[:at]) is None


class TestBounds:
    """Limits beyond which real servers refuse an event, and its window with it."""

    def test_nesting_is_limited_to_max_depth(self) -> None:
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            for inner in ("", "1"):
                if opening != "[" and not inner:
                    continue
                levels = oracle.MAX_DEPTH - 1
                assert check_json(f'{{"a":{opening * levels}{inner}{closing * levels}}}'.encode())
                levels += 1
                assert check_json(f'{{"a":{opening * levels}{inner}{closing * levels}}}'.encode()) is None

    def test_closed_brackets_do_not_count_as_depth(self) -> None:
        assert check_json(f'{{"a":[{"[[]]," * 5000}{{}}]}}'.encode())

    def test_each_bracket_is_closed_by_its_own_kind(self) -> None:
        random = Random(7)
        for _ in range(50):
            opened = [random.choice("[{") for _ in range(random.randint(1, 200))]
            text = "".join("[" if c == "[" else '{"a":' for c in opened)
            ends = ["]" if c == "[" else "}" for c in reversed(opened)]
            body = '{"a":' + text + "0" + "".join(ends) + "}"
            assert check_json(body.encode())
            at = random.randrange(len(ends))
            ends[at] = "]}"[ends[at] == "]"]
            assert check_json(('{"a":' + text + "0" + "".join(ends) + "}").encode()) is None

    @pytest.mark.parametrize(("number", "fits"), [
        ("1e309", False), ("-1e309", False), ("1e400", False), ("1E+400", False), ("0.00001e400", False),
        ("100000e304", False), ("1" + "0" * 309, False), ("1" + "0" * 308, True),
        ("0" + "." + "0" * 400 + "1e700", True),
        (TOO_BIG, False), (str(int(TOO_BIG) - 1), True), (TOO_BIG + ".0", False),
        (str(int(TOO_BIG) - 1) + ".999", True),
        (TOO_BIG[0] + "." + TOO_BIG[1:] + "e308", False), ("17976931348623158e292", True),
        ("1.7976931348623159e308", False), ("0e400", True), ("1e" + "9" * 300, False), ("1e-" + "9" * 300,
        True),
    ])  # fmt: skip
    def test_number_that_overflows_a_double_is_refused(self, number: str, fits: bool) -> None:
        assert (float(number) not in (float("inf"), float("-inf"))) is fits
        assert (check_json(f'{{"a":{number}}}'.encode()) is not None) is fits

    @given(st.integers(1, 10**40), st.integers(280, 320), st.integers(0, 40))
    def test_overflow_is_decided_as_by_python_float(self, digits: int, exponent: int, point: int) -> None:
        text = str(digits)
        text = text[:point] + "." + text[point:] if 0 < point < len(text) else text
        number = f"{text}e{exponent - len(str(digits))}"
        assert (check_json(f'{{"a":{number}}}'.encode()) is None) is (float(number) == float("inf"))

    def test_digits_of_a_number_are_limited(self) -> None:
        for lead in ("0.", "-0."):
            assert check_json(f'{{"a":{lead}{"1" * (oracle.MAX_DIGITS - len(lead))}}}'.encode())
            assert check_json(f'{{"a":{lead}{"1" * (oracle.MAX_DIGITS - len(lead) + 1)}}}'.encode()) is None


class TestCarriers:
    @pytest.mark.parametrize(("text", "taken", "own"), [
        ('{"a":1}', 0, None),
        ('{"@metadata":1}', ID1, None),
        ('{"@metadata":{"_id":"x"}}', BOTH, b"x"),
        ('{"@metadata":{"_id":"x"},"event.id":"y"}', BOTH, b"x"),
        ('{"@metadata":{"id":"x"},"event.id":"y"}', BOTH, b"y"),
        ('{"event":{"id":"z"},"event.id":"y"}', BOTH, b"y"),
        ('{"event.id":"y","event":{"id":"z"}}', BOTH, b"y"),
        ('{"event":{"kind":"k","id":"z","x":{}}}', BOTH, b"z"),
        ('{"event":{"inner":{"id":"z"}}}', 0, None),
        ('{"event":[{"id":"z"}]}', ID2, None),
        ('{"event":"z","x":{"id":"a"}}', ID2, None),
        ('{"x":{"event.id":"y","@metadata":{"_id":"a"}}}', 0, None),
        ('{"x":["event.id","@metadata"]}', 0, None),
        ('{"x":"event.id"}', 0, None),
        ('{"\\u0065vent.id":"y"}', BOTH, b"y"),
        ('{"\\u0040\\u006Detadata":{"\\u005fid":"q"}}', BOTH, b"q"),
        ('{"event\\u002eid":1.5e3}', BOTH, b"1.5e3"),
        ('{"\\u0065vent":{"i\\u0064":null}}', BOTH, b"null"),
        ('{"event\\/id":1,"event.i\\u0164":1,"\\u1065vent.id":1}', 0, None),
        ('{"event.id":{"$oid":["a", {}]}, "b":[]}', BOTH, b'{"$oid":["a", {}]}'),
        ('{"event.id":[],"b":{}}', BOTH, b"[]"),
        ('{"event.id":{}}', BOTH, b"{}"),
        ('{"event.id":"a\\"b\\u0041"}', BOTH, b'a\\"b\\u0041'),
        ('{"event.id":"a","event.id":"b"}', BOTH, b"b"),
        ('{"event":{"id":"a"},"event":{}}', 0, None),
        ('{"event":{"id":"a"},"event":1}', ID2, None),
        ('{"event":1,"event":{"x":"a"}}', 0, None),
        ('{"event":1,"@metadata":{"x":"a"}}', ID1, None),
        ('{"event":1,"event.id":"%s"}' % ("x" * 64), BOTH, b"x" * 64),
        ('{"event":"%s"}' % ("x" * 64), ID2, None),
        ('{"@metadata":{"_id":"a"},"@metadata":{}}', ID1, None),
        ('{"event.ids":1,"event.i":1,"@metadat":1,"@metadataa":1,"even":{"id":1},"events":{"id":1}}', 0,
        None),
    ])  # fmt: skip
    def test_carriers_taken_and_own_id_are_reported(self, text: str, taken: int, own: bytes | None) -> None:
        body = text.encode()
        assert check_json(body) == (0, len(body), taken, own)
        assert oracle.check_json(body) == (0, len(body), taken, own)

    def test_white_space_around_the_object_is_excluded(self) -> None:
        assert check_json(b' \r\n{ "a" : 1 }\t\n') == (3, 14, 0, None)


def check_pairs(block: bytes) -> tuple[int, bytes | None] | None:
    """Walk a block as the decoder does, which shares that with the writer."""
    unit = b"1W\0\0\0\x011D\0\0\0\x01" + block
    decoder = Decoder()
    decoder.limit(0, 1 << 20)
    events = decoder.decode(unit, struct.pack("q", 0), struct.pack("q", len(unit)))
    if list(events.status) == [FOREIGN]:
        return ID2, bytes(events.own_ids)
    return (0, None) if list(events.status) == [NO_ID] else None


class TestPairs:
    blocks = st.lists(
        st.tuples(st.sampled_from([b"event.id", b"line", b""]) | st.binary(max_size=9),
        st.binary(max_size=9)),
        max_size=5,
    ).map(oracle.join_pairs)  # fmt: skip

    @given(blocks, st.binary(max_size=3), st.integers(0, 40))
    def test_check_of_pairs_equals_the_reference(self, block: bytes, more: bytes, cut: int) -> None:
        assert check_pairs(block) == oracle.check_pairs(block) is not None
        for body in (block + more, block[:cut], block[:cut] + more + block[cut:]):
            assert check_pairs(body) == oracle.check_pairs(body)

    def test_lengths_beyond_the_block_are_refused(self) -> None:
        for body in (b"", b"\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\1\xff\xff\xff\xff",
        b"\0\0\0\1\0\0\0\1a\xff\xff\xff\xffb",
                     b"\0\0\0\0x"):  # fmt: skip
            assert check_pairs(body) is None
        assert check_pairs(b"\0\0\0\0") == (0, None)
