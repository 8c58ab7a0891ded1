"""Write docs/options.md and logclient/config/options.py from the options that `Config` classes declare.

Run ``python -m tools.options`` after a change of an option.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from logclient.config import registry
from logclient.config.common import Config
from logclient.config.documents import DocumentConfig
from logclient.config.option import Option, all_options, declared_options

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "options.md"
TYPES = ROOT / "logclient" / "config" / "options.py"

PAGE_HEAD = """\
# Options

Use this page to look up an option of `connect`, `Handler` and `AsyncClient`.

An option has the first of these values that there is:

1. a keyword: `window=500`
2. in the URL: `?window=500&overflow=block`; values may be percent-encoded
3. a variable of the environment, for a few options
4. the default.

Without a URL, `Handler()` and `connect()` take that of the variable `LOGCLIENT_URL`, which can have all
options. @VARIABLES@
No other variable has an effect: names such as `LOGCLIENT_VERSION` or `LOGCLIENT_USER` may be those of other
programs. Variables are read when a client is made, by a command, too. An empty one, and one of an option that
the scheme does not have, is ignored. A variable is for all clients of the process: where it contradicts a
URL, the error names it.

Never write a secret in a URL or a variable: use `env:NAME`, `file:PATH` or a keyword, which may be a function
that returns the secret. Secrets are read anew for each connection. Functions are keywords only.

- A duration is `5`, `5s`, `200ms`, `5m` or `1h`; a plain number is in seconds.
- A size is in bytes. `64KiB`, `64k`, `1MiB` and `1M` are multiples of 1024; `64kB` and `1MB` are multiples of
  1000.
- A relative path counts from the current directory at the moment when the option is read: the program may
  change its directory later.

For type checkers and editors, `logclient.Options` is a `TypedDict` of all keywords. Use it in your own
functions as `**options: Unpack[logclient.Options]`.

The options stand by task. Where protocols are named, only these have the option, or this default of it.

## Turn it off, or disable it in tests

To disable logclient in tests or on a laptop, set `LOGCLIENT_URL=none`, or leave it empty. A URL in the code
wins over the variable: leave it out (`logclient.Handler()`, a `dictConfig` without `url`), and set the
variable everywhere. Or give the URL `none:`, or `none` in place of the scheme of any URL. Such a Handler or
client opens nothing, starts nothing and writes no file. A log call through it costs about as much as one
whose level is off, if `logclient.Logger` makes it, and as much as with a `NullHandler` otherwise. Options
beside it are checked as ever; secrets are not read. Events given to `send` and `submit` count as `dropped`,
`disabled`; records do not count. One line of level INFO in the error log says it, once in a process. Requests
of Logjam can be made; methods that only plog or Logux has are missing, and a Lumberjack `Writer` and commands
refuse the URL. If `LOGCLIENT_URL` is not set at all, that is an error as before.
"""

PAGE_TAIL = """\
## What is no option

- The first wait before a new attempt to connect: up to 100 ms, all of it random. That spreads the clients of
  a server that restarts, and is shorter than a restart takes.
- The wait after rejected credentials (certificate, key or token): up to 30 s, doubling to 5 min, half of it
  random. It takes a person to correct them, and servers lock out whoever tries often.
- The events of a window of Lumberjack have 1 MiB at most, the actions of a sync message of Logux 256 KiB; a
  larger event is sent alone. Servers keep a window in memory, and more bytes gain nothing, because several
  windows are in flight.
- Logux: a message from the server of more than 16 MiB ends the connection. What servers send is far shorter.
- plog: after a pause as many packets are sent at once as the pace sends in 6.4 ms, and 64 at least. The
  receive buffer that Linux gives a socket has room for fewer than 300.
- Logjam: bodies of less than 1 KiB are not compressed. It would save less than a packet.
- Logjam: ZeroMQ's own pings are not used. `silence` finds a server that does not answer.
"""

TYPES_HEAD = '''\
"""The keywords of ``connect``, ``Handler`` and ``AsyncClient``, for type checkers and editors.

Made from the options in logclient/config by ``python -m tools.options``; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Literal, TypedDict

from logclient.config.secrets import Secret

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """The keywords of ``connect``, ``Handler`` and ``AsyncClient``, one for each option.

    None means the default. A duration is a number of seconds, or text such as ``200ms`` or ``5m``. A size is
    a number of bytes, or text such as ``64KiB``. docs/options.md describes each option, and has its default.
    """
