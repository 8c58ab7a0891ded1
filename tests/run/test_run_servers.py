"""``logclient run`` with real servers, whose programs know nothing of logclient, or have its middleware."""

from __future__ import annotations

import http.client
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.app_servers import LIMIT_S, Server, Site, program, serving, wait_for

pytestmark = pytest.mark.tree

FLASK = """
import logging, os
from flask import Flask
app = Flask("shop")
@app.get("/order/<name>")
def order(name):
    logging.getLogger("shop").warning("order %s by %d", name, os.getpid())
    return ""
if "OWN" in os.environ:
    logging.getLogger("access").setLevel("INFO")
    from logclient.integrations.flask import init_app
    init_app(app, logger="access")
"""

FASTAPI = """
import logging, os
from fastapi import FastAPI
app = FastAPI()
@app.get("/order/{name}")
def order(name: str):
    logging.getLogger("shop").warning("order %s by %d", name, os.getpid())
if "OWN" in os.environ:
    logging.getLogger("access").setLevel("INFO")
    from logclient.integrations.starlette import RequestContext
    app.add_middleware(RequestContext, logger="access")
"""

AIOHTTP = """
import logging, os, sys
from aiohttp import web
async def order(request):
    logging.getLogger("shop").warning("order %s by %d", request.match_info["name"], os.getpid())
    return web.Response()
app = web.Application()
app.add_routes([web.get("/order/{name}", order)])
if "OWN" in os.environ:
    logging.getLogger("access").setLevel("INFO")
    from logclient.integrations.aiohttp import install
    install(app, logger="access")
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
"""

DJANGO = """
import logging, os, sys
from django.http import HttpResponse
from django.urls import path
DEBUG, SECRET_KEY, ROOT_URLCONF, ALLOWED_HOSTS = True, "x", "shop", ["*"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
if "OWN" in os.environ:
    logging.getLogger("access").setLevel("INFO")
    MIDDLEWARE.insert(0, "logclient.integrations.django.RequestContext")
    LOGCLIENT_REQUEST_LOGGER = "access"
def order(request, name):
    logging.getLogger("shop").warning("order %s by %d", name, os.getpid())
    return HttpResponse()
urlpatterns = [path("order/<name>", order)]
if os.environ.get("WSGI"):
    WSGI_APPLICATION = "shop.application"
os.environ["DJANGO_SETTINGS_MODULE"] = "shop"
if __name__ == "__main__":
    from django.core.management import execute_from_command_line
    execute_from_command_line()
def __getattr__(name):
    if name == "application":
        from django.core.wsgi import get_wsgi_application
        return get_wsgi_application()
    raise AttributeError(name)
"""

PORT = "PORT"
RUNNING = r"http://127\.0\.0\.1:(\d+)"
GUNICORN = ["gunicorn", "--bind", "127.0.0.1:0", "shop:app"]
UVICORN = ["uvicorn", "--port", "0", "shop:app"]
SERVERS: dict[str, tuple[str, Sequence[str]]] = {
    "flask": (FLASK, ["flask", "--app", "shop", "run", "--port", "0"]),
    "gunicorn": (FLASK, [*GUNICORN, "--workers", "2"]),
    "gunicorn-preload": (FLASK, [*GUNICORN, "--workers", "2", "--preload"]),
    "gunicorn-gevent": (FLASK, [*GUNICORN, "--worker-class", "gevent"]),
    "uvicorn": (FASTAPI, UVICORN),
    "uvicorn-workers": (FASTAPI, [*UVICORN, "--workers", "2"]),
    "uvicorn-reload": (FASTAPI, [*UVICORN, "--reload"]),
    "aiohttp": (AIOHTTP, [sys.executable, "shop.py", PORT]),
    "runserver": (DJANGO, [sys.executable, "shop.py", "runserver", f"127.0.0.1:{PORT}"]),
    "runserver-wsgi": (DJANGO, [sys.executable, "shop.py", "runserver", f"127.0.0.1:{PORT}"]),
    "django-asgi": (DJANGO.replace("wsgi", "asgi"), ["uvicorn", "--port", "0", "shop:application"]),
}


