"""Records whose attributes run Python code that changes the record while it is encoded."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from logclient._ext.record import Encoder, LineEncoder

JUNK: list[bytes] = []


def fresh(name: str, n: int) -> str:
    """A string that nobody else holds."""
    return f"{name}-{n}-" * 30


class Vandal:
    """Runs `attack` whatever is asked of it."""

    def __init__(self, attack: Callable[[], None]) -> None:
        self.attack = attack

    def __str__(self) -> str:
        self.attack()
        return "vandal"

    __repr__ = __str__

    def __float__(self) -> float:
        self.attack()
        return 1e9

    def __bool__(self) -> bool:
        self.attack()
        return True

    def __len__(self) -> int:
        self.attack()
        return 1

    def __hash__(self) -> int:
        self.attack()
        return 7

    def __eq__(self, other: object) -> bool:
        self.attack()
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.attack()
        return None


class Keys(dict[Any, Any]):
    """A mapping that runs `attack` when it is read."""

    def __init__(self, attack: Callable[[], None], **fields: Any) -> None:
        super().__init__(**fields)
        self.attack = attack

    def items(self) -> Any:
        self.attack()
        return super().items()

    def get(self, key: Any, default: Any = None) -> Any:
        self.attack()
        return super().get(key, default)

    __hash__ = None


class Text(str):
    """A string that runs its attack when it is asked for its text, as an attribute of a record may be."""

    attack: Callable[[], None]

    def __str__(self) -> str:
        self.attack()
        return "text"

    def lower(self) -> str:
        self.attack()
        return "lower"


class Moody(logging.LogRecord):
    """Runs an attack in `getMessage` and when its `exc_text` is set."""

    def getMessage(self) -> str:
        self.__dict__["attack"]()
        return "moody"

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if "attack" in self.__dict__:
            self.__dict__["attack"]()


ATTRIBUTES = (
    "name", "msg", "args", "levelname", "levelno", "filename", "exc_info", "exc_text", "stack_info", "lineno",
    "funcName", "created", "thread", "threadName", "processName", "process", "user_one", "user_two",
)  # fmt: skip


class Attack:
    """Replaces (or deletes) all attributes of a record but the one that it is in, and uses their memory."""

    def __init__(self, record: logging.LogRecord, n: int, how: str) -> None:
        self.record, self.n, self.how = record, n, how
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        if self.times > 3:
            return
        fields = vars(self.record)
        for name in ATTRIBUTES:
            if self.how == "delete":
                fields.pop(name, None)
            elif self.how == "clear":
                fields.clear()
            else:
                fields[name] = fresh("new", self.n)
        if self.how == "grow":
            fields.update({f"more{i}": i for i in range(50)})
        JUNK[:] = [bytes([65 + i % 20]) * (40 + 8 * i) for i in range(200)]
        if self.how == "collect":
            gc.collect()


HOWS = ("replace", "delete", "clear", "grow", "collect")


def make(place: str, what: str, how: str, n: int) -> tuple[logging.LogRecord, Attack]:
    """A record with fresh values, but for `place`, which attacks."""
    record = (Moody if what == "moody" else logging.LogRecord)("app", 20, "f.py", 1, "m", (), None, "f")
    attack = Attack(record, n, how)
    for name in ATTRIBUTES:
        if name.endswith(("info", "text")):
            continue
        vars(record)[name] = fresh(name, n)
    vars(record).update(levelno=2**70 + n, lineno=2**65 + n, process=2**62 + n, thread=2**62 + n)
    vars(record).update(created=1e9 + n, args=(), levelname="INFO")
    value: Any = Vandal(attack)
    if what == "keys":
        value = Keys(attack, a=1, b=fresh("b", n))
    elif what == "text":
        value = Text("text")
        value.attack = attack
    elif what == "nested":
        value = {"a": [fresh("a", n), (Vandal(attack), fresh("b", n))], Vandal(lambda: None): 1}
    elif what == "arguments":
        vars(record)["msg"] = fresh("%s %r", n).replace("-", "")
        value = tuple(Vandal(attack) if i % 2 else fresh("x", n) for i in range(60))
    elif what == "error":
        value = (type("Broken", (Exception,), {"__str__": Vandal.__str__, "attack": attack}), None, None)
        value = (value[0], value[0](), None)
    elif what == "moody":
        vars(record)["attack"] = attack
        value = (ValueError, ValueError("x"), None) if place == "exc_info" else fresh("m", n)
    vars(record)[place] = value
    return record, attack


WHATS = ("vandal", "keys", "text", "nested", "arguments", "error", "moody")


def every_attribute() -> None:
    """All places, all attacks, with and without a bound that cuts the message."""
    encoders = [
        Encoder(),
        Encoder(pairs=True),
        Encoder(truncate=True, max_event_bytes=1000),
        Encoder(max_event_bytes=500),
    ]
    attacks = 0
    for n, encoder in enumerate(encoders):
        for place in ATTRIBUTES:
            for what in WHATS:
                for how in HOWS:
                    record, attack = make(place, what, how, n)
                    try:
                        body, *_ = encoder.encode_record(record)
                        if not encoder.pairs:
                            assert isinstance(json.loads(body), dict)
                    except (ValueError, RuntimeError):
                        pass
                    attacks += attack.times > 0
    assert attacks > 1000, attacks
    assert every_line() > 30
    print("held")


def every_line() -> int:
    """Records that Logjam's encoder takes, but that the message, the arguments or the clock changes them.

    Returns:
        The number of records that were changed.
    """
    changed = 0
    for how in HOWS:
        for place, what in (("lineno", "vandal"), *((p, w) for p in ("msg", "args") for w in WHATS[:5])):
            record, attack = make(place, what, how, 0)
            vars(record).update(name="app", funcName=fresh("f", 0)[:9], levelno=20, process=4321)
            if place == "args" and what != "arguments":
                record.msg = fresh("m", 1) + "%s"
            lines = LineEncoder(
                Encoder(),
                request=ContextVar("request", default=None),
                texts=partial(_texts, attack) if place == "lineno" else partial(_texts, lambda: None),
                place={"host": "h"},
                reserved=("host",),
                kind=0,
            )
            made = lines.encode(record)
            if made is not None:
                assert isinstance(json.loads(made[0]), dict)
            changed += attack.times > 0
    return changed


class Refill(Vandal):
    """Replaces what is in a mapping by keys that are no strings, by names that conflict, or by nothing."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.mapping: dict[Any, Any] = {}
        super().__init__(self.refill)

    def refill(self) -> None:
        self.mapping.clear()
        gc.collect()
        JUNK.extend(b"~" * n for n in range(40, 100))
        match self.how:
            case "numbers":
                self.mapping.update({n << 200: n for n in range(70)})
            case "names":
                self.mapping.update({fresh("a", n)[:20] + f".{n}": n for n in range(70)})
            case "others":
                self.mapping.update({(n,): Vandal(lambda: None) for n in range(70)})


