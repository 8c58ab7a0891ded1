"""Fields of the client and of the context: in every document, encoded once, and the event's own win."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import nullcontext
from contextvars import Context, copy_context
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient import ConfigError
from logclient._ext.record import Encoder
from logclient.records import context
from logclient.records.context import Binding
from logclient.records.formatters import EcsFormatter
from logclient.records.host import fields_of
from logclient.testing.lumberjack import Collector, decode
from tests.support.documents import dotted
from tests.support.examples import examples
from tests.support.patience import PATIENCE
from tests.support.record_fields import FIELDS, OURS, members_of, record_of


def _assert_sound(document: Mapping[str, Any]) -> None:
    """Assert that no name is both a value and an object."""
    for name in document:
        for other in document:
            if other.startswith(f"{name}."):
                assert isinstance(document[name], dict), (name, other)


class TestAgainstMerging:
    """Each document equals that of an event that has all the fields itself."""

    @examples(400)
    @given(FIELDS, FIELDS, FIELDS)
    def test_mappings_equal_merged_ones(
        self, own: dict[str, Any], bound: dict[str, Any], event: dict[str, Any]
    ) -> None:
        encoder = Encoder(fields=own, bound=context.current)
        with context.bind(bound) if bound else nullcontext():
            body, kind, _, _ = encoder.encode(event)
        made = members_of(body)
        _assert_sound(made)
        plain = {n: v for n, v in {**own, **bound}.items() if n not in OURS and not self.is_special(n, v)}
        if len(plain) == len({**own, **bound}):
            merged, flags, _, _ = Encoder().encode({**plain, **event})
            assert (made, kind) == (members_of(merged), flags)

    @examples(400)
    @given(FIELDS, FIELDS, FIELDS)
    def test_records_equal_merged_ones(
        self, own: dict[str, Any], bound: dict[str, Any], extra: dict[str, Any]
    ) -> None:
        encoder = Encoder(fields=own, bound=context.current)
        extra.pop("message", None)
        with context.bind(bound) if bound else nullcontext():
            body, kind, _, _ = encoder.encode_record(record_of(extra))
        made = members_of(body)
        _assert_sound(made)
        plain = {n: v for n, v in {**own, **bound}.items() if n not in OURS and not self.is_special(n, v)}
        if len(plain) == len({**own, **bound}):
            record = record_of({**plain, **extra})
            merged, flags, _, _ = Encoder().encode_record(record)
            assert {**made, "@timestamp": ""} == {**members_of(merged), "@timestamp": ""}
            assert kind == flags

    @staticmethod
    def is_special(name: str, value: Any) -> bool:
        """Return whether a field is one that only the event itself may set."""
        return name.partition(".")[0] in (
            "log",
            "error",
            "event",
            "message",
            "@timestamp",
            "@metadata",
            "process",
        )


def test_a_record_keeps_its_own_fields() -> None:
    encoder = Encoder(
        fields={"log.level": "x", "message": "x", "process": {"pid": 1}, "@metadata": {"_id": "x"}}
    )
    made = members_of(encoder.encode_record(record_of({}))[0])
    assert (made["log.level"], made["message"]) == ("info", "text 1")
    assert made["labels.log_level"] == made["labels.message"] == "x"
    assert made["labels.process_pid"] == 1
    assert made["labels.metadata"] == {"_id": "x"}


def test_a_value_without_encoding_costs_only_itself() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    encoder = Encoder(fields={"a": cycle, "b": 2})
    body, _, sanitized, _ = encoder.encode({"c": 3})
    assert (members_of(body), sanitized) == ({"c": 3, "a": ["<cycle>"], "b": 2}, 1)


class _Unreadable(dict[str, int]):
    def keys(self) -> Any:
        raise RuntimeError("changed meanwhile")

    __iter__ = keys


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("bound, made", [
    ({"process": _Unreadable(a=1)}, {"labels.process": "<unprintable _Unreadable>"}),
    ({"log": {"a": _Unreadable(b=1)}}, {"log.a": "<unprintable _Unreadable>"}),
    ({"process": {_Unprintable(): 1}}, {"process.<unprintable _Unprintable>": 1}),
    ({"process": {"\ud800": 1}}, {"process.\ufffd": 1}),
], ids=["mapping", "deeper", "name", "surrogate"])  # fmt: skip
def test_an_object_that_is_hard_to_read_costs_no_event(bound: dict[str, Any], made: dict[str, Any]) -> None:
    with context.bind(bound):
        assert members_of(Encoder(bound=context.current).encode({"n": 1})[0]) == {**made, "n": 1}


@pytest.mark.parametrize("mode", ["mapping", "record", "message"])
def test_truncated_documents_have_the_fields(mode: str) -> None:
    encoder = Encoder(fields={"service.name": "shop"}, max_event_bytes=600, truncate=True)
    if mode == "mapping":
        made = members_of(encoder.encode({"message": "m" * 1000})[0])
    elif mode == "record":
        made = members_of(encoder.encode_record(record_of({}, "m" * 1000, ()))[0])
    else:
        made = members_of(encoder.encode_record(record_of({"k": 1}, {"message": "m" * 1000}, ()))[0])
    assert made["service.name"] == "shop"
    assert made["log.flags"] == ["truncated"]
    assert 0 < len(made["message"]) < 600


def test_pair_blocks_have_the_fields() -> None:
    body = Encoder(pairs=True, fields={"service.name": "shop"}).encode({"message": "m"})[0]
    assert body == (b"\0\0\0\2\0\0\0\7message\0\0\0\1m\0\0\0\x0cservice.name\0\0\0\4shop")


@pytest.mark.parametrize("size", [8_000, 9_000, 70_000])
@pytest.mark.parametrize("nested", [False, True])
def test_large_fields_arrive_whole(size: int, nested: bool) -> None:
    text = "a" * size
    encoder = Encoder(fields={"shop.text": text}, bound=context.current, nested=nested)
    with context.bind({"shop.more": text}):
        for made in (encoder.encode({"a": 1}), encoder.encode_record(record_of({}))):
            document = json.loads(made[0])
            shop = document["shop"] if nested else dotted(document)
            found = (shop["text"], shop["more"]) if nested else (shop["shop.text"], shop["shop.more"])
            assert found == (text, text)


class TestBind:
    def test_blocks_nest_and_end(self) -> None:
        assert context.bound() == {}
        with logclient.bind(a=1) as outer:
            with logclient.bind({"user.id": 7}, a=2):
                assert logclient.bound() == {"a": 2, "user.id": 7}
            assert logclient.bound() == {"a": 1} == outer.fields
        assert logclient.bound() == {}

    def test_names_can_be_taken_away(self) -> None:
        with logclient.bind(a=1, b=2, c=3):
            logclient.unbind("a", "unknown")
            assert logclient.bound() == {"b": 2, "c": 3}
            logclient.unbind()
            assert logclient.bound() == {}
        logclient.unbind("a")

    @pytest.mark.parametrize("given", ["text", 5, [("a", 1)]])
    def test_fields_must_be_a_mapping(self, given: Any) -> None:
        with pytest.raises(TypeError, match="fields: must be a mapping, got "):
            logclient.bind(given)

    def test_names_must_be_strings(self) -> None:
        with pytest.raises(TypeError, match="fields: each name must be a string, got int"):
            logclient.bind({1: 2})  # type: ignore[dict-item]
        assert logclient.bound() == {}

    def test_each_task_and_thread_has_its_own(self) -> None:
        seen: dict[str, dict[str, Any]] = {}

        async def task(name: str) -> None:
            with logclient.bind(task=name):
                await asyncio.sleep(0)
                seen[name] = logclient.bound()

        async def main() -> None:
            logclient.bind(main=True)
            await asyncio.gather(task("one"), task("two"))

        asyncio.run(main())
        thread = threading.Thread(target=lambda: seen.update(thread=logclient.bound()))
        with logclient.bind(a=1):
            thread.start()
            thread.join(PATIENCE)
        assert seen == {
            "one": {"main": True, "task": "one"},
            "two": {"main": True, "task": "two"},
            "thread": {},
        }

    @examples(200)
    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=8), st.randoms())
    def test_bindings_end_in_any_order(self, given: list[tuple[str, int]], random: Random) -> None:
        Context().run(self.end_in_any_order, given, random)

    @staticmethod
    def end_in_any_order(given: list[tuple[str, int]], random: Random) -> None:
        held = [(logclient.bind({name: value}), {name: value}) for name, value in given]
        while held:
            binding, _ = held.pop(random.randrange(len(held)))
            for _ in range(random.choice((1, 1, 2))):
                binding.reset()
            left: dict[str, int] = {}
            for _, fields in held:
                left |= fields
            assert logclient.bound() == left
        assert context.current.get() is None

    def test_a_generator_that_another_request_closes_changes_nothing_there(self) -> None:
        def chunks() -> Iterator[None]:
            with logclient.bind(step="chunks"):
                yield

        with logclient.bind(request="A", user="ann"):
            of_a = chunks()
            next(of_a)
        with logclient.bind(request="B"):
            of_a.close()
            assert logclient.bound() == {"request": "B"}
        assert logclient.bound() == {}

    @pytest.mark.parametrize("first", [0, 1])
    def test_generators_of_one_thread_end_in_any_order(self, first: int) -> None:
        def response(name: str) -> Iterator[dict[str, Any]]:
            with logclient.bind(request=name):
                while True:
                    yield logclient.bound()

        both = [response("A"), response("B")]
        for one in both:
            next(one)
        both.pop(first).close()
        assert next(both[0]) == {"request": "AB"[1 - first]}
        both[0].close()
        assert logclient.bound() == {}

    @pytest.mark.parametrize("ending", ["reset", "exit", "close"])
    def test_another_context_that_ends_a_binding_stays_as_it_is(self, ending: str) -> None:
        def steps() -> Iterator[Binding]:
            with logclient.bind(request="A", user="ann") as made:
                yield made

        of_a, of_b = Context(), Context()
        generator = steps()
        binding = of_a.run(next, generator)
        task = of_a.copy()
        ends = {"reset": binding.reset, "exit": partial(binding.__exit__, None, None, None)}
        of_b.run(logclient.bind, {"request": "B"})
        of_b.run(ends.get(ending, generator.close))  # type: ignore[attr-defined]
        assert of_b.run(logclient.bound) == {"request": "B"}
        # Nothing can end the binding where it was made, so the next one there does.
        with_next = of_a.run(logclient.bind, {"request": "C"})
        assert of_a.run(logclient.bound) == {"request": "C"}
        of_a.run(with_next.reset)
        assert of_a.run(logclient.bound) == {}
        assert task.run(logclient.bound) == {"request": "A", "user": "ann"}

    def test_an_async_generator_closed_by_another_task(self) -> None:
        seen = []

        async def rows() -> AsyncIterator[int]:
            with logclient.bind(request="A"):
                yield 1

        async def begin() -> AsyncIterator[int]:
            made = rows()
            await anext(made)
            return made

        async def end(made: Any) -> None:
            with logclient.bind(request="B"):
                await made.aclose()
                seen.append(logclient.bound())
            seen.append(logclient.bound())

        async def main() -> None:
            await asyncio.create_task(end(await asyncio.create_task(begin())))

        asyncio.run(main())
        assert seen == [{"request": "B"}, {}]

    def test_what_is_bound_inside_without_a_block_ends_with_the_block(self) -> None:
        with logclient.bind(a=0, b=0):
            with logclient.bind(a=1):
                logclient.bind(job=7)
                logclient.unbind("b")
                inside = copy_context()
                assert logclient.bound() == {"a": 1, "job": 7}
            assert logclient.bound() == {"a": 0, "b": 0}
        assert logclient.bound() == {}
        with inside.run(logclient.bind, {"step": 1}):
            assert inside.run(logclient.bound) == {"a": 1, "job": 7, "step": 1}
        assert inside.run(logclient.bound) == {"a": 1, "job": 7, "step": 1}

    def test_a_binding_that_is_never_undone_does_not_outlast_the_next(self) -> None:
        def job(number: int) -> dict[str, Any]:
            with logclient.bind(job=number):
                binding = logclient.bind({f"step.{number}": 1})
            return dict(binding.fields)

        assert Context().run(lambda: [job(0), job(1)])[1] == {"job": 1, "step.1": 1}

    def test_bindings_of_a_long_context_take_bounded_memory(self) -> None:
        def run() -> int:
            for number in range(1000):
                made = logclient.bind({f"n{number % 3}": number})
                logclient.unbind(f"n{number % 2}")
            assert made.fields
            return len(context.current.get().parts)  # type: ignore[union-attr]

        assert Context().run(run) <= 3

    def test_many_clients_in_one_context(self) -> None:
        encoders = [Encoder(fields={"n": n}, bound=context.current) for n in range(50)]
        with logclient.bind(a=1):
            for _ in range(3):
                for n, encoder in enumerate(encoders):
                    assert members_of(encoder.encode({})[0]) == {"n": n, "a": 1}

    def test_each_event_has_those_of_its_own_context(self) -> None:
        encoder = Encoder(bound=context.current)
        for n in (1, 2, 1):
            with logclient.bind(n=n):
                for _ in range(3):
                    assert members_of(encoder.encode({})[0]) == {"n": n}
                with logclient.bind(m=n):
                    assert members_of(encoder.encode({})[0]) == {"n": n, "m": n}
                assert members_of(encoder.encode({})[0]) == {"n": n}
            assert members_of(encoder.encode({})[0]) == {}

    def test_a_formatter_writes_them(self) -> None:
        with logclient.bind(request_id="r"):
            made = json.loads(EcsFormatter({"service.name": "shop"}).format(record_of({})))
        assert (made["request_id"], made["service"]) == ("r", {"name": "shop"})

    def test_a_handler_refuses_options_of_a_formatter(self) -> None:
        handler = logclient.Handler("lumberjack://127.0.0.1:9")
        with pytest.raises(ConfigError, match="formatter: give its fields to the handler"):
            handler.setFormatter(EcsFormatter({"a": 1}))
        with pytest.raises(ConfigError, match="formatter: give its error_fingerprint to the handler"):
            handler.setFormatter(EcsFormatter(error_fingerprint=True))
        handler.setFormatter(EcsFormatter())
        handler.close()


def test_all_events_of_a_client_have_the_fields(tmp_path: Path) -> None:
    options = {"fields": {"build": 7}, "service": "shop", "environment": "test", "tags": ["a", "b"]}
    logger = logging.getLogger("test-fields")
    logger.propagate = False
    with Collector(capture=str(tmp_path)) as collector:
        handler = logclient.Handler(f"lumberjack://127.0.0.1:{collector.port}", **options)
        logger.addHandler(handler)
        try:
            with logclient.bind(request_id="r-1"):
                logger.warning("one", extra={"build": 8})
                handler.client.send({"message": "two", "n": 1})
                assert handler.client.submit("three").result(PATIENCE) == ("acked", "")
            handler.client.send(b'{"message":"four"}')
            assert handler.client.flush(PATIENCE) == 0
        finally:
            logger.removeHandler(handler)
            handler.client.close()
        from logclient.files.capture import CaptureReader

        units = (unit for unit in CaptureReader(tmp_path) if unit.direction == 0)
        found = {event["message"]: dotted(event) for unit in units for event in decode(unit.raw)}
    common = {"service.name": "shop", "service.environment": "test", "tags": ["a", "b"]}
    for message, build in (("one", 8), ("two", 7), ("three", 7)):
        assert found[message].items() >= {**common, "build": build, "request_id": "r-1"}.items()
    assert "build" not in found["four"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fields": 5}, "fields: must be a mapping, or a JSON object, got 5"),
        ({"fields": "[1]"}, "fields: must be a mapping"),
        ({"fields": {1: 2}}, "fields: must have texts as names, got 1"),
        ({"fields": {"": 2}}, "fields: must have texts as names, got ''"),
        ({"enrich": "hots"}, "enrich: must be some of host, container, kubernetes, all or none"),
        ({"service": 5}, "service: must be text"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        logclient.connect("lumberjack://h", **options)


def test_fields_may_stand_in_the_url() -> None:
    client = logclient.connect('lumberjack://h?fields={"a":1}&service=shop&tags=x,y&enrich=all')
    assert client.config.options["fields"] == {"a": 1}
    assert client.config.options["enrich"] == ("host", "container", "kubernetes")
    client.close()


class TestPlace:
    ID = "0123456789abcdef" * 4

    def put(self, root: Path, path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    def test_this_host_is_named(self) -> None:
        import platform

        found = fields_of(["host"])
        assert found["host.name"] == platform.node()
        assert found["host.architecture"] == platform.machine()

    def test_a_distribution_is_named(self, tmp_path: Path) -> None:
        self.put(tmp_path, "etc/os-release", 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\n')
        self.put(tmp_path, "etc/machine-id", "abc\n")
        found = fields_of(["host"], str(tmp_path))
        assert found["host.os.name"] == "Debian GNU/Linux"
        assert (found["host.os.platform"], found["host.os.version"], found["host.id"]) == (
            "debian",
            "12",
            "abc",
        )

    @pytest.mark.parametrize(
        ("path", "line"),
        [
            ("proc/self/cgroup", "12:pids:/docker/{id}"),
            ("proc/self/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
            ("proc/self/mountinfo", "1 2 0:1 /var/lib/docker/containers/{id}/hostname /etc/hostname rw"),
        ],
    )
    def test_a_container_is_found(self, path: str, line: str, tmp_path: Path) -> None:
        self.put(tmp_path, path, f"0::/\n{line.format(id=self.ID)}\n")
        assert fields_of(["container"], str(tmp_path)) == {"container.id": self.ID}

    def test_outside_of_containers_there_is_nothing(self, tmp_path: Path) -> None:
        self.put(tmp_path, "proc/self/cgroup", "0::/user.slice\n")
        assert fields_of(["container", "kubernetes"], str(tmp_path), {}) == {}

    def test_a_pod_is_described(self, tmp_path: Path) -> None:
        self.put(tmp_path, "etc/podinfo/labels", 'app="shop"\nhelm.sh/chart="a \\"b\\""\nbroken\n')
        self.put(tmp_path, "etc/podinfo/uid", "u-1")
        self.put(tmp_path, "var/run/secrets/kubernetes.io/serviceaccount/namespace", "prod")
        variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "shop-1", "NODE_NAME": "node-7"}
        assert fields_of(["kubernetes"], str(tmp_path), variables) == {
            "kubernetes.pod.name": "shop-1",
            "kubernetes.pod.uid": "u-1",
            "kubernetes.namespace": "prod",
            "kubernetes.node.name": "node-7",
            "kubernetes.labels.app": "shop",
            "kubernetes.labels.helm_sh/chart": 'a "b"',
        }

    def test_variables_win_over_files(self, tmp_path: Path) -> None:
        self.put(tmp_path, "etc/podinfo/name", "of-the-file")
        variables = {"KUBERNETES_SERVICE_HOST": "h", "POD_NAME": "of-the-variable", "POD_NAMESPACE": "n"}
        found = fields_of(["kubernetes"], str(tmp_path), variables)
        assert (found["kubernetes.pod.name"], found["kubernetes.namespace"]) == ("of-the-variable", "n")


class TestTimestamp:
    @pytest.mark.parametrize("trust", ["none", "metadata"])
    def test_mappings_and_texts_get_the_time_of_their_call(self, trust: str) -> None:
        now = time.time()
        given = [{"n": 1}, "text", {"@metadata": {"pipeline": "p"}}, {"@timestamp": "2001-01-01T00:00:00Z"}]
        with (
            Collector(keep=True) as server,
            logclient.connect(server.url, trust=trust, compression=0) as client,
        ):
            for event in given:
                client.send(event)
            client.send(b'{"raw":1}')
            assert client.flush(PATIENCE) == 0
            *made, given_time, raw = (event.get("@timestamp") for event in server.events(5, PATIENCE))
        for text in made:
            assert abs(datetime.fromisoformat(text).timestamp() - now) < 60
        assert (given_time, raw) == ("2001-01-01T00:00:00Z", None)

    def test_it_can_be_switched_off(self) -> None:
        with Collector(keep=True) as server, logclient.connect(server.url, timestamp=False) as client:
            client.send({"n": 1})
            assert "@timestamp" not in server.events(1, PATIENCE)[0]

    @examples(100)
    @given(FIELDS)
    def test_no_name_is_a_value_and_an_object(self, event: dict[str, Any]) -> None:
        event = {**event, **({"@timestamp.zone": 1} if "tags" in event else {})}
        _assert_sound(members_of(Encoder(timestamp=True, trust_metadata=True).encode(event)[0]))


class TestFormatterJson:
    CASES = (
        ('{"message": "m", "n": 1}', {"message": "m", "n": 1}),
        (' {"message": "m"}\n', {"message": "m"}),
        ("{not json}", None),
        ('{"message": 1} {"message": 2}', None),
        ("[1]", None),
        ("plain", None),
        ("", None),
        ('{"message": "gr\u00fc\u00df"}', {"message": "gr\u00fc\u00df"}),
    )

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("kind", [str, type("Own", (str,), {})])
    def test_objects_are_events_and_other_text_is_the_message(self, version: int, kind: type[str]) -> None:
        handler_text = iter([kind(text) for text, _ in self.CASES])

        class Formatter(logging.Formatter):
            def format(self, record: logging.LogRecord) -> str:
                return next(handler_text)

        with Collector(keep=True) as server:
            handler = logclient.Handler(server.url, version=version, formatter_json=True)
            handler.setFormatter(Formatter())
            for _ in self.CASES:
                handler.handle(record_of({}))
            assert handler.client.flush(PATIENCE) == 0
            arrived = server.events(len(self.CASES), PATIENCE)
            assert handler.client.stats().failed == {}
            handler.client.close()
        for (text, made), event in zip(self.CASES, arrived, strict=True):
            if made is None:
                assert event["message"] == text
            elif version == 2:
                assert {name: event[name] for name in event if name not in ("@metadata", "event.id")} == made
            else:  # the fields of the record are there, too
                assert event["message"] == made["message"]

    def test_without_the_option_text_is_the_message(self) -> None:
        class Formatter(logging.Formatter):
            def format(self, record: logging.LogRecord) -> str:
                return '{"n":1}'

        with Collector(keep=True) as server:
            handler = logclient.Handler(server.url)
            handler.setFormatter(Formatter())
            handler.handle(record_of({}))
            assert server.events(1, PATIENCE)[0]["message"] == '{"n":1}'
            handler.client.close()
