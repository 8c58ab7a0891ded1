"""Row `web`: the additional cost of a request with the Logjam middleware, against the same lines to a file.

A Flask and a FastAPI application are called like by their servers, but without a socket, so that client and
server cost nothing. Each request logs five lines. `nothing` has a handler that discards them, `file` is the
standard library's `StreamHandler` with the usual format, writing to the null device. Ours makes a document of
each request, which is taken out of the queue (`queued`), or shipped to our device in another process and
acknowledged (`shipped`).
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from bench.harness import CLOCKS, Contender, NotExact, Row, Spread, claim, compare, judge, lines
from bench.ours import QueueOnly

REQUESTS = 50  # in each unit of timed work
LINES = 5
APP = "shop-production"
TARGET = "number=17&page=2&sort=price"
HEADERS = {
    "Host": "shop.example",
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Encoding": "gzip, deflate, br",
    "Cookie": "session=0123456789abcdef0123456789abcdef; theme=dark",
    "X-Forwarded-For": "192.0.2.17",
}

Work = Callable[[], object]


def _flask(log: logging.Logger, wrap: Callable[[Any], Any] = lambda app: app) -> Work:
    from flask import Flask

    app = Flask("shop")

    @app.get("/orders/<number>")
    def show(number: str) -> dict[str, str]:
        for n in range(LINES):
            log.info("order %s: step %d is done", number, n)
        return {"order": number}

    whole = wrap(app.wsgi_app)
    environ = {
        "REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": "/orders/17", "QUERY_STRING": TARGET,
        "SERVER_NAME": "shop.example", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "192.0.2.1", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr, "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False,
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in HEADERS.items()},
    }  # fmt: skip

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        if status != "200 OK":
            raise NotExact(status)

    def work() -> None:
        for _ in range(REQUESTS):
            chunks = whole(dict(environ), start)
            for _ in chunks:
                pass
            if hasattr(chunks, "close"):
                chunks.close()

    return work


def _fastapi(
    log: logging.Logger,
    wrap: Callable[[Any], Any] = lambda app: app,
    *,
    loop: asyncio.AbstractEventLoop,
) -> Work:
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/orders/{number}")
    async def show(number: str) -> dict[str, str]:
        for n in range(LINES):
            log.info("order %s: step %d is done", number, n)
        return {"order": number}

    whole = wrap(app)
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
        "method": "GET", "scheme": "http", "path": "/orders/17", "raw_path": b"/orders/17",
        "query_string": TARGET.encode(), "root_path": "", "client": ("192.0.2.1", 4711),
        "server": ("shop.example", 80),
        "headers": [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message.get("status", 200) != 200:
            raise NotExact(str(message["status"]))

    async def all_requests() -> None:
        for _ in range(REQUESTS):
            await whole(dict(scope), receive, send)

    return lambda: loop.run_until_complete(all_requests())


class _Nothing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        pass


def _logger(handler: logging.Handler) -> logging.Logger:
    log = logging.Logger("shop", logging.INFO)
    log.addHandler(handler)
    return log


@contextmanager
def _device() -> Iterator[str]:
    """Run our device in another process without a capture; yield its URL."""
    code = (
        "from logclient.testing.logjam import Collector\n"
        "with Collector(push_port=None, publish_port=None) as device:\n"
        "    print(device.port, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        yield f"logjam://127.0.0.1:{int(child.stdout.readline())}/{APP}"
        child.stdin.write("\n")


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure both frameworks, with five lines a request."""
    import logclient
    from logclient.integrations import asgi, wsgi

    def with_ours(application: Callable[..., Work], middleware: Any, client: Any) -> Work:
        return application(_logger(logclient.Handler(client=client)), lambda app: middleware(app, client))

    with ExitStack() as stack:
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        file = logging.StreamHandler(stack.enter_context(open(os.devnull, "w")))
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        url = stack.enter_context(_device())
        contenders = []
        for name, application, middleware in (
            ("flask", _flask, wsgi.LogjamMiddleware),
            ("fastapi", partial(_fastapi, loop=loop), asgi.LogjamMiddleware),
        ):
            bare = [application(_logger(_Nothing())) for _ in range(2)]
            parked = stack.enter_context(logclient.connect(f"logjam://127.0.0.1:9/{APP}"))
            client = stack.enter_context(logclient.connect(url))
            contenders += [
                Contender(f"{name}, nothing", bare[0], REQUESTS),
                Contender(f"{name}, nothing (again)", bare[1], REQUESTS),
                Contender(f"{name}, file", application(_logger(file)), REQUESTS),
                Contender(
                    f"{name}, queued",
                    with_ours(application, middleware, parked),
                    REQUESTS,
                    QueueOnly(parked).count,
                ),
                Contender(
                    f"{name}, shipped",
                    with_ours(application, middleware, client),
                    REQUESTS,
                    _acknowledged(client),
                ),
            ]
            contenders[-2].work()
            size = len(QueueOnly(parked).take()[-1])
        samples = compare(contenders, rounds=rounds or (3 if quick else 15), seed=seed)
    said = []
    for name in ("flask", "fastapi"):
        said += judge(samples, [], (f"{name}, nothing (again)", f"{name}, nothing"))
        for what, clock in (("file", "cpu"), ("queued", "cpu"), ("shipped", "process")):
            more = zip(samples[f"{name}, {what}"][clock], samples[f"{name}, nothing"][clock], strict=True)
            said.append(
                claim(f"{name}: {what} - nothing, us, {CLOCKS[clock]}", Spread.of([a - b for a, b in more]))
            )
    return Row(
        "web",
        "a request with the Logjam middleware, beside the same without",
        "us/request",
        lines(samples),
        said,
        [f"{LINES} lines and {len(HEADERS)} headers a request; a document of {size} bytes"],
        {},
    )


def _acknowledged(client: Any) -> Callable[[], int]:
    """Make a function that returns the number of documents acknowledged since its last call."""
    before = 0

    def count() -> int:
        nonlocal before
        client.flush(30.0)
        acked = client.stats().acked
        new, before = acked - before, acked
        return new

    return count
