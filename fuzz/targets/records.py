"""Records and mappings with any values, through the formatter into the queue.

An input is a program: three bytes of options (the encoder, the method, the bound), the number of the
allocation that fails (0: none), the number of values and options of their names, further options of the
encoder, then the values, each with an opcode and operands. Some values run a part of the same program when
they are converted to text, which replaces and deletes the sources of the document. Without such values and
further options the document must equal that of the reference in plain Python; with them it must be valid.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import json
import logging
import struct
from collections import UserDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from fuzz import memory
from fuzz.target import ASAN, MEMORY, Plant, check
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient._ext.record import Encoder, FastClient, FastHandler, LineEncoder
from logclient.errors import ConfigError, EncodeError, EncodeTypeError
from logclient.logjam import Agent
from logclient.records import context
from logclient.records.formats import form
from logclient.records.logger import Logger
from logclient.records.times import corrected
from tests.oracle import ecs

EXTENSIONS = ("record",)
MAX_LEN = 1500
LIMITS = (1 << 16, 1 << 12, 700, 60)
NAMES = (
    ecs.Names(), ecs.Names(identity="own"), ecs.Names(identity="none"), ecs.Names(trust_metadata=True),
    ecs.Names(identity="own", trust_metadata=True), ecs.Names(carriers=("id",)),
    ecs.Names(ecs=False, carriers=()), ecs.Names(carriers=(), flat=True),
)  # fmt: skip
"""The meaning of field names, as the protocols choose it."""

SHAPES = ("", "", "", "", "json", "logstash", "gelf", "otel")
"""The form of a document; those with one are none of the reference: see tests/client/test_formats.py."""

RENAMES = {"user": "service.node.role", "other": "event.action", "labels.user": "x", "password": "y"}

SCAN = json.JSONDecoder().raw_decode

ATTRIBUTES = (
    "name", "msg", "args", "levelname", "levelno", "filename", "exc_info", "exc_text", "stack_info", "lineno",
    "funcName", "created", "thread", "threadName", "processName", "process", "user", "event", "@metadata",
    "event.id", "log.level", "log.flags", "message", "\udc00", "other",
    "_id", "id", "labels", "labels.user", "event.id.x", "@metadata.x", "otelTraceID", "otelSpanID",
    "otelServiceName", "event.dataset", "service.name", "password", "service.node.name", "service.node.role",
    "event.action", "_logger", "exception", "stack", "@timestamp",
)  # fmt: skip

NONE, TRUE, FALSE, BYTE, HUGE, FLOAT, ASCII, WIDE, LONG, BYTES, LIST, TUPLE, DICT, SET = range(14)
OBJECT, STRING, NUMBER, REAL, MAPPING, BROKEN, ERROR, KEYED, ATTACKER, FORMAT, PAIR = range(14, 25)
OPCODES = 25
SENT, NO_MAPPING, MAKER, OWN_EMIT, EMITTED, ROOMY, ATTENTION = 3, 4, 8, 16, 32, 64, 128  # of the second
LINES = 4  # of the second, with RECORD: Logjam's documents
PAIRS, TRUNCATE, RECORD, HANDLER = 1, 2, 4, 8  # bits of the first byte
FORMATTER, FILTER, TEXTED, SUBCLASS = 16, 32, 64, 128
NESTED, REDACTED, DATED, FIELDS, BOUND, SPANNED = 1, 2, 4, 8, 16, 32  # of the sixth
LEVELLED, SAMPLED = 64, 128
JSON = 64  # of the sixth, with HANDLER
RENAMED, PREFIXED = 8, 16  # of the fifth, above the number of values
LOGGED, BESIDE = 1, 2  # of the two bits of SENT, with HANDLER: a call of a logger; one that another may ship

DICTIONARY = [
    b"%s %d", b"%r", b"%%", b"%.2f", b"%(a)s", b'"', b"\\", b"\x00", b"\xff\xff", bytes([ATTACKER, 0]),
    bytes([ATTACKER, 1]), bytes([DICT, 2, ASCII, 2]) + b"id", bytes([HUGE, 130]), bytes([LONG, 255, 255]),
    *(bytes([i]) for i in range(OPCODES)), b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"message", b"event",
    b"logclient.x", b"zmq.auth", b"websockets",
]  # fmt: skip

ROOTS: tuple[str, ...] = ("Encoder.encode", "Encoder.encode_record", "_put_document", "Encoder", "FastClient")
ROOTS += ("FastHandler", "LineEncoder")
_MISTAKE = "a mistake of the caller, not of the input: tests/client/test_handler_unit.py"
APART = {
    "__init__ has": _MISTAKE,
    "needs a queue": _MISTAKE,
    "mark_sender_thread()": "of the sender's thread: tests/client/test_handler_unit.py",
    "_in_destructor()": "of the sender's thread: tests/client/test_handler_unit.py",
    "not _in_destructor()": "of the sender's thread: tests/client/test_handler_unit.py",
    "self.queue.count_ignored()": "of the sender's thread: tests/client/test_handler_unit.py",
    "copy = tuple(<object> items)": "of free-threaded builds: tests/lifecycle/test_free_threads.py",
    "items = <PyObject *> copy": "of free-threaded builds: tests/lifecycle/test_free_threads.py",
    "is_list = False": "of free-threaded builds: tests/lifecycle/test_free_threads.py",
    "size = 0xFFFFFFF0": "four GiB: tests/client/test_records.py",
}

_IN_PYTHON = "            status = self._write_step_in_python(doc, record, s.values, step)\n"
_ROOM = "_reserve(doc, LC_WORST * <size_t> PyUnicode_GET_LENGTH(s) + 2 * LC_SLACK) == 0"
PLANTS = (
    Plant("borrowed", "_ext/record/record_encoder.pyx",
          f"            attributes = self._take_references(attributes, s)\n{_IN_PYTHON}",
          f"            pass\n{_IN_PYTHON}", (ASAN,)),
    Plant("length", "_ext/record/json_encode.pyx", _ROOM,
          "_reserve(doc, <size_t> PyUnicode_GET_LENGTH(s)) == 0", (ASAN,)),
    Plant("allocation", "_ext/record/json_encode.pyx", "        want = used + more\n",
          "        want = used + more << 17\n", (MEMORY,)),
)  # fmt: skip


class Program:
    """The rest of an input, and what it makes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.hostile = False
        self.record: logging.LogRecord | None = None
        self.held: list[Any] = []  # containers that attackers change
        self.steps = 0
        self.junk: list[bytes] = []

    def byte(self) -> int:
        if self.at >= len(self.data):
            return 0
        self.at += 1
        return self.data[self.at - 1]

    def bytes(self, n: int) -> bytes:
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, depth: int = 0) -> Any:
        code = self.byte() % OPCODES
        n = self.byte() if code > FALSE else 0
        match code:
            case 0:
                return None
            case 1 | 2:
                return code == TRUE
            case 3:
                return n - 20
            case 4:
                return (1 << n * 80) + n if n & 1 else -(1 << n) - n
            case 5:
                return struct.unpack("<d", self.bytes(8).ljust(8, b"\x3f"))[0]
            case 6:
                return self.bytes(n).decode("latin-1")
            case 7:
                wide = self.bytes(n)
                return wide[: len(wide) & ~1].decode("utf-16-le", "surrogatepass")
            case 8:
                return self.text(n)
            case 9:
                return self.bytes(n)
        if depth > (200 if code in (LIST, DICT) else 6):
            return "deep"
        return self.nested(code, n, depth + 1)

    def text(self, n: int) -> str:
        """Return a long text."""
        unit = self.bytes(self.byte() % 4 + 1).decode("utf-8", "replace") or "x"
        return unit * (n << (5 if self.byte() & 1 else 2))

    def nested(self, code: int, n: int, depth: int) -> Any:
        match code:
            case 10:
                made = [self.value(depth) for _ in range(n % 6)]
                self.held.append(made)
                return made
            case 11:
                return tuple(self.value(depth) for _ in range(n % 6))
            case 12:
                fields = {self.key(): self.value(depth) for _ in range(n % 6)}
                self.held.append(fields)
                return fields
            case 13:
                return {n, str(n)} if n & 1 else frozenset((n,))
            case 14:
                self.hostile = True
                return (object(), logging, bytearray(b"\xff"), b"a", range(n), *PLAIN)[n % (5 + len(PLAIN))]
            case 15:
                text = self.value(7)
                return type("Text", (str,), {})(text if type(text) is str else "text")
            case 16:
                return type("Number", (int,), {})(n)
            case 17:
                return type("Real", (float,), {})(n / 7)
            case 18:
                return UserDict({self.key(): self.value(depth) for _ in range(n % 4)})
            case 19:
                self.hostile = True
                return Broken()
            case 20:
                self.hostile = True
                return self.error(n, depth)
            case 21:
                self.hostile = True
                return {self.key_of(i): self.value(depth) for i in range(n % 5)}
            case 22:
                self.hostile = True
                kind = (Attacker, AttackingText, AttackingMapping, AttackingNumber)[n % 4]
                return kind(self)
            case 23:
                return self.bytes(n % 24).decode("latin-1") + "%s %d %%"[: n % 9]
            case _:
                return (self.value(depth), self.value(depth))

    def key(self) -> str:
        n = self.byte()
        return ATTRIBUTES[n % 48] if n % 48 < len(ATTRIBUTES) else self.bytes(n % 9).decode("latin-1")

    def key_of(self, i: int) -> Any:
        self.hostile = True
        return (i, None, b"\xff", 1.5, Broken(), Attacker(self), "\ud800", type("Key", (str,), {})("k"))[
            self.byte() % 8
        ]

    def error(self, n: int, depth: int) -> Any:
        error = ValueError(self.value(depth)) if n & 1 else Broken()
        if n & 2:
            return (type(error), error, None)
        return error if n & 4 else (None, None, None)

    def attack(self) -> None:
        """Run the next part of the program on the record and the containers that are being read."""
        self.steps += 1
        if self.steps > 12:
            return
        how = self.byte()
        fields = vars(self.record) if self.record is not None else {}
        name = ATTRIBUTES[self.byte() % len(ATTRIBUTES)]
        match how % 10:
            case 0:
                for n, each in enumerate(ATTRIBUTES[:16]):
                    fields[each] = f"new {n} {self.steps}" * 5
            case 1:
                fields.clear()
            case 2:
                fields.pop(name, None)
            case 3:
                fields[name] = self.value(5)
            case 4:
                fields.update({f"more{i}": i for i in range(how)})
            case 5:
                for each in self.held:
                    each.clear()
            case 6:
                for each in self.held:
                    if isinstance(each, list):
                        each += [self.value(6)] * 5
                    else:
                        each.update({str(i): "new" * 9 for i in range(20)})
            case 7:
                gc.collect(0)
            case 8:
                raise (ValueError, RecursionError, MemoryError, AttributeError)[how // 10 % 4]("attack")
            case _:
                self.held.append(fields)
        self.junk = [bytes([65 + i]) * (24 + 16 * i) for i in range(24)]


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__

    def __hash__(self) -> int:
        return 1


class Attacker:
    def __init__(self, program: Program) -> None:
        self.program = program

    def __str__(self) -> str:
        self.program.attack()
        return "attacker"

    __repr__ = __str__

    def __float__(self) -> float:
        self.program.attack()
        return 1.5

    def __bool__(self) -> bool:
        self.program.attack()
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "program":
            raise AttributeError(name)
        self.program.attack()
        return None


class AttackingText(str):
    program: Program

    def __new__(cls, program: Program) -> AttackingText:
        made = super().__new__(cls, "attacking text")
        made.program = program
        return made

    def __str__(self) -> str:
        self.program.attack()
        return "text"

    def lower(self) -> str:
        self.program.attack()
        return "lower"


class AttackingMapping(dict[Any, Any]):
    def __init__(self, program: Program) -> None:
        super().__init__({"a": program.value(6), "event": "b" * 50, "id": 1})
        self.program = program

    def items(self) -> Any:
        self.program.attack()
        return super().items()

    def __iter__(self) -> Any:
        self.program.attack()
        return super().__iter__()

    def __contains__(self, key: object) -> bool:
        self.program.attack()
        return super().__contains__(key)

    def __bool__(self) -> bool:
        self.program.attack()
        return True


class AttackingNumber(int):
    program: Program

    def __new__(cls, program: Program) -> AttackingNumber:
        made = super().__new__(cls, 20)
        made.program = program
        return made

    def __str__(self) -> str:
        self.program.attack()
        return "20"

    __repr__ = __str__

    def __float__(self) -> float:
        self.program.attack()
        return 20.0


class Rows(list[Any]):
    pass


class Kind(enum.Enum):
    ONE = "one"


@dataclasses.dataclass
class Item:
    name: Any

    def method(self) -> None:
        """Hold an item."""


class Login(NamedTuple):
    user: str
    password: str


class Slotted:
    __slots__ = ("__password", "user")

    def __init__(self) -> None:
        self.user = "a"
        self.__password = "b"

    def __str__(self) -> str:
        return f"{self.user} {self.__password}"


class Headers:
    """Several values of a name, as frameworks have them."""

    def keys(self) -> Iterator[str]:
        return iter(("user", "cookie"))

    def items(self) -> list[tuple[str, str]]:
        return [("user", "a"), ("cookie", "b"), ("cookie", "c")]

    multi_items = items


class Values(Headers):
    def lists(self) -> list[tuple[str, list[str]]]:
        return [("user", ["a"]), ("cookie", ["b", "c"])]


BINDINGS: ContextVar[context.Fields | None] = ContextVar("bindings", default=None)
PLAIN = (
    datetime.date(2026, 1, 1), decimal.Decimal("1.5"), Rows([1, "a"]), Kind.ONE, Item("a"),
    datetime.timedelta(1), Login("a", "b"), Item("a").method, functools.partial(print, password=1), Slotted(),
    Headers(), Values(), datetime.datetime(2026, 1, 1), datetime.datetime.min,
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(seconds=30))),
)  # fmt: skip


