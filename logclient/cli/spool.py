"""``logclient spool``: list, send, remove or check what ended processes left (docs/spool.md)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from typing import Any

from logclient.cli.exits import Stopped, TerminationSignals, end_with_reader
from logclient.cli.parser import UsageError, duration, parse_url
from logclient.cli.progress import ClientMessages, ProgressLine, RateEstimate
from logclient.client import connect
from logclient.delivery.spool import contents, owner_files
from logclient.delivery.spool.contents import Owner
from logclient.errors import ExitCode
from logclient.evidence.frames import counted
from logclient.readable import escape

_LOOK_S = 0.25  # seconds between two looks at the files while they are sent
_OLDEST = "365d"  # the age of events that ``drain`` sends, unless the URL has ``spool_age``


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, act, text in (
        ("ls", _list, "list what each process has"),
        ("drain", _drain, "send what dead processes left"),
        ("purge", _purge, "remove what dead processes left"),
        ("check", _check, "test all files, and name each fault"),
    ):
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.set_defaults(act=act)
        add = action.add_argument
        add("folder", metavar="DIR", help="directory of the spool")
        if name == "drain":
            add("--to", metavar="URL", required=True, help="the server")
            add("--timeout", type=duration, default=30.0, metavar="TIME",
                help="give up after this time without progress (default: 30s)")  # fmt: skip
        if name == "purge":
            add("--owner", metavar="PRODUCER", help="remove only what this one left")
            add("--yes", action="store_true", help="do not ask")
        if name in ("drain", "purge"):
            add("--ledger", metavar="DIR", help="continue the ledgers in this directory")
        add("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked. BROKEN: something is left, or damaged."""
    contents.check_directory(arguments.folder)
    return int(arguments.act(arguments))


def _facts(owner: Owner) -> dict[str, Any]:
    hidden = ("pending", "last")
    facts = {name: value for name, value in owner._asdict().items() if name not in hidden}
    facts["oldest"] = _time(owner.oldest_us)
    facts["damages"] = [damage._asdict() for damage in owner.damages]
    return facts


def _time(us: int) -> str:
    """Return a time in UTC; empty: there is none, or it makes no sense."""
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if us > 0 else ""
    except (OverflowError, OSError, ValueError):
        return ""


def _describe(owner: Owner) -> str:
    words = [f"{owner.producer} {'alive' if owner.alive else 'dead'}"]
    if owner.version:
        words.append(f"pid {owner.pid}, {owner.mode}, version {owner.version}")
    words.append(f"{counted(owner.segments, 'segment')}, {counted(owner.bytes, 'byte')} on disk")
    words.append(f"{counted(owner.events, 'event')} waiting, {counted(owner.body_bytes, 'byte')}")
    if owner.oldest_us:
        words.append(f"oldest {_time(owner.oldest_us)}")
    if owner.boot == "earlier":
        words.append("from before a restart or a copy")
    if owner.damages:
        words.append(f"{counted(len(owner.damages), 'fault')}: see logclient spool check")
    return ", ".join(words)


def _list(arguments: argparse.Namespace) -> int:
    end_with_reader()
    for owner in contents.read(arguments.folder):
        print(json.dumps(_facts(owner)) if arguments.json else _describe(owner), flush=True)
    return ExitCode.OK


def _check(arguments: argparse.Namespace) -> int:
    owners = list(contents.read(arguments.folder))
    damages = [damage for owner in owners for damage in owner.damages]
    if arguments.json:
        for owner in owners:
            print(json.dumps(_facts(owner)))
    else:
        print(*(escape(damage.line) for damage in damages), sep="\n", end="\n" if damages else "")
        print(f"{counted(len(owners), 'owner')}, {counted(len(damages), 'fault')}")
    return ExitCode.BROKEN if damages else ExitCode.OK


