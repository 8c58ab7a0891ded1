"""The fallback: a line for each event that failed or was dropped."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.delivery import fallback, sender
from logclient.testing.lumberjack import Collector
from tests.support import clean_environment
from tests.support.forks import needs_fork, run_in_child
from tests.support.patience import PATIENCE, wait_until

NOBODY = "lumberjack://127.0.0.1:9"


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines that are complete: one may be under way."""
    try:
        text = path.read_text()
    except FileNotFoundError:  # not made yet, or being rotated
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _numbers(lines: list[dict[str, Any]]) -> list[int]:
    return [line["event"]["n"] for line in lines]


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
def test_every_event_that_is_lost_has_a_line(policy: str, tmp_path: Path) -> None:
    file = tmp_path / "lost"
    client = logclient.connect(NOBODY, max_events=10, overflow=policy, fallback=file, timeout=0)
    for n in range(100):
        client.send({"n": n})
    wait_until(lambda: len(_lines(file)) == 90)
    left = range(90, 100) if policy == "drop_oldest" else range(10)
    assert _numbers(_lines(file)) == [n for n in range(100) if n not in left]
    assert {(line["status"], line["reason"]) for line in _lines(file)} == {("dropped", "overflow")}
    client.close()
    assert _numbers(_lines(file)[90:]) == list(left)
    assert {(line["status"], line["reason"]) for line in _lines(file)[90:]} == {("failed", "closed")}
    ids = [line["id"] for line in _lines(file)]
    assert sorted(ids) == [f"{client.producer}{seq:012x}" for seq in range(1, 101)]
    assert os.stat(file).st_mode & 0o777 == 0o600


@needs_fork
def test_a_child_delivers_though_the_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    with Collector(keep=True) as server:
        client = logclient.connect(server.url, fallback=folder / "lost")
        client.send({"n": 1})
        assert client.flush(PATIENCE) == 0
        folder.rmdir()
        parent = client.producer

        def deliver() -> None:
            client.send({"n": 2})
            assert client.flush(PATIENCE) == 0 and client.producer != parent

        run_in_child(deliver)
        client.close()
        assert sorted(event["n"] for event in server.events(2, PATIENCE)) == [1, 2]


