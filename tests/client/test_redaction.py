"""Values that are left out because of their names, texts that patterns find, and `before_send`."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import signal
import sys
from asyncio import CancelledError
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from email.message import Message
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import attrs
import multidict
import pydantic
import pydantic.v1
import pytest
import starlette.datastructures as starlette
import werkzeug.datastructures as werkzeug
from hypothesis import given
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict

import logclient
from logclient import ConfigError, EncodeError
from logclient._ext.record import REDACTED, Encoder
from logclient.config import readers
from logclient.records.revision import replace_patterns
from logclient.testing.lumberjack import Collector
from tests.support.examples import examples
from tests.support.patience import PATIENCE, wait_until
from tests.support.record_fields import Lazy

SECRETS = ("password", "*token*", "Api_Key")
DEFAULT = readers.SECRETS
NAMES = st.sampled_from(
    (
        "password", "PassWord", "user.password", "user", "token", "xtokeny", "a.b.token", "api_key", "event",
        "event.password", "labels", "labels.token", "error", "é.token", "é", "passwords", "message", "a",
        "a.b", "@metadata", "tokén", "",
    )
)  # fmt: skip
DEEP = st.recursive(
    st.one_of(st.integers(0, 9), st.text(max_size=3), st.none(), NAMES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.dictionaries(NAMES, inner, max_size=3),
    ),
    max_leaves=6,
)
FIELDS = st.dictionaries(NAMES, DEEP, max_size=5)


def covers(names: tuple[str, ...], name: str) -> bool:
    """Say the rule in plain Python."""
    last = name.rpartition(".")[2]
    if last == "message":
        return False
    return any(_fits(entry.casefold(), last.casefold()) for entry in names)


def _fits(entry: str, name: str) -> bool:
    head, star, tail = entry.partition("*")
    if not star:
        return entry == name
    return name.startswith(head) and any(_fits(tail, name[i:]) for i in range(len(head), len(name) + 1))


def without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: REDACTED if covers(SECRETS, k) else without_secrets(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str):
        return type(value)((value[0], REDACTED if covers(SECRETS, value[0]) else without_secrets(value[1])))
    return type(value)(map(without_secrets, value)) if isinstance(value, (list, tuple)) else value


def _record(extra: Mapping[str, Any], msg: Any = "text", args: Any = ()) -> logging.LogRecord:
    record = logging.LogRecord("shop", logging.INFO, "/srv/shop.py", 7, msg, args, None, "pay")
    record.created = 1.5
    record.__dict__.update({name: value for name, value in extra.items() if name not in record.__dict__})
    return record


class TestDefault:
    def test_names_of_secrets_are_redacted_without_the_option(self) -> None:
        secret = {name.upper(): "geheim" for name in DEFAULT}
        plain = {"user": "ann", "client.ip": "10.0.0.1", "token_count": 7, "passwords": 1, "author": "b"}
        with Collector(keep=True) as server:
            handler = logclient.Handler(server.url)
            handler.handle(_record({"db": {**secret, **plain}, "password": "geheim"}))
            handler.client.send({"headers": [(name, "geheim") for name in DEFAULT], "user.token": "geheim"})
            handler.client.close()
            first, second = server.events()
        assert first["db"] == {**dict.fromkeys(secret, REDACTED), **plain}
        assert first["password"] == second["user"]["token"] == REDACTED
        assert second["headers"] == [[name, REDACTED] for name in DEFAULT]

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({}, {"password": REDACTED, "iban": "DE1"}),
            ({"redact": "iban"}, {"password": REDACTED, "iban": REDACTED}),
            ({"redact": "none"}, {"password": "x", "iban": "DE1"}),
            ({"redact": ["none", "iban"]}, {"password": "x", "iban": REDACTED}),
            ({"redact": None}, {"password": REDACTED, "iban": "DE1"}),
        ],
    )
    def test_own_names_are_added_and_none_takes_the_others_away(
        self, given: dict[str, Any], expected: dict[str, str]
    ) -> None:
        with Collector(keep=True) as server:
            with logclient.connect(server.url, **given) as client:
                client.send({"fields": {"password": "x", "iban": "DE1"}})
            with logclient.connect(server.url, redact="none") as client:
                client.reconfigure(**{"redact": None, **given})
                client.send({"fields": {"password": "x", "iban": "DE1"}})
        assert [event["fields"] for event in server.events()] == [expected] * 2

    def test_default_names_leave_text_alone(self) -> None:
        """A user of Django has an attribute password: its text must not become the name of its class."""
        user = SimpleNamespace(name="ann", password="x", iban="DE1")
        for names, text in ("", str(user)), ("iban", "<SimpleNamespace>"):
            body = Encoder(redact=readers.redacted(names)).encode_record(_record({}, "%s", (user,)))[0]
            assert json.loads(body)["message"] == text


class TestNames:
    @pytest.mark.slow
    @examples(500)
    @given(
        st.lists(st.text("aAſsß*.Éя", min_size=1, max_size=4), max_size=3), st.text("aA.éSßẞſЯ𐐀", max_size=5)
    )
    def test_entries_fit_as_in_plain_python(self, entries: list[str], name: str) -> None:
        body = Encoder(ecs=False, redact=tuple(entries)).encode({name: 1})[0]
        assert json.loads(body)[name] == (REDACTED if covers(tuple(entries), name) else 1)

    @pytest.mark.slow
    @examples(500)
    @given(
        st.lists(st.one_of(st.sampled_from(DEFAULT), st.text("abct*_-", min_size=1)), max_size=50),
        st.one_of(st.sampled_from(DEFAULT), st.text("abct_-"), st.text("kenopstw", min_size=5, max_size=8)),
        st.sampled_from(["", "db.", "é."]),
        st.booleans(),
    )
    def test_many_entries_fit_as_in_plain_python(
        self, entries: list[str], name: str, before: str, upper: bool
    ) -> None:
        name = before + (name.upper() if upper else name)
        body = Encoder(ecs=False, redact=tuple(entries)).encode({name: 1})[0]
        assert json.loads(body)[name] == (REDACTED if covers(tuple(entries), name) else 1)

    @pytest.mark.parametrize(
        ("entry", "names"),
        [
            ("ÄPIKEY", ("ÄPIKEY", "äpikey", "Äpikey", "db.ÄPIKEY", "я.äPIKEY")),
            ("Пароль", ("Пароль", "ПАРОЛЬ", "пароль")),
            ("STRASSE", ("straße", "STRAẞE", "Strasse")),
            ("straße", ("STRASSE", "STRAßE")),
            ("*token*", ("my_to\N{KELVIN SIGN}en", "TOKENS", "ätoken")),
            ("password", ("pa\N{LATIN SMALL LETTER LONG S}sword", "PASSWORD")),
        ],
    )
    def test_letters_of_any_script_match_in_either_case(self, entry: str, names: tuple[str, ...]) -> None:
        fields = dict.fromkeys(names, "geheim")
        body = Encoder(redact=(entry,)).encode({**fields, "deep": fields})[0]
        assert body.count(b"geheim") == 0 and body.count(REDACTED.encode()) == 2 * len(names)
        record = Encoder(redact=(entry,), fields={"common": fields}).encode_record(_record(fields))
        assert b"geheim" not in record[0]

    def test_the_text_of_an_event_stays_below_any_name(self) -> None:
        found = json.loads(Encoder(redact=("*",)).encode({"я.message": "kept", "я.massage": "gone"})[0])
        assert found == {"я.message": "kept", "я.massage": REDACTED}

    @pytest.mark.slow
    @examples(400)
    @given(FIELDS)
    def test_mappings_equal_those_without_secrets(self, fields: dict[str, Any]) -> None:
        found = Encoder(redact=SECRETS).encode(fields)
        assert found == Encoder().encode(without_secrets(fields))

    @pytest.mark.slow
    @examples(400)
    @given(FIELDS, FIELDS)
    def test_records_equal_those_without_secrets(self, common: dict[str, Any], extra: dict[str, Any]) -> None:
        found = Encoder(redact=SECRETS, fields=common).encode_record(_record(extra))
        plain = Encoder(fields=without_secrets(common)).encode_record(_record(without_secrets(extra)))
        assert json.loads(found[0]) == json.loads(plain[0])

    @pytest.mark.slow
    @examples(200)
    @given(FIELDS)
    def test_pair_blocks_equal_those_without_secrets(self, fields: dict[str, Any]) -> None:
        found = Encoder(redact=SECRETS, pairs=True).encode(fields)
        assert found == Encoder(pairs=True).encode(without_secrets(fields))

    def test_truncated_documents_have_no_secrets(self) -> None:
        encoder = Encoder(redact=SECRETS, truncate=True, max_event_bytes=200)
        found = json.loads(encoder.encode({"message": "m" * 300, "password": "geheim"})[0])
        assert found["password"] == REDACTED and found["log.flags"] == ["truncated"]

    def test_objects_of_classes_have_no_secrets(self) -> None:
        @dataclass
        class Login:
            user: str
            password: str

        class Headers(Mapping[str, str]):
            def __getitem__(self, name: str) -> str:
                return "geheim"

            def __iter__(self) -> Any:
                return iter(("token", "host"))

            def __len__(self) -> int:
                return 2

        login = Login("ann", "geheim")
        fields = {"login": login, "headers": Headers(), "error": login, "error.code": 1}
        body = Encoder(redact=(*SECRETS, "host")).encode(fields)[0]
        assert b"geheim" not in body
        found = json.loads(body)
        assert found["login"] == {"user": "ann", "password": REDACTED}
        assert found["headers"] == {"token": REDACTED, "host": REDACTED}

    def test_names_that_run_code_hide_what_is_there_then(self) -> None:
        class Name(Enum):
            OTHER = 1

            @property
            def name(self) -> str:
                pair.clear()
                self.others = [["other", str(n)] for n in range(100)]
                return "other"

        pair: list[Any] = [Name.OTHER, "value"]
        assert json.loads(Encoder(redact=SECRETS).encode({"f": pair})[0])["f"][1:] == []
        pair = [Name.OTHER, "value"]
        record = logging.makeLogRecord({"f": pair})
        assert json.loads(Encoder(redact=SECRETS).encode_record(record)[0])["f"][1:] == []

    def test_names_that_cannot_be_asked_may_be_those_of_secrets(self) -> None:
        found = json.loads(Encoder(redact=SECRETS).encode({"f": [Lazy(), "value"], "g": 1})[0])
        assert (found["f"][1], found["g"]) == (REDACTED, 1)

    def test_members_of_enums_and_views_are_names_in_every_place(self) -> None:
        class Name(Enum):
            PASSWORD = 1
            CODE = "password"

        pairs = multidict.MultiDict([("password", "geheim"), ("user", "ann")])
        for value in (
            {Name.PASSWORD: "geheim"},
            [(Name.CODE, "geheim")],
            pairs.items(),
            OrderedDict(pairs).items(),
            werkzeug.MultiDict(pairs).items(),
            OrderedDict(user=pairs).values(),
        ):
            for record in (_record({"at": value}, "x"), _record({}, "%s %s", (1, value)), _record({}, value)):
                assert b"geheim" not in Encoder(redact=SECRETS).encode_record(record)[0], value

    def test_arguments_by_name_have_no_secrets(self) -> None:
        record = _record({}, "%(user)s logs in with %(password)s", ({"user": "ann", "password": "geheim"},))
        found = json.loads(Encoder(redact=SECRETS).encode_record(record)[0])
        assert found["message"] == f"ann logs in with {REDACTED}"
        assert record.args == {"user": "ann", "password": "geheim"}

    @pytest.mark.slow
    @examples(400)
    @given(st.lists(DEEP, max_size=4), st.sampled_from(("%s", "%s %s", "%r %s %r", "%d")), st.booleans())
    def test_arguments_by_position_equal_those_without_secrets(
        self, args: list[Any], text: str, whole: bool
    ) -> None:
        record = _record({}, "", ())
        plain = _record({}, "", ())
        record.msg, record.args = (args, ()) if whole else (text, tuple(args))
        plain.msg = without_secrets(args) if whole else text
        plain.args = () if whole else tuple(map(without_secrets, args))
        assert Encoder(redact=SECRETS).encode_record(record) == Encoder().encode_record(plain)

    @pytest.mark.slow
    @examples(400)
    @given(st.dictionaries(NAMES, DEEP, min_size=1, max_size=5), st.sampled_from(("%s", "%(a)s", "%d")))
    def test_arguments_by_name_equal_those_without_secrets(self, args: dict[str, Any], text: str) -> None:
        found = Encoder(redact=SECRETS).encode_record(_record({}, text, (args,)))
        assert found == Encoder().encode_record(_record({}, text, (without_secrets(args),)))

    def test_mappings_in_arguments_by_name_have_no_secrets(self) -> None:
        args: dict[str, Any] = {
            "headers": MappingProxyType({"password": 1}),
            "all": [({"token": 2, "n": 3},)],
        }
        args["all"].append(args)
        deep: Any = {"password": "geheim"}
        for _ in range(200):
            deep = [deep]

        def message(text: str, args: dict[str, Any]) -> str:
            body = Encoder(redact=SECRETS).encode_record(_record({}, text, (args,)))[0]
            return str(json.loads(body)["message"])

        assert message("%(headers)s %(all)s", args) == (
            f"{{'password': '{REDACTED}'}} [({{'token': '{REDACTED}', 'n': 3}},), '...']"
        )
        assert "'...'" in message("%(deep)s", {"deep": deep})

    def test_mappings_that_cannot_be_read_keep_no_secret_in_a_message(self) -> None:
        class Odd(Mapping[str, str]):
            def __getitem__(self, *_: object) -> Any:
                raise LookupError

            __iter__ = __len__ = __getitem__

            def __repr__(self) -> str:
                return "geheim"

        for text in ("%(a)s", "%s", "%(b)s"):
            record = _record({}, text, ({"a": Odd(), "password": "geheim"},))
            body = Encoder(redact=SECRETS).encode_record(record)[0]
            assert b"<unprintable Odd>" in body and b"geheim" not in body

    def test_dataclasses_that_lie_too_deep_are_names(self) -> None:
        @dataclass
        class Login:
            password: str

        value: Any = Login("geheim")
        for levels in range(8):
            found = json.loads(Encoder(redact=SECRETS).encode({"a": value})[0])["a"]
            plain = json.loads(Encoder().encode({"a": value})[0])["a"]
            for _ in range(levels):
                (found,), (plain,) = found, plain
            assert found == ({"password": REDACTED} if isinstance(plain, dict) else "<Login>")
            value = [value]
        assert isinstance(plain, str)

    def test_names_of_a_subclass_of_str_are_compared_too(self) -> None:
        class Name(StrEnum):
            PASSWORD = "password"
            EVENT = "event"

        record = _record({}, "%(password)s", ({Name.PASSWORD: "geheim"},))
        deep = {Name.EVENT: {Name.PASSWORD: "geheim"}, "event": 1, Name.PASSWORD: "geheim"}
        encoder = Encoder(redact=SECRETS, fields=deep)
        assert b"geheim" not in encoder.encode_record(record)[0] + encoder.encode(deep)[0]

    def test_json_of_a_formatter_has_no_secrets(self) -> None:
        with Collector(keep=True) as server:
            handler = logclient.Handler(server.url, formatter_json=True, redact="password")
            handler.setFormatter(logging.Formatter('{"message": "%(message)s", "password": "geheim"}'))
            handler.handle(_record({}))
            assert handler.client.flush(PATIENCE) == 0
            handler.close()
            (event,) = server.events(1, PATIENCE)
        assert (event["message"], event["password"]) == ("text", REDACTED)


class NamedLogin(NamedTuple):
    user: str
    password: str


@dataclass
class DataLogin:
    user: str
    password: str


@attrs.define
class SlotLogin:
    user: str
    password: str


@attrs.define(slots=False)
class AttrLogin:
    user: str
    password: str


class ModelLogin(pydantic.BaseModel):
    user: str
    password: str


class OldModelLogin(pydantic.v1.BaseModel):
    user: str
    password: str


class OpenModel(pydantic.BaseModel):
    model_config = {"extra": "allow"}
    user: str


class PrivateLogin:
    """Shows an attribute under another name than it has."""

    __slots__ = ("__password", "user")

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self.__password = password

    def __repr__(self) -> str:
        return f"{self.user} {self.__password}"

    def method(self) -> None: ...


class Table:
    """No Mapping, but it has keys, as a row of a database."""

    def keys(self) -> list[str]:
        return ["user", "password"]

    def __str__(self) -> str:
        return "ann geheim"


@dataclass
class Outer:
    inner: Any


def _headers(kind: Any) -> Any:
    made = kind()
    made["user"] = "ann"
    made["Password"] = "geheim"
    return made


PAIRS = [("user", "ann"), ("Password", "geheim")]
LOGIN = {"user": "ann", "password": "geheim"}
SHAPES: dict[str, Callable[[], Any]] = {
    "dict": lambda: LOGIN,
    "nested dict": lambda: {"a": [{"b": LOGIN}]},
    "keys of bytes": lambda: {b"user": "ann", b"password": "geheim"},
    "OrderedDict": lambda: OrderedDict(LOGIN),
    "ChainMap": lambda: ChainMap(LOGIN),
    "UserDict": lambda: UserDict(LOGIN),
    "mappingproxy": lambda: MappingProxyType(LOGIN),
    "requests' headers": lambda: CaseInsensitiveDict(LOGIN),
    "werkzeug's Headers": lambda: werkzeug.Headers(PAIRS),
    "werkzeug's EnvironHeaders": lambda: werkzeug.EnvironHeaders(
        {"HTTP_USER": "ann", "HTTP_PASSWORD": "geheim"}
    ),
    "werkzeug's MultiDict": lambda: werkzeug.MultiDict([*PAIRS, ("Password", "geheim")]),
    "multidict's CIMultiDict": lambda: multidict.CIMultiDict(PAIRS),
    "Starlette's FormData": lambda: starlette.FormData(PAIRS),
    "Starlette's Headers": lambda: starlette.Headers(LOGIN),
    "email's Message": lambda: _headers(Message),
    "named tuple": lambda: NamedLogin("ann", "geheim"),
    "named tuples in a set": lambda: {NamedLogin("ann", "geheim")},
    "dataclass": lambda: DataLogin("ann", "geheim"),
    "dataclass with a named tuple": lambda: Outer(NamedLogin("ann", "geheim")),
    "class of attrs with slots": lambda: SlotLogin("ann", "geheim"),
    "class of attrs": lambda: AttrLogin("ann", "geheim"),
    "model of pydantic": lambda: ModelLogin(user="ann", password="geheim"),
    "model of pydantic 1": lambda: OldModelLogin(user="ann", password="geheim"),
    "model with more fields": lambda: OpenModel(user="ann", password="geheim"),
    "SimpleNamespace": lambda: SimpleNamespace(**LOGIN),
    "dict in a SimpleNamespace": lambda: SimpleNamespace(a=SimpleNamespace(b=[LOGIN])),
    "private attribute": lambda: PrivateLogin("ann", "geheim"),
    "method of an object": lambda: PrivateLogin("ann", "geheim").method,
    "partial function": lambda: partial(print, LOGIN, end="geheim"),
    "partial function with names": lambda: partial(print, password="geheim"),
    "keys without a Mapping": Table,
    "pair": lambda: ("password", "geheim"),
    "list of pairs": lambda: PAIRS,
    "list of lists": lambda: [list(pair) for pair in PAIRS],
    "ASGI's headers": lambda: [(name.lower().encode(), value.encode()) for name, value in PAIRS],
    "set of pairs": lambda: set(PAIRS),
    "tuple of pairs": lambda: tuple(PAIRS),
    "items": LOGIN.items,
    "items of an OrderedDict": lambda: OrderedDict(LOGIN).items(),
    "items of a UserDict": lambda: UserDict(LOGIN).items(),
    "values": lambda: {"a": LOGIN}.values(),
    "deque": lambda: deque([LOGIN]),
    "deque of pairs": lambda: deque(PAIRS),
    "UserList": lambda: UserList([LOGIN]),
    "in a circle": lambda: _in_a_circle(LOGIN),
    "among many": lambda: SimpleNamespace(a=[*range(2000), LOGIN]),
}


def _in_a_circle(value: Any) -> Any:
    made = SimpleNamespace(value=value)
    made.again = [made]
    return made


class TestShapes:
    """No secret leaves, whatever has its name, wherever that stands."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_no_shape_of_a_value_shows_a_secret(self, shape: str) -> None:
        value = SHAPES[shape]()
        encoder = Encoder(redact=("password",))
        bodies = [encoder.encode({"v": value, "in": [value], "labels": value, "event.id": value})[0]]
        bodies += [Encoder(redact=("password",), pairs=True).encode({"v": value, "in": [value]})[0]]
        bodies += [Encoder(redact=("password",), fields={"v": value, "log": value}).encode({})[0]]
        messages = [
            ("%s", (value,)), ("%s logs in: %r", ("ann", value)), ("%s", ([value],)),
            ("%s", ({"a": (value,)},)), ("%(a)s", ({"a": value},)), ("no directive", ("ann", value)),
            ("%d", (value,)), (value, ()), ([value], ()), (value, ("ann",)),
        ]  # fmt: skip
        for message, args in messages:
            record = logging.LogRecord("shop", 20, "shop.py", 7, "", (), None)
            record.msg, record.args = message, args
            bodies.append(encoder.encode_record(record)[0])
        assert [body for body in bodies if b"geheim" in body] == []

    @pytest.mark.parametrize("shape", SHAPES)
    def test_other_values_stay_and_keep_their_type(self, shape: str) -> None:
        value = SHAPES[shape]()
        plain = json.loads(Encoder().encode({"v": value})[0])["v"]
        found = json.loads(Encoder(redact=("password",)).encode({"v": value})[0])["v"]
        assert type(found) is type(plain)
        if type(plain) is not str and "ann" in json.dumps(plain):
            assert "ann" in json.dumps(found)

    @pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "among many"])
    def test_a_value_without_secrets_is_as_without_the_option(self, shape: str) -> None:
        value = SHAPES[shape]()
        encoder = Encoder(redact=("token",))
        assert encoder.encode({"v": value, "in": [value]}) == Encoder().encode({"v": value, "in": [value]})
        for message, args in (("%s", (value,)), ("%(a)s %(a)r", ({"a": [value]},)), (value, ())):
            record = _record({}, "", ())
            record.msg, record.args = message, args
            assert encoder.encode_record(record) == Encoder().encode_record(record)

    def test_nothing_that_is_searched_is_used_up_or_changed(self) -> None:
        items = iter([LOGIN])
        lines = (line for line in ["password"])
        pairs = [("password", "geheim"), deque([LOGIN])]
        record = _record({"pairs": pairs, "items": items}, "%s %s %s", (items, lines, pairs))
        assert b"geheim" not in Encoder(redact=("password",)).encode_record(record)[0]
        assert (next(items), next(lines)) == (LOGIN, "password")
        assert pairs == [("password", "geheim"), deque([{"user": "ann", "password": "geheim"}])]

    def test_the_text_of_exceptions_and_functions_stays(self) -> None:
        error = ValueError("no password")
        error.password = "geheim"  # type: ignore[attr-defined]
        record = _record({"kind": ModelLogin}, "%s %s", (error, covers))
        found = json.loads(Encoder(redact=("password",)).encode_record(record)[0])
        assert found["message"] == f"no password {covers}"
        assert found["kind"] == str(ModelLogin)


