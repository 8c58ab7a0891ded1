"""The pump of a connection: compiled as far as its transport and its core are (``_ext/pump``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logclient._ext.inflight import InflightBatches
from logclient._ext.pump import CompiledPump, CoreCodec, LinkPump, PumpGroup
from logclient.delivery.contract import Core, PumpLimits, Transport

if TYPE_CHECKING:
    from logclient.config import Config

REPORT_EVERY = 0.1
"""Seconds between two reports to the engine."""


def make_pump(transport: Transport, in_flight: InflightBatches, core: Core, limits: Config) -> CompiledPump:
    """Make the transport's pump for this core; adapters stand in for what is not compiled."""
    batch_events, batch_bytes = limits.batch_limits
    sizes: PumpLimits = {
        "batch_events": batch_events,
        "batch_bytes": batch_bytes,
        "linger": limits.linger,
        "progress_timeout": limits.progress_timeout,
        "report_every": REPORT_EVERY,
    }
    why = ""
    codec: Any = core
    if core.codec is None:
        codec = CoreCodec(core, in_flight)
        why = "the protocol's core has no compiled half"
    try:
        pump: CompiledPump = transport.load_pump()(in_flight, codec, **sizes)
    except ImportError as error:
        pump = LinkPump(in_flight, codec, **sizes)
        why = why or str(error)
    pump.why = why
    return pump


def describe_pump(pump: CompiledPump | PumpGroup) -> str:
    """Return ``compiled``, or ``python`` and the reason."""
    return f"python: {pump.why}" if pump.why else "compiled"