@needs_fork
def test_a_child_whose_beginning_was_interrupted_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C, while hooks of the fork run: Python prints what they raise, and goes on."""
    with Collector(keep=True) as server, logclient.connect(server.url) as client:
        client.send({"n": 1})
        assert client.flush(PATIENCE) == 0
        parent, engine = client.producer, sender.Engine

        def interrupted(*arguments: Any) -> Any:
            monkeypatch.setattr(sender, "Engine", engine)
            raise KeyboardInterrupt

        monkeypatch.setattr(sender, "Engine", interrupted)

        def deliver() -> None:
            client.send({"n": 2})
            assert client.flush(PATIENCE) == 0 and client.producer != parent

        run_in_child(deliver)
        assert sorted(event["n"] for event in server.events(2, PATIENCE)) == [1, 2]


def test_what_arrives_has_no_line(tmp_path: Path) -> None:
    file = tmp_path / "lost"
    with Collector() as server, logclient.connect(server.url, fallback=file, max_event_bytes=100) as client:
        client.send({"n": 1})
        with pytest.raises(logclient.EncodeError):
            client.send({"m": "m" * 200})
        client.send(b'{"n":2}')
        assert client.flush(PATIENCE) == 0
    assert _lines(file) == [{"id": f"{client.producer}{2:012x}", "status": "failed", "reason": "too_large"}]


def test_an_event_after_close_has_a_line(tmp_path: Path) -> None:
    file = tmp_path / "lost"
    with Collector() as server:
        handler = logclient.Handler(server.url, fallback=file)
        record = logging.makeLogRecord({"msg": "late", "name": "app"})
        handler.close()
        handler.handle(record)
        wait_until(lambda: bool(_lines(file)))
    (line,) = _lines(file)
    assert line["event"]["message"] == "late"
    assert {name: line[name] for name in line if name != "event"} == {"status": "dropped", "reason": "closed"}


def test_a_caller_that_found_no_room_in_time_has_a_line(tmp_path: Path) -> None:
    file = tmp_path / "lost"
    options: dict[str, Any] = {"max_events": 1, "overflow": "block:1ms"}
    with logclient.connect(NOBODY, fallback=file, timeout=0, **options) as client:
        client.send({"n": 0})
        client.send({"n": 1})
        wait_until(lambda: _numbers(_lines(file)) == [1])


@pytest.mark.parametrize("url, body, line", [
    ("plog", b"no \xff text", {"base64": "bm8g/yB0ZXh0"}),
    ("plog", "text\u20ac".encode(), {"text": "text\u20ac"}),
    ("plog", b'{"a":\n1}', {"event": {"a": 1}}),
    ("plog", b'{"a":\r1}', {"event": {"a": 1}}),
    ("plog", b'{"a":\n1e999, "a":2}', {"event": {"a": 2}}),
    ("lumberjack", b'{"a" : 1 }', {"event": {"a": 1}}),
    ("plog", b'{"a":NaN}', {"text": '{"a":NaN}'}),
    ("plog", '{"a":1}'.encode("utf-16"), {"base64": "//57ACIAYQAiADoAMQB9AA=="}),
], ids=["bytes", "text", "lines", "returns", "names twice", "object", "no number", "utf-16"])  # fmt: skip
def test_any_body_is_one_line(url: str, body: bytes, line: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "lost"
    client = logclient.connect(f"{url}://127.0.0.1:9", max_events=1, fallback=file, timeout=0)
    with client._sender.role.held(PATIENCE):  # nothing is sent
        for _ in range(2):
            client.send(body)
    client.close()
    wait_until(lambda: bool(_lines(file)))
    found = _lines(file)[0]
    assert "event" not in line or body.replace(b"\n", b" ").replace(b"\r", b" ") in file.read_bytes()
    assert {name: found[name] for name in found if name not in ("id", "status", "reason")} == line


def test_events_beyond_the_memory_have_a_line_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sender, "LOST_BYTES", 400)
    file = tmp_path / "lost"
    client = logclient.connect(NOBODY, max_events=10, overflow="drop_new", fallback=file, timeout=0)
    with client._sender.role.held(PATIENCE):
        for n in range(100):
            client.send({"n": n})
    client.close()
    lines = _lines(file)
    ranges = [line for line in lines if "first" in line]
    assert len(lines) - len(ranges) + sum(int(r["last"], 16) - int(r["first"], 16) + 1 for r in ranges) == 100
    assert ranges and _numbers([line for line in lines if "event" in line])[:3] == [10, 11, 12]


def test_the_bodies_of_all_are_written_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However many more there are than the copies have room."""
    monkeypatch.setattr(sender, "LOST_BYTES", 400)
    file = tmp_path / "lost"
    client = logclient.connect(NOBODY, fallback=file, timeout=0)
    for n in range(3000):
        client.send({"n": n})
    client.close()
    assert _numbers(_lines(file)) == list(range(3000))


@pytest.mark.parametrize("status", ["failed", "dropped"])
def test_the_bodies_of_all_that_expire_are_written(
    status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sender, "LOST_BYTES", 400)
    file = tmp_path / "lost"
    options: dict[str, Any] = {"max_age": 0.2, "timeout": 0}
    if status == "dropped":
        options = {"spool": tmp_path / "spool", "spool_age": 1, "timeout": 0}
    with logclient.connect(NOBODY, fallback=file, **options) as client:
        for n in range(1000):
            client.send({"n": n})
        wait_until(lambda: len(_lines(file)) == 1000)
    assert _numbers(_lines(file)) == list(range(1000))
    assert {(line["status"], line["reason"]) for line in _lines(file)} == {(status, "max_age")}


