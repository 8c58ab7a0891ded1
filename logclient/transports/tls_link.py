"""A connection over TLS, and the errors that its end and its handshake have."""

from __future__ import annotations

import errno
import ipaddress
import re
import ssl
from typing import Any

from logclient.delivery.contract import FOREVER
from logclient.errors import CredentialError
from logclient.standard import os, time
from logclient.transports.tcp_link import RECEIVE, TcpLink

COALESCE_BYTES = 1 << 20
"""Bytes for one ``ssl.write``: each call takes the GIL, which is slow while other threads are busy."""

MAX_LAST_RECORDS = 16
"""Records that are read for an alert after writing has failed."""

_SHORT = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "domainComponent": "DC",
}  # fmt: skip
_FIELD = re.compile(r"^ *(Issuer|Subject|Not After) ?: ?(.*)$", re.MULTILINE)
_NAMES = re.compile(r"^ *X509v3 Subject Alternative Name:.*\n *(.*)$", re.MULTILINE)

# Alerts about our side (RFC 8446, section 6.2). The others may not occur the next time.
_REFUSALS = {
    "access_denied", "bad_certificate", "certificate_expired", "certificate_required",
    "certificate_revoked", "certificate_unknown", "decrypt_error", "handshake_failure",
    "insufficient_security", "no_application_protocol", "protocol_version", "unknown_ca",
    "unknown_psk_identity", "unrecognized_name", "unsupported_certificate",
}  # fmt: skip

AnySocket = Any
"""A connected socket with TLS: `_PythonSocket` or ``_ext.tls.TlsSocket``."""


def read_certificate(sock: Any) -> dict[str, Any]:
    """Read the certificate that the peer of a connection has shown, if that was verified.

    Nothing is decided with these values: people look at them.

    Returns:
        ``subject`` and ``issuer`` as ``CN=a, O=b``, ``names`` (hosts, addresses, URIs, mail addresses), and
        ``not_after`` in seconds since 1970. Empty: there is none.
    """
    found = sock.getpeercert()
    if not found:
        return {}
    if isinstance(found, str):  # of our own socket: OpenSSL's text
        fields, line = dict(_FIELD.findall(found)), _NAMES.search(found)
        pairs = [part.partition(":")[::2] for part in line[1].split(", ")] if line else []
        subject, issuer, end = fields["Subject"], fields["Issuer"], fields["Not After"]
    else:
        pairs = found.get("subjectAltName", ())
        subject, issuer, end = _name(found["subject"]), _name(found["issuer"]), found["notAfter"]
    names = [
        _address(name) if kind == "IP Address" else name
        for kind, name in pairs
        if kind in ("DNS", "IP Address", "URI", "email")
    ]
    not_after = ssl.cert_time_to_seconds(end)
    return {"subject": subject, "issuer": issuer, "names": names, "not_after": not_after}


