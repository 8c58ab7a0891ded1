"""What is done to each module of `process.MODULES` after its import. Only public names are replaced.

Until the program logs, nothing of logclient is loaded that takes time.
"""

from __future__ import annotations

import os
import signal
import sys
from _thread import RLock
from functools import cache, partial, wraps

from logclient.run.early import log_first, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_loading = RLock()
"""Held while the first record loads logclient: the child of a fork would wait for this import for ever."""

threading = log_first  # what ends a thread of a program that does not import logging


def logging(module: Any) -> None:
    """Ship what the handlers of the program get, also those of loggers that do not pass on their records.

    This is no handler, so the program's configuration is not touched, and does not touch it.
    """
    original = module.Logger.callHandlers
    ship: Any = None

    @wraps(original)
    def callHandlers(logger: Any, record: Any) -> None:
        nonlocal ship
        try:
            original(logger, record)
        finally:
            try:
                if ship is None:
                    with _loading:
                        from logclient.run.shipping import handler, ship

                    callHandlers.__dict__["beside"] = handler  # for `logclient.Logger`
                    if module.Logger.callHandlers is callHandlers:
                        module.Logger.callHandlers = callHandlers
                ship(logger, record)
            except Exception:  # of a record in the middle of this import, or at the very end
                pass

    module.Logger.callHandlers = callHandlers
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
    wanted = os.environ.get("LOGCLIENT_RUN_LOGGER", "").strip()
    if wanted.lower() in ("true", "yes", "on", "1"):
        from logclient.records.logger import Logger

        module.setLoggerClass(Logger)
    elif wanted.lower() not in ("", "false", "no", "off", "0"):
        say(ValueError(f"LOGCLIENT_RUN_LOGGER: must be true or false, got {wanted!r}"))
    from logclient.records.uncaught import log_uncaught

    uncaught = module.Logger("uncaught")  # of which the program's handlers get nothing: Python prints it
    uncaught.addHandler(module.NullHandler())
    log_uncaught(uncaught)
    multiprocessing = sys.modules.get("multiprocessing.process")
    if "--multiprocessing-fork" in sys.orig_argv:  # it is spawned, and its parent is not known yet
        return
    if multiprocessing is None or multiprocessing.parent_process() is None:
        _deliver_on_sigterm()


def _before_fork() -> None:
    """Wait until logclient is loaded, but not for ever: that may wait for what this thread holds."""
    _loading.acquire(timeout=10.0)


def _after_fork() -> None:
    global _loading
    try:
        _loading.release()
    except RuntimeError:  # it was not to be had
        _loading = RLock()


def _deliver_on_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        try:
            signal.signal(signal.SIGTERM, _end)
        except ValueError:  # not the main thread
            pass


def _end(number: int, frame: Any) -> None:
    """Deliver if anything was logged, then end as the program would have ended."""
    signal.signal(number, signal.SIG_DFL)
    lifecycle: Any = sys.modules.get("logclient.delivery.lifecycle")
    if lifecycle is None:
        os.kill(os.getpid(), number)
    else:
        lifecycle.flush_on_sigterm()
        deliver: Any = signal.getsignal(number)
        deliver(number, frame)


def multiprocessing_util(module: Any) -> None:
    """Leave SIGTERM alone in children, which wait in C code where a handler may never be called."""

    def restore(_: Any) -> None:
        if signal.getsignal(signal.SIGTERM) is _end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    module.register_after_fork(_end, restore)


def uvicorn_server(module: Any) -> None:
    """Deliver in its workers, too: at its end it restores the handler from before, and raises the signal."""
    original = module.Server.serve

    @wraps(original)
    async def serve(*args: Any, **named: Any) -> Any:
        _deliver_on_sigterm()
        return await original(*args, **named)

    module.Server.serve = serve


@cache  # Flask and Starlette ask at each request
def _records() -> dict[str, Any]:
    """Return the logger that gets a record for each request or task, and those that have none."""
    from logclient.integrations import request_fields

    def ship(logger: Any, record: Any) -> None:
        from logclient.run import shipping

        shipping.ship(logger, record)

    request_fields.beside = ship
    skip = filter(None, map(str.strip, os.environ.get("LOGCLIENT_RUN_SKIP", "").split(",")))
    return {
        "logger": os.environ.get("LOGCLIENT_RUN_REQUESTS", "").strip() or None,
        "skip": [int(one) if one.isdecimal() else one for one in skip],
    }


def _django(module: Any, name: str) -> None:
    """Put our middleware before those of the settings."""
    original = getattr(module, name)

    @wraps(original)
    def get_application(*args: Any, **named: Any) -> Any:
        try:
            from django.conf import settings

            ours = "logclient.integrations.django.RequestContext"
            if ours not in settings.MIDDLEWARE:
                settings.MIDDLEWARE = [ours, *settings.MIDDLEWARE]
                for name, value in _records().items():
                    name = f"LOGCLIENT_REQUEST_{name.upper()}"
                    setattr(settings, name, getattr(settings, name, None) or value)
        except Exception:  # settings that are wrong: Django says so
            pass
        return original(*args, **named)

    setattr(module, name, get_application)


django_core_wsgi = partial(_django, name="get_wsgi_application")
django_core_asgi = partial(_django, name="get_asgi_application")


def flask_app(module: Any) -> None:
    """Put our middleware around each application, inside of what the program puts around it."""
    original = module.Flask.wsgi_app

    @wraps(original)
    def wsgi_app(app: Any, environ: Any, start_response: Any) -> Any:
        from logclient.integrations.flask import RequestContext

        inner = RequestContext(partial(original, app), **_records())
        return inner(environ, start_response)

    module.Flask.wsgi_app = wsgi_app


def starlette_applications(module: Any) -> None:
    """Put our middleware around each application that has not added it itself."""
    original = module.Starlette.__call__

    @wraps(original)
    async def call(app: Any, scope: Any, receive: Any, send: Any) -> None:
        from logclient.integrations.starlette import RequestContext

        if any(one.cls is RequestContext for one in app.user_middleware):
            await original(app, scope, receive, send)
        else:
            await RequestContext(partial(original, app), **_records())(scope, receive, send)

    module.Starlette.__call__ = call


def aiohttp_web_app(module: Any) -> None:
    """Put our middleware into each application; one that the program installs later is around it."""
    original = module.Application.__init__

    @wraps(original)
    def init(app: Any, *args: Any, **named: Any) -> None:
        original(app, *args, **named)
        from logclient.integrations.aiohttp import install

        install(app, **_records())

    module.Application.__init__ = init


def celery_signals(module: Any) -> None:
    """Connect to the signals of tasks; what the program installs later takes the place of this."""
    from logclient.integrations.celery import connect

    connect(module, **_records())
