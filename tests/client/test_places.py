"""The options ``rename`` and ``extra_prefix``: each document is that of an event with the new names."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import logclient
from logclient._ext.record import Encoder
from logclient.records import context
from logclient.testing.lumberjack import Collector
from tests.oracle.ecs import placed
from tests.support.examples import examples
from tests.support.patience import PATIENCE
from tests.support.record_fields import FIELDS, members_of, record_of

RENAME = {
    "user": "user.name", "host": "host.name", "a.b": "b", "b.a": "x", "é": "event.id", "event": "log.flags",
    "message": "text",
}  # fmt: skip
OURS = ("log", "error", "process", "event", "message", "@timestamp", "@metadata")
# Fields of the client and bound ones, but for those that go to `labels` in some documents only.
SHARED = FIELDS.map(lambda found: {k: v for k, v in found.items() if k.partition(".")[0] not in OURS})
PREFIXES = st.sampled_from(["", "extra", "labels", "user", "a.b"])
RENAMES = st.just(RENAME) | st.just({}) | st.just({"user": "user.name"})


def _load(encoded: tuple[bytes, int, int, int]) -> tuple[dict[str, Any], tuple[int, ...]]:
    return members_of(encoded[0]) | {"@timestamp": ""}, encoded[1:]


@pytest.mark.parametrize("nested", [False, True])
@examples(300)
@given(SHARED, SHARED, FIELDS, RENAMES)
@example({}, {}, {"user": "ann", "user.name": "bob"}, RENAME)
@example({}, {}, {"a.b": 1, "b.a": 2}, RENAME)
@example({}, {}, {"b.a": 1, "x.y": 2}, RENAME)
@example({"user.name": "x"}, {"user": "y"}, {"user": "z"}, RENAME)
def test_mappings_equal_those_with_the_new_names(
    nested: bool, own: dict[str, Any], bound: dict[str, Any], event: dict[str, Any], rename: dict[str, str]
) -> None:
    rules: dict[str, Any] = {"bound": context.current, "nested": nested}
    for _ in range(2):  # names that the encoder has not met, and those that it has
        with context.bind(bound) if bound else nullcontext():
            made = Encoder(fields=own, rename=rename, **rules).encode(event)
        there = placed(bound, rename)
        with context.bind(there) if there else nullcontext():
            plain = Encoder(fields=placed(own, rename), **rules).encode(placed(event, rename))
        assert _load(made) == _load(plain)


@pytest.mark.parametrize("nested", [False, True])
@examples(300)
@given(SHARED, SHARED, FIELDS, RENAMES, PREFIXES)
@example({}, {}, {"user": "ann", "user.name": "bob"}, RENAME, "")
@example({}, {}, {"user": "ann", "user.name": "bob"}, RENAME, "extra")
@example({"extra.a": 1}, {}, {"a": 2}, {}, "extra")
@example({"extra": 1}, {}, {"a": 2}, {}, "extra")
@example({}, {}, {"a": 1, "a.b": 2}, {}, "extra")
def test_records_equal_those_with_the_new_names(
    nested: bool, own: dict[str, Any], bound: dict[str, Any], extra: dict[str, Any], rename: dict[str, str],
    prefix: str,
) -> None:  # fmt: skip
    rules: dict[str, Any] = {"bound": context.current, "nested": nested}
    extra.pop("message", None)  # no field of a record
    if prefix in ("user", "a.b"):
        rename = {}  # it must not give names below the prefix
    encoder = Encoder(fields=own, rename=rename, extra_prefix=prefix, **rules)
    there = placed(bound, rename)
    for _ in range(2):
        with context.bind(bound) if bound else nullcontext():
            made = encoder.encode_record(record_of(extra))
        with context.bind(there) if there else nullcontext():
            plain = Encoder(fields=placed(own, rename), **rules).encode_record(
                record_of(placed(extra, rename, prefix))
            )
        assert _load(made) == _load(plain)


def documents_of(
    events: Any, count: int, kind: type[logging.Logger] = logging.Logger, **options: Any
) -> Iterator[dict[str, Any]]:
    """Yield what arrives of `events`, a function of a logger and its client."""
    with Collector(keep=True) as server:
        handler = logclient.Handler(server.url, timestamp=False, **options)
        log = kind("shop", logging.INFO)
        log.addHandler(handler)
        events(log, handler.client)
        yield from server.events(count, PATIENCE)
        handler.client.close()


def test_fields_of_every_kind_are_renamed() -> None:
    def send(log: logging.Logger, client: Any) -> None:
        client.send({"user": "ann"})
        client.send({"user": {"id": 7}, "host": "h"})
        log.info("a", extra={"user": "ann"})
        log.info({"event": "b", "user": "ann"})
        with logclient.bind(user="ann"):
            log.info("c", extra={"n": 1})
        client.reconfigure(fields={"user": "bob"})
        client.send({})

    found = list(documents_of(send, 6, rename="user=user.name, host=host.name", fields={"host": "web"}))
    assert [one["user"] for one in found] == [
        {"name": "ann"},
        {"id": 7},
        *[{"name": "ann"}] * 3,
        {"name": "bob"},
    ]
    assert [one.get("host") for one in found] == [
        {"name": name} for name in ("web", "h", "web", "web", "web")
    ] + [None]
    assert all("labels" not in one for one in found)


@pytest.mark.parametrize("kind", [logging.Logger, logclient.Logger])
def test_only_extra_goes_below_its_prefix(kind: type[logging.Logger]) -> None:
    def send(log: logging.Logger, client: Any) -> None:
        log.info("a", extra={"customer": "ann", "order.number": 17, "user": "bob"})
        log.info({"event": "b", "k": 1}, extra={"customer": "ann"})
        client.send({"customer": "ann"})

    for form, steps in (("ecs", {}), ("logstash", {}), ("ecs", {"before_send": dict})):
        one, two, three = documents_of(
            send,
            3,
            extra_prefix="extra",
            rename={"user": "user.name"},
            fields={"team": "x"},
            format=form,
            **steps,
        )
        assert one["extra"] == {"customer": "ann", "order": {"number": 17}}
        assert (one["user"], one["team"]) == ({"name": "bob"}, "x")
        assert (two["message"], two["k"], two["extra"]) == ("b", 1, {"customer": "ann"})
        assert (three["customer"], "extra" in three) == ("ann", False)


def test_values_of_secret_names_are_left_out_under_new_names() -> None:
    encoder = Encoder(rename={"pin": "x"}, extra_prefix="extra", redact=("pin", "token"))
    for _ in range(2):
        made = members_of(encoder.encode_record(record_of({"pin": "1234", "token": "t"}))[0])
        assert (made["x"], made["extra.token"]) == ("[redacted]", "[redacted]")
        assert members_of(encoder.encode({"pin": "1234"})[0]) == {"x": "[redacted]"}


def test_a_new_secret_is_left_out_of_renamed_fields_of_the_client() -> None:
    def send(log: logging.Logger, client: Any) -> None:
        client.reconfigure(redact=["pin"])
        client.send({})

    (one,) = documents_of(send, 1, rename={"pin": "x"}, fields={"pin": "1234"})
    assert one["x"] == "[redacted]"


class _Person:
    """Text for people, as a user of Django has it."""

    def __str__(self) -> str:
        return "ann"


def test_objects_that_become_text_are_renamed() -> None:
    made = members_of(Encoder(rename={"user": "user.name"}).encode({"user": _Person()})[0])
    assert made == {"user.name": "ann"}


@pytest.mark.parametrize("count", [10, 1000])
def test_more_names_than_an_encoder_remembers_have_the_prefix(count: int) -> None:
    encoder = Encoder(extra_prefix="extra", nested=True)
    for first in range(0, count, 10):
        extra: Mapping[str, int] = {f"name_{n}": n for n in range(first, first + 10)}
        assert json.loads(encoder.encode_record(record_of(extra))[0])["extra"] == extra
