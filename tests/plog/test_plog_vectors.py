"""Recorded bytes: datagrams of plog's Java client and crafted ones, and what a real server made of them.

Our client writes the same as the Java Fragmenter where that is right. Our server's half judges each recorded
datagram as the real server did, counter by counter.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest

from logclient._ext.constants import K_BYTES as BYTES
from logclient._ext.hash import murmur3
from logclient._ext.plog import (
    COMMAND,
    MESSAGE,
    SIMPLE,
    TOO_LARGE,
    Codec,
    Decoder,
    Judged,
    Reassembler,
    fragments,
)
from logclient.codec import Connection
from logclient.plog.core import Plog
from logclient.plog.messages import command, parse_stat, split_tags
from logclient.plog.pacing import Sent, lost_between
from tests.oracle import plog as oracle
from tests.support import recordings
from tests.support.batches import inflight_of
from tests.support.configs import config_for
from tests.support.plog_recordings import (
    CASES,
    KINDS,
    RECORDED,
    bytes_of,
    each_case,
    flat,
    has_negative_id,
    is_not_ascii,
    payload_of,
)

pytestmark = pytest.mark.unit

# Counters that others of our classes keep, and counters of dropped messages: the real server drops lazily, so
# that they may belong to an earlier case.
NOT_OURS = re.compile(
    r"handlers\[0\]\..*|holes_.*|unknown_command|dropped_fragments.*|defragmenter\.evictions"
)


FROM_JAVA = [case for case in CASES if case["source"] != "crafted"]
CRAFTED = [case for case in CASES if case["source"] == "crafted"]


def judged(case: dict[str, Any]) -> tuple[Reassembler, list[bytes], Judged]:
    found = bytes_of(case)
    lengths = array("q", map(len, found))
    offsets = array("q", accumulate(lengths, initial=0))[:-1]
    server = Reassembler(expire=2.0)
    rows = server.feed(b"".join(found), offsets, lengths, array("Q", [9] * len(found)), 0.0)
    return server, found, rows


@each_case(CASES)
def test_server_judges_and_counts_as_the_real_one(case: dict[str, Any]) -> None:
    server, _, rows = judged(case)
    verdicts = rows.verdict.tolist()
    whole = [row for row, verdict in enumerate(verdicts) if verdict in (MESSAGE, SIMPLE)]
    delivered = case.get("delivered", [])
    assert len(whole) == len(delivered), verdicts
    for row, want in zip(whole, delivered, strict=True):
        assert split_tags(rows.tags(row)) == want["tags"]
        payload = rows.payload(row)
        if want["payload_hex"].startswith("("):
            assert f"({len(payload)} bytes)" == want["payload_hex"]
        else:
            assert payload.hex() == want["payload_hex"]
    if case["verdict"] == "command":
        assert verdicts == [COMMAND]
        return
    if "stat_diff" not in case:
        return
    want = {name: n for name, n in case["stat_diff"].items() if not NOT_OURS.fullmatch(name)}
    got = flat(server.counters())
    assert {name: n for name, n in got.items() if not NOT_OURS.fullmatch(name)} == want


@each_case(CASES)
def test_incomplete_messages_are_dropped_as_recorded(case: dict[str, Any]) -> None:
    """A too large message is dropped with each of its fragments. The real server counts at most one
    message of an earlier case with it."""
    server, _, rows = judged(case)
    server.expire(100.0)
    assert server.open == []
    assert server.held == 0
    if set(rows.verdict.tolist()) == {TOO_LARGE}:
        want, got = case["stat_diff"], flat(server.counters())
        earlier = want["defragmenter.evictions"] - got["defragmenter.evictions"]
        assert earlier in (0, 1)
        for name, n in got.items():
            if name.startswith("dropped_fragments"):
                assert want[name] == n or earlier


@each_case(CASES)
def test_decoder_finds_the_messages_of_the_server(case: dict[str, Any]) -> None:
    _, found, rows = judged(case)
    lengths = array("q", map(len, found))
    offsets = array("q", accumulate(lengths, initial=0))[:-1]
    decoded = Decoder(max_message=262_144).decode(b"".join(found), offsets, lengths)
    want = [
        oracle.xxh64(rows.payload(row), 42)
        for row, verdict in enumerate(rows.verdict.tolist())
        if verdict in (MESSAGE, SIMPLE)
    ]
    statuses = decoded.status.tolist()
    assert [h for h, status in zip(decoded.hash.tolist(), statuses, strict=True) if status < 4] == want


def our_fragments(payload: bytes, **given: Any) -> list[bytes]:
    return fragments(payload, given["id"], datagram=given["datagram"], tags=given.get("tags", b""))


def reassembled(datagrams: list[bytes]) -> bytes:
    """Return the message that the server makes of these datagrams."""
    _, _, rows = judged({"datagrams": [one.hex() for one in datagrams], "name": ""})
    assert rows.verdict.tolist()[-1] == MESSAGE
    return rows.payload(len(datagrams) - 1)


def classify_client_case(case: dict[str, Any]) -> str:
    """Compare our client with a case: ``equal``, ``deliberate`` (ours is safer) or ``where java throws``."""
    given = case["input"]
    if case["source"] == "plog PlogClient.java":
        got = [
            datagram
            for number, text in enumerate(given["messages"], 1)
            for datagram in our_fragments(text.encode(), id=number, datagram=given["chunk_size"] + 24)
        ]
        assert (got == bytes_of(case)) is not is_not_ascii(case)
        return "deliberate" if is_not_ascii(case) else "equal"
    if has_negative_id(case):
        return "deliberate"
    payload = payload_of(given)
    tags = "\0".join(given["tags"] or []).encode()
    got = our_fragments(payload, id=given["id"], datagram=given["max_fragment_size_incl_header"], tags=tags)
    if "java_exception" in case:
        assert reassembled(got) == payload
        return "where java throws"
    assert got == bytes_of(case)
    assert f"{murmur3(payload):08x}" == given["murmur3_32_hex"]
    return "equal"


@each_case(FROM_JAVA)
def test_client_equals_the_java_client(case: dict[str, Any]) -> None:
    assert classify_client_case(case) in ("equal", "deliberate", "where java throws")


def test_text_arrives_unchanged() -> None:
    """The Java client replaces characters that are not in ISO-8859-1."""
    text = "café € 😀"
    assert reassembled(our_fragments(text.encode(), id=1, datagram=1400)).decode() == text


def test_message_ids_are_never_below_0() -> None:
    """The Java fragmenter accepts any id."""
    codec = Codec(bytes(10), number=oracle.ID_MOST, packets=0, size=0)
    codec.connected(1.0)
    in_flight, batch = inflight_of([(b"x", BYTES)] * 3)
    codec.encode(batch.capsule, 3, 1.0)
    sent = oracle.split(codec.take_bytes())
    assert [int.from_bytes(one[8:12], "big", signed=True) for one in sent] == [oracle.ID_MOST, 1, 2]
    with pytest.raises(ValueError, match="id: 0 to"):
        fragments(b"x", -5)
    del in_flight


@each_case(CRAFTED)
def test_payload_once_delivered_is_delivered_again(case: dict[str, Any]) -> None:
    """The payloads of crafted datagrams survive a round trip through our core."""
    _, _, rows = judged(case)
    for row, verdict in enumerate(rows.verdict.tolist()):
        if verdict not in (MESSAGE, SIMPLE):
            continue
        payload = rows.payload(row)
        core = Plog(
            config_for("plog", identity="none", unboxed=verdict == SIMPLE, pace=0, pace_bytes=0, mtu=1400),
            bytes(10),
        )
        connection = Connection(core)
        connection.connected(1.0)
        connection.put(payload, BYTES)
        sent = oracle.split(connection.send(1.0))
        if verdict == SIMPLE:
            assert sent == [payload]
        else:
            assert reassembled(sent) == payload


def test_murmur3_equals_the_recorded_hashes() -> None:
    for case in recordings.facts("plog", "murmur3", recordings.OWN):
        assert f"{murmur3(bytes.fromhex(case['payload_hex'])):08x}" == case["hash_be_hex"]


@each_case([case for case in CASES if case["verdict"] == "command"])
def test_recorded_commands_and_replies_are_understood(case: dict[str, Any]) -> None:
    (question,) = bytes_of(case)
    kind, payload = question[2:6].decode().lower(), question[6:]
    if len(kind) < 4:
        assert case["replies_hex"] == [None]
        return
    assert command(kind, payload).lower() == question.lower()
    (reply,) = (bytes.fromhex(one) for one in case["replies_hex"])
    if kind == "ping":
        assert reply == b"PONG" + payload
    elif kind == "stat" and reply.endswith(b"}"):
        found = parse_stat(reply)
        assert len(found["v0_fragments"]) == 17
        assert lost_between(found, Sent(0.0, 0, 0, 0), found, Sent(1.0, 1, 5, 5)) == 5


def test_recordings_cover_every_kind_of_datagram(capsys: pytest.CaptureFixture[str]) -> None:
    client = Counter(map(classify_client_case, FROM_JAVA))
    deliberate = client.pop("deliberate", 0)
    recordings.assert_replayed("plog, server and decoder", RECORDED, CASES, KINDS)
    recordings.assert_replayed("plog, client and server", CASES, CASES, {}, deliberate=deliberate)
    assert client["equal"] or not FROM_JAVA
    with capsys.disabled():
        print()
        print(recordings.summary("plog, server and decoder", RECORDED, CASES, KINDS))
        # The client's part is a small one of all cases, of which differences are counted.
        print(recordings.summary("plog, client and server", CASES, CASES, {}, deliberate=deliberate))
        print("of the client's", ", ".join(f"{n} {done}" for done, n in sorted(client.items())))
