"""The plog client without sockets: fragments, messages, pacing, commands, reassembly and decoding."""

from __future__ import annotations

import base64
import json
import struct
from array import array
from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient._ext.constants import K_BYTES as BYTES
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.hash import murmur3
from logclient._ext.plog import (
    BAD_HEADER,
    COMMAND,
    FRAGMENT,
    HEADER,
    MAX_DATAGRAM,
    MAX_MESSAGE,
    MESSAGE,
    OUT_OF_BOUNDS,
    SIMPLE,
    STATUS_NAMES,
    TOO_LARGE,
    VERDICT_NAMES,
    Codec,
    Decoder,
    Judged,
    Reassembler,
    datagrams,
    fragments,
)
from logclient.cli.probes import PlogProbe
from logclient.codec import Connection, Settled
from logclient.config import registry
from logclient.config.parsing import parse
from logclient.delivery.contract import Reply
from logclient.errors import ConfigError, ProtocolError
from logclient.evidence import frames as readable
from logclient.evidence.frames.plog import frames
from logclient.plog.core import TAGGED, Plog
from logclient.plog.messages import command, join_tags, parse_stat, split_tags
from logclient.plog.pacing import Sent, lost_between
from tests import support
from tests.oracle import plog as oracle
from tests.plog.stat import STAT, stat_of
from tests.support.batches import inflight_of
from tests.support.configs import config_for, record_codecs
from tests.support.connections import load
from tests.support.lumberjack_inputs import near_objects, plain_objects

PRODUCER = bytes(range(10))
UNPACED = {"pace": 0, "pace_bytes": 0}
ID_1 = PRODUCER.hex() + "000000000001"


def connected(tags: tuple[str, ...] = (), **options: Any) -> Connection:
    core = Plog(config_for("plog", tags=",".join(tags), **{**UNPACED, **options}), PRODUCER)
    connection = Connection(core)
    connection.connected(100.0)
    return connection


def awaited(connection: Connection) -> int:
    """Return the number of questions without an answer, and of events in flight."""
    core = connection.core
    assert isinstance(core, Plog)
    return len(core._asked) + connection.in_flight.inflight


def on_wire(connection: Connection) -> bytes:
    """Return the runs to send, with those of commands."""
    assert connection.codec.answers() >= 0
    data: bytes = connection.codec.take_bytes()
    return data


def sent(connection: Connection) -> list[bytes]:
    """Return the datagrams to send and mark them as sent."""
    data = on_wire(connection)
    connection.codec.sent(len(data))
    return datagrams(data)


def messages(events: list[bytes], kind: int = RAW, **options: Any) -> list[bytes]:
    """Return the datagrams of these events, all of them sent."""
    connection = connected(**options)
    batch = load(connection, [(body, kind) for body in events])
    assert connection.encode(batch, len(events), 100.0) == len(events)
    assert set(batch.statuses().values()) == {"inflight"}
    found = sent(connection)
    assert handed(connection) == [(1, len(events))]
    return found


def handed(connection: Connection) -> list[tuple[int, int]]:
    """Return the ranges of events that the kernel has by now."""
    found = [event for event in connection.events() if isinstance(event, Settled)]
    assert {(event.status, event.reason) for event in found} <= {("handed", "")}
    return [(event.first, event.last) for event in found]


def columns_of(found: list[bytes]) -> tuple[bytes, array[int], array[int]]:
    """Return (all datagrams, offset of each, length of each)."""
    lengths = array("q", map(len, found))
    return b"".join(found), array("q", accumulate(lengths, initial=0))[:-1], lengths


def feed(
    server: Reassembler, found: list[bytes], now: float = 0.0, streams: list[int] | None = None
) -> Judged:
    data, offsets, lengths = columns_of(found)
    return server.feed(data, offsets, lengths, array("Q", streams or [7] * len(found)), now)


def header(count: int, index: int, size: int, id_: int, total: int, hash_: int = 0, tags: int = 0) -> bytes:
    return oracle.HEADER.pack(0, 1, count, index, size, id_, total, hash_, tags, 0)


class TestHash:
    @given(st.binary(max_size=300))
    def test_murmur3_equals_the_reference(self, data: bytes) -> None:
        assert murmur3(data) == oracle.murmur3(data)

    @given(st.binary(max_size=3000))
    def test_murmur3_equals_the_mmh3_package(self, data: bytes) -> None:
        assert murmur3(data) == support.need("mmh3").hash(data, 0, signed=False)

    def test_murmur3_at_every_length_and_alignment(self) -> None:
        block = bytes(i * 7 & 255 for i in range(100))
        for at in range(5):
            for size in range(80):
                assert murmur3(memoryview(block)[at : at + size]) == oracle.murmur3(block[at : at + size])

    def test_murmur3_of_known_values(self) -> None:
        assert (murmur3(b""), murmur3(b"abc")) == (0, 0xB3DD93FA)


class TestFragments:
    @given(st.integers(0, 400), st.integers(0, 30), st.integers(25, 90))
    def test_fragments_equal_the_reference_and_reassemble(self, size: int, tags: int, room: int) -> None:
        payload, own = bytes(i & 255 for i in range(size)), b"t" * tags
        if tags > room - HEADER:
            with pytest.raises(ValueError, match="tags: "):
                fragments(payload, 1, datagram=room, tags=own)
            return
        found = fragments(payload, 1, datagram=room, tags=own)
        assert found == oracle.fragments(payload, 1, room, own)
        assert max(map(len, found)) <= room
        assert {one[20:22] for one in found[:-1]} <= {b"\0\0"}
        judged = feed(Reassembler(), found)
        assert judged.verdict.tolist() == [FRAGMENT] * (len(found) - 1) + [MESSAGE]
        assert judged.payload(len(found) - 1) == payload
        assert judged.tags(len(found) - 1) == own

    def test_inputs_on_which_the_java_client_throws(self) -> None:
        """Tags that need one fragment more than the payload, and an empty payload."""
        found = fragments(b"123456789", 5, datagram=34, tags=b"tag")
        assert [len(one) for one in found] == [24 + 9, 24 + 3]
        assert fragments(b"", 5) == [header(1, 0, MAX_DATAGRAM - HEADER, 5, 0)]

    def test_limits_of_fragments_ids_and_datagrams(self) -> None:
        with pytest.raises(ValueError, match="65536 bytes need more than 65535 fragments in datagrams of 25"):
            fragments(bytes(65536), 1, datagram=25)
        assert len(fragments(bytes(65535), 1, datagram=25)) == 65535
        sizes = {"datagram": 24}, {"datagram": MAX_DATAGRAM + 1}
        for wrong in ({"id": -1}, {"id": oracle.ID_MOST + 1}, *sizes):
            with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: "):
                fragments(b"x", **{"id": 1, **wrong})
        assert struct.unpack_from(">i", fragments(b"x", oracle.ID_MOST)[0], 8) == (oracle.ID_MOST,)

    def test_long_tags_may_need_one_more_fragment(self) -> None:
        """Where no even division leaves room for the tags, one more fragment does."""
        for size in range(3000, 3200):
            found = fragments(bytes(size), 1, datagram=24 + 50, tags=b"t" * 49)
            assert found == oracle.fragments(bytes(size), 1, 24 + 50, b"t" * 49)
            assert feed(Reassembler(), found).verdict[-1 + len(found)] == MESSAGE


