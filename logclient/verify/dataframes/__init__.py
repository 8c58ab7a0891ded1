"""Captures and ledgers as DataFrames.

::

    spark.read.format("logclient").option("protocol", "lumberjack").load("run/capture")
    arrivals(spark, "run/capture")                    # a row for each event, with its place on the wire
    arrivals(spark, "run/capture", rows="units")      # a row for each wire unit, with its bytes
    decoded(topic, "lumberjack")                      # what the bodies in another DataFrame are

``columns.py`` has the columns, ``pieces.py`` reads them, ``sources.py`` and ``streams.py`` offer them to
Spark.
"""

from logclient.verify.dataframes.bodies import decoded
from logclient.verify.dataframes.sources import CaptureSource, LogSource, arrivals, register

__all__ = ["CaptureSource", "LogSource", "arrivals", "decoded", "register"]
