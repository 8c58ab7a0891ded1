"""``logclient check --logging MODULE:NAME``: which way the calls of a program's loggers go."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from logclient import Handler, Logger
from logclient.errors import ConfigError, ExitCode, described
from logclient.readable import escape

_FORM = "--logging: must be MODULE:NAME, as in shop.settings:LOGGING"


def run(target: str, as_json: bool) -> int:
    """Configure logging as a program does, and print a line for each of its loggers."""
    _configure(target)
    made: dict[str, Any] = dict(logging.root.manager.loggerDict)
    loggers = [found for _, found in sorted(made.items()) if isinstance(found, logging.Logger)]
    fast, fixes = 0, dict[str, None]()
    for logger in loggers:
        why = Logger.why_slow(logger.name)
        mend = _mend(logger, why) if why else ""
        fast += not why
        if mend:
            fixes[mend] = None
        if as_json:
            print(json.dumps({"logger": logger.name, "fast": not why, "why": why, "mend": mend}))
        else:
            print(escape(f"{logger.name}: {f'slow: {why}' if why else 'fast'}"))
    if not as_json:
        none = "only the root logger is configured, and no other has been made"
        print(f"{fast} of {len(loggers)} loggers are fast" if loggers else none)
        print(*(escape(f"to fix:  {mend}") for mend in fixes), sep="\n", end="\n" if fixes else "")
    return ExitCode.OK


def _configure(target: str) -> None:
    """Import a module, and call its function or give its mapping to ``dictConfig``."""
    module, _, name = target.partition(":")
    if not module or not name or module.startswith("."):
        raise ConfigError(_FORM)
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ConfigError(f"{_FORM}; {_explain(error)}") from error
    if not isinstance(found, Mapping) and not callable(found):
        raise ConfigError(f"--logging: {target} is neither a function nor a mapping for dictConfig")
    try:
        if isinstance(found, Mapping):
            logging.config.dictConfig(dict(found))
        else:
            found()
    except Exception as error:
        raise ConfigError(f"--logging: {target} failed: {_explain(error)}") from error


def _explain(error: BaseException) -> str:
    """Return the error with its causes, as those of ``dictConfig`` say the reason."""
    text = described(error)
    return text if error.__cause__ is None else f"{text}: {_explain(error.__cause__)}"


def _mend(logger: logging.Logger, why: str) -> str:
    """Return what makes a slow logger fast; empty: the reason says it."""
    if not isinstance(logger, Logger):
        return "call logging.setLoggerClass(logclient.Logger) before the first import that makes loggers"
    if logger.disabled:
        return "set disable_existing_loggers to false in the mapping for dictConfig"
    if why == "it has no handler":
        return "add a logclient.Handler to them, or to the root logger: nothing that they log is shipped"
    at: logging.Logger | None = logger if "is no logclient.Handler" in why else None
    while at is not None:
        for handler in at.handlers:
            if not isinstance(handler, Handler):
                return _removal(at, handler)
        at = at.parent if at.propagate else None
    return ""


def _removal(owner: logging.Logger, handler: logging.Handler) -> str:
    """Return why another handler makes loggers slow."""
    place = "the root logger" if owner is logging.root else f"the logger {owner.name}"
    kind, output = type(handler).__name__, "what it writes"
    stream = getattr(handler, "stream", None)
    if stream is not None and stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__):
        kind, output = f"console handler ({kind})", "the console"
    return (
        f"{place} has a {kind}, which needs a log record for each call that its level lets through; "
        "making one takes most of a call's time: raise that level, or remove the handler where nobody reads "
        f"{output}"
    )
