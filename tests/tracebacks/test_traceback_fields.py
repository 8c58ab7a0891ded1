"""Exceptions in the documents of every protocol, and formatters of the application."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

import logclient
from logclient._ext.record import Encoder
from logclient._ext.tracebacks import ExceptionFormatter
from logclient.errors import ConfigError
from logclient.logjam import Agent
from logclient.logjam.agent import LineFormatter
from logclient.records.formatters import EcsFormatter
from logclient.testing.plog import Collector
from tests.support import agent_handler
from tests.tracebacks.failing_modules import FAILURES, LINKS, exc_info, fail

standard = logging.Formatter().formatException


def record_of(error: BaseException | None, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord("shop", 40, "f.py", 1, "it failed", (), error and exc_info(error))
    vars(record).update(more)
    return record


def failure(link: int = 1) -> BaseException:
    return LINKS[link](fail([], FAILURES[0]), fail([], FAILURES[1]))


class Loud(logging.Formatter):
    """A formatter of the application."""

    def formatException(self, ei: Any) -> str:
        return "by the application"


class LoudEcs(EcsFormatter):
    def formatException(self, ei: Any) -> str:
        return super().formatException(ei).upper()


class TestTexts:
    def test_a_document_has_the_standard_text(self) -> None:
        encoder = Encoder()
        for link in range(len(LINKS)):
            error = failure(link)
            for _ in range(2):
                record = record_of(error)
                fields = json.loads(encoder.encode_record(record)[0])
                assert fields["error.stack_trace"] == record.exc_text == standard(exc_info(error))
        assert encoder.exceptions.sizes() or not encoder.exceptions.cached

    def test_a_line_of_logjam_has_the_standard_text(self) -> None:
        error = failure()
        record = record_of(error)
        assert LineFormatter().format(record) == "it failed\n" + standard(exc_info(error))

    def test_an_unhandled_exception_of_a_request_has_the_text(self) -> None:
        bodies: list[bytes] = []
        agent = Agent(lambda body, level, kind: bodies.append(body), app_env="shop-test")
        error = failure()
        with pytest.raises(type(error)), agent.request("Orders#ship"):
            raise error
        (line,) = json.loads(bodies[0])["lines"]
        assert line[2] == standard(exc_info(error))

    def test_an_ecs_formatter_has_the_standard_text(self) -> None:
        error = failure()
        fields = json.loads(EcsFormatter().format(record_of(error)))
        assert (
            fields["error"]["stack_trace"]
            == standard(exc_info(error))
            == EcsFormatter().formatException(exc_info(error))
        )

    def test_stack_info_follows_the_text(self) -> None:
        error = failure()
        fields = json.loads(Encoder().encode_record(record_of(error, stack_info="Stack:\n  here"))[0])
        assert fields["error.stack_trace"] == standard(exc_info(error)) + "\nStack:\n  here"


class TestFormattersOfTheApplication:
    def test_an_own_format_exception_is_used(self) -> None:
        error = failure()
        out = io.StringIO()
        for formatter, expected in (
            (Loud(), "it failed\nby the application"),
            (LoudEcs(), json.dumps(standard(exc_info(error)).upper())),
        ):
            handler = logging.StreamHandler(out)
            handler.setFormatter(formatter)
            handler.handle(record_of(error))
            assert expected in out.getvalue()

    def test_a_handler_leaves_an_own_format_exception_alone(self) -> None:
        bodies: list[bytes] = []
        agent = Agent(lambda body, level, kind: bodies.append(body), app_env="shop-test")
        handler = agent_handler(agent)
        handler.setFormatter(Loud())
        handler.handle(record_of(failure()))
        assert json.loads(bodies[0])["lines"][0][2] == "it failed\nby the application"


class TestFingerprint:
    @pytest.fixture
    def expected(self) -> tuple[BaseException, str]:
        error = failure()
        return error, ExceptionFormatter().fingerprint(exc_info(error))

    def test_it_is_a_field_on_request(self, expected: tuple[BaseException, str]) -> None:
        error, fingerprint = expected
        for encoder in (Encoder(fingerprint=True), Encoder(fingerprint=True, ecs=False)):
            fields = json.loads(encoder.encode_record(record_of(error))[0])
            assert fields["error.fingerprint"] == fingerprint
            assert "error.fingerprint" not in json.loads(encoder.encode_record(record_of(None))[0])
        assert "error.fingerprint" not in json.loads(Encoder().encode_record(record_of(error))[0])

    def test_a_field_of_the_application_replaces_it(self, expected: tuple[BaseException, str]) -> None:
        record = record_of(expected[0], **{"error.fingerprint": "mine"})
        for encoder in (Encoder(fingerprint=True), Encoder()):
            body = encoder.encode_record(record)[0]
            assert body.count(b'"error.fingerprint":') == 1
            assert json.loads(body)["error.fingerprint"] == "mine"

    def test_formatter_and_plog_documents_have_it(self, expected: tuple[BaseException, str]) -> None:
        error, fingerprint = expected
        text = EcsFormatter(error_fingerprint=True).format(record_of(error))
        assert json.loads(text)["error"]["fingerprint"] == fingerprint
        with Collector(keep=True) as server:
            handler = logclient.Handler(server.url, error_fingerprint=True)
            handler.handle(record_of(error))
            handler.close()
            assert server.wait_for(events=1)
            (body,) = server.messages()
        assert json.loads(body)["data"]["error.fingerprint"] == fingerprint

    @pytest.mark.parametrize("url", ["lumberjack://127.0.0.1:9", "logux://127.0.0.1:9", "plog://127.0.0.1:9"])
    def test_it_is_an_option_of_every_url_with_documents(self, url: str) -> None:
        with logclient.connect(url) as client:
            assert not client.encoder.fingerprint
        with logclient.connect(f"{url}?error_fingerprint=true") as client:
            assert client.encoder.fingerprint
        with pytest.raises(ConfigError, match="error_fingerprint"):
            logclient.connect(url, error_fingerprint="perhaps")

    def test_an_exception_that_has_none_is_shipped(self) -> None:
        record = record_of(failure())
        record.exc_info = (ValueError, "not an exception", None)  # type: ignore[assignment]
        fields = json.loads(Encoder(fingerprint=True).encode_record(record)[0])
        assert fields["error.type"] == "ValueError"
        assert "error.fingerprint" not in fields
