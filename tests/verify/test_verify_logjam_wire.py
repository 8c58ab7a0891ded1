"""From a client to a verdict over real ZeroMQ, with captures at a device and at a consumer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import verify
from logclient.errors import ExitCode
from tests import support
from tests.support.patience import PATIENCE

support.need("zmq")
support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
job = pytest.importorskip("logclient.verify.job")

from logclient.logjam.subscriber import Subscriber  # noqa: E402
from logclient.testing.logjam import Collector  # noqa: E402

N = 3000
LARGE = "x" * 3000


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def device(self, **options: Any) -> Collector:
        return Collector(capture=str(self.folder / "device"), **options)

    def send(self, url: str, n: int = N, own_ids: bool = True, **options: Any) -> logclient.client.Stats:
        """Small and large events, as a mapping and as bytes, some with an id of the user's own."""
        options = {"ledger": str(self.folder / "ledger"), "overflow": "block", **options}
        with logclient.connect(url, **options) as client:
            for i in range(n):
                event: dict[str, Any] = {"message": f"line {i}", "more": LARGE if i % 50 == 0 else ""}
                if own_ids and i % 10 == 3:
                    event["request_id"] = f"mine \u00e9 {i}"
                client.send(json.dumps(event).encode() if i % 2 else event)
            client.close(PATIENCE)
            return client.stats()

    def verdict(self, capture: str = "device", **options: Any) -> Any:
        ledger, out = self.folder / "ledger", self.folder / "out"
        return inprocess.run(ledger, self.folder / capture, out=out, **options)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def consumer(run: Run) -> Iterator[Any]:
    """``consumer(device)`` captures what the device publishes, and returns a function that stops it."""
    stop = threading.Event()
    threads = []

    def begin(device: Collector) -> Any:
        subscriber = Subscriber(device.publish_url, capture=str(run.folder / "consumer"))

        def follow() -> None:
            with subscriber:
                while not stop.is_set():
                    subscriber.receive(0.05)

        thread = threading.Thread(target=follow)
        thread.start()
        threads.append(thread)
        assert device.wait_for(lambda counts: counts.subscriptions > 0)

        def end(messages: int) -> Subscriber:
            patience = time.monotonic() + PATIENCE
            while sum(x.received - x.heartbeats for x in subscriber.devices.values()) < messages:
                assert time.monotonic() < patience
                time.sleep(0.01)
            stop.set()
            thread.join()
            return subscriber

        return end

    yield begin
    stop.set()
    for thread in threads:
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "zlib", "snappy", "lz4"])
def test_requests_arrive_in_every_compression(run: Run, compression: str) -> None:
    if compression in ("snappy", "lz4"):
        support.need(compression)
    with run.device() as device:
        stats = run.send(f"{device.url}/shop-production?compression={compression}")
    assert stats.acked == N
    verdict = run.verdict()
    assert verdict.exit_code == ExitCode.OK, verdict.sentence
    assert (verdict.counts.ok, verdict.counts.events) == (N, N)
    assert verdict.order == "checked"
    assert verdict.producers[0].mode == "request"
    assert verdict.capture["acks"] == N


def test_discarded_events_without_ids_are_lost(run: Run) -> None:
    with run.device(faults="discard=every:1000:max:2") as device:
        run.send(f"{device.url}/shop-production?identity=none&compression=zlib")
    verdict = run.verdict()
    assert (verdict.counts.ok, verdict.counts.lost, verdict.counts.unexpected) == (N - 2, 2, 0)
    assert verdict.order == "not checked"


def test_cut_connections_cause_duplicates_and_no_loss(run: Run) -> None:
    faults = "cut-before-ack=every:700:max:3,cut-before-write=every:900:max:2"
    with run.device(faults=faults, count_duplicates=True) as device:
        stats = run.send(f"{device.url}/shop-production?backoff_max=50ms")
        copies = device.counts.copies
    assert stats.acked == N
    verdict = run.verdict()
    assert verdict.exit_code == ExitCode.OK, verdict.sentence
    # The collector knows events by generated ids alone, the verifier by the ledger's `ids` too.
    assert verdict.counts.duplicated >= copies > 0


