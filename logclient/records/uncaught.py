"""Exceptions that nobody has caught, and warnings, as log records."""

from __future__ import annotations

import logging
import sys
import threading
import warnings as warnings_module

# Importing `typing` for this constant would slow down each program under `logclient run`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from sys import UnraisableHookArgs
    from types import TracebackType
    from typing import Any

    _ExcInfo = tuple[type[BaseException], BaseException | None, TracebackType | None]
    _Place = tuple[str, int, str | None]

__all__ = ["Uncaught", "log_uncaught"]

WARNINGS = "py.warnings"  # the logger, as for ``logging.captureWarnings``

_state = threading.local()


def log_uncaught(logger: str | logging.Logger = "uncaught", warnings: bool = False) -> Uncaught:
    """Log exceptions that nobody has caught; then do what Python would have done.

    - An exception of the main thread, which ends the process: `CRITICAL`, ``uncaught exception``.
    - One of another thread: `ERROR`, ``uncaught exception in thread <name>``.
    - One of a destructor, or of a callback of the garbage collector: `ERROR`, ``exception ignored in
      <object>``.

    The records have the exception, and as their origin the line that has raised it. ``KeyboardInterrupt`` and
    ``SystemExit`` are no errors and not logged. asyncio logs what its tasks and callbacks raise by itself, to
    the logger ``asyncio``, unless the loop has an exception handler of its own.

    Args:
        logger: the logger of the records, or its name.
        warnings: whether warnings are logged, too: those that Python's filters let through, at the level
            `WARNING` of the logger ``py.warnings``, with the category in ``error.type`` and the place in
            ``log.origin``. Do not use ``logging.captureWarnings`` beside it.

    Returns:
        An object whose ``restore()`` ends this.

    Raises:
        TypeError: `logger` is no name and no logger.
    """
    if not isinstance(logger, (str, logging.Logger)):
        raise TypeError(f"logger: must be a name or a logging.Logger, got {type(logger).__name__}")
    return Uncaught(logging.getLogger(logger) if isinstance(logger, str) else logger, warnings)


class Uncaught:
    """What `log_uncaught` returns: the hooks that it has set.

    Args:
        logger: of the records.
        warnings: whether warnings are logged, too.
    """

    def __init__(self, logger: logging.Logger, warnings: bool) -> None:
        self._logger = logger
        self._active = True
        self._before: list[tuple[Any, str, Any, Any]] = []
        self._exception = self._set(sys, "excepthook", self._excepthook)
        self._thread = self._set(threading, "excepthook", self._thread_hook)
        self._unraisable = self._set(sys, "unraisablehook", self._unraisable_hook)
        if warnings:
            self._warning = self._set(warnings_module, "showwarning", self._show_warning)

    def restore(self) -> None:
        """Set the hooks from before again. One that was set meanwhile stays, but nothing is logged here."""
        self._active = False
        for module, name, ours, before in self._before:
            if getattr(module, name) is ours:
                setattr(module, name, before)

    def _set(self, module: Any, name: str, ours: Callable[..., None]) -> Any:
        before = getattr(module, name)
        setattr(module, name, ours)
        self._before.append((module, name, ours, before))
        return before

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._log(logging.CRITICAL, "uncaught exception", (kind, error, trace))
        self._call(self._exception, kind, error, trace)

    def _thread_hook(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "?"
        exc_info = args.exc_type, args.exc_value, args.exc_traceback
        self._log(logging.ERROR, f"uncaught exception in thread {name}", exc_info)
        self._call(self._thread, args)

    def _unraisable_hook(self, args: UnraisableHookArgs) -> None:
        try:
            shown = repr(args.object)
        except Exception:
            shown = f"<{type(args.object).__name__}>"
        message = f"{(args.err_msg or 'exception ignored in').rstrip(':')} {shown}"
        self._log(logging.ERROR, message, (args.exc_type, args.exc_value, args.exc_traceback))
        self._call(self._unraisable, args)

    def _show_warning(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if file is None:
            logger, extra = logging.getLogger(WARNINGS), {"error.type": category.__name__}
            self._handle(logger, logging.WARNING, str(message), (filename, lineno, None), None, extra)
        self._call(self._warning, message, category, filename, lineno, file, line)

    def _log(self, level: int, message: str, exc_info: _ExcInfo) -> None:
        kind, _, trace = exc_info
        if issubclass(kind, (KeyboardInterrupt, SystemExit)):
            return
        place: _Place = "(unknown file)", 0, None  # as in logging
        while trace is not None:
            code = trace.tb_frame.f_code
            place = code.co_filename, trace.tb_lineno, code.co_name
            trace = trace.tb_next
        try:
            fields = getattr(exc_info[1], "__logclient__", None)  # of `bind`, which imports more than this
        except Exception:
            fields = None
        if type(fields) is not dict:
            self._handle(self._logger, level, message, place, exc_info, None)
        else:
            from logclient.records.context import bind

            with bind(fields):
                self._handle(self._logger, level, message, place, exc_info, None)

    def _handle(
        self, logger: logging.Logger, level: int, message: str, place: _Place, exc_info: Any, extra: Any
    ) -> None:
        """Log a record, unless one of these hooks is at work in this thread."""
        if not self._active or getattr(_state, "busy", False):
            return
        _state.busy = True
        try:
            if logger.isEnabledFor(level):
                file, line, function = place
                arguments: Any = (logger.name, level, file, line, message, (), exc_info, function, extra)
                logger.handle(logger.makeRecord(*arguments))
        except Exception:
            pass  # the hook from before reports the exception itself
        finally:
            _state.busy = False

    def _call(self, hook: Callable[..., object], *args: object) -> None:
        """Call the hook from before. If it is one of ours, it logs nothing more."""
        before, _state.busy = getattr(_state, "busy", False), True
        try:
            hook(*args)
        finally:
            _state.busy = before
