"""The base class of the codecs, and the buffers of encoded bytes."""

from typing import final

from _typeshed import ReadableBuffer

@final
class Outbox:
    """Encoded bytes that wait to be sent, as a read-only buffer."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class OutcomeList:
    """The outcomes and signs of life received; base class of the objects that track events in flight."""

    def outcomes(self) -> tuple[list[tuple[int, int, int, int]], int, int]:
        """Return (first, last, status, reason) of each range since the last call, signs of life, progress."""

class CodecBase(OutcomeList):
    """The compiled half of a core: C functions for pumps, and methods that call them from Python."""

    @property
    def compressor(self) -> str:
        """The compressor: ``none``, ``isal 1``, ``zlib 3``; after ``python``, one with the GIL."""
    @property
    def error(self) -> str | None:
        """The peer's violation of the protocol, in words."""
    @property
    def capsule(self) -> object:
        """An ``lc_codec *`` in a capsule named "logclient.codec", which keeps this object alive."""
    def credit(self, now: float) -> tuple[int, int]:
        """Return how many events, and how many bytes of them, may be encoded now."""
    def encode(self, batch: object, events: int, now: float) -> int:
        """Encode pending events of a batch into `buffers`; return how many, or a negative ``Stop``."""
    def buffers(self) -> list[memoryview]:
        """Return views of the bytes encoded since the last `sent`."""
    def sent(self, rest: int = 0) -> None:
        """Forget the bytes in `buffers`: the transport has taken them."""
    def receive(self, data: ReadableBuffer, now: float) -> int:
        """Take bytes or a message from the peer; return 0, or a negative ``Stop``."""
    def deadline(self) -> float:
        """Return when the codec must be called even if nothing arrives, in seconds of the monotonic clock."""
