"""Hostile Logux servers and clients; the victim is a process of its own and measured from outside.

After each attack a client delivers everything to an honest server, and a server serves other clients.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.support import need
from tests.support.measured_process import MIB, MeasuredProcess
from tests.support.patience import PATIENCE
from tests.support.websocket import why_python

need("websockets")

from websockets.exceptions import ConnectionClosed  # noqa: E402
from websockets.sync.client import ClientConnection, connect  # noqa: E402
from websockets.sync.server import ServerConnection, serve  # noqa: E402

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
both_pumps = pytest.mark.usefixtures("websocket_pump")

PRODUCER = """
import json
import sys
import logclient

why, url, n, options = json.loads(sys.argv[1])
if why:
    from logclient.transports.websocket import WebSocket
    from tests.support.pumps import refuse_pump

    WebSocket.load_pump = refuse_pump(why)
client = logclient.connect(url, token="secret", backoff_max=0.05, **options)
for number in range(n):
    client.send({"n": number})
print(json.dumps("sent"), flush=True)
for line in sys.stdin:
    left = client.flush(float(line))
    stats = client.stats()
    report = [left, stats.acked, stats.failed, stats.connects, stats.last_error, stats.pump]
    print(json.dumps(report), flush=True)
"""

Attack = Callable[["Peer"], None]


class Peer:
    """A connection at the server's side, after `connect`."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        connect = json.loads(connection.recv(PATIENCE))
        assert connect[:2] == ["connect", 5]
        self.node = connect[2]
        self.base = int(time.time() * 1000)

    def welcome(self) -> None:
        self.send("connected", 5, "server:x", [self.base, self.base])

    def send(self, *message: Any) -> None:
        self.connection.send(json.dumps(message, separators=(",", ":")))

    def syncs(self) -> Any:
        """Yield (added, the ids of the actions) of each sync."""
        while True:
            message = json.loads(self.connection.recv())
            if message[0] == "ping":
                self.send("pong", 0)
            elif message[0] == "sync":
                ids = []
                for meta in message[3::2]:
                    shift, *n = meta["id"] if isinstance(meta["id"], list) else [meta["id"]]
                    ids.append(f"{shift + self.base} {self.node} {n[0] if n else 0}")
                yield message[1], ids

    def honest(self) -> None:
        self.welcome()
        for added, ids in self.syncs():
            self.send("synced", added)
            for id in ids:
                self.send("sync", 0, {"id": id, "type": "logux/processed"}, {"id": 1, "time": 1})


class HostileServer:
    """Handle each connection by the next of `attacks`, and later ones honestly."""

    def __init__(self, *attacks: Attack) -> None:
        self.attacks = list(attacks)
        self.nodes: list[str] = []
        self._server = serve(
            self._serve,
            "127.0.0.1",
            0,
            compression=None,
            max_size=None,
            ping_interval=None,
            close_timeout=0.5,
        )
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def _serve(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed, OSError):
            peer = Peer(connection)
            self.nodes.append(peer.node)
            attack = self.attacks.pop(0) if self.attacks else Peer.honest
            attack(peer)

    def __enter__(self) -> HostileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()


def attack_client(
    *attacks: Attack, n: int = 50, room: int = 8 * MIB, seconds: float = PATIENCE, **options: Any
) -> tuple[list[Any], HostileServer]:
    """Attack a client with `n` events; return its report when all are settled within time and memory.

    It uses the pump that clients of this process use.
    """
    why = why_python()
    with HostileServer(*attacks) as server:
        url = f"logux://127.0.0.1:{server.port}"
        program = MeasuredProcess(PRODUCER, why, url, n, options)
        try:
            assert program.read() == "sent"
            before = program.reset_peak()
            began = time.monotonic()
            report = program.ask(str(seconds), seconds + 5)
            assert time.monotonic() - began < seconds
            assert program.peak() - before < room
            left, acked, failed, _, _, pump = report
            assert pump == (f"python: {why}" if why else "compiled")
            assert left == 0 and acked + sum(failed.values()) == n
            assert not server.attacks
            return report, server
        finally:
            program.end()


def wait_closed(peer: Peer) -> None:
    """Read until the client has closed the connection."""
    with suppress(ConnectionClosed):
        while True:
            peer.connection.recv(PATIENCE)


def sends(data: str | bytes, welcome: bool = True) -> Attack:
    def attack(peer: Peer) -> None:
        if welcome:
            peer.welcome()
        peer.connection.send(data)
        wait_closed(peer)

    return attack


