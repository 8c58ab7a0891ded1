"""The fields of a server's certificate that people look at, as OpenSSL reads them.

The certificate was verified before: nothing is decided with these values.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from typing import Any, NamedTuple

__all__ = ["Certificate", "read_certificate"]

_SHORT = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "domainComponent": "DC",
}  # fmt: skip
_FIELD = re.compile(r"^ *(Issuer|Subject|Not After) ?: ?(.*)$", re.MULTILINE)
_NAMES = re.compile(r"^ *X509v3 Subject Alternative Name:.*\n *(.*)$", re.MULTILINE)


class Certificate(NamedTuple):
    """Fields of a certificate.

    Attributes:
        subject: as ``CN=a, O=b``.
        issuer: the same.
        names: the hosts, addresses, URIs and mail addresses that it is for.
        not_after: when it ends, in seconds since 1970.
    """

    subject: str
    issuer: str
    names: list[str]
    not_after: float


def read_certificate(sock: Any) -> Certificate | None:
    """Read the certificate that the peer of a connection has shown, if that was verified."""
    found = sock.getpeercert()
    if not found:
        return None
    if isinstance(found, str):  # of our own socket: OpenSSL's text
        fields, line = dict(_FIELD.findall(found)), _NAMES.search(found)
        pairs = [part.partition(":")[::2] for part in line[1].split(", ")] if line else []
        subject, issuer, end = fields["Subject"], fields["Issuer"], fields["Not After"]
    else:
        pairs = found.get("subjectAltName", ())
        subject, issuer, end = _name(found["subject"]), _name(found["issuer"]), found["notAfter"]
    names = [
        str(ipaddress.ip_address(name.strip())) if kind == "IP Address" else name
        for kind, name in pairs
        if kind in ("DNS", "IP Address", "URI", "email")
    ]
    return Certificate(subject, issuer, names, ssl.cert_time_to_seconds(end))


def _name(parts: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    return ", ".join(f"{_SHORT.get(key, key)}={value}" for pairs in parts for key, value in pairs)
