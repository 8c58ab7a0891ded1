"""``logclient check``: which step fails, and the advice for it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logclient import cli
from logclient.cli import examination
from logclient.testing.logux import Collector as LoguxServer
from logclient.testing.lumberjack import Collector
from logclient.testing.plog import Collector as PlogServer
from tests import support
from tests.support.patience import PATIENCE
from tests.support.wrong_servers import banner, black_hole, closes, dead, never_reads, serve_each, tls, web

FINE = {"ok", "warning", "skipped"}


@pytest.fixture(autouse=True)
def synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test cannot know the state of this machine's clock."""
    monkeypatch.setattr(examination, "_synchronized", lambda: True)


def examine(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run ``check --json`` on one endpoint; return the finding of each step."""
    assert cli.main(["check", "--timeout", f"{PATIENCE:g}s", "--json", *arguments]) == code
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["ok"] == (code == 0)
    return {step.pop("step"): step for step in found["steps"]}


def statuses(found: dict[str, Any]) -> dict[str, str]:
    return {step: finding["status"] for step, finding in found.items()}


WELL = {"name": "ok", "connect": "ok", "protocol": "ok", "clock": "ok", "event": "ok", "path": "ok"}


WITHOUT_EVENT = {step: status for step, status in WELL.items() if step != "path"} | {"event": "skipped"}


def test_lines_are_wrapped_to_the_terminal(tmp_path: Path) -> None:
    """Between words, and continued lines are indented. Other outputs get whole lines."""
    from tests.cli.terminal import Terminal

    with dead() as port:
        command = [sys.executable, "-m", "logclient", "check", f"lumberjack://127.0.0.1:{port}"]
        environment = support.clean_environment(PYTHONPATH=os.pathsep.join(sys.path), COLUMNS="70")
        with Terminal(*command, environment=environment, folder=tmp_path) as terminal:
            found = terminal.until(r"(?s)  FAILED .*there\s")
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    lines = found[0].splitlines()
    assert lines[1].startswith(" " * 11 + "to fix:  start the server, ")
    assert lines[2].startswith(" " * 20) and all(len(line) <= 70 for line in lines)
    assert " ".join(found[0].split()) in " ".join(done.stdout.split()) and len(done.stdout.splitlines()) == 4


class TestHealthyServers:
    def test_lumberjack_passes_every_step(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector(keep=True) as server:
            found = examine(capsys, server.url)
            event, full, *_ = server.events(2)
        assert statuses(found) == WELL
        assert full["message"].startswith(event["message"]) and len(full["message"]) > 3000
        assert event["message"].startswith("logclient check from ")
        assert event["tags"] == "logclient-check"
        assert event["@timestamp"].endswith("Z")
        assert found["connect"]["found"].startswith(f"127.0.0.1:{server.port} in ")
        assert found["protocol"]["found"].startswith("lumberjack answers in ")
        assert found["event"]["found"].startswith("acknowledged in ")
        answer = r"packets of full size arrive, answered in [\d.]+ ms, about [\d.,]+ kB/s"
        assert re.fullmatch(answer, found["path"]["found"]) and found["path"]["ms"] > 0
        assert all(finding["mend"] == "" for finding in found.values())

    def test_no_event_is_sent_when_none_is_wanted(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector() as server:
            for version in (1, 2):
                found = examine(capsys, f"{server.url}?version={version}", "--no-event")
                assert statuses(found) == WITHOUT_EVENT
                assert found["event"]["found"] == "none was sent"
                assert found["connect"]["ms"] > 0 and found["protocol"]["ms"] > 0
                assert found["event"]["ms"] is None
            assert (server.counts.events, server.counts.protocol_errors) == (0, 0)

    def test_logux_passes_and_reports_its_clock(self, capsys: pytest.CaptureFixture[str]) -> None:
        support.need("websockets")
        with LoguxServer() as server:
            found = examine(capsys, server.url)
        assert statuses(found) == WELL
        assert "node id server:" in found["protocol"]["found"]
        assert re.fullmatch(
            r"ours is synchronized; the server's differs by -?\d+ ms", found["clock"]["found"]
        )

    def test_plog_skips_the_connection(self, capsys: pytest.CaptureFixture[str]) -> None:
        with PlogServer() as server:
            found = examine(capsys, server.url)
        assert statuses(found) == WELL | {"connect": "skipped"}
        assert found["event"]["found"].endswith("ms; this protocol has no acknowledgements")

    def test_a_host_name_is_resolved(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector() as server:
            found = examine(capsys, f"lumberjack://localhost:{server.port}")
        assert found["name"]["found"].startswith("localhost is ")
        assert "127.0.0.1" in found["name"]["found"]

    def test_text_output_names_steps_and_advice(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector() as server, dead() as port:
            assert cli.main(["check", f"lumberjack://127.0.0.1:{server.port},127.0.0.1:{port}"]) == 3
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"lumberjack://127.0.0.1:{server.port}"
        assert [line.split()[:2] for line in lines[1:7]] == [["ok", step] for step in WELL]
        mend = "start the server, or correct the port (lumberjack usually has 5044)"
        assert lines[7:] == [
            f"lumberjack://127.0.0.1:{port}",
            "  ok       name      127.0.0.1 is an address",
            f"  FAILED   connect   127.0.0.1:{port}: connection refused",
            f"           to fix:  {mend}: nothing listens on {port} there",
        ]


class TestBrokenServers:
    @pytest.mark.parametrize(
        ("bound", "found", "mend"),
        [
            (False, "connection refused, without an answer", ": nothing listens on {port} there"),
            (True, "silence for 1 s: ", ", or check that no firewall drops UDP to it"),
        ],
        ids=["closed", "silent"],
    )  # fmt: skip
    def test_an_unanswered_datagram_is_explained(
        self, bound: bool, found: str, mend: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
            if not bound:
                sock.close()
            step = examine(capsys, f"plog://127.0.0.1:{port}", "--timeout", "1s", code=3)["protocol"]
        start = "start the server, or correct the port (plog usually has 23456)"
        assert step["status"] == "failed" and step["found"].startswith(found)
        assert step["mend"] == start + mend.format(port=port)

    @pytest.mark.parametrize(
        ("place", "step", "says", "mend"),
        [
            (dead, "connect", "connection refused", "start the server, or correct the port"),
            (black_hole, "connect", "timed out", "that no firewall blocks port"),
            (never_reads, "event", "not acknowledged in 1 s", "read the server's log"),
            (closes, "protocol", "closed the connection", "it accepted the connection and closed it"),
            (banner, "protocol", "an SSH server answers: SSH-2.0-", "this is no lumberjack server"),
            (web, "protocol", "an HTTP server answers", "this is no lumberjack server"),
        ],
    )
    def test_the_failing_step_is_the_last(
        self, capsys: pytest.CaptureFixture[str], place: Any, step: str, says: str, mend: str
    ) -> None:
        # A web server answers to what is sent after half of the time.
        seconds = {black_hole: 1, never_reads: 1, web: 3}.get(place, PATIENCE)
        with place() as port:
            found = examine(capsys, f"lumberjack://127.0.0.1:{port}", "--timeout", f"{seconds:g}s", code=3)
        *before, (last, finding) = found.items()
        assert all(other["status"] in FINE for _, other in before)
        assert (last, finding["status"]) == (step, "failed")
        assert says in finding["found"]
        assert mend in finding["mend"]

    def test_an_unknown_name_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = examine(capsys, "lumberjack://nosuch.invalid", code=3)
        assert statuses(found) == {"name": "failed"}
        assert found["name"]["mend"]

    @pytest.mark.slow
    def test_a_slow_look_up_times_out(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from threading import Event

        end = Event()
        monkeypatch.setattr("logclient.transports.addresses.resolve", lambda *_: end.wait() and (b"", []))
        found = examine(capsys, "lumberjack://h", "--timeout", "1s", code=3)
        end.set()
        assert found["name"]["found"] == "h: no answer to the look-up in 1 s"

    def test_a_server_that_answers_events_only_needs_the_event(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As go-lumber's does."""

        def serve(sock: socket.socket) -> None:
            with suppress(OSError):  # the client may close without reading the last answer
                while data := sock.recv(65536):
                    if data[2:3] == b"\0" and len(data) > 6:
                        sock.sendall(b"2A\0\0\0\1")

        with serve_each(serve) as port:
            asked = (f"lumberjack://127.0.0.1:{port}", "--timeout", "1s")
            found = examine(capsys, *asked)
            silent = examine(capsys, *asked, "--no-event", code=3)["protocol"]
        assert statuses(found) == WELL | {"protocol": "skipped"}
        assert "answers only events, as go-lumber's does: leave out --no-event" in silent["found"]

    def test_packets_of_full_size_that_do_not_arrive_are_a_failure(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As behind a path whose MTU is smaller than the machines know."""

        def serve(sock: socket.socket) -> None:
            with suppress(OSError):
                while data := sock.recv(65536):
                    if len(data) < 1300:
                        sock.sendall(b"2A\0\0\0\1" if b"C" in data or b"J" in data else b"2A\0\0\0\0")

        with serve_each(serve) as port:
            found = examine(capsys, f"lumberjack://127.0.0.1:{port}", "--timeout", "1s", code=3)
        assert statuses(found) == WELL | {"path": "failed"}
        assert found["path"]["found"] == "packets of full size do not arrive in 1 s, small ones do"
        assert "MTU" in found["path"]["mend"]

    def test_a_server_that_the_client_did_not_reach_is_not_blamed(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Collector() as server, dead() as port:
            rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
            judge = examination.Examination._judge_clock
            module = "logclient.transports.addresses.resolve"

            def gone(self: Any) -> Any:
                monkeypatch.setattr(module, lambda *_: (b"h", rows))
                return judge(self)

            monkeypatch.setattr(examination.Examination, "_judge_clock", gone)
            found = examine(capsys, server.url, "--timeout", "1s", code=3)
        assert statuses(found) == {**WITHOUT_EVENT, "event": "failed"}
        assert found["event"]["found"].startswith("not connected in 1 s: cannot connect to ")
        assert "the client has not reached the server" in found["event"]["mend"]

    def test_each_address_of_a_plog_server_is_asked(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with PlogServer() as server:
            places = [("127.0.0.1", server.port), ("127.0.0.2", server.port)]
            rows = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", place) for place in places]
            monkeypatch.setattr("logclient.transports.addresses.resolve", lambda *_: (b"h", rows))
            found = examine(capsys, server.url)
        assert statuses(found) == WELL | {"connect": "warning"}
        assert re.search(r"^127\.0\.0\.1:\d+ in [\d.]+ ms, 127\.0\.0\.2:\d+: ", found["connect"]["found"])

    def test_one_dead_address_of_several_is_a_warning(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Collector() as server, dead() as port:
            places = [("127.0.0.1", port), ("127.0.0.1", server.port)]
            rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
            monkeypatch.setattr("logclient.transports.addresses.resolve", lambda *_: (b"h", rows))
            found = examine(capsys, "lumberjack://h:5044")
        assert statuses(found) == WELL | {"connect": "warning"}
        assert f"127.0.0.1:{port}: connection refused" in found["connect"]["found"]
        assert "remove them from the name" in found["connect"]["mend"]

    def test_clock_differences_are_explained(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        support.need("websockets")
        monkeypatch.setattr(examination, "_CLOCK_MS", -1)
        with LoguxServer() as server:
            found = examine(capsys, server.url, "--no-event")
            assert found["clock"]["status"] == "warning"
            assert "0.0 s" in found["clock"]["found"]
            monkeypatch.undo()
            monkeypatch.setattr(examination, "_synchronized", lambda: False)
            found = examine(capsys, server.url, "--no-event")
        assert found["clock"]["found"].startswith("ours is not synchronized; the server's differs by ")
        assert "NTP" in found["clock"]["mend"]


class TestTls:
    @pytest.fixture
    def ours(self, tmp_path: Path) -> Any:
        support.need("trustme")
        from tests.support.tls import Authority

        return Authority(tmp_path / "ours")

    def test_tls_passes_with_the_right_authority(self, capsys: pytest.CaptureFixture[str], ours: Any) -> None:
        from tests.support.tls import context

        with Collector(tls=context("1.3", ours.issue("server"))) as server:
            found = examine(capsys, f"{server.url}?ca={ours.ca}")
            assert list(found) == ["name", "connect", "TLS", "pump", "protocol", "clock", "event", "path"]
            assert found["TLS"]["status"] == "ok"
            assert "certificate for 127.0.0.1" in found["TLS"]["found"]
            found = examine(capsys, f"{server.url}?verify=none")
            assert found["TLS"]["status"] == "warning"
            found = examine(capsys, server.url, code=3)
        assert (list(found)[-1], found["TLS"]["status"]) == ("TLS", "failed")
        assert "give that authority's certificate as ca" in found["TLS"]["found"]

    def test_a_certificate_near_its_end_is_a_warning(
        self, capsys: pytest.CaptureFixture[str], ours: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tests.support.tls import context

        monkeypatch.setattr(examination, "_FEW_DAYS", 1_000_000)
        with Collector(tls=context("1.3", ours.issue("server"))) as server:
            found = examine(capsys, f"{server.url}?ca={ours.ca}")
        assert (found["TLS"]["status"], found["TLS"]["mend"]) == (
            "warning",
            "renew the certificate at the server",
        )

    def test_tls_to_a_plain_server_is_explained(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector() as server:
            found = examine(capsys, f"lumberjack+tls://127.0.0.1:{server.port}", code=3)
        assert (list(found)[-1], found["TLS"]["status"]) == ("TLS", "failed")
        assert found["TLS"]["mend"] == "if the server has no TLS on this port, use lumberjack://"

    def test_plain_to_a_tls_server_is_explained(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        with tls() as port:
            found = examine(capsys, f"lumberjack://127.0.0.1:{port}", code=3)
        assert found["protocol"]["status"] == "failed"
        assert found["protocol"]["found"].startswith("a TLS server answers")
        assert found["protocol"]["mend"] == "use lumberjack+tls://"


def test_the_url_may_be_that_of_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector(keep=True) as server:
        monkeypatch.setenv("LOGCLIENT_URL", server.url)
        assert cli.main(["check", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["endpoint"] == server.url.removeprefix("lumberjack://")
        assert cli.main(["check", "--logging", "nowhere:LOGGING"]) == 2  # and not both
        assert "nowhere" in capsys.readouterr().err


def test_wrong_usage_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        (["check"], "one of the arguments --logging URL is required"),
        (["check", "lumberjack://h", "--logging", "shop:LOGGING"], "not allowed with argument URL"),
        (["check", "lumberjack://h", "--timeout", "x"], "--timeout: must be a duration"),
        (["check", "lumberjack://h", "--timeout", "0"], "--timeout: must be a duration above 0"),
        (["check", "http://h"], "scheme: 'http' is none of"),
        (["check", "lumberjack://h?windw=5"], "windw: unknown option; did you mean window?"),
    ):
        assert cli.main(arguments) == 2
        assert says in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can map the files of a spool")
class TestSpool:
    def test_a_directory_that_can_be_used_passes(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        with Collector(keep=True) as server:
            found = examine(capsys, f"{server.url}?spool={tmp_path / 'spool'}&spool_bytes=8MiB")
        assert found["spool"]["status"] == "ok"
        assert re.fullmatch(rf"{tmp_path}/spool is on \w+, \d+ MiB are free", found["spool"]["found"])
        assert list((tmp_path / "spool").iterdir()) == []

    def test_a_directory_of_others_fails(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "spool").mkdir()
        (tmp_path / "spool").chmod(0o777)
        with Collector(keep=True) as server:
            found = examine(capsys, f"{server.url}?spool={tmp_path / 'spool'}", code=3)
        assert found["spool"]["status"] == "failed" and "others" in found["spool"]["found"]
        assert found["event"]["status"] == "ok"

    def test_a_shared_file_system_fails_with_its_name(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("logclient.delivery.spool.owner_files.file_system", lambda directory: "nfs4")
        with Collector(keep=True) as server:
            found = examine(capsys, f"{server.url}?spool={tmp_path / 'spool'}", code=3)
        assert found["spool"]["status"] == "failed" and "nfs4 may be shared" in found["spool"]["found"]

    def test_too_little_space_is_a_warning(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
        with Collector(keep=True) as server:
            found = examine(capsys, f"{server.url}?spool={tmp_path / 'spool'}&spool_bytes={free * 2}")
        assert found["spool"]["status"] == "warning" and "spool_bytes is" in found["spool"]["found"]
