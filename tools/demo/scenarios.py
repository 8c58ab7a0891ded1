"""The runs of the demo for each protocol, with their faults and sizes."""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """One run of a protocol: one ``logging.Handler`` that several threads use, and some clients.

    Small wire units give the faults enough units to hit.
    """

    name: str
    faults: str  # ``{seventh}``, ``{third}`` and ``{half}`` are shares of the expected wire units
    least: int  # the number of events of each client; of an honest run, which sends ``--events``, the least
    unit: int = 1  # the number of events in a wire unit
    senders: int = 2  # the number of clients fed by ``client.send``
    liar: bool = True  # whether the collector discards or changes events, which the verifier must find


class Protocol(NamedTuple):
    """A protocol and its runs."""

    name: str
    unit_name: str
    runs: tuple[Run, ...]
    path: str = ""  # the rest of the clients' URLs behind the address
    unit: str = ""  # the option that sets the number of events in a wire unit; empty: always one event
    acks: bool = True  # whether servers acknowledge; otherwise the network may lose events
    requests: bool = False  # whether a Handler collects the lines of a request into one event


# Cuts between write and ack make duplicates. There are also cuts before the write and after the ack, and late
# acks, all spread over the whole run.
_CUTS = (
    "cut-before-ack=every:{seventh}:max:5,cut-before-write=every:{third}:max:2,"
    "cut-after-ack=every:{half}:max:1"
)
_SMALL_DISCARDS = "discard=every:500:max:8:per-connection"
_LARGE_DISCARDS = "discard=every:5:max:8:per-connection"
_SMALL_CHANGES = (
    "swap=every:900:max:5,duplicate=every:1400:max:5,corrupt=every:1900:max:5,add=every:2400:max:5"
)
_LARGE_CHANGES = "swap=every:9:max:1,duplicate=every:14:max:1,corrupt=every:19:max:1,add=every:24:max:1"

# The faults of honest collectors. After a partial cut, some actions of a sync are settled and others are not.
_LUMBERJACK = f"{_CUTS},delay-ack=p:0.05:20ms,seed=1"
_LOGJAM = f"{_CUTS},delay-ack=p:0.001:20ms,seed=4"
_PLOG = "drop=p:0.01,duplicate=p:0.01,seed=7"
_LOGUX = f"{_CUTS},partial-cut=every:300:max:2,delay-ack=p:0.05:20ms,seed=10"


def _runs(honest: Run, seed: int, least: int) -> tuple[Run, ...]:
    """Return an honest run, and two with liars, whose faults have the next seeds."""
    name, unit = honest.name.removesuffix("-honest"), min(honest.unit, 200)
    discards, changes = (_SMALL_DISCARDS, _SMALL_CHANGES) if unit == 1 else (_LARGE_DISCARDS, _LARGE_CHANGES)
    return (
        honest,
        Run(f"{name}-discards", f"{discards},seed={seed + 1}", least, unit=unit),
        Run(f"{name}-tampers", f"{changes},seed={seed + 2}", least, unit=unit),
    )


_LUMBERJACK_RUN = Run("lumberjack-honest", _LUMBERJACK, 20_000, unit=1000, senders=1, liar=False)
_LOGJAM_RUN = Run("logjam-honest", _LOGJAM, 10_000, senders=1, liar=False)
_PLOG_RUN = Run("plog-honest", _PLOG, 10_000, liar=False)
_LOGUX_RUN = Run("logux-honest", _LOGUX, 20_000, unit=100, senders=1, liar=False)
PROTOCOLS = (
    Protocol("lumberjack", "windows", _runs(_LUMBERJACK_RUN, 1, 10_000), unit="window"),
    Protocol("logjam", "messages", _runs(_LOGJAM_RUN, 4, 5_000), path="/demo-production", requests=True),
    # Small datagrams, so that there are messages of several fragments.
    Protocol("plog", "datagrams", _runs(_PLOG_RUN, 7, 5_000), path="?mtu=600", acks=False),
    Protocol("logux", "syncs", _runs(_LOGUX_RUN, 10, 5_000), unit="window"),
)
