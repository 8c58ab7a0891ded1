"""WSGI and ASGI middleware over real HTTP: one complete document per request, none mixed up."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import http.client
import itertools
import json
import logging
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest

from logclient.integrations import asgi, wsgi
from logclient.integrations.http import wait_seconds
from logclient.logjam import Agent, current
from tests.logjam.asgi_server import serve
from tests.oracle.logjam_document import judge
from tests.support import agent_handler, missing
from tests.support.patience import PATIENCE

APP = "shop-production"
CLIENTS = 8
EACH = 25

log = logging.Logger("shop.web", logging.DEBUG)


class Sink:
    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def __call__(self, body: bytes, level: int, kind: int) -> None:
        made, wrong = judge(body, kind >> 4, now=time.time())
        self.made.append(made if not wrong else {"wrong": wrong, **made})

    def wait(self, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE
        while len(self.made) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(self.made) == count
        assert [made["wrong"] for made in self.made if "wrong" in made] == []
        return self.made

    @property
    def one(self) -> dict[str, Any]:
        return self.wait(1)[0]


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def agent(sink: Sink) -> Iterator[Agent]:
    agent = Agent(sink, APP)
    handler = agent_handler(agent)
    log.addHandler(handler)
    yield agent
    log.removeHandler(handler)


def texts(made: dict[str, Any]) -> list[str]:
    return [line[2] for line in made.get("lines", [])]


def get(port: int, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def expected(marker: str, kind: str) -> list[str]:
    lines = [f"{marker} step {n}" for n in range(5)] + [f"{marker} thread {n}" for n in range(3)]
    if kind == "stream":
        lines += [f"{marker} chunk {n}" for n in range(4)]
    return lines


def run_load(port: int, kinds: tuple[str, ...]) -> dict[str, tuple[str, int, http.client.HTTPMessage]]:
    """Make requests with many clients at once; return marker -> (kind, status, headers)."""
    found: dict[str, tuple[str, int, http.client.HTTPMessage]] = {}

    def client(number: int) -> None:
        rng = random.Random(number)
        for n in range(EACH):
            kind, marker = rng.choice(kinds), f"m{number}x{n}"
            status, headers, _ = get(port, f"/{kind}/{marker}?m={marker}", **{"X-Marker": marker})
            found[marker] = (kind, status, headers)

    with ThreadPoolExecutor(CLIENTS) as executor:
        for done in [executor.submit(client, n) for n in range(CLIENTS)]:
            done.result()
    assert len(found) == CLIENTS * EACH
    return found


def assert_documents(
    made: list[dict[str, Any]],
    found: dict[str, tuple[str, int, http.client.HTTPMessage]],
    actions: dict[str, str],
) -> None:
    assert len({one["request_id"] for one in made}) == len(found)
    for one in made:
        marker = one["request_info"]["headers"]["X-Marker"]
        kind, status, headers = found.pop(marker)
        lines = texts(one)
        if kind == "fail":
            assert "Traceback" in lines.pop()
            assert one["exceptions"] == ["ZeroDivisionError"] and one["severity"] == 3
        assert lines == expected(marker, kind)
        assert one["code"] == status == (500 if kind == "fail" else 201)
        assert one["action"] == actions[kind]
        assert one["request_info"]["url"] == f"/{kind}/{marker}?m={marker}"
        assert one["request_info"]["query_parameters"] == {"m": marker}
        if kind != "fail":
            assert headers["X-Logjam-Request-Id"] == f"{APP}-{one['request_id']}"
        assert one["work_calls"] == 1
    assert found == {}


def log_steps(marker: str) -> None:
    """Log what each view logs: its own lines, and those of a thread with its context."""
    request = current()
    assert request is not None
    with request.measure("work"):
        for n in range(5):
            log.info("%s step %d", marker, n)
            time.sleep(0)

    def more() -> None:
        for n in range(3):
            log.warning("%s thread %d", marker, n)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(more,))
    thread.start()
    thread.join()


def action_for_callers() -> str | None:
    """Return the action that a request made now would name as its caller's."""
    request = current()
    assert request is not None
    return request.caller_headers().get("X-Logjam-Action")


