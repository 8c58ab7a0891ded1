"""Lumberjack frames for tests, byte by byte, and streams of them, valid and damaged."""

import struct
import zlib
from random import Random

from tests.oracle import lumberjack as oracle


def u32(*numbers: int) -> bytes:
    """Pack big-endian 32-bit numbers."""
    return struct.pack(f">{len(numbers)}I", *numbers)


def w(n: int, version: int = 2) -> bytes:
    """Make a window frame for n events."""
    return b"%dW" % version + u32(n)


def j(sequence: int, body: bytes = b"{}") -> bytes:
    """Make a frame of version 2 with JSON."""
    return b"2J" + u32(sequence, len(body)) + body


def decode_acks(data: bytes) -> list[tuple[int, int]]:
    """Decode whole 'ack' frames into pairs of version and number."""
    acks = []
    for at in range(0, len(data), 6):
        frame = data[at : at + 6]
        if len(frame) < 6 or frame[:1] not in (b"1", b"2") or frame[1:2] != b"A":
            raise ValueError(f"no ack frame at byte {at}: {frame!r}")
        acks.append((int(frame[:1]), int.from_bytes(frame[2:], "big")))
    return acks


def d(sequence: int, *pairs: tuple[bytes, bytes]) -> bytes:
    """Make a frame of version 1 with pairs."""
    return b"1D" + u32(sequence) + oracle.join_pairs(list(pairs))


def c(content: bytes, version: int = 2, level: int = 3) -> bytes:
    """Make a compressed frame of this content."""
    return cz(zlib.compress(content, level), version)


def cz(stream: bytes, version: int = 2) -> bytes:
    """Make a compressed frame of this zlib stream."""
    return b"%dC" % version + u32(len(stream)) + stream


def mutated(stream: bytes, random: Random) -> bytes:
    """Change, delete, repeat or flip up to three places of a stream."""
    some = bytearray(stream)
    for _ in range(random.randint(0, 3)):
        if not some:
            break
        at = random.randrange(len(some))
        how = random.randrange(4)
        if how == 0:
            some[at] = random.choice(b"12WJDCA\0\1\2\x7f\xff")
        elif how == 1:
            del some[at : at + random.randint(1, 5)]
        elif how == 2:
            some[at:at] = some[at : at + random.randint(1, 20)]
        else:
            some[at] ^= 1 << random.randrange(8)
    return bytes(some)


def make_stream(random: Random) -> bytes:
    """Make windows as writers do, valid and invalid ones, with mixed versions."""
    out = []
    for _ in range(random.randint(1, 3)):
        version = random.choice([1, 2, 2])
        n = random.randint(0, 4)

        def one(i: int, version: int = version) -> bytes:
            if version == 2:
                return j(
                    random.choice([i, i, 0, 2**31]),
                    random.choice([b"{}", b'{"a":"%s"}' % (b"x" * 30), b"[", b" "]),
                )
            return d(i, *[(b"k" * random.randint(0, 9), b"v" * random.randint(0, 40))] * random.randint(0, 3))

        frames = [one(i) for i in range(1, n + 1 + random.choice([0, 0, 0, 0, 1, -1]))]
        at = random.randint(0, len(frames))
        how = random.randrange(5)
        if how == 1:
            frames = [c(b"".join(frames), version, random.choice([0, 6]))]
        elif how == 2:
            frames[at:] = [c(b"".join(frames[at:]), version)]
        elif how == 3:
            frames = [c(b"".join(frames[:at]) + c(b"".join(frames[at:]), version), version)]
        out += [w(n, version), *frames]
    return b"".join(out)


def random_stream(seed: int) -> bytes:
    """Make a stream of windows, damaged in most cases."""
    random = Random(seed)
    stream = make_stream(random)
    return mutated(stream, random) if random.random() < 0.7 else stream
