"""The columns of bodies against plain Python: random documents, and damaged ones."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient._ext.documents import DocumentReader, join
from logclient.evidence import decode
from tests import support
from tests.oracle import documents as oracle
from tests.oracle.lumberjack import join_pairs

np = support.need("numpy")
support.need("pyarrow")
arrow = pytest.importorskip("logclient.verify.dataframes.arrow")

NAMES = [
    "@timestamp", "timestamp", "started_ms", "log.level", "level", "severity", "message", "line", "lines",
    "label", "data", "log", "a", "b.c", "größe", "\ud83d\ude00", "x\ud800", 'q"\\/\n', "",
]  # fmt: skip
TIMES = [
    "2026-11-21T18:03:11.152093Z", "2026-02-29T00:00:00Z", "2024-02-29 23:59:60,5+01:30",
    "1969-12-31T23:59:59",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9999999-2359", "2026-11-21T18:03:11.", "2026-11-21", "now",
    "2026-13-01T00:00:00Z", "2026-11-21T18:03:11+1:00", "２026-11-21T18:03:11Z", "2026-11-21T18:03:11Zz",
]  # fmt: skip


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(13 if depth < 3 else 9)
    if kind < 2:
        return rng.choice(TIMES)
    if kind < 4:
        return "".join(rng.choice('aB€"\\/\n\t\b\f\r\x1f😀\ud800\udc00 ') for _ in range(rng.randrange(12)))
    if kind < 6:
        return rng.choice([0, 1, 5, 6, 9, -1, 1795179630668, -62135596800001, 253402300800000, 10**30])
    if kind == 6:
        return rng.choice([None, True, False])
    if kind == 7:
        return rng.choice([1.5, 1795179630668.1239, -0.001, 1e22])
    if kind == 8:
        return rng.choice(["INFO", "Warning", "hello", ""])
    if kind == 9:
        return [
            [rng.randrange(6), "t", rng.choice(["one", 'tw"o', "dr€i"]), 4] for _ in range(rng.randrange(3))
        ]
    if kind == 10:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return mapping(rng, depth + 1)


def mapping(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    n = rng.choice([0, 1, 3, 6, 9, 12, 40]) if depth == 0 else rng.randrange(4)
    names = NAMES if rng.random() < 0.8 else [f"name {i}" for i in range(60)]
    made = {rng.choice(names): value(rng, depth) for _ in range(n)}
    if rng.random() < 0.2:
        made["log"] = {"level": rng.choice(["WARN", 3, None])}
    return made


def body(rng: random.Random, protocol: str) -> bytes:
    kind = rng.random()
    if kind < 0.05:
        return rng.choice(
            [b"", b"[1]", b'"text"', b"plain \xff text \xe2\x82", b"{", b"{}x", b"1", b"{1}", b" "]
        )
    if protocol == "lumberjack" and kind < 0.15:
        made = {
            name.encode("utf-8", "replace"): str(value(rng)).encode("utf-8", "replace") for name in NAMES[:9]
        }
        raw = join_pairs(list(made.items()))
        return (
            raw if rng.random() < 0.8 else raw[:-1] if rng.random() < 0.5 else raw.replace(b"a", b"\xff", 1)
        )
    options = rng.choice([{}, {"separators": (",", ":")}, {"indent": 1}])
    text = json.dumps(mapping(rng), ensure_ascii=rng.random() < 0.5, **options)
    if rng.random() < 0.2:
        # An equal name, later.
        again = json.dumps({rng.choice(NAMES): value(rng)})
        text = text[:-1] + ("," if len(text) > 2 else "") + again[1:]
    raw = text.encode("utf-8", "replace" if rng.random() < 0.9 else "surrogatepass")
    return rng.choice([b"", b" ", b"\r\n"]) + raw + rng.choice([b"", b"\n\t "])


def rows(protocol: str, bodies: list[bytes], fields: bool = True) -> list[tuple[Any, ...]]:
    reader = DocumentReader(**decode.wire(protocol).DOCUMENT)
    edges = np.cumsum([0, *map(len, bodies)])
    found = reader.read(b"".join(bodies), edges, fields=fields)
    time = np.frombuffer(found.time, np.int64).tolist()
    valid = np.frombuffer(found.time_valid, np.uint8).tolist()
    maps = arrow.fields(found.field_ends, found.field_valid, found.keys, found.values)
    maps.validate(full=True)
    columns = [arrow.text(found.level), arrow.text(found.message)]
    for column in columns:
        column.validate(full=True)
    dicts = [None if pairs is None else dict(pairs) for pairs in maps.to_pylist()]
    for pairs, one in zip(maps.to_pylist(), dicts, strict=True):
        assert pairs is None or len(pairs) == len(one)  # names are distinct
    times = [at if ok else None for at, ok in zip(time, valid, strict=True)]
    return list(zip(times, *(column.to_pylist() for column in columns), dicts, strict=True))


@pytest.mark.parametrize("protocol", oracle.RULES)
@pytest.mark.parametrize("seed", range(4))
def test_random_documents_equal_the_reference(protocol: str, seed: int) -> None:
    rng = random.Random(f"{protocol} {seed}")
    bodies = [body(rng, protocol) for _ in range(1000)]
    found = rows(protocol, bodies)
    for raw, row in zip(bodies, found, strict=True):
        assert row == tuple(oracle.document(protocol, raw)), raw
    without = rows(protocol, bodies, fields=False)
    assert [row[:3] for row in without] == [row[:3] for row in found]
    assert not any(row[3] for row in without)


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=12)
NAMED = TEXTS | st.sampled_from(NAMES)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    PLAIN | TEXTS | st.sampled_from([*TIMES, 5, 1795179630668]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMED, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.builds(
    lambda made, pure, indent: json.dumps(made, ensure_ascii=pure, indent=indent).encode("utf-8", "replace"),
    st.dictionaries(NAMED, VALUES, max_size=12),
    st.booleans(),
    st.sampled_from([None, 0, 1]),
)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", oracle.RULES)
@given(bodies=st.lists(BODIES | st.binary(max_size=30), min_size=1, max_size=6), cut=st.integers(0, 6))
def test_any_documents_equal_the_reference(protocol: str, bodies: list[bytes], cut: int) -> None:
    """However many are read in one call."""
    found = rows(protocol, bodies)
    assert found == rows(protocol, bodies[:cut]) + rows(protocol, bodies[cut:])
    for raw, row in zip(bodies, found, strict=True):
        assert row == tuple(oracle.document(protocol, raw))


@pytest.mark.parametrize(
    "value", [b"!", b"01", b"1.", b"nul", b"tru", b'{"b":!}', b"[1,]", b'"\\q"', b'{"b":}', b"[1}", b'"\x01"']
)
def test_wrong_json_anywhere_gives_no_fields(value: bytes) -> None:
    raw = b'{"message":"x","a":%s}' % value
    assert rows("lumberjack", [raw]) == [(None, None, None, None)]
    assert rows("plog", [raw]) == [(None, None, raw.decode(), None)]


END = b',"message":"x"}'
HOSTILE = {
    "deep lists": b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + END,
    "deep data": b'{"data":' + b'{"data":' * 100_000 + b"1" + b"}" * 100_000 + END,
    "deep log": b'{"log":' + b'{"log":' * 100_000 + b"1" + b"}" * 100_000 + END,
    "open lists": b'{"message":' + b"[" * 1_000_000 + b"}",
    "a huge number": b'{"@timestamp":' + b"9" * 1_000_000 + b',"level":' + b"7" * 100_000 + END,
    "a long fraction": b'{"@timestamp":"2026-11-21T18:03:11.' + b"1" * 1_000_000 + b'Z"' + END,
    "many escapes": b'{"message":"' + b"\\u0041" * 100_000 + b'"}',
    "wrong escapes": b'{"message":"' + b"\\q" * 100_000 + b'","' + b"\\u00" * 100_000 + b'":1}',
    "a cut escape": b'{"message":"\\u12"}',
    "a cut surrogate": b'{"message":"\\ud83d\\ude"}',
    "equal names": b'{"a":1' + b',"a":1' * 100_000 + END,
    "many names": b'{"a":1' + b"".join(b',"%d":%d' % (i, i) for i in range(100_000)) + END,
    "more pairs than bytes": b"\0\0\0\7\0\0\0\4line\xff\xff\xff\xff",
}
REFUSED = {"deep lists", "deep data", "deep log", "a huge number"}
"""JSON that Logstash refuses: more than 1,000 levels, or digits of a number."""


@pytest.mark.parametrize("protocol", oracle.RULES)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_documents_cost_no_more_than_their_size(protocol: str, kind: str) -> None:
    """They are read to their end, and no column is larger than they are, but for offsets."""
    raw = HOSTILE[kind]
    found = DocumentReader(**decode.wire(protocol).DOCUMENT).read(raw, np.array([0, len(raw)]))
    for data, ends, _ in (found.level, found.message, found.keys, found.values):
        assert memoryview(data).nbytes <= 2 * len(raw)
        assert memoryview(ends).nbytes <= 4 * len(raw) + 8
    [message] = arrow.text(found.message).to_pylist()
    if kind in REFUSED:
        assert message == (raw.decode() if oracle.RULES[protocol].text else None)
        assert arrow.text(found.keys).to_pylist() == []
    elif raw.endswith(END):
        assert message == "x"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", oracle.RULES)
def test_damaged_documents_are_read_without_a_fault(protocol: str) -> None:
    """Nothing is said about the columns; whatever they have is valid text."""
    rng = random.Random(protocol)
    bodies = []
    for _ in range(2000):
        raw = bytearray(body(rng, protocol))
        for _ in range(rng.randrange(4)):
            if raw:
                at = rng.randrange(len(raw))
                raw[at : at + rng.randrange(3)] = rng.choice(
                    [b"", b'"', b"\\", b"\\u12", b"{", b"]", b"\xff"]
                )
        bodies.append(bytes(raw))
    rows(protocol, bodies)


def test_many_names_are_found_again() -> None:
    made = {f"name {i}": i for i in range(3000)}
    text = json.dumps(made)[:-1] + "," + json.dumps({name: str(i) for name, i in made.items()})[1:]
    [(_, _, _, fields)] = rows("lumberjack", [text.encode()])
    assert fields == {name: str(i) for name, i in made.items()}


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8 names"):
        DocumentReader(time=["x"] * 9)
    with pytest.raises(ValueError, match="at most 10 levels"):
        DocumentReader(levels=["x"] * 11)
    reader = DocumentReader()
    for edges in ([], [0, 5], [-1, 2], [0, 3, 1], [0, 1 << 40, 3], [0, -(1 << 40), 3]):
        with pytest.raises(ValueError, match="edges must"):
            reader.read(b"abcd"[:3], np.array(edges, np.int64))
    with pytest.raises(ValueError, match="slice 1 leaves the data of 3 bytes"):
        join(b"abc", np.array([0, 2]), np.array([1, 2]))
    assert bytes(join(b"abc", np.array([2, 0]), np.array([1, 2]))) == b"cab"
