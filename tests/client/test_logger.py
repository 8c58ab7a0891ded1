"""`logclient.Logger`: its documents are those of the standard library's logger with our handler."""

from __future__ import annotations

import _thread
import asyncio
import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import json
import logging
import multiprocessing
import operator
import os
import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger
from logclient.testing.lumberjack import Collector
from tests.support.examples import examples
from tests.support.forks import FORKS, passes_in_own_process, run_in_child
from tests.support.patience import PATIENCE

CALLS = 3000
LONG_CALLS = 200_000
FAST_SHARE = 0.95
"""Of the random calls, at least. The rest has a reason that `reason` names."""


def differ(one: dict[str, Any], other: dict[str, Any], key: str) -> bool:
    return repr(one.get(key, "missing")) != repr(other.get(key, "missing"))  # NaN equals itself


class Pair:
    """A compiled logger and one of the standard library, each with a handler of ours."""

    def __init__(self, **options: Any) -> None:
        self.handlers = [logclient.Handler(NOWHERE, **options) for _ in range(2)]
        self.queues = [QueueOnly(handler.client) for handler in self.handlers]
        self.fast: Logger = Logger("app.part")
        self.plain = logging.Logger("app.part")
        self.now = 1e6
        for logger, handler in zip((self.fast, self.plain), self.handlers, strict=True):
            logger.addHandler(handler)
            if handler.client.sampling is not None:  # both hold the same records back
                handler.client.sampling._random = random.Random(7).random
                handler.client.sampling._clock = lambda: self.now

    def documents(self) -> list[list[dict[str, Any]]]:
        """Return what both have made since the last call, without times and ids."""
        made = []
        for queue in self.queues:
            bodies = [json.loads(body) for body in queue.take()]
            for body in bodies:
                body.pop("@timestamp")
            made.append(bodies)
        return made

    def check(self) -> int:
        """Check that both have made the same since the last call, and return how many documents."""
        fast, plain = self.documents()
        assert len(fast) == len(plain)
        for one, other in zip(fast, plain, strict=True):
            differing = {key for key in one.keys() | other.keys() if differ(one, other, key)}
            assert not differing, {key: (one.get(key), other.get(key)) for key in differing}
        return len(fast)

    def close(self) -> None:
        stats = [handler.client.stats() for handler in self.handlers]
        for handler in self.handlers:
            handler.client.close(timeout=0)
        assert stats[0].filtered == stats[1].filtered
        assert stats[0].sanitized == stats[1].sanitized


@contextlib.contextmanager
def pair_of(**options: Any) -> Iterator[Pair]:
    pair = Pair(**options)
    try:
        yield pair
    finally:
        pair.close()


# Arguments.


class Odd:
    def __str__(self) -> str:
        return "odd"


class Broken:
    def __str__(self) -> str:
        raise ValueError("broken")

    __repr__ = __str__


class Text(str):
    def __str__(self) -> str:
        return "another text"


class Number(int):
    def __str__(self) -> str:
        return "another number"

    __repr__ = __str__


class Level(enum.IntEnum):
    ONE = 1


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


class Falsy(Exception):
    """An error that is false, as a collection of errors may be."""

    def __bool__(self) -> bool:
        return False


