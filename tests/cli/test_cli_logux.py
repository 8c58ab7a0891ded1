"""The command line with Logux: check, decode."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logclient import cli
from logclient.errors import ExitCode
from tests import support
from tests.support import verify_files as files
from tests.support.logux_server import LoguxServer
from tests.support.verify_scene import P

support.need("websockets")

from websockets.sync.server import ServerConnection  # noqa: E402

from tests.logux.peer import LoguxPeer  # noqa: E402
from tests.support.websocket import serve_library  # noqa: E402

TOKEN = "x7Zq, not for anybody else"


@contextmanager
def websocket_url(*answers: str) -> Iterator[str]:
    """Run a WebSocket server that sends these; ``{}`` stands for the message it received. Yield its URL."""

    def handle(far: ServerConnection) -> None:
        received = far.recv()
        for answer in answers:
            far.send(answer.replace("{}", str(received)))
        for _ in far:
            pass

    with serve_library(handle) as port:
        yield f"logux://127.0.0.1:{port}"


class TestCheck:
    @pytest.fixture(autouse=True)
    def token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOKEN", TOKEN)

    def check(self, capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
        assert cli.main(["check", "--timeout", "10s", *arguments]) == code
        out, err = capsys.readouterr()
        assert err == ""
        assert TOKEN not in out
        assert TOKEN[:4] not in out
        return out

    def protocol(self, capsys: pytest.CaptureFixture[str], url: str) -> str:
        """Return why the step of the protocol fails, which is the last one."""
        found = json.loads(self.check(capsys, ExitCode.UNREACHABLE, url, "--json"))["steps"][-1]
        assert (found["step"], found["status"]) == ("protocol", "failed")
        return str(found["found"])

    def test_server_of_protocol_4_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It closes the connection without a reason when the subprotocol is a number."""
        words = "the server speaks protocol 4 (@logux/server 0.13 and older), we speak protocol 5 "
        words += "(@logux/server 0.14)"
        with LoguxPeer() as peer:
            peer.protocol = 4
            assert self.protocol(capsys, peer.url) == words
            assert f"FAILED   protocol  {words}" in self.check(capsys, ExitCode.UNREACHABLE, peer.url)

    def test_range_of_subprotocols_is_that_of_protocol_4(self, capsys: pytest.CaptureFixture[str]) -> None:
        with LoguxPeer() as peer:
            peer.refuse = lambda _: ["wrong-subprotocol", {"supported": "2.x", "used": "0.0.0"}]
            said = self.protocol(capsys, peer.url)
        assert said.startswith("the server speaks protocol 4 (@logux/server 0.13 and older)")
        assert said.endswith(": wrong-subprotocol: '2.x' is supported, '0.0.0' is used")

    def test_closed_connection_fails_in_both_forms(self, capsys: pytest.CaptureFixture[str]) -> None:
        def end(far: ServerConnection) -> None:
            far.recv()
            far.close()

        with serve_library(end) as port:
            url = f"logux://127.0.0.1:{port}"
            words = self.protocol(capsys, url)
            said = self.check(capsys, ExitCode.UNREACHABLE, url)
        assert words == "the server closed the connection: 1000 (normal closure), without an answer"
        assert f"  FAILED   protocol  {words}\n" in said

    def test_check_of_the_real_server(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with LoguxServer(tmp_path, token=TOKEN, skew=60_000, subprotocol=3) as server:
            url = f"{server.url}?token=env:TOKEN"
            found = json.loads(self.check(capsys, ExitCode.OK, url, "--no-event", "--json"))
            assert found["tls"] is None
            assert found["about"] == {"node_id": server.node_id, "protocol": 5, "subprotocol": 3}
            assert not any(server.lines())
            said = self.check(capsys, ExitCode.OK, url)
            assert f", node id {server.node_id}, protocol 5, subprotocol 3\n" in said
            assert re.search(r"warning  clock     the server's is [56]\d\.\d s ahead of ours\n", said)
            assert "ok       event     acknowledged in " in said
            assert "ok       path      packets of full size arrive, answered in " in said
            action, *_ = (line for line in server.lines() if line)
            assert "logclient check from " in json.dumps(action)
            said = self.protocol(capsys, server.url)
            assert said == "the server does not accept the token (wrong-credentials)"
            said = self.protocol(capsys, f"{url}&subprotocol=0")
            assert "wrong-subprotocol: 1 is supported, 0 is used" in said

    def test_check_of_an_echo_server_fails_without_the_token(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for answer in ("{}", "you said {}", '{"you":"said", "what": {}}'):
            with websocket_url(answer) as url:
                said = self.protocol(capsys, f"{url}?token=env:TOKEN")
                assert said.startswith("something else answers: ")

    def test_headers_may_come_before_the_answer(self, capsys: pytest.CaptureFixture[str]) -> None:
        answers = ['["headers",{"env":"development\\u001b[31m"}]', '["debug","error","x"]',
                   '["connected",5,"server:x",[1,1],{"subprotocol":"1.0.0"}]']  # fmt: skip
        with websocket_url(*answers) as url:
            said = self.check(capsys, ExitCode.OK, url, "--no-event")
        assert ', env development\\x1b[31m, node id server:x, protocol 5, subprotocol "1.0.0"\n' in said

    def test_check_of_a_silent_server_is_exit_3(self, capsys: pytest.CaptureFixture[str]) -> None:
        with websocket_url() as url:
            said = self.check(capsys, ExitCode.UNREACHABLE, url, "--timeout", "300ms")
        assert "silence for 0.3 s: a Logux server answers to connect at once" in said

    def test_check_without_websocket_is_exit_3(self, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as hole:
            url = f"logux://127.0.0.1:{hole.getsockname()[1]}"
            said = self.check(capsys, ExitCode.UNREACHABLE, url, "--timeout", "300ms")
        assert "FAILED   protocol  the server did not answer the HTTP request in time\n" in said


class TestDecode:
    def test_decode_shows_a_capture_without_the_token(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        action = f'{{"type":"log/add","data":{{"m":"\\u001b"}},"id":"{files.event_id(P, 1)}"}}'
        units = [
            (f'["connect",5,"10:a:b",0,{{"token":"{TOKEN}"}}]', 0),
            ('["connected",5,"server:x",[1,2]]', 1),
            (f'["sync",1,{action},{{"id":[5,1],"time":5}}]', 0),
            ('["synced",1]', 1),
            (f'["connect",5,"10:a:b",0,{{"token":"{TOKEN}"}},[]]', 0),
        ]
        rows = [(unit.encode(), direction, 1_795_155_232_892_000) for unit, direction in units]
        files.write_segments(tmp_path / "c", "main", rows, protocol="logux")
        assert cli.main(["decode", str(tmp_path / "c")]) == ExitCode.BROKEN
        out, err = capsys.readouterr()
        assert "connect, protocol 5, node id 10:a:b, last added 0, with a token" in out
        assert "to 127.0.0.1:9, arrival 2, 2026-11-20T06:13:52.892000Z" in out
        assert f"log/add, id [5,1], time 5: {action}" in out
        assert "WRONG at byte " in out
        assert err == "7 frames, 1 wrong\n"
        assert cli.main(["decode", str(tmp_path / "c"), "--json"]) == ExitCode.BROKEN
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [frame["type"] for frame in found[:5]] == ["connect", "connected", "sync", "action", "synced"]
        assert found[3]["body"] == action
        assert found[3]["meta"] == {"id": [5, 1], "time": 5}
        assert TOKEN not in out + json.dumps(found)

    def test_decode_reads_messages_in_lines(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "messages"
        path.write_text('["ping",1]\n["pong",2]\n')
        assert cli.main(["decode", "--protocol", "logux", str(path)]) == ExitCode.OK
        out, err = capsys.readouterr()
        assert [line.split(None, 1) for line in out.splitlines()] == [
            ["0", "ping, added 1"], ["11", "pong, added 2"],
        ]  # fmt: skip
        assert err == "2 frames, 0 wrong\n"
