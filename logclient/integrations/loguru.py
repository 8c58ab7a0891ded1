"""loguru: a sink that ships records as ECS documents.

A record's own fields (``bind``, ``contextualize``, arguments by name) are at the top of the document. An
exception is in ``error.*``, formatted as the standard library does: loguru's own text shows the values of
variables, which may be secrets. The sink's format and ``serialize`` change nothing.
"""

from __future__ import annotations

from typing import Any

from logclient.integrations.documents import FrontEnd, add_fields, begin

__all__ = ["Sink"]


class Sink(FrontEnd):
    """A sink for ``loguru.logger.add``. It never waits for the network, and never raises.

    ``logger.remove()`` delivers what is queued, for the option ``timeout`` at most. So does the end of the
    process, for ``atexit_timeout``.

    Its arguments are those of `FrontEnd`.
    """

    _library = "loguru"

    def write(self, message: Any) -> None:
        """Ship a message of loguru, which carries its record."""
        self._ship(message.record)

    def _document(self, record: Any) -> tuple[dict[str, Any], int, str]:
        level, exception = record["level"], record["exception"]
        document = begin(record["time"], level.name, record["message"], record["name"] or "")
        document |= {
            "log.origin.file.name": record["file"].name,
            "log.origin.file.line": record["line"],
            "log.origin.function": record["function"],
            "process.pid": record["process"].id,
            "process.name": record["process"].name,
            "process.thread.id": record["thread"].id,
            "process.thread.name": record["thread"].name,
        }
        if exception is not None:
            self._add_error(document, (exception.type, exception.value, exception.traceback))
        add_fields(document, record["extra"])
        return document, level.no, record["name"] or ""

    def stop(self) -> None:
        """Deliver what is queued, for the option ``timeout`` at most; called when the sink is removed."""
        self._deliver()
