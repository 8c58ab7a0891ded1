"""Poison events, and connections that end for other reasons, over real sockets."""

from __future__ import annotations

import time
from random import Random

import pytest

import logclient
from logclient.delivery.stats import Stats
from tests.support.breaks import BLIND, PoisonedServer, at_random
from tests.support.patience import PATIENCE


def send_to_breaking_server(name: str, cuts: int, window: int) -> tuple[int, Stats]:
    """Send events until the server has broken so many connections."""
    reader = PoisonedServer(BLIND[name](Random(name)))
    client = logclient.connect(
        reader.url,
        compression=0,
        window=window,
        backoff_max=0.004,
        overflow="block",
        max_events=2000,
        identity="none",
    )
    deadline = time.monotonic() + max(PATIENCE, cuts / 10)
    n = 0
    while reader.cuts < cuts and time.monotonic() < deadline:
        client.send({"n": n})
        n += 1
    stats = client.stats()
    client.close(0.0)
    reader.close()
    assert reader.cuts >= cuts
    return reader.cuts, stats


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["50 %", "75 % of connections", "8 down, 6 up", "each connection 2, 1 windows"]
)
def test_breaks_without_poison_condemn_no_event(name: str) -> None:
    _, stats = send_to_breaking_server(name, 60, 4)
    assert stats.failed == {}


@pytest.mark.long
def test_ten_thousand_breaks_condemn_no_event() -> None:
    broken = acked = 0
    for name in BLIND:
        for window in (1, 8):
            cuts, stats = send_to_breaking_server(name, 10_000 // (2 * len(BLIND)) + 1, window)
            assert stats.failed == {}, name
            broken += cuts
            acked += stats.acked
    print(f"{broken} breaks, {acked} events acknowledged, none condemned")
    assert broken >= 10_000


@pytest.mark.long
@pytest.mark.parametrize("often", [1, 3])
@pytest.mark.parametrize("innocent", [0.0, 0.2])
def test_poison_is_found_with_the_default_backoff(often: int, innocent: float) -> None:
    """`often` in 10,000 events, alone and beside breaks that no event causes."""
    random = Random(f"{often} {innocent}")
    count, rate = 60_000, 1_000
    bad = set(random.sample(range(5_000, 40_000), 35_000 * often // 10_000))
    reader = PoisonedServer(at_random(innocent, random), bad.__contains__)
    settled: dict[int, float] = {}
    with logclient.connect(reader.url, compression=0, window=64, overflow="block") as client:
        began = time.monotonic()
        for n in range(count):
            due = began + n / rate
            while time.monotonic() < due:
                time.sleep(0.002)  # the pace of the application
            if n in bad:
                sent = time.monotonic()
                client.submit({"n": n}).add_done_callback(
                    lambda delivery, n=n, sent=sent: settled.setdefault(n, time.monotonic() - sent)
                )
            else:
                client.send({"n": n})
            if n > 45_000 and len(settled) == len(bad):
                count = n + 1
                break
        assert client.flush(300.0) == 0
        stats = client.stats()
    reader.close()
    assert stats.failed == {"poison": len(bad)}
    assert {n for _, n in reader.arrived} == set(range(count)) - bad
    slowest = max(settled.values())
    seconds = reader.arrived[-1][0] - reader.arrived[0][0]
    windows = [0] * (int(seconds) + 1)
    for when, _ in reader.arrived:
        windows[int(when - reader.arrived[0][0])] += 1
    print(f"{often} in 10,000, {innocent:.0%} innocent breaks: {len(bad)} found, each in {slowest:.1f} s;")
    print(f"{len(reader.arrived) / seconds:.0f} of {rate} events/s, {min(windows[:-1])} in the worst second")
    assert slowest < 300.0
