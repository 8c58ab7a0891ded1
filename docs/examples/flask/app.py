"""A Flask application, each of whose requests becomes one document in Logjam. Run it under gunicorn::

LOG_URL=logjam://127.0.0.1:9604/shop-production gunicorn --config gunicorn.conf.py app:app
"""

import json
import logging
import os
from collections.abc import Iterator
from urllib.request import Request, urlopen

from flask import Flask, Response, request

import logclient
from logclient import logjam
from logclient.integrations import wsgi

# Nothing is connected and no thread is started here: the first request does that, in the worker that
# answers it. So it does not matter whether the master loads this file (preload_app) or each worker does.
client = logclient.connect(os.environ.get("LOG_URL", "logjam://127.0.0.1:9604/shop-production"))
logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(), logclient.Handler(client=client)])

log = logging.getLogger("shop")
app = Flask(__name__)
app.wsgi_app = wsgi.LogjamMiddleware(app.wsgi_app, client)

STOCK = os.environ.get("STOCK_URL", "http://127.0.0.1:8001")


@app.get("/orders/<number>")
def show(number: str) -> dict[str, object]:
    log.info("order %s asked for", number)
    with logjam.current().measure("db"):  # db_time and db_calls of the document
        row = {"order": number, "worker": os.getpid()}
    log.info("order %s found", number)
    return row


@app.post("/orders")
def create() -> tuple[dict[str, object], int]:
    number = request.form["number"]  # the form is shown in the document, but for the card
    log.info("order %s created", number)
    log.warning("order %s has no customer", number)
    logjam.current().fields["order"] = number
    return {"order": number}, 201


@app.get("/orders/<number>/items")
def items(number: str) -> Response:
    def rows() -> Iterator[str]:
        for n in range(5):
            log.info("order %s item %d", number, n)  # the request goes on until the last row is sent
            yield f"item {n} of order {number}\n"

    return Response(rows(), mimetype="text/plain")


@app.get("/orders/<number>/stock")
def stock(number: str) -> dict[str, object]:
    log.info("order %s asks for its stock", number)
    # The other application's document says who asked: caller_id and caller_action.
    asked = Request(f"{STOCK}/items/{number}/count", headers=logjam.current().caller_headers())
    with logjam.current().measure("stock"), urlopen(asked, timeout=10) as answer:
        found = json.load(answer)
    log.info("order %s has %d in stock", number, found["count"])
    return found


@app.get("/orders/<number>/refund")
def refund(number: str) -> None:
    log.info("order %s is to be refunded", number)
    raise LookupError(f"order {number} was never paid")  # Flask logs it: code 500, and its name
