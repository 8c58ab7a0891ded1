"""The ids that decoders read, and the producers among which they are found."""

from __future__ import annotations

from bisect import bisect_left
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient._ext.plog import Decoder
from tests.oracle import plog as oracle
from tests.support import verify_files as files
from tests.support.examples import examples

# Many producers share their first bytes.
beginnings = st.sampled_from([b"", b"\0" * 4, b"\xff" * 4, b"\x80" * 8, b"\0" * 9])
tens = st.binary(min_size=10, max_size=10)
names = st.builds(lambda begin, rest: begin + rest[len(begin) :], beginnings, tens)


def sequences_of(found: list[bytes], producers: list[bytes]) -> list[tuple[int, int, tuple[int, int], int]]:
    """Return status, sequence, the name of an own id, and the producer of bodies with these ids."""
    bodies = [b'{"uuid":"%b"}' % ident for ident in found]
    rows = Decoder(b"".join(producers), datagrams=False).decode(*files.columns(bodies))
    words = rows.id_hash.tolist()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return list(zip(rows.status.tolist(), rows.sequence.tolist(), pairs, rows.producer.tolist(), strict=True))


@examples(100)
@given(st.sets(names, max_size=300), st.lists(names, max_size=5), st.integers(0, 1 << 32))
def test_each_producer_is_found_and_no_other(known: set[bytes], others: list[bytes], seed: int) -> None:
    producers = sorted(known)
    draw = Random(seed)
    asked = [*producers, *others]
    for name in producers:
        value = int.from_bytes(name, "big")
        asked += [(value + step & (1 << 80) - 1).to_bytes(10, "big") for step in (-1, 1, -(1 << 16), 1 << 16)]
    draw.shuffle(asked)
    found = sequences_of([(name + b"\0\0\0\0\0\7").hex().encode() for name in asked], producers)
    for name, (_, sequence, _, producer) in zip(asked, found, strict=True):
        at = bisect_left(producers, name)
        assert sequence == 7
        assert producer == (at if at < len(producers) and producers[at] == name else -1)


@pytest.mark.parametrize("many", range(20))
@pytest.mark.parametrize("begin", [b"\0", b"\x7f", b"\xff"])
def test_producers_with_the_same_first_bytes_are_found(begin: bytes, many: int) -> None:
    producers = [begin * 9 + bytes([100 + i]) for i in range(many)]
    others = [b"\0" * 10, b"\xff" * 10, begin * 9 + bytes([99]), begin * 9 + bytes([100 + many])]
    asked = [*producers, *(name for name in others if name not in producers)]
    found = sequences_of([(name + b"\0\0\0\0\0\7").hex().encode() for name in asked], producers)
    assert [producer for *_, producer in found] == [*range(many), *[-1] * (len(asked) - many)]


@pytest.mark.parametrize("at", range(32))
def test_each_digit_of_an_id_is_lower_case_hex(at: int) -> None:
    """Any other character makes it an id of the application's own."""
    ident = b"00112233445566778899aabbccddeeff"
    wrong = [byte for byte in range(256) if byte not in b'"\\' and byte >= 0x20]
    asked = [b"%b%c%b" % (ident[:at], byte, ident[at + 1 :]) for byte in wrong]
    for producers in ([], [bytes.fromhex(ident[:20].decode())]):
        found = sequences_of(asked, producers)
        for one, (status, sequence, name, _) in zip(asked, found, strict=True):
            want = oracle.decode_body(b'{"uuid":"%b"}' % one, producers)
            assert (status, sequence, name) == (want.status, want.sequence, want.id_hash), one
