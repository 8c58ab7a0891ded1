"""Logjam in the verifier: messages as rows, what is promised, and what devices publish."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ExitCode
from tests import support
from tests.oracle import logjam as oracle
from tests.support import verify_files as files
from tests.verify.histories import compressions

support.need("numpy")
support.need("pyarrow")
dataframes = pytest.importorskip("logclient.verify.dataframes.sources")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

P = "0a" * 10
SUB = "logjam-sub"
METHODS = compressions()


def bodies(n: int, **options: Any) -> dict[int, bytes]:
    return {s: files.document(files.event_id(P, s), f"event {s} " * 20, **options) for s in range(1, n + 1)}


class Run:
    """One producer, and captures at a device and at its consumers."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.capture, self.out = folder / "ledger", folder / "capture", folder / "out"

    def write_ledger(
        self,
        sent: dict[int, bytes],
        status: str = "acked",
        *,
        mode: str = "request",
        identity: str = "id",
        users: list[tuple[int, str]] | None = None,
        path: str = "",
    ) -> Run:
        lines: list[Any] = [files.open_line(P, 1, identity, "logjam", mode, path)]
        lines.append(files.batch_line([(s, 1000 * s, files.xxh64(raw)) for s, raw in sorted(sent.items())]))
        if users:
            lines.append(files.ids_line(users))
        if status:
            lines.append(files.outcome_line(status, sent))
        lines.append(files.close_line(max(sent, default=0)))
        files.write_part(self.ledger, P, 1, lines)
        return self

    def write_capture(self, units: list[bytes], listener: str = "logjam", **options: Any) -> Run:
        rows: list[tuple[bytes, int, int]] = []
        for i, unit in enumerate(units):
            rows.append((unit, 0, 500_000 + i))
            if unit.startswith(b"\0\0\0\x80"):
                rows.append((files.ACCEPTED, 1, 500_000 + i))
        files.write_segments(self.capture, listener, rows, protocol="logjam", **options)
        return self

    def verdict(self, bits: int = 4, units: int = 7) -> Any:
        return inprocess.run(self.ledger, self.capture, out=self.out, bits=bits, units=units)

    def found(self) -> dict[str, set[int]]:
        return {word: {seq for _, seq in rows} for word, rows in inprocess.found(self.out).items()}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def nonzero(verdict: Any) -> dict[str, int]:
    return {word: n for word, n in verdict.counts._asdict().items() if n}


# -- what arrives


@pytest.mark.slow
@pytest.mark.parametrize("request_", [True, False], ids=["request", "async"])
@pytest.mark.parametrize("compression", METHODS)
@pytest.mark.parametrize("topic", [files.TOPIC, "events.shop.production", "frontend.page"])
def test_events_are_found_by_id_in_every_compression(
    run: Run, request_: bool, compression: int, topic: str
) -> None:
    """The hash is that of the body before compression."""
    sent = bodies(40, topic=topic)
    units = [
        files.message(raw, request=request_, compression=compression, topic=topic, number=s)
        for s, raw in sent.items()
    ]
    mode, status = ("request", "acked") if request_ else ("async", "handed")
    verdict = run.write_ledger(sent, status, mode=mode).write_capture(units, per_segment=11).verdict()
    assert nonzero(verdict) == {"events": 40, "ok": 40}
    assert verdict.exit_code == ExitCode.OK
    assert verdict.undecodable == {}
    assert verdict.capture["acks"] == (40 if request_ else 0)


def test_own_ids_of_users_are_found_by_the_ledger(run: Run) -> None:
    own = {3: "f" * 32, 5: "my own id", 7: "with \\u00e9scape and \\n", 8: "shared", 9: "shared"}
    sent = bodies(12)
    for seq, user in own.items():
        sent[seq] = files.document(None, f"event {seq}").replace(b"}", b',"request_id":"%b"}' % user.encode())
    units = [files.message(raw, compression=1, number=s) for s, raw in sent.items()]
    verdict = run.write_ledger(sent, users=sorted(own.items())).write_capture(units).verdict()
    assert nonzero(verdict) == {"events": 12, "ok": 12}
    assert verdict.exit_code == ExitCode.OK