# -- WSGI


@pytest.fixture
def flask_port(agent: Agent) -> Iterator[int]:
    try:
        from flask import Blueprint, Flask, Response, request
        from werkzeug.serving import WSGIRequestHandler, make_server
    except ImportError:
        missing("flask is not installed")

    app = Flask("shop")
    orders = Blueprint("orders", "orders")

    @orders.get("/show/<marker>")
    def show(marker: str) -> Any:
        log_steps(marker)
        assert action_for_callers() == "orders#show"  # the document gets it at the response
        return "fine", 201

    @app.get("/stream/<marker>")
    def stream(marker: str) -> Any:
        log_steps(marker)

        def chunks() -> Iterator[str]:
            for n in range(4):
                log.info("%s chunk %d", marker, n)
                yield f"{marker} {n}\n"
                time.sleep(0)

        return Response(chunks(), 201)

    @app.get("/fail/<marker>")
    def fail(marker: str) -> Any:
        log_steps(marker)
        return 1 / 0

    @app.post("/form")
    def form() -> Any:
        return request.form["name"]

    app.register_blueprint(orders)
    # Flask answers 500 itself and logs the exception.
    app.logger.handlers = [agent_handler(agent)]
    app.logger.propagate = False
    app.wsgi_app = wsgi.LogjamMiddleware(app.wsgi_app, agent)  # type: ignore[method-assign]

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()
    app.logger.handlers = []  # it is that of every test which logs as the shop
    app.logger.propagate = True


def test_flask_under_load_has_one_document_per_request(agent: Agent, sink: Sink, flask_port: int) -> None:
    found = run_load(flask_port, ("show", "stream", "fail"))
    made = sink.wait(CLIENTS * EACH)
    assert_documents(made, found, {"show": "orders#show", "stream": "app#stream", "fail": "app#fail"})
    assert agent.failed == 0


def test_flask_form_is_masked_and_unknown_path_is_404(agent: Agent, sink: Sink, flask_port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", flask_port, timeout=PATIENCE)
    connection.request(
        "POST", "/form", "name=jo&password=hunter2", {"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert connection.getresponse().read() == b"jo"
    connection.close()
    assert sink.one["request_info"]["body_parameters"] == {"name": "jo", "password": "[FILTERED]"}
    assert sink.one["ip"] == "127.0.0.1"
    assert get(flask_port, "/nowhere/17")[0] == 404
    assert [(one["action"], one["code"]) for one in sink.wait(2)][1] == ("Unknown#get", 404)


def environ(**more: Any) -> dict[str, Any]:
    plain = {"REQUEST_METHOD": "GET", "SCRIPT_NAME": "/s", "PATH_INFO": "/p\xc3\xa4", "QUERY_STRING": ""}
    return {**plain, "REMOTE_ADDR": "10.0.0.1", **more}


class Started:
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[str, str]]]] = []

    def __call__(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if exc_info is not None and self.calls:
            raise exc_info[1]
        self.calls.append((status, headers))
        return lambda data: None


def test_wsgi_list_is_passed_on_unchanged(agent: Agent, sink: Sink) -> None:
    body = [b"x"]

    def app(environ: Any, start: Any) -> Any:
        start("204 No Content", [("A", "b"), ("x-logjam-request-id", "of a service that was asked")])
        assert current() is not None
        return body

    started = Started()
    assert wsgi.LogjamMiddleware(app, agent)(environ(), started) is body
    assert current() is None
    made = sink.one
    assert (made["code"], made["action"], made["ip"]) == (204, "Unknown#get", "10.0.0.1")
    assert made["request_info"]["url"] == "/s/pä"
    assert started.calls == [
        ("204 No Content", [("A", "b"), ("X-Logjam-Request-Id", f"{APP}-{made['request_id']}")])
    ]


def test_wsgi_request_takes_headers_of_the_caller(agent: Agent, sink: Sink) -> None:
    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])
        return []

    since = time.time() - 3.0
    headers = {
        "HTTP_X_LOGJAM_CALLER_ID": f"web-production-{'ab' * 16}",
        "HTTP_X_LOGJAM_CALLER_ACTION": "Web#index",
        "HTTP_TRACEPARENT": f"00-{'cd' * 16}-{'12' * 8}-01",
        "HTTP_X_REQUEST_START": f"t={since:.3f}",
        "HTTP_USER_AGENT": "test",
        "HTTP_AUTHORIZATION": "Basic hunter2",
        "CONTENT_TYPE": "text/plain",
    }
    wsgi.LogjamMiddleware(app, agent)(environ(**headers), Started())
    made = sink.one
    assert (made["caller_id"], made["caller_action"]) == (f"web-production-{'ab' * 16}", "Web#index")
    assert made["trace_id"] == "cd" * 16
    assert 2900 <= made["wait_time"] <= made["total_time"]
    assert abs(made["started_ms"] / 1000 - since) < 1.0
    found = made["request_info"]["headers"]
    assert (found["User-Agent"], found["Content-Type"]) == ("test", "text/plain")
    assert found["Authorization"] == "[FILTERED]"