def runs_of(bodies: list[bytes]) -> bytes:
    """Return the runs in which these bodies travel, each of them as a datagram."""
    _in_flight, batch = inflight_of([(body, BYTES) for body in bodies])
    codec = Codec(PRODUCER, datagram=MAX_DATAGRAM, unboxed=True, identity=False, packets=0, size=0)
    codec.connected(1.0)
    assert codec.encode(batch.capsule, len(bodies), 1.0) == len(bodies)
    return codec.take_bytes()


class TestRuns:
    @given(st.lists(st.binary(max_size=5).map(b"x".__add__), min_size=1, max_size=200))
    def test_runs_equal_the_reference(self, found: list[bytes]) -> None:
        data = runs_of(found)
        assert data == oracle.runs(found)
        assert datagrams(data) == oracle.split(data) == found

    def test_run_is_equal_datagrams_and_a_shorter_last(self) -> None:
        """A run has at most 64 datagrams and at most 65,507 bytes."""

        def shapes(sizes: list[int]) -> list[tuple[int, int]]:
            data, at, heads = runs_of([b"x" * size for size in sizes]), 0, []
            while at < len(data):
                heads.append(struct.unpack_from("<II", data, at))
                at += 8 + heads[-1][0]
            return heads

        assert shapes([5, 5, 3, 3]) == [(13, 5), (3, 3)]
        assert shapes([3, 5]) == [(3, 3), (5, 5)]
        assert shapes([1] * 130) == [(64, 1), (64, 1), (2, 1)]
        assert shapes([1472] * 45) == [(1472 * 44, 1472), (1472, 1472)]
        assert shapes([65507, 1]) == [(65507, 65507), (1, 1)]

    @given(st.binary(max_size=40))
    def test_any_bytes_are_whole_runs_or_refused(self, data: bytes) -> None:
        try:
            found = datagrams(data)
        except ValueError:
            return
        assert sum(map(len, found)) < max(len(data), 1)
        assert datagrams(oracle.runs(found)) == found


class TestMessages:
    def test_boxed_message_has_header_hash_and_id(self) -> None:
        (one,) = messages([b'{"a":1}'])
        body = b'{"a":1,"uuid":"%s"}' % ID_1.encode()
        assert one == header(1, 0, 1452 - 24, 1, len(body), murmur3(body)) + body

    @pytest.mark.parametrize(("body", "carries"), [
        (b"{}", '{"uuid":"%s"}'), (b' {"a":1} \n', '{"a":1,"uuid":"%s"}'),
        (b'{"uuid":"x"}', '{"uuid":"x"}'), (b'{"uu\\u0069d":null}', '{"uu\\u0069d":null}'),
        (b'{"data":{"uuid":"x"}}', '{"data":{"uuid":"x"},"uuid":"%s"}'),
        (b"", ""), (b"[1]", "[1]"), (b"\x00\xff", None), (b"plain text", "plain text"),
        (b"{broken", "{broken"),
    ])  # fmt: skip
    @pytest.mark.parametrize("kind", [RAW, BYTES, DOCUMENT])
    def test_only_json_objects_get_an_id(self, body: bytes, carries: str | None, kind: int) -> None:
        """Other bodies travel unchanged."""
        (one,) = messages([body], kind)
        want = (
            body
            if carries is None or kind == BYTES or "%s" not in carries
            else carries.replace("%s", ID_1).encode()
        )
        assert one[HEADER:] == want
        (one,) = messages([body], kind, identity="none")
        assert one[HEADER:] == body

    def test_check_off_requires_braces_only(self) -> None:
        (one,) = messages([b"{nonsense}"], check=False)
        assert one[HEADER:] == b'{nonsense,"uuid":"%s"}' % ID_1.encode()
        (one,) = messages([b"nonsense"], check=False)
        assert one[HEADER:] == b"nonsense"

    def test_ledger_and_decoder_agree_on_ids_by_hash(self) -> None:
        """The verifier joins bodies without our id by these hashes."""
        for body in (b"plain", b'{"uuid":"mine"}', b"", b"\xff\0{}", b'{"uuid":{"a":[1]}}', b"[" * 1200):
            for kind in (RAW, BYTES):
                connection = connected()
                batch = load(connection, [(body, kind)])
                connection.codec.encode(batch.capsule, 1, 100.0)
                ids = json.loads(connection.in_flight.encoded(batch).splitlines()[1])["ids"]
                (one,) = sent(connection)
                rows = Decoder(PRODUCER).decode(one, array("q", [0]), array("q", [len(one)]))
                assert STATUS_NAMES[rows.status[0]] == "foreign"
                assert base64.b64decode(ids) == struct.pack("<QQ", *rows.id_hash.tolist())

    @pytest.mark.parametrize(("body", "boxed"), [
        (b"text", False), (b'{"a":1}', False), (b"\xc3\xa9", False), (b" ", False), (b"\xff", False),
        (b"", True), (b"\0", True), (b"\ttext", True), (b"\x1f", True),
        (b"x" * 1452, False), (b"x" * 1453, True),
    ])  # fmt: skip
    def test_unboxed_only_if_short_untagged_and_printable(self, body: bytes, boxed: bool) -> None:
        found = messages([body], BYTES, unboxed=True)
        assert (found != [body]) == boxed
        assert feed(Reassembler(), found).payload(len(found) - 1) == body
        assert messages([body], BYTES, unboxed=True, tags=("t",))[0][:2] == b"\0\1"
        assert messages([body], BYTES)[0][:2] == b"\0\1"

    def test_unboxed_message_takes_no_number(self) -> None:
        found = messages([b"a", b"\t", b"b", b"\n"], BYTES, unboxed=True)
        assert [one[8:12] for one in found if len(one) > 1] == [b"\0\0\0\1", b"\0\0\0\2"]

    def test_message_numbers_wrap_to_1(self) -> None:
        codec = Codec(PRODUCER, packets=0, size=0, number=oracle.ID_MOST - 1, datagram=60)
        codec.connected(1.0)
        _in_flight, batch = inflight_of([(b"x" * 50, BYTES)] * 4)
        assert codec.encode(batch.capsule, 4, 1.0) == 4
        found = datagrams(codec.take_bytes())
        numbers = [struct.unpack_from(">i", one, 8)[0] for one in found]
        assert numbers == [oracle.ID_MOST - 1] * 2 + [oracle.ID_MOST] * 2 + [1] * 2 + [2] * 2

    def test_message_numbers_restart_with_the_socket(self) -> None:
        connection = connected()
        batch = load(connection, [(b"x", BYTES)] * 4)
        connection.encode(batch, 2, 100.0)
        sent(connection)
        connection.lost()
        connection.connected(101.0)
        connection.encode(batch, 2, 101.0)
        assert [one[11] for one in sent(connection)] == [1, 2]

    def test_failed_event_takes_no_number(self) -> None:
        connection = connected(max_event_bytes=100)
        batch = load(connection, [(b"x" * size, BYTES) for size in (100, 101, 5)])
        assert connection.encode(batch, 3, 100.0) == 2
        assert batch.statuses() == {1: "inflight", 2: "failed", 3: "inflight"}
        assert [one[11] for one in sent(connection)] == [1, 2]

    def test_max_message_includes_the_inserted_id(self) -> None:
        connection = connected(max_event_bytes=49)
        batch = load(connection, [(b'{"a":1}', RAW), (b'{"a":12}', RAW)])
        assert connection.encode(batch, 2, 100.0) == 1
        assert batch.statuses() == {1: "inflight", 2: "failed"}

    def test_message_of_too_many_fragments_fails(self) -> None:
        codec = Codec(PRODUCER, packets=0, size=0, datagram=25, max_message=1 << 20)
        codec.connected(1.0)
        _in_flight, batch = inflight_of([(bytes(65536), BYTES), (bytes(65535), BYTES)])
        assert codec.encode(batch.capsule, 2, 1.0) == 1
        assert batch.statuses() == {1: "failed", 2: "inflight"}
        assert codec.counts == (1, 0, 65535)

    def test_tags_of_one_event_replace_those_of_the_client(self) -> None:
        tags = join_tags((), "orders", "7")
        connection = connected(tags=("kt:logs",))
        tagged = RAW | TAGGED << 4
        events = [
            (b"{}", RAW), (len(tags).to_bytes(2, "big") + tags + b"{}", tagged), (b"\0\0{}", tagged),
            (b"\0", tagged), (b"\0\3ab", tagged), (b"{}", RAW | 2 << 4),
        ]  # fmt: skip
        batch = load(connection, events)
        assert connection.encode(batch, 6, 100.0) == 3
        assert list(batch.statuses().values()) == ["inflight"] * 3 + ["failed"] * 3
        judged = feed(Reassembler(), sent(connection))
        assert [split_tags(judged.tags(i)) for i in range(3)] == [["kt:logs"], ["kt:orders", "pk:7"], []]
        assert judged.payload(1) == b'{"uuid":"%s2"}' % ID_1[:-1].encode()
        assert batch.hashes()[3] == oracle.xxh64(judged.payload(2), 42)

    @pytest.mark.slow
    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.tuples(
            near_objects | plain_objects | st.binary(max_size=120), st.sampled_from([RAW, BYTES, DOCUMENT]),
        ), min_size=1, max_size=12),
        st.integers(60, 300), st.sampled_from([(), ("kt:a",), ("x" * 30, "pk:1")]),
        st.booleans(), st.booleans(),
        st.integers(20, 400),
    )  # fmt: skip
    def test_encoding_equals_the_reference(
        self, events: list[tuple[bytes, int]], room: int, tags: tuple[str, ...],
        unboxed: bool, identity: bool, most: int,
    ) -> None:  # fmt: skip
        own = join_tags(tags)
        codec = Codec(
            PRODUCER, datagram=room, tags=own, unboxed=unboxed, max_message=most, identity=identity,
            packets=0, size=0,
        )  # fmt: skip
        codec.connected(1.0)
        _in_flight, batch = inflight_of(events)
        found, statuses, hashes = oracle.encode(
            events, PRODUCER, room=room, tags=own, unboxed=unboxed, most=most, identity=identity
        )
        assert codec.encode(batch.capsule, len(events), 1.0) == statuses.count("inflight")
        assert codec.take_bytes() == oracle.runs(found)
        assert list(batch.statuses().values()) == statuses
        got = batch.hashes()
        sent = [status == "inflight" for status in statuses]
        assert [got.get(seq, 0) if is_sent else 0 for seq, is_sent in enumerate(sent, 1)] == hashes

    def test_long_messages_are_hashed_beside_short_ones(self) -> None:
        """Long bodies are hashed four at a time, in any order beside others and over many runs."""
        rng = Random(1)
        sizes = [70_000, 300, 66_000, 5, 1340, 2000, 0, 90_000, 1, 2_100_000, 65_507, 65_400, 3000, 1400, 999]
        room, tags, most = 1372, b"t" * 1000, 1 << 22
        events = [(b'{"a":"%s"}' % (b"x" * size), RAW) for size in sizes[:8]]
        events += [(rng.randbytes(size), BYTES) for size in sizes[8:]]
        codec = Codec(
            PRODUCER, datagram=room, tags=tags, max_message=most, batch_bytes=most, packets=0, size=0
        )  # fmt: skip
        codec.connected(1.0)
        _in_flight, batch = inflight_of(events)
        found, statuses, hashes = oracle.encode(events, PRODUCER, room=room, tags=tags, most=most)
        assert codec.encode(batch.capsule, len(events), 1.0) == len(events) == statuses.count("inflight")
        assert codec.take_bytes() == oracle.runs(found)
        assert list(batch.hashes().values()) == hashes

    def test_batch_ends_at_batch_bytes(self) -> None:
        connection = connected(max_event_bytes=1 << 20)
        batch = load(connection, [(b"x" * 600_000, BYTES)] * 3)
        assert connection.encode(batch, 3, 100.0) == 1
        assert connection.encode(batch, 3, 100.0) == 1
        assert connection.encode(batch, 3, 100.0) == 1


