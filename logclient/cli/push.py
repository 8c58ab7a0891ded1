"""``logclient push``: copy ledgers and captures to a bucket. See `logclient.evidence.push`."""

from __future__ import annotations

import argparse
import json
import sys

from logclient import evidence
from logclient.errors import ExitCode
from logclient.readable import escape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder with ledgers and captures, and its subfolders")
    parser.add_argument("target", metavar="TARGET", help="URL that gets the copies, as s3://bucket/run/host")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Copy what is new. BROKEN: a file could not be copied; those that are still open are no failure."""
    evidence.require("pyarrow")
    from logclient.evidence.push import push

    done = push(arguments.folder, arguments.target)
    if arguments.json:
        print(json.dumps(done._asdict()))
    else:
        for name in done.copied:
            print(escape(f"copied {name}"))
        for name in done.open:
            print(escape(f"open   {name}"))
        print(f"copied {len(done.copied)}, unchanged {done.unchanged}, still open {len(done.open)}")
    for failure in done.failed:
        print(escape(f"logclient: push: {failure}"), file=sys.stderr)
    return ExitCode.BROKEN if done.failed else ExitCode.OK