@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{'0' * 32}-{'12' * 8}-01",
        f"00-{'cd' * 16}-{'0' * 16}-01",
        f"ff-{'cd' * 16}-{'12' * 8}-01",
        f"00-{'cd' * 16}-{'12' * 8}-01-more",
    ],
)
def test_an_invalid_trace_is_not_taken(traceparent: str, agent: Agent, sink: Sink) -> None:
    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])
        return []

    headers = {"HTTP_TRACEPARENT": traceparent, "HTTP_X_LOGJAM_TRACE_ID": "ef" * 16}
    wsgi.LogjamMiddleware(app, agent)(environ(**headers), Started())
    assert sink.one["trace_id"] == "ef" * 16


@pytest.mark.parametrize(
    ("header", "waited"),
    [
        ("t=1500000000.5", 9.5), ("1500000000.5", 9.5), ("1500000001000", 9.0), ("t=1500000001000000", 9.0),
        ("1500000011", 0.0), ("1499990000", 0.0), ("soon", 0.0), ("", 0.0), (None, 0.0), ("9" * 400, 0.0),
        ("nan", 0.0), ("-5", 0.0),
    ],
)  # fmt: skip
def test_wait_seconds_of_every_header_format(header: str | None, waited: float) -> None:
    assert wait_seconds(header, 1500000010.0) == pytest.approx(waited)


@pytest.mark.parametrize("set_by", ["application", "callable", "broken callable"])
def test_action_is_set_by_application_or_callable(agent: Agent, sink: Sink, set_by: str) -> None:
    def app(environ: Any, start: Any) -> Any:
        if set_by == "application":
            request = current()
            assert request is not None
            request.action = "Shop#set"
        start("200 OK", [])
        return []

    def name(environ: dict[str, Any]) -> str:
        if set_by == "broken callable":
            raise KeyError
        return f"Shop#{environ['REQUEST_METHOD']}"

    wsgi.LogjamMiddleware(app, agent, action=name)(environ(), Started())
    wanted = {"application": "Shop#set", "callable": "Shop#GET", "broken callable": "Unknown#get"}
    assert sink.one["action"] == wanted[set_by]


@pytest.mark.parametrize("where", ["call", "first chunk", "second chunk", "close"])
def test_wsgi_exceptions_pass_through(agent: Agent, sink: Sink, where: str) -> None:
    class Response:
        def __init__(self) -> None:
            self.n = 0

        def __iter__(self) -> Iterator[bytes]:
            return self

        def __next__(self) -> bytes:
            self.n += 1
            if where == "first chunk" or (where == "second chunk" and self.n == 2):
                raise LookupError("why")
            if self.n > 2:
                raise StopIteration
            return b"x"

        def close(self) -> None:
            log.info("closed")
            if where == "close":
                raise LookupError("why")

    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])
        if where == "call":
            raise LookupError("why")
        return Response()

    with pytest.raises(LookupError, match="why"):
        chunks: Any = wsgi.LogjamMiddleware(app, agent)(environ(), Started())
        try:
            for _ in chunks:
                pass
        finally:
            chunks.close()
    made = sink.one
    assert (made["exceptions"], made["severity"]) == (["LookupError"], 3)
    assert made["code"] == (500 if where in ("call", "first chunk") else 200)
    assert ("closed" in texts(made)) == (where != "call")


