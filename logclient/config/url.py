"""URLs: split into their parts, and written without secrets.

The parser is written by hand: ``urllib.parse`` costs every importing program milliseconds, knows no list of
hosts, and accepts URLs that must be errors here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from logclient.config import registry
from logclient.config.hosts import dns_name, host_port
from logclient.config.readers import integer
from logclient.errors import ConfigError

_USERINFO = "URL: user:password@ is not accepted; secrets are given as env:NAME, file:PATH or a keyword"


class URL(NamedTuple):
    """The parts of a URL, checked for form alone."""

    scheme: str
    endpoints: list[tuple[str, int | None]]
    """Hosts, each with its port or None."""
    path: str
    """Empty, or with its slash."""
    options: list[tuple[str, str]]
    """Names and values, in order."""


def split_url(url: str, lowest_port: int = 1) -> URL:
    """Split ``scheme://host[:port][,host[:port]...][/path][?option=value...]``, or raise a ConfigError."""
    if not isinstance(url, str):
        raise ConfigError(f"URL: must be a string, got {type(url).__name__}")
    if any(char < " " or char == "\x7f" for char in url):
        raise ConfigError("URL: must not have control characters")
    if url[:4].lower() == registry.OFF and url[4:5] in ("", ":", "?"):
        url = f"{registry.OFF}://{url[4:].lstrip(':/')}"
    scheme, found, rest = url.partition("://")
    if not found:
        raise ConfigError("URL: must begin with a scheme, as in lumberjack://host:5044")
    if not scheme or not all(char.isascii() and (char.isalnum() or char in "+-.") for char in scheme):
        raise ConfigError("scheme: must be letters, digits, + - and .")
    place, question, query = rest.partition("?")
    # All that stands before the options is searched, the path too: a password may hold a slash. A password
    # with a question mark leaves its @ in the name of the first option.
    if "@" in place or "@" in query.partition("=")[0]:
        raise ConfigError(_USERINFO)
    if "#" in place:
        raise ConfigError("URL: must not have a # part")
    authority, _, path = place.partition("/")
    endpoints = [_endpoint(text, lowest_port) for text in authority.split(",")] if authority else []
    path = decode("path", path)
    pairs: list[tuple[str, str]] = []
    if question and query:
        for part in query.split("&"):
            key, equals, text = part.partition("=")
            if not equals or not key:
                raise ConfigError("options: each must be name=value, joined by &")
            name = key if key.isascii() and key.isidentifier() and len(key) <= 40 else "options"
            pairs.append((key, decode(name, text)))
    return URL(scheme.lower(), endpoints, path if path == "" else "/" + path, pairs)


def environment_endpoints(row: registry.Scheme) -> tuple[tuple[str, int], ...]:
    """Read the hosts that the environment names, as other agents of the protocol read them.

    They have commas between them; each is ``host``, ``host:port`` or ``tcp://host:port``.
    """
    name = next((name for name in row.hosts_in if os.environ.get(name, "").strip()), None)
    if name is None:
        raise ConfigError(f"host: the URL has none, and neither {' nor '.join(row.hosts_in)} is set")
    default = row.port
    found = []
    try:
        for text in os.environ[name].split(","):
            if text.strip():
                host, port = _endpoint(text.strip().removeprefix("tcp://"), 1)
                found.append((host, port))
        if not found:
            raise ConfigError("host: must not be empty")
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if os.environ.get(row.port_in, "").strip():
        try:
            default = integer(1, 65535)(os.environ[row.port_in])
        except ValueError as error:
            raise ConfigError(f"{row.port_in}: {error}") from None
    return tuple((host, default if port is None else port) for host, port in found)


def redacted_url(
    scheme: str, endpoints: Iterable[tuple[str, int]], path: str, options: Iterable[tuple[str, str | None]]
) -> str:
    """Write a URL without secrets: the value of an option that has one is None."""
    places = ",".join(host_port(*endpoint) for endpoint in endpoints)
    query = "&".join(f"{name}={'***' if text is None else encode(text)}" for name, text in options)
    return f"{scheme}://{places}{encode(path)}" + (f"?{query}" if query else "")


def _endpoint(text: str, lowest_port: int) -> tuple[str, int | None]:
    port = ""
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ConfigError("host: an IPv6 address is written [address] or [address]:port")
        from ipaddress import IPv6Address

        host = host.replace("%25", "%")
        try:
            IPv6Address(host)
        except ValueError:
            raise ConfigError("host: the text in brackets must be an IPv6 address") from None
        colon, port = tail[:1], tail[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise ConfigError("host: more than one colon; an IPv6 address goes in brackets")
        if not host:
            raise ConfigError("host: must not be empty")
        if len(host) > 253 or not all(char.isalnum() or char in "._-" for char in host):
            raise ConfigError("host: must be a name or an address")
        try:
            dns_name(host)
        except ValueError as error:
            raise ConfigError(f"host: {error}") from None
    if not colon:
        return host, None
    digits = port.isascii() and port.isdigit()
    if digits and len(port) <= 5 and lowest_port <= int(port) <= 65535:
        return host, int(port)
    # Other text is not shown: in user:password/... the password stands in the place of the port.
    got = f"{len(port)} characters that are no number"
    if not port:
        got = "nothing"
    elif digits:
        got = port if len(port) <= 5 else f"a number of {len(port)} digits"
    raise ConfigError(f"port: must be a whole number from {lowest_port} to 65535, got {got}")


def decode(name: str, text: str) -> str:
    """Percent-decode a value; + stays a plus."""
    if "%" not in text:
        return text
    out, *parts = text.encode("utf-8", "surrogatepass").split(b"%")
    for part in parts:
        try:
            if not part[:2].isalnum():  # bytes.fromhex ignores spaces
                raise ValueError
            out += bytes.fromhex(part[:2].decode()) + part[2:]
        except ValueError:
            raise ConfigError(f"{name}: % must be followed by two hexadecimal digits") from None
    try:
        decoded = out.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: must be UTF-8 after percent-decoding") from None
    if any(char < " " or char == "\x7f" for char in decoded):
        raise ConfigError(f"{name}: must not have control characters")
    return decoded


def encode(text: str) -> str:
    """Percent-encode the characters that would change the meaning of the URL."""
    return "".join(f"%{ord(char):02X}" if char in "%&#?@ " else char for char in text)
