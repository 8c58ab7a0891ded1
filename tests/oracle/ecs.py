"""The documents of ``_ext/record.pyx`` in plain Python, as a reference for comparison."""

from __future__ import annotations

import dataclasses
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
from typing import Any, NamedTuple

VERSION = "8.11.0"
DEPTH = 128
CLASSES = 4
ID1, ID2, OPEN = 0x04, 0x08, 0x10  # an id of the user's own replaces ours; event.id is theirs; see Names
NESTED, EVENT_OPEN = 0x20, 0x40  # event.id goes into an object; into the last one, which is there
PLAIN = (uuid.UUID, decimal.Decimal, pathlib.PurePath)
STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message", "asctime", "color_message",
}  # fmt: skip


# https://www.elastic.co/guide/en/ecs/8.11/ecs-field-reference.html, those at the top of a document
OBJECTS = frozenset({
    "agent", "client", "cloud", "container", "data_stream", "destination", "device", "dll", "dns", "ecs",
    "email", "error", "event", "faas", "file", "group", "host", "http", "labels", "log", "network",
    "observer", "orchestrator", "organization", "package", "process", "registry", "related", "rule",
    "server", "service", "source", "span", "threat", "tls", "trace", "transaction", "url", "user",
    "user_agent", "volume", "vulnerability",
})  # fmt: skip
IN_RECORDS = (
    "@timestamp", "log.level", "message", "ecs.version", "log.logger", "log.origin.file.name",
    "log.origin.file.line", "log.origin.function", "process.pid", "process.name", "process.thread.id",
    "process.thread.name", "error.type", "error.message", "error.stack_trace", "error.fingerprint",
    "log.flags",
)  # fmt: skip
DIGITS = frozenset("0123456789abcdef")


class Unencodable(Exception):
    pass


class Names(NamedTuple):
    """The meaning of field names, in the form of ``Encoder``'s arguments."""

    ecs: bool = True
    carriers: tuple[str, ...] = ("@metadata",)
    identity: str = "id"
    trust_metadata: bool = False
    flat: bool = False
    labels: str = "labels."
    nested: bool = False


LUMBERJACK = Names()


def placed(fields: dict[str, Any], rename: dict[str, str], prefix: str = "") -> dict[str, Any]:
    """Return fields under their new names, and those without one below the prefix."""
    made = {}
    for name, value in fields.items():
        place = rename.get(name, "")
        inside = isinstance(value, dict) and place.startswith(f"{name}.")
        if not place or place in fields or inside:
            place = f"{prefix}.{name}" if prefix else name
        made[place] = value
    return made


