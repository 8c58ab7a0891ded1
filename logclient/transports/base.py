"""The base of transports with a compiled pump."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from logclient.delivery.contract import Core, Pump, PumpLimits, Transport

if TYPE_CHECKING:
    from typing import Unpack

    from logclient._ext.inflight import InflightBatches

__all__ = ["CompiledTransport", "MakePump"]

MakePump = Callable[..., Pump | None]
"""Makes a pump of in-flight batches, a core and `PumpLimits`; None: not on this system."""


class CompiledTransport(Transport):
    """A transport whose connections a compiled pump can drive, for cores with a codec."""

    def load_pump(self) -> MakePump:
        """Import the factory of the compiled pump.

        Raises:
            ImportError: this system has none; the message is the reason.
        """
        raise NotImplementedError

    def pump(self, in_flight: InflightBatches, core: Core, **limits: Unpack[PumpLimits]) -> Pump | None:
        """Make the compiled pump for this transport and this core.

        Args:
            in_flight: the batches to send.
            core: the protocol's state.
            **limits: see `PumpLimits`.

        Returns:
            None when the core has no codec, or this system no compiled pump.
        """
        if core.codec is None:
            return None
        try:
            make = self.load_pump()
        except ImportError:
            return None
        return make(in_flight, core, **limits)

    def why_python(self) -> str:
        """Return why there is no compiled pump; empty: there is one."""
        try:
            self.load_pump()
        except ModuleNotFoundError:
            return "this system has no compiled pump"
        except ImportError as error:
            return str(error)
        return ""
