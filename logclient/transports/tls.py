"""TLS over TCP, and the link in Python for it, with the standard library's ``ssl``.

Where the OpenSSL that ``ssl`` has loaded can be reached, connections are made with it directly, for the
compiled pump (``_ext/tls.pyx``). Both have the same settings, and end with the same errors.

Certificates and keys are read anew for the next connection after a file has changed, so that a renewed one
takes effect by itself. If it cannot be used at that moment, the last ones are used, with a report. A refused
certificate is a ``CredentialError``, whichever side refuses it. It may come late: in TLS 1.2 a client without
a certificate is refused in the handshake, in TLS 1.3 after it, at the first read or write. A file that the
machine cannot read at the moment, for lack of a descriptor for instance, is an ordinary ``OSError``.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient.config.hosts import dns_name
from logclient.config.secrets import Secret
from logclient.delivery.attempt import Attempt, renew
from logclient.errors import ConfigError, CredentialError, is_shortage
from logclient.standard import open, os, time
from logclient.threads import without_sigpipe
from logclient.transports.addresses import Connect
from logclient.transports.tcp import Tcp
from logclient.transports.tcp_link import make_socket
from logclient.transports.tls_link import AnySocket, CompiledTlsLink, TlsLink, read_certificate, refused

if TYPE_CHECKING:
    from logclient._ext.tls import OpenSsl, TlsContext

SETTLED_NS = 2_000_000_000
"""Age at which a file counts as unchanged if its times and its size are: more than any clock's tick."""

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

_NOT_TLS = {
    "BAD_RECORD_TYPE", "HTTPS_PROXY_REQUEST", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "WRONG_SSL_VERSION", "WRONG_VERSION_NUMBER",
}  # fmt: skip


class _PythonSocket:
    """The part of ``ssl.SSLSocket`` that we use, without SIGPIPE.

    The class itself cannot be used where gevent has replaced its name, by which it looks itself up.
    """

    def __init__(self, context: Any, plain: socket.socket, name: bytes) -> None:
        self._plain = plain
        self._tls = context._wrap_socket(plain, False, name.decode("ascii"))
        self.fileno, self.close = plain.fileno, plain.close
        self.do_handshake = partial(self._quietly, self._tls.do_handshake)
        self.unwrap = partial(self._quietly, self._tls.shutdown)
        self.send = partial(self._quietly, self._tls.write)
        self.version, self.cipher = self._tls.version, self._tls.cipher
        self.getpeercert = self._tls.getpeercert

    @staticmethod
    def _quietly(method: Callable[..., Any], *given: Any) -> Any:
        with without_sigpipe():
            return method(*given)

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._quietly(self._tls.read, size)
        except ssl.SSLEOFError:  # the peer closed without close_notify
            return b""
        return data


Wrap = Callable[[socket.socket, bytes], AnySocket]
"""Adds TLS to a plain socket, for a name."""


class _Loaded(NamedTuple):
    """What was made of the files."""

    pid: int  # of the process that has read them
    state: object  # of the files and the password; None: to be read again
    wrap: Wrap