@pytest.mark.slow
@both_pumps
def test_client_survives_long_and_deep_messages() -> None:
    report, _ = attack_client(
        sends(b"[" * (100 * MIB)),
        sends('["sync",1,' + '{"a":' * 3_000_000),
        sends("[" * 15_000_000),
        sends('["sync",1,{"type":"a","b":' + "[" * 600 + "]" * 600 + '},{"id":1,"time":1}]'),
        sends('["debug","error","' + "\\\\u0000" * 2_000_000 + '"'),
        room=120 * MIB,  # a message of 16 MiB exists in pieces, joined, and parsed
    )
    assert report[1:3] == [50, {}]


WRONG: list[Any] = [
    None, [], {}, 5, "x", True, [None], [1], [[]], ["sync"], ["sync", None], ["sync", "1"],
    ["sync", 1, None, None],
    ["sync", 1, {}, {}], ["sync", 1, {"type": 1}, {"id": 1, "time": 1}],
    ["sync", 1, {"type": "a"}, {"time": 1}],
    ["sync", 1, {"type": "a"}, {"id": "1 a 0", "time": 1}],
    ["sync", 1, {"type": "a"}, {"id": [1, 2, 3], "time": 1}],
    ["sync", 1, {"type": "a", "length": 1}, {"id": 1, "time": 1}],
    ["sync", 1, {"type": "a"}, {"id": 1, "time": "1"}],
    ["sync", 1, {"type": "a"}], ["synced"], ["synced", None], ["synced", "1"], ["synced", {}],
    ["synced", 1, 1],
    ["ping"], ["ping", None], ["pong", []], ["headers", None], ["headers", []], ["headers", {"length": 0}],
    ["debug"], ["debug", "error", None], ["debug", "x", "y"], ["error"], ["error", None], ["error", 5],
    ["connect", 5, "a", 0], ["connected", 5, "a", [1, 1]], ["connected", None, None, None], ["synced", 1e308],
]  # fmt: skip


@pytest.mark.slow
@both_pumps
def test_client_survives_wrong_types_in_every_message() -> None:
    """Each comes on a connection of its own; harmless ones are ignored."""

    def attack(wrong: Any) -> Attack:
        def tell(peer: Peer) -> None:
            peer.welcome()
            peer.send(*wrong) if type(wrong) is list else peer.connection.send(json.dumps(wrong))
            peer.connection.recv(PATIENCE)

        return tell

    early = [sends(json.dumps(wrong), welcome=False) for wrong in (["sync", 1], ["ping", 1], 5)]
    report, server = attack_client(*early, *map(attack, WRONG), n=20)
    assert report[1:3] == [20, {}]
    assert len(server.nodes) >= len(WRONG)


@pytest.mark.slow
@both_pumps
@pytest.mark.parametrize(
    "oddity",
    [
        {"id": None}, {"id": 5}, {"id": {}}, {"id": ""}, {"id": "1 2 3"}, {"id": " " * 100},
        {"id": "9" * 1000},
        {"id": "1e999 a 0"}, {}, {"id": "\ud800"},
    ],
)  # fmt: skip
def test_client_ignores_outcomes_of_odd_ids(oddity: dict[str, Any]) -> None:
    def attack(peer: Peer) -> None:
        peer.welcome()
        for kind in ("logux/processed", "logux/undo"):
            for reason in ("error", None, [], "denied"):
                peer.send("sync", 0, {**oddity, "type": kind, "reason": reason}, {"id": 1, "time": 1})
        for added, ids in peer.syncs():
            peer.send("synced", added)
            for id in ids:
                peer.send("sync", 0, {"id": id, "type": "logux/processed"}, {"id": 1, "time": 1})

    report, server = attack_client(attack)
    assert report[1:3] == [50, {}] and len(server.nodes) == 1


@pytest.mark.slow
@both_pumps
def test_client_survives_floods_of_messages() -> None:
    """Pings, outcomes of unsent ids and unknown messages come in masses, and the answers are not read."""

    def flood(text: str, times: int) -> Attack:
        def attack(peer: Peer) -> None:
            peer.welcome()
            for _ in range(times):
                peer.connection.send(text % peer.node if "%s" in text else text)

        return attack

    unsent = '["sync",0,{"id":"1 %s 0","type":"logux/processed"},{"id":1,"time":1}]'
    report, _ = attack_client(flood('["ping",0]', 5_000), flood(unsent, 5_000), flood('["unknown"]', 5_000),
                       room=40 * MIB, seconds=2 * PATIENCE)  # fmt: skip
    assert report[1:3] == [50, {}]


