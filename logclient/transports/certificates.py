"""The fields of a certificate that people look at (RFC 5280), read from its DER form (X.690).

The certificate was verified by OpenSSL before: nothing is decided with these values.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Certificate", "decode"]

_SHORT = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.10": "O", "2.5.4.11": "OU",
    "1.2.840.113549.1.9.1": "emailAddress", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")  # 2.5.29.17

# Tags (X.690, section 8.1.2; RFC 5280, section 4.2.1.6).
_BMP_STRING, _UTC_TIME, _EXTENSIONS, _VERSION = 0x1E, 0x17, 0xA3, 0xA0
_MAIL, _DNS, _URI, _ADDRESS = 0x81, 0x82, 0x86, 0x87


class Certificate(NamedTuple):
    """Fields of a certificate.

    Attributes:
        subject: as ``CN=a, O=b``.
        issuer: the same.
        names: the hosts, addresses, URIs and mail addresses that it is for.
        not_after: when it ends, in UTC.
    """

    subject: str
    issuer: str
    names: list[str]
    not_after: datetime.datetime


def decode(data: bytes) -> Certificate:
    """Read a certificate.

    Raises:
        ValueError: it is damaged.
    """
    try:
        (certificate,) = _values(data)
        tbs = next(_values(certificate[1]))
        fields = [field for field in _values(tbs[1]) if field[0] != _VERSION]
        _, _, issuer, validity, subject, _ = fields[:6]
        names: list[str] = []
        for tag, extensions in fields[6:]:
            if tag == _EXTENSIONS:
                names = list(_alternative_names(extensions))
        _, (tag, end) = _values(validity[1])
        return Certificate(_name(subject[1]), _name(issuer[1]), names, _time(tag, end))
    except (IndexError, StopIteration) as error:
        raise ValueError("a certificate ends too early") from error


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tags and contents of the values in `data`."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            n = size & 0x7F
            size = int.from_bytes(data[at : at + n], "big")
            at += n
        if size > len(data) - at:
            raise ValueError(f"a value of {size} bytes in {len(data) - at} bytes of a certificate")
        yield tag, data[at : at + size]
        at += size


def _name(data: bytes) -> str:
    """Format a distinguished name."""
    parts = []
    for _, relative in _values(data):
        for _, pair in _values(relative):
            (_, key), (tag, value) = _values(pair)
            dotted = _dotted(key)
            text = value.decode("utf-16-be" if tag == _BMP_STRING else "utf-8", "replace")
            parts.append(f"{_SHORT.get(dotted, dotted)}={text}")
    return ", ".join(parts)


def _dotted(data: bytes) -> str:
    """Format an object identifier (X.690, section 8.19)."""
    numbers, n = [], 0
    for byte in data:
        n = n << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(n)
            n = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _alternative_names(data: bytes) -> Iterator[str]:
    for _, extensions in _values(data):
        for _, extension in _values(extensions):
            (_, key), *_, (_, value) = _values(extension)
            if key != _ALTERNATIVE_NAMES:
                continue
            for _, names in _values(value):
                for tag, name in _values(names):
                    if tag == _ADDRESS and len(name) in (4, 16):
                        yield str(ipaddress.ip_address(name))
                    elif tag in (_MAIL, _DNS, _URI):
                        yield name.decode("ascii", "replace")


def _time(tag: int, data: bytes) -> datetime.datetime:
    """Read a time (RFC 5280, section 4.1.2.5)."""
    text = data.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)
