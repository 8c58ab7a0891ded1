"""Small elements that the sections of the page share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logclient.readable import hexdump
from logclient.verify.report.markup import Html, el
from logclient.verify.report.markup import text as escaped

__all__ = ["NEWLINE", "counted", "dot", "hexdump_block", "number_cell", "scrolling", "table"]


NEWLINE = Html("\n")


def dot(word: str) -> Html:
    """Return the coloured square of a word."""
    return el("span", class_=f"dot d-{word}")


def scrolling(content: Html, label: str, tall: bool = False) -> Html:
    """Return a box that scrolls on its own, also by keys, for content that may be wider than the page.

    Args:
        content: the content of the box.
        label: its label for screen readers.
        tall: whether to limit its height, too.
    """
    classes = "wide tall" if tall else "wide"
    return el("div", content, class_=classes, tabindex=0, role="region", aria_label=label)


def table(heads: Sequence[str], rows: Sequence[Html], label: str, texts: Sequence[str]) -> Html:
    """Return a table in a scrolling box.

    Args:
        heads: the heads of the columns.
        rows: the rows of the body.
        label: its label for screen readers.
        texts: the heads of columns with text; all others have numbers.
    """
    head = (el("th", x, class_=None if x in texts else "n") for x in heads)
    return scrolling(el("table", el("thead", el("tr", *head)), el("tbody", *rows)), label)


def number_cell(n: int, bad: bool = False, shown: str = "") -> Html:
    """Return the cell of a number, marked when the number is bad and not zero."""
    return el("td", shown or f"{n:,}", class_="n bad" if bad and n else "n" if n else "n zero")


def hexdump_block(row: dict[str, Any]) -> Html:
    """Return the bytes of an example as a hexdump that scrolls, also by keys."""
    rows = hexdump(bytes.fromhex(row["bytes"]), row["bytes_at"])
    return el("pre", Html("\n".join(map(escaped, rows))), tabindex=0)


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