def _address(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:  # OpenSSL writes that it is not valid
        return name


def _name(parts: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    return ", ".join(f"{_SHORT.get(key, key)}={value}" for pairs in parts for key, value in pairs)


class TlsLink(TcpLink):
    """A connection over TLS whose handshake is done."""

    coalesce_bytes = COALESCE_BYTES
    hint = ""

    def __init__(self, sock: AnySocket, peer: str, certified: bool, verified: bool) -> None:
        super().__init__(sock, peer)
        self.tls_socket = sock
        version = sock.version() or ""
        self._certified = certified  # we have a certificate; the server may have requested none
        self._verified = verified
        self._late = version == "TLSv1.3"  # a refusal may come after the handshake
        self._received = False
        # TLS may have to read before it can write, and the reverse.
        self._reads_first = self._writes_first = False
        cipher = sock.cipher()
        self.tls = f"{version} {cipher[0] if cipher else ''}{'' if verified else ', not verified'}"

    def facts(self) -> dict[str, Any]:
        """Describe TLS, and the server's certificate if it was verified.

        Returns:
            ``version``, ``cipher``, ``verified``; for a verified certificate also ``subject``, ``issuer``,
            ``names``, ``not_after`` (UTC) and ``days_left``.
        """
        cipher = self.tls_socket.cipher()
        found: dict[str, Any] = {
            "version": self.tls_socket.version(),
            "cipher": cipher[0] if cipher else None,
            "verified": self._verified,
        }
        if self._verified and (certificate := read_certificate(self.tls_socket)):
            end = certificate["not_after"]
            found |= certificate
            found["not_after"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
            found["days_left"] = int((end - time.time()) // 86400)
        return found

    def _write(self, data: memoryview) -> int:
        self._check()
        self._reads_first = False
        try:
            taken: int = self.tls_socket.send(data)
        except ssl.SSLWantWriteError:
            return 0
        except ssl.SSLWantReadError:
            self._reads_first = True
            return 0
        except OSError as error:
            raise self._reason_of(error) from None
        return taken

    def _reason_of(self, error: OSError) -> OSError:
        """Return why writing failed: the peer's alert comes before its reset, if the system kept it."""
        try:
            for _ in range(MAX_LAST_RECORDS):
                if not self.tls_socket.recv(RECEIVE):
                    break
        except OSError as last:
            if isinstance(last, ssl.SSLError) and _alert(last):
                return self._explain(last)
        return self._explain(error)

    def receive(self) -> bytes | None:
        self._check()
        # A record (16 KiB) is always read completely, so no data waits in the library unseen by `wait`.
        self._writes_first = False
        try:
            data: bytes = self.tls_socket.recv(RECEIVE)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self._writes_first = True
            return None
        except OSError as error:
            raise self._explain(error) from None
        self._received = self._received or bool(data)
        return data

    def _explain(self, error: OSError) -> OSError:
        if isinstance(error, ssl.SSLError):
            if not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                return refused(error, self._certified)
            error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if self._late and not self._received and not self._certified:
            # Not every system keeps the alert that came before the reset.
            words = f"{os.strerror(error.errno or errno.ECONNRESET)} before any data was received; "
            return OSError(error.errno, words + "does the server want a client certificate (cert, key)?")
        return error

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        return super().waits_for((writable and not self._reads_first) or self._writes_first)

    def close(self, flush_for: float = 0.0) -> None:
        """Send close_notify, without waiting for the peer's, and close the socket."""
        try:
            self._check()
            self.tls_socket.unwrap()
        except (OSError, ValueError):
            pass
        self.tls_socket.close()


class CompiledTlsLink(TlsLink):
    """A connection over TLS that the compiled pump can drive."""

    _failure: OSError | None = None

    def flush(self) -> bool:
        if not super().flush():
            return False
        try:
            return bool(self.tls_socket.flush_sent())
        except OSError as error:
            raise self._reason_of(error) from None

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        reads, writes = self.tls_socket.waits_for(writable)
        fds = [self.tls_socket.fileno()]
        return fds if reads else [], fds if writes else [], 0.0 if self.tls_socket.has_unread else FOREVER

    def failure(self) -> OSError | None:
        """Return why the pump could not go on; None: it could. To be asked before the link is closed."""
        if self._failure is None:
            error = self.tls_socket.failure()
            if error is not None:
                self._received = self._received or self.tls_socket.received
                is_tls = isinstance(error, ssl.SSLError)
                self._failure = self._explain(error) if is_tls else self._reason_of(error)
        return self._failure


def _alert(error: ssl.SSLError) -> str:
    """Return the name of the peer's alert as the standard writes it, or an empty string."""
    family, _, name = (error.reason or "").partition("_")
    if family not in ("SSLV3", "TLSV1", "TLSV13") or not name:
        return ""
    return name.removeprefix("ALERT_").lower()


def refused(error: ssl.SSLError, certified: bool) -> OSError:
    """Describe an error in the handshake, or after it."""
    reason = error.reason or "unknown reason"
    alert = _alert(error)
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE") or alert == "protocol_version":
        return CredentialError("the server speaks no version of TLS that is allowed here (1.2 or newer)")
    if alert == "unrecognized_name":
        return CredentialError("the server knows no host of this name: give the right one as server_name")
    if alert in _REFUSALS:
        if certified:
            words = f"the server does not accept our certificate (alert {alert}): see cert here, and ca there"
        elif alert == "handshake_failure":
            words = f"the server refuses the handshake (alert {alert}): most then want a client certificate"
        elif alert in ("bad_certificate", "certificate_required"):
            words = f"the server wants a client certificate (alert {alert}): give cert and key"
        else:
            words = f"the server refuses the connection (alert {alert})"
        return CredentialError(words)
    said = f"the server said: {alert}" if alert else reason
    return ConnectionError(f"TLS failed: {said.replace('_', ' ').lower()}")
