"""Compression by isal, libz and Python's zlib: the bytes are plain zlib, and nothing else differs."""

import sys
import types
import zlib
from array import array
from collections.abc import Callable
from random import Random

import pytest

from logclient._ext.logjam import LINKED
from logclient._ext.lumberjack import BAD_ZLIB, NO_ID, Codec, Decoder
from logclient.lumberjack.reader import Reader
from tests import support
from tests.lumberjack.frames import c, cz, j, w
from tests.support.batches import inflight_of


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What compresses levels 1 to 3: the linked library, or Python's package in its place."""
    name: str = request.param
    if name == "isal" and name not in LINKED:
        support.need("isal")
    if name == "zlib":
        if "isal" in LINKED:
            pytest.skip("this build is linked to ISA-L, and always calls it")
        monkeypatch.setitem(sys.modules, "isal", None)
    return name


def compressor(library: str, level: int) -> str:
    name = f"{library} 1" if library == "isal" and 1 <= level <= 3 else f"zlib {level}"
    return name if name.split()[0] in LINKED else f"python {name}"


def compressed(codec: Codec, bodies: list[bytes]) -> bytes:
    in_flight, batch = inflight_of([(b, 0) for b in bodies])
    codec.connected(0.0)
    assert codec.encode(batch.capsule, len(bodies), 0.0) == len(bodies)
    in_flight.encoded(batch)
    return codec.take_bytes()


BODIES = {
    "one": [b"{}"],
    "many": [b'{"n":%d,"text":"%s"}' % (i, b"same " * (i % 20)) for i in range(3000)],
    "random": [b'{"r":"%s"}' % Random(i).randbytes(400).hex().encode() for i in range(1000)],
    "large": [b'{"a":"%s"}' % Random(1).randbytes(1 << 20).hex().encode()],
    "flat": [b'{"a":"%s"}' % (b"x" * (5 << 20))],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("level", [1, 2, 3, 4, 9])
def test_each_library_makes_plain_zlib(library: str, name: str, level: int) -> None:
    bodies = BODIES[name]
    codec = Codec(bytes(10), compression=level, identity=False, window=10_000, window_bytes=1 << 28)
    assert codec.compressor == compressor(library, level)
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


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 131_072, 300_000])
@pytest.mark.parametrize("made", [bytes, Random(2).randbytes], ids=["zeros", "random"])
def test_the_bound_is_exact(library: str, size: int, made: Callable[[int], bytes]) -> None:
    """Whatever the pieces are that a library inflates at a time, and whatever stands behind the stream."""
    frame = j(1, b'"%s"' % made(size // 2).hex().encode())
    unit = w(1) + cz(zlib.compress(frame) + b"more")
    (window,) = Reader(max_inflated=len(frame)).receive_data(unit)
    assert len(window.events[0]) == len(frame) - 10
    reader = Reader(max_inflated=len(frame) - 1)
    assert reader.receive_data(unit) == []
    assert reader.error is not None and "inflate to more than" in reader.error


def test_decoder_inflates_and_bounds_alike(library: str) -> None:
    units = [w(2) + c(j(1) + j(2)), w(1) + cz(b"xxxxxxxx"), w(1) + c(bytes(1 << 20)), w(1) + c(c(j(1)))]
    offsets = array("q", (sum(map(len, units[:i])) for i in range(len(units))))
    got = Decoder(max_inflated=1000).decode(b"".join(units), offsets, array("q", map(len, units)))
    assert got.status.tolist() == [NO_ID, NO_ID, BAD_ZLIB, BAD_ZLIB, NO_ID]


class Broken(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        raise OSError("built for another machine")


@pytest.mark.skipif("isal" in LINKED, reason="this build never looks for the package")
@pytest.mark.parametrize("package", [types.ModuleType("isal"), Broken("isal")])
def test_a_broken_isal_is_not_used(package: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", package)
    monkeypatch.delitem(sys.modules, "isal.isal_zlib", raising=False)
    assert Codec(bytes(10)).compressor == compressor("zlib", 3)


def test_a_linked_library_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    if not {"zlib", "isal"} <= set(LINKED):
        pytest.skip("this build is not linked to zlib and ISA-L")
    for name in ("isal", "isal.isal_zlib", "zlib"):
        monkeypatch.setitem(sys.modules, name, None)
    for level in (3, 9):
        bodies = BODIES["many"]
        codec = Codec(bytes(10), compression=level, identity=False, window=10_000, window_bytes=1 << 28)
        (window,) = Reader().receive_data(compressed(codec, bodies))
        assert window.events == bodies
