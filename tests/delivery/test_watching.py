"""Functions of the application that are told of outcomes and errors."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient import Settlement
from logclient.delivery import watching
from logclient.delivery.outcomes import CallbackThread
from logclient.delivery.watching import Watcher
from logclient.testing.lumberjack import Collector
from tests.support import clean_environment
from tests.support.configs import config_for
from tests.support.examples import examples
from tests.support.forks import needs_fork, run_in_child
from tests.support.patience import PATIENCE, wait_until

NOBODY = "lumberjack://127.0.0.1:9"
STATUSES = st.sampled_from(("acked", "failed", "dropped", "handed"))


class Told:
    """What the functions were given."""

    def __init__(self) -> None:
        self.delivered: list[Settlement] = []
        self.dropped: list[Settlement] = []
        self.errors: list[str] = []
        self.threads: set[int] = set()

    @property
    def options(self) -> dict[str, Any]:
        functions = {"on_drop": self.dropped.extend, "on_error": self.errors.append}
        return {"on_delivery": self.on_delivery, **functions}

    def on_delivery(self, some: list[Settlement]) -> None:
        self.threads.add(threading.get_ident())
        self.delivered += some

    def seqs(self, status: str) -> list[int]:
        return [
            seq for one in self.delivered if one.status == status for seq in range(one.first, one.last + 1)
        ]


def test_every_event_is_told_once() -> None:
    told = Told()
    with Collector() as server, logclient.connect(server.url, max_event_bytes=100, **told.options) as client:
        for n in range(3000):
            client.send({"n": n})
        with pytest.raises(logclient.EncodeError):
            client.send({"m": "m" * 200})
        assert client.flush(PATIENCE) == 0
        wait_until(lambda: sum(one.events for one in told.delivered) == 3001)
        assert sorted(told.seqs("acked")) == list(range(1, 3001))
        assert told.dropped == [Settlement(client.producer, 3001, 3001, "failed", "too_large")]
        assert threading.get_ident() not in told.threads and len(told.threads) == 1
    assert told.errors == []


@pytest.mark.parametrize("options", [{}, {"before_send": dict}])
def test_an_event_whose_encoding_raises_has_failed(options: dict[str, Any]) -> None:
    class Odd(int):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("cannot be compared")

        def __hash__(self) -> int:
            return hash("@timestamp")

    told = Told()
    with Collector() as server, logclient.connect(server.url, **options, **told.options) as client:
        with pytest.raises((RuntimeError, logclient.EncodeError)):
            client.send({Odd(): 1})
        client.send({"n": 1})
        assert client.flush(PATIENCE) == 0
        assert (client.stats().acked, client.stats().failed) == (1, {"unencodable": 1})


def test_errors_and_drops_are_told() -> None:
    told = Told()
    options: Any = {"max_events": 10, "overflow": "drop_oldest", "backoff_max": 0.01}
    with logclient.connect(NOBODY, timeout=0, **options, **told.options) as client:
        for n in range(100):
            client.send({"n": n})
        wait_until(lambda: sum(one.events for one in told.dropped) == 90)
        wait_until(lambda: len(told.errors) > 3)
    assert {one.reason for one in told.dropped if one.status == "dropped"} == {"overflow"}
    assert all("cannot connect to 127.0.0.1:9" in text for text in told.errors[:3])
    wait_until(lambda: sum(one.events for one in told.dropped) == 100)
    assert told.dropped[-1].reason == "closed"


def test_an_exception_is_reported_and_the_next_call_comes(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told()

    def broken(some: list[Settlement]) -> None:
        told.delivered += some
        raise KeyError("oops")

    with Collector() as server, logclient.connect(server.url, on_delivery=broken) as client:
        for n in range(3):
            client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            wait_until(lambda n=n: len(told.delivered) == n + 1)
    assert "KeyError" in capsys.readouterr().err


def test_a_slow_function_bounds_memory_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LARGEST", 5)
    entered, go_on = threading.Event(), threading.Event()
    calls: list[list[Settlement]] = []

    def slow(some: list[Settlement]) -> None:
        calls.append(some)
        entered.set()
        assert go_on.wait(PATIENCE)

    with Collector() as server, logclient.connect(server.url, on_delivery=slow) as client:
        client.send("first")
        assert client.flush(PATIENCE) == 0 and entered.wait(PATIENCE)
        for n in range(20):
            client.submit({"n": n}).result(PATIENCE)  # or the outcomes of two could come as one
        go_on.set()
    # The outcome of the last event may come to the function as late as after its second call.
    assert [len(some) for some in calls[:2]] == [1, 5] and sum(map(len, calls)) <= 7


@examples(50)
@given(st.lists(st.tuples(st.integers(1, 9), STATUSES), max_size=20))
def test_each_function_hears_of_its_own(outcomes: list[tuple[int, str]]) -> None:
    delivered: list[Settlement] = []
    dropped: list[Settlement] = []
    thread = CallbackThread(lambda *_: None)
    watcher = Watcher(config_for("plog", on_delivery=delivered.extend, on_drop=dropped.extend), thread)
    alone_dropped: list[Settlement] = []
    alone = Watcher(config_for("plog", on_drop=alone_dropped.extend), thread)
    expected = [Settlement("ab", n, n + 1, status, "") for n, status in outcomes]
    lost = [one for one in expected if one.status in ("failed", "dropped")]
    for one in (watcher, alone):
        one.settled(expected)
        one.lost(lost)
    assert thread.wait_for_all(float("inf")) == 0
    assert delivered == expected and all(one.events == 2 for one in delivered)
    assert dropped == alone_dropped == lost


def test_errors_of_events_and_of_their_end_are_told() -> None:
    def broken(document: dict[str, Any]) -> None:
        raise ValueError("oops")

    told = Told()
    client = logclient.connect(NOBODY, before_send=broken, **told.options)
    client.send("an event")
    client.send(b"{}")  # which no step sees
    client.close(0.0)
    assert told.errors[0] == "before_send: ValueError: oops; the event failed"
    assert told.errors[-1].startswith(f"{NOBODY}: 1 event was given up: the client ended before delivery")


def test_a_function_that_logs_is_not_called_for_its_own_records() -> None:
    """Each of them would end in an error that calls it again."""

    def broken(document: dict[str, Any]) -> None:
        raise ValueError("oops")

    told: list[str] = []

    def on_error(text: str) -> None:
        told.append(text)
        client.send(text)

    client = logclient.connect(NOBODY, before_send=broken, on_error=on_error)
    client.send("an event")
    wait_until(lambda: client.stats().sent >= 3)  # that nobody listens is told, too
    client.close(0.0)
    assert sum("before_send" in text for text in told) == 1


def test_a_function_that_raises_keeps_nothing_from_the_others() -> None:
    """All calls are due at once."""
    told = Told()
    reported: list[str] = []

    def broken(some: list[Settlement]) -> None:
        raise KeyError("oops")

    def on_error(text: str) -> None:
        told.errors.append(text)
        raise ValueError(text)

    thread, go_on = CallbackThread(lambda _, text: reported.append(text)), threading.Event()
    functions = {**told.options, "on_delivery": broken, "on_error": on_error}
    watcher = Watcher(config_for("plog", **functions), thread)
    one = Settlement("ab", 1, 1, "failed", "closed")
    thread.queue(go_on.wait, PATIENCE)
    watcher.settled([one])
    watcher.lost([one])
    watcher.failed("one")
    watcher.failed("two")
    go_on.set()
    assert thread.wait_for_all(float("inf")) == 0
    assert (told.dropped, told.errors) == ([one], ["one", "two"])
    raised = ["KeyError: 'oops'", "ValueError: one", "ValueError: two"]
    assert reported == [f"a callback raised {words}" for words in raised]


def test_bodies_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BODIES", 20)
    dropped: list[Settlement] = []
    thread, go_on = CallbackThread(lambda *_: None), threading.Event()
    watcher = Watcher(config_for("plog", on_drop=dropped.extend), thread)
    body = b"x" * 10
    one = Settlement("ab", 1, 1, "dropped", "overflow", body)
    thread.queue(go_on.wait, PATIENCE)
    for _ in range(3):
        watcher.lost([one])
    go_on.set()
    assert thread.wait_for_all(float("inf")) == 0
    watcher.lost([one])
    assert thread.wait_for_all(float("inf")) == 0
    assert [one.body for one in dropped] == [body, body, None, body]


@needs_fork
def test_a_forked_child_tells_of_its_own_events() -> None:
    told = Told()
    with Collector() as server, logclient.connect(server.url, **told.options) as client:
        client.send("parent")
        assert client.flush(PATIENCE) == 0
        wait_until(lambda: told.seqs("acked") == [1])
        parent = client.producer

        def child() -> None:
            told.delivered.clear()
            client.send("child")
            assert client.flush(PATIENCE) == 0
            wait_until(lambda: told.seqs("acked") == [1])
            assert told.delivered[0].producer == client.producer != parent

        run_in_child(child)


def test_the_end_of_the_process_waits_for_the_last_call() -> None:
    program = (
        "import logclient, sys\n"
        "def tell(some): print(some[0].status, flush=True)\n"
        "client = logclient.connect(sys.argv[1], on_delivery=tell)\n"
        "client.send('last')\n"
    )
    with Collector() as server:
        done = subprocess.run(
            [sys.executable, "-c", program, server.url], env=clean_environment(), capture_output=True,
            text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
    assert done.stdout == "acked\n"
