"""Lumberjack, versions 1 and 2: the writer without I/O.

States of a connection::

    state     in flight      encode            ack 0     ack 1..n of the oldest   any other ack
    IDLE      0              -> WAITING        alive     broken                   broken
    WAITING   1 .. limit-1   -> WAITING, FULL  alive     k < n: same state        broken
                                                         n: -> WAITING, IDLE
    FULL      limit          refused           alive     n: -> WAITING, IDLE      broken
    BROKEN    as it was      refused           ignored   ignored                  ignored

    connected: any -> IDLE          connection_lost: any -> IDLE, the windows are forgotten
    limit: `inflight`, with `adaptive` up to 16 by round trips (``_ext/window/limit.pyx``),
           or 1 for the next 10 windows after a break with more than one out
    size:  of windows, smaller on a slow path and after a break without an ack (same file)

A window is ``W n`` and n frames, numbered from 1 in each window. With compression all of them are in one
``C`` frame. Acks of different windows look alike, so they are matched first in, first out, and after any
doubt the connection is dropped.

With ``strict_spec`` frames are written as the protocol text describes them, which no released server reads.
The one ``W`` of a connection announces how many frames may be unacknowledged: `window` times `inflight`.
Frames are numbered over the whole connection, and 1 follows 4,294,967,295, because an ack of 0 is always a
keep-alive. An ack covers all frames up to its number. A number that was acknowledged before is ignored; any
other that is not in flight leads to BROKEN.

=========  ==================================================  =========================================
           first field with the id                             second field
=========  ==================================================  =========================================
version 2  ``"@metadata": {"_id": ...}``                       ``"event.id"``, or ``"event": {"id": ...}``
version 1  the pair ``event.id`` (either flag leaves it out)
=========  ==================================================  =========================================

``logclient._ext.lumberjack`` does the work.
"""

from __future__ import annotations

from logclient._ext.lumberjack import Codec
from logclient.delivery.contract import Core
from logclient.lumberjack.config import LumberjackConfig


class Lumberjack(Core):
    """The writer's side of one connection at a time. See ``delivery.contract.Core``."""

    def __init__(self, config: LumberjackConfig, producer: bytes) -> None:
        metadata = b""  # as members of a JSON object
        if config.metadata:
            from logclient.standard import json

            metadata = json.dumps(config.metadata, separators=(",", ":"))[1:-1].encode()
        codec = Codec(
            producer,
            version=config.version,
            window=config.window,
            window_bytes=config.window_bytes,
            inflight=config.inflight,
            compression=config.compression,
            identity=config.identity != "none",
            check=config.check,
            silence=config.silence,
            frames=config.frames,
            strict_spec=config.strict_spec,
            adaptive="inflight" not in config.given and not config.strict_spec,
            inflight_bytes=config.max_bytes // 2,
            metadata=metadata,
        )
        super().__init__(codec)
