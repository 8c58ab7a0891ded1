"""ECS documents of the records of other libraries, and how they are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from logclient._ext.record import ECS_VERSION
from logclient.client import Client, check_source, open_client
from logclient.config.parsing import resolve
from logclient.records.sampling import SUPPRESSED
from logclient.records.times import corrected

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.config.options import Options

_OURS = ("@timestamp", "log.level")


class FrontEnd:
    """What another library for logging gives its records to.

    Args:
        url: the server, as for ``logclient.connect``; without it and `client` that of the variable
            LOGCLIENT_URL.
        client: a client to use instead of `url`; it is not closed.
        options: as for ``logclient.connect``.

    Attributes:
        client: the client that ships the records.
        level: records below it are not sent.

    Raises:
        ConfigError: the URL or an option breaks a rule, or there is no URL.
        TypeError: `url` or options are given with a client.
    """

    level = 0
    _library: ClassVar[str]

    def __init__(
        self, url: str | None = None, *, client: Client | None = None, **options: Unpack[Options]
    ) -> None:
        check_source(url, client, options)
        self._owner = client is None
        if client is None:
            client = open_client(resolve(url, options, defaults={"overflow": "drop_oldest"}))
        self.client = client
        self.sampling = client.sampling
        client.front_ends.add(self)

    def _document(self, *record: Any) -> tuple[dict[str, Any], int, str]:
        """Return the document of a record, its level and its logger."""
        raise NotImplementedError

    def _ship(self, *record: Any) -> None:
        """Send a record, unless it is of this package's loggers, whose messages would never end."""
        if self.client.encoder is None:  # the URL is none
            return
        whose = self._library
        try:
            document, level, logger = self._document(*record)
            whose = f"{whose}, logger {logger!r}"
            if level < self.level or logger == "logclient" or logger.startswith("logclient."):
                return
            if self.sampling is not None:
                # Without a message its fields tell it from others.
                message = document.get("message") or {**document, "@timestamp": None}
                error = document.get("error.type", "")
                held = self.sampling.admit(logger, level, message, lambda: str(message), error)
                if held < 0:
                    return
                document |= {SUPPRESSED: held} if held else {}
            self.client.send(document, level)
        except Exception as error:  # also one of a value that was bound
            kind = type(error).__name__
            self.client.warn_limited(f"record:{kind}", f"a record of {whose}: {kind}: {text(error)}")

    def setLevel(self, level: int) -> None:
        """Send no record below this level from now on; named as that of ``logging.Handler``."""
        self.level = level

    def _add_error(self, document: dict[str, Any], exc_info: Any, trace: str = "") -> None:
        """Add ``error.*`` of an exception, or of its tuple; the stack trace may have been made already."""
        if isinstance(exc_info, BaseException):
            exc_info = type(exc_info), exc_info, exc_info.__traceback__
        if isinstance(exc_info, tuple) and len(exc_info) == 3 and exc_info[0] is not None:
            document["error.type"] = text(getattr(exc_info[0], "__name__", exc_info[0]))
            document["error.message"] = text(exc_info[1])
            try:
                trace = trace or self.client.encoder.exceptions.format(exc_info)
            except Exception as problem:
                trace = f"<no stack trace: {type(problem).__name__}>"
        if trace:
            document["error.stack_trace"] = trace

    def _deliver(self, timeout: float | None = None) -> None:
        """Deliver what is queued, and end; a client that was given is flushed instead."""
        if self._owner:
            self.client.close(timeout)
        else:
            self.client.flush(timeout)


def begin(time: object, level: str, message: object, logger: str) -> dict[str, Any]:
    """Return the fields with which every document begins."""
    document = {
        "@timestamp": time,
        "log.level": level.lower(),
        "message": "" if message is None else text(message),
        "ecs.version": ECS_VERSION,
        "log.logger": logger,
    }
    return corrected(document)[0]


def text(value: object) -> str:
    """Return the text of any object."""
    try:
        return value if isinstance(value, str) else str(value)
    except Exception:
        return f"<unprintable {type(value).__name__}>"


def add_fields(document: dict[str, Any], fields: Mapping[Any, Any]) -> None:
    """Add the application's fields. They replace ours of the same name, but not `_OURS` and a text."""
    for name, value in fields.items():
        name = text(name)
        if name in _OURS or (name == "message" and document.get("message")):
            name = f"labels.{name.lstrip('@').replace('.', '_')}"
        document[name] = value