class Sent:
    """What arrives from a client with these options."""

    def __init__(self, **options: Any) -> None:
        self.collector = Collector(keep=True)
        self.collector.__enter__()
        self.client = logclient.connect(self.collector.url, **options)
        self.handler = logclient.Handler(client=self.client)

    def __enter__(self) -> Sent:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.collector.__exit__(None, None, None)

    @property
    def events(self) -> list[dict[str, Any]]:
        """All that was acknowledged."""
        assert self.client.flush(PATIENCE) == 0
        return self.collector.events(self.client.stats().acked, PATIENCE)


def make_pattern(random: Random) -> str:
    """A regular expression with groups, references to them, conditions, lookarounds and flags."""
    opened = 0
    closed: list[str] = []

    def group(depth: int) -> str:
        nonlocal opened
        opened += 1
        name, head = str(opened), "("
        if depth == 2 and "v" not in closed and random.randrange(2):
            name, head = "v", "(?P<v>"
        made = f"{head}{part(depth - 1)})"
        closed.append(name)
        return made

    def part(depth: int) -> str:
        kind = random.randrange(11 if depth else 4)
        if kind == 4:
            return part(depth - 1) + part(depth - 1)
        if kind == 5:
            return f"(?:{part(depth - 1)}|{part(depth - 1)})"
        if kind == 6:
            return f"(?:{part(depth - 1)}){random.choice(('?', '*', '+', '+?', '{2}', '++'))}"
        if kind == 7:
            return f"{random.choice(('(?=', '(?!', '(?i:', '(?s:', '(?>'))}{part(depth - 1)})"
        if kind == 8 and closed:
            return f"(?({random.choice(closed)}){part(depth - 1)}|{part(depth - 1)})"
        if kind == 9 and closed:
            known = random.choice(closed)
            return "(?P=v)" if known == "v" else rf"(?:\{known})"
        if kind >= 8:
            return group(depth)
        return random.choice(("a", "b", "A", "[ab:]", ".", r"\d", r"\b", "(?<=a)", "(?<![:b])", "$"))

    flags = random.choice(("", "", "(?i)", "(?s)", "(?im)"))
    return flags + "".join(part(2) for _ in range(random.randint(1, 3)))


