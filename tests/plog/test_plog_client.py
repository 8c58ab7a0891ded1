"""The plog client over a real socket, and the documents it makes."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import logclient
from logclient._ext.plog import COMMAND, MESSAGE, SIMPLE, Reassembler
from logclient.errors import ConfigError, ConnectFailed, EncodeError, ProtocolError, QueueFull
from logclient.plog import Client
from logclient.plog.messages import split_tags
from logclient.records.host import node_name
from tests.plog.stat import STAT, stat_of
from tests.support.forks import run_in_child
from tests.support.patience import PATIENCE


class Server(threading.Thread):
    """A server that reassembles datagrams and answers commands as the real one does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.socket.bind(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.messages: list[tuple[bytes, list[str]]] = []
        self.commands: list[bytes] = []
        self.deaf = False
        self.answer: bytes | None = stat_of()
        self.lose = 0  # every so many datagrams
        self.taken = 0
        self._reassembler = Reassembler()
        self.start()

    def run(self) -> None:
        while True:
            data, peer = self.socket.recvfrom(65536)
            if data == b"":
                return
            self.taken += 1
            if self.lose and data[:2] == b"\0\1" and self.taken % self.lose == 0:
                continue
            judged = self._reassembler.feed(
                data, array("q", [0]), array("q", [len(data)]), array("Q", [peer[1]]), time.monotonic()
            )
            if judged.verdict[0] in (MESSAGE, SIMPLE):
                self.messages.append((judged.payload(0), split_tags(judged.tags(0))))
            elif judged.verdict[0] == COMMAND:
                self._command(judged.payload(0), peer)

    def _command(self, command: bytes, peer: Any) -> None:
        self.commands.append(command)
        if self.deaf:
            return
        if command[:4] == b"PING":
            self.socket.sendto(b"PONG" + command[4:], peer)
        elif command[:4] == b"STAT":
            self.socket.sendto(self.counters() if self.answer is None else self.answer, peer)
        elif command[:4] == b"ENVI":
            self.socket.sendto(b"Config({})", peer)

    def counters(self) -> bytes:
        """Return a STAT as the real server does: the command is counted afterwards."""
        found: dict[str, Any] = self._reassembler.counters()
        found["v0_commands"] -= 1
        handlers = [{"name": "kafka", "seen_messages": len(self.messages)}]
        return json.dumps({"uptime": int(time.monotonic() * 1000), **found, "handlers": handlers}).encode()

    def stop(self) -> None:
        self.socket.sendto(b"", ("127.0.0.1", self.port))
        self.join(PATIENCE)
        self.socket.close()

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body, _ in self.messages]


