"""What dead owners left is sent by others, once, under their ids, with their ledgers."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import logclient
from logclient._ext.spool import Segments
from logclient.delivery.spool import contents, owner, owner_files
from logclient.files import ledger, open_regular
from logclient.files.capture import CaptureReader
from logclient.logux.core import Logux
from logclient.logux.messages import Connect, Sync, parse
from logclient.testing.logux import Collector
from tests.spool.scene import NOBODY, Producer, Scene
from tests.support import clean_environment
from tests.support.configs import logux_config
from tests.support.patience import PATIENCE, wait_until


@pytest.mark.slow
def test_dead_owners_are_adopted_oldest_first(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        names = [scene.run(events=300).name for _ in range(3)]
        # Their age is that of the lock file, whatever its name.
        for age, name in enumerate(reversed(names)):
            os.utime(scene.spool / f"{name}.lock", (age + 1, age + 1))
        scene.drain()
        seen = [event["@metadata._id"][:20] for event in scene.events()]
        assert [name for name in dict.fromkeys(seen) if name in names] == list(reversed(names))


def _killed_with_a_ledger(scene: Scene, events: int) -> Producer:
    """Kill a producer that has sent so many events, and has begun its ledger."""
    producer = scene.start(NOBODY, events=events, end="stay")
    wait_until(lambda: producer.sent() == events and producer.read_name(), "it has sent all")
    wait_until(lambda: scene.parts(producer.name) == [1], "its ledger is begun")
    producer.process.kill()
    producer.process.communicate()
    return producer


def test_dead_owners_are_looked_for_before_all_segments_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()

    class Waiting(Segments):
        def grow(self) -> bool:
            assert looked.wait(PATIENCE)
            return super().grow()

    monkeypatch.setattr(owner, "Segments", Waiting)
    monkeypatch.setattr(owner.Adoption, "look", lambda *_: looked.set())
    with Scene(tmp_path) as scene, scene.client():
        assert looked.is_set()


def test_an_adopted_ledger_is_continued_and_closed(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        producer = _killed_with_a_ledger(scene, 700)
        scene.drain()
        assert scene.parts(producer.name) == [1, 2]
        lines = scene.lines(producer.name)
        assert lines[-1]["t"] == "close"
        assert (lines[-1]["last"], lines[-1]["acked"]) == (700, 700)
        assert scene.verdict().ok == 700


def test_a_torn_last_line_does_not_hide_later_parts(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.run(scene.url, events=400)
        with (scene.ledger / f"{producer.name}-0001.ledger").open("ab") as file:
            file.write(b'{"t":"batch","seqs":[[1,')
        scene.drain()
        counts = scene.verdict()
        assert (counts.ok, counts.lost, counts.unknown, counts.unexpected) == (400, 0, 0, 0)


@pytest.mark.parametrize(
    "seqs", ["[[1,Infinity]]", "[[1,100000000000000000000000]]", "[[-9,9]]", "[" * 100_000]
)
def test_a_damaged_line_of_a_ledger_ends_no_adoption(seqs: str, tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        both = [scene.start(NOBODY, events=10, end="stay") for _ in range(2)]  # neither adopts the other
        for producer in both:
            wait_until(lambda p=producer: p.read_name() and scene.parts(p.name) == [1], "its ledger is begun")
        for producer in both:
            producer.kill()
        damaged = scene.ledger / f"{both[0].name}-0001.ledger"
        with damaged.open("a") as file:
            print(f'{{"t":"outcome","status":"acked","reason":"","seqs":{seqs}}}', file=file)
        scene.drain()
        assert scene.arrived().total() == 20
        damaged.unlink()
        close = scene.lines(both[0].name)[-1]
        assert (close["t"], close["last"], close["acked"]) == ("close", 10, 10)


@pytest.mark.parametrize("at", range(1, 8))
def test_a_shortage_of_descriptors_delays_an_adoption(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file after the other cannot be opened; the next look finds all of them."""
    opened = 0

    def open_or_fail(path: str, *flags: int) -> int:
        nonlocal opened
        opened += 1
        if opened == at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return open_regular(path, *flags)

    with Scene(tmp_path) as scene:
        producer = _killed_with_a_ledger(scene, 700)
        monkeypatch.setattr(owner, "LOOK_EVERY", 0.01)
        monkeypatch.setattr(owner_files, "open_regular", open_or_fail)
        monkeypatch.setattr(ledger, "open_regular", open_or_fail)
        scene.drain()
        assert opened > at
        assert scene.parts(producer.name) == [1, 2]
        counts = scene.verdict()
        assert (counts.ok, counts.unknown, counts.lost) == (700, 0, 0)