def test_wsgi_error_page_shows_its_exception(agent: Agent, sink: Sink) -> None:
    """An application that turns its exception into a page passes it to start_response."""

    def app(environ: Any, start: Any) -> Any:
        try:
            raise LookupError("why")
        except LookupError as error:
            start("503 Sorry", [], (type(error), error, error.__traceback__))
        return []

    wsgi.LogjamMiddleware(app, agent)(environ(), Started())
    assert (sink.one["code"], sink.one["exceptions"], sink.one["severity"]) == (503, ["LookupError"], 3)


@pytest.mark.parametrize("read", [0, 2])
def test_wsgi_client_that_leaves_is_recorded(agent: Agent, sink: Sink, read: int) -> None:
    def app(environ: Any, start: Any) -> Iterator[bytes]:
        start("200 OK", [])
        try:
            for n in range(10):
                log.info("chunk %d", n)
                yield b"x"
        finally:
            log.info("end")

    chunks: Any = wsgi.LogjamMiddleware(app, agent)(environ(), Started())
    for _ in range(read):
        next(chunks)
        assert current() is None  # the request is inactive between two chunks
    chunks.close()
    chunks.close()
    made = sink.one
    assert made["client_disconnected"] is True
    assert (made["code"], made["severity"]) == (200 if read else 499, 2)
    ends = ["chunk 0", "chunk 1"] if read else []
    assert [text for text in texts(made) if text.startswith("chunk")] == ends
    assert "exceptions" not in made


def test_wsgi_response_without_close_ends_when_collected(agent: Agent, sink: Sink) -> None:
    def app(environ: Any, start: Any) -> Iterator[bytes]:
        start("200 OK", [])
        yield b"x"

    chunks = wsgi.LogjamMiddleware(app, agent)(environ(), Started())
    assert list(chunks) == [b"x"]
    assert sink.made == []
    del chunks
    gc.collect()
    assert sink.one["code"] == 200


def test_middleware_never_fails_the_application(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(body: bytes, level: int, kind: int) -> None:
        raise OSError("full")

    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])
        return [b"fine"]

    agent = Agent(broken, APP)
    middleware = wsgi.LogjamMiddleware(app, agent)
    assert middleware(environ(), Started()) == [b"fine"]
    assert middleware(environ(QUERY_STRING=5, PATH_INFO=b"x"), Started()) == [b"fine"]
    assert agent.failed == 2


# -- ASGI


async def read_all(port: int, path: str, *, leave_after: int | None = None, headers: str = "") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode())
    try:
        return await reader.read() if leave_after is None else await reader.readexactly(leave_after)
    finally:
        writer.close()


async def views(scope: Any, receive: Any, send: Any) -> None:
    _, kind, marker = scope["path"].split("/")
    scope["endpoint"] = {"show": show_view, "fail": functools.partial(fail_view), "stream": StreamView}[kind]
    await asyncio.sleep(0)
    request = current()
    assert request is not None
    with request.measure("work"):
        for n in range(5):
            log.info("%s step %d", marker, n)
            await asyncio.sleep(0)

    def more() -> None:
        for n in range(3):
            log.warning("%s thread %d", marker, n)

    await asyncio.to_thread(more)
    assert kind != "show" or action_for_callers() == f"{__name__}#show_view"
    if kind == "fail":
        raise ZeroDivisionError
    await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
    if kind == "stream":
        for n in range(4):
            log.info("%s chunk %d", marker, n)
            await send({"type": "http.response.body", "body": f"{marker} {n}\n".encode(), "more_body": True})
    await send({"type": "http.response.body", "body": marker.encode()})