@pytest.mark.slow
@both_pumps
def test_client_leaves_servers_that_never_answer() -> None:
    """Without an answer to `connect`, or to a sync, or with `synced` and no outcome."""

    def silent(peer: Peer) -> None:
        wait_closed(peer)

    def deaf(peer: Peer) -> None:
        peer.welcome()
        wait_closed(peer)

    def jammed(peer: Peer) -> None:
        peer.welcome()
        for added, _ in peer.syncs():
            peer.send("synced", added)

    report, server = attack_client(
        silent, deaf, jammed, jammed, silence=0.5, ping=0.1, processing_timeout=0.3
    )
    assert report[1:3] == [50, {}]
    silent_, deaf_, first, second, honest = (node.split(":")[1] for node in server.nodes)
    assert silent_ == deaf_ and len({deaf_, first, second, honest}) == 4
    assert "jam" in report[4] or "sign of life" in report[4]


@both_pumps
def test_client_needs_no_synced_before_outcomes() -> None:
    def attack(peer: Peer) -> None:
        peer.welcome()
        for _, ids in peer.syncs():
            for id in ids:
                peer.send("sync", 0, {"id": id, "type": "logux/processed"}, {"id": 1, "time": 1})

    report, server = attack_client(attack, n=2000)
    assert report[1:3] == [2000, {}] and len(server.nodes) == 1


@pytest.mark.slow
@both_pumps
def test_client_fails_events_that_are_always_undone() -> None:
    undone = 0

    def attack(peer: Peer) -> None:
        nonlocal undone
        peer.welcome()
        for added, ids in peer.syncs():
            peer.send("synced", added)
            for id in ids:
                undone += 1
                undo = {"id": id, "type": "logux/undo", "reason": "error"}
                peer.send("sync", 0, undo, {"id": 1, "time": 1})

    report, server = attack_client(attack, n=1000, seconds=2 * PATIENCE)
    assert report[1:3] == [0, {"error": 1000}] and len(server.nodes) == 1
    assert undone < 4000


@both_pumps
def test_client_isolates_an_action_that_breaks_the_server() -> None:
    """The server says wrong-format without saying which action; the engine finds it by trials.

    Enough other actions are there for a decision: of about 40 it would run out once in a hundred times.
    """

    def touchy(peer: Peer) -> None:
        peer.welcome()
        while True:
            text = peer.connection.recv()
            message = json.loads(text)
            if message[0] != "sync":
                continue
            if re.search(r'"n":13\b', str(text)):
                peer.send("error", "wrong-format", text)
                return
            peer.send("synced", message[1])
            for meta in message[3::2]:
                shift, *n = meta["id"] if isinstance(meta["id"], list) else [meta["id"]]
                id = f"{shift + peer.base} {peer.node} {n[0] if n else 0}"
                peer.send("sync", 0, {"id": id, "type": "logux/processed"}, {"id": 1, "time": 1})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "honest", touchy)
        report, _ = attack_client(n=200)
    assert report[1:3] == [199, {"poison": 1}]


@pytest.mark.slow
@both_pumps
def test_client_survives_endless_unanswered_messages() -> None:
    """They are of every kind that has no answer."""

    def endless(*message: Any, times: int = 20_000) -> Attack:
        text = json.dumps(message, separators=(",", ":"))

        def attack(peer: Peer) -> None:
            peer.welcome()
            for _ in range(times):
                peer.connection.send(text)
            peer.send("error", "timeout", 1)

        return attack

    report, _ = attack_client(
        endless("connected", 5, "server:x", [1, 1]),
        endless("headers", {"env": "x" * 1000}),
        endless("debug", "error", "x" * 1000),
        endless("synced", 1),
        endless("pong", 1),
        endless("error", "wrong-format", "x"),
        room=24 * MIB,
    )
    assert report[1:3] == [50, {}]


@pytest.mark.slow
@both_pumps
def test_client_keeps_no_actions_without_callbacks() -> None:
    """As many as a message may have, and in as many messages."""

    def news(each: int, times: int) -> Attack:
        action = ',{"type":"news/add","n":1},{"id":[1,"server:y",2],"time":1}'

        def attack(peer: Peer) -> None:
            peer.welcome()
            for _ in range(times):
                peer.connection.send(f'["sync",1{action * each}]')
            peer.send("error", "timeout", 1)

        return attack

    # 100,000 actions are 6 MiB of text, and twenty times as much as objects of Python.
    report, _ = attack_client(news(100_000, 1), news(1, 2_000), room=256 * MIB, seconds=2 * PATIENCE)
    assert report[1:3] == [50, {}]


# -- hostile clients: our server is a process of its own

COLLECTOR = """
import json
import sys
from logclient.testing.logux import Collector

(options,) = json.loads(sys.argv[1])
with Collector(**options) as collector:
    print(json.dumps(collector.port), flush=True)
    for line in sys.stdin:
        print(json.dumps(collector.counts.as_dict()), flush=True)
"""

Harm = Callable[[int], None]


