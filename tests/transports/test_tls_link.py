"""The TLS transport without an engine: bytes, readiness, ends of connections and hostile peers."""

from __future__ import annotations

import array
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from logclient.config.secrets import Secret
from logclient.delivery.attempt import Attempt
from logclient.errors import ConfigError, CredentialError
from logclient.transports.tcp_link import RECEIVE
from logclient.transports.tls import server_context
from logclient.transports.tls_link import TlsLink
from tests.support import transports
from tests.support.patience import PATIENCE, assert_returns, wait_until
from tests.support.tls import HOST, Authority, context, serving

pytestmark = pytest.mark.usefixtures("tls_pump")


@pytest.fixture(scope="module")
def server(ours: Authority) -> str:
    return ours.issue("server")


@pytest.fixture(params=["1.2", "1.3"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class ConnectedPair(NamedTuple):
    link: TlsLink
    far: ssl.SSLSocket
    raw: socket.socket
    """The server's socket below its TLS."""


@pytest.fixture
def pair(version: str, ours: Authority, server: str) -> Iterator[ConnectedPair]:
    """A link, and what is at its far end."""
    tls = context(version, server)
    with socket.create_server((HOST, 0)) as listener:
        found: list[tuple[ssl.SSLSocket, socket.socket]] = []

        def accept() -> None:
            sock, _ = listener.accept()
            sock.settimeout(PATIENCE)
            raw = sock.dup()
            found.append((tls.wrap_socket(sock, server_side=True), raw))

        thread = threading.Thread(target=accept)
        thread.start()
        link = transports.tls(PATIENCE, ca=ours.ca).connect(listener.getsockname()[:2], Attempt())
        thread.join()
        ((far, raw),) = found
        with far, raw:
            yield ConnectedPair(link, far, raw)
        link.close()


def read_next(link: TlsLink) -> bytes:
    """Return the next bytes; b"" at the end."""
    deadline = time.monotonic() + PATIENCE
    while (data := link.receive()) is None:
        assert time.monotonic() < deadline
        link.wait(PATIENCE, False)
    return data


def read_error(link: TlsLink) -> OSError:
    """Return the error with which reading ends."""
    with pytest.raises(OSError) as caught:
        while read_next(link):
            pass
        raise AssertionError("an ordinary end")
    return caught.value


def write_error(link: TlsLink) -> OSError:
    """Return the error with which writing ends."""
    with pytest.raises(OSError) as caught:
        for _ in range(100_000):
            if not link.send([b"x" * 1000]):
                link.wait(PATIENCE, True)
    return caught.value


def kernel_has(fd: int) -> int:
    """Return how many received bytes nobody has read."""
    fcntl = pytest.importorskip("fcntl")
    termios = pytest.importorskip("termios")
    found = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, found)
    return found[0]


def reset(*ends: socket.socket) -> None:
    """Close both sockets so that the peer gets a reset, whatever was sent before."""
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for end in ends:
        end.close()


class TestBytes:
    def test_bytes_travel_both_ways(self, pair: ConnectedPair, version: str) -> None:
        assert pair.link.receive() is None
        assert pair.link.send([b"one ", memoryview(b"two "), b"", b"three"])
        assert pair.far.recv(4) == b"one "
        assert pair.far.recv(100) == b"two three"
        pair.far.sendall(b"answer")
        assert read_next(pair.link) == b"answer"
        assert pair.link.tls.startswith(f"TLSv{version} ")

    def test_bytes_that_do_not_fit_are_copied_and_kept(self, pair: ConnectedPair) -> None:
        buffer = bytearray(b"x" * (1 << 20))
        sent = 1 << 20
        while pair.link.send([memoryview(buffer)]):
            sent += 1 << 20
        buffer[:] = b"y" * (1 << 20)  # the core may use it for the next
        got = bytearray()

        def read() -> None:
            while len(got) < sent:
                got.extend(pair.far.recv(1 << 20))

        thread = threading.Thread(target=read)
        thread.start()
        while not pair.link.flush():
            pair.link.wait(PATIENCE, True)
        thread.join(PATIENCE)
        assert got == b"x" * sent

    def test_simultaneous_writes_do_not_deadlock(self, pair: ConnectedPair) -> None:
        """More than fits goes in both directions, read and written by turns."""
        size = 16 << 20

        def echo() -> None:
            left = size
            while left:
                data = pair.far.recv(1 << 16)
                left -= len(data)
                pair.far.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        done = pair.link.send([Random(1).randbytes(1 << 16) * (size >> 16)])
        got = 0
        while got < size:
            if not done:
                done = pair.link.flush()
            while data := pair.link.receive():
                got += len(data)
            if got < size:
                pair.link.wait(PATIENCE, not done)
        thread.join(PATIENCE)
        assert done and got == size

    def test_bytes_already_decrypted_end_a_wait(self, pair: ConnectedPair) -> None:
        """The kernel has none of them any more, so the descriptor is not readable."""
        size = RECEIVE + 100
        pair.far.sendall(bytes(size))
        wait_until(lambda: kernel_has(pair.link.fileno()) > size)
        assert read_next(pair.link)
        assert_returns(lambda: pair.link.wait(1000 * PATIENCE, False), "bytes wait unseen")
        assert read_next(pair.link)


class TestTheEnd:
    def test_close_sends_close_notify_without_waiting(self, pair: ConnectedPair) -> None:
        pair.link.send([b"last"])
        pair.link.close()
        assert pair.far.recv(100) == b"last"
        pair.far.suppress_ragged_eofs = False
        assert pair.far.recv(100) == b""  # a close_notify: a ragged end would raise

    def test_abandon_sends_no_close_notify(self, pair: ConnectedPair) -> None:
        pair.link.abandon()
        pair.far.suppress_ragged_eofs = False
        with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
            pair.far.recv(100)

    def test_close_notify_of_the_peer_is_the_end(self, pair: ConnectedPair) -> None:
        with pytest.raises(TimeoutError):
            pair.far.settimeout(0.01)
            pair.far.unwrap()
        assert read_next(pair.link) == b""

    def test_an_end_without_close_notify_is_the_end(self, pair: ConnectedPair) -> None:
        pair.far.sendall(b"some")
        pair.raw.shutdown(socket.SHUT_RDWR)
        assert read_next(pair.link) == b"some"
        assert read_next(pair.link) == b""

    def test_an_end_inside_a_record_is_the_end(self, pair: ConnectedPair) -> None:
        pair.raw.sendall(b"\x17\x03\x03\x40\x00" + bytes(100))
        pair.raw.shutdown(socket.SHUT_RDWR)
        assert read_next(pair.link) == b""

    @pytest.mark.parametrize("received", [True, False])
    def test_a_reset_fails_the_next_write(self, pair: ConnectedPair, version: str, received: bool) -> None:
        """Reading, it may look like an ordinary end (to Python before 3.12.3); writing, it does not."""
        if received:
            pair.far.sendall(b"some")
            assert read_next(pair.link) == b"some"
        reset(pair.far, pair.raw)
        error = write_error(pair.link)
        assert isinstance(error, ConnectionError)
        # Nothing was said, and nobody asked who we are: it may be that the server wants to know.
        assert ("client certificate" in str(error)) == (version == "1.3" and not received)

    def test_garbage_ends_the_connection_with_a_reason(self, pair: ConnectedPair) -> None:
        pair.raw.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))
        error = read_error(pair.link)
        assert isinstance(error, ConnectionError) and str(error).startswith("TLS failed: ")
        assert "\n" not in str(error)

    def test_an_alert_is_read_after_a_failed_write(self, ours: Authority, server: str) -> None:
        """An alert that came before the reset can still be read."""
        tls = context("1.3", server, ca=ours.ca)
        written = threading.Event()

        def refuse(sock: socket.socket) -> None:
            come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
            far = tls.wrap_bio(come, go, server_side=True)
            while True:
                try:
                    far.do_handshake()
                except ssl.SSLWantReadError:
                    sock.sendall(go.read())
                    come.write(sock.recv(65536))
                except ssl.SSLError:
                    break
            written.wait(PATIENCE)
            sock.sendall(go.read())  # the alert
            reset(sock)

        with serving(refuse) as port:
            link = transports.tls(PATIENCE, ca=ours.ca).connect((HOST, port), Attempt())
            link.send([b"x"])
            written.set()
            link.wait(PATIENCE, False)
            error = write_error(link)
            link.close()
        assert isinstance(error, CredentialError) and "wants a client certificate" in str(error)


