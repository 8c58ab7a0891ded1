"""The verifier: ledgers against what arrived, on Spark. See ``docs/verify.md``.

`run` returns the verdict. `arrivals` returns the content of a capture as a DataFrame, and `decoded` adds the
same columns to any DataFrame with bodies. `violations` iterates over every fault of a verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.lazy import lazy_names

if TYPE_CHECKING:
    from logclient.verify.dataframes import arrivals, decoded, register
    from logclient.verify.job import run
    from logclient.verify.violation_files import violations

__all__ = ["arrivals", "decoded", "register", "run", "violations"]

_MODULES = {
    "arrivals": "dataframes",
    "decoded": "dataframes",
    "register": "dataframes",
    "run": "job",
    "violations": "violation_files",
}

# PySpark, pyarrow and NumPy are an extra, and slow to import.
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