def _drain(arguments: argparse.Namespace) -> int:
    given = parse_url(arguments.to, {"ledger": arguments.ledger}, environ={})  # what the URL says
    options: dict[str, Any] = {"spool": arguments.folder, "spool_mode": "overflow", "spool_sync": "none"}
    if arguments.ledger is not None:
        options["ledger"] = arguments.ledger
    for name in ("spool_sync", "spool_bytes"):
        if name in given.given:
            raise UsageError(f"--to: {name}: is not for drain")
    if "spool_age" not in given.given:
        options["spool_age"] = _OLDEST
    before = _left(arguments.folder)
    with TerminationSignals() as signals, ClientMessages(f"{given.redacted}: ") as messages:
        if before:
            client = connect(arguments.to, **options)
            try:
                _wait(arguments, before, signals, messages)
            finally:
                client.close(1.0)
        messages.print()
    left = _left(arguments.folder)
    events = sum(before.values())
    rest = sum(left.values())
    stopped = Stopped(signals.first) if left and signals.first else None
    code = stopped.code if stopped else ExitCode.BROKEN if left else ExitCode.OK
    result = {"owners": len(before), "events": events, "left_owners": len(left), "left": rest}
    if arguments.json:
        print(json.dumps({**result, "exit": int(code)}))
    else:
        owners = counted(len(before), "dead owner")
        where = f" in {len(left):,}" if left else ""
        print(f"{counted(events, 'event')} of {owners}: {rest:,} left{where}")
    if stopped:
        raise stopped
    return code


def _left(folder: str) -> dict[str, int]:
    """Return how many events wait, by dead owner."""
    return {owner.producer: owner.events for owner in contents.read(folder) if not owner.alive}


def _wait(arguments: argparse.Namespace, before: dict[str, int], signals: Any, messages: Any) -> None:
    """Wait until the files of dead owners are gone, or nothing has changed for the time-out."""
    progress, estimate = ProgressLine(), RateEstimate()
    events = sum(before.values())
    state: tuple[int, int] | None = None
    since = time.monotonic()
    try:
        while not signals.first:
            # While one is adopted its lock is ours: the names tell.
            owners = [owner for owner in contents.read(arguments.folder) if owner.producer in before]
            if not owners:
                return
            now, left = time.monotonic(), sum(owner.events for owner in owners)
            if state != (len(owners), left):
                state, since = (len(owners), left), now
            if now - since >= arguments.timeout:
                return
            text = estimate.text(now, events - left, (events - left) / events if events else None)
            text += f"left {left} of {events}, owners {len(owners)}"
            progress.show(f"{text}; {messages.kept[-1]}" if messages.kept else text)
            time.sleep(_LOOK_S)
    finally:
        progress.clear()


def _purge(arguments: argparse.Namespace) -> int:
    found = [owner for owner in contents.read(arguments.folder) if arguments.owner in (None, owner.producer)]
    if arguments.owner is not None and not found:
        raise UsageError(f"--owner: {arguments.folder} has no {arguments.owner[:40]!r}")
    if arguments.owner is not None and found[0].alive:
        raise UsageError(f"--owner: {arguments.owner} is alive: its process has the files")
    dead = [owner for owner in found if not owner.alive]
    if not arguments.json:
        for owner in dead:
            print(_describe(owner), flush=True)
    if dead and not arguments.yes:
        if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("purge: needs --yes where nobody can be asked")
        question = f"remove {_events(dead)} of {counted(len(dead), 'owner')}? [y/N] "
        print(question, end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return ExitCode.BROKEN
    code = ExitCode.OK
    for owner in dead:
        files = owner_files.OwnerFiles(arguments.folder, owner.producer)
        removed, words = contents.purge(files, arguments.ledger)
        if words:
            print(escape(f"logclient: spool: {words}"), file=sys.stderr)
        if not removed:
            code = ExitCode.BROKEN
        if arguments.json:
            print(json.dumps({**_facts(owner), "removed": removed}))
    if not arguments.json:
        gone = f"{counted(len(dead), 'owner')}, {_events(dead)} removed"
        print(gone if code == ExitCode.OK else "not everything was removed")
    return code


def _events(owners: list[Owner]) -> str:
    return counted(sum(owner.events for owner in owners), "event")
