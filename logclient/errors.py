"""The errors of this package, and the exit codes of its commands.

::

    LogclientError
    ├── ConfigError        (ValueError)       a URL, an option or a call that can never work
    ├── EncodeError        (ValueError)       an event that has no encoding: it is too large
    │   └── EncodeTypeError (TypeError)       ... because its type cannot be an event
    ├── QueueFull          (BufferError)      overflow=raise, and a bound is reached
    ├── ConnectFailed      (ConnectionError)  no server can be reached, or it does not answer
    ├── CredentialError    (PermissionError)  one side refuses the credentials of the other
    ├── ProtocolError      (ValueError)       the peer broke its protocol; never the caller's fault
    ├── LedgerError        (OSError)          a ledger or capture that cannot be written or read
    ├── MissingExtra       (ImportError)      an optional package is not installed
    └── VerifyError                           Java, Spark or a worker failed, so nothing was compared

Each class is also the builtin that it resembles, so that ``except ValueError`` around a call goes on
working. A message is one line that names the field and the broken rule, and never shows a secret.
"""

from __future__ import annotations

import errno
from enum import IntEnum

__all__ = [
    "ConfigError",
    "ConnectFailed",
    "CredentialError",
    "EncodeError",
    "EncodeTypeError",
    "ExitCode",
    "LedgerError",
    "LogclientError",
    "MissingExtra",
    "ProtocolError",
    "QueueFull",
    "VerifyError",
]


class LogclientError(Exception):
    """The base of all errors of this package."""


_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN}


def is_shortage(error: BaseException) -> bool:
    """Return whether descriptors, threads or memory ran out, so that a later attempt may succeed."""
    if isinstance(error, OSError):
        return error.errno in _SHORTAGES
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    return isinstance(error, MemoryError)


def describe_error(error: BaseException) -> str:
    """Describe an error in a few lower-case words."""
    if isinstance(error, MemoryError):
        return "out of memory"
    words = error.strerror if isinstance(error, OSError) else None
    return words.lower() if words else str(error) or type(error).__name__


def described(error: BaseException) -> str:
    """Return name and text of an exception of user code, whose ``__str__`` is user code, too."""
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ConfigError(LogclientError, ValueError):
    """A URL or an option that breaks a rule; the message names both."""


class EncodeError(LogclientError, ValueError):
    """An event that cannot be encoded. It is counted as failed, in its turn.

    Attributes:
        reason: under which it is counted: ``unencodable`` or ``too_large``.
    """

    reason = "unencodable"


class EncodeTypeError(EncodeError, TypeError):
    """An event that is neither a mapping, a string nor bytes."""


class QueueFull(LogclientError, BufferError):
    """An event that was dropped (and counted) because a bound is reached, with ``overflow=raise``."""


class ConnectFailed(LogclientError, ConnectionError):
    """A failure to reach any server, or to get an answer in time."""


class CredentialError(LogclientError, PermissionError):
    """A certificate, a key, a token or a TLS version that one side refuses.

    Someone has to correct it, so it is reported once, and later attempts have longer pauses.

    Attributes:
        detail: more words for the message, which may differ between attempts.
    """

    detail = ""

    def __str__(self) -> str:
        return super().__str__() + (f" ({self.detail})" if self.detail else "")


class ProtocolError(LogclientError, ValueError):
    """A violation of the protocol by the peer."""


class LedgerError(LogclientError, OSError):
    """A ledger or capture that cannot be used: owner, mode, damage, full disk."""


class MissingExtra(LogclientError, ImportError):
    """An optional package that is needed and not installed.

    Args:
        module: its name, as in ``import module``.
        extra: the extra that installs it, as in ``pip install "logclient[extra]"``; empty: there is none.
        instead: what to do without it.

    Attributes:
        name: the module.
        extra: the extra.
    """

    # The arguments stay in ``args`` and __str__ makes the message: so the exception survives pickle
    # (Spark returns errors of its workers that way).
    def __init__(self, module: str, extra: str = "", instead: str = "") -> None:
        super().__init__(module, extra, instead, name=module)
        self.extra = extra
        self._instead = instead

    def __str__(self) -> str:
        package = f'"logclient[{self.extra}]"' if self.extra else self.name
        instead = f", {self._instead}" if self._instead else ""
        return f"{self.name} is not installed: pip install {package}{instead}"


class VerifyError(LogclientError):
    """A failure of Java, Spark or a worker that prevented the comparison, described in one line."""


class ExitCode(IntEnum):
    """The exit codes of every command.

    Attributes:
        OK: 0: every event is acked or handed; the promise holds.
        BROKEN: 1: events are lost or failed; the promise is broken.
        USAGE: 2: the command line or an option is wrong, or a package is missing.
        UNREACHABLE: 3: no server could be reached, or the evidence does not suffice.
        INTERNAL: 70: an error of this package.
        INTERRUPTED: 130: SIGINT stopped the work before its end.
        TERMINATED: 143: SIGTERM did.
    """

    OK = 0
    BROKEN = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143
