"""The active span in documents: the option `opentelemetry`, and the attributes of LoggingInstrumentor."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient import MissingExtra
from logclient._ext.record import Encoder
from logclient.records import context
from logclient.records.spans import Spans
from logclient.testing.lumberjack import Collector
from tests.support.documents import dotted
from tests.support.examples import examples
from tests.support.patience import PATIENCE, wait_until
from tests.support.record_fields import FIELDS, OURS, members_of, record_of

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import baggage, trace
from opentelemetry import context as their_context
from opentelemetry.instrumentation.logging import LoggingInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

RESOURCE = Resource(
    {"service.name": "shop", "service.version": "2.4.1", "deployment.environment.name": "production"}
)
SERVICE = {"service.name": "shop", "service.version": "2.4.1", "service.environment": "production"}
with pytest.MonkeyPatch.context() as patch:
    # The SDK's hook would start threads in each child that a later test forks, and may hang there.
    patch.setattr(os, "register_at_fork", lambda **hooks: None)
    PROVIDER = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
TRACER = PROVIDER.get_tracer("tests")
IDS = {"trace.id", "span.id"}


def _ids(span: trace.Span) -> dict[str, str]:
    """Return the ids as the standard library formats them."""
    found = span.get_span_context()
    return {"trace.id": f"{found.trace_id:032x}", "span.id": f"{found.span_id:016x}"}


def _encoder(service: bool = True, **options: Any) -> Encoder:
    return Encoder(bound=context.current, spans=Spans(service), **options)


def _made(encoder: Encoder, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return members_of(encoder.encode(event or {})[0])


def _made_record(encoder: Encoder, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a record that are not of every record."""
    made = members_of(encoder.encode_record(record_of(extra or {}))[0])
    return {name: value for name, value in made.items() if name not in OURS}


