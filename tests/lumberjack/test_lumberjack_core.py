"""The core as the engine drives it: states, events and errors. Times are arguments; there is no socket."""

import struct
from random import random

import pytest

from logclient._ext.lumberjack import Reader
from logclient.config.parsing import parse
from logclient.delivery.contract import Alive, Core, Fatal, Progress, Settled
from logclient.errors import ConfigError, ProtocolError
from logclient.lumberjack.core import Lumberjack
from tests.support.batches import inflight_of
from tests.support.configs import config_for, record_codecs
from tests.support.lumberjack_inputs import pair_block

pytestmark = pytest.mark.unit

PRODUCER = bytes(range(10))


def ack(number: int) -> bytes:
    return b"2A" + struct.pack(">I", number)


def connected_core(**options: object) -> Lumberjack:
    core = Lumberjack(config_for("lumberjack", **{"compression": 0, "inflight": 2, **options}), PRODUCER)
    core.connected(100.0, random)
    return core


def send(core: Lumberjack, events: int, windows: int = 1, now: float = 100.0) -> list[bytes]:
    """Encode windows of `events` events each and return what goes on the wire."""
    in_flight, batch = inflight_of([(b"{}", 0)] * (events * windows))
    for _ in range(windows):
        assert core.encode(batch, events, now) == events
        in_flight.encoded(batch)
    sent = [bytes(b) for wire in core.data_to_send() for b in wire.buffers]
    core.sent()
    assert core.data_to_send() == []
    return sent


def test_core_has_the_type_and_codec_of_a_core() -> None:
    core: Core = connected_core()
    assert "logclient.codec" in repr(core.codec)


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
            "adaptive": True, "inflight_bytes": 1 << 25,
        }  # fmt: skip
        changed = {"window": 7, "compression": 0, "inflight": 1, "identity": False, "adaptive": False}
        assert given == [(PRODUCER, default), (PRODUCER, default | changed)]

    def test_compressor_follows_level_and_version(self) -> None:
        assert connected_core().compressor == "none"
        assert connected_core(compression=6).compressor in ("zlib 6", "python zlib 6")
        assert connected_core(compression=3).compressor.removeprefix("python ") in ("isal 1", "zlib 3")
        assert connected_core(compression=0, version=1).compressor in ("zlib 0", "python zlib 0")


class TestStates:
    def test_keep_alive_without_a_window_is_accepted(self) -> None:
        core = connected_core()
        assert core._codec.windows == 0
        assert core.next_timeout(100.0) is None
        core.receive_data(ack(0), 100.0)
        assert list(core.events_received()) == [Alive()]

    def test_partial_acks_settle_events_until_idle(self) -> None:
        core = connected_core()
        (data,) = send(core, 3)
        assert len(Reader().receive_data(data)[0]) == 3
        assert core._codec.windows == 1
        core.receive_data(ack(0), 101.0)
        assert list(core.events_received()) == [Alive()]
        core.receive_data(ack(2), 102.0)
        assert list(core.events_received()) == [Settled("acked", "", [(1, 2)]), Progress()]
        core.receive_data(ack(3), 103.0)
        assert list(core.events_received()) == [Settled("acked", "", [(3, 3)]), Progress()]
        assert core._codec.windows == 0
        assert list(core.events_received()) == []

    def test_no_credit_while_two_windows_are_in_flight(self) -> None:
        core = connected_core(window=4)
        assert core.credit(100.0) == (4, 1 << 20)
        send(core, 4, windows=2)
        assert core.credit(100.0) == (0, 0)
        core.receive_data(ack(4), 100.0)
        assert core.credit(100.0) == (4, 1 << 20)

    def test_acks_of_adjacent_windows_are_one_range(self) -> None:
        core = connected_core(inflight=5)
        send(core, 10, windows=5)
        core.receive_data(ack(10) * 5, 100.0)
        assert list(core.events_received()) == [Settled("acked", "", [(1, 50)]), Progress()]

    def test_unexpected_ack_is_fatal_until_reconnected(self) -> None:
        core = connected_core()
        send(core, 3)
        core.receive_data(ack(3) + ack(1), 100.0)
        events = list(core.events_received())
        assert events[:2] == [Settled("acked", "", [(1, 3)]), Progress()]
        assert isinstance(events[2], Fatal)
        assert isinstance(events[2].error, ProtocolError)
        assert not events[2].forever
        assert str(events[2].error) == "ack 1 although no window is in flight"
        assert core.credit(100.0) == (0, 0)
        core.receive_data(ack(0), 100.0)
        assert list(core.events_received()) == []  # reported once
        core.connection_lost()
        core.connected(101.0, random)
        send(core, 2)
        core.receive_data(ack(2), 101.0)
        assert list(core.events_received()) == [Settled("acked", "", [(1, 2)]), Progress()]

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
        core = connected_core()
        core.receive_data(greeting, 100.0)
        (fatal,) = core.events_received()
        assert isinstance(fatal, Fatal)
        assert expected in str(fatal.error)
        assert repr(greeting[:6]) in str(fatal.error)

    def test_lost_connection_discards_windows_and_partial_frames(self) -> None:
        core = connected_core()
        send(core, 3, windows=2)
        core.receive_data(ack(1)[:4], 100.0)
        core.connection_lost()
        assert core._codec.windows == 0
        assert core._codec.careful == 10
        assert core.data_to_send() == []
        core.connected(101.0, random)
        send(core, 1)
        core.receive_data(ack(1), 101.0)  # the partial frame of the old connection is discarded
        assert list(core.events_received()) == [Settled("acked", "", [(1, 1)]), Progress()]

    def test_end_of_stream_reports_no_event(self) -> None:
        core = connected_core()
        send(core, 1)
        core.receive_eof()
        assert list(core.events_received()) == []


class TestSilence:
    def test_silence_beyond_the_option_is_fatal_once(self) -> None:
        core = connected_core(silence=30.0)
        send(core, 2)
        assert core.next_timeout(100.0) == 130.0
        core.handle_timeout(129.9)
        assert list(core.events_received()) == []
        core.handle_timeout(130.0)
        (fatal,) = core.events_received()
        assert isinstance(fatal, Fatal)
        assert isinstance(fatal.error, TimeoutError)
        assert str(fatal.error) == "silence: no answer in time"
        core.handle_timeout(131.0)
        assert list(core.events_received()) == []

    def test_keep_alives_postpone_the_silence_deadline(self) -> None:
        """Missing progress is the engine's deadline, not the core's."""
        core = connected_core()
        send(core, 2)
        for now in range(100, 1000, 29):
            core.receive_data(ack(0), float(now))
            core.handle_timeout(float(now))
            assert list(core.events_received()) == [Alive()]


def test_unknown_call_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Lumberjack has no 'ping'"):
        connected_core().call("ping", None)


def test_pair_block_has_count_lengths_and_utf8() -> None:
    assert pair_block({}) == b"\0\0\0\0"
    assert pair_block({"k": "\u00e9"}) == b"\0\0\0\1\0\0\0\1k\0\0\0\2\xc3\xa9"