def test_a_torn_line_stays_alone(tmp_path: Path) -> None:
    """A full disk, or the end of a process, may leave half a line."""
    file = tmp_path / "lost"
    file.write_text('{"id":"half')
    with logclient.connect(NOBODY, fallback=file, timeout=0) as client:
        client.send({"n": 0})
    torn, *rest = file.read_text().splitlines()
    assert torn == '{"id":"half' and [json.loads(line)["event"]["n"] for line in rest] == [0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file, errors = tmp_path / "lost", list[str]()
    file.touch()
    os.chown(file, 12345, -1)
    with logclient.connect(NOBODY, fallback=file, timeout=0, on_error=errors.append) as client:
        client.send({"n": 0})
    wait_until(lambda: any("belongs to another user" in text for text in errors))
    assert not file.stat().st_size


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Its lines are sent again later."""
    file, errors = tmp_path / "lost", list[str]()
    file.touch()
    file.chmod(0o620)
    with logclient.connect(NOBODY, fallback=file, timeout=0, on_error=errors.append) as client:
        client.send({"n": 0})
    wait_until(lambda: any("others may write to it" in text for text in errors))
    assert not file.stat().st_size


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(logclient.ConfigError, match=f"^fallback: no such folder: {tmp_path}/no$"):
        logclient.connect(NOBODY, fallback=tmp_path / "no" / "lost")


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with logclient.connect(NOBODY, fallback="lost", timeout=0) as client:
        monkeypatch.chdir("/")
        client.send({"n": 0})
    assert _numbers(_lines(tmp_path / "lost")) == [0]


def test_a_lock_that_another_process_holds_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the file grows on, and is rotated later."""
    monkeypatch.setattr(fallback, "ROTATE_AT", 500)
    file = tmp_path / "lost"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for name in "ab":
            with logclient.connect(NOBODY, fallback=file, timeout=0) as client:
                client.send({"n": name * 400})
        assert len(_lines(file)) == 2
    with logclient.connect(NOBODY, fallback=file, timeout=0) as client:
        client.send({"n": 3})
    assert _numbers(_lines(file)) == [3] and len(_lines(tmp_path / "lost.1")) == 2


END = f"""
client = logclient.connect({NOBODY!r}, fallback='stderr', timeout=0)
for n in range(5000): client.send({{'text': 'x' * 1000}})
client.close()
client.send({{'text': 'late' * 1000}})
print(client.stats().failed)
"""

DELIVERY = """
client = logclient.connect(sys.argv[1], fallback='stderr', max_event_bytes=100)
with client._sender.role.held(20):  # all at once
    for n in range(3000):
        with contextlib.suppress(logclient.EncodeError): client.send({'text': 'x' * 1000})
client.send({'n': 1})
print(client.flush(20))
"""


@pytest.mark.parametrize("make", [os.pipe, os.openpty])
@pytest.mark.parametrize(
    "program, said", [(END, "{'closed': 5000}\n"), (DELIVERY, "0\n")], ids=["end", "delivery"]
)
def test_stderr_that_nobody_reads_delays_nothing(
    program: str, said: str, make: Callable[[], tuple[int, int]]
) -> None:
    """The sender and the end of the process wait for no reader, with their own lines neither."""
    reader, writer = make()
    with Collector() as server, os.fdopen(reader, "rb", 0) as reading, os.fdopen(writer, "wb", 0) as writing:
        done = subprocess.run(
            [sys.executable, "-c", "import contextlib, logclient, sys" + program, server.url],
            env=clean_environment(), stdout=subprocess.PIPE, stderr=writing, timeout=2 * PATIENCE, check=True,
        )  # fmt: skip
        assert done.stdout.decode() == said
        assert b'{"status":"failed","reason":"' in reading.read(65536)


def test_the_file_is_rotated_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fallback, "ROTATE_AT", 500)
    file = tmp_path / "lost"
    options: dict[str, Any] = {"max_events": 1, "overflow": "drop_new", "timeout": 0}
    with logclient.connect(NOBODY, fallback=file, **options) as client:
        for n in range(20):
            client.send({"n": n})
            client._sender.engine.queue.wake()
            wait_until(lambda n=n: not n or n in _numbers(_lines(file)))
    assert sorted(os.listdir(tmp_path)) == ["lost", "lost.1"]
    assert all(os.path.getsize(tmp_path / name) <= 500 for name in os.listdir(tmp_path))
    numbers = _numbers(_lines(tmp_path / "lost.1") + _lines(file))
    assert numbers == [*range(numbers[0], 20), 0]


