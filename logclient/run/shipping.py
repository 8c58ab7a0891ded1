"""`ship`: ships a record by the handler of this process, made by its first record as the variables say."""

from __future__ import annotations

import os

from logclient.client import level_number
from logclient.errors import ConfigError
from logclient.handler import Handler
from logclient.run.early import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

handler: Handler | None = None
try:
    handler = Handler()
    if level := os.environ.get("LOGCLIENT_RUN_LEVEL", "").strip():
        try:
            handler.setLevel(level_number(int(level) if level.isdecimal() else level))
        except ConfigError as error:
            rule = str(error).removeprefix("level: ")
            say(ConfigError(f"LOGCLIENT_RUN_LEVEL: {rule}; all levels are shipped"))
except Exception as error:
    say(error)


def _drop(logger: logging.Logger, record: logging.LogRecord) -> None:
    """Ship nothing: the handler could not be made."""


ship = _drop if handler is None else handler.handle_beside