class TestHanded:
    """An event is handed when the kernel has all of its datagrams."""

    def three_events(self) -> tuple[Connection, list[int]]:
        """Return a connection with three events in four datagrams, and the bytes of each run."""
        connection = connected(mtu=576, unboxed=True)
        bodies = [bytes([n]) * size for n, size in enumerate([10, 1000, 10], 65)]
        batch = load(connection, [(body, BYTES) for body in bodies])
        assert connection.encode(batch, 3, 100.0) == 3
        return connection, self.run_sizes(on_wire(connection))

    def run_sizes(self, data: bytes) -> list[int]:
        found, at = [], 0
        while at < len(data):
            found.append(8 + int.from_bytes(data[at : at + 4], "little"))
            at += found[-1]
        return found

    def test_event_is_handed_with_its_last_datagram(self) -> None:
        connection, runs = self.three_events()
        assert connection.codec.counts == (1, 2, 4)
        assert awaited(connection) == 3
        assert handed(connection) == []
        connection.codec.sent(runs[0] - 18)
        assert handed(connection) == [], "the first run has the first event"
        done: list[int] = []
        for size in (18, *runs[1:]):
            connection.codec.sent(size)
            for first, last in handed(connection):
                done += range(first, last + 1)
            assert awaited(connection) == 3 - len(done)
        assert done == [1, 2, 3]

    def test_command_behind_events_is_not_an_event(self) -> None:
        connection, runs = self.three_events()
        connection.core.call("ping", b"x")
        (ping,) = self.run_sizes(on_wire(connection))
        connection.codec.sent(sum(runs) - 1)
        assert (3, 3) not in handed(connection)
        connection.codec.sent(1 + ping)
        assert handed(connection) == [(3, 3)]
        assert awaited(connection) == 1, "the ping"

    def test_unsent_events_are_handed_over_the_next_socket(self) -> None:
        connection, runs = self.three_events()
        connection.codec.sent(runs[0])
        assert handed(connection) == [(1, 1)]
        connection.lost()
        connection.connected(101.0)
        assert awaited(connection) == 0
        batch = connection.in_flight.pending()
        assert batch is not None
        assert connection.encode(batch, 3, 101.0) == 2
        sent(connection)
        assert handed(connection) == [(2, 3)]

    def test_at_most_2048_events_are_unsent(self) -> None:
        connection = connected()
        batch = load(connection, [(b"x", BYTES)] * 5000)
        assert connection.encode(batch, 5000, 100.0) == 2048
        assert connection.credit(100.0)[0] == 0
        assert connection.encode(batch, 5000, 100.0) == 0
        first, *others = self.run_sizes(on_wire(connection))
        connection.codec.sent(first)
        assert 0 < connection.credit(100.0)[0] < 2048
        connection.codec.sent(sum(others))
        assert connection.credit(100.0)[0] == 2048


