"""A running client gets other fields or another level."""

from __future__ import annotations

import logging
import sys
import threading
from collections import UserDict
from typing import Any

import pytest

import logclient
from logclient import ConfigError
from logclient.integrations.structlog import LoggerFactory
from logclient.testing.lumberjack import Collector
from tests.support.documents import dotted
from tests.support.forks import run_in_child
from tests.support.patience import PATIENCE

NOBODY = "lumberjack://127.0.0.1:9"


class TestFieldsAndLevels:
    def test_the_next_event_has_the_new_fields(self) -> None:
        with Collector(keep=True) as server:
            with logclient.connect(server.url, fields={"a": 1, "b": 1}, service="shop") as client:
                with logclient.bind(c=1):
                    client.send("one")
                    client.reconfigure(fields={"b": 2})
                    client.send("two")
                    client.reconfigure(fields=None, service="cart", tags=["x"])
                    client.send("three")
                assert client.flush(PATIENCE) == 0
            names = ("a", "b", "c", "service.name", "tags")
            events = [dotted(event) for event in server.events(3, PATIENCE)]
            found = [{name: event.get(name) for name in names} for event in events]
        assert [list(fields.values()) for fields in found] == [
            [1, 1, 1, "shop", None],
            [None, 2, 1, "shop", None],
            [None, None, 1, "cart", ["x"]],
        ]

    def test_other_threads_may_make_handlers_meanwhile(self) -> None:
        with logclient.connect(NOBODY) as client:
            handlers = [logclient.Handler(client=client) for _ in range(2000)]
            over = threading.Event()

            def make() -> None:
                while not over.is_set():
                    [logclient.Handler(client=client) for _ in range(20)]

            thread = threading.Thread(target=make)
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-6)
            thread.start()
            try:
                for level in 100 * (10, 20):
                    client.reconfigure(level=level)
            finally:
                over.set()
                thread.join()
                sys.setswitchinterval(interval)
            client.close(0.0)
        assert {handler.level for handler in handlers} == {20}

    def test_a_fork_meanwhile_leaves_the_child_no_held_lock(self) -> None:
        with logclient.connect(NOBODY) as client:

            class Forking(UserDict[str, Any]):
                forked = False

                def __iter__(self) -> Any:
                    if not self.forked:
                        self.forked = True
                        run_in_child(lambda: client.reconfigure(fields={"a": 1}))
                    return super().__iter__()

            fields = Forking(a=2)
            client.reconfigure(fields=fields)
            assert fields.forked

    def test_documents_for_before_send_have_them_too(self) -> None:
        with Collector(keep=True) as server:
            with logclient.connect(server.url, fields={"a": 1}, before_send=dict) as client:
                client.reconfigure(fields={"a": 2})
                client.send("one")
                assert client.flush(PATIENCE) == 0
            assert server.events(1, PATIENCE)[0]["a"] == 2

    def test_the_level_is_that_of_all_handlers(self) -> None:
        with logclient.connect(NOBODY, timeout=0) as client:
            handlers = [logclient.Handler(client=client) for _ in range(2)]
            client.reconfigure(level="error")
            assert [handler.level for handler in handlers] == [logging.ERROR] * 2
            client.reconfigure(level=15)
            assert [handler.level for handler in handlers] == [15] * 2