class Tls(Tcp):
    """Connects with TLS 1.2 or newer; ConfigError: a file cannot be used."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._ca: str | None = config.ca
        self._own: tuple[str | None, str | None, Secret | None] = (
            config.cert,
            config.key,
            config.tls_password,
        )
        # As bytes: see encode_hostname.
        self._server_name = None if config.server_name is None else dns_name(config.server_name)
        self._verify = config.verify != "none"
        self._library: OpenSsl | None = None
        self._why = ""  # there is none
        try:
            self._library = find_openssl()
            # Now: at the end of the process nothing can be imported.
            from logclient._ext.tls import TlsContext, TlsPump, TlsSocket

            self._kinds = TlsContext, TlsSocket, TlsPump
        except ImportError as error:
            self._why = str(error)
        self._loaded: _Loaded | None = None
        self._inherited: _Loaded | None = None  # of a fork's parent, whose threads may have held its locks
        if self._own[2] is None or self._own[2].is_known:
            self._load()

    def prepare(self, attempt: Attempt) -> Wrap:
        """Return a function that adds TLS to a socket: with the files as they are, or as they were last.

        Raises:
            CredentialError: a file or the password cannot be used, and never could.
            OSError: one cannot be read at the moment.
        """
        renew([("tls_password", self._own[2])], attempt)
        last = self._loaded
        if last is not None and last.pid != os.getpid():
            self._inherited, self._loaded, last = last, None, None
        if last is not None and last.state is not None and last.state == self._state():
            return last.wrap
        try:
            return self._load()
        except (ConfigError, OSError) as error:
            if last is not None:
                attempt.warn(f"{getattr(error, 'strerror', None) or error}; the last good one is used")
                return last.wrap
            if isinstance(error, ConfigError):
                raise CredentialError(str(error)) from None
            raise

    def _load(self) -> Wrap:
        """Read the files, and keep what was made of them. Exceptions: see `_wrap`."""
        state = self._state()
        wrap = self._wrap()
        self._loaded = _Loaded(os.getpid(), state, wrap)
        return wrap

    def _state(self) -> object:
        """Return a value that changes with the files and the password; None: read them in any case."""
        cert, key, password = self._own
        paths = [path for path in (cert, key) if path is not None]
        if self._ca is None:
            system = ssl.get_default_verify_paths()
            authorities = [path for path in (system.cafile, system.capath) if path is not None]
            if not authorities:  # the system has none
                return None
            paths += authorities
        else:
            paths.append(self._ca)
        try:
            if self._ca is not None and os.path.isdir(self._ca):
                paths += [os.path.join(self._ca, name) for name in sorted(os.listdir(self._ca))]
            found = [os.stat(path) for path in paths]
        except OSError:
            return None
        # A file that was just written may change again within the clock's tick.
        if max(one.st_ctime_ns for one in found) > time.time_ns() - SETTLED_NS:
            return None
        stats = [(one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found]
        return paths, stats, password and password.reveal()

    def _wrap(self, check_hostname: bool = True) -> Wrap:
        """Return a function that adds TLS to a socket, with the present content of the files.

        Raises:
            ConfigError: a file cannot be used.
            OSError: one cannot be read at the moment.
        """
        plain = bare_context(ssl.Purpose.SERVER_AUTH)
        plain.check_hostname = self._verify and check_hostname
        if not self._verify:
            plain.verify_mode = ssl.CERT_NONE
        context: ssl.SSLContext | TlsContext = plain
        wrap: Wrap = partial(_PythonSocket, plain)
        if self._library is not None:
            TlsContext, TlsSocket, _ = self._kinds
            context = TlsContext(self._library, plain)
            context.set_verify(self._verify)
            context.check_hostname = plain.check_hostname
            wrap = partial(TlsSocket, context)
        _trust(context, self._ca)
        _identify(context, *self._own)
        return wrap

    def load_pump(self) -> Callable[..., Any]:
        if self._library is None:
            raise ImportError(self._why)
        return self._kinds[2]

    def make_link(
        self,
        connect: Connect,
        name: bytes,
        peer: str,
        attempt: Attempt,
        deadline: float,
        again: bool = True,
    ) -> TlsLink:
        """Make a connection and do the handshake; see `Tcp.make_link`.

        With `again`, try once more when no authority for the server's certificate is found.
        """
        wrap = self.prepare(attempt)
        certified = self._own[0] is not None
        wanted = (self._server_name or name).partition(b"%")[0].rstrip(b".")
        plain = connect()  # outside: a refused connection is no failed handshake
        try:
            sock = _shake(wrap, plain, wanted, attempt, deadline)
        except ssl.SSLCertVerificationError as error:
            if self._loaded is not None:  # authorities may have been missed for lack of a descriptor
                self._loaded = self._loaded._replace(state=None)
            why = _WHY.get(error.verify_code, f"is refused: {error.verify_message}")
            if why == _UNKNOWN and again and (self._ca is None or os.path.isdir(self._ca)):
                # OpenSSL searches files, and a file that cannot be opened at that moment looks the same.
                return self.make_link(connect, name, peer, attempt, deadline, again=False)
            if why != _NOT_FOR:
                raise CredentialError(f"the server's certificate {why}") from None
            refusal = CredentialError(why.format(wanted.decode()))
            names = self._names(connect, wanted, attempt, deadline)
            refusal.detail = names and f"it names {names}"
            raise refusal from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
            # It may be a restart, or a balancer without a server: no reason for the credential back-off.
            raise ConnectionError(
                "the server ended the connection in the TLS handshake; does it speak TLS?"
            ) from None
        except ssl.SSLError as error:
            if error.reason in _NOT_TLS:
                words = "the peer does not speak TLS: is the port right, and TLS enabled there?"
                raise CredentialError(words) from None
            raise refused(error, certified) from None
        kind = TlsLink if self._library is None else CompiledTlsLink
        return kind(sock, peer, certified, self._verify)

    def _names(self, connect: Connect, wanted: bytes, attempt: Attempt, deadline: float) -> str:
        """Connect once more, without a check of names, and return the names of the server's certificate."""
        try:
            wrap = self._wrap(check_hostname=False)
            with closing(_shake(wrap, connect(), wanted, attempt, deadline)) as sock:
                names = read_certificate(sock).get("names", [])
        except (OSError, ValueError):
            return ""
        shown = names[:5] + ["..."] * (len(names) > 5)
        return "".join(c if c.isprintable() else "?" for c in ", ".join(shown))[:200]


