"""Compiled and Python parts behave alike: the same script gives the same bytes, outcomes and ledger.

The loop drives compiled codecs, and plain ones through an adapter, over the same kind of socket: in C, and
through the adapter for links in Python. The compiled codecs equal the plain ones byte by byte, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import standard
from logclient._ext.pump import LinkPump, TcpPump
from logclient.codec import Connection, Settled
from logclient.delivery.contract import Fatal
from logclient.transports.tcp import Tcp
from tests.cores.plain import POISON
from tests.cores.rig import Rig, Setup, core_for
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


# -- the codecs themselves -----------------------------------------------------------------------------

words = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([b"k", b"k", b"k", b"n", b"r"]), st.integers(0, 12)),
        st.tuples(st.sampled_from([b".", b".", b"!", b"x"]), st.just(0)),
    ),
    max_size=20,
)


def seen(events: list[Any]) -> list[Any]:
    """Return the events of a call in one form: plain codecs report one by one, compiled ones merged."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, Settled):
            found += [(seq, event.status, event.reason) for seq in range(event.first, event.last + 1)]
        else:
            assert isinstance(event, Fatal)
            found.append(("fatal", event.forever, type(event.error)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "by_id"])
@given(data=st.data(), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), replies=words)
def test_compiled_codecs_equal_the_plain_ones(kind: str, data: Any, sizes: list[int], replies: Any) -> None:
    setups = [Setup(kind), Setup(kind, True)]
    connections = [Connection(core_for(setup, PRODUCER, inflight=8)) for setup in setups]
    stream = b"".join(w + n.to_bytes(8, "big") if kind == "by_id" and w in b"knr" else w for w, n in replies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=3)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    answers = []
    for connection in connections:
        for i, size in enumerate(sizes):
            connection.in_flight.queue.push(
                (POISON if i % 5 == 4 else b"b") * size, 2, 0, 1_700_000_000_000_000 + i
            )
        batch = connection.in_flight.take(100, 1 << 20)
        assert batch is not None
        connection.connected(1.0)
        log: list[Any] = [connection.credit(1.0), connection.deadline(1.0)]
        log.append(connection.encode(batch, connection.credit(1.0)[0], 2.0))
        log += [connection.codec.take_bytes(), batch.statuses(), batch.hashes(), connection.deadline(2.0)]
        for i, piece in enumerate(pieces):
            log += [seen(connection.receive(piece, 3.0 + i)), connection.progress]
            log += [connection.credit(3.0)[0], connection.deadline(3.0), connection.in_flight.to_send]
        log.append(seen(connection.timeout(1e9)))
        log += [seen(connection.lost()), connection.credit(9.0)]
        answers.append(log)
    assert answers[0] == answers[1]
