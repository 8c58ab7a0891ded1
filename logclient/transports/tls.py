"""TLS over TCP, with the standard library's ``ssl``.

Certificates and keys are read anew for every connection, so one that was mended is picked up by
itself. What one side does not accept of the other is a ``CredentialError``, whichever of them says so,
and when: in TLS 1.2 a client without a certificate is refused in the handshake, in TLS 1.3 after it,
at the first read or write. A file that the machine cannot read for the moment, for want of a descriptor
say, is an ``OSError`` like any other.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logclient.config import Secret, dns_name
from logclient.delivery.contract import Core, PumpLimits
from logclient.errors import ConfigError, CredentialError, is_shortage
from logclient.threads import original
from logclient.transports.attempt import Attempt
from logclient.transports.tcp import RECEIVE, Tcp, TcpLink

if TYPE_CHECKING:
    from typing import Unpack

    from logclient._ext.flight import Flight

__all__ = ["Tls", "TlsLink", "server_context"]

BITE = 1 << 20
"""Bytes for one ``ssl.write``: it takes the GIL once for all of them, and busy threads make that slow."""

LAST_WORDS = 16
"""Records looked at for a reason once writing has failed."""

_NOT_FOR = (
    'the server\'s certificate is not for "{}": connect to the name it has, or give that as server_name'
)
_UNKNOWN = "is not signed by an authority that is trusted here: give that authority's certificate as ca"
_WHY = {  # by OpenSSL's X509_V_ERR_*
    2: _UNKNOWN,
    9: "is not valid yet: is a clock wrong?",
    10: "has expired, or one above it: it must be renewed at the server",
    18: "is signed by itself alone: if it is the right one, give it as ca",
    19: _UNKNOWN,
    20: _UNKNOWN,
    21: _UNKNOWN,
    62: _NOT_FOR,
    64: _NOT_FOR,
}

# What a server says of us (RFC 8446, section 6.2). The rest may be over the next time.
_REFUSALS = {
    "access_denied", "bad_certificate", "certificate_expired", "certificate_required",
    "certificate_revoked", "certificate_unknown", "decrypt_error", "handshake_failure",
    "insufficient_security", "no_application_protocol", "protocol_version", "unknown_ca",
    "unknown_psk_identity", "unrecognized_name", "unsupported_certificate",
}  # fmt: skip
_NOT_TLS = {
    "BAD_RECORD_TYPE", "HTTPS_PROXY_REQUEST", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "WRONG_SSL_VERSION", "WRONG_VERSION_NUMBER",
}  # fmt: skip


class _NativeSocket:
    """As much of an ``ssl.SSLSocket`` as we use, made from the same parts.

    For processes in which gevent or eventlet have replaced that name: the original class looks itself up by
    it, and can no longer be made.
    """

    def __init__(self, context: Any, plain: socket.socket, name: bytes) -> None:
        self._plain = plain
        self._tls = context._wrap_socket(plain, False, name.decode("ascii"))
        self.fileno, self.close = plain.fileno, plain.close
        self.do_handshake, self.unwrap = self._tls.do_handshake, self._tls.shutdown
        self.send, self.version, self.cipher = self._tls.write, self._tls.version, self._tls.cipher
        self.getpeercert = self._tls.getpeercert

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._tls.read(size)
        except ssl.SSLEOFError:  # the peer has gone without a word
            return b""
        return data

    def __enter__(self) -> _NativeSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


TlsSocket = ssl.SSLSocket | _NativeSocket


class TlsLink(TcpLink):
    """One stream socket behind a finished handshake."""

    coalesce_bytes = BITE
    hint = ""

    def __init__(self, sock: TlsSocket, peer: str, certified: bool, verified: bool) -> None:
        super().__init__(sock, peer)  # type: ignore[arg-type]
        self._tls = sock
        version = sock.version() or ""
        self._certified = certified  # we showed a certificate, or could have
        self._verified = verified
        self._late = version == "TLSv1.3"  # a refusal may come after the handshake
        self._heard = False
        # TLS may have to read before it can write, and the other way round.
        self._reads_first = self._writes_first = False
        cipher = sock.cipher()
        self.tls = f"{version} {cipher[0] if cipher else ''}{'' if verified else ', not verified'}"

    def facts(self) -> dict[str, Any]:
        """What TLS is in use, and what the server's certificate says, which only who verified it knows.

        ``version``, ``cipher``, ``verified``; then ``subject``, ``issuer``, ``names`` (what it is for),
        ``not_after`` (UTC) and ``days_left``.
        """
        cipher = self._tls.cipher()
        found: dict[str, Any] = {
            "version": self._tls.version(),
            "cipher": cipher[0] if cipher else None,
            "verified": self._verified,
        }
        certificate: Any = self._tls.getpeercert()
        if certificate:
            end = ssl.cert_time_to_seconds(certificate["notAfter"])
            found.update(
                subject=_distinguished(certificate["subject"]),
                issuer=_distinguished(certificate["issuer"]),
                names=[str(value) for _, value in certificate.get("subjectAltName", ())],
                not_after=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end)),
                days_left=int((end - time.time()) // 86400),
            )
        return found

    def _write(self, data: memoryview) -> int:
        self._reads_first = False
        try:
            return self._tls.send(data)
        except ssl.SSLWantWriteError:
            return 0
        except ssl.SSLWantReadError:
            self._reads_first = True
            return 0
        except OSError as error:
            raise self._last_words(error) from None

    def _last_words(self, error: OSError) -> OSError:
        """Why the peer has gone: its alert lies before its reset, if the system kept it."""
        try:
            for _ in range(LAST_WORDS):
                if not self._tls.recv(RECEIVE):
                    break
        except OSError as last:
            if isinstance(last, ssl.SSLError) and _alert(last):
                return self._explain(last)
        return self._explain(error)

    def receive(self) -> bytes | None:
        # A record (16 KiB) is always taken whole: nothing waits in the library that `wait` cannot see.
        self._writes_first = False
        try:
            data = self._tls.recv(RECEIVE)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self._writes_first = True
            return None
        except OSError as error:
            raise self._explain(error) from None
        self._heard = self._heard or bool(data)
        return data

    def _explain(self, error: OSError) -> OSError:
        if isinstance(error, ssl.SSLError):
            if not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                return _refused(error, self._certified)
            error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if self._late and not self._heard and not self._certified:
            # Not every system keeps the alert that came before.
            words = f"{os.strerror(error.errno or errno.ECONNRESET)} before a word was said; "
            return OSError(error.errno, words + "does the server want a client certificate (cert, key)?")
        return error

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        super().wait(wake, seconds, (writable and not self._reads_first) or self._writes_first)

    def close(self, linger: float = 0.0) -> None:
        try:
            # Sends our close_notify; the peer's is not waited for.
            self._tls.unwrap()
        except (OSError, ValueError):
            pass
        self._tls.close()


class Tls(Tcp):
    """Connects with TLS 1.2 or newer.

    Args:
        connect_timeout: seconds for one address, the handshake included.
        ca: file or directory of trusted authorities; the system's without.
        cert: file with our certificate.
        key: file with its key; the same file without.
        password: of the key.
        server_name: what the server's certificate must be for; the endpoint's host without.
        verify: False: take any certificate.

    Raises:
        ConfigError: a file that cannot be used.
    """

    secure = True

    def __init__(
        self,
        connect_timeout: float,
        *,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        password: Secret | None = None,
        server_name: str | None = None,
        verify: bool = True,
    ) -> None:
        super().__init__(connect_timeout)
        self._ca = ca
        self._own = (cert, key, password)
        # As bytes: see Tcp.connect.
        self._server_name = None
        if server_name is not None:
            self._server_name = dns_name(server_name)
        self._verify = verify
        self._context()

    @classmethod
    def from_config(cls, config: Any) -> Tls:
        return cls(
            config.connect_timeout,
            ca=config.ca,
            cert=config.cert,
            key=config.key,
            password=config.tls_password,
            server_name=config.server_name,
            verify=config.verify == "full",
        )

    def _context(self) -> ssl.SSLContext:
        """Everything read from its files, now."""
        context = _context(ssl.Purpose.SERVER_AUTH, self._ca)
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _identify(context, *self._own)
        return context

    def pump(self, flight: Flight, core: Core, **limits: Unpack[PumpLimits]) -> None:
        """None: only a plain descriptor can be driven without the GIL."""

    def _link(
        self,
        dial: Callable[[], socket.socket],
        name: bytes,
        peer: str,
        attempt: Attempt,
        deadline: float,
        again: bool = True,
    ) -> TlsLink:
        try:
            context = self._context()
        except ConfigError as error:
            raise CredentialError(str(error)) from None
        certified = self._own[0] is not None
        wanted = (self._server_name or name).partition(b"%")[0].rstrip(b".")
        plain = dial()  # outside: a connection refused is no failed handshake
        try:
            sock = _shake(context, plain, wanted, attempt, deadline)
        except ssl.SSLCertVerificationError as error:
            why = _WHY.get(error.verify_code, f"is refused: {error.verify_message}")
            if why == _UNKNOWN and again and (self._ca is None or os.path.isdir(self._ca)):
                # It was looked for in files, and one that could not be opened at that moment looks the same.
                return self._link(dial, name, peer, attempt, deadline, again=False)
            if why != _NOT_FOR:
                raise CredentialError(f"the server's certificate {why}") from None
            refusal = CredentialError(why.format(wanted.decode()))
            names = self._names(dial, wanted, attempt, deadline)
            refusal.detail = names and f"it names {names}"
            raise refusal from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
            # Might be a restart, or a balancer with nothing behind it: no reason for the slow pace.
            raise ConnectionError(
                "the server ended the connection in the TLS handshake; does it speak TLS?"
            ) from None
        except ssl.SSLError as error:
            if error.reason in _NOT_TLS:
                words = "what answers does not speak TLS: see whether the port is right, and TLS on there"
                raise CredentialError(words) from None
            raise _refused(error, certified) from None
        return TlsLink(sock, peer, certified, self._verify)

    def _names(
        self, dial: Callable[[], socket.socket], wanted: bytes, attempt: Attempt, deadline: float
    ) -> str:
        """Whom the server's certificate is for: only a connection that does not ask that can tell."""
        context = _context(ssl.Purpose.SERVER_AUTH, self._ca)
        context.check_hostname = False
        try:
            with _shake(context, dial(), wanted, attempt, deadline) as sock:
                names = (sock.getpeercert() or {}).get("subjectAltName", ())
        except OSError:
            return ""
        shown = [str(entry[1]) for entry in names[:5]] + ["..."] * (len(names) > 5)
        return "".join(c if c.isprintable() else "?" for c in ", ".join(shown))[:200]


