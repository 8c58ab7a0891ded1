"""The compiled side of WebSocket equals its reference in Python and the websockets library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as some

from logclient._ext.websocket import LINKED, ClientFrames
from tests.oracle import websocket as reference
from tests.oracle.websocket import PACKED, frames_of
from tests.support import need
from tests.support.websocket import BINARY, CLOSE, PING, PONG, TEXT
from tests.support.websocket import server_frame as frame

pytestmark = [pytest.mark.unit, pytest.mark.skipif(not LINKED, reason="this build is not linked to zlib")]

MIB = 1 << 20
LENGTHS = [0, 1, 7, 8, 9, 125, 126, 127, 65535, 65536, 65537, 200_000]

Deflate = tuple[bool, int, bool, int] | None


def receive(frames: ClientFrames, data: bytes) -> list[bytes]:
    frames.receive_data(data)
    found = []
    while (message := frames.next_message()) is not None:
        found.append(message)
    return found


def sent(frames: ClientFrames) -> list[tuple[int, bytes]]:
    return [(first, data) for first, data, _ in frames_of(frames.data_to_send())]


def packed(data: bytes, level: int = 6) -> bytes:
    packer = zlib.compressobj(level, wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(reference.TAIL)


def final(data: bytes) -> bytes:
    """The content of a message as a stream with an end, padded to whole bytes."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush() + b"\x00"


payloads = some.one_of(
    some.binary(max_size=20), some.sampled_from([124, 125, 126, 127, 128, 300, 1000]).map(bytes)
)
closes = some.one_of(
    some.builds(
        lambda code, reason: code.to_bytes(2, "big") + reason,
        some.sampled_from([999, 1000, 1003, 1004, 1005, 1006, 1007, 1014, 1015, 2999, 3000, 4999, 5000]),
        some.text(max_size=10).map(str.encode) | some.binary(max_size=10),
    ),
    some.binary(max_size=2),
)
content = some.one_of(
    payloads,
    some.binary(max_size=60).map(packed),
    some.integers(0, 3000).map(bytes).map(packed),
    some.binary(max_size=20).map(final),
)
forms = some.sampled_from([0, 0, 0, 126, 127])
pieces = some.one_of(
    some.builds(frame, some.sampled_from([TEXT, BINARY]), payloads, form=forms),
    some.builds(frame, some.sampled_from([0, TEXT]), content, fin=some.booleans(),
                bits=some.sampled_from([0, PACKED, PACKED])),
    some.builds(frame, some.sampled_from([PING, PONG]), payloads, form=forms),
    some.builds(frame, some.just(CLOSE), closes),
    some.builds(frame, some.integers(0, 15), payloads, fin=some.booleans(),
                bits=some.sampled_from([0, 0, 16, 32, 64, 112]), form=forms),
    some.builds(
        lambda length, more: b"\x81\x7f" + length.to_bytes(8, "big") + more,
        some.one_of(some.integers(0, 300), some.integers(0, (1 << 64) - 1)), some.binary(max_size=300),
    ),
    some.binary(max_size=12),
)  # fmt: skip
agreements = some.none() | some.tuples(
    some.booleans(), some.integers(9, 15), some.booleans(), some.just(15) | some.integers(8, 15)
)


def cut(data: some.DataObject, wire: bytes) -> list[bytes]:
    """Cut bytes into a few pieces, or into single ones."""
    if data.draw(some.integers(0, 5)) == 0:
        return [wire[n : n + 1] for n in range(len(wire))]
    cuts = sorted(data.draw(some.lists(some.integers(0, len(wire)), max_size=5)))
    return [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]