def find_openssl() -> OpenSsl:
    """Look up the functions of Python's OpenSSL; ImportError: why they cannot be used."""
    if os.environ.get("SSLKEYLOGFILE"):
        raise ImportError("only Python's ssl writes SSLKEYLOGFILE")
    from logclient._ext.tls import OpenSsl

    return OpenSsl()


def bare_context(purpose: ssl.Purpose) -> ssl.SSLContext:
    """Make a context with the settings of ``ssl.create_default_context``, which trusts nobody yet."""
    # A place with authorities, even an empty one, keeps Python from loading the system's, which takes long.
    context = ssl.create_default_context(purpose, capath=os.devnull)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def server_context(
    cert: str, key: str | None = None, *, password: str | None = None, ca: str | None = None
) -> ssl.SSLContext:
    """Make the context of a server.

    Args:
        cert: file with its certificate.
        key: file with the key; None: the same file.
        password: of the key.
        ca: authorities; clients must show a certificate of one of them. None: they need none.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = bare_context(ssl.Purpose.CLIENT_AUTH)
    if ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, ca)
    _identify(context, cert, key, None if password is None else Secret(password))
    return context


def _trust(context: ssl.SSLContext | TlsContext, ca: str | None) -> None:
    """Load authorities from a file or a directory; None: the system's."""
    try:
        if ca is None:
            context.load_default_certs()
        elif not os.path.isdir(ca):
            context.load_verify_locations(ca)
        else:
            inside = sorted(os.listdir(ca))
            files = [os.path.join(ca, n) for n in inside if n.endswith((".pem", ".crt"))]
            # Either prepared by OpenSSL's rehash, or with the names that people gave.
            if any(len(n) > 9 and n[8] == "." and n[9:].isdigit() for n in inside):
                context.load_verify_locations(None, ca)
            elif not files:
                raise ConfigError(f"ca: directory {ca!r} holds no certificates (*.pem, *.crt)")
            else:
                for file in files:
                    context.load_verify_locations(file)
    except ssl.SSLError:
        raise ConfigError(f"ca: {ca!r} holds something that is no certificate in PEM form") from None
    except OSError as error:
        raise _unreadable("ca", str(ca), error) from None


def _identify(
    context: ssl.SSLContext | TlsContext, cert: str | None, key: str | None, password: Secret | None
) -> None:
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
            # Without an answer, OpenSSL would ask at the terminal.
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
            if _versions(cert, keys) != before:  # renewed between the reads of the two
                _identify(context, cert, key, password)
                return
            raise ConfigError(f"{where}: the key in {keys!r} is not that of the certificate") from None
        if asked:
            raise ConfigError(f"tls_password: does not open the key in {keys!r}") from None
        words = reason.replace("_", " ").lower() or getattr(error, "strerror", None) or "unknown reason"
        raise ConfigError(f"cert: {cert!r} and its key cannot be used: {words}") from None


def _versions(*paths: str) -> list[tuple[int, int]]:
    """Return values that change when a file is written or replaced; empty when one cannot be examined."""
    try:
        return [(found.st_ino, found.st_mtime_ns) for found in map(os.stat, paths)]
    except OSError:
        return []


def _holds(option: str, path: str, mark: bytes, what: str) -> None:
    """Check that a file contains `mark`, for an error that is clearer than OpenSSL's."""
    try:
        with open(path, "rb") as file:
            found = mark in file.read(1 << 20)
    except OSError as error:
        raise _unreadable(option, path, error) from None
    if not found:
        raise ConfigError(f"{option}: {path!r} holds no {what} in PEM form")


def _unreadable(option: str, path: str, error: OSError) -> OSError | ConfigError:
    words = f"{option}: {path!r} cannot be read: {error.strerror}"
    return OSError(error.errno, words) if _is_passing(error) else ConfigError(words)


def _is_passing(error: OSError) -> bool:
    """Return whether the machine failed, not the file. The numbers of an ``SSLError`` are OpenSSL's own."""
    return not isinstance(error, ssl.SSLError) and (is_shortage(error) or error.errno == errno.EIO)


def _shake(wrap: Wrap, plain: socket.socket, name: bytes, attempt: Attempt, deadline: float) -> AnySocket:
    """Do the handshake over a connected, non-blocking socket, which is used up."""
    try:
        sock = wrap(plain, name)
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
            fds = [sock.fileno()]
            late = "no answer to the TLS handshake in time"
            attempt.wait([] if writing else fds, fds if writing else [], deadline, late)
    except BaseException as error:
        try:
            if isinstance(error, ssl.SSLCertVerificationError):
                # OpenSSL treats an authority whose file it cannot open as unknown. Find out whether a
                # descriptor was left for it: this raises if there is none.
                make_socket().close()
        finally:
            sock.close()
        raise