class TestPace:
    def test_burst_goes_first_and_then_the_rate(self) -> None:
        connection = connected(pace=1000, burst=(10.0, 0.0))
        batch = load(connection, [(b"x", BYTES)] * 100)
        assert connection.credit(100.0)[0] == 10
        assert connection.encode(batch, 100, 100.0) == 10
        assert connection.credit(100.0) == (0, 0)
        ready = connection.codec.ready(100.0)
        assert ready == pytest.approx(100.005)
        assert connection.credit(100.004) == (0, 0)
        assert connection.credit(ready)[0] == 5
        assert connection.encode(batch, 100, ready) == 5
        assert connection.credit(200.0)[0] == 10  # no more than the bucket holds

    @given(
        st.lists(st.floats(0.0001, 0.5), min_size=1, max_size=40),
        st.integers(50, 5000), st.integers(1, 40), st.integers(1, 5),
    )  # fmt: skip
    @settings(deadline=None, max_examples=60)
    def test_pace_is_never_exceeded(self, pauses: list[float], pace: int, burst: int, parts: int) -> None:
        """At any time at most the burst, the accrued rate and one overdrawing message have gone."""
        connection = connected(pace=pace, burst=(burst, 0.0), mtu=576)
        body = bytes(500 * parts)
        batch = load(connection, [(body, BYTES)] * 500)
        each = len(fragments(body, 1, datagram=connection.codec.datagram))
        now, packets = 100.0, 0
        for pause in pauses:
            connection.encode(batch, 500, now)
            found = sent(connection)
            packets += len(found)
            assert packets <= burst + (now - 100.0) * pace + each
            now += pause

    def test_pace_bytes_limits_bytes(self) -> None:
        connection = connected(pace_bytes=100_000, burst=(32.0, 0.0))  # 64 KiB at once
        batch = load(connection, [(bytes(20_000), BYTES)] * 20)
        assert connection.encode(batch, 20, 100.0) == 4
        ready = connection.codec.ready(100.0)
        assert 100.1 < ready < 100.5
        assert connection.credit(ready)[0] > 0

    def test_message_goes_whole_and_overdraws(self) -> None:
        connection = connected(pace=100, burst=(1.0, 0.0), mtu=576)
        batch = load(connection, [(bytes(5000), BYTES)] * 2)
        assert connection.encode(batch, 2, 100.0) == 1
        assert len(sent(connection)) == 10
        assert connection.codec.ready(100.0) == pytest.approx(100.1)

    def test_pace_can_be_changed_while_running(self) -> None:
        connection = connected(pace=100)
        batch = load(connection, [(b"x", BYTES)] * 1000)
        connection.encode(batch, 100, 100.0)
        sent(connection)
        connection.core.pace(100.0, 100_000.0)
        assert connection.codec.ready(100.0) == pytest.approx(100.0032, abs=0.0001)
        assert connection.credit(101.0)[0] == 640
        connection.core.pace(101.0, 0.0)
        assert connection.codec.ready(101.0) == 0.0
        assert connection.credit(101.0)[0] == 2048
        for rate in (-1.0, float("nan")):
            with pytest.raises(AssertionError):
                connection.core.pace(101.0, rate)

    def test_clock_that_stands_or_goes_back_gives_no_credit(self) -> None:
        connection = connected(pace=1000, burst=(1.0, 0.0))
        batch = load(connection, [(b"x", BYTES)] * 10)
        assert connection.encode(batch, 10, 100.0) == 1
        assert connection.encode(batch, 10, 99.0) == 0
        assert connection.credit(100.0) == (0, 0)


class TestMtu:
    def test_datagram_size_follows_path_and_option(self) -> None:
        connection = connected()
        assert connection.codec.datagram == 1452
        connection.core.path_mtu(1500, 28)
        assert connection.codec.datagram == 1472
        connection.core.path_mtu(1500, 48)
        assert connection.codec.datagram == 1452
        connection.core.path_mtu(65536, 28)
        assert connection.codec.datagram == 65507
        connection = connected(mtu=1400)
        assert connection.codec.datagram == 1352
        connection.core.path_mtu(9000, 28)
        assert connection.codec.datagram == 1372
        connection.core.path_mtu(100, 28)  # every path carries 576 bytes: the kernel fragments below that
        assert connection.codec.datagram == 1372
        connection = connected()
        connection.core.path_mtu(100, 28)
        assert connection.codec.datagram == 528

    def test_fragments_fit_the_mtu(self) -> None:
        connection = connected(mtu=1000)
        connection.core.path_mtu(65536, 28)
        batch = load(connection, [(bytes(3000), BYTES)])
        connection.encode(batch, 1, 100.0)
        assert [len(one) for one in sent(connection)] == [972] * 3 + [24 + 3000 - 3 * 948]


