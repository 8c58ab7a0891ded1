"""Formatters that configurations name by their class, and that are copied and pickled."""

from __future__ import annotations

import copy
import io
import json
import logging
import logging.config
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import logclient
from logclient import ConfigError
from logclient.records.formatters import DocumentFormatter, EcsFormatter
from tests.support.documents import dotted

KINDS = (EcsFormatter, DocumentFormatter)
NAME = "tests.formatter_classes"
WRITTEN = io.StringIO()
"""Where the handler of a configuration writes to."""

FILE = f"""[loggers]
keys=root,it
[handlers]
keys=stream
[formatters]
keys=ours
[logger_root]
level=WARNING
handlers=
[logger_it]
level=DEBUG
handlers=stream
qualname={NAME}
propagate=0
[handler_stream]
class=StreamHandler
formatter=ours
args=(__import__("{__name__}", fromlist=["x"]).WRITTEN,)
[formatter_ours]
class=logclient.records.formatters.%s
"""


@pytest.fixture(autouse=True)
def configuration() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(NAME).handlers.clear()


def _logged() -> dict[str, Any]:
    WRITTEN.seek(0)
    WRITTEN.truncate()
    logging.getLogger(NAME).info("order %s", 17, extra={"own": 1})
    made: dict[str, Any] = json.loads(WRITTEN.getvalue())
    return made


def _by_dict(formatter: dict[str, Any]) -> dict[str, Any]:
    logging.config.dictConfig({
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"ours": formatter},
        "handlers": {"stream": {"class": "logging.StreamHandler", "stream": WRITTEN, "formatter": "ours"}},
        "loggers": {NAME: {"handlers": ["stream"], "level": "DEBUG", "propagate": False}},
    })  # fmt: skip
    return _logged()


def _record() -> logging.LogRecord:
    return logging.LogRecord("shop", 20, "/srv/shop.py", 7, "paid", (), None, "pay")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [
    {}, {"format": "%(asctime)s %(message)s"}, {"format": "{message}", "style": "{", "datefmt": "%H:%M"},
    {"format": "$message", "style": "$", "validate": True}, {"validate": False},
])  # fmt: skip
def test_dict_config_names_a_class(kind: type, more: dict[str, Any]) -> None:
    made = dotted(_by_dict({"class": f"{kind.__module__}.{kind.__qualname__}", **more}))
    assert (made["message"], made["own"], made["log.logger"]) == ("order 17", 1, NAME)


def test_dict_config_names_a_form_as_the_format() -> None:
    made = _by_dict({"class": "logclient.records.formatters.DocumentFormatter", "format": "gelf"})
    assert (made["short_message"], made["_own"]) == ("order 17", 1)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="logging.config passes defaults from 3.12 on")
@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_fields(kind: type) -> None:
    defaults = {"tenant": "acme", "own": 0}
    made = _by_dict({"class": f"{kind.__module__}.{kind.__qualname__}", "defaults": defaults})
    assert (made["tenant"], made["own"]) == ("acme", 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", ["", "format=%%(levelname)s %%(message)s\ndatefmt=%%H:%%M\nstyle=%%\n"])
def test_file_config_names_a_class(kind: type, more: str) -> None:
    logging.config.fileConfig(
        io.StringIO(FILE % kind.__qualname__ + more.replace("%%(", "%(").replace("%%", "%")),
        disable_existing_loggers=False,
    )
    assert _logged()["message"] == "order 17"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((None, None, "%"), {}),
        (("%(message)s", "%H:%M", "%", False), {}),
        ((), {"fmt": "%(message)s", "datefmt": None, "style": "%", "validate": True}),
        ((), {"fmt": "{message}", "style": "{", "defaults": {"tenant": "acme"}}),
    ],
)
def test_arguments_of_the_standard_library(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    logging.Formatter(*args, **kwargs)
    made = json.loads(kind(*args, **kwargs).format(_record()))
    assert made["message"] == "paid"
    assert ("tenant" in made) == ("defaults" in kwargs)


def test_our_arguments_stay() -> None:
    assert json.loads(EcsFormatter({"a": 1}).format(_record()))["a"] == 1
    assert json.loads(DocumentFormatter("json", {"a": 1}).format(_record()))["a"] == 1
    assert json.loads(DocumentFormatter(fmt="json").format(_record()))["level"] == "INFO"
    with pytest.raises(ConfigError, match=r"form: must be ecs, .* got 'xml'"):
        DocumentFormatter("xml")


class Sub(DocumentFormatter):
    def __init__(self, team: str) -> None:
        super().__init__("otel", {"team": team}, error_fingerprint=True)
        self.team = team

    def formatException(self, ei: Any) -> str:
        return f"trace of {self.team}"


COPIES: list[Callable[[Any], Any]] = [
    copy.copy, copy.deepcopy, *(lambda made, n=n: pickle.loads(pickle.dumps(made, n)) for n in range(6)),
]  # fmt: skip


@pytest.mark.parametrize("form", ["ecs", "ecs_dotted", "logstash", "otel", "gelf", "json", "of a subclass"])
@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_writes_the_same(form: str, copied: Callable[[Any], Any]) -> None:
    one = Sub("a") if form == "of a subclass" else DocumentFormatter(form, {"a": 1}, error_fingerprint=True)
    other = copied(one)
    assert type(other) is type(one) and other.fields == one.fields
    record = _record()
    try:
        raise KeyError("x")
    except KeyError:
        record.exc_info = sys.exc_info()
    first, second = (made.format(copy.copy(record)) for made in (one, other))
    assert first == second
    assert ("trace of a" in first) == (form == "of a subclass")


@pytest.mark.parametrize("copied", COPIES)
def test_what_has_a_connection_is_not_copied(copied: Callable[[Any], Any]) -> None:
    with logclient.connect("lumberjack://127.0.0.1:9") as client:
        for one in (client, logclient.Handler(client=client)):
            with pytest.raises(TypeError, match=f"cannot pickle '.*{type(one).__name__}' object"):
                copied(one)
