"""Logjam's four compressions: the bytes on the wire, the choice of `auto`, and bombs.

Other decoders open what we send: Python's zlib what ISA-L has compressed, and for blocks plain Python in
``tests/oracle/blocks.py`` besides the packages.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logclient
from logclient._ext.logjam import LINKED, pack
from logclient.codec import Connection, Settled
from logclient.files.capture import CaptureWriter
from logclient.logjam import core as logjam_core
from logclient.logjam.core import AUTO, Logjam
from logclient.logjam.messages import COMPRESSIONS
from tests import support
from tests.oracle import logjam as oracle
from tests.oracle.blocks import lz4_block, snappy_block
from tests.oracle.importer import ABORTS, DROPPED, HANGS, TAKEN, treatment
from tests.support.configs import config_for
from tests.support.measured_process import MIB, MeasuredProcess
from tests.support.patience import PATIENCE
from tests.support.pumps import refuse_pump

zmq = pytest.importorskip("zmq")

from logclient.transports.zmq import Zmq  # noqa: E402
from tests.support.logjam_rig import (  # noqa: E402
    ACCEPTED,
    APP_ENV,
    DEADLINE,
    TOPIC,
    DeviceProcess,
    Producer,
    message,
)

METHODS = range(4)
PACKAGES = {2: "snappy", 3: "lz4.block"}


def need(method: int) -> Any:
    return support.need(PACKAGES.get(method, "zlib"))


# -- on the wire --------------------------------------------------------------------------------


def by_cramjam(body: bytes) -> bytes:
    return bytes(support.need("cramjam").snappy.decompress_raw(body))


def by_lz4(body: bytes) -> bytes:
    (size,) = struct.unpack_from(">I", body)
    return bytes(support.need("lz4.block").decompress(body[4:], uncompressed_size=size))


def by_lz4_text(body: bytes) -> bytes:
    return lz4_block(body[4:], int.from_bytes(body[:4], "big"))


DECODERS: dict[int, list[Callable[[bytes], bytes]]] = {
    0: [bytes],
    1: [zlib.decompress],
    2: [snappy_block, by_cramjam],
    3: [by_lz4_text, by_lz4],
}


def bodies() -> list[bytes]:
    """Make bodies that shrink much, little and not at all."""
    randomly = Random(5)
    lines = [[1, f"2026-11-20T06:13:52.{n:06d}", f"export row {n * n}"] for n in range(400)]
    return [
        b"{}",
        json.dumps({"lines": lines[:3]}).encode(),
        json.dumps({"lines": lines}).encode(),
        json.dumps({"line": "x" * 100_000}).encode(),
        json.dumps({"line": randomly.randbytes(3000).hex()}).encode(),  # shrinks to a half
        b'{"line":"%s"}' % bytes(randomly.choices(range(35, 91), k=20_000)),  # hardly shrinks
        *[b'{"line":"%s"}' % (b"ab" * n) for n in (490, 500, 505, 510, 515, 4096, 32_768)],
    ]


class Shipment(NamedTuple):
    producer: bytes
    arrived: list[list[bytes]]  # frames, from the app-env on
    compressor: str


def ship(scheme: str, compression: str, sent: list[bytes]) -> Shipment:
    """Send bodies to a plain socket of pyzmq."""
    push = scheme == "logjam+push"
    with zmq.Context() as context, context.socket(zmq.PULL if push else zmq.ROUTER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        port = sock.bind_to_random_port("tcp://127.0.0.1")
        url = f"{scheme}://127.0.0.1:{port}/{APP_ENV.decode()}"
        with logclient.connect(url, compression=compression) as client:
            for body in sent:
                assert client.send(body)
            arrived = []
            for _ in sent:
                assert sock.poll(DEADLINE)
                frames = sock.recv_multipart()
                if not push:
                    sender, empty, *frames = frames
                    assert empty == b""
                    sock.send_multipart([sender, APP_ENV, b"202 Accepted"])
                arrived.append(frames)
            assert client.flush(PATIENCE) == 0
            stats = client.stats()
            assert (stats.handed if push else stats.acked) == len(sent)
            return Shipment(bytes.fromhex(stats.producer), arrived, stats.compressor)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["C", "Python", "push"])
def test_other_decoders_open_what_we_send(how: str, method: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "Python":
        monkeypatch.setattr(Zmq, "load_pump", refuse_pump("a test needs the link in Python"))
    need(method)
    sent = bodies()
    shipment = ship("logjam+push" if how == "push" else "logjam", COMPRESSIONS[method], sent)
    assert shipment.compressor.removeprefix("python ").split()[0] in (COMPRESSIONS[method], "isal")
    compressed = 0
    for seq, (body, frames) in enumerate(zip(sent, shipment.arrived, strict=True), 1):
        app_env, topic, payload, meta = frames
        assert (app_env, topic) == (APP_ENV, TOPIC)
        tag, used, version, device, _, number = struct.unpack(">HBBIQQ", meta)
        assert (tag, version, device, number) == (0xCABD, 1, 0, seq)
        carried = oracle.carried(body, seq, shipment.producer, TOPIC)
        assert carried is not None
        assert used in (0, method) and (used == 0 or len(payload) < len(carried))
        for opens in DECODERS[used]:
            assert opens(payload) == carried
        compressed += used > 0
    assert compressed >= (0, 11, 9, 9)[method]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(METHODS),
    st.sampled_from([0, 1, 64, 1024]),
    st.lists(
        st.builds(lambda part, n: b'{"a":"%s"}' % (part.hex().encode() * n), st.binary(max_size=60),
                  st.integers(0, 60)),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_importers_accept_every_body_we_send(method: int, over: int, sent: list[bytes]) -> None:
    """No body hangs or aborts an importer, and none is dropped."""
    need(method)
    options = config_for(
        "logjam", f"/{APP_ENV.decode()}", compression=COMPRESSIONS[method], compress_over=over
    )
    connection = Connection(Logjam(options, bytes(10)))
    connection.connected(0.0)
    for body in sent:
        connection.put(body)
    data = connection.send(0.0)
    for seq, (body, frames) in enumerate(zip(sent, oracle.split(data), strict=True), 1):
        carried = oracle.carried(body, seq, bytes(10), TOPIC)
        assert treatment(frames[4][2], frames[3]) == (TAKEN, carried)
        assert treatment(method, pack(method, body)) == (TAKEN, body)  # as a device with recompress sends it


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_body_unpacks_to_more_than_64_mib(method: int) -> None:
    """Beyond 64 MiB an importer loops for ever or aborts, depending on the compression."""
    need(method)
    most = oracle.MAX_BODY - 49  # room for the id
    options = config_for("logjam", f"/{APP_ENV.decode()}", compression=COMPRESSIONS[method])
    connection = Connection(Logjam(options, bytes(10)))
    connection.connected(0.0)
    for n in (1, 0):
        connection.put(b'{"a":"%s"}' % (b"x" * (most - 8 + n)))
    ((*_, payload, meta),) = oracle.split(connection.send(0.0))
    assert connection.events() == [Settled(1, 1, "failed", "too_large")]
    assert meta[2] == method
    content = oracle.unpack(method, payload)
    assert oracle.MAX_BODY - 1 <= len(content) <= oracle.MAX_BODY
    assert content.count(b"x") == most - 8


TEXT = b'{"a":"%s"}' % (b"x" * 2000)


def framings() -> dict[str, tuple[int, bytes, str]]:
    """Return name -> (method, body, what an importer does): bodies that we must never send, nor open."""
    raw = zlib.compressobj(wbits=-15)
    stream = zlib.compress(TEXT)
    block, frame = support.need("lz4.block"), support.need("lz4.frame")
    snappy = support.need("snappy")
    bare = bytes(block.compress(TEXT, store_size=False))
    return {
        "zlib, as gzip": (1, gzip.compress(TEXT), HANGS),
        "zlib, raw deflate": (1, raw.compress(TEXT) + raw.flush(), HANGS),
        "zlib, cut": (1, stream[:-1], HANGS),
        "zlib, empty": (1, b"", HANGS),
        "snappy, framed": (2, bytes(snappy.StreamCompressor().compress(TEXT)), DROPPED),
        "snappy, cut": (2, bytes(snappy.compress(TEXT))[:-1], DROPPED),
        "snappy, empty": (2, b"", DROPPED),
        "snappy, 4 GiB announced": (2, b"\xff\xff\xff\xff\x0f" + bytes(100), ABORTS),
        "snappy, over 4 GiB announced": (2, b"\xff\xff\xff\xff\x7f" + bytes(100), DROPPED),
        "lz4 frame": (3, bytes(frame.compress(TEXT)), ABORTS),
        "lz4, the package's little-endian length": (3, bytes(block.compress(TEXT)), ABORTS),
        "lz4, bare": (3, bare, ABORTS),
        "lz4, 4 GiB announced": (3, b"\xff\xff\xff\xff" + bare, ABORTS),
        "lz4, cut": (3, struct.pack(">I", len(TEXT)) + bare[:-1], DROPPED),
        "lz4, empty": (3, b"", DROPPED),
        "unknown": (9, TEXT, DROPPED),
    }


# -- compression=auto ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "held", "chosen"),
    [
        ("", "", "snappy"),
        ("", "snappy", "lz4"),
        ("snappy", "", "lz4"),
        ("lz4", "snappy", "zlib"),
        ("snappy lz4", "", "zlib"),
        ("", "snappy lz4 zlib", "snappy"),
        ("snappy", "lz4 zlib", "lz4"),
        ("snappy lz4", "zlib", "zlib"),
    ],
)
def test_auto_prefers_what_runs_without_the_gil(
    missing: str, held: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of snappy, lz4 and zlib that runs without the GIL is chosen, otherwise the first
    installed one."""

    class Codec:
        def __init__(self, *_: Any, compression: int, **__: Any) -> None:
            self.compressor = COMPRESSIONS[compression]
            self.holds_gil = self.compressor in held.split()
            if self.compressor in missing.split():
                raise ValueError("not installed")

    monkeypatch.setattr(logjam_core, "Codec", Codec)
    assert Logjam(config_for("logjam", "/a-b"), bytes(10)).compressor == chosen