@pytest.mark.slow
@settings(deadline=None)
@given(
    some.lists(pieces, max_size=8), some.sampled_from([1, 10, 125, 126, 400, 5000]), agreements, some.data()
)
def test_any_bytes_in_any_cut_equal_the_reference(
    parts: list[bytes], limit: int, deflate: Deflate, data: some.DataObject
) -> None:
    """Messages, answers and the end, after each piece; messages are sent in between."""
    mine, its = ClientFrames(limit, deflate=deflate), reference.ClientFrames(limit, deflate=deflate)
    for piece in cut(data, b"".join(parts)):
        assert receive(mine, piece) == its.receive(piece)
        assert (mine.over, mine.code, mine.reason) == (its.over, its.code, its.reason)
        if data.draw(some.booleans()):
            for message in data.draw(some.lists(some.binary(max_size=200), max_size=2)):
                mine.send(message)
                its.send(message)
        if data.draw(some.integers(0, 20)) == 0:
            mine.close()
            its.close()
        if data.draw(some.booleans()):
            its.answer()
            assert sent(mine) == its.sent
            its.sent.clear()
    its.answer()
    assert sent(mine) == its.sent and mine.unsent == 0


def extension(deflate: Deflate) -> list[Any]:
    """The server's half of the agreement, of the library."""
    from websockets.extensions.permessage_deflate import PerMessageDeflate

    if deflate is None:
        return []
    keeps_sent, window_sent, keeps_received, window_received = deflate
    return [PerMessageDeflate(not keeps_sent, not keeps_received, window_sent, window_received, {})]


def server(deflate: Deflate = None) -> Any:
    need("websockets")
    from websockets.protocol import State
    from websockets.server import ServerProtocol

    protocol = ServerProtocol(state=State.OPEN, max_size=None)
    protocol.extensions = extension(deflate)
    return protocol


def library(limit: int) -> Any:
    need("websockets")
    from websockets.client import ClientProtocol
    from websockets.protocol import State
    from websockets.uri import WebSocketURI

    return ClientProtocol(WebSocketURI(False, "h", 1, "/", ""), state=State.OPEN, max_size=limit)


def messages_of(events: Iterable[Any]) -> list[bytes]:
    found, whole = [], b""
    for event in events:
        if event.opcode in (0, TEXT, BINARY):
            whole += bytes(event.data)
            if event.fin:
                found.append(whole or b" ")
                whole = b""
    return found


TOO_LONG = b"control frame too long"


def test_a_control_frame_is_too_long_before_it_is_too_big() -> None:
    mine = ClientFrames(1300)
    assert receive(mine, b"\x08~\x81\x00") == [] and (mine.code, mine.reason) == (1002, TOO_LONG)


@settings(deadline=None)
@given(some.lists(pieces, max_size=8).map(b"".join), some.data())
def test_any_bytes_equal_the_websockets_library(wire: bytes, data: some.DataObject) -> None:
    """Without compression. The library looks at some heads only when the whole payload is there."""
    limit = 1300
    its, mine = library(limit), ClientFrames(limit)
    found: list[bytes] = []
    for piece in cut(data, wire):
        found += receive(mine, piece)
    its.receive_data(wire)
    want = messages_of(its.events_received())
    assert found == want
    ended = its.close_rcvd is not None or its.parser_exc is not None
    if not ended and mine.over:
        its.receive_data(bytes(limit))  # the rest of the payload
        ended = its.parser_exc is not None
    assert bool(mine.over) == ended
    closes = [one for one in sent(mine) if one[0] == 128 | CLOSE]
    if ended:
        answer = its.close_sent
        assert len(closes) == 1
        code = int.from_bytes(closes[0][1][:2], "big") or 1005
        if answer.code == 1009 and mine.reason == TOO_LONG:
            # A control frame beyond the limit breaks two rules: the library looks at its size first.
            assert closes[0][1] == (1002).to_bytes(2) + TOO_LONG and mine.code == 1002
            return
        assert code == answer.code == mine.code
        if code != 1009:
            assert closes[0][1][2:].decode() == answer.reason == mine.reason.decode()
    else:
        assert closes == []


