"""The compiled half of logclient."""

from importlib import import_module

try:
    # The one extension that only extensions import. A thread that imports another one holds its lock while it
    # waits for this package. If this package waited for that lock, Python would raise an error in both.
    import_module(f"{__name__}._runtime")
except ImportError as error:
    # Python's own message names a module and no remedy. The other extensions would raise the same one.
    if "interpreter" not in str(error).lower():
        raise
    raise ImportError(
        "logclient works in one interpreter of a process, the first that imports it: its extensions cannot "
        "be loaded into another one (mod_wsgi: set WSGIApplicationGroup %{GLOBAL} for every application)"
    ) from error
