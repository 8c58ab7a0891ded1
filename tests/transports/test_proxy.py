"""Lumberjack through an HTTP proxy of the environment."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

import logclient
from logclient.errors import ConfigError
from logclient.testing.lumberjack import Collector
from tests.support.patience import PATIENCE
from tests.support.proxy import NAME, PASSWORD, USERINFO, ProxyServer
from tests.support.proxy import environment as environment
from tests.support.tls import HOST, Authority, assert_arrived, context, serving


@pytest.mark.parametrize("encrypted", [False, True])
def test_events_arrive_through_the_proxy_after_each_break(
    encrypted: bool, environment: Callable[..., None], ours: Authority
) -> None:
    tls = context("1.3", ours.issue("far", "only.proxy.example")) if encrypted else None
    tunnels = ProxyServer(closed=True)
    faults = "cut-before-write=every:3:max:2"
    with serving(tunnels) as way, Collector(keep=True, faults=faults, tls=tls) as server:
        environment(**{f"http{'s' * encrypted}_proxy": f"http://{USERINFO}{HOST}:{way}"})
        scheme = "lumberjack+tls" if encrypted else "lumberjack"
        url = f"{scheme}://only.proxy.example:{server.port}"
        trusted = {"ca": ours.ca} if encrypted else {}
        with logclient.connect(url, proxy="env", window=10, backoff_max=0.01, **trusted) as client:
            for n in range(100):
                client.send({"n": n})
            assert_arrived(server, client, 100)
    assert len(tunnels.heads) == 3
    assert all(head.startswith(b"CONNECT only.proxy.example:") for head in tunnels.heads)


def test_the_environment_is_ignored_unless_it_is_asked_for(environment: Callable[..., None]) -> None:
    environment(http_proxy="socks5://127.0.0.1:1", all_proxy="http://127.0.0.1:1")
    with Collector(keep=True) as server, logclient.connect(server.url) as client:
        client.send({"n": 0})
        assert_arrived(server, client, 1)
        with pytest.raises(ConfigError, match="only http:// is"):
            logclient.connect(server.url, proxy="env")


def test_a_proxy_that_refuses_is_named_without_its_password(
    environment: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ProxyServer(b"HTTP/1.1 403 Forbidden\r\n\r\n")) as way:
        environment(http_proxy=f"http://{USERINFO}{HOST}:{way}")
        errors: queue.Queue[str] = queue.Queue()
        url = "lumberjack://only.proxy.example:5044"
        with logclient.connect(url, proxy="env", on_error=errors.put, timeout=0) as client:
            client.send({"n": 0})
            shown = errors.get(timeout=PATIENCE)
    shown += capsys.readouterr().err
    assert f"the proxy {HOST}:{way} refuses the tunnel: HTTP 403 Forbidden" in shown
    assert NAME not in shown and PASSWORD not in shown and USERINFO not in shown
