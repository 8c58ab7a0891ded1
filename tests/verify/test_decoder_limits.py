"""The bounds of a decoder's results, and the bodies that it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from logclient._ext import logjam, logux, lumberjack, plog
from tests import support
from tests.support import verify_files as files

support.need("numpy")

OURS, OWN = files.event_id("ab" * 10, 7), "größe"
BODIES = [
    b'{"uuid":"%b","request_id":"%b","event.id":"%b","type":"a","id":"%b"}' % ((ident.encode(),) * 4)
    for ident in (OURS, OWN)
] + [b'{"type":"b"}']
CODECS: dict[str, tuple[Any, Any]] = {
    "lumberjack": (lumberjack, lambda body: files.window([body], compress=True)),
    "logjam": (logjam, lambda body: files.message(body, compression=1)),
    "plog": (plog, lambda body: body),
    "logux": (logux, lambda body: b'["sync",1,%b,{"id":[1,0],"time":1}]' % body),
}


@pytest.mark.parametrize("protocol", CODECS)
def test_bodies_and_own_ids_are_kept(protocol: str) -> None:
    codec, wrap = CODECS[protocol]
    decoder = codec.Decoder(b"")
    units = files.columns([wrap(body) for body in BODIES])
    bare = decoder.decode(*units)
    assert (bare.units, bytes(bare.bodies), bytes(bare.own_ids), bare.own_id_ends.tolist()) == (
        3,
        b"",
        b"",
        [],
    )
    decoder.limit(0, 1 << 20)
    found = decoder.decode(*units)
    assert bytes(found.bodies) == b"".join(BODIES)
    assert found.length.tolist() == [len(body) for body in BODIES]
    assert bytes(found.own_ids) == OWN.encode()
    assert found.own_id_ends.tolist() == [len(OWN.encode())] * found.status.tolist().count(codec.FOREIGN)
    assert bytes(decoder.decode(*units).bodies) == b"".join(BODIES)  # nothing is left of the call before


@pytest.mark.parametrize("protocol", CODECS)
def test_a_call_ends_behind_the_unit_that_reaches_a_bound(protocol: str) -> None:
    codec, wrap = CODECS[protocol]
    decoder = codec.Decoder(b"")
    data, offsets, lengths = files.columns([wrap(body) for body in BODIES * 5])
    for rows, body_bytes, expected in (
        (4, 0, 4),
        (0, 1, 1),
        (0, len(BODIES[0]) + 1, 2),
        (4, 1 << 20, 4),
        (99, 0, 15),
    ):
        decoder.limit(rows, body_bytes)
        assert decoder.decode(data, offsets, lengths).units == expected
    decoder.limit(2)
    done = 0
    hashes = []
    while done < len(offsets):
        found = decoder.decode(data, offsets[done:], lengths[done:])
        hashes += found.hash.tolist()
        done += found.units
    assert hashes == [files.xxh64(body) for body in BODIES * 5]


@pytest.mark.parametrize("protocol", CODECS)
def test_hashes_are_left_out_when_they_are_not_wanted(protocol: str) -> None:
    codec, wrap = CODECS[protocol]
    decoder = codec.Decoder(b"")
    units = files.columns([wrap(body) for body in BODIES])
    whole = decoder.decode(*units)
    assert whole.hash.tolist() == [files.xxh64(body) for body in BODIES]
    decoder.limit(0, 1 << 20, hashes=False)
    bare = decoder.decode(*units)
    assert bare.hash.tolist() == [0] * len(BODIES)
    assert bytes(bare.bodies) == b"".join(BODIES)
    for name in ("status", "sequence", "length", "offset", "id_hash"):  # ids are named by their own hashes
        assert getattr(bare, name).tolist() == getattr(whole, name).tolist(), name
    decoder.limit(0)
    assert decoder.decode(*units).hash.tolist() == whole.hash.tolist()


def test_a_rejected_sync_keeps_nothing() -> None:
    decoder = logux.Decoder(b"")
    decoder.limit(0, 1 << 20)
    good = b'["sync",1,%b,{"id":[1,0],"time":1}]' % BODIES[1]
    bad = good[:-1] + b',7,{"id":[2,0],"time":1}]'
    found = decoder.decode(*files.columns([bad, good]))
    assert bytes(found.bodies) == BODIES[1]
    assert bytes(found.own_ids) == OWN.encode()


def test_negative_bounds_are_refused() -> None:
    for bounds in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            lumberjack.Decoder(b"").limit(*bounds)
