"""A connection over TLS, and the errors that its end and its handshake have."""

from __future__ import annotations

import errno
import os
import ssl
import time
from typing import Any

from logclient.errors import CredentialError
from logclient.transports.certificates import read_certificate
from logclient.transports.tcp import RECEIVE, TcpLink

__all__ = ["AnySocket", "TlsLink", "refused"]

COALESCE_BYTES = 1 << 20
"""Bytes for one ``ssl.write``: each call takes the GIL, which is slow while other threads are busy."""

MAX_LAST_RECORDS = 16
"""Records that are read for an alert after writing has failed."""

# Alerts about our side (RFC 8446, section 6.2). The others may not occur the next time.
_REFUSALS = {
    "access_denied", "bad_certificate", "certificate_expired", "certificate_required",
    "certificate_revoked", "certificate_unknown", "decrypt_error", "handshake_failure",
    "insufficient_security", "no_application_protocol", "protocol_version", "unknown_ca",
    "unknown_psk_identity", "unrecognized_name", "unsupported_certificate",
}  # fmt: skip

AnySocket = Any
"""A connected socket with TLS: ``ssl.SSLSocket``, `_NativeSocket` or ``_ext.tls.TlsSocket``."""


class TlsLink(TcpLink):
    """A connection over TLS whose handshake is done."""

    coalesce_bytes = COALESCE_BYTES
    hint = ""

    def __init__(self, sock: AnySocket, peer: str, certified: bool, verified: bool) -> None:
        super().__init__(sock, peer)
        self._tls = sock
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
        cipher = self._tls.cipher()
        found: dict[str, Any] = {
            "version": self._tls.version(),
            "cipher": cipher[0] if cipher else None,
            "verified": self._verified,
        }
        certificate = read_certificate(self._tls) if self._verified else None
        if certificate is not None:
            found.update(
                subject=certificate.subject,
                issuer=certificate.issuer,
                names=certificate.names,
                not_after=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(certificate.not_after)),
                days_left=int((certificate.not_after - time.time()) // 86400),
            )
        return found

    def _write(self, data: memoryview) -> int:
        self._reads_first = False
        try:
            taken: int = self._tls.send(data)
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
                if not self._tls.recv(RECEIVE):
                    break
        except OSError as last:
            if isinstance(last, ssl.SSLError) and _alert(last):
                return self._explain(last)
        return self._explain(error)

    def receive(self) -> bytes | None:
        """Return the received bytes: None when there are none, ``b""`` when the peer closed."""
        # A record (16 KiB) is always read completely, so no data waits in the library unseen by `wait`.
        self._writes_first = False
        try:
            data: bytes = self._tls.recv(RECEIVE)
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
        """Return what TLS has to wait for: see `Link`."""
        return super().waits_for((writable and not self._reads_first) or self._writes_first)

    def close(self, linger: float = 0.0) -> None:
        """Send close_notify, without waiting for the peer's, and close the socket."""
        try:
            self._tls.unwrap()
        except (OSError, ValueError):
            pass
        self._tls.close()


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