class OwnMessage(logging.LogRecord):
    program: Program

    @property
    def levelno(self) -> Any:
        vars(self).get("program", Program(b"")).attack()
        return vars(self).get("levelno")

    @levelno.setter
    def levelno(self, value: Any) -> None:
        vars(self)["levelno"] = value

    def getMessage(self) -> str:
        vars(self).get("program", Program(b"")).attack()
        return "own message"


class Handler(FastHandler, logging.Handler):
    program: Program

    def createLock(self) -> None:
        self.lock = None

    def handleError(self, record: logging.LogRecord) -> None:
        self.program.attack()


class OwnEmit(Handler):
    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self.program.attack()


class Head(NamedTuple):
    """The first bytes of an input."""

    how: int
    way: int
    limit: int
    failing: int
    """The number of the allocation that fails; 0: none."""
    values: int
    more: int


class Rig:
    """A queue with the client or handler that fills it."""

    def __init__(self, encoder: dict[str, Any], head: Head) -> None:
        self.head = head
        bound = 1 << 23 if head.way & ROOMY else 100
        self.queue = EventQueue(max_bytes=bound, max_event_bytes=encoder["max_event_bytes"], policy="raise")
        self.queue.needs_sender = bool(head.way & ATTENTION)
        self.encoder = Encoder(self.queue, **encoder)
        self.in_flight = InflightBatches(self.queue)
        self.sender = FastClient()
        sink: Any = SimpleNamespace(send_slowly=lambda seq, event, level: seq, lost=lambda error, level: None)
        self.sender._bind(self.encoder, sink, revises=False)

    def handler(
        self,
        program: Program,
        maker: Callable[..., object] | None,
        line_encoder: LineEncoder | None,
        own_emit: bool,
    ) -> Any:
        handler: Any = OwnEmit() if own_emit else Handler()
        handler.program = program

        def attend(*given: Any) -> int:
            program.attack()
            return 0

        def sample(record: logging.LogRecord) -> Any:
            program.attack()
            return record if program.byte() % 5 else None

        handler._bind(
            self.encoder,
            SimpleNamespace(wake=attend, put_slowly=attend),
            ship=maker,
            line_encoder=line_encoder,
            formatter=logging.Formatter(),
            own_emit=own_emit,
            own_format=False,
            json=bool(self.head.more & JSON),
            sampling=sample if self.head.more & SAMPLED else None,
        )
        logging.Handler.__init__(handler)
        return handler

    def bodies(self) -> list[bytes]:
        found: list[bytes] = []
        while batch := self.in_flight.take(1 << 20, 1 << 30):
            found += [bytes(event.body) for event in batch.pending() if event.kind & 3 != 3]
        self.in_flight.fail(2)
        self.in_flight.commit()
        self.in_flight.take_report()
        return found