class Running(NamedTuple):
    site: Site
    server: Server
    port: int

    def ask(self, name: str) -> str:
        """Ask for a page; return the id of the request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", f"/order/{name}")
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            return response.headers["X-Request-Id"]
        finally:
            connection.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
    except OSError:
        return False
    return True


@contextmanager
def running(name: str, folder: Path, **variables: str) -> Iterator[Running]:
    text, command = SERVERS[name]
    pytest.importorskip({FLASK: "flask", FASTAPI: "fastapi", AIOHTTP: "aiohttp"}.get(text, "django"))
    (folder / "shop.py").write_text(text)
    port = free_port()
    command = [word.replace(PORT, str(port)) for word in command]
    command[0] = command[0] if command[0] == sys.executable else program(command[0])
    with Site(folder) as site:
        variables["LOGCLIENT_RUN_REQUESTS"] = "ours" if "OWN" in variables else "access"
        variables |= {"LOGCLIENT_URL": site.url, "PYTHONUNBUFFERED": "1"}
        variables |= {"LOGCLIENT_RUN_SKIP": "*/unseen, 404"}
        run = [sys.executable, "-m", "logclient.run", *command]
        with serving(run, folder, folder / "out", **variables) as server:
            if str(port) not in " ".join(command):
                port = int(server.said(RUNNING)[0])
            wait_for(lambda: answers(port), "the server")
            yield Running(site, server, port)


@pytest.mark.parametrize("own", [False, True], ids=["plain", "own"])
@pytest.mark.parametrize("name", SERVERS)
def test_records_of_requests_arrive_with_one_id(name: str, own: bool, tmp_path: Path) -> None:
    variables = {"OWN": "1"} if own else {}
    if name == "runserver-wsgi":
        variables["WSGI"] = "1"
    with running(name, tmp_path, **variables) as run:
        ids = {run.ask(f"{n}") for n in range(20)}
        assert len(ids) == 20 and None not in ids
        unseen = None if own else run.ask("unseen")
        if name.startswith("runserver"):  # its reloader kills the server by -9
            wait_for(lambda: [e["log.logger"] for e in run.site.events()].count("access") >= 20, "all")
        assert run.server.end(signal.SIGTERM) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        events: list[dict[str, Any]] = run.site.events()
        skipped = [event for event in events if unseen and event.get("http.request.id") == unseen]
        assert own or "access" not in {event["log.logger"] for event in skipped}
        events = [event for event in events if event not in skipped]
        shop = [event for event in events if event["log.logger"] == "shop"]
        access = [event for event in events if event["log.logger"] == "access"]
        for found in (shop, access):
            assert len(found) == 20
            assert {event["http.request.id"] for event in found} == ids
        assert {event["http.response.status_code"] for event in access} == {200}
        assert len({event["event.id"] for event in events}) == len(events)
        messages = [event["message"].partition(" [")[0] for event in events]
        assert messages.count("Finished server process") == messages.count("Started server process")
        ends = {lines[-1]["t"] for lines in run.site.ledgers().values()}
        assert name.startswith("runserver") or ends == {"close"}
        server = {"uvicorn": "uvicorn.error", "gunicorn": "gunicorn.error"}.get(name.partition("-")[0])
        assert server is None or server in {event["log.logger"] for event in events}


CELERY = """
import logging, os
from celery import Celery
app = Celery("shop", broker="filesystem://")
folder = os.environ["BROKER_FOLDER"]
app.conf.broker_transport_options = {
    "data_folder_in": folder, "data_folder_out": folder, "control_folder": folder + "/control"}
log = logging.getLogger("shop")
@app.task
def order(n):
    log.warning("order %s by %d", n, os.getpid())
if __name__ == "__main__":
    import logclient
    for n in range(20):
        with logclient.bind({"http.request.id": f"r-{n}"}):
            log.warning("sent %d", n)
            order.delay(n)
"""


def test_tasks_of_celery_have_their_fields_and_the_request(tmp_path: Path) -> None:
    """Sent by one program, done by the pool of another."""
    pytest.importorskip("celery")
    (tmp_path / "shop.py").write_text(CELERY)
    run = [sys.executable, "-m", "logclient.run"]
    broker = tmp_path / "broker"
    (broker / "control").mkdir(parents=True)
    with Site(tmp_path) as site:
        variables = {"LOGCLIENT_URL": site.url, "LOGCLIENT_RUN_REQUESTS": "access"}
        variables["BROKER_FOLDER"] = str(broker)
        with serving([*run, sys.executable, "shop.py"], tmp_path, tmp_path / "send", **variables) as sender:
            assert sender.wait() == 0
        worker = [*run, program("celery"), "-A", "shop", "worker", "--loglevel", "INFO", "--concurrency", "2"]
        with serving(worker, tmp_path, tmp_path / "out", **variables) as server:

            def named(logger: str) -> list[dict[str, Any]]:
                return [event for event in site.events() if event["log.logger"] == logger]

            wait_for(lambda: len(named("access")) >= 20, "all tasks")
            assert server.end(signal.SIGTERM) == 0
        done = [event for event in named("shop") if event["message"].startswith("order")]
        for found in (done, named("access")):
            assert {event["http.request.id"] for event in found} == {f"r-{n}" for n in range(20)}
            assert {event["celery.task.name"] for event in found} == {"shop.order"}
            assert len(found) == 20
        assert any("ready" in message for message in site.messages())
