"""TLS on a connected socket, through the OpenSSL that Python's ``ssl`` has loaded, without the GIL.

`TlsContext` and `TlsSocket` have the methods of ``ssl.SSLContext`` and ``ssl.SSLSocket`` that
``transports.tls`` uses, and raise the same exceptions; the compiled pump calls ``read`` and ``write`` in C.

OpenSSL never sees the descriptor. It works on one end of a pair of buffers (``BIO_new_bio_pair``), and the
other end is written and read with ``send`` and ``recv`` here. So many records go out with one system call,
no signal SIGPIPE is raised, and the memory of a connection is bounded: whoever makes us answer without
reading the answers is not read any more.

Rules of OpenSSL that are kept here:

- its queue of errors belongs to the thread: it is emptied before each call, and read right after a failure;
- after a fatal error there is no further call;
- a write that was refused is repeated with at least the same bytes.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from posix.unistd cimport getpid

from logclient._ext.descriptors cimport lc_file, lc_look
from logclient._ext.pump cimport *
from logclient._ext.sockets cimport *

import os
import ssl

cdef enum:
    RECORD = 16384               # bytes of the longest record, decrypted
    ROOM = RECORD + 1024         # bytes that are free when a record is made: its head and code fit, too
    OUTGOING = 16 * ROOM         # encrypted bytes for one call of send(): a peer that reads is woken once
    INCOMING = 2 * ROOM          # encrypted bytes of one call of recv()
    MAX_FILLS = 2                # calls of recv() in one of `read`
    MAX_STEPS = 16               # in one call of `do_handshake`
    MAX_PASSWORD = 1024


include "tls/openssl.pyx"
include "tls/context.pyx"


@cython.no_gc_clear             # its last act needs the library
cdef class TlsSocket:
    """A connection with TLS over a connected, non-blocking socket.

    Args:
        context: the settings.
        plain: the socket; it belongs to this object from now on.
        name: of the server, or its address: what its certificate must be for. Else a ValueError.
    """

    cdef TlsContext context      # owns what `o` refers to
    cdef lc_openssl *o
    cdef SSL *ssl
    cdef BIO *inner              # owned by `ssl`
    cdef BIO *outer              # our end of the pair
    cdef object plain
    cdef lc_file file
    cdef int owner               # the process that may end this connection
    cdef bint eof                # the peer has sent its last byte
    cdef bint closed             # it has also said so, or that is taken as said
    cdef bint failed             # after a fatal error nothing is written or read
    cdef bint send_failed        # the system takes no more bytes
    cdef readonly bint received  # anything at all
    cdef bint reads_first        # nothing can be written before something was read
    cdef bint writes_first       # and the reverse
    cdef readonly bint has_unread    # a call of `read` may find more without a byte from the kernel
    cdef int kind                # SSL_ERROR_* of the last failure
    cdef unsigned long code      # what OpenSSL's queue of errors had then
    cdef int error               # errno, where the system failed

    def __cinit__(self, TlsContext context not None, plain: socket.socket, bytes name not None):
        cdef lc_openssl *o = &context.library.f
        cdef const char *text = name
        cdef X509_VERIFY_PARAM *param
        cdef bint done
        self.context = context
        self.o = o
        self.owner = getpid()
        self.file.fd = -1
        if not name or b"\0" in name:
            raise ValueError(f"{name!r} is no name of a server")
        o.ERR_clear_error()
        self.ssl = o.SSL_new(context.context)
        if self.ssl == NULL or o.BIO_new_bio_pair(&self.inner, OUTGOING, &self.outer, INCOMING) != 1:
            raise MemoryError
        o.SSL_set_bio(self.ssl, self.inner, self.inner)
        o.SSL_set_connect_state(self.ssl)
        param = o.X509_VERIFY_PARAM_new()
        if param == NULL:
            raise MemoryError
        is_address = o.X509_VERIFY_PARAM_set1_ip_asc(param, text) == 1
        o.X509_VERIFY_PARAM_free(param)
        o.ERR_clear_error()
        param = o.SSL_get0_param(self.ssl)
        # An address is no name for SNI (RFC 6066, section 3).
        done = is_address or o.SSL_ctrl(self.ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, 0, <void *> text) == 1
        if done and context.check_hostname:
            if is_address:
                done = o.X509_VERIFY_PARAM_set1_ip_asc(param, text) == 1
            else:
                done = o.X509_VERIFY_PARAM_set1_host(param, text, <size_t> len(name)) == 1
        if not done:
            o.ERR_clear_error()
            raise ValueError(f"{name!r} is no name of a server")
        self.plain = plain
        if lc_look(&self.file, plain.fileno()) < 0:
            raise OSError(errno, "the socket is not open")

    def __dealloc__(self):
        # In a forked child a call may have been under way, and its locks may be held for ever: leave all
        # memory of OpenSSL as it is.
        if self.ssl != NULL and self.owner == getpid():
            self.o.SSL_free(self.ssl)        # and its end of the pair
            if self.outer != NULL:
                self.o.BIO_free(self.outer)

    cdef int flush(self, bint more=False) noexcept nogil:
        # Pass encrypted bytes to the kernel. Return 1 when none are left, 0 when it takes no more now, or
        # LINK_BROKEN. With `more`, others follow at once: the last packet may wait for them.
        cdef int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (MSG_MORE if more else 0)
        cdef char *data = NULL
        cdef ssize_t sent
        cdef int n
        while True:
            n = self.o.BIO_nread0(self.outer, &data)
            if n <= 0:
                return 1
            if self.send_failed:
                return LINK_BROKEN
            sent = lc_send(&self.file, data, <size_t> n, flags)
            if sent >= 0:
                self.o.BIO_nread(self.outer, &data, <int> sent)
            elif errno == EAGAIN or errno == EWOULDBLOCK:
                return 0
            else:
                self.send_failed = True
                self.error = errno
                return LINK_BROKEN

    cdef int _fill(self) noexcept nogil:
        # Fetch encrypted bytes from the kernel, once. Return whether OpenSSL has something to look at, or
        # LINK_BROKEN.
        cdef char *room = NULL
        cdef ssize_t got
        cdef int n = self.o.BIO_nwrite0(self.outer, &room)
        if n <= 0:
            return 0
        got = lc_recv(&self.file, room, <size_t> n, MSG_DONTWAIT)
        if got > 0:
            self.o.BIO_nwrite(self.outer, &room, <int> got)
            return 1
        if got == 0:
            self.eof = True
            self.o.BIO_ctrl(self.outer, BIO_C_SHUTDOWN_WR, 0, NULL)
            return 1
        if errno == EAGAIN or errno == EWOULDBLOCK:
            return 0
        self.failed = True
        self.kind = SSL_ERROR_SYSCALL
        self.error = errno
        return LINK_BROKEN

    cdef int _explain(self, int result) noexcept nogil:
        # Keep why a call of OpenSSL in this thread has failed, and return SSL_ERROR_*.
        cdef int kind = self.o.SSL_get_error(self.ssl, result)
        if kind == SSL_ERROR_WANT_READ or kind == SSL_ERROR_WANT_WRITE:
            return kind
        self.kind = kind
        self.code = self.o.ERR_peek_last_error()
        self.o.ERR_clear_error()
        if kind == SSL_ERROR_ZERO_RETURN:
            self.closed = True
        elif self.eof and (kind == SSL_ERROR_SYSCALL
                           or error_reason(self.o, self.code) == SSL_R_UNEXPECTED_EOF_WHILE_READING):
            # Without close_notify, as far as this version of OpenSSL tells.
            self.kind = SSL_ERROR_SYSCALL
            self.closed = True
        else:
            self.failed = True
        return kind

    cdef int _shake(self) noexcept nogil:
        # Go on with the handshake. Return SSL_ERROR_NONE when it is done, SSL_ERROR_WANT_*, or -1.
        cdef int result, kind, flushed, filled, _steps
        for _steps in range(MAX_STEPS):
            if self.failed or self.closed:
                return -1
            self.o.ERR_clear_error()
            result = self.o.SSL_do_handshake(self.ssl)
            kind = SSL_ERROR_NONE if result == 1 else self._explain(result)
            flushed = self.flush()           # a failure has an alert for the peer
            if kind != SSL_ERROR_NONE and kind != SSL_ERROR_WANT_READ and kind != SSL_ERROR_WANT_WRITE:
                return -1
            if flushed == 0:
                return SSL_ERROR_WANT_WRITE
            if kind == SSL_ERROR_NONE:
                return kind if flushed == 1 else -1
            if kind == SSL_ERROR_WANT_READ:
                filled = self._fill()
                if filled < 0 or filled == 0 and flushed < 0:
                    return -1
                if filled == 0:
                    return kind
        return SSL_ERROR_WANT_WRITE          # it is possible at once: others have their turn

    cdef ssize_t write(self, const uint8_t *data, size_t size) noexcept nogil:
        # Encrypt and send. Return how many bytes were taken, some of which may wait in our buffer for room
        # in the kernel's; 0 for not now; or LINK_BROKEN. After 0 the same bytes must be given again.
        cdef size_t done = 0
        cdef int flushed, result, kind
        if self.failed or self.send_failed:
            return LINK_BROKEN
        self.reads_first = False
        while True:
            flushed = self.flush(done < size)
            if flushed < 0 and done == 0:
                return LINK_BROKEN
            if flushed <= 0 or done == size:
                return <ssize_t> done
            while done < size and self.o.BIO_ctrl_get_write_guarantee(self.inner) >= ROOM:
                self.o.ERR_clear_error()
                result = self.o.SSL_write(self.ssl, data + done, <int> min(size - done, <size_t> RECORD))
                if result > 0:
                    done += <size_t> result
                    continue
                kind = self._explain(result)
                self.flush()
                if kind == SSL_ERROR_WANT_READ:
                    self.reads_first = True
                elif kind != SSL_ERROR_WANT_WRITE and done == 0:
                    return LINK_BROKEN
                return <ssize_t> done

    cdef ssize_t read(self, uint8_t *data, size_t size) noexcept nogil:
        # Receive and decrypt. Return how many bytes there are, 0 for none now, LINK_CLOSED or LINK_BROKEN.
        cdef size_t done = 0
        cdef int fills = 0
        cdef int result, kind, filled
        self.writes_first = False
        self.has_unread = False
        self.flush()
        while done < size and not self.failed and not self.closed:
            self.o.ERR_clear_error()
            result = self.o.SSL_read(self.ssl, data + done, <int> min(size - done, <size_t> 1 << 30))
            if result > 0:
                done += <size_t> result
                continue
            kind = self._explain(result)
            if kind == SSL_ERROR_WANT_WRITE:
                # It wants to answer a request to change keys, and the peer does not read our answers.
                if self.flush() == 1:
                    continue
                self.writes_first = True
                break
            if kind != SSL_ERROR_WANT_READ:
                break
            if fills == MAX_FILLS:
                self.has_unread = True
                break
            filled = self._fill()
            if filled <= 0:
                break
            fills += 1
        self.flush()                         # answers, or an alert
        if done:
            self.received = True
            # The next call finds the rest, or the end that was found behind these bytes.
            self.has_unread = self.has_unread or done == size or self.failed or self.closed
            return <ssize_t> done
        if self.closed:
            return LINK_CLOSED
        return LINK_BROKEN if self.failed or self.send_failed else 0

    cdef int interest(self, bint full) noexcept nogil:
        cdef int bits = 0 if self.writes_first else POLLIN
        if self.o.BIO_ctrl_pending(self.outer) > 0 or full and not self.reads_first:
            bits |= POLLOUT
        return bits

    def failure(self) -> OSError | None:
        """Return the exception of the failure after which nothing is sent any more; None: there is none."""
        if self.failed or self.send_failed:
            return self._failure()
        return None

    cdef object _failure(self):
        cdef lc_openssl *o = self.o
        cdef long verdict
        if self.kind == SSL_ERROR_SSL:
            if (error_library(o, self.code) == ERR_LIB_SSL
                    and error_reason(o, self.code) == SSL_R_CERTIFICATE_VERIFY_FAILED):
                error = _error(ssl.SSLCertVerificationError, o, self.code)
                verdict = o.SSL_get_verify_result(self.ssl)
                error.verify_code = verdict
                error.verify_message = o.X509_verify_cert_error_string(verdict).decode("ascii", "replace")
                return error
            return _error(ssl.SSLError, o, self.code)
        if self.error:
            return OSError(self.error, os.strerror(self.error))
        if self.kind == SSL_ERROR_ZERO_RETURN:
            return ssl.SSLZeroReturnError(self.kind, "the peer has closed TLS")
        return ssl.SSLEOFError(self.kind, "the peer has closed the connection")

    def do_handshake(self):
        """Go on with the handshake; see ``ssl.SSLSocket.do_handshake``."""
        cdef int kind
        with nogil:
            kind = self._shake()
        if kind == SSL_ERROR_WANT_READ:
            raise ssl.SSLWantReadError(kind, "the handshake waits for the server")
        if kind == SSL_ERROR_WANT_WRITE:
            raise ssl.SSLWantWriteError(kind, "the handshake waits for room")
        if kind:
            raise self._failure()

    def send(self, const uint8_t[::1] data) -> int:
        """Return how many bytes were taken; some of them may wait for ``flush_sent``.

        After ``ssl.SSLWantWriteError`` or ``ssl.SSLWantReadError`` give the same bytes again.
        """
        cdef ssize_t done
        cdef size_t size = <size_t> data.shape[0]
        if size == 0:
            return 0
        with nogil:
            done = self.write(&data[0], size)
        if done > 0:
            return done
        if done < 0:
            raise self._failure()
        if self.reads_first:
            raise ssl.SSLWantReadError(SSL_ERROR_WANT_READ, "writing waits for the peer")
        raise ssl.SSLWantWriteError(SSL_ERROR_WANT_WRITE, "writing waits for room")

    def flush_sent(self) -> bool:
        """Pass encrypted bytes to the kernel; return whether none are left."""
        cdef int flushed
        with nogil:
            flushed = self.flush()
        if flushed < 0:
            raise self._failure()
        return flushed == 1

    def recv(self, size_t size) -> bytes:
        """Return up to `size` received bytes; ``b""`` when the peer has closed, with or without a word."""
        cdef ssize_t done
        cdef uint8_t *to
        data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size)
        to = <uint8_t *> PyBytes_AS_STRING(data)
        with nogil:
            done = self.read(to, size)
        if done > 0:
            return data[:done]
        if done == LINK_CLOSED or size == 0:
            return b""
        if done < 0:
            raise self._failure()
        if self.writes_first:
            raise ssl.SSLWantWriteError(SSL_ERROR_WANT_WRITE, "reading waits for room")
        raise ssl.SSLWantReadError(SSL_ERROR_WANT_READ, "nothing was received")

    def unwrap(self):
        """Send close_notify, as far as the kernel takes it; the peer's is not waited for."""
        if self.failed or self.file.fd < 0:
            return
        with nogil:
            self.o.ERR_clear_error()
            self.o.SSL_shutdown(self.ssl)
            self.o.ERR_clear_error()
            self.flush()

    def waits_for(self, bint full) -> tuple[bool, bool]:
        """Return whether to wait until the socket is readable, and until it is writable, to go on writing."""
        cdef int bits = self.interest(full)
        return bool(bits & POLLIN), bool(bits & POLLOUT)

    def version(self) -> str:
        """Return the version of TLS, as ``TLSv1.3``."""
        return self.o.SSL_get_version(self.ssl).decode("ascii")

    def cipher(self) -> tuple[str] | None:
        """Return a tuple whose first item is the name of the cipher; None: there is none yet."""
        cdef const SSL_CIPHER *cipher = self.o.SSL_get_current_cipher(self.ssl)
        return None if cipher == NULL else (self.o.SSL_CIPHER_get_name(cipher).decode("ascii"),)

    def getpeercert(self) -> str | None:
        """Return the server's certificate as OpenSSL prints it for people; None: it has shown none."""
        cdef char *text = NULL
        cdef long size
        cdef BIO *bio
        cdef X509 *certificate = self.o.SSL_get1_peer_certificate(self.ssl)
        if certificate == NULL:
            return None
        bio = self.o.BIO_new(self.o.BIO_s_mem())
        try:
            if bio == NULL or self.o.X509_print_ex(bio, certificate, NAME_FLAGS, CERTIFICATE_FLAGS) != 1:
                raise MemoryError("out of memory for a certificate")
            size = self.o.BIO_ctrl(bio, BIO_CTRL_INFO, 0, <void *> &text)
            return text[:size].decode("utf-8", "replace")
        finally:
            self.o.ERR_clear_error()
            self.o.BIO_free(bio)
            self.o.X509_free(certificate)

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1: closed."""
        return self.file.fd

    def close(self):
        """Close the socket, without a word to the peer."""
        self.failed = True
        self.file.fd = -1
        if self.plain is not None:
            self.plain.close()


include "tls/pump.pyx"
