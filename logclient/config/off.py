"""`OffConfig`: the configuration of a client that ships nothing, with the options of all protocols."""

from __future__ import annotations

from copy import copy
from typing import Any

from logclient.config.common import Config
from logclient.config.documents import DocumentConfig
from logclient.config.option import Option, all_options
from logclient.config.readers import Reader


class OffConfig(Config):
    """The configuration of a client that ships nothing.

    It has every option of every protocol. A value must be right for one of the protocols; secrets are not
    read, because the places where they lie may not exist where nothing is shipped.
    """

    changeable = DocumentConfig.changeable


def _merge(options: list[Option]) -> Option:
    first = options[0].reader

    def read(value: Any) -> Any:
        if first.secret:
            return None
        refused: list[ValueError] = []
        for option in options:
            try:
                return option.reader(value)
            except ValueError as error:
                refused.append(error)
        raise refused[0]

    merged = copy(options[0])
    merged.reader, merged.tls_only = Reader(first.kind, read, secret=first.secret), False
    return merged


for _name, _options in all_options().items():
    setattr(OffConfig, _name, _merge(_options))
