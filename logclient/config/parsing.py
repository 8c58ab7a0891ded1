"""`parse` and `resolve`: a URL, keywords and variables become a `Config`; `changed`: with other values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from logclient.config import registry
from logclient.config.common import Config
from logclient.config.option import Option, all_options, declared_options
from logclient.config.url import environment_endpoints, redacted_url, split_url
from logclient.errors import ConfigError

_VARIABLE = "LOGCLIENT_"
"""How the names of variables begin; the name of the option, or ``URL``, follows in capitals."""


_IN_URL = "the URL says that, as in SCHEME+tls://host:port"

_OTHER_NAMES = {
    **dict.fromkeys(("host", "port", "transport", "ssl", "ssl_enable", "tls"), _IN_URL),
    "ca_certs": "ca",
    "certfile": "cert",
    "keyfile": "key",
    "ssl_verify": "verify",
    "database_path": "spool",
    "event_ttl": "max_age",
    "level": "it is an argument of a Handler",
}
"""What other libraries call an option: its name, or where it is."""


def parse(url: str | None = None, /, **keywords: Any) -> Config:
    """Read and check a URL, keywords and variables of the environment, as `resolve` does."""
    return resolve(url, keywords)


def resolve(
    url: str | None,
    keywords: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    listen: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read and check a URL, keywords and variables of the environment.

    An option has the value of the keyword; without one that of the URL; without that of the variable; without
    that the default of the front end, such as a Handler; without that its own default.

    Args:
        url: ``scheme://host[:port][,host[:port]...][/path][?option=value...]``; None: that of the variable,
            of which an empty one is ``none``.
        keywords: Options by name, as plain values; None is as if it was not there.
        defaults: Those of the front end: options by name, as plain values.
        listen: The URL is that of a server: port 0 is allowed and means any free one. It has no variables.
        environ: The variables. Only options that say so are read from them, if the scheme has them.

    Raises:
        ConfigError: With one line that names the field, or its variable, and the rule.
    """
    place = ""
    if listen:
        environ = {}
    if url is None:
        place, url = f"{_VARIABLE}URL: ", environ.get(_VARIABLE + "URL")
        if url is None:
            raise ConfigError(f"URL: give one, or set the variable {_VARIABLE}URL")
        url = url.strip() or registry.OFF
    given: dict[str, str] = {}
    try:
        parts = split_url(url, 0 if listen else 1)
        row = registry.lookup(parts.scheme)
        if parts.path and not row.path:
            raise ConfigError(f"path: {parts.scheme} takes none")
        if not parts.endpoints and row.port and not (row.hosts_in and not listen):
            raise ConfigError("host: must not be empty")
        endpoints = tuple((host, row.port if port is None else port) for host, port in parts.endpoints)
        if not endpoints and row.port:
            endpoints = environment_endpoints(row)

        kind: type[Config] = registry.load(row.config)
        declared = declared_options(kind)
        values = {name: option.default for name, option in declared.items()}
        for name, value in (defaults or {}).items():
            values[name] = _read(name, declared[name].reader, value)
        for name, text in parts.options:
            option = _find(name, kind, parts.scheme)
            if name in given:
                raise ConfigError(f"{name}: given twice in the URL")
            values[name] = _read(name, option.reader.read_text, text)
            given[name] = place + name
    except ConfigError as error:
        raise ConfigError(f"{place}{error}") from None
    for name, value in keywords.items():
        option = _find(name, kind, parts.scheme)
        if value is not None:
            values[name] = _read(name, option.reader, value)
            given[name] = name
    for name, option in declared.items():
        text = environ.get(variable := _VARIABLE + name.upper(), "") if option.variable else ""
        if text and name not in given and not kind.refusal(option, parts.scheme):
            values[name] = _read(variable, option.reader.read_text, text)
            given[name] = variable
    try:
        kind.complete(parts.scheme, values, set(given))
    except ConfigError as error:
        name, _, rule = str(error).partition(": ")
        raise ConfigError(f"{given.get(name, name)}: {rule}") from None
    shown = [(name, None if declared[name].reader.secret else text) for name, text in parts.options]
    return kind(
        scheme=parts.scheme,
        protocol=row.protocol,
        tls=row.tls,
        endpoints=endpoints,
        path=parts.path,
        redacted=redacted_url(parts.scheme, endpoints, parts.path, shown),
        given=given,
        **values,
    )


def changed(config: Config, options: Mapping[str, Any]) -> Config:
    """Return a configuration with other values; None: the default of the option.

    Raises:
        ConfigError: a value breaks a rule, or may not change.
    """
    declared, values = declared_options(type(config)), {}
    for name, value in options.items():
        if name not in config.changeable:
            advice = "make a new client, then close the old one"
            raise ConfigError(f"{name}: cannot change while the client runs: {advice}")
        option = declared[name]
        values[name] = option.default if value is None else _read(name, option.reader, value)
    return config.replace(given={**config.given, **{name: name for name in options}}, **values)


def _read(name: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        # From None: the traceback of the cause would show the value, which may be a secret.
        raise ConfigError(f"{name}: {error}") from None


def _find(name: str, kind: type[Config], scheme: str) -> Option:
    """Find an option by its name; ConfigError: the scheme does not have it."""
    declared = declared_options(kind)
    option = declared.get(name)
    if option is not None:
        if refusal := kind.refusal(option, scheme):
            raise ConfigError(f"{name}: {refusal}")
        return option
    if not (name.isascii() and name.isidentifier() and len(name) <= 40):
        raise ConfigError("options: each must be name=value, joined by &")
    if name in all_options():
        raise ConfigError(f"{name}: not an option of {scheme.partition('+')[0]}")
    from difflib import get_close_matches

    hint = _OTHER_NAMES.get(name, name)
    if " " not in hint:
        near = get_close_matches(hint, declared, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{name}: unknown option{hint and f'; {hint}'}")
