"""The client of ``connect("logjam://...")`` over real sockets, against a device and its capture."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest

import logclient
from logclient import cli
from logclient.config import registry
from logclient.config.parsing import parse, resolve
from logclient.errors import ConfigError, ConnectFailed, ExitCode
from tests.oracle.logjam_document import judge
from tests.support import clean_environment
from tests.support.patience import PATIENCE
from tests.support.pumps import refuse_pump

zmq = pytest.importorskip("zmq")

from logclient.logjam import Client, Subscriber  # noqa: E402
from logclient.testing.logjam import Collector  # noqa: E402
from logclient.transports.zmq import Zmq  # noqa: E402

HOST = socket.gethostname()


def until(done: Callable[[], object]) -> None:
    """Wait until the condition holds; fail after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


@pytest.fixture(params=["compiled", "python"])
def pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the compiled pump, and with the one in Python."""
    if request.param == "python":
        monkeypatch.setattr(Zmq, "load_pump", refuse_pump("a test needs the link in Python"))
    return str(request.param)


@pytest.fixture
def device() -> Iterator[Collector]:
    with Collector(keep=True) as device:
        yield device


def url_of(device: Collector, scheme: str = "logjam", **options: object) -> str:
    port = device.push_port if scheme.endswith("push") else device.port
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{scheme}://127.0.0.1:{port}/shop-production" + (f"?{query}" if query else "")


def bodies(device: Collector, n: int) -> list[dict[str, Any]]:
    return [body if isinstance(body, dict) else json.loads(body) for body in device.events(n)]


class TestModes:
    """Requests, async and PUSH."""

    @pytest.mark.slow
    def test_requests_are_acked_in_order(self, device: Collector, pump: str) -> None:
        with logclient.connect(url_of(device)) as client:
            for n in range(3000):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            stats = client.stats()
            ids = [client.event_id(n + 1) for n in range(3000)]
        assert (stats.acked, stats.handed, stats.failed) == (3000, 0, {})
        found = bodies(device, 3000)
        assert [(body["n"], body["request_id"]) for body in found] == list(enumerate(ids))

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["logjam", "logjam+push"])
    def test_events_without_replies_are_handed(self, device: Collector, pump: str, scheme: str) -> None:
        options = {"mode": "async"} if scheme == "logjam" else {}
        with logclient.connect(url_of(device, scheme, **options)) as client:
            for n in range(5000):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            stats = client.stats()
        # Closing the client waited for what ZeroMQ still held.
        assert (stats.acked, stats.handed, stats.failed) == (0, 5000, {})
        assert [body["n"] for body in bodies(device, 5000)] == list(range(5000))

    @pytest.mark.slow
    def test_handed_counts_what_zeromq_accepted(self, pump: str) -> None:
        # A peer that completes the handshake and reads nothing.
        context = zmq.Context()
        sink = context.socket(zmq.PULL)
        sink.setsockopt(zmq.RCVHWM, 1)
        sink.setsockopt(zmq.RCVBUF, 4096)
        port = sink.bind_to_random_port("tcp://127.0.0.1")
        body = b'{"x":"%s"}' % (b"x" * 2000)
        url = f"logjam+push://127.0.0.1:{port}/shop-production?hwm=50&max_bytes=100MiB"
        client = logclient.connect(url)
        try:
            for _ in range(30_000):
                assert client.send(body)
            assert client.flush(0.2) > 0, "ZeroMQ cannot have taken them all"
            stats = client.stats()
            assert 0 < stats.handed < 30_000
            assert stats.handed + stats.inflight + stats.queued == 30_000
            got = 0
            while got < 30_000:
                assert sink.poll(PATIENCE * 1000)
                sink.recv_multipart()
                got += 1
            assert client.flush(PATIENCE) == 0
            assert client.stats().handed == 30_000
        finally:
            client.close(0.0)
            context.destroy(linger=0)

    @pytest.mark.slow
    def test_break_loses_only_what_zeromq_held(self, pump: str) -> None:
        """Events that ZeroMQ had not accepted go once, over the next connection."""
        body = b'"x":"%s"' % (b"x" * 3000)
        # A peer that completes the handshake and reads nothing; ZeroMQ cannot hold all events for it.
        context = zmq.Context()
        first = context.socket(zmq.PULL)
        first.setsockopt(zmq.RCVHWM, 1)
        port = first.bind_to_random_port("tcp://127.0.0.1")
        url = f"logjam+push://127.0.0.1:{port}/shop-production?hwm=20&backoff_max=0.05"
        client = logclient.connect(url, max_bytes="100MiB")
        for n in range(20_000):
            client.send(b'{"n":%d,%s}' % (n, body))
        until(lambda: client.stats().handed > 200)
        context.destroy(linger=0)
        assert client.flush(0.0) > 0, "the break came in the middle"
        with Collector(push_port=port, keep=True) as second, client:
            assert client.flush(PATIENCE) == 0
            client.close()
            stats = client.stats()
            numbers = [event["n"] for event in second.events(20_000 - stats.in_doubt)]
        assert stats.handed == 20_000 and stats.connects >= 2 and stats.failed == {}
        assert 200 <= stats.in_doubt == numbers[0], "all that the first one had, and nothing else"
        assert numbers == list(range(numbers[0], 20_000)), "nothing twice, nothing left out behind the break"

    def test_each_event_is_in_doubt_after_a_break(self, pump: str) -> None:
        """All events were handed and have arrived; the client cannot know it."""
        body = b'{"x":"%s"}' % (b"x" * 30_000)
        with Collector(push_port=0) as device:
            url = f"{device.push_url}/shop-production?hwm=20&compression=none"
            with logclient.connect(url) as client:
                for _ in range(1000):
                    client.send(body)
                assert device.wait_for(events=1000, timeout=PATIENCE)
                assert client.flush(PATIENCE) == 0
                device.stop()
                until(lambda: client.stats().disconnects == 1)
                stats = client.stats()
                assert stats.in_doubt == 1000


class TestOptions:
    def test_transport_takes_options_of_the_url(self) -> None:
        config = parse(
            "logjam://h:1/shop-production?hwm=7&mode=async",
            curve_server="a" * 40,
        )
        public, secret = (key.decode() for key in zmq.curve_keypair())
        transport = Zmq(config.replace(curve_server=public))
        assert (transport.kind, transport.hwm) == ("DEALER", 7)
        assert transport.drains_on_close
        assert transport.curve is not None and transport.curve[0] == public
        config = parse("logjam+push://h:1/a-b", curve_server=public, curve_secret=secret)
        transport = Zmq(config)
        assert transport.kind == "PUSH" and transport.curve == (public, public, secret)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"curve_server": "short"}, "curve_server: must be a key of 40 characters"),
            ({"curve_server": "a" * 41}, "curve_server: must be a key of 40 characters"),
            ({"curve_secret": "a" * 40}, "curve_secret: needs curve_server"),
            ({"hwm": 0}, "hwm: must be"),
            ({"zone": "Mars/Crater"}, "zone: must be a name of the time zone database"),
            ({"mask": 3}, "mask: must be names"),
            ({"window": 3}, "window: not an option of logjam"),
            ({"truncate": True}, "truncate: only for documents with a message"),
        ],
    )
    def test_wrong_option_is_refused_by_name(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            logclient.connect("logjam://127.0.0.1/shop-production", **options)
        assert message in str(caught.value)

    def test_error_over_a_wrong_key_does_not_show_it(self) -> None:
        config = parse("logjam://h/a-b", curve_server="a" * 40, curve_secret="s3cr3t")
        with pytest.raises(ConfigError) as caught:
            Zmq(config)
        assert str(caught.value) == "curve_secret: must be a key of 40 characters of Z85"

    def test_place_and_mask_reach_the_documents(self, device: Collector) -> None:
        place = {"host": "web-7", "cluster": "c1", "revision": "r9"}
        options = {"fields": quote(json.dumps(place)), "zone": "UTC", "mask": "iban,pin"}
        with logclient.connect(url_of(device, **options)) as client:
            assert isinstance(client, Client)
            info = {"query_parameters": {"iban": "DE00", "color": "red", "password": "x"}}
            with client.request("a#b", request_info=info):
                pass
            assert client.flush(PATIENCE) == 0
        (made,) = bodies(device, 1)
        assert place.items() <= made.items()
        assert "namespace" not in made
        assert made["request_info"]["query_parameters"] == {
            "iban": "[FILTERED]", "color": "red", "password": "[FILTERED]"
        }  # fmt: skip


class TestEnvironment:
    """Hosts from the environment variables of other Logjam agents."""

    @pytest.fixture(autouse=True)
    def clean(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("LOGJAM_AGENT_ZMQ_ENDPOINTS", "LOGJAM_BROKER", "LOGJAM_AGENT_ZMQ_PORT"):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize(
        ("variables", "url", "endpoints"),
        [
            ({"BROKER": "a"}, "logjam:///a-b", [("a", 9604)]),
            ({"BROKER": "a, tcp://b:7 ,"}, "logjam:///a-b?hwm=2", [("a", 9604), ("b", 7)]),
            ({"BROKER": "a,b:7", "AGENT_ZMQ_PORT": "5"}, "logjam://", [("a", 5), ("b", 7)]),
            ({"BROKER": "a", "AGENT_ZMQ_ENDPOINTS": "c:1"}, "logjam:///a-b", [("c", 1)]),
            ({"BROKER": "a", "AGENT_ZMQ_ENDPOINTS": " "}, "logjam:///a-b", [("a", 9604)]),
            ({"BROKER": "[::1]:7"}, "logjam:///a-b", [("::1", 7)]),
            ({"BROKER": "a", "AGENT_ZMQ_PORT": "5"}, "logjam://h/a-b", [("h", 9604)]),
        ],
    )
    def test_environment_names_the_hosts(
        self,
        monkeypatch: pytest.MonkeyPatch,
        variables: dict[str, str],
        url: str,
        endpoints: list[tuple[str, int]],
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"LOGJAM_{name}", value)
        config = parse(url)
        assert list(config.endpoints) == endpoints
        assert config.redacted.startswith(f"logjam://{'[' * (endpoints[0][0] == '::1')}{endpoints[0][0]}")

    @pytest.mark.parametrize(
        ("variables", "url", "message"),
        [
            ({}, "logjam:///a-b", "host: .* neither LOGJAM_AGENT_ZMQ_ENDPOINTS nor LOGJAM_BROKER is set"),
            ({"BROKER": ","}, "logjam:///a-b", "LOGJAM_BROKER: host: must not be empty"),
            ({"BROKER": "ipc:///tmp/x"}, "logjam:///a-b", "LOGJAM_BROKER: "),
            ({"BROKER": "user:geheim@h"}, "logjam:///a-b", "LOGJAM_BROKER: "),
            ({"BROKER": "a", "AGENT_ZMQ_PORT": "many"}, "logjam://", "LOGJAM_AGENT_ZMQ_PORT: must be"),
            ({"BROKER": "a"}, "logjam+push:///a-b", "host: must not be empty"),
            ({"BROKER": "a"}, "lumberjack://", "host: must not be empty"),
        ],
    )
    def test_wrong_environment_is_refused_by_name(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, message: str
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"LOGJAM_{name}", value)
        with pytest.raises(ConfigError, match=message) as caught:
            parse(url)
        assert "geheim" not in str(caught.value)

    def test_server_ignores_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGJAM_BROKER", "127.0.0.1")
        with pytest.raises(ConfigError, match="host: must not be empty"):
            resolve("logjam://", {}, listen=True)

    def test_events_arrive_at_the_host_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, device: Collector, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("LOGJAM_BROKER", f"127.0.0.1:{device.port}")
        with logclient.connect("logjam:///shop-production") as client:
            client.send("from a client")
        handler = logclient.Handler("logjam:///shop-production")
        logger = logging.Logger("shop")
        logger.addHandler(handler)
        logger.warning("from a handler")
        handler.client.close(PATIENCE)
        lines = [made["lines"][0][2] for made in bodies(device, 2)]
        assert lines == ["from a client", "from a handler"]
        assert cli.main(["check", "logjam://", "--no-event"]) == ExitCode.OK
        assert capsys.readouterr().out.startswith(f"logjam://127.0.0.1:{device.port}\n")


class TestDocuments:
    def test_handler_makes_documents(self, device: Collector) -> None:
        log = logging.Logger("shop.orders", logging.DEBUG)
        handler = logclient.Handler(url_of(device))
        log.addHandler(handler)
        client = handler.client
        assert isinstance(client, Client)
        with client.request("Shop::OrdersController#create") as request:
            log.info("order %s", 17)
            with request.measure("db"):
                log.warning("slow")
            request.code = 201
        log.error("outside", extra={"color": "red"})
        handler.close()
        first, second = bodies(device, 2)
        for made in (first, second):
            judged, wrong = judge(json.dumps(made).encode(), 0, now=time.time())
            assert wrong == [] and judged == made
        assert first["action"] == "Shop::OrdersController#create" and first["code"] == 201
        assert [(line[0], line[2]) for line in first["lines"]] == [(1, "order 17"), (2, "slow")]
        assert first["severity"] == 2 and first["db_calls"] == 1
        assert second["action"] == f"shop.orders#{self.test_handler_makes_documents.__name__}"
        assert second["code"] == 500
        assert second["color"] == "red"
        stats = client.stats()
        assert stats.acked == 2 and stats.sent == 2

    def test_dict_config_takes_plain_values(self, device: Collector) -> None:
        import logging.config

        logging.config.dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "handlers": {"jam": {"class": "logclient.Handler", "url": url_of(device), "level": "INFO"}},
                "loggers": {"shop.plain": {"handlers": ["jam"], "level": "DEBUG", "propagate": False}},
            }
        )
        log = logging.getLogger("shop.plain")
        log.debug("not this")
        log.info("this")
        log.handlers[0].close()
        log.handlers.clear()
        (made,) = bodies(device, 1)
        assert [line[2] for line in made["lines"]] == ["this"]

    def test_formatter_decides_about_line_and_fields(self, device: Collector) -> None:
        class Fields(logging.Formatter):
            def format(self, record: logging.LogRecord) -> Any:
                return {"message": f"<{record.getMessage()}>", "shard": 3}

        log = logging.Logger("shop", logging.DEBUG)
        handler = logclient.Handler(url_of(device))
        handler.setFormatter(Fields())
        log.addHandler(handler)
        client = handler.client
        assert isinstance(client, Client)
        with client.request("a#b"):
            log.info("in")
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        log.info("out")
        handler.setFormatter(None)
        log.info("%d rows", "no number")
        handler.close()
        one, two, three = bodies(device, 3)
        assert one["lines"][0][2] == "<in>" and one["shard"] == 3
        assert two["lines"][0][2] == "INFO out"
        assert three["lines"][0][2] == "%d rows % ('no number',)"

    def test_text_becomes_a_document_with_one_line(self, device: Collector) -> None:
        with logclient.connect(url_of(device)) as client:
            client.send("just a line")
            delivery = client.submit("another")
            outcome = delivery.result(PATIENCE)
            assert outcome is not None and outcome.status == "acked"
        for made, text in zip(bodies(device, 2), ("just a line", "another"), strict=True):
            assert judge(json.dumps(made).encode(), 0, now=time.time())[1] == []
            assert [line[2] for line in made["lines"]] == [text]

    def test_document_without_a_time_gets_one(self, device: Collector) -> None:
        """The device answers 202 to anything, but an importer drops documents without ``started_at``."""
        an_hour_ago = int((time.time() - 3600) * 1000)
        given: list[dict[str, Any]] = [
            {"n": 0},
            {"n": 1, "started_at": None},
            {"n": 2, "started_ms": an_hour_ago},
            {"n": 3, "started_ms": "yesterday"},
        ]
        with logclient.connect(url_of(device, zone="Asia/Kathmandu")) as client:
            for document in given:
                client.send(document)
            outcome = client.submit(MappingProxyType({"n": 4})).result(PATIENCE)
            assert outcome is not None and outcome.status == "acked"
        zone = ZoneInfo("Asia/Kathmandu")
        made = bodies(device, 5)
        for document in made:
            broken = judge(json.dumps(document).encode(), 0, now=time.time(), zone=zone)[1]
            assert not [rule for rule in broken if rule.startswith("started_at")]
        assert [document["n"] for document in made] == [0, 1, 2, 3, 4]
        assert abs(made[0]["started_ms"] - time.time() * 1000) < 3_600_000
        assert made[2]["started_ms"] == an_hour_ago and made[3]["started_ms"] == "yesterday"
        moment = datetime.fromisoformat(made[2]["started_at"])
        assert moment.timestamp() == an_hour_ago // 1000
        assert given[0] == {"n": 0}, "the caller's mapping is unchanged"

    @pytest.mark.parametrize(
        ("started_at", "dropped"),
        [
            ("{now:%Y-%m-%dT%H:%M:%S}", False),
            ("{now:%Y-%m-%d %H:%M:%S.%f}+02:00", False),
            ("{yesterday:%Y-%m-%dT%H:%M:%S}", False),
            ("{now:%Y-%m-%d}", True),
            ("{now:%d.%m.%Y %H:%M:%S} or so", True),
            ("{now:%Y}-13-01T00:00:00", True),
            ("2001-01-01T00:00:00", True),
            ("\x1b[31m", True),
            (1_700_000_000.25, True),
            (True, True),
        ],
    )
    def test_time_that_importers_drop_is_reported(
        self, device: Collector, capsys: pytest.CaptureFixture[str], started_at: Any, dropped: bool
    ) -> None:
        """The document is sent unchanged; the user may know better."""
        now = datetime.now(UTC)
        if isinstance(started_at, str):
            started_at = started_at.format(now=now, yesterday=now - timedelta(hours=47))
        with logclient.connect(url_of(device, zone="UTC")) as client:
            client.send({"action": "a#b", "started_at": started_at})
            client.send({"action": "a#b", "started_at": started_at})
        assert [document["started_at"] for document in bodies(device, 2)] == [started_at] * 2
        errors = capsys.readouterr().err
        assert errors.count("importers drop this document") == dropped
        assert "\x1b" not in errors
        judged = judge(json.dumps({"started_at": started_at}).encode(), 0, now=time.time(), zone=UTC)[1]
        assert dropped == any(rule.startswith("started_at") for rule in judged)

    def test_time_may_be_a_datetime(self, device: Collector, capsys: pytest.CaptureFixture[str]) -> None:
        with logclient.connect(url_of(device, zone="UTC")) as client:
            client.send({"started_at": datetime.now(UTC)})
        (made,) = bodies(device, 1)
        assert not [rule for rule in judge(json.dumps(made).encode(), 0, now=time.time(), zone=UTC)[1]
                    if rule.startswith("started_at")]  # fmt: skip
        assert "importers drop" not in capsys.readouterr().err

    def test_each_kind_of_document_has_its_topic(self, device: Collector) -> None:
        subscriber = Subscriber(device.publish_url, app_envs=["shop-production"])
        topics = set()
        with subscriber, logclient.connect(url_of(device)) as client:
            assert isinstance(client, Client)
            end = time.monotonic() + PATIENCE
            while len(topics) < 4 and time.monotonic() < end:  # subscriptions take their time
                client.event("deployed 17", version="1.2")
                client.javascript("x is undefined", action="a#b")
                client.mobile(version="3")
                with client.request("a#b"):
                    pass
                client.flush(PATIENCE)
                for _ in range(4):
                    message = subscriber.receive(0.2)
                    if message is not None:
                        topics.add(message.topic)
        assert topics == {
            "events.shop.production", "javascript.shop.production", "mobile", "logs.shop.production"
        }  # fmt: skip

    def test_a_document_that_is_too_large_is_counted(
        self, device: Collector, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with logclient.connect(url_of(device, max_event_bytes=2000)) as client:
            assert isinstance(client, Client)
            with client.request("a#b") as request:
                request.line(logging.ERROR, "x" * 5000)
            assert client.flush(PATIENCE) == 0
            stats = client.stats()
        assert stats.failed == {"too_large": 1} and stats.acked == 0 and stats.sent == 1
        assert "max_event_bytes" in capsys.readouterr().err


class TestPing:
    def test_ping_answers_between_requests(self, device: Collector, pump: str) -> None:
        with logclient.connect(url_of(device)) as client:
            assert isinstance(client, Client)
            first = client.ping(PATIENCE)
            assert first.host == HOST and 0 < first.seconds < PATIENCE
            sent = 0
            for _ in range(20):
                for _ in range(100):
                    sent += bool(client.send({"n": sent}))
                assert client.ping(PATIENCE).host == HOST
            assert client.flush(PATIENCE) == 0
            stats = client.stats()
        assert stats.acked == sent and stats.connects == 1 and stats.resent == 0

    def test_ping_answers_in_async_mode_behind_events(self, device: Collector, pump: str) -> None:
        with logclient.connect(url_of(device, mode="async")) as client:
            assert isinstance(client, Client)
            for n in range(500):
                client.send({"n": n})
            assert client.ping(PATIENCE).host == HOST
            assert client.flush(PATIENCE) == 0
            # A ping goes behind what was sent before it, and so does its answer.
            assert client.stats().handed == 500
        assert len(bodies(device, 500)) == 500

    def test_ping_without_a_device_fails_in_time(self) -> None:
        with logclient.connect("logjam://127.0.0.1:1/shop-production?backoff_max=0.05") as client:
            assert isinstance(client, Client)
            with pytest.raises(ConnectFailed, match=r"ping: no answer in 0.3 s: .*refused"):
                client.ping(0.3)
            # The ping is not sent after it has timed out.
            assert client.stats().sent == 0

    def test_push_refuses_ping(self, device: Collector) -> None:
        with logclient.connect(url_of(device, "logjam+push")) as client:
            assert isinstance(client, Client)
            with pytest.raises(ValueError, match="nothing comes back on a PUSH socket"):
                client.ping(PATIENCE)

    def test_ping_ends_with_its_connection(self, pump: str) -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        failures: list[Exception] = []
        with logclient.connect(f"logjam://127.0.0.1:{port}/shop-production") as client:
            assert isinstance(client, Client)

            def ask() -> None:
                try:
                    client.ping(PATIENCE)
                except Exception as error:
                    failures.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            assert router.poll(PATIENCE * 1000)
            router.close(0)
            thread.join()
        context.destroy(linger=0)
        assert [type(error) for error in failures] == [ConnectFailed]
        assert "the connection ended before the answer" in str(failures[0])


class TestLifetime:
    def test_unreferenced_client_delivers_and_ends(self, device: Collector) -> None:
        client = logclient.connect(url_of(device))
        client.send({"n": 1})
        del client
        gc.collect()
        assert len(bodies(device, 1)) == 1
        until(lambda: "logclient-sender" not in {thread.name for thread in threading.enumerate()})

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["logjam", "logjam+push"])
    def test_exit_waits_for_what_zeromq_holds(self, device: Collector, scheme: str) -> None:
        program = (
            "import sys, logclient\n"
            f"client = logclient.connect(sys.argv[1], hwm=100000, atexit_timeout={PATIENCE})\n"
            "for n in range(20000):\n"
            "    client.send(b'{\"n\":%d}' % n)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, url_of(device, scheme)],
            capture_output=True,
            timeout=2 * PATIENCE,
            env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert [body["n"] for body in bodies(device, 20000)] == list(range(20000))

    def test_events_of_exit_handlers_wait_for_a_slow_peer(self) -> None:
        """The events are more than the kernel holds, and no warning about open resources appears."""
        context = zmq.Context()
        puller = context.socket(zmq.PULL)
        puller.setsockopt(zmq.RCVHWM, 1)
        puller.setsockopt(zmq.RCVBUF, 4096)
        port = puller.bind_to_random_port("tcp://127.0.0.1")
        program = """
