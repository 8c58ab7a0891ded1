"""The command line with Logjam: collect, decode."""

from __future__ import annotations

import io
import json
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient import cli, registry
from logclient.collectors import main
from logclient.errors import ExitCode
from tests import shared
from tests import verify_files as files

zmq = shared.need("zmq")

from tests.logjam_rig import ACCEPTED, Producer, event, message, meta  # noqa: E402

DEADLINE = 20.0


@pytest.fixture(autouse=True)
def available(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("logjam", "logjam+push"):
        row = registry.SCHEMES[scheme]
        monkeypatch.setitem(registry.SCHEMES, scheme, row._replace(transport=row.transport or "any"))


class Running:
    """``collect`` in a thread: stopped by the clock alone, signals are the main thread's."""

    def __init__(self, urls: list[str], capture: Path, seconds: float, **options: Any) -> None:
        self.out = io.StringIO()
        self.thread = threading.Thread(
            target=main.run,
            args=(urls,),
            kwargs={
                "capture": str(capture), "seconds": seconds, "as_json": True, "out": self.out, **options,
            },
        )  # fmt: skip
        self.thread.start()
        end = time.monotonic() + DEADLINE
        while self.out.getvalue().count("\n") < len(urls):
            assert time.monotonic() < end
            assert self.thread.is_alive()
        self.listens = [json.loads(line) for line in self.out.getvalue().splitlines()]

    def ends(self) -> list[dict[str, Any]]:
        self.thread.join(DEADLINE)
        return [json.loads(line) for line in self.out.getvalue().splitlines()[len(self.listens) :]]


@pytest.fixture
def subscriber() -> Iterator[Any]:
    context = zmq.Context()
    yield context.socket(zmq.SUB)
    context.destroy(linger=0)


class TestCollect:
    def test_a_device_as_the_url_says(self, tmp_path: Path, subscriber: Any) -> None:
        url = "logjam://127.0.0.1:0?push=0&publish=0&device=77&recompress=zlib&allow_invalid=true&heartbeat=0.2s"
        run = Running([url], tmp_path, 3.0)
        (said,) = run.listens
        assert set(said) == {"url", "port", "push", "publish"}
        assert said["url"] == f"logjam://127.0.0.1:{said['port']}"
        push = int(said["push"].removeprefix("logjam+push://127.0.0.1:"))
        subscriber.subscribe(b"")
        subscriber.connect(said["publish"])
        assert subscriber.poll(DEADLINE * 1000)
        beat = subscriber.recv_multipart()
        assert beat[0] == b"heartbeat"
        assert int.from_bytes(beat[3][4:8], "big") == 77
        with Producer(said["port"]) as asks, Producer(push, zmq.PUSH) as pushes:
            assert asks.ship(1) == [ACCEPTED]
            pushes.tell([*message(2)[:3], b"no meta"])
            published: list[Any] = []
            while len(published) < 2:
                assert subscriber.poll(DEADLINE * 1000)
                frames = subscriber.recv_multipart()
                published += [frames] if frames[0] != b"heartbeat" else []
        assert {zlib.decompress(frames[2]) for frames in published} == {event(1), event(2)}
        assert {int.from_bytes(frames[3][4:8], "big") for frames in published} == {77}
        (end,) = run.ends()
        assert (end["captured_events"], end["acks"], end["published"]) == (2, 1, 2)
        assert end["heartbeats"] > 0

    def test_several_devices_have_numbers_of_their_own(self, tmp_path: Path) -> None:
        urls = ["logjam://127.0.0.1:0?publish=none", "logjam://127.0.0.1:0", "lumberjack://127.0.0.1:0"]
        run = Running(urls, tmp_path, 0.1)
        assert ["publish" in said for said in run.listens] == [False, True, False]
        assert len({said["port"] for said in run.listens}) == 3

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("logjam://127.0.0.1:0?push=70000", "push: must be a whole number from 0 to 65535"),
            ("logjam://127.0.0.1:0?push=1&push=2", "push: given twice in the URL"),
            ("logjam+push://127.0.0.1:0?push=1", "push: logjam+push is that socket"),
            ("logjam://127.0.0.1:0?recompress=gzip", "recompress: must be one of none, zlib, snappy, lz4"),
            ("logjam://127.0.0.1:0?allow_invalid=2", "allow_invalid: must be true or false"),
            ("logjam://127.0.0.1:0?device=0", "device: must be a whole number from 1 to 4294967295"),
            ("logjam://127.0.0.1:0,[::1]:0?device=2", "device: one number for several addresses"),
            ("logjam://127.0.0.1:0?inflight=2", "inflight: no option of a collector's URL"),
            ("logjam://127.0.0.1:0/shop-production", "path: none in a collector's URL"),
            ("logjam://127.0.0.1:0?nonsense=2", "nonsense: unknown option"),
            ("lumberjack://127.0.0.1:0?push=2", "push: unknown option"),
        ],
    )
    def test_usage(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, says: str) -> None:
        assert cli.main(["collect", url, "--capture", str(tmp_path / "c"), "--for", "1s"]) == ExitCode.USAGE
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1

    def test_a_fault_that_no_device_has(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["collect", "logjam://127.0.0.1:0", "--capture", str(tmp_path / "c"), "--faults"]
        assert cli.main([*arguments, "partial-ack=every:2"]) == ExitCode.USAGE
        assert "partial-ack" in capsys.readouterr().err

    def test_faults_strike(self, tmp_path: Path) -> None:
        witness = tmp_path / "witness"
        run = Running(
            ["logjam://127.0.0.1:0"],
            tmp_path / "c",
            2.0,
            faults="discard=every:3,seed=1",
            witness=str(witness),
        )
        with Producer(run.listens[0]["port"]) as asks:
            assert asks.ship(*range(1, 10)) == [ACCEPTED] * 9
        (end,) = run.ends()
        assert (end["captured_events"], end["acks"]) == (6, 9)
        assert end["faults"] == {"discard": 3}
        assert len(witness.read_text().splitlines()) == 3


class TestDecode:
    @pytest.fixture
    def capture(self, tmp_path: Path) -> Path:
        units = [
            files.message(event(1), compression=1, number=7, created_ms=5),
            files.joined([b"", *message(b"[1]")]),
            files.joined([b"shop-production", b"logs.\x1b[31m", b"{}", meta()]),
            files.joined([b"shop-production", b"logs", b"{}", meta()[:22]]),
        ]
        rows = [(unit, 0, 1_795_155_232_892_000) for unit in units]
        rows.insert(1, (files.ACCEPTED, 1, 1_795_155_232_893_000))
        files.write_segments(tmp_path / "c", "main", rows, protocol="logjam")
        return tmp_path / "c"

    def test_messages_and_replies(self, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["decode", "logjam", str(capture)]) == ExitCode.BROKEN
        out = capsys.readouterr().out
        assert "request of 5 frames, shop-production, logs.shop.production, zlib, device 0, created 5" in out
        assert event(1).decode() in out
        assert "reply shop-production 202 Accepted" in out
        assert "not one JSON object in UTF-8" in out
        assert "WRONG" in out
        assert "a meta of 22 bytes" in out
        assert "\x1b" not in out
        assert "to 127.0.0.1:9, arrival 2, 2026-11-20T06:13:52.893000Z" in out

    def test_json(self, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cli.main(["decode", "logjam", str(capture), "--json"])
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert rows[0].items() >= {
            "type": "request", "app_env": files.APP_ENV, "topic": files.TOPIC, "compression": "zlib",
            "device": 0, "sequence": 7, "created_ms": 5,
        }.items()  # fmt: skip
        assert rows[1]["body"].encode() == event(1)
        assert rows[2]["direction"] == "to"
        assert rows[2]["status"] == "202 Accepted"

    def test_raw_bytes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "bytes"
        path.write_bytes(files.message(event(1)) + files.ACCEPTED)
        assert cli.main(["decode", "logjam", str(path)]) == ExitCode.OK
        assert "reply" in capsys.readouterr().out
        path.write_bytes(files.message(event(1))[:-1])
        assert cli.main(["decode", "logjam", str(path)]) == ExitCode.BROKEN
        assert "cut inside a message" in capsys.readouterr().out