class TestOptions:
    @pytest.mark.parametrize(("options", "words"), [
        ({"mtu": 70}, "datagram: 25 to 65507 bytes, not 22"), ({"mtu": 70000}, "datagram: 25 to"),
        ({"tags": ("a\0b",)}, "tags: none may be"),
        ({"tags": ("\ud800",)}, "tags: must be encodable"), ({"tags": ("kt:a", "kt:b")}, "tags: two that"),
        ({"tags": ("kt:null",)}, "topic: servers discard"), ({"tags": ("kt:a b",)}, "topic: 1 to 249"),
        ({"tags": ("kt:..",)}, "topic: 1 to 249"), ({"tags": ("pk:",)}, "tags: nothing behind pk:"),
        ({"tags": ("x" * 70000,)}, "tags: 70000 bytes"), ({"tags": ("x" * 1500,)}, "tags: 1500 bytes, and"),
    ])  # fmt: skip
    def test_wrong_option_is_named(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            connected(**options)

    def test_wrong_identity_is_named(self) -> None:
        with pytest.raises(ConfigError, match="identity: must be one of id, own, none"):
            parse("plog://h", identity="x")

    @pytest.mark.parametrize(("tag", "words"), [("", "none may be empty"), (b"x", "each must be text")])
    def test_wrong_tag_is_named(self, tag: Any, words: str) -> None:
        with pytest.raises(ValueError, match=f"tags: {words}"):
            join_tags([tag])

    def test_codec_refuses_values_that_break_its_arithmetic(self) -> None:
        for wrong in ({"producer": b"x"}, {"datagram": 10}):
            with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: "):
                Codec(**{"producer": PRODUCER, **wrong})  # type: ignore[arg-type]
        for out in (
            {"number": 0}, {"batch_bytes": 0}, {"max_message": 1 << 31}, {"burst": 0.5}, {"size_burst": 0.0},
            {"packets": -1.0}, {"size": float("nan")},
        ):  # fmt: skip
            with pytest.raises(AssertionError):
                Codec(PRODUCER, **out)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            Codec.__new__(Codec).credit(0.0)
        assert feed(Reassembler.__new__(Reassembler), [b"x"]).verdict.tolist() == [SIMPLE]
        assert len(Decoder.__new__(Decoder).decode(b"", b"", b"")) == 0

    def test_options_are_taken_from_the_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(registry.SCHEMES, "plog", registry.SCHEMES["plog"]._replace(transport="x:y"))
        options = record_codecs(monkeypatch, "logclient.plog.core")
        given_ = parse("plog://h")
        assert (given_.endpoints, given_.max_event_bytes) == ((("h", 23456),), 262144)
        Plog(given_, PRODUCER)
        url = "plog://h?mtu=1400&unboxed=true&topic=orders&tags=a,pk:7&pace=0&pace_bytes=1MiB&check=no"
        Plog(parse(url, max_event_bytes=1000).replace(burst=(9.0, 0.0)), PRODUCER)
        default = {
            "datagram": 1452, "tags": b"", "unboxed": False, "max_message": 262144, "identity": True,
            "check": True, "packets": 10_000, "burst": 64.0, "size": 64 << 20, "size_burst": 131072.0,
        }  # fmt: skip
        changed = {
            "datagram": 1352, "tags": b"kt:orders\0a\0pk:7", "unboxed": True, "max_message": 1000,
            "check": False, "packets": 0, "burst": 9, "size": 1 << 20, "size_burst": 65_507.0,
        }  # fmt: skip
        assert options == [(PRODUCER, default), (PRODUCER, default | changed)]
        with pytest.raises(ConfigError, match="topic: 1 to 249"):
            Plog(parse("plog://h?topic=a%20b"), PRODUCER)
        with pytest.raises(ConfigError, match="window: not an option of plog"):
            parse("plog://h?window=3")

    def test_tags_join_and_split(self) -> None:
        assert join_tags(()) == b""
        assert join_tags(["caf\xe9"], "t", "k") == b"kt:t\0pk:k\0caf\xc3\xa9"
        assert split_tags(b"\0a\0\0b\0\xff\xfe") == ["a", "b", "\ufffd\ufffd"]
        assert split_tags(join_tags(["a", "b"])) == ["a", "b"]


class TestStat:
    def test_stat_is_the_servers_object(self) -> None:
        assert parse_stat(stat_of()) == STAT

    @pytest.mark.parametrize("data", [
        b"", b"{", b"[]", b"{}", b"\xff", b'{"uptime":"x"}', stat_of(uptime=None), stat_of(uptime=True),
        stat_of(uptime=1e300), stat_of(uptime=float("nan")),
        b'{"uptime":1,"x":' + b"[" * 100_000, b'{"uptime":' + b"9" * 5000 + b"}",
    ])  # fmt: skip
    def test_answer_that_is_no_stat_is_refused(self, data: bytes) -> None:
        with pytest.raises(ProtocolError, match="stat: "):
            parse_stat(data)


class TestLoss:
    BEFORE = stat_of(uptime=10, v0_commands=3, v0_fragments=[5], handlers=[{"seen_messages": 100}])

    @pytest.mark.parametrize(("seen", "changes", "lost"), [
        (108, {}, 2), (110, {"v0_fragments": [15]}, 0), (100, {}, 10),
        (111, {}, None), (105, {"v0_fragments": [16]}, None), (105, {"udp_simple_messages": 7}, None),
        (105, {"v0_commands": 5}, None), (105, {"uptime": 9}, None), (99, {}, None),
        (None, {}, None), ("x", {}, None), (1e3, {}, None), (105, {"handlers": []}, None),
        (105, {"handlers": [1]}, None), (105, {"handlers": {}}, None), (105, {"v0_fragments": 3}, None),
        (105, {"v0_fragments": ["x"]}, None), (105, {"v0_commands": True}, None),
        (105, {"handlers": [{"logged": 104}]}, 6),
    ])  # fmt: skip
    def test_loss_of_ten_events_is_estimated_or_unknown(
        self, seen: Any, changes: dict[str, Any], lost: int | None
    ) -> None:
        """It is unknown if another client sends, too, or if the server was restarted or tells too little."""
        after = {"uptime": 20, "v0_commands": 4, "v0_fragments": [12], "handlers": [{"seen_messages": seen}]}
        then, now = Sent(1.0, 7, 100, 100), Sent(2.0, 8, 110, 120)
        found = lost_between(parse_stat(self.BEFORE), then, parse_stat(stat_of(**{**after, **changes})), now)
        assert found == lost


class TestCommands:
    def replies(self, connection: Connection, *answers: bytes, now: float = 100.5) -> list[Any]:
        found = connection.receive(oracle.runs(answers), now) if answers else connection.events()
        return [(event.token, event.payload) for event in found if isinstance(event, Reply)]

    def test_commands_are_datagrams_and_kill_has_no_reply(self) -> None:
        assert command("ping", b"For17") == b"\0\0PINGFor17"
        connection = connected()
        call = connection.core.call
        assert [call("ping", b"a"), call("stat"), call("envi"), call("kill")] == [1, 2, 3, 4]
        assert sent(connection) == [b"\0\0PINGa", b"\0\0STAT", b"\0\0ENVI", b"\0\0KILL"]
        assert self.replies(connection) == [(4, None)]
        assert awaited(connection) == 3

    def test_pong_is_matched_by_its_payload(self) -> None:
        connection = connected()
        call = connection.core.call
        first, second, own = call("ping", b"\0a"), call("ping", b"b"), call("ping")
        (payload,) = [one[6:] for one in sent(connection)][2:]
        assert self.replies(connection, b"PONGb") == [(second, b"PONGb")]
        assert self.replies(connection, b"PONG\0b", b"PONG") == []
        assert self.replies(connection, b"PONG" + payload, b"PONG\0a") == [
            (own, b"PONG" + payload),
            (first, b"PONG\0a"),
        ]
        assert self.replies(connection, b"PONG\0a") == []
        call("ping")
        assert sent(connection) != [b"\0\0PING" + payload]

    @pytest.mark.parametrize("kind", ["ping", "stat", "envi"])
    def test_an_answer_is_for_all_who_asked(self, kind: str) -> None:
        connection = connected()
        tokens = [connection.core.call(kind, b"x" * (kind == "ping")) for _ in range(2)]
        answer = {"ping": b"PONGx", "stat": stat_of(), "envi": b"Config()"}[kind]
        assert self.replies(connection, answer) == [(token, answer) for token in tokens]
        assert self.replies(connection, answer) == []

    def test_oldest_of_many_questions_is_dropped(self) -> None:
        connection = connected()
        for n in range(100):
            connection.core.call("ping", b"%d" % n)
        assert awaited(connection) == 64
        assert self.replies(connection, b"PONG35") == []
        assert self.replies(connection, b"PONG36") == [(37, b"PONG36")]

    def test_stat_and_envi_are_told_apart(self) -> None:
        connection = connected()
        stat, envi = connection.core.call("stat"), connection.core.call("envi")
        text = b"Config(SimpleConfigObject({\xe9}))"
        assert self.replies(connection, text, stat_of()) == [(envi, text), (stat, stat_of())]
        assert awaited(connection) == 0
        assert self.replies(connection, stat_of(), b"Config()") == []
        envi = connection.core.call("envi")
        assert self.replies(connection, b'{"json":1}') == [(envi, b'{"json":1}')]

    @pytest.mark.parametrize(("kind", "payload"), [("foo", b""), ("ping", bytes(1500))])
    def test_wrong_question_is_refused_and_not_sent(self, kind: str, payload: bytes) -> None:
        connection = connected()
        with pytest.raises(ValueError, match="command: "):
            connection.core.call(kind, payload)
        assert on_wire(connection) == b""
        assert awaited(connection) == 0

    def test_new_socket_forgets_questions(self) -> None:
        connection = connected()
        connection.core.call("stat")
        connection.lost()
        connection.connected(101.0)
        assert on_wire(connection) == b""
        assert self.replies(connection, stat_of()) == []
        assert connection.core.call("stat") == 2

    @given(
        st.lists(st.binary(max_size=30), max_size=5),
        st.lists(st.sampled_from(["ping", "stat", "envi"]), unique=True),
    )
    def test_any_reply_answers_at_most_one_question(self, answers: list[bytes], asked: list[str]) -> None:
        connection = connected()
        for kind in asked:
            connection.core.call(kind)
        found = [
            event for event in connection.receive(oracle.runs(answers), 100.1) if isinstance(event, Reply)
        ]
        assert len(found) + awaited(connection) == len(asked)

    @given(st.binary(max_size=60))
    def test_bytes_that_are_no_whole_runs_answer_nothing(self, data: bytes) -> None:
        connection = connected()
        connection.core.call("envi")
        found = [event for event in connection.receive(data, 100.1) if isinstance(event, Reply)]
        try:
            answers = [one for one in datagrams(data) if not one.startswith(b"PONG")]
        except ValueError:
            answers = []
        expected = answers[:1]
        assert [event.payload for event in found] == expected

    def test_replies_beyond_the_bound_are_dropped(self) -> None:
        connection = connected()
        for _ in range(100):
            connection.codec.receive(oracle.runs([bytes(60_000)]), 100.0)
        assert len(connection.codec.take_replies()) == 17

    def test_probe_recognises_its_own_pong(self) -> None:
        probe = PlogProbe(SimpleNamespace(scheme="plog"))
        (first,) = datagrams(probe.ask()[0])
        assert first.startswith(b"\0\0PING")
        assert datagrams(probe.insist()[0]) == [first]
        assert probe.receive_data(oracle.runs([b"PONGother"])) is None
        assert probe.receive_data(oracle.runs([b"PONG" + first[6:]])) is True
        assert probe.receive_data(oracle.runs([b"HTTP/1.1 400"])) is False
        assert datagrams(probe.ask()[0]) != [first]


@st.composite
def datagram_scenes(draw: st.DrawFn) -> tuple[list[tuple[int, bytes]], list[bytes]]:
    """Draw (datagrams with their stream in order of arrival; the messages that were sent)."""
    rng = Random(draw(st.integers(0, 1 << 32)))
    wire: list[tuple[int, bytes]] = []
    bodies = []
    for number in range(draw(st.integers(1, 6))):
        body = rng.randbytes(rng.choice([0, 1, 30, 77, 200]))
        bodies.append(body)
        room = rng.choice([30, 40, 64, 300])
        tags = rng.choice([b"", b"", b"kt:a"])
        wire += [(number % 2, one) for one in fragments(body, number, datagram=room, tags=tags)]
    lost = draw(st.sampled_from([0.0, 0.0, 0.2]))
    wire = [one for one in wire if rng.random() >= lost]
    for _ in range(draw(st.integers(0, 4))):
        if wire:
            stream, one = rng.choice(wire)
            how = draw(st.sampled_from(["copy", "flip", "cut", "longer", "other"]))
            if how == "flip" and one:
                at = rng.randrange(len(one))
                one = one[:at] + bytes([one[at] ^ 1 << rng.randrange(8)]) + one[at + 1 :]
            elif how == "cut" and one:
                one = one[: rng.randrange(len(one))]
            elif how == "longer":
                one += b"x"
            elif how == "other":
                stream = 1 - stream
            wire.append((stream, one))
    if draw(st.booleans()):
        rng.shuffle(wire)
    return wire, bodies


def fragment_of(rest: bytes) -> bytes:
    return b"\0\1" + rest


class TestReassembly:
    @given(datagram_scenes())
    @settings(max_examples=400, deadline=None)
    def test_reassembly_equals_the_reference(
        self, scene: tuple[list[tuple[int, bytes]], list[bytes]]
    ) -> None:
        wire, _ = scene
        server, reference = Reassembler(max_message=250, max_bytes=1 << 20), oracle.Server(250)
        judged = feed(server, [one for _, one in wire], streams=[stream for stream, _ in wire])
        for row, (stream, one) in enumerate(wire):
            want = reference.feed(one, stream)
            assert judged.verdict[row] == want.verdict, row
            if want.payload:
                assert (judged.payload(row), judged.tags(row)) == want[1:]
        assert sorted(server.open) == sorted(
            (stream, id_, len(one.parts), one.count) for (stream, id_), one in reference.open.items()
        )

    @given(
        st.binary(max_size=3000), st.integers(30, 200), st.integers(0, 1 << 32), st.sampled_from([0.0, 0.1])
    )
    def test_message_is_whole_if_all_fragments_came(
        self, body: bytes, room: int, seed: int, loss: float
    ) -> None:
        rng = Random(seed)
        found = fragments(body, 1, datagram=room, tags=b"t")
        came = [one for one in found if rng.random() >= loss]
        came += [rng.choice(found) for _ in range(3) if came]
        whole = {bytes(one) for one in came} == set(found)
        rng.shuffle(came)
        server = Reassembler()
        judged = feed(server, came)
        verdicts = judged.verdict.tolist()
        assert (MESSAGE in verdicts) == whole
        assert set(verdicts) <= {MESSAGE, FRAGMENT}
        if whole:
            row = verdicts.index(MESSAGE)
            assert judged.payload(row) == body
            assert judged.tags(row) == b"t"

    @pytest.mark.slow
    @given(
        st.lists(
            st.binary(max_size=60) | st.binary(max_size=40).map(lambda rest: b"\0\1" + rest), max_size=20
        )
    )
    @settings(max_examples=300, deadline=None)
    def test_any_datagrams_are_judged_as_by_the_reference(self, found: list[bytes]) -> None:
        reference = oracle.Server(1000)
        judged = feed(Reassembler(max_message=1000), found)
        assert judged.verdict.tolist() == [reference.feed(one, 7).verdict for one in found]

    def test_total_of_the_first_seen_fragment_counts(self) -> None:
        """As in the real server, later fragments may state another total."""
        first, last = fragments(b"abcdef", 1, datagram=28)
        other = last[:12] + (7).to_bytes(4, "big") + last[16:]
        judged = feed(Reassembler(), [first, other])
        assert judged.verdict.tolist() == [FRAGMENT, MESSAGE]
        assert judged.payload(1) == b"abcdef"
        assert MESSAGE not in feed(Reassembler(), [other, first]).verdict.tolist()

    def test_message_is_assembled_over_several_calls(self) -> None:
        body = bytes(range(256)) * 4
        server = Reassembler()
        for number, one in enumerate(fragments(body, 3, datagram=124), 1):
            judged = feed(server, [one], now=float(number))
        assert judged.payload(0) == body
        assert (server.open, server.held) == ([], 0)

    def test_first_fragment_of_a_message_opens_it(self) -> None:
        first, second, third = fragments(bytes(200), 9, datagram=100)
        judged = feed(Reassembler(), [third, first, first, second, second, *fragments(b"", 10)])
        assert judged.opened.tolist() == [1, 0, 0, 0, 1, 1]
        assert judged.id.tolist() == [9] * 5 + [10]
        assert judged.count.tolist() == [3] * 5 + [1]
        assert judged.index.tolist() == [2, 0, 0, 1, 1, 0]

    def test_message_expires_after_its_last_fragment(self) -> None:
        parts = fragments(bytes(200), 9, datagram=100)
        server = Reassembler(expire=10.0)
        feed(server, parts[:1], 0.0)
        feed(server, parts[:1], 9.0)
        feed(server, parts[1:2], 18.9)
        assert feed(server, parts[2:], 28.0).verdict.tolist() == [MESSAGE]
        feed(server, parts[:1], 30.0)
        server.expire(39.9)
        assert len(server.open) == 1
        server.expire(40.0)
        assert server.open == []
        counters: dict[str, Any] = server.counters()
        assert counters["defragmenter"] == {"evictions": 1, "hits": 3, "misses": 2}
        assert counters["dropped_fragments"][2] == [0, 1, 1]

    def test_interleaved_large_messages_evict_each_other(self) -> None:
        """Of 20 messages of 100 kB none is whole when their fragments are mixed, all are otherwise."""
        sets = [fragments(bytes(100_000), number, datagram=60_000) for number in range(20)]
        server = Reassembler()
        assert feed(server, [one for parts in sets for one in parts]).verdict.tolist().count(MESSAGE) == 20
        server = Reassembler()
        mixed = [parts[i] for i in range(2) for parts in sets]
        assert MESSAGE not in feed(server, mixed).verdict.tolist()
        assert server.held <= 1 << 20

    @pytest.mark.parametrize("size", [262_144, 262_145])
    def test_message_beyond_256_kib_is_too_large(self, size: int) -> None:
        server = Reassembler()
        found = feed(server, fragments(bytes(size), 1, datagram=60_024)).verdict.tolist()
        if size == 262_144:
            assert found == [FRAGMENT] * 4 + [MESSAGE]
            return
        assert found == [TOO_LARGE] * 5
        counters: dict[str, Any] = server.counters()
        assert counters["defragmenter"] == {"evictions": 5, "hits": 0, "misses": 5}
        assert sum(map(sum, counters["dropped_fragments"])) == 5 * 4

    def test_announced_totals_take_no_memory(self) -> None:
        server = Reassembler(max_message=(1 << 31) - 1, max_bytes=1 << 31 | 1 << 20)
        strict = Reassembler()
        huge = [header(65535, 5, 40_000, number, (1 << 31) - 1) + bytes(40_000) for number in range(50)]
        assert set(feed(strict, huge).verdict.tolist()) == {TOO_LARGE}
        assert strict.held == 0
        feed(server, huge)
        assert server.held <= 1 << 31 | 1 << 20
        assert len(server.open) == 1

    def test_a_million_open_messages_are_bounded(self) -> None:
        """Announced totals count against the bound; the oldest messages are dropped."""
        server = Reassembler()
        for block in range(10):
            found = [header(2, 0, 1, block << 20 | n, 2) + b"x" for n in range(100_000)]
            feed(server, found, float(block) / 10)
            assert server.held <= 1 << 20
        assert 1_000 < len(server.open) < 10_923
        wide = [header(65535, n % 65535, 1, n, 65535) + b"x" for n in range(1_000)]
        feed(server, wide)
        assert server.held <= 1 << 20

    def test_dropped_fragments_are_counted_by_word(self) -> None:
        """Counting words of a bit set equals counting one by one."""
        came = {0, 1, 62, 64, 900}
        for count in (2, 63, 64, 65, 128, 129, 1000, 65535):
            server = Reassembler(expire=1.0)
            feed(server, [header(count, index, 1, 1, count) + b"x" for index in came if index < count])
            server.expire(5.0)
            want = [0] * 17
            for index in range(count):
                want[index.bit_length()] += index not in came
            counters: dict[str, Any] = server.counters()
            row = (count - 1).bit_length()
            assert counters["dropped_fragments"][row] == want[: row + 1]
            too_large = Reassembler(max_message=0)
            feed(too_large, [header(count, 1, 1, 1, count) + b"x"])
            counters = too_large.counters()
            assert sum(counters["dropped_fragments"][row]) == count - 1

    def test_tags_beyond_the_datagram_are_refused(self) -> None:
        found = feed(Reassembler(), [header(1, 0, 0, 1, 0, tags=1), header(1, 0, 0, 1, 0, tags=65535)])
        assert found.verdict.tolist() == [BAD_HEADER, OUT_OF_BOUNDS]

    def test_tags_count_against_the_held_bytes(self) -> None:
        server = Reassembler(max_message=1000, max_bytes=20_000)
        tagged = [header(2, 0, 1, n, 2, tags=5000) + bytes(5000) + b"x" for n in range(100)]
        feed(server, tagged)
        assert 0 < server.held <= 20_000
        assert len(server.open) == 3
        feed(server, tagged[-1:] * 50)
        assert len(server.open) == 3

    def test_datagram_outside_of_the_data_is_refused(self) -> None:
        server = Reassembler()
        for at, size in ((-1, 1), (0, -1), (0, 5), (5, 0), (1 << 62, 1), (2, 1 << 62)):
            with pytest.raises(ValueError, match="unit 1 leaves the data of 4 bytes"):
                server.feed(b"four", array("q", [0, at]), array("q", [4, size]), array("Q", [0, 0]), 0.0)
        with pytest.raises(ValueError, match="equally many: 8, 16, 8 bytes"):
            server.feed(b"four", array("q", [0]), array("q", [0, 0]), array("Q", [0]), 0.0)
        judged = feed(server, [b"text"])
        for row in (-1, 1):
            with pytest.raises(IndexError):
                judged.payload(row)

    def test_wrong_bound_is_named(self) -> None:
        for wrong in ({"max_message": -1}, {"max_message": 1 << 31}, {"max_bytes": 1000}, {"expire": 0.0}):
            with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: "):
                Reassembler(**wrong)  # type: ignore[arg-type]

    def test_init_again_changes_nothing(self) -> None:
        server = Reassembler()
        feed(server, fragments(bytes(3000), 1, datagram=1000)[:1])
        server.__init__()  # type: ignore[misc]
        assert len(server.open) == 1


class TestDecoder:
    def rows(self, decoder: Decoder, found: list[bytes], **columns: Any) -> Any:
        return decoder.decode(*columns_of(found), **columns)

    @pytest.mark.slow
    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.tuples(
            near_objects | plain_objects | st.binary(max_size=120), st.sampled_from([RAW, BYTES]),
        ), min_size=1, max_size=8),
        st.integers(60, 300), st.booleans(), st.booleans(), st.integers(0, 1 << 32),
        st.lists(st.binary(max_size=50), max_size=4), st.booleans(),
    )  # fmt: skip
    def test_decoding_equals_the_reference(
        self, events: list[tuple[bytes, int]], room: int, unboxed: bool, identity: bool, seed: int,
        others: list[bytes], ours: bool,
    ) -> None:  # fmt: skip
        """Datagrams of our client and arbitrary ones, in any order."""
        found, _, _ = oracle.encode(events, PRODUCER, room=room, unboxed=unboxed)
        found += others + [b"\0\0PING"]
        Random(seed).shuffle(found)
        producers = [PRODUCER] if ours else [bytes(10), b"\xff" * 10]
        rows = self.rows(Decoder(b"".join(producers), identity=identity), found)
        want = oracle.decode(found, producers, identity)
        assert rows.unit.tolist() == [unit for unit, _ in want]
        assert rows.status.tolist() == [row.status for _, row in want]
        assert rows.hash.tolist() == [row.hash for _, row in want]
        assert rows.sequence.tolist() == [row.sequence for _, row in want]
        assert rows.id_hash.tolist() == [hash_ for _, row in want for hash_ in row.id_hash]
        assert [n for n, (_, row) in zip(rows.length.tolist(), want, strict=True) if row.length >= 0] == [
            row.length for _, row in want if row.length >= 0
        ]

    def test_rows_say_where_each_body_is(self) -> None:
        body = b'{"a":"%s","uuid":"%s"}' % (b"x" * 100, ID_1.encode())
        found = [
            b"text",
            *fragments(body, 5, datagram=100, tags=b"kt:a"),
            *fragments(b"alone", 6, tags=b"a=b"),
        ]
        rows = self.rows(Decoder(PRODUCER), found)
        assert [STATUS_NAMES[status] for status in rows.status.tolist()] == ["foreign", "ok", "foreign"]
        assert rows.unit.tolist() == [0, 3, 4]
        assert rows.offset.tolist() == [0, 24 + 4, 24 + 3]
        assert rows.length.tolist() == [4, len(body), 5]
        assert rows.sequence.tolist() == [0, 1, 0]
        assert found[3][rows.offset[1] :] == body[2 * 76 :]

    def test_messages_continue_in_the_next_call_by_stream(self) -> None:
        first, second = fragments(bytes(100), 5, datagram=100)
        decoder = Decoder()
        assert len(self.rows(decoder, [first], streams=array("Q", [3]))) == 0
        assert decoder.open == [(3, 5, 1, 2)]
        assert len(self.rows(decoder, [second], streams=array("Q", [4]))) == 0
        assert self.rows(decoder, [second], streams=array("Q", [3])).length.tolist() == [100]
        assert decoder.open == [(4, 5, 1, 2)]

    def test_message_beyond_max_message_is_too_large(self) -> None:
        """The default is 64 MiB."""
        (first, *_) = fragments(bytes((64 << 20) + 1), 5)
        for decoder, status in ((Decoder(), "too_large"), (Decoder(max_message=MAX_MESSAGE), None)):
            found = self.rows(decoder, [first]).status.tolist()
            assert [STATUS_NAMES[number] for number in found] == [status] * (status is not None)
        assert decoder.open == [(0, 5, 1, 1025)]

    def test_reused_number_starts_anew_after_expiry(self) -> None:
        """A restarted client on the same port reuses numbers."""
        old, new = fragments(bytes(100), 5, datagram=100), fragments(b"y" * 150, 5, datagram=100)
        times = array("q", [0, 10_000_000, 10_000_001])
        assert len(self.rows(Decoder(), [old[0], *new], received_us=times)) == 1
        bad = self.rows(Decoder(), [old[0], *new])
        assert {STATUS_NAMES[status] for status in bad.status.tolist()} == {"bad_fragment"}

    def test_bodies_without_datagrams_are_decoded(self) -> None:
        """A Kafka topic holds such bodies."""
        found = [b'{"uuid":"%s"}' % ID_1.encode(), b"\0\1", b""]
        rows = self.rows(Decoder(PRODUCER, datagrams=False), found)
        assert rows.status.tolist() == [0, 1, 1]
        assert rows.length.tolist() == [len(one) for one in found]
        assert rows.hash.tolist() == [oracle.xxh64(one, 42) for one in found]

    def test_statuses_and_arguments_of_the_decoder(self) -> None:
        assert STATUS_NAMES[4:-1] == VERDICT_NAMES[4:]
        assert len(STATUS_NAMES) == oracle.DECODED_COMMAND + 1
        with pytest.raises(ValueError, match="producers: 10 bytes each"):
            Decoder(b"x")
        with pytest.raises(ValueError, match="ascending"):
            Decoder(PRODUCER * 2)
        with pytest.raises(ValueError, match="unit 0 leaves"):
            Decoder().decode(b"", array("q", [0]), array("q", [1]))
        with pytest.raises(ValueError, match="equally many"):
            Decoder().decode(b"", array("q", [0]), array("q", [0]), array("Q"))


