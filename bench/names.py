"""Row `names`: the cost of a request with parameter names that an attacker has chosen to be expensive.

Names that are equal in a Logjam document are renamed, see ``Alike``. A Flask application and a bare ASGI one
with the middleware get 64 KiB of such names, and 64 KiB with ordinary ones, as a query, a form and a JSON
object. Both include parsing by the framework and the document, which is taken out of the queue.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice, product
from typing import Any

from bench.harness import Contender, NotExact, Row, Target, compare, judge, lines
from bench.ours import QueueOnly

SIZE = 1 << 16
ORDINARY = [f"k{n:08d}" for n in range(SIZE)]
ALIKE = ["".join(name) for name in islice(product("._$", repeat=9), SIZE)]
MOST = 3.0  # the bound of the ratio to an ordinary request

Work = Callable[[], object]


def carried(names: Sequence[str], how: str) -> tuple[str, bytes, str]:
    """Return query, body and content type of `SIZE` bytes."""
    pairs = "&".join(f"{name}=1" for name in names)[:SIZE]
    if how == "query":
        return pairs, b"", ""
    if how == "form":
        return "", pairs.encode(), "application/x-www-form-urlencoded"
    fitting = names[: SIZE // (len(names[0]) + len('"": 1, '))]
    return "", json.dumps(dict.fromkeys(fitting, 1)).encode(), "application/json"


def wsgi_request(client: Any, names: Sequence[str], how: str) -> Work:
    """Make the work of one request to a Flask application that reads its parameters."""
    from flask import Flask, request

    from logclient.integrations.wsgi import LogjamMiddleware

    app = Flask("shop")
    app.config["MAX_FORM_MEMORY_SIZE"] = 2 * SIZE

    @app.route("/orders", methods=["GET", "POST"])
    def show() -> dict[str, int]:
        sent = request.get_json() if request.is_json else request.form or request.args
        return {"names": len(sent)}

    whole = LogjamMiddleware(app.wsgi_app, client)
    query, body, kind = carried(names, how)
    environ = {
        "REQUEST_METHOD": "POST" if body else "GET", "SCRIPT_NAME": "", "PATH_INFO": "/orders",
        "QUERY_STRING": query, "CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)),
        "SERVER_NAME": "shop.example", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "192.0.2.1", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }  # fmt: skip

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        if status != "200 OK":
            raise NotExact(status)

    def work() -> None:
        chunks: Any = whole({**environ, "wsgi.input": io.BytesIO(body)}, start)
        for _ in chunks:
            pass
        if hasattr(chunks, "close"):
            chunks.close()

    return work


def asgi_request(client: Any, names: Sequence[str], how: str, loop: asyncio.AbstractEventLoop) -> Work:
    """Make the work of one request to an ASGI application that parses its parameters."""
    from urllib.parse import parse_qsl

    from logclient.integrations.asgi import LogjamMiddleware

    query, body, kind = carried(names, how)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sent = (await receive())["body"].decode() or scope["query_string"].decode()
        found = json.loads(sent) if kind == "application/json" else dict(parse_qsl(sent))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(found)).encode()})

    whole = LogjamMiddleware(app, client)
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST" if body else "GET", "path": "/orders",
        "query_string": query.encode(), "client": ("192.0.2.1", 4711),
        "headers": [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message.get("status", 200) != 200:
            raise NotExact(str(message["status"]))

    return lambda: loop.run_until_complete(whole(dict(scope), receive, send))


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure both kinds of application with all three ways to send names."""
    import logclient

    contenders, pairs, control = [], [], None
    with ExitStack() as stack:
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        client = stack.enter_context(logclient.connect("logjam://127.0.0.1:9/shop-production"))
        parked = QueueOnly(client)
        for kind in ("wsgi", "asgi"):
            for how in ("query", "form", "json"):
                for label, names in (("ordinary", ORDINARY), ("alike", ALIKE), ("ordinary again", ORDINARY)):
                    if kind == "wsgi":
                        work = wsgi_request(client, names, how)
                    else:
                        work = asgi_request(client, names, how, loop)
                    if label != "ordinary again" or control is None:
                        contenders.append(Contender(f"{kind}, {how}, {label}", work, 1, parked.count))
                    if label == "ordinary again":
                        control = control or (contenders[-1].name, f"{kind}, {how}, ordinary")
                pairs.append((f"{kind}, {how}, alike", f"{kind}, {how}, ordinary"))
        samples = compare(contenders, rounds=rounds or (3 if quick else 11), seed=seed)
    targets = [Target(alike, ordinary, "<=", MOST) for alike, ordinary in pairs]
    return Row(
        "names",
        f"a request with {SIZE >> 10} KiB of parameter names that come out alike, beside ordinary ones",
        "us/request",
        lines(samples),
        judge(samples, targets, control),
        [f"{SIZE} bytes of query or body; names of {len(ALIKE[0])} characters"],
        {},
    )
