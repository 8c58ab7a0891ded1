"""What the engine reports and writes: its own errors, stats and the files of the ledger."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import stat
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import standard
from logclient._ext.queue import EventQueue
from logclient.delivery.endpoints import Endpoints
from logclient.delivery.error_log import KINDS, Diagnostics, ErrorLog
from logclient.errors import LedgerError
from logclient.files import ledger as ledger_module
from logclient.files import private_directory
from tests.cores.rig import SETUPS, Rig, Setup
from tests.cores.scheme import URL, served
from tests.cores.server import MemoryServer, acknowledge, silent
from tests.support.configs import config_for
from tests.support.forks import needs_fork, run_in_child
from tests.support.patience import PATIENCE

FIFO = Setup("fifo")
COMPILED = Setup("fifo", True)
QUICK: dict[str, Any] = {"backoff_max": 0.01}
SECRET = "hunter2-correct-horse"


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with served() as found:
        yield found


# -- own errors ---------------------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("logclient.delivery.error_log.time.monotonic", lambda: self.now)


def test_own_errors_print_one_line_a_minute_per_kind(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    clock = Clock(monkeypatch)
    reporter = ErrorLog()
    for i in range(10):
        reporter.warn_limited("connect", f"first {i}")
        clock.now += 5
    reporter.warn_limited("other", "of another kind")
    clock.now += 10
    reporter.warn_limited("connect", "second\nwith a break")
    clock.now += 59.9
    reporter.warn_limited("connect", "not yet")
    clock.now += 0.1
    reporter.warn_limited("connect", "third")
    assert capsys.readouterr().err.splitlines() == [
        "logclient: first 0",
        "logclient: of another kind",
        "logclient: second with a break (9 more of this kind held back)",
        "logclient: third (1 more of this kind held back)",
    ]


def test_control_characters_are_escaped_in_own_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """Some of the words come from a server."""
    ErrorLog().warn_limited("debug", "says: \x1b[2Jboom\r\n    at \u2028x \xe4")
    assert capsys.readouterr().err == "logclient: says: \\x1b[2Jboom      at  x \xe4\n"


def test_error_kinds_that_name_an_event_do_not_accumulate(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = ErrorLog(every=0.0)
    tracemalloc.start()
    try:
        before = 0
        for number in range(20_000):
            assert reporter.warn_limited(f"poison {number}", "gone")
            if number == 2_000:
                capsys.readouterr()
                before = tracemalloc.get_traced_memory()[0]
        capsys.readouterr()
        assert tracemalloc.get_traced_memory()[0] - before < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_own_errors_of_any_number_of_kinds_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    Clock(monkeypatch)
    reporter = ErrorLog()
    reporter.warn_limited("often", "an event")
    tracemalloc.start()
    try:
        for i in range(20_000):
            kind = f"{i:06d}" * 20
            assert reporter.warn_limited(kind, "x")
            assert not reporter.warn_limited(kind, "held back")
            assert not reporter.warn_limited("often", "held back")
        used, _ = tracemalloc.get_traced_memory()
        capsys.readouterr()
        assert used < 1 << 20, "it must not remember all of them"
    finally:
        tracemalloc.stop()


def test_lines_that_were_held_back_are_reported_when_their_kind_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    clock = Clock(monkeypatch)
    reporter = ErrorLog()
    kinds = [f"kind {i}" for i in range(3 * KINDS)]
    for kind in kinds:
        reporter.warn_limited(kind, "first")
        reporter.warn_limited(kind, "held back")
    clock.now += 61
    for kind in kinds[-KINDS:]:
        reporter.warn_limited(kind, "again")
    lines = capsys.readouterr().err.splitlines()
    alone = sum("(1 more of this kind held back)" in line for line in lines)
    summaries = [line for line in lines if line.endswith("held back, of other kinds")]
    assert alone == KINDS, "what is remembered keeps its own number"
    assert len(summaries) == 2, "one a minute"
    assert sum(int(line.split()[1]) for line in summaries) == 2 * KINDS
    assert len(lines) == len(kinds) + KINDS + len(summaries)


def test_a_kind_in_use_is_not_forgotten(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    Clock(monkeypatch)
    reporter = ErrorLog()
    assert reporter.warn_limited("often", "first")
    for i in range(3 * KINDS):
        assert reporter.warn_limited(f"kind {i}", "x")
        assert not reporter.warn_limited("often", "held back")


def test_own_errors_reach_only_foreign_handlers(server: MemoryServer, capsys: Any) -> None:
    server.down()
    ours = logclient.Handler(URL, **QUICK)
    seen: list[str] = []

    class Theirs(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    logger = logging.getLogger("logclient")
    theirs = Theirs()
    logger.addHandler(ours)
    logger.addHandler(theirs)
    try:
        app = logging.getLogger("app")
        app.addHandler(ours)
        app.warning("one event")
        server.wait(lambda: server.attempts > 3)
        logger.error("said by a user on our logger")
        stats = ours.client.stats()
        assert stats.sent == 1 and stats.ignored == 1
        assert seen[0] == f"{URL}:1: cannot connect to server:1: connection refused"
        assert len(seen) == 2
        server.up()
        assert ours.client.close(PATIENCE) == 0
        assert seen[2].startswith(f"{URL}:1: delivers to server:1, after ")
    finally:
        logger.removeHandler(ours)
        logger.removeHandler(theirs)
        logging.getLogger("app").removeHandler(ours)
        server.up()
        ours.close()
    assert capsys.readouterr().err == ""


@needs_fork
def test_a_child_writes_lines_though_a_thread_of_its_parent_did(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where no sender notices the fork, as with the URL ``none:``."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(str):
        def __hash__(self) -> int:
            begun.set()
            assert go_on.wait(PATIENCE)
            return str.__hash__(self)

    client = logclient.connect("none:")
    writer = threading.Thread(target=client.warn_limited, args=(Slow("slow"), "said by the parent"))
    writer.start()
    try:
        assert begun.wait(PATIENCE)
        run_in_child(lambda: client.warn_limited("quick", "said by the child"))
    finally:
        go_on.set()
        writer.join(PATIENCE)
    said = capfd.readouterr().err.splitlines()
    assert {"logclient: said by the parent", "logclient: said by the child"} <= set(said)


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as unwritable:
        for stream in (None, unwritable):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", stream)
                assert ErrorLog().warn_limited("kind", "text")


def test_a_dead_server_is_one_line_and_its_return_another(build: Callable[..., Rig], capsys: Any) -> None:
    rig = build(FIFO, reporter=ErrorLog(), backoff_max=0.002)
    for outage in range(3):  # the second one of a minute has no line, nor has its end
        rig.server.down()
        for peer in rig.server.peers:
            peer.cut()
        rig.until(lambda stats, ended=outage: stats.disconnects == ended)
        rig.many(5)
        seen = rig.server.attempts
        rig.server.wait(lambda seen=seen: rig.server.attempts > seen + 20)
        rig.server.up()
        rig.settle()
    rig.waiter.close(PATIENCE)
    away, back = capsys.readouterr().err.splitlines()
    assert away == "logclient: test://server: cannot connect to test:1: connection refused"
    assert re.fullmatch(
        r"logclient: test://server: delivers to test:1, after \d+\.\d s without a server", back
    )


def test_an_outage_counts_from_its_first_failure(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Also where the line of that one was held back."""
    clock = Clock(monkeypatch)
    reporter = ErrorLog()
    reporter.warn_limited("connect", "another client")
    diagnostics = Diagnostics(URL, reporter, EventQueue())
    endpoints = Endpoints((("server", 1),), config_for("lumberjack"), diagnostics)
    for _ in range(13):
        endpoints.failed("cannot connect", "connect")
        clock.now += 5
    endpoints.recovered()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"logclient: {URL}: delivers to server:1, after 65.0 s without a server"