class Document:
    """One document: its ``fields`` in order with JSON values, and ``sanitized``, ``moved``, ``flags``."""

    def __init__(self, names: Names = LUMBERJACK, pairs: bool = False, cut: bool = False) -> None:
        self.names = names
        self.cut = cut  # whether its message is cut, so that `log.flags` is ours
        self.in_pairs = pairs
        self.flat = pairs or names.flat
        self.fields: dict[str, Any] = {}
        self.sanitized = 0
        self.moved = 0
        self.flags = 0
        self.nested = names.nested and names.ecs and not self.flat
        self.above: list[Any] | None = None  # what a value is inside of, once a field had too many levels

    # -- values

    def text(self, text: str) -> str:
        whole = "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)
        self.sanitized += whole != text
        return whole

    @staticmethod
    def zoned(moment: datetime.datetime) -> datetime.datetime:
        """Return a time with a zone that RFC 3339 can write; one without is local."""
        try:
            found = moment if moment.utcoffset() is not None else moment.astimezone()
            whole = (found.utcoffset() or datetime.timedelta()) % datetime.timedelta(minutes=1)
            return found.astimezone(datetime.UTC) if whole else found
        except (OverflowError, ValueError, OSError):
            return moment.replace(tzinfo=datetime.UTC)

    def unprintable(self, value: object) -> str:
        self.sanitized += 1
        return self.text(f"<unprintable {type(value).__name__}>")

    def field(self, value: Any) -> Any:
        """Return the value of a field, with texts for its parts that have no JSON."""
        before = self.sanitized
        try:
            return self.value(value, 1)
        except Unencodable:
            self.sanitized, self.above = before, []
            return self.value(value, 1)
        finally:
            self.above = None

    def value(self, value: Any, depth: int) -> Any:
        if self.above is None or type(value) in (str, int, float, type(None)):
            return self.inner_value(value, depth)
        if any(value is other for other in self.above):
            return self.replaced("<cycle>")
        self.above.append(value)
        try:
            return self.inner_value(value, depth)
        finally:
            self.above.pop()

    def replaced(self, text: str) -> str:
        self.sanitized += 1
        return text

    def too_deep(self) -> str:
        if self.above is None:
            raise Unencodable
        return self.replaced("<too deep>")

    def inner_value(self, value: Any, depth: int) -> Any:
        if not has_class(value):
            return self.unprintable(value)
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return self.integer(int(value))
        if isinstance(value, float):
            if math.isfinite(value):
                return float(value)
            self.sanitized += 1
            return None
        if isinstance(value, (list, tuple, set, frozenset)):
            if depth >= DEPTH:
                return self.too_deep()
            return [self.value(v, depth + 1) for v in value]
        if is_mapping(value):
            if depth >= DEPTH:
                return self.too_deep()
            try:
                found = self.keys(value)
            except Exception:
                return self.unprintable(value)
            return {k: self.value(v, depth + 1) for k, v in found.items()}
        try:
            if isinstance(value, (enum.Enum, datetime.timedelta)):
                stands = value.value if isinstance(value, enum.Enum) else value.total_seconds()
                return self.too_deep() if depth >= DEPTH else self.inner_value(stands, depth + 1)
            if is_dataclass(value) and depth <= CLASSES:
                return self.inner_value(shown_fields(value), depth)
            if isinstance(value, (bytes, bytearray, memoryview)):
                text, strange = bytes(value).decode("utf-8", "replace"), True
            elif isinstance(value, datetime.datetime):
                text, strange = self.zoned(value).isoformat(), False
            elif isinstance(value, (datetime.date, datetime.time)):
                text, strange = value.isoformat(), False
            else:
                text, strange = str(value), not isinstance(value, PLAIN)
        except Unencodable:
            raise
        except Exception:
            return self.unprintable(value)
        self.sanitized += strange
        return self.text(text)

    def integer(self, value: int) -> int | str:
        # Elasticsearch takes no more than 64 bits.
        if -(2**63) <= value < 2**63:
            return value
        self.sanitized += 1
        try:
            return str(value)
        except ValueError:
            return hex(value)

    def keys(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        made = {}
        for key, value in all_values(mapping).items():
            if isinstance(key, str):
                text = str.__str__(key)
            else:
                self.sanitized += 1
                try:
                    text = (
                        bytes(key).decode("utf-8", "replace")
                        if isinstance(key, (bytes, bytearray))
                        else str(key)
                    )
                except Exception:
                    text = f"<unprintable {type(key).__name__}>"
            text = self.text(text)
            self.sanitized += text in made
            made[text] = value
        return made

    # -- names

    def arranged(self, given: dict[str, Any], record: bool) -> dict[str, Any]:
        """Return the user's fields without reserved names and conflicts."""
        names = self.names
        beats = "@metadata" in names.carriers
        carries = beats and names.identity != "none"
        kept: dict[str, Any] = {}
        moving: list[tuple[str, Any]] = []
        metadata: dict[str, Any] = {}

        def own(value: Any) -> bool:
            """Return whether the user's id is kept."""
            if value is not None and names.identity == "id" and (self.in_pairs or like_ours(value)):
                moving.append(("event.id", value))
                return False
            self.flags |= ID2 if value is not None else 0
            return value is not None

        for key, value in given.items():
            if key != "event.id" and is_dataclass(value):
                value = shown_fields(value)
            head = key.split(".")[0]
            if beats and head == "@metadata":
                plain = key == "@metadata" and not self.in_pairs
                if plain and is_mapping(value):
                    metadata = self.metadata(self.keys(value))
                elif plain or not names.trust_metadata or (carries and key == "@metadata._id"):
                    self.moved += 1
                else:
                    kept[key] = value
            elif carries and key == "event.id":
                value = self.settled(value)
                if own(value):
                    kept[key] = value
            elif any(
                (
                    carries and key.startswith("event.id."),
                    not beats and key in names.carriers and names.identity == "id",
                    key in self.reserved(record),
                    names.ecs and key in OBJECTS and (self.flat or not is_mapping(value)),
                )
            ):
                moving.append((key, value))
            elif key == "event" and carries:
                value = self.keys(value)
                if "id" in value:
                    value["id"] = self.settled(value["id"])
                    if not own(value["id"]):
                        del value["id"]
                below = [name for name in value if name.startswith("id.")]
                moving += [(f"event.{name}", value.pop(name)) for name in below]
                kept[key] = value
            else:
                kept[key] = value
        if names.ecs:
            kept = self.untangled(kept, moving, record)
        if moving and "labels" in kept and not is_mapping(kept["labels"]):
            moving.append(("labels", kept.pop("labels")))
        inside = kept.get("labels", ())
        for key, value in moving:
            first = wanted = key.replace(".", "_")
            number = 1
            while (
                names.labels + wanted in kept
                or wanted in inside
                or any(other.startswith(f"{names.labels}{wanted}.") for other in kept)
            ):
                number += 1
                wanted = f"{first}_{number}"
            kept[names.labels + wanted] = value
            self.moved += 1
        if metadata:
            kept["@metadata"] = metadata
            if names.identity == "none":
                self.flags |= ID1
            elif carries and not self.flags & ID1:
                self.flags |= OPEN
        if names.identity == "own" and self.flags & (ID1 | ID2):
            self.flags = ID1 | ID2
        return kept

    def metadata(self, found: dict[str, Any]) -> dict[str, Any]:
        own = found.pop("_id", None)
        if own is not None and self.names.identity != "id":
            self.flags |= ID1 if self.names.identity == "own" else 0
            return {"_id": own} | (found if self.names.trust_metadata else {})
        self.moved += own is not None or not self.names.trust_metadata
        return found if self.names.trust_metadata else {}

    def reserved(self, record: bool) -> tuple[str, ...]:
        """Return the names that only we may use."""
        return ("@timestamp", "log.level") * record + ("log.flags",) * self.cut

    def untangled(self, kept: dict[str, Any], moving: list[tuple[str, Any]], record: bool) -> dict[str, Any]:
        ours = IN_RECORDS if record else self.reserved(record)
        for _ in range(4):
            above = {name for name in kept for other in (*kept, *ours) if other.startswith(name + ".")}
            wide = {name for name in above if is_mapping(kept[name]) and kept[name]}
            if not wide:
                break
            before, kept = kept, {}
            for name, value in before.items():
                if name not in wide:
                    kept[name] = value
                    continue
                for key, inner in self.keys(value).items():
                    path = f"{name}.{key}"
                    if is_dataclass(inner):
                        inner = shown_fields(inner)
                    if path in kept or path in before or path in self.reserved(record):
                        moving.append((path, inner))
                    else:
                        kept[path] = inner
        above = {name for name in kept for other in (*kept, *ours) if other.startswith(name + ".")}
        for name, value in list(kept.items()):
            below = name not in ours and any(name.startswith(other + ".") for other in ours)
            if below or (name in above and not (is_mapping(value) and not value)):
                moving.append((name, kept.pop(name)))
        return kept

    def settled(self, value: Any) -> Any:
        if not has_class(value):
            return self.unprintable(value)
        if (
            value is None
            or is_mapping(value)
            or isinstance(value, (bool, float, list, tuple, set, frozenset))
        ):
            return value
        return self.value(value, 1)

    # -- documents

    def user(self, fields: dict[str, Any]) -> None:
        for key, value in fields.items():
            self.fields[key] = self.field(value)

    def message(self, record: logging.LogRecord) -> str:
        if type(record).getMessage is not logging.LogRecord.getMessage:
            try:
                return record.getMessage()
            except Exception:
                pass
        try:
            text = str(record.msg)
        except Exception:
            self.sanitized += 1
            text = f"<unprintable {type(record.msg).__name__}>"
        try:
            return text % record.args if record.args else text
        except Exception:
            self.sanitized += 1
        try:
            return f"{text} % {record.args!r}"
        except Exception:
            return f"{text} % <unprintable arguments>"

    def record(self, record: logging.LogRecord) -> None:
        extra = self.keys({k: v for k, v in vars(record).items() if k not in STANDARD})
        fields: dict[str, Any] = extra
        structured = is_mapping(record.msg) and not record.args
        if structured:
            own = self.keys(record.msg)  # type: ignore[arg-type]
            if "message" not in own and isinstance(own.get("event"), str):
                own = {"message" if k == "event" else k: v for k, v in own.items()}
            fields = {k: v for k, v in extra.items() if k not in ("_logger", "_name")} | own

        fields = self.arranged(fields, True)

        def put(key: str, value: Any) -> None:
            if key not in fields and value is not None:
                self.fields[key] = value if key == "@timestamp" else self.field(value)

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
                self.sanitized += 1
                put("error.message", f"<unprintable {type(record.exc_info[1]).__name__}>")
            trace = trace or logging.Formatter().formatException(record.exc_info)
        put("error.stack_trace", "\n".join(t for t in (trace, record.stack_info) if t) or None)
        if self.cut:
            put("log.flags", ["truncated"])
        self.user(fields)

    def nest(self) -> None:
        if self.nested:
            beats = "@metadata" in self.names.carriers
            self.fields = nested(self.fields, ("event", "@metadata") if beats else ("event",))
            if not beats:
                return
            if "event" not in self.fields:
                self.flags |= NESTED
            elif "@metadata" not in self.fields:
                self.flags |= EVENT_OPEN

    # -- bytes

    def json(self) -> bytes:
        return json.dumps(self.fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def pairs(self) -> bytes:
        """Return the pair block of Lumberjack version 1."""
        block = struct.pack(">I", len(self.fields))
        for key, value in self.fields.items():
            if not isinstance(value, str):
                value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            for text in (key.encode(), value.encode()):
                block += struct.pack(">I", len(text)) + text
        return block


def keeps_dots(name: str) -> bool:
    """Return whether a name is no path of objects."""
    if name in ("log.level", "ecs.version") or name[:1] == "@":
        return True
    return "" in name.split(".") or name.count(".") > 32


def nested(fields: Mapping[str, Any], at_end: tuple[str, ...] = ("event", "@metadata")) -> dict[str, Any]:
    """Return fields with objects in place of names with dots; some names come last."""
    made: dict[str, Any] = {}
    for name, value in fields.items():
        *path, last = [name] if keeps_dots(name) else name.split(".")
        place = made
        for part in path:
            place = place.setdefault(part, {})
        if isinstance(value, dict):
            place.setdefault(last, {}).update(value)
        else:
            place[last] = value
    for name in at_end:
        if name in made:
            made[name] = made.pop(name)
    if not made.get("event", True):
        del made["event"]
    return made


def has_class(value: object) -> bool:
    try:
        return bool(value.__class__)
    except Exception:
        return False


def is_mapping(value: object) -> bool:
    return has_class(value) and (
        isinstance(value, Mapping) or (hasattr(type(value), "items") and many(value))
    )


def many(value: object) -> bool:
    """Return whether a mapping may have several values of a name."""
    return any(hasattr(type(value), name) for name in ("multi_items", "getlist", "getall", "get_all"))


def all_values(mapping: Any) -> dict[Any, Any]:
    """Return a mapping as a dict, with a list of the values where a name has several."""
    if not many(mapping):
        return dict(mapping)
    if hasattr(mapping, "lists"):
        pairs = [(name, value) for name, values in mapping.lists() for value in values]
    else:
        pairs = mapping.multi_items() if hasattr(mapping, "multi_items") else list(mapping.items())
    found = {name: [value for other, value in pairs if other == name] for name, _ in pairs}
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(type(value))


def shown_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that its ``repr`` has."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.repr}


def like_ours(value: Any) -> bool:
    """Return whether a decoder could mistake the written value for an id of ours."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return isinstance(value, str) and len(value) == 32 and DIGITS.issuperset(value)


def of_mapping(
    obj: Mapping[Any, Any] | str, names: Names = LUMBERJACK, *, pairs: bool = False, cut: bool = False
) -> Document:
    document = Document(names, pairs, cut)
    fields = {"message": obj} if isinstance(obj, str) else document.keys(obj)
    document.user(document.arranged(fields, False))
    if cut:
        document.fields["log.flags"] = ["truncated"]
    document.nest()
    return document


def of_record(
    record: logging.LogRecord, names: Names = LUMBERJACK, *, pairs: bool = False, cut: bool = False
) -> Document:
    document = Document(names, pairs, cut)
    document.record(record)
    document.nest()
    return document