import atexit, sys
def late():
    for n in range(100):
        client.send({"x": "x" * 200_000})
atexit.register(late)    # before ours, so it runs after that
import logclient
client = logclient.connect(sys.argv[1], atexit_timeout=float(sys.argv[2]), compression="none")
client.send({"x": "first"})
"""
        url = f"logjam+push://127.0.0.1:{port}/shop-production"
        with subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, url, str(PATIENCE)],
            stderr=subprocess.PIPE,
            env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        ) as process:
            got = 0
            while process.poll() is None or puller.poll(100):
                if puller.poll(2):  # slower than they are made
                    puller.recv_multipart()
                    got += 1
                    time.sleep(0.002)
            assert process.stderr is not None
            assert (process.returncode, process.stderr.read()) == (0, b"")
        context.destroy(linger=0)
        assert got == 101

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_forked_child_has_its_own_connection(self, device: Collector) -> None:
        program = """
import os, sys, logclient
client = logclient.connect(sys.argv[1])
for n in range(300): client.send({"process": "parent", "n": n})
pid = os.fork()
for n in range(300, 600): client.send({"process": "parent" if pid else "child", "n": n})
if pid:
    os.waitpid(pid, 0)
"""
        # ZeroMQ has threads, and since 3.12 Python warns of a fork beside threads.
        quietly = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
        done = subprocess.run(
            [sys.executable, *quietly, "-c", program, url_of(device)],
            capture_output=True,
            timeout=2 * PATIENCE,
            env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        )
        assert (done.returncode, done.stderr) == (0, b"")
        found = bodies(device, 900)
        numbers = {one: [b["n"] for b in found if b["process"] == one] for one in ("parent", "child")}
        assert numbers == {"parent": list(range(600)), "child": list(range(300, 600))}
        assert len({body["request_id"] for body in found}) == 900
        assert len({body["request_id"][:20] for body in found}) == 2


def test_missing_pyzmq_names_what_to_install() -> None:
    program = (
        "import sys\nsys.modules['zmq'] = None\nimport logclient\n"
        "try:\n    logclient.connect('logjam://h/a-b')\n"
        "except logclient.MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )
    assert 'pip install "logclient[logjam]"' in done.stdout


def test_both_schemes_have_default_ports() -> None:
    assert registry.lookup("logjam").port == 9604
    assert registry.lookup("logjam+push").port == 9605
