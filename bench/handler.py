"""Row `handler`: the cost of `handler.handle(record)` for the thread that logs.

1,000 prepared records (log lines; every second with %-arguments, every tenth with `extra`) become complete
ECS documents in the queue, with objects as those of ecs-logging; beside them the form with dots in the names,
and that of Logstash. Before the timed runs, each document is decoded and compared with its record;
after each timed run the queue is emptied and counted. One contender has a running sender and the C sink, to
show the cost of a queue that is drained at the same time. Logjam's documents are made of the same records, by
the handler and by the agent in Python, which has the rules; both make the same bytes.

Further handlers have five fields of the client, three names to redact and two bound fields, and a function
`before_send`. structlog and loguru log the same lines through our front ends and through their own renderers
of JSON, whose result is thrown away.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from bench.data import failing_records, records, source
from bench.harness import Contender, NotExact, Row, Target, compare, judge, lines
from bench.ours import LOGJAM_NOWHERE, NOWHERE, QueueOnly
from bench.peers import EmptyHandler, drain, logstash_async, queue_handler
from bench.sink import Sink

OURS = "logclient.Handler"
EMPTY = "empty emit"
QUEUE = "QueueHandler"
LOGSTASH = "python-logstash-async"
EXC = "logclient.Handler, exc_info"
FORMAT_EXC = "formatException"
LOGJAM = "logclient.Handler, Logjam"
AGENT = "Logjam's agent in Python"
RICH = "logclient.Handler, fields, redact, bind"
BEFORE = "logclient.Handler, before_send"
DOTTED = "logclient.Handler, format=ecs_dotted"
OTHER = "logclient.Handler, format=logstash"
STRUCTLOG = "structlog to logclient"
STRUCTLOG_JSON = "structlog, JSONRenderer"
LOGURU = "loguru to logclient"
LOGURU_JSON = "loguru, serialize"
TARGETS = [
    Target(OURS, EMPTY, "<=", 1.35),
    Target(QUEUE, OURS, ">=", 12.0),
    Target(LOGSTASH, OURS, ">=", 40.0),
    Target(EXC, FORMAT_EXC, "<=", 0.08),
    Target(AGENT, LOGJAM, ">=", 10.0),
    Target(RICH, OURS, "<=", 1.4),
    Target(BEFORE, OURS, "<=", 3.0),
    Target(DOTTED, OURS, "<=", 1.5),
    Target(OTHER, OURS, "<=", 1.5),
    Target(STRUCTLOG, STRUCTLOG_JSON, "", 0.0),
    Target(LOGURU, LOGURU_JSON, "", 0.0),
]


def loop(call: Callable[[Any], object], items: Sequence[Any]) -> Callable[[], None]:
    """Make the `for` loop that is the same for every contender."""

    def work() -> None:
        for item in items:
            call(item)

    return work


def alone(items: Sequence[Any]) -> Callable[[], None]:
    """Make the same loop without a call."""

    def work() -> None:
        for _ in items:
            pass

    return work


def forget(made: Iterable[logging.LogRecord]) -> Callable[[], None]:
    """Make a function that clears the traceback text that a formatter keeps in a record."""
    made = list(made)

    def before() -> None:
        for record in made:
            record.exc_text = None

    return before


def field(document: dict[str, Any], name: str) -> Any:
    """Return a field such as `log.level`, as one key or in nested objects."""
    if name in document:
        return document[name]
    found: Any = document
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def check(made: Sequence[logging.LogRecord], documents: Sequence[bytes]) -> None:
    """Compare every document with its record."""
    if len(documents) != len(made):
        raise NotExact(f"{len(documents)} documents of {len(made)} records")
    for record, body in zip(made, documents, strict=True):
        document = json.loads(body)
        expected = {
            "message": record.getMessage(),
            "log.level": record.levelname.lower(),
            "log.logger": record.name,
            "log.origin.file.line": record.lineno,
            "log.origin.function": record.funcName,
        }
        expected |= {k: vars(record)[k] for k in ("user_id", "request", "took_ms") if k in vars(record)}
        for name, value in expected.items():
            if (found := field(document, name)) != value:
                raise NotExact(f"{name} is {found!r} where the record has {value!r}")
        missing = [n for n in ("@timestamp", "ecs.version", "process.pid") if field(document, n) is None]
        if record.exc_info and "ValueError" not in str(field(document, "error.stack_trace")):
            missing.append("error.stack_trace")
        if missing:
            raise NotExact(f"no {missing[0]} in {body[:200]!r}")


def check_lines(made: Sequence[logging.LogRecord], documents: Sequence[bytes], agent: Any) -> None:
    """Compare every Logjam document with its record's line, and with what the agent makes in Python."""
    taken: list[bytes] = []
    sink, agent.sink = agent.sink, lambda body, level, kind: taken.append(body)
    for record in made:
        agent.ship(record)
    agent.sink = sink
    if documents != taken:
        raise NotExact("the documents of the handler and of the agent differ")
    for record, body in zip(made, documents, strict=True):
        if (found := json.loads(body)["lines"][0][2]) != record.getMessage():
            raise NotExact(f"the line is {found!r} where the record has {record.getMessage()!r}")


