"""``logclient envi``: print the settings of plog servers."""

from __future__ import annotations

import argparse

from logclient import config
from logclient.cli.parser import add_endpoint_arguments
from logclient.cli.stat import Answer, ask_plog
from logclient.plog import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "asked", "the answer", "settings")


def run(arguments: argparse.Namespace) -> int:
    """Print the settings of each endpoint."""

    def ask(client: Client, timeout: float) -> Answer:
        settings = client.envi(timeout)
        return Answer("", settings, settings.splitlines())

    return ask_plog(config.parse(arguments.url), arguments, "envi", "for settings", ask)