@settings(deadline=None)
@given(
    agreements.filter(lambda deflate: deflate is None or deflate[3] > 8),  # zlib makes no window of 8 bits
    some.lists(some.text(max_size=200) | some.integers(0, 70_000), max_size=6),
)
def test_messages_travel_to_and_from_the_library(deflate: Deflate, messages: list[str | int]) -> None:
    """Both ends, with every agreement about compression."""
    far, near = server(deflate), ClientFrames(150_000, deflate=deflate)
    for one in messages:
        message = one.encode() if isinstance(one, str) else bytes(one)
        near.send(message)
        far.receive_data(near.data_to_send())
        (event,) = far.events_received()
        assert (event.opcode, event.fin, bytes(event.data)) == (TEXT, True, message)
        far.send_text(message or b"-", fin=False)
        far.send_ping(b"?")
        far.send_continuation(message or b"+", fin=True)
        wire = b"".join(far.data_to_send())
        assert receive(near, wire[:7]) + receive(near, wire[7:]) == [message * 2 if message else b"-+"]
        assert sent(near) == [(128 | PONG, b"?")]
    near.close()
    far.receive_data(near.data_to_send())
    assert receive(near, b"".join(far.data_to_send())) == []
    assert (near.over, near.code, near.unsent) == ("closed", 1000, 0)


@pytest.mark.parametrize("length", LENGTHS)
def test_frames_of_any_length_are_read(length: int) -> None:
    message = bytes(n * 7 % 251 for n in range(length))
    for view in message, bytearray(message), memoryview(message):
        near = ClientFrames(length or 1)
        near.send(view)
        near.send(b"!")
        assert sent(near) == [(128 | TEXT, message), (128 | TEXT, b"!")]
        assert receive(near, frame(BINARY, message) + frame(TEXT, b"!")) == [message or b" ", b"!"]


def test_messages_cut_at_any_byte_are_whole() -> None:
    messages = [b"", b"1", b"22", b"x" * 126]
    for fin in True, False:
        rest = b"" if fin else frame(0, b"!")
        whole = [message or b" " if fin else message + b"!" for message in messages]
        wires = [frame(TEXT, message, fin=fin) + rest for message in messages]
        wire = b"".join(wires)
        for end in range(len(wire) + 1):
            near = ClientFrames(200)
            found = receive(near, wire[:end])
            assert found == whole[: sum(len(b"".join(wires[: n + 1])) <= end for n in range(4))]
            assert found + receive(near, wire[end:]) == whole


def test_masks_are_unpredictable() -> None:
    """They differ within one connection and between two, and no bit is constant."""
    masks = []
    for _ in range(2):
        near = ClientFrames(1)
        for _ in range(5000):
            near.send(b"x")
        masks += [key for _, _, key in frames_of(near.data_to_send())]
    assert len(set(masks)) > 9985
    numbers = [int.from_bytes(key, "big") for key in masks]
    for bit in range(32):
        assert 4500 < sum(number >> bit & 1 for number in numbers) < 5500


def test_only_the_last_ping_is_answered() -> None:
    near = ClientFrames(100)
    for n in range(10_000):
        receive(near, frame(PING, b"%0125d" % n))
        assert near.unsent == 131
    near.send(b"[1]")
    assert sent(near) == [(128 | TEXT, b"[1]"), (128 | PONG, b"%0125d" % 9999)]
    receive(near, frame(PING, b"a"))
    near.close(1001)
    receive(near, frame(PING, b"b"))
    assert sent(near) == [(128 | PONG, b"a"), (128 | CLOSE, b"\x03\xe9")]


def test_a_close_is_answered_once_and_ends_all() -> None:
    near = ClientFrames(100)
    farewell = frame(CLOSE, b"\x03\xe8bye")
    assert receive(near, frame(TEXT, b"[1]") + farewell + farewell + frame(TEXT, b"[2]")) == [b"[1]"]
    near.send(b"late")
    near.close()
    assert receive(near, frame(TEXT, b"[3]")) == [] and not near.ready
    assert sent(near) == [(128 | CLOSE, b"\x03\xe8bye")]
    near.receive_eof()
    assert (near.over, near.code, near.reason) == ("closed", 1000, b"bye")