def redacted(found: Sequence[str], text: str) -> str:
    """Say the rule in plain Python: cut the text where no find goes on; replace the pieces that are found."""
    finds = [match.span() for pattern in found for match in re.finditer(pattern, text)]
    cuts = [at for at in range(len(text) + 1) if not any(first < at < end for first, end in finds)]
    pieces = itertools.pairwise(cuts)
    return "".join(
        REDACTED if any(first <= at < end for first, end in finds) else text[at:until] for at, until in pieces
    )


class TestPatterns:
    @pytest.mark.slow
    @examples(500)
    @given(st.randoms(use_true_random=False))
    def test_a_pattern_finds_among_others_what_it_finds_alone(self, random: Random) -> None:
        self.check(random)

    @pytest.mark.long
    @pytest.mark.timeout(3600)
    def test_a_hundred_thousand_lists_of_patterns(self) -> None:
        random = Random(1)
        assert sum(self.check(random) for _ in range(100_000)) > 50_000  # most find something

    @staticmethod
    def check(random: Random) -> bool:
        found = [make_pattern(random) for _ in range(random.randint(1, 4))]
        text = "".join(random.choice("aAbB:1\n") for _ in range(random.randint(0, 12)))
        expected = redacted(found, text)
        for order in (found, found[::-1], random.sample(found, len(found))):
            assert replace_patterns(tuple(order))({"message": text}) == {"message": expected}
        return REDACTED in expected

    @pytest.mark.parametrize(
        ("found", "text", "sent"),
        [
            (
                [r"(\d{4})-\d{4}", r"""key=(['"])[^'"]*\1"""],
                "key='s3cret' 1111-2222",
                "[redacted] [redacted]",
            ),
            (["(a)", "(<)?s3cret(?(1)>)"], "<s3cret>", "[redacted]"),
            (["(?P<v>aaa)", "(?P<v>bbb)"], "aaa bbb", "[redacted] [redacted]"),
            (["token", "(?i)bearer [a-z]+"], "Bearer abc TOKEN token", "[redacted] TOKEN [redacted]"),
            (["(?x) a # c", "b"], "ab", "[redacted][redacted]"),
            (["abc", "cde", "bc"], "xabcdex", "x[redacted]x"),
            (["a", "(?<=a)b"], "ab", "[redacted][redacted]"),
            ([r"\b", "(?=b)"], "a b", "a b"),
        ],
    )
    def test_patterns_do_not_change_each_other(self, found: list[str], text: str, sent: str) -> None:
        for order in itertools.permutations(found):
            with Sent(redact_text=order) as one:
                one.client.send(text)
                one.handler.handle(_record({}, text))
                assert [event["message"] for event in one.events] == [sent, sent]

    @pytest.mark.parametrize(
        "pattern",
        ["(", "b(?i)a", r"\1", "a{99999999999}", "(" * 5000, "(?L)a", "(?<=a+)b", b"a", re.compile("a")],
    )
    def test_what_is_no_pattern_is_refused_by_name(self, pattern: Any) -> None:
        for value in (pattern, ["a", pattern]):
            with pytest.raises(
                ConfigError, match=r"^redact_text: must be regular expressions, got "
            ) as refused:
                logclient.connect("lumberjack://127.0.0.1:1", redact_text=value)
            assert repr(pattern)[1:20] in str(refused.value)

    def test_any_text_is_searched_and_names_stay(self) -> None:
        card = r"\b\d{4}-\d{4}\b"
        with Sent(redact_text=[card, "Bearer [a-z]+"], fields={"note": "1111-2222"}) as sent:
            deep = ["x", {"deep": "Bearer abc"}]
            sent.client.send({"message": "card 1234-5678", "1234-5678": deep, "n": 12345678})
            sent.handler.handle(_record({"auth": "Bearer xyz"}, "card %s", ("9999-0000",)))
            first, second = sent.events
        assert first["message"] == f"card {REDACTED}" and first["note"] == REDACTED
        assert first["1234-5678"] == ["x", {"deep": REDACTED}] and first["n"] == 12345678
        assert second["message"] == f"card {REDACTED}" and second["auth"] == REDACTED
        assert second["log"]["origin"]["file"]["line"] == 7

    @pytest.mark.parametrize(
        ("option", "value", "rule"),
        [
            ("redact_text", "(", "must be regular expressions"),
            ("redact_text", ["a*"], "must not match empty text"),
            ("redact_text", [1], "must be regular expressions"),
            ("before_send", "os:system", "must be a function"),
            ("sample", {"DEBUG": 2}, "must have a share from 0 to 1"),
            ("sample", "DEBUG", "must have a share from 0 to 1"),
            ("sample", 0.5, "must be a mapping"),
        ],
    )
    def test_wrong_options_are_refused(self, option: str, value: Any, rule: str) -> None:
        options: Any = {option: value}
        with pytest.raises(ConfigError, match=f"^{option}: {rule}"):
            logclient.connect("lumberjack://127.0.0.1:1", **options)


