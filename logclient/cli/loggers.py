"""``logclient doctor --logging MODULE:NAME``: which way the calls of a program's loggers go."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from logclient.errors import ConfigError, ExitCode
from logclient.readable import escape
from logclient.records.logger import Logger


def run(target: str, as_json: bool) -> int:
    """Configure logging as a program does, and print a line for each of its loggers."""
    _configure(target)
    made: dict[str, Any] = dict(logging.root.manager.loggerDict)
    for name in sorted(name for name, found in made.items() if isinstance(found, logging.Logger)):
        why = Logger.why_slow(name)
        if as_json:
            print(json.dumps({"logger": name, "fast": not why, "why": why}))
        else:
            print(escape(f"{name}: {why or 'fast'}"))
    return ExitCode.OK


def _configure(target: str) -> None:
    """Import a module, and call its function or give its mapping to ``dictConfig``."""
    module, _, name = target.partition(":")
    sys.path.insert(0, "")  # as with `python -m`
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--logging: must be MODULE:NAME, as in shop.settings:LOGGING: {error}") from error
    if isinstance(found, Mapping):
        logging.config.dictConfig(dict(found))
    elif callable(found):
        found()
    else:
        raise ConfigError(f"--logging: {target} is neither a function nor a mapping for dictConfig")
