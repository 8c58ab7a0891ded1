"""Inputs for the codecs' tests: JSON written in every way the grammar has, and damaged."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import strategies as st

CARRIERS = ("@metadata", "event.id", "event", "_id", "id", "request_id", "uuid")
HEX_ID = "00112233445566778899aabbccddeeff"

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40)
    | st.sampled_from([HEX_ID, "", "a" * 200, "\u00e9" * 30, "\U0001f600"])
)
keys = st.sampled_from(CARRIERS) | st.text(max_size=12)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(keys, inner),
    max_size=4).map(tuple),
    max_leaves=12,
)  # fmt: skip
members = st.lists(st.tuples(keys, values), max_size=6).map(tuple)  # an object; keys may repeat
randoms = st.randoms(use_true_random=False)

SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\b": "\\b",
    "\f": "\\f",
    "/": "\\/",
}


def space(random: Random) -> str:
    return random.choice(["", "", "", "", " ", "\n", "\t", "\r\n", "  "])


def write_string(text: str, random: Random) -> str:
    out = []
    for c in text:
        if c in SHORT and (c != "/" or random.random() < 0.3):
            out.append(SHORT[c])
        elif ord(c) < 0x20 or (ord(c) < 0x10000 and random.random() < 0.1):
            out.append(random.choice([f"\\u{ord(c):04x}", f"\\u{ord(c):04X}"]))
        else:
            out.append(c)
    return '"' + "".join(out) + '"'


def write(value: Any, random: Random) -> str:
    """JSON text of a value; tuples of pairs are objects."""
    if isinstance(value, str):
        return write_string(value, random)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value) + random.choice(["", "", "", ".0", "e0", "E+2", ".5e-3"])
    brackets = "{}" if isinstance(value, tuple) else "[]"
    parts = []
    for item in value:
        if isinstance(value, tuple):
            key, inner = item
            text = write_string(key, random) + space(random) + ":" + space(random) + write(inner, random)
        else:
            text = write(item, random)
        parts.append(space(random) + text + space(random))
    return brackets[0] + (",".join(parts) or space(random)) + brackets[1]


def damaged(data: bytes, random: Random) -> bytes:
    """The bytes with a few of them changed, left out, doubled or put in."""
    some = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(some) + 1)
        how = random.randrange(4)
        if how == 0 and at < len(some):
            some[at] = random.choice(
                b'{}[]",:\\ntfu0-+.eE \n\x00\x1f\x7f\x80\xc3\xed\xf4\xff' + bytes([some[at] ^ 1])
            )
        elif how == 1:
            del some[at : at + random.randint(1, 4)]
        elif how == 2:
            some[at:at] = some[at : at + random.randint(1, 6)]
        else:
            some[at:at] = bytes([random.choice(b'{}[]",:\\u01e.-\x80\xe0 ')])
    return bytes(some)


objects = st.builds(
    lambda value, random: (space(random) + write(value, random) + space(random)).encode("utf-8", "replace"),
    members, randoms,
)  # fmt: skip
near_objects = objects | st.builds(damaged, objects, randoms) | st.binary(max_size=40)


# What most log events are: one flat object, nothing escaped, nothing beyond ASCII; and nearly that.
_plain = st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\')
_plain_text = st.text(_plain, max_size=90)
_plain_keys = st.sampled_from((*CARRIERS, "eventXid", "event.i", "@timestamp", "@metadatb")) | _plain_text
_plain_values = _plain_text.map('"{}"'.format) | st.sampled_from(
    ["0", "-1.5e3", "true", "false", "null", "1e999", "01", "tru", "nulll", "{}", "[]", "", '"x', '""', "-"]
)
plain_objects = st.builds(
    lambda members, colon, comma, end: (
        "{" + comma.join(f'"{key}"{colon}{value}' for key, value in members) + end
    ).encode(),
    st.lists(st.tuples(_plain_keys, _plain_values), min_size=1, max_size=8),
    st.sampled_from([":", ": ", ":  ", ";"]),
    st.sampled_from([",", ", ", ",  ", "\n,", ";"]),
    st.sampled_from(["}", "} ", "}}", "", ",}", "}x"]),
)


def pair_block(fields: Mapping[str, str]) -> bytes:
    """Encode the body of version 1: u32 count, then u32 length and bytes of each key and value (UTF-8)."""
    parts = [len(fields).to_bytes(4, "big")]
    for text in (text for pair in fields.items() for text in pair):
        data = text.encode("utf-8", "replace")
        parts += [len(data).to_bytes(4, "big"), data]
    return b"".join(parts)
