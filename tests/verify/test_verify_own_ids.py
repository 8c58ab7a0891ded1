"""Ids that applications chose, and those of test events."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
counts = inprocess.counts
job = pytest.importorskip("logclient.verify.job")

CHECK = "c4ec0000" + "ab" * 6


@pytest.fixture
def verify(scene: Scene) -> Callable[..., Any]:
    def run(**options: Any) -> Any:
        return inprocess.run(scene.ledger, scene.capture, out=scene.out, **options)

    return run


def own_events(own: dict[int, str], text: str = "event") -> tuple[dict[int, bytes], list[Any]]:
    """Bodies with ids of the application, and the lines of a ledger that list them."""
    bodies = {seq: files.body(None, f"{text} {seq}", user=ident) for seq, ident in own.items()}
    batch = files.batch_line([(seq, 1000 * seq, files.xxh64(raw)) for seq, raw in bodies.items()], own=own)
    return bodies, [batch, files.ids_line([*own.items()])]


class TestDamagedLines:
    @pytest.mark.parametrize("selection", [{}, {"since": 0}])
    @pytest.mark.parametrize("others", [False, True])
    def test_id_that_no_listed_event_has(
        self, scene: Scene, verify: Callable[..., Any], others: bool, selection: dict[str, Any]
    ) -> None:
        """Two events have one id, and the line that lists them is damaged."""
        bodies, [_, ids] = own_events({1: "order", 2: "order"})
        lines = [files.open_line(P), b'{"t":"batch"}\n', ids, files.outcome_line("acked", [1, 2])]
        files.write_part(scene.ledger, P, 1, [*lines, files.close_line(2)])
        theirs = {seq: files.body(files.event_id(Q, seq), "x") for seq in (1, 2)} if others else {}
        if others:
            scene.write_ledger(producer=Q, bodies=theirs)
        scene.write_capture([*bodies.values(), *theirs.values()])
        verdict = verify(**selection)
        assert verdict.exit_code == 3
        # Two sequences, and one id for both of them.
        ok = {"ok": 2} if others else {}
        assert counts(verdict) == {"events": 2 + len(theirs), "unknown": 3, **ok}

    def test_id_of_an_event_that_is_not_listed(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """An event has the id of another one, and neither is listed."""
        scene.write_ledger()
        ids = files.ids_line([(1, files.event_id(P, 25))])
        lines = [files.open_line(Q), b"damage\n", ids, files.outcome_line("acked", [1])]
        files.write_part(scene.ledger, Q, 1, [*lines, files.close_line(1)])
        scene.write_capture([*scene.bodies, files.body(files.event_id(P, 25), "one"), b"{}"])
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 21, "ok": 20, "unknown": 3})

    def test_event_that_is_not_listed_counts_once(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Its line is damaged. An application gave it the id of another one; it arrives with the client's."""
        ids = files.ids_line([(5, files.event_id(P, 1))])
        lines = [files.open_line(P), b"damage\n", ids, files.outcome_line("acked", [1, 5])]
        files.write_part(scene.ledger, P, 1, [*lines, files.close_line(5)])
        scene.write_capture([files.body(files.event_id(P, 5), "five")])
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 5, "unknown": 5})
        assert inprocess.found(scene.out) == {"unknown": {(P, seq) for seq in range(1, 6)}}

    def test_other_events_that_share_an_id_are_still_compared_by_hash(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """Events 1 and 2 are not listed, 3 and 4 have another id together. Strangers count by their hash."""
        own = {1: "order", 2: "order", 3: "cart", 4: "cart"}
        bodies, [_, ids] = own_events(own)
        listed = [(seq, 1000, files.xxh64(bodies[seq])) for seq in (3, 4)]
        lines = [files.open_line(P), files.batch_line(listed, own=(3, 4)), ids]
        files.write_part(scene.ledger, P, 1, [*lines, files.outcome_line("acked", own), files.close_line(4)])
        scene.write_capture([*bodies.values()])
        verdict = verify()
        assert counts(verdict) == {"events": 4, "ok": 2, "unknown": 4}
        [producer] = [x for x in verdict.producers if x.producer]
        assert producer.shared == 2


class TestHalves:
    """An id of 32 hexadecimal digits is its own name, and many may begin alike."""

    def test_ids_that_share_their_first_half(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Each is found among all others in a few steps, in any order; the copy of one is lost."""
        n = 120_000
        rng = random.Random(5)
        numbers = rng.sample(range(1, 1 << 60), n)
        own = {seq: f"{7:016x}{number:016x}" for seq, number in enumerate(numbers, 1)}
        bodies, lines = own_events(own)
        end = [files.outcome_line("acked", range(1, n + 1)), files.close_line(n)]
        files.write_part(scene.ledger, P, 1, [files.open_line(P), *lines, *end])
        del bodies[17]
        strangers = [files.body(None, "x", user=f"{7:016x}{1 << 61:016x}")]
        strangers.append(files.body(None, "x", user=f"{7:016x}{0:016x}"))
        arrived = [*bodies.values()]
        rng.shuffle(arrived)
        scene.write_capture([*arrived, *strangers], size=1000)
        verdict = verify()
        found = counts(verdict)
        assert found.pop("reordered") > n // 2
        assert found == {"events": n, "ok": n - 1, "lost": 1, "unexpected": 2}
        assert inprocess.found(scene.out)["lost"] == {(P, 17)}


class TestChecks:
    """Events of `logclient check` have ids that begin with c4ec0000."""

    @pytest.mark.parametrize("identity", ["id", "none"])
    def test_checks_are_counted_and_ignored(
        self, scene: Scene, verify: Callable[..., Any], identity: str
    ) -> None:
        checks = [
            files.body(files.event_id(CHECK, 1), "test"),
            files.body(None, "test", user=CHECK + "0" * 12),
        ]
        if identity == "none":
            scene.bodies = {seq: files.body(None, f"event {seq}") for seq in scene.bodies}
        scene.write_ledger(identity=identity).write_capture([*checks, *scene.bodies, *checks])
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 20})
        assert (verdict.capture["checks"], verdict.capture["events"], verdict.undecodable) == (4, 20, {})
        assert verdict.problems == ()
        if identity == "id":
            verdict = verify(since=0)
            assert (verdict.exit_code, verdict.capture["checks"]) == (0, 4)

    def test_bodies_without_ids_may_be_any_bytes(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.bodies = {1: b"no JSON", 2: b"\xff"}
        scene.write_ledger(identity="none").write_capture()
        assert counts(verify()) == {"events": 2, "ok": 2}

    def test_ids_of_ledgers_are_no_checks(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """A producer has such a name, another one lists such an id of its application."""
        scene.bodies = {seq: files.body(files.event_id(CHECK, seq), "x") for seq in (1, 2)}
        scene.write_ledger(producer=CHECK)
        bodies, lines = own_events({1: "c4ec0000" + "0" * 23 + "1"})
        end = [files.outcome_line("acked", [1]), files.close_line(1)]
        files.write_part(scene.ledger, Q, 1, [files.open_line(Q), *lines, *end])
        never = files.body(files.event_id(CHECK, 9), "never sent")
        scene.write_capture([*scene.bodies, *bodies.values(), never, b'{"event":{"id":"c4ec0000"}}'])
        verdict = verify()
        assert counts(verdict) == {"events": 3, "ok": 3, "unexpected": 2}
        assert verdict.capture["checks"] == 0

    def test_run_with_nothing_but_checks_is_no_other_run(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        scene.write_ledger().write_capture(end="resumed", run="one")
        units = [(files.window([files.body(files.event_id(CHECK, 1), "test")]), 0, 90_000)]
        files.write_segments(scene.capture, "main", units, run="two", first=2, arrival=11)
        verdict = verify()
        assert (verdict.exit_code, verdict.problems, verdict.capture["checks"]) == (0, (), 1)

    @pytest.mark.slow
    @pytest.mark.spark
    def test_checks_in_a_table(self, scene: Scene, spark: Any, tmp_path: Any) -> None:
        check = files.body(files.event_id(CHECK, 1), "test")
        rows = [(raw.decode(),) for raw in [check, *scene.bodies.values()]]
        spark.createDataFrame(rows, "value string").write.parquet(str(tmp_path / "table"))
        scene.write_ledger()
        verdict = job.run(scene.ledger, table=str(tmp_path / "table"), spark=spark)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 20})
        assert (verdict.capture["checks"], verdict.capture["events"]) == (1, 20)
