"""The benchmark harness: it refuses inexact counts, and the sinks count what was sent."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from random import Random

import pytest

from tests import support
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.tree]
if not (support.ROOT / "bench" / "harness.py").exists():
    pytest.skip("no benchmarks beside these tests", allow_module_level=True)

from bench import certificates, data, dead, delay, harness, sink  # noqa: E402
from bench.lumberjack import window  # noqa: E402
from tests.support.bench_rows import acked, row  # noqa: E402


def test_the_benchmarks_of_functions_run():
    """Each is run once, and finds what it expects."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable", "bench"]
    done = subprocess.run(command, cwd=support.ROOT, capture_output=True, text=True, timeout=10 * PATIENCE)
    assert done.returncode == 0, done.stdout[-4000:]


def busy():
    return sum(range(300))


def test_an_inexact_count_stops_the_row():
    with pytest.raises(harness.NotExact, match="liar: 4 units counted, 5 were done"):
        harness.compare([harness.Contender("liar", busy, 5, lambda: 4)], rounds=1, at_least=0.0001)
    with pytest.raises(harness.NotExact, match="late"):
        harness.compare(
            [harness.Contender("late", busy, 5, None, lambda expected: expected - 1)],
            rounds=1,
            at_least=0.0001,
        )


def test_each_contender_runs_equally_often():
    ran = []
    contenders = [harness.Contender(name, lambda name=name: ran.append(name), 1) for name in "abc"]
    samples = harness.compare(contenders, rounds=4, seed=3, at_least=0.0)
    timed = ran[6:]  # after two untimed rounds each
    assert {name: len(clocks["cpu"]) for name, clocks in samples.items()} == {"a": 4, "b": 4, "c": 4}
    assert [sorted(timed[i : i + 3]) for i in range(0, 12, 3)] == [["a", "b", "c"]] * 4
    assert len({tuple(timed[i : i + 3]) for i in range(0, 12, 3)}) > 1


def test_two_contenders_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two contenders have the same name"):
        harness.compare([harness.Contender("a", busy, 1)] * 2, rounds=1, at_least=0.0)


def test_ratios_compare_runs_of_the_same_round():
    samples = {"a": {"cpu": [10.0, 100.0, 30.0]}, "b": {"cpu": [5.0, 50.0, 10.0]}}
    assert harness.ratio(samples, "a", "b").median == 2.0


@pytest.mark.parametrize(
    ("value", "op", "bound", "reached"),
    [(2.0, "<=", 2.0, True), (2.01, "<=", 2.0, False), (9.99, ">=", 10, False), (10, ">=", 10, True)],
)
def test_verdicts_compare_with_the_target(value, op, bound, reached):
    samples = {"over": {"cpu": [value] * 3}, "under": {"cpu": [1.0] * 3}}
    (verdict,) = harness.judge(samples, [harness.Target("over", "under", op, bound)])
    assert verdict.reached is reached


def test_a_missing_peer_is_named():
    (verdict,) = harness.judge({"a": {"cpu": [1.0]}}, [harness.Target("a", "b", ">=", 2)])
    assert verdict.reached is None
    assert verdict.why == "b is not installed"


def test_a_busy_machine_is_reported():
    assert "other programs used 0.10 cores" in harness.markdown(row())
    assert "not to be quoted" not in harness.markdown(row())
    assert "not to be quoted" in harness.markdown(row(others=0.5))
    neighbours = harness.OtherPrograms()
    busy()
    assert not neighbours.cores() < 0


def test_a_row_writes_its_results(tmp_path, capsys):
    harness.show(row(), tmp_path)
    assert "a title" in capsys.readouterr().out
    said = json.loads((tmp_path / "some.json").read_text())
    assert said["verdicts"][0]["reached"] is True
    assert "reached" in (tmp_path / "some.md").read_text()


