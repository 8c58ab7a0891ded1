"""Texts of exceptions, equal to those of `logging.Formatter.formatException`, from frames seen before."""

from types import TracebackType
from typing import Any

MAX_FRAMES: int
MAX_FRAME_BYTES: int

class ExceptionFormatter:
    """A formatter of exceptions that keeps the texts of frames.

    It keeps ``MAX_FRAMES`` at most, none of which has more than ``MAX_FRAME_BYTES`` with all that it refers to.
    It pins neither code nor sources.
    """

    @property
    def cached(self) -> bool:
        """Whether frames are kept: nobody has replaced a part of ``traceback``, and there is a GIL."""

    @property
    def frames(self) -> int:
        """The number of frames that are kept."""

    @property
    def bytes(self) -> int:
        """The bytes of the frames that are kept, and of all that they refer to."""

    def clear(self) -> None:
        """Forget all frames."""

    def format(self, exc_info: Any) -> str:
        """Return the text of an exception, as ``logging.Formatter().formatException(exc_info)`` does."""

    def fingerprint(
        self, exc_info: tuple[type[BaseException], BaseException, TracebackType | None]
    ) -> str:
        """Return 16 hex digits that are the same for exceptions of the same type from the same functions.

        They are XXH64 with seed 42 of these lines, without an end of the last: ``module.class`` of the
        exception, then ``module:function`` of each of its frames, outermost first, equal ones in a row once;
        then the same of the exceptions that the text shows before it, in turn. The module of a frame is its
        ``__name__``, or the name of its file if there is none.

        Args:
            exc_info: type, exception and traceback.
        """
