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
from random import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import cli
from logclient._ext.constants import K_BYTES as BYTES
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.inflight import Batch, InflightBatches
from logclient._ext.logjam import (
    LINKED,
    STATUS_NAMES,
    Codec,
    Decoder,
    expand,
    pack,
    unpack,
)
from logclient.cli.probes import LogjamProbe
from logclient.config.parsing import parse
from logclient.delivery.contract import Alive, Core, Fatal, Progress, Reply, Settled
from logclient.errors import ConfigError, ProtocolError
from logclient.evidence import frames as readable
from logclient.evidence.frames import logjam as logjam_frames
from logclient.evidence.frames.logjam import frames
from logclient.logjam.core import Logjam, split_app_env
from logclient.logjam.messages import COMPRESSIONS
from tests import support
from tests.oracle import logjam as oracle
from tests.support.batches import inflight_of
from tests.support.configs import config_for, record_codecs
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


def connected_core(**options: Any) -> Logjam:
    core = Logjam(logjam_config(**options), PRODUCER)
    core.connected(100.0, random)
    return core


def sent(core: Logjam) -> list[list[bytes]]:
    """Return the messages on the wire and mark them as sent."""
    data = b"".join(bytes(buffer) for wire in core.data_to_send() for buffer in wire.buffers)
    core.sent()
    assert core.data_to_send() == []
    return oracle.split(data)


def send(core: Logjam, n: int, now: float = 100.0) -> tuple[InflightBatches, Batch]:
    """Send requests 1 to n in one batch."""
    in_flight, batch = inflight_of([(b'{"n":1}', RAW)] * n)
    assert core.encode(batch, n, now) == n
    in_flight.encoded(batch)
    sent(core)
    return in_flight, batch


def carried_body(body: bytes, kind: int = RAW, **options: Any) -> bytes | None:
    """Return the body of one event as it is carried, or None when the event failed."""
    core = connected_core(**options)
    in_flight, batch = inflight_of([(body, kind)])
    if core.encode(batch, 1, 100.0) == 0:
        assert batch.statuses() == {1: "failed"}
        return None
    in_flight.encoded(batch)
    (message,) = sent(core)
    return message[3]