class TestBeforeSend:
    def test_the_document_that_it_returns_is_sent(self) -> None:
        def change(document: dict[str, Any]) -> dict[str, Any]:
            seen.append(dict(document))
            document["added"] = len(seen)
            document.pop("noise", None)
            return document

        seen: list[dict[str, Any]] = []
        with Sent(before_send=change, fields={"noise": 1}, service="shop") as sent, logclient.bind(step=2):
            sent.client.send({"a": 1})
            sent.client.send("text")
            sent.handler.handle(_record({"b": 2}))
            outcome = sent.client.submit({"a": 3}).result(PATIENCE)
            events = sent.events
            stats = sent.client.stats()
        assert outcome == ("acked", "")
        assert [event["added"] for event in events] == [1, 2, 3, 4]
        assert all(event["service"] == {"name": "shop"} and event["step"] == 2 for event in events)
        assert not any("noise" in event for event in events) and all(d["noise"] == 1 for d in seen)
        assert events[1]["message"] == "text" and events[2]["b"] == 2 and events[2]["log"]["logger"] == "shop"
        assert all("@timestamp" in event for event in events)
        assert stats.sent == stats.acked == 4 and stats.filtered == {}

    def test_the_rest_of_a_document_is_unchanged(self) -> None:
        with Sent(before_send=lambda document: document) as changed, Sent() as plain:
            for sent in (changed, plain):
                sent.handler.handle(_record({"x": [1.5, None, "é\n"], "event": "moves", "error.code": 2}))
                try:
                    raise ValueError("ß")
                except ValueError as error:
                    record = _record({"big": 2**70})
                    record.exc_info = (ValueError, error, None)
                sent.handler.handle(record)
            ids = ("@metadata", "event")
            one, two = (
                [{k: v for k, v in event.items() if k not in ids} for event in sent.events]
                for sent in (changed, plain)
            )
        assert one == two

    @pytest.mark.parametrize("level", [None, "high", 7.5])
    def test_a_record_without_a_number_as_its_level_is_sent(self, level: Any) -> None:
        with Sent(before_send=lambda document: document) as sent:
            record = _record({})
            record.levelno = level
            sent.handler.handle(record)
            del record.levelno
            sent.handler.handle(record)
            assert [event["message"] for event in sent.events] == ["text", "text"]

    def test_none_holds_an_event_back_and_counts_it(self) -> None:
        with Sent(before_send=lambda d: None if d.get("drop") else d) as sent:
            assert sent.client.send({"drop": 1}) == 0
            assert sent.client.submit({"drop": 1}).result(PATIENCE) == ("dropped", "before_send")
            sent.handler.handle(_record({"drop": 1}))
            sent.client.send({"kept": 1})
            assert [event["kept"] for event in sent.events] == [1]
            stats = sent.client.stats()
        assert stats.filtered == {"before_send": 3} and stats.sent == 1

    def test_its_errors_are_reported_and_the_event_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        def broken(document: dict[str, Any]) -> Any:
            if "n" in document:
                return document["n"]
            raise KeyError("gone")

        with Sent(before_send=broken) as sent:
            assert sent.client.send({"a": 1}) == 1
            sent.handler.handle(_record({}))
            assert sent.client.send({"n": 5}) == 3
            assert sent.events == []
            assert sent.client.stats().failed == {"unencodable": 3}
        said = capsys.readouterr().err
        assert "before_send: KeyError: 'gone'; the event failed" in said
        assert "before_send: TypeError: must return a mapping or None, got int; the event failed" in said

    def test_bytes_and_bad_events_do_not_reach_it(self) -> None:
        seen: list[Any] = []
        with Sent(before_send=seen.append, max_event_bytes=1000) as sent:
            sent.client.send(b'{"raw":1}')
            with pytest.raises(EncodeError):
                sent.client.send({"a": "x" * 2000})
            assert [event["raw"] for event in sent.events] == [1]
            stats = sent.client.stats()
        assert not seen and stats.failed == {"too_large": 1} and stats.sent == 2

    @pytest.mark.parametrize("form", ["ecs", "ecs_dotted", "logstash", "json", "gelf", "otel"])
    def test_what_it_adds_without_json_costs_only_its_place(self, form: str) -> None:
        circle: list[Any] = [1]
        circle.append(circle)

        class NoText:
            def __str__(self) -> str:
                raise LookupError

        def add(document: dict[str, Any]) -> dict[str, Any]:
            return {**document, "added": circle, "set": {2}, "odd": NoText()}

        with Sent(before_send=add, format=form, trust="none") as sent:
            sent.client.send({"message": "kept"})
            sent.handler.handle(_record({"given": circle}))
            (one, two), stats = sent.events, sent.client.stats()
        assert "kept" in json.dumps(one)
        assert [json.dumps(event).count("<cycle>") for event in (one, two)] == [1, 2]
        assert stats.failed == {} and stats.sanitized == 5


