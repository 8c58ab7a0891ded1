"""The module by which PySpark 4 finds the data source ``logclient`` without being told.

Spark imports every module whose name begins with ``pyspark_`` and registers its `DefaultSource`. So this one
imports nothing before the source is used: whoever installed logclient without its extra ``verify`` must not
be disturbed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.errors import MissingExtra

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader
except ImportError as error:
    raise MissingExtra("pyspark", "spark") from error

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from logclient.verify.dataframes.sources import LogSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source ``logclient``, see `logclient.verify.dataframes.sources.LogSource`."""

    @classmethod
    def name(cls) -> str:
        return "logclient"

    def _source(self) -> LogSource:
        from logclient.verify.dataframes.sources import LogSource

        return LogSource(self.options)

    def schema(self) -> StructType:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)