@pytest.mark.parametrize("push", [False, True], ids=["async", "push"])
def test_discarded_handed_over_events_are_missing(run: Run, push: bool) -> None:
    with run.device(faults="discard=every:100:max:7") as device:
        url = device.push_url if push else device.url
        stats = run.send(f"{url}/shop-production" + ("" if push else "?mode=async"))
        assert device.wait_for(lambda counts: counts.events == N)
    assert stats.handed == N
    verdict = run.verdict()
    assert verdict.exit_code == ExitCode.OK, verdict.sentence
    assert (verdict.counts.ok, verdict.counts.missing, verdict.counts.lost) == (N - 7, 7, 0)
    assert verdict.producers[0].mode == "async"
    assert run.verdict(max_missing=6).exit_code == ExitCode.BROKEN


def test_discarded_requests_are_lost(run: Run) -> None:
    with run.device(faults="discard=every:100:max:7") as device:
        run.send(f"{device.url}/shop-production")
    verdict = run.verdict()
    assert verdict.exit_code == ExitCode.BROKEN
    assert (verdict.counts.ok, verdict.counts.lost) == (N - 7, 7)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["request", "async"])
@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_each_fault_of_the_device_is_found(run: Run, mode: str, compression: str) -> None:
    fault_log = run.folder / "fault_log"
    faults = (
        "discard=every:79:max:9,swap=every:101:max:5,duplicate=every:97:max:6,corrupt=every:89:max:7,"
        "add=every:83:max:8,seed=4"
    )
    with run.device(faults=faults, fault_log=str(fault_log)) as device:
        run.send(f"{device.url}/shop-production?mode={mode}&compression={compression}", own_ids=False)
        assert device.wait_for(lambda counts: counts.events == N)
    faulted: dict[str, set[str]] = {}
    for line in fault_log.read_text().splitlines():
        entry = json.loads(line)
        faulted.setdefault(entry["fault"], set()).update(entry["ids"])
    assert {fault: len(ids) for fault, ids in faulted.items()} == {
        "discard": 9, "swap": 5, "duplicate": 6, "corrupt": 7, "add": 8
    }  # fmt: skip
    verdict = run.verdict()
    assert verdict.exit_code == ExitCode.BROKEN
    found: dict[str, set[str]] = {}
    for word, ident in verify.violation_ids(run.folder / "out"):
        found.setdefault(word, set()).add(ident)
    assert found == {
        "lost" if mode == "request" else "missing": faulted["discard"],
        "reordered": faulted["swap"],
        "duplicated": faulted["duplicate"],
        "corrupted": faulted["corrupt"],
        "unexpected": faulted["add"],
    }
    assert ("reordered" in verdict.producers[0].breaks) == (mode == "request")


def test_consumer_of_a_recompressing_device_is_complete(run: Run, consumer: Any) -> None:
    n = 500  # three threads of Python share an interpreter here
    with run.device(device=9, recompress="zlib", heartbeat=0.1) as device:
        end = consumer(device)
        run.send(f"{device.url}/shop-production?compression=none", n)
        subscriber = end(n)
    verdict = run.verdict("consumer")
    assert verdict.exit_code == ExitCode.OK, verdict.sentence
    assert verdict.counts.ok == n
    theirs = subscriber.devices[9]
    assert (theirs.missing_at_least, theirs.restarts_at_least) == (0, 0)
    assert verdict.capture["heartbeats"] == theirs.heartbeats
    # Both captures together: each event twice, at two endpoints.
    for path in (run.folder / "device").glob("*.cap"):
        (run.folder / "consumer" / path.name).write_bytes(path.read_bytes())
    verdict = run.verdict("consumer")
    assert (verdict.exit_code, verdict.counts.ok, verdict.counts.duplicated) == (ExitCode.OK, n, n)
