"""How commands end: exit codes of errors, SIGINT and SIGTERM, and readers of the output that end first.

`run_command` runs the work of every command, and of the modules that ``python -m`` runs.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from logclient.errors import (
    ConfigError,
    ConnectFailed,
    ExitCode,
    LedgerError,
    LogclientError,
    MissingExtra,
    ProtocolError,
    VerifyError,
    described,
)
from logclient.readable import escape


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM, which stopped the work before its end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.code = ExitCode(128 + number)


def run_command(work: Callable[[], int], *, debug: bool = False) -> int:
    """Run the work of a command, and turn every end of it into an exit code.

    An error is one line on stderr, with `debug` after its traceback. SIGINT and SIGTERM raise `Stopped` in
    the work, unless it handles them. A reader of the output that ends first, as ``head`` does, changes
    neither the work nor its exit code, except after `end_with_reader`. A SystemExit of the work is not
    changed.
    """
    with _readers_may_end() as output:
        try:
            with signals_handled(_stop):
                try:
                    return int(work())
                finally:
                    sys.stdout.flush()
        except KeyboardInterrupt as error:
            code = error.code if isinstance(error, Stopped) else ExitCode.INTERRUPTED
            return _report(code, "terminated" if code == ExitCode.TERMINATED else "interrupted", debug)
        except (ConfigError, MissingExtra) as error:
            return _report(ExitCode.USAGE, str(error), debug)
        except (ConnectFailed, ProtocolError, VerifyError) as error:
            return _report(ExitCode.UNREACHABLE, str(error), debug)
        except (LedgerError, OSError) as error:
            if output is not None and output.ended and output.raises:
                return ExitCode.OK
            # A file or directory of the command line is not usable.
            where = f"{error.filename}: " if error.filename is not None else ""
            return _report(ExitCode.USAGE, where + (error.strerror or str(error)), debug)
        except LogclientError as error:
            return _report(ExitCode.BROKEN, str(error), debug)
        except Exception as error:
            words = "an error in logclient, please report it with the traceback that --debug shows"
            words = f"{words}: {described(error)}"
            return _report(ExitCode.INTERNAL, words, debug)


def _report(code: ExitCode, reason: str, debug: bool) -> ExitCode:
    if debug:
        import traceback

        traceback.print_exc()
    print("logclient: " + escape(" ".join(reason.split())), file=sys.stderr, flush=True)
    return code


# -- signals


def _stop(number: int, frame: object) -> NoReturn:
    raise Stopped(number)


@contextmanager
def signals_handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Let a function handle SIGINT and SIGTERM. Ignored signals stay ignored.

    A shell ignores SIGINT for background jobs of a script, because Ctrl-C is not for them. In another thread
    than the main one, which cannot set handlers, nothing changes.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for stopping, earlier in before.items():
            signal.signal(stopping, earlier)


class TerminationSignals:
    """A context manager that records SIGINT and SIGTERM, so that they interrupt no operation.

    After the first signal, a further one raises `Stopped` while `raises` is set.
    """

    def __init__(self) -> None:
        self.first = 0
        """The number of the first signal; 0: no signal came."""
        self.raises = False
        self._handled = signals_handled(self._record)

    def _record(self, number: int, frame: object) -> None:
        if self.first and self.raises:
            raise Stopped(number)
        self.first = self.first or number

    def __enter__(self) -> TerminationSignals:
        self._handled.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handled.__exit__(*error)


# -- readers of the output


class _Output(io.FileIO):
    """A standard stream of the process, whose reader may end first."""

    ended = False
    raises = False  # whether the end of the reader is an error

    def write(self, data: Any) -> int:
        if not self.ended:
            try:
                return super().write(data)
            except BrokenPipeError:
                self.ended = True
                if self.raises:
                    raise
            except OSError as error:
                if self.fileno() != 2:  # nothing can be said where errors are said
                    error.filename = "standard output"
                    raise
        return len(data)


@contextmanager
def _readers_may_end() -> Iterator[_Output | None]:
    """Replace stdout and stderr, where they are the process's own; yields the first of them."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_tolerant(stream) for stream in streams)
    try:
        yield _raw(sys.stdout)
    finally:
        sys.stdout, sys.stderr = streams


def _tolerant(stream: Any) -> Any:
    """Return the stream, in a form that writes to an `_Output` if it writes to a file descriptor.

    One that was closed when the process began is None: then this is the null device.
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO):
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(raw.fileno(), "wb", closefd=False)),
        stream.encoding,
        "backslashreplace",  # for characters that the terminal cannot show
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _raw(stream: Any) -> _Output | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Output) else None


def check_input() -> None:
    """Check that standard input is open: a command reads it."""
    if sys.stdin is None or sys.stdin.closed:
        raise OSError(errno.EBADF, "is closed", "standard input")


def end_with_reader() -> None:
    """End this command, which only shows something, with code 0 as soon as nobody reads its output."""
    output = _raw(sys.stdout)
    if output is not None:
        output.raises = True
