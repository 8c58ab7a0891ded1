"""The command line with Logjam: collect, decode, check, send."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote as percent

import pytest

from logclient import cli
from logclient.errors import ExitCode
from logclient.files.capture import CaptureReader
from logclient.testing.logjam import Collector
from tests import support
from tests.oracle import logjam as oracle
from tests.oracle.logjam_document import judge
from tests.support import verify_files as files
from tests.support.patience import PATIENCE

zmq = support.need("zmq")

from tests.support.logjam_rig import ACCEPTED, Producer, event, message, meta  # noqa: E402


def quote(key: bytes) -> str:
    return percent(key.decode(), safe="")


class CollectProcess:
    """``collect`` in its own process, until it is told to end."""

    def __init__(self, urls: list[str], capture: Path, *arguments: str, stderr: int | None = None) -> None:
        command = [sys.executable, "-m", "logclient", "collect", *urls, "--capture", str(capture), "--json"]
        command += arguments
        environment = support.clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.listens = [json.loads(self.process.stdout.readline()) for _ in urls]

    def __enter__(self) -> CollectProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def ends(self, number: int = signal.SIGTERM, code: int = ExitCode.OK) -> list[dict[str, Any]]:
        """What it says in the end."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == code
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def subscriber() -> Iterator[Any]:
    context = zmq.Context()
    yield context.socket(zmq.SUB)
    context.destroy(linger=0)


