"""Execute a command, with the variables by which each Python process that it starts ships its records."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from logclient import readable
from logclient.config import registry
from logclient.config.parsing import parse
from logclient.errors import ConfigError

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes, as those of a shell."""


def execute(command: Sequence[str]) -> int:
    """Replace this process by a command; return an exit code if that cannot be.

    The command keeps the id of the process, its signals and its standard streams. Without a URL it runs
    unchanged, and a line says so.

    Args:
        command: the program and its arguments, maybe after ``--``.
    """
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        _say("COMMAND: give one, such as gunicorn shop:app")
        return 2
    environ = dict(os.environ)
    if reason := _why_not():
        _say(f"nothing is shipped: {reason}")
    else:
        path = [str(Path(__file__).with_name("startup")), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    sys.stdout.flush()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and programs inherit that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), environ)
    except (OSError, ValueError) as error:
        hint = f"; a script needs its Python: logclient run python {command[0]}"
        script = command[0].endswith(".py")
        _say(f"{command[0]}: {getattr(error, 'strerror', None) or error}{hint if script else ''}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _why_not() -> str:
    """Return why nothing is shipped; empty: it is."""
    if "LOGCLIENT_URL" not in os.environ:
        return "LOGCLIENT_URL is not set"
    try:
        off = parse().protocol == registry.OFF
    except ConfigError as error:
        return str(error)
    return "LOGCLIENT_URL is none" if off else ""


def _say(text: str) -> None:
    print(f"logclient: {readable.escape(text)}", file=sys.stderr, flush=True)
