"""Logjam documents: each rule of the importer, requests in every kind of context, odd values."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.codec import Connection
from logclient.errors import ConfigError, EncodeError
from logclient.logjam import Agent, Request, current, document
from logclient.logjam.core import Logjam
from logclient.records.host import node_name
from tests.oracle import logjam as oracle
from tests.oracle.logjam_document import EVENTS, LOGS, MOBILE, judge
from tests.support import agent_handler, clean_environment
from tests.support.configs import config_for
from tests.support.examples import examples
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

APP = "shop-production"


class Sink:
    """Keep documents and check each against the importer's rules."""

    def __init__(self, zone: datetime.tzinfo | None = None) -> None:
        self.zone = zone
        self.made: list[dict[str, Any]] = []
        self.topics: list[int] = []
        self.levels: list[int] = []
        self.identified: list[bool] = []

    def __call__(self, body: bytes, level: int, kind: int) -> int:
        made, wrong = judge(body, kind >> 4, now=time.time(), zone=self.zone)
        assert wrong == []
        assert bool(kind & 4) == ("request_id" in made)
        assert kind & 3 == 0
        self.made.append(made)
        self.topics.append(kind >> 4)
        self.levels.append(level)
        return len(self.made)

    @property
    def one(self) -> dict[str, Any]:
        assert len(self.made) == 1
        return self.made[0]

    def texts(self, n: int = 0) -> list[str]:
        return [line[2] for line in self.made[n].get("lines", [])]


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def agent(sink: Sink) -> Agent:
    return Agent(sink, APP)


@pytest.fixture
def log(agent: Agent) -> Iterator[logging.Logger]:
    """Make a logger whose records go to the agent."""
    logger = logging.Logger("shop.orders", logging.DEBUG)
    logger.addHandler(agent_handler(agent))
    yield logger
    assert agent.failed == 0


# -- the importer's rules, one by one


def test_smallest_request_has_the_required_fields(agent: Agent, sink: Sink) -> None:
    before = time.time()
    with agent.request("Shop::OrdersController#create"):
        pass
    made = sink.one
    assert sink.topics == [LOGS] and sink.levels == [20]
    assert made["action"] == "Shop::OrdersController#create"
    assert int(before) <= made["started_ms"] / 1000 <= time.time()
    assert (made["code"], made["severity"], made["process_id"]) == (200, 1, os.getpid())
    assert made["host"]
    # The id is inserted when the event is sent, unless the application asked for it.
    absent = {"request_id", "lines", "exceptions", "soft_exceptions", "request_info", "caller_id", "ip"}
    assert absent & set(made) == set()


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (None, "Unknown#unknown_method"),
        ("", "Unknown#unknown_method"),
        ("Shop", "Shop#unknown_method"),
        ("Shop#", "Shop#unknown_method"),
        ("a b\n#c\0d", "a_b_#c\ufffdd"),
        (17, "17#unknown_method"),
    ],
)
def test_action_has_class_and_method(agent: Agent, sink: Sink, given: Any, written: str) -> None:
    agent.request(given).end()
    assert sink.one["action"] == written


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + "#y", "x#" + "y" * 5000, "ä€😀" * 800 + "#" + "y"])
def test_action_fits_the_importers_buffer(agent: Agent, sink: Sink, name: str) -> None:
    agent.request(name).end()
    assert len(sink.one["action"].encode()) <= 1000


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns", "Europe/Berlin"])
def test_started_at_is_the_importers_local_time(zone: str) -> None:
    sink = Sink(ZoneInfo(zone))  # which judges in that zone
    agent = Agent(sink, APP, zone=zone)
    with agent.request("a#b") as request:
        request.line(20, "text")
    first = datetime.datetime.fromisoformat(sink.one["started_at"])
    assert first.utcoffset() == datetime.datetime.now(ZoneInfo(zone)).utcoffset()
    assert int(first.timestamp()) == sink.one["started_ms"] // 1000
    line = datetime.datetime.fromisoformat(sink.one["lines"][0][1]).replace(tzinfo=ZoneInfo(zone))
    assert 0 <= line.timestamp() - first.timestamp() < 60


def test_zone_may_be_a_tzinfo() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=-11))
    sink = Sink(zone)
    Agent(sink, APP, zone=zone).request("a#b").end()
    assert sink.one["started_at"].endswith("-11:00")


@given(st.lists(st.floats(0, 4e9), min_size=1), st.sampled_from(["UTC", "Asia/Kathmandu", "Europe/Berlin"]))
def test_cached_timestamps_equal_those_made_alone(seconds: list[float], name: str) -> None:
    zone = ZoneInfo(name)
    text = document.Clock(zone).line_time
    for one in [*seconds, *(first + 0.25 for first in seconds)]:
        assert text(one) == document.timestamp(one, zone)


def test_total_time_is_never_zero(agent: Agent, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)
    agent.request("a#b").end()
    assert sink.one["total_time"] == 0.001  # the importer takes 0 for a whole millisecond


@pytest.mark.parametrize(
    ("code", "written"), [(None, 200), (404, 404), ("503", 503), ("x", 500), (1 << 40, 500), (math.inf, 500)]
)
def test_code_is_a_number_or_500(agent: Agent, sink: Sink, code: Any, written: int) -> None:
    with agent.request("a#b") as request:
        request.code = code
    assert sink.one["code"] == written