def test_an_end_without_a_close_frame_is_noted() -> None:
    near = ClientFrames(100)
    receive(near, b"\x81\x05abc")
    near.receive_eof()
    near.send(b"late")
    assert (near.over, near.unsent, near.next_message()) == ("ended", 0, None)


@given(some.binary(max_size=123))
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"x" * 120 + b"\xe2\x82")
def test_invalid_text_in_a_reason_is_placed(reason: bytes) -> None:
    near = ClientFrames(100)
    receive(near, frame(CLOSE, b"\x03\xe8" + reason))
    try:
        reason.decode()
    except UnicodeDecodeError as error:
        words = f"{error.reason} at position {error.start}"
        assert (near.over, near.code, near.reason.decode()) == ("broken", 1007, words)
    else:
        assert (near.over, near.code, near.reason) == ("closed", 1000, reason)


class TestLimits:
    @pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 5000, MIB])
    @pytest.mark.parametrize("keeps", [False, True])
    def test_max_message_is_exact_when_unpacked(self, size: int, keeps: bool) -> None:
        data = b"[" + b"0," * (size // 2) + b"0]"
        for limit, over in (len(data), ""), (len(data) - 1, "too big"):
            near = ClientFrames(limit, deflate=(True, 15, keeps, 15))
            found = receive(near, frame(TEXT, packed(data), bits=PACKED))
            assert (found, near.over) == (([data], "") if not over else ([], over))

    def test_a_broken_message_that_is_too_large_is_broken(self) -> None:
        """Both are found by one call of zlib: the first three bytes are allowed, the fourth is not."""
        broken = bytes.fromhex("62606010007d")  # four zeros, then a distance that leads before them
        near = ClientFrames(3, deflate=(False, 9, False, 15))
        far = reference.ClientFrames(3, deflate=(False, 9, False, 15))
        wire = frame(TEXT, broken, bits=PACKED)
        assert receive(near, wire) == far.receive(wire) == []
        assert (near.over, near.reason) == (far.over, far.reason) == ("broken", b"decompression failed")

    def test_a_control_frame_is_no_part_of_a_message(self) -> None:
        """The limit leaves room for it between fragments."""
        near = ClientFrames(4)
        wire = frame(TEXT, b"abcd", fin=False) + frame(PING, bytes(125)) + frame(0)
        assert receive(near, wire) == [b"abcd"] and sent(near) == [(128 | PONG, bytes(125))]

    @pytest.mark.parametrize("length", [101, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
    def test_a_length_beyond_the_limit_ends_at_its_head(self, length: int) -> None:
        near = ClientFrames(100)
        assert receive(near, b"\x82\x7f" + struct.pack("!Q", length)) == []
        assert (near.over, near.code) == ("too big", 1009)
        assert sent(near) == [(128 | CLOSE, b"\x03\xf1")]

    def test_one_read_unpacks_one_message_at_a_time(self) -> None:
        """Each takes memory only when it is asked for."""
        near = ClientFrames(MIB, deflate=(True, 15, False, 15))
        bomb = frame(TEXT, packed(bytes(MIB), 9), bits=PACKED)
        near.receive_data(bomb * 50)
        for left in range(50, 0, -1):
            assert near.ready and len(near.next_message() or b"") == MIB, left
        assert not near.ready and near.next_message() is None

    @pytest.mark.parametrize("fragments", [1, 3, 1000])
    def test_a_bomb_is_refused_while_it_is_unpacked(self, fragments: int) -> None:
        bomb = packed(bytes(64 * MIB), 9)
        size = len(bomb) // fragments + 1
        near = ClientFrames(MIB, deflate=(True, 15, True, 15))
        seen = 0
        for n, at in enumerate(range(0, len(bomb), size)):
            last = at + size >= len(bomb)
            receive(near, frame(0 if n else TEXT, bomb[at : at + size], fin=last, bits=0 if n else PACKED))
            seen += 1
            if near.over:
                break
        assert near.over == "too big"
        assert seen <= fragments // 64 + 2  # of 64 MiB the first is too much


class TestDeflate:
    def test_a_context_is_kept_or_forgotten_as_agreed(self) -> None:
        message = bytes(n * 91 % 256 for n in range(400)) * 2
        for keeps in False, True:
            near = ClientFrames(1000, deflate=(keeps, 15, keeps, 15))
            near.send(message)
            near.send(message)
            (_, first), (_, second) = sent(near)
            assert (len(second) < len(first) // 4) == keeps
            found = receive(near, frame(TEXT, first, bits=PACKED) + frame(TEXT, second, bits=PACKED))
            assert found == [message, message]

    def test_a_stream_may_end_with_a_final_block(self) -> None:
        """RFC 7692, section 7.2.3.4."""
        hello = bytes.fromhex("f3 48 cd c9 c9 07 00 00")
        for keeps in False, True:
            near = ClientFrames(1000, deflate=(True, 15, keeps, 15))
            assert receive(near, frame(TEXT, hello, bits=PACKED) * 3) == [b"Hello"] * 3
            assert receive(near, frame(TEXT, packed(b"x"), bits=PACKED)) == [b"x"]

    def test_messages_may_come_without_compression(self) -> None:
        near = ClientFrames(1000, deflate=(True, 15, True, 15))
        wire = frame(TEXT, b"plain") + frame(TEXT, packed(b"thin"), bits=PACKED) + frame(TEXT, b"plain")
        assert receive(near, wire) == [b"plain", b"thin", b"plain"]

    @pytest.mark.parametrize("size", [1, 4, 16])
    def test_a_server_may_exceed_its_window(self, size: int) -> None:
        """It said 9 bits, and repeats what lies further back, however its bytes arrive."""
        message = Random(1).randbytes(1000) * 3
        packer = zlib.compressobj(wbits=-15)
        thin = (packer.compress(message) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(reference.TAIL)
        wire = frame(TEXT, thin, bits=PACKED, form=126)
        near = ClientFrames(5000, deflate=(True, 15, True, 9))
        found = [one for n in range(0, len(wire), size) for one in receive(near, wire[n : n + size])]
        assert found == [message]

    def test_an_empty_message_is_sent_as_one_byte(self) -> None:
        """Section 7.2.3.6."""
        near = ClientFrames(1000, deflate=(True, 15, True, 15))
        for message in b"", b"x", b"", b"":
            near.send(message)
        assert [len(data) for _, data in sent(near)] == [1, 3, 1, 1]

    @given(some.binary(min_size=1, max_size=30))
    def test_broken_streams_end_the_connection(self, junk: bytes) -> None:
        near = ClientFrames(1000, deflate=(True, 15, True, 15))
        unpacker = zlib.decompressobj(wbits=-15)
        try:
            unpacker.decompress(junk + reference.TAIL)
        except zlib.error:
            assert receive(near, frame(TEXT, junk, bits=PACKED)) == []
            assert (near.over, near.reason) == ("broken", b"decompression failed")
        else:
            assume(False)

    @pytest.mark.parametrize("window", [(8, 15), (16, 15), (15, 7), (15, 16)])
    def test_windows_outside_their_range_are_refused(self, window: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="9 to 15 bits"):
            ClientFrames(1, deflate=(True, window[0], True, window[1]))


def test_other_arguments_are_refused() -> None:
    near = ClientFrames(10)
    with pytest.raises(TypeError):
        near.send("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        near.receive_data("text")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        ClientFrames(-1)
