"""The active span of OpenTelemetry, for the documents that are made while it is active."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from logclient.errors import MissingExtra

_SERVICE = {
    "service.name": "service.name",
    "service.version": "service.version",
    "deployment.environment.name": "service.environment",
    "deployment.environment": "service.environment",  # its name until semantic conventions 1.27
}  # attributes of a resource, and their names in ECS

Fields = tuple[tuple[str, str], ...]


class Spans:
    """Finds the active span, for `Encoder`, and with `service` what its resource says about the service.

    OpenTelemetry's context is in the context variable `variable`; if that is None, `context` returns it.
    `service` may change: the encoder asks anew after ``set_fields``.
    """

    def __init__(self, service: bool) -> None:
        try:
            from opentelemetry import context, trace
        except ImportError:
            raise MissingExtra("opentelemetry", "opentelemetry") from None
        self._trace = trace
        self.service = service
        self._last: tuple[Any, Fields] = (None, ())
        self.context = context.get_current
        # Not public, so any other shape of it will do: then `context` is called.
        runtime = getattr(context, "_RUNTIME_CONTEXT", None)
        found = getattr(runtime, "_current_context", None)
        known = isinstance(found, ContextVar) and found.get(None) is context.get_current()
        self.variable: ContextVar[Any] | None = found if known else None
        _made.add(self)

    def find(self, context: Any) -> tuple[str, str, Fields] | None:
        """Return the ids of trace and span in hexadecimal digits, and fields about the service, if any."""
        try:
            span = self._trace.get_current_span(context)
            ids = span.get_span_context()
            if not ids.is_valid:
                return None
            service = self._service_of(span) if self.service else ()
            return self._trace.format_trace_id(ids.trace_id), self._trace.format_span_id(ids.span_id), service
        except Exception:
            return None

    def _service_of(self, span: Any) -> Fields:
        # A span that is not recorded has no resource: the provider made it, or that of another process.
        resource = getattr(span, "resource", None)
        if resource is None:
            resource = getattr(self._trace.get_tracer_provider(), "resource", None)
        last, fields = self._last
        if resource is not last:
            fields = tuple(service_fields(getattr(resource, "attributes", {})).items())
            self._last = resource, fields
        return fields


_made: WeakSet[Spans] = WeakSet()


def active_fields() -> dict[str, str]:
    """Return the fields that the active span gives to events; empty: there is none, or no client asks."""
    try:
        for spans in tuple(_made):
            found = spans.find(spans.context())
            if found is not None:
                trace, span, service = found
                return {**dict(service), "trace.id": trace, "span.id": span}
    except Exception:  # of code of others; and a client may be made in another thread meanwhile
        pass
    return {}


def service_fields(attributes: Any) -> dict[str, str]:
    """Return what the attributes of a resource say about the service, under the names of ECS."""
    found: dict[str, str] = {}
    for name, field in _SERVICE.items():
        value = attributes.get(name)
        if value not in (None, ""):
            found.setdefault(field, str(value))
    return found