def _raise(error: BaseException) -> Any:
    raise error


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit


class TestFates:
    """`send`, `submit` and a log call end the same way, and all that counts says so."""

    WAYS: ClassVar[dict[str, Callable[[dict[str, Any]], Any]]] = {
        "raises": lambda document: 1 / 0,
        "raises without a text": lambda document: _raise(Unprintable()),
        "is cancelled": lambda document: _raise(CancelledError()),
        "ends the process": lambda document: sys.exit(3),
        "is interrupted": lambda document: _raise(KeyboardInterrupt()),
        "is closed": lambda document: _raise(GeneratorExit()),
        "returns a list": lambda document: [document],
        "returns false": lambda document: False,
        "returns too much": lambda document: {"message": "x" * 5000},
    }

    @staticmethod
    def ends(folder: Path) -> list[tuple[str, str, int]]:
        """Status, reason and number of events of each outcome in a ledger."""
        (file,) = folder.iterdir()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found = [line for line in lines if line["t"] == "outcome"]
        return [
            (one["status"], one["reason"], end - first + 1) for one in found for first, end in one["seqs"]
        ]

    @pytest.mark.parametrize("way", WAYS)
    def test_the_fate_of_a_broken_event_is_the_same_everywhere(self, way: str, tmp_path: Path) -> None:
        reason = "too_large" if way == "returns too much" else "unencodable"
        raises = way == "returns too much"
        calls: list[str] = []

        def broken(document: dict[str, Any]) -> Any:
            calls.append(str(document.get("message")))
            return self.WAYS[way](document)

        def send(name: str, verb: Callable[[Any], Any]) -> Any:
            told: list[logclient.Settlement] = []
            folder = tmp_path / name
            one = Sent(before_send=broken, max_event_bytes=2000, ledger=str(folder), on_delivery=told.extend)
            with one as sent:
                expected = pytest.raises(EncodeError) if raises and name != "log" else nullcontext()
                with expected:
                    found = verb(sent)
                    assert name != "submit" or found.result(PATIENCE) == ("failed", reason)
                    assert name != "send" or found == 1
                assert sent.events == []
                stats = sent.client.stats()
                assert (stats.sent, stats.failed, stats.dropped, stats.filtered) == (1, {reason: 1}, {}, {})
                sent.client.close()
                assert [(one.first, one.last, *one[3:5]) for one in told] == [(1, 1, "failed", reason)]
            assert self.ends(folder) == [("failed", reason, 1)]

        send("send", lambda sent: sent.client.send("text"))
        send("submit", lambda sent: sent.client.submit("text"))
        send("log", lambda sent: sent.handler.handle(_record({})))
        send("async", lambda sent: asyncio.run(logclient.AsyncClient(sent.client).submit("text")))
        assert calls == ["text"] * 4

    @pytest.mark.parametrize("overflow", ["drop_new", "raise"])
    def test_a_revised_event_without_room_is_dropped(self, overflow: str) -> None:
        options: dict[str, Any] = {"overflow": overflow, "max_events": 1, "before_send": dict}
        with logclient.connect("lumberjack://127.0.0.1:1", timeout=0.0, **options) as client:
            client.send("first")
            if overflow == "raise":
                with pytest.raises(logclient.QueueFull):
                    client.send("second")
            else:
                assert client.send("second") == 0
            assert client.submit("third").result(PATIENCE) == ("dropped", "overflow")
            logclient.Handler(client=client).handle(_record({}))
            assert client.stats().dropped == {"overflow": 3} and client.stats().sent == 4

    def test_records_of_a_high_level_are_kept_first(self) -> None:
        options: dict[str, Any] = {"overflow": "drop_oldest", "max_events": 3, "before_send": dict}
        with Collector(keep=True) as collector, logclient.connect(collector.url, **options) as client:
            collector.stop()
            handler = logclient.Handler(client=client)
            for level in (logging.ERROR, 10**20, *[logging.INFO] * 5):
                record = _record({}, str(level))
                record.levelno = level
                handler.handle(record)
            collector.start()
            assert client.flush(PATIENCE) == 0
            assert [event["message"] for event in collector.events()] == ["40", str(10**20), "20"]

    def test_a_document_too_long_for_a_handler_has_that_reason(self) -> None:
        with Sent(before_send=dict, max_event_bytes=2000) as sent:
            sent.handler.handle(_record({"long": "x" * 5000}))
            assert sent.events == [] and sent.client.stats().failed == {"too_large": 1}

    @pytest.mark.parametrize(
        "number", [pytest.param(signal.SIGINT, id="Ctrl-C"), pytest.param(signal.SIGTERM, id="sys.exit")]
    )
    def test_a_signal_meanwhile_fails_the_event_and_the_log_call_returns(
        self, number: signal.Signals
    ) -> None:
        def interrupted(document: dict[str, Any]) -> Any:
            signal.raise_signal(number)
            return document

        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            with Sent(before_send=interrupted) as sent:
                sent.handler.handle(_record({}))
                assert sent.client.send("text") == 2
                assert sent.client.submit("text").result(PATIENCE) == ("failed", "unencodable")
                assert sent.events == [] and sent.client.stats().failed == {"unencodable": 3}
        finally:
            signal.signal(signal.SIGTERM, before)