class TestRedactionAndSampling:
    @pytest.mark.parametrize("options", [{}, {"before_send": lambda document: {**document, "added": 1}}])
    def test_the_next_event_has_other_values_redacted(self, options: dict[str, Any]) -> None:
        """Also a name that the encoder remembers, those of the client and those that a step adds."""
        fields: dict[str, Any] = {"token": 1, "place": 1}
        with Collector(keep=True) as server:
            with logclient.connect(server.url, fields=fields, **options) as client:
                logger = logging.Logger("test-reconfigure")
                logger.addHandler(logclient.Handler(client=client))
                for names in ("none", ["none", "secret", "token", "added"], ["none", "place"], "none"):
                    client.reconfigure(redact=names)
                    client.send({"secret": 1})
                    logger.error("one", extra={"secret": 1})
                assert client.flush(PATIENCE) == 0
            events = [dotted(event) for event in server.events(8, PATIENCE)]
        gone = [sorted(name for name, value in event.items() if value == "[redacted]") for event in events]
        added = ["added"] if options else []
        first, second = [*added, "secret", "token"], ["place"]
        assert gone == [[], [], first, first, second, second, [], []]

    def test_records_are_sampled_from_then_on(self) -> None:
        with Collector(keep=True) as server:
            with logclient.connect(server.url) as client:
                logger = logging.Logger("test-reconfigure")
                logger.addHandler(logclient.Handler(client=client))
                other = LoggerFactory(client=client)("shop")
                for share in (None, {"INFO": 0}, {"INFO": 1}, {"INFO": 0}, None):
                    client.reconfigure(sample=share)
                    logger.info("a record")
                    other.info(event="of another")
                client.reconfigure(dedupe="1h")
                for _ in range(3):
                    logger.info("the same")
                assert client.flush(PATIENCE) == 0
                assert client.stats().filtered == {"sample": 4, "dedupe": 2}
            messages = [event["message"] for event in server.events(7, PATIENCE)]
        assert messages == ["a record", "of another"] * 3 + ["the same"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            ({"url": "lumberjack://127.0.0.1:1"}, "url: cannot change"),
            ({"window": 5}, "window: cannot change"),
            ({"ca": "x"}, "ca: cannot change"),
            ({"redact_text": "x"}, "redact_text: cannot change"),
            ({"sample": {"INFO": 2}}, "sample: "),
            ({"connect_timeout": 4}, "connect_timeout: cannot change"),
            ({"nonsense": 5}, "nonsense: cannot change"),
            ({"level": "LOUD"}, "level: must be"),
            ({"fields": 5}, "fields: must be a mapping"),
            ({"service": 5}, "service: must be"),
        ],
    )
    def test_wrong_changes_change_nothing(self, change: dict[str, Any], rule: str) -> None:
        with logclient.connect(NOBODY, timeout=0, fields={"a": 1}) as client:
            before = client.config
            with pytest.raises(ConfigError, match=f"^{rule}") as caught:
                client.reconfigure(**{"fields": {"a": 2}, **change} if "fields" not in change else change)
            if "cannot change" in rule:
                assert str(caught.value).endswith(": make a new client, then close the old one")
            assert client.config is before
            assert b'"a":1' in client.encoder.encode({})[0]

    def test_options_that_are_not_named_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the environment says later changes nothing."""
        monkeypatch.setenv("LOGCLIENT_ENVIRONMENT", "first")
        url = "lumberjack://127.0.0.1:9?window=77&tags=a"
        with logclient.connect(url, timeout=0, fields={"a": 1}) as client:
            monkeypatch.setenv("LOGCLIENT_SERVICE", "other")
            monkeypatch.setenv("LOGCLIENT_ENVIRONMENT", "second")
            client.reconfigure(tags=None)
            options = client.config.options
        found = [options[name] for name in ("window", "fields", "tags", "service", "environment")]
        assert found == [77, {"a": 1}, (), None, "first"]


@pytest.mark.parametrize(
    ("url", "change"),
    [("logjam://127.0.0.1:9/shop-test", {"fields": {"a": 1}}), ("plog://127.0.0.1:9", {"tags": "a"})],
)
def test_documents_that_are_not_ecs_keep_their_fields(url: str, change: Any) -> None:
    with logclient.connect(url) as client, pytest.raises(ConfigError, match="cannot change while the client"):
        client.reconfigure(**change)


def test_a_wrong_level_is_shown() -> None:
    client = logclient.connect("lumberjack://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^level: .* got 'LOUD'$"):
        client.reconfigure(level="LOUD")
    client.close()
