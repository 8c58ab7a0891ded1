"""Python code that runs inside compiled code, or before an object was made, never crashes it."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import logclient
import logclient._ext
from logclient import client, lumberjack, plog
from logclient._ext.pump import Outcomes, PythonCodec
from logclient._ext.record import mark_sender_thread
from logclient.errors import EncodeTypeError
from logclient.handler import Handler
from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE
from tools.extensions import modules

NOWHERE = "lumberjack://127.0.0.1:9"
RECORD = logging.LogRecord("app", 20, "f.py", 1, "m", (), None)
HOSTILE_RECORDS = "from tests.support.hostile_records import every_attribute; every_attribute()"
HOSTILE_MAPPINGS = "from tests.support.hostile_records import every_mapping; every_mapping()"
HOSTILE_CALLS = "from tests.support.hostile_calls import every_call; every_call()"
EXTENSIONS = sorted(modules(Path(logclient._ext.__path__[0]), ".pyi"))


def run(code: str, *arguments: str) -> str:
    """Run a program, which must succeed, and return its output. Freed memory is overwritten there."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        cwd=TESTED, env={**clean_environment(), "PYTHONMALLOC": "debug"}, capture_output=True, text=True,
        timeout=4 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_records_may_change_while_they_are_encoded() -> None:
    """Each attribute in turn runs Python code that replaces all the others; their memory is reused."""
    said = run(HOSTILE_RECORDS)
    assert said == "held\n"


def test_mappings_may_change_while_they_are_encoded() -> None:
    said = run(HOSTILE_MAPPINGS)
    assert said == "held\n"


def test_logging_may_change_while_a_log_call_runs() -> None:
    """Arguments, fields, errors, threads and garbage take away handlers, loggers, classes and names."""
    assert run(HOSTILE_CALLS) == "held\n"


SHARED = r"""
import struct, threading
from array import array
from logclient._ext.lumberjack import Decoder
from logclient._ext.plog import Reassembler

BODY = b'{"message":"' + b"m" * 2000 + b'"}'
COUNT = 2000
WINDOW = b"2W" + struct.pack(">I", COUNT) + b"".join(
    b"2J" + struct.pack(">II", n + 1, len(BODY)) + BODY for n in range(COUNT))
decoder, reassembler = Decoder(), Reassembler()
taken = [0, 0]
failures = []
lines = array("q", range(0, 20000, 10)), array("q", [10] * 2000), array("Q", range(2000))

def use(which):
    match which:
        case 0:
            assert len(decoder.decode(WINDOW, array("q", [0]), array("q", [len(WINDOW)]))) == COUNT
        case _:
            assert len(reassembler.feed(b"x" * 20000, *lines, 0.0).verdict) == 2000
            reassembler.expire(0.0)
            reassembler.open

def run(which):
    for _ in range(30):
        try:
            use(which)
        except BaseException as error:
            if type(error) is not RuntimeError or "another thread" not in str(error):
                failures.append(error)
        else:
            taken[which] += 1

threads = [threading.Thread(target=run, args=(n % 2,)) for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all(taken) and not failures, (taken, failures)
print("held")
"""


def test_an_object_that_another_thread_uses_refuses_to_be_used() -> None:
    """Each call does all of its work, or nothing."""
    assert run(SHARED) == "held\n"


def test_a_codec_in_use_refuses_to_be_used() -> None:
    """Its methods that change what it keeps, beside one that is on its way."""
    refused = []

    class Target:
        error = None

        def credit(self, now: float) -> tuple[int, int]:
            return 1, 1

        def timeout(self, now: float) -> int:
            return 0

        def receive(self, data: bytes, now: float, out: Outcomes) -> None:
            for use in (codec.credit, codec.timeout, codec.sent):
                with pytest.raises(RuntimeError, match="another thread uses this codec"):
                    use(1)
                refused.append(use.__name__)

    codec = PythonCodec(Target())
    assert codec.receive(b"x", 0.0) == 0, codec.error
    assert refused == ["credit", "timeout", "sent"]
    assert (codec.credit(0.0), codec.timeout(0.0)) == ((1, 1), 0)


