"""The handler up to the queue: records shipped, refused, ignored and reported; nothing connects."""

from __future__ import annotations

import gc
import io
import json
import logging
import logging.config
import logging.handlers
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient._ext.constants import K_MASK, K_RAW
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient._ext.record import Encoder, FastHandler, mark_sender_thread
from logclient.delivery.error_log import ErrorLog
from logclient.handler import Handler
from logclient.records import formatters
from tests.support import clean_environment
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

NOWHERE = "lumberjack://127.0.0.1:9"
HOME = Path(logclient.__file__).parent.parent


class ClientWithoutSender:
    """A client whose sender never starts: events stay in the queue."""

    documents = None
    line_encoder = None
    revision = None
    sampling = None

    class config:
        hold_below = None
        redacted = "test://parked"
        timeout = 0.0

    def __init__(self, *, pairs: bool = False, truncate: bool = False, **bounds: Any) -> None:
        self.queue = EventQueue(policy=bounds.pop("policy", "drop_oldest"), **bounds)
        self._sender = self._waiter = self.sink = self
        self.queue.needs_sender = False
        self.encoder = Encoder(
            self.queue,
            max_event_bytes=bounds.get("max_event_bytes", 1 << 20),
            pairs=pairs,
            truncate=truncate,
        )
        self.front_ends: set[Any] = set()
        self.calls: list[Any] = []
        self.in_flight = InflightBatches(self.queue)
        self.trouble: Exception | None = None
        self.warn_limited = ErrorLog().warn_limited

    def ensure_sender(self) -> None:
        self.calls.append("attend")
        if self.trouble:
            raise self.trouble

    def put_slowly(self, code: int, body: bytes, level: int, kind: int) -> int:
        self.calls.append((code, body, level, kind))
        if self.trouble:
            raise self.trouble
        return 0

    def flush(self, timeout: float, if_reachable: bool = False) -> int:
        self.calls.append("flush")
        return 0

    def background(self, patience: float = 0.0) -> None:
        self.calls.append("close")

    def events(self) -> list[Any]:
        """Everything put since the last call."""
        found: list[Any] = []
        while batch := self.in_flight.take(1 << 20, 1 << 30):
            found += list(batch.pending())
        self.in_flight.fail(2)
        self.in_flight.commit()
        self.in_flight.take_report()
        return found

    def made(self) -> list[dict[str, Any]]:
        return [json.loads(event.body) for event in self.events()]

    def failed(self) -> dict[str, int]:
        """What got a tombstone instead, by reason."""
        self.events()
        return {k: n for k, n in self.queue.counters()["failed"].items() if k != "closed"}

    def count(self, name: str) -> int:
        return int(self.queue.counters()[name])


class Fixture:
    def __init__(self, kind: type[Handler] = Handler, **options: Any) -> None:
        self.client = ClientWithoutSender(**options)
        self.handler = kind(client=self.client)  # type: ignore[arg-type]
        self.log = logging.Logger("app", logging.DEBUG)
        self.log.addHandler(self.handler)

    def messages(self) -> list[str]:
        return [d["message"] for d in self.client.made()]


Make = Callable[..., Fixture]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Fixture] = []

    def make(kind: type[Handler] = Handler, **options: Any) -> Fixture:
        made.append(Fixture(kind, **options))
        return made[-1]

    yield make
    for one in made:
        one.handler.close()


