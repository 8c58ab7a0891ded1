"""The compiled socket for TLS: against Python's ``ssl``, and against servers that break rules."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.transports import tls
from tests.support import ROOT
from tests.support.tls import HOST, Authority
from tests.support.tls_records import RecordServer, connect_client, receive_all
from tests.support.tls_server import Server

VERSIONS = ("1.2", "1.3")
QUIET = 20
"""Turns without a byte after which a scene is settled; a record passes in a few."""
AGAIN = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


@pytest.fixture(scope="module")
def cert(ours: Authority) -> str:
    return ours.issue("server")


def compiled(ca: str, plain: socket.socket) -> Any:
    from logclient._ext.tls import TlsContext, TlsSocket

    context = TlsContext(tls.find_openssl(), tls.bare_context(ssl.Purpose.SERVER_AUTH))
    context.load_verify_locations(ca)
    return TlsSocket(context, plain, HOST.encode())


def reference(ca: str, plain: socket.socket) -> Any:
    context = ssl.create_default_context(cafile=ca)
    return context.wrap_socket(plain, server_hostname=HOST, do_handshake_on_connect=False)


def pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


class Scene:
    """A client and a server, each of which moves when it is told to."""

    def __init__(self, client: Any, server: Server) -> None:
        self.client = client
        self.server = server
        self.received = b""
        self.arrived = b""
        self.to_send = b""
        self.to_answer = b""

    def step(self, what: str, size: int) -> None:
        if what == "send":
            self.to_send += pattern(size)
            self.send()
        elif what == "answer":
            self.to_answer += pattern(size)[::-1]
            self.answer()
        elif what == "receive":
            self.receive(size)
        elif what == "arrive":
            self.arrived += self.server.read(size)
        elif what == "update":
            # Only between two writes: OpenSSL refuses it in the middle of one.
            if not self.to_answer:
                self.server.update_keys(bool(size % 2))
        else:
            raise AssertionError(what)

    def send(self) -> None:
        try:
            while self.to_send:
                self.to_send = self.to_send[self.client.send(self.to_send) :]
        except AGAIN:
            pass

    def answer(self) -> None:
        while self.to_answer and (done := self.server.write(self.to_answer)):
            self.to_answer = self.to_answer[done:]

    def receive(self, size: int) -> None:
        try:
            self.received += self.client.recv(size)
        except AGAIN:
            pass

    def settle(self) -> None:
        """Move until nothing moves any more; a part of a record moves nothing that can be seen here."""
        quiet = 0
        for _ in range(10_000):
            before = len(self.received), len(self.arrived), len(self.to_send), len(self.to_answer)
            self.send()
            self.answer()
            self.receive(1 << 16)
            self.arrived += self.server.read(1 << 16)
            after = len(self.received), len(self.arrived), len(self.to_send), len(self.to_answer)
            quiet = quiet + 1 if before == after else 0
            if quiet == QUIET:
                return
        raise AssertionError("it never settles")


@contextmanager
def scene(make: Any, version: str, ca: str, cert: str, tickets: int) -> Iterator[Scene]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    near, far = ends
    server = Server(far.fileno(), version, cert, tickets)
    with far, closing(make(ca, near)) as client:
        try:
            shaken = False
            for _ in range(100):
                try:
                    if not shaken:
                        client.do_handshake()
                        shaken = True
                except AGAIN:
                    pass
                if server.shake() and shaken:
                    break
            yield Scene(client, server)
        finally:
            server.close()


def play(
    make: Any, script: list[tuple[str, int]], version: str, ca: str, cert: str, tickets: int
) -> tuple[bytes, bytes, bytes, bytes, bool]:
    """Return what each side received, what could not be sent, and whether the client saw the end."""
    with scene(make, version, ca, cert, tickets) as one:
        for what, size in script:
            one.step(what, size)
        one.settle()
        one.server.end()
        ended = False
        try:
            ended = one.client.recv(1) == b""
        except AGAIN:
            pass
        return one.received, one.arrived, one.to_send, one.to_answer, ended


SCRIPTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "answer", "receive", "arrive", "update"]),
        st.one_of(st.integers(1, 100), st.sampled_from([16383, 16384, 16385, 40_000, 100_000])),
    ),
    max_size=25,
)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@given(script=SCRIPTS, tickets=st.integers(0, 3))
def test_any_script_moves_the_bytes_that_ssl_moves(
    version: str, ours: Authority, cert: str, script: list[tuple[str, int]], tickets: int
) -> None:
    """Writes and reads in any order and size, tickets and changes of keys."""
    if version == "1.2":
        script = [step for step in script if step[0] != "update"]
    found = play(compiled, script, version, ours.ca, cert, tickets)
    received = b"".join(pattern(size)[::-1] for what, size in script if what == "answer")
    arrived = b"".join(pattern(size) for what, size in script if what == "send")
    assert found == (received, arrived, b"", b"", True)
    try:
        expected = play(reference, script, version, ours.ca, cert, tickets)
    except ssl.SSLError as error:
        # OpenSSL cannot answer a change of keys while a record of ours waits for room in the kernel.
        assert error.reason == "BAD_LENGTH"
    else:
        assert found == expected


class TestBrokenRules:
    @pytest.fixture
    def talk(self, ours: Authority, cert: str, version: str) -> Iterator[Scene]:
        with scene(compiled, version, ours.ca, cert, 2) as one:
            yield one

    @pytest.mark.parametrize("version", ["1.2"])
    def test_a_request_for_a_new_handshake_is_refused(self, talk: Scene) -> None:
        talk.server.ask_handshake()
        talk.receive(100)
        with pytest.raises(ssl.SSLError):  # it was refused, which ends OpenSSL's own server
            for _ in range(100):
                talk.server.read(100)
                talk.receive(100)

    @pytest.mark.parametrize("version", ["1.3"])
    def test_key_updates_without_end_stay_bounded(self, talk: Scene) -> None:
        """A server that wants answers and does not read them is read no more, until it reads."""
        for _ in range(100_000):
            talk.server.update_keys(True)
            talk.receive(1 << 16)
            if talk.client.waits_for(False) == (False, True):
                break
        else:
            raise AssertionError("requests are read without end")
        talk.to_send = b"still here"
        talk.settle()
        talk.to_answer = b"so am I"
        talk.settle()
        assert (talk.arrived, talk.received) == (b"still here", b"so am I")


RECORDS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8)
DAMAGE = st.lists(
    st.tuples(st.sampled_from(["cut", "swap", "drop", "twice", "flip", "inject"]), st.integers(0, 1 << 16)),
    max_size=3,
)


@pytest.mark.parametrize("version", VERSIONS)
@given(records=RECORDS, damage=DAMAGE)
def test_damaged_records_end_a_prefix(
    version: str, cert: str, records: list[bytes], damage: list[tuple[str, int]]
) -> None:
    """What is received is what was sent, up to the damage; after it nothing is read or written."""
    server = RecordServer(version, cert)
    with connect_client(server) as client:
        wire = [server.seal(record) for record in records]
        intact = list(wire)
        for how, place in damage:
            server.damage(wire, how, place)
        server.send(b"".join(wire))
        server.end()
        got, error = receive_all(client)
        sent = b"".join(records)
        assert sent.startswith(got)
        if wire == intact:
            assert (got, error) == (sent, None)
        elif error is not None:
            assert client.failure() is not None
            with pytest.raises(OSError):
                client.recv(10)
            with pytest.raises(OSError):
                client.send(b"more")


def test_names_of_the_server_must_be_text(ours: Authority) -> None:
    from logclient._ext.tls import TlsContext, TlsSocket

    context = TlsContext(tls.find_openssl(), tls.bare_context(ssl.Purpose.SERVER_AUTH))
    for name in (b"", b"a\0b", b"x" * 300):
        with socket.socket() as plain, pytest.raises(ValueError, match="is no name of a server"):
            TlsSocket(context, plain, name)


@pytest.mark.tree
def test_functions_are_looked_up_in_the_order_of_their_declarations() -> None:
    from logclient._ext.tls import FUNCTIONS

    source = (ROOT / "_ext" / "tls" / "openssl.pyx").read_text()
    declared = re.findall(r"^    \S.*\(\*(\w+)\)\(", source, re.MULTILINE)
    assert [name.decode() for name in FUNCTIONS] == declared


def test_a_library_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import _ssl

    from logclient._ext.tls import OpenSsl

    with monkeypatch.context() as patch:
        patch.setattr(ssl, "OPENSSL_VERSION", "LibreSSL 3.9")
        with pytest.raises(ImportError, match=r"uses LibreSSL 3\.9, not OpenSSL"):
            OpenSsl()
    with monkeypatch.context() as patch:
        patch.setattr(ssl, "OPENSSL_VERSION_NUMBER", ssl.OPENSSL_VERSION_NUMBER + 0x10)
        with pytest.raises(ImportError, match="a second OpenSSL, of another version"):
            OpenSsl()
    with monkeypatch.context() as patch:
        patch.delattr(_ssl, "__file__")
        with pytest.raises(ImportError, match="linked statically to this Python"):
            OpenSsl()
    with monkeypatch.context() as patch:
        patch.setattr(_ssl, "__file__", str(tmp_path / "no.so"))
        with pytest.raises(ImportError, match="cannot be opened"):
            OpenSsl()
