"""`OffConfig`: the configuration of a client that ships nothing, with the options of all protocols."""

from __future__ import annotations

from typing import Any

from logclient.config.common import Config
from logclient.config.option import Option, all_options
from logclient.config.readers import Reader


class OffConfig(Config):
    """The configuration of a client that ships nothing.

    It has every option of every protocol. A value must be right for one of the protocols; secrets are not
    read, because the places where they lie may not exist where nothing is shipped.
    """


def _merge(options: list[Option]) -> Option:
    """Return one option for several of the same name."""

    def read(value: Any) -> Any:
        refused: ValueError | None = None
        for option in options:
            if option.reader.secret:
                return None
            try:
                return option.reader(value)
            except ValueError as error:
                refused = refused or error
        raise refused or ValueError("has no reader")

    first = options[0]
    reader = Reader(first.reader.kind, read, secret=first.reader.secret)
    merged = Option(reader, None, first.help, variable=first.variable)
    merged.default, merged.name = first.default, first.name
    return merged


for _name, _options in all_options().items():
    setattr(OffConfig, _name, _merge(_options))
