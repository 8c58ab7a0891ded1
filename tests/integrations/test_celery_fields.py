"""Fields of tasks, and of the requests that have sent them, through a real prefork worker."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.integrations.celery import install
from logclient.integrations.request_fields import RequestFields
from logclient.testing.lumberjack import Collector
from tests.integrations.ecs_peer import Peer
from tests.integrations.odd_records import RECORDS, draw_fields, fail
from tests.support import ROOT, clean_environment
from tests.support.app_servers import EXAMPLES, Site, program, serving, wait_for
from tests.support.patience import PATIENCE, wait_until

celery = pytest.importorskip("celery")

REQUESTS = 10
PER_TASK = 5
TRACE = "0af7651916cd43dd8448eb211c80319c"

TASKS = """
from tasks import app, log
from logclient.integrations.celery import install

install(app)

@app.task(name="shop.note")
def note(name):
    log.info("%s noted", name)

@app.task(name="shop.relay")
def relay(name):
    note.delay(f"{name} relayed")

@app.task(name="shop.fails")
def fails(name):
    raise LookupError(name)

@app.task(name="shop.again", bind=True, max_retries=1, default_retry_delay=0)
def again(self, name):
    log.info("%s tried %d", name, self.request.retries)
    if not self.request.retries:
        raise self.retry()
"""

SEND = """
import sys, more
from logclient.integrations.request_fields import RequestFields
more.note.delay("unasked")
for n in range(int(sys.argv[1])):
    fields = RequestFields("GET", "/", f"r-{n}", f"00-{sys.argv[2]}-b7ad6b7169203331-01", None)
    for task in more.note, more.relay, more.fails, more.again:
        task.delay(f"{n}")
    fields.end()
"""

WANTED = {
    "{n} noted": "shop.note",
    "{n} relayed noted": "shop.note",
    "{n} tried 0": "shop.again",
    "{n} tried 1": "shop.again",
}


def _failed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("error.type") == "LookupError"]


@pytest.mark.slow
@pytest.mark.tree
def test_pool_processes_ship_and_deliver_the_fields(tmp_path: Path) -> None:
    """Pool processes are replaced all the time, and all of them deliver."""
    (tmp_path / "more.py").write_text(TASKS)
    with Site(tmp_path) as site:
        environment = {"LOG_URL": site.url, "BROKER_FOLDER": str(tmp_path)}
        path = os.pathsep.join([str(tmp_path), str(EXAMPLES / "celery"), str(ROOT)])
        subprocess.run(
            [sys.executable, "-c", SEND, str(REQUESTS), TRACE],
            env=clean_environment(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **environment),
            check=True,
        )
        command = [program("celery"), "--app", "more", "worker", "--concurrency", "2"]
        command += ["--max-tasks-per-child", "10"]
        with serving(command, EXAMPLES / "celery", tmp_path / "celery.out", **environment) as server:
            texts = {text.format(n=n) for n in range(REQUESTS) for text in WANTED} | {"unasked noted"}
            wait_for(lambda: texts <= set(site.messages()), "the records of all tasks")
            wait_for(lambda: len(_failed(site.events())) == REQUESTS, "the records of failures")
            assert server.end(signal.SIGTERM) == 0
        events = site.events()
    by_message = {event["message"]: event for event in events}
    [unasked] = [event for event in events if event["message"] == "unasked noted"]
    assert "http.request.id" not in unasked and unasked["celery.task.name"] == "shop.note"
    for n in range(REQUESTS):
        for text, task in WANTED.items():
            event = by_message[text.format(n=n)]
            assert (event["http.request.id"], event["trace.id"]) == (f"r-{n}", TRACE)
            assert (event["celery.task.name"], "url.path" in event) == (task, False)
    # Celery's own record of a failure, made in the pool's process, has the fields too.
    failed = _failed(events)
    assert {event["http.request.id"] for event in failed} == {f"r-{n}" for n in range(REQUESTS)}
    tasks = {(event["celery.task.id"], event["http.request.id"]) for event in failed}
    assert len(tasks) == REQUESTS
    assert all(event["celery.task.id"] in event["message"] for event in failed)
    pool = {event["process.pid"] for event in events if "celery.task.id" in event}
    assert len(pool) > 4  # processes have been replaced
    between = [event for event in events if event["process.pid"] == server.pid]
    assert between and not any("celery.task.id" in event for event in between)


@pytest.fixture
def signals_restored() -> Iterator[None]:
    from celery import signals

    used = (signals.before_task_publish, signals.task_prerun, signals.task_postrun)
    before = [list(one.receivers or ()) for one in used]
    yield
    for one, receivers in zip(used, before, strict=True):
        one.receivers = receivers
        one.sender_receivers_cache.clear()


class TaskPeer(Peer):
    """Celery's own records that a task has come are of no task yet."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("celery.worker"):
            self.facts = {}
        super().emit(record)