class TestOption:
    def test_documents_in_a_span_have_its_ids(self) -> None:
        encoder = _encoder()
        assert _made(encoder) == _made_record(encoder) == {}
        with TRACER.start_as_current_span("outer") as outer:
            assert _made(encoder) == _made_record(encoder) == {**SERVICE, **_ids(outer)}
            with TRACER.start_as_current_span("inner") as inner:
                assert _ids(inner)["trace.id"] == _ids(outer)["trace.id"]
                assert _made(encoder) == _made_record(encoder) == {**SERVICE, **_ids(inner)}
            assert _made(encoder) == _made_record(encoder) == {**SERVICE, **_ids(outer)}
        assert _made(encoder) == _made_record(encoder) == {}

    def test_small_ids_keep_their_zeros(self) -> None:
        span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xD, is_remote=True))
        with trace.use_span(span):
            made = _made(_encoder())
        assert made == {"trace.id": f"{'abc':0>32}", "span.id": f"{'d':0>16}"}

    @pytest.mark.parametrize("ids", [(0, 1), (1, 0), (1 << 128, 1), (1, 1 << 64)])
    def test_invalid_ids_are_left_out(self, ids: tuple[int, int]) -> None:
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(*ids, is_remote=False))):
            assert _made(_encoder()) == {}

    def test_a_context_without_a_span_adds_nothing(self) -> None:
        token = their_context.attach(baggage.set_baggage("user", "ann"))
        try:
            assert _made(_encoder()) == {}
        finally:
            their_context.detach(token)

    def test_a_span_that_fails_adds_nothing(self) -> None:
        class Failing(trace.NonRecordingSpan):
            def get_span_context(self) -> trace.SpanContext:
                raise RuntimeError("no context")

        with trace.use_span(Failing(trace.INVALID_SPAN_CONTEXT)):
            assert _made(_encoder(), {"n": 1}) == {"n": 1}

    def test_a_span_that_is_not_sampled_has_ids(self) -> None:
        tracer = TracerProvider(ALWAYS_OFF, RESOURCE, shutdown_on_exit=False).get_tracer("tests")
        with tracer.start_as_current_span("s") as span:
            assert _made(_encoder()) == _ids(span)

    def test_the_clients_own_service_wins(self) -> None:
        with TRACER.start_as_current_span("s") as span:
            assert _made(_encoder(service=False)) == _ids(span)
            for fields in ({"service.name": "own"}, {"service.name": "own", "service.environment": "test"}):
                assert _made(_encoder(fields=fields)) == {**SERVICE, **fields, **_ids(span)}
            assert _made(_encoder(fields={"service": {"id": 1}})) == {"service": {"id": 1}, **_ids(span)}
            with logclient.bind({"service.name": "bound"}):
                assert _made(_encoder())["service.name"] == "bound"

    def test_the_older_name_of_the_environment_is_known(self) -> None:
        resource = Resource({"deployment.environment": "staging", "service.version": 3, "service.name": ""})
        tracer = TracerProvider(resource=resource, shutdown_on_exit=False).get_tracer("tests")
        with tracer.start_as_current_span("s") as span:
            service = {"service.version": "3", "service.environment": "staging"}
            assert _made(_encoder()) == {**service, **_ids(span)}

    def test_the_nearest_field_wins(self) -> None:
        encoder = _encoder(service=False, fields={"trace.id": "client", "a": 1})
        with TRACER.start_as_current_span("s") as span, logclient.bind({"span.id": "bound", "a": 2}):
            assert _made(encoder) == _made_record(encoder) == {"a": 2, **_ids(span)}
            own = {"trace.id": "own", "a": 3}
            assert _made(encoder, own) == _made_record(encoder, own) == {**_ids(span), **own}
        assert _made(encoder) == {"trace.id": "client", "a": 1}

    @pytest.mark.slow
    @examples(300)
    @given(FIELDS, FIELDS, FIELDS, st.booleans())
    def test_documents_equal_merged_ones(
        self, own: dict[str, Any], bound: dict[str, Any], event: dict[str, Any], record: bool
    ) -> None:
        with TRACER.start_as_current_span("s") as span, context.bind(bound) if bound else nullcontext():
            encoder, twin = _encoder(False, fields=own), Encoder(fields={**own, **bound, **_ids(span)})
            if not record:
                assert members_of(encoder.encode(event)[0]) == members_of(twin.encode(event)[0])
                return
            event.pop("message", None)
            made, merged = (members_of(one.encode_record(record_of(event))[0]) for one in (encoder, twin))
            assert {**made, "@timestamp": ""} == {**merged, "@timestamp": ""}

    def test_pair_blocks_have_the_ids(self) -> None:
        with TRACER.start_as_current_span("s") as span:
            body = _encoder(service=False, pairs=True).encode({"m": "n"})[0]
        ids = _ids(span)
        assert (
            body
            == (
                b"\0\0\0\3\0\0\0\1m\0\0\0\1n"
                b"\0\0\0\x08trace.id\0\0\0\x20" + ids["trace.id"].encode() + b"\0\0\0\x07span.id\0\0\0\x10"
            )
            + ids["span.id"].encode()
        )

    def test_truncated_documents_have_the_ids(self) -> None:
        encoder = _encoder(service=False, max_event_bytes=600, truncate=True)
        with TRACER.start_as_current_span("s") as span:
            made = _made(encoder, {"message": "m" * 1000})
        assert made.items() >= _ids(span).items() and made["log.flags"] == ["truncated"]

    def test_each_task_and_thread_has_its_own(self) -> None:
        encoder = _encoder()
        wrong: list[Any] = []

        def check(span: trace.Span) -> None:
            made = _made(encoder)
            if made != {**SERVICE, **_ids(span)}:
                wrong.append((made, _ids(span)))

        async def task() -> None:
            with TRACER.start_as_current_span("task") as span:
                for _ in range(20):
                    check(span)
                    await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(task() for _ in range(40)))

        threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert wrong == []

    def test_another_span_at_the_same_place_is_found(self) -> None:
        encoder = _encoder(service=False)
        for _ in range(200):  # contexts reuse the memory of those before
            with TRACER.start_as_current_span("s") as span:
                assert _made(encoder) == _ids(span)

    def test_no_context_is_kept_alive(self) -> None:
        encoder = _encoder()
        with TRACER.start_as_current_span("s"):
            assert _made(encoder).keys() >= IDS
            found = weakref.ref(their_context.get_current())
        gc.collect()
        assert found() is None

    def test_any_runtime_of_contexts_will_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from opentelemetry.context.context import Context, _RuntimeContext

        empty = Context()

        class Runtime(_RuntimeContext):
            def __init__(self) -> None:
                self.now = contextvars.ContextVar("now", default=empty)

            def attach(self, context: Context) -> contextvars.Token[Context]:
                return self.now.set(context)

            def get_current(self) -> Context:
                return self.now.get()

            def detach(self, token: contextvars.Token[Context]) -> None:
                self.now.reset(token)

        monkeypatch.setattr(their_context, "_RUNTIME_CONTEXT", Runtime())
        encoder = _encoder()
        assert Spans(True).variable is None
        with TRACER.start_as_current_span("s") as span:
            assert _made(encoder) == {**SERVICE, **_ids(span)}
        assert _made(encoder) == {}

    def test_the_package_may_be_missing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        with pytest.raises(MissingExtra, match=r'pip install "logclient\[opentelemetry\]"'):
            logclient.connect("lumberjack://h", opentelemetry=True, spool=tmp_path, spool_mode="always")
        gc.collect()
        wait_until(lambda: not [*tmp_path.iterdir()])  # nothing of a client that was never made stays
        logclient.connect("lumberjack://h").close()


