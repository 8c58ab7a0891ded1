"""The verifier: ledgers against what arrived, on Spark. See ``docs/verify.md``.

`run` returns the verdict, and `violations` iterates over its faults. As DataFrames, `arrivals` returns the
content of a capture, `ledger` that of ledgers, `events` both with the verdict of each event, and `decoded`
any DataFrame with more about the bodies in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.lazy import lazy_names

if TYPE_CHECKING:
    from logclient.verify.dataframes import arrivals, decoded, register
    from logclient.verify.dataframes.ledgers import events, ledger
    from logclient.verify.job import run
    from logclient.verify.violation_files import violations

__all__ = ["arrivals", "decoded", "events", "ledger", "register", "run", "violations"]

_MODULES = {
    "arrivals": "dataframes",
    "decoded": "dataframes",
    "events": "dataframes.ledgers",
    "ledger": "dataframes.ledgers",
    "register": "dataframes",
    "run": "job",
    "violations": "violation_files",
}

# PySpark, pyarrow and NumPy are an extra, and slow to import.
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