@pytest.mark.parametrize("gone", [[], ["snappy"], ["lz4"], ["snappy", "lz4"], ["snappy", "lz4", "isal"]])
def test_auto_by_what_is_here(gone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that this build is linked to needs no package; a package is called with the GIL."""
    for package in ("snappy", "lz4.block", "isal"):
        support.need(package)
    for name in gone:
        for package in [name, *(one for one in sys.modules if one.startswith(f"{name}."))]:
            monkeypatch.setitem(sys.modules, package, None)
    zlib_is = "isal 1" if "isal" in LINKED or "isal" not in gone else "zlib 3"
    there = [name for name in ("snappy", "lz4") if name in LINKED or name not in gone] + [zlib_is]
    linked = [name for name in there if name.split()[0] in LINKED]
    core = Logjam(config_for("logjam", "/a-b"), bytes(10))
    assert core.compressor == (linked[0] if linked else f"python {there[0]}")


def test_chosen_compression_is_in_stats_and_meta() -> None:
    shipment = ship("logjam", "auto", [b'{"a":"%s"}' % (b"x" * 2000)])
    name = shipment.compressor.removeprefix("python ").split()[0]
    name = {"isal": "zlib"}.get(name, name)
    assert name in AUTO
    assert shipment.arrived[0][3][2] == COMPRESSIONS.index(name)


# -- bombs and other framings -------------------------------------------------------------------

LIMIT = 64 << 20


def bombs() -> dict[str, tuple[int, bytes, str]]:
    """Return name -> (method, body, what an importer does)."""
    block, snappy = support.need("lz4.block"), support.need("snappy")
    spaces = bytes(LIMIT + 1)
    nothing = bytes(300_000)
    piece = zlib.compressobj(9, wbits=-15)
    mebibyte = piece.compress(bytes(MIB)) + piece.flush(zlib.Z_FULL_FLUSH)
    return {
        "zlib, 16 GiB": (1, b"\x78\xda" + 16384 * mebibyte, HANGS),
        "zlib, 64 MiB and a byte": (1, zlib.compress(spaces, 9), HANGS),
        "snappy, 64 MiB and a byte": (2, bytes(snappy.compress(spaces)), ABORTS),
        "lz4, 64 MiB and a byte": (
            3, struct.pack(">I", len(spaces)) + bytes(block.compress(spaces, store_size=False)), ABORTS,
        ),
        "snappy, 64 MiB announced": (2, b"\x80\x80\x80\x20" + nothing, DROPPED),
        "lz4, 64 MiB announced": (3, struct.pack(">I", LIMIT) + nothing, DROPPED),
    }  # fmt: skip


STATUS = {
    "zlib": ("bad_zlib", "no zlib stream", "not a whole zlib stream"),
    "snappy": ("bad_snappy", "no snappy block", "no snappy block"),
    "lz4": ("bad_lz4", "no LZ4 block", "no LZ4 block"),
    "large": ("too_large", "unpacks to more than 67108864 bytes", "unpacks to more than 64 MiB"),
    "unknown": ("bad_compression", "unknown compression 9", "an unknown compression"),
}
"""Errors of our readers: the decoder of captures, `decompress`, `logclient decode`."""

LARGE = {
    "zlib, 16 GiB", "zlib, 64 MiB and a byte", "snappy, 64 MiB and a byte", "lz4, 64 MiB and a byte",
    "snappy, 4 GiB announced", "lz4 frame", "lz4, the package's little-endian length",
    "lz4, bare", "lz4, 4 GiB announced",
}  # fmt: skip


def errors_for(name: str) -> tuple[str, str, str]:
    return STATUS["large" if name in LARGE else name.partition(",")[0].split()[0]]


@pytest.fixture(scope="module")
def attacks() -> dict[str, tuple[int, bytes, str]]:
    return framings() | bombs()


@pytest.mark.slow
def test_model_of_the_importer_knows_each_attack(attacks: dict[str, tuple[int, bytes, str]]) -> None:
    """It judges the bodies of `test_importers_accept_every_body_we_send`."""
    assert {name: treatment(method, body)[0] for name, (method, body, _) in attacks.items()} == {
        name: what for name, (_, _, what) in attacks.items()
    }


def unit_of(method: int, body: bytes) -> bytes:
    return oracle.join([APP_ENV, TOPIC, body, struct.pack(">HBBIQQ", 0xCABD, method, 1, 0, 1, 1)])


BEGIN = """if 1:
    import json, sys
    (argument,) = json.loads(sys.argv[1])
    def say(what): print(json.dumps(what), flush=True)
    def wait(): return sys.stdin.readline()
"""

READERS = {
    "decoder": """
    import glob
    from array import array
    from logclient._ext.logjam import STATUS_NAMES, Decoder
    from logclient.files.capture import CaptureReader
    units = [unit.raw for unit in CaptureReader(argument)]
    sizes = [len(raw) for raw in units]
    data = b"".join(units)
    starts = array("q", [sum(sizes[:n]) for n in range(len(sizes))])
    decoder = Decoder()
    say("ready"), wait()
    say([STATUS_NAMES[n] for n in decoder.decode(data, starts, array("q", sizes)).status])
    wait()
    """,
    "verify": """
    from logclient.evidence import decode, segments
    run = decode.decoder("logjam")
    say("ready"), wait()
    said = []
    for segment in segments.list_segments([argument])[0]:
        for batch in segments.SegmentReader(segment):
            events = run(batch)
            said += [events.names[n] for n in events.status]
    say(said)
    wait()
    """,
    "opened": """
    from logclient.files.capture import CaptureReader
    from logclient.logjam.messages import decompress, frames, read_meta
    from logclient.errors import ProtocolError
    say("ready"), wait()
    said = []
    for unit in CaptureReader(argument):
        parts = frames(unit.raw)
        try:
            said.append(len(decompress(read_meta(parts[3])[0].compression, parts[2], 64 << 20)))
        except ProtocolError as error:
            said.append(str(error))
    say(said)
    wait()
    """,
    "decode": """
    import contextlib, io
    from logclient import cli
    say("ready"), wait()
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        cli.main(["decode", argument, "--json"])
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    say([row.get("wrong") for row in rows if row["type"] == "message"])
    wait()
    """,
}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
@pytest.mark.parametrize("reader", READERS)
def test_readers_of_captures_refuse_each_attack(
    reader: str, attacks: dict[str, tuple[int, bytes, str]], tmp_path: Path
) -> None:
    """Each is refused with its reason, in less than 160 MiB (twice the bound, as a buffer may move)."""
    if reader == "verify":
        support.need("numpy")
    with closing(CaptureWriter(tmp_path / "run", "logjam-bombs", "logjam")) as writer:
        stream = writer.stream("127.0.0.1:9")
        for method, body, _ in attacks.values():
            writer.unit(stream, unit_of(method, body))
        writer.unit(stream, unit_of(1, zlib.compress(TEXT)))
        writer.flush()
    with MeasuredProcess(BEGIN + READERS[reader], str(tmp_path / "run")) as process:
        assert process.read() == "ready"
        before = process.reset_peak()
        *said, good = process.ask(seconds=PATIENCE)
        grown = process.peak() - before
        process.write()
    place = {"opened": 1, "decode": 2}.get(reader, 0)
    for name, words in zip(attacks, said, strict=True):
        assert errors_for(name)[place] in words, name
    assert good == ("no_id", len(TEXT), None)[place]
    assert grown < 160 * MIB


SUBSCRIBER = """
    from logclient.errors import ProtocolError
    from logclient.logjam import Subscriber
    with Subscriber(argument) as subscriber:
        say("ready")
        while wait():
            message = subscriber.receive(20)
            try:
                say(len(message.body()))
            except ProtocolError as error:
                say(str(error))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
def test_subscriber_refuses_each_attack(attacks: dict[str, tuple[int, bytes, str]]) -> None:
    """Devices open no body, so that consumers need the bound, too."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        with MeasuredProcess(BEGIN + SUBSCRIBER, f"tcp://127.0.0.1:{port}") as process:
            assert process.read() == "ready"
            assert publisher.poll(DEADLINE)  # its subscription
            before = process.reset_peak()
            for name, (method, body, _) in attacks.items():
                publisher.send_multipart(message(body, method))
                assert errors_for(name)[1] in process.ask(seconds=PATIENCE), name
            publisher.send_multipart(message(zlib.compress(TEXT), 1))
            assert process.ask() == len(TEXT)
            assert process.peak() - before < 160 * MIB


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
def test_device_accepts_each_attack_and_goes_on(attacks: dict[str, tuple[int, bytes, str]]) -> None:
    """It opens bodies to look for ids. Like the real one it accepts those that it cannot open."""
    with DeviceProcess(count_duplicates=True) as process, Producer(process.port) as producer:
        producer.ship(1)
        before = process.reset_peak()
        for method, body, _ in attacks.values():
            producer.ask(message(body, method))
            assert producer.reply() == ACCEPTED
        assert producer.ship(1, 2) == [ACCEPTED, ACCEPTED]
        counts, _ = process.ask()
        assert (counts["captured_events"], counts["duplicates"]) == (len(attacks) + 3, 1)
        assert process.peak() - before < 160 * MIB
