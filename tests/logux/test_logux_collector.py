"""The Logux server over real sockets: acknowledgements, captures, refusals and faults.

The peer is the synchronous client of ``websockets``. test_logux_node.py tests the answers without sockets.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logclient
from logclient._ext.logux import Decoder
from logclient.cli.collect import collect
from logclient.errors import ConfigError, ConnectFailed, LedgerError
from logclient.files.capture import FROM_PEER, TO_PEER, CaptureReader, CaptureWriter
from logclient.logux.messages import Refused, Sync, compact, parse
from tests.support import clean_environment, need
from tests.support.patience import PATIENCE

need("websockets")

import websockets.asyncio.client  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidMessage  # noqa: E402
from websockets.sync.client import ClientConnection, connect  # noqa: E402

from logclient.testing.logux import Collector, _actions, decode  # noqa: E402
from tests.support.logux_messages import messages  # noqa: E402

PRODUCER = "0a" * 10


# --- a client by hand --------------------------------------------------------------------------


def name(sequence: int) -> str:
    return f"{PRODUCER}{sequence:012x}"


def action(sequence: int, **more: Any) -> dict[str, Any]:
    """Make an action as our client does."""
    return {"type": "log/add", "data": {"message": f"line {sequence}", **more}, "id": name(sequence)}


class Peer:
    """A client that has sent ``connect``, unless `node_id` is None."""

    def __init__(self, collector: Collector | int, node_id: str | None = "u:c:t", **options: Any) -> None:
        port = collector if isinstance(collector, int) else collector.port
        given: dict[str, Any] = {"compression": None, "max_size": None, "open_timeout": PATIENCE, **options}
        path = given.pop("path", "/")
        credentials = given.pop("credentials", {"subprotocol": 1})
        self._context = connect(f"ws://127.0.0.1:{port}{path}", ping_interval=None, **given)
        self.sock: ClientConnection = self._context.__enter__()
        self.added = 0
        if node_id is not None:
            self.send_message("connect", 5, node_id, 0, credentials)
            self.answer = self.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)

    def send_message(self, *message: Any) -> None:
        self.sock.send(compact(list(message)).decode())

    def receive(self) -> Any:
        return json.loads(self.sock.recv(PATIENCE))

    def send(self, *actions: dict[str, Any]) -> None:
        """Send one sync; ids count on."""
        parts: list[Any] = []
        for one in actions:
            self.added += 1
            parts += [one, {"id": self.added, "time": self.added}]
        self.send_message("sync", self.added, *parts)

    def outcomes(self, n: int) -> list[str]:
        """Return the next `n` messages: "synced", or the outcome of an action."""
        received = []
        for _ in range(n):
            message = self.receive()
            if message[0] == "sync":
                received.append(message[2].get("reason", "processed"))
                self.send_message("synced", message[1])
            else:
                received.append(message[0])
        return received

    def ship(self, *actions: dict[str, Any]) -> list[str]:
        self.send(*actions)
        return self.outcomes(1 + len(actions))

    def receive_rest(self) -> list[Any]:
        """Return the messages until the connection ends."""
        received = []
        try:
            while True:
                received.append(self.receive())
        except ConnectionClosed:
            return received

    def is_silent(self) -> bool:
        """Return whether nothing comes any more: a ping is not answered."""
        try:
            self.sock.recv(0.2)
        except TimeoutError:
            return True
        return False


def captured(path: Path, direction: int = FROM_PEER) -> list[bytes]:
    return [unit.raw for unit in CaptureReader(path) if unit.direction == direction]


def sequences(path: Path) -> list[list[int]]:
    """Return the sequences of the events of each captured sync."""
    syncs = [decode(raw) for raw in captured(path)]
    return [[int(one["id"][20:], 16) for one in actions] for actions in syncs if actions]


def logged_faults(path: Path) -> list[tuple[str, list[str]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["fault"], line["ids"]) for line in lines]


class TestActions:
    def test_actions_are_acknowledged_kept_and_captured(self, tmp_path: Path) -> None:
        with Collector(capture=str(tmp_path), keep=True, clock=lambda: 1000) as collector:
            with Peer(collector) as peer:
                assert peer.answer == ["connected", 5, "server:logclient", [1000, 1000], {"subprotocol": 1}]
                assert peer.ship(action(1), action(2)) == ["synced", "processed", "processed"]
                assert collector.events(2) == [action(1), action(2)]
            assert collector.wait_for(lambda counts: counts.open == 0)
            counts = collector.counts
        units = list(CaptureReader(tmp_path))
        assert [(unit.direction, json.loads(unit.raw)[0]) for unit in units[:6]] == [
            (FROM_PEER, "connect"), (TO_PEER, "connected"), (FROM_PEER, "sync"), (TO_PEER, "synced"),
            (TO_PEER, "sync"), (TO_PEER, "sync"),
        ]  # fmt: skip
        assert json.loads(units[2].raw)[2] == action(1)
        assert len({unit.stream for unit in units}) == 1
        assert (counts.connections, counts.syncs, counts.events, counts.acks, counts.outcomes) == (
            1,
            1,
            2,
            1,
            2,
        )
        assert (counts.captured_syncs, counts.captured_events, counts.logins) == (1, 2, 1)
        assert (counts.truncated, counts.protocol_errors) == (0, 0)

    def test_action_is_captured_before_its_acknowledgement(self, tmp_path: Path) -> None:
        with Collector(capture=str(tmp_path)) as collector, Peer(collector) as peer:
            for n in range(1, 20):
                peer.send(action(n))
                assert peer.outcomes(1) == ["synced"]
                assert sequences(tmp_path)[-1] == [n], "acknowledged, and not in the file"
                peer.outcomes(1)

    def test_uncaptured_action_is_not_acknowledged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Collector(capture=str(tmp_path)) as collector, Peer(collector) as peer:
            assert peer.ship(action(1)) == ["synced", "processed"]
            real = CaptureWriter.flush

            def full(writer: CaptureWriter) -> None:
                writer._pending = []
                raise LedgerError("capture: no space left")

            monkeypatch.setattr(CaptureWriter, "flush", full)
            peer.send(action(2))
            assert peer.receive_rest() == []
            monkeypatch.setattr(CaptureWriter, "flush", real)
            with Peer(collector) as again:
                assert again.ship(action(2)) == ["synced", "processed"]
            assert collector.counts.capture_errors >= 1

    @pytest.mark.parametrize("path", ["/", "/any/path?x=1"])
    def test_any_path_is_accepted_and_no_compression(self, path: str) -> None:
        """As in the recording http-upgrade, permessage-deflate is offered and not accepted."""
        with Collector() as collector, Peer(collector, path=path, compression="deflate") as peer:
            assert peer.sock.response is not None
            assert peer.sock.response.status_code == 101
            assert "Sec-WebSocket-Extensions" not in peer.sock.response.headers
            assert peer.ship(action(1)) == ["synced", "processed"]

    def test_compression_is_accepted_if_switched_on(self, tmp_path: Path) -> None:
        with Collector(deflate=True, capture=str(tmp_path)) as collector:
            with Peer(collector, compression="deflate") as peer:
                assert peer.sock.response is not None
                assert "permessage-deflate" in peer.sock.response.headers["Sec-WebSocket-Extensions"]
                for n in range(1, 4):
                    assert peer.ship(action(n, pad="x" * 1000)) == ["synced", "processed"]
            assert sequences(tmp_path) == [[1], [2], [3]]
            assert collector.counts.bytes < 2000

    def test_binary_and_fragmented_messages_are_read(self) -> None:
        with Collector(keep=True) as collector, Peer(collector) as peer:
            raw = compact(["sync", 1, action(1), {"id": 1, "time": 1}])
            peer.sock.send(raw)
            assert peer.outcomes(2) == ["synced", "processed"]
            peer.sock.send(iter([raw[:5], b"", raw[5:40], raw[40:]]))
            assert peer.outcomes(2) == ["synced", "processed"]
            peer.sock.ping().wait(PATIENCE)
            assert collector.events(2) == [action(1)] * 2

    def test_ping_is_answered_and_counted(self) -> None:
        with Collector() as collector, Peer(collector) as peer:
            peer.send_message("ping", 0)
            assert peer.receive() == ["pong", 0]
            assert collector.counts.pings == 1

    def test_idle_client_is_pinged_and_timed_out(self) -> None:
        with Collector(ping=0.05, timeout=0.2) as collector, Peer(collector) as peer:
            assert peer.receive() == ["ping", 0]
            peer.send_message("pong", 0)
            assert peer.receive_rest() == [["ping", 0]]
            assert peer.sock.close_code == 1005
            assert collector.counts.timeouts == 1

    def test_client_that_never_answers_is_cut(self) -> None:
        with Collector(ping=0, timeout=0.2) as collector, Peer(collector) as peer:
            peer.send(action(1))
            assert [message[0] for message in peer.receive_rest()] == ["synced", "sync"]
            assert collector.counts.timeouts == 1

    def test_connection_without_connect_is_cut(self) -> None:
        with Collector(ping=0, timeout=0.1) as collector:
            with Peer(collector, None) as peer:
                assert peer.receive_rest() == []
            with socket.create_connection(("127.0.0.1", collector.port), timeout=PATIENCE) as silent:
                assert silent.recv(10) == b""

    def test_pushed_actions_reach_the_clients(self) -> None:
        with Collector() as collector, Peer(collector) as one, Peer(collector, "u:other:t") as other:
            collector.push({"type": "hello"})
            assert one.receive()[:3] == other.receive()[:3] == ["sync", 0, {"type": "hello"}]
            collector.push({"type": "alone"}, "u:other")
            assert other.receive()[2] == {"type": "alone"}
            one.send_message("headers", {"a": 1})
            one.send_message("ping", 0)
            assert one.receive() == ["pong", 0]
            assert collector.clients == {"u:c:t": {"a": 1}, "u:other:t": {}}
            with pytest.raises(TypeError):
                collector.push({"type": object()})

    def test_restart_keeps_port_and_capture(self, tmp_path: Path) -> None:
        collector = Collector(capture=str(tmp_path))
        for n in (1, 2):
            with collector, Peer(collector) as peer:
                port = collector.port
                assert peer.ship(action(n)) == ["synced", "processed"]
        assert collector.port == port
        assert sequences(tmp_path) == [[1], [2]]
        assert CaptureReader(tmp_path).listeners == [f"logux-127.0.0.1-{port}"]

    def test_duplicates_are_counted_by_id(self) -> None:
        with Collector(count_duplicates=True) as collector, Peer(collector) as peer:
            peer.ship(*(action(n) for n in (1, 2, 3)))
            peer.ship(*(action(n) for n in (2, 3, 4)))
            peer.ship(action(3), {"type": "log/add"})
            assert (collector.counts.duplicates, collector.counts.copies) == (2, 3)

    def test_hold_delays_answers_until_release(self) -> None:
        with Collector() as collector, Peer(collector) as peer:
            collector.hold()
            peer.send(action(1))
            assert collector.wait_for(events=1)
            assert peer.is_silent()
            collector.release()
            assert peer.outcomes(2) == ["synced", "processed"]

    def test_cut_ends_every_connection(self) -> None:
        with Collector() as collector, Peer(collector) as peer:
            collector.cut()
            assert peer.receive_rest() == []
            assert peer.sock.close_code == 1006

    def test_wrong_argument_is_named(self) -> None:
        with pytest.raises(ConfigError, match="port"):
            Collector(port=70000)
        with pytest.raises(ConfigError, match="partial-ack"):
            Collector(faults="partial-ack=every:1")
        with pytest.raises(ConfigError, match="authenticate"):
            Collector(token="x", authenticate=lambda login: True)
        with Collector() as collector, pytest.raises(ConnectFailed, match="listen"):
            Collector(port=collector.port).start()


class TestLogin:
    def test_the_capture_has_no_token(self, tmp_path: Path) -> None:
        with Collector(token="hunter2", capture=str(tmp_path / "captured")) as collector:
            for token in ("hunter2", "hunter2, or so", 'hunter2 "quoted"'):
                with Peer(collector, credentials={"token": token, "subprotocol": 1}):
                    pass
            with Peer(collector, None) as peer:
                peer.sock.send('["connect", 5, null, 0, {"token": "hunter2"}]')
                assert "hunter2" in peer.receive()[2]  # quoted to the sender only
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert sum(data.count(b'"token":"*******"') for data in files) == 1
        assert not [data for data in files if b"hunter2" in data]

    def test_wrong_tokens_are_refused_and_lock_out(self) -> None:
        with Collector(token="secret", minimum=1) as collector:
            with Peer(collector, credentials={"token": "secret", "subprotocol": 1}) as peer:
                assert peer.answer[0] == "connected"
            for credentials in (
                {"token": "bad", "subprotocol": 1},
                {"subprotocol": 1},
                {"token": 5, "subprotocol": 1},
            ):
                with Peer(collector, credentials=credentials) as peer:
                    assert peer.answer == ["error", "wrong-credentials"]
                    assert peer.receive_rest() == []
                    assert peer.sock.close_code == 1005
            with Peer(collector, credentials={"token": "secret", "subprotocol": 1}) as peer:
                assert peer.answer == ["error", "wrong-credentials"], "three bad ones within 3 s"
            assert (collector.counts.logins, collector.counts.refused_logins) == (1, 4)

    def test_refusal_is_read_by_a_client_that_sends_on(self) -> None:
        """A connection closed with unread bytes is reset, which would lose the reason."""
        with Collector(token="secret") as collector, Peer(collector, None) as peer:
            peer.send_message("connect", 5, "u:c:t", 0, {"token": "bad"})
            try:
                for n in range(200):
                    peer.send(action(n, pad="x" * 1000))
            except ConnectionClosed:
                pass
            assert peer.receive_rest() == [["error", "wrong-credentials"]]

    def test_second_connection_of_a_client_closes_the_first(self) -> None:
        with Collector() as collector, Peer(collector) as first, Peer(collector, "u:c:t2") as second:
            assert first.receive_rest() == []
            assert first.sock.close_code == 1005
            assert second.ship(action(1)) == ["synced", "processed"]

    def test_actions_are_acknowledged_over_tls(self, tmp_path: Path) -> None:
        import ssl

        from logclient.transports.tls import server_context
        from tests.support.tls import Authority

        authority = Authority(tmp_path / "ca")
        trust = ssl.create_default_context(cafile=authority.ca)
        with Collector(tls=server_context(authority.issue("server")), keep=True) as collector:
            assert collector.url.startswith("logux+tls://")
            big = action(1, pad="x" * 500_000)

            # Not `Peer`: it reads and writes in two threads, which before Python 3.13 TLS does not bear.
            async def ship() -> list[str]:
                url = f"wss://127.0.0.1:{collector.port}"
                async with websockets.asyncio.client.connect(url, ssl=trust) as sock:
                    await sock.send(json.dumps(["connect", 5, "u:c:t", 0, {"subprotocol": 1}]))
                    assert json.loads(await sock.recv())[0] == "connected"
                    await sock.send(json.dumps(["sync", 1, big, {"id": 1, "time": 1}]))
                    return [json.loads(await sock.recv())[0] for _ in range(2)]

            assert asyncio.run(asyncio.wait_for(ship(), PATIENCE)) == ["synced", "sync"]
            assert collector.events(1) == [big]


# --- faults --------------------------------------------------------------------------------------


class Faulty:
    """A collector with faults, its capture and its fault log."""

    def __init__(self, tmp_path: Path, faults: str) -> None:
        self.capture, self.fault_log = tmp_path / "capture", tmp_path / "fault_log"
        self.collector = Collector(
            capture=str(self.capture), faults=faults, fault_log=str(self.fault_log), count_duplicates=True
        )

    def __enter__(self) -> Self:
        self.collector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.collector.stop()

    def peer(self, node_id: str = "u:c:t") -> Peer:
        return Peer(self.collector, node_id)


class TestCuts:
    @pytest.mark.parametrize(
        "fault, received, kept",
        [
            ("cut-before-write", 0, [[1]]),
            ("cut-before-ack", 0, [[1], [2, 3]]),
            ("partial-cut", 2, [[1], [2, 3]]),
            ("cut-after-ack", 3, [[1], [2, 3]]),
        ],
    )
    def test_cut_faults_capture_and_answer_as_named(
        self, tmp_path: Path, fault: str, received: int, kept: list[list[int]]
    ) -> None:
        with Faulty(tmp_path, f"{fault}=every:2:max:1") as faulty:
            with faulty.peer() as peer:
                assert peer.ship(action(1)) == ["synced", "processed"]
                peer.send(action(2), action(3))
                if not received:  # otherwise the reset might lose the answers
                    try:
                        peer.send(action(9))  # behind a cut: it never arrives
                    except ConnectionClosed:
                        pass
                assert len(peer.receive_rest()) == received
                assert peer.sock.close_code == 1006, "cut, not closed"
            with faulty.peer() as peer:
                assert peer.ship(action(2), action(3)) == ["synced", "processed", "processed"]
            counts = faulty.collector.counts
        assert sequences(faulty.capture) == [*kept, [2, 3]]
        assert counts.cuts == 1
        assert counts.cuts_before_ack == (fault in ("cut-before-ack", "partial-cut"))
        assert counts.copies == (0 if fault == "cut-before-write" else 2)

    def test_partial_cut_needs_more_than_one_action(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "partial-cut=every:1") as faulty, faulty.peer() as peer:
            assert peer.ship(action(1)) == ["synced", "processed"]
            assert faulty.collector.report["faults"] == {"partial-cut": 0}


class TestDelays:
    def test_no_reply_leaves_out_the_outcomes(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "no-reply=every:2") as faulty, faulty.peer() as peer:
            assert peer.ship(action(1)) == ["synced", "processed"]
            peer.send(action(2))
            assert peer.outcomes(1) == ["synced"]
            assert peer.ship(action(3)) == ["synced", "processed"]
            counts = faulty.collector.counts
        assert sequences(faulty.capture) == [[1], [2], [3]]
        assert (counts.acks, counts.unanswered, counts.outcomes) == (2, 1, 2)

    @pytest.mark.parametrize("alive", [False, True])
    def test_stall_silences_one_connection(self, tmp_path: Path, alive: bool) -> None:
        with Faulty(tmp_path, f"stall=every:1:max:1{':alive' if alive else ''}") as faulty:
            with faulty.peer() as peer, faulty.peer("u:other:t") as other:
                peer.send(action(1))
                peer.send(action(2))
                assert faulty.collector.wait_for(events=2, timeout=PATIENCE)
                assert other.ship(action(3)) == ["synced", "processed"]
                peer.send_message("ping", 0)
                if alive:
                    assert peer.receive() == ["pong", 0]
                assert peer.is_silent()
            assert faulty.collector.counts.stalls == 1
        assert sorted(sequences(faulty.capture)) == [[1], [2], [3]]

    def test_delayed_ack_keeps_the_order_of_answers(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "delay-ack=from:1:max:1:100ms") as faulty, faulty.peer() as peer:
            begun = time.monotonic()
            peer.send(action(1))
            peer.send(action(2))
            assert [peer.receive()[1] for _ in range(4)] == [1, 0, 2, 0]
            assert time.monotonic() - begun >= 0.1


class TestDataFaults:
    def test_discard_acknowledges_and_does_not_capture(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "discard=every:2:per-connection") as faulty:
            for base in (0, 100):
                with faulty.peer() as peer:
                    for n in range(1, 5):
                        assert peer.ship(action(base + n), action(base + n + 50)) == [
                            "synced", "processed", "processed"
                        ]  # fmt: skip
            counts = faulty.collector.counts
        assert sequences(faulty.capture) == [[1, 51], [3, 53], [101, 151], [103, 153]]
        assert logged_faults(faulty.fault_log) == [
            ("discard", [name(n), name(n + 50)]) for base in (0, 100) for n in (base + 2, base + 4)
        ]
        assert (counts.syncs, counts.captured_syncs, counts.acks) == (8, 4, 8)
        assert (counts.events, counts.captured_events, counts.outcomes) == (16, 8, 16)

    def test_swap_captures_after_the_next_sync(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "swap=every:2:max:1:20s") as faulty, faulty.peer() as peer:
            assert peer.ship(action(1)) == ["synced", "processed"]
            peer.send(action(2), action(3))
            other = faulty.peer("u:other:t")
            assert other.ship(action(9)) == ["synced", "processed"]
            assert faulty.collector.counts.acks == 2, "it waits for the capture"
            peer.send(action(4))
            assert [peer.receive()[1] for _ in range(5)] == [3, 0, 0, 4, 0]
            other.sock.close()
        assert sequences(faulty.capture) == [[1], [9], [4], [2, 3]]
        assert logged_faults(faulty.fault_log) == [("swap", [name(2), name(3)])]

    def test_swap_without_a_partner_is_given_up(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "swap=every:1:50ms:max:1") as faulty, faulty.peer() as peer:
            assert peer.ship(action(1)) == ["synced", "processed"]
            assert faulty.collector.report["faults"] == {"swap": 0}
        assert sequences(faulty.capture) == [[1]]
        assert logged_faults(faulty.fault_log) == []

    def test_duplicate_captures_a_sync_twice(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "duplicate=every:2") as faulty, faulty.peer() as peer:
            for n in range(1, 4):
                assert peer.ship(action(n)) == ["synced", "processed"]
            counts = faulty.collector.counts
        assert sequences(faulty.capture) == [[1], [2], [2], [3]]
        assert logged_faults(faulty.fault_log) == [("duplicate", [name(2)])]
        assert (counts.copies, counts.captured_events, counts.events) == (1, 4, 3)

    def test_corrupt_changes_one_action_and_keeps_its_id(self, tmp_path: Path) -> None:
        sent = [[action(n, n=n, text='with "quotes", é and \\'), action(n + 1)] for n in range(1, 60, 2)]
        with Faulty(tmp_path, "corrupt=every:1,seed=4") as faulty, faulty.peer() as peer:
            for actions in sent:
                assert peer.ship(*actions) == ["synced", "processed", "processed"]
        kept = [decode(raw) for raw in captured(faulty.capture)]
        changed = []
        for before, after in zip(sent, [actions for actions in kept if actions], strict=True):
            assert [(one["id"], one["type"]) for one in before] == [(one["id"], one["type"]) for one in after]
            changed.append([one["id"] for one, other in zip(before, after, strict=True) if one != other])
        assert logged_faults(faulty.fault_log) == [("corrupt", ids) for ids in changed]
        assert {len(ids) for ids in changed} == {1}

    def test_add_captures_an_invented_action(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "add=every:2") as faulty, faulty.peer() as peer:
            assert peer.ship(action(1)) == ["synced", "processed"]
            assert peer.ship(action(2), action(3)) == ["synced", "processed", "processed"]
        ((fault, (new,)),) = logged_faults(faulty.fault_log)
        last = decode(captured(faulty.capture)[-1 - 2])  # two answers are captured behind it
        assert fault == "add"
        assert [one["id"] for one in last] == [name(2), name(3), new]
        assert last[2]["data"] in (action(2)["data"], action(3)["data"])
        assert new not in (name(2), name(3))

    @pytest.mark.parametrize("fault", ["add", "corrupt"])
    def test_actions_that_cannot_be_read_are_not_changed(self, tmp_path: Path, fault: str) -> None:
        with Faulty(tmp_path, f"{fault}=every:1") as faulty, faulty.peer() as peer:
            assert peer.ship(action(1, n=10**400)) == ["synced", "processed"]
            assert faulty.collector.report["faults"] == {fault: 0}
        assert logged_faults(faulty.fault_log) == []

    def test_faults_spare_messages_without_actions(self, tmp_path: Path) -> None:
        with Faulty(tmp_path, "discard=every:1,cut-before-ack=every:1") as faulty, faulty.peer() as peer:
            peer.send_message("ping", 0)
            assert peer.receive() == ["pong", 0]
            peer.send_message("sync", 0)
            assert peer.outcomes(1) == ["synced"]
            assert faulty.collector.counts.syncs == 0
        assert [json.loads(raw)[0] for raw in captured(faulty.capture)] == ["connect", "ping", "sync"]


# --- our own client, and the decoder of captures --------------------------------------------------


class TestOurClient:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "options, query, copies",
        [
            ({}, "", 0),
            ({"strict_spec": True, "minimum": "1.0.0"}, "?strict_spec=true", 0),
            ({"development": True, "headers": {"a": 1}}, "", 0),
            ({"deflate": True}, "?deflate=on", 0),
            ({"keep_log": True, "faults": "cut-before-ack=every:2:max:3"}, "?window=20", 20),
            ({"faults": "cut-before-write=every:3:max:3"}, "?window=20", 0),
            ({"faults": "no-reply=from:2:max:3"}, "?window=20&inflight=3&processing_timeout=1s", 60),
        ],
        ids=["plain", "strict", "development", "deflate", "cut", "cut-before-write", "jam"],
    )
    def test_client_delivers_all_under_each_option(
        self, options: dict[str, Any], query: str, copies: int
    ) -> None:
        with Collector(keep=True, count_duplicates=True, **options) as collector:
            with logclient.connect(collector.url + query) as client:
                for n in range(300):
                    client.send({"n": n})
                assert client.flush(PATIENCE) == 0
                stats = client.stats()
            assert (stats.acked, stats.failed) == (300, {})
            numbers = [event["data"]["n"] for event in collector.events()]
            assert sorted(set(numbers)) == list(range(300))
            assert len(numbers) == 300 + collector.counts.copies
            assert collector.counts.copies >= copies
            assert copies or "faults" in options or not collector.counts.copies
            assert collector.reasons == {}

    def test_actions_undone_with_denied_ones_are_processed(self) -> None:
        def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
            return "denied" if action["data"]["n"] % 70 == 5 else ""

        with Collector(judge=judge) as collector, logclient.connect(collector.url) as client:
            for n in range(300):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            assert (client.stats().acked, client.stats().failed) == (295, {"denied": 5})
            assert collector.counts.undone > 5, "no action was undone with a denied one"


@pytest.mark.slow
@settings(max_examples=300)
@given(messages, st.booleans())
def test_decoder_finds_each_action_that_was_answered(value: Any, ascii_only: bool) -> None:
    """They are found to the byte."""
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    try:
        message = parse(raw)
    except Refused:
        return
    found = [json.loads(raw[start:end]) for start, end, _ in _actions(Decoder(), raw)]
    assert found == [one for one, _ in (message.entries if isinstance(message, Sync) else [])]


# --- hostile peers -------------------------------------------------------------------------------


class TestHostile:
    @pytest.mark.parametrize("raw", ["[1,", '["sync",1,null,null]', "[" * 100_000, '["ready",0]'])
    def test_invalid_message_ends_its_connection_only(self, raw: str) -> None:
        with Collector() as collector, Peer(collector) as peer, Peer(collector, "u:other:t") as other:
            peer.sock.send(raw)
            assert [message[0] for message in peer.receive_rest()] == ["error"]
            assert peer.sock.close_code == 1005
            assert other.ship(action(1)) == ["synced", "processed"]
            assert collector.counts.protocol_errors == 1

    def test_too_large_message_closes_the_connection(self) -> None:
        with Collector(max_message=100_000) as collector, Peer(collector) as peer:
            assert peer.ship(action(1, pad="x" * 90_000)) == ["synced", "processed"]
            try:
                peer.send(action(2, pad="x" * 100_000))
            except ConnectionClosed:
                pass
            assert peer.receive_rest() == []
            assert peer.sock.close_code == 1009
            assert collector.reasons == {"websocket: PayloadTooBig": 1}

    def test_bytes_before_login_are_limited(self) -> None:
        with Collector(token="x") as collector:
            with Peer(collector, None) as peer:
                try:
                    for n in range(10_000):
                        peer.send(action(n))
                except ConnectionClosed:
                    pass
                assert peer.receive_rest() == []
            with Peer(collector, None) as peer:
                try:
                    peer.send(action(1, pad="x" * (1 << 20)))
                except ConnectionClosed:
                    pass
                assert peer.receive_rest() == []
                assert peer.sock.close_code == 1009
            counts = collector.counts
        assert counts.captured_events == 0
        assert counts.protocol_errors == 2

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "request_", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\1\2\3\r\n\r\n", b"x" * 100_000, b"2W\0\0\0\1"]
    )
    def test_other_protocols_do_no_harm(self, request_: bytes) -> None:
        with Collector(timeout=1, ping=0) as collector:
            with socket.create_connection(("127.0.0.1", collector.port), timeout=PATIENCE) as sock:
                try:
                    sock.sendall(request_)
                    while sock.recv(10_000):
                        pass
                except ConnectionResetError:
                    pass
            with Peer(collector) as peer:
                assert peer.ship(action(1)) == ["synced", "processed"]

    @pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\n"])
    def test_idle_connection_without_login_is_closed(self, begin: bytes) -> None:
        with Collector(idle=0.1) as collector:
            with socket.create_connection(("127.0.0.1", collector.port), timeout=PATIENCE) as sock:
                sock.sendall(begin)
                assert sock.recv(100) == b""
            assert collector.counts.idle_closes == 1

    def test_connection_beyond_the_maximum_is_closed(self) -> None:
        with Collector(max_connections=1) as collector, Peer(collector) as peer:
            with socket.create_connection(("127.0.0.1", collector.port), timeout=PATIENCE) as sock:
                assert sock.recv(100) == b""
            assert peer.ship(action(1)) == ["synced", "processed"]
            assert collector.reasons == {"connections: too many": 1}

    def test_port_without_a_websocket_server_fails(self) -> None:
        """The connection is accepted, and nothing answers."""
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises((TimeoutError, InvalidMessage)):
            Peer(silent.getsockname()[1], open_timeout=0.1)

    @pytest.mark.slow
    def test_peer_that_never_reads_costs_bounded_memory(self) -> None:
        """The server stops reading from it."""
        with Collector(types=["none"], ping=0) as collector, Peer(collector) as peer:
            peer.sock.socket.settimeout(1.0)
            sent = 0
            pad = "x" * 100_000
            try:
                while sent < 100 << 20:
                    peer.send(action(1, pad=pad))
                    sent += len(pad)
            except (TimeoutError, ConnectionClosed):
                pass
            with Peer(collector, "u:other:t") as other:
                assert other.ship(action(1)) == ["synced", "unknownType"]
            with collector._changed:
                waiting = sum(len(one.out) for one in collector._connections.values())
            assert waiting < 16 << 20
            assert collector.counts.bytes < 64 << 20

    @pytest.mark.slow
    def test_peer_that_never_reads_times_out(self) -> None:
        with (
            Collector(types=["none"], ping=0, timeout=0.3) as collector,
            socket.create_connection(("127.0.0.1", collector.port), timeout=0.5) as sock,
        ):
            sock.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            sync = ["sync", 1, {"type": "x", "pad": "x" * 5000}, {"id": 1, "time": 1}]
            for message in (["connect", 5, "u:c:t", 0], *[sync] * 10_000):
                raw = compact(message)
                length = bytes([0x80 | len(raw)]) if len(raw) < 126 else b"\xfe" + len(raw).to_bytes(2, "big")
                try:
                    sock.sendall(b"\x81" + length + bytes(4) + raw)
                except OSError:  # the server has stopped reading, or closed
                    break
            assert collector.wait_for(lambda counts: counts.open == 0, timeout=PATIENCE)
            assert collector.counts.timeouts == 1
            assert collector.counts.events < 10_000

    def test_resets_and_half_closes_do_no_harm(self) -> None:
        with Collector() as collector:
            for _ in range(20):
                peer = Peer(collector)
                peer.send(action(1))
                peer.sock.socket.shutdown(socket.SHUT_RDWR)
            with Peer(collector) as peer:
                assert peer.ship(action(2)) == ["synced", "processed"]
            assert collector.wait_for(lambda counts: counts.open == 0)

    @pytest.mark.slow
    def test_huge_messages_cost_bounded_memory(self, tmp_path: Path) -> None:
        """Measured from outside: one message of 100 MiB, and one that never ends."""
        command = [
            sys.executable,
            "-m",
            "logclient",
            "collect",
            "logux://127.0.0.1:0",
            "--capture",
            str(tmp_path),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment(), text=True) as process:
            try:
                assert process.stdout is not None
                port = json.loads(process.stdout.readline())["port"]
                before = rss(process.pid)
                with Peer(port) as peer:
                    try:
                        peer.send(action(1, pad="x" * (100 << 20)))
                    except ConnectionClosed:
                        pass
                    assert peer.receive_rest() == []
                    assert peer.sock.close_code == 1009
                with Peer(port) as peer:
                    try:
                        peer.sock.send(iter([b"[" + b"0," * 50_000] * 200))
                    except ConnectionClosed:
                        pass
                    assert peer.receive_rest() == []
                with Peer(port) as peer:
                    assert peer.ship(action(1)) == ["synced", "processed"]
                assert peak(process.pid) - before < 160 << 10
            finally:
                process.terminate()


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise AssertionError(field)


def rss(pid: int) -> int:
    """KiB."""
    return _status(pid, "VmRSS:")


def peak(pid: int) -> int:
    return _status(pid, "VmHWM:")


# --- the command, and the fixture ----------------------------------------------------------------


class TestCommand:
    def run(self, url: str, **options: Any) -> list[dict[str, Any]]:
        out = io.StringIO()
        with redirect_stdout(out):
            collect([url], capture=None, seconds=0.01, as_json=True, **options)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def test_command_prints_url_and_counts(self) -> None:
        first, last = self.run("logux://127.0.0.1:0", faults="discard=every:5")
        assert first["url"] == f"logux://127.0.0.1:{first['port']}"
        assert (last["cuts"], last["copies"], last["faults"]) == (0, 0, {"discard": 0})

    def test_options_of_the_url_are_accepted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOKEN_HERE", "planted-secret")
        options = (
            "token=env:TOKEN_HERE&subprotocol=3&minimum=2&types=log/add,x&development=true&keep_log=true"
        )
        for line in self.run(
            f"logux://127.0.0.1:0?{options}&timeout=30s&ping=5s&max_message=1MiB&deflate=on"
        ):
            assert "planted-secret" not in json.dumps(line)
        assert self.run("logux://127.0.0.1:0?strict_spec=true&minimum=1.0.0")

    def test_options_of_the_url_are_percent_decoded(self, tmp_path: Path) -> None:
        (tmp_path / "a b").write_text("secret")
        assert self.run(f"logux://127.0.0.1:0?token=file:{tmp_path}/a%20b&keep_log=tru%65")

    @pytest.mark.parametrize(
        "options, field",
        [("token=secret", "token"), ("keep_log=5", "keep_log"), ("foo=1", "foo"), ("window=5", "window")],
    )
    def test_wrong_option_of_the_url_is_named(self, options: str, field: str) -> None:
        with pytest.raises(ConfigError, match=field):
            self.run(f"logux://127.0.0.1:0?{options}")


@pytest.mark.parametrize("log_collector_scheme", ["logux"])
def test_log_collector_fixture_speaks_logux(log_collector: Collector) -> None:
    with Peer(log_collector) as peer:
        peer.ship(action(1))
    assert log_collector.events(1)[0]["data"]["message"] == "line 1"
