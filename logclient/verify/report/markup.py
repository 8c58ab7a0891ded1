"""HTML and SVG in which everything that came from outside is text and never markup."""

from __future__ import annotations

import html

from logclient.readable import escape

__all__ = ["Html", "el", "join", "text"]

_VOID = frozenset(("br", "hr", "img", "link", "meta", "wbr", "input"))


class Html(str):
    """Text that is markup. Any other string is escaped wherever it is used."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as escaped text for content or an attribute; unprintable characters as escapes."""
    return value if isinstance(value, Html) else Html(html.escape(escape(str(value))))


def join(*parts: object) -> Html:
    """Return the parts one after the other. None is nothing."""
    return Html("".join(text(part) for part in parts if part is not None))


def el(tag: str, *content: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        tag: its name.
        *content: see `join`.
        **attributes: ``class_`` is class, ``data_sort`` is data-sort; None leaves an attribute out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*content)}</{tag}>")