def test_a_fallback_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    fifo, errors = tmp_path / "fifo", list[str]()
    os.mkfifo(fifo)
    options: dict[str, Any] = {"max_events": 1, "timeout": 0, "on_error": errors.append}
    with logclient.connect(NOBODY, fallback=fifo, **options) as client:
        client.send({"n": 0})
        client.send({"n": 1})
        wait_until(lambda: any(f"fallback: {fifo}: " in text for text in errors))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    link, target, errors = tmp_path / "link", tmp_path / "target", list[str]()
    target.write_text("precious")
    link.symlink_to(target)
    options: dict[str, Any] = {"max_events": 1, "timeout": 0, "on_error": errors.append}
    with logclient.connect(NOBODY, fallback=link, **options) as client:
        client.send({"n": 0})
        client.send({"n": 1})
        said = f"fallback: {link}: "
        wait_until(lambda: any(said in text for text in errors) or target.read_text() != "precious")
    assert target.read_text() == "precious"


def test_events_of_which_nothing_is_known_are_counted(tmp_path: Path) -> None:
    fallback.Fallback(str(tmp_path / "lost")).write([], 3)
    assert _lines(tmp_path / "lost") == [{"omitted": 3}]


def test_a_program_says_where_its_last_events_are(tmp_path: Path) -> None:
    program = (
        "import logging, sys, logclient\n"
        "fallback = sys.argv[1] if sys.argv[1:] else None\n"
        f"h = logclient.Handler({NOBODY!r}, atexit_timeout=0.01, fallback=fallback)\n"
        "logging.basicConfig(handlers=[h], level=20)\n"
        "logging.info('last words')\n"
    )
    for arguments, expected in (
        ([], "; fallback=FILE, or stderr, would keep them"),
        (["stderr"], "; see stderr"),
        ([str(tmp_path / "lost")], f"; see {tmp_path / 'lost'}"),
    ):
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env=clean_environment(), timeout=PATIENCE, check=True
        )
        assert f"1 event was not delivered before exit{expected}" in done.stderr
        written = (tmp_path / "lost").read_text() if arguments[:1] not in ([], ["stderr"]) else done.stderr
        assert ('"message":"last words"' in written) == bool(arguments)


def test_events_without_room_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with logclient.connect(NOBODY, max_events=10, overflow="drop_new", timeout=0) as client:
        for n in range(16):
            client.send({"n": n})
    *_, line = _dropped(capsys)
    assert line.replace("so far", "in all") == (
        f"logclient: {NOBODY}: 6 events were dropped in all: no room in the queue; "
        "fallback=FILE, or stderr, would keep them"
    )


def test_the_end_reports_what_was_dropped_since(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "lost"
    with logclient.connect(NOBODY, max_events=10, overflow="drop_new", timeout=0, fallback=file) as client:
        for n in range(11):
            client.send({"n": n})
        wait_until(lambda: said.extend(_dropped(capsys)) or said)
        for n in range(5):
            client.send({"n": n})
    assert [*said, *_dropped(capsys)] == [
        f"logclient: {NOBODY}: 1 event was dropped so far: no room in the queue",
        f"logclient: {NOBODY}: 6 events were dropped in all: no room in the queue",
    ]


def test_what_clients_drop_at_the_end_of_the_process_is_reported() -> None:
    """One line a minute for all of them; the rest is counted in one more."""
    program = (
        "import logclient\n"
        "clients = [\n"
        "    logclient.connect(f'lumberjack://127.0.0.1:{port}', max_events=1, atexit_timeout=0)\n"
        "    for port in (9, 10, 11)\n"
        "]\n"
        "for client in clients:\n"
        "    for n in range(5): client.send({'n': n})\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(), timeout=PATIENCE, check=True
    )
    said = re.findall(r"logclient: (?:(lumber.*?): )?(\d+) .* dropped", done.stderr)
    assert sum(int(n) for n in dict(said).values()) == 3 * 4, done.stderr
    assert "more events were given up or dropped by other clients" in done.stderr


def test_the_end_says_for_how_many_events_there_is_a_line(tmp_path: Path) -> None:
    program = (
        "import logclient, sys\n"
        f"kept = logclient.connect({NOBODY!r}, atexit_timeout=0.01, fallback=sys.argv[1])\n"
        f"other = logclient.connect({NOBODY!r}, atexit_timeout=0.01)\n"
        "for client in (kept, other, other): client.send({'n': 1})\n"
    )
    file = tmp_path / "lost"
    command = [sys.executable, "-c", program, str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(), timeout=PATIENCE, check=True
    )
    assert f"3 events were not delivered before exit; see {file} for 1 of them" in done.stderr
    assert len(_lines(file)) == 1


def _dropped(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if " dropped " in line]