@pytest.mark.parametrize(
    ("level", "severity"), [(0, 0), (5, 0), (10, 0), (20, 1), (25, 1), (30, 2), (40, 3), (50, 4), (90, 4)]
)
def test_severity_follows_the_level_of_the_line(
    agent: Agent, sink: Sink, log: logging.Logger, level: int, severity: int
) -> None:
    log.setLevel(0)
    with agent.request("a#b") as request:
        log.log(level or 1, "text")
        assert request.severity == severity
    assert (sink.one["severity"], sink.one["lines"][0][0]) == (severity, severity)
    assert sink.levels == [10 * (severity + 1)]


def test_severity_is_that_of_the_highest_line(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    with agent.request("a#b"):
        log.info("1")
        log.error("2")
        log.debug("3")
    assert sink.one["severity"] == 3
    assert [line[0] for line in sink.one["lines"]] == [1, 3, 0]


def test_request_id_is_kept_normalised_or_made(agent: Agent, sink: Sink) -> None:
    given = "C4D7E17D-B92E-4BC2-96AB-EF074DC10C29"
    agent.request("a#b", request_id=given).end()
    agent.request("a#b", request_id="no id").end()
    with agent.request("a#b") as request:
        asked = request.request_id
        assert request.full_id == f"{APP}-{asked}"
    ids = [made["request_id"] for made in sink.made]
    assert ids[0] == given.replace("-", "").lower()
    assert ids[2] == asked
    assert len(set(ids)) == 3


def test_own_request_id_is_moved_unless_allowed(sink: Sink) -> None:
    counts: list[int] = []
    agent = Agent(sink, APP, own_ids=False, moved=counts.append)
    with agent.request("a#b", request_id="c4" * 16, fields={"uuid": "mine"}):
        pass
    with agent.request("a#b", request_id="c4" * 16) as request:
        asked = request.request_id
    first, second = sink.made
    assert "request_id" not in first
    assert (first["labels_request_id"], first["labels_uuid"]) == ("c4" * 16, "mine")
    assert second["request_id"] == asked != "c4" * 16
    assert sum(counts) == 3


def test_caller_headers_carry_id_action_and_trace(agent: Agent, sink: Sink) -> None:
    with agent.request("Shop#create") as outer:
        headers = outer.caller_headers()
        inner = agent.request(
            "Invoice#export",
            caller_id=headers["X-Logjam-Caller-Id"],
            caller_action=headers["X-Logjam-Action"],
            trace_id="a2" * 16,
        )
        inner.end()
    assert sink.made[0]["caller_id"] == f"{APP}-{sink.made[1]['request_id']}"
    assert sink.made[0]["caller_action"] == "Shop#create"
    assert sink.made[0]["trace_id"] == "a2" * 16
    assert agent.request("ä#b").caller_headers()["X-Logjam-Action"] == "?#b"
    assert inner.caller_headers()["X-Logjam-Trace-Id"] == "a2" * 16
    odd = agent.request("a#b", trace_id="x\r\nEvil: 1").caller_headers()
    assert odd["X-Logjam-Trace-Id"] == "x??Evil: 1"
    assert set(agent.request().caller_headers()) == {"X-Logjam-Caller-Id"}


def test_place_of_the_agent_is_in_the_document(sink: Sink) -> None:
    place = {"host": "web-3", "cluster": "c", "datacenter": "d", "namespace": "n", "revision": "r" * 5000}
    Agent(sink, APP, fields=dict(reversed(place.items()))).request("a#b").end()
    assert {**sink.one, **place, "revision": "r" * 1000} == sink.one
    assert [name for name in sink.one if name in place] == list(place)


def test_fields_of_the_agent_are_in_every_document(sink: Sink) -> None:
    fields = {"team": "a", "n": 5, "list": [1], "x.y": True, "cluster": None, "code": 7, "db_time": "soon"}
    common = {"team": "a", "n": 5, "list": [1], "x_y": True, "code_": 7, "db_time_": "soon"}
    agent = Agent(sink, APP, fields=fields)
    agent.request("a#b").end()
    agent.event("deployed")
    agent.ship(logging.LogRecord("shop", 20, "f.py", 1, "text", (), None))
    sink(json.dumps(agent.text("text")).encode(), 20, 0)
    for made in sink.made:
        assert common.items() <= made.items()
        assert made["host"] == node_name() and "cluster" not in made


def test_a_field_of_the_document_wins_over_that_of_the_agent(sink: Sink) -> None:
    agent = Agent(sink, APP, fields={"team": "a", "x_y": 1, "cluster": "c"})
    with agent.request("a#b") as request:
        request.fields.update(team="b", cluster="other")
        request.fields.update({"x.y": 2, "x_y": 3})
    record = logging.LogRecord("shop", 20, "f.py", 1, "text", (), None)
    record.team = "b"
    agent.ship(record)
    agent.event("deployed", team="b")
    assert [made["team"] for made in sink.made] == ["b"] * 3
    first = sink.made[0]
    assert (first["cluster"], first["cluster_"], first["x_y"], first["x_y_"]) == ("c", "other", 2, 3)


# -- times


def test_measured_times_and_calls_add_up(agent: Agent, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    with agent.request("a#b") as request:
        for took in (0.25, 0.5):
            with request.measure("db"):
                clock[0] += took
        with pytest.raises(KeyError), request.measure("api"):
            clock[0] += 1.0
            raise KeyError
        request.add_time("cache", 0.002, calls=7)
        request.waited(2.0)
        request.stop_clock()
        clock[0] += 50.0
    made = sink.one
    assert (made["db_time"], made["db_calls"]) == (750.0, 2)
    assert (made["api_time"], made["api_calls"]) == (1000.0, 1)
    assert (made["cache_time"], made["cache_calls"]) == (2.0, 7)
    assert (made["wait_time"], made["total_time"]) == (2000.0, 3750.0)
    assert abs(made["started_ms"] / 1000 - (request.started - 2.0)) < 0.002


@pytest.mark.parametrize("name", ["", "total", "wait", "a.b", "$", "1x", "x" * 64, "other", 5])
def test_wrong_measure_name_is_refused(agent: Agent, name: Any) -> None:
    with pytest.raises(ConfigError, match="name: "):
        agent.request("a#b").measure(name)


def test_measures_of_many_threads_add_up(agent: Agent, sink: Sink) -> None:
    with agent.request("a#b") as request, ThreadPoolExecutor(8) as executor:
        for _ in range(8):
            executor.submit(lambda: [request.add_time("db", 0.001) for _ in range(500)])
    assert sink.one["db_calls"] == 4000
    assert sink.one["db_time"] == pytest.approx(4000.0)


# -- exceptions


class Boom(Exception):
    pass


def test_exception_that_ends_the_request_is_code_500(agent: Agent, sink: Sink) -> None:
    with pytest.raises(Boom), agent.request("a#b"):
        raise Boom("why")
    made = sink.one
    assert made["exceptions"] == [f"{__name__.replace('.', '::')}::Boom"]
    assert (made["code"], made["severity"]) == (500, 3)
    assert made["lines"][0][2].startswith("Traceback") and made["lines"][0][2].endswith("Boom: why")


def test_logged_exception_is_shown_once(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    with pytest.raises(ValueError), agent.request("a#b") as request:
        request.code = 422
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("said")
            raise
    assert (sink.one["exceptions"], sink.one["code"]) == (["ValueError"], 422)
    assert [text.partition("\n")[0] for text in sink.texts()] == ["said"]
    assert "Traceback" in sink.texts()[0]


def test_logged_and_handled_exceptions_are_soft(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    with agent.request("a#b") as request:
        for _ in range(2):
            try:
                raise KeyError("k")
            except KeyError:
                log.warning("got over it", exc_info=True)
        request.exception(OSError(), soft=True)
    assert sink.one["soft_exceptions"] == ["KeyError", "OSError"]
    assert "exceptions" not in sink.one
    assert (sink.one["code"], sink.one["severity"]) == (200, 2)


def test_attributes_of_wrong_types_do_no_harm(agent: Agent, sink: Sink) -> None:
    request: Any = agent.request("a#b")
    request.request_info, request.fields, request.ip = [1], [2], 3
    request.waited(math.nan)
    request.add_time("db", math.inf)
    request.end()
    assert (sink.one["fields"], sink.one["ip"], sink.one["db_time"]) == ([2], "3", 0.0)
    assert {"request_info", "wait_time"} & set(sink.one) == set()


def test_exceptions_of_a_request_are_limited_to_100(agent: Agent, sink: Sink) -> None:
    with agent.request("a#b") as request:
        for n in range(1000):
            request.exception(type(f"E{n}" + "x" * 2000, (Exception,), {})())
    assert len(sink.one["exceptions"]) == 100


# -- lines


def test_long_lines_are_truncated_by_severity(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    mark = " ... [LINE TRUNCATED]"
    with agent.request("a#b"):
        log.info("x" * 2048)
        log.info("ä" * 2049)
        log.error("x" * 10_000)
        log.error("€" * 5000)
        log.warning("nul \0 and lone \ud800")
    texts = sink.texts()
    assert texts[0] == "x" * 2048
    assert texts[1] == "ä" * 2048 + mark
    assert texts[2] == "x" * 10_000
    assert texts[3].endswith("€" + mark) and 9990 < len(texts[3].encode()) <= 10_000
    assert texts[4] == "nul \ufffd and lone \ufffd"


@pytest.mark.parametrize("text", ["x" * 2000, "€" * 2000, "\x01" * 2000])
def test_lines_of_a_request_end_at_a_mebibyte(
    agent: Agent, sink: Sink, log: logging.Logger, text: str
) -> None:
    size = len(text.encode())
    with agent.request("a#b"):
        for _ in range((1 << 20) // size + 20):
            log.info(text)
        log.error("the last one")
    texts = sink.texts()
    assert texts[-1] == "... [LINES DROPPED]"
    assert len(texts) - 1 == (1 << 20) // size
    assert sink.one["severity"] == 3  # dropped lines count


def test_lines_of_a_request_are_limited_to_10000(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    with agent.request("a#b"):
        for n in range(12_000):
            log.info("%d", n)
    texts = sink.texts()
    assert texts[:-1] == [str(n) for n in range(9_999)]
    assert texts[-1] == "... [LINES DROPPED]"


def test_line_after_the_end_is_refused(agent: Agent, sink: Sink) -> None:
    request = agent.request("a#b")
    request.end()
    request.end()
    assert request.line(20, "late") is False
    assert "lines" not in sink.one


def test_no_line_is_lost_while_a_request_ends(agent: Agent, sink: Sink) -> None:
    """A line is in the document or refused, whenever another thread ends the request."""
    for _ in range(100):
        request = agent.request("a#b")
        taken: list[int] = []
        ready = threading.Barrier(2)

        def add(request: Request = request, taken: list[int] = taken, ready: Any = ready) -> None:
            ready.wait(PATIENCE)
            n = 0
            while request.line(20, str(n)):
                taken.append(n)
                n += 1

        thread = threading.Thread(target=add)
        thread.start()
        ready.wait(PATIENCE)
        request.end()
        thread.join(PATIENCE)
        lines = [int(line[2]) for line in sink.made[-1].get("lines", [])]
        assert lines == taken


def test_line_whose_text_ends_the_request_is_refused(agent: Agent, sink: Sink) -> None:
    request = agent.request("a#b")

    class Text:
        def __str__(self) -> str:
            request.end()
            return "late"

    assert request.line(20, Text()) is False
    assert "lines" not in sink.one


# -- where a line belongs


def test_nested_requests_keep_their_own_lines(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    with agent.request("outer#a") as outer:
        log.info("1")
        with agent.request("inner#b") as inner:
            assert current() is inner and current(agent) is inner
            log.info("2")
        assert current() is outer
        log.info("3")
    assert current() is None
    assert [made["action"] for made in sink.made] == ["inner#b", "outer#a"]
    assert (sink.texts(0), sink.texts(1)) == (["2"], ["1", "3"])


def test_two_agents_keep_their_own_requests(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    other_sink = Sink()
    other = Agent(other_sink, "other-test")
    with agent.request("a#b") as mine, other.request("c#d") as its:
        log.info("mine")
        assert current(agent) is mine and current(other) is its and current() is its
    assert sink.texts() == ["mine"]
    assert "lines" not in other_sink.one


def test_thread_logs_to_the_request_of_its_context(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    def work(n: int) -> None:
        log.info("thread %d", n)

    with agent.request("a#b") as request:
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=context.copy().run, args=(work, 1)),
            threading.Thread(target=work, args=(2,)),
            threading.Thread(target=lambda: bound(3)),
        ]

        def bound(n: int) -> None:
            with request.active():
                work(n)
            assert current() is None

        for thread in threads:
            thread.start()
            thread.join(PATIENCE)
    assert sink.texts(1) == ["thread 1", "thread 3"]
    assert (sink.texts(0), sink.made[0]["action"]) == (["thread 2"], "shop.orders#work")


def test_asyncio_tasks_keep_their_requests_apart(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    async def helper(n: int) -> None:
        for step in range(5):
            await asyncio.sleep(0)
            log.info("%d %d", n, step)

    async def one(n: int) -> None:
        with agent.request(f"task#{n}"):
            await asyncio.gather(helper(n), asyncio.to_thread(log.info, "%d thread", n), helper(n))

    async def main() -> None:
        await asyncio.gather(*(one(n) for n in range(50)))

    asyncio.run(main())
    assert len(sink.made) == 50
    for n, made in enumerate(sink.made):
        number = made["action"].partition("#")[2]
        texts = sink.texts(n)
        assert {text.partition(" ")[0] for text in texts} == {number}
        assert sorted(texts) == sorted([f"{number} {s}" for s in range(5)] * 2 + [f"{number} thread"])


def test_task_that_outlives_its_request_logs_alone(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    async def late(over: asyncio.Event) -> None:
        log.info("in time")
        await over.wait()
        assert current() is None
        log.info("late")

    async def main() -> None:
        over = asyncio.Event()
        with agent.request("a#b"):
            task = asyncio.create_task(late(over))
            await asyncio.sleep(0)
        over.set()
        await task

    asyncio.run(main())
    assert sink.texts(0) == ["in time"]
    assert (sink.made[1]["action"], sink.texts(1)) == ("shop.orders#late", ["late"])


def test_generators_may_end_in_any_order(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    def stream(name: str) -> Iterator[int]:
        with agent.request(f"stream#{name}"):
            log.info(name)
            yield 1
            log.info(name)
            yield 2

    # Closed in the order of entering, not in reverse.
    first, second = stream("a"), stream("b")
    next(first), next(second)
    first.close()
    inner = current()
    assert inner is not None and inner.action == "stream#b"
    next(second)
    second.close()
    assert current() is None
    assert [(made["action"], made["code"], made["severity"]) for made in sink.made] == [
        ("stream#a", 200, 1),
        ("stream#b", 200, 1),
    ]
    assert (sink.texts(0), sink.texts(1)) == (["a"], ["b", "b"])


def test_generator_closed_elsewhere_leaves_that_request(
    agent: Agent, sink: Sink, log: logging.Logger
) -> None:
    def stream() -> Iterator[int]:
        with agent.request("stream#a"):
            yield 1

    generator = stream()
    contextvars.copy_context().run(next, generator)
    with agent.request("other#b") as other:
        generator.close()  # in this context it never was the innermost request
        assert current() is other
        log.info("other's")
    assert sink.texts(1) == ["other's"]


def test_chain_of_contexts_keeps_no_ended_request(agent: Agent, sink: Sink) -> None:
    """Each request is made in the context of the one before, as tasks do that start their successors."""
    context = contextvars.copy_context()
    before = None
    for n in range(50):
        request = context.run(lambda n=n: agent.request(f"chain#{n}").__enter__())
        assert request.parent is before
        if before is not None:
            before.end()
            assert before.parent is None
        before = request
    assert len(sink.made) == 49


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_sends_no_copy_of_the_request() -> None:
    program = """
import logging, os, sys
from logclient.logjam import Agent
log = logging.getLogger("shop"); log.setLevel(10)
agent = Agent(lambda body, level, kind: os.write(1, body + b"\\n"), "shop-test")
handler = logging.Handler()
handler.emit = agent.ship
log.addHandler(handler)
pid = 0
with agent.request("a#b"):
    log.info("before")
    pid = os.fork()
    log.info("parent" if pid else "child")
if pid:
    os.waitpid(pid, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=2 * PATIENCE,
        env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )
    assert done.returncode == 0, done.stderr
    made = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(one["action"], *(line[2] for line in one["lines"])) for one in made}
    assert len(made) == 2
    assert found == {("a#b", "before", "parent"), ("shop#<module>", "child")}


# -- request_info


def test_secrets_in_request_info_are_masked(agent: Agent, sink: Sink) -> None:
    info = {
        "method": "POST",
        "url": "https://u:p@h/x?user=jo&Pass%77ord=hunter2;api-key=hunter2#t",
        "headers": {
            "Authorization": "Bearer hunter2",
            "Cookie": "sid=hunter2",
            "X-CSRF-Token": "hunter2",
            "User-Agent": "test",
            "Referer": "/y?access_token=hunter2&a=b",
        },
        "query_parameters": {"user": "jo", "password": "hunter2"},
        "body_parameters": {
            "card": [{"cardNumber": "hunter2", "name": "Jo"}],
            "client_secret": {"a": "hunter2"},
        },
        "more": {"session": "hunter2"},
    }
    agent.request("a#b", request_info=info).end()
    assert "hunter2" not in json.dumps(sink.one)
    found = sink.one["request_info"]
    assert found["url"] == "https://h/x?user=jo&Pass%77ord=[FILTERED];api-key=[FILTERED]#t"
    assert found["headers"]["User-Agent"] == "test"
    assert found["headers"]["Referer"] == "/y?access_token=[FILTERED]&a=b"
    assert found["body_parameters"]["card"] == [{"cardNumber": "[FILTERED]", "name": "Jo"}]
    assert info["headers"]["Cookie"] == "sid=hunter2"  # the caller's mapping is unchanged


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@ss@h/?a=1", "https://h/?a=1"),
        ("//u:pw@h/x", "//h/x"),
        ("/x?tok%65n=s&a=1#token=zz&b=2", "/x?tok%65n=[FILTERED]&a=1#token=[FILTERED]&b=2"),
        ("/x#/page?id_token=zz", "/x#/page?id_token=[FILTERED]"),
        ("/x;token=s?a=1", "/x;token=[FILTERED]?a=1"),
        ("/p?to=https%3A%2F%2Fu%3Apw%40h%2F&b=1", "/p?to=[FILTERED]&b=1"),
        ("/p?to=https%3A%2F%2Fh%2F%3Ftoken%3Dx", "/p?to=[FILTERED]"),
        ("/p?to=/x%3Fto%3D%252Fy%253Ftoken%253Dx", "/p?to=[FILTERED]"),
        ("/p?to=https%3A%2F%2Fh%2F%3Fa%3Dx&mail=a@b.c", "/p?to=https%3A%2F%2Fh%2F%3Fa%3Dx&mail=a@b.c"),
        (
            "/p?to\u212aen=1&\uff30\uff37\uff24=3&pass%00w=4",
            "/p?to\u212aen=[FILTERED]&\uff30\uff37\uff24=[FILTERED]&pass%00w=[FILTERED]",
        ),
    ],
)
def test_secrets_in_urls_are_masked(agent: Agent, sink: Sink, url: str, shown: str) -> None:
    parameters = {"to": "https://u:hunter2@h/?token=hunter2&a=1", "note": "either/or? yes"}
    agent.request("a#b", request_info={"url": url, "query_parameters": parameters}).end()
    info = sink.one["request_info"]
    assert info["url"] == shown
    assert info["query_parameters"] == {"to": "https://h/?token=[FILTERED]&a=1", "note": "either/or? yes"}


def test_masked_names_are_whole_words(agent: Agent, sink: Sink) -> None:
    hidden = ["auth", "OAuth", "X-Auth", "user_jwt", "otp", "sid", "user[code]", "key", "PHPSESSID", "my.key"]
    seen = ["author", "monkey", "side", "country_code", "hotpink", "keyboard", "encoded"]
    agent.request("a#b", request_info={"headers": dict.fromkeys([*hidden, *seen], "x")}).end()
    found = sink.one["request_info"]["headers"]
    assert [name for name in found if found[name] == "x"] == seen


def test_deeply_nested_urls_are_masked_whole(agent: Agent, sink: Sink) -> None:
    url = "/x?a=1"
    for _ in range(8):
        url = "/x?to=" + quote(url, safe="")
    agent.request("a#b", request_info={"url": url}).end()
    assert sink.one["request_info"]["url"] == "/x?to=[FILTERED]"


def test_mask_option_replaces_the_names(sink: Sink) -> None:
    agent = Agent(sink, APP, mask=("I-BAN",))
    info = {"query_parameters": {"iban": "x", "my_iban": "x", "password": "seen"}}
    agent.request("a#b", request_info=info).end()
    assert sink.one["request_info"]["query_parameters"] == {
        "iban": "[FILTERED]",
        "my_iban": "[FILTERED]",
        "password": "seen",
    }


@pytest.mark.parametrize("info", [{"method": None, "url": None, "headers": None}, {"headers": [1], "url": 5}])
def test_request_info_that_aborts_importers_is_repaired(agent: Agent, sink: Sink, info: Any) -> None:
    agent.request("a#b", request_info=info).end()
    assert sink.one.get("request_info", {}).get("url", "5") == "5"


# -- fields of the user's own


def test_fields_that_collide_get_other_names(agent: Agent, sink: Sink) -> None:
    with agent.request("a#b", fields={"a.b": 1, "$c": 2, "a_b": 3, "": 4}) as request:
        request.fields.update(
            page=1, _id=2, severity="high", lines=None, heap_growth=5, db_time="soon", x_calls=True
        )
    made = sink.one
    assert (made["a_b"], made["a_b_"], made["_c"], made["_"]) == (1, 3, 2, 4)
    assert (made["page_"], made["_id_"], made["severity_"], made["lines_"]) == (1, 2, "high", None)
    assert (made["db_time_"], made["x_calls_"], made["heap_growth"]) == ("soon", True, 5)


def test_equal_names_are_numbered_up_to_a_bound(agent: Agent, sink: Sink) -> None:
    alike = dict.fromkeys(map("".join, itertools.product("._$", repeat=5)), 1)
    long = "k" * 1000
    fields = {
        "few": {"a.b": 1, "a_b_2": 2, "a$b": 3, "a_b": 4, "c.d": 5, "c_d": 6},
        "many": {**alike, "last": 2},
        "long": {long + "1": 1, long + "2": 2, long + "3": 3},
        "page": 1,
        "page_": 2,
    }
    with agent.request("a#b", fields=fields):
        pass
    made = sink.one
    assert made["few"] == {"a_b": 1, "a_b_2": 2, "a_b_": 3, "a_b_3": 4, "c_d": 5, "c_d_": 6}
    assert len(made["many"]) == 1 + document.MAX_ALIKE + 1
    assert made["many"]["last"] == 2
    assert list(made["long"]) == [long, "k" * 999 + "_", "k" * 998 + "_2"]
    assert (made["page_"], made["page__"]) == (1, 2)


def test_names_beyond_the_size_limit_are_dropped(agent: Agent, sink: Sink) -> None:
    fields = {"many": {"k" * 200 + str(n): n for n in range(2000)}}
    agent.request("a#b", fields=fields).end()
    assert sink.one["many"].pop("[DROPPED]") < 2000
    assert all(name.startswith("kk") for name in sink.one["many"])


def test_masked_values_count_against_the_limit(agent: Agent, sink: Sink) -> None:
    info = {"body_parameters": {f"token{n}": n for n in range(20_000)}}
    agent.request("a#b", request_info=info).end()
    assert len(sink.one["request_info"]["body_parameters"]) <= 10_000


class Awkward:
    def __str__(self) -> str:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no")


def test_odd_values_become_json(agent: Agent, sink: Sink) -> None:
    cycle: dict[str, Any] = {}
    cycle["again"] = [cycle]
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    twice = [1]
    fields = {
        "cycle": cycle,
        "deep": deep,
        "twice": [twice, twice],
        "nan": [math.nan, math.inf, -0.5],
        "big": 1 << 70,
        "awkward": Awkward(),
        "bytes": b"\xff\0",
        "long": "€" * 9000,
        "k" * 3000: 1,
        "many": {str(n): n for n in range(30_000)},
        "set": {1},
    }
    agent.request("a#b", fields=fields).end()
    made = sink.one
    assert made["cycle"] == {"again": ["[CYCLE]"]}
    assert made["twice"] == [[1], [1]]
    assert made["nan"] == [None, None, -0.5]
    assert made["big"] == hex(1 << 70)
    assert made["awkward"] == "<Awkward>"
    assert made["bytes"] == "\ufffd\ufffd"
    assert len(made["many"]) < 10_000
    assert agent.failed == 0


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=30)
    | st.binary(max_size=10)
    | st.sampled_from([Awkward(), "x" * 20_000, 1 << 200, object]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers() | st.none(), inner, max_size=4)
        | st.tuples(inner)
    ),
    max_leaves=12,
)
keys = st.text(max_size=12) | st.sampled_from(
    ["action", "lines", "total_time", "page", "x_time", "_id", "a.b"]
)


@pytest.mark.slow
@examples(120)
@given(
    action=odd,
    code=odd,
    ids=st.tuples(odd, odd, odd),
    info=st.dictionaries(
        st.sampled_from(["method", "url", "headers", "query_parameters", "body_parameters", "password"]), odd
    ),
    fields=st.dictionaries(keys, odd, max_size=5),
    lines=st.lists(st.tuples(st.integers(-5, 100), odd), max_size=5),
)
def test_any_values_make_a_valid_document(
    action: Any, code: Any, ids: Any, info: Any, fields: Any, lines: Any
) -> None:
    sink = Sink()
    agent = Agent(sink, APP)
    with agent.request(action, request_info=info, fields=fields) as request:
        request.code = code
        request.caller_id, request.caller_action, request.trace_id = ids
        for level, text in lines:
            assert request.line(level, text)
    assert agent.failed == 0
    assert len(sink.one.get("lines", [])) == len(lines)


# -- records outside of requests


def test_record_outside_of_a_request_is_a_document(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    def create() -> None:
        log.info("order %d", 17, extra={"customer": "jo", "page": 3})

    create()
    made = sink.one
    assert (made["action"], made["code"], made["severity"]) == ("shop.orders#create", 200, 1)
    assert [line[2] for line in made["lines"]] == ["order 17"]
    assert (made["customer"], made["page_"]) == ("jo", 3)
    assert (made["total_time"], made["process_id"]) == (1.0, os.getpid())
    assert {"taskName", "msg", "args", "message"} & set(made) == set()


def test_error_outside_of_a_request_has_code_500(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    try:
        raise Boom
    except Boom:
        log.exception("said")
        log.warning("soft", exc_info=True)
        log.critical("worse")
    assert [(made["code"], made["severity"]) for made in sink.made] == [(500, 3), (200, 2), (500, 4)]
    assert sink.made[0]["exceptions"] == sink.made[1]["soft_exceptions"]
    assert "Traceback" in sink.texts(0)[0]
    assert sink.levels == [40, 30, 50]


def test_formatter_decides_about_the_line(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    log.handlers[0].setFormatter(logging.Formatter("%(levelname)s:%(message)s"))
    with agent.request("a#b"):
        log.info("x")
    assert sink.texts() == ["INFO:x"]


def test_records_of_our_own_loggers_are_ignored(agent: Agent, sink: Sink) -> None:
    handler = agent_handler(agent)
    for name in ("logclient", "zmq.auth", "websockets"):
        logger = logging.Logger(name)
        logger.addHandler(handler)
        logger.error("x")
    assert sink.made == []


def test_handler_obeys_filters_and_levels(agent: Agent, sink: Sink, log: logging.Logger) -> None:
    log.handlers[0].setLevel(logging.WARNING)
    log.handlers[0].addFilter(lambda record: "no" not in record.getMessage())
    log.info("below")
    log.error("no")
    log.error("yes")
    assert sink.texts() == ["yes"]


def test_errors_are_counted_and_never_raised(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(body: bytes, level: int, kind: int) -> None:
        raise OSError("full")

    class Odd:
        def __repr__(self) -> str:
            raise TypeError("no words")

    agent = Agent(broken, APP)
    log = logging.Logger("x")
    handler = agent_handler(agent)
    log.addHandler(handler)
    with agent.request("a#b"):
        log.info("%d", Odd())  # counted; the request continues
        log.info("fine")
    log.error("plain")
    handler.addFilter(lambda record: 1 / 0)  # type: ignore[arg-type,return-value]
    log.error("filter")
    assert agent.failed == 4
    errors = capsys.readouterr().err
    assert "a request: OSError: full" in errors and "TypeError" in errors and "ZeroDivisionError" in errors
    with pytest.raises(OSError):
        agent.event("deploy")


# -- the other topics

NOW_MS = int(time.time() * 1000)
PAGE = [NOW_MS + n for n in range(16)]
FULL_ID = f"{APP}-{'a1' * 16}"


def test_event_has_a_label_and_fields(agent: Agent, sink: Sink) -> None:
    assert agent.event("deployed 17", version="1.2", uuid="mine", label2="x") == 1
    assert sink.topics == [EVENTS]
    assert (sink.one["label"], sink.one["version"], sink.one["labels_uuid"]) == ("deployed 17", "1.2", "mine")
    with pytest.raises(EncodeError, match="label: "):
        agent.event("")


def test_page_and_ajax_carry_timings_and_id(agent: Agent, sink: Sink) -> None:
    agent.page(FULL_ID, PAGE, action="Shop#show", user_agent="x", url="/")
    agent.ajax(FULL_ID, f"{NOW_MS},{NOW_MS + 7}", action="Shop#poll")
    assert sink.topics == [2, 3]
    assert sink.made[0]["rts"] == ",".join(map(str, PAGE))
    assert sink.made[1]["rts"] == f"{NOW_MS},{NOW_MS + 7}"
    assert sink.made[0]["logjam_request_id"] == FULL_ID


@pytest.mark.parametrize(
    "timings",
    [PAGE[:15], [*PAGE, 1], ["x"] * 16, [-1] * 16, [0] * 16, [*PAGE[:6], *reversed(PAGE[6:])], "1,2", None, 5]
    + [[*PAGE[:10], 0, *PAGE[11:]], [*PAGE[:15], 1 << 63]],
)
def test_page_timings_that_importers_drop_are_refused(agent: Agent, timings: Any) -> None:
    with pytest.raises(EncodeError, match="timings: "):
        agent.page(FULL_ID, timings, action="Shop#show")


@pytest.mark.parametrize("timings", [[2, 1], [1], "1;2", "1,2,3"])
def test_ajax_timings_that_importers_drop_are_refused(agent: Agent, timings: Any) -> None:
    with pytest.raises(EncodeError, match="timings: "):
        agent.ajax(FULL_ID, timings, action="Shop#show")


@pytest.mark.parametrize("request_id", ["", "a1" * 16, None, FULL_ID + "\n"])
def test_frontend_needs_the_full_request_id(agent: Agent, request_id: Any) -> None:
    with pytest.raises(EncodeError, match="request_id: "):
        agent.ajax(request_id, [1, 2], action="Shop#show")


def test_javascript_and_mobile_have_their_topics(agent: Agent, sink: Sink) -> None:
    agent.javascript("x is undefined", action="Shop#show", request_id=FULL_ID, line=17, url="/a.js")
    agent.javascript("y" * 5000)
    agent.mobile(screen="start", device={"os": "x"})
    assert sink.topics == [4, 4, MOBILE]
    assert sink.made[0]["logjam_request_id"] == FULL_ID
    assert sink.made[1]["logjam_action"] == "Unknown#unknown_method"
    with pytest.raises(EncodeError, match="description: "):
        agent.javascript("")


# -- on the wire


def test_core_carries_each_kind_with_topic_and_id() -> None:
    """The id is inserted where there is none."""
    events: list[tuple[bytes, int]] = []
    agent = Agent(lambda body, level, kind: events.append((body, kind)), APP)
    agent.request("a#b").end()
    given = agent.request("a#b", request_id="c4" * 16)
    given.end()
    agent.event("deployed")
    agent.page(FULL_ID, PAGE, action="Shop#show")
    agent.ajax(FULL_ID, [1, 2], action="Shop#show")
    agent.javascript("x")
    agent.mobile()
    producer = bytes(range(10))
    connection = Connection(Logjam(config_for("logjam", f"/{APP}", compression="none"), producer))
    connection.connected(100.0)
    for body, kind in events:
        connection.put(body, kind)
    messages = oracle.split(connection.send(100.0))
    assert [message[2].decode() for message in messages] == [
        "logs.shop.production", "logs.shop.production", "events.shop.production", "frontend.page",
        "frontend.ajax", "javascript.shop.production", "mobile",
    ]  # fmt: skip
    bodies = [json.loads(message[3]) for message in messages]
    ids = [bytes(range(10)).hex() + f"{n:012x}" for n in range(1, 8)]
    assert [body["request_id"] for body in bodies[:2]] == [ids[0], "c4" * 16]
    assert [body["uuid"] for body in bodies[2:]] == ids[2:]
    for (body, _), carried in zip(events, bodies, strict=True):
        assert json.loads(body).items() <= carried.items()


# -- arguments


@pytest.mark.parametrize(
    "app_env", ["", "shop", "-", "shop-", "-x", "shöp-test", "a b-c", "a-b\n", "x" * 300 + "-y"]
)
def test_wrong_app_env_is_refused(sink: Sink, app_env: Any) -> None:
    with pytest.raises(ConfigError, match="app-env: "):
        Agent(sink, app_env)


@pytest.mark.parametrize(
    ("options", "rule"),
    [({"zone": "Mars/Olympus"}, "zone: "), ({"zone": "../etc"}, "zone: "), ({"mask": "password"}, "mask: ")],
)
def test_wrong_option_of_the_agent_is_named(sink: Sink, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        Agent(sink, APP, **options)


def test_reference_judge_finds_each_broken_rule() -> None:
    made: list[bytes] = []
    agent = Agent(lambda body, level, kind: made.append(body), APP)
    with agent.request("a#b", request_info={"url": "/"}) as request:
        request.line(20, "text")
    good = json.loads(made[0])

    def found(change: Callable[[dict[str, Any]], object]) -> list[str]:
        copy = json.loads(made[0])
        change(copy)
        return judge(json.dumps(copy).encode(), now=time.time())[1]

    assert found(lambda it: None) == []
    without = ["action", "started_at", "started_ms", "total_time", "code", "severity", "process_id"]
    assert [name for name in without if not found(lambda it, name=name: it.pop(name))] == []
    wrong: dict[str, list[Any]] = {
        "action": [None, "x", "x#", "x" * 2000 + "#y"],
        "started_at": [None, 5, "yesterday", good["started_at"].replace("20", "19", 1)],
        "started_ms": ["1", good["started_ms"] + 90_000],
        "total_time": [0, "1", math.nan],
        "severity": [0, 6, "1"],
        "lines": [None, {}, [[1, "x", "y"]], [[1, good["lines"][0][1], None]], [good["lines"][0]] * 10_001],
        "exceptions": [None, "x", [None], ["a.b"]],
        "request_info": [None, [], {"url": None}, {"headers": []}],
        "request_id": ["", "A" * 32],
        "wait_time": [1e9, "x"],
        "x": ["\0", "x" * 10_001, {"a.b": 1}, {"": 1}, 1 << 64, "\ud800"],
        "page": ["x"],
    }
    for name, values in wrong.items():
        for value in values:
            assert found(lambda it, name=name, value=value: it.update({name: value})), (name, str(value)[:50])
