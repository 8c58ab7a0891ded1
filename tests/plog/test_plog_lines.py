"""plog over TCP: each event is a line, handed when the kernel has it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logclient
from logclient import cli, plog
from logclient._ext.constants import K_BYTES as BYTES
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.plog import Codec
from logclient.config.parsing import parse
from logclient.errors import ConfigError, ExitCode
from logclient.testing.plog import Collector
from logclient.transports.tcp import OneWay
from tests.oracle import plog as oracle
from tests.support.batches import inflight_of
from tests.support.lumberjack_inputs import near_objects
from tests.support.patience import PATIENCE
from tests.support.pumps import refuse_pump

PRODUCER = bytes(range(10))


@pytest.fixture
def server() -> Iterator[Collector]:
    with Collector(tcp_port=0, keep=True) as collector:
        yield collector


@pytest.fixture(params=["compiled", "python"])
def url(request: pytest.FixtureRequest, server: Collector, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the server's URL, for the compiled pump and for the one in Python."""
    if request.param == "python":
        monkeypatch.setattr(OneWay, "load_pump", refuse_pump("a test needs the link in Python"))
    return f"plog+tcp://127.0.0.1:{server.listens['tcp']}"


def connect(url: str, **options: Any) -> plog.Client:
    made = logclient.connect(url, **options)
    assert isinstance(made, plog.Client)
    return made


def test_events_are_lines_in_order(server: Collector, url: str) -> None:
    with connect(url, event_type="orders") as client:
        for number in range(3000):
            client.event({"order": number})
        assert client.flush(PATIENCE) == 0
        stats = client.stats()
    assert (stats.handed, stats.resent, stats.disconnects) == (3000, 0, 0)
    found = [json.loads(line) for line in taken(server, 3000)]
    assert [event["data"]["order"] for event in found] == list(map(str, range(3000)))
    assert {event["type"] for event in found} == {"orders"}
    assert [event["uuid"] for event in found] == [client.event_id(seq) for seq in range(1, 3001)]
    assert server.counts.datagrams == 0


def taken(server: Collector, n: int) -> list[bytes]:
    """Wait for `n` events and return the lines."""
    assert server.wait_for(events=n, timeout=PATIENCE)
    return server.messages()


def test_body_that_is_no_object_travels_unchanged(server: Collector, url: str) -> None:
    bodies = [b"plain", b"\0\0ping", b"\xff\xfe", b"", b"a\rb", b'{"a":1'] + [b"x" * 100_000]
    with connect(url) as client:
        for body in bodies:
            client.send(body)
        assert client.flush(PATIENCE) == 0
    assert taken(server, len(bodies)) == bodies


def test_body_with_a_line_end_fails(server: Collector, url: str) -> None:
    with connect(url) as client:
        for body in (b"two\nlines", b"an end\n", b"a return\r", b'{"a":\n1}'):
            assert client.submit(body).result(PATIENCE) == ("failed", "unencodable")
        assert client.submit(b' {"a":1}\n').result(PATIENCE)[0] == "handed"  # outer space is stripped
        assert client.submit("two\nlines").result(PATIENCE)[0] == "handed"  # JSON escapes the line end
        with pytest.raises(logclient.EncodeError):
            client.submit(b"x" * 300_000)
        assert client.flush(PATIENCE) == 0
        assert client.stats().failed == {"unencodable": 4, "too_large": 1}
    first, second = (json.loads(line) for line in taken(server, 2))
    assert first["a"] == 1 and second["data"] == "two\nlines"


def test_handler_sends_a_record_as_a_line(server: Collector, url: str) -> None:
    handler = logclient.Handler(url)
    logger = logging.Logger("lines")
    logger.addHandler(handler)
    logger.warning("over %s", "TCP")
    handler.flush()
    (line,) = taken(server, 1)
    handler.close()
    assert json.loads(line)["data"]["message"] == "over TCP"