async def show_view() -> None: ...


async def fail_view() -> None: ...


class StreamView:
    pass


def test_asgi_under_load_has_one_document_per_request(agent: Agent, sink: Sink) -> None:
    async def main() -> dict[str, tuple[str, int, http.client.HTTPMessage]]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            try:
                await asgi.LogjamMiddleware(views, agent)(scope, receive, send)
            except ZeroDivisionError:  # what a server does
                await send({"type": "http.response.start", "status": 500})
                await send({"type": "http.response.body"})

        async with serve(app) as (port, raised):
            found = await asyncio.to_thread(run_load, port, ("show", "stream", "fail"))
        assert raised == []
        return found

    found = asyncio.run(main())
    name = __name__
    assert_documents(
        sink.wait(CLIENTS * EACH),
        found,
        {"show": f"{name}#show_view", "fail": f"{name}#fail_view", "stream": f"{name}::StreamView#get"},
    )
    assert agent.failed == 0


def run_asgi(app: Callable[..., Any], agent: Agent, path: str = "/", **options: Any) -> list[BaseException]:
    """Make one request and return what the application raised."""

    async def main() -> list[BaseException]:
        async with serve(asgi.LogjamMiddleware(app, agent)) as (port, raised):
            await read_all(port, path, **options)
        return raised

    return asyncio.run(main())


def test_asgi_document_has_masked_request_info(agent: Agent, sink: Sink) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404})
        await send({"type": "http.response.body"})

    headers = "authorization: hunter2\r\nx-marker: 1\r\nX-Marker: 2\r\nX-Logjam-Action: Web#index\r\n"
    assert run_asgi(app, agent, "/a%20b?x=1&x=2&token=hunter2", headers=headers) == []
    made = sink.one
    info = made["request_info"]
    assert (made["code"], made["action"], made["caller_action"]) == (404, "Unknown#get", "Web#index")
    assert info["url"] == "/a%20b?x=1&x=2&token=[FILTERED]"
    assert info["query_parameters"] == {"x": ["1", "2"], "token": "[FILTERED]"}
    assert (info["headers"]["X-Marker"], info["headers"]["Authorization"]) == ("1, 2", "[FILTERED]")
    assert made["ip"] == "127.0.0.1"
    assert "hunter2" not in json.dumps(made)


# -- hostile parameter names

