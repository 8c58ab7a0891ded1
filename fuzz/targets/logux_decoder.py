"""Logux's decoder of captures.

An input has a byte of options, the number of the allocation that fails (0: none), and a unit. The decoder's
rows are compared with the reference in plain Python.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, exact, use_compiled_hashes
from logclient._ext.hash import xxh64
from logclient._ext.logux import STATUS_NAMES, Decoder
from tests.oracle import logux_decoder as oracle
from tests.support import recordings

EXTENSIONS = ("logux", "jsonscan")
MAX_LEN = 4096

PRODUCERS: tuple[list[bytes], ...] = (
    [], [bytes(range(10))], [bytes(range(1, 11))], [bytes(10), bytes(range(10)), b"\xff" * 10],
)  # fmt: skip
IDENTITY, BODY, TWICE, OUTSIDE = 1, 8, 16, 32  # bits of the options; 2 and 4: producers

use_compiled_hashes(oracle, xxh64=xxh64)

ID = bytes(range(10)).hex().encode() + b"00000000002a"
META = b'{"id":[1,"a:b",0],"time":1}'
DICTIONARY = [
    *(b'["%s"' % name.encode() for name in (*oracle.FORMS, "sync")),
    ID, META, b',{"type":"x"}', b'{"id":1,"time":1}', b'"id":', b'"time":', b'"type":', b'"length":',
    b'\\u0069d', b"[1,0]", b'[1,"a:b",0]', b"[]", b"{}", b'{"type":"x","id":"', b"\\u00e9", b"\\n",
    b"\xc3\xb6", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"true", b"false", b"null", b"-0.5e+3", b"1e999",
    b"17976931348623158", b'"error"', b"[" * 60, b'{"":' * 40, b" \r\n\t",
]  # fmt: skip

ROOTS = ("Decoder",)
MISTAKE = "a caller's mistake, no input's: tests/logux/test_logux_decoder.py"
APART = dict.fromkeys(("raise TypeError", "producers: 10 bytes", "producers: not asc"), MISTAKE)

_CLOSED = "            m.close = p\n            p += 1\n            depth -= 1\n"
PLANTS = (
    Plant("length", "_ext/decoder.pxd", "        memset(room + size, 0, SCAN_PAD)\n",
          "        memset(room + size, 0, SCAN_PAD + 1)\n", (ASAN,)),
    Plant("depth", "_ext/logux/decoder.pyx", "            if depth == MESSAGE_DEPTH:\n",
          "            if depth == MESSAGE_DEPTH and False:\n", (ASAN, "the reference says")),
    Plant("allocation", "_ext/decoder.pxd", "    trim(&d.scratch, ROOM_KEPT)\n",
          "    wire_reserve(&d.scratch, size << (size & 31))\n", (MEMORY,)),
    Plant("endless", "_ext/logux/decoder.pyx", _CLOSED,
          _CLOSED.replace("1", "depth < 9"), (TIMEOUT,)),
)  # fmt: skip

BIG = b"%d" % (2**1024 - 2**970)  # the least that no double holds
ACTIONS = [
    b'{"type":"log/add","data":{"m":"x"},"id":"%s"}' % ID,
    b'{"type":"x"}',
    b'{"id":"%s","type":"\\u0078","data":[1,-2.5e3,0.1E-2,true,false,null,"\\u00e9\\n\xc3\xb6\xe2\x82\xac\xf0\x9f\x98\x80"]}'
    % ID,
    b'{"\\u0074ype":"x","\\u0069d":[{"id":1}],"length":"1","l\\u0065ngth":{"length":1}}',
    b' {"type":1,"type":"x","id":7,"id":"zz%s","time":[1,2]} ' % ID[2:],
    b'{"type":"x","id":"%szzzz"}' % ID[:28],
    b'{"type":"%s","id":null}' % (b"y" * 300),
    b'{"type":"x","n":[0.%s,%s,1%sE-1]}' % (b"0" * 320 + b"1e9", BIG[:-1] + b"1", b"0" * 308),
]
BAD_ACTIONS = [
    b"null", b"[]", b"{}", b'{"type":1}', b'{"type":"x","length":1}', b'{"type":"x","length":-1e3}',
    b'{"type":"x","n":%s}' % BIG, b'{"type":"x","n":1e999}', b'{"type":"x","n":1%s}' % (b"0" * 1000),
    b'{"type":"x","n":%s.%se100}' % (BIG[:209], BIG[209:]),
]  # fmt: skip
METAS = [
    META,
    b'{"id":1,"time":0}',
    b'{"time":-1.5,"id":[1,0],"subprotocol":1}',
    b'{"id":[],"id":[1,0],"time":1}',
]
BAD_METAS = [b"null", b"{}", b'{"id":1}', b'{"time":1}', b'{"id":"1","time":1}', b'{"id":[1],"time":1}',
             b'{"id":[1,0,0],"time":1}', b'{"id":[1,"a",0,0,0],"time":1}', b'{"id":[[1,0]],"time":1}',
             b'{"id":1,"time":1,"length":0}']  # fmt: skip
OTHERS = [
    b'["connect",5,"a:b:c",0,{"token":"t"}]', b'["connected",5,"a",[1,2]]', b'["headers",{"length":"1"}]',
    b'["ping",0]', b'["po\\u006eg",1]', b'["synced",1]', b'["error","x",null]', b'["debug","error","x"]',
    b'["duilian","x"]',
]  # fmt: skip
WRONG = [
    b"", b"[]", b"[ ]", b"{}", b"1", b'"x"', b"null", b"nul", b"[1]", b'["ready",0]', b'["sync"]',
    b'["sync",0]', b'["sync","0"]', b'["sync",1,{"type":"x"}]', b'["ping",01]', b'["ping",1.]',
    b'["ping",1e]', b'["ping",-]', b'["ping" 1]', b'["ping",1,]', b'["ping",1] x', b'["ping"',
    b'["headers",{"a" 1}]', b'["headers",{a:1}]', b'["headers",{"a":1,}]', b'["headers",{"a":tru}]',
    b'["headers",{"a":fals}]', b'["\\x"]', b'["\\u12g4"]', b'["\x01"]', b'["\xc1"]', b'["\xc3."]',
    b'["\xe0\x80\x80"]', b'["\xf5"]', b'["a', b'["\\u0172",1]', b'["\\u00"]',
    b'["headers",{"\\u0172":1,"\\n":2}]', b'["' + b"x" * 2000 + b'"]',
]  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield every recorded message, each kind right and wrong, and failing allocations."""
    for case in recordings.cases(recordings.LOGUX):
        for step in case["steps"]:
            text = step.get("raw", step.get("msg"))
            if text is not None:
                yield bytes([IDENTITY, 0]) + (text if isinstance(text, str) else json.dumps(text)).encode()
    for number, action in enumerate([*ACTIONS, *BAD_ACTIONS]):
        for meta in [*METAS, *BAD_METAS] if number < 2 else METAS[:1]:
            unit = b'["sync",1,%s,%s]' % (action, meta)
            for options in (IDENTITY | number % 4 << 1, 0, IDENTITY | TWICE | 2, IDENTITY | OUTSIDE):
                yield bytes([options, 0]) + unit
        for options in (IDENTITY | BODY | 2, IDENTITY | BODY | TWICE, BODY):
            yield bytes([options, 0]) + action
        for failing in range(1, 16):
            yield bytes([IDENTITY | TWICE, failing]) + b'["sync",1,%s]' % b",".join([action, META] * 3)
    yield bytes([IDENTITY, 0]) + b'["sync",1,%s]' % b",".join(x for action in ACTIONS for x in (action, META))
    for unit in OTHERS:
        yield bytes([IDENTITY, 0]) + unit
        yield bytes([IDENTITY, 0]) + unit.replace(b"]", b",1]")
        yield bytes([IDENTITY, 0]) + unit[: unit.rindex(b",")] + b"]"
        yield bytes([IDENTITY, 0]) + unit[: unit.rindex(b",")] + b",null]"
    for unit in WRONG:
        yield bytes([IDENTITY, 0]) + unit
        yield bytes([IDENTITY | BODY, 0]) + unit
    for levels in (3, oracle.MAX_DEPTH - 1, oracle.MAX_DEPTH):
        for opens, closes in ((b"[", b"]"), (b'{"":', b"}")):
            if len(opens) * levels < MAX_LEN - 8:
                yield bytes([IDENTITY, 0]) + opens * levels + b"0" + closes * levels
                yield bytes([IDENTITY | BODY, 0]) + opens * levels


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    options, failing, unit = data[0], data[1], data[2:]
    identity, producers = bool(options & IDENTITY), PRODUCERS[options >> 1 & 3]
    n = len(unit)
    places = [(0, n), (0, n), (n // 2, n - n // 2)] if options & TWICE else [(0, n)]
    if options & OUTSIDE:
        places.append((n - n // 4, n // 4 + 1))
    offsets, lengths = (array("q", column) for column in zip(*places, strict=True))
    memory.fail_at(failing)
    try:
        decoder = Decoder(b"".join(producers), identity=identity, messages=not options & BODY)
        rows = decoder.decode(exact(bytes(unit)), offsets, lengths)
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return
    except ValueError as error:
        check(options & OUTSIDE, "every unit is in the data", str(error))
        return
    finally:
        memory.fail_at(0)
    check(not options & OUTSIDE, "a unit that leaves the data")
    got = [
        (
            rows.unit[i],
            oracle.Row(
                rows.status[i], rows.offset[i], rows.length[i], rows.producer[i], rows.prefix_high[i],
                rows.prefix_low[i], rows.sequence[i], rows.hash[i],
                (rows.id_hash[2 * i], rows.id_hash[2 * i + 1]),
            ),
        )
        for i in range(len(rows))
    ]  # fmt: skip
    want = []
    for number, (at, size) in enumerate(places):
        text = bytes(unit[at : at + size])
        if options & BODY:
            want.append((number, oracle.decode_body(text, producers, identity)))
        else:
            want += [(number, row) for row in oracle.decode(text, producers, identity)]
    said = [[STATUS_NAMES[row.status] for _, row in some] for some in (got, want)]
    check(got == want, f"{said[0]}, the reference says {said[1]}", got, want)
