"""The compiled half of logclient."""

try:
    import logclient._ext.queue  # noqa: F401  (all others need it)
except ImportError as error:
    # Python's own message names a module and no remedy. The other extensions would raise the same one.
    if "interpreter" not in str(error).lower():
        raise
    raise ImportError(
        "logclient works in one interpreter of a process, the first that imports it: its extensions cannot "
        "be loaded into another one (mod_wsgi: set WSGIApplicationGroup %{GLOBAL} for every application)"
    ) from error
