"""``logclient report``: the hours of a table of ``logclient verify --append`` as a page."""

from __future__ import annotations

import argparse

from logclient import evidence
from logclient.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table", metavar="TABLE", help="folder or URL of the table that verify keeps of hours"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the page, a file of HTML, or its URL")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, in place of an older one."""
    evidence.require("pyarrow", "jinja2")
    from logclient.evidence import storage
    from logclient.verify import output, report

    place = storage.resolve(arguments.out, "out")
    page = report.hours_page(arguments.table)
    with output.errors_named(place):
        output.replace(place, page.encode(), "out")
    return ExitCode.OK
