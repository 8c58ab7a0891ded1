"""Captures and ledgers as DataFrames, see ``docs/verify-spark.md``.

``columns.py`` has the columns of captures, which ``segment_rows.py`` reads; ``ledgers.py`` reads ledgers;
``sources.py`` offers them to Spark.
"""

from logclient.verify.spark import require_spark

require_spark()
