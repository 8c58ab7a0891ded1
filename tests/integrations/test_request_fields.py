"""Fields of requests in every event, by each web framework behind a real server."""

from __future__ import annotations

import asyncio
import gc
import http.client
import importlib
import logging
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import Context
from typing import Any, NamedTuple

import pytest

import logclient
from logclient.integrations.loguru import Sink
from logclient.integrations.request_fields import REQUEST_ID, RequestFields, RequestLog, sane_id, trace_id
from logclient.integrations.structlog import LoggerFactory
from logclient.testing.lumberjack import Collector
from tests.integrations import web_apps
from tests.integrations.odd_records import Thing
from tests.support import clean_environment
from tests.support.documents import dotted
from tests.support.patience import PATIENCE, wait_until

loguru = pytest.importorskip("loguru")
structlog = pytest.importorskip("structlog")

FRAMEWORKS = ("flask", "django", "django-asgi", "fastapi", "aiohttp")
NAMES = ("http.request.id", "http.request.method", "url.path", "client.ip", "trace.id")
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"

Event = dict[str, Any]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def arrived() -> Iterator[Callable[[], list[Event]]]:
    """All four ways to log ship to one collector; gives what has arrived."""
    root, log = logging.getLogger(), web_apps.log
    with Collector(keep=True) as server:
        handler = logclient.Handler(server.url)
        client = handler.client

        def events() -> list[Event]:
            assert client.flush(PATIENCE) == 0
            assert client.stats().failed == {}
            return [dotted(event) for event in server.events(client.stats().acked, PATIENCE)]

        log.setLevel("INFO")
        log.addHandler(handler)
        log.propagate = False
        root.addHandler(handler)
        loguru.logger.remove()
        loguru.logger.add(Sink(client=client))
        structlog.configure(processors=[], logger_factory=LoggerFactory(client=client))
        try:
            yield events
        finally:
            log.removeHandler(handler)
            log.propagate = True
            root.removeHandler(handler)
            loguru.logger.remove()
            structlog.reset_defaults()
            client.close()