'''

KEYWORD_TYPES = {
    "boolean": "bool",
    "directory": "str | PathLike[str]",
    "duration": "float | str",
    "fields": "str | Mapping[str, Any]",
    "function": "Callable[..., Any]",
    "headers": "str | Mapping[str, str | Secret | Callable[[], str]]",
    "host": "str",
    "level": "int | str",
    "names": "str | list[str] | tuple[str, ...]",
    "number": "int",
    "patterns": "str | list[str] | tuple[str, ...]",
    "path": "str | PathLike[str]",
    "policy": "str",
    "secret": "str | Secret | Callable[[], str]",
    "shares": "str | Mapping[str, float]",
    "size": "int | str",
    "text": "str",
    "texts": "str | Mapping[str, str]",
    "version": "int | str",
}
"""The type of a keyword, by the kind of its option."""


def classes() -> list[type[Config]]:
    """Return the `Config` classes of all protocols."""
    return [registry.load(name) for name in registry.configs()]


def own_options(of: type[Config]) -> list[Option]:
    """Return the options that a class itself declares."""
    return [option for name, option in declared_options(of).items() if name in vars(of)]


GROUPS = {
    "Connect": "connect_timeout silence progress_timeout balance proxy http_headers ping deflate",
    "TLS and credentials": "ca cert key tls_password server_name verify curve_server curve_secret user token",
    "Batching and speed": "linger window inflight compression mtu unboxed pace pace_bytes feedback",
    "Memory and overflow": "max_events max_bytes max_event_bytes truncate overflow keep_level hwm",
    "Attempts and back-off": "backoff_max max_age on_doubt processing_timeout",
    "Exit": "timeout atexit_timeout",
    "What is in an event": (
        "format timestamp service environment tags fields rename extra_prefix enrich opentelemetry "
        "error_fingerprint formatter_json identity trust metadata check zone"
    ),
    "Leave out and hold back": (
        "redact redact_text mask before_send sample sample_by hold_below rate_limit dedupe"
    ),
    "Outcomes and ledger": "fallback ledger on_delivery on_drop on_error",
    "The spool": "spool spool_mode spool_sync spool_bytes spool_age",
    "Specific to a protocol": (
        "version frames strict_spec mode topic event_type action_type ack subprotocol state"
    ),
}
"""The options of each section, by task."""


def page() -> str:
    """Write docs/options.md.

    Raises:
        LookupError: an option is in no section, or a section names one that there is not.
    """
    declared = [("TLS" if option.tls_only else "", option) for option in own_options(Config)]
    declared += [("Lumberjack, Logux", option) for option in own_options(DocumentConfig)]
    declared += [(of.title, option) for of in classes() for option in own_options(of)]
    rows: dict[str, dict[str, list[str]]] = {}
    for whose, one in declared:
        about = re.sub(r"\b([a-z-]+)\.md\b", r"[\1](\1.md)", one.help)
        text = f"{about} *{one.reader.kind.capitalize()}; default: {one.shown}.*"
        rows.setdefault(one.name, {}).setdefault(text, []).append(whose)
    names = sorted({f"`LOGCLIENT_{one.name.upper()}`" for _, one in declared if one.variable})
    head = PAGE_HEAD.replace("@VARIABLES@", f"Also read are {', '.join(names)}.")
    lines = [head.rstrip("\n")]
    for title, names in GROUPS.items():
        lines += ["", f"## {title}"]
        for name in names.split():
            lines += ["", f"### {name}"]
            for text, whose in rows.pop(name).items():  # a KeyError is a LookupError
                protocols = ", ".join(filter(None, whose))
                lines += ["", f"*{protocols}:* {text}" if protocols else text]
    if rows:
        raise LookupError(f"no section of docs/options.md for {', '.join(rows)}")
    return "\n".join([*lines, "", PAGE_TAIL])


def keyword_type(option: Option) -> str:
    """Write the type of a keyword."""
    if option.reader.choices:
        words = ", ".join(f'"{word}"' for word in option.reader.choices)
        return f"Literal[{words}]"
    return KEYWORD_TYPES[option.reader.kind]


def field(options: list[Option]) -> str:
    """Write the field of an option, which may differ between protocols."""
    kinds = dict.fromkeys(keyword_type(option) for option in options)
    return f"    {options[0].name}: {' | '.join([*kinds, 'None'])}\n"


def types() -> str:
    """Write logclient/config/options.py."""
    return "\n".join([TYPES_HEAD, "".join(field(options) for options in all_options().values())])


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit("usage: python -m tools.options")
    PAGE.write_text(page(), encoding="utf-8")
    TYPES.write_text(types(), encoding="utf-8")
