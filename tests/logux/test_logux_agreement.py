"""Two readers of Logux messages agree: the one in Python for connections, the compiled one for captures.

The inputs are the fuzzer's seeds, and damaged seeds.
"""

from __future__ import annotations

import re
from array import array
from importlib.util import find_spec
from random import Random

import pytest

from logclient._ext.logux import (
    BAD_ACTION,
    BAD_JSON,
    BAD_MESSAGE,
    BAD_META,
    BAD_SYNC,
    UNKNOWN_MESSAGE,
    Decoder,
)
from logclient.logux.messages import Refused, UnknownMessage, parse

pytestmark = [pytest.mark.tree, pytest.mark.unit]
if find_spec("fuzz") is None:
    pytest.skip("no fuzz targets beside these tests", allow_module_level=True)

from fuzz.target import load, seeds_of  # noqa: E402

TARGETS = ("logux_decoder", "logux_replies")
WRONG = {BAD_ACTION, BAD_JSON, BAD_MESSAGE, BAD_META, BAD_SYNC}
# The readers differ on large numbers: connections refuse protocol numbers that JavaScript cannot count with,
# and in actions they accept 1e999, as JavaScript does.
LARGE = re.compile(rb"[0-9]{16}|[eE]|[0-9]\.[0-9]")
# The released server answers this message with itself. It has no effect.
DUILIAN = b"duilian"


def parsed(text: bytes) -> str:
    try:
        parse(text)
    except UnknownMessage:
        return "unknown"
    except Refused as error:
        assert len(str(error)) < 400
        return "wrong"
    return "message"


def decoded(text: bytes) -> str:
    rows = Decoder().decode(text, array("q", [0]), array("q", [len(text)]))
    found = set(rows.status)
    if found & WRONG:
        return "wrong"
    return "unknown" if UNKNOWN_MESSAGE in found else "message"


def assert_agreement(text: bytes) -> None:
    if not LARGE.search(text) and DUILIAN not in text and text.count(b"[") + text.count(b"{") < 400:
        assert parsed(text) == decoded(text), text
    else:
        parsed(text)


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    return sorted({text for name in TARGETS for seed in seeds_of(name) for text in seed[2:].split(b"\0")})


def test_readers_agree_on_the_seeds_of_the_fuzzer(texts: list[bytes]) -> None:
    assert len(texts) > 500
    for text in texts:
        assert_agreement(text)
    assert {parsed(text) for text in texts} == {"wrong", "unknown", "message"}


def test_readers_agree_on_damaged_messages(texts: list[bytes]) -> None:
    random = Random(11)
    words = [word for name in TARGETS for word in load(name).DICTIONARY]
    for _ in range(5_000):
        data = bytearray(random.choice(texts))
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data) + 1)
            how = random.randrange(4)
            if how == 0 and at < len(data):
                data[at] ^= 1 << random.randrange(8)
            elif how == 1:
                del data[at : at + random.randint(1, 8)]
            elif how == 2:
                data[at:at] = random.choice(words)
            else:
                data[at:at] = data[at : at + random.randint(1, 20)]
        assert_agreement(bytes(data))