def test_records_logged_by_the_sender_are_not_shipped(server: MemoryServer) -> None:
    """A core or transport may log, to whatever logger: shipped, each line would make the next."""
    handler = logclient.Handler(URL)
    logger = logging.getLogger("some.library")
    logger.addHandler(handler)
    core = handler.client._sender.engine.core
    encode = core.codec.target.encode

    def chatty(*args: Any) -> int:
        logger.warning("encoding")
        return int(encode(*args))

    core.codec.target.encode = chatty
    try:
        logger.warning("one")
        assert handler.client.flush(PATIENCE) == 0
        stats = handler.client.stats()
        assert stats.acked == stats.sent == 1 and stats.ignored >= 1
    finally:
        logger.removeHandler(handler)
        handler.close()


@pytest.mark.slow
def test_records_of_destructors_in_the_sender_are_shipped(server: MemoryServer) -> None:
    """A collection may happen in the sender's thread; what it frees may log, which is no recursion."""
    handler = logclient.Handler(URL)
    logger = logging.getLogger("some.library")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    threads: list[str] = []

    class Noisy:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            threads.append(threading.current_thread().name)
            logger.warning("from a destructor")

    core = handler.client._sender.engine.core
    encode = core.codec.target.encode

    def collecting(*args: Any) -> int:
        core.codec.target.encode = encode
        gc.collect()
        return int(encode(*args))

    gc.disable()
    try:
        Noisy()
        core.codec.target.encode = collecting
        logger.warning("one")
        server.events(2)
        assert threads == ["logclient-sender"]
        assert handler.client.flush(PATIENCE) == 0
        stats = handler.client.stats()
        assert (stats.sent, stats.acked, stats.ignored) == (2, 2, 0)
    finally:
        gc.enable()
        logger.removeHandler(handler)
        handler.close()


