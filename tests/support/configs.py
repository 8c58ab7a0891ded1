"""Configurations for tests of one part, which may need values that a user cannot give."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from logclient.config import registry
from logclient.config.common import Config
from logclient.config.option import declared_options
from logclient.config.secrets import Secret


def config_for(scheme: str, path: str = "", **values: Any) -> Any:
    """Make a configuration whose values are checked against each other, not against their ranges.

    The values may be those of constants, too.
    """
    kind: type[Config] = registry.load(registry.lookup(scheme).config)
    options = {name: option.default for name, option in declared_options(kind).items()}
    assert all(hasattr(kind, name) for name in values)
    options |= values
    kind.complete(scheme, options, set(values))
    given = {name: name for name in values}
    return kind(scheme=scheme, path=path, endpoints=(), redacted=f"{scheme}://", given=given, **options)


def logux_config(token: str | None = None, **values: Any) -> Any:
    """Make a configuration for Logux, with a token as text."""
    return config_for("logux", token=None if token is None else Secret(token), **values)


def record_codecs(patch: pytest.MonkeyPatch, core: str) -> list[tuple[Any, ...]]:
    """Return a list that gets the arguments of each codec that a core's module makes, keywords last."""
    module = import_module(core)
    made: list[tuple[Any, ...]] = []
    codec = module.Codec

    def make(*args: Any, **options: Any) -> Any:
        made.append((*args, options))
        return codec(*args, **options)

    patch.setattr(module, "Codec", make)
    return made
