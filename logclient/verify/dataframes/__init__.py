"""Captures and ledgers as DataFrames, see ``docs/verify-spark.md``.

``columns.py`` has the columns of captures, which ``segment_rows.py`` reads; ``ledgers.py`` reads ledgers;
``sources.py`` offers them to Spark.
"""

from logclient.verify.spark import require_spark

require_spark()

from logclient.verify.dataframes.bodies import decoded  # noqa: E402
from logclient.verify.dataframes.sources import (  # noqa: E402
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
