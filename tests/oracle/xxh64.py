"""XXH64 by the specification's steps (doc/xxhash_spec.md of the xxHash project), in plain Python."""

import re

MASK = (1 << 64) - 1
P1 = 0x9E3779B185EBCA87
P2 = 0xC2B2AE3D27D4EB4F
P3 = 0x165667B19E3779F9
P4 = 0x85EBCA77C2B2AE63
P5 = 0x27D4EB2F165667C5


def rotl(v: int, by: int) -> int:
    return ((v << by) | (v >> (64 - by))) & MASK


def turn(acc: int, lane: int) -> int:
    return rotl((acc + lane * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes, seed: int = 42) -> int:
    rest = data
    if len(data) >= 32:
        accs = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while len(rest) >= 32:
            for i in range(4):
                accs[i] = turn(accs[i], int.from_bytes(rest[8 * i : 8 * i + 8], "little"))
            rest = rest[32:]
        h = sum(rotl(a, by) for a, by in zip(accs, (1, 7, 12, 18), strict=True)) & MASK
        for a in accs:
            h = ((h ^ turn(0, a)) * P1 + P4) & MASK
    else:
        h = (seed + P5) & MASK
    h = (h + len(data)) & MASK
    while len(rest) >= 8:
        h = (rotl(h ^ turn(0, int.from_bytes(rest[:8], "little")), 27) * P1 + P4) & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        h = (rotl(h ^ (int.from_bytes(rest[:4], "little") * P1 & MASK), 23) * P2 + P3) & MASK
        rest = rest[4:]
    for byte in rest:
        h = rotl(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ (h >> 33)) * P2 & MASK
    h = (h ^ (h >> 29)) * P3 & MASK
    return h ^ (h >> 32)


def words(own: bytes) -> tuple[int, int]:
    """How a user's own id is named: of the form of ours, by its number; else by its hash."""
    if re.fullmatch(rb"[0-9a-f]{32}", own) and int(own, 16):
        return int(own[:16], 16), int(own[16:], 16)
    return xxh64(own, 42), xxh64(own, 43)