class TestReadable:
    def frame_of(self, data: bytes) -> readable.Frame:
        (frame,) = frames(data)
        assert readable.lines(frame)
        assert readable.fields(frame)
        return frame

    def test_fragment_shows_place_hash_and_tags(self) -> None:
        frame = self.frame_of(fragments(b"hello", 7, tags=b"kt:a\0pk:b")[0])
        assert frame.title == (
            "fragment 1 of 1 of message 7, 5 bytes in all, hash 248bfa47, tag kt:a, tag pk:b"
        )
        assert (frame.fields["tags"], frame.body, frame.wrong) == (["kt:a", "pk:b"], b"hello", "")
        assert self.frame_of(fragments(bytes(100), 7, datagram=100)[1]).fields["index"] == 1

    def test_unboxed_messages_and_commands_are_named(self) -> None:
        assert self.frame_of(b"text").title == "unboxed message"
        assert (self.frame_of(b"\0\0pingx").title, self.frame_of(b"\0\0pingx").body) == ("command PING", b"x")

    @pytest.mark.parametrize(("data", "wrong"), [
        (b"", "an empty datagram"), (b"\x09x", "a first byte of 1 to 31"), (b"\0\2", "neither a command"),
        (b"\0", "neither a command"), (b"\0\0pin", "a command that no server"), (b"\0\1short", "no header"),
        (header(1, 0, 9, 1, 3, 1) + b"abc", "the hash of its payload is another: b3dd93fa"),
        (header(2, 0, 9, 1, 12) + b"abc", "its payload has another length"),
        (bytes(70_000), "70,000 bytes are no datagram"),
        (header(3, 0, 9, 1, 3) + b"123456789", "a payload beyond the total"),
    ])  # fmt: skip
    def test_wrong_datagram_says_what_is_wrong(self, data: bytes, wrong: str) -> None:
        assert self.frame_of(data).wrong.startswith(wrong)

    @given(st.binary(max_size=80) | st.binary(max_size=60).map(fragment_of))
    def test_any_datagram_is_one_frame_with_its_fault(self, data: bytes) -> None:
        frame = self.frame_of(data)
        wrong = feed(Reassembler(), [data]).verdict[0] not in (MESSAGE, FRAGMENT, SIMPLE, COMMAND)
        assert not wrong or frame.wrong
