"""The documents of ``_ext/record.pyx`` in plain Python: a twin to compare with, not to be fast."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import logging
import math
import pathlib
import struct
import uuid
from collections.abc import Mapping
from typing import Any

VERSION = "8.11.0"
DEPTH = 128
ID1, ID2 = 0x04, 0x08  # @metadata is the user's; event.id is
PLAIN = (uuid.UUID, decimal.Decimal, enum.Enum, pathlib.PurePath)
STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime"}


class Unencodable(Exception):
    pass


class Document:
    """One document: ``fields`` in their order, values as JSON has them; ``mangled``, ``flags``."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.mangled = 0
        self.flags = 0

    # -- values

    def text(self, text: str) -> str:
        whole = "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)
        self.mangled += whole != text
        return whole

    def unprintable(self, value: object) -> str:
        self.mangled += 1
        return self.text(f"<unprintable {type(value).__name__}>")

    def value(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return self.integer(int(value))
        if isinstance(value, float):
            if math.isfinite(value):
                return float(value)
            self.mangled += 1
            return None
        if isinstance(value, (list, tuple, set, frozenset)):
            if depth >= DEPTH:
                raise Unencodable
            return [self.value(v, depth + 1) for v in value]
        if isinstance(value, Mapping):
            if depth >= DEPTH:
                raise Unencodable
            return {k: self.value(v, depth + 1) for k, v in self.keys(value).items()}
        try:
            if isinstance(value, (bytes, bytearray, memoryview)):
                text, strange = bytes(value).decode("utf-8", "replace"), True
            elif isinstance(value, (datetime.date, datetime.time)):
                text, strange = value.isoformat(), False
            else:
                text, strange = str(value), not isinstance(value, PLAIN)
        except Exception:
            return self.unprintable(value)
        self.mangled += strange
        return self.text(text)

    def integer(self, value: int) -> int | str:
        # A double must be able to hold it, or a real server refuses the window.
        if value.bit_length() <= 1023:
            return value
        self.mangled += 1
        try:
            return str(value)
        except ValueError:
            return hex(value)

    def keys(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        made = {}
        for key, value in dict(mapping).items():
            if isinstance(key, str):
                text = str.__str__(key)
            else:
                self.mangled += 1
                try:
                    text = (
                        bytes(key).decode("utf-8", "replace")
                        if isinstance(key, (bytes, bytearray))
                        else str(key)
                    )
                except Exception:
                    text = f"<unprintable {type(key).__name__}>"
            made[self.text(text)] = value
        return made

    # -- documents

    def user(self, fields: dict[str, Any]) -> None:
        for key, value in fields.items():
            if key == "@metadata":
                self.flags |= ID1
            elif key == "event.id" or (key == "event" and isinstance(value, Mapping) and "id" in value):
                self.flags |= ID2
            self.fields[key] = self.value(value, 1)

    def message(self, record: logging.LogRecord) -> str:
        if type(record).getMessage is not logging.LogRecord.getMessage:
            try:
                return record.getMessage()
            except Exception:
                pass
        try:
            text = str(record.msg)
        except Exception:
            self.mangled += 1
            text = f"<unprintable {type(record.msg).__name__}>"
        try:
            return text % record.args if record.args else text
        except Exception:
            self.mangled += 1
        try:
            return f"{text} % {record.args!r}"
        except Exception:
            return f"{text} % <unprintable arguments>"

    def record(self, record: logging.LogRecord) -> None:
        extra = self.keys({k: v for k, v in vars(record).items() if k not in STANDARD})
        fields: dict[str, Any] = extra
        structured = isinstance(record.msg, dict) and not record.args
        if structured:
            own = self.keys(record.msg)  # type: ignore[arg-type]
            if "message" not in own and isinstance(own.get("event"), str):
                own = {"message" if k == "event" else k: v for k, v in own.items()}
            fields = {k: v for k, v in extra.items() if k not in ("_logger", "_name")} | own

        def put(key: str, value: Any) -> None:
            if key not in fields and value is not None:
                self.fields[key] = value if key == "@timestamp" else self.value(value, 1)

        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=round(record.created * 1e6))
        put("@timestamp", moment.isoformat(timespec="microseconds") + "Z")
        name: Any = record.levelname
        put("log.level", name.lower() if isinstance(name, str) else name)
        if not structured:
            put("message", self.message(record))
        elif isinstance(fields.get("message"), str):
            put("message", fields.pop("message"))
        put("ecs.version", VERSION)
        put("log.logger", record.name)
        put("log.origin.file.name", record.filename)
        put("log.origin.file.line", record.lineno)
        put("log.origin.function", record.funcName)
        put("process.pid", record.process)
        put("process.name", record.processName)
        put("process.thread.id", record.thread)
        put("process.thread.name", record.threadName)
        trace = record.exc_text or ""
        if record.exc_info and record.exc_info[0]:
            put("error.type", record.exc_info[0].__name__)
            try:
                put("error.message", str(record.exc_info[1]))
            except Exception:
                self.mangled += 1
                put("error.message", f"<unprintable {type(record.exc_info[1]).__name__}>")
            trace = trace or logging.Formatter().formatException(record.exc_info)
        put("error.stack_trace", "\n".join(t for t in (trace, record.stack_info) if t) or None)
        self.user(fields)

    # -- bytes

    def json(self) -> bytes:
        return json.dumps(self.fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def pairs(self) -> bytes:
        """The pair block of Lumberjack version 1."""
        block = struct.pack(">I", len(self.fields))
        for key, value in self.fields.items():
            if not isinstance(value, str):
                value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            for text in (key.encode(), value.encode()):
                block += struct.pack(">I", len(text)) + text
        return block


def of_mapping(obj: Mapping[Any, Any] | str) -> Document:
    document = Document()
    document.user({"message": obj} if isinstance(obj, str) else document.keys(obj))
    return document


def of_record(record: logging.LogRecord) -> Document:
    document = Document()
    document.record(record)
    return document