FIELDS = {
    "service.name": "shop",
    "service.version": "2.4.1",
    "service.environment": "production",
    "host.name": "web-1",
    "team": "payments",
}
NAMES = ["password", "authorization", "*token*"]
BOUND = {"request_id": "7c9e6679f0b3", "customer": 4711}


def bound(call: Callable[[Any], object], items: Sequence[Any]) -> Callable[[], None]:
    """Make the loop run with fields that are bound to the context."""
    import logclient

    work = loop(call, items)

    def work_bound() -> None:
        with logclient.bind(BOUND):
            work()

    return work_bound


class FrontEnds:
    """structlog and loguru, each to logclient and to JSON that is thrown away.

    Args:
        made: the records whose lines and fields are logged.
    """

    def __init__(self, made: Sequence[logging.LogRecord]) -> None:
        import copy

        import loguru
        import structlog

        import logclient
        from logclient.integrations.loguru import Sink as LoguruSink
        from logclient.integrations.structlog import LoggerFactory

        names = ("user_id", "request", "took_ms")
        self._lines = [
            (record.getMessage(), {k: v for k, v in vars(record).items() if k in names}) for record in made
        ]
        self.clients = [logclient.connect(NOWHERE) for _ in range(2)]
        self.queues = [QueueOnly(client) for client in self.clients]
        level = structlog.processors.add_log_level
        stamp = structlog.processors.TimeStamper(fmt="iso")
        render = structlog.processors.JSONRenderer()
        factory = LoggerFactory(client=self.clients[0])
        loguru.logger.remove()
        ours, theirs = copy.deepcopy(loguru.logger), copy.deepcopy(loguru.logger)
        ours.add(LoguruSink(client=self.clients[1]), format="{message}")
        theirs.add(lambda _: None, format="{message}", serialize=True)
        self._calls: dict[str, tuple[Any, QueueOnly | None]] = {
            STRUCTLOG: (structlog.wrap_logger(factory("shop"), processors=[level]).info, self.queues[0]),
            STRUCTLOG_JSON: (
                structlog.wrap_logger(structlog.ReturnLogger(), processors=[level, stamp, render]).info,
                None,
            ),
            # loguru formats a message that comes with fields, and log lines may have braces.
            LOGURU: (functools.partial(ours.info, "{}"), self.queues[1]),
            LOGURU_JSON: (functools.partial(theirs.info, "{}"), None),
        }

    def contenders(self) -> Iterable[Contender]:
        """Yield them; what reaches a queue of ours was decoded and compared with its line."""
        for name, (call, queue) in self._calls.items():
            work = self._loop(call)
            if queue is not None:
                work()
                found = [(field(document, "message"), document.get("user_id")) for document in
                         map(json.loads, queue.take())]  # fmt: skip
                if found != [(line, extra.get("user_id")) for line, extra in self._lines]:
                    raise NotExact(f"{name}: the documents are not the lines")
            yield Contender(name, work, len(self._lines), None if queue is None else queue.count)

    def _loop(self, call: Any) -> Callable[[], None]:
        some = self._lines

        def work() -> None:
            for line, extra in some:
                call(line, **extra)

        return work

    def close(self) -> None:
        """End the clients."""
        for client in self.clients:
            client.close(0)


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders with the same records."""
    import logclient

    made = records()
    failing = failing_records()
    with ExitStack() as stack:
        handlers = [logclient.Handler(NOWHERE) for _ in range(3)]
        queues = []
        for handler in handlers:
            stack.callback(handler.close)
            queues.append(QueueOnly(handler.client))
        for handler, queue in zip(handlers, queues, strict=True):
            for some in (made, failing):
                loop(handler.handle, some)()
                check(some, documents := queue.take())
        size = sum(map(len, documents)) / len(documents)
        loop(handlers[0].handle, made)()
        plain = sum(map(len, queues[0].take())) / len(made)
        logjam = [logclient.Handler(LOGJAM_NOWHERE) for _ in range(2)]
        waiting = []
        for handler in logjam:
            stack.callback(handler.close)
            waiting.append(QueueOnly(handler.client))
        agent: Any = logjam[1].client.documents
        loop(logjam[0].handle, made)()
        check_lines(made, waiting[0].take(), agent)
        rich = logclient.Handler(NOWHERE, fields=FIELDS, redact=NAMES)
        changing = logclient.Handler(NOWHERE, before_send=lambda document: document)
        dotted = logclient.Handler(NOWHERE, format="ecs_dotted")
        other = logclient.Handler(NOWHERE, format="logstash")
        extra_queues = []
        for handler in (rich, changing, dotted, other):
            stack.callback(handler.close)
            extra_queues.append(QueueOnly(handler.client))
        bound(rich.handle, made)()
        check(made, documents := extra_queues[0].take())
        for document in map(json.loads, documents):
            if (document["team"], document["customer"]) != ("payments", 4711):
                raise NotExact("a document has not all fields")
        loop(changing.handle, made)()
        check(made, extra_queues[1].take())
        loop(dotted.handle, made)()
        check(made, extra_queues[2].take())
        loop(other.handle, made)()
        if [json.loads(body)["message"] for body in extra_queues[3].take()] != [r.getMessage() for r in made]:
            raise NotExact("the documents of Logstash are not the records")
        front_ends = FrontEnds(made)
        stack.callback(front_ends.close)
        sink = stack.enter_context(Sink())
        live = logclient.Handler(sink.url, compression=0)
        stack.callback(live.close)
        acked = 0

        def delivered(expected: int) -> int:
            nonlocal acked
            if left := live.client.flush(10.0):
                raise NotExact(f"{left} events were not acknowledged")
            before, acked = acked, sink.counts().events
            return acked - before

        theirs, queue_peer = queue_handler()
        forget_failing = forget(failing)
        n = len(made)
        contenders = [
            Contender(OURS, loop(handlers[0].handle, made), n, queues[0].count),
            Contender(OURS + " (again)", loop(handlers[1].handle, made), n, queues[1].count),
            Contender(EMPTY, loop(EmptyHandler().handle, made), n),
            Contender(QUEUE, loop(theirs.handle, made), n, lambda: drain(queue_peer)),
            Contender(
                EXC, loop(handlers[2].handle, failing), len(failing), queues[2].count, None, forget_failing
            ),
            Contender(FORMAT_EXC, loop(_format_exception, failing), len(failing), None, None, forget_failing),
            Contender(OURS + ", live sender", loop(live.handle, made), n, None, delivered),
            Contender(LOGJAM, loop(logjam[0].handle, made), n, waiting[0].count),
            Contender(AGENT, loop(agent.ship, made), n, waiting[1].count),
            Contender(RICH, bound(rich.handle, made), n, extra_queues[0].count),
            Contender(BEFORE, loop(changing.handle, made), n, extra_queues[1].count),
            Contender(DOTTED, loop(dotted.handle, made), n, extra_queues[2].count),
            Contender(OTHER, loop(other.handle, made), n, extra_queues[3].count),
            *front_ends.contenders(),
            Contender("loop alone", alone(made), n),
        ]
        if (peer := logstash_async()) is not None:
            stack.callback(peer.close)
            contenders.append(Contender(LOGSTASH, loop(peer.handler.handle, made), n, None, peer.settle))
        samples = compare(contenders, rounds=rounds or (3 if quick else 15), seed=seed)
    verdicts = judge(samples, TARGETS, (OURS + " (again)", OURS))
    notes = [
        f"1,000 records made of {source()}; documents of {plain:.0f} bytes ({size:.0f} with exc_info)",
        "all decoded and compared with their records before; the queue emptied and counted after each run",
        "judged is the caller's CPU; `empty emit` is logging.Handler with an emit that does nothing",
    ]
    return Row(
        "handler",
        "handler.handle(record) to a complete ECS document in the queue",
        "us/record",
        lines(samples),
        verdicts,
        notes,
        {},
    )


_formatter = logging.Formatter()


def _format_exception(record: logging.LogRecord) -> str:
    return _formatter.formatException(record.exc_info)  # type: ignore[arg-type]
