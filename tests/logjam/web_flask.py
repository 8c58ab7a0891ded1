"""The example for Flask with harder endpoints: threads, nested requests, streams that break.

It runs in the folder of the example: ``gunicorn tests.logjam.web_flask:app``.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator

from app import app, client, log  # type: ignore[import-not-found]
from flask import Response

from logclient import logjam
from tests.support.patience import PATIENCE

__all__ = ["app"]

# The master forks its workers with a connection of its own.
log.info("m0x0x0 loaded")
if client.flush(PATIENCE):
    raise TimeoutError("the device does not answer")


@app.get("/more/thread/<m>")
def thread(m: str) -> str:
    log.info("%s before", m)

    def work() -> None:
        for n in range(3):
            log.info("%s thread %d", m, n)

    given = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    given.start()
    given.join()
    without_context = threading.Thread(target=log.warning, args=("%s alone", m))
    without_context.start()
    without_context.join()
    log.info("%s after", m)
    return m


@app.get("/more/nested/<m>")
def nested(m: str) -> str:
    log.info("%s before", m)
    outer = logjam.current()
    with client.request("Mailer#confirm", caller_id=outer.full_id, caller_action="app#nested") as inner:
        log.info("%s mail", m)
        try:
            with client.request("Smtp#send", caller_id=inner.full_id, caller_action="Mailer#confirm"):
                log.info("%s smtp", m)
                raise TimeoutError(m)
        except TimeoutError:
            log.warning("%s not sent", m)
    log.info("%s after", m)
    return m


@app.get("/more/long/<m>")
def long(m: str) -> str:
    log.info(m.ljust(5_000, "x"))
    log.error(m.ljust(20) + "\N{SNOWMAN}" * 5_000)
    for n in range(600):
        log.info("%s %d %s", m, n, "y" * 2_000)
    return m


@app.get("/more/tears/<m>")
def tears(m: str) -> Response:
    def rows() -> Iterator[str]:
        log.info("%s row", m)
        yield m
        raise BufferError(m)

    return Response(rows())


@app.get("/more/endless/<m>")
def endless(m: str) -> Response:
    def rows() -> Iterator[bytes]:
        log.info("%s begins", m)
        try:
            while True:
                yield b"%s %s" % (m.encode(), b"x" * 60_000)
        finally:
            log.info("%s ends", m)

    return Response(rows())
