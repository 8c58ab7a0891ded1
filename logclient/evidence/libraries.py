"""NumPy, of the extra ``verify``: modules import it from here, where its absence has a remedy."""

from __future__ import annotations

from logclient.evidence import require

require("numpy")

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

__all__ = ["np", "npt"]
