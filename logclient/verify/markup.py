"""HTML and SVG in which nothing that came from outside can be anything but text."""

from __future__ import annotations

import html

from logclient.readable import escape

__all__ = ["Html", "el", "join", "text"]

_VOID = frozenset(("br", "hr", "img", "link", "meta", "wbr", "input"))


class Html(str):
    """What is markup already. Any other string becomes text wherever it is put."""

    __slots__ = ()


def text(value: object) -> Html:
    """A value as text, in content or in an attribute: what would not print is shown as an escape."""
    return value if isinstance(value, Html) else Html(html.escape(escape(str(value))))


def join(*parts: object) -> Html:
    """One after the other; None is nothing."""
    return Html("".join(text(part) for part in parts if part is not None))


def el(tag: str, *content: object, **attributes: object) -> Html:
    """An element. ``class_`` is class, ``data_sort`` is data-sort; an attribute of None is left out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*content)}</{tag}>")
