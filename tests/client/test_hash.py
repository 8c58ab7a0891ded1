"""XXH64: the compiled implementation, the reference in Python and the reference library agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient._ext.hash import xxh64
from tests import support
from tests.oracle.xxh64 import xxh64 as oracle

pytestmark = pytest.mark.unit

SEEDS = st.sampled_from([0, 42, 43, 2**64 - 1]) | st.integers(0, 2**64 - 1)

# Published by the xxHash project, and what Spark's xxhash64() says of the same bytes.
KNOWN = [(b"", 0, 0xEF46DB3751D8E999), (b"a", 0, 0xD24EC4F1A98C6E5B), (b"abc", 0, 0x44BC2CF5AD770999)]


@pytest.mark.parametrize(("data", "seed", "hash_"), KNOWN)
def test_xxh64_of_known_values(data: bytes, seed: int, hash_: int) -> None:
    assert xxh64(data, seed) == oracle(data, seed) == hash_


@given(st.binary(max_size=200), SEEDS)
def test_xxh64_equals_the_python_reference(data: bytes, seed: int) -> None:
    assert xxh64(data, seed) == oracle(data, seed)


def test_xxh64_of_every_length_and_alignment() -> None:
    block = bytes(i * 7 & 255 for i in range(160))
    for at in range(9):
        for size in range(140):
            assert xxh64(memoryview(block)[at : at + size]) == oracle(block[at : at + size])


@given(st.binary(max_size=3000), SEEDS)
def test_xxh64_equals_the_xxhash_library(data: bytes, seed: int) -> None:
    assert xxh64(data, seed) == support.need("xxhash").xxh64_intdigest(data, seed)


def test_default_seed_is_42() -> None:
    assert xxh64(b"body") == xxh64(b"body", 42)
