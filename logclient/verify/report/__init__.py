"""The reports of a verdict: a few lines for a terminal, and self-contained HTML pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.lazy import lazy_names
from logclient.verify.report.terminal import text

if TYPE_CHECKING:
    from logclient.verify.report.pages import index, page

__all__ = ["index", "page", "text"]

# Only pages need Jinja.
__getattr__, __dir__ = lazy_names(__name__, {"index": "pages", "page": "pages"})
