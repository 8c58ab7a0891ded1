"""The counts of a client, in one snapshot that adds up."""

from __future__ import annotations

from typing import NamedTuple

COUNTED = (
    "sent", "queued", "queued_bytes", "inflight", "acked", "handed", "stored", "failed", "resent",
    "sanitized", "moved", "ignored", "filtered",
)  # fmt: skip
"""Fields of `Stats` that ``EventQueue.counters`` has."""


class Stats(NamedTuple):
    """Counts since the client was created (in a forked child: since the fork).

    In every snapshot, ``sent`` is the sum of ``queued``, ``inflight``, ``acked``, ``handed``, ``stored`` and
    of all values of ``failed`` and ``dropped``. Events after close get no sequence and count only in
    ``refused``.

    Attributes:
        sent: events given to the client while it was open.
        queued: events that wait to be sent, or to be sent again.
        queued_bytes: bytes that count against ``max_bytes``: queued, in flight and kept for a resend.
        inflight: events that were sent and have no outcome yet.
        acked: events that the server has acknowledged.
        handed: events that the kernel or ZeroMQ has taken, in protocols without acknowledgements.
        stored: events that were left in the spool when the client ended, for the next one that opens it.
        failed: the number of events that were given up, by reason.
        dropped: the number of events that were refused or removed because of a bound, by reason. They were
            never sent.
        refused: events given to the client after close.
        resent: events that were sent again.
        sanitized: values changed because they have no encoding: NaN, lone surrogates, non-string keys.
        moved: fields of the application whose names are reserved or in conflict with others. They were moved
            below ``labels``, or left out (``@metadata``).
        ignored: records of the sender's own thread, which are never shipped.
        filtered: the number of events that an option held back before they got a sequence, by the option:
            ``before_send``, ``sample``, ``rate_limit`` or ``dedupe``.
        callbacks: callbacks of submitted events that wait to be run.
        connects: connections that were established.
        disconnects: connections that ended before close, for any reason.
        in_doubt: events handed over connections that broke afterwards: an upper bound of those that may be
            missing.
        missing: events handed over that the server has not seen, by its own counters: with plog, where
            ``feedback`` asks for them.
        quarantined: queued events that are suspected of ending connections. They wait for a decision.
        batches: batches sent.
        bytes_sent: bytes written to connections, before TLS.
        turns: how often the sender has returned to Python, about the number of its GIL acquisitions.
        last_error: the last error in one line, or empty.
        ledger_error: the reason for which the ledger stopped, or empty. A stopped ledger lists no further
            events.
        spooled: events that lie in the files of the spool now.
        spool_error: the reason for which the spool stopped, or could not be opened, or empty. Events are in
            memory only then.
        url: the URL, without secrets.
        tls: protection of the newest connection: version, cipher, and whether the certificate is not
            verified.
        pump: ``compiled``, or ``python`` and the reason; that takes the GIL for every batch.
        compressor: the name of the compressor, such as ``none``, ``isal 1`` or ``lz4``. A name that begins
            with ``python`` means that it holds the GIL.
        producer: the first 20 hexadecimal digits of every id.
    """

    sent: int
    queued: int
    queued_bytes: int
    inflight: int
    acked: int
    handed: int
    stored: int
    failed: dict[str, int]
    dropped: dict[str, int]
    refused: int
    resent: int
    sanitized: int
    moved: int
    ignored: int
    filtered: dict[str, int]
    callbacks: int
    connects: int
    disconnects: int
    in_doubt: int
    missing: int
    quarantined: int
    batches: int
    bytes_sent: int
    turns: int
    last_error: str
    ledger_error: str
    spooled: int
    spool_error: str
    url: str
    tls: str
    pump: str
    compressor: str
    producer: str