def every_mapping() -> None:
    """Mappings that a value of theirs changes: what was there when the call began is what is written."""
    encoders = [
        Encoder(nested=True),
        Encoder(nested=True, timestamp=True),
        Encoder(nested=True, fields={"service.name": "s", "tag": 1}),
        Encoder(),
        Encoder(ecs=False),
        Encoder(nested=True, redact=("secret",)),
        Encoder(truncate=True, max_event_bytes=2000),
    ]
    heads = ("a", "b.c", "http.request.method", "host.name", "labels.x")
    for encoder in encoders:
        for how in ("numbers", "names", "others", "nothing"):
            for place in range(len(heads) + 1):
                value = Refill(how)
                message = {"message": "m" * 4000} if encoder.truncate else {}
                names = [f"{head}{n}" for n, head in enumerate(heads)]
                mapping: dict[Any, Any] = {fresh_copy(name): n for n, name in enumerate(names)}
                items = list(mapping.items())
                items.insert(place, ("value", [value]))
                items.insert(0, ("first.part", {"x": 1}))
                value.mapping = mapping
                for first, last in ((message, {}), ({}, message)):
                    mapping.clear()
                    mapping.update(first)
                    mapping.update((fresh_copy(name), one) for name, one in items)
                    mapping.update(last)
                    document = json.loads(encoder.encode(mapping)[0])
                    written = dotted(document)
                    for name in (*names, "value", "first.part.x"):
                        assert name in written, (how, place, name, document)
    print("held")


def fresh_copy(name: str) -> str:
    """The same text as another object."""
    return "".join(list(name))


def dotted(document: dict[str, Any], above: str = "") -> set[str]:
    """The names of all values, with dots in place of objects."""
    found = set()
    for name, value in document.items():
        found |= dotted(value, f"{above}{name}.") if isinstance(value, dict) else {above + name}
    return found


def _texts(attack: Callable[[], None], whole: int) -> tuple[str, str]:
    """The texts of a second, after an attack."""
    attack()
    return "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00"


if __name__ == "__main__":
    every_attribute()
