"""What a client counted, in one snapshot that adds up."""

from __future__ import annotations

from typing import NamedTuple

COUNTED = (
    "sent", "queued", "queued_bytes", "inflight", "acked", "handed", "failed", "resent",
    "mangled", "moved", "ignored",
)  # fmt: skip
"""Fields of `Stats` that ``Handoff.counters`` has."""


class Stats(NamedTuple):
    """Counts since the client was made (in a forked child: since the fork).

    At every snapshot ``sent == queued + inflight + acked + handed + sum(failed) + sum(dropped)``,
    where events refused after close count in ``refused`` alone: they never got a sequence.
    """

    sent: int
    """Sequences made: events given to the client while it was open."""
    queued: int
    """Waiting to be sent, or to be sent again."""
    queued_bytes: int
    """Bytes that count against ``max_bytes``: queued, in flight and kept for a resend."""
    inflight: int
    """On the wire, no word yet."""
    acked: int
    handed: int
    failed: dict[str, int]
    """By reason."""
    dropped: dict[str, int]
    """By reason."""
    refused: int
    """Sent after close: dropped(closed)."""
    resent: int
    """Events that went on the wire once more."""
    mangled: int
    """Values changed because they have no encoding: NaN, lone surrogates, non-string keys."""
    moved: int
    """Fields of the application's that could have been taken for ours, or conflicted with others: they
    moved below ``labels``, or were left out (``@metadata``)."""
    ignored: int
    """Records of the sender's own making, never shipped."""
    callbacks: int
    """Callbacks of submitted events that wait to be run."""
    connects: int
    disconnects: int
    """Connections that ended before close, for whatever reason."""
    in_doubt: int
    """Of the handed: those of connections that broke afterwards. The last of them may never have left
    this machine (ZeroMQ's queue, the kernel's): nobody says which, so any or none is missing."""
    in_doubt_estimate: int
    """How many of these may never have arrived, as far as time and buffers tell (`delivery.doubt`)."""
    quarantined: int
    """Of the queued: events that may be what the server ends connections on. They wait for a decision."""
    windows: int
    """Batches put on the wire."""
    bytes_sent: int
    turns: int
    """Times the sender came back to Python: its GIL acquisitions, give or take the rare ones."""
    last_error: str
    """One line, or empty."""
    ledger_error: str
    """Why the ledger stopped, or empty: from then on it does not list what is delivered."""
    url: str
    """Redacted."""
    tls: str
    """What protects the newest connection: version, cipher, and whether nobody checked the certificate."""
    compressor: str
    """What compresses: ``none``, ``isal 1``, ``lz4``, ...; with ``python`` before it: with the GIL."""
    producer: str
    """First 20 hex digits of every id."""
