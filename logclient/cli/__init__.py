"""The ``logclient`` command, also ``python -m logclient``.

`main` reads the command line and runs one command. The exit codes are those of `logclient.errors.ExitCode`.
Every error is one line on stderr; ``--debug`` shows the traceback.

Each command is a module of this package with ``add_arguments(parser)`` and ``run(arguments)``. It is imported
when the command is given, so ``--help`` and ``--version`` load nothing that they do not need.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from logclient.cli.parser import UsageError, make_parser
from logclient.errors import ConfigError, ConnectFailed, ExitCode, LedgerError, LogclientError, MissingExtra

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; None: those of the process.

    Returns:
        The exit code.

    Raises:
        SystemExit: After ``--help`` and ``--version``. All errors end as a line on stderr.
    """
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters that the terminal cannot show
    try:
        try:
            arguments = make_parser().parse_args(argv)
            debug = arguments.debug
            return int(arguments.run(arguments))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # inside the try block, which handles a broken pipe
    except KeyboardInterrupt:
        return _report_failure(ExitCode.BROKEN, "interrupted", debug)
    except BrokenPipeError:
        # The reader of our output has ended, as `head` does. Otherwise Python would report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.BROKEN
    except (ConfigError, UsageError) as error:
        return _report_failure(ExitCode.USAGE, str(error), debug)
    except (ConnectFailed, MissingExtra) as error:
        return _report_failure(ExitCode.UNREACHABLE, str(error), debug)
    except (LedgerError, OSError) as error:
        # A file or directory of the command line is not usable.
        where = f"{error.filename}: " if error.filename is not None else ""
        return _report_failure(ExitCode.USAGE, where + (error.strerror or str(error)), debug)
    except LogclientError as error:
        return _report_failure(ExitCode.BROKEN, str(error), debug)
    except Exception as error:
        return _report_failure(
            ExitCode.BROKEN, f"internal error, --debug shows where: {type(error).__name__}: {error}", debug
        )


def _report_failure(code: ExitCode, reason: str, debug: bool) -> ExitCode:
    """Print the reason of a failure in one line, and return the exit code."""
    if debug:
        import traceback

        traceback.print_exc()
    print("logclient: " + " ".join(reason.split()), file=sys.stderr)
    return code