def test_delivery_continues_after_a_cut(server: Collector, url: str) -> None:
    with connect(url, backoff_max=0.1) as client:
        client.send(b"before")
        assert taken(server, 1) == [b"before"]
        assert server.cut()
        for number in range(50):
            client.send(b"%d" % number)
            client.flush(PATIENCE)
        assert client.stats().connects >= 2
        found = server.messages()
        while found[-1] != b"49":  # earlier ones may be lost with the cut connection
            assert server.wait_for(events=len(found) + 1, timeout=PATIENCE)
            found = server.messages()


def test_verdict_over_lines_is_clean(server: Collector, tmp_path: Path) -> None:
    verdict = pytest.importorskip("tests.support.verify_inprocess")
    capture, ledger = tmp_path / "capture", tmp_path / "ledger"
    with Collector(tcp_port=0, capture=str(capture)) as collector:
        with connect(f"plog+tcp://127.0.0.1:{collector.listens['tcp']}", ledger=str(ledger)) as client:
            for number in range(500):
                client.event({"number": number})
            assert client.flush(PATIENCE) == 0
        assert collector.wait_for(events=500, timeout=PATIENCE)
    verdict.run(ledger, capture, out=tmp_path / "out")
    assert verdict.found(tmp_path / "out") == {}


# -- unsupported options and commands


@pytest.mark.parametrize("option", ["mtu=1400", "unboxed=true", "topic=a", "tags=a", "pace=5",
                                    "pace_bytes=5", "feedback=auto"])  # fmt: skip
def test_options_of_datagrams_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option.partition('=')[0]}: only for datagrams"):
        parse(f"plog+tcp://host?{option}")


def test_commands_are_refused_over_tcp(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--settings"]):
        assert cli.main(["stat", *options, url]) == ExitCode.USAGE
        assert "plog+tcp servers cannot be asked" in capsys.readouterr().err
    assert cli.main(["check", "--no-event", url]) == ExitCode.OK
    assert "protocol  this protocol has no answers" in capsys.readouterr().out
    with connect(url) as client:
        with pytest.raises(ConfigError, match="command: there are none over TCP"):
            client.command("ping")
        with pytest.raises(ConfigError, match="tags: lines over TCP have none"):
            client.publish(b"x", key="7")


def test_collect_of_tcp_alone_names_the_right_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["collect", "plog+tcp://127.0.0.1:0", "--capture", str(tmp_path)]) == ExitCode.USAGE
    assert "plog://host:port?tcp=port" in capsys.readouterr().err


def test_send_command_delivers_lines(
    server: Collector, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert cli.main(["send", url, str(lines), "--json"]) == ExitCode.OK
    result = json.loads(capsys.readouterr().out)
    assert result["handed"] == 2
    assert [json.loads(line)["data"] for line in taken(server, 2)] == ["one", "two"]


# -- the codec


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(near_objects | st.binary(max_size=50), st.sampled_from([RAW, BYTES])), max_size=30),
    st.booleans(),
    st.integers(0, 60),
)
def test_encoding_of_lines_equals_the_reference(
    events: list[tuple[bytes, int]], identity: bool, most: int
) -> None:
    codec = Codec(PRODUCER, lines=True, identity=identity, max_message=most, packets=0.0, size=0.0)
    codec.connected(0.0)
    if not events:
        return
    in_flight, batch = inflight_of(events)
    want, results = oracle.encode_lines(events, PRODUCER, most=most, identity=identity)
    failed = {seq: one.reason for seq, one in enumerate(results, 1) if one.reason}
    ends = [(seq, one.end) for seq, one in enumerate(results, 1) if not one.reason]
    assert codec.encode(batch.capsule, 100, 0.0) == len(ends)
    in_flight.encoded(batch)
    assert codec.take_bytes() == want
    report = {s: r for first, last, _, r in in_flight.take_report() for s in range(first, last + 1)}
    assert report == failed
    handed: list[int] = []
    taken = 0
    for more in (0, len(want) // 2, len(want) - len(want) // 2):
        codec.sent(more)
        taken += more
        handed += [seq for first, last, *_ in codec.outcomes()[0] for seq in range(first, last + 1)]
        assert handed == [seq for seq, end in ends if end <= taken]