def test_events_without_ids_are_compared_by_hash(run: Run) -> None:
    sent = {s: files.document(None, f"line {s % 3}") for s in range(1, 10)}
    units = [files.message(raw, number=s) for s, raw in sent.items() if s != 4]
    verdict = (
        run.write_ledger(sent, identity="none").write_capture([*units, files.message(b'{"a":1}')]).verdict()
    )
    assert nonzero(verdict) == {"events": 9, "ok": 8, "lost": 1, "unexpected": 1}
    assert verdict.order == "not checked"


def test_changed_body_is_corrupted_and_shown(run: Run) -> None:
    sent = bodies(9)
    units = [files.message(raw, compression=s % 2, number=s) for s, raw in sent.items()]
    bad = {s: sent[s].replace(b"event", b"evenT", 1) for s in (3, 6)}
    for s in bad:
        units[s - 1] = files.message(bad[s], compression=s % 2, number=s)
    verdict = run.write_ledger(sent).write_capture(units).verdict()
    assert nonzero(verdict) == {"events": 9, "ok": 7, "corrupted": 2}
    assert verdict.exit_code == ExitCode.BROKEN
    packed, plain = verdict.examples["corrupted"]
    for example, s in ((packed, 3), (plain, 6)):
        assert example["body"].encode() == bad[s]
        assert example["arrived_hash"] == f"{files.xxh64(bad[s]):016x}"
        # The message, and the frame that is the body.
        assert [frame["depth"] for frame in example["frames"]] == [0, 1]
        assert "request of 5 frames, shop-production, logs.shop.production" in example["frames"][0]["title"]
        # Its bytes begin with the head of that frame.
        shown = bytes.fromhex(example["bytes"])
        assert example["bytes_at"] + 4 == example["offset"]
        assert int.from_bytes(shown[:4], "little") & 0x7FFFFFFF == len(bad[s])
        assert shown[4:] == bad[s][: len(shown) - 4]
        assert example["opened"] == (s == 3)


def test_undecodable_messages_are_counted_by_reason(run: Run) -> None:
    sent = bodies(3)
    good = [files.message(raw, number=s) for s, raw in sent.items()]
    name, topic = files.APP_ENV.encode(), files.TOPIC.encode()
    bad = {
        "torn": good[0][:-3],
        "bad_frames": oracle.join([name, topic]),
        "old_meta": oracle.join([name, topic, b"{}", files.meta()[:22]]),
        "bad_meta": oracle.join([name, topic, b"{}", b"x" * 24]),
        "bad_topic": files.message(b"{}", topic="webvitals"),
        "bad_app_env": files.message(b"{}", app_env="nodash"),
        "bad_compression": oracle.join([name, topic, b"{}", files.meta(9)]),
        "bad_zlib": oracle.join([name, topic, b"{}", files.meta(1)]),
        "not_json": files.message(b"[1]"),
    }
    quiet = [oracle.join([b"", b"ping", name, b"{}", files.meta()]), files.heartbeat(3, 1)]
    verdict = run.write_ledger(sent).write_capture([*good, *bad.values(), *quiet]).verdict()
    assert verdict.undecodable == dict.fromkeys(bad, 1)
    assert {row["reason"] for row in verdict.undecoded} == set(bad)
    assert all(row["wrong"] for row in verdict.undecoded)
    assert (verdict.capture["pings"], verdict.capture["heartbeats"]) == (1, 1)
    assert nonzero(verdict) == {"events": 3, "ok": 3}
    assert verdict.exit_code == ExitCode.OK