@pytest.mark.parametrize("options", [{}, {"before_send": dict}])
def test_another_service_takes_the_place_of_the_resources(options: dict[str, Any]) -> None:
    with Collector(keep=True) as server:
        with logclient.connect(server.url, opentelemetry=True, service="cart", **options) as client:
            with TRACER.start_as_current_span("s"):
                client.send("one")
                for service in (None, "till", None):
                    client.reconfigure(service=service)
                    client.send("another")
            assert client.flush(PATIENCE) == 0
        events = [dotted(event) for event in server.events(4, PATIENCE)]
    found = [{name: event[name] for name in SERVICE if name in event} for event in events]
    assert found == [{"service.name": "cart"}, SERVICE, {"service.name": "till"}, SERVICE]


@pytest.mark.parametrize("scheme", ["lumberjack", "logux"])
def test_every_way_of_sending_has_the_span(scheme: str) -> None:
    server: Any = Collector(keep=True)
    if scheme == "logux":
        from logclient.testing.logux import Collector as LoguxCollector

        server = LoguxCollector(keep=True)
    logger = logging.getLogger(f"test-spans-{scheme}")
    logger.propagate = False
    with server:
        handler = logclient.Handler(f"{server.url}?opentelemetry=true")
        logger.addHandler(handler)
        try:
            with TRACER.start_as_current_span("s") as span:
                logger.warning("one")
                handler.client.send({"message": "two"})
                assert handler.client.submit("three").result(PATIENCE).ok
            logger.warning("four")
            assert handler.client.flush(PATIENCE) == 0
            events = [dotted(event.get("data", event)) for event in server.events(4, PATIENCE)]
        finally:
            logger.removeHandler(handler)
            handler.client.close()
    for event in events[:3]:
        assert event.items() >= {**SERVICE, **_ids(span)}.items()
    assert not events[3].keys() & {*IDS, *SERVICE}


def test_structlog_and_loguru_have_the_span() -> None:
    structlog, loguru = pytest.importorskip("structlog"), pytest.importorskip("loguru")
    from logclient.integrations.loguru import Sink
    from logclient.integrations.structlog import LoggerFactory

    with Collector(keep=True) as server, logclient.connect(server.url, opentelemetry=True) as client:
        structlog.configure(
            processors=[structlog.processors.add_log_level], logger_factory=LoggerFactory(client=client)
        )
        sink = loguru.logger.add(Sink(client=client))
        try:
            with TRACER.start_as_current_span("s") as span:
                structlog.get_logger().info("one", n=1)
                loguru.logger.bind(n=2).info("two")
        finally:
            loguru.logger.remove(sink)
            structlog.reset_defaults()
        events = [dotted(event) for event in server.events(2, PATIENCE)]
    assert [event["n"] for event in events] == [1, 2]
    for event in events:
        assert event.items() >= {**SERVICE, **_ids(span)}.items()


@pytest.fixture
def instrumented() -> Iterator[logging.Logger]:
    """A logger whose records LoggingInstrumentor gives its attributes."""
    instrumentor = LoggingInstrumentor()
    instrumentor.instrument(
        tracer_provider=PROVIDER, inject_trace_context=True, enable_log_auto_instrumentation=False
    )
    yield logging.getLogger("instrumented")
    instrumentor.uninstrument()


