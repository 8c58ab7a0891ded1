"""The examples for Flask and FastAPI under gunicorn and uvicorn, under load.

One application asks the other. 16 clients ask at a time over kept connections. Our device captures over real
ZeroMQ, and the capture is read at the end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from logclient.testing.logjam import Collector
from tests.logjam.asgi_server import serve
from tests.logjam.web_load import (
    CLIENTS,
    GONE,
    TRACEBACK,
    Arrived,
    Asked,
    Kind,
    arrived,
    assert_documents,
    assert_lines,
    load,
    odd_requests,
    of_others,
    of_requests,
    texts,
)
from tests.support import ROOT, need
from tests.support.app_servers import EXAMPLES, Server, program, serving, wait_for
from tests.support.processes import CollectorProcess

pytestmark = pytest.mark.tree

SHOP, STOCK = "shop-production", "stock-production"

FLASK = {
    "show": Kind(
        "/orders/{m}", 200, "app#show",
        ("order {m} asked for", "order {m} found"),
        fields={"db_time": None, "db_calls": None},
    ),
    "create": Kind(
        "/orders", 201, "app#create",
        ("order {m} created", "order {m} has no customer"),
        severity=2, form=True, fields={"order": "{m}"},
    ),
    "items": Kind("/orders/{m}/items", 200, "app#items", tuple(f"order {{m}} item {n}" for n in range(5))),
    "stock": Kind(
        "/orders/{m}/stock", 200, "app#stock",
        ("order {m} asks for its stock", "order {m} has {size} in stock"),
        fields={"stock_time": None},
    ),
    "refund": Kind(
        "/orders/{m}/refund", 500, "app#refund",
        ("order {m} is to be refunded", "Exception on /orders/{m}/refund [GET]"),
        severity=3, exception="LookupError",
    ),
}  # fmt: skip

FASTAPI = {
    "show": Kind(
        "/items/{m}", 200, "app#show",
        ("item {m} asked for", "item {m} looked for here", "item {m} looked for there", "item {m} added up"),
    ),
    "count": Kind(
        "/items/{m}/count", 200, "app#count",
        ("item {m} counted", "item {m}: {size}"),
        fields={"db_time": None, "db_calls": None},
    ),
    "reserve": Kind(
        "/items/{m}/reserve", 201, "app#reserve", ("item {m} reserved", "item {m} told the warehouse")
    ),
    "moves": Kind("/items/{m}/moves", 200, "app#moves", tuple(f"item {{m}} move {n}" for n in range(5))),
    "price": Kind(
        "/items/{m}/price", 404, "app#price",
        ("item {m} has no price",),
        severity=2, soft_exception="KeyError",
    ),
    "broken": Kind(
        "/items/{m}/broken", 500, "app#broken",
        ("item {m} is looked at", TRACEBACK),
        severity=3, exception="LookupError",
    ),
}  # fmt: skip

CUT = " ... [LINE TRUNCATED]"

HARD_FLASK = {
    "thread": Kind(
        "/more/thread/{m}", 200, "app#thread",
        ("{m} before", "{m} thread 0", "{m} thread 1", "{m} thread 2", "{m} after"),
        besides=(("shop#run", ("{m} alone",)),),
    ),
    "nested": Kind(
        "/more/nested/{m}", 200, "app#nested", ("{m} before", "{m} after"),
        besides=(
            ("Mailer#confirm", ("{m} mail", "{m} not sent")),
            ("Smtp#send", ("{m} smtp", TRACEBACK)),
        ),
    ),
    "long": Kind(
        "/more/long/{m}", 200, "app#long",
        (
            "{m:x<2048}" + CUT,
            "{m:<20}" + "\N{SNOWMAN}" * 3319 + CUT,
            *(f"{{m}} {n} {'y' * 2_000}" for n in range(600)),
        ),
        severity=3, weight=0.1,
    ),
    "tears": Kind(
        "/more/tears/{m}", 200, "app#tears", ("{m} row", TRACEBACK),
        severity=3, exception="BufferError", ends="torn",
    ),
    "endless": Kind(
        "/more/endless/{m}", 200, "app#endless", ("{m} begins", GONE, "{m} ends"), severity=2, ends="left"
    ),
}  # fmt: skip

WEB = "tests.logjam.web_fastapi"

HARD_FASTAPI = {
    "session": Kind(
        "/more/session/{m}", 200, f"{WEB}#with_session",
        ("{m} session begins", "{m} in session", "{m} session ends"),
    ),
    "late": Kind(
        "/more/late/{m}", 200, f"{WEB}#leaves", ("{m} leaves",),
        besides=(("stock#stays", ("{m} alone",)),),
    ),
    "nested": Kind(
        "/more/nested/{m}", 200, f"{WEB}#nested", ("{m} before", "{m} after"),
        besides=tuple(
            (f"Part#{name}", tuple(f"{{m}} {name} {n}" for n in range(3))) for name in ("one", "three", "two")
        ),
    ),
    "timeout": Kind(
        "/more/timeout/{m}", 200, f"{WEB}#timeout",
        ("{m} waits", "{m} gives up", "{m} too slow"),
        severity=2, soft_exception="TimeoutError",
    ),
    "executor": Kind(
        "/more/executor/{m}", 200, f"{WEB}#executor", ("{m} before", "{m} after"),
        besides=(("stock#run", ("{m} alone",)),),
    ),
    "tears": Kind(
        "/more/tears/{m}", 200, f"{WEB}#tears", ("{m} row", TRACEBACK),
        severity=3, exception="BufferError", ends="torn",
    ),
    "endless": Kind(
        "/more/endless/{m}", 200, f"{WEB}#endless", ("{m} begins", GONE), severity=2, ends="left"
    ),
}  # fmt: skip
HARD_FASTAPI = {name: kind._replace(lines=("{m} around", *kind.lines)) for name, kind in HARD_FASTAPI.items()}


class Device(CollectorProcess):
    def __init__(self, capture: Path, faults: str = "") -> None:
        super().__init__(capture, faults, scheme="logjam")

    @property
    def url(self) -> str:
        """Without an application."""
        return f"logjam://127.0.0.1:{self.port}"

    def tell(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def shop(folder: Path, url: str, stock: str = "", app: str = "app:app") -> Iterator[tuple[Server, int]]:
    """Run the example for Flask under gunicorn, and yield it with its port."""
    need("flask")
    config = folder / "gunicorn.conf.py"
    config.write_text((EXAMPLES / "flask" / "gunicorn.conf.py").read_text() + "\nbind = '127.0.0.1:0'\n")
    command = [program("gunicorn"), "--config", str(config), app]
    out = folder / "gunicorn.out"
    environment = {"LOG_URL": f"{url}/{SHOP}", "STOCK_URL": stock, "HOME": str(folder)}
    with serving(command, EXAMPLES / "flask", out, **environment) as server:
        yield server, int(server.said(r"Listening at: http://127\.0\.0\.1:(\d+)")[0])


@contextmanager
def stock(folder: Path, url: str, app: str = "app:app", workers: int = 1) -> Iterator[tuple[Server, int]]:
    """Run the example for FastAPI under uvicorn, and yield it with its port."""
    need("fastapi")
    command = [program("uvicorn"), app, "--port", "0", "--workers", str(workers), "--no-access-log"]
    out = folder / "uvicorn.out"
    with serving(command, EXAMPLES / "fastapi", out, LOG_URL=f"{url}/{STOCK}") as server:
        server.said("Application startup complete", workers)
        yield server, int(server.said(r"running on http://127\.0\.0\.1:(\d+)")[0])


@pytest.mark.parametrize("count", [1500, pytest.param(30_000, marks=pytest.mark.long)])
def test_examples_under_load_document_each_request(count: int, tmp_path: Path) -> None:
    device = Device(tmp_path / "capture")
    with ExitStack() as running:
        running.enter_context(device)
        uvicorn, stock_port = running.enter_context(stock(tmp_path, device.url))
        gunicorn, shop_port = running.enter_context(
            shop(tmp_path, device.url, f"http://127.0.0.1:{stock_port}")
        )
        of_shop = load(shop_port, FLASK, count, seed=1)
        of_stock = load(stock_port, FASTAPI, count, seed=2)
        # A server delivers before it ends.
        assert gunicorn.end(signal.SIGTERM) == 0
        assert uvicorn.end(signal.SIGTERM) == -signal.SIGTERM
        device.end(signal.SIGTERM)
    found = arrived(tmp_path / "capture")
    in_shop, in_stock = of_requests(found, SHOP), of_requests(found, STOCK)
    assert_documents(in_shop, SHOP, FLASK, of_shop)
    assert_documents(in_stock, STOCK, FASTAPI, of_stock)
    # Requests of the shop to the stock, within requests of its own.
    nested = [one for one in of_shop if one.kind == "stock"]
    for one in nested:
        document = in_stock[one.marker]
        assert_lines(document, FASTAPI["count"], one.marker)
        assert (document["action"], document["code"]) == ("app#count", 200)
        assert (document["caller_id"], document["caller_action"]) == (one.name, "app#stock")
        assert document.get("trace_id") == one.trace_id
    assert (len(in_shop), len(in_stock)) == (count, count + len(nested))
    assert len({document["process_id"] for document in in_shop.values()}) == 2
    # There are no other documents.
    assert len(found) == 2 * count + len(nested)


ENDS = pytest.mark.parametrize(
    ("which", "runs", "code"),
    [
        pytest.param(SHOP, shop, 0, id="gunicorn"),
        pytest.param(STOCK, stock, -signal.SIGTERM, id="uvicorn"),
        pytest.param(STOCK, partial(stock, workers=2), 0, id="uvicorn-workers", marks=pytest.mark.long),
    ],
)


@pytest.mark.slow
@ENDS
def test_shutdown_under_load_delivers_answered_requests(
    which: str, runs: Callable[..., Any], code: int, tmp_path: Path
) -> None:
    device = Device(tmp_path / "capture")
    kinds = {name: kind for name, kind in (FLASK if which == SHOP else FASTAPI).items() if name != "stock"}
    asked: list[Asked] = []
    with ExitStack() as running:
        running.enter_context(device)
        server, port = running.enter_context(runs(tmp_path, device.url))
        executor = running.enter_context(ThreadPoolExecutor(1))
        loading = executor.submit(load, port, kinds, 1_000_000, seed=7, asked=asked)
        wait_for(lambda: len(asked) > 300 or loading.done(), "300 answers")
        assert server.end(signal.SIGTERM) == code
        loading.result()
        device.end(signal.SIGTERM)
    documents = of_requests(arrived(tmp_path / "capture"), which)
    assert_documents(documents, which, kinds, asked)
    # The other responses were lost with their connections.
    assert 300 < len(asked) <= len(documents) <= len(asked) + CLIENTS


@pytest.mark.slow
def test_cut_connections_lose_no_document(tmp_path: Path) -> None:
    """In-flight documents are sent again under the id that the response header names."""
    device = Device(tmp_path / "capture", "cut-before-ack=every:150,cut-before-write=every:190,seed=3")
    kinds = {name: kind for name, kind in FLASK.items() if name != "stock"}
    with ExitStack() as running:
        running.enter_context(device)
        gunicorn, port = running.enter_context(shop(tmp_path, device.url))
        asked = load(port, kinds, 600, seed=10)
        assert gunicorn.end(signal.SIGTERM) == 0
        device.end(signal.SIGTERM)
    found = arrived(tmp_path / "capture")
    once = {one.name: one for one in found}
    assert all(one == once[one.name] for one in found)
    assert len(found) > len(once) == len(asked) == 600
    assert_documents(of_requests(list(once.values()), SHOP), SHOP, kinds, asked)


@pytest.mark.slow
@ENDS
def test_shutdown_waits_for_a_device_that_hangs(
    which: str, runs: Callable[..., Any], code: int, tmp_path: Path
) -> None:
    """More documents wait than may be in flight; all are delivered when the device goes on."""
    device = Device(tmp_path / "capture")
    kinds = {"show": (FLASK if which == SHOP else FASTAPI)["show"]}
    with ExitStack() as running:
        running.enter_context(device)
        server, port = running.enter_context(runs(tmp_path, device.url))
        asked = load(port, kinds, 10, seed=8)
        device.tell(signal.SIGSTOP)
        try:
            asked += load(port, kinds, 800, seed=9)
            os.kill(server.pid, signal.SIGTERM)
            server.said("Handling signal: term|Waiting for application shutdown")
        finally:
            device.tell(signal.SIGCONT)
        assert server.wait() == code
        device.end(signal.SIGTERM)
    documents = of_requests(arrived(tmp_path / "capture"), which)
    assert_documents(documents, which, kinds, asked)
    assert len(documents) == len(asked) == 810


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=pytest.mark.long)])
def test_harder_requests_under_load_are_documented(count: int, tmp_path: Path) -> None:
    """Both applications have further endpoints with threads, tasks and broken streams."""
    device = Device(tmp_path / "capture")
    with ExitStack() as running:
        running.enter_context(device)
        uvicorn, stock_port = running.enter_context(stock(tmp_path, device.url, f"{WEB}:app"))
        gunicorn, shop_port = running.enter_context(
            shop(tmp_path, device.url, app="tests.logjam.web_flask:app")
        )
        of_shop = load(shop_port, HARD_FLASK, count, seed=3)
        of_stock = load(stock_port, HARD_FASTAPI, count, seed=4)
        odd = odd_requests(shop_port, count // 2, seed=5) | odd_requests(stock_port, count // 2, seed=6)
        assert gunicorn.end(signal.SIGTERM) == 0
        assert uvicorn.end(signal.SIGTERM) == -signal.SIGTERM
        device.end(signal.SIGTERM)
    found = arrived(tmp_path / "capture")
    assert len(odd) > count // 5
    assert sum(one.name in odd for one in found) == len(odd)
    found = [one for one in found if one.name not in odd]
    expected = 0
    for app_env, kinds, asked in [(SHOP, HARD_FLASK, of_shop), (STOCK, HARD_FASTAPI, of_stock)]:
        documents = of_requests(found, app_env)
        assert len(documents) == count
        assert_documents(documents, app_env, kinds, asked)
        others = of_others(found, app_env)
        if app_env == SHOP:  # the record of the master before it forked, once
            (loaded,) = others.pop("m0x0x0")
            assert texts(loaded) == ["m0x0x0 loaded"] and loaded["action"] == "shop#<module>"
            assert loaded["process_id"] not in {one["process_id"] for one in documents.values()}
            expected += 1
        for one in asked:
            besides = others.pop(one.marker, [])
            wanted = kinds[one.kind].besides
            assert [document["action"] for document in besides] == [action for action, _ in wanted]
            for document, (action, lines) in zip(besides, wanted, strict=True):
                assert_lines(document, Kind("", 200, action, lines), one.marker)
                expected += 1
        assert others == {}
    assert len(found) == 2 * count + expected


@pytest.mark.parametrize("heading", ["Flask", "ASGI: FastAPI, Starlette and others"])
def test_snippets_of_the_documentation_work(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are run as in docs/logjam.md, except for the device's name."""
    need("fastapi" if "FastAPI" in heading else "flask")
    page = (ROOT / "docs" / "logjam.md").read_text()
    (text,) = re.findall(rf"^## {heading}\n.*?```python\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    place: dict[str, Any] = {"__name__": __name__}
    monkeypatch.setattr("logging.root.handlers", [])
    monkeypatch.setattr("logging.root.level", 30)  # the snippet sets it
    with Collector(keep=True) as device:
        exec(text.replace("logjam.example.net", f"127.0.0.1:{device.port}"), place)
        (ask_wsgi if heading == "Flask" else ask_asgi)(place)
        (document,) = device.events(1)
        place["client"].close()
    assert texts(document) == ["hello"] and document["code"] == 200


def ask_wsgi(place: dict[str, Any]) -> None:
    app = place["app"]

    @app.get("/")
    def hello() -> str:
        logging.info("hello")
        return "hello"

    with app.test_client().get("/") as response:
        assert response.text == "hello"


def ask_asgi(place: dict[str, Any]) -> None:
    @place["api"].get("/")
    async def hello() -> str:
        logging.info("hello")
        return "hello"

    async def main() -> None:
        async with serve(place["app"]) as (port, raised):
            answer = await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/")
            with answer:
                assert (answer.read(), raised) == (b'"hello"', [])

    asyncio.run(main())


MARK = "m1x0x0"
ASKED = Asked(
    "show", MARK, f"/orders/{MARK}?m={MARK}&n=1&n=2&token=hunter2", 200, f"{SHOP}-{'ab' * 16}", None, None
)


def complete_documents() -> list[Arrived]:
    lines = [[1, "2026-11-20T13:55:36.251545", f"order {MARK} {word}"] for word in ("asked for", "found")]
    info = {
        "method": "GET",
        "url": ASKED.target.replace("hunter2", "[FILTERED]"),
        "headers": {"X-Marker": MARK, "Cookie": "[FILTERED]"},
        "query_parameters": {"m": MARK, "n": ["1", "2"], "token": "[FILTERED]"},
    }
    document = {"action": "app#show", "code": 200, "severity": 1, "request_id": "ab" * 16, "ip": "127.0.0.1"}
    return [Arrived(SHOP, {**document, "db_time": 1, "db_calls": 1, "request_info": info, "lines": lines})]


def damaged(how: str) -> list[Arrived]:
    found = complete_documents()
    document = found[0].document
    lines = document["lines"]
    match how:
        case "no document":
            found.clear()
        case "two documents":
            found.append(found[0])
        case "another's line":
            lines.append([1, lines[0][1], "order m1x0x1 found"])
        case "another's line instead":
            lines[1][2] = "order m1x0x1 found"
        case "lines swapped":
            lines.reverse()
        case "a line missing":
            lines.pop()
        case "a line twice":
            lines.append(lines[1])
        case "another's id":
            document["request_id"] = "cd" * 16
        case "another caller":
            document["caller_id"] = f"{SHOP}-{'cd' * 16}"
        case "another code":
            document["code"] = 500
        case "an exception":
            document["exceptions"] = ["LookupError"]
    return found


@pytest.mark.parametrize(
    "how",
    [
        "", "no document", "two documents", "another's line", "another's line instead", "lines swapped",
        "a line missing", "a line twice", "another's id", "another caller", "another code", "an exception",
    ],
)  # fmt: skip
def test_assert_documents_notices_each_damage(how: str) -> None:
    try:
        assert_documents(of_requests(damaged(how), SHOP), SHOP, FLASK, [ASKED])
    except (AssertionError, KeyError):
        assert how
    else:
        assert not how