UNMADE = r"""
import importlib, logging, sys
module = importlib.import_module(f"logclient._ext.{sys.argv[1]}")
RECORD = logging.LogRecord("a", 20, "f.py", 1, "m", (), None)
VALUES = [None, 0, 1, -1, 2**40, 1.5, "x", b'{"a":1}', bytearray(9), memoryview(b"abc"), (), [], {"a": 1},
          RECORD, object()]

def tries(function, parameters):
    for count in (0, 1, 2, 3, 4):
        for first in VALUES[:: 1 if count else len(VALUES)]:
            for others in (None, 1, b"ab", 0.5) if count > 1 else (None,):
                yield (first, *[others] * (count - 1)) if count else ()

def attack(kind, thing):
    for name in dir(thing):
        if name in ("__class__", "__doc__", "__init_subclass__", "__subclasshook__", "__new__", "__dir__",
                    "__getattribute__", "__setattr__", "__delattr__", "__sizeof__", "wait_for_wake",
                    "wait_settled", "wait_room", "wait"):
            continue
        try:
            what = getattr(thing, name)
        except Exception:
            continue
        if not callable(what):
            for value in VALUES:
                try:
                    setattr(thing, name, value)
                except Exception:
                    pass
            continue
        for arguments in tries(what, None):
            try:
                what(*arguments)
            except Exception:
                pass
    try:
        bytes(memoryview(thing))
    except Exception:
        pass
    for call in (iter, len, repr, list, hash, bool):
        try:
            call(thing)
        except Exception:
            pass

for name, kind in vars(module).items():
    if not isinstance(kind, type) or kind.__module__ != module.__name__ or issubclass(kind, int):
        continue
    try:
        thing = kind.__new__(kind)
    except Exception:
        thing = None                # it needs its arguments already here
    if thing is not None:
            attack(kind, thing)
    for wrong in ((), (None,), (1,), ("x", "y"), (None, None, None)):
        thing = None
        try:
            thing = kind.__new__(kind, *wrong)
            thing.__init__(*wrong)
        except Exception:
            pass
        if thing is not None:
            attack(kind, thing)     # its __init__ has failed, or was given nonsense
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", EXTENSIONS)
def test_methods_before_init_raise_and_do_not_crash(module: str) -> None:
    """Every method of every compiled class, before `__init__` and after one that failed."""
    assert run(UNMADE, module).endswith("done\n")


CLIENTS = [client.Client, lumberjack.Writer, plog.Client]
USES: dict[str, Any] = {
    "send": lambda c: c.send({"a": 1}),
    "send bytes": lambda c: c.send(b"{}"),
    "submit": lambda c: c.submit("x"),
    "submit bytes": lambda c: c.submit(b"{}"),
    "flush": lambda c: c.flush(),
    "close": lambda c: c.close(),
    "stats": lambda c: c.stats(),
    "closed": lambda c: c.closed,
    "producer": lambda c: c.producer,
    "event_id": lambda c: c.event_id(1),
    "with": lambda c: c.__enter__().__exit__(None, None, None),
}


NOT_MADE = (AttributeError, TypeError)


class TestBeforeInit:
    @pytest.mark.parametrize("use", USES)
    @pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
    def test_a_client_before_init_raises(self, kind: type[client.Client], use: str) -> None:
        with pytest.raises(NOT_MADE):
            USES[use](kind.__new__(kind))

    def test_a_plog_client_before_init_raises(self) -> None:
        with pytest.raises(NOT_MADE):
            plog.Client.__new__(plog.Client).command("stat")

    def test_a_logjam_client_before_init_raises(self) -> None:
        logjam = pytest.importorskip("logclient.logjam")
        with pytest.raises(NOT_MADE):
            logjam.Client.__new__(logjam.Client).request("Home#index")

    def test_a_logux_client_before_init_raises(self) -> None:
        logux = pytest.importorskip("logclient.logux")
        with pytest.raises(NOT_MADE):
            logux.Client.__new__(logux.Client).subscribe("a")

    def test_log_calls_before_init_are_ignored(self) -> None:
        handler = Handler.__new__(Handler)
        assert handler.handle(RECORD) is False
        handler.emit(RECORD)

    @pytest.mark.parametrize("use", ["flush", "close"])
    def test_a_handler_before_init_raises(self, use: str) -> None:
        with pytest.raises(NOT_MADE):
            getattr(Handler.__new__(Handler), use)()

    def test_a_subclass_may_log_before_init(self) -> None:
        class Early(Handler):
            def __init__(self, url: str) -> None:
                self.handle(RECORD)
                self.emit(RECORD)
                super().__init__(url, timeout=0.0, atexit_timeout=0.0)

        handler = Early(NOWHERE)
        assert handler.client.stats().sent == 0
        handler.handle(RECORD)
        assert handler.client.stats().sent == 1
        handler.client.close(0.0)

    def test_repr_before_init_says_so(self) -> None:
        assert repr(Handler.__new__(Handler)) == "<Handler before its __init__>"
        assert repr(client.Client.__new__(client.Client)) == "<Client before its __init__>"

    def test_a_second_bind_raises_type_error(self) -> None:
        with logclient.connect(NOWHERE, timeout=0.0) as one, pytest.raises(TypeError, match="already"):
            one._bind(one.encoder, print, revises=False)


@pytest.mark.parametrize(
    "odd", [None, 1, [1], bytearray(b"{}"), memoryview(b"{}")], ids=lambda odd: type(odd).__name__
)
def test_invalid_events_fail_with_a_reason(odd: Any) -> None:
    with logclient.connect(NOWHERE, timeout=0.0) as one:
        with pytest.raises(EncodeTypeError):
            one.send(odd)
        with pytest.raises(EncodeTypeError):
            one.submit(odd)
        one.flush(0.0)
        counts = one._sender.engine.queue.counters()
        assert counts["sent"] == 2
    assert one.stats().failed == {"unencodable": 2}


def test_records_of_finalizers_in_the_sender_are_shipped() -> None:
    """`weakref.finalize`, as `__del__`: a garbage collection may run both there."""

    class Thing:
        me: Any

    log = logging.Logger("app")
    log.addHandler(handler := Handler(NOWHERE, timeout=0.0))
    thing = Thing()
    thing.me = thing
    weakref.finalize(thing, log.info, "from a finalizer")
    del thing
    before = mark_sender_thread(True)
    try:
        log.info("of the sender")
        gc.collect()
    finally:
        mark_sender_thread(before)
    stats = handler.client.stats()
    handler.client.close(0.0)  # what it gives up is reported here, not during another test
    assert (stats.sent, stats.ignored) == (1, 1)
    handler.close()


WITHOUT_INIT = """
import copy, logging, sys
import logclient
from logclient import Client, Handler
RECORD = logging.LogRecord("app", 20, "f.py", 1, "m", (), None)