def test_core_has_the_type_and_codec_of_a_core() -> None:
    core: Core = connected_core()
    assert "logclient.codec" in repr(core.codec)


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
            connected_core(**options)

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
        core = connected_core(app_env="my-shop-production")
        send_one = inflight_of([(b"{}", RAW), (b"{}", RAW | 1 << 4)])[1]
        core.encode(send_one, 2, 100.0)
        assert [m[2] for m in sent(core)] == [b"logs.my-shop.production", b"events.my-shop.production"]

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
        assert connected_core().compressor == "none"
        assert connected_core(compression="zlib").compressor.removeprefix("python ") in ("isal 1", "zlib 3")
        for name, package in (("snappy", "python-snappy"), ("lz4", "lz4")):
            monkeypatch.setitem(sys.modules, name, None)
            if name in LINKED:
                assert connected_core(compression=name).compressor == name
            else:
                with pytest.raises(ConfigError, match=f"{package} is not installed"):
                    connected_core(compression=name)

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
        core = connected_core(mode=mode)
        in_flight, batch = inflight_of([(b'{"a":1}', RAW | nibble << 4)])
        created = batch.pending()[0].created_us
        assert core.encode(batch, 1, 100.0) == 1
        in_flight.encoded(batch)
        (message,) = sent(core)
        body = b'{"a":1,"%s":"%s000000000001"}' % (
            oracle.carrier_of(TOPICS[nibble]).encode(), PRODUCER.hex().encode(),
        )  # fmt: skip
        first = [b""] if mode == "request" else []
        meta = struct.pack(">HBBIQQ", 0xCABD, 0, 1, 0, created // 1000, 1)
        assert message == [*first, APP_ENV, TOPICS[nibble], body, meta]
        handed = [Settled("handed", "", [(1, 1)])] if mode == "async" else []
        assert list(core.events_received()) == handed
        assert batch.statuses() == {1: "inflight"}

    def test_event_of_an_unknown_topic_fails(self) -> None:
        _, batch = inflight_of([(b"{}", RAW | 6 << 4), (b"{}", RAW)])
        assert connected_core().encode(batch, 2, 100.0) == 1
        assert batch.statuses() == {1: "failed", 2: "inflight"}

    def test_message_numbers_wrap_to_1(self) -> None:
        codec = Codec(PRODUCER, APP_ENV, TOPICS, request=False, number=(1 << 64) - 2)
        codec.connected(1.0)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 4)
        assert codec.encode(batch.capsule, 4, 1.0) == 4
        numbers = [struct.unpack(">Q", m[3][16:])[0] for m in oracle.split(bytes(codec.buffers()[0]))]
        assert numbers == [(1 << 64) - 2, (1 << 64) - 1, 1, 2]
        del in_flight

    def test_message_numbers_continue_after_a_break(self) -> None:
        core = connected_core()
        in_flight, batch = send(core, 2)
        core.connection_lost()
        in_flight.requeue()
        core.connected(101.0, random)
        assert core.encode(batch, 2, 101.0) == 1
        assert [struct.unpack(">Q", m[4][16:])[0] for m in sent(core)] == [3]

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
        core = connected_core()
        in_flight, batch = inflight_of([(b'{"request_id":"%s"}' % own, RAW)])
        core.encode(batch, 1, 100.0)
        ids = json.loads(in_flight.encoded(batch).splitlines()[1])["ids"]
        row = oracle.decode(oracle.join(sent(core)[0]), [PRODUCER])
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
        core = connected_core(
            identity="id" if identity else "none", compression=compression, compress_over=over
        )
        in_flight, batch = inflight_of([(body, kind | nibble << 4) for body, kind, nibble in events])
        want = [
            (seq, TOPICS[nibble], carried)
            for seq, (body, _, nibble) in enumerate(events, 1)
            if (carried := oracle.carried(body, seq, PRODUCER, TOPICS[nibble], identity)) is not None
        ]
        assert core.encode(batch, len(events), 100.0) == len(want)
        hashes = batch.hashes()
        got = sent(core)
        assert [m[2] for m in got] == [topic for _, topic, _ in want]
        for message, (seq, _, carried) in zip(got, want, strict=True):
            method = message[4][2]
            assert oracle.unpack(method, message[3]) == carried
            assert method in ((0, 1) if compression == "zlib" and len(carried) >= over else (0,))
            assert hashes[seq] == oracle.xxh64(carried, 42)
        del in_flight


class TestCompression:
    BODY = b'{"lines":[%s]}' % b",".join(b'[1,"2026-11-20T06:13:52.%06d","export"]' % n for n in range(200))

    @pytest.mark.parametrize("method", range(4))
    def test_packages_open_what_we_compress(self, method: int) -> None:
        if method > 1:
            support.need(("", "", "snappy", "lz4")[method])
        core = connected_core(compression=COMPRESSIONS[method])
        in_flight, batch = inflight_of([(self.BODY, RAW), (b"{}", RAW)])
        core.encode(batch, 2, 100.0)
        large, small = sent(core)
        assert (large[4][2], small[4][2]) == (method, 0)
        body = oracle.unpack(method, large[3])
        assert body == oracle.carried(self.BODY, 1, PRODUCER, TOPICS[0])
        assert batch.hashes()[1] == oracle.xxh64(body, 42)
        assert len(large[3]) < len(body) // 2 or method == 0
        del in_flight

    @pytest.mark.parametrize("name", ["zlib", "snappy", "lz4"])
    def test_body_that_does_not_shrink_is_sent_plain(self, name: str) -> None:
        if name != "zlib":
            support.need(name)
        core = connected_core(compression=name, compress_over=0, identity="none")
        in_flight, batch = inflight_of([(b"{}", RAW)])
        core.encode(batch, 1, 100.0)
        ((_, _, _, body, meta),) = sent(core)
        assert (meta[2], body[:1]) == (0, b"{")
        del in_flight

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


def fill(core: Logjam, in_flight: InflightBatches, batch: Batch, now: float) -> None:
    """Send from a batch as much as the credit allows."""
    while (events := core.credit(now)[0]) and core.encode(batch, events, now):
        in_flight.encoded(batch)


