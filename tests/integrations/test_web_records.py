"""Each web framework behind a real server: 2,000 records of requests beside what ecs-logging makes of them.

To those of ecs-logging come the facts of the request, as the framework itself reports them.
"""

from __future__ import annotations

import http.client
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

import logclient
from logclient.testing.lumberjack import Collector
from tests.integrations import web_apps
from tests.integrations.ecs_peer import Peer
from tests.integrations.odd_records import RECORDS, draw_fields, fail
from tests.support.patience import PATIENCE

PER_REQUEST = 5
REQUESTS = RECORDS // PER_REQUEST
TRACE = "0af7651916cd43dd8448eb211c80319c"
NAMES = ("a", "größe", "ключ", "a b", "%41", "x" * 300)
OWN_LOGGERS = {
    "flask": {"web_apps"},
    "django": {"django.request"},
    "django-asgi": {"django.request", "uvicorn.access"},
    "fastapi": {"uvicorn.error", "uvicorn.access"},
    "aiohttp": {"aiohttp.server", "aiohttp.access"},
}
"""The loggers of framework and server that log about requests. All that is logged is compared."""


class Rig(NamedTuple):
    handler: logclient.Handler
    peer: Peer


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    root, server_log = logging.getLogger(), logging.getLogger("uvicorn.error")
    before = root.level
    with Collector(capture=str(tmp_path)) as server:
        rig = Rig(logclient.Handler(server.url, overflow="block"), Peer())
        root.setLevel("INFO")
        server_log.setLevel("ERROR")  # not of its start
        root.addHandler(rig.peer)
        root.addHandler(rig.handler)
        yield rig
        root.removeHandler(rig.handler)
        root.removeHandler(rig.peer)
        root.setLevel(before)
        server_log.setLevel("NOTSET")
        rig.handler.client.close()


def _ask(connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str]) -> Any:
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    response.read()
    if response.status == 500:
        connection.close()  # uvicorn does so as well, a little later
    return response


@pytest.mark.parametrize("framework", OWN_LOGGERS)
def test_records_equal_those_of_ecs_logging(
    framework: str, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(framework)
    peer, client = rig.peer, rig.handler.client
    facts: dict[str, Any] = {}
    fails = False

    def visit(name: str, found: dict[str, Any]) -> None:
        facts.update(found)
        peer.facts = facts
        logclient.bind({"user.name": found["user.name"], "basket": {"größe": [1, None]}})
        facts["basket"] = {"größe": [1, None]}
        for n in range(PER_REQUEST):
            try:
                if n == 2 and draw.random() < 0.5:
                    fail(draw)
                web_apps.log.info("visit %s of %s 😀", n, name, extra=draw_fields(draw))
            except Exception:
                web_apps.log.warning("caught", exc_info=True, extra=draw_fields(draw))
        if fails:
            fail(draw)

    monkeypatch.setattr(web_apps, "visit", visit)
    prefix = "/later/visit/" if framework == "django-asgi" else "/visit/"
    statuses: list[int] = []
    with web_apps.serving(framework) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        for n in range(REQUESTS):
            facts = {}
            fails = n % 10 == 0
            headers = {"X-User": f"ann-{n}"}
            if fails or draw.random() < 0.5:
                headers["X-Request-Id"] = f"r-{n}"
            if draw.random() < 0.5:
                headers["traceparent"] = f"00-{TRACE}-b7ad6b7169203331-01"
                facts["trace.id"] = TRACE
            path = prefix + quote(draw.choice(NAMES))
            response = _ask(connection, draw.choice(("GET", "POST")), path, headers)
            statuses.append(response.status)
            given = facts.setdefault("http.request.id", response.headers["X-Request-Id"])
            # Starlette makes the response of a failure outside of all middleware.
            assert (framework == "fastapi" and fails) or response.headers["X-Request-Id"] == given
        connection.close()
    assert statuses == [500 if n % 10 == 0 else 200 for n in range(REQUESTS)]
    assert client.flush(PATIENCE) == 0
    assert client.stats().failed == {}
    documents = peer.check(tmp_path)
    assert len(documents) >= RECORDS + REQUESTS // 10
    assert {document["log.logger"] for document in documents} == {"shop", *OWN_LOGGERS[framework]}
    assert not logclient.bound()
