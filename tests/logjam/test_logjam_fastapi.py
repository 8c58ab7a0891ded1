"""A FastAPI application behind uvicorn under concurrent load: one document per request, none mixed up."""

import asyncio
import http.client
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from logclient.integrations.asgi import LogjamMiddleware
from logclient.logjam import Agent, current
from tests.oracle.logjam_document import judge
from tests.support import agent_handler, need
from tests.support.patience import PATIENCE

fastapi = need("fastapi")
uvicorn = need("uvicorn")

CLIENTS = 8
EACH = 25

log = logging.Logger("shop.web", logging.DEBUG)


def application() -> Any:
    app = fastapi.FastAPI()
    orders = fastapi.APIRouter(prefix="/orders")

    @orders.get("/coroutine/{marker}")
    async def coroutine(marker: str, background: fastapi.BackgroundTasks) -> str:
        for n in range(5):
            log.info("%s %d", marker, n)
            await asyncio.sleep(0)
        background.add_task(log.info, "%s background", marker)
        return marker

    @orders.get("/thread/{marker}")
    def thread(marker: str) -> str:
        for n in range(5):
            log.info("%s %d", marker, n)
            time.sleep(0)
        return marker

    @app.get("/stream/{marker}")
    async def stream(marker: str) -> Any:
        def chunks() -> Iterator[str]:
            for n in range(5):
                log.info("%s %d", marker, n)
                yield marker

        return fastapi.responses.StreamingResponse(chunks())

    @app.get("/fail/{marker}")
    async def fail(marker: str) -> None:
        for n in range(5):
            log.info("%s %d", marker, n)
        raise ZeroDivisionError

    @app.get("/endless/{marker}")
    async def endless(marker: str) -> Any:
        async def chunks() -> Any:
            while True:
                yield b"x" * 1000
                await asyncio.sleep(0.001)

        return fastapi.responses.StreamingResponse(chunks())

    @app.middleware("http")
    async def log_first(request: Any, call_next: Any) -> Any:
        log.info("%s first", request.url.path.rpartition("/")[2])
        return await call_next(request)

    app.include_router(orders)
    return app


@pytest.mark.slow
def test_fastapi_under_load_has_one_document_per_request() -> None:
    made: list[dict[str, Any]] = []
    wrong: list[str] = []

    def sink(body: bytes, level: int, kind: int) -> None:
        document, rules = judge(body, kind >> 4, now=time.time())
        wrong.extend(rules)
        made.append(document)

    agent = Agent(sink, "shop-production")
    log.handlers = [agent_handler(agent)]
    config = uvicorn.Config(LogjamMiddleware(application(), agent), port=0, log_level="critical")
    server = uvicorn.Server(config)
    running = threading.Thread(target=server.run)
    running.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        with ThreadPoolExecutor(CLIENTS) as pool:
            of_clients = list(pool.map(lambda n: run_client(port, n), range(CLIENTS)))
        answers = [one for some in of_clients for one in some]
        with socket.create_connection(("127.0.0.1", port), 20) as leaving:
            leaving.sendall(b"GET /endless/gone HTTP/1.1\r\nhost: x\r\n\r\n")
            assert leaving.recv(100)
        while len(made) <= len(answers) and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        server.should_exit = True
        running.join(PATIENCE)
    assert (wrong, agent.failed, current()) == ([], 0, None)
    by_marker = {one["request_info"]["url"].rpartition("/")[2]: one for one in made}
    assert len(made) == len(by_marker) == len(answers) + 1
    for kind, marker, status, name in answers:
        one = by_marker[marker]
        lines = [line[2] for line in one["lines"]]
        if kind == "fail":
            assert "Traceback" in lines.pop() and one["exceptions"] == ["ZeroDivisionError"]
        more = [f"{marker} background"] if kind == "orders/coroutine" else []
        assert lines == [f"{marker} first", *(f"{marker} {n}" for n in range(5)), *more]
        assert one["code"] == status == (500 if kind == "fail" else 200)
        assert one["action"] == f"{__name__}#{kind.rpartition('/')[2]}"
        assert name == f"shop-production-{one['request_id']}"
    gone = by_marker["gone"]
    assert (gone["client_disconnected"], gone["severity"]) == (True, 2)


def run_client(port: int, number: int) -> list[tuple[str, str, int, str | None]]:
    """Make requests and return (kind, marker, status, name of the request) of each."""
    dice = random.Random(number)
    answers = []
    for n in range(EACH):
        kind, marker = dice.choice(["orders/coroutine", "orders/thread", "stream", "fail"]), f"m{number}x{n}"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", f"/{kind}/{marker}")
        answer = connection.getresponse()
        answer.read()
        answers.append((kind, marker, answer.status, answer.headers["X-Logjam-Request-Id"]))
        connection.close()
    return answers
