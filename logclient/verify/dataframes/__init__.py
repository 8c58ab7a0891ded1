"""Captures and ledgers as DataFrames.

::

    spark.read.format("logclient").option("protocol", "lumberjack").load("run/capture")
    register(spark).read.format("logclient-ledger").load("run/ledger")
    arrivals(spark, "run/capture")                    # a row for each event, with its place on the wire
    arrivals(spark, "run/capture", rows="units")      # a row for each wire unit, with its bytes
    decoded(topic, "lumberjack")                      # what the bodies in another DataFrame are

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

__all__ = [
    "CaptureSource", "EventSource", "LedgerSource", "LogSource", "arrivals", "decoded", "events", "ledger",
    "register",
]  # fmt: skip
