"""The compiled half."""

try:
    import logclient._ext.queue  # noqa: F401  (what all others need)
except ImportError as error:
    # Python's words name a module and no way out. The other extensions would say the same.
    if "interpreter" not in str(error).lower():
        raise
    raise ImportError(
        "logclient works in one interpreter of a process, the first that imports it: its extensions cannot "
        "be loaded into another one (mod_wsgi: set WSGIApplicationGroup %{GLOBAL} for every application)"
    ) from error
