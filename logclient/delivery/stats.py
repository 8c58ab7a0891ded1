"""The counts of a client, in one snapshot that adds up."""

from __future__ import annotations

from typing import NamedTuple

COUNTED = (
    "sent", "queued", "queued_bytes", "inflight", "acked", "handed", "failed", "resent",
    "sanitized", "moved", "ignored",
)  # fmt: skip
"""Fields of `Stats` that ``EventQueue.counters`` has."""


class Stats(NamedTuple):
    """Counts since the client was created (in a forked child: since the fork).

    At every snapshot ``sent == queued + inflight + acked + handed + sum(failed) + sum(dropped)``,
    where events after close count in ``refused`` alone: they never got a sequence.
    """

    sent: int
    """Events given to the client while it was open."""
    queued: int
    """Waiting to be sent, or to be sent again."""
    queued_bytes: int
    """Bytes that count against ``max_bytes``: queued, in flight and kept for a resend."""
    inflight: int
    """Sent, and without an outcome."""
    acked: int
    """Acknowledged by the server."""
    handed: int
    """Taken by the kernel or by ZeroMQ, in protocols without acknowledgements."""
    failed: dict[str, int]
    """Given up: reason -> number."""
    dropped: dict[str, int]
    """Refused or removed because of a bound, and never sent: reason -> number."""
    refused: int
    """Given to the client after close."""
    resent: int
    """Events that were sent again."""
    sanitized: int
    """Values changed because they have no encoding: NaN, lone surrogates, non-string keys."""
    moved: int
    """Fields of the application with names of ours, or in conflict with others: they were moved below
    ``labels``, or left out (``@metadata``)."""
    ignored: int
    """Records of the sender's own thread, never shipped."""
    callbacks: int
    """Callbacks of submitted events that wait to be run."""
    connects: int
    """Connections that were established."""
    disconnects: int
    """Connections that ended before close, for any reason."""
    in_doubt: int
    """Events handed over connections that broke afterwards: an upper bound of those that may be missing."""
    in_doubt_estimate: int
    """An estimate of how many of these did not arrive; see docs/operations.md."""
    quarantined: int
    """Queued events that are suspected of ending connections. They wait for a decision."""
    batches: int
    """Batches sent."""
    bytes_sent: int
    """Bytes written to connections, before TLS."""
    turns: int
    """Returns of the sender to Python: about its GIL acquisitions."""
    last_error: str
    """The last error in one line, or empty."""
    ledger_error: str
    """The reason for which the ledger stopped, or empty. A stopped ledger lists no further events."""
    url: str
    """The URL, without secrets."""
    tls: str
    """Protection of the newest connection: version, cipher, and whether the certificate is not verified."""
    compressor: str
    """The compressor: ``none``, ``isal 1``, ``lz4``, ...; with ``python`` before it, it holds the GIL."""
    producer: str
    """The first 20 hexadecimal digits of every id."""
