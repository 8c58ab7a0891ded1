"""``logclient stat``: counters and settings of servers, as text and as JSON."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

import logclient
from logclient import cli
from logclient.cli.stat import describe_uptime
from logclient.errors import ExitCode
from logclient.testing.plog import Collector
from tests import support
from tests.support.patience import PATIENCE


def test_stat_prints_counters_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    with Collector() as server:
        url = f"plog://127.0.0.1:{server.port}"
        with logclient.connect(url, mtu=1500) as client:
            client.send({"message": "x" * 5000})
            client.send({"message": "y"})
            assert client.flush(PATIENCE) == 0
        assert server.wait_for(events=2)
        assert cli.main(["stat", url]) == ExitCode.OK
        first, *rest = capsys.readouterr().out.splitlines()
        assert first.startswith(f"127.0.0.1:{server.port}: up 0 min ")
        assert {"  version: logclient", "  v0 fragments: 5", "  udp simple messages: 0"} <= set(rest)
        assert "  handlers: [{" in "\n".join(rest)
        assert cli.main(["stat", "--json", url]) == ExitCode.OK
        found = json.loads(capsys.readouterr().out)
        assert (found["endpoint"], found["why"]) == (f"127.0.0.1:{server.port}", "")
        assert found["stat"]["handlers"][0]["seen_messages"] == 2
        assert found["stat"]["v0_commands"] == 1  # the one before
        assert found["stat"]["defragmenter"] == {"evictions": 0, "hits": 3, "misses": 1}


def test_a_silent_server_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole, Collector() as server:
        hole.bind(("127.0.0.1", 0))
        ports = hole.getsockname()[1], server.port
        url = "plog://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        assert cli.main(["stat", url, "--timeout", "0.3"]) == ExitCode.UNREACHABLE
        silent, good, *_ = capsys.readouterr().out.splitlines()
        assert silent.startswith(f"127.0.0.1:{ports[0]}: stat: no answer in 0.3 s")
        assert good.startswith(f"127.0.0.1:{ports[1]}: up ")
        assert cli.main(["stat", url, "--timeout", "0.3", "--json"]) == ExitCode.UNREACHABLE
        answers = [json.loads(line)["stat"] for line in capsys.readouterr().out.splitlines()]
        assert [answer is None for answer in answers] == [True, False]


def test_other_protocols_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stat", "lumberjack://127.0.0.1"]) == ExitCode.USAGE
    why = "scheme: lumberjack servers cannot be asked, only plog servers and Logjam devices\n"
    assert why in capsys.readouterr().err
    assert cli.main(["stat", "logjam://127.0.0.1", "--settings"]) == ExitCode.USAGE
    assert "--settings: logjam servers cannot be asked, only plog servers\n" in capsys.readouterr().err


class TestLogjam:
    @pytest.mark.slow
    def test_a_device_reports_its_counters(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        support.need("zmq")
        from logclient.testing import logjam as logjam

        monkeypatch.setattr(logjam, "_STATS_EVERY", 0.3)
        with logjam.Collector(stats_port=0, device=7, heartbeat=0) as device:
            port = str(device.stats_port)
            with logclient.connect(f"{device.url}/shop-production") as client:
                for n in range(5):
                    client.send({"n": n})
                assert client.flush(PATIENCE) == 0
            # Where producers send is not where the counters are.
            assert cli.main(["stat", "logjam://127.0.0.1:1/shop-production", "--port", port]) == ExitCode.OK
            first, *rest = capsys.readouterr().out.splitlines()
            assert first == f"127.0.0.1:{port}: device 7"
            assert rest == ["  sequence: 5", "  published per second: 0"]
            assert cli.main(["stat", "--json", "logjam://127.0.0.1", "--port", port]) == ExitCode.OK
            found = json.loads(capsys.readouterr().out)
            stat = {"device": 7, "sequence": 5, "per_second": 0.0}
            assert found == {"endpoint": f"127.0.0.1:{port}", "why": "", "stat": stat}

    def test_servers_without_statistics_are_exit_3(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A socket of another kind, one that sends other things, and a closed port."""
        zmq = support.need("zmq")
        from logclient.testing import logjam as logjam

        with zmq.Context() as context, context.socket(zmq.XPUB) as publisher, logjam.Collector() as device:
            port = publisher.bind_to_random_port("tcp://127.0.0.1")
            nonsense = threading.Thread(target=self.babble, args=(zmq, publisher))
            nonsense.start()
            begun = ["stat", "logjam://127.0.0.1", "--timeout", "0.5s", "--port"]
            assert cli.main([*begun, str(port)]) == ExitCode.UNREACHABLE
            nonsense.join()
            assert capsys.readouterr().out == f"127.0.0.1:{port}: stat: it says nothing, in 0.5 s\n"
            assert cli.main([*begun, str(device.port), "--json"]) == ExitCode.UNREACHABLE
            found = json.loads(capsys.readouterr().out)
            assert (found["why"], found["stat"]) == ("stat: no device answers there, in 0.5 s", None)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            assert cli.main([*begun, str(closed.getsockname()[1])]) == ExitCode.UNREACHABLE
            assert "no device answers there" in capsys.readouterr().out

    @staticmethod
    def babble(zmq: Any, publisher: Any) -> None:
        assert publisher.poll(PATIENCE * 1000)
        for parts in ([], [b"x", b"1"], [b"1", b"9" * 21], [b"1", b"-1"], [b"1", b"2", b"3"]):
            publisher.send_multipart([b"stats", *parts])

    def test_wrong_stat_usage_is_explained(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["stat", "plog://127.0.0.1", "--port", "9621"]) == ExitCode.USAGE
        assert "--port: only for Logjam devices" in capsys.readouterr().err
        assert cli.main(["stat", "logjam://127.0.0.1", "--port", "0"]) == ExitCode.USAGE
        assert "must be a whole number from 1 to 65535" in capsys.readouterr().err


def test_settings_are_printed_in_place_of_counters(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole, Collector(max_size=131_072) as server:
        hole.bind(("127.0.0.1", 0))
        good, silent = (f"127.0.0.1:{port}" for port in (server.port, hole.getsockname()[1]))
        assert cli.main(["stat", "--settings", f"plog://{good}"]) == ExitCode.OK
        first, *rest = capsys.readouterr().out.splitlines()
        assert first == f"{good}:"
        assert any("131072" in line for line in rest)
        url = f"plog://{good},{silent}"
        assert cli.main(["stat", "--settings", url, "--timeout", "0.3", "--json"]) == ExitCode.UNREACHABLE
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["endpoint"] for one in found] == [good, silent]
        assert "131072" in found[0]["settings"] and found[0]["why"] == ""
        assert found[1]["settings"] is None and "no answer" in found[1]["why"]


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0, "0 min 0 s"), (61_999, "1 min 1 s"), (3_660_000, "1 h 1 min"), (180_000_000, "2 d 2 h")],
)
def test_uptime_is_described_in_two_units(ms: int, words: str) -> None:
    assert describe_uptime(ms) == words