class Disguised:
    """Says that it is a mapping."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return dict

    def __len__(self) -> int:
        return 1

    def __getitem__(self, name: str) -> str:
        return f"value of {name}"

    def __str__(self) -> str:
        return "disguised"

    __repr__ = __str__


def failing(depth: int = 3) -> BaseException:
    try:
        if depth:
            failing(depth - 1)
        raise ValueError("no such order")
    except ValueError as error:
        return error


def caused() -> BaseException:
    try:
        try:
            raise OSError(2, "no file")
        except OSError as error:
            raise RuntimeError("ümläut") from error
    except RuntimeError as error:
        return error


CYCLE: list[Any] = [1]
CYCLE.append(CYCLE)
VALUES: list[Any] = [
    1, -7, 2**70, 1.5, float("nan"), float("inf"), -0.0, 1e300, True, None, "text", "ümläut", "a\"b\\c\n",
    "\ud800", "\x00", "long" * 300, "\U0001f600", b"bytes", bytearray(b"x"), Odd(), Broken(), Text("text"),
    Number(5), Level.ONE, Colour.RED, Point(1, [2]), Disguised(), [1, 2], (1, "x"), {"a": 1}, {},
    {"a": {"b": [1, {"c": None}]}}, MappingProxyType({"a": 2}), collections.ChainMap({"a": 1}, {"b": 2}),
    collections.UserDict(a=4), collections.OrderedDict(a=5), {"password": "secret", "a": 3}, {1: 2, None: 3},
    {7}, frozenset(), range(3),
    object, len, ValueError("v"), Falsy("f"), decimal.Decimal("1.10"), fractions.Fraction(1, 3), 1j,
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.date(2026, 1, 2),
    uuid.UUID(int=7), CYCLE, Ellipsis, memoryview(b"view").tobytes(),
]  # fmt: skip
MESSAGES: list[Any] = [
    "plain", "user %s", "%s did %s", "%d items", "%(a)s", "%s %s %s", "100%", "%5.1f|%-8s", "%r", "", Odd(),
    7, {"message": "a mapping", "x": 1}, None, Broken(), "ü %s", "%%", "%s %(a)s", "%c", "%x %o", "%.3s|%a",
    "%*d", "%i %u", "%s" * 8, Text("%s"), b"bytes %s", ["%s"], ValueError("an error as the message"),
    {"message": "%s", "password": "secret"}, "x" * 5000,
]  # fmt: skip
NAMES = [
    "user_id", "request", "a.b", "host", "labels", "message_x", "ümläut", "log.level", "event", "x" * 40,
    "error", "error.type", "trace.id", "labels.suppressed", "password", "service.name", "",
    "tags", "@timestamp", "@metadata", "event.id", "taskname", "Name", "job",
]  # fmt: skip
RESERVED = ["color_message", "otelTraceID", "otelServiceName"]
"""Names in `extra` that are not written as they are."""
TAKEN = ["message", "asctime", "name", "args", "process", "exc_text"]
"""Names that `makeRecord` refuses."""
LEVELS = [1, 5, 10, 20, 25, 30, 40, 45, 50, 60, 2**40]
METHODS = ["debug", "info", "warning", "error", "critical", "exception", "log", "log"]

Named = dict[str, Any]


class Made:
    """A random call: a method with its arguments and keywords."""

    def __init__(self, chance: random.Random) -> None:
        self.method = chance.choice(METHODS)
        self.args: list[Any] = [chance.choice(MESSAGES)]
        self.args += [chance.choice(VALUES) for _ in range(chance.choice([0, 0, 1, 1, 2, 3, 9]))]
        self.named: Named = {}
        self.level = chance.choice(LEVELS) if self.method == "log" else None
        if self.level is not None:
            self.args.insert(0, self.level)
        if chance.random() < 0.3:
            count = chance.choice([0, 1, 2, 3, 12])
            self.named["extra"] = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(count)}
        if chance.random() < 0.2:
            self.named["exc_info"] = chance.choice(
                [True, False, None, failing(), caused(), (None, None, None), 1, 0, "", Falsy("f"), Odd()]
            )
        if chance.random() < 0.1:
            self.named["stack_info"] = chance.choice([True, False])
        if chance.random() < 0.1:
            self.named["stacklevel"] = chance.choice([1, 2, 3, 4, 7, 50, 999])
        if chance.random() < 0.02:
            self.make_odd(chance)

    def make_odd(self, chance: random.Random) -> None:
        """Give it something that keeps it off the fast way."""
        match chance.randrange(9):
            case 0:
                self.named["stacklevel"] = chance.choice([0, -1, True, 1000, 2**70])
            case 1:
                self.named["stack_info"] = chance.choice([None, 1, "", "x"])
            case 2:
                self.named["extra"] = chance.choice(
                    [MappingProxyType({"a": 1}), collections.OrderedDict(a=1)]
                )
            case 3:
                self.named["extra"] = {chance.choice([1, None, Text("a")]): 1, "b": 2}
            case 4:
                self.named["extra"] = {"a": 1, chance.choice(RESERVED): "x"}
            case 5:
                self.named["extra"] = {"a": 1, chance.choice(TAKEN): "x"}
            case 6:
                self.method, self.args = "log", [chance.choice([True, 2**70, Number(20)]), "odd level %s", 1]
            case 7:
                self.named["unknown"] = 1
            case _:
                self.method, self.args = "log", [chance.choice(["20", None, 20.0]), "no level"]

    @property
    def reason(self) -> str:
        """Return why it takes the ordinary way; empty: it takes the fast one."""
        if self.method == "log" and (type(self.args[0]) is not int or abs(self.args[0]) >= 2**63):
            return "a level that is no int of 64 bits"
        for name, value in self.named.items():
            if name == "extra":
                if value is not None and type(value) is not dict:
                    return "extra is no dict"
                for key in value or ():
                    if type(key) is not str:
                        return "a name in extra that is no string"
                    if key in (*RESERVED, *TAKEN):
                        return "a reserved name in extra"
            elif name == "stacklevel" and not (type(value) is int and 1 <= value < 1000):
                return "a stacklevel that is no small number"
            elif name == "stack_info" and type(value) is not bool:
                return "stack_info is no bool"
            elif name == "unknown":
                return "an unknown keyword"
        return ""


# Who calls. Each makes the calls from frames of its own; they are callables in C without a frame.

Calls = list[Callable[[], Any]]


def directly(calls: Calls, chance: random.Random) -> None:
    for call in calls:
        call()


def in_lambda(calls: Calls, chance: random.Random) -> None:
    both = lambda: [call() for call in calls]  # noqa: E731
    both()


def in_nested_functions(calls: Calls, chance: random.Random) -> None:
    def inner(depth: int) -> None:
        for call in calls:
            call() if depth == 0 else None
        if depth:
            inner(depth - 1)

    inner(chance.randrange(6))


def in_generator(calls: Calls, chance: random.Random) -> None:
    def steps() -> Iterator[Any]:
        for call in calls:
            yield call()

    collections.deque(steps(), maxlen=0)


def in_delegated_generator(calls: Calls, chance: random.Random) -> None:
    def inner() -> Iterator[Any]:
        try:
            yield
        except KeyError:
            for call in calls:
                call()
            yield

    def outer() -> Iterator[Any]:
        yield from inner()

    steps = outer()
    next(steps)
    steps.throw(KeyError("thrown"))  # type: ignore[attr-defined]


FILES = ["<string>", "other.py", "/srv/ümläut/a b.py", "<frozen importlib._bootstrap>", logging._srcfile, ""]


@functools.cache
def compiled(file: str, lines: int) -> CodeType:
    return compile("\n" * lines + "for call in calls: call()", file, "exec")


def in_exec(calls: Calls, chance: random.Random) -> None:
    exec(compiled(chance.choice(FILES), chance.choice([0, 1, 700, 70_000])), {"calls": calls})


def in_fresh_code(calls: Calls, chance: random.Random) -> None:
    space: dict[str, Any] = {}
    name = f"f{chance.randrange(999)}"
    exec(f"def {name}(calls):\n for call in calls: call()", space)
    space[name](calls)


def in_coroutine(calls: Calls, chance: random.Random) -> None:
    async def run() -> None:
        for call in calls:
            call()

    coroutine = run()
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


LOOP: list[asyncio.AbstractEventLoop] = []


def in_tasks(calls: Calls, chance: random.Random) -> None:
    async def one() -> None:
        await asyncio.sleep(0)
        for call in calls:
            call()

    async def run() -> None:
        await asyncio.gather(asyncio.create_task(one(), name="task-7"))

    LOOP[0].run_until_complete(run())


def decorated(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> None:
        function(*args)

    return wrapper


@decorated
@decorated
def in_decorated(calls: Calls, chance: random.Random) -> None:
    for call in calls:
        call()


class Methods:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def __call__(self) -> None:
        for call in self.calls:
            call()

    @property
    def attribute(self) -> None:
        self()

    def __enter__(self) -> None:
        self()

    def __exit__(self, *error: object) -> None:
        pass


class Dropped(Methods):
    def __del__(self) -> None:
        for call in self.calls:
            with contextlib.suppress(Exception):
                call()


def in_methods(calls: Calls, chance: random.Random) -> None:
    match chance.randrange(4):
        case 0:
            Methods(calls)()
        case 1:
            Methods(calls).attribute  # noqa: B018
        case 2:
            with Methods(calls):
                pass
        case _:
            Dropped(calls)


def in_handler(calls: Calls, chance: random.Random) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        for call in calls:
            call()


def in_finally(calls: Calls, chance: random.Random) -> None:
    try:
        try:
            raise KeyError("x")
        finally:
            for call in calls:
                call()
    except KeyError:
        pass


def from_c(calls: Calls, chance: random.Random) -> None:
    list(map(operator.call, calls))


def named_thread(calls: Calls, chance: random.Random) -> None:
    def run() -> None:
        try:
            for call in calls:
                threading.current_thread().name = name
                call()
        except Exception as error:
            raised.append(error)

    raised: list[Exception] = []
    name = chance.choice(["worker", "Wörker 7", "x" * 50, 'a"b'])
    thread = chance.choice([threading.Thread, Named7])(target=run, name="before")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


class Named7(threading.Thread):
    """A thread whose name is what it says."""

    @property
    def name(self) -> str:
        return "seven"

    @name.setter
    def name(self, value: str) -> None:
        pass


def foreign_thread(calls: Calls, chance: random.Random) -> None:
    """A thread that `threading` does not know."""

    def run() -> None:
        sys.setprofile(WAYS.note)
        try:
            for call in calls:
                call()
        except Exception as error:
            raised.append(error)
        finally:
            sys.setprofile(None)
            done.set()

    raised: list[Exception] = []
    done = threading.Event()
    _thread.start_new_thread(run, ())
    done.wait()
    if raised:
        raise raised[0]


SHAPES = [
    directly, in_lambda, in_nested_functions, in_generator, in_delegated_generator, in_exec, in_fresh_code,
    in_coroutine, in_tasks, in_decorated, in_methods, in_handler, in_finally, from_c, named_thread,
    foreign_thread,
]  # fmt: skip


class Ways:
    """Counts the calls of the compiled logger that the standard library makes: a hook of `sys.setprofile`."""

    def __init__(self) -> None:
        self.codes = {logging.Logger.__dict__[name].__code__ for name in (*METHODS, "isEnabledFor")}
        self.ordinary = 0

    def note(self, frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and frame.f_code in self.codes and isinstance(frame.f_locals["self"], Logger):
            self.ordinary += 1


WAYS = Ways()


def front(logger: logging.Logger, adapted: bool) -> Any:
    return logging.LoggerAdapter(logger, {"adapted": "yes"}) if adapted else logger


def change_names(chance: random.Random) -> None:
    """Rename the process, the thread or a level, now and then."""
    match chance.randrange(40):
        case 0:
            multiprocessing.current_process().name = chance.choice(["MainProcess", "worker-1", "Prozeß"])
        case 1:
            threading.current_thread().name = chance.choice(["MainThread", "thread-1", "y" * 40])
        case 2:
            logging.addLevelName(chance.choice([20, 25]), chance.choice(["INFO", "NOTE", "Größe"]))


@pytest.fixture
def stage() -> Iterator[None]:
    """What random calls need, and what they change."""
    names = logging.getLevelNamesMapping()
    process, thread = multiprocessing.current_process(), threading.current_thread()
    before = process.name, thread.name, logging.getLevelName(25)
    LOOP.append(asyncio.new_event_loop())
    threading.setprofile(WAYS.note)
    try:
        yield
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        LOOP.pop().close()
        process.name, thread.name, _ = before
        logging.addLevelName(20, "INFO")
        logging._levelToName.pop(25, None)
        for name in set(logging._nameToLevel) - set(names):
            del logging._nameToLevel[name]


def make_call(pair: Pair, made: Made, adapted: bool, chance: random.Random) -> tuple[bool, str]:
    """Make a call with both loggers; return whether it took the fast way, and why not."""
    reason = made.reason
    if adapted and "extra" in reason:
        reason = ""  # an adapter gives another one
    calls: Calls = [
        functools.partial(getattr(front(logger, adapted), made.method), *made.args, **made.named)
        for logger in (pair.fast, pair.plain)
    ]
    before = WAYS.ordinary
    sys.setprofile(WAYS.note)
    try:
        if not reason:
            chance.choice(SHAPES)(calls, chance)
        else:  # it may raise
            raised = [outcome(call) for call in calls]
            assert raised[0] == raised[1]
    finally:
        sys.setprofile(None)
    return WAYS.ordinary == before, reason


def outcome(call: Callable[[], Any]) -> str:
    """Return what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def run_calls(
    pair: Pair,
    chance: random.Random,
    count: int,
    bind: bool,
    span: Callable[[], Any] = contextlib.nullcontext,
) -> tuple[int, Counter[str]]:
    """Make random calls; return how many took the fast way, and the reasons of the others."""
    fast, reasons = 0, Counter[str]()
    for level in LEVELS:  # so that the loggers know which are enabled
        for logger in (pair.fast, pair.plain):
            logger.isEnabledFor(level)
    for number in range(count):
        change_names(chance)
        made, adapted = Made(chance), chance.random() < 0.1
        pair.now += chance.choice([0, 0, 0.3])
        fields = {chance.choice(NAMES): chance.choice(VALUES[:12])} if chance.random() < 0.5 else {}
        bound = logclient.bind(fields) if bind and fields else contextlib.nullcontext()
        with bound, span() if chance.random() < 0.5 else contextlib.nullcontext():
            was_fast, reason = make_call(pair, made, adapted, chance)
        assert was_fast == (reason == ""), (vars(made), reason)
        fast += was_fast
        reasons.update([reason] if reason else [])
        if number % 50 == 49:
            pair.check()
            assert pair.fast.obstacle() == ""
    pair.check()
    return fast, reasons


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "redact and fields": {"redact": ["password", "user_id"], "fields": {"service.name": "shop", "tags": [1]}},
    "sample": {"sample": {"INFO": 0.5, "ERROR": 0.1}},
    "rate_limit": {"rate_limit": 3},
    "dedupe": {"dedupe": 5},
    "all that hold back": {"sample": {"app": 0.9}, "rate_limit": 9, "dedupe": 1, "redact": ["a"]},
    "truncated": {"max_event_bytes": 1200, "truncate": True},
    "too large": {"max_event_bytes": 600},
    "other ids": {"identity": "none", "error_fingerprint": True},
}


