"""What a server does with 150 events of which some are bad, for tests that compare two clients."""

from __future__ import annotations

from collections.abc import Callable

from tests.cores.server import Peer

BAD = [i for i in range(150) if i % 17 == 5]
GOOD = 150 - len(BAD)


def answer_in_order(peer: Peer) -> None:
    """Answer by the sequence: some events refused, some asked for again, once."""
    asked = peer.server.asked  # type: ignore[attr-defined]
    while peer.waiting:
        seq = peer.waiting[0].seq
        if seq % 11 == 0:
            peer.reject()
        elif seq % 13 == 0 and seq not in asked:
            asked.add(seq)
            peer.again()
        else:
            peer.ack(1)


def cut_twice(peer: Peer) -> None:
    """The first two connections take 25 events, acknowledge 10 and end."""
    if peer.number < 2:
        if len(peer.got) >= 25:
            peer.ack(10)
            peer.cut()
    else:
        peer.ack()


def whole_windows(peer: Peer) -> None:
    """Acknowledge everything at once, but only when all that may be in flight has arrived."""
    if len(peer.waiting) == 25 or len(peer.got) == GOOD:
        peer.ack()


SCRIPTS: dict[str, Callable[[Peer], None]] = {
    "in order": answer_in_order,
    "cut twice": cut_twice,
    "whole windows": whole_windows,
}
