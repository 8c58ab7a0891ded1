"""The runs of the demo for each protocol, with their faults and sizes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PROTOCOLS", "Protocol", "Run"]


class Run(NamedTuple):
    """One run of a protocol: one ``logging.Handler`` that several threads use, and some clients.

    Small wire units give the faults enough units to hit.
    """

    name: str
    faults: str
    """The faults of the collector. ``{seventh}``, ``{third}`` and ``{half}`` are shares of the expected wire
    units."""
    least: int
    """The least number of events for each client, whatever ``--events`` says."""
    unit: int = 1
    """The number of events in a wire unit."""
    senders: int = 2
    """The number of clients fed by ``client.send``."""
    liar: bool = True
    """Whether the collector discards or changes events, each of which the verifier must find."""


class Protocol(NamedTuple):
    """A protocol and its runs."""

    name: str
    listen: str
    """The collector's URL."""
    path: str
    """The rest of the clients' URLs behind the address."""
    unit: str
    """The option that sets the number of events in a wire unit; empty: always one event."""
    unit_name: str
    acks: bool
    """Whether servers acknowledge. Otherwise events are handed over, and the network may lose them."""
    runs: tuple[Run, ...]
    requests: bool = False
    """Whether a Handler collects the lines of a request into one event."""


PROTOCOLS = (
    Protocol(
        "lumberjack",
        listen="lumberjack://127.0.0.1:0",
        path="",
        unit="window",
        unit_name="windows",
        acks=True,
        runs=(
            Run(
                "lumberjack-honest",
                liar=False,
                # Cuts between write and ack make duplicates. There are also cuts before the write and after
                # the ack, and late acks, all spread over the whole run.
                faults="cut-before-ack=every:{seventh}:max:5,cut-before-write=every:{third}:max:2,"
                "cut-after-ack=every:{half}:max:1,delay-ack=p:0.05:20ms,seed=1",
                senders=1,
                unit=1000,
                least=20_000,
            ),
            Run(
                "lumberjack-discards",
                faults="discard=every:5:max:8:per-connection,seed=2",
                unit=200,
                least=10_000,
            ),
            Run(
                "lumberjack-tampers",
                faults="swap=every:9:max:1,duplicate=every:14:max:1,corrupt=every:19:max:1,add=every:24:max:1,seed=3",
                unit=200,
                least=10_000,
            ),
        ),
    ),
    Protocol(
        "logjam",
        listen="logjam://127.0.0.1:0",
        path="/demo-production",
        unit="",
        unit_name="messages",
        acks=True,
        requests=True,
        runs=(
            Run(
                "logjam-honest",
                liar=False,
                faults="cut-before-ack=every:{seventh}:max:5,cut-before-write=every:{third}:max:2,"
                "cut-after-ack=every:{half}:max:1,delay-ack=p:0.001:20ms,seed=4",
                senders=1,
                least=10_000,
            ),
            Run(
                "logjam-discards",
                faults="discard=every:500:max:8:per-connection,seed=5",
                least=5_000,
            ),
            Run(
                "logjam-tampers",
                faults="swap=every:900:max:5,duplicate=every:1400:max:5,corrupt=every:1900:max:5,"
                "add=every:2400:max:5,seed=6",
                least=5_000,
            ),
        ),
    ),
    Protocol(
        "plog",
        # Small datagrams, so that there are messages of several fragments.
        listen="plog://127.0.0.1:0",
        path="?mtu=600",
        unit="",
        unit_name="datagrams",
        acks=False,
        runs=(
            Run(
                "plog-honest",
                liar=False,
                faults="drop=p:0.01,duplicate=p:0.01,seed=7",
                least=10_000,
            ),
            Run(
                "plog-discards",
                faults="discard=every:500:max:8:per-connection,seed=8",
                least=5_000,
            ),
            Run(
                "plog-tampers",
                faults="swap=every:900:max:5,duplicate=every:1400:max:5,corrupt=every:1900:max:5,"
                "add=every:2400:max:5,seed=9",
                least=5_000,
            ),
        ),
    ),
    Protocol(
        "logux",
        listen="logux://127.0.0.1:0",
        path="",
        unit="window",
        unit_name="syncs",
        acks=True,
        runs=(
            Run(
                "logux-honest",
                liar=False,
                # partial-cut: the server settles some actions of a sync and not the others.
                faults="cut-before-ack=every:{seventh}:max:5,cut-before-write=every:{third}:max:2,"
                "partial-cut=every:300:max:2,cut-after-ack=every:{half}:max:1,"
                "delay-ack=p:0.05:20ms,seed=10",
                senders=1,
                unit=100,
                least=20_000,
            ),
            Run(
                "logux-discards",
                faults="discard=every:5:max:8:per-connection,seed=11",
                unit=100,
                least=5_000,
            ),
            Run(
                "logux-tampers",
                faults="swap=every:9:max:1,duplicate=every:14:max:1,corrupt=every:19:max:1,add=every:24:max:1,"
                "seed=12",
                unit=100,
                least=5_000,
            ),
        ),
    ),
)
