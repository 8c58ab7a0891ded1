"""Records that wait for an error in their request: the option `hold_below`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import logclient
from logclient.integrations.flask import RequestContext
from logclient.integrations.request_fields import RequestFields
from logclient.records.held import LARGEST
from logclient.testing.lumberjack import Collector
from tests.support.patience import PATIENCE


class Scene:
    def __init__(self, server: Collector, kind: type[logging.Logger]) -> None:
        self.handler = logclient.Handler(server.url, hold_below="INFO")
        self.log = kind("shop", logging.DEBUG)
        self.log.addHandler(self.handler)
        self._server = server

    def arrived(self) -> list[dict[str, Any]]:
        assert self.handler.client.flush(PATIENCE) == 0
        return self._server.events()

    def messages(self) -> list[str]:
        return [event["message"] for event in self.arrived()]

    def given_up(self) -> int:
        return self.handler.client.stats().filtered.get("hold_below", 0)


@pytest.fixture(params=[logging.Logger, logclient.Logger])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Collector(keep=True) as server:
        made = Scene(server, request.param)
        yield made
        made.handler.client.close()


def _request(work: Callable[[], object], path: str = "/") -> None:
    """Do something in a request, whose end nobody has to wait for."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        work()
        start_response("200 OK", [])
        return []

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path}
    list(RequestContext(app)(environ, lambda *_: None))


def test_a_request_without_an_error_ships_none(scene: Scene) -> None:
    def work() -> None:
        scene.log.debug("low")
        scene.log.warning("high")
        scene.log.debug("low")

    _request(work)
    assert (scene.messages(), scene.given_up()) == (["high"], 2)


def test_an_error_ships_them_first_as_they_were_logged(scene: Scene) -> None:
    def work() -> None:
        with logclient.bind(step=1):
            scene.log.debug("one %d", 1, extra={"order": 17})
        scene.log.info("two")
        scene.log.error("three")
        scene.log.debug("four")

    _request(work, "/pay")
    first, *others = sorted(scene.arrived(), key=lambda event: event["@timestamp"])
    assert (first["message"], first["step"], first["order"]) == ("one 1", 1, 17)
    assert [event["message"] for event in others] == ["two", "three", "four"]
    assert {event["url"]["path"] for event in (first, *others)} == {"/pay"}
    assert scene.messages() == ["two", "one 1", "three", "four"] and scene.given_up() == 0


def test_requests_at_the_same_time_have_their_own(scene: Scene) -> None:
    async def handle(n: int) -> None:
        fields = RequestFields("GET", f"/{n}", None, None, None)
        for _ in range(3):
            await asyncio.to_thread(scene.log.debug, "low")
        if n % 2:
            await asyncio.create_task(_fail())
        fields.end()

    async def _fail() -> None:
        scene.log.error("high")

    async def run() -> None:
        await asyncio.gather(*(asyncio.create_task(handle(n)) for n in range(6)))

    asyncio.run(run())
    events = scene.arrived()
    paths = [event["url"]["path"] for event in events]
    assert {path: paths.count(path) for path in paths} == {f"/{n}": 4 for n in (1, 3, 5)}
    assert scene.given_up() == 9


def test_the_oldest_of_too_many_are_given_up(scene: Scene) -> None:
    def work() -> None:
        for n in range(LARGEST + 44):
            scene.log.debug("%d", n)
        scene.log.error("end")

    _request(work)
    assert scene.messages() == [*(str(n) for n in range(44, LARGEST + 44)), "end"]
    assert scene.given_up() == 44


def test_outside_of_requests_nothing_waits(scene: Scene) -> None:
    scene.log.debug("low")
    with logclient.bind(step=1):
        scene.log.debug("lower")
    assert scene.messages() == ["low", "lower"]


def test_filters_of_the_program_see_what_is_shipped(scene: Scene) -> None:
    def without_secrets(record: logging.LogRecord) -> bool:
        record.msg = record.msg.replace("hunter2", "***")
        return "never" not in record.msg

    def work() -> None:
        scene.log.debug("hunter2")
        scene.log.debug("never this")
        scene.log.critical("end")

    scene.handler.addFilter(without_secrets)
    _request(work)
    assert scene.messages() == ["***", "end"]
