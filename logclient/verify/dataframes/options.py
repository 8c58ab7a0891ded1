"""The options of the data sources."""

from __future__ import annotations

import json
from typing import Any

from logclient.errors import ConfigError
from logclient.evidence import storage

PATHS = "paths"  # the option in which Spark, too, passes several paths, as JSON


def folders_of(options: Any, what: str, *names: str) -> list[str]:
    """Return the places of some options, each of them a place or a list of them as JSON."""
    given: list[str] = []
    for name in names:
        text = str(options.get(name) or "")
        found: Any = [text] if text else []
        if text and (name == PATHS or text.startswith("[")):
            try:
                found = json.loads(text)
            except ValueError:
                found = None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ConfigError(f"{name}: it must be a list of paths as JSON: give them to load()")
        given += found
    if not given:
        raise ConfigError(f"{names[0]}: the folder of a {what} must be given")
    return storage.resolve_all(given, what)


def choice_of(name: str, options: Any, *choices: str) -> bool:
    """Return whether an option has the second of two values; the first one is the default."""
    given = str(options.get(name, choices[0]))
    if given.upper() not in (choice.upper() for choice in choices):
        raise ConfigError(f"{name}: {given!r} must be {' or '.join(choices)}")
    return given.upper() == choices[1].upper()