def server_context(
    cert: str, key: str | None = None, *, password: str | None = None, ca: str | None = None
) -> ssl.SSLContext:
    """For the server's side. With `ca`, a client must show a certificate that one of them has signed.

    Raises:
        ConfigError: a file that cannot be used.
    """
    context = _context(ssl.Purpose.CLIENT_AUTH, ca)
    if ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _identify(context, cert, key, None if password is None else Secret(password))
    return context


def _context(purpose: ssl.Purpose, ca: str | None) -> ssl.SSLContext:
    if ca is None:
        context = ssl.create_default_context(purpose)
    else:
        files = [ca]
        hashed = None
        try:
            if os.path.isdir(ca):
                inside = sorted(os.listdir(ca))
                # Either as OpenSSL wants them (its rehash), or as people put them there.
                hashed = ca if any(len(n) > 9 and n[8] == "." and n[9:].isdigit() for n in inside) else None
                files = [os.path.join(ca, n) for n in inside if n.endswith((".pem", ".crt")) and not hashed]
                if not files and not hashed:
                    raise ConfigError(f"ca: directory {ca!r} holds no certificates (*.pem, *.crt)")
            # Without either, the system's would be loaded.
            context = ssl.create_default_context(purpose, cafile=files[0] if files else None, capath=hashed)
            for file in files[1:]:
                context.load_verify_locations(file)
        except ssl.SSLError:
            raise ConfigError(f"ca: {ca!r} holds something that is no certificate in PEM form") from None
        except OSError as error:
            raise _unreadable("ca", ca, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _identify(context: ssl.SSLContext, cert: str | None, key: str | None, password: Secret | None) -> None:
    """Load our own certificate."""
    if cert is None:
        return
    where, keys = ("key", key) if key is not None else ("cert", cert)
    before = _versions(cert, keys)
    _holds("cert", cert, b"-----BEGIN CERTIFICATE-----", "certificate")
    _holds(where, keys, b"PRIVATE KEY-----", "private key")
    asked = False

    def answer() -> str:
        nonlocal asked
        asked = True
        if password is None:
            # Without an answer of ours, OpenSSL would ask at the terminal.
            raise ConfigError(f"tls_password: needed, the key in {keys!r} is encrypted")
        return password.reveal()

    try:
        context.load_cert_chain(cert, key, answer)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and _is_passing(error):
            raise _unreadable("cert", cert, error) from None
        reason = getattr(error, "reason", None) or ""
        if reason == "KEY_VALUES_MISMATCH":
            if _versions(cert, keys) != before:  # renewed after the one was read and before the other
                _identify(context, cert, key, password)
                return
            raise ConfigError(f"{where}: the key in {keys!r} is not that of the certificate") from None
        if asked:
            raise ConfigError(f"tls_password: does not open the key in {keys!r}") from None
        words = reason.replace("_", " ").lower() or getattr(error, "strerror", None) or "unknown reason"
        raise ConfigError(f"cert: {cert!r} and its key cannot be used: {words}") from None


def _versions(*paths: str) -> list[tuple[int, int]]:
    """What differs when a file has been written or replaced; empty when one cannot be looked at."""
    try:
        return [(found.st_ino, found.st_mtime_ns) for found in map(os.stat, paths)]
    except OSError:
        return []


def _holds(option: str, path: str, mark: bytes, what: str) -> None:
    try:
        with open(path, "rb") as file:
            found = mark in file.read(1 << 20)
    except OSError as error:
        raise _unreadable(option, path, error) from None
    if not found:
        raise ConfigError(f"{option}: {path!r} holds no {what} in PEM form")


def _unreadable(option: str, path: str, error: OSError) -> OSError | ConfigError:
    """What it means that this file or directory cannot be read."""
    words = f"{option}: {path!r} cannot be read: {error.strerror}"
    return OSError(error.errno, words) if _is_passing(error) else ConfigError(words)


def _is_passing(error: OSError) -> bool:
    """Whether the machine has failed, not the file. The numbers of an ``SSLError`` are OpenSSL's own."""
    return not isinstance(error, ssl.SSLError) and (is_shortage(error) or error.errno == errno.EIO)


def _shake(
    context: ssl.SSLContext,
    plain: socket.socket,
    name: bytes,
    attempt: Attempt,
    deadline: float,
) -> TlsSocket:
    """Wrap a connected, non-blocking socket; the plain one is used up."""
    try:
        sock: TlsSocket
        if type(context).__module__ == "ssl":
            sock = context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
        else:  # gevent's or eventlet's: its sockets switch to another greenlet instead of waiting
            sock = _NativeSocket(context, plain, name)
    except BaseException:
        plain.close()
        raise
    try:
        while True:
            writing = False
            try:
                sock.do_handshake()
                return sock
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLWantWriteError:
                writing = True
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer to the TLS handshake in time")
            if attempt.stopped():
                raise InterruptedError("stopped in the TLS handshake")
            fds = [sock.fileno()]
            attempt.rest([] if writing else fds, fds if writing else [], left)
    except BaseException as error:
        try:
            if isinstance(error, ssl.SSLCertVerificationError):
                # OpenSSL looks authorities up in files, and takes one that it cannot open for unknown: was
                # there a descriptor left for it?
                original(socket, "socket")().close()
        finally:
            sock.close()
        raise


def _distinguished(name: Any) -> str:
    """``CN=a, O=b``, of what ``getpeercert`` gives."""
    short = {
        "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
        "localityName": "L", "stateOrProvinceName": "ST",
    }  # fmt: skip
    return ", ".join(f"{short.get(key, key)}={value}" for part in name for key, value in part)


def _alert(error: ssl.SSLError) -> str:
    """The name of the alert that the peer sent, as the standard writes it, or empty."""
    family, _, name = (error.reason or "").partition("_")
    if family not in ("SSLV3", "TLSV1", "TLSV13") or not name:
        return ""
    return name.removeprefix("ALERT_").lower()


def _refused(error: ssl.SSLError, certified: bool) -> OSError:
    """What an error in the handshake, or after it, means."""
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