@contextmanager
def dial(port: int, node: str = "u:bad:t", **options: Any) -> Iterator[ClientConnection]:
    address = f"ws://127.0.0.1:{port}"
    more: dict[str, Any] = {"compression": None, "max_size": None, "ping_interval": None}
    with connect(address, close_timeout=0.5, **more) as connection:
        connection.send(json.dumps(["connect", 5, node, 0, {"token": "secret", **options}]))
        yield connection


def client_that_sends(*texts: str | bytes, times: int = 1) -> Harm:
    """Return a client that sends these texts until it is thrown out."""

    def harm(port: int) -> None:
        with suppress(ConnectionClosed, OSError), dial(port) as connection:
            for _ in range(times):
                for text in texts:
                    connection.send(text)
            connection.send('["ping",0]')
            while json.loads(connection.recv(PATIENCE))[0] != "pong":
                pass

    return harm


def client_with_wrong_types(port: int) -> None:
    for wrong in WRONG:
        client_that_sends(json.dumps(wrong))(port)


def many_client_ids(port: int) -> None:
    """Connect with ever new client ids."""
    for number in range(300):
        with dial(port, f"u:{number}{'x' * 900}:t") as connection:
            connection.send('["headers",{"a":"%s"}]' % ("x" * 10_000))
            connection.recv(PATIENCE)


def many_wrong_tokens(port: int) -> None:
    """Connect with ever new tokens, which locks out the address for a while."""
    for number in range(300):
        with suppress(ConnectionClosed), dial(port, token=f"{number}{'x' * 10_000}") as connection:
            connection.recv(PATIENCE)


def client_that_reads_nothing(port: int) -> None:
    """Ask again and again without reading the answers."""
    with suppress(ConnectionClosed, OSError, TimeoutError), dial(port) as connection:
        connection.socket.settimeout(1.0)
        for _ in range(50):
            connection.socket.sendall(PINGS)


def assert_served(connection: ClientConnection) -> None:
    connection.send('["sync",1,{"type":"log/add"},{"id":1,"time":1}]')
    while '"logux/processed"' not in str(connection.recv(PATIENCE)):
        pass


def masked_frame(text: bytes) -> bytes:
    """Make a text frame masked with zeros."""
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text


PINGS = masked_frame(b'["ping",0]') * 10_000
TINY = ',{"type":"log/add"},{"id":%d,"time":1}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "room"),
    [
        pytest.param(client_that_sends(b"[" * (100 * MIB)), 24, id="100 MiB"),
        pytest.param(client_that_sends("[" * 15_000_000), 80, id="nothing but brackets"),
        pytest.param(client_that_sends('["headers",{"a":' + "[" * 600 + "]" * 600 + "}]"), 8, id="deep"),
        pytest.param(client_that_sends('["headers",{"a":[' + "[]," * 5_000_000 + "0]}]"), 128, id="values"),
        # Each action takes thirty times its text as an object of Python, and has an outcome.
        pytest.param(
            client_that_sends('["sync",1' + "".join(TINY % n for n in range(100_000)) + "]"),
            192, id="actions",
        ),
        pytest.param(
            client_that_sends('["sync",1,{"type":"a"},{"id":[1,"%s",0],"time":1}]' % ("x" * 15_000_000)),
            160, id="an id",
        ),
        pytest.param(client_with_wrong_types, 8, id="wrong types"),
        pytest.param(client_that_sends('["connect",5,"u:bad:t",0]', times=1000), 8, id="connect"),
        pytest.param(
            client_that_sends('["synced",1]', '["headers",{}]', '["pong",1]', times=20_000), 8, id="synced"
        ),
        pytest.param(client_that_sends('["ready",1]', times=1000), 8, id="unknown"),
        pytest.param(many_client_ids, 16, id="client ids"),
        pytest.param(many_wrong_tokens, 16, id="tokens"),
        pytest.param(client_that_reads_nothing, 48, id="answers unread"),
    ],
)  # fmt: skip
def test_server_survives_a_hostile_client(harm: Harm, room: int) -> None:
    """It keeps within its memory; a client beside the hostile one is served, and one afterwards."""
    program = MeasuredProcess(COLLECTOR, {"token": "secret"})
    try:
        port = program.read()
        with dial(port, "u:other:t") as beside:
            assert json.loads(beside.recv(PATIENCE))[0] == "connected"
            before = program.reset_peak()
            began = time.monotonic()
            harm(port)
            assert time.monotonic() - began < PATIENCE
            assert_served(beside)
            if harm is not many_wrong_tokens:
                with dial(port, "u:later:t") as later:
                    assert_served(later)
            assert program.peak() - before < room * MIB
    finally:
        program.end()