def test_log_calls_have_the_documented_mix():
    made = data.records(1000)
    assert sum(bool(r.args) for r in made) == 500
    assert sum(hasattr(r, "took_ms") for r in made) == 100
    assert [r.getMessage() for r in made] == [line.text for line in data.lines(1000)]


@pytest.fixture
def fresh_pool():
    data.choose_samples.cache_clear()
    yield
    data.choose_samples.cache_clear()


def test_generated_lines_are_those_of_the_input(tmp_path, monkeypatch, fresh_pool):
    files = [tmp_path / "one.log", tmp_path / "two.log"]
    for path in files:
        path.write_text("12345678\n")
    monkeypatch.setenv(data.INPUT, os.pathsep.join(map(str, files)))
    assert {line.program for line in data.lines(100)} == {"one", "two"}
    assert data.source() == "lines from 2 files, 8 bytes on average"


def said(logged=10, **outcomes):
    return {"logged": logged, "outcomes": dict.fromkeys(dead.OUTCOMES, 0) | outcomes}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (said(dropped=7, failed=2), "10 events were logged"),
        (said(dropped=7, failed=4), "10 events were logged"),
        (said(dropped=7, acked=3), "by a dead server"),
    ],
)
def test_outcomes_that_do_not_add_up_stop_the_row(wrong, why):
    dead.exact("no answer", said(dropped=7, failed=3), None)
    with pytest.raises(harness.NotExact, match=why):
        dead.exact("no answer", wrong, None)


@pytest.fixture
def running(tmp_path, monkeypatch):
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    monkeypatch.setattr(sink, "BINARY", tmp_path / "sink")
    with sink.Sink(dump=tmp_path / "dump") as s, socket.create_connection(("127.0.0.1", s.port)) as c:
        c.settimeout(PATIENCE)
        yield s, c, tmp_path / "dump"


def test_the_sink_acks_windows_cut_at_every_byte(running):
    s, c, dump = running
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain = window(b'{"a":1}', 3)
    for byte in plain:
        c.sendall(bytes([byte]))
    assert acked(c) == 3
    counts = s.counts()
    assert (counts.events, counts.windows, counts.payload, counts.errors) == (3, 1, 21, 0)
    c.sendall(plain * 2)
    assert [acked(c), acked(c)] == [3, 3]
    assert s.counts().events == 9
    assert dump.read_bytes() == b'{"a":1}\n' * 9


def test_the_sink_reads_compressed_windows(running):
    s, c, _ = running
    if not s.zlib:
        pytest.skip("the sink was built without zlib")
    plain = window(b'{"a":1}' + b" " * 1000, 500)
    packed = zlib.compress(plain[6:])
    frame = plain[:6] + b"2C" + len(packed).to_bytes(4, "big") + packed
    c.sendall(frame)
    assert acked(c) == 500
    for byte in frame:
        c.sendall(bytes([byte]))
    assert acked(c) == 500
    assert (s.counts().events, s.counts().compressed) == (1000, 2)


def test_the_peeking_sink_trusts_window_headers(tmp_path, monkeypatch):
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    monkeypatch.setattr(sink, "BINARY", tmp_path / "sink")
    with sink.Sink(peek=True) as s, socket.create_connection(("127.0.0.1", s.port)) as c:
        if not s.zlib:
            pytest.skip("the sink was built without zlib")
        c.settimeout(PATIENCE)
        plain = window(b'{"a":1}', 500)
        packed = zlib.compress(b"2J\0\0\1\1" + plain[12:])  # the first frame has number 257
        frame = plain[:6] + b"2C" + len(packed).to_bytes(4, "big") + packed
        for byte in frame:
            c.sendall(bytes([byte]))
        assert acked(c) == 0x101 + 499
        assert (s.counts().events, s.counts().compressed, s.counts().windows) == (500, 1, 1)


