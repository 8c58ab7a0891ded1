"""Captures and ledgers as DataFrames, see ``docs/verify-spark.md``.

``columns.py`` has the columns of captures, which ``pieces.py`` reads; ``ledgers.py`` reads ledgers;
``sources.py`` and ``streams.py`` offer them to Spark.
"""

from logclient.verify.dataframes.bodies import decoded
from logclient.verify.dataframes.sources import (
    CaptureSource,
    EventSource,
    LedgerSource,
    LogSource,
    arrivals,
    events,
    ledger,
    register,
)

__all__ = ["CaptureSource", "EventSource", "LedgerSource", "LogSource"]
__all__ += ["arrivals", "decoded", "events", "ledger", "register"]
