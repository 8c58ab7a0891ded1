"""The records of a server for TLS on their way to our socket: cut, reordered, repeated, changed, injected.

An input has a byte of options (the version, the size of reads, whether and how the stream ends, which side
begins, whether we write until nothing more is taken), then operations of three bytes: what is done, and to
which record. The server is one in memory. Its keys are new in
each run, so an input says what to do with its records, not what they contain.

What the client receives must be the beginning of what the server sent, and all of it where nothing was
changed. After a fatal error nothing more is received or sent.
"""

from __future__ import annotations

import atexit
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from fuzz.target import ASAN, TIMEOUT, Plant, check
from logclient._ext.tls import TlsSocket
from tests.support.tls import Authority
from tests.support.tls_records import RecordServer, connect_client

EXTENSIONS = ("tls",)
MAX_LEN = 80

OLD, SMALL, NOTIFY, ANSWERS, OPEN, STUFF = 1, 2, 4, 8, 16, 32  # bits of the options
HOW = ("record", "cut", "swap", "drop", "twice", "flip", "inject")
"""Operations: another record of the server, or damage."""
DICTIONARY = [bytes([n, 0, n]) for n in range(len(HOW))]

ROOTS = ("TlsSocket.read", "TlsSocket.write")
SYSTEM = "only a failure of the system leads here"
FULL = "only a peer that changes keys and reads nothing leads here: tests/transports/test_tls_socket.py"
REFUSED = "any certificate is accepted here: tests/transports/test_tls.py"
UNTAKEN = "there is always room where OpenSSL is asked to write, and it never renegotiates"
APART = {
    "self.send_failed = True": SYSTEM,
    "self.kind = SSL_ERROR_SYSCALL": SYSTEM,
    "self.error = errno": SYSTEM,
    "self.failed = True": SYSTEM,
    "return TLS_BROKEN": SYSTEM,
    "if errno != EINTR:": SYSTEM,
    "raise self._failure()": SYSTEM,
    "if self.error:": SYSTEM,
    "return OSError(self.error, os.strerror(self.error))": SYSTEM,
    "if self.kind == SSL_ERROR_ZERO_RETURN:": SYSTEM,
    'return ssl.SSLZeroReturnError(self.kind, "the peer has closed TLS")': SYSTEM,
    'return ssl.SSLEOFError(self.kind, "the peer has closed the connection")': SYSTEM,
    "return 0": FULL,
    "if self.flush() == 1:": FULL,
    "continue": FULL,
    "self.writes_first = True": FULL,
    'raise ssl.SSLWantWriteError(SSL_ERROR_WANT_WRITE, "reading waits for room")': FULL,
    "error = _error(ssl.SSLCertVerificationError, o, self.code)": REFUSED,
    "verdict = o.SSL_get_verify_result(self.ssl)": REFUSED,
    "error.verify_code = verdict": REFUSED,
    'error.verify_message = o.X509_verify_cert_error_string(verdict).decode("ascii", "replace")': REFUSED,
    "return error": REFUSED,
    "kind = self._explain(result)": UNTAKEN,
    "self.flush()": UNTAKEN,
    "if kind == SSL_ERROR_WANT_READ:": UNTAKEN,
    "self.reads_first = True": UNTAKEN,
    "elif kind != SSL_ERROR_WANT_WRITE and done == 0:": UNTAKEN,
    'raise ssl.SSLWantReadError(SSL_ERROR_WANT_READ, "writing waits for the peer")': UNTAKEN,
}
PLANTS = (
    Plant("length", "_ext/tls.pyx", "<int> min(size - done, <size_t> 1 << 30)", "<int> (size - done + 4096)",
          (ASAN, "longer")),
    Plant("endless", "_ext/tls.pyx", "            if filled <= 0:\n                break\n",
          "            if filled <= 0:\n                continue\n", (TIMEOUT,)),
    Plant("end", "_ext/tls.pyx", "        else:\n            self.failed = True\n        return kind\n",
          "        else:\n            self.closed = True\n        return kind\n", ("an ordinary end",)),
)  # fmt: skip


@cache
def _cert() -> str:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Authority(folder / "authority").issue("server")


def seeds() -> Iterator[bytes]:
    """Yield each kind of damage at each place of a few records, and random scripts."""
    random = Random(17)
    for options in range(64):
        yield bytes([options])
        for how in range(len(HOW)):
            for place in (0, 5, 300):
                yield bytes([options, 0, 0, 9, 0, 1, 200, how, *place.to_bytes(2, "big")])
        for _ in range(4):
            script = bytes(random.randrange(256) for _ in range(3 * random.randrange(1, 12)))
            yield bytes([options]) + script


def _stuff(client: TlsSocket) -> None:
    """Write until the socket and our buffer are full."""
    data = bytes(1 << 17)
    for _ in range(100):
        try:
            check(0 < client.send(data) <= len(data), "as many bytes as were given")
        except ssl.SSLWantWriteError:
            check(not client.flush_sent(), "what was written waits for room")
            return
    check(False, "a peer that reads nothing, and a write without an end")


def run(data: memoryview) -> None:
    if not len(data):
        return
    options, script = data[0], bytes(data[1:])
    server = RecordServer("1.2" if options & OLD else "1.3", _cert())
    size = 7 if options & SMALL else 1 << 16
    with connect_client(server) as client:
        if options & ANSWERS:
            check(client.send(b"hello") == 5 and client.flush_sent(), "the connection takes bytes")
        if options & STUFF:
            _stuff(client)
        sent = b""
        wire: list[bytes] = []
        damage: list[tuple[str, int]] = []
        for at in range(0, len(script) - 2, 3):
            how, place = HOW[script[at] % len(HOW)], int.from_bytes(script[at + 1 : at + 3], "big")
            if how == "record":
                record = bytes([at & 0xFF]) * (1 + place % 2000)
                sent += record
                wire.append(server.seal(record))
            else:
                damage.append((how, place))
        intact = list(wire)
        for how, place in damage:
            server.damage(wire, how, place)
        changed = wire != intact
        if options & NOTIFY:
            wire.append(server.seal_end())
        server.send(b"".join(wire))
        if not options & OPEN:
            server.end()
        got, over, waits = b"", False, False
        error: OSError | None = None
        try:
            while piece := client.recv(size):
                check(len(piece) <= size, "longer than what was asked for", len(piece))
                got += piece
            over = True
        except ssl.SSLWantReadError:
            waits = True
            check(bool(options & OPEN), "an end that is not seen")
        except OSError as found:
            error = found
        check(sent.startswith(got), "other bytes than were sent", got, sent)
        if not changed:
            check(over != waits and got == sent, "an intact stream", error)
        elif {how for how, _ in damage} == {"inject"}:
            check(not over, "an ordinary end after what the server never sent")
        if error is not None:
            check(client.failure() is not None, "a failure that is not kept")
            for again in (lambda: client.recv(10), lambda: client.send(b"more")):
                try:
                    again()
                except OSError:
                    pass
                else:
                    check(False, "the connection goes on after a fatal error")