@pytest.mark.parametrize(
    "bad", [b"\x01W\0\0\0\1", b"2J\0\0\0\1\0\0\0\1x", b"2W\0\0\0\0", b"2W\0\0\0\1" * 2, b"2Z\0\0\0\1"]
)
def test_the_sink_refuses_invalid_lumberjack(running, bad):
    s, c, _ = running
    c.sendall(bad)
    assert c.recv(1) == b""
    assert s.counts().errors == 1
    with pytest.raises(sink.SinkError, match="broke the protocol"):
        s.wait(1, timeout=1)


def zmtp(*frames, flags=0):
    out = b""
    for place, frame in enumerate(frames):
        more = flags | (place < len(frames) - 1)
        size = len(frame).to_bytes(1, "big") if len(frame) < 256 else len(frame).to_bytes(8, "big")
        out += bytes([more | (2 if len(size) == 8 else 0)]) + size + frame
    return out


META = b"\xca\xbd\0\1" + bytes(20)


def logjam(body, *, request=False):
    return zmtp(*([b""] if request else []), b"shop-production", b"logs.shop.production", body, META)


GREETING = b"\xff" + bytes(8) + b"\x7f\3\1NULL" + bytes(48)


def ready(kind):
    return zmtp(b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind, flags=4)


SHAKEN = GREETING + ready(b"DEALER")


def read(connection, size):
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data


@pytest.fixture
def logjam_sink(tmp_path, monkeypatch):
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    monkeypatch.setattr(sink, "BINARY", tmp_path / "sink")
    dump = tmp_path / "dump"
    with sink.Sink(dump=dump, zmtp=True) as s, socket.create_connection(("127.0.0.1", s.port)) as c:
        c.settimeout(PATIENCE)
        yield s, c, dump


@pytest.mark.parametrize(("kind", "ours"), [(b"DEALER", b"ROUTER"), (b"PUSH", b"PULL")])
def test_the_sink_answers_logjam_cut_at_every_byte(logjam_sink, kind, ours):
    s, c, dump = logjam_sink
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire = GREETING + ready(kind) + logjam(b"{}") + logjam(b"x" * 300, request=True) + logjam(b"y" * 300)
    for byte in wire:
        c.sendall(bytes([byte]))
    reply = zmtp(b"shop-production", b"202 Accepted")
    answer = read(c, len(GREETING + ready(ours) + reply))
    assert answer[:12] == b"\xff" + bytes(8) + b"\x7f\3\0"
    assert answer[64:] == ready(ours) + reply
    c.sendall((logjam(b"z", request=True) + logjam(b"{}")) * 5000)
    assert read(c, 5000 * len(reply)) == reply * 5000
    counts = s.wait(10_003)
    assert (counts.events, counts.acks, counts.payload) == (10_003, 5001, 602 + 15_000)
    s.close()
    assert dump.read_bytes() == b"{}\n" + b"x" * 300 + b"\n" + b"y" * 300 + b"\n" + b"z\n{}\n" * 5000


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"2W\0\0\0\1" * 20, id="lumberjack"),
        pytest.param(GREETING + ready(b"SUB"), id="a SUB"),
        pytest.param(SHAKEN + b"\xf0\0", id="flags"),
        pytest.param(SHAKEN + zmtp(b"shop-production", b"logs", b"{}"), id="three frames"),
        pytest.param(SHAKEN + zmtp(b"shop-production", b"logs", b"{}", bytes(24)), id="no tag"),
        pytest.param(SHAKEN + zmtp(b"", b"a-b", b"logs", b"{}", META, b""), id="six frames"),
    ],
)
def test_the_sink_refuses_invalid_logjam(logjam_sink, bad):
    s, c, _ = logjam_sink
    c.sendall(bad)
    with pytest.raises(sink.SinkError, match="broke the protocol"):
        s.wait(1, timeout=PATIENCE)
    assert s.counts().events == 0


