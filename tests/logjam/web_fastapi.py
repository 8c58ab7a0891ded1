"""The example for FastAPI with harder endpoints: late tasks, requests in tasks, streams that break.

It runs in the folder of the example: ``uvicorn tests.logjam.web_fastapi:app``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

from app import api, app, client, log  # type: ignore[import-not-found]
from fastapi import Depends, Request, Response
from fastapi.responses import StreamingResponse

from logclient import logjam

__all__ = ["app"]

late: set[asyncio.Task[None]] = set()


@api.middleware("http")
async def around(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
    # Starlette runs the rest of the application in a task of its own.
    m = request.headers.get("X-Marker")
    if m is not None:
        log.info("%s around", m)
    return await call_next(request)


def session(m: str) -> Iterator[str]:
    log.info("%s session begins", m)  # both lines are logged in a thread of the pool
    yield m
    log.info("%s session ends", m)


@api.get("/more/session/{m}")
async def with_session(m: str, opened: Annotated[str, Depends(session)]) -> str:
    log.info("%s in session", opened)
    return m


@api.get("/more/late/{m}")
async def leaves(m: str) -> str:
    request = logjam.current()
    assert request is not None

    async def stays() -> None:
        while not request.ended:
            await asyncio.sleep(0.001)
        log.warning("%s alone", m)

    task = asyncio.create_task(stays())
    late.add(task)
    task.add_done_callback(late.discard)
    log.info("%s leaves", m)
    return m


@api.get("/more/nested/{m}")
async def nested(m: str) -> str:
    outer = logjam.current()
    assert outer is not None

    async def part(name: str) -> None:
        with client.request(f"Part#{name}", caller_id=outer.full_id, caller_action="web#nested"):
            for n in range(3):
                log.info("%s %s %d", m, name, n)
                await asyncio.sleep(0)

    log.info("%s before", m)
    await asyncio.gather(part("one"), part("two"), part("three"))
    log.info("%s after", m)
    return m


@api.get("/more/timeout/{m}")
async def timeout(m: str) -> str:
    async def slow() -> None:
        try:
            log.info("%s waits", m)
            await asyncio.sleep(60)
        finally:
            log.info("%s gives up", m)

    try:
        await asyncio.wait_for(slow(), 0.001)
    except TimeoutError:
        log.warning("%s too slow", m, exc_info=True)
    return m


@api.get("/more/executor/{m}")
async def executor(m: str) -> str:
    log.info("%s before", m)
    # Unlike asyncio.to_thread, this gives the thread no context.
    await asyncio.get_running_loop().run_in_executor(None, log.warning, "%s alone", m)
    log.info("%s after", m)
    return m


@api.get("/more/tears/{m}")
async def tears(m: str) -> Response:
    async def rows() -> AsyncIterator[str]:
        log.info("%s row", m)
        yield m
        raise BufferError(m)

    return StreamingResponse(rows())


@api.get("/more/endless/{m}")
async def endless(m: str) -> Response:
    async def rows() -> AsyncIterator[bytes]:
        # Nothing is logged at its end: the garbage collector closes it in the middle of another request.
        log.info("%s begins", m)
        while True:
            yield b"%s %s" % (m.encode(), b"x" * 60_000)
            await asyncio.sleep(0)

    return StreamingResponse(rows())