def test_what_cannot_be_removed_is_found_again(tmp_path: Path) -> None:
    files = owner_files.OwnerFiles(str(tmp_path), "0" * 20)
    files.create()
    os.mkdir(files.log_path(1))  # no unlink removes it
    files.remove()
    assert [found.producer for found in owner_files.owners(str(tmp_path))] == ["0" * 20]


@pytest.mark.slow
@pytest.mark.parametrize("whole", [0, 1])
def test_a_part_without_a_line_is_written_anew(whole: int, tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.start(scene.url if whole else NOBODY, events=400, end="stay")
        wait_until(lambda: producer.sent() == 400 and producer.read_name(), "it has sent all")
        if whole:
            wait_until(lambda: scene.parts(producer.name) == [1], "its ledger is begun")
        producer.kill()
        # As of an owner that was killed between making a part and writing its first line.
        (scene.ledger / f"{producer.name}-{whole + 1:04d}.ledger").write_bytes(b"")
        scene.drain()
        assert scene.parts(producer.name) == list(range(1, whole + 2))
        opened = [line for line in scene.lines(producer.name) if line["t"] == "open"]
        assert ["continues" in line for line in opened] == [False] * whole + [True]
        counts = scene.verdict()
        assert (counts.ok, counts.lost, counts.unknown, counts.unexpected) == (400, 0, 0, 0)


@pytest.mark.slow
def test_an_adopter_that_is_killed_is_adopted_itself(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        first = _killed_with_a_ledger(scene, 300)
        second = scene.start(NOBODY, events=300, end="stay")  # it adopts the first, and can send nothing
        wait_until(lambda: scene.parts(first.name) == [1, 2], "the first is adopted")
        second.kill()
        scene.drain()
        assert scene.parts(first.name) == [1, 2, 3]
        counts = scene.verdict()
        assert (counts.ok, counts.lost, counts.unknown, counts.duplicated) == (counts.events, 0, 0, 0)


def test_close_leaves_the_rest_for_the_next_client(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        client = scene.client(NOBODY)
        delivery = client.submit({"message": "first"})
        for n in range(99):
            client.send({"message": "more", "n": n})
        client.close(0.0)
        assert (client.stats().stored, client.stats().queued) == (100, 0)
        assert delivery.result(0).status == "stored"
        scene.drain()
        assert sum(scene.arrived().values()) == 100


def test_overflow_mode_keeps_memory_and_order_at_close(tmp_path: Path) -> None:
    with Scene(tmp_path, spool_mode="overflow", max_bytes="1MiB") as scene:
        producer = scene.run(events=5000, sizes=(1000,), end="close")
        assert "5000 events were left in the spool" in producer.errors
        scene.drain()
        arrived = [event["n"] for event in scene.events()]
        assert arrived == list(range(1, 5001))


@pytest.mark.parametrize(("size", "events"), [(70_000, 850), (830_000, 75)])
def test_overflow_mode_keeps_large_events_at_close(size: int, events: int, tmp_path: Path) -> None:
    # Each needs two or thirteen slots in a row, of which some are left at the end of each segment.
    with Scene(tmp_path, spool_mode="overflow") as scene:
        producer = scene.run(events=events, sizes=(size,), end="close")
        assert f"{events} events were left in the spool" in producer.errors


@pytest.mark.slow
def test_callers_that_wait_get_a_segment_while_free_slots_are_in_pieces(tmp_path: Path) -> None:
    with Scene(tmp_path, spool_mode="overflow", max_bytes="2MiB", spool_bytes="256MiB") as scene:
        producer = scene.run(events=200, sizes=(830_000,), end="close")
        assert "200 events were left in the spool" in producer.errors


@pytest.mark.slow
def test_overflow_mode_loses_memory_only_to_a_kill(tmp_path: Path) -> None:
    with Scene(tmp_path, spool_mode="overflow", max_bytes="1MiB") as scene:
        # Slow enough for the first segment, which is made while the first MiB fills memory.
        scene.run(events=5000, sizes=(1000,), rest=1e-5)
        scene.drain()
        arrived = [event["n"] for event in scene.events()]
        # What the disk took comes whole and in order. The last chunk may be one in memory.
        assert 0 < 5000 - len(arrived) < 2500
        assert arrived == list(range(arrived[0], arrived[0] + len(arrived)))
        counts = scene.verdict()
        assert (counts.lost, counts.unexpected) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("ledger", [True, False])
def test_acked_events_are_not_sent_again(ledger: bool, tmp_path: Path) -> None:
    with Scene(tmp_path, **({} if ledger else {"ledger": None})) as scene:
        producer = scene.start(scene.url, events=1000, end="stay")
        producer.read_name()
        wait_until(lambda: [owner.events for owner in contents.read(str(scene.spool))] == [0], "all is acked")
        producer.kill()
        left = scene.run(events=100)
        scene.drain()
        ids = [f"{one.name}{seq:012x}" for one in (producer, left) for seq in one.returned()]
        assert scene.arrived() == dict.fromkeys(ids, 1)


def test_an_owner_that_was_killed_before_it_began_its_ledger_gets_one(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.run(events=100, ledger=None)
        scene.drain()
        close = scene.lines(producer.name)[-1]
        assert (close["t"], close["acked"]) == ("close", 100)


def test_without_a_ledger_of_its_own_no_outcome_of_an_owner_is_guessed(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.start(scene.url, events=1000, end="stay", ledger=None)
        producer.read_name()
        wait_until(lambda: [owner.events for owner in contents.read(str(scene.spool))] == [0], "all is acked")
        producer.kill()
        scene.drain()
        assert not [line for line in scene.lines(producer.name) if line["t"] in ("dropped", "close")]


@pytest.mark.slow
def test_files_of_a_live_owner_are_left_alone(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene, scene.client(NOBODY) as alive:
        alive.send({"message": "mine"})
        producer = scene.run(events=200)
        with scene.client() as other:
            wait_until(lambda: producer.name not in scene.owners(), "the dead owner is adopted")
            assert alive.producer in scene.owners()
            assert not any(name.startswith(alive.producer) for name in scene.arrived())
            assert other.stats().queued == 0


def test_a_client_without_a_ledger_adopts_too(tmp_path: Path) -> None:
    with Scene(tmp_path, ledger=None) as scene:
        producer = scene.run(events=200)
        scene.drain()
        assert {int(name[20:], 16) for name in scene.arrived()} == producer.returned()


def test_locks_are_looked_at_and_process_ids_are_not(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.run(events=50)
        held = os.open(scene.spool / f"{producer.name}.lock", os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)  # as if a child of the owner lived on
        with scene.client() as client:
            client.send({"message": "own"})
            assert client.flush() == 0
            assert producer.name in scene.owners()
        os.close(held)
        scene.drain()
        assert len(scene.arrived()) == 51


def test_a_forked_child_has_files_of_its_own(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        client = scene.client(NOBODY)
        client.send({"message": "parent"})
        parent = client.producer
        pid = os.fork()
        if pid == 0:
            try:
                client.send({"message": "child"})
                os._exit(0 if client.producer != parent and len(scene.owners()) == 2 else 3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert parent in scene.owners()
        client.close(0.0)
        scene.drain()
        assert sorted(event["message"] for event in scene.events()) == ["child", "parent"]


def test_a_child_that_lives_on_does_not_hold_what_its_parent_left(tmp_path: Path) -> None:
    program = (
        "import json, logclient, os, signal, sys\n"
        "url, options = json.loads(sys.argv[1])\n"
        "client = logclient.connect(url, **options)\n"
        "client.send({'n': 0})\n"
        "if not (pid := os.fork()):\n"
        "    os.closerange(0, 3)\n"
        "    signal.pause()\n"
        "print(pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with Scene(tmp_path, spool_bytes="8MiB") as scene:
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps([NOBODY, scene.options])],
            stdout=subprocess.PIPE,
            env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        )
        child = int(done.stdout)
        try:
            scene.drain()
            assert [event["n"] for event in scene.events()] == [0]
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_logs_nothing_leaves_no_trace(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene, scene.client() as client:
        client.send({"message": "parent"})
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        client.send({"message": "parent"})
        assert client.flush() == 0
        assert scene.owners() == {client.producer}


def test_events_that_grew_too_old_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.run(events=100)
        monkeypatch.setattr("logclient.delivery.spool.replay.time.time", lambda: 4e9)
        scene.drain()
        assert not scene.arrived()
        close = scene.lines(producer.name)[-1]
        assert (close["t"], close["dropped"]) == ("close", {"max_age": 100})


def test_adopted_actions_come_from_a_new_client_id(tmp_path: Path) -> None:
    collector = Collector(capture=str(tmp_path / "actions"))
    with Scene(tmp_path, ledger=None) as scene, collector:
        url = f"logux://127.0.0.1:{collector.port}"
        left = scene.run("logux://127.0.0.1:9", events=50)
        scene.drain(url=url)
        nodes, ids = _actions(tmp_path / "actions")
        own = Logux(logux_config(), bytes.fromhex(left.name)).client
        assert nodes and own not in [node.split(":")[1] for node in nodes]
        assert sorted(ids) == [f"{left.name}{seq:012x}" for seq in sorted(left.returned())]


def _actions(capture: Path) -> tuple[list[str], list[str]]:
    """Return the node ids of the connections, and the ids of the actions that arrived."""
    nodes, ids = [], []
    for unit in CaptureReader(capture):
        message = parse(unit.raw) if unit.direction == 0 else None
        if isinstance(message, Connect):
            nodes.append(message.node_id)
        elif isinstance(message, Sync):
            ids += [action["id"] for action, _ in message.entries]
    return nodes, ids


def test_what_was_left_is_pushed_over_zeromq(tmp_path: Path) -> None:
    device = pytest.importorskip("logclient.testing.logjam")
    collector = device.Collector(push_port=0, capture=str(tmp_path / "pushed"))
    with Scene(tmp_path, ledger=None) as scene, collector:
        scene.run("logjam+push://127.0.0.1:9/app-test", events=50)
        assert scene.owners()
        scene.drain(url=f"logjam+push://127.0.0.1:{collector.push_port}/app-test")
        wait_until(lambda: sum(u.direction == 0 for u in CaptureReader(tmp_path / "pushed")) == 50, "arrival")


@pytest.mark.parametrize("mode", ["always", "overflow"])
def test_a_handler_without_records_removes_its_files(mode: str, tmp_path: Path) -> None:
    with Scene(tmp_path, spool_mode=mode) as scene:
        before = set(threading.enumerate())
        handler = logclient.Handler(scene.url, **scene.options)
        assert handler.client.flush(0.0) == 0
        handler.close()
        wait_until(lambda: not list(scene.spool.glob("*")), "its files are gone")
        wait_until(lambda: set(threading.enumerate()) <= before, "its threads have ended")