def until(done: Callable[[], object]) -> None:
    """Wait until the condition holds; fail after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def connect(server: Server, **options: Any) -> Client:
    client = logclient.connect(f"plog://127.0.0.1:{server.port}", **options)
    assert isinstance(client, Client)
    return client


class TestClient:
    def test_mappings_texts_bytes_and_events_arrive(self, server: Server) -> None:
        with connect(server, event_type="orders", mtu=1400) as client:
            first = client.send({"a": 1})
            client.send("text")
            client.send(b"\0any bytes\xff")
            client.event({"order": 7, "big": "x" * 5000, "list": [1, None], "none": None})
            client.event("plain", type="other", timestamp=5)
            assert client.flush(PATIENCE) == 0
            assert client.stats().handed == 5
            until(lambda: len(server.messages) == 5)
            mapping, text, raw, event, plain = [body for body, _ in server.messages]
            ids = [client.event_id(first + n) for n in range(5)]
        assert json.loads(mapping) == {"a": 1, "uuid": ids[0]}
        found = json.loads(text)
        assert abs(found.pop("timestamp") - time.time() * 1000) < 60_000
        assert found == {"type": "orders", "host": node_name(), "data": "text", "uuid": ids[1]}
        assert raw == b"\0any bytes\xff"
        found = json.loads(event)
        assert found["data"] == {"order": "7", "big": "x" * 5000, "list": "[1,null]", "none": "null"}
        assert isinstance(found["timestamp"], int)
        assert found["uuid"] == ids[3]
        assert json.loads(plain) == {
            "type": "other", "host": node_name(), "timestamp": 5, "data": "plain", "uuid": ids[4],
        }  # fmt: skip

    def test_topic_key_and_tags_travel_with_messages(self, server: Server) -> None:
        with connect(server, topic="logs", tags="a,pk:1") as client:
            client.send(b"x")
            client.publish(b"y", topic="orders", key="7", tags=["b"])
            client.publish(b"z")
            client.event("e", topic="orders")
            with pytest.raises(ValueError, match="topic: servers discard"):
                client.publish(b"y", topic="null")
            with pytest.raises(ConfigError, match="tags: must be several tags"):
                client.event("y", tags="web")
            assert client.flush(PATIENCE) == 0
            until(lambda: len(server.messages) == 4)
        assert [tags for _, tags in server.messages] == [
            ["kt:logs", "a", "pk:1"], ["kt:orders", "pk:7", "b"], ["kt:logs", "a", "pk:1"], ["kt:orders"],
        ]  # fmt: skip

    def test_commands_are_answered_or_time_out(self, server: Server) -> None:
        with connect(server) as client:
            assert 0 < client.command("ping", b"\0x") < PATIENCE
            assert server.commands == [b"PING\0x"]
            assert client.command("ping") < PATIENCE
            assert client.command("stat") == STAT
            assert client.command("envi") == "Config({})"
            assert client.command("kill") is None
            until(lambda: server.commands[-1] == b"KILL")
            server.answer = b"{}"
            with pytest.raises(ProtocolError, match="stat: "):
                client.command("stat")
            server.deaf = True
            with pytest.raises(ConnectFailed, match="ping: no answer in 0"):
                client.command("ping", timeout=0.1)
            with pytest.raises(ConnectFailed, match="stat: no answer in 0"):
                client.command("stat", timeout=0.1)
            server.deaf = False
            server.answer = stat_of(uptime=9)
            assert client.command("stat")["uptime"] == 9
            for wrong in (("ping", bytes(70_000)), ("quit",)):
                with pytest.raises(ValueError, match="command: "):
                    client.command(*wrong)

    def test_stat_answers_eight_threads_at_once(self, server: Server) -> None:
        found: list[Any] = []
        with connect(server) as client:
            threads = [
                threading.Thread(target=lambda: found.append(client.command("stat", timeout=PATIENCE)))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        assert found == [STAT] * 8

    def test_a_fork_during_a_question_lets_the_child_ask(self, server: Server) -> None:
        server.deaf = True
        with connect(server) as client:

            def ask(timeout: float, words: str) -> None:
                with pytest.raises(ConnectFailed, match=words):
                    client.command("stat", timeout=timeout)

            asking = threading.Thread(target=ask, args=(PATIENCE, "ended before the answer"))
            asking.start()
            until(lambda: server.commands)
            run_in_child(lambda: ask(0.1, "stat: no answer"))
        asking.join(PATIENCE)
        assert not asking.is_alive()

    @pytest.mark.parametrize("how", [{"topic": "t"}, {"key": "k"}, {"tags": ["a"]}, {}])
    def test_a_full_queue_raises(self, how: dict[str, Any]) -> None:
        with logclient.connect("plog://127.0.0.1:9?overflow=raise&max_events=1&pace=1") as client:
            assert isinstance(client, Client)
            with pytest.raises(QueueFull, match="1 events"):
                for _ in range(100_000):
                    client.publish(b"x", **how)
            with pytest.raises(QueueFull):
                for _ in range(100_000):
                    client.event("x", **how)
            client.close(0)

    def test_paced_events_all_arrive_no_faster_than_the_pace(self, server: Server) -> None:
        with connect(server, pace=5000) as client:
            begun = time.monotonic()
            for n in range(1500):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            assert time.monotonic() - begun >= (1500 - 64) / 5000
            until(lambda: len(server.messages) == 1500)
        assert [document["n"] for document in server.documents()] == list(range(1500))

    def test_too_large_event_is_refused_or_failed(self, server: Server) -> None:
        with connect(server) as client:
            client.send(bytes(262_144))
            with pytest.raises(logclient.EncodeError):
                client.send(bytes(262_145))
            client.send(b"{%s}" % (b" " * 262_140))  # the inserted id makes it too large
            assert client.flush(PATIENCE) == 0
            assert client.stats().failed == {"too_large": 2}
            until(lambda: len(server.messages) == 1)

    def test_tags_do_not_count(self, server: Server) -> None:
        """A server does not count them either."""
        with connect(server, max_event_bytes=1000) as client:
            assert client.publish(b"x" * 1000, key="k" * 400) > 0
            with pytest.raises(EncodeError, match=r"longer than max_event_bytes \(1000\)"):
                client.publish(b"x" * 1001, key="k" * 400)
            assert client.flush(PATIENCE) == 0
            assert client.stats().failed == {"too_large": 1}
            until(lambda: len(server.messages) == 1)

    def test_truncate_shortens_a_record_and_flags_it(self, server: Server) -> None:
        handler = logclient.Handler(f"plog://127.0.0.1:{server.port}?truncate=true")
        try:
            handler.handle(logging.makeLogRecord({"msg": "\xe9" * 200_000, "levelno": 20, "n": 5}))
            until(lambda: server.messages)
        finally:
            handler.close()
        (body, _), (document,) = server.messages[0], server.documents()
        assert 260_000 < len(body) <= 262_144
        assert document["data"]["log.flags"] == '["truncated"]'
        assert document["data"]["n"] == "5"

    @pytest.mark.parametrize("limit", [450, 1000, 1300])
    def test_truncate_works_with_a_small_limit(self, server: Server, limit: int) -> None:
        handler = logclient.Handler(f"plog://127.0.0.1:{server.port}?truncate=true&max_event_bytes={limit}")
        messages = ["hi", *("ž" * 300 + "\n" * size for size in range(0, 600, 25))]
        for message in messages:
            handler.handle(logging.makeLogRecord({"msg": message, "levelno": 20, "log.flags": "own"}))
        assert handler.client.flush(PATIENCE) == 0
        assert handler.client.stats().failed == {}
        until(lambda: len(server.messages) == len(messages))
        handler.client.close()
        cut = 0
        for (body, _), document, message in zip(server.messages, server.documents(), messages, strict=True):
            data = document["data"]
            assert len(body) <= limit and message.startswith(data["message"])
            if data["message"] != message:
                cut += 1
                assert (data["log.flags"], data["labels.log_flags"]) == ('["truncated"]', "own")
                assert len(body) > limit - 8
        assert 0 < cut < len(messages)

    def test_handler_sends_records_as_documents(self, server: Server) -> None:
        handler = logclient.Handler(f"plog://127.0.0.1:{server.port}?event_type=web")
        log = logging.getLogger("tests.plog")
        log.propagate = False
        log.addHandler(handler)
        try:
            try:
                raise RuntimeError("boom")
            except RuntimeError:
                log.exception("failed %s", "twice", extra={"order": 7, "labels": {"a": [1]}})
            handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
            log.warning("formatted")
            until(lambda: len(server.messages) == 2)
        finally:
            log.removeHandler(handler)
            handler.close()
        first, second = server.documents()
        data = first["data"]
        assert (first["type"], first["host"]) == ("web", node_name())
        assert all(isinstance(value, str) for value in data.values())
        assert (data["message"], data["log.level"], data["log.logger"]) == (
            "failed twice",
            "error",
            "tests.plog",
        )
        assert (data["order"], data["labels.labels"]) == ("7", '{"a":[1]}')
        assert data["error.type"] == "RuntimeError"
        assert "boom" in data["error.stack_trace"]
        assert "@timestamp" not in data
        assert second["data"] == "WARNING formatted"


class TestMissing:
    def test_feedback_reports_what_is_missing(self, server: Server) -> None:
        server.lose, server.answer = 3, None
        reports: list[str] = []
        with connect(server, feedback="stat", on_error=reports.append) as client:
            for n in range(200):
                client.send(b"%d" % n)
            assert client.flush(PATIENCE) == 0
            until(lambda: client.stats().missing + len(server.messages) == client.stats().handed == 200)
            assert client.stats().missing > 50
            words = "events missing so far, by the server's counters: "
            until(lambda: words in client.stats().last_error)
            until(lambda: reports and reports[-1].endswith(f"{words}{client.stats().missing}"))
        assert client.stats().missing + len(server.messages) == 200

    def test_nothing_is_missing_beside_another_client(self, server: Server) -> None:
        """The server's counters include its events, so they say nothing of ours."""
        server.answer = None
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with connect(server, feedback="stat") as client, other:
            client.send(b"first")
            until(lambda: server.commands)
            other.sendto(b"text", ("127.0.0.1", server.port))
            until(lambda: len(server.messages) == 2)
            server.lose = 1
            asked = len(server.commands)
            client.send(b"lost")
            until(lambda: len(server.commands) > asked)
            client.command("ping")
            assert client.stats().missing == 0


