"""A tiny ASGI server over asyncio streams, for tests: HTTP/1.1, one request a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.patience import PATIENCE


@asynccontextmanager
async def serve(app: Callable[..., Any]) -> AsyncIterator[tuple[int, list[BaseException]]]:
    """Serve an application: yield (port, raised exceptions), and end after all connections."""
    raised: list[BaseException] = []
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _one(app, reader, writer)
        except Exception as error:
            raised.append(error)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], raised
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)


async def _one(app: Callable[..., Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    path, _, query = target.partition("?")
    headers = [
        (name.strip().lower().encode("latin-1"), value.strip().encode("latin-1"))
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    ]
    body = await reader.readexactly(int(dict(headers).get(b"content-length", b"0")))
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        gone = asyncio.ensure_future(reader.read())
        over = asyncio.ensure_future(done.wait())
        await asyncio.wait({gone, over}, return_when=asyncio.FIRST_COMPLETED)
        for waiter in (gone, over):
            waiter.cancel()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if writer.is_closing() or reader.at_eof():
            raise ConnectionResetError("the client is gone")
        if message["type"] == "http.response.start":
            lines = [f"HTTP/1.1 {message['status']} x".encode()]
            lines += [name + b": " + value for name, value in message.get("headers", [])]
            writer.write(b"\r\n".join([*lines, b"connection: close", b"", b""]))
        else:
            writer.write(message.get("body", b""))
            if not message.get("more_body"):
                done.set()
                writer.write_eof()
        await writer.drain()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": headers,
        "client": writer.get_extra_info("peername"),
        "server": writer.get_extra_info("sockname"),
    }
    await app(scope, receive, send)