class TestInstrumentedRecords:
    @staticmethod
    def made(logger: logging.Logger, encoder: Encoder, **extra: Any) -> dict[str, Any]:
        record = logger.makeRecord("shop", 20, "/srv/shop.py", 7, "text", (), None, "pay", extra or None)
        made = members_of(encoder.encode_record(record)[0])
        return {name: value for name, value in made.items() if name not in OURS}

    def test_their_attributes_get_the_names_of_ecs(self, instrumented: logging.Logger) -> None:
        for encoder in (Encoder(), _encoder(service=False)):
            assert self.made(instrumented, encoder) == {"service.name": "shop"}
            with TRACER.start_as_current_span("s") as span:
                assert self.made(instrumented, encoder) == {"service.name": "shop", **_ids(span)}
                assert self.made(instrumented, encoder, n=1) == {"service.name": "shop", **_ids(span), "n": 1}

    def test_the_nearest_field_wins(self, instrumented: logging.Logger) -> None:
        encoder = Encoder(fields={"service.name": "own", "span.id": "client"}, bound=context.current)
        with TRACER.start_as_current_span("s") as span, logclient.bind({"trace.id": "bound"}):
            assert self.made(instrumented, encoder) == {"service.name": "own", **_ids(span)}
            own = {"trace.id": "record"}
            assert self.made(instrumented, encoder, **own) == {
                "service.name": "own", **_ids(span), **own,
            }  # fmt: skip

    def test_a_record_keeps_the_span_it_was_made_in(self, instrumented: logging.Logger) -> None:
        encoder = _encoder(service=False)
        with TRACER.start_as_current_span("s") as span:
            record = instrumented.makeRecord("shop", 20, "/srv/shop.py", 7, "text", (), None)
        before = instrumented.makeRecord("shop", 20, "/srv/shop.py", 7, "text", (), None)
        with TRACER.start_as_current_span("later"):
            made = members_of(encoder.encode_record(record)[0])
            assert made.items() >= _ids(span).items()
            assert not members_of(encoder.encode_record(before)[0]).keys() & IDS

    def test_messages_that_are_mappings_have_them(self, instrumented: logging.Logger) -> None:
        with TRACER.start_as_current_span("s") as span:
            record = instrumented.makeRecord("shop", 20, "/a.py", 7, {"message": "m", "n": 1}, (), None)
        made = members_of(Encoder().encode_record(record)[0])
        assert made.items() >= {"message": "m", "n": 1, "service.name": "shop", **_ids(span)}.items()
        assert not any(name.startswith("otel") for name in made)

    @pytest.mark.slow
    @examples(300)
    @given(
        st.one_of(st.sampled_from(("0", "ab" * 16, "AB" * 16, '"' * 32, "é" * 32)), st.none(), st.integers()),
        st.one_of(st.sampled_from(("0", "cd" * 8, "cd" * 16)), st.none()),
        st.one_of(st.sampled_from(("", "shop", 'a"é\ud800')), st.none()),
        FIELDS,
        st.booleans(),
    )
    def test_odd_attributes_equal_a_plain_mapping(
        self, trace_id: Any, span_id: Any, service: Any, extra: dict[str, Any], last: bool
    ) -> None:
        extra.pop("message", None)
        given = {"otelSpanID": span_id, "otelTraceID": trace_id, "otelTraceSampled": True}
        given["otelServiceName"] = service
        fields: dict[str, Any] = {"service.name": service} if service else {}
        if trace_id == "ab" * 16 and span_id == "cd" * 8:
            fields |= {"trace.id": trace_id, "span.id": span_id}
        record = record_of({**extra, **given} if last else {**given, **extra})
        made = members_of(Encoder().encode_record(record)[0])
        twin = members_of(Encoder(fields=fields).encode_record(record_of(extra))[0])
        assert {**made, "@timestamp": ""} == {**twin, "@timestamp": ""}

    def test_many_services_are_told_apart(self) -> None:
        encoder = Encoder()
        for _ in range(2):
            for n in range(40):
                name = f"service {n}"
                record = record_of({"otelTraceID": "0", "otelServiceName": name})
                assert members_of(encoder.encode_record(record)[0])["service.name"] == name