class TestCollect:
    def test_collect_runs_a_device_as_its_url_says(self, tmp_path: Path, subscriber: Any) -> None:
        url = "logjam://127.0.0.1:0?push=0&publish=0&device=77&recompress=zlib&allow_invalid=true&heartbeat=0.2s"
        with CollectProcess([url], tmp_path) as run:
            self.ask(run, subscriber)
            (end,) = run.ends()
        assert (end["captured_events"], end["acks"], end["published"]) == (2, 1, 2)
        assert end["heartbeats"] > 0

    def ask(self, run: CollectProcess, subscriber: Any) -> None:
        (said,) = run.listens
        assert set(said) == {"url", "port", "push", "publish"}
        assert said["url"] == f"logjam://127.0.0.1:{said['port']}"
        push = int(said["push"].removeprefix("logjam+push://127.0.0.1:"))
        subscriber.subscribe(b"")
        subscriber.connect(said["publish"])
        assert subscriber.poll(PATIENCE * 1000)
        beat = subscriber.recv_multipart()
        assert beat[0] == b"heartbeat"
        assert int.from_bytes(beat[3][4:8], "big") == 77
        with Producer(said["port"]) as asks, Producer(push, zmq.PUSH) as pushes:
            assert asks.ship(1) == [ACCEPTED]
            pushes.tell([*message(2)[:3], b"no meta"])
            published: list[Any] = []
            while len(published) < 2:
                assert subscriber.poll(PATIENCE * 1000)
                frames = subscriber.recv_multipart()
                published += [frames] if frames[0] != b"heartbeat" else []
        assert {zlib.decompress(frames[2]) for frames in published} == {event(1), event(2)}
        assert {int.from_bytes(frames[3][4:8], "big") for frames in published} == {77}

    def test_collect_runs_several_devices(self, tmp_path: Path) -> None:
        urls = ["logjam://127.0.0.1:0?publish=none", "logjam+push://127.0.0.1:0", "lumberjack://127.0.0.1:0"]
        with CollectProcess(urls, tmp_path) as run:
            asks, pushes, _ = run.listens
            with Producer(asks["port"]) as one, Producer(pushes["port"], zmq.PUSH) as two:
                assert one.ship(1) == [ACCEPTED]
                with zmq.Context() as context, context.socket(zmq.SUB) as sub:
                    sub.subscribe(b"shop")
                    sub.connect(pushes["publish"])
                    while not sub.poll(10):
                        two.tell(message(2))
            ends = run.ends()
        assert [said["url"] for said in run.listens] == [end["url"] for end in ends]
        assert ["publish" in said for said in run.listens] == [False, True, False]
        assert (ends[0]["captured_events"], ends[0]["acks"]) == (1, 1)
        assert ends[1]["captured_events"] > 0 == ends[1]["acks"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_collect_runs_a_consumer(self, tmp_path: Path, number: int) -> None:
        with Collector(device=7, heartbeat=0.05) as device, Producer(device.port) as producer:
            url = f"logjam+sub://127.0.0.1:{device.publish_port}"
            with CollectProcess([f"{url}?topics=logs"], tmp_path) as run:
                assert run.listens == [{"url": url, "connects": [device.publish_url]}]
                assert device.wait_for(lambda counts: counts.subscriptions == 1, timeout=PATIENCE)
                producer.ship(1, 2)
                producer.ask(message(3, topic=b"mobile"))
                producer.ship(4)
                self.until_captured(tmp_path, 4)
                (end,) = run.ends(number)
        bodies = [oracle.split(row.raw)[0] for row in CaptureReader(tmp_path)]
        published = [parts for parts in bodies if parts[0] != b"heartbeat"]
        assert [parts[2] for parts in published] == [event(n) for n in (1, 2, 3, 4)]
        assert end["messages"] == 3 and end["captured_messages"] == len(bodies) == 4 + end["heartbeats"]
        assert (end["missing_at_least"], end["restarts_at_least"], end["reasons"]) == (0, 0, {})
        assert [device["number"] for device in end["known"]] == [7]

    def test_a_consumer_prints_messages_as_they_come(self, tmp_path: Path) -> None:
        with Collector(heartbeat=0) as device, Producer(device.port) as producer:
            url = f"logjam+sub://127.0.0.1:{device.publish_port}"
            with CollectProcess([url], tmp_path, "--print") as run:
                assert device.wait_for(lambda counts: counts.subscriptions == 1, timeout=PATIENCE)
                producer.ship(1, 2)
                assert run.process.stdout is not None
                printed = [json.loads(run.process.stdout.readline()) for _ in range(2)]
                run.ends()
        assert printed == [json.loads(event(n)) for n in (1, 2)]

    @staticmethod
    def until_captured(folder: Path, messages: int) -> None:
        end = time.monotonic() + PATIENCE
        while sum(b"heartbeat" not in row.raw for row in CaptureReader(folder)) < messages:
            assert time.monotonic() < end
            time.sleep(0.01)

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs limits of another process")
    def test_a_consumer_reports_a_failing_capture(self, tmp_path: Path) -> None:
        with Collector(heartbeat=0) as device, Producer(device.port) as producer:
            url = f"logjam+sub://127.0.0.1:{device.publish_port}"
            with CollectProcess([url], tmp_path / "c", stderr=subprocess.PIPE) as run:
                assert device.wait_for(lambda counts: counts.subscriptions == 1, timeout=PATIENCE)
                resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
                producer.ship(b"x" * 3000)
                assert run.process.stderr is not None
                said = run.process.stderr.readline()  # while it runs
                assert said.startswith(f"{url}: not captured: capture: ")
                run.ends(code=ExitCode.UNREACHABLE)

    def test_a_consumer_without_a_device_is_exit_3(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A socket of another kind answers no consumer."""
        with Collector() as device:
            url = f"logjam+sub://127.0.0.1:{device.publish_port},127.0.0.1:{device.port}"
            arguments = ["collect", url, "--capture", str(tmp_path), "--for", "1s"]
            assert cli.main(arguments) == ExitCode.UNREACHABLE
        said = capsys.readouterr().err.splitlines()
        assert said == [
            f"{url}: 0 messages of 0 devices, at least 0 missing, at least 0 restarts",
            f"tcp://127.0.0.1:{device.port}: no device answered",
        ]

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("logjam+sub://127.0.0.1/shop-production", "path: not allowed in a consumer's URL"),
            ("logjam+sub://127.0.0.1?device=2", "device: not an option of a consumer's URL"),
            ("logjam+sub://127.0.0.1?app_envs=shop", "app_envs: 'shop' must be printable ASCII with a dash"),
            ("logjam+sub://127.0.0.1?hwm=0", "hwm: must be a whole number from 1"),
            ("logjam+sub://127.0.0.1:0", "port: must be a whole number from 1"),
            ("logjam+sub://127.0.0.1?curve_secret=file:/none", "curve_secret: file"),
            ("logjam+sub://127.0.0.1?hwm=%", "logclient: hwm: % must be followed by two hexadecimal digits"),
            ("logjam+sub://127.0.0.1", "faults: not with logjam+sub"),
            ("logjam://127.0.0.1:0?push=70000", "push: must be a whole number from 0 to 65535"),
            ("logjam://127.0.0.1:0?push=1&push=2", "push: given twice in the URL"),
            ("logjam+push://127.0.0.1:0?push=1", "push: not with logjam+push"),
            ("logjam://127.0.0.1:0?recompress=gzip", "recompress: must be one of none, zlib, snappy, lz4"),
            ("logjam://127.0.0.1:0?allow_invalid=2", "allow_invalid: must be true or false"),
            ("logjam://127.0.0.1:0?device=0", "device: must be a whole number from 1 to 4294967295"),
            ("logjam://127.0.0.1:0,[::1]:0?device=2", "device: not allowed with several addresses"),
            ("logjam://127.0.0.1:0?inflight=2", "inflight: not an option of a collector's URL"),
            ("logjam://127.0.0.1:0/shop-production", "path: not allowed in a collector's URL"),
            ("logjam://127.0.0.1:0?nonsense=2", "nonsense: unknown option"),
            ("lumberjack://127.0.0.1:0?push=2", "push: unknown option"),
        ],
    )
    def test_wrong_collector_urls_are_explained(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, says: str
    ) -> None:
        faults = [] if "faults" not in says else ["--faults", "discard=every:2"]
        arguments = ["collect", url, "--capture", str(tmp_path / "c"), "--for", "1s", *faults]
        assert cli.main(arguments) == ExitCode.USAGE
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1

    def test_faults_of_other_protocols_are_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["collect", "logjam://127.0.0.1:0", "--capture", str(tmp_path / "c"), "--faults"]
        assert cli.main([*arguments, "partial-ack=every:2"]) == ExitCode.USAGE
        assert "partial-ack" in capsys.readouterr().err

    def test_faults_apply_to_a_device(self, tmp_path: Path) -> None:
        fault_log = tmp_path / "fault_log"
        faults = ["--faults", "discard=every:3,seed=1", "--fault-log", str(fault_log)]
        with CollectProcess(["logjam://127.0.0.1:0"], tmp_path / "c", *faults) as run:
            with Producer(run.listens[0]["port"]) as asks:
                assert asks.ship(*range(1, 10)) == [ACCEPTED] * 9
            (end,) = run.ends()
        assert (end["captured_events"], end["acks"]) == (6, 9)
        assert end["faults"] == {"discard": 3}
        assert len(fault_log.read_text().splitlines()) == 3


class TestDecode:
    @pytest.fixture
    def capture(self, tmp_path: Path) -> Path:
        units = [
            files.message(event(1), compression=1, number=7, created_ms=5),
            oracle.join([b"", *message(b"[1]")]),
            oracle.join([b"shop-production", b"logs.\x1b[31m", b"{}", meta()]),
            oracle.join([b"shop-production", b"logs", b"{}", meta()[:22]]),
        ]
        rows = [(unit, 0, 1_795_155_232_892_000) for unit in units]
        rows.insert(1, (files.ACCEPTED, 1, 1_795_155_232_893_000))
        files.write_segments(tmp_path / "c", "main", rows, protocol="logjam")
        return tmp_path / "c"

    def test_decode_shows_messages_and_replies(
        self, capture: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["decode", str(capture)]) == ExitCode.BROKEN
        out = capsys.readouterr().out
        assert "request of 5 frames, shop-production, logs.shop.production, zlib, device 0, created 5" in out
        assert event(1).decode() in out
        assert "reply shop-production 202 Accepted" in out
        assert "not one JSON object in UTF-8" in out
        assert "WRONG" in out
        assert "a meta of 22 bytes" in out
        assert "\x1b" not in out
        assert "to 127.0.0.1:9, arrival 2, 2026-11-20T06:13:52.893000Z" in out

    def test_decode_writes_json(self, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cli.main(["decode", str(capture), "--json"])
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert rows[0].items() >= {
            "type": "request", "app_env": files.APP_ENV, "topic": files.TOPIC, "compression": "zlib",
            "device": 0, "sequence": 7, "created_ms": 5,
        }.items()  # fmt: skip
        assert rows[1]["body"].encode() == event(1)
        assert rows[2]["direction"] == "to"
        assert rows[2]["status"] == "202 Accepted"

    def test_decode_reads_raw_bytes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "bytes"
        path.write_bytes(files.message(event(1)) + files.ACCEPTED)
        assert cli.main(["decode", "--protocol", "logjam", str(path)]) == ExitCode.OK
        assert "reply" in capsys.readouterr().out
        path.write_bytes(files.message(event(1))[:-1])
        assert cli.main(["decode", "--protocol", "logjam", str(path)]) == ExitCode.BROKEN
        assert "cut inside a message" in capsys.readouterr().out


class TestCheck:
    def check(self, capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
        assert cli.main(["check", "--timeout", "10s", *arguments]) == code
        out, err = capsys.readouterr()
        assert err == ""
        return out

    def test_a_device_answers_and_gets_no_event(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector() as device:
            said = self.check(capsys, ExitCode.OK, f"{device.url}/shop-production", "--no-event")
            assert f"ok       connect   127.0.0.1:{device.port} in " in said
            assert "ok       protocol  logjam answers in " in said
            found = json.loads(self.check(capsys, ExitCode.OK, device.url, "--no-event", "--json"))
            assert (found["ok"], found["protocol"], found["tls"]) == (True, "logjam", None)
            assert device.counts.pings == 2
            assert device.counts.events == 0

    def test_the_importer_accepts_the_event(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector(keep=True) as device:
            said = self.check(capsys, ExitCode.OK, f"{device.url}/shop-production")
            assert "ok       event     acknowledged in " in said
            assert "ok       path      packets of full size arrive, answered in " in said
            document, full, *_ = device.events(2)
        assert importer_takes(document) and importer_takes(full)
        assert document["lines"][0][2].startswith("logclient check from ")

    def test_an_event_without_an_app_env_is_a_step_that_fails(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with Collector() as device, Collector() as other:
            url = f"{device.url},127.0.0.1:{other.port}"
            said = self.check(capsys, ExitCode.UNREACHABLE, url, "--json").splitlines()
        assert len(said) == 2
        for found in map(json.loads, said):
            assert (found["ok"], found["steps"][-1]["step"]) == (False, "event")
            assert found["steps"][-1]["found"].startswith("app-env: ")
            assert "--no-event" in found["steps"][-1]["mend"]

    def test_a_push_port_has_no_answers(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector(keep=True) as device:
            url = f"{device.push_url}/shop-production"
            said = self.check(capsys, ExitCode.OK, url, "--no-event")
            assert "-        protocol  this protocol has no answers\n" in said
            assert "ok       event     handed over in " in self.check(capsys, ExitCode.OK, url)
            assert len(device.events(1)) == 1

    def test_each_endpoint_is_judged(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector() as gone:
            pass
        with Collector() as device:
            ports = [device.port, gone.port, device.push_port]
            url = "logjam://" + ",".join(f"127.0.0.1:{port}" for port in ports)
            _, *sections = self.check(capsys, ExitCode.UNREACHABLE, url, "--no-event").split("logjam://")
        for section, says in zip(
            sections,
            [
                "logjam answers in",
                "connection refused",
                "not a ZeroMQ socket",
            ],
            strict=True,
        ):
            assert says in section

    def test_check_of_a_silent_server_is_exit_3(self, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as hole:
            url = f"logjam://127.0.0.1:{hole.getsockname()[1]}"
            said = self.check(capsys, ExitCode.UNREACHABLE, url, "--timeout", "300ms", "--no-event")
        assert "FAILED   protocol  no answer to the handshake in time" in said

    def test_check_with_curve_keys(self, capsys: pytest.CaptureFixture[str]) -> None:
        if not zmq.has("curve"):
            pytest.skip("this libzmq has no CURVE")
        public, secret = zmq.curve_keypair()
        context = zmq.Context()
        try:
            server = context.socket(zmq.ROUTER)
            server.curve_server, server.curve_secretkey = True, secret
            port = server.bind_to_random_port("tcp://127.0.0.1")
            answering = threading.Thread(target=answer, args=(server,))
            answering.start()
            url = f"logjam://127.0.0.1:{port}"
            said = self.check(capsys, ExitCode.OK, f"{url}?curve_server={quote(public)}", "--no-event")
            answering.join()
            assert "ok       CURVE     CURVE, the server has the expected key\n" in said
            assert "ok       protocol  logjam answers in " in said
            other, _ = zmq.curve_keypair()
            url = f"{url}?curve_server={quote(other)}"
            said = self.check(capsys, ExitCode.UNREACHABLE, url, "--no-event", "--json")
            last = json.loads(said)["steps"][-1]
            assert (last["step"], last["status"], last["mend"]) == ("CURVE", "failed", "")
        finally:
            context.destroy(linger=0)


def importer_takes(document: dict[str, Any]) -> bool:
    _, wrong = judge(json.dumps(document).encode(), now=time.time())
    assert wrong == []
    return True


def answer(server: Any) -> None:
    if server.poll(PATIENCE * 1000):
        who = server.recv_multipart()[0]
        server.send_multipart([who, b"ping", b"200 OK", b"host"])


class TestSend:
    def test_send_makes_a_document_of_each_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "log"
        path.write_text("one\ntwo\n")
        with Collector(keep=True) as device:
            url = f"{device.url}/shop-production"
            assert cli.main(["send", url, str(path), "--json"]) == ExitCode.OK
            outcomes = json.loads(capsys.readouterr().out)
            assert (outcomes["sent"], outcomes["acked"], outcomes["handed"]) == (2, 2, 0)
            documents = device.events(2)
        assert [document["lines"][0][2] for document in documents] == ["one", "two"]
        assert all(map(importer_takes, documents))

    def test_pushed_events_are_handed_over(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "log"
        path.write_text('{"action":"A#b"}\n{"action":"A#c"}\n')
        with Collector(keep=True) as device:
            url = f"{device.push_url}/shop-production"
            assert cli.main(["send", url, str(path), "--format", "ndjson", "--json"]) == ExitCode.OK
            outcomes = json.loads(capsys.readouterr().out)
            assert (outcomes["sent"], outcomes["acked"], outcomes["handed"]) == (2, 0, 2)
            assert [document["action"] for document in device.events(2)] == ["A#b", "A#c"]

    @pytest.mark.slow
    def test_send_to_a_dead_device_is_exit_3(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "log"
        path.write_text("one\n")
        with Collector() as device:
            pass
        url = f"{device.url}/shop-production"
        assert cli.main(["send", url, str(path), "--timeout", "1s"]) == ExitCode.UNREACHABLE
        assert "connection refused" in capsys.readouterr().err

    def test_send_needs_an_app_env(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "log"
        path.write_text("one\n")
        assert cli.main(["send", "logjam://127.0.0.1:1", str(path)]) == ExitCode.USAGE
        assert "app-env: <app>-<env>" in capsys.readouterr().err
