"""A FastAPI application, each of whose requests becomes one document in Logjam. Run it under uvicorn::

LOG_URL=logjam://127.0.0.1:9604/stock-production uvicorn app:app --port 8001
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from fastapi import BackgroundTasks, FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import logclient
from logclient import logjam
from logclient.integrations import asgi

# Nothing is connected and no thread is started here: the first request does that.
client = logclient.connect(os.environ.get("LOG_URL", "logjam://127.0.0.1:9604/stock-production"))
logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(), logclient.Handler(client=client)])
log = logging.getLogger("stock")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    # uvicorn ends itself by the signal it got, and then no exit handler of Python's runs.
    await asyncio.to_thread(client.close, 5)


api = FastAPI(lifespan=lifespan)


@api.get("/items/{number}")
async def show(number: str) -> dict[str, object]:
    log.info("item %s asked for", number)
    # Tasks belong to the request that makes them, as do threads that asyncio starts.
    here, there = await asyncio.gather(shelf(number, "here"), shelf(number, "there"))
    await asyncio.to_thread(log.info, "item %s added up", number)
    return {"item": number, "count": here + there}


async def shelf(number: str, name: str) -> int:
    log.info("item %s looked for %s", number, name)
    await asyncio.sleep(0.001)
    return len(name)


@api.get("/items/{number}/count")
def count(number: str) -> dict[str, object]:  # no coroutine: FastAPI calls it in a thread
    log.info("item %s counted", number)
    with logjam.current().measure("db"):
        found = {"item": number, "count": len(number)}
    log.info("item %s: %d", number, found["count"])
    return found


@api.post("/items/{number}/reserve", status_code=201)
async def reserve(number: str, background: BackgroundTasks) -> dict[str, object]:
    log.info("item %s reserved", number)
    background.add_task(tell, number)
    return {"item": number}


def tell(number: str) -> None:
    log.info("item %s told the warehouse", number)  # a line of the request, not part of its time


@api.get("/items/{number}/moves")
async def moves(number: str) -> StreamingResponse:
    def rows() -> Iterator[str]:
        for n in range(5):
            log.info("item %s move %d", number, n)
            yield f"move {n} of item {number}\n"

    return StreamingResponse(rows(), media_type="text/plain")


@api.get("/items/{number}/price")
async def price(number: str) -> None:
    try:
        raise KeyError(number)
    except KeyError:
        log.warning("item %s has no price", number, exc_info=True)  # a soft exception
    raise HTTPException(404, f"item {number} has no price")


@api.get("/items/{number}/broken")
async def broken(number: str) -> None:
    log.info("item %s is looked at", number)
    raise LookupError(f"item {number} is on no shelf")  # code 500, its name and its traceback


app = asgi.LogjamMiddleware(api, client)  # around everything: what breaks inside is seen, too
