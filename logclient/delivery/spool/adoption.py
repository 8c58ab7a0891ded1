"""Events of owners that have died are sent by a live client that uses the same directory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logclient.delivery.spool import owner_files
from logclient.errors import is_shortage
from logclient.standard import time

if TYPE_CHECKING:
    from logclient.delivery.error_log import Diagnostics


class Adoption:
    """Adopts what dead owners left, one owner after the other. By one thread at a time.

    `make_replayer` makes the sender of what a dead owner left, and has a function called at its end.
    """

    def __init__(
        self,
        directory: str,
        ledger: str | None,
        make_replayer: Callable[[owner_files.OrphanSpool, Callable[[], object]], Any],
        diagnostics: Diagnostics,
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._make_replayer = make_replayer
        self._diagnostics = diagnostics
        self._replayer: Any = None  # a `Sender`, which this may not import
        self._refused: set[str] = set()

    def has_candidates(self) -> bool:
        """Return whether there are files of other owners, who may have died."""
        with suppress(OSError):
            return sum(1 for _ in owner_files.owners(self._directory)) > 1
        return False

    def look(self, own: str, boot: bytes, look_again: Callable[[], object]) -> None:
        """Have the next dead owner's events sent, if there is one, and none is being adopted.

        ``look_again()`` is called when they are sent.
        """
        if self._replayer is not None:
            if not self._replayer.ended:
                return
            self._replayer = None
        orphan = self._next_orphan(own, boot)
        if orphan is None:
            return
        try:
            self._replayer = self._make_replayer(orphan, look_again)
            self._replayer.waiter.replay()
        except Exception as error:
            orphan.close()
            self._refuse(orphan.files, error)

    def _next_orphan(self, own: str, boot: bytes) -> owner_files.OrphanSpool | None:
        """Lock and read the files of the oldest owner that has ended."""
        try:
            found = list(owner_files.owners(self._directory))
        except OSError:
            return None
        for files in found:
            if files.producer == own or files.producer in self._refused or not files.lock():
                continue
            try:
                orphan, words = owner_files.read_orphan(files, boot, self._ledger)
            except Exception as error:
                self._refuse(files, error)
                continue
            if words:
                self._report(f"{files.lock_path}: {words}")
            if orphan is not None:
                return orphan
            files.remove()
        return None

    def _refuse(self, files: owner_files.OwnerFiles, error: Exception) -> None:
        """Leave the files to others: what cannot be adopted must not end the adoption of the rest."""
        if not is_shortage(error):
            self._refused.add(files.producer)
        files.unlock()
        self._report(f"cannot adopt {files.lock_path}: {error}")

    def _report(self, text: str) -> None:
        self._diagnostics.report("adoption", f"spool: {text}")

    def close(self, deadline: float) -> None:
        """End, by the monotonic `deadline`: what is not sent stays in the files for the next client."""
        replayer, self._replayer = self._replayer, None
        if replayer is not None:
            replayer.waiter.close(max(0.0, min(deadline - time.monotonic(), 1.0)))

    def abandon(self) -> None:
        """In a forked child: the parent sends what it has adopted."""
        self._replayer = None