def refused(call):
    try:
        call()
    except (TypeError, AttributeError) as error:
        return error
    raise AssertionError("taken")

class Early(Handler):
    def __init__(self, *given, **options):
        self.handle(RECORD)
        super().__init__(*given, **options)

class EarlyClient(Client):
    def __init__(self, *given):
        self.send("x")

class Never(Client):
    def __init__(self):
        pass

Handler.__new__(Handler).handle(RECORD)
Handler.__new__(Handler).emit(RECORD)
Early("lumberjack://127.0.0.1:1", timeout=0.0, atexit_timeout=0.0).close()
handler = Handler("lumberjack://127.0.0.1:1", timeout=0.0, atexit_timeout=0.0)
for call in (lambda: Client.__new__(Client).send({}), lambda: Client.__new__(Client).send(b"{}"),
             lambda: EarlyClient(1), lambda: Never().send("x"), lambda: Never().submit("x"),
             lambda: copy.copy(handler).handle(RECORD), lambda: copy.copy(handler.client).send("x")):
    refused(call)
handler.close()
print("held")
"""


ADDRESSED = ["constants", "queue", "inflight", "codec_base", "decoder", "hash", "tracebacks", "record"]
ADDRESSED += ["jsonscan", "lumberjack", "pump"]
LONG_CALLS = HOSTILE_CALLS.replace("()", "(rounds=1000)")


@pytest.mark.long
@pytest.mark.tree
def test_hostile_records_pass_address_sanitizer() -> None:
    """Records that change while they are read, logging during log calls, and objects before `__init__`."""
    from fuzz import build
    from fuzz.target import MissingError

    try:
        preload = build.runtime()
        tree = build.address(ADDRESSED)
    except MissingError as error:
        pytest.skip(str(error))
    environment = build.environment(tree) | {"LD_PRELOAD": preload}
    for program in (HOSTILE_RECORDS, HOSTILE_MAPPINGS, LONG_CALLS, WITHOUT_INIT):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=40 * PATIENCE,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr[-4000:]
