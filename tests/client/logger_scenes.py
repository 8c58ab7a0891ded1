"""What programs and tools do to logging while it is used, with one kind of logger.

    python -m tests.client.logger_scenes compiled|plain

Each scene runs in a process of its own, forked from this one. One line of JSON for each: its name, the
documents of our handler, and what others have seen.
"""

from __future__ import annotations

import importlib
import json
import logging
import logging.config
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger

KINDS: dict[str, type[logging.Logger]] = {"compiled": Logger, "plain": logging.Logger}


class Memory(logging.Handler):
    """Keeps what records say."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append([record.name, record.levelname, record.getMessage(), record.lineno, record.funcName])


class Scene:
    """A program with our handler at the root."""

    def __init__(self, kind: type[logging.Logger]) -> None:
        logging.setLoggerClass(kind)
        self.handler = logclient.Handler(NOWHERE)
        self.queue = QueueOnly(self.handler.client)
        self.root = logging.getLogger()
        self.root.handlers[:] = [self.handler]
        self.root.setLevel(logging.INFO)
        self.logger = logging.getLogger("shop.cart")
        self.seen: list[Any] = []
        self.memory = Memory(self.seen)

    def log(self) -> None:
        """Log in several ways."""
        self.logger.info("user %s did %s", "alice", "checkout", extra={"n": len(self.seen)})
        self.logger.log(25, "between")
        self.logger.debug("never")
        try:
            raise KeyError("basket")
        except KeyError:
            self.logger.exception("failed", stacklevel=2)

    def result(self) -> list[Any]:
        bodies = [json.loads(body) for body in self.queue.take()]
        for body in bodies:
            for name in ("@timestamp", "process", "trace", "span"):
                body.pop(name, None)
        return [bodies, self.seen]


def sentry(scene: Scene) -> None:
    import sentry_sdk
    from sentry_sdk.integrations.logging import LoggingIntegration

    def event(made: Any, hint: Any) -> None:
        scene.seen.append(["event", made["logger"], made["logentry"]["message"], made["level"]])

    def crumb(made: Any, hint: Any) -> Any:
        scene.seen.append(["crumb", made["category"], made["message"]])
        return made

    sentry_sdk.init(
        "http://key@127.0.0.1:9/1", default_integrations=False, integrations=[LoggingIntegration()],
        before_send=event, before_breadcrumb=crumb,
    )  # fmt: skip
    scene.log()
    assert scene.seen
    sentry_sdk.init(default_integrations=False)
    scene.log()


def opentelemetry(scene: Scene) -> None:
    from opentelemetry.instrumentation.logging import LoggingInstrumentor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    instrumentor = LoggingInstrumentor()
    instrumentor.instrument(
        tracer_provider=provider, inject_trace_context=True, enable_log_auto_instrumentation=False,
        log_hook=lambda span, record: scene.seen.append(record.getMessage()),
    )  # fmt: skip
    with provider.get_tracer("tests").start_as_current_span("outer"):
        scene.log()
    assert scene.seen
    instrumentor.uninstrument()
    scene.log()


def _wrap(scene: Scene, where: Any, name: str) -> Callable[[], None]:
    import wrapt

    before = where.__dict__[name]

    def noted(wrapped: Any, instance: Any, args: Any, named: Any) -> Any:
        scene.seen.append(name)
        return wrapped(*args, **named)

    wrapt.wrap_function_wrapper(where, name, noted)
    return lambda: setattr(where, name, before)


def _wrapped(scene: Scene, places: Iterable[tuple[Any, str]]) -> None:
    undo = [_wrap(scene, where, name) for where, name in places]
    scene.log()
    assert scene.seen
    for one in undo:
        one()
    scene.log()


def ddtrace(scene: Scene) -> None:
    """Wrap where ddtrace does."""
    places = [(logging.Logger, "makeRecord"), (logging.StrFormatStyle, "_format")]
    scene.root.addHandler(scene.memory)
    scene.memory.setFormatter(logging.Formatter("{message}", style="{"))
    scene.log()
    scene.root.removeHandler(scene.memory)
    _wrapped(scene, places)


def newrelic(scene: Scene) -> None:
    """Wrap where New Relic does."""
    _wrapped(scene, [(logging.Logger, "callHandlers"), (logging.Formatter, "format")])


def wrapped_formatter(scene: Scene) -> None:
    """Wrap what our handler does not use, and give it a formatter that does."""
    undo = _wrap(scene, logging.Formatter, "format")
    scene.log()
    assert not scene.seen
    scene.handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    scene.log()
    assert scene.seen
    undo()
    scene.handler.setFormatter(None)
    scene.log()


def _config(scene: Scene, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "handlers": {"ours": {"()": lambda: scene.handler}, "memory": {"()": lambda: scene.memory}},
        "disable_existing_loggers": False,
        **more,
    }


def dict_config(scene: Scene) -> None:
    logging.config.dictConfig(_config(scene, root={"handlers": ["ours", "memory"], "level": "INFO"}))
    scene.log()
    assert scene.seen
    logging.config.dictConfig(_config(scene, root={"handlers": ["ours"], "level": "INFO"}))
    scene.log()


def dict_config_of_a_logger(scene: Scene) -> None:
    loggers = {"shop": {"handlers": ["memory"], "propagate": False, "level": "ERROR"}}
    logging.config.dictConfig(_config(scene, loggers=loggers))
    scene.log()
    assert scene.seen
    logging.config.dictConfig(_config(scene, loggers={"shop": {"propagate": True, "level": "INFO"}}))
    scene.log()


def dict_config_disables(scene: Scene) -> None:
    config = _config(scene, root={"handlers": ["ours"], "level": "INFO"}, disable_existing_loggers=True)
    logging.config.dictConfig(config)
    scene.log()
    logging.config.dictConfig({**config, "loggers": {"shop.cart": {"level": "INFO"}}})
    scene.log()


def dict_config_by_increments(scene: Scene) -> None:
    logging.config.dictConfig(
        {"version": 1, "incremental": True, "loggers": {"shop.cart": {"level": "ERROR"}}}
    )
    scene.log()
    logging.config.dictConfig(
        {"version": 1, "incremental": True, "loggers": {"shop.cart": {"level": "DEBUG"}}}
    )
    scene.log()


FILE = """
[loggers]
keys=root,shop
[handlers]
keys=file
[formatters]
keys=short
[logger_root]
handlers=
[logger_shop]
qualname=shop
handlers=file
[handler_file]
class=FileHandler
args=({path!r},)
formatter=short
[formatter_short]
format=%(levelname)s %(message)s %(lineno)d
"""


def file_config(scene: Scene) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config, written = Path(folder, "logging.ini"), Path(folder, "shop.log")
        config.write_text(FILE.format(path=str(written)))
        logging.config.fileConfig(config, disable_existing_loggers=False)
        scene.log()
        scene.root.addHandler(scene.handler)
        scene.log()
        for handler in logging.getLogger("shop").handlers:
            handler.close()
        scene.seen.append(written.read_text().replace(str(Path(__file__)), "here"))
        assert scene.seen[-1].count("failed") == 2


def basic_config(scene: Scene) -> None:
    logging.basicConfig(handlers=[scene.memory])  # nothing: the root has a handler
    scene.log()
    assert not scene.seen
    logging.basicConfig(handlers=[scene.memory, scene.handler], force=True, level=logging.DEBUG)
    scene.log()
    assert scene.seen
    logging.basicConfig(handlers=[scene.handler], force=True, level=logging.INFO)
    scene.log()


def disable(scene: Scene) -> None:
    for level in (logging.INFO, logging.CRITICAL, logging.NOTSET):
        logging.disable(level)
        scene.log()


def capture_warnings(scene: Scene) -> None:
    for capture in (True, False, True):
        logging.captureWarnings(capture)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            if not capture:
                warnings.simplefilter("ignore")
            warnings.warn("old", UserWarning, stacklevel=1)
            logging.getLogger("py.warnings").handlers.clear()  # its NullHandler
            warnings.warn("older", UserWarning, stacklevel=1)
    logging.captureWarnings(False)


def shutdown(scene: Scene) -> None:
    logging.shutdown()
    scene.log()
    scene.root.addHandler(scene.memory)
    scene.log()
    assert scene.seen


def removed_from_the_manager(scene: Scene) -> None:
    before = scene.logger
    del logging.Logger.manager.loggerDict["shop.cart"]
    scene.log()
    scene.logger = logging.getLogger("shop.cart")
    assert scene.logger is not before
    scene.logger.addHandler(scene.memory)
    scene.log()
    scene.logger = before
    scene.log()


def parents_made_later(scene: Scene) -> None:
    """Make a logger between the logger and the root."""
    parent = logging.getLogger("shop")
    scene.log()
    parent.addHandler(scene.memory)
    scene.log()
    parent.propagate = False
    scene.log()
    assert scene.seen


def another_logger_class(scene: Scene) -> None:
    class Sub(logging.getLoggerClass()):  # type: ignore[misc]
        def makeRecord(self, *args: Any, **named: Any) -> logging.LogRecord:
            scene.seen.append(args[0])
            made: logging.LogRecord = super().makeRecord(*args, **named)
            return made

    logging.setLoggerClass(Sub)
    scene.log()
    scene.logger = logging.getLogger("shop.other")
    scene.log()
    assert scene.seen


def records_of_another_class(scene: Scene) -> None:
    class Record(logging.LogRecord):
        def getMessage(self) -> str:
            scene.seen.append(self.msg)
            return super().getMessage() + "!"

    logging.setLogRecordFactory(Record)
    scene.log()
    assert scene.seen
    logging.setLogRecordFactory(logging.LogRecord)
    scene.log()


def level_names(scene: Scene) -> None:
    for name in ("NOTE", "REMARK"):
        logging.addLevelName(25, name)
        scene.log()
    logging.addLevelName(logging.INFO, "Hinweis")
    scene.log()


def reloaded(scene: Scene) -> None:
    importlib.reload(logging)
    scene.log()
    scene.root.addHandler(scene.memory)
    scene.log()
    assert scene.seen


def swallowed_errors(scene: Scene) -> None:
    """Let a handler fail, loudly and silently."""

    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                raise ValueError(record.msg)
            except ValueError:
                self.handleError(record)

        def handleError(self, record: logging.LogRecord) -> None:
            scene.seen.append([record.msg, logging.raiseExceptions])

    failing = Failing()
    scene.root.addHandler(failing)
    scene.log()
    logging.raiseExceptions = False
    scene.log()
    scene.root.removeHandler(failing)
    scene.log()
    assert scene.seen


SCENES: dict[str, Callable[[Scene], None]] = {
    scene.__name__: scene
    for scene in (
        sentry, opentelemetry, ddtrace, newrelic, wrapped_formatter, dict_config, dict_config_of_a_logger,
        dict_config_disables, dict_config_by_increments, file_config, basic_config, disable, capture_warnings,
        shutdown, removed_from_the_manager, parents_made_later, another_logger_class,
        records_of_another_class, level_names, reloaded, swallowed_errors,
    )
}  # fmt: skip


def run(name: str, kind: type[logging.Logger]) -> list[Any]:
    """Run a scene, and return the documents of our handler and what others have seen."""
    scene = Scene(kind)
    for _ in range(2):
        scene.log()
    if isinstance(scene.logger, Logger):
        assert Logger.why_slow("shop.cart") == ""
    try:
        SCENES[name](scene)
    except ImportError as error:
        return ["skipped", str(error)]
    return scene.result()


def main() -> None:
    kind = KINDS[sys.argv[1]]
    for name in SCENES:
        sys.stdout.flush()
        if os.fork() == 0:
            try:
                print(json.dumps([name, run(name, kind)]), flush=True)
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        _, status = os.wait()
        if status:
            raise SystemExit(f"{name} failed")


if __name__ == "__main__":
    main()
