"""Client and Writer over real sockets, as a user calls them, against the collector."""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any

import pytest

import logclient
from logclient.lumberjack import Writer
from logclient.testing.lumberjack import Collector
from tests.support.documents import dotted
from tests.support.patience import PATIENCE


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("compression", [0, 3])
def test_write_returns_the_number_of_acked_events(pump: None, version: int, compression: int) -> None:
    with (
        Collector(keep=True) as collector,
        Writer(collector.url, window=50, version=version, compression=compression) as writer,
    ):
        lines = ({"message": f"line {n}", "n": str(n)} for n in range(1000))
        assert writer.write(lines, timeout=PATIENCE) == 1000
        found = [dotted(event) for event in collector.events(1000)]
    assert [event["n"] for event in found] == [str(n) for n in range(1000)]
    assert len({event["event.id"] for event in found}) == 1000
    assert all(event["event.id"] == writer.event_id(n + 1) for n, event in enumerate(found))


def test_writer_loses_nothing_over_cut_connections(pump: None) -> None:
    faults = "cut-before-ack=every:5:max:4,cut-before-write=every:7:max:3,partial-cut=every:11:max:2"
    with (
        Collector(keep=True, faults=faults, count_duplicates=True) as collector,
        Writer(collector.url, window=20, backoff_max=0.01) as writer,
    ):
        assert writer.write(({"n": n} for n in range(1000)), timeout=PATIENCE) == 1000
        stats = writer.stats()
        found = collector.events(1000)
        assert collector.counts.cuts >= 7
    first = list(dict.fromkeys(event["n"] for event in found))
    assert first == list(range(1000))  # nothing lost, first copies in order
    assert stats.resent >= collector.counts.copies > 0


def test_body_that_is_not_an_object_fails_alone(pump: None) -> None:
    with Collector(keep=True) as collector, logclient.connect(collector.url) as client:
        bad = [b"", b"{", b"[1]", b"null", b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":1}x', b'"text"']
        deliveries = []
        for n, body in enumerate(bad):
            client.send({"n": n})
            deliveries.append(client.submit(body))
        client.send({"n": len(bad)})
        assert client.flush(PATIENCE) == 0
        outcomes = [delivery.result(PATIENCE) for delivery in deliveries]
        found = collector.events(len(bad) + 1)
        stats = client.stats()
    assert [(o.status, o.reason) for o in outcomes if o is not None] == [("failed", "not_json")] * len(bad)
    assert [event["n"] for event in found] == list(range(len(bad) + 1))
    assert stats.acked == len(bad) + 1
    assert stats.failed == {"not_json": len(bad)}


def test_event_of_100_mib_is_refused_and_the_next_arrives(pump: None) -> None:
    with Collector(keep=True) as collector, logclient.connect(collector.url) as client:
        for huge in (b'{"a":"' + b"x" * (100 << 20) + b'"}', {"message": "x" * (100 << 20)}):
            with pytest.raises(logclient.EncodeError, match="max_event_bytes"):
                client.send(huge)
        assert client.send({"message": "small"}) == 3
        assert client.flush(PATIENCE) == 0
        assert client.stats().failed == {"too_large": 2}
        assert [event["message"] for event in collector.events(1)] == ["small"]


@pytest.mark.parametrize(
    "event",
    [{"message": "x" * 2000}, "x" * 2000, b'{"message":"%s"}' % (b"x" * 2000)],
    ids=lambda event: type(event).__name__,
)
def test_too_large_event_raises_and_is_counted(event: Any) -> None:
    """It holds for each kind of event, by send and by submit."""
    with Collector() as collector, logclient.connect(collector.url, max_event_bytes=1000) as client:
        for verb in (client.send, client.submit):
            with pytest.raises(logclient.EncodeError, match=r"longer than max_event_bytes \(1000\)"):
                verb(event)
        client.send("small")
        assert client.flush(PATIENCE) == 0
        stats = client.stats()
    assert (stats.failed, stats.acked, stats.sent) == ({"too_large": 2}, 1, 3)


@pytest.mark.parametrize("level", [40, 49, "ERROR", "error", "CRITICAL", "loud"])
def test_level_by_name_spares_errors_from_drop_oldest(
    level: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(logging._nameToLevel, "loud", 45)
    options: dict[str, Any] = {"overflow": "drop_oldest", "max_events": 3}
    with Collector(keep=True) as collector, logclient.connect(collector.url, **options) as client:
        collector.stop()
        client.send("sent kept", level)
        client.submit("submitted kept", level)
        for n in range(10):
            client.send(str(n))
        collector.start()
        assert client.flush(PATIENCE) == 0
        messages = [event["message"] for event in collector.events()]
    assert messages == ["sent kept", "submitted kept", "9"]


@pytest.mark.parametrize("level", ["LOUD", "", None, 1.5, [40]])
def test_unknown_level_is_refused_and_the_event_counted(level: Any) -> None:
    with logclient.connect("lumberjack://127.0.0.1:1", timeout=0.0) as client:
        for verb in (client.send, client.submit):
            with pytest.raises(logclient.ConfigError, match="level: must be a number, or the name"):
                verb("an event", level)
        assert client.stats().sent == 2


@pytest.mark.parametrize(
    "reply", [b"2A\0\0\0\5", b"HTTP/1.1 400 Bad Request\r\n", b"\0" * 7, b"2W\0\0\0\1", b"2A\xff\xff\xff\xff"]
)
def test_events_wait_for_a_server_with_valid_replies(
    pump: None, reply: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each wrong reply ends its connection and is reported on stderr."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = logclient.connect(f"lumberjack://127.0.0.1:{port}", backoff_max=0.01)
        client.send({"n": 1})
        for _ in range(3):
            peer, _address = listener.accept()
            peer.recv(1)
            peer.sendall(reply)
            while peer.recv(65536):
                pass
            peer.close()
    with Collector(port=port, keep=True) as collector:
        assert client.flush(PATIENCE) == 0
        assert [event["n"] for event in collector.events(1)] == [1]
    stats = client.stats()
    assert client.close() == 0
    assert (stats.acked, stats.queued, stats.inflight) == (1, 0, 0)
    assert stats.last_error
    assert capfd.readouterr().err.count("logclient:") >= 1


def test_four_threads_share_one_client(pump: None) -> None:
    with Collector(count_duplicates=True) as collector, logclient.connect(collector.url) as client:
        barrier = threading.Barrier(4)

        def send(k: int) -> None:
            barrier.wait()
            for n in range(2000):
                client.send({"k": k, "n": n})

        threads: list[Any] = [threading.Thread(target=send, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.flush(PATIENCE) == 0
        assert client.stats().acked == 8000
        assert collector.counts.events == 8000
        assert collector.counts.copies == 0


def test_writer_refuses_the_scheme_of_another_protocol() -> None:
    with pytest.raises(logclient.ConfigError, match="scheme"):
        Writer("logux://127.0.0.1:1")
