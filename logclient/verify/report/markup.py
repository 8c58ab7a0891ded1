"""HTML and SVG in which all foreign data is text and never markup."""

from __future__ import annotations

import html

from logclient.readable import escape

__all__ = ["Html", "el", "join", "text"]

_VOID = frozenset(("br", "hr", "img", "link", "meta", "wbr", "input"))


class Html(str):
    """A string of markup. All other strings are escaped where they are used."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as escaped text for content or an attribute, with escapes for unprintable characters."""
    return value if isinstance(value, Html) else Html(html.escape(escape(str(value))))


def join(*parts: object) -> Html:
    """Join parts, without those that are None."""
    return Html("".join(text(part) for part in parts if part is not None))


def el(tag: str, *content: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        tag: the name of the element.
        *content: its content, as for `join`.
        **attributes: ``class_`` sets class, ``data_sort`` sets data-sort; None leaves an attribute out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*content)}</{tag}>")
