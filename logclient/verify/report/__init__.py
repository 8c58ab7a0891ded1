"""The reports of a verdict: a few lines for a terminal, and one self-contained HTML page."""

from __future__ import annotations

from logclient.verify.report.page import page
from logclient.verify.report.terminal import text

__all__ = ["page", "text"]
