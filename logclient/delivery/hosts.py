"""Hosts that fork, run threads or end processes in their own way: uwsgi, Celery, multiprocessing.

Nothing is imported here: a host that this process runs in has loaded its module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_asked: dict[str, int] = {}  # the process that has asked each of them to call at its end


def call_at_end(callback: Callable[[], object]) -> None:
    """Call ``callback()`` at the end of a child of multiprocessing or Celery.

    Children of ``multiprocessing`` skip atexit before Python 3.13 and run its finalizers instead. Celery's
    pool processes run neither, but send a signal of Celery.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _asked.get("multiprocessing") != os.getpid():
        _asked["multiprocessing"] = os.getpid()
        util.Finalize(None, callback, exitpriority=-100)
    signals = sys.modules.get("celery.signals")
    if signals is not None and "celery" not in _asked:  # forks inherit it
        _asked["celery"] = os.getpid()

        def process_ends(**_: Any) -> None:
            callback()

        signals.worker_process_shutdown.connect(process_ends, weak=False)


def forks_unseen() -> bool:
    """Return whether this is a uwsgi process that will fork without running Python's hooks.

    uwsgi forks in C and, without ``py-call-uwsgi-fork-hooks``, does not run Python's hooks. A child of a
    process in which another thread holds the GIL at that moment waits for it for ever. So uwsgi's master gets
    no sender, and delivers events that it logs before a fork in the call.
    """
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None or "py-call-uwsgi-fork-hooks" in getattr(uwsgi, "opt", ()):
        return False
    try:
        return not (uwsgi.worker_id() or uwsgi.mule_id() or uwsgi.i_am_the_spooler())
    except AttributeError:  # another module of that name
        return False


def threads_starve() -> bool:
    """Return whether uwsgi holds the GIL between requests."""
    uwsgi = sys.modules.get("uwsgi")
    return uwsgi is not None and getattr(uwsgi, "has_threads", 1) == 0
