"""Options that may change while a client runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logclient.config.common import Config
from logclient.config.hosts import host_port
from logclient.config.option import declared_options
from logclient.config.parsing import parse
from logclient.errors import ConfigError

__all__ = ["MOVING", "changed"]

MOVING = ("connect_timeout", "ca", "cert", "key", "tls_password", "server_name", "verify")
"""Options of connections: the next one has them."""

_CHANGEABLE = (*MOVING, "fields", "service", "environment", "tags", "enrich")


def changed(config: Config, url: str | None, options: Mapping[str, Any]) -> Config:
    """Return a configuration with another URL, or other options.

    Args:
        config: of the client.
        url: of the same scheme and path; None: the same server.
        options: by name, as plain values; None means the default.

    Raises:
        ConfigError: a value breaks a rule, or may not change.
    """
    for name in options:
        if name not in _CHANGEABLE:
            raise ConfigError(f"{name}: cannot change while the client runs")
    kind = type(config)
    if url is None:
        where = ",".join(host_port(*endpoint) for endpoint in config.endpoints)
        found = parse(f"{config.scheme}://{where}{config.path}", **options)
        redacted = config.redacted
    else:
        found = parse(url, **options)
        redacted = found.redacted
    if (found.scheme, found.path) != (config.scheme, config.path):
        raise ConfigError(f"url: must keep the scheme and the path, {config.scheme}://…{config.path}")
    new = found.given | options.keys()
    values = {name: (found if name in new else config).options[name] for name in declared_options(kind)}
    for name, value in values.items():
        if name not in _CHANGEABLE:
            if value != config.options[name]:
                raise ConfigError(f"{name}: cannot change while the client runs")
            values[name] = config.options[name]  # the same object: the client holds a secret that is renewed
    given = set(config.given | new)
    kind.complete(config.scheme, dict(values), given)
    return config.replace(endpoints=found.endpoints, redacted=redacted, given=frozenset(given), **values)
