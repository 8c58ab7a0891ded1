"""URLs from ledgers, without anything that may be a secret."""

from __future__ import annotations

from logclient.config import all_options


def redact_url(url: str) -> str:
    """Return a URL without user names, passwords and secret options.

    logclient redacts URLs when it writes a ledger. Other programs that write ledgers may not.
    """
    head, mark, query = url.partition("?")
    scheme, colons, rest = head.partition("://")
    if "@" in rest:
        head = f"{scheme}{colons}***@{rest.rpartition('@')[2]}"
    pairs = []
    known = all_options()
    for pair in query.split("&") if mark else ():
        name, equals, _ = pair.partition("=")
        open_ = name in known and not any(option.reader.secret for option in known[name])
        pairs.append(pair if open_ or not equals else f"{name}=***")
    return head + mark + "&".join(pairs)
