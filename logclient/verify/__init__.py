"""The verifier: ledgers against what arrived, on Spark. See ``docs/verify.md``.

`run` returns the verdict, `violations` its faults as a table, and `violation_ids` iterates over them.
`append` judges hours, and keeps their counts in a table. As DataFrames, `arrivals` returns the content of a
capture, `ledger` that of ledgers, `events` both with the verdict of each event, and `decoded` any DataFrame
with more about the bodies in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.evidence import require
from logclient.lazy import lazy_names

if TYPE_CHECKING:
    from logclient.verify.dataframes.sources import arrivals, decoded, events, ledger, register
    from logclient.verify.hourly import append
    from logclient.verify.job import run
    from logclient.verify.violation_files import violation_ids, violations

__all__ = [
    "append",
    "arrivals",
    "decoded",
    "events",
    "ledger",
    "register",
    "run",
    "violation_ids",
    "violations",
]

_MODULES = {
    "append": "hourly",
    "arrivals": "dataframes.sources",
    "decoded": "dataframes.sources",
    "events": "dataframes.sources",
    "ledger": "dataframes.sources",
    "register": "dataframes.sources",
    "run": "job",
    "violation_ids": "violation_files",
    "violations": "violation_files",
}

# Every module of this package needs both. They are looked for, and not imported yet: that is slow.
require("pyarrow", "numpy")

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