class TestDocuments:
    def ship(
        self, server: Server, record: logging.LogRecord, made: Any = None, **options: Any
    ) -> tuple[dict[str, Any] | None, logclient.Stats]:
        """Ship a record; return its document, without its id, and the counts of the client."""
        with connect(server, **options) as client:
            shipped = client.documents.ship(record, made)
            assert client.flush(PATIENCE) == 0
            stats = client.stats()
        if not shipped:
            return None, stats
        until(lambda: server.messages)
        found = server.documents()[0]
        assert list(found)[-1] == "uuid"
        del found["uuid"]
        return found, stats

    def data_of(self, server: Server, record: logging.LogRecord, made: Any = None, **options: Any) -> Any:
        found, _ = self.ship(server, record, made, **options)
        assert found is not None
        return found["data"]

    def record_of(self, message: Any = "text", **fields: Any) -> logging.LogRecord:
        return logging.makeLogRecord({"msg": message, "created": 12.3456, "levelno": 20, **fields})

    def test_timestamp_is_milliseconds(self, server: Server) -> None:
        found, _ = self.ship(server, self.record_of())
        assert found is not None
        assert list(found) == ["type", "host", "timestamp", "data"]
        assert (found["type"], found["host"], found["timestamp"]) == ("log", node_name(), 12345)
        assert found["data"]["message"] == "text"

    @pytest.mark.parametrize(("made", "data"), [
        ("line", "line"), ({"a": 1, 2: None, "s": "\ud800"}, {"a": "1", "2": "null", "s": "\ufffd"}),
    ])  # fmt: skip
    def test_formatted_line_or_mapping_becomes_data(self, server: Server, made: Any, data: Any) -> None:
        assert self.data_of(server, self.record_of(), made) == data

    def test_mapping_as_message_becomes_fields(self, server: Server) -> None:
        data = self.data_of(server, self.record_of({"event": "paid", "n": 1.5}))
        assert (data["message"], data["n"]) == ("paid", "1.5")

    def test_fields_named_like_ours_stay_in_data(self, server: Server) -> None:
        found, _ = self.ship(server, self.record_of(uuid="mine", type="theirs", data="x"))
        assert found is not None
        assert found["type"] == "log"
        assert (found["data"]["uuid"], found["data"]["type"]) == ("mine", "theirs")

    @pytest.mark.parametrize(("record", "options"), [
        ({"message": "x" * 1000}, {}), ({"extra": "x" * 1000}, {"truncate": True}),
    ])  # fmt: skip
    def test_record_that_cannot_be_encoded_is_counted(
        self, server: Server, capsys: pytest.CaptureFixture[str], record: Any, options: Any
    ) -> None:
        found, stats = self.ship(server, self.record_of(**record), max_event_bytes=500, **options)
        assert found is None
        assert stats.failed == {"too_large": 1}
        said = capsys.readouterr().err
        assert "a record of logger" in said
        assert "longer than max_event_bytes (500)" in said

    def test_sanitized_values_are_counted(self, server: Server) -> None:
        _, stats = self.ship(server, self.record_of(price=float("nan")))
        assert (stats.sanitized, stats.moved) == (1, 0)

    def test_conflicting_fields_move_below_labels(self, server: Server) -> None:
        found, stats = self.ship(server, self.record_of(event="paid", log={"x": 1}))
        assert found is not None
        made = found["data"]
        assert (made["labels.event"], made["labels.log"]) == ("paid", '{"x":1}')
        assert not {"event", "log"} & made.keys()
        assert (stats.sanitized, stats.moved) == (0, 2)

    def test_values_become_strings(self, server: Server) -> None:
        cycle: dict[str, Any] = {}
        cycle["a"] = cycle
        with connect(server) as client:
            assert client.documents.strings({"t": True, "e": "\xe9", "d": {"k": "\xe9"}}) == {
                "t": "true", "e": "\xe9", "d": '{"k":"\xe9"}',
            }  # fmt: skip
            assert client.documents.strings(cycle) == {"a": '{"a":"<cycle>"}'}
