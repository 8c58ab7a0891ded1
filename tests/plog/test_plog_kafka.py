"""The plog server with a real Kafka broker: topics and keys from tags, and its counters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from logclient._ext.plog import fragments
from logclient.plog.messages import join_tags
from logclient.testing.plog import Collector
from tests import support
from tests.plog.client import Client, event, name
from tests.support.kafka_fixture import topic_name
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.spark


def read(bootstrap: str, topic: str, count: int) -> list[tuple[bytes | None, bytes]]:
    """Return (key, value) of each message from the beginning; assert that there are `count`."""
    client = support.need("confluent_kafka")
    consumer = client.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    try:
        low, high = consumer.get_watermark_offsets(client.TopicPartition(topic, 0), timeout=PATIENCE)
        assert (low, high) == (0, count)
        consumer.assign([client.TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.consume(count - len(found), timeout=1)
    finally:
        consumer.close()
    return [(message.key(), message.value()) for message in found]


def tagged(payload: bytes, number: int, *tags: str, **how: Any) -> list[bytes]:
    return fragments(payload, number, tags=join_tags(tags), **how)


@pytest.mark.slow
def test_tags_choose_topic_and_key(kafka: str) -> None:
    usual, other = topic_name("plog"), topic_name("plog")
    with Collector(kafka=kafka, kafka_topic=usual, tcp_port=0) as collector:
        client = Client(collector)
        client.send(
            b"\xffunboxed, any bytes",
            *tagged(b"one", 1),
            *tagged(b"two", 2, f"kt:{other}", "pk:k"),
            *tagged(b"3" * 5000, 3, "pk:all of it", "x", datagram=700),
            *tagged(b"", 4, f"kt:{other}"),
        )
        client.settle()
        stat = json.loads(client.ask(b"\0\0STAT"))
        client.close()
    assert read(kafka, usual, 3) == [
        (None, b"\xffunboxed, any bytes"), (None, b"one"), (b"all of it", b"3" * 5000),
    ]  # fmt: skip
    assert read(kafka, other, 2) == [(b"k", b"two"), (None, b"")]
    (handler,) = stat["handlers"]
    assert (handler["name"], handler["seen_messages"], handler["failed_to_send"]) == ("kafka", 5, 0)
    counts = collector.counts
    assert (counts.events, counts.forwarded, counts.failed_to_send) == (5, 5, 0)


def test_last_tag_counts_and_topic_null_discards(kafka: str) -> None:
    usual, other = topic_name("plog"), topic_name("plog")
    with Collector(kafka=kafka, kafka_topic=usual) as collector:
        client = Client(collector)
        client.send(*fragments(b"a", 1, tags=f"kt:{usual}\0kt:{other}\0pk:1\0pk:2".encode()))
        client.send(*fragments(b"b", 2, tags=b"kt:null"))
        client.settle()
        assert collector.stat()["handlers"][0]["seen_messages"] == 2
        client.close()
    assert read(kafka, other, 1) == [(b"2", b"a")]
    assert collector.counts.forwarded == 1


def test_message_that_kafka_refuses_is_counted(kafka: str) -> None:
    topic = topic_name("plog")
    with Collector(kafka=kafka, kafka_topic=topic) as collector:
        client = Client(collector)
        client.send(*fragments(b"a", 1, tags=b"kt:no such name!"), b"good")
        client.settle()
        client.close()
        assert collector.wait_for(
            lambda now: now.failed_to_send == 1 and now.forwarded == 1, timeout=2 * PATIENCE
        )
        assert collector.stat()["handlers"][0]["failed_to_send"] == 1
    assert read(kafka, topic, 1) == [(None, b"good")]


@pytest.mark.slow
def test_missing_broker_is_counted_and_events_kept() -> None:
    support.need("confluent_kafka")
    settings = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 300, "log_level": 0}
    with Collector(kafka=settings, kafka_topic="t", keep=True) as collector:
        client = Client(collector)
        client.send(b"x")
        client.settle()
        client.close()
        assert collector.wait_for(lambda now: now.failed_to_send == 1, timeout=PATIENCE)
        assert any(reason.startswith("kafka: ") for reason in collector.reasons)
        assert collector.messages() == [b"x"]  # captured all the same


def test_topic_equals_the_capture_under_faults(kafka: str, tmp_path: Path) -> None:
    topic = topic_name("plog")
    spec = "drop=every:10,discard=every:11,duplicate=every:13,corrupt=every:17,seed=2"
    with Collector(
        kafka=kafka, kafka_topic=topic, faults=spec, fault_log=str(tmp_path / "w"), keep=True
    ) as collector:
        client = Client(collector)
        for number in range(1, 201):
            client.send(*fragments(event(number), number))
            if number % 20 == 0:
                client.settle()
        client.settle()
        client.close()
    found = [value for _, value in read(kafka, topic, collector.counts.captured_events)]
    assert found == collector.messages()
    acts = [json.loads(line) for line in (tmp_path / "w").read_text().splitlines()]
    gone = {one for act in acts if act["fault"] in ("drop", "discard") for one in act["ids"]}
    assert {name(n) for n in range(1, 201)} - {json.loads(one)["uuid"] for one in found} == gone
    assert len(gone) >= 35


def test_5000_messages_arrive_once_and_in_order(kafka: str) -> None:
    topic = topic_name("plog")
    with Collector(kafka=kafka, kafka_topic=topic) as collector:
        client = Client(collector)
        for number in range(1, 5001):
            client.send(*tagged(event(number, 3000 if number % 2 else 5), number, "pk:one", datagram=1400))
            if number % 50 == 0:
                client.settle()
        client.close()
    assert collector.counts.forwarded == 5000
    found = read(kafka, topic, 5000)
    assert [json.loads(value)["uuid"] for _, value in found] == [name(n) for n in range(1, 5001)]