# -- redaction ----------------------------------------------------------------------------------------


def test_secrets_appear_in_no_output(server: MemoryServer, tmp_path: Path, capsys: Any) -> None:
    """A planted secret is in nothing that a run leaves behind."""
    server.down()
    url = f"{URL}/path?token=env:PLANTED_TOKEN"
    os.environ["PLANTED_TOKEN"] = SECRET
    try:
        client = logclient.connect(url, ledger=tmp_path / "run", **QUICK)
        other = logclient.connect(f"{URL}/path", token=SECRET, ledger=tmp_path / "run", **QUICK)
    finally:
        del os.environ["PLANTED_TOKEN"]
    assert client.config.token is not None and client.config.token.reveal() == SECRET
    client.send("one")
    other.send("two")
    server.wait(lambda: server.attempts > 2)
    text = repr(client) + repr(other) + repr(client.config) + repr(client.stats()) + repr(other.stats())
    with pytest.raises(ValueError) as error:
        logclient.connect(f"{URL}/path?token={SECRET}")
    text += str(error.value)
    with pytest.raises(ValueError) as error:
        logclient.connect(f"test://user:{SECRET}@server")
    text += str(error.value)
    server.up()
    client.close()
    other.close()
    captured = capsys.readouterr()
    text += captured.out + captured.err
    for path in (tmp_path / "run").iterdir():
        text += path.name + path.read_text()
    assert "test://server" in text and "close" in text
    assert SECRET not in text and "hunter2" not in text


# -- the ledger's files -------------------------------------------------------------------------------


def test_ledger_files_are_private(build: Callable[..., Rig]) -> None:
    mask = os.umask(0)
    try:
        rig = build(FIFO)
        rig.many(3)
        rig.settle()
    finally:
        os.umask(mask)
    assert rig.ledger is not None
    assert stat.S_IMODE(rig.ledger.stat().st_mode) == 0o700
    assert [stat.S_IMODE(p.stat().st_mode) for p in rig.ledger.iterdir()] == [0o600]


