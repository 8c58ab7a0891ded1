"""``logclient check``: test each step up to an acknowledged event, and name a fix for each that fails."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from itertools import chain

from logclient.cli import loggers
from logclient.cli.examination import FAILED, SKIPPED, Examination, Finding, examine_spool
from logclient.cli.parser import duration, parse_url
from logclient.cli.progress import ClientMessages, ProgressLine
from logclient.config.hosts import host_port
from logclient.errors import ExitCode
from logclient.readable import escape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--no-event", action="store_true", help="send no test event: for a check that runs every minute")
    add("--timeout", type=duration, default=5.0, metavar="TIME", help="of each step (default: 5s)")
    add("--json", action="store_true", help="print JSON, one line per endpoint or logger")
    what = parser.add_mutually_exclusive_group(required="LOGCLIENT_URL" not in os.environ)
    what.add_argument(
        "--logging",
        metavar="MODULE:NAME",
        help="test a program's loggers instead: say which ones are slow, and why; NAME is its function that"
        " configures logging, or its mapping for dictConfig",
    )
    what.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="the servers; each endpoint is tested separately; without it that of LOGCLIENT_URL",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the findings for each endpoint. UNREACHABLE: a step failed."""
    if arguments.logging is not None:
        return loggers.run(arguments.logging, arguments.json)
    whole = parse_url(arguments.url)
    given = whole.for_tests()
    progress = ProgressLine()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    passed = 0
    for endpoint in given.endpoints:
        name = host_port(*endpoint)
        findings = []
        if not arguments.json:
            print(escape(f"{given.scheme}://{name}"), flush=True)
        examination = Examination(given, endpoint, arguments.timeout, event=not arguments.no_event)
        with ClientMessages():  # the findings include them
            for finding in chain(examine_spool(whole), examination.steps()):
                progress.clear()
                findings.append(finding)
                if not arguments.json:
                    print(*map(escape, _lines(finding, width)), sep="\n", flush=True)
                progress.show(f"  testing {name} ...")
        progress.clear()
        healthy = all(finding.status != FAILED for finding in findings)
        passed += healthy
        if arguments.json:
            found = {"endpoint": name, "protocol": given.protocol, "ok": healthy}
            found |= {"steps": [finding._asdict() for finding in findings]}
            found |= {"tls": examination.security or None, "about": examination.about or None}
            print(json.dumps(found), flush=True)
    return ExitCode.OK if passed == len(given.endpoints) else ExitCode.UNREACHABLE


def _lines(finding: Finding, width: int) -> list[str]:
    """Format a finding as lines of `width` columns; 0: lines are not wrapped."""
    mark = "FAILED" if finding.status == FAILED else "-" if finding.status == SKIPPED else finding.status
    lines = _wrapped(f"  {mark:8} {finding.step:9} ", finding.found, width)
    return [*lines, *_wrapped(f"{'':11}to fix:  ", finding.mend, width)] if finding.mend else lines


def _wrapped(head: str, text: str, width: int) -> list[str]:
    if len(head) + len(text) <= width or width < 2 * len(head):
        return [head + text]
    # Names, addresses and options stay whole, so that they can be copied.
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