BOUND = ("redact and fields", "rate_limit", "truncated")
"""Of these, those with fields that are bound to half of the calls."""


@pytest.mark.parametrize("calls", [CALLS, pytest.param(LONG_CALLS, marks=pytest.mark.long)])
def test_random_calls_make_the_same_documents(calls: int, stage: None) -> None:
    chance = random.Random(f"calls {calls}")
    fast, reasons = 0, Counter[str]()
    for name, options in OPTIONS.items():
        with pair_of(**options) as pair:
            found, others = run_calls(pair, chance, calls // len(OPTIONS), bind=name in BOUND)
        fast += found
        reasons += others
    made = fast + reasons.total()
    print(f"{made} calls, {fast} the fast way, others:", dict(reasons))
    assert fast >= FAST_SHARE * made


@pytest.mark.parametrize("service", [False, True])
def test_random_calls_in_spans_make_the_same_documents(service: bool, stage: None) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    chance = random.Random(11)

    def span() -> Any:
        context = trace.SpanContext(
            chance.getrandbits(128) or 1, chance.getrandbits(64) or 1, is_remote=False
        )
        return trace.use_span(trace.NonRecordingSpan(context))

    with pair_of(opentelemetry=True, fields={"service.name": "shop"} if service else {}) as pair:
        fast, _ = run_calls(pair, chance, CALLS // 6, bind=True, span=span)
    assert fast >= FAST_SHARE * (CALLS // 6)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=6,
)
formats = st.lists(
    st.sampled_from(["%s", "%r", "%d", "%5.1f", "%(a)s", "%%", "%", " text ", "ü", "\x00", "%c", "%a"])
    | st.text(max_size=5),
    max_size=5,
).map("".join)
extras = st.none() | st.dictionaries(
    st.text(max_size=12).filter(lambda name: name not in vars(logging.makeLogRecord({}))), values, max_size=4
)


@pytest.fixture(scope="module")
def lasting_pair() -> Iterator[Pair]:
    with pair_of(redact=["a", "secret"]) as pair:
        yield pair


@examples(300)
@given(
    message=formats | values, args=st.lists(values, max_size=3), extra=extras, level=st.integers(1, 60),
    fields=st.dictionaries(st.text(max_size=9), values, max_size=2),
)  # fmt: skip
def test_any_call_makes_the_same_document(
    lasting_pair: Pair, message: Any, args: list[Any], extra: Any, level: int, fields: dict[str, Any]
) -> None:
    with logclient.bind(fields):
        for logger in (lasting_pair.fast, lasting_pair.plain):
            logger.log(level, message, *args, extra=extra)
            logger.error(message, *args, extra=extra, exc_info=True)
    assert lasting_pair.check() == 2


def test_threads_may_be_renamed_while_they_log() -> None:
    """Each document has one of the names, whole."""
    names = ["first" * 6, "second" * 5, "dritter Näme"]
    with pair_of() as pair:
        thread = threading.Thread(
            target=lambda: [pair.fast.info("%d", n) for n in range(3000)], name=names[0]
        )
        thread.start()
        while thread.is_alive():
            for name in names:
                thread.name = name
        thread.join()
        documents, _ = pair.documents()
    assert [int(one["message"]) for one in documents] == list(range(3000))
    assert {one["process"]["thread"]["name"] for one in documents} <= set(names)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("fork", FORKS)
def test_forked_children_log_their_own_process(fork: str, request: pytest.FixtureRequest) -> None:
    if fork == "from C" and passes_in_own_process(request.node.nodeid):
        return
    with Collector(keep=True) as server:
        handler = logclient.Handler(server.url)
        loggers = [Logger("fast"), logging.Logger("plain")]
        for logger in loggers:
            logger.addHandler(handler)
            for _ in range(2):
                logger.info("%d", os.getpid())

        def child() -> None:
            for logger in loggers:
                logger.info("%d", os.getpid())
            assert handler.client.flush(PATIENCE) == 0

        run_in_child(child, FORKS[fork])
        events = server.events(6)
        handler.client.close()
    assert len({event["message"] for event in events}) == 2
    for event in events:
        assert event["process"]["pid"] == int(event["message"])


def test_each_line_of_a_long_function_is_a_place_of_its_own() -> None:
    """A logger remembers fewer places, and many lines share one."""
    lines = range(3, 1003)
    space: dict[str, Any] = {}
    exec("def long(log):\n pass\n" + "\n".join(f" log('{line}')" for line in lines), space)
    with pair_of() as pair:
        for _ in range(3):
            space["long"](pair.fast.info)
        documents, _ = pair.documents()
    assert [one["log"]["origin"]["file"]["line"] for one in documents] == [*lines] * 3
    assert [int(one["message"]) for one in documents] == [*lines] * 3


def test_code_without_a_line_or_with_an_impossible_path_may_log() -> None:
    def call(logger: logging.Logger, stack_info: bool) -> None:
        logger.info("called", stack_info=stack_info)

    code, trace = call.__code__, sys.gettrace()
    sys.settrace(None)  # a tracer, such as that of coverage, may not take such code
    try:
        with pair_of() as pair:
            for odd in (code.replace(co_linetable=b""), code.replace(co_filename="\ud800.py")):
                for stack_info in (False, True, True):
                    for logger in (pair.fast, pair.plain):
                        assert not outcome(functools.partial(FunctionType(odd, {}), logger, stack_info))
            assert pair.check() == 6
    finally:
        sys.settrace(trace)
