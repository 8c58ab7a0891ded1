"""Bodies in any DataFrame, such as that of a Kafka topic: `decoded` adds what they tell of their events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from logclient.errors import ConfigError
from logclient.evidence import decode
from logclient.evidence.segments import binary
from logclient.verify.dataframes.columns import Columns, Rows

_FOUND = Columns(("producer", "sequence", "hash", "size", "own_id", "error"))


def decoded(frame: DataFrame, protocol: str, *, body: str = "value") -> DataFrame:
    """Decode the bodies in a column of a DataFrame, batch or stream.

    Args:
        frame: a DataFrame of a session whose workers run this Python (``spark.pyspark.python``).
        protocol: the protocol of the bodies, such as ``logjam``.
        body: the name of the column, of type binary or text.

    Returns:
        The DataFrame with the further columns ``producer``, ``sequence``, ``hash``, ``size``, ``own_id`` and
        ``error``, as in `arrivals`. ``error`` is ``no_value`` for a row without a body.

    Raises:
        ConfigError: there is no such protocol or column, the column has another type, or the DataFrame has
            one of the further columns already.
    """
    from logclient.verify.spark import no_pandas

    decode.body_decoder(protocol)
    types = dict(frame.dtypes)
    if types.get(body) not in ("binary", "string"):
        raise ConfigError(f"body: {body!r} must be a column of binary or text")
    if twice := [name for name in _FOUND.names if name in types]:
        raise ConfigError(f"frame: it has a column {twice[0]} already")

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        find = decode.body_decoder(protocol)
        for batch in batches:
            values = batch.column(body).cast(pa.binary())
            empty = values.is_null()
            has = ~empty.to_numpy(zero_copy_only=False)
            rows = pa.array(np.cumsum(has) - 1, mask=~has)
            events = find(*binary(values.drop_null()))
            *others, error = _FOUND.batch(Rows(None, events.unit, None, "", events)).take(rows).columns
            error = pc.if_else(empty, pa.scalar(decode.NO_VALUE), error)
            schema = pa.schema([*batch.schema, *_FOUND.schema])
            yield pa.record_batch([*batch.columns, *others, error], schema=schema)

    with no_pandas():
        return frame.mapInArrow(run, StructType([*frame.schema.fields, *from_arrow_schema(_FOUND.schema)]))
