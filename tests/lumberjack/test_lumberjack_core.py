"""The writer of one connection: states, outcomes and errors. Times are arguments; there is no socket."""

import struct

import pytest

from logclient.codec import CloseWanted, Connection, Settled
from logclient.config.parsing import parse
from logclient.delivery.contract import Fatal
from logclient.errors import ConfigError, ProtocolError
from logclient.lumberjack.core import Lumberjack
from logclient.lumberjack.reader import Reader
from tests.support.configs import config_for, record_codecs
from tests.support.connections import load
from tests.support.lumberjack_inputs import pair_block

pytestmark = pytest.mark.unit

PRODUCER = bytes(range(10))


def ack(number: int) -> bytes:
    return b"2A" + struct.pack(">I", number)


def connected(**options: object) -> Connection:
    core = Lumberjack(config_for("lumberjack", **{"compression": 0, "inflight": 2, **options}), PRODUCER)
    connection = Connection(core)
    connection.connected(100.0)
    return connection


def send(connection: Connection, events: int, windows: int = 1, now: float = 100.0) -> bytes:
    """Encode windows of `events` events each and return what goes on the wire."""
    batch = load(connection, [(b"{}", 0)] * (events * windows))
    for _ in range(windows):
        assert connection.encode(batch, events, now) == events
    return connection.codec.take_bytes()


class TestOptions:
    def test_unknown_identity_names_the_choices(self) -> None:
        with pytest.raises(ConfigError, match="identity: must be one of id, own, none, got 'no'"):
            parse("lumberjack://h?identity=no")

    def test_options_are_taken_from_the_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = record_codecs(monkeypatch, "logclient.lumberjack.core")
        for url in ("lumberjack://h", "lumberjack://h?window=7&compression=0&inflight=1&identity=none"):
            Lumberjack(parse(url), PRODUCER)
        default = {
            "version": 2, "window": 2048, "window_bytes": 1 << 20, "inflight": 2, "compression": 3,
            "identity": True, "check": True, "silence": 30.0, "frames": "json", "strict_spec": False,
            "adaptive": True, "inflight_bytes": 1 << 25, "metadata": b"",
        }  # fmt: skip
        changed = {"window": 7, "compression": 0, "inflight": 1, "identity": False, "adaptive": False}
        assert given == [(PRODUCER, default), (PRODUCER, default | changed)]

    def test_compressor_follows_level_and_version(self) -> None:
        assert connected().codec.compressor == "none"
        assert connected(compression=6).codec.compressor in ("zlib 6", "python zlib 6")
        assert connected(compression=3).codec.compressor.removeprefix("python ") in ("isal 1", "zlib 3")
        assert connected(compression=0, version=1).codec.compressor in ("zlib 0", "python zlib 0")


class TestStates:
    def test_keep_alive_without_a_window_is_accepted(self) -> None:
        connection = connected()
        assert connection.codec.windows == 0
        assert connection.deadline(100.0) is None
        assert connection.receive(ack(0), 100.0) == []

    def test_partial_acks_settle_events_until_idle(self) -> None:
        connection = connected()
        data = send(connection, 3)
        assert len(Reader().receive_data(data)[0]) == 3
        assert connection.codec.windows == 1
        assert connection.receive(ack(0), 101.0) == []
        assert connection.receive(ack(2), 102.0) == [Settled(1, 2, "acked")]
        assert connection.receive(ack(3), 103.0) == [Settled(3, 3, "acked")]
        assert connection.codec.windows == 0
        assert connection.events() == []

    def test_no_credit_while_two_windows_are_in_flight(self) -> None:
        connection = connected(window=4)
        assert connection.credit(100.0) == (4, 1 << 20)
        send(connection, 4, windows=2)
        assert connection.credit(100.0) == (0, 0)
        connection.receive(ack(4), 100.0)
        assert connection.credit(100.0) == (4, 1 << 20)

    def test_acks_of_adjacent_windows_are_one_range(self) -> None:
        connection = connected(inflight=5)
        send(connection, 10, windows=5)
        assert connection.receive(ack(10) * 5, 100.0) == [Settled(1, 50, "acked")]

    def test_unexpected_ack_is_fatal_until_reconnected(self) -> None:
        connection = connected()
        send(connection, 3)
        settled, fatal = connection.receive(ack(3) + ack(1), 100.0)
        assert settled == Settled(1, 3, "acked") and connection.progress == 1
        assert isinstance(fatal, Fatal)
        assert isinstance(fatal.error, ProtocolError)
        assert not fatal.forever
        assert str(fatal.error) == "ack 1 although no window is in flight"
        assert connection.credit(100.0) == (0, 0)
        assert connection.receive(ack(0), 100.0) == []  # reported once
        connection.lost()
        connection.connected(101.0)
        send(connection, 2)
        assert connection.receive(ack(2), 101.0) == [Settled(1, 2, "acked")]

    @pytest.mark.parametrize(
        ("greeting", "expected"),
        [
            (b"HTTP/1.1 400", "expected an ack frame"),
            (b"\x15\x03\x03\0\2\2\n", "the server speaks TLS, the URL must begin with lumberjack+tls"),
            (b"SSH-2.0-x\r\n", "expected an ack frame"),
            (b"\0", "expected an ack frame"),
            (b"2W\0\0\0\1", "expected an ack frame"),
        ],
    )
    def test_reply_of_another_protocol_is_fatal_and_quoted(self, greeting: bytes, expected: str) -> None:
        connection = connected()
        (fatal,) = connection.receive(greeting, 100.0)
        assert isinstance(fatal, Fatal)
        assert expected in str(fatal.error)
        assert repr(greeting[:6]) in str(fatal.error)

    def test_lost_connection_discards_windows_and_partial_frames(self) -> None:
        connection = connected()
        send(connection, 3, windows=2)
        connection.receive(ack(1)[:4], 100.0)
        connection.lost()
        assert connection.codec.windows == 0
        assert connection.codec.limit == 1
        assert connection.codec.take_bytes() == b""
        connection.connected(101.0)
        send(connection, 1)
        # The partial frame of the old connection is discarded.
        assert connection.receive(ack(1), 101.0) == [Settled(1, 1, "acked")]

    def test_end_of_stream_is_the_end_of_the_connection(self) -> None:
        connection = connected()
        send(connection, 1)
        assert connection.receive(b"", 100.0) == [CloseWanted()]


class TestSilence:
    def test_silence_beyond_the_option_is_fatal(self) -> None:
        connection = connected(silence=30.0)
        send(connection, 2)
        assert connection.deadline(100.0) == 130.0
        assert connection.timeout(129.9) == []
        (fatal,) = connection.timeout(130.0)
        assert isinstance(fatal, Fatal)
        assert isinstance(fatal.error, TimeoutError)

    def test_keep_alives_postpone_the_silence_deadline(self) -> None:
        """Missing progress is the engine's deadline, not the core's."""
        connection = connected()
        send(connection, 2)
        for now in range(100, 1000, 29):
            assert connection.receive(ack(0), float(now)) == []
            assert connection.timeout(float(now)) == []


def test_unknown_call_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Lumberjack has no 'ping'"):
        connected().core.call("ping", None)


def test_pair_block_has_count_lengths_and_utf8() -> None:
    assert pair_block({}) == b"\0\0\0\0"
    assert pair_block({"k": "\u00e9"}) == b"\0\0\0\1\0\0\0\1k\0\0\0\2\xc3\xa9"
