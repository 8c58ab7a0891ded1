"""Against @logux/server, @logux/client and @logux/core, as they are released.

The programs are in tests/interop/logux; npm installs them (`make deps`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.logux_server import LoguxServer

pytest.importorskip("websockets")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

pytestmark = [pytest.mark.tree, pytest.mark.timeout(120)]


class Raw:
    """A connection that says what it is told to, for what no good client does."""

    def __init__(self, server: LoguxServer, node_id: str = "u:raw:tab", token: str = "secret") -> None:
        self._open = ExitStack()
        self.socket = self._open.enter_context(websocket(server.address, open_timeout=10))
        self.say("connect", 5, node_id, 0, {"token": token, "subprotocol": 1})
        self.first = self.hear()

    def say(self, *message: Any) -> None:
        self.socket.send(json.dumps(message))

    def hear(self) -> list[Any]:
        """The next message; its own are empty at the end of the connection."""
        try:
            return json.loads(self.socket.recv(10))  # type: ignore[no-any-return]
        except ConnectionClosed:
            return []

    def fates(self, n: int) -> list[tuple[str, Any]]:
        """The next `n` that it tells of, (how, id), the way they come; each is answered."""
        told: list[tuple[str, Any]] = []
        while len(told) < n:
            message = self.hear()
            if message[0] == "sync":
                self.say("synced", message[1])
                told += [(a.get("reason", a["type"]), a["id"]) for a in message[2::2]]
        return told

    def synced(self) -> int:
        while (message := self.hear())[0] != "synced":
            pass
        return int(message[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def add(n: int, **data: Any) -> dict[str, Any]:
    return {"type": "log/add", "data": {"n": n, **data}, "id": f"{n:032x}"}


def sync(actions: list[dict[str, Any]], first: int = 1) -> list[Any]:
    """One message of them all; ids go on from `first`."""
    message: list[Any] = ["sync", first + len(actions) - 1]
    for number, action in enumerate(actions, first):
        message += [action, {"id": [0, number], "time": 0}]
    return message


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., LoguxServer]]:
    servers: list[LoguxServer] = []

    def serve(**options: Any) -> LoguxServer:
        servers.append(LoguxServer(tmp_path, **options))
        servers[-1].start()
        return servers[-1]

    yield serve
    for server in servers:
        server.end()


def numbers(server: LoguxServer) -> list[int]:
    """What it has processed, in order."""
    return [json.loads(line["body"])["data"]["n"] for line in server.lines()]


class TestTraps:
    """What a client has to live with; should a later server be better, this is where it shows."""

    def test_a_duplicate_jams_a_server_that_keeps_its_log(self, serve: Callable[..., LoguxServer]) -> None:
        server = serve(keep="memory")
        with Raw(server) as client:
            client.say(*sync([add(1)]))
            assert [how for how, _ in client.fates(1)] == ["logux/processed"]
            server.tell("again")
            client.say(*sync([add(2)], first=2))
            assert [client.synced(), client.synced()] == [1, 2]
        with Raw(server, "u:raw:other") as client:
            client.say(*sync([add(3)], first=3))
            assert client.synced() == 3
        with Raw(server, "u:new:tab") as client:
            client.say(*sync([add(4)], first=4))
            assert [how for how, _ in client.fates(1)] == ["logux/processed"]
        assert numbers(server) == [1, 4]
        assert server.tell("state")["waiting"] == 3

    def test_a_duplicate_is_processed_again_by_one_that_does_not(
        self, serve: Callable[..., LoguxServer]
    ) -> None:
        server = serve()
        with Raw(server) as client:
            for _ in range(2):
                client.say(*sync([add(1)]))
                assert [how for how, _ in client.fates(1)] == ["logux/processed"]
        assert numbers(server) == [1, 1]

    def test_a_kept_log_outlives_a_kill(self, serve: Callable[..., LoguxServer]) -> None:
        server = serve(keep="file", die=2)
        with Raw(server) as client:
            base = client.first[3][1]
            client.say(*sync([add(1), add(2), add(3)]))
            server.wait()
        server.start(die=0)
        assert numbers(server) == [1, 2]
        with Raw(server) as client:
            shift = base - client.first[3][1]
            message = sync([add(3), add(1), add(4)])
            for number, place in ((3, 3), (1, 5), (4, 7)):
                message[place] = {"id": [shift, number], "time": 0}
            client.say(*message)
            assert [how for how, _ in client.fates(1)] == ["logux/processed"]
        assert numbers(server) == [1, 2, 3]

    def test_a_throw_undoes_what_waits_behind_it(self, serve: Callable[..., LoguxServer]) -> None:
        server = serve()
        with Raw(server) as client:
            client.say(*sync([add(1), add(2, throw=True), add(3), add(4)]))
            told = client.fates(4)
            assert sorted(how for how, _ in told) == ["error"] * 3 + ["logux/processed"]
            client.say(*sync([add(5)], first=5))
            assert [how for how, _ in client.fates(1)] == ["logux/processed"]
        assert numbers(server) == [1, 5]

    @pytest.mark.parametrize(
        "action, reason", [(add(2, deny=True), "denied"), ({"type": "log/other"}, "unknownType")]
    )
    def test_so_does_what_it_refuses(
        self, serve: Callable[..., LoguxServer], action: dict[str, Any], reason: str
    ) -> None:
        server = serve()
        with Raw(server) as client:
            client.say(*sync([add(1), action, add(3)]))
            assert sorted(how for how, _ in client.fates(3)) == sorted(["logux/processed", reason, "error"])
        assert numbers(server) == [1]

    def test_a_numeric_length_ends_the_connection(self, serve: Callable[..., LoguxServer]) -> None:
        with Raw(serve()) as client:
            client.say(*sync([{**add(1), "length": 5}]))
            assert client.hear()[:2] == ["error", "wrong-format"]
            assert client.hear() == []
