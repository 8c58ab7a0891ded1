"""One application in each web framework, behind a real server, for tests of the fields of requests.

Each has the same paths, with the name of the request as the last part:

* ``/all/`` logs in every way that there is
* ``/fail/`` logs and raises
* ``/stream/`` logs for each of three chunks, while the response is under way
* ``/pool/`` logs in a thread of a pool
* ``/meet/`` logs, waits for `TOGETHER` requests to be there, and logs again
* ``/visit/`` calls `visit`, with what the framework itself says about the request
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.patience import PATIENCE, wait_until

TOGETHER = 4

log = logging.getLogger("shop")
FINISHED = "finished"  # gets a record for each request, in the test of these
SKIP = ["*/unseen"]
logging.getLogger(FINISHED).setLevel("CRITICAL")


def visit(name: str, facts: dict[str, Any]) -> None:
    """What a test wants ``/visit/`` to do, in place of this."""
    log.info(f"{name} {facts}")


def _facts(method: str, path: str, headers: Any, ip: str | None) -> dict[str, Any]:
    """Return what a framework says about a request. Without an id in its headers, the server makes one."""
    given = {"http.request.id": headers["X-Request-Id"]} if "X-Request-Id" in headers else {}
    facts = {"http.request.method": method, "url.path": path, "client.ip": ip, "user.name": headers["X-User"]}
    return {**facts, **given}


def log_in_all_ways(text: str) -> None:
    import loguru
    import structlog

    log.info(text)
    log.handlers[0].client.send({"message": text})  # type: ignore[attr-defined]
    loguru.logger.info(text)
    structlog.get_logger("shop").info(text)


def fail(name: str) -> None:
    log.info(f"{name} fails")
    raise LookupError(name)


def chunks(name: str) -> Iterator[bytes]:
    for n in range(3):
        log.info(f"{name} chunk {n}")
        yield b"chunk"


async def chunks_later(name: str) -> AsyncIterator[bytes]:
    for chunk in chunks(name):
        await asyncio.sleep(0)
        yield chunk


def in_pool(name: str) -> bytes:
    log.info(f"{name} pool")
    return b"pool"


class Meeting:
    """Requests wait for each other: in threads, or in one loop."""

    def __init__(self) -> None:
        self._threads = threading.Barrier(TOGETHER)
        self._tasks = asyncio.Barrier(TOGETHER)

    def wait(self, name: str) -> None:
        log.info(f"{name} comes")
        self._threads.wait(PATIENCE)
        log.info(f"{name} goes")

    async def wait_later(self, name: str) -> None:
        log.info(f"{name} comes")
        await asyncio.wait_for(self._tasks.wait(), PATIENCE)
        log.info(f"{name} goes")


def flask_app() -> Any:
    flask = pytest.importorskip("flask")
    from logclient.integrations.flask import init_app

    app, meeting = flask.Flask("web_apps"), Meeting()

    def visited(name: str) -> str:
        request = flask.request
        visit(name, _facts(request.method, request.path, request.headers, request.remote_addr))
        return "visited"

    views = {
        "all": lambda name: log_in_all_ways(name) or "all",
        "fail": fail,
        "stream": lambda name: flask.Response(chunks(name)),
        "pool": in_pool,
        "meet": lambda name: meeting.wait(name) or "met",
        "visit": visited,
    }
    for word, view in views.items():
        app.add_url_rule(f"/{word}/<name>", word, view, methods=["GET", "POST"])
    init_app(app, logger=FINISHED, skip=SKIP)
    return app


def django_urls() -> tuple[Any, ...]:
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import path

    meeting = Meeting()

    def everything(request: Any, name: str) -> Any:
        log_in_all_ways(name)
        return HttpResponse("all")

    def failing(request: Any, name: str) -> Any:
        fail(name)

    def stream(request: Any, name: str) -> Any:
        return StreamingHttpResponse(chunks(name))

    async def stream_later(request: Any, name: str) -> Any:
        return StreamingHttpResponse(chunks_later(name))

    def pool(request: Any, name: str) -> Any:
        return HttpResponse(in_pool(name))

    def meet(request: Any, name: str) -> Any:
        meeting.wait(name)
        return HttpResponse("met")

    async def meet_later(request: Any, name: str) -> Any:
        await meeting.wait_later(name)
        return HttpResponse("met")

    def visited(request: Any, name: str) -> Any:
        visit(name, _facts(request.method, request.path, request.headers, request.META["REMOTE_ADDR"]))
        return HttpResponse("visited")

    async def visited_later(request: Any, name: str) -> Any:
        return visited(request, name)

    views = {"all": everything, "fail": failing, "stream": stream, "pool": pool, "meet": meet}
    views["visit"] = visited
    later = {"stream": stream_later, "meet": meet_later, "visit": visited_later}
    return (
        *(path(f"{word}/<name>", view) for word, view in views.items()),
        *(path(f"later/{word}/<name>", view) for word, view in later.items()),
    )


def set_up_django() -> None:
    """Configure Django, for the whole process."""
    django = pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"],
            LOGCLIENT_REQUEST_LOGGER=FINISHED,
            LOGCLIENT_REQUEST_SKIP=SKIP,
            LOGGING_CONFIG=None,
            MIDDLEWARE=["logclient.integrations.django.RequestContext"],
            SECRET_KEY="no secret",
        )
        django.setup()
        settings.ROOT_URLCONF = django_urls()


def django_wsgi_app() -> Any:
    set_up_django()
    from django.core.handlers.wsgi import WSGIHandler

    return WSGIHandler()


def django_asgi_app() -> Any:
    set_up_django()
    from django.core.handlers.asgi import ASGIHandler

    return ASGIHandler()


def fastapi_app() -> Any:
    fastapi = pytest.importorskip("fastapi")
    from fastapi.responses import PlainTextResponse, StreamingResponse

    from logclient.integrations.starlette import RequestContext

    app, meeting = fastapi.FastAPI(), Meeting()

    async def everything(name: str) -> Any:
        log_in_all_ways(name)
        return PlainTextResponse("all")

    async def failing(name: str) -> Any:
        fail(name)

    async def stream(name: str) -> Any:
        return StreamingResponse(chunks_later(name))

    def pool(name: str) -> Any:
        return PlainTextResponse(in_pool(name))

    async def meet(name: str) -> Any:
        await meeting.wait_later(name)
        return PlainTextResponse("met")

    async def visited(request: Any, name: str) -> Any:
        path, ip = request.scope["path"], request.client.host
        visit(name, _facts(request.method, path, request.headers, ip))
        return PlainTextResponse("visited")

    async def socket(websocket: Any, name: str) -> None:
        await websocket.accept()
        log.info(await websocket.receive_text())
        await websocket.close()

    visited.__annotations__["request"] = fastapi.Request
    app.api_route("/visit/{name}", methods=["GET", "POST"], response_model=None)(visited)
    socket.__annotations__["websocket"] = fastapi.WebSocket
    for view in (everything, failing, stream, pool, meet):
        word = {everything: "all", failing: "fail"}.get(view, view.__name__)
        app.get(f"/{word}/{{name}}", response_model=None)(view)
    app.websocket("/socket/{name}")(socket)
    app.add_middleware(RequestContext, logger=FINISHED, skip=SKIP)
    return app


def aiohttp_app() -> Any:
    web = pytest.importorskip("aiohttp.web")
    from logclient.integrations.aiohttp import install

    app, meeting = web.Application(), Meeting()

    def routed(view: Callable[[str], Any]) -> Callable[[Any], Any]:
        async def handle(request: Any) -> Any:
            return web.Response(body=await view(request.match_info["name"]) or b"")

        return handle

    async def everything(name: str) -> None:
        log_in_all_ways(name)

    async def failing(name: str) -> None:
        fail(name)

    async def pool(name: str) -> bytes:
        return await asyncio.to_thread(in_pool, name)

    async def stream(request: Any) -> Any:
        response = web.StreamResponse()
        await response.prepare(request)
        async for chunk in chunks_later(request.match_info["name"]):
            await response.write(chunk)
        return response

    async def visited(request: Any) -> Any:
        visit(
            request.match_info["name"],
            _facts(request.method, request.path, request.headers, request.remote),
        )
        return web.Response(text="visited")

    views = {"all": everything, "fail": failing, "pool": pool, "meet": meeting.wait_later}
    app.add_routes([web.get(f"/{word}/{{name}}", routed(view)) for word, view in views.items()])
    app.add_routes([web.get("/stream/{name}", stream), web.route("*", "/visit/{name}", visited)])
    install(app, logger=FINISHED, skip=SKIP)
    return app


@contextmanager
def threaded_wsgi_server(app: Any) -> Iterator[int]:
    """Serve a WSGI application by a thread for each connection."""
    serving = pytest.importorskip("werkzeug.serving")

    class Quiet(serving.WSGIRequestHandler):  # type: ignore[misc, name-defined]
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None: ...

    server = serving.make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


@contextmanager
def uvicorn_server(app: Any) -> Iterator[int]:
    uvicorn = pytest.importorskip("uvicorn")
    config = uvicorn.Config(
        app, "127.0.0.1", 0, log_config=None, lifespan="off", http="h11", ws="websockets-sansio"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "uvicorn")
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@contextmanager
def aiohttp_server(app: Any) -> Iterator[int]:
    from aiohttp import web

    ports: list[int] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield wait_until(lambda: ports, "aiohttp")[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        loop.close()


@contextmanager
def serving(framework: str) -> Iterator[int]:
    """Serve the application of a framework; yield the port."""
    app, server = {
        "flask": (flask_app, threaded_wsgi_server),
        "django": (django_wsgi_app, threaded_wsgi_server),
        "django-asgi": (django_asgi_app, uvicorn_server),
        "fastapi": (fastapi_app, uvicorn_server),
        "aiohttp": (aiohttp_app, aiohttp_server),
    }[framework]
    with server(app()) as port:
        yield port
