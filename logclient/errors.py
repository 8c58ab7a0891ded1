"""Every error this package raises, and the exit codes of its commands.

::

    LogclientError
    ├── ConfigError        (ValueError)       a URL, an option or a call that can never work
    ├── EncodeError        (ValueError)       an event that has no encoding: a cycle, too deep
    │   └── EncodeTypeError (TypeError)       ... because it is of a kind that is no event
    ├── QueueFull          (BufferError)      overflow=raise, and the bounds are reached
    ├── ConnectFailed      (ConnectionError)  nobody listens, or the way there is closed
    ├── CredentialError    (PermissionError)  one side does not accept who the other is
    ├── ProtocolError      (ValueError)       the peer broke its protocol; never the caller's fault
    ├── LedgerError        (OSError)          a ledger, capture or spool that cannot be written or read
    └── MissingExtra       (ImportError)      an optional package is not installed

Each class is also the builtin it resembles, so that ``except ValueError`` around a call goes on
working. A message is one line that names the field and the rule it breaks, and never shows a secret.
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
]


class LogclientError(Exception):
    """The base of all of them."""


_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN}


def is_shortage(error: BaseException) -> bool:
    """Whether the machine ran out of descriptors, threads or memory, so that a later attempt may do."""
    if isinstance(error, OSError):
        return error.errno in _SHORTAGES
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    return isinstance(error, MemoryError)


class ConfigError(LogclientError, ValueError):
    """A URL or an option that breaks a rule; the message names both."""


class EncodeError(LogclientError, ValueError):
    """An event that cannot be encoded. It is counted as failed before this is raised."""


class EncodeTypeError(EncodeError, TypeError):
    """What was sent is neither a mapping, a string nor bytes."""


class QueueFull(LogclientError, BufferError):
    """``overflow=raise``: the event was dropped (and counted) because a bound is reached."""


class ConnectFailed(LogclientError, ConnectionError):
    """No connection to any endpoint."""


class CredentialError(LogclientError, PermissionError):
    """A certificate, a key or a token that one side does not accept, or a TLS version.

    Somebody has to mend it, so it is said once and tried again at the slow pace.
    """

    detail = ""
    """What else is known, and may be known to one attempt and not to the next: no reason to say it again."""

    def __str__(self) -> str:
        return super().__str__() + (f" ({self.detail})" if self.detail else "")


class ProtocolError(LogclientError, ValueError):
    """The peer sent what its protocol does not allow."""


class LedgerError(LogclientError, OSError):
    """A ledger, capture or spool that cannot be used: owner, mode, damage, full disk."""


class MissingExtra(LogclientError, ImportError):
    """An optional package is needed and not installed.

    Args:
        module: what could not be imported, as in ``import module``.
        extra: the extra that brings it, as in ``pip install "logclient[extra]"``.
    """

    # Both arguments stay in ``args`` and the words are made in __str__: so the exception survives
    # pickle (Spark sends errors of its workers home that way).
    def __init__(self, module: str, extra: str) -> None:
        super().__init__(module, extra, name=module)
        self.extra = extra

    def __str__(self) -> str:
        return f'{self.name} is not installed: pip install "logclient[{self.extra}]"'


class ExitCode(IntEnum):
    """What every command ends with."""

    OK = 0  # all acked or handed; the promise holds
    BROKEN = 1  # events lost or failed; the promise is broken
    USAGE = 2  # the command line or an option is wrong
    UNREACHABLE = 3  # nothing could be reached, or it cannot be told