class TestLevels:
    ODD = ("LOUD", "", None, 1.5, [40], True, False, 10**20, -(10**20), 2**63, -(2**63) - 1)

    @pytest.mark.parametrize("level", ODD, ids=repr)
    @pytest.mark.parametrize("before_send", [None, dict])
    def test_an_event_with_no_level_fails_and_is_counted(self, level: Any, before_send: Any) -> None:
        async def submit() -> None:
            await logclient.AsyncClient(sent.client).submit("text", level)

        with Sent(before_send=before_send) as sent:
            for call in (
                lambda: sent.client.send("text", level),
                lambda: sent.client.send(b"{}", level),
                lambda: sent.client.submit("text", level),
                lambda: logclient.AsyncClient(sent.client).send("text", level),
                lambda: asyncio.run(submit()),
            ):
                with pytest.raises(ConfigError, match=r"^level: must be a number.*, or the name of a level"):
                    call()
            assert sent.events == []
            stats = sent.client.stats()
        assert stats.sent == 5 and stats.failed == {"unencodable": 5}

    @pytest.mark.parametrize("level", [0, -5, 1000, 2**63 - 1, -(2**63), "error", 40])
    def test_numbers_of_64_bits_and_names_are_levels(self, level: Any) -> None:
        with Sent() as sent:
            sent.client.send("text", level)
            assert sent.client.submit("text", level).result(PATIENCE) == ("acked", "")
            assert len(sent.events) == 2


@pytest.mark.parametrize("before_send", [None, dict])
def test_an_event_that_fails_gets_its_outcome_without_another_event(before_send: Any) -> None:
    with Sent(before_send=before_send, max_event_bytes=2000) as sent:
        for event in (7, {"long": "x" * 5000}, b"x" * 5000):
            with pytest.raises(EncodeError):
                sent.client.send(event)  # type: ignore[arg-type]
        failed = {"unencodable": 1, "too_large": 2}
        wait_until(lambda: sent.client.stats().failed == failed)


def test_an_event_that_fails_waits_for_its_turn() -> None:
    with logclient.connect("lumberjack://127.0.0.1:1", timeout=0.0) as client:
        with pytest.raises(EncodeError):
            client.send(7)  # type: ignore[arg-type]
        stats = client.stats()
        assert (stats.sent, stats.queued + stats.inflight, stats.failed) == (1, 1, {})