def test_each_contender_of_row_logjam_sends_its_events(monkeypatch):
    support.need("zmq")
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    from bench import logjam as rows

    monkeypatch.setattr(rows, "EVENTS", 20_000)
    row = rows.run(rounds=1, quick=True)  # raises where the sink has not counted every message
    assert {line.name for line in row.lines} >= {rows.MULTIPART, rows.FOUR, rows.LOOP, rows.OURS}
    assert all(line.spread["own"].median > 0 for line in row.lines)
    assert {v.what for v in row.verdicts if v.op == ">="} == {f"{rows.LOOP} / {rows.OURS}"}


def test_an_unfinished_window_is_counted(running):
    s, c, _ = running
    c.sendall(b"2W\0\0\0\2" + window(b"{}", 1)[6:])
    c.shutdown(socket.SHUT_WR)
    assert c.recv(1) == b""
    counts = s.close()
    assert (counts.events, counts.windows, counts.open_windows) == (1, 0, 1)


@pytest.mark.parametrize(("producers", "skewed"), [(16, False), (400, False), (10, True)])
def test_the_generator_of_row_verify_knows_the_verdict(tmp_path, monkeypatch, producers, skewed):
    support.need("numpy")
    support.need("pyarrow")
    from bench import verify, verify_data
    from tests.support import verify_inprocess

    monkeypatch.setattr(verify_data, "FAULTS", dict.fromkeys(verify_data.FAULTS, 0.05))
    monkeypatch.setattr(verify_data, "UNEXPECTED", 0.01)
    shape = verify_data.Shape(producers, skewed)
    made = verify_data.make(tmp_path / "data", 40_000, seed=3, shape=shape)
    again = verify_data.make(tmp_path / "data", 40_000, seed=3, shape=shape)  # it is kept, and not made again
    assert again.truth == made.truth
    assert all(verify_data.total(made.truth).values())
    found = verify_inprocess.run(made.ledger, made.capture)
    answer = {"counts": {x.producer: x.counts._asdict() for x in found.producers}}
    verify.exact("logclient verify", answer, made.truth)
    answer["counts"][""]["unexpected"] += 1
    with pytest.raises(harness.NotExact, match="unexpected of producer nobody"):
        verify.exact("logclient verify", answer, made.truth)


