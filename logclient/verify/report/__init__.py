"""The verdict for people: a few lines for a terminal, and one HTML page that needs nothing else."""

from __future__ import annotations

from logclient.verify.report.page import page
from logclient.verify.report.terminal import text

__all__ = ["page", "text"]
