"""How long tests wait for what must come: one number for all of them.

A test that waits for a condition gives up after so many seconds; what takes longer for a reason gets a
multiple. The number is no promise of the product and costs nothing while tests pass. A slow or busy
machine gets more: ``LOGCLIENT_PATIENCE=120 make test``.
"""

import os

PATIENCE = float(os.environ.get("LOGCLIENT_PATIENCE") or 30)
"""Seconds."""