@pytest.mark.slow
def test_records_equal_those_of_ecs_logging(signals_restored: None, tmp_path: Path) -> None:
    """2,000 of a worker: to those of ecs-logging come the task, as it knows itself, and its request."""
    from celery.contrib.testing.worker import start_worker

    draw = random.Random("celery")
    app = celery.Celery("shop", broker="memory://localhost/", set_as_current=False)
    app.conf.worker_hijack_root_logger = False
    install(app)
    log, root, peer = logging.getLogger("shop"), logging.getLogger(), TaskPeer()
    requests: dict[int, dict[str, Any]] = {}
    done: list[int] = []

    @app.task(shared=False, name="shop.größe", bind=True)
    def run(task: Any, number: int) -> str:
        names = {"celery.task.name": task.name, "celery.task.id": task.request.id}
        peer.facts = {**names, **requests[number], "basket": [number]}
        logclient.bind(basket=[number])
        done.append(number)
        for n in range(PER_TASK):
            try:
                if n == 2 and draw.random() < 0.5:
                    fail(draw)
                log.info("task %s of %s 😀", n, number, extra=draw_fields(draw))
            except Exception:
                log.warning("caught", exc_info=True, extra=draw_fields(draw))
        if number % 10 == 0:
            fail(draw)
        return "größe"

    before = root.level
    with (
        Collector(capture=str(tmp_path)) as server,
        start_worker(app, pool="solo", perform_ping_check=False, loglevel="INFO"),
    ):
        handler = logclient.Handler(server.url, overflow="block")
        root.setLevel("INFO")
        root.addHandler(peer)
        root.addHandler(handler)
        try:
            for number in range(RECORDS // PER_TASK):
                trace = f"00-{TRACE}-b7ad6b7169203331-01" if number % 2 else None
                requests[number] = {"http.request.id": f"r-{number}"} | ({"trace.id": TRACE} if trace else {})
                fields = RequestFields("GET", "/", f"r-{number}", trace, None)
                run.delay(number)
                fields.end()
            wait_until(lambda: len(done) == RECORDS // PER_TASK, "all tasks")
            wait_until(lambda: [*map(_ended, peer.expected)].count(True) == len(done), "their ends")
        finally:
            root.removeHandler(handler)
            root.removeHandler(peer)
            root.setLevel(before)
        assert handler.client.flush(PATIENCE) == 0
        assert handler.client.stats().failed == {}
        handler.client.close()
    documents = peer.check(tmp_path)
    assert len(documents) == RECORDS + 2 * len(done)
    loggers = {document["log.logger"] for document in documents}
    assert loggers == {"shop", "celery.worker.strategy", "celery.app.trace"}


def _ended(expected: Any) -> bool:
    return bool(expected.fields["log.logger"] == "celery.app.trace")


@pytest.mark.parametrize("given", [uuid.UUID(TRACE), "a b", 5, None, object()])
def test_ids_that_are_not_fit_are_not_sent(signals_restored: None, given: object) -> None:
    """Brokers refuse messages with most other values."""
    app = celery.Celery("shop", broker="memory://localhost/", set_as_current=False)
    install(app)
    sent: list[dict[str, Any]] = []

    @celery.signals.after_task_publish.connect
    def published(headers: dict[str, Any], **_: Any) -> None:
        sent.append(headers)

    with logclient.bind({"http.request.id": given, "trace.id": given}):
        app.send_task("shop.task")
    with logclient.bind({"http.request.id": "r", "trace.id": TRACE}):
        app.send_task("shop.task")
    ours = [{name: value for name, value in one.items() if name.startswith("logclient")} for one in sent]
    assert ours == [{}, {"logclient_request_id": "r", "logclient_trace_id": TRACE}]


class TestWithinAProgram:
    """Tasks that run where they are called."""

    @pytest.fixture
    def app(self, signals_restored: None) -> Any:
        app = celery.Celery("shop", set_as_current=False)
        app.conf.task_always_eager = True
        install(app)
        install(app)  # twice is as good as once
        return app

    def test_fields_end_with_the_task(self, app: Any) -> None:
        seen: list[dict[str, Any]] = []

        @app.task(shared=False, name="shop.inner")
        def inner() -> None:
            seen.append(logclient.bound())
            raise LookupError

        @app.task(shared=False, name="shop.outer")
        def outer() -> None:
            inner.delay()
            logclient.bind(order=17)
            seen.append(logclient.bound())

        fields = RequestFields("GET", "/pay", "r", None, None)
        before = logclient.bound()
        outer.apply(task_id="the-outer")
        assert logclient.bound() == before
        fields.end()
        first, second = seen
        assert first["celery.task.name"] == "shop.inner"
        assert first["celery.task.id"] not in ("the-outer", None)
        mine = {"celery.task.name": "shop.outer", "celery.task.id": "the-outer", "order": 17}
        assert second == {**before, **mine}

    def test_tasks_are_skipped_by_name_unless_they_fail(
        self, app: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        install(app, logger="finished", skip=["beat.*"])

        def work(fails: bool) -> None:
            assert not fails

        tasks = [app.task(shared=False, name=name)(work) for name in ("beat.ping", "shop.pay")]
        with caplog.at_level("INFO", logger="finished"):
            for task in tasks:
                for fails in (False, True):
                    task.apply((fails,))
                with pytest.raises(AssertionError):
                    task.apply((True,), throw=True)
        found = [
            record.getMessage().partition(" in ")[0] for record in caplog.records if record.name == "finished"
        ]
        failed = ["beat.ping: FAILURE"] * 2, ["shop.pay: FAILURE"] * 2
        assert found == [*failed[0], "shop.pay: SUCCESS", *failed[1]]

    def test_a_task_that_ends_in_another_context_changes_nothing_there(self, app: Any) -> None:
        from celery import signals

        @app.task(shared=False, name="shop.task")
        def task() -> None: ...

        def tell(signal: Any) -> None:
            signal.send(sender=task, task_id="t", task=task, args=(), kwargs={}, retval=None, state="SUCCESS")

        of_task, of_request = Context(), Context()
        of_task.run(tell, signals.task_prerun)
        assert of_task.run(logclient.bound)["celery.task.id"] == "t"
        of_request.run(logclient.bind, {"http.request.id": "r"})
        of_request.run(tell, signals.task_postrun)
        assert of_request.run(logclient.bound) == {"http.request.id": "r"}
        with of_task.run(logclient.bind, {"order": 17}) as next_one:
            assert next_one.fields == {"order": 17}

    @pytest.mark.parametrize("given", ["a b", "x" * 129, 5, None])
    def test_ids_that_are_not_fit_are_ignored(self, app: Any, given: object) -> None:
        from celery.app.trace import build_tracer

        seen: list[dict[str, Any]] = []

        @app.task(shared=False, name="shop.task")
        def task() -> None:
            seen.append(logclient.bound())

        # As a worker runs what a message says.
        message = {"id": "t", "logclient_request_id": given, "logclient_trace_id": given}
        build_tracer("shop.task", app.tasks["shop.task"], app=app, eager=True)("t", [], {}, message)
        assert seen == [{"celery.task.name": "shop.task", "celery.task.id": "t"}]