SIZE = 1 << 16
ORDINARY = [f"k{n:08d}" for n in range(SIZE)]
CHOSEN = {
    "alike": ["".join(name) for name in itertools.islice(itertools.product("._$", repeat=9), SIZE)],
    "one after the other": ["x" + "_" * (n // 9) + ".$_"[n % 3] * (n % 9) for n in range(SIZE)],
    "numbered": [*(f"x_{n}" for n in range(4000)), *("x" + "".join(n) for n in product("._$", repeat=9))],
    "hidden": [f"tok%65n{n}" for n in range(SIZE)],
}


def count_lines(work: Callable[[], object]) -> int:
    """Count the lines of Python that are run."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def wsgi_request(agent: Agent, names: list[str], carried: str) -> None:
    """Make a request with these names in its query, or in a form that werkzeug has parsed."""
    pairs = "&".join(f"{name}=1" for name in names)[:SIZE]
    request = environ(QUERY_STRING=pairs) if carried == "query" else environ()
    if carried == "form":
        form = types.SimpleNamespace(lists=lambda: [(name, ["1"]) for name in names[: SIZE // 12]])
        request["werkzeug.request"] = types.SimpleNamespace(form=form, endpoint="shop.show")
    app = wsgi.LogjamMiddleware(lambda environ, start: [start("200 OK", []), b"x"][1:], agent)
    assert app(request, Started()) == [b"x"]


def asgi_request(agent: Agent, names: list[str], carried: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    async def nothing(message: Any = None) -> Any: ...

    pairs = "&".join(f"{name}=1" for name in names)[:SIZE].encode()
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": pairs, "headers": []}
    asyncio.run(asgi.LogjamMiddleware(app, agent)(scope, nothing, nothing))


@pytest.mark.parametrize("names", CHOSEN)
@pytest.mark.parametrize(
    ("request_with", "carried"), [(wsgi_request, "query"), (wsgi_request, "form"), (asgi_request, "query")]
)
def test_hostile_parameter_names_cost_no_more_than_others(
    agent: Agent, sink: Sink, request_with: Callable[..., None], carried: str, names: str
) -> None:
    ordinary = count_lines(lambda: request_with(agent, ORDINARY, carried))
    chosen = count_lines(lambda: request_with(agent, CHOSEN[names], carried))
    assert chosen <= 3 * ordinary
    sink.wait(2)


def test_repeated_header_is_joined(agent: Agent, sink: Sink) -> None:
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-marker", b"1")] * 3}

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    asyncio.run(asgi.LogjamMiddleware(app, agent)(scope, app, app))  # type: ignore[arg-type]
    assert sink.one["request_info"]["headers"]["X-Marker"] == "1, 1, 1"


def test_asgi_background_task_is_not_in_the_time(agent: Agent, sink: Sink) -> None:
    took: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})
        request = current()
        assert request is not None and request._took is not None
        took.append(request._took)
        await asyncio.sleep(0.01)
        log.info("afterwards")

    assert run_asgi(app, agent) == []
    assert texts(sink.one) == ["afterwards"]
    assert sink.one["total_time"] == pytest.approx(took[0] * 1000, abs=0.002)


@pytest.mark.parametrize("noticed_by", ["receive", "send"])
def test_asgi_client_that_leaves_is_recorded(agent: Agent, sink: Sink, noticed_by: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"x" * 500, "more_body": True})
        message = await receive() if noticed_by == "receive" else {}
        while noticed_by == "send":
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0)
        assert message["type"] == "http.disconnect"

    raised = run_asgi(app, agent, leave_after=50)
    made = sink.one
    assert [type(error) for error in raised] == ([] if noticed_by == "receive" else [ConnectionResetError])
    assert (made["code"], made["severity"], made["client_disconnected"]) == (200, 2, True)
    assert "exceptions" not in made
    assert made.get("soft_exceptions", []) == ([] if noticed_by == "receive" else ["ConnectionResetError"])


@pytest.mark.parametrize("gone", [True, False])
def test_asgi_disconnect_before_the_response_is_recorded(agent: Agent, sink: Sink, gone: bool) -> None:
    """As with uvicorn, sending never raises, and a disconnect is also reported after the response."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        if gone:
            await receive()
        await send({"type": "http.response.body"})
        await receive()

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(asgi.LogjamMiddleware(app, agent)(scope, receive, send))
    assert sink.one.get("client_disconnected", False) is gone


def test_asgi_cancelled_request_is_code_499(agent: Agent, sink: Sink) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        log.info("begun")
        await asyncio.Event().wait()

    async def main() -> None:
        middleware = asgi.LogjamMiddleware(app, agent)
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        task = asyncio.create_task(middleware(scope, None, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    made = sink.one
    assert (made["code"], made["severity"]) == (499, 2)
    assert made["soft_exceptions"] == ["asyncio::exceptions::CancelledError"]
    assert texts(made)[0] == "begun"


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_asgi_other_scopes_pass_through(agent: Agent, sink: Sink, kind: str) -> None:
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given)
        assert current() is None

    given = ({"type": kind}, object(), object())
    asyncio.run(asgi.LogjamMiddleware(app, agent)(*given))  # type: ignore[arg-type]
    assert all(a is b for a, b in zip(seen, given, strict=True))
    assert sink.made == []


def test_asgi_invalid_scope_is_passed_on_and_counted(
    agent: Agent, sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "headers": 5}
    asyncio.run(asgi.LogjamMiddleware(app, agent)(scope, None, None))  # type: ignore[arg-type]
    assert seen == [scope]
    assert agent.failed == 1
