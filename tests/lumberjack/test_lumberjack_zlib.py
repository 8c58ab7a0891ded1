"""Compression by isal, libz and Python's zlib: the bytes are plain zlib, and nothing else differs."""

import sys
import types
import zlib
from array import array
from random import Random

import pytest

from logclient._ext.lumberjack import BAD_ZLIB, NO_ID, Codec, Decoder, Reader
from logclient._ext.queue import WAKE
from tests import support
from tests.lumberjack.frames import c, cz, j, w
from tests.support.batches import inflight_of

PYTHON = types.ModuleType("zlib")
"""Python's zlib as it is where no libz with names can be found (Windows, a static interpreter)."""
PYTHON.__dict__.update(
    {name: getattr(zlib, name) for name in ("compress", "decompress", "decompressobj", "error")}
)
PYTHON.__file__ = "/nowhere/zlib.so"


@pytest.fixture(params=["isal", "libz", "python"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name != "python" and WAKE == "condition":
        pytest.skip("Windows looks no library up")
    if name == "isal":
        support.need("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal", None)
    if name == "python":
        monkeypatch.setitem(sys.modules, "zlib", PYTHON)
    return name


def compressed(codec: Codec, bodies: list[bytes]) -> bytes:
    in_flight, batch = inflight_of([(b, 0) for b in bodies])
    codec.connected(0.0)
    assert codec.encode(batch.capsule, len(bodies), 0.0) == len(bodies)
    in_flight.encoded(batch)
    data = b"".join(map(bytes, codec.buffers()))
    codec.sent()
    return data


BODIES = {
    "one": [b"{}"],
    "many": [b'{"n":%d,"text":"%s"}' % (i, b"same " * (i % 20)) for i in range(3000)],
    "random": [b'{"r":"%s"}' % Random(i).randbytes(400).hex().encode() for i in range(1000)],
    "large": [b'{"a":"%s"}' % Random(1).randbytes(1 << 20).hex().encode()],
    "flat": [b'{"a":"%s"}' % (b"x" * (5 << 20))],
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("level", [1, 3, 4, 9])
def test_each_library_makes_plain_zlib(library: str, name: str, level: int) -> None:
    bodies = BODIES[name]
    codec = Codec(bytes(10), compression=level, identity=False, window=10_000, window_bytes=1 << 28)
    if library != "isal" or level < 4:
        found = {"isal": "isal 1", "libz": "zlib", "python": "python zlib"}[library]
        assert codec.compressor.startswith(found)
    for _ in range(2):  # the compressor's state is used again
        data = compressed(codec, bodies)
        assert data[12] == 0x78  # deflate, 32 KiB
        plain = zlib.decompress(data[12:])
        assert plain == b"".join(j(i, b) for i, b in enumerate(bodies, 1))
        (window,) = Reader().receive_data(data)
        assert window.events == bodies


def test_level_0_of_version_1_is_stored_zlib(library: str) -> None:
    codec = Codec(bytes(10), version=1, compression=0, identity=False)
    data = compressed(codec, [b"\0\0\0\1\0\0\0\1a\0\0\0\1b"])
    assert zlib.decompress(data[12:]) == b"1D\0\0\0\1\0\0\0\1\0\0\0\1a\0\0\0\1b"


def test_reader_inflates_and_bounds_alike(library: str) -> None:
    assert len(Reader().receive_data(w(3) + c(j(1) + c(j(2))) + c(b"") + j(3))) == 1
    for stream, words in (
        (b"xxxxxxxx", "no zlib stream"), (zlib.compress(j(1))[:-1] + b"?", "no zlib stream"),
        (zlib.compress(bytes(2 << 20)), "inflate to more than 1048576 bytes"),
    ):  # fmt: skip
        reader = Reader(max_inflated=1 << 20)
        assert reader.receive_data(w(1) + cz(stream)) == []
        assert reader.error is not None
        assert words in reader.error
    exact = Reader(max_inflated=len(j(1)))
    assert len(exact.receive_data(w(1) + c(j(1)))) == 1
    unfinished = zlib.compressobj()
    stream = unfinished.compress(j(1)) + unfinished.flush(zlib.Z_SYNC_FLUSH)
    assert len(Reader().receive_data(w(1) + cz(stream) + w(1) + cz(zlib.compress(j(1)) + b"more"))) == 2


def test_decoder_inflates_and_bounds_alike(library: str) -> None:
    units = [w(2) + c(j(1) + j(2)), w(1) + cz(b"xxxxxxxx"), w(1) + c(bytes(1 << 20)), w(1) + c(c(j(1)))]
    offsets = array("q", (sum(map(len, units[:i])) for i in range(len(units))))
    got = Decoder(max_inflated=1000).decode(b"".join(units), offsets, array("q", map(len, units)))
    assert got.status.tolist() == [NO_ID, NO_ID, BAD_ZLIB, BAD_ZLIB, NO_ID]


@pytest.mark.parametrize("attributes", [
    {"ISAL_MAJOR_VERSION": 3}, {}, {"ISAL_MAJOR_VERSION": 2},
    {"ISAL_MAJOR_VERSION": 2, "igzip_lib": types.ModuleType("igzip_lib")},
    {"ISAL_MAJOR_VERSION": 2, "igzip_lib": zlib},  # loaded, but without its functions
])  # fmt: skip
def test_unknown_isal_module_is_not_used(
    attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = types.ModuleType("isal")
    fake.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, "isal", fake)
    monkeypatch.delitem(sys.modules, "isal.igzip_lib", raising=False)
    assert "isal" not in Codec(bytes(10)).compressor