def test_a_foreign_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed geteuid stands for a directory that another user owns."""
    uid = os.geteuid()
    monkeypatch.setattr(standard.os, "geteuid", lambda: uid + 1)
    with pytest.raises(LedgerError, match=f"ledger: {tmp_path}: belongs to uid {uid}, not to us"):
        private_directory(tmp_path, "ledger")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to be root to give away")
def test_a_directory_of_another_uid_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(LedgerError, match="belongs to uid 12345"):
        private_directory(tmp_path, "ledger")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners and modes of files")
class TestWritersOfADirectory:
    @pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o775])
    def test_our_user_and_our_group_may_write(self, tmp_path: Path, mode: int) -> None:
        os.chown(tmp_path, -1, os.getegid())
        tmp_path.chmod(mode)
        assert private_directory(tmp_path, "ledger") == str(tmp_path)

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
    def test_write_permission_for_all_is_refused(self, tmp_path: Path, mode: int) -> None:
        tmp_path.chmod(mode)
        with pytest.raises(LedgerError, match=rf"others may write there \(mode {mode:04o}\); chmod 700 it"):
            private_directory(tmp_path, "ledger")

    def test_write_permission_for_another_group_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tmp_path.chmod(0o770)
        group = os.stat(tmp_path).st_gid
        monkeypatch.setattr(standard.os, "getegid", lambda: group + 1)
        with pytest.raises(LedgerError, match="others may write there"):
            private_directory(tmp_path, "ledger")

    def test_our_own_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "place").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "place")
        assert private_directory(tmp_path / "link", "ledger") == str(tmp_path / "link")

    @pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="needs to be root to give away")
    def test_a_link_of_another_user_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "place").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "place")
        os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
        with pytest.raises(LedgerError, match="is a link that belongs to uid 12345, not to us"):
            private_directory(tmp_path / "link", "ledger")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="ledger: "):
        private_directory(tmp_path / "file", "ledger")
    with pytest.raises(LedgerError, match="ledger: "):
        private_directory(tmp_path / "file" / "below", "ledger")


def test_an_existing_file_is_never_written_to(build: Callable[..., Rig]) -> None:
    rig = build(FIFO)
    assert rig.ledger is not None
    path = rig.ledger / f"{rig.engine.producer.hex()}-0001.ledger"
    path.write_text("not ours")
    rig.many(3)
    assert rig.settle().acked == 3
    assert path.read_text() == "not ours"
    assert rig.lines.of("ledger")[0].startswith("test://server: the ledger stopped, delivery goes on: ")
    path.unlink()


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_a_full_disk_stops_the_ledger_and_not_delivery(build: Callable[..., Rig], setup: Setup) -> None:
    """RLIMIT_FSIZE makes the write fail, in the pump or in Python."""
    resource = pytest.importorskip("resource")
    rig = build(setup)
    rig.many(100)
    rig.settle()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert rig.ledger is not None
    size = max(p.stat().st_size for p in rig.ledger.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, before[1]))
    try:
        rig.many(500)
        stats = rig.settle()
        rig.until(lambda s: rig.lines.of("ledger"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stats.acked + stats.handed == 600
    assert rig.lines.of("ledger") == ["test://server: the ledger stopped, delivery goes on: File too large"]
    assert rig.stats().ledger_error == "File too large"
    rig.many(100)
    stats = rig.settle()
    assert stats.acked + stats.handed == 700
    books = rig.books()
    assert books.closed is None
    assert set(books.outcomes) >= set(range(1, 101)) and max(books.outcomes) < 700


@pytest.mark.parametrize("setup", [FIFO, COMPILED], ids=str)
def test_a_large_ledger_continues_in_another_part(
    build: Callable[..., Rig], setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "ROTATE_AT", 20_000)
    rig = build(setup)
    for _ in range(30):
        rig.many(100)
        rig.settle()
    rig.finish()
    assert rig.ledger is not None
    parts = sorted(rig.ledger.iterdir())
    assert len(parts) >= 3
    for number, part in enumerate(parts, 1):
        lines = [json.loads(line) for line in part.read_text().splitlines()]
        assert (lines[0]["t"], lines[0]["part"]) == ("open", number)
        assert [i for i, line in enumerate(lines, 1) if line["t"] == "continued"] == (
            [len(lines)] if number < len(parts) else []
        )


@pytest.mark.parametrize("setup", [FIFO, COMPILED], ids=str)
def test_a_silent_ledger_says_that_the_process_goes_on(
    build: Callable[..., Rig], setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "SILENCE", 0.05)
    rig = build(setup)
    rig.many(3)
    rig.settle()

    def waiting() -> list[int]:
        assert rig.ledger is not None
        lines = [json.loads(line) for part in rig.ledger.iterdir() for line in part.read_text().splitlines()]
        return [line["waiting"] for line in lines if line["t"] == "alive"]

    rig.until(lambda _: len(waiting()) >= 3)
    assert {*waiting()[1:]} == {0}
    rig.server.script = lambda peer: None
    rig.many(2)
    rig.until(lambda _: waiting()[-1] == 2)
    rig.server.script = lambda peer: peer.ack()


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_batch_lines_are_written_before_the_events_are_sent(build: Callable[..., Rig], setup: Setup) -> None:
    rig = build(setup)
    wrong: list[int] = []

    def script(peer: Any) -> None:
        known = rig.books().hashes
        wrong.extend(g.seq for g in peer.waiting if g.seq not in known)
        peer.ack()

    rig.server.script = script
    for _ in range(20):
        rig.many(10)
        rig.settle()
    assert not wrong


def test_a_ledger_of_unsent_events_lists_their_outcomes(build: Callable[..., Rig]) -> None:
    rig = build(FIFO, max_events=1, overflow="drop_new")
    rig.server.down()
    rig.many(4)
    rig.finish(0.0)
    books = rig.books()
    assert books.outcomes == {1: ("failed", "closed"), **dict.fromkeys((2, 3, 4), ("dropped", "overflow"))}


def test_ledger_times_are_those_of_the_calls(build: Callable[..., Rig]) -> None:
    from time import time_ns

    rig = build(FIFO)
    before = time_ns() // 1000
    rig.put()
    after = time_ns() // 1000
    rig.settle()
    assert before - 1000 <= rig.books().created[1] <= after + 1000


def test_the_ledger_is_closed_with_the_engine(build: Callable[..., Rig]) -> None:
    rig = build(COMPILED)
    rig.many(3)
    rig.settle()
    assert rig.engine.books.ledger is not None
    fd = rig.engine.books.ledger.fd
    rig.finish()
    with pytest.raises(OSError):
        os.fstat(fd)


# -- the client ---------------------------------------------------------------------------------------


def test_send_and_submit_take_all_kinds_of_events(server: MemoryServer) -> None:
    with logclient.connect(URL) as client:
        assert client.send({"message": "one"}) == 1
        assert client.send("two") == 2
        assert client.send(b'{"message":"three"}') == 3
        outcome = client.submit({"n": 4}).result(PATIENCE)
        assert outcome is not None and outcome.ok
        with pytest.raises(TypeError):
            client.send(5)  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            client.submit({"message": "x" * client.config.max_event_bytes})
        assert client.flush(PATIENCE) == 0
        stats = client.stats()
        assert (stats.sent, stats.acked, sum(stats.failed.values())) == (6, 4, 2)
    assert client.closed and client.send("late") == 0
    got = server.events(4)
    assert [json.loads(g.body) for g in got] == [
        {"message": "one"} | json.loads(got[0].body),
        {"message": "two"} | json.loads(got[1].body),
        {"message": "three"},
        {"n": 4} | json.loads(got[3].body),
    ]
    assert client.event_id(3) == got[2].producer + f"{3:012x}"


def test_overflow_raise_raises_queue_full(server: MemoryServer) -> None:
    server.down()
    client = logclient.connect(URL, overflow="raise", max_events=2)
    client.send("1")
    client.send("2")
    with pytest.raises(logclient.QueueFull):
        client.send("3")
    with pytest.raises(BufferError):
        client.send(b"{}")
    assert client.stats().dropped == {"overflow": 2}
    client.close(0.0)
    assert client.send("after") == 0


def test_a_client_without_references_delivers_its_queue(server: MemoryServer) -> None:
    server.down()
    client = logclient.connect(URL, **QUICK)
    for i in range(50):
        client.send(str(i))
    sender = client._sender
    thread = sender.role.thread
    assert thread is not None
    del client
    server.up()
    assert len(server.events(50)) == 50
    thread.join(PATIENCE)
    assert sender.closed


def test_block_never_blocks_a_signal_handler(server: MemoryServer) -> None:
    import signal

    server.down()
    client = logclient.connect(URL, overflow="block", max_events=1)
    answers: list[int] = []

    def handler(number: int, frame: Any) -> None:
        answers.append(client.send("from the handler"))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        client.send("fills it")
        os.kill(os.getpid(), signal.SIGUSR1)
        while not answers:
            threading.Event().wait(0.001)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == [0] and client.stats().dropped == {"overflow": 1}
    server.up()
    assert client.close() == 0


def test_block_never_blocks_the_sender_itself(server: MemoryServer) -> None:
    client = logclient.connect(URL, overflow="block", max_events=1)
    core = client._sender.engine.core
    encode = core.codec.target.encode
    answers: list[int] = []

    def chatty(*args: Any) -> int:
        core.codec.target.encode = encode
        answers.append(client.send("from the sender's thread"))
        answers.append(client.flush(PATIENCE))
        return int(encode(*args))

    core.codec.target.encode = chatty
    client.send("fills it")
    assert client.flush(PATIENCE) == 0
    assert answers == [0, 1], "dropped at once; the sender cannot wait for itself"
    assert client.close() == 0 and client.stats().acked == 1


def test_two_clients_share_no_state(server: MemoryServer) -> None:
    server.script = silent
    one, two = logclient.connect(URL), logclient.connect(URL)
    one.send("x")
    server.events(1)
    assert two.stats().sent == 0 and one.producer != two.producer
    server.script = acknowledge
    server.peers[0].ack()
    assert one.close() == two.close() == 0
