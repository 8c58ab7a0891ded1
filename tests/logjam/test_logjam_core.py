"""The Logjam client without sockets: messages, replies, pings, decoding; compared with references in
plain Python."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import cli
from logclient._ext.constants import K_BYTES as BYTES
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.inflight import Batch
from logclient._ext.logjam import (
    LINKED,
    STATUS_NAMES,
    Codec,
    Decoder,
    pack,
    unpack,
)
from logclient.cli.probes import LogjamProbe
from logclient.codec import Connection, Settled
from logclient.config.parsing import parse
from logclient.delivery.contract import Fatal, Reply
from logclient.errors import ConfigError, ProtocolError
from logclient.evidence import frames as readable
from logclient.evidence.frames import logjam as logjam_frames
from logclient.evidence.frames.logjam import expand, frames
from logclient.logjam.core import Logjam, split_app_env
from logclient.logjam.messages import COMPRESSIONS
from tests import support
from tests.oracle import logjam as oracle
from tests.support.batches import inflight_of
from tests.support.configs import config_for, record_codecs
from tests.support.connections import load
from tests.support.examples import examples
from tests.support.lumberjack_inputs import near_objects, plain_objects
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

PRODUCER = bytes(range(10))
OTHER = bytes(range(1, 11))
APP_ENV = b"shop-production"
OK_REPLY = oracle.join([APP_ENV, b"202 Accepted"])
BAD_REPLY = oracle.join([APP_ENV, b"400 Bad Request"])
NAMES = ("logs.shop.production", "events.shop.production", "frontend.page", "frontend.ajax",
         "javascript.shop.production", "mobile")  # fmt: skip
TOPICS = [name.encode() for name in NAMES]


def logjam_config(app_env: str = "shop-production", push: bool = False, **options: Any) -> Any:
    scheme = "logjam+push" if push else "logjam"
    return config_for(scheme, f"/{app_env}", **{"compression": "none", **options})


def connected(**options: Any) -> Connection:
    connection = Connection(Logjam(logjam_config(**options), PRODUCER))
    connection.connected(100.0)
    return connection


def sent(connection: Connection) -> list[list[bytes]]:
    """Return the messages on the wire."""
    connection.credit(100.0)  # adds pings
    data = connection.codec.take_bytes()
    connection.codec.sent(len(data))
    return oracle.split(data)


def send(connection: Connection, n: int, now: float = 100.0) -> Batch:
    """Send requests 1 to n in one batch."""
    batch = load(connection, [(b'{"n":1}', RAW)] * n)
    assert connection.encode(batch, n, now) == n
    sent(connection)
    return batch


def carried_body(body: bytes, kind: int = RAW, **options: Any) -> bytes | None:
    """Return the body of one event as it is carried, or None when the event failed."""
    connection = connected(**options)
    batch = load(connection, [(body, kind)])
    if connection.encode(batch, 1, 100.0) == 0:
        assert batch.statuses() == {1: "failed"}
        return None
    (message,) = sent(connection)
    return message[3]


class TestOptions:
    @pytest.mark.parametrize(("options", "words"), [
        ({"app_env": ""}, "app-env: <app>-<env>"), ({"app_env": "shop"}, "app-env: <app>-<env>"),
        ({"app_env": "-production"}, "app-env: <app>-<env>"), ({"app_env": "shop-"}, "app-env: <app>-<env>"),
        ({"app_env": "--x"}, "app-env: .* a dash not first"), ({"app_env": "ö-x"}, "app-env: up to 255"),
        ({"app_env": "a b-x"}, "app-env: up to 255"), ({"app_env": "a.b-x"}, "app-env: up to 255"),
        ({"app_env": "a" * 255 + "-x"}, "app-env: up to 255"), ({"app_env": "a/b-x"}, "app-env: up to 255"),
        ({"topic": "LOGS.a"}, "topic: one of logs, "), ({"topic": "logsX"}, "topic: one of logs, "),
        ({"topic": "frontend"}, "topic: one of"), ({"topic": "frontend.webvitals"}, "topic: one of"),
        ({"topic": "logs..a"}, "topic: words of"), ({"topic": "logs.ö"}, "topic: words of"),
        ({"topic": "logs."}, "topic: words of"),
        ({"push": True, "mode": "request"}, r"mode: logjam\+push is async only"),
    ])  # fmt: skip
    def test_wrong_option_is_named(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            connected(**options)

    @pytest.mark.parametrize(
        ("name", "value"), [("mode", "sync"), ("compression", "gzip"), ("identity", "no")]
    )
    def test_unknown_word_is_refused_with_the_choices(self, name: str, value: str) -> None:
        with pytest.raises(ConfigError, match=f"{name}: must be one of .*, got '{value}'"):
            parse("logjam://h/shop-production", **{name: value})

    @pytest.mark.parametrize("app_env", ["a-b", "my_app-prod_eu", "my-app-prod", "app1-env2", "a--b"])
    def test_app_and_env_are_split_at_the_last_dash(self, app_env: str) -> None:
        app, env = split_app_env(app_env)
        assert f"{app}-{env}" == app_env
        assert "-" not in env

    def test_default_topic_is_split_before_the_environment(self) -> None:
        connection = connected(app_env="my-shop-production")
        batch = load(connection, [(b"{}", RAW), (b"{}", RAW | 1 << 4)])
        connection.encode(batch, 2, 100.0)
        assert [m[2] for m in sent(connection)] == [b"logs.my-shop.production", b"events.my-shop.production"]

    def test_options_are_taken_from_the_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from logclient.config import registry

        for name in ("logjam", "logjam+push"):
            monkeypatch.setitem(registry.SCHEMES, name, registry.SCHEMES[name]._replace(transport="x:y"))
        given_ = parse("logjam://h/shop-production?compression=zlib&inflight=7&topic=events.x&mode=async")
        assert (given_.endpoints, given_.max_event_bytes) == ((("h", 9604),), 8 << 20)
        options = record_codecs(monkeypatch, "logclient.logjam.core")
        Logjam(given_, PRODUCER)
        changed = {
            "request": False, "inflight": 7, "compression": 1, "level": 3, "compress_over": 1024,
            "identity": True, "check": True, "silence": 30.0, "adaptive": False,
        }  # fmt: skip
        assert options.pop() == (PRODUCER, APP_ENV, [b"events.x", *TOPICS[1:]], changed)
        Logjam(parse("logjam+push://h/shop-production", compression="none"), PRODUCER)
        changed |= {"inflight": 256, "compression": 0, "adaptive": True}
        assert options.pop() == (PRODUCER, APP_ENV, TOPICS, changed)
        with pytest.raises(ConfigError, match="async only"):
            Logjam(parse("logjam+push://h/shop-production?mode=request"), PRODUCER)
        with pytest.raises(ConfigError, match="app-env"):
            Logjam(parse("logjam://h"), PRODUCER)
        with pytest.raises(ConfigError, match="compression: must be one of auto"):
            parse("logjam://h/a-b?compression=3")
        assert parse("lumberjack://h").compression == 3

    def test_compressor_is_named_or_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert connected().codec.compressor == "none"
        assert connected(compression="zlib").codec.compressor.removeprefix("python ") in ("isal 1", "zlib 3")
        for name, package in (("snappy", "python-snappy"), ("lz4", "lz4")):
            monkeypatch.setitem(sys.modules, name, None)
            if name in LINKED:
                assert connected(compression=name).codec.compressor == name
            else:
                with pytest.raises(ConfigError, match=f"{package} is not installed"):
                    connected(compression=name)

    def test_codec_checks_its_arguments(self) -> None:
        wrong: dict[str, Any]
        for wrong in (
            {"app_env": b""}, {"app_env": b"ping"}, {"topics": TOPICS[:5]}, {"topics": [b"", *TOPICS[1:]]},
            {"compression": 4}, {"number": 0}, {"level": 0},
        ):  # fmt: skip
            with pytest.raises(AssertionError):
                Codec(**{"producer": PRODUCER, "app_env": APP_ENV, "topics": TOPICS, **wrong})
        with pytest.raises(ValueError, match="producer: 10 bytes, not 1"):
            Codec(b"x", APP_ENV, TOPICS)
        with pytest.raises(TypeError):
            Codec.__new__(Codec).credit(0.0)


class TestMessages:
    @pytest.mark.parametrize("nibble", range(6))
    @pytest.mark.parametrize("mode", ["request", "async"])
    def test_message_has_app_env_topic_body_and_meta(self, nibble: int, mode: str) -> None:
        connection = connected(mode=mode)
        batch = load(connection, [(b'{"a":1}', RAW | nibble << 4)])
        created = batch.pending()[0].created_us
        assert connection.encode(batch, 1, 100.0) == 1
        (message,) = sent(connection)
        body = b'{"a":1,"%s":"%s000000000001"}' % (
            oracle.carrier_of(TOPICS[nibble]).encode(), PRODUCER.hex().encode(),
        )  # fmt: skip
        first = [b""] if mode == "request" else []
        meta = struct.pack(">HBBIQQ", 0xCABD, 0, 1, 0, created // 1000, 1)
        assert message == [*first, APP_ENV, TOPICS[nibble], body, meta]
        handed = [Settled(1, 1, "handed")] if mode == "async" else []
        assert batch.statuses() == {1: "inflight"}
        assert connection.events() == handed

    def test_event_of_an_unknown_topic_fails(self) -> None:
        connection = connected()
        batch = load(connection, [(b"{}", RAW | 6 << 4), (b"{}", RAW)])
        assert connection.encode(batch, 2, 100.0) == 1
        assert batch.statuses() == {1: "failed", 2: "inflight"}

    def test_message_numbers_wrap_to_1(self) -> None:
        codec = Codec(PRODUCER, APP_ENV, TOPICS, request=False, number=(1 << 64) - 2)
        codec.connected(1.0)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 4)
        assert codec.encode(batch.capsule, 4, 1.0) == 4
        numbers = [struct.unpack(">Q", m[3][16:])[0] for m in oracle.split(codec.take_bytes())]
        assert numbers == [(1 << 64) - 2, (1 << 64) - 1, 1, 2]
        del in_flight

    def test_message_numbers_continue_after_a_break(self) -> None:
        connection = connected()
        batch = send(connection, 2)
        connection.lost()
        connection.connected(101.0)
        assert connection.encode(batch, 2, 101.0) == 1
        assert [struct.unpack(">Q", m[4][16:])[0] for m in sent(connection)] == [3]

    @pytest.mark.parametrize(("body", "carries"), [
        (b"{}", b'{"request_id":"%s"}'), (b' {"a":1} ', b'{"a":1,"request_id":"%s"}'),
        (b'{"a":1 }', b'{"a":1 ,"request_id":"%s"}'), (b'{"request_id":"x"}', b'{"request_id":"x"}'),
        (b'{"a":{"request_id":"x"}}', b'{"a":{"request_id":"x"},"request_id":"%s"}'),
        (b'{"request\\u005fid":"x"}', b'{"request\\u005fid":"x"}'),
        (b'{"uuid":"x"}', b'{"uuid":"x","request_id":"%s"}'),
        (b'{"request_id":null}', b'{"request_id":null}'),
    ])  # fmt: skip
    @pytest.mark.parametrize("kind", [RAW, BYTES, DOCUMENT, DOCUMENT | 0x0C])
    def test_id_is_inserted_unless_the_body_has_one(self, body: bytes, carries: bytes, kind: int) -> None:
        """The flags of a formatter concern fields of another protocol."""
        id_ = PRODUCER.hex().encode() + b"000000000001"
        assert carried_body(body, kind) == carries.replace(b"%s", id_)
        assert carried_body(body, kind, identity="none") == body.strip()

    def test_check_off_requires_an_object_only(self) -> None:
        assert carried_body(b"{nonsense}", check=False) is not None
        assert carried_body(b"nonsense", check=False) is None
        assert carried_body(b"{nonsense}") is None
        assert carried_body(b'{"request_id":"x"}', RAW | 0x04, check=False) == b'{"request_id":"x"}'

    def test_own_id_in_the_ledger_equals_the_decoded_one(self) -> None:
        own = b"0123456789abcdef0123456789abcdef"
        connection = connected()
        batch = load(connection, [(b'{"request_id":"%s"}' % own, RAW)])
        connection.codec.encode(batch.capsule, 1, 100.0)
        ids = json.loads(connection.in_flight.encoded(batch).splitlines()[1])["ids"]
        row = oracle.decode(oracle.join(sent(connection)[0]), [PRODUCER])
        assert row.status == oracle.FOREIGN
        assert base64.b64decode(ids) == struct.pack("<QQ", *row.id_hash)

    @pytest.mark.slow
    @examples(80)
    @given(
        st.lists(st.tuples(near_objects | plain_objects, st.sampled_from([RAW, BYTES]),
                           st.integers(0, 5)), min_size=1, max_size=6),
        st.booleans(), st.sampled_from(["none", "zlib"]), st.integers(0, 200),
    )  # fmt: skip
    def test_messages_equal_the_reference(
        self, events: list[tuple[bytes, int, int]], identity: bool, compression: str, over: int
    ) -> None:
        connection = connected(
            identity="id" if identity else "none", compression=compression, compress_over=over
        )
        batch = load(connection, [(body, kind | nibble << 4) for body, kind, nibble in events])
        want = [
            (seq, TOPICS[nibble], carried)
            for seq, (body, _, nibble) in enumerate(events, 1)
            if (carried := oracle.carried(body, seq, PRODUCER, TOPICS[nibble], identity)) is not None
        ]
        assert connection.encode(batch, len(events), 100.0) == len(want)
        hashes = batch.hashes()
        got = sent(connection)
        assert [m[2] for m in got] == [topic for _, topic, _ in want]
        for message, (seq, _, carried) in zip(got, want, strict=True):
            method = message[4][2]
            assert oracle.unpack(method, message[3]) == carried
            assert method in ((0, 1) if compression == "zlib" and len(carried) >= over else (0,))
            assert hashes[seq] == oracle.xxh64(carried, 42)


class TestCompression:
    BODY = b'{"lines":[%s]}' % b",".join(b'[1,"2026-11-20T06:13:52.%06d","export"]' % n for n in range(200))

    @pytest.mark.parametrize("method", range(4))
    def test_packages_open_what_we_compress(self, method: int) -> None:
        if method > 1:
            support.need(("", "", "snappy", "lz4")[method])
        connection = connected(compression=COMPRESSIONS[method])
        batch = load(connection, [(self.BODY, RAW), (b"{}", RAW)])
        connection.encode(batch, 2, 100.0)
        large, small = sent(connection)
        assert (large[4][2], small[4][2]) == (method, 0)
        body = oracle.unpack(method, large[3])
        assert body == oracle.carried(self.BODY, 1, PRODUCER, TOPICS[0])
        assert batch.hashes()[1] == oracle.xxh64(body, 42)
        assert len(large[3]) < len(body) // 2 or method == 0

    @pytest.mark.parametrize("name", ["zlib", "snappy", "lz4"])
    def test_body_that_does_not_shrink_is_sent_plain(self, name: str) -> None:
        if name != "zlib":
            support.need(name)
        connection = connected(compression=name, compress_over=0, identity="none")
        batch = load(connection, [(b"{}", RAW)])
        connection.encode(batch, 1, 100.0)
        ((_, _, _, body, meta),) = sent(connection)
        assert (meta[2], body[:1]) == (0, b"{")

    @examples(60)
    @given(st.binary(max_size=3000), st.sampled_from([0, 1, 2, 3]))
    def test_pack_and_unpack_equal_the_reference(self, body: bytes, method: int) -> None:
        support.need("snappy")
        support.need("lz4.block")
        assert oracle.unpack(method, pack(method, body)) == body
        assert unpack(method, oracle.pack(method, body)) == body

    @pytest.mark.slow
    @examples(200)
    @given(st.binary(max_size=60), st.sampled_from([1, 2, 3]), st.integers(1, 400))
    def test_any_bytes_unpack_as_in_the_reference(self, body: bytes, method: int, limit: int) -> None:
        support.need("snappy")
        support.need("lz4.block")
        try:
            want: bytes | None = oracle.unpack(method, body, limit)
        except (ValueError, oracle.TooLarge):
            want = None
        try:
            got: bytes | None = unpack(method, body, limit)
        except ValueError:
            got = None
        assert got == want

    def test_uncompressed_bodies_are_bounded(self) -> None:
        with pytest.raises(ValueError, match="the limit is 5"):
            unpack(0, b"123456", 5)
        with pytest.raises(ValueError, match="unknown compression 9"):
            unpack(9, b"")


def fill(connection: Connection, batch: Batch, now: float) -> None:
    """Send from a batch as much as the credit allows."""
    while (events := connection.credit(now)[0]) and connection.encode(batch, events, now):
        pass


class TestCredit:
    def test_no_credit_while_inflight_requests_wait(self) -> None:
        connection = connected(inflight=3)
        assert connection.credit(100.0) == (3, 1 << 20)
        batch = load(connection, [(b"{}", RAW)] * 5)
        assert connection.encode(batch, 5, 100.0) == 3
        assert connection.credit(100.0) == (0, 0)
        assert connection.encode(batch, 5, 100.0) == 0
        connection.receive(OK_REPLY, 100.1)
        assert connection.credit(100.1)[0] == 1
        assert connection.in_flight.inflight == 2

    def test_pings_use_no_credit(self) -> None:
        connection = connected(inflight=2)
        send(connection, 2)
        for _ in range(3):
            connection.core.call("ping")
        assert connection.credit(100.0) == (0, 0)
        assert connection.encode(load(connection, [(b"{}", RAW)]), 1, 100.0) == 0

    def test_credit_returns_in_quarters(self) -> None:
        """Replies come in ones and twos; nothing is encoded for so few while others are in flight."""
        connection = connected(inflight=8)
        send(connection, 8)
        connection.receive(OK_REPLY, 100.1)
        assert connection.credit(100.1) == (0, 0)
        connection.receive(OK_REPLY, 100.2)
        assert connection.credit(100.2)[0] == 2
        connection.receive(OK_REPLY * 6, 100.3)
        assert connection.credit(100.3)[0] == 8

    def test_break_without_a_reply_halves_what_is_in_flight(self) -> None:
        """Down to one request, and more again with each reply."""
        connection = connected(inflight=8)
        body = b'{"a":"%b"}' % (b"x" * 992)
        batch = load(connection, [(body, RAW)] * 8)
        flying = []
        for now in range(100, 105):
            flying.append(connection.encode(batch, connection.credit(now)[0], now))
            assert connection.credit(now) == (0, 0)
            connection.lost()
            connection.connected(now)
        assert flying == [8, 4, 2, 1, 1]
        flying = []
        for _ in range(4):
            fill(connection, batch, 200.0)
            flying.append(connection.in_flight.inflight)
            connection.receive(OK_REPLY * connection.in_flight.inflight, 200.0)
        assert flying == [1, 2, 3, 2]

    def test_large_requests_go_one_at_a_time_after_a_break(self) -> None:
        connection = connected()
        batch = load(connection, [(b'{"a":"%b"}' % (b"x" * (1 << 20)), RAW)] * 3 + [(b"{}", RAW)] * 5)
        for flying in (8, 2, 1, 1):
            fill(connection, batch, 100.0)
            assert connection.in_flight.inflight == flying
            connection.lost()
            connection.connected(101.0)

    @pytest.mark.parametrize(("trip", "most"), [(0.3, 960), (0.002, 256)])
    def test_requests_in_flight_follow_the_round_trip(self, trip: float, most: int) -> None:
        connection = connected()
        now, seen = 100.0, 0
        for _ in range(40):
            flying = 0
            while events := connection.credit(now)[0]:
                batch = load(connection, [(b"{}", RAW)] * events)
                flying += connection.encode(batch, events, now)
            seen = max(seen, flying)
            now += trip
            connection.receive(OK_REPLY * flying, now)
        assert seen == most

    def test_given_number_does_not_follow_it(self) -> None:
        connection = connected(inflight=256)
        for n in range(20):
            events = connection.credit(100.0 + n)[0]
            assert events == 256
            connection.encode(load(connection, [(b"{}", RAW)] * 256), events, 100.0 + n)
            connection.receive(OK_REPLY * 256, 100.3 + n)

    def test_async_event_is_handed_when_sent(self) -> None:
        connection = connected(mode="async", inflight=1)
        batch = load(connection, [(b"{}", RAW)] * 5000)
        assert connection.encode(batch, 5000, 100.0) == 2048
        assert connection.deadline(100.0) is None
        assert connection.credit(100.0)[0] == 0, "what is encoded is not sent yet"
        assert connection.events() == []
        size = len(connection.codec.take_bytes()) // 2048
        assert connection.sent(size * 2000) == [Settled(1, 2000, "handed")]
        assert connection.credit(100.0)[0] == 2000
        assert connection.sent(size * 48) == [Settled(2001, 2048, "handed")]
        assert connection.credit(100.0)[0] == 2048
        assert connection.encode(batch, 5000, 100.0) == 2048
        size = len(connection.codec.take_bytes())
        connection.lost()
        assert connection.sent(size) == [], "forgotten: to be sent again"

    def test_batch_ends_at_batch_bytes(self) -> None:
        """One large event goes alone."""
        connection = connected()
        body = b'{"a":"' + b"x" * 600_000 + b'"}'
        batch = load(connection, [(body, RAW), (body, RAW), (body * 1, RAW)])
        for _ in range(3):
            assert connection.encode(batch, 3, 100.0) == 1

    def test_body_beyond_the_maximum_fails_alone(self) -> None:
        body = b'{"a":"' + b"x" * (oracle.MAX_BODY - 8) + b'"}'
        connection = connected()
        batch = load(connection, [(body, RAW), (b"{}", RAW)])
        assert connection.encode(batch, 2, 100.0) == 1
        assert batch.statuses() == {1: "failed", 2: "inflight"}

    def test_body_that_is_no_object_fails_alone(self) -> None:
        connection = connected()
        batch = load(connection, [(b"{}", RAW), (b"no", RAW), (b"{}", RAW)])
        assert connection.encode(batch, 3, 100.0) == 2
        assert [m[3][-3:] for m in sent(connection)] == [b'1"}', b'3"}']


class TestReplies:
    def test_replies_settle_requests_first_in_first_out(self) -> None:
        connection = connected()
        send(connection, 4)
        assert connection.receive(OK_REPLY + OK_REPLY + BAD_REPLY, 101.0) == [
            Settled(1, 2, "acked"), Settled(3, 3, "failed", "rejected"),
        ]  # fmt: skip
        assert connection.receive(OK_REPLY, 102.0) == [Settled(4, 4, "acked")]

    @pytest.mark.parametrize(("reply", "words"), [
        ([b"shop-staging", b"202 Accepted"], "expected the reply"),
        ([APP_ENV, b"200 OK"], "expected the reply"),
        ([APP_ENV, b"202 Accepted", b""], "expected the reply"), ([APP_ENV], "expected the reply"),
        ([b"", APP_ENV, b"202 Accepted"], "expected the reply"), ([b""], "expected the reply"),
        ([b"ping", b"200 OK", b"host"], "expected the reply"),
        ([APP_ENV, b"202 Accepted "], "expected the reply"),
        ([b""] * 4, "more than 3 frames"), ([b"x"] * 1000, "more than 3 frames"),
        ([b"x" * 5000, b""], "or 4096 bytes"),
    ])  # fmt: skip
    def test_unexpected_reply_is_fatal_until_reconnected(self, reply: list[bytes], words: str) -> None:
        connection = connected()
        batch = send(connection, 2)
        acked, fatal = connection.receive(OK_REPLY + oracle.join(reply) + OK_REPLY, 101.0)
        assert acked == Settled(1, 1, "acked") and connection.progress == 1
        assert isinstance(fatal, Fatal)
        assert isinstance(fatal.error, ProtocolError)
        assert words in str(fatal.error)
        assert not fatal.forever
        assert connection.credit(101.0) == (0, 0)
        assert connection.receive(OK_REPLY, 102.0) == []
        # the unanswered request is sent again on a new connection and answered there
        connection.lost()
        connection.connected(103.0)
        assert batch.statuses()[2] == "pending"
        assert connection.encode(batch, 9, 103.0) == 1
        assert connection.receive(OK_REPLY, 103.1) == [Settled(2, 2, "acked")]

    def test_reply_without_a_request_is_fatal(self) -> None:
        connection = connected()
        *_, fatal = connection.receive(OK_REPLY, 101.0)
        assert isinstance(fatal, Fatal)
        assert "no request waits" in str(fatal.error)

    def test_frame_of_a_gibibyte_is_refused_at_its_length(self) -> None:
        connection = connected()
        send(connection, 1)
        (fatal,) = connection.receive(struct.pack("<I", 1 << 30), 101.0)
        assert isinstance(fatal, Fatal)
        assert "4096 bytes" in str(fatal.error)

    messages = st.lists(
        st.one_of(
            st.sampled_from([
                [APP_ENV, b"202 Accepted"], [APP_ENV, b"202 Accepted"], [APP_ENV, b"400 Bad Request"],
                [b"ping", b"200 OK", b"host"], [b"ping", b"400 Bad Request"],
                [b"shop-staging", b"202 Accepted"],
            ]),
            st.lists(st.binary(max_size=8), min_size=1, max_size=5),
        ),
        max_size=12,
    )  # fmt: skip

    @examples(100)
    @given(messages, st.integers(0, 6), st.lists(st.integers(0, 400), max_size=6))
    def test_replies_equal_the_reference_for_every_split(
        self, messages: list[list[bytes]], pings: int, cuts: list[int]
    ) -> None:
        connection = connected()
        batch = load(connection, [(b"{}", RAW)] * 6)
        waiting: list[int] = []
        tokens = []
        for seq in range(1, 7):
            assert connection.encode(batch, 1, 100.0) == 1
            waiting.append(seq)
            if seq <= pings:
                tokens.append(connection.core.call("ping"))
                waiting.append(0)
        reference = oracle.Replies(APP_ENV, waiting)
        for parts in messages:
            reference.take(parts)
        data = b"".join(map(oracle.join, messages))
        at = 0
        events = []
        for cut in [*sorted(c for c in cuts if c < len(data)), len(data)]:
            events += connection.receive(data[at:cut], 101.0)
            at = cut
        acked: list[int] = []
        rejected: list[int] = []
        pongs = []
        fatal = False
        for event in events:
            if isinstance(event, Settled):
                kept = acked if event.status == "acked" else rejected
                kept += range(event.first, event.last + 1)
            elif isinstance(event, Reply):
                assert event.token == tokens[len(pongs)]
                pongs.append(None if event.payload is None else event.payload.encode())
            elif isinstance(event, Fatal):
                fatal = True
        assert (acked, rejected, fatal) == (reference.acked, reference.rejected, reference.wrong)
        assert pongs == reference.pongs
        assert fatal or connection.in_flight.inflight == sum(map(bool, reference.waiting))
        assert fatal or (connection.deadline(101.0) is None) == (not reference.waiting)


class TestPing:
    def test_pong_answers_the_ping(self) -> None:
        connection = connected()
        token = connection.core.call("ping")
        (message,) = sent(connection)
        assert message[:4] == [b"", b"ping", APP_ENV, b"{}"]
        assert oracle.decode(oracle.join(message), []).status == oracle.PING
        pong = oracle.join([b"ping", b"200 OK", b"broker-1"])
        assert connection.receive(pong, 101.0) == [Reply(token, "broker-1")]

    def test_refused_ping_is_answered_with_none(self) -> None:
        connection = connected(mode="async")
        token = connection.core.call("ping")
        assert connection.receive(oracle.join([b"ping", b"400 Bad Request"]), 101.0) == [Reply(token, None)]

    def test_ping_goes_behind_encoded_requests(self) -> None:
        connection = connected()
        batch = load(connection, [(b"{}", RAW)])
        connection.encode(batch, 1, 100.0)
        connection.core.call("ping")
        assert [m[1] for m in sent(connection)] == [APP_ENV, b"ping"]
        pong = oracle.join([b"ping", b"200 OK", b""])
        assert [type(e) for e in connection.receive(OK_REPLY + pong, 101.0)] == [Settled, Reply]

    def test_acceptance_in_place_of_a_pong_is_fatal(self) -> None:
        connection = connected()
        connection.core.call("ping")
        *_, fatal = connection.receive(OK_REPLY, 101.0)
        assert "expected the reply [b'ping'" in str(fatal.error)  # type: ignore[union-attr]

    def test_ping_is_refused_on_push_and_beyond_sixteen(self) -> None:
        with pytest.raises(ValueError, match="nothing comes back"):
            connected(mode="async", push=True).core.call("ping")
        with pytest.raises(ValueError, match="no 'stat'"):
            connected().core.call("stat")
        connection = connected()
        for _ in range(16):
            connection.core.call("ping")
        with pytest.raises(ValueError, match="16 of them"):
            connection.core.call("ping")

    def test_probe_recognises_a_whole_pong(self) -> None:
        probe = LogjamProbe(type("C", (), {"path": "/shop-production", "scheme": "logjam"}))
        (question,) = probe.ask()
        assert oracle.decode(question, []).status == oracle.PING
        answer = oracle.join([b"ping", b"200 OK", b"broker-1"])
        for cut in range(1, len(answer)):
            probe.ask()
            assert probe.receive_data(answer[:cut]) is None, cut
            assert probe.receive_data(answer[cut:]) is True
        for other in (OK_REPLY, b"HTTP/1.1 400", oracle.join([b"ping", b"400 Bad Request"]), answer + b"x"):
            probe.ask()
            assert probe.receive_data(other) is False
        assert probe.insist() == []


class TestSilence:
    def test_silence_counts_from_the_oldest_request(self) -> None:
        connection = connected(silence=5.0)
        assert connection.deadline(100.0) is None
        batch = load(connection, [(b"{}", RAW)] * 3)
        connection.encode(batch, 1, 101.0)
        connection.encode(batch, 1, 103.0)
        assert connection.deadline(103.0) == 106.0
        assert connection.receive(OK_REPLY, 104.0) == [Settled(1, 1, "acked")]
        assert connection.deadline(104.0) == 109.0
        assert connection.timeout(108.9) == []
        (fatal,) = connection.timeout(109.0)
        assert isinstance(fatal, Fatal)
        assert isinstance(fatal.error, TimeoutError)

    def test_peer_that_takes_bytes_is_alive(self) -> None:
        connection = connected(silence=5.0)
        send(connection, 1)
        assert connection.deadline(104.0) == 105.0
        connection.codec.moved(108.5)
        assert connection.deadline(108.5) == 113.5

    def test_silence_of_a_ping_counts_from_its_call(self) -> None:
        connection = connected(silence=5.0)
        connection.core.sample_clocks(200.0)
        connection.core.call("ping")
        assert connection.deadline(200.0) == 205.0

    def test_silence_of_a_ping_counts_from_what_the_server_sent_last(self) -> None:
        connection = connected(silence=5.0)
        connection.core.sample_clocks(200.0)
        connection.credit(300.0)
        connection.core.call("ping")
        assert connection.deadline(300.0) == 305.0


def rows(units: list[bytes], producers: list[bytes], **options: Any) -> list[oracle.Row]:
    offsets = array("q", [sum(map(len, units[:i])) for i in range(len(units))])
    lengths = array("q", map(len, units))
    got = Decoder(b"".join(producers), **options).decode(b"".join(units), offsets, lengths)
    found = []
    for i in range(len(got)):
        assert got.unit[i] == i
        status = got.status[i]
        body = expand(units[i])[got.offset[i] : got.offset[i] + got.length[i]] if status < 4 else None
        app_at, topic_at = got.app_env_offset[i], got.topic_offset[i]
        found.append(
            oracle.Row(
                status, got.producer[i], got.prefix_high[i], got.prefix_low[i], got.sequence[i], got.hash[i],
                body, (got.id_hash[2 * i], got.id_hash[2 * i + 1]), got.compression[i], got.device[i],
                got.created_ms[i], got.number[i], got.request[i],
                units[i][app_at : app_at + got.app_env_length[i]],
                units[i][topic_at : topic_at + got.topic_length[i]],
            )
        )  # fmt: skip
    return found


def meta(compression: int = 0, device: int = 0, created: int = 1, number: int = 1) -> bytes:
    return oracle.META.pack(0xCABD, compression, 1, device, created, number)


ID = PRODUCER.hex().encode() + b"00000000002a"


class TestDecoder:
    bodies = st.one_of(
        near_objects, plain_objects, st.binary(max_size=30),
        st.sampled_from([
            b'{"request_id":"%s"}' % ID, b'{"uuid":"%s"}' % ID, b'{"uuid":"%s","request_id":1}' % ID,
            b'{"request_id":"%s"}' % ID.upper(), b"{}",
        ]),
    )  # fmt: skip
    metas = st.one_of(
        st.builds(oracle.META.pack, st.sampled_from([0xCABD, 0xCABD, 0xBDCA, 0xDEAD]), st.integers(0, 5),
                  st.sampled_from([1, 1, 1, 2]), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1),
                  st.integers(0, 2**64 - 1)),
        st.binary(max_size=30), st.just(meta()[:2] + meta()[2:24][:-2]),
    )  # fmt: skip
    parts = st.one_of(
        st.tuples(
            st.sampled_from([APP_ENV, b"shop", b"\xc3\xb6-x", b"ping", b"heartbeat", b""]),
            st.sampled_from([*TOPICS, b"bogus", b"", b"logsX", b"tcp://h:1"]), bodies, metas,
        ).map(list),
        st.lists(st.binary(max_size=8), min_size=1, max_size=7),
    )  # fmt: skip

    @pytest.mark.slow
    @examples(120)
    @given(
        st.lists(st.tuples(parts, st.booleans(), st.integers(0, 3), st.booleans()), max_size=4),
        st.sampled_from([[], [PRODUCER], [OTHER]]), st.booleans(),
    )  # fmt: skip
    def test_decoding_equals_the_reference(
        self, made: list[tuple[list[bytes], bool, int, bool]], producers: list[bytes], identity: bool
    ) -> None:
        support.need("snappy")
        support.need("lz4.block")
        units = []
        for message, request, compression, packed in made:
            if packed and len(message) == 4:
                message = [*message[:2], oracle.pack(compression, message[2]), meta(compression)]
            units.append(oracle.join([b"", *message] if request else message))
        assert rows(units, producers, identity=identity) == [
            oracle.decode(unit, producers, identity) for unit in units
        ]

    @examples(150)
    @given(st.binary(max_size=60), st.integers(0, 60), st.booleans())
    def test_any_bytes_decode_as_in_the_reference(self, data: bytes, at: int, real: bool) -> None:
        if real:
            whole = oracle.join([APP_ENV, TOPICS[0], b"{}", meta()])
            data = whole[:at] + data + whole[at:]
        assert rows([data], []) == [oracle.decode(data, [])]
        for frame in frames(data):
            readable.lines(frame)

    def test_message_cut_anywhere_is_torn(self) -> None:
        whole = oracle.join([b"", APP_ENV, TOPICS[0], b'{"request_id":"%s"}' % ID, meta()])
        for at in range(len(whole)):
            assert rows([whole[:at]], [])[0].status == oracle.TORN
        (row,) = rows([whole], [PRODUCER])
        assert (row.status, row.sequence, row.producer) == (oracle.OK, 42, 0)

    @pytest.mark.parametrize("at", range(32))
    def test_damaged_id_has_no_prefix_or_sequence(self, at: int) -> None:
        """An id of which one character is no digit is foreign."""
        damaged = ID[:at] + b"g" + ID[at + 1 :]
        unit = oracle.join([APP_ENV, TOPICS[0], b'{"request_id":"%s"}' % damaged, meta()])
        for producers in ([], [PRODUCER]):
            (row,) = rows([unit], producers)
            assert row == oracle.decode(unit, producers)
            assert (row.status, row.prefix_high, row.prefix_low, row.sequence) == (oracle.FOREIGN, 0, 0, 0)

    def test_statuses_have_the_names_of_the_reference(self) -> None:
        assert [STATUS_NAMES[getattr(oracle, name.upper())] for name in STATUS_NAMES] == list(STATUS_NAMES)

    def status_of_body(self, compression: int, body: bytes, limit: int = 64 << 20) -> str:
        (row,) = rows([oracle.join([APP_ENV, TOPICS[0], body, meta(compression)])], [], max_unpacked=limit)
        return STATUS_NAMES[row.status]

    def test_framings_that_harm_importers_are_damaged(self) -> None:
        import gzip
        import zlib

        snappy, block = support.need("snappy"), support.need("lz4.block")
        text = b'{"a":"' + b"x" * 2000 + b'"}'
        stream = zlib.compress(text)
        raw = zlib.compressobj(wbits=-15)
        assert self.status_of_body(1, stream) == "no_id"
        assert self.status_of_body(1, stream + b"junk") == "no_id"
        for wrong in (gzip.compress(text), raw.compress(text) + raw.flush(), stream[:-1], stream[:9], b""):
            assert self.status_of_body(1, wrong) == "bad_zlib"
        for wrong in (snappy.StreamCompressor().compress(text), b"", b"\xff" * 9, snappy.compress(text)[:-1]):
            assert self.status_of_body(2, wrong) in ("bad_snappy", "too_large")
        little = bytes(block.compress(text))  # the package's own length, little-endian
        for wrong in (
            support.need("lz4.frame").compress(text), little, little[4:], b"", b"\xff" * 4 + little[4:],
            struct.pack(">I", len(text) - 1) + little[4:], struct.pack(">I", len(text) + 1) + little[4:],
        ):  # fmt: skip
            assert self.status_of_body(3, wrong) in ("bad_lz4", "too_large")
        assert self.status_of_body(3, struct.pack(">I", len(text)) + little[4:]) == "no_id"
        assert self.status_of_body(9, text) == "bad_compression"

    @pytest.mark.parametrize("method", [1, 2, 3])
    def test_body_beyond_max_unpacked_is_too_large(self, method: int) -> None:
        if method > 1:
            support.need(("", "", "snappy", "lz4")[method])
        body = b'{"a":"' + b"x" * 992 + b'"}'
        assert self.status_of_body(method, oracle.pack(method, body), len(body)) == "no_id"
        assert self.status_of_body(method, oracle.pack(method, body), 2**64 - 1) == "no_id"
        assert self.status_of_body(method, oracle.pack(method, body), len(body) - 1) == "too_large"

    def test_announced_size_alone_takes_no_memory(self) -> None:
        """48 MiB are announced by a few bytes and refused, with room for 24 MiB only."""
        resource = pytest.importorskip("resource")
        if not hasattr(resource, "RLIMIT_AS") or not Path("/proc/self/statm").exists():
            pytest.skip("needs the size of a process from Linux's /proc")
        length = 48 << 20
        varint = bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14 & 127 | 128, length >> 21])
        bodies = {2: varint + bytes(100), 3: struct.pack(">I", length) + bytes(100)}
        units = [oracle.join([APP_ENV, TOPICS[0], body, meta(method)]) for method, body in bodies.items()]
        script = (
            "import resource\n"
            "from array import array\n"
            "from logclient._ext.logjam import STATUS_NAMES, Decoder\n"
            "decoder = Decoder()\n"
            "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + (24 << 20)\n"
            "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
            f"for unit in {units}:\n"
            "    rows = decoder.decode(unit, array('q', [0]), array('q', [len(unit)]))\n"
            "    print(STATUS_NAMES[rows.status[0]])\n"
        )
        program = [sys.executable, "-c", script]
        done = subprocess.run(program, capture_output=True, text=True, timeout=2 * PATIENCE)
        assert done.stdout.split() == ["bad_snappy", "bad_lz4"], done.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize("method", [1, 2, 3])
    def test_memory_of_bombs_is_bounded(self, method: int, tmp_path: Path) -> None:
        """One body unpacks to 512 MiB; another announces 64 MiB and holds 300 KB of zeros."""
        status = Path("/proc/self/status")
        if not status.exists():
            pytest.skip("needs the peak memory from Linux's /proc")
        if method > 1:
            support.need(("", "", "snappy", "lz4")[method])
        bomb = oracle.pack(method, b" " * (512 << 20))
        head = {1: b"x\x9c", 2: b"\x80\x80\x80\x20", 3: struct.pack(">I", 64 << 20)}[method]
        bodies = (bomb, head + bytes(300_000))
        units = [oracle.join([APP_ENV, TOPICS[0], body, meta(method)]) for body in bodies]
        file = tmp_path / "units"
        file.write_bytes(b"".join(units))
        script = (
            "import re\n"
            "from array import array\n"
            "from logclient._ext.logjam import STATUS_NAMES, Decoder\n"
            "def most(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
            f"data, sizes, decoder = open({str(file)!r}, 'rb').read(), {[len(u) for u in units]}, Decoder()\n"
            "before = most()\n"
            "rows = decoder.decode(data, array('q', [0, sizes[0]]), array('q', sizes))\n"
            "print(*(STATUS_NAMES[s] for s in rows.status.tolist()), most() - before)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=2 * PATIENCE
        )
        large, nothing, grown = done.stdout.split()
        assert (large, nothing) == ("too_large", ("", "bad_zlib", "bad_snappy", "bad_lz4")[method])
        assert int(grown) < 130 << 10  # KiB: twice the bound, where a buffer had to move

    def test_missing_library_is_a_status(self, monkeypatch: pytest.MonkeyPatch) -> None:
        support.need("snappy")
        support.need("lz4.block")
        bodies = {"snappy": oracle.pack(2, b'{"a":1}'), "lz4": oracle.pack(3, b'{"a":1}')}
        for name in ("snappy", "lz4", "lz4.block"):
            monkeypatch.setitem(sys.modules, name, None)
        for method, name in ((2, "snappy"), (3, "lz4")):
            assert self.status_of_body(method, bodies[name]) == ("no_id" if name in LINKED else "no_library")

    def test_wrong_argument_of_the_decoder_is_named(self) -> None:
        empty = array("q")
        with pytest.raises(ValueError, match="10 bytes each"):
            Decoder(b"x")
        with pytest.raises(ValueError, match="not ascending"):
            Decoder(OTHER + PRODUCER)
        with pytest.raises(ValueError, match="leaves the data"):
            Decoder().decode(b"", array("q", [1]), array("q", [1]))
        with pytest.raises(ValueError, match="int64"):
            Decoder().decode(b"", array("q", [1]), empty)


class TestReadable:
    def test_messages_replies_and_faults_are_lines(self) -> None:
        data = (
            oracle.join([b"", APP_ENV, TOPICS[0], oracle.pack(1, b'{"a":1}'), meta(1, 7, 5, 9)])
            + OK_REPLY
            + oracle.join([APP_ENV, TOPICS[0], b"{}", meta()[:22]])
            + b"\x09\0\0\0torn"
        )
        text = [line for frame in frames(data) for line in readable.lines(frame)]
        assert "request of 5 frames, shop-production, logs.shop.production, zlib, device 7, crea" in text[0]
        assert text[1].endswith('frame 4, 15 bytes, 7 unpacked: {"a":1}')
        assert "reply shop-production 202 Accepted" in text[2]
        assert any("a meta of 22 bytes" in line for line in text)
        assert any("cut inside a message" in line for line in text)

    def test_decode_prints_messages_as_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "units"
        file.write_bytes(
            oracle.join([b"", APP_ENV, TOPICS[0], oracle.pack(1, b'{"a":1}'), meta(1)]) + OK_REPLY
        )
        assert cli.main(["decode", "--protocol", "logjam", str(file), "--json"]) == 0
        request, body, reply = map(json.loads, capsys.readouterr().out.splitlines())
        assert (request["type"], request["app_env"], request["compression"]) == (
            "request", "shop-production", "zlib",
        )  # fmt: skip
        assert body["body"] == '{"a":1}'
        assert (reply["type"], reply["status"]) == ("reply", "202 Accepted")

    def test_every_fault_has_an_explanation(self) -> None:
        silent = {"ok", "foreign", "no_id", "not_json", "ping", "heartbeat"}
        assert set(logjam_frames._WRONG) == set(STATUS_NAMES) - silent


class TestVerify:
    def test_verifier_reads_unpacked_bodies_and_their_ids(self) -> None:
        np = pytest.importorskip("numpy")
        decode = pytest.importorskip("logclient.evidence.decode")
        connection = connected(compression="zlib", compress_over=100)
        batch = load(connection, [(b'{"a":"%s"}' % (b"x" * 300), RAW), (b"{}", RAW | 1 << 4)])
        connection.encode(batch, 2, 100.0)
        units = [oracle.join(message) for message in sent(connection)]
        sizes = np.array([len(unit) for unit in units], np.int64)

        class Units(NamedTuple):
            data: bytes
            offset: Any
            length: Any

        events = decode.decoder("logjam+push", PRODUCER)(
            Units(b"".join(units), np.cumsum(sizes) - sizes, sizes)
        )
        assert events.names == STATUS_NAMES
        assert events.status.tolist() == [0, 0]
        assert events.sequence.tolist() == [1, 2]
        assert events.hash.tolist() == [batch.hashes()[1], batch.hashes()[2]]
        at = int(events.offset[0])
        body = expand(units[0])[at : at + int(events.length[0])]
        assert body == oracle.carried(b'{"a":"%s"}' % (b"x" * 300), 1, PRODUCER, TOPICS[0])