class TestCredit:
    def test_no_credit_while_inflight_requests_wait(self) -> None:
        core = connected_core(inflight=3)
        assert core.credit(100.0) == (3, 1 << 20)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 5)
        assert core.encode(batch, 5, 100.0) == 3
        in_flight.encoded(batch)
        assert core.credit(100.0) == (0, 0)
        assert core.encode(batch, 5, 100.0) == 0
        core.receive_data(OK_REPLY, 100.1)
        assert core.credit(100.1)[0] == 1
        assert core._codec.requests == 2

    def test_pings_use_no_credit(self) -> None:
        core = connected_core(inflight=2)
        send(core, 2)
        for _ in range(3):
            core.call("ping")
        assert core._codec.requests == 5
        assert core.credit(100.0) == (0, 0)
        assert core.encode(inflight_of([(b"{}", RAW)])[1], 1, 100.0) == 0

    def test_credit_returns_in_quarters(self) -> None:
        """Replies come in ones and twos; nothing is encoded for so few while others are in flight."""
        core = connected_core(inflight=8)
        send(core, 8)
        core.receive_data(OK_REPLY, 100.1)
        assert core.credit(100.1) == (0, 0)
        core.receive_data(OK_REPLY, 100.2)
        assert core.credit(100.2)[0] == 2
        core.receive_data(OK_REPLY * 6, 100.3)
        assert core.credit(100.3)[0] == 8

    def test_break_without_a_reply_halves_what_is_in_flight(self) -> None:
        """Down to one request, and more again with each reply."""
        core = connected_core(inflight=8)
        body = b'{"a":"%b"}' % (b"x" * 992)
        in_flight, batch = inflight_of([(body, RAW)] * 8)
        flying = []
        for now in range(100, 105):
            flying.append(core.encode(batch, core.credit(now)[0], now))
            in_flight.encoded(batch)
            assert core.credit(now) == (0, 0)
            core.connection_lost()
            in_flight.requeue()
            core.connected(now, random)
        assert flying == [8, 4, 2, 1, 1]
        flying = []
        for _ in range(4):
            fill(core, in_flight, batch, 200.0)
            flying.append(core._codec.requests)
            core.receive_data(OK_REPLY * core._codec.requests, 200.0)
        assert flying == [1, 2, 3, 2]

    def test_large_requests_go_one_at_a_time_after_a_break(self) -> None:
        core = connected_core()
        in_flight, batch = inflight_of([(b'{"a":"%b"}' % (b"x" * (1 << 20)), RAW)] * 3 + [(b"{}", RAW)] * 5)
        for flying in (8, 2, 1, 1):
            fill(core, in_flight, batch, 100.0)
            assert core._codec.requests == flying
            core.connection_lost()
            in_flight.requeue()
            core.connected(101.0, random)

    @pytest.mark.parametrize(("trip", "most"), [(0.3, 960), (0.002, 256)])
    def test_requests_in_flight_follow_the_round_trip(self, trip: float, most: int) -> None:
        core = connected_core()
        now, seen = 100.0, 0
        for _ in range(40):
            while events := core.credit(now)[0]:
                in_flight, batch = inflight_of([(b"{}", RAW)] * events)
                core.encode(batch, events, now)
                del in_flight
            seen = max(seen, core._codec.requests)
            now += trip
            core.receive_data(OK_REPLY * core._codec.requests, now)
        assert seen == most

    def test_given_number_does_not_follow_it(self) -> None:
        core = connected_core(inflight=256)
        for n in range(20):
            events = core.credit(100.0 + n)[0]
            assert events == 256
            core.encode(inflight_of([(b"{}", RAW)] * 256)[1], events, 100.0 + n)
            core.receive_data(OK_REPLY * 256, 100.3 + n)

    def test_async_event_is_handed_when_sent(self) -> None:
        core = connected_core(mode="async", inflight=1)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 5000)
        assert core.encode(batch, 5000, 100.0) == 2048
        in_flight.encoded(batch)
        assert core._codec.requests == 0
        assert core.next_timeout(100.0) is None
        assert core.credit(100.0)[0] == 0, "what is encoded is not sent yet"
        assert list(core.events_received()) == []
        size = sum(len(buffer) for wire in core.data_to_send() for buffer in wire.buffers)
        core.sent(size // 2048 * 48)  # ZeroMQ is full
        assert list(core.events_received()) == [Settled("handed", "", [(1, 2000)])]
        assert core.credit(100.0)[0] == 2000
        core.sent()
        assert list(core.events_received()) == [Settled("handed", "", [(2001, 2048)])]
        assert core.credit(100.0)[0] == 2048
        assert core.encode(batch, 5000, 100.0) == 2048
        in_flight.encoded(batch)
        core.connection_lost()
        core.sent()
        assert list(core.events_received()) == [], "forgotten: to be sent again"

    def test_batch_ends_at_batch_bytes(self) -> None:
        """One large event goes alone."""
        core = connected_core()
        body = b'{"a":"' + b"x" * 600_000 + b'"}'
        in_flight, batch = inflight_of([(body, RAW), (body, RAW), (body * 1, RAW)])
        for _ in range(3):
            assert core.encode(batch, 3, 100.0) == 1
            in_flight.encoded(batch)

    def test_body_beyond_the_maximum_fails_alone(self) -> None:
        body = b'{"a":"' + b"x" * (oracle.MAX_BODY - 8) + b'"}'
        in_flight, batch = inflight_of([(body, RAW), (b"{}", RAW)])
        assert connected_core().encode(batch, 2, 100.0) == 1
        assert batch.statuses() == {1: "failed", 2: "inflight"}
        del in_flight

    def test_body_that_is_no_object_fails_alone(self) -> None:
        core = connected_core()
        in_flight, batch = inflight_of([(b"{}", RAW), (b"no", RAW), (b"{}", RAW)])
        assert core.encode(batch, 3, 100.0) == 2
        in_flight.encoded(batch)
        assert [m[3][-3:] for m in sent(core)] == [b'1"}', b'3"}']


class TestReplies:
    def test_replies_settle_requests_first_in_first_out(self) -> None:
        core = connected_core()
        send(core, 4)
        core.receive_data(OK_REPLY + OK_REPLY + BAD_REPLY, 101.0)
        assert list(core.events_received()) == [
            Settled("acked", "", [(1, 2)]), Settled("failed", "rejected", [(3, 3)]), Progress(),
        ]  # fmt: skip
        core.receive_data(OK_REPLY, 102.0)
        assert list(core.events_received()) == [Settled("acked", "", [(4, 4)]), Progress()]

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
        core = connected_core()
        in_flight, batch = send(core, 2)
        core.receive_data(OK_REPLY + oracle.join(reply) + OK_REPLY, 101.0)
        acked, progress, fatal = core.events_received()
        assert (acked, progress) == (Settled("acked", "", [(1, 1)]), Progress())
        assert isinstance(fatal, Fatal)
        assert isinstance(fatal.error, ProtocolError)
        assert words in str(fatal.error)
        assert not fatal.forever
        assert core.credit(101.0) == (0, 0)
        core.receive_data(OK_REPLY, 102.0)
        assert list(core.events_received()) == []
        # the unanswered request is sent again on a new connection and answered there
        in_flight.apply([(1, 1)], 2)
        core.connection_lost()
        in_flight.requeue()
        core.connected(103.0, random)
        assert batch.statuses()[2] == "pending"
        assert core.encode(batch, 9, 103.0) == 1
        core.receive_data(OK_REPLY, 103.1)
        assert list(core.events_received()) == [Settled("acked", "", [(2, 2)]), Progress()]

    def test_reply_without_a_request_is_fatal(self) -> None:
        core = connected_core()
        core.receive_data(OK_REPLY, 101.0)
        *_, fatal = core.events_received()
        assert isinstance(fatal, Fatal)
        assert "no request waits" in str(fatal.error)

    def test_frame_of_a_gibibyte_is_refused_at_its_length(self) -> None:
        core = connected_core()
        send(core, 1)
        core.receive_data(struct.pack("<I", 1 << 30), 101.0)
        (fatal,) = core.events_received()
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
        core = connected_core()
        in_flight, batch = inflight_of([(b"{}", RAW)] * 6)
        waiting: list[int] = []
        tokens = []
        for seq in range(1, 7):
            assert core.encode(batch, 1, 100.0) == 1
            in_flight.encoded(batch)
            waiting.append(seq)
            if seq <= pings:
                tokens.append(core.call("ping"))
                waiting.append(0)
        reference = oracle.Replies(APP_ENV, waiting)
        for parts in messages:
            reference.take(parts)
        data = b"".join(map(oracle.join, messages))
        at = 0
        for cut in [*sorted(c for c in cuts if c < len(data)), len(data)]:
            core.receive_data(data[at:cut], 101.0)
            at = cut
        acked: list[int] = []
        rejected: list[int] = []
        pongs = []
        fatal = False
        for event in core.events_received():
            if isinstance(event, Settled):
                kept = acked if event.status == "acked" else rejected
                kept += [seq for first, last in event.ranges for seq in range(first, last + 1)]
            elif isinstance(event, Reply):
                assert event.token == tokens[len(pongs)]
                pongs.append(None if event.payload is None else event.payload.encode())
            elif isinstance(event, Fatal):
                fatal = True
        assert (acked, rejected, fatal) == (reference.acked, reference.rejected, reference.wrong)
        assert pongs == reference.pongs
        assert fatal or core._codec.requests == len(reference.waiting)


class TestPing:
    def test_pong_answers_the_ping(self) -> None:
        core = connected_core()
        token = core.call("ping")
        (message,) = sent(core)
        assert message[:4] == [b"", b"ping", APP_ENV, b"{}"]
        assert oracle.decode(oracle.join(message), []).status == oracle.PING
        core.receive_data(oracle.join([b"ping", b"200 OK", b"broker-1"]), 101.0)
        assert list(core.events_received()) == [Alive(), Reply(token, "broker-1")]

    def test_refused_ping_is_answered_with_none(self) -> None:
        core = connected_core(mode="async")
        token = core.call("ping")
        core.receive_data(oracle.join([b"ping", b"400 Bad Request"]), 101.0)
        assert list(core.events_received()) == [Alive(), Reply(token, None)]

    def test_ping_goes_behind_encoded_requests(self) -> None:
        """Also while the bytes are viewed."""
        core = connected_core()
        in_flight, batch = inflight_of([(b"{}", RAW)])
        core.encode(batch, 1, 100.0)
        held = core.data_to_send()
        core.call("ping")
        assert [m[1] for m in sent(core)] == [APP_ENV, b"ping"]
        assert held
        core.receive_data(OK_REPLY + oracle.join([b"ping", b"200 OK", b""]), 101.0)
        assert [type(e) for e in core.events_received()] == [Settled, Progress, Reply]
        del in_flight

    def test_acceptance_in_place_of_a_pong_is_fatal(self) -> None:
        core = connected_core()
        core.call("ping")
        core.receive_data(OK_REPLY, 101.0)
        *_, fatal = core.events_received()
        assert "expected the reply [b'ping'" in str(fatal.error)  # type: ignore[union-attr]

    def test_ping_is_refused_on_push_and_beyond_sixteen(self) -> None:
        with pytest.raises(ValueError, match="nothing comes back"):
            connected_core(mode="async", push=True).call("ping")
        with pytest.raises(ValueError, match="no 'stat'"):
            connected_core().call("stat")
        core = connected_core()
        for _ in range(16):
            core.call("ping")
        with pytest.raises(ValueError, match="16 of them"):
            core.call("ping")

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
        core = connected_core(silence=5.0)
        assert core.next_timeout(100.0) is None
        in_flight, batch = inflight_of([(b"{}", RAW)] * 3)
        core.encode(batch, 1, 101.0)
        in_flight.encoded(batch)
        core.encode(batch, 1, 103.0)
        assert core.next_timeout(103.0) == 106.0
        core.receive_data(OK_REPLY, 104.0)
        assert core.next_timeout(104.0) == 109.0
        core.handle_timeout(108.9)
        assert [type(e) for e in core.events_received()] == [Settled, Progress]
        core.handle_timeout(109.0)
        (fatal,) = core.events_received()
        assert isinstance(fatal, Fatal)
        assert isinstance(fatal.error, TimeoutError)

    def test_peer_that_takes_bytes_is_alive(self) -> None:
        core = connected_core(silence=5.0)
        send(core, 1)
        assert core.next_timeout(104.0) == 105.0
        core._codec.moved(108.5)
        assert core.next_timeout(108.5) == 113.5

    def test_silence_of_a_ping_counts_from_its_call(self) -> None:
        core = connected_core(silence=5.0)
        core.credit(200.0)
        core.call("ping")
        assert core.next_timeout(200.0) == 205.0


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
        core = connected_core(compression="zlib", compress_over=100)
        in_flight, batch = inflight_of([(b'{"a":"%s"}' % (b"x" * 300), RAW), (b"{}", RAW | 1 << 4)])
        core.encode(batch, 2, 100.0)
        units = [oracle.join(message) for message in sent(core)]
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
        body = decode.inflate_unit("logjam", units[0])[at : at + int(events.length[0])]
        assert body == oracle.carried(b'{"a":"%s"}' % (b"x" * 300), 1, PRODUCER, TOPICS[0])
        del in_flight