# -- the handshake

ALERT = b"\x15\x03\x03\x00\x02\x02"
NOT_TLS = "the peer does not speak TLS"


class TestHandshake:
    @pytest.mark.parametrize(
        ("answer", "kind", "says"),
        [
            (b"220 mail.example ESMTP\r\n", CredentialError, NOT_TLS),
            (b"HTTP/1.0 400 Bad Request\r\n\r\n", CredentialError, NOT_TLS),
            (b"2A\0\0\0\1", CredentialError, NOT_TLS),
            (b"\0" * 100, CredentialError, NOT_TLS),
            (b"\xff" * 20_000, CredentialError, NOT_TLS),
            (ALERT + bytes([70]), CredentialError, "speaks no version of TLS that is allowed here"),
            (ALERT + bytes([112]), CredentialError, "knows no host of this name"),
            (ALERT + bytes([40]), CredentialError, "alert handshake_failure"),
            (ALERT + bytes([49]), CredentialError, "refuses the connection (alert access_denied)"),
            (ALERT + bytes([80]), ConnectionError, "TLS failed: the server said: internal error"),
            (b"\x16\x03\x03\x00\x04\x02\0\0\0", ConnectionError, "TLS failed: "),
            (b"\x16\x03\x03\x00\x04\x63\0\0\0", ConnectionError, "TLS failed: "),
            (b"", ConnectionError, "ended the connection in the TLS handshake"),
            (b"\x16\x03\x03\x40\x00\x02", ConnectionError, "ended the connection in the TLS handshake"),
        ],
    )
    def test_wrong_answers_to_client_hello_are_explained(
        self, ours: Authority, answer: bytes, kind: type[Exception], says: str
    ) -> None:
        def talk(sock: socket.socket) -> None:
            sock.recv(4096)
            sock.sendall(answer)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass

        with serving(talk) as port, pytest.raises(kind) as caught:
            transports.tls(PATIENCE, ca=ours.ca).connect((HOST, port), Attempt())
        assert says in str(caught.value) and "\n" not in str(caught.value)
        assert isinstance(caught.value, CredentialError) == (kind is CredentialError)

    def test_an_old_version_is_refused(self, ours: Authority, server: str) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(server)
        tls.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning):
            tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            serving(lambda sock: tls.wrap_socket(sock, server_side=True)) as port,
            pytest.raises(CredentialError, match="speaks no version of TLS that is allowed here"),
        ):
            transports.tls(PATIENCE, ca=ours.ca).connect((HOST, port), Attempt())

    @pytest.mark.parametrize("trickle", [b"", b"\x16\x03\x03\x40\x00"], ids=["silent", "trickling"])
    def test_a_stalled_handshake_times_out(self, ours: Authority, trickle: bytes) -> None:
        over = threading.Event()

        def talk(sock: socket.socket) -> None:
            sock.sendall(trickle)
            while not over.wait(0.005):
                sock.sendall(b"\0"[: len(trickle)])

        with serving(talk) as port:
            begin = time.monotonic()
            try:
                with pytest.raises(TimeoutError, match="no answer to the TLS handshake in time"):
                    transports.tls(0.2, ca=ours.ca).connect((HOST, port), Attempt())
            finally:
                over.set()
            assert time.monotonic() - begin < PATIENCE / 2

    def test_a_handshake_can_be_interrupted(self, ours: Authority) -> None:
        shaking = threading.Event()
        over = threading.Event()

        def talk(sock: socket.socket) -> None:
            sock.recv(1)
            shaking.set()
            over.wait(PATIENCE)

        with serving(talk) as port:
            with pytest.raises(InterruptedError):
                transports.tls(1000, ca=ours.ca).connect((HOST, port), Attempt(shaking.is_set))
            over.set()

    def test_facts_are_those_of_the_certificate(self, ours: Authority, version: str) -> None:
        names = ["*.example.org", "127.0.0.1", "2001:db8::1", "xn--bcher-kva.example"]
        server = ours.issue("facts", *names)
        tls = context(version, server)

        def shake(sock: socket.socket) -> None:
            with tls.wrap_socket(sock, server_side=True) as far:
                far.recv(1)

        with serving(shake) as port:
            link = transports.tls(PATIENCE, ca=ours.ca).connect((HOST, port), Attempt())
            found = link.facts()
            link.close()
        x509 = pytest.importorskip("cryptography.x509")
        shown = x509.load_pem_x509_certificate(Path(server).read_bytes())

        def written(name: Any) -> str:
            return ", ".join(f"{part.rfc4514_attribute_name}={part.value}" for part in name)

        assert (found["subject"], found["issuer"]) == (written(shown.subject), written(shown.issuer))
        assert found["names"] == names and found["verified"]
        assert found["not_after"] == shown.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ")
        left = shown.not_valid_after_utc.timestamp() - time.time()
        assert found["days_left"] == int(left // 86400)

    def test_an_address_in_a_certificate_may_make_no_sense(self, tmp_path: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl command")
        command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=odd -keyout key -out cert -addext"
        names = "30:0d:87:04:7f:00:00:01:87:05:01:02:03:04:05"  # 127.0.0.1, and an address of five bytes
        subprocess.run([*command.split(), f"subjectAltName=DER:{names}"], cwd=tmp_path, check=True)
        tls = server_context(str(tmp_path / "cert"), str(tmp_path / "key"))

        def shake(sock: socket.socket) -> None:
            with tls.wrap_socket(sock, server_side=True) as far:
                far.recv(1)

        with serving(shake) as port:
            link = transports.tls(PATIENCE, ca=str(tmp_path / "cert")).connect((HOST, port), Attempt())
            first, odd = link.facts()["names"]
            link.close()
        assert first == HOST and "invalid" in odd

    def test_names_of_a_wrong_certificate_are_listed(self, ours: Authority) -> None:
        names = [f"{letter}.example" for letter in "abcdefg"]
        tls = context("1.3", ours.issue("many", *names))
        with (
            serving(lambda sock: tls.wrap_socket(sock, server_side=True).close()) as port,
            pytest.raises(CredentialError) as caught,
        ):
            transports.tls(PATIENCE, ca=ours.ca).connect((HOST, port), Attempt())
        assert 'is not for "127.0.0.1"' in str(caught.value)
        assert str(caught.value).endswith(
            "(it names a.example, b.example, c.example, d.example, e.example, ...)"
        )


# -- hostile servers


class TestHostileServers:
    @pytest.mark.slow
    def test_a_chain_of_ten_megabytes_is_refused(self, ours: Authority, server: str, tmp_path: Path) -> None:
        """OpenSSL buffers what is announced of a message: the bound is checked before that."""
        chain = tmp_path / "chain.pem"
        authority = Path(ours.ca).read_bytes()
        chain.write_bytes(Path(server).read_bytes() + authority * (10 * 1024 * 1024 // len(authority)))
        tls = server_context(str(chain))
        with (
            serving(lambda sock: tls.wrap_socket(sock, server_side=True)) as port,
            pytest.raises(ConnectionError, match="TLS failed: excessive message size"),
        ):
            transports.tls(PATIENCE, ca=ours.ca).connect((HOST, port), Attempt())

    @pytest.mark.parametrize("end", ["closed", "reset"])
    def test_an_early_end_of_the_handshake_is_told(
        self, ours: Authority, server: str, version: str, end: str
    ) -> None:
        """The server's first words are cut after any number of bytes."""
        tls = context(version, server)
        cut = 0

        def talk(sock: socket.socket) -> None:
            come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
            far = tls.wrap_bio(come, go, server_side=True)
            come.write(sock.recv(65536))
            with pytest.raises(ssl.SSLWantReadError):
                far.do_handshake()
            words.append(go.read())
            sock.sendall(words[-1][:cut])
            if end == "reset":
                reset(sock)

        words: list[bytes] = []
        with serving(talk) as port:
            while not words or cut < len(words[0]):
                with pytest.raises(ConnectionError, match="ended the connection in the TLS handshake"):
                    transports.tls(PATIENCE, ca=ours.ca).connect((HOST, port), Attempt())
                cut += 97

    def test_half_closed_servers_get_nothing_more(self, pair: ConnectedPair) -> None:
        pair.far.sendall(b"some")
        pair.raw.shutdown(socket.SHUT_WR)
        assert read_next(pair.link) == b"some"
        assert read_next(pair.link) == read_next(pair.link) == b""


# -- files


class TestFiles:
    def errors(self, **options: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            transports.tls(1.0, **options)
        return str(caught.value)

    def test_unusable_files_are_named(self, ours: Authority, server: str, tmp_path: Path) -> None:
        no, junk, empty = str(tmp_path / "no"), tmp_path / "junk.pem", tmp_path / "empty"
        junk.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        empty.mkdir()
        only_cert = tmp_path / "cert.pem"
        only_cert.write_bytes(Path(ours.ca).read_bytes())
        assert self.errors(ca=no) == f"ca: {no!r} cannot be read: No such file or directory"
        assert (
            self.errors(ca=str(junk))
            == f"ca: {str(junk)!r} holds something that is no certificate in PEM form"
        )
        assert (
            self.errors(ca=str(empty)) == f"ca: directory {str(empty)!r} holds no certificates (*.pem, *.crt)"
        )
        assert self.errors(cert=no) == f"cert: {no!r} cannot be read: No such file or directory"
        assert self.errors(cert=server, key=no) == f"key: {no!r} cannot be read: No such file or directory"
        assert self.errors(cert=str(empty)) == f"cert: {str(empty)!r} cannot be read: Is a directory"
        assert (
            self.errors(cert=str(only_cert)) == f"cert: {str(only_cert)!r} holds no private key in PEM form"
        )
        other = ours.issue("other")
        assert (
            self.errors(cert=server, key=other) == f"key: the key in {other!r} is not that of the certificate"
        )
        both = tmp_path / "both.pem"
        both.write_bytes(junk.read_bytes() + Path(server).read_bytes())
        assert self.errors(cert=str(both)).startswith(f"cert: {str(both)!r} and its key cannot be used")

    @pytest.fixture
    def encrypted(self, server: str, tmp_path: Path) -> str:
        from cryptography.hazmat.primitives import serialization as form

        key = form.load_pem_private_key(Path(server).read_bytes(), None)
        path = tmp_path / "encrypted.key"
        path.write_bytes(
            key.private_bytes(
                form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"hunter2")
            )
        )
        return str(path)

    def test_an_encrypted_key_needs_the_right_password(self, server: str, encrypted: str) -> None:
        transports.tls(1.0, cert=server, key=encrypted, tls_password=Secret("hunter2"))
        server_context(server, encrypted, password="hunter2")
        wrong = self.errors(cert=server, key=encrypted, tls_password=Secret("sesame"))
        assert wrong == f"tls_password: does not open the key in {encrypted!r}"
        long = self.errors(cert=server, key=encrypted, tls_password=Secret("x" * 5000))
        assert long == f"tls_password: does not open the key in {encrypted!r}"

    def test_a_missing_password_is_not_asked_for(self, server: str, encrypted: str) -> None:
        assert self.errors(cert=server, key=encrypted) == (
            f"tls_password: needed, the key in {encrypted!r} is encrypted"
        )
        # A password that is not needed does no harm.
        transports.tls(1.0, cert=server, tls_password=Secret("sesame"))