@pytest.fixture
def read_stderr(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Return what went to stderr since the last call."""
    return lambda: capsys.readouterr().err


class TestRecords:
    def test_a_record_becomes_a_document(self, make: Make) -> None:
        one = make()
        one.log.warning("%d of %s", 2, "three", extra={"shop": "here"})
        (event,) = one.client.events()
        document = json.loads(event.body)
        assert (document["message"], document["log.level"], document["shop"]) == (
            "2 of three",
            "warning",
            "here",
        )
        assert document["log.origin.function"] == "test_a_record_becomes_a_document"
        assert (event.level, event.kind & K_MASK) == (3, 0)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(event.created_us // 1_000_000))
        assert document["@timestamp"] == f"{stamp}.{event.created_us % 1_000_000:06d}Z"

    @pytest.mark.parametrize(
        ("levelno", "level"),
        [(0, 0), (5, 0), (10, 1), (49, 4), (50, 5), (1000, 5), (-5, 0), (2**70, 5), (-(2**70), 0)],
    )
    def test_the_level_is_reduced_to_six_steps(self, make: Make, levelno: int, level: int) -> None:
        one = make()
        record = one.log.makeRecord("app", levelno, "f.py", 1, "m", (), None)
        assert one.handler.handle(record) is record
        assert [e.level for e in one.client.events()] == [level]

    def test_event_ids_of_the_user_are_flagged_and_moved(self, make: Make) -> None:
        one = make()
        one.log.info("a", extra={"@metadata": {}})
        one.log.info("b", extra={"event.id": 1})
        one.log.info("c", extra={"event": {"id": 1}, "@metadata": 1})
        one.log.info("d", extra={"event.id": "ab" * 16})
        assert [e.kind for e in one.client.events()] == [0, 0x08, 0x08, 0]
        assert one.client.count("moved") == 3

    def test_pairs_carry_the_message(self, make: Make) -> None:
        one = make(pairs=True)
        one.log.info("hi")
        (event,) = one.client.events()
        assert b"\0\0\0\x07message\0\0\0\x02hi" in event.body

    def test_set_level_filters_records(self, make: Make) -> None:
        one = make()
        one.handler.setLevel("ERROR")
        one.log.info("no")
        one.log.error("yes")
        assert one.messages() == ["yes"]

    def test_sanitized_values_are_counted(self, make: Make) -> None:
        one = make()
        one.log.info("a", extra={"nan": float("nan"), "raw": b"b"})
        assert one.client.count("sanitized") == 2

    def test_the_client_is_called_when_the_queue_needs_it(self, make: Make) -> None:
        one = make()
        one.client.queue.needs_sender = True
        one.log.info("a")
        assert one.client.calls == ["attend"]
        one.client.queue.needs_sender = False
        one.log.info("b")
        assert one.client.calls == ["attend"]

    def test_a_full_queue_passes_the_event_to_the_client(self, make: Make) -> None:
        one = make(policy="block", max_events=1)
        one.log.info("a")
        one.log.error("b" * 9000)
        (call,) = one.client.calls
        assert call[0] == -2
        assert json.loads(call[1])["message"] == "b" * 9000
        assert call[2:] == (4, 0)

    def test_errors_of_the_client_do_not_reach_the_caller(
        self, make: Make, read_stderr: Callable[[], str]
    ) -> None:
        one = make(policy="block", max_events=1)
        one.client.trouble = RuntimeError("no threads")
        one.client.queue.needs_sender = True
        one.log.info("a")
        one.log.info("b")
        assert len(one.client.calls) == 2
        assert "RuntimeError: no threads" in read_stderr()
        assert one.messages() == ["a"]


class TestFailures:
    def test_a_cycle_costs_its_own_place(self, make: Make, read_stderr: Callable[[], str]) -> None:
        one = make()
        cycle: list[Any] = []
        cycle.append(cycle)
        one.log.critical("a", extra={"c": cycle})
        one.log.info("b")
        assert [event.get("c") for event in one.client.made()] == [["<cycle>"], None]
        assert one.client.failed() == {} and one.client.count("sanitized") == 1
        assert read_stderr() == ""

    def test_a_large_record_fails_as_too_large(self, make: Make, read_stderr: Callable[[], str]) -> None:
        one = make(max_event_bytes=1000)
        one.log.info("x" * 2000)
        one.log.info("x" * 10_000_000)
        one.log.info("b")
        assert one.messages() == ["b"]
        assert one.client.failed() == {"too_large": 2}
        assert "max_event_bytes" in read_stderr()

    def test_truncate_cuts_a_large_message(self, make: Make) -> None:
        one = make(max_event_bytes=1000, truncate=True)
        one.log.info("x" * 2000)
        (document,) = one.client.made()
        assert document["log.flags"] == ["truncated"]

    def test_arguments_that_do_not_fit_are_appended(self, make: Make) -> None:
        one = make()
        one.log.info("%d items", "two")
        one.log.info("a", 1)
        one.log.info("%s")
        assert one.messages() == ["%d items % ('two',)", "a % (1,)", "%s"]
        assert one.client.count("sanitized") == 2

    def test_errors_are_reported_once_a_minute(self, make: Make, read_stderr: Callable[[], str]) -> None:
        one = make()
        for _ in range(100):
            one.handler.handle(object())  # type: ignore[arg-type]
        assert len(read_stderr().splitlines()) == 1
        assert one.client.failed() == {"unencodable": 100}

    def test_an_error_whose_text_fails_is_reported(self, make: Make, read_stderr: Callable[[], str]) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        class Formatter(logging.Formatter):
            def format(self, record: logging.LogRecord) -> str:
                raise Odd

        one = make()
        one.handler.setFormatter(Formatter())
        one.log.info("an event")
        assert read_stderr() == f"logclient: a record of logger {one.log.name!r}: Odd\n"

    @pytest.mark.parametrize("url", ["plog://127.0.0.1:9", "logjam://127.0.0.1:9/shop-production"])
    def test_a_record_whose_error_has_no_text_counts_once(self, url: str) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        class Record(logging.LogRecord):
            def getMessage(self) -> str:
                raise Odd

        class Time(float):
            def __mul__(self, other: object) -> float:
                raise Odd

        handler = Handler(url)
        record = Record("app", 20, "", 1, "m", (), None)
        record.created = Time(1)
        handler.handle(record)
        handler.client.close(0.0)
        assert handler.client.stats().sent == 1

    def test_raise_exceptions_false_silences_errors(
        self, make: Make, read_stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging, "raiseExceptions", False)
        make().handler.handle(object())  # type: ignore[arg-type]
        assert read_stderr() == ""

    def test_keyboard_interrupt_reaches_the_caller(self, make: Make) -> None:
        class Stop:
            def __str__(self) -> str:
                raise KeyboardInterrupt

        one = make()
        with pytest.raises(KeyboardInterrupt):
            one.log.info("%s", Stop())
        one.log.info("on")
        assert one.messages() == ["on"]


class TestFilter:
    def test_filters_are_added_and_removed_at_runtime(self, make: Make) -> None:
        one = make()
        only = logging.Filter("app.sub")
        one.handler.addFilter(only)
        one.log.info("no")
        one.handler.removeFilter(only)
        one.log.info("yes")
        one.handler.filters = [lambda record: "3" not in record.getMessage()]
        one.log.info("2")
        one.log.info("3")
        assert one.messages() == ["yes", "2"]
        assert one.handler.handle(one.log.makeRecord("app", 20, "f.py", 1, "3", (), None)) is False

    def test_the_list_of_filters_may_be_replaced(self, make: Make) -> None:
        one = make()
        for filters in ([logging.Filter("other")], [], (logging.Filter("other"),), []):
            one.handler.filters = filters  # type: ignore[assignment]
            assert one.handler.filters is filters
            one.log.info("taken" if not filters else "refused")
        assert one.messages() == ["taken", "taken"]

    def test_a_filter_may_change_the_record(self, make: Make) -> None:
        def redact(record: logging.LogRecord) -> bool:
            record.msg, record.args = "redacted", ()
            return True

        one = make()
        one.handler.addFilter(redact)
        one.log.info("secret %s", 1)
        assert one.messages() == ["redacted"]

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="filters may replace the record since 3.12")
    def test_a_filter_may_replace_the_record(self, make: Make) -> None:
        one = make()
        one.handler.addFilter(lambda record: logging.LogRecord("app", 20, "f.py", 1, "another", (), None))
        one.log.info("one")
        assert one.messages() == ["another"]

    def test_a_filter_that_raises_ships_nothing(self, make: Make, read_stderr: Callable[[], str]) -> None:
        """It may be the filter that removes secrets."""

        def broken(record: logging.LogRecord) -> bool:
            raise LookupError("oops")

        one = make()
        one.handler.addFilter(broken)
        one.log.info("secret")
        assert one.client.events() == []
        assert one.client.failed() == {"unencodable": 1}
        assert "LookupError: oops" in read_stderr()


class TestFormatter:
    def test_basic_config_keeps_the_default_formatter(self, make: Make) -> None:
        one = make()
        assert isinstance(one.handler.formatter, formatters.EcsFormatter)
        one.handler.setFormatter(None)
        assert isinstance(one.handler.formatter, formatters.EcsFormatter)

    def test_a_formatters_string_becomes_the_message(self, make: Make) -> None:
        one = make()
        one.handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        one.log.info("hi %s", "you", extra={"a": 1})
        (document,) = one.client.made()
        assert (document["message"], document["a"], document["log.level"]) == ("INFO: hi you", 1, "info")
        one.handler.setFormatter(formatters.EcsFormatter())
        one.log.info("hi %s", "you")
        assert one.messages() == ["hi you"]

    def test_a_formatters_mapping_becomes_fields(self, make: Make) -> None:
        class Fields(logging.Formatter):
            def format(self, record: logging.LogRecord) -> Any:
                return {"event": "e", "n": 1}

        one = make()
        one.handler.setFormatter(Fields())
        one.log.info("hi", extra={"a": 1})
        (document,) = one.client.made()
        assert (document["message"], document["n"], document["a"]) == ("e", 1, 1)

    @pytest.mark.parametrize("kind", [bytes, type("Own", (bytes,), {})])
    def test_a_formatters_bytes_travel_unchanged(self, make: Make, kind: type[bytes]) -> None:
        class Raw(logging.Formatter):
            def format(self, record: logging.LogRecord) -> Any:
                return kind(b'{"own":1}')

        one = make()
        one.handler.setFormatter(Raw())
        one.log.error("hi")
        (event,) = one.client.events()
        assert (event.body, event.kind, event.level) == (b'{"own":1}', K_RAW, 4)
        two = make(pairs=True)
        two.handler.setFormatter(Raw())
        two.log.error("hi")
        (event,) = two.client.events()
        assert b'message\0\0\0\x09{"own":1}' in event.body

    def test_a_formatter_that_raises_loses_no_record(
        self, make: Make, read_stderr: Callable[[], str]
    ) -> None:
        one = make()
        one.handler.setFormatter(logging.Formatter("%(message)s %(nothing)s"))
        one.log.info("hi")
        assert one.messages() == ["hi"]
        assert "nothing" in read_stderr()

    def test_ecs_formatter_writes_the_same_document(self, make: Make) -> None:
        one = make()
        stream = io.StringIO()
        other = logging.StreamHandler(stream)
        other.setFormatter(formatters.DocumentFormatter("ecs_dotted"))
        one.log.addHandler(other)
        one.log.info("hi %s", "\u20ac", extra={"a": [1]})
        (event,) = one.client.events()
        assert stream.getvalue().encode() == event.body + b"\n"


class TestSubclass:
    def test_a_subclass_may_override_emit(self, make: Make) -> None:
        class Twice(Handler):
            def emit(self, record: logging.LogRecord) -> None:
                super().emit(record)
                super().emit(record)
                raise ValueError("and then")

        one = make(Twice)
        one.handler.addFilter(lambda record: record.levelno > 10)
        one.log.info("a")
        one.log.debug("b")
        assert one.messages() == ["a", "a"]

    def test_a_subclass_may_override_format(self, make: Make) -> None:
        class Loud(Handler):
            def format(self, record: logging.LogRecord) -> str:
                return record.getMessage().upper()

        one = make(Loud)
        one.log.info("a")
        assert one.messages() == ["A"]

    def test_a_subclass_may_override_handle(self, make: Make) -> None:
        class Picky(Handler):
            def handle(self, record: logging.LogRecord) -> Any:
                return super().handle(record) if record.levelno >= 40 else False

        one = make(Picky)
        one.log.info("a")
        one.log.error("b")
        assert one.messages() == ["b"]


class TestIgnoredRecords:
    @pytest.mark.parametrize(
        "name", ["logclient", "logclient.x", "zmq", "zmq.auth", "websockets", "websockets.client"]
    )
    def test_records_of_our_own_loggers_are_ignored(self, make: Make, name: str) -> None:
        one = make()
        one.handler.handle(one.log.makeRecord(name, 40, "f.py", 1, "m", (), None))
        one.handler.setFormatter(logging.Formatter())
        one.handler.handle(one.log.makeRecord(name, 40, "f.py", 1, "m", (), None))
        assert one.client.events() == []
        assert one.client.count("ignored") == 2

    @pytest.mark.parametrize(
        "name", ["", "l", "logclients", "log", "zm", "zmqx", "websocket", "app.zmq", "Zmq", "zmq\u20ac"]
    )
    def test_similar_logger_names_are_shipped(self, make: Make, name: str) -> None:
        one = make()
        one.handler.handle(one.log.makeRecord(name, 40, "f.py", 1, "m", (), None))
        assert len(one.client.events()) == 1

    def test_records_of_a_sender_thread_are_ignored(self, make: Make) -> None:
        one = make()

        def sender() -> None:
            assert mark_sender_thread() is False
            one.log.error("mine")
            one.handler.setFormatter(logging.Formatter())
            one.log.error("mine")
            assert mark_sender_thread(False) is True
            one.log.error("yours")

        thread = threading.Thread(target=sender)
        thread.start()
        one.log.info("other")
        thread.join()
        assert sorted(one.messages()) == ["other", "yours"]
        assert one.client.count("ignored") == 2


class TestReentrant:
    """A log call inside another one of the same handler, in the same thread."""

    def test_a_call_that_is_refused_by_a_handler_that_is_off(self) -> None:
        """The formatter of the console is ours, so the calls within it are within a call of ours."""
        log = logging.Logger("app")
        console = logging.StreamHandler(io.StringIO())
        console.setFormatter(formatters.EcsFormatter())
        log.addHandler(console)
        log.addHandler(Handler("none:"))
        seen: list[int] = []

        class Endless:
            def __str__(self) -> str:
                if len(seen) < 10_000:
                    seen.append(1)
                    log.warning("%s", self)
                return "text"

        log.warning("%s", Endless())
        assert seen

    def test_str_of_an_argument_may_log(self, make: Make) -> None:
        one = make()

        class Chatty:
            def __str__(self) -> str:
                one.log.info("inner")
                return "outer"

        one.log.info("%s", Chatty(), extra={"again": Chatty()})
        assert one.messages() == ["inner", "inner", "outer"]

    @pytest.mark.slow
    def test_destructors_and_signal_handlers_may_log(self, make: Make) -> None:
        one = make()
        counts = {"gc": 0, "signal": 0, "main": 0}

        class Noisy:
            def __init__(self) -> None:
                self.me = self

            def __del__(self) -> None:
                one.log.info("gc %s", self.__class__)
                counts["gc"] += 1

        class Collects:
            def __str__(self) -> str:
                Noisy()
                gc.collect(0)
                return "text"

        def on_signal(number: int, frame: object) -> None:
            one.log.info("signal %d", number)
            counts["signal"] += 1

        before = signal.signal(signal.SIGALRM, on_signal)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            while counts["main"] < 2000 or counts["signal"] < 20:
                one.log.info("main %s", Collects(), extra={"x": Collects()})
                counts["main"] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        gc.collect()
        messages = one.messages()
        assert {kind: sum(m.startswith(kind) for m in messages) for kind in counts} == counts

    def test_threads_keep_the_order_of_their_records(self, make: Make) -> None:
        one = make()
        barrier = threading.Barrier(4)

        def run(n: int) -> None:
            barrier.wait()
            for i in range(2000):
                one.log.info("%d %d", n, i, extra={"i": i})

        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = [[int(p) for p in m.split()] for m in one.messages()]
        for n in range(4):
            assert [i for who, i in seen if who == n] == list(range(2000))

    def test_a_held_handler_lock_does_not_stop_records(self, make: Make) -> None:
        one = make()
        one.handler.acquire()
        thread = threading.Thread(target=one.log.info, args=("a",))
        thread.start()
        thread.join(PATIENCE)
        one.handler.release()
        assert one.messages() == ["a"]


class TestSetup:
    def test_dict_config_makes_a_handler(self) -> None:
        logging.config.dictConfig({
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"short": {"format": "%(message)s!"}},
            "filters": {"app": {"name": "dict.config"}},
            "handlers": {
                "ship": {
                    "class": "logclient.Handler", "url": NOWHERE, "level": "INFO", "max_events": 10,
                    "formatter": "short", "filters": ["app"],
                },
            },
            "loggers": {"dict.config": {"handlers": ["ship"], "level": "DEBUG", "propagate": False}},
        })  # fmt: skip
        log = logging.getLogger("dict.config")
        (handler,) = log.handlers
        assert isinstance(handler, Handler)
        try:
            threads = threading.active_count()
            assert handler.level == logging.INFO
            assert handler.client.config.overflow == "drop_oldest"
            assert handler.client.config.max_events == 10
            handler.client.queue.needs_sender = False
            log.debug("no")
            log.info("yes")
            (event,) = InflightBatches(handler.client.queue).take(10, 1 << 20).pending()
            assert json.loads(event.body)["message"] == "yes!"
            assert threading.active_count() == threads
        finally:
            log.removeHandler(handler)
            handler.client.close(0)
            handler.close()

    def test_options_come_from_url_and_keywords(self) -> None:
        handler = Handler(
            NOWHERE + "?overflow=block", "ERROR", max_event_bytes="64k", truncate=True, version=1
        )
        try:
            assert handler.client.config.overflow == "block"
            assert handler.level == logging.ERROR
            assert (handler.encoder.max_event_bytes, handler.encoder.truncate) == (65536, True)
            assert handler.encoder.pairs
            assert repr(handler) == f"<Handler {NOWHERE}?overflow=block (ERROR)>"
        finally:
            handler.close()

    def test_invalid_arguments_are_refused(self, make: Make) -> None:
        with pytest.raises(TypeError, match="url"):
            Handler(NOWHERE, client=make().client)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="window: options"):
            Handler(client=make().client, window=3)  # type: ignore[arg-type]
        with pytest.raises(logclient.ConfigError, match="raise"):
            Handler(NOWHERE, overflow="raise")
        with pytest.raises(logclient.ConfigError, match="windw"):
            Handler(NOWHERE, windw=3)
        with pytest.raises(TypeError, match="encoder"):
            FastHandler()._bind(
                Encoder(),
                print,
                ship=None,
                line_encoder=None,
                formatter=logging.Formatter(),
                own_emit=False,
                own_format=False,
            )

    def test_close_closes_only_a_client_of_its_own(self, make: Make) -> None:
        """A client of the user's stays open; a handler's own is closed."""
        one = make()
        one.handler.flush()
        one.handler.close()
        assert one.client.calls == ["flush", "flush"]
        handler = Handler(NOWHERE, timeout=0)
        handler.set_name("test-close")
        assert "test-close" in logging._handlers  # type: ignore[attr-defined]
        handler.close()
        handler.close()
        assert "test-close" not in logging._handlers  # type: ignore[attr-defined]
        assert handler.client.closed
        handler.handle(logging.LogRecord("app", 20, "f.py", 1, "late", (), None))
        assert handler.client.stats().refused == 1

    def test_records_may_come_through_queue_handler(self, make: Make) -> None:
        """QueueHandler merges the message and drops exc_info."""
        one = make()
        line: queue.SimpleQueue[Any] = queue.SimpleQueue()
        sender = logging.handlers.QueueHandler(line)  # type: ignore[arg-type]
        log = logging.Logger("queued")
        log.addHandler(sender)
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("a %s", "b", extra={"x": 1})
        listener = logging.handlers.QueueListener(line, one.handler)  # type: ignore[arg-type]
        listener.start()
        listener.stop()
        (document,) = one.client.made()
        assert document["message"].startswith("a b")
        assert "ValueError: why" in document["message"]
        assert document["x"] == 1

    def test_basic_config_works_in_a_new_process(self) -> None:
        """basicConfig keeps our documents, and the process ends quietly and soon."""
        program = """
            import logging, sys, logclient
            handler = logclient.Handler("lumberjack://127.0.0.1:9", atexit_timeout="100ms")
            handler.client.queue.needs_sender = False
            logging.basicConfig(handlers=[handler], level="INFO")
            logging.info("hi")
            from logclient._ext.inflight import InflightBatches
            print(InflightBatches(handler.client.queue).take(10, 1 << 20).pending()[0].body.decode())
        """
        code = f"import sys; sys.path.insert(0, {str(HOME)!r})\n" + textwrap.dedent(program)
        done = subprocess.run(
            [sys.executable, "-I", "-c", code],
            capture_output=True, text=True, timeout=2 * PATIENCE, env=clean_environment(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["message"] == "hi"

    def test_an_unreferenced_handler_is_collected(self) -> None:
        import weakref

        handler = Handler(client=ClientWithoutSender())  # type: ignore[arg-type]
        gone = weakref.ref(handler)
        del handler
        gc.collect()
        assert gone() is None
