"""Whose events they are: services and hosts, writers without a ledger, and limits on what may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, ExitCode
from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
pa = pytest.importorskip("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
report = pytest.importorskip("logclient.verify.report")

R = "0c" * 10
ALL = list(range(1, 21))
STRANGERS = [files.body(files.event_id(R, 1), "x"), files.body(None, "y", user="y"), files.body(None, "z")]


@pytest.fixture
def verify(scene: Scene) -> Callable[..., Any]:
    def run(**options: Any) -> Any:
        return inprocess.run(scene.ledger, scene.capture, out=scene.out, **options)

    return run


class TestServices:
    def write(self, scene: Scene) -> None:
        """Two hosts have the service shop, and one of its events is lost."""
        more = {seq: files.body(files.event_id(Q, seq), f"of {Q} {seq}") for seq in range(1, 4)}
        third = {1: files.body(files.event_id(R, 1), "of a third one")}
        scene.write_ledger(service="shop", service_version="1.4", host="a")
        scene.write_ledger(producer=Q, bodies=more, service="shop", service_version="1.5", host="b")
        scene.write_ledger(producer=R, bodies=third, host="b")
        scene.write_capture([*ALL[:-1], *more.values(), *third.values()])

    def test_counts_are_summed_by_service_and_host(self, scene: Scene, verify: Callable[..., Any]) -> None:
        self.write(scene)
        verdict = verify()
        rows = [(x.service, x.host, x.producers, x.counts.events, x.counts.lost) for x in verdict.services]
        assert rows == [("shop", "a", 1, 20, 1), ("shop", "b", 1, 3, 0), ("", "b", 1, 1, 0)]
        assert [x["counts"]["ok"] for x in verdict.to_json()["services"]] == [19, 3, 1]
        found = {x.producer: (x.service, x.service_version) for x in verdict.producers}
        assert found == {P: ("shop", "1.4"), Q: ("shop", "1.5"), R: ("", "")}
        page = report.page(verdict)
        assert "<h2>Services" in page and "shop 1.4" in page

    def test_table_of_producers_names_the_service(self, scene: Scene, verify: Callable[..., Any]) -> None:
        self.write(scene)
        tables: list[Any] = []
        verify(producers=tables.append)
        rows = tables[0].select(["producer", "service", "service_version", "host"]).to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            ("", "", "", ""), (P, "shop", "1.4", "a"), (Q, "shop", "1.5", "b"), (R, "", "", "b")
        ]  # fmt: skip

    @pytest.mark.parametrize("about", [{"service": 7}, {"service": None}, {"service_version": ["1"]}])
    def test_what_is_no_text_is_not_known(
        self, scene: Scene, verify: Callable[..., Any], about: dict[str, Any]
    ) -> None:
        scene.write_ledger(**about).write_capture()
        verdict = verify()
        assert verdict.exit_code == ExitCode.OK
        assert [(x.service, x.service_version) for x in verdict.producers] == [("", "")]


class TestOthers:
    def test_events_of_no_ledger_break_the_promise(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture([*ALL, *STRANGERS])
        verdict = verify()
        assert (verdict.exit_code, verdict.counts.unexpected) == (ExitCode.BROKEN, 3)
        assert verdict.others == {"rule": "break"}

    @pytest.mark.parametrize("identity", ["id", "none"])
    @pytest.mark.parametrize("others", ["count", "ignore"])
    def test_they_may_be_counted_or_ignored(
        self, scene: Scene, verify: Callable[..., Any], others: str, identity: str
    ) -> None:
        """They are counted once for each id, and no fault has one of them."""
        scene.write_ledger(identity=identity).write_capture([*ALL, *STRANGERS, *STRANGERS])
        verdict = verify(others=others)
        assert (verdict.exit_code, verdict.counts.unexpected, verdict.counts.ok) == (0, 0, 20)
        expected = {"rule": "count", "events": 3} if others == "count" else {"rule": "ignore"}
        assert verdict.others == expected
        assert not any(inprocess.found(scene.out).get(word) for word in ("unexpected", "unknown"))
        assert "none of these ledgers" in report.text(verdict) and "none of these ledgers" in report.page(
            verdict
        )

    @pytest.mark.parametrize("others", ["count", "ignore"])
    def test_open_ledgers_do_not_make_them_unknown(
        self, scene: Scene, verify: Callable[..., Any], others: str
    ) -> None:
        scene.write_ledger(tail=[]).write_capture([*ALL, *STRANGERS])
        assert verify(allow_open=True).exit_code == ExitCode.UNREACHABLE
        assert verify(allow_open=True, others=others).exit_code == ExitCode.OK

    @pytest.mark.parametrize("others", ["count", "ignore"])
    def test_events_of_a_ledger_are_judged(
        self, scene: Scene, verify: Callable[..., Any], others: str
    ) -> None:
        more = [files.body(files.event_id(P, seq), "never made") for seq in (21, 22)]
        scene.write_ledger().write_capture([*ALL[1:], *more, *STRANGERS])
        verdict = verify(others=others)
        assert verdict.exit_code == ExitCode.BROKEN
        assert (verdict.counts.lost, verdict.counts.unexpected) == (1, 2)

    @pytest.mark.parametrize("others", ["count", "ignore"])
    def test_a_collector_of_others_alone_is_no_doubt(
        self, scene: Scene, verify: Callable[..., Any], others: str
    ) -> None:
        scene.write_ledger().write_capture()
        scene.write_capture(STRANGERS, listener="second", run="2")
        assert verify(others=others).exit_code == ExitCode.OK

    def test_rule_is_one_of_three(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture()
        with pytest.raises(ConfigError, match="others: 'some' is none of break, count, ignore"):
            verify(others="some")


class TestLimits:
    @pytest.mark.parametrize(("limit", "code"), [(None, 1), (1, 1), ("9%", 1), (2, 0), ("10%", 0)])
    def test_some_may_be_lost(self, scene: Scene, verify: Callable[..., Any], limit: Any, code: int) -> None:
        scene.write_ledger().write_capture(ALL[2:])
        verdict = verify(max_lost=limit)
        assert verdict.exit_code == code
        assert [x.breaks for x in verdict.producers] == [("lost",) if code else ()]
        assert ("2 lost" in verdict.sentence) == bool(code)

    @pytest.mark.parametrize(("limit", "code"), [(None, 1), (2, 1), (3, 0)])
    def test_some_may_be_unexpected(
        self, scene: Scene, verify: Callable[..., Any], limit: Any, code: int
    ) -> None:
        scene.write_ledger().write_capture([*ALL, *STRANGERS])
        assert verify(max_unexpected=limit).exit_code == code

    def test_other_words_still_break(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture([*ALL[1:], *STRANGERS])
        verdict = verify(max_lost=5)
        assert verdict.exit_code == ExitCode.BROKEN
        assert verdict.broken == ("3 unexpected",)

    @pytest.mark.parametrize(
        ("limit", "broken"),
        [
            ("p99=1h", []),
            ("max=60ms", []),
            ("p50=30ms", ["latency p50 0.03"]),
            ("p50=30ms, p99=1h,max=40ms", ["latency p50 0.03", "latency max 0.04"]),
        ],
    )
    def test_latency(self, scene: Scene, verify: Callable[..., Any], limit: str, broken: list[str]) -> None:
        """Events are made in milliseconds 1 to 20, and received in millisecond 50."""
        scene.write_ledger().write_capture()
        verdict = verify(max_latency=limit)
        assert verdict.exit_code == bool(broken)
        assert len(verdict.broken) == len(broken)
        assert all(phrase in text for phrase, text in zip(broken, verdict.broken, strict=True))

    def test_unknown_latency_proves_nothing(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture(received=lambda unit: -1)
        verdict = verify(max_latency="p99=1s")
        assert verdict.exit_code == ExitCode.UNREACHABLE and "no latency is known" in verdict.sentence

    @pytest.mark.parametrize(
        ("limit", "why"),
        [
            ("p95=1s", "max_latency: 'p95' is none of p50, p90, p99, p999, max"),
            ("1s", "max_latency: '1s' is none of"),
            ("p99=fast", "max_latency: p99: must be a duration"),
            ("", "max_latency: '' is none of"),
        ],
    )
    def test_wrong_limits(self, scene: Scene, verify: Callable[..., Any], limit: str, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            verify(max_latency=limit)


def test_clients_say_their_service(tmp_path: Path) -> None:
    import json

    import logclient
    from logclient.testing.lumberjack import Collector

    with Collector() as server:
        url = f"lumberjack://127.0.0.1:{server.port}"
        fields = {"service.version": "1.4", "service.name": "not this one"}
        with logclient.connect(url, ledger=str(tmp_path), service="shop", fields=fields) as client:
            client.send({"message": "x"})
    [path] = tmp_path.glob("*.ledger")
    said = json.loads(path.read_text().splitlines()[0])
    assert (said["service"], said["service_version"]) == ("shop", "1.4")
