"""Names and addresses of hosts, and values as errors show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

_LONGEST_ECHO = 40

# Letters that IDNA 2003 replaces by others: such a name may have another owner.
_OTHER_IN_IDNA_2003 = frozenset("\u00df\u1e9e\u03c2")


def echo(value: object) -> str:
    """Write a value for an error: short, and without the possible password of a URL."""
    text = repr(value)
    before, at, after = text.rpartition("@")
    if at:
        scheme, mark, _ = before.partition("://")
        text = f"{scheme + mark if mark else before[:1]}***@{after}"
    return text if len(text) <= _LONGEST_ECHO else text[: _LONGEST_ECHO - 3] + "..."


def host_port(host: str, port: int) -> str:
    """Write host and port as a URL has them: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dns_name(host: str) -> bytes:
    """Encode the name of a host for the DNS by IDNA 2008; an address stays as it is.

    Without the package idna, Python's own codec for IDNA 2003 is used. The two differ in a few letters, and a
    name with one of these is a ValueError then, as is one that is no host name.
    """
    if host.isascii():
        return host.encode()
    try:
        import idna
    except ImportError:
        if not _OTHER_IN_IDNA_2003.isdisjoint(host):
            needs = 'needs IDNA 2008, and the package idna for it: pip install "logclient[idna]"'
            raise ValueError(f"{echo(host)} {needs}") from None
        return _encoded(host, lambda label: label.encode("idna"))
    return _encoded(host, lambda label: idna.encode(label, uts46=True))


def is_local(host: str) -> bool:
    """Return whether a host is this machine: a loopback address, in whatever form, or a name for one."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = ip(name)
    return address is not None and (address.is_loopback or address.is_unspecified)


def ip(host: str) -> IPv4Address | IPv6Address | None:
    """Return an address as resolvers read it, such as 127.1; that in an IPv6 address, if there is one."""
    import socket
    from ipaddress import IPv4Address, IPv6Address

    try:
        if ":" not in host:
            return IPv4Address(socket.inet_aton(host))
        address = IPv6Address(host)
    except (OSError, ValueError):
        return None
    return address.ipv4_mapped or address


def _encoded(host: str, encode: Callable[[str], bytes]) -> bytes:
    try:
        return b".".join(label.encode() if label.isascii() else encode(label) for label in host.split("."))
    except UnicodeError:
        raise ValueError(f"{echo(host)} is no host name") from None
