"""The benchmarks over TLS: the sinks decrypt, the loop in C writes the same, and the rows judge."""

import shutil
import socket
import ssl

import pytest

from tests import support
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.tree
if not (support.ROOT / "bench" / "harness.py").exists():
    pytest.skip("no benchmarks beside these tests", allow_module_level=True)

from bench import certificates, saturated, sink  # noqa: E402
from bench.lumberjack import window  # noqa: E402
from tests.support.bench_rows import acked  # noqa: E402


@pytest.fixture
def tls_sink(tmp_path, monkeypatch):
    support.need("trustme")
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    monkeypatch.setattr(sink, "BINARY", tmp_path / "sink")
    with sink.Sink(tls=certificates.certificate()) as s:
        yield s


def secured(port, *, version=ssl.TLSVersion.TLSv1_3):
    context = ssl.create_default_context(cafile=certificates.certificate().ca)
    context.minimum_version = context.maximum_version = version
    c = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
    c.settimeout(PATIENCE)
    return c


@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_sink_decrypts_windows_and_acks(tls_sink, version):
    with secured(tls_sink.port, version=version) as c:
        cipher = c.cipher()[0]
        plain = window(b'{"a":1}', 3)
        for byte in plain:
            c.sendall(bytes([byte]))
        assert acked(c) == 3
        large = window(b"x" * 1000, 2000)  # many records, more than the sink reads at once
        c.sendall(large * 2)
        assert [acked(c), acked(c)] == [2000, 2000]
        counts = tls_sink.counts()
    assert (counts.events, counts.errors, counts.cipher) == (4003, 0, cipher)
    assert counts.bytes == len(plain) + 2 * len(large)


def test_the_sink_for_tls_ends_plain_connections(tls_sink):
    with socket.create_connection(("127.0.0.1", tls_sink.port)) as c:
        c.settimeout(PATIENCE)
        c.sendall(window(b"{}", 3) * 100)
        try:
            while c.recv(4096):
                pass
        except ConnectionResetError:
            pass  # what it had not read
    with secured(tls_sink.port) as c:
        c.sendall(window(b"{}", 2))
        assert acked(c) == 2
    assert tls_sink.counts().events == 2


def test_the_c_loop_writes_the_cipher_it_is_told(tls_sink, tmp_path, monkeypatch):
    from contextlib import ExitStack

    from bench import tls

    monkeypatch.setattr(tls, "BINARY", tmp_path / "tlsloop.so")
    loop, data = tls.Loop(), window(b"x" * 300, 100)
    for suite in ("TLS_AES_128_GCM_SHA256", tls.suite_of(tls_sink)):
        before = tls_sink.counts().events
        with ExitStack() as stack:
            spent = loop.work(tls_sink, suite, data, 50, stack)()
            counts = tls_sink.wait(before + 5000)
        assert (counts.events, counts.cipher) == (before + 5000, suite)
        assert 0 < spent[tls.IN_TLS] <= spent["process"]
    assert loop.sealed("TLS_AES_256_GCM_SHA384", 0.01) > 0
    assert loop.sealed("TLS_NO_SUCH_CIPHER", 0.01) == 0


def test_tls_may_cost_what_c_spends_in_ssl_write():
    from bench import tls

    def samples(ours, plain, loop, send):
        return {
            f"{tls.OURS}, x": {"process": ours},
            f"{tls.PLAIN}, x": {"process": plain},
            f"{tls.LOOP}, x": {tls.IN_TLS: loop},
            f"{tls.SEND}, x": {"process": send},
        }

    given = samples([3.15, 6.3, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0], [0.5, 1.0, 2.0])
    assert tls.allowed(given, "x").high == pytest.approx(1.0)
    assert tls.allowed(given, "x", sending=False).high == pytest.approx(3.15 / 2.575)


def test_row_tls_compares_the_same_bytes(monkeypatch):
    support.need("trustme")
    if not (shutil.which("cc") or shutil.which("gcc")):
        support.missing("no C compiler for the benchmarks' sink")
    from bench import tls

    got = tls.uncompressed(1, 1, 4 * 2048, certificates.certificate(), tls.Loop())
    for label in tls.BOTH:
        ways = [f"{name}, {label}" for name in (tls.SEND, tls.LOOP, tls.PLAIN, tls.OURS)]
        assert len({round(got.wire[name]) for name in ways}) == 1
        assert [bool(got.cipher[name]) for name in ways] == [False, True, False, True]
    judged = [v.what for v in tls.judge_uncompressed(got) if v.op]
    assert len(judged) == 3


def stats_of(python, **others):
    said = {"logged": 10, "acked": 10, "dropped": 0, "failed": 0, "left": 0, "wall": 1.0, "turns": 9,
            "p50": 1.0, "p99": 3.0, "python": python}  # fmt: skip
    return saturated.Run("tls", said | others, (said | others)["acked"], 0.1, 0.0, "")


@pytest.mark.parametrize(
    ("run", "reached"),
    [
        (stats_of(False), [True, True, True, True]),
        (stats_of(False, turns=16), [True, True, True, False]),
        (stats_of(True), [True, True, True, None]),  # a lower bound decides nothing
        (stats_of(True, turns=16), [True, True, True, False]),
        (stats_of(False, dropped=3, acked=7), [False, True, True, True]),
        (stats_of(False, acked=7), [True, False, True, True]),
        (stats_of(False, p99=5.0), [True, True, False, True]),
    ],
)
def test_saturated_runs_are_judged_by_their_worst(run, reached):
    verdicts = saturated.judged("a name", [stats_of(run.said["python"]), run])
    assert [v.reached for v in verdicts] == reached
