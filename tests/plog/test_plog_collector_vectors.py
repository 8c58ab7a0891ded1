"""Recorded bytes against our server over its socket: delivered messages, counters and replies."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from logclient._ext.plog import fragments
from logclient.plog.messages import split_tags
from logclient.testing.plog import Collector
from tests.plog.client import Client
from tests.support import recordings
from tests.support.plog_recordings import CASES, KINDS, bytes_of, each_case, flat

# The real server drops incomplete messages when it next looks at them. These counters of a case may
# therefore belong to the case before it. The tests of the codec check ours.
LAZY = ("dropped_fragments", "defragmenter.evictions")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector(keep=True, expire_time=600.0) as collector:
        yield collector


def counted(collector: Collector) -> dict[str, int]:
    stat = collector.stat()
    stat.pop("uptime"), stat.pop("version")
    for handler in stat["handlers"]:
        handler.pop("name")
    return flat(stat)


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    found = {name: after.get(name, 0) - before.get(name, 0) for name in before.keys() | after.keys()}
    return {name: n for name, n in found.items() if n and not name.startswith(LAZY)}


@each_case(CASES)
def test_datagrams_are_delivered_counted_and_answered(
    case: dict[str, Any], collector: Collector, client: Client
) -> None:
    datagrams = bytes_of(case)
    collector.take()
    before = counted(collector)
    if "replies_hex" in case:
        assert len(datagrams) == len(case["replies_hex"]) == 1
        wanted = case["replies_hex"][0]
        if wanted is not None:
            assert_same_reply(client.ask(datagrams[0]), bytes.fromhex(wanted))
            settled = 0
        else:
            client.send(*datagrams)
            client.settle()
            settled = 1
    else:
        client.send(*datagrams)
        client.settle()
        settled = 1
    got = difference(before, counted(collector))
    got["v0_commands"] = got.get("v0_commands", 0) - settled
    got = {name: n for name, n in got.items() if n}
    want = {name: n for name, n in case.get("stat_diff", {}).items() if not name.startswith(LAZY)}
    assert got == want
    delivered = collector.messages()
    assert len(delivered) == len(case.get("delivered", []))
    for payload, expected in zip(delivered, case.get("delivered", []), strict=True):
        if expected["payload_hex"].startswith("("):
            assert f"({len(payload)} bytes)" == expected["payload_hex"]
        else:
            assert payload.hex() == expected["payload_hex"]


def assert_same_reply(got: bytes, want: bytes) -> None:
    """Assert equal bytes; of statistics equal names in order, and as many numbers in each place."""
    if not want.startswith(b"{"):
        assert got == want
        return
    ours, theirs = json.loads(got), json.loads(want)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if name == "handlers":
            assert {"name", "seen_messages"} <= ours[name][0].keys()
        elif isinstance(value, list):
            assert [len(row) if isinstance(row, list) else 1 for row in ours[name]] == [
                len(row) if isinstance(row, list) else 1 for row in value
            ]
        elif isinstance(value, dict):
            assert list(ours[name]) == list(value)
        else:
            assert type(ours[name]) is type(value)


def test_tags_are_read_as_by_the_real_server() -> None:
    """Kafka gets its tags from here; recordings have them beside each delivered message."""
    from logclient.testing.plog_datagrams import batch_of
    from logclient.testing.plog_device import Listener

    for case in CASES:
        datagrams = bytes_of(case)
        taken = Listener(0.0).feed(batch_of(datagrams, []), [9] * len(datagrams), 0.0)
        assert [tags for _, tags in taken.messages()] == [one["tags"] for one in case.get("delivered", [])]
    assert split_tags(b"") == []


def observed(name: str) -> Any:
    """Return what this repository's recordings note about the real server beside their cases."""
    return recordings.facts("plog", "extra_observations", recordings.OWN)[name]


class TestObservations:
    """Behaviour of the real server that was noted beside the cases."""

    def test_burst_of_unboxed_messages_is_delivered(self, collector: Collector, client: Client) -> None:
        collector.take()
        client.send(*(b"%d" % n for n in range(1000)))
        client.settle()
        delivered = observed("burst_1000_unboxed").partition(" ")[0]
        assert len(collector.messages()) == int(delivered)

    def test_large_messages_in_turn_are_all_delivered(self, collector: Collector, client: Client) -> None:
        collector.take()
        for number in range(20):
            client.send(*fragments(bytes(100_000), number + 1, datagram=20_000))
            client.settle()
        assert len(collector.messages()) == observed("20x100kB_contiguous")

    def test_interleaved_large_messages_evict_each_other(self, collector: Collector, client: Client) -> None:
        collector.take()
        messages = [fragments(bytes(100_000), number + 1, datagram=20_000) for number in range(20)]
        for parts in zip(*messages, strict=True):
            client.send(*parts)
            client.settle()
        assert len(collector.messages()) == observed("20x100kB_interleaved")

    def test_one_id_counter_over_two_sockets_shows_holes(self) -> None:
        with Collector() as collector:
            clients = [Client(collector), Client(collector)]
            for number in range(60):
                clients[number % 2].send(*fragments(b"x", number + 1))
            for client in clients:
                client.settle()
                client.close()
            holes = collector.stat()["holes_from_new_message"]
        assert f"{holes} false holes" == observed("one_id_counter_over_2_sockets_60_msgs")

    def test_lines_over_tcp_are_messages_up_to_the_limit(self) -> None:
        assert "\\0\\0ping line is a message" in observed("tcp")
        with Collector(tcp_port=0, max_line=100, keep=True) as collector:
            with socket.create_connection((collector.host, collector.tcp_port or 0)) as sock:
                sock.sendall(b"\0\0ping\n\n" + b"x" * 101 + b"\nnext\r\n" + b"tail")
            assert collector.wait_for(lambda now: now.connections == 1 and not now.open)
            assert collector.messages() == [b"\0\0ping", b"", b"next"]
            assert collector.counts.too_long == 1

    def test_empty_datagram_is_no_message(self, collector: Collector, client: Client) -> None:
        """Safer than the real server, which delivers an empty message."""
        assert "empty message" in observed("empty_datagram_after_unboxed")
        collector.take()
        client.send(b"before", b"")
        client.settle()
        assert collector.messages() == [b"before"]


def test_recordings_cover_every_kind_over_sockets(capsys: pytest.CaptureFixture[str]) -> None:
    recordings.assert_replayed("plog, collector over a socket", CASES, CASES, KINDS)
    with capsys.disabled():
        print()
        print(recordings.summary("plog, collector over a socket", CASES, CASES, KINDS))
