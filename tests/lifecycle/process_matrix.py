"""Processes of every kind that a program may be: what a sample says must arrive, without a word of ours.

``python -m tests.lifecycle.process_matrix [SCHEME ...]`` prints a table; the exit code is 1 if a cell fails.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE

SCHEMES = {
    "lumberjack": ("lumberjack", ""),
    "logux": ("logux", ""),
    "plog": ("plog", ""),
    "logjam": ("logjam", "/shop-production"),
}
"""Each with its server's module, and what its URL has behind the port."""

EVENTS = 20

SAMPLE = f"""
import sys
url, ledger, *sys.path[1:1] = sys.argv[1:]
import logging
import logclient
handler = logclient.Handler(url, ledger=ledger, atexit_timeout={PATIENCE})
log = logging.getLogger("sample")
log.setLevel("INFO")
log.addHandler(handler)
for number in range({EVENTS}):
    log.info("event %d of K\\u00f6ln", number)
"""


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))


def _default_sigpipe() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _block_all() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _in_no_directory() -> None:
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    os.rmdir(gone)


class Kind(NamedTuple):
    """A kind of process: variables (None: not set), options of Python, redirections, what is done first."""

    name: str
    variables: dict[str, str | None] = {}
    options: tuple[str, ...] = ()
    redirected: str = ""
    before: Callable[[], object] | None = None


KINDS = [
    Kind("plain"),
    *(
        Kind(f"TZ={zone}", {"TZ": zone})
        for zone in ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "No/Such+99:x")
    ),
    *(Kind(f"LC_ALL={name}", {"LC_ALL": name}) for name in ("C", "de_DE.UTF-8", "tr_TR.UTF-8", "garbage")),
    *(Kind(f"PYTHONUTF8={mode}", {"PYTHONUTF8": mode, "LC_ALL": "C"}) for mode in "01"),
    Kind("ASCII output", {"PYTHONIOENCODING": "ascii:strict"}),
    *(Kind(f"umask {mask:03o}", before=lambda mask=mask: os.umask(mask)) for mask in (0, 0o77, 0o777)),
    Kind("no bytecode", {"PYTHONDONTWRITEBYTECODE": "1"}),
    *(Kind(f"PYTHONHASHSEED={seed}", {"PYTHONHASHSEED": seed}) for seed in ("0", "random")),
    *(Kind(option, options=(option,)) for option in ("-O", "-OO", "-I", "-E", "-S", "-B", "-u", "-P")),
    Kind("-X dev -W error", options=("-X", "dev", "-W", "error")),
    *(Kind(f"closed {fds}", redirected=fds) for fds in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-")),
    Kind("few descriptors", before=_limit_files),
    Kind("no directory", before=_in_no_directory),
    Kind("no HOME", {"HOME": None, "USER": None, "LOGNAME": None}),
    Kind("no variables at all", dict.fromkeys(os.environ)),
    Kind("SIGPIPE default", before=_default_sigpipe),
    Kind("all signals blocked", before=_block_all),
]


def run(scheme: str, kind: Kind, folder: Path) -> str:
    """Run the sample in a process of this kind; return what is wrong, or an empty text."""
    protocol, path = SCHEMES[scheme]
    script, ledger = folder / "sample.py", folder / "ledger"
    script.write_text(SAMPLE, encoding="utf-8")
    ledger.mkdir(mode=0o700)
    given = clean_environment(**{name: text for name, text in kind.variables.items() if text is not None})
    env = {name: text for name, text in given.items() if kind.variables.get(name, "") is not None}
    options: dict[str, Any] = {}
    with import_module(f"logclient.testing.{protocol}").Collector(keep=True, **options) as collector:
        places = [str(TESTED), *(place for place in sys.path if place.endswith("site-packages"))]
        python = [sys.executable, *kind.options, str(script), collector.url + path, str(ledger), *places]
        command = ["/bin/sh", "-c", f'exec "$@" {kind.redirected}', "sh", *python]
        done = subprocess.run(
            command, env=env, capture_output=True, timeout=8 * PATIENCE, preexec_fn=kind.before
        )
        arrived = len(collector.events(EVENTS)) if done.returncode == 0 else 0
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
    if arrived != EVENTS:
        return f"{arrived} of {EVENTS} arrived"
    lines = done.stderr.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith("sh: 0: getcwd() failed"))[-500:]


def main(schemes: list[str]) -> int:
    """Print the table."""
    failed = 0
    chosen = schemes or list(SCHEMES)
    print("process".ljust(24), *(scheme.ljust(11) for scheme in chosen))
    for kind in KINDS:
        cells = []
        for scheme in chosen:
            with tempfile.TemporaryDirectory() as folder:
                cells.append(run(scheme, kind, Path(folder)))
        failed += sum(map(bool, cells))
        print(kind.name.ljust(24), *(("FAILED" if cell else "ok").ljust(11) for cell in cells), flush=True)
        for cell in filter(None, cells):
            print("   ", cell.strip().replace("\n", "\n    "))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