def seeds() -> Iterator[bytes]:
    """Yield what `_programs` does, and some of it with each of the further options."""
    for n, program in enumerate(_programs()):
        yield program[:5] + b"\0" + program[5:]
        if n % 3 == 0:
            yield program[:5] + bytes([n // 3 % 256]) + program[5:]
        if n % 5 == 0:
            placed = program[4] | (RENAMED, PREFIXED, RENAMED | PREFIXED)[n // 5 % 3]
            yield program[:4] + bytes([placed, NESTED * (n // 15 % 2)]) + program[5:]
        if n % 7 == 0:
            logged = program[1] & ~SENT | LOGGED | ROOMY
            yield bytes([program[0] | RECORD | HANDLER, logged]) + program[2:5] + b"\0" + program[5:]
        if n % 4 == 0:
            shaped = program[2] % 32 + 32 * (4 + n // 4 % 4)
            yield bytes([program[0], program[1] | ROOMY, shaped, *program[3:5], NESTED]) + program[5:]
        if n % 6 == 0:
            beside = program[1] & ~SENT | BESIDE | ROOMY
            yield bytes([program[0] | RECORD | HANDLER, beside]) + program[2:5] + b"\0" + program[5:]
    for name in (6, 41, 42, 10, 16):  # in a dict of structlog
        for value in (bytes([TRUE]), bytes([ERROR, 1]), bytes([ERROR, 4]), b"\x06\x02ab", bytes([BYTE, 21])):
            event = bytes([DICT, 2, name]) + value + bytes([12, ASCII, 1]) + b"x"
            yield bytes([RECORD, ROOMY, 0, 0, 2, 0, 40, NONE, 1]) + event
            yield bytes([RECORD | HANDLER, ROOMY, 0, 0, 2, 0, 40, NONE, 1]) + event
    for time in (b"2026-12-01T10:00:00Z", b"2026-12-01 10:00", b"1764583200", b"now"):
        for more in (DATED, DATED | NESTED):
            yield bytes([0, ROOMY, 0, 0, 1, more, 43, ASCII, len(time)]) + time
    for verdict in (bytes([FALSE]), bytes([TRUE]), b"\x06\x02ab"):
        for more in (0, SAMPLED):
            for step in (b"\0", b"\x01", b"\x02"):
                attack = bytes([7, 0])  # one that does nothing, then the verdict
                program = attack + verdict + attack + step
                yield bytes([RECORD | HANDLER | FILTER, ROOMY, 0, 0, 0, more]) + program
    for names in b"%(user)s", b"%(a)s":
        arguments = bytes([DICT, 2, 16, ASCII, 1]) + b"x" + bytes([47, ASCII, 1]) + b"y"
        yield bytes([RECORD, 0, 0, 0, 2, REDACTED, 1, ASCII, len(names)]) + names + bytes([2]) + arguments
    for shape in range(4, len(SHAPES)):
        for place in range(len(ATTRIBUTES)):
            for way in (RECORD, 0):
                for value in (b"\x06\x02ab", bytes([DICT, 2, 16, ASCII, 1]) + b"x" + bytes([24, BYTE, 30])):
                    yield bytes([way, ROOMY, 32 * shape, 0, 1, NESTED, place]) + value
    for more in range(64):
        for code in (ERROR, PAIR, DICT, TUPLE):
            for n in range(4):
                yield bytes([RECORD, 0, 0, 0, 2, more, 6, code, n, 1, 6, 2, 31, ASCII, 1]) + b"a" * 40


def _programs() -> Iterator[bytes]:
    """Yield each opcode and attacker in each attribute, records of every kind, and random programs."""
    random = Random(11)
    for place in range(len(ATTRIBUTES)):
        for code in range(OPCODES):
            yield bytes([RECORD, 0, 0, 0, 1, place, code, 3]) + b"abcdefgh\x05\x01" * 4
        for how in range(10):
            attack = bytes([ATTACKER, how % 4, how, place + 1])
            yield bytes([RECORD, place & 1, 0, 0, 1, place]) + attack + b"\x06\x04new"
    for limit in range(0, len(LIMITS) * len(NAMES), len(LIMITS)):
        for how in (0, PAIRS, RECORD):
            for first in range(20, len(ATTRIBUTES)):
                for second in (first, *range(16, len(ATTRIBUTES))):
                    pair = bytes([first, DICT, 2, 30, ASCII, 1]) + b"a" + bytes([25, TRUE, second, BYTE, 7])
                    yield bytes([how, 0, limit, 0, 2]) + pair
    for first in range(256):
        program = bytes(random.randrange(256) for _ in range(random.randrange(120)))
        yield bytes([first, random.randrange(8), random.randrange(4), 0, random.randrange(6)]) + program
    rich = bytes([16, DICT, 2, 24, LIST, 2, FLOAT, 0]) + b"12345678" + bytes([HUGE, 255, 2, ASCII, 3])
    rich += b'a"b' + bytes([23, WIDE, 4]) + b"\x3d\xd8\x00\xde" + bytes([20, OBJECT, 5, 1, FORMAT, 8])
    for failing in range(1, 70):
        for first in (RECORD, RECORD | PAIRS, 0, PAIRS, RECORD | TRUNCATE, TRUNCATE):
            yield bytes([first, 0, 2 * (first > 3), failing, 4]) + rich
    for kind in (MAPPING, DICT, OBJECT, KEYED, ATTACKER):
        for n in range(8):
            yield bytes([0, NO_MAPPING, 0, 0, 0, kind, n]) + b"\x06\x02ab" * 8
            yield bytes([0, NO_MAPPING | 1, 0, 0, 0, kind, n]) + b"\x06\x02ab" * 8
            yield bytes([RECORD | HANDLER | SUBCLASS, SENT | ROOMY, 0, 0, 0, kind, n]) + b"\x06\x02ab" * 8
            yield bytes([RECORD | HANDLER | FILTER | 16 * (n & 1), ROOMY, 0, 0, 0, 2, 6, kind, n]) + bytes(20)
    yield bytes([0, 1, 3, 0, 1, 24, LONG, 200, 1]) + b"ab"
    for failing in range(1, 9):
        for size in (30, 90, 250):
            yield bytes([RECORD * (failing & 1), 0, 0, failing, 1, 1, LONG, size, 1]) + b"abcde" * 5
    for how_ in range(0, 256, 8):
        for way in (0, MAKER, OWN_EMIT, EMITTED, ATTENTION):
            for code in (BYTES, DICT, ASCII, BYTE):
                made = bytes([2, 6, code, 2]) + b"ab" * 9  # an attack that does nothing, then a value
                yield bytes([how_ | RECORD | HANDLER, way | ROOMY, 0, 0, 0]) + made
            yield bytes([how_ | RECORD | HANDLER, way, 0, 0, 1, 1, ASCII, 200]) + b"x" * 200
    for name in (b"logclient", b"logclient.x", b"zmq", b"zmq.auth", b"websockets", b"logclients", b"z", b"w"):
        for how_ in (RECORD | HANDLER, RECORD | HANDLER | FORMATTER):
            for way in (ROOMY, ROOMY | MAKER):
                yield bytes([how_, way, 0, 0, 1, 0, ASCII, len(name)]) + name
    values = (
        b"\x06\x02ab", bytes([WIDE, 4]) + b"\x3d\xd8\x00\xde", bytes([FLOAT, 0]) + b"12345678", b"\x00",
        b"\x01", bytes([HUGE, 9]), bytes([HUGE, 255]), bytes([FLOAT, 0]) + struct.pack("<d", 1e300),
    )  # fmt: skip
    for text in (b"%s", b"%d", b"%%", b"%.1f", b"%s %s", b"%x", b"%", b"100%", b"%s%%%d"):
        for value in values:
            yield bytes([RECORD, 0, 0, 0, 2, 1, ASCII, len(text)]) + text + bytes([2, TUPLE, 1]) + value
            yield bytes([0, ROOMY | 1, 0, 0, 1, 24, DICT, 2, 24, LIST, 2]) + value * 3
    deep = bytes([0, 0, 0, 0, 1, 0]) + bytes([LIST, 1]) * 140
    yield from (deep, bytes([0, 0, 0, 0, 1, 0]) + bytes([DICT, 1, 0]) * 140)
    for size in range(0, 256, 5):
        yield bytes([TRUNCATE | RECORD, 0, 2, 0, 1, 1, ASCII, size]) + b'a"\xe9\n' * 60
        yield bytes([TRUNCATE, 0, 2, 0, 1, 22, LONG, size]) + b'\x02a"\xc3\xa9'
    for place in (*range(len(ATTRIBUTES)), 16):
        for code in range(OPCODES):
            yield bytes([RECORD, LINES, 0, 0, 1, place, code, 3]) + b"abcdefgh\x05\x01" * 4
            yield bytes([RECORD, LINES, 0, code + 1, 1, place, code, 3]) + b"abcdefgh\x05\x01" * 4
    for text in (b"%s", b"%d", b"%.1f", b"\x00", b"'\"\\"):
        for value in values:
            line = bytes([2, 1, ASCII, len(text)]) + text + bytes([2, TUPLE, 1]) + value
            yield bytes([RECORD, LINES, 0, 0]) + line
            yield bytes([RECORD | HANDLER, LINES | MAKER | ROOMY, 0, 0]) + line
    for n in range(10):
        arguments = bytes([2, TUPLE, 2, BYTE, n, HUGE, 129 + n])
        yield bytes([RECORD, 0, 0, 0, 2, 1, ASCII, 6]) + b"%s %d " + arguments


def run(data: memoryview) -> None:
    given = bytes(data)
    if len(given) < 7:
        return
    head = Head(*given[:6])
    how = head.how
    program = Program(given[6:])
    names = NAMES[head.limit // len(LIMITS) % len(NAMES)]
    if how & RECORD:
        names = names._replace(ecs=True)  # records are always documents of ECS
    options = {
        "max_event_bytes": LIMITS[head.limit % len(LIMITS)],
        "truncate": bool(how & TRUNCATE),
        "pairs": bool(how & PAIRS) and not (how & RECORD and head.way & LINES),
        "text": (lambda text: {"message": text, "n": 1}) if how & TEXTED else None,
        "complete": (lambda fields: {**fields, "added": 1}) if how & TEXTED and not how & RECORD else None,
        **names._asdict(),
        **_further(program, head.more),
        "rename": RENAMES if head.values & RENAMED else None,
        "extra_prefix": "extra" if head.values & PREFIXED else "",
    }
    shape = SHAPES[head.limit // (len(LIMITS) * len(NAMES))]
    if shape and names.ecs and not (names.flat or options["pairs"]):
        options["form"] = form(shape, "box")
    if options["max_event_bytes"] < 100:
        options["fields"] = None  # they would not fit
    try:
        (_record if how & RECORD else _mapping)(program, head, options, names)
    finally:
        BINDINGS.set(None)


class ActiveSpans:
    """Spans of OpenTelemetry, without OpenTelemetry: one for each context, or none."""

    variable = None

    def __init__(self, program: Program) -> None:
        self.program = program

    def context(self) -> Any:
        return self.program if self.program.byte() & 1 else {}

    def find(self, context: Any) -> Any:
        self.program.attack()
        digit = format(self.program.byte() & 15, "x")
        return digit * 32, digit * 16, (("service.name", "shop"),) if digit < "8" else ()


def _further(program: Program, more: int) -> dict[str, Any]:
    """Return the options of an encoder that the sixth byte stands for. The reference has none of them."""
    fields = {"service.name": "shop", "labels.team": "a", "event.dataset": "shop.log", "größe": 1}
    if more & BOUND:
        BINDINGS.set(context.Fields([context.Part({program.key(): program.value(4) for _ in range(2)})]))
    program.hostile |= bool(more & SPANNED)  # which attack
    return {
        "nested": bool(more & NESTED),
        "timestamp": bool(more & DATED),
        "fingerprint": bool(more & DATED),
        "correct": corrected if more & DATED else None,
        "fields": fields if more & FIELDS else None,
        "bound": BINDINGS if more & BOUND else None,
        "spans": ActiveSpans(program) if more & SPANNED else None,
        "redact": ("password", "user", "lab*", "*ß*", "event.*") if more & REDACTED else (),
    }


def _mapping(program: Program, head: Head, options: dict[str, Any], names: ecs.Names) -> None:
    event: Any = {program.key(): program.value() for _ in range(head.values % 8)}
    if head.way & NO_MAPPING:
        event = program.value()
    program.held.append(event) if isinstance(event, dict) else None
    if head.way & SENT:
        rig = Rig(options, head)
        level = program.value(5) if head.more & LEVELLED else 20
        memory.fail_at(head.failing)
        try:
            if head.way & EMITTED:
                rig.encoder.put_mapping(event, head.more & 3)
            else:
                rig.sender.send(event, level)
        except (EncodeError, EncodeTypeError, ConfigError, *ATTACKS):
            return
        finally:
            memory.fail_at(0)
        for body in rig.bodies():
            if not isinstance(event, bytes):
                _valid(body, options["pairs"])
        return
    encoder = Encoder(**options)
    memory.fail_at(head.failing)
    try:
        made = encoder.encode(event)
        made = encoder.encode(event) if head.more else made  # with what the first call has kept
        read = encoder.read(event, SCAN) if head.way & ROOMY and not options["pairs"] else None
    except (EncodeError, EncodeTypeError, *ATTACKS) as error:
        _refused(error, program, head.failing)
        return
    finally:
        memory.fail_at(0)
    _valid(made[0], options["pairs"])
    if not head.more & DATED:
        _check_read(read, made[0], program, options)
    if _has_reference(program, head, options) and not options["text"]:
        _check_document(made, ecs.of_mapping(event, names, pairs=options["pairs"]), options["pairs"])
    if head.way & ATTENTION:
        encoder.set_redact(("other",))
        encoder.set_fields({"service.node.name": "b"} if options["fields"] else {})
        with contextlib.suppress(EncodeError, *ATTACKS):
            _valid(encoder.encode(event)[0], options["pairs"])


def _has_reference(program: Program, head: Head, options: dict[str, Any]) -> bool:
    return not (
        program.hostile or head.more or options["truncate"] or "form" in options
        or head.values & (RENAMED | PREFIXED)
    )  # fmt: skip


ODD = {
    "created", "exc_info", "exc_text", "stack_info", "message", "args", "levelno",
    "otelTraceID", "otelSpanID", "otelServiceName", "_logger",
}  # fmt: skip  # not as the reference
ATTACKS = (ValueError, RecursionError, MemoryError, AttributeError)  # the errors of attackers


def _record(program: Program, head: Head, options: dict[str, Any], names: ecs.Names) -> None:
    kind = OwnMessage if head.how & SUBCLASS else logging.LogRecord
    record = kind("app", 20, "/srv/f.py", 7, "message", (), None, "function")
    program.record = record
    vars(record).update(created=1767268496.789012, thread=1234567, process=4321)
    odd = bool(head.how & SUBCLASS)
    for _ in range(head.values % 8):
        n = program.byte() % len(ATTRIBUTES)
        value = program.value()
        odd |= ATTRIBUTES[n] in ODD
        vars(record)[ATTRIBUTES[n]] = value
        program.held.append(value) if isinstance(value, (dict, list)) else None
    if isinstance(record, OwnMessage):
        record.program = program
    if head.how & HANDLER:
        _handle(program, record, head, options)
        return
    if head.way & LINES:
        _line(program, record, head.failing, options)
        return
    encoder = Encoder(**options)
    before = dict(vars(record))
    memory.fail_at(head.failing)
    try:
        made = encoder.encode_record(record)
        made = encoder.encode_record(record) if head.more else made
        read = encoder.read_record(record, SCAN) if head.way & ROOMY and not options["pairs"] else None
    except (EncodeError, *ATTACKS) as error:
        _refused(error, program, head.failing)
        return
    finally:
        memory.fail_at(0)
    _valid(made[0], options["pairs"])
    if not odd:
        _check_read(read, made[0], program, options)
    if not odd and _has_reference(program, head, options):
        vars(record).update(before)
        _check_document(made, ecs.of_record(record, names, pairs=options["pairs"]), options["pairs"])


def _agent(options: dict[str, Any], taken: list[bytes]) -> Agent:
    size = options["max_event_bytes"]
    return Agent(lambda body, level, kind: taken.append(body), "shop-production", max_event_bytes=size)


def _line(program: Program, record: logging.LogRecord, failing: int, options: dict[str, Any]) -> None:
    taken: list[bytes] = []
    agent = _agent(options, taken)
    encode = agent.line_encoder().encode
    memory.fail_at(failing)
    try:
        made = encode(record)
    except ATTACKS as error:
        _refused(error, program, failing)
        return
    finally:
        memory.fail_at(0)
    if made is not None:
        _valid(made[0], False)
        if not program.hostile:
            agent.ship(record)
            check(taken == [made[0]], "the agent makes another document", made, taken)


def _handle(program: Program, record: logging.LogRecord, head: Head, options: dict[str, Any]) -> None:
    how, way = head.how, head.way
    rig = Rig(options, head)

    def maker(record: logging.LogRecord, made: Any) -> None:
        program.attack()

    lines = _agent(options, []).line_encoder() if way & LINES else None
    handler = rig.handler(program, maker if way & MAKER else None, lines, bool(way & OWN_EMIT))
    if how & FORMATTER:
        handler.setFormatter(Formatter(program))
    if how & FILTER:
        handler.addFilter(Filter(program))
    if way & SENT == LOGGED:
        extra = {name: value for name, value in vars(record).items() if name in ATTRIBUTES[16:]}
        arguments = record.args if type(record.args) is tuple else (record.args,)
        text, exc_info = record.msg, record.exc_info
        logger = Logger("app")
        logger.addHandler(handler)
        logger.warning("")  # finds out which way its calls go
    before = rig.queue.counters()
    memory.fail_at(head.failing)
    try:
        if how & SUBCLASS and way & SENT == SENT:
            handler.handle(program.value())
        elif way & SENT == LOGGED:
            with contextlib.suppress(KeyError, *ATTACKS):  # a name that records have, and code of the program
                logger.warning(text, *arguments, exc_info=exc_info, extra=extra)
        elif way & SENT == BESIDE and not how & SUBCLASS:
            record.levelno = 20  # ours: who calls this makes the record
            logger = Logger("app")
            if program.byte() & 1:
                logger.addHandler(handler)
            handler.handle_beside(logger, record)
        elif way & EMITTED:
            FastHandler.emit(handler, record)
        else:
            handler.handle(record)
    finally:
        memory.fail_at(0)
    counts = rig.queue.counters()
    if not way & MAKER and way & ROOMY:
        fates = sum(counts[name] - before[name] for name in ("sent", "ignored"))
        check(fates <= 1, "one fate", counts)
    for body in rig.bodies():
        if not how & FORMATTER:
            _valid(body, options["pairs"])


class Formatter(logging.Formatter):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def format(self, record: logging.LogRecord) -> Any:
        self.program.attack()
        return self.program.value(5)


class Filter(logging.Filter):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def filter(self, record: logging.LogRecord) -> Any:
        self.program.attack()
        verdict = self.program.value(5)
        return record if verdict is True else verdict


def _check_read(
    read: tuple[dict[str, Any], int, int] | None, body: bytes, program: Program, options: dict[str, Any]
) -> None:
    if read is not None and not program.hostile and "form" not in options:  # which has the time of its making
        check(repr(read[0]) == repr(json.loads(body)), "the document that is read", read[0], body)


def _valid(body: bytes, pairs: bool) -> None:
    if not pairs:
        check(b"\n" not in body, "one line", body)
        try:
            found = json.loads(body.decode("utf-8"))
        except ValueError as error:
            raise AssertionError(f"not JSON: {body!r}") from error
        check(isinstance(found, dict), "an object", body)
        return
    (count,) = struct.unpack_from(">I", body)
    at = 4
    for _ in range(2 * count):
        (size,) = struct.unpack_from(">I", body, at)
        body[at + 4 : at + 4 + size].decode("utf-8")
        at += 4 + size
        check(at <= len(body), "the length of a pair", body)
    check(at == len(body), "the length of the block", body)


def _refused(error: Exception, program: Program, failing: int) -> None:
    if isinstance(error, EncodeError | EncodeTypeError):
        return
    check(program.hostile or failing, "an error that is not ours", repr(error))


def _check_document(made: tuple[bytes, int, int, int], reference: ecs.Document, pairs: bool) -> None:
    want = reference.pairs() if pairs else reference.json()
    got = made[0]
    if reference.moved or reference.flags:  # in any order
        got, want = bytes(sorted(got)), bytes(sorted(want))
    check(got == want, "the reference makes another document", made[0], want)
    check(made[3] == reference.moved, "the reference has moved others", made, reference.moved)
    check(made[1] == reference.flags, "the reference has other flags", made, reference.flags)
    check(made[2] == reference.sanitized, "the reference has sanitized others", made, reference.sanitized)