@pytest.mark.parametrize("way", ["C sendmmsg", "C GSO", "Python", "logclient gso"])
def test_the_datagram_sink_counts_messages(way: str) -> None:
    if sys.platform != "linux" or not shutil.which("cc"):
        support.missing("no C compiler for the benchmarks' sink, or no sendmmsg")
    support.need("mmh3")
    from contextlib import ExitStack

    from bench import plog

    for case in plog.CASES:
        few = case._replace(messages=9)
        with plog.UdpSink() as running, ExitStack() as stack:
            sock = plog.Sockets(running.port, stack)()
            if way == "Python":
                work = plog.plain(sock, few, few.messages)
            elif way.startswith("C"):
                work = plog.loop(sock, few, gso=way == "C GSO")
            else:
                work = plog.client(running.url, few, stack)
            work()
            work()
            counts = running.wait(18)
        each = -(-case.size // (case.datagram - plog.HEADER.size))
        assert (counts.events, counts.datagrams, counts.torn, counts.simple) == (18, 18 * each, 0, 0)
        assert counts.payload == 18 * case.size


@pytest.mark.parametrize("gso", [True, False])
def test_the_loops_in_c_hash_the_bytes_that_our_client_hashes(gso: bool) -> None:
    if sys.platform != "linux" or not shutil.which("cc"):
        support.missing("no C compiler for the benchmarks' loops, or no sendmmsg")
    from contextlib import ExitStack

    from bench import plog
    from logclient._ext.hash import murmur3

    case = plog.CASES[1]._replace(messages=1)

    def sent(make) -> tuple[list[tuple[int, ...]], bytes]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, ExitStack() as stack:
            server.bind(("127.0.0.1", 0))
            server.settimeout(PATIENCE)
            make(server.getsockname()[1], stack)()
            count = -(-case.size // (case.datagram - plog.HEADER.size))
            fragments = [server.recv(1 << 16) for _ in range(count)]
        body = b"".join(one[plog.HEADER.size :] for one in fragments)
        return [plog.HEADER.unpack_from(one) for one in fragments], body

    def loop(hashed=True):
        return sent(lambda port, stack: plog.loop(plog.Sockets(port, stack)(), case, gso, hashed))

    ours, our_body = sent(lambda port, stack: plog.client(f"plog://127.0.0.1:{port}", case, stack))
    theirs, their_body = loop()
    number, digest = 5, 7
    assert {head[digest] for head in ours} == {murmur3(our_body)}
    assert {head[digest] for head in theirs} == {murmur3(their_body)}
    fixed = [i for i in range(10) if i not in (number, digest)]
    assert [[head[i] for i in fixed] for head in ours] == [[head[i] for i in fixed] for head in theirs]
    if gso:
        assert {head[digest] for head in loop(hashed=False)[0]} == {0}


def upgrade(connection):
    connection.sendall(
        b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n") and (part := connection.recv(1)):
        answer += part
    return answer


def frame(text, opcode=1):
    data, mask = text.encode(), b"\1\2\3\4"
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([0x80 | opcode]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data))


def receive_message(connection):
    head = read(connection, 2)
    size = head[1] if head[1] < 126 else int.from_bytes(read(connection, 2), "big")
    return json.loads(read(connection, size))


@pytest.fixture
def stub(tmp_path, monkeypatch):
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    from bench import logux

    monkeypatch.setattr(logux, "BINARY", tmp_path / "wssink")
    with logux.Stub() as s:
        port = int(s.address.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as c:
            c.settimeout(PATIENCE)
            yield s, c


@pytest.mark.parametrize("whole", [True, False])
def test_the_logux_stub_processes_each_action(stub, whole):
    s, c = stub
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in upgrade(c)  # RFC 6455, section 1.3
    nasty = {"type": "log/add", "data": {"a": 'b"]}\\', "id": [{"id": 7}]}, "id": "x"}
    actions = [nasty, {"id": 5, "time": 5}, nasty, {"time": -6, "id": [-6, 12]}]
    actions += [nasty, {"id": [7, "u:other:t", 3], "time": 7, "subprotocol": 1}]
    wire = b"".join(
        frame(text)
        for text in (
            json.dumps(["connect", 5, "u:c:t", 0, {"token": "any", "subprotocol": 1}]),
            json.dumps(["sync", 3, *actions]),
            json.dumps(["sync", 4, nasty, {"id": [5, 1], "time": 5}], separators=(",", ":")),
            '["synced",0]',
            '["ping",4]',
        )
    )
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for part in [wire] if whole else (wire[i : i + 1] for i in range(len(wire))):
        c.sendall(part)
    (name, protocol, server, (start, base), _) = receive_message(c)
    assert (name, protocol, server, start) == ("connected", 5, "server:stub", base)
    ids = set()

    def processed(time, node="u:c:t", number=0):
        kind, added, said, meta = receive_message(c)
        assert (kind, added) == ("sync", 0)
        assert said == {"id": f"{base + time} {node} {number}", "type": "logux/processed"}
        ids.add(str(meta["id"]))
        assert meta["time"] >= 0

    assert receive_message(c) == ["synced", 3]
    processed(5)
    processed(-6, number=12)
    processed(7, "u:other:t", 3)
    assert receive_message(c) == ["synced", 4]
    processed(5, number=1)
    assert receive_message(c) == ["pong", 0]
    assert len(ids) == 4
    counts = s.counts()
    assert (counts.events, counts.answered) == (4, 1)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(frame('["sync",1,{"type":"a"}]'), id="no meta"),
        pytest.param(frame('["sync",1,{"type":"a"},{"time":1}]'), id="no id"),
        pytest.param(frame('["sync",1,{"type":"a"},{"id":1.5,"time":1}]'), id="no whole number"),
        pytest.param(frame('["sync",1,{"type":"a},{"id":1,"time":1}]'), id="a string without an end"),
        pytest.param(frame('["sync",1,{"type":"a"},{"id":["1"],"time":1}]'), id="no time"),
        pytest.param(frame('["unsync",1]'), id="another message"),
        pytest.param(b"\x81\2[]", id="no mask"),
        pytest.param(b"\xc1\x82\1\2\3\4[]", id="an extension"),
        pytest.param(b"\x81\xff\x7f" + bytes(20), id="too long"),
    ],
)
def test_the_logux_stub_refuses_invalid_messages(stub, bad):
    s, c = stub
    upgrade(c)
    c.sendall(bad)
    while c.recv(4096):
        pass
    with pytest.raises(sink.SinkError, match="broke the protocol"):
        s.counts()


@pytest.fixture
def quickly(monkeypatch):
    from bench import logux
    from tests.support import logux_server

    logux_server.need()
    support.need("websockets")
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    monkeypatch.setattr(logux, "WARM", 100)
    monkeypatch.setattr(logux, "COLD", 100)
    return logux


@pytest.mark.long
def test_row_logux_has_all_contenders(quickly):
    row = quickly.run(rounds=1, quick=True)  # raises where a server has not counted every action
    js, paced, ours = quickly.JS, quickly.PACED, quickly.OURS
    for server in (quickly.REAL, quickly.STUB):
        assert {line.name for line in row.lines} >= {f"{name}, {server}" for name in (js, paced, ours)}
    assert f"{ours}, {quickly.TLS}" in {line.name for line in row.lines}
    assert all(line.spread["process"].median > 0 for line in row.lines)
    assert sum(v.op == ">=" for v in row.verdicts) == 9


def test_contenders_of_row_logux_count_their_events(quickly, tmp_path):
    from contextlib import ExitStack

    with quickly.Stub() as server, ExitStack() as stack:
        ways = {way.name: way for way in quickly._ways(server, tmp_path)}
        for name in (quickly.PACED, quickly.NODE, "websockets, 100 a sync", quickly.OURS):
            took, cpu, size = quickly.Contender(ways[name], server, 400, stack).run()
            assert took["wall"] > 0 < took["process"]
            assert cpu >= 0 and size > quickly.SIZE


def test_our_client_reaches_the_logux_stub_over_tls(quickly, tmp_path):
    from contextlib import ExitStack

    support.need("trustme")
    with quickly.Stub(certificates.certificate()) as server, ExitStack() as stack:
        (ours, _) = quickly._ways(server, tmp_path)
        contender = quickly.Contender(ours, server, 400, stack)
        assert contender.name == f"{quickly.OURS}, {quickly.TLS}"
        contender.run()  # raises where the stub has not counted every action and answer
        assert server.counts().cipher


@pytest.mark.parametrize("size", [6, 10_000_000])
def test_relay_passes_bytes_unchanged_after_its_delay(size: int) -> None:
    if sys.platform != "linux" or not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' relay, or no ppoll")
    data = Random(size).randbytes(size)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = delay.Relay(listener.getsockname()[1], 40)
        with socket.create_connection(("127.0.0.1", relay.port), PATIENCE) as near:
            far, _ = listener.accept()
            with far:
                far.settimeout(PATIENCE)
                received = bytearray()
                start = time.monotonic()
                writer = threading.Thread(target=near.sendall, args=(data,))
                writer.start()
                while len(received) < size:
                    received += far.recv(1 << 20)
                one_way = time.monotonic() - start
                writer.join(PATIENCE)
                far.sendall(data[:6])
                answer = near.recv(6, socket.MSG_WAITALL)
                both_ways = time.monotonic() - start
        totals = relay.totals()
        relay.close()
    assert received == data and answer == data[:6]
    assert one_way >= 0.02 and both_ways >= 0.04
    assert (totals.bytes, totals.full) == (size + 6, 0)