def test_missing_compression_package_makes_events_unknown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 3, and the problem names the package."""
    from logclient._ext import logjam

    sent = bodies(5)
    units = [files.message(raw, compression=1, number=s) for s, raw in sent.items()]
    found = logjam.Decoder

    class Blind:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.decoder = found(*arguments, **options)

        def decode(self, data: Any, offsets: Any, lengths: Any) -> Any:
            import numpy as np

            rows = self.decoder.decode(data, offsets, lengths)
            status = np.frombuffer(rows.status, np.uint8).copy()
            status[np.frombuffer(rows.sequence, np.int64) == 2] = logjam.NO_LIBRARY

            class Rows:
                def __getattr__(self, name: str) -> Any:
                    return status if name == "status" else getattr(rows, name)

            return Rows()

    monkeypatch.setattr(logjam, "Decoder", Blind)
    verdict = run.write_ledger(sent).write_capture(units).verdict()
    assert nonzero(verdict) == {"events": 5, "ok": 4, "unknown": 1}
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert any("python-snappy" in problem for problem in verdict.problems)


# -- what is promised


def test_missing_acknowledged_request_is_lost(run: Run) -> None:
    sent = bodies(9)
    units = [files.message(raw, number=s) for s, raw in sent.items() if s != 4]
    verdict = run.write_ledger(sent).write_capture(units).verdict()
    assert nonzero(verdict) == {"events": 9, "ok": 8, "lost": 1}
    assert verdict.exit_code == ExitCode.BROKEN
    assert verdict.producers[0].mode == "request"


def test_missing_handed_over_message_is_missing(run: Run) -> None:
    sent = bodies(9)
    units = [files.message(raw, request=False, number=s) for s, raw in sent.items() if s != 4]
    verdict = run.write_ledger(sent, "handed", mode="async").write_capture(units).verdict()
    assert nonzero(verdict) == {"events": 9, "ok": 8, "missing": 1}
    assert verdict.exit_code == ExitCode.OK
    assert verdict.producers[0].mode == "async"


@pytest.mark.parametrize(("mode", "code"), [("request", ExitCode.BROKEN), ("async", ExitCode.OK)])
def test_order_is_promised_for_requests_only(run: Run, mode: str, code: ExitCode) -> None:
    sent = bodies(9)
    order = [1, 2, 4, 3, 5, 6, 9, 7, 8]
    units = [files.message(sent[s], request=mode == "request", number=s) for s in order]
    outcome = "acked" if mode == "request" else "handed"
    verdict = run.write_ledger(sent, outcome, mode=mode).write_capture(units).verdict()
    assert nonzero(verdict) == {"events": 9, "ok": 9, "reordered": 3}
    assert run.found()["reordered"] == {3, 7, 8}
    assert verdict.exit_code == code
    assert verdict.producers[0].breaks == (("reordered",) if code else ())


@pytest.mark.parametrize(("source", "code"), [("devices", ExitCode.OK), ("producers", ExitCode.BROKEN)])
def test_order_behind_a_device_is_not_promised(run: Run, source: str, code: ExitCode) -> None:
    """A device that compresses with several threads reorders; this is only reported."""
    sent = bodies(9)
    units = [
        files.message(sent[s], request=False, device=7, number=n)
        for n, s in enumerate([1, 2, 4, 3, 5, 6, 9, 7, 8], 1)
    ]
    verdict = run.write_ledger(sent, "acked", mode="request").write_capture(units, source=source).verdict()
    assert nonzero(verdict) == {"events": 9, "ok": 9, "reordered": 3}
    assert run.found()["reordered"] == {3, 7, 8}
    assert verdict.exit_code == code
    ending = "3 reordered behind a device, where order is no promise."
    assert verdict.sentence.endswith(ending) == (source == "devices")
    assert verdict.capture["published"] == (["logjam"] if source == "devices" else [])
    page = (run.out / "report.html").read_text()
    assert ("in the order of devices: reordered events are reported" in page) == (source == "devices")


def test_order_is_judged_at_the_device_if_it_is_captured(run: Run) -> None:
    sent = bodies(9)
    for order, source, name in (
        ([*range(1, 10)], "producers", "device"), ([2, 1, *range(3, 10)], "devices", SUB)
    ):  # fmt: skip
        units = [
            files.message(sent[s], request=source == "producers", device=source == "devices", number=n)
            for n, s in enumerate(order, 1)
        ]
        run.write_ledger(sent, "acked", mode="request").write_capture(units, name, source=source)
    verdict = run.verdict()
    assert nonzero(verdict) == {"events": 9, "ok": 9, "duplicated": 9}
    assert verdict.capture["published"] == []
    units = [files.message(sent[s], number=n) for n, s in enumerate([2, 1, *range(3, 10)], 1)]
    run.write_capture(units, "device", source="producers")
    assert run.verdict().producers[0].breaks == ("reordered",)


@pytest.mark.parametrize("identity", ["id", "none"])
def test_messages_of_other_applications_are_not_judged(run: Run, identity: str) -> None:
    """Only messages under an app-env of the ledger can be unexpected."""
    sent = bodies(5) if identity == "id" else {s: files.document(None, f"line {s}") for s in range(1, 6)}
    foreign = files.document("f" * 32, "not ours")
    theirs = [
        files.message(foreign, app_env="mail-production"),
        files.message(files.document(None, "x"), app_env="shop-productioN", compression=1),
        files.message(b"[1]", app_env="shop-preview"),
    ]
    ours = [files.message(raw, number=s) for s, raw in sent.items()]
    # An id of ours counts under any app-env, and a foreign message under ours is unexpected.
    under_another = files.message(sent[5], app_env="mail-production") if identity == "id" else ours[4]
    units = [*ours[:2], *theirs, *ours[2:4], under_another, files.message(foreign)]
    run.write_ledger(sent, identity=identity, path="/shop-production").write_capture(units)
    verdict = run.verdict()
    assert nonzero(verdict) == {"events": 5, "ok": 5, "unexpected": 1}
    assert verdict.capture["others"] == 3
    assert verdict.undecodable == {}
    # A producer whose ledger names no app-env may have sent any of them.
    run.write_ledger(sent, identity=identity)
    verdict = run.verdict()
    # Without ids no body is parsed.
    unexpected, undecodable = (2, {"not_json": 1}) if identity == "id" else (3, {})
    assert nonzero(verdict)["unexpected"] == unexpected
    assert verdict.undecodable == undecodable


# -- what devices publish


def published(sent: dict[int, bytes], order: list[int], device: int, number: int = 1) -> list[bytes]:
    return [
        files.message(sent[s], request=False, device=device, number=n) for n, s in enumerate(order, number)
    ]


def test_order_is_judged_for_each_device(run: Run) -> None:
    """Messages of two devices have no common order at a consumer."""
    sent = bodies(40)
    one, two = published(sent, list(range(1, 21)), 1), published(sent, list(range(21, 41)), 2)
    mixed = [unit for pair in zip(two, one, strict=True) for unit in pair]
    verdict = run.write_ledger(sent).write_capture(mixed, SUB).verdict()
    assert nonzero(verdict) == {"events": 40, "ok": 40}
    # Within one device order is promised.
    mixed[1], mixed[5] = mixed[5], mixed[1]
    verdict = run.write_capture(mixed, SUB).verdict()
    assert nonzero(verdict) == {"events": 40, "ok": 40, "reordered": 2}
    assert run.found()["reordered"] == {1, 2}
    (first, second) = verdict.examples["reordered"]
    assert (first["listener"], first["seq"], second["seq"]) == (SUB, 1, 2)
    assert "device 1" in first["frames"][0]["title"]


@pytest.mark.parametrize("units", [7, 1000])
def test_many_devices_cause_no_false_reordering(run: Run, units: int) -> None:
    """Memory is bounded, however many device numbers arrive."""
    sent = bodies(200)
    messages = [
        files.message(sent[s], request=False, device=1000 + s, number=1) for s in sorted(sent, reverse=True)
    ]
    verdict = run.write_ledger(sent).write_capture(messages, SUB).verdict(8, units)
    assert nonzero(verdict) == {"events": 200, "ok": 200}


# -- the report


def test_report_shows_modes(run: Run) -> None:
    from logclient.verify import report

    sent = bodies(10)
    units = [*published(sent, [1, 2, 3], 7, 1), *published(sent, [5, 6, 7, 8, 9, 10], 7, 5)]
    verdict = run.write_ledger(sent, "handed", mode="async").write_capture(units, SUB).verdict()
    assert "missing                  1  handed over" in report.text(verdict)
    assert "async: not acknowledged" in (run.out / "report.html").read_text()


# -- as a DataFrame


def read_rows(folder: Path) -> list[dict[str, Any]]:
    source = dataframes.CaptureSource({"path": str(folder)})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["listener"], row["arrival"]))


def test_rows_hold_the_fields_of_a_message(run: Run) -> None:
    sent = bodies(2)
    event = files.document(files.event_id(P, 3), "x", topic="events.a.b")
    units = [
        files.message(sent[1], number=1, created_ms=1_795_155_232_892),
        files.message(sent[2], compression=1, request=False, number=(1 << 64) - 1),
        files.message(event, request=False, topic="events.a.b", app_env="a-b", number=3),
        oracle.join([b"", b"ping", b"a-b", b"{}", files.meta()]),
        oracle.join([b"a-b", b"logs", b"{}"]),
    ]
    run.write_capture(units)
    run.write_capture([*published(sent, [1], 4_000_000_000, 17), files.heartbeat(5, 9)], SUB)
    rows = read_rows(run.capture)
    names = ("app_env", "topic", "request", "device", "device_seq", "created", "sequence", "error")
    here, topic = files.APP_ENV, files.TOPIC
    made = datetime.datetime(2026, 11, 20, 6, 13, 52, 892000, datetime.UTC)
    assert [tuple(row[name] for name in names) for row in rows] == [
        (here, topic, True, 0, 1, made, 1, None),
        (here, topic, False, 0, -1, None, 2, None),
        ("a-b", "events.a.b", False, 0, 3, None, 3, None),
        (None, None, None, None, None, None, None, "ping"),
        ("a-b", "logs", False, None, None, None, None, "no_meta"),
        (here, topic, False, 4_000_000_000, 17, None, 1, None),
        ("heartbeat", "tcp://h:9606", False, 5, 9, None, None, "heartbeat"),
    ]
    assert {row["protocol"] for row in rows} == {"logjam"}
    assert [row["hash"] & (1 << 64) - 1 for row in rows[:3]] == [
        files.xxh64(sent[1]), files.xxh64(sent[2]), files.xxh64(event)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_each_damaged_message_is_one_row(run: Run, seed: int) -> None:
    """Bits flipped, bytes cut, inserted and repeated, anywhere."""
    rng = random.Random(seed)
    sent = bodies(300)
    units = []
    for s, raw in sent.items():
        unit = bytearray(
            files.message(raw, request=s % 3 == 0, compression=rng.choice(METHODS), device=s % 2, number=s)
        )
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(unit))
            how = rng.randint(0, 3)
            if how == 0:
                unit[at] ^= 1 << rng.randint(0, 7)
            elif how == 1:
                del unit[at : at + rng.randint(1, 40)]
            elif how == 2:
                unit[at:at] = rng.randbytes(rng.randint(1, 9))
            else:
                unit[at:at] = unit[at : at + 60]
            unit = unit or bytearray(b"?")
        units.append(bytes(unit))
    received = [(unit, 0, 1000 + i) for i, unit in enumerate(units)]
    files.write_segments(run.capture, SUB, received, protocol="logjam")
    rows = read_rows(run.capture)
    assert [row["arrival"] for row in rows] == list(range(1, 301))
    assert all((row["error"] is None) <= (row["hash"] is not None) for row in rows)
    verdict = run.write_ledger(sent, path="/shop-production").verdict()
    c = verdict.counts
    assert c.events == 300 == c.ok + c.lost + c.corrupted
    found = verdict.capture["events"] + sum(verdict.undecodable.values()) + verdict.capture["others"]
    # A body that is no JSON counts both as an event and as undecodable.
    assert found - verdict.undecodable.get("not_json", 0) + verdict.capture["heartbeats"] == 300


@pytest.mark.slow
@pytest.mark.spark
def test_spark_finds_the_same_gap(spark: Any, run: Run) -> None:
    from pyspark.sql import functions as f

    sent = bodies(50)
    order = [s for s in range(1, 51) if s not in (9, 10)]
    units = [
        files.message(sent[s], request=False, compression=s % 2, device=3, number=s, created_ms=s)
        for s in order
    ]
    run.write_capture(units, SUB, per_segment=20)
    df = dataframes.arrivals(spark, run.capture)
    rows = df.where(f.col("error").isNull()).orderBy("device_seq").collect()
    assert [(row.sequence, row.device, row.device_seq) for row in rows] == [(s, 3, s) for s in order]
    # Spark's own functions find the same gap.
    lacks = df.agg((f.max("device_seq") - f.min("device_seq") + 1 - f.count("device_seq")).alias("n"))
    assert lacks.collect()[0].n == 2
