"""Compiled and Python parts behave alike: the same script gives the same bytes, outcomes and ledger.

The loop drives compiled cores, and plain ones through an adapter, over the same kind of socket: in C, and
through the adapter for links in Python. The compiled cores equal the plain ones byte by byte, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import standard
from logclient._ext.inflight import InflightBatches
from logclient._ext.pump import LinkPump, TcpPump
from logclient._ext.queue import EventQueue
from logclient.delivery.contract import Alive, Fatal, Progress, Retry, Settled
from logclient.transports.tcp import Tcp
from tests.cores.compiled import Compiled
from tests.cores.plain import POISON, Refused
from tests.cores.rig import PLAIN, Rig, Setup
from tests.cores.scripts import BAD, SCRIPTS
from tests.cores.server import Peer, SocketServer
from tests.support import transports
from tests.support.pumps import refuse_pump

PRODUCER = bytes(range(10))


class Interpreted(Tcp):
    """TCP whose links only Python can drive."""

    load_pump = refuse_pump("a test needs the link in Python")


class Trace(NamedTuple):
    wire: list[bytes]
    """What each connection received."""
    outcomes: dict[int, tuple[str, str]]
    hashes: dict[int, int]
    counts: dict[str, Any]


def trace(setup: Setup, transport: Tcp, folder: Path, script: Callable[[Peer], None]) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standard.os, "urandom", lambda n: PRODUCER[:n])  # the same ids
        options: dict[str, Any] = {"inflight": 25, "batch_events": 25, "linger": 0.0}
        rig = Rig(setup, folder, server=SocketServer(setup.kind), transport=transport, **options)
    (pump,) = rig.engine.pump.pumps
    assert isinstance(pump, LinkPump if isinstance(transport, Interpreted) else TcpPump)
    assert bool(pump.why) == (isinstance(transport, Interpreted) or not setup.compiled)
    rig.server.asked = set()  # type: ignore[attr-defined]
    rig.server.script = script
    rig.server.down()
    for i in range(150):
        rig.put((POISON if i in BAD else b"") + b"body %d " % i * (1 + i % 5), level=4 if i % 9 == 0 else 2)
    rig.server.up()
    rig.settle()
    stats = rig.finish()
    books = rig.books()
    wire = [peer.received for peer in rig.server.peers if peer.received]
    counts = {name: getattr(stats, name) for name in ("sent", "acked", "failed", "resent", "disconnects")}
    return Trace(wire, books.outcomes, books.hashes, counts)


ADAPTED = {"link": (True, Interpreted), "core": (False, Tcp), "link and core": (False, Interpreted)}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", ["fifo", "by_id"])
@pytest.mark.parametrize("adapted", ADAPTED)
def test_links_in_c_and_adapters_leave_equal_traces(
    adapted: str, kind: str, script: str, tmp_path: Path
) -> None:
    compiled, transport = ADAPTED[adapted]
    ours = trace(Setup(kind, compiled), transports.tcp(5.0, transport), tmp_path / "python", SCRIPTS[script])
    theirs = trace(Setup(kind, True), transports.tcp(5.0), tmp_path / "c", SCRIPTS[script])
    if script == "whole windows":
        assert ours == theirs
    else:
        # When exactly a word of the server's comes between two windows is not the pump's to say:
        # whether another window leaves before a cut, where in the stream an event is sent again.
        if script == "cut twice":
            del ours.counts["resent"], theirs.counts["resent"]
            for a, b in zip(ours.wire, theirs.wire, strict=True):
                assert a.startswith(b) or b.startswith(a)
        assert ours[1:] == theirs[1:]
    assert ours.counts["acked"] > 100


# -- the cores themselves -----------------------------------------------------------------------------

words = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([b"k", b"k", b"k", b"n", b"r"]), st.integers(0, 12)),
        st.tuples(st.sampled_from([b".", b".", b"!", b"x"]), st.just(0)),
    ),
    max_size=20,
)


def reports_of(core: Any, batch: Any) -> list[Any]:
    """Return what the core reports, in one form: plain ones report event by event, compiled ones merged."""
    found: list[Any] = []
    for event in core.events_received():
        if isinstance(event, Settled):
            found += [(seq, event.status, event.reason) for a, b in event.ranges for seq in range(a, b + 1)]
        elif isinstance(event, Retry):
            found += [(seq, "again", "") for a, b in event.ranges for seq in range(a, b + 1)]
        elif isinstance(event, Fatal):
            found.append(("fatal", event.forever, isinstance(event.error, Refused)))
        else:
            assert isinstance(event, Alive | Progress)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "by_id"])
@given(data=st.data(), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), replies=words)
def test_compiled_cores_equal_the_plain_ones(kind: str, data: Any, sizes: list[int], replies: Any) -> None:
    cores = [PLAIN[kind](PRODUCER, inflight=8), Compiled(kind, PRODUCER, inflight=8)]
    flights = []
    for _ in cores:
        queue = EventQueue()
        for i, size in enumerate(sizes):
            queue.push((POISON if i % 5 == 4 else b"b") * size, 2, 0, 1_700_000_000_000_000 + i)
        flights.append(InflightBatches(queue))
    batches = [in_flight.take(100, 1 << 20) for in_flight in flights]
    stream = b"".join(w + n.to_bytes(8, "big") if kind == "by_id" and w in b"knr" else w for w, n in replies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=3)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    answers = []
    for core, in_flight, batch in zip(cores, flights, batches, strict=True):
        assert batch is not None
        core.connected(1.0, lambda: 0.5)
        log: list[Any] = [core.credit(1.0), core.next_timeout(1.0)]
        log.append(core.encode(batch, core.credit(1.0)[0], 2.0))
        log.append(in_flight.encoded(batch).replace(b"\n", b""))
        log.append(b"".join(bytes(b) for wire in core.data_to_send() for b in wire.buffers))
        core.sent()
        log += [batch.statuses(), batch.hashes(), core.next_timeout(2.0)]
        for i, piece in enumerate(pieces):
            core.receive_data(piece, 3.0 + i)
            log += [reports_of(core, batch), core.credit(3.0)[0], core.next_timeout(3.0)]
        core.handle_timeout(1e9)
        log.append(reports_of(core, batch))
        core.connection_lost()
        log.append(core.credit(9.0))
        answers.append(log)
    assert answers[0] == answers[1]
