"""``logclient envi``: print the settings of plog servers."""

from __future__ import annotations

import argparse

from logclient import config
from logclient.cli.parser import add_endpoint_arguments
from logclient.cli.queries import Answer, plog_question, print_answers
from logclient.plog import Client

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "asked", "the answer", "settings")


def run(arguments: argparse.Namespace) -> int:
    """Print the settings of each endpoint; returns the exit code of `print_answers`."""

    def ask(client: Client) -> Answer:
        settings = client.envi(arguments.timeout)
        return Answer("", settings, settings.splitlines())

    given = config.parse(arguments.url)
    asked = plog_question(given, "envi", "for settings", ask)
    return print_answers(given.endpoints, asked, "envi", arguments.json)
