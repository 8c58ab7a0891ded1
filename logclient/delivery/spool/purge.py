"""Remove what a dead owner left, and say so in its ledger."""

from __future__ import annotations

import json
import os
from typing import Any

from logclient.delivery.bookkeeping import write_close, write_outcomes
from logclient.delivery.spool import contents, owner_files
from logclient.delivery.spool.adoption import read_estate, read_record, settle
from logclient.delivery.spool.owner_files import OwnerFiles
from logclient.files import open_regular, private_directory
from logclient.files.ledger import make_ledger

_ABOUT = ("protocol", "url", "identity", "mode", "host")
"""Fields of an ``open`` line that later parts repeat."""


def purge(files: OwnerFiles, directory: str | None) -> tuple[bool, str]:
    """Remove the files of a dead owner.

    Args:
        files: of the owner.
        directory: of the ledgers, where its events are listed as dropped first; None: they are not.

    Returns:
        Whether they are gone, and words about what could not be done.

    Raises:
        LedgerError: the directory of the ledgers is refused.
    """
    if not files.lock():
        gone = not os.path.exists(files.lock_path)
        return gone, "" if gone else f"{files.lock_path}: is locked by now: its files stay"
    try:
        words = "" if directory is None else _list_dropped(files, private_directory(directory, "ledger"))
        if words.startswith("the ledger"):
            return False, f"{files.lock_path}: {words}: its files stay"
        files.remove()
        return not os.path.exists(files.lock_path), f"{files.lock_path}: {words}" if words else ""
    finally:
        files.unlock()


def _list_dropped(files: OwnerFiles, directory: str) -> str:
    """Continue the ledger of a dead owner: every event without an outcome was dropped.

    Returns:
        What could not be done.
    """
    record = read_record(directory, files.producer)
    if not record.parts:
        return f"{directory} has no ledger of it: its events are listed nowhere"
    try:
        estate, _ = read_estate(files, owner_files.boot_id(), directory)
    except (OSError, ValueError) as error:
        return f"its events are not listed, {error}"
    if estate is None:
        return ""
    try:
        owner = contents.read_owner(files, owner_files.boot_id(), alive=False)
        last = max([record.last, *(end for _, end in owner.pending), owner.last])
        kinds, history = settle(estate, record, owner.pending, [], last, bool(owner.damages))
    finally:
        estate.close()
    ledger = make_ledger(
        (directory, _about(directory, files.producer)), estate.producer, record.parts, record.size
    )
    assert ledger is not None
    if ledger.open() >= 0:
        write_outcomes(ledger, kinds)
        if owner.pending:
            purged = "dropped", "purged"
            write_outcomes(ledger, {purged: owner.pending})
            history.counts[purged] = sum(end - first + 1 for first, end in owner.pending)
        if history.complete:
            none: dict[str, Any] = {"acked": 0, "handed": 0, "stored": 0, "failed": {}, "dropped": {}}
            write_close(ledger, last, history.add_to(none))
    ledger.close()
    return f"the ledger stopped: {ledger.stopped}" if ledger.stopped else ""


def _about(directory: str, producer: str) -> dict[str, Any]:
    """Return what the ``open`` line of the first part says of the producer."""
    fd = open_regular(os.path.join(directory, f"{producer}-0001.ledger"))
    with os.fdopen(fd, "rb") as file:
        try:
            fields = json.loads(file.readline())
        except ValueError:
            fields = {}
    return {name: fields[name] for name in _ABOUT if name in fields}