@contextmanager
def _connected(port: int) -> Iterator[Callable[..., Answer]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def get(path: str, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())

    try:
        yield get
    finally:
        connection.close()


def _fields(event: Event) -> Event:
    return {name: event[name] for name in NAMES if name in event}


def _finished(events: list[Event]) -> list[Event]:
    return [event for event in events if event.get("log.logger") == web_apps.FINISHED]


def _expected(path: str, request_id: str, **more: str) -> Event:
    fields = {"http.request.id": request_id, "http.request.method": "GET", "url.path": path}
    return {**fields, "client.ip": "127.0.0.1", **more}


@pytest.mark.parametrize("framework", FRAMEWORKS)
class TestFrameworks:
    @pytest.fixture
    def port(self, framework: str, arrived: Any) -> Iterator[int]:
        with web_apps.serving(framework) as port:
            yield port

    @pytest.mark.slow
    def test_events_of_all_loggers_have_the_fields(self, port: int, arrived: Any) -> None:
        with _connected(port) as get:
            answer = get("/all/gr%C3%BC%C3%9Fe?secret=1", x_request_id="r-1", traceparent=TRACEPARENT)
        assert (answer.status, answer.headers["x-request-id"]) == (200, "r-1")
        events = [event for event in arrived() if event["message"] == "grüße"]
        assert len(events) == 4
        for event in events:
            assert _fields(event) == _expected("/all/grüße", "r-1", **{"trace.id": TRACE})

    def test_an_id_is_made_when_none_is_fit(self, port: int, arrived: Any) -> None:
        given: list[dict[str, str]] = [{}, {"x_request_id": "a b"}, {"x_request_id": "x" * 129}]
        with _connected(port) as get:
            ids = [get("/pool/a", **headers).headers["x-request-id"] for headers in given]
        assert len({*ids}) == len(given)
        assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)
        events = [event for event in arrived() if event["message"] == "a pool"]
        assert [_fields(event) for event in events] == [_expected("/pool/a", one) for one in ids]

    def test_pools_and_streams_have_the_fields(self, port: int, arrived: Any, framework: str) -> None:
        stream = "/later/stream/b" if framework == "django-asgi" else "/stream/b"
        with _connected(port) as get:
            for path, body in (("/pool/b", b"pool"), (stream, b"chunk" * 3)):
                answer = get(path, x_request_id="r-2")
                assert (answer.body, answer.headers["x-request-id"]) == (body, "r-2")
        found = {event["message"]: _fields(event) for event in arrived() if event["log.logger"] == "shop"}
        assert found == {
            "b pool": _expected("/pool/b", "r-2"),
            **{f"b chunk {n}": _expected(stream, "r-2") for n in range(3)},
        }

    def test_fields_end_with_a_failed_request(self, port: int, arrived: Any, framework: str) -> None:
        """The next one on the connection has none of it; records of the failure have all."""
        with _connected(port) as get, _connected(port) as get_anew:
            answer = get("/fail/c", x_request_id="r-3", traceparent=TRACEPARENT)
            # uvicorn closes the connection of a failed request.
            (get_anew if framework == "fastapi" else get)("/pool/c", x_request_id="r-4")
        assert answer.status == 500
        # Starlette makes this response outside of all middleware.
        assert framework == "fastapi" or answer.headers["x-request-id"] == "r-3"
        events = arrived()
        failed = [event for event in events if event.get("error.type") == "LookupError"]
        assert len(failed) == 1
        for event in [*failed, *(event for event in events if event["message"] == "c fails")]:
            assert _fields(event) == _expected("/fail/c", "r-3", **{"trace.id": TRACE})
        [after] = [event for event in events if event["message"] == "c pool"]
        assert _fields(after) == _expected("/pool/c", "r-4")

    @pytest.mark.slow
    def test_concurrent_requests_have_their_own(self, port: int, arrived: Any, framework: str) -> None:
        prefix = "/later/meet" if framework == "django-asgi" else "/meet"
        statuses: list[int] = []

        def ask(client: int) -> None:
            with _connected(port) as get:
                for n in range(10):
                    name = f"{client}-{n}"
                    headers = {"traceparent": TRACEPARENT} if n % 2 else {}
                    statuses.append(get(f"{prefix}/{name}", x_request_id=name, **headers).status)

        threads = [threading.Thread(target=ask, args=(client,)) for client in range(web_apps.TOGETHER)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
        assert statuses == [200] * 10 * web_apps.TOGETHER
        events = [event for event in arrived() if event["log.logger"] == "shop"]
        assert len(events) == 2 * len(statuses)
        for event in events:
            name = event["message"].split()[0]
            trace = {"trace.id": TRACE} if int(name[-1]) % 2 else {}
            assert _fields(event) == _expected(f"{prefix}/{name}", name, **trace)

    def test_unknown_paths_have_an_id_too(self, port: int, arrived: Any) -> None:
        with _connected(port) as get:
            answer = get("/nowhere", x_request_id="r-5")
        assert (answer.status, answer.headers["x-request-id"]) == (404, "r-5")

    def test_each_finished_request_is_one_record(self, framework: str, port: int, arrived: Any) -> None:
        def prefix(word: str) -> str:
            return "/later" if (framework, word) == ("django-asgi", "stream") else ""

        logger = logging.getLogger(web_apps.FINISHED)
        logger.setLevel("INFO")
        try:
            for word in ("pool", "fail", "stream", "nothing"):
                with _connected(port) as get:
                    get(f"{prefix(word)}/{word}/x", x_request_id=word, traceparent=TRACEPARENT)
            events = wait_until(lambda: found if len(found := _finished(arrived())) == 4 else None)
            for word in ("pool", "fail"):  # a path that is skipped
                with _connected(port) as get:
                    get(f"/{word}/unseen", x_request_id=f"unseen {word}")
            [failed] = wait_until(lambda: [e for e in _finished(arrived()) if "unseen" in e["url.path"]])
            assert (failed["http.response.status_code"], failed["url.path"]) == (500, "/fail/unseen")
        finally:
            logger.setLevel("CRITICAL")
        assert {event["http.request.id"]: event["http.response.status_code"] for event in events} == {
            "pool": 200, "fail": 500, "stream": 200, "nothing": 404,
        }  # fmt: skip
        variable = {"fastapi": "{name}", "aiohttp": "{name}"}.get(framework, "<name>")
        for event in events:
            word = event["http.request.id"]
            path = f"{prefix(word)}/{word}"
            route = None if word == "nothing" else f"{path}/{variable}"
            assert event.get("http.route") == (route and route[framework.startswith("django") :])
            assert event["trace.id"] == TRACE and event["url.path"] == f"{path}/x"
            assert event["event.duration"] > 0
            status = event["http.response.status_code"]
            assert event["message"].startswith(f"GET {path}/x: {status} in ")


@pytest.mark.parametrize(
    ("path", "status", "skipped"),
    [
        ("/health", 200, True),
        ("/health/deep", 200, False),
        ("/static/a/b.css", 404, True),
        ("/health", 499, True),
        ("/health", 500, False),
        ("/orders", 304, True),
        ("/orders", 200, False),
    ],
)
def test_paths_and_statuses_are_skipped(path: str, status: int, skipped: bool) -> None:
    assert RequestLog("access", ["/health", "/static/*", 304]).skips(path, status) is skipped
    assert not RequestLog("access", []).skips(path, status)


@pytest.mark.parametrize("skip", ["/health", [b"/health"], [None]])
def test_what_is_no_path_is_refused(skip: Any) -> None:
    with pytest.raises(TypeError, match="skip: must be a list of paths and statuses"):
        RequestLog("access", skip)


@pytest.mark.parametrize(
    ("framework", "logger"), [("fastapi", "uvicorn.access"), ("aiohttp", "aiohttp.access")]
)
def test_access_logs_have_the_fields(
    framework: str, logger: str, arrived: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", logger),
        web_apps.serving(framework) as port,
        _connected(port) as get,
    ):
        for n in range(2):  # aiohttp writes its line after the response
            get("/pool/d", x_request_id=f"r-{n}")
        event = next(event for event in arrived() if event["log.logger"] == logger)
    assert _fields(event) == _expected("/pool/d", "r-0")


def _begun(path: str) -> RequestFields:
    return RequestFields("GET", path, None, None, None)


class TestOrder:
    @pytest.mark.parametrize("first", [0, 1])
    def test_requests_of_one_thread_end_in_any_order(self, first: int) -> None:
        requests = [_begun("/a"), _begun("/b")]
        logclient.bind(user="ann")  # of the second
        inner = logclient.bind(step=1)
        requests.pop(first).end()
        left = {"url.path": "/a"} if first else {"url.path": "/b", "user": "ann", "step": 1}
        assert logclient.bound().items() >= left.items()
        assert ("user" in logclient.bound()) == (not first)
        requests[0].end()
        inner.reset()
        assert logclient.bound() == {}

    def test_a_request_that_another_context_ends_changes_nothing_there(self) -> None:
        of_a, of_b = Context(), Context()
        fields = of_a.run(_begun, "/a")
        of_b.run(_begun, "/b")
        of_b.run(fields.end)
        assert of_b.run(logclient.bound)["url.path"] == "/b"


class TestFlask:
    def test_the_address_can_be_left_out(self, arrived: Any) -> None:
        from logclient.integrations.flask import RequestContext

        app = web_apps.flask_app()
        app.wsgi_app = RequestContext(app.wsgi_app.app, client_ip=False)
        app.test_client().get("/pool/a", headers={REQUEST_ID: "r"})
        [event] = arrived()
        expected = _expected("/pool/a", "r")
        del expected["client.ip"]
        assert _fields(event) == expected

    def test_nothing_stays_in_the_thread(self, arrived: Any) -> None:
        app = web_apps.flask_app()
        app.testing = True  # exceptions go to the caller
        with logclient.bind(job="tests"):
            with pytest.raises(LookupError):
                app.test_client().get("/fail/a")
            assert logclient.bound() == {"job": "tests"}
            for path in ("/stream/a", "/all/a"):
                assert app.test_client().get(path).status_code == 200
                assert logclient.bound() == {"job": "tests"}
        assert {event["job"] for event in arrived()} == {"tests"}

    def test_streams_by_turns_keep_their_own(self, arrived: Any) -> None:
        """One thread makes chunks of two responses by turns."""
        client = web_apps.flask_app().test_client()
        with (
            client.get("/stream/a", headers={REQUEST_ID: "a"}, buffered=False) as one,
            client.get("/stream/b", headers={REQUEST_ID: "b"}, buffered=False) as other,
        ):
            assert list(zip(one.response, other.response, strict=True)) == [(b"chunk", b"chunk")] * 3
        ids = {(event["message"][0], event["http.request.id"]) for event in arrived()}
        assert ids == {("a", "a"), ("b", "b")}

    def test_twice_is_as_good_as_once(self, arrived: Any) -> None:
        from logclient.integrations.flask import init_app

        app = web_apps.flask_app()
        init_app(app)
        shown = app.test_client().get("/pool/a").headers.getlist(REQUEST_ID)
        assert shown == [event["http.request.id"] for event in arrived()]

    def test_fields_bound_by_a_view_reach_its_stream(self, arrived: Any) -> None:
        from logclient.integrations.flask import RequestContext

        def app(environ: Any, start_response: Any) -> Iterator[bytes]:
            start_response("200 OK", [("x-request-id", "of the application")])
            logclient.bind(order=17)
            return web_apps.chunks("a")

        werkzeug = pytest.importorskip("werkzeug.test")
        answer = werkzeug.Client(RequestContext(app)).get("/", headers={REQUEST_ID: "r"})
        assert answer.headers.getlist(REQUEST_ID) == ["r"]
        assert answer.data == b"chunk" * 3
        assert logclient.bound() == {}
        assert [event["order"] for event in arrived()] == [17] * 3

    def test_an_error_response_has_the_id_too(self) -> None:
        from logclient.integrations.flask import RequestContext

        error = (LookupError, LookupError("x"), None)

        def app(environ: Any, start_response: Any) -> list[bytes]:
            start_response("500 Oops", [], exc_info=error)
            return [b"oops"]

        calls: list[Any] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_X_REQUEST_ID": "r"}
        assert RequestContext(app)(environ, lambda *given: calls.append(given)) == [b"oops"]
        assert calls == [("500 Oops", [(REQUEST_ID, "r")], error)]

    @pytest.mark.parametrize("where", ["call", "first chunk", "second chunk", "refused", "nowhere"])
    def test_the_status_is_what_the_client_got(self, where: str, caplog: pytest.LogCaptureFixture) -> None:
        from logclient.integrations.flask import RequestContext

        def chunks(start_response: Any) -> Iterator[bytes]:
            for name in ("first chunk", "second chunk"):
                if where == name:
                    raise LookupError
                yield b"x"
            if where == "refused":  # by the server: it has sent the first status
                start_response("418 Oops", [], (LookupError, LookupError(), None))

        def app(environ: Any, start_response: Any) -> Iterator[bytes]:
            start_response("200 OK", [])
            if where == "call":
                raise LookupError
            return chunks(start_response)

        def start_response(status: str, headers: Any, exc_info: Any = None) -> None:
            if exc_info is not None:
                raise exc_info[1]

        run = RequestContext(app, logger=web_apps.FINISHED)
        with (
            caplog.at_level("INFO", web_apps.FINISHED),
            suppress(LookupError),
            closing(run({"REQUEST_METHOD": "GET"}, start_response)) as response,  # type: ignore[type-var]
        ):
            assert list(response) == [b"x", b"x"]
        (found,) = caplog.records
        status = 500 if where in ("call", "first chunk") else 200
        assert vars(found)["http.response.status_code"] == status

    def test_files_are_left_to_the_server(self) -> None:
        from logclient.integrations.flask import RequestContext

        wsgi = pytest.importorskip("werkzeug.wsgi")
        file = wsgi.FileWrapper([b"content"])
        app = RequestContext(lambda environ, start_response: file)
        environ = {"wsgi.file_wrapper": wsgi.FileWrapper, "REQUEST_METHOD": "GET", "PATH_INFO": "/"}
        assert app(environ, lambda *_: None) is file


class TestDjango:
    def test_nothing_stays_in_the_thread(self, arrived: Any) -> None:
        web_apps.set_up_django()
        from django.test import Client

        client = Client(raise_request_exception=False, headers={REQUEST_ID: "r"})
        with logclient.bind(job="tests"):
            for path, status in (("/all/a", 200), ("/fail/a", 500), ("/nowhere", 404), ("/stream/a", 200)):
                response = client.get(path)
                assert (response.status_code, response[REQUEST_ID]) == (status, "r")
                if path == "/stream/a":
                    assert b"".join(response.streaming_content) == b"chunk" * 3
                assert logclient.bound() == {"job": "tests"}
        events = arrived()
        assert {(event["job"], event["http.request.id"]) for event in events} == {("tests", "r")}
        assert {"Not Found: /nowhere", "Internal Server Error: /fail/a"} < {e["message"] for e in events}

    def test_nothing_stays_in_the_task(self, arrived: Any) -> None:
        web_apps.set_up_django()

        from django.test import AsyncClient

        async def ask() -> dict[str, Any]:
            response = await AsyncClient().get("/all/a", headers={REQUEST_ID: "r"})
            assert response[REQUEST_ID] == "r"
            return logclient.bound()

        assert asyncio.run(ask()) == {}
        assert {event["http.request.id"] for event in arrived()} == {"r"}

    def test_the_address_can_be_left_out(self, arrived: Any) -> None:
        web_apps.set_up_django()
        from django.test import Client, override_settings

        with override_settings(LOGCLIENT_CLIENT_IP=False):
            Client().get("/pool/a")
        [event] = arrived()
        assert "client.ip" not in event and event["url.path"] == "/pool/a"

    def test_cached_pages_are_served_and_end(self, caplog: pytest.LogCaptureFixture) -> None:
        web_apps.set_up_django()
        from django.core.signals import request_finished
        from django.test import Client, override_settings

        ends: list[object] = []

        def note(**_: object) -> None:
            ends.append(None)

        cache = "django.middleware.cache.{}CacheMiddleware"
        own = "logclient.integrations.django.RequestContext"
        request_finished.connect(note)
        with (
            override_settings(MIDDLEWARE=[cache.format("Update"), own, cache.format("FetchFrom")]),
            caplog.at_level("INFO", "shop"),
            caplog.at_level("INFO", web_apps.FINISHED),
        ):
            client = Client()
            pages = [client.get("/pool/cached", headers={REQUEST_ID: one}) for one in ("r-1", "r-2")]
        assert [(page.status_code, page.content, page[REQUEST_ID]) for page in pages] == [
            (200, b"pool", "r-1"), (200, b"pool", "r-2"),
        ]  # fmt: skip
        assert len(ends) == 2 and logclient.bound() == {}
        logged = [record.name for record in caplog.records]
        assert (logged.count("shop"), logged.count(web_apps.FINISHED)) == (1, 2)


class TestAiohttp:
    @pytest.mark.parametrize("kind", ["not found", "outbound", "database", "pending"])
    def test_the_status_is_what_the_client_got(
        self, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        aiohttp = pytest.importorskip("aiohttp")
        pending = LookupError()
        pending.status = "pending"  # type: ignore[attr-defined]
        errors = {
            "not found": aiohttp.web.HTTPNotFound(),
            "outbound": aiohttp.ClientResponseError(None, (), status=404),
            "database": ConnectionResetError(),
            "pending": pending,
        }

        def visit(*_: object) -> None:
            raise errors[kind]

        monkeypatch.setattr(web_apps, "visit", visit)
        with (
            caplog.at_level("INFO", web_apps.FINISHED),
            web_apps.serving("aiohttp") as port,
            _connected(port) as get,
        ):
            status = get("/visit/x", x_user="u").status
        (found,) = [record for record in caplog.records if record.name == web_apps.FINISHED]
        assert vars(found)["http.response.status_code"] == status == (404 if kind == "not found" else 500)

    def test_aiohttp_itself_reports_a_handler_that_returns_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        web = pytest.importorskip("aiohttp.web")
        app = web.Application()

        async def forgets(request: Any) -> None: ...

        from logclient.integrations.aiohttp import install

        install(app, logger=web_apps.FINISHED)
        app.add_routes([web.get("/", forgets)])
        with (
            caplog.at_level("INFO", web_apps.FINISHED),
            web_apps.aiohttp_server(app) as port,
            _connected(port) as get,
        ):
            assert get("/").status == 500
        (found,) = [record for record in caplog.records if record.name == web_apps.FINISHED]
        assert vars(found)["http.response.status_code"] == 500
        assert "Missing return statement on request handler" in caplog.text

    def test_a_request_whose_client_has_gone_is_499(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        web = pytest.importorskip("aiohttp.web")
        came, gone = threading.Event(), threading.Event()
        app = web.Application()

        async def wait(request: Any) -> Any:
            came.set()
            while request.transport is not None:
                await asyncio.sleep(0.001)
            gone.set()
            raise ConnectionResetError

        from logclient.integrations.aiohttp import install

        install(app, logger=web_apps.FINISHED)
        app.add_routes([web.get("/", wait)])
        with caplog.at_level("INFO", web_apps.FINISHED), web_apps.aiohttp_server(app) as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert came.wait(PATIENCE)
            assert gone.wait(PATIENCE)
            [found] = wait_until(lambda: [r for r in caplog.records if r.name == web_apps.FINISHED])
        assert vars(found)["http.response.status_code"] == 499


@pytest.mark.parametrize(
    ("setting", "shipped"),
    [("root", 1), ("parent", 0), ("own", 0), ("disabled", 0), ("all", 0), ("filter", 0), ("passes", 1)],
)
def test_the_root_alone_leaves_no_record_out_under_run(
    monkeypatch: pytest.MonkeyPatch, setting: str, shipped: int
) -> None:
    from logclient.integrations import request_fields

    found: list[logging.LogRecord] = []
    monkeypatch.setattr(request_fields, "beside", lambda logger, record: found.append(record))
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    parent, logger = (logging.getLogger(f"unasked.{setting}{more}") for more in ("", ".access"))
    monkeypatch.setattr(logging.root.manager, "disable", logging.INFO if setting == "all" else 0)
    logger.disabled = setting == "disabled"
    if setting in ("parent", "own"):
        (parent if setting == "parent" else logger).setLevel(logging.WARNING)
    if setting in ("filter", "passes"):
        logger.addFilter(lambda record: setting == "passes")
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]
    request_fields.RequestLog(logger.name, ()).write("%s: %d", "GET /", 200, fields={"x": 1})
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]
    assert [(record.getMessage(), vars(record)["x"]) for record in found] == [("GET /: 200", 1)] * shipped


class TestStarlette:
    def test_the_whole_application_can_be_wrapped(self, arrived: Any) -> None:
        from logclient.integrations.starlette import RequestContext

        app = RequestContext(web_apps.fastapi_app(), client_ip=False)
        with web_apps.uvicorn_server(app) as port, _connected(port) as get:
            answer = get("/fail/a", x_request_id="r")
        assert (answer.status, answer.headers["x-request-id"]) == (500, "r")
        assert not any("client.ip" in event for event in arrived())

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_request_is_no_cycle(self, fails: bool) -> None:
        """Else its scope and its bodies would live until a garbage collection."""
        from logclient.integrations.starlette import RequestContext

        class Scope(dict[str, Any]): ...

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body"})
            assert not fails

        async def send(message: Any) -> None: ...

        async def request() -> Any:
            scope = Scope(type="http", method="GET", path="/", headers=[])
            with suppress(AssertionError):
                await RequestContext(answer, logger=web_apps.FINISHED)(scope, None, send)  # type: ignore[arg-type]
            return weakref.ref(scope)

        gc.disable()
        try:
            assert asyncio.run(request())() is None
        finally:
            gc.enable()

    @pytest.mark.parametrize("outermost", [False, True])
    def test_the_exception_that_the_server_logs_has_the_span(
        self, caplog: pytest.LogCaptureFixture, outermost: bool
    ) -> None:
        """It has ended by then, as that of an instrumentation around all middleware, or within ours."""
        from logclient.integrations.starlette import RequestContext

        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        from logclient.records.spans import Spans

        tracer = sdk.TracerProvider(shutdown_on_exit=False).get_tracer("tests")
        spans: list[Any] = []
        asks = Spans(service=False)
        inner = web_apps.fastapi_app()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            with tracer.start_as_current_span("request") as span:
                spans.append(span.get_span_context())
                await inner(scope, receive, send)

        def note(record: logging.LogRecord) -> bool:
            vars(record)["seen"] = logclient.bound()
            return True

        logging.getLogger("uvicorn.error").addFilter(note)
        served: Any = RequestContext(app) if outermost else app
        try:
            with web_apps.uvicorn_server(served) as port, _connected(port) as get:
                get("/fail/a")
        finally:
            logging.getLogger("uvicorn.error").removeFilter(note)
        del asks
        [found] = [vars(r)["seen"] for r in caplog.records if r.getMessage().startswith("Exception in ASGI")]
        ids = f"{spans[0].trace_id:032x}", f"{spans[0].span_id:016x}"
        assert (found["trace.id"], found["span.id"], found["url.path"]) == (*ids, "/fail/a")

    def test_twice_is_as_good_as_once(self, arrived: Any) -> None:
        """As in an application and in one that is mounted below it."""
        from logclient.integrations.starlette import RequestContext

        app = RequestContext(RequestContext(web_apps.fastapi_app()))
        with web_apps.uvicorn_server(app) as port, _connected(port) as get:
            shown = get("/pool/a").headers["x-request-id"]
        [event] = [event for event in arrived() if event["message"] == "a pool"]
        assert _fields(event) == _expected("/pool/a", shown)

    def test_websockets_have_the_fields(self, arrived: Any) -> None:
        client = pytest.importorskip("websockets.sync.client")
        with web_apps.uvicorn_server(web_apps.fastapi_app()) as port:
            url = f"ws://127.0.0.1:{port}/socket/a"
            with client.connect(url, additional_headers={REQUEST_ID: "r"}) as socket:
                assert socket.response.headers[REQUEST_ID] == "r"
                socket.send("said")
        [event] = [event for event in arrived() if event["message"] == "said"]
        expected = _expected("/socket/a", "r")
        del expected["http.request.method"]
        assert _fields(event) == expected

    @pytest.mark.parametrize("kind", ["http", "lifespan"])
    def test_a_request_within_a_request_ends_alone(self, kind: str) -> None:
        from logclient.integrations.starlette import RequestContext

        seen: list[dict[str, Any]] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(logclient.bound())
            raise LookupError

        async def run() -> None:
            outer = RequestFields("GET", "/outer", "outer", TRACEPARENT, "10.0.0.1")
            before = logclient.bound()
            with pytest.raises(LookupError):
                await RequestContext(app)({"type": kind, "path": "/inner"}, None, None)  # type: ignore[arg-type]
            assert logclient.bound() == before
            outer.end()
            assert logclient.bound() == {}

        asyncio.run(run())
        [fields] = seen
        assert fields["url.path"] == ("/inner" if kind == "http" else "/outer")
        assert ("trace.id" in fields) is (kind == "lifespan")

    def test_what_a_synchronous_view_binds_is_its_own(self, arrived: Any) -> None:
        """Starlette runs it in a thread, with a copy of the context."""
        from logclient.integrations.starlette import RequestContext

        fastapi = pytest.importorskip("fastapi")
        app = fastapi.FastAPI()

        async def bound_before() -> None:
            logclient.bind(tenant="acme")

        def view() -> None:
            logclient.bind(order=17)
            web_apps.log.info("in the view")

        app.get("/", dependencies=[fastapi.Depends(bound_before)])(view)
        app.add_middleware(RequestContext)
        logging.getLogger("uvicorn.access").setLevel("INFO")
        try:
            with web_apps.uvicorn_server(app) as port, _connected(port) as get:
                get("/")
        finally:
            logging.getLogger("uvicorn.access").setLevel("NOTSET")
        events = arrived()
        found = {event["log.logger"]: (event.get("tenant"), event.get("order")) for event in events}
        assert found == {"shop": ("acme", 17), "uvicorn.access": ("acme", None)}

    @pytest.mark.parametrize(
        ("messages", "error", "status"),
        [
            ([{"type": "http.response.start", "status": 204}, {"type": "http.response.body"}], None, 204),
            ([{"type": "http.response.start", "status": 200}], "cancelled", 200),
            ([], "cancelled", 499),
            ([{"type": "http.response.start", "status": 200}], "gone", 499),
            ([], "error", 500),
            ([], None, 500),
            ([{"type": "websocket.close"}], None, 403),
            ([{"type": "websocket.http.response.start", "status": 401}], None, 401),
            ([{"type": "websocket.accept"}, {"type": "websocket.close"}], None, 101),
        ],
    )
    def test_the_status_is_what_the_client_got(
        self, messages: list[Any], error: str | None, status: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        from logclient.integrations.starlette import RequestContext

        class User:
            is_authenticated = True

            @property
            def display_name(self) -> str:
                raise NotImplementedError

        class Route:
            path = "/{name}"

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope |= {"user": User(), "route": Route()}
            for message in messages:
                await send(message)
            web_apps.log.warning("goes on")  # as a background task does
            if error is not None:
                raise asyncio.CancelledError if error == "cancelled" else LookupError

        async def send(message: Any) -> None:
            if error == "gone":
                raise OSError

        kind = "websocket" if messages and messages[0]["type"].startswith("websocket") else "http"
        run = RequestContext(app, logger=web_apps.FINISHED)({"type": kind, "path": "/"}, None, send)  # type: ignore[arg-type]
        at_info = caplog.at_level("INFO"), caplog.at_level("INFO", web_apps.FINISHED)
        with at_info[0], at_info[1], suppress(LookupError, OSError, asyncio.CancelledError):
            asyncio.run(run)
        (found,) = [record for record in caplog.records if record.name == web_apps.FINISHED]
        assert vars(found)["http.response.status_code"] == status
        assert vars(found)["http.route"] == "/{name}" and "user.name" not in vars(found)
        if status == 204:
            assert [record.name for record in caplog.records] == [web_apps.FINISHED, "shop"]


class TestArguments:
    def test_a_logger_is_named(self) -> None:
        from logclient.integrations.starlette import RequestContext

        with pytest.raises(TypeError, match=r"^logger: must be the name of a logger, got Logger"):
            RequestContext(Thing(), logger=web_apps.log)  # type: ignore[arg-type]

    @pytest.mark.parametrize("framework", ["flask", "aiohttp", "celery"])
    def test_what_is_no_application_is_refused(self, framework: str) -> None:
        module = importlib.import_module(f"logclient.integrations.{framework}")
        install = module.init_app if framework == "flask" else module.install
        with pytest.raises(TypeError, match=r"^app: must be an? .*, got Thing"):
            install(Thing())

    @pytest.mark.parametrize("make", [logclient.Handler, Sink, LoggerFactory])
    @pytest.mark.parametrize("kind", [Thing, logclient.AsyncClient])
    def test_what_is_no_client_is_refused(self, make: Any, kind: Any) -> None:
        client = kind() if kind is Thing else kind("lumberjack://127.0.0.1:9")
        with pytest.raises(TypeError, match=f"^client: must be a logclient.Client, got {kind.__name__}"):
            make(client=client)

    @pytest.mark.parametrize("module", ["django", "aiohttp", "celery"])
    def test_missing_packages_are_named(self, module: str) -> None:
        program = (
            f"import sys\nsys.modules[{module!r}] = None\n"
            f"import logclient.integrations.{module} as front_end\n"
            "front_end.install(None)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
            capture_output=True,
            text=True,
        )
        assert done.stderr.endswith(f"MissingExtra: {module} is not installed: pip install {module}\n")


@pytest.fixture
def filter_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    def fails(record: logging.LogRecord) -> bool:
        raise ValueError("of the filter")

    logger = logging.getLogger(web_apps.FINISHED)
    logger.addFilter(fails)
    with caplog.at_level("INFO", web_apps.FINISHED):
        yield
    logger.removeFilter(fails)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_filter_that_fails_changes_no_request(
    framework: str, arrived: Any, filter_fails: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with web_apps.serving(framework) as port:
        for path, status in (("/pool/a", 200), ("/fail/b", 500), ("/nowhere", 404)):
            with _connected(port) as get:
                assert get(path).status == status
    errors = [event["error.type"] for event in arrived() if "error.type" in event]
    assert errors == ["LookupError"]
    text = "logclient: a request has no record, logger 'finished' raised ValueError: of the filter\n"
    assert capsys.readouterr().err.count(text) == 1


def test_fields_end_although_a_filter_fails(arrived: Any, filter_fails: None) -> None:
    web_apps.set_up_django()
    from django.test import Client

    for client in web_apps.flask_app().test_client(), Client(raise_request_exception=False):
        for path, status in (("/pool/a", 200), ("/fail/a", 500)):
            assert client.get(path).status_code == status
            assert logclient.bound() == {}


def test_a_path_adds_no_line_to_the_record_of_its_request(caplog: pytest.LogCaptureFixture) -> None:
    from logclient.integrations.flask import RequestContext

    def app(environ: Any, start_response: Any) -> list[bytes]:
        assert logclient.bound()["url.path"] == environ["PATH_INFO"]
        return []

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x\nERROR root: forged\x1b[2J"}
    with caplog.at_level("INFO", web_apps.FINISHED):
        RequestContext(app, logger=web_apps.FINISHED)(environ, lambda *_: None)
    (found,) = caplog.records
    assert found.getMessage().startswith(r"GET /x\x0aERROR root: forged\x1b[2J: 500 in ")


class TestHeaders:
    @pytest.mark.parametrize("given", ["x", "x" * 128, "7c9e-~/+=:!#(a,b)", "[`{|}]"])
    def test_sane_ids_are_taken(self, given: str) -> None:
        assert sane_id(given) == given

    @pytest.mark.parametrize("given", [None, "", "x" * 129, "a b", "a\n", "a\x7f", 'a"', "a'", "größe", "\t"])
    def test_other_ids_are_ignored(self, given: str | None) -> None:
        assert sane_id(given) is None

    @pytest.mark.parametrize("more", ["", "-", "-more"])
    def test_valid_traces_are_taken(self, more: str) -> None:
        version = "01" if more else "00"
        assert trace_id(f"{version}-{TRACE}-b7ad6b7169203331-01{more}") == TRACE

    @pytest.mark.parametrize(
        "given",
        [
            None,
            "",
            f"{TRACEPARENT}\n",
            f"{TRACEPARENT}-more",
            f"{TRACEPARENT},{TRACEPARENT}",
            TRACEPARENT.upper(),
            f"ff{TRACEPARENT[2:]}",
            f"00-{'0' * 32}-b7ad6b7169203331-01",
            f"00-{TRACE}-{'0' * 16}-01",
            f"00-{TRACE}-b7ad6b7169203331-0",
        ],
    )
    def test_invalid_traces_are_ignored(self, given: str | None) -> None:
        assert trace_id(given) is None

    @pytest.mark.parametrize(
        ("peer", "shown"),
        [
            ("10.0.0.7", "10.0.0.7"),
            ("2001:DB8:0::1", "2001:db8::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("testclient", None),
            ("", None),
            (None, None),
        ],
    )
    def test_addresses_are_valid_or_left_out(self, peer: str | None, shown: str | None) -> None:
        """Elasticsearch refuses a document with anything else in a field for addresses."""
        fields = RequestFields("GET", "/", None, None, peer)
        assert logclient.bound().get("client.ip") == shown
        fields.end()
