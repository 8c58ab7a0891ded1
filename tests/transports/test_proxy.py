"""Lumberjack through an HTTP proxy of the environment."""

from __future__ import annotations

import queue
from collections.abc import Callable
from importlib import import_module

import pytest

import logclient
from logclient.errors import ConfigError
from logclient.testing.lumberjack import Collector
from logclient.transports.http import Proxy
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
            logclient.connect("lumberjack://far.example", proxy="env")


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


LOOPBACK = ["127.0.0.1", "127.8.9.1", "127.1", "2130706433", "0x7f000001", "::1", "0:0:0:0:0:0:0:1"]
LOOPBACK += ["::ffff:127.0.0.1", "::ffff:7f00:1", "localhost", "LOCALHOST", "localhost.", "a.localhost"]
LOOPBACK += ["0.0.0.0", "::"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_is_never_reached_through_a_proxy(host: str, environment: Callable[..., None]) -> None:
    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        environment(**{variable: "http://127.0.0.1:1"})
        for tls in (False, True):
            assert Proxy.from_environment(tls, [(host, 5044)]) is None


@pytest.mark.parametrize("host", ["128.0.0.1", "::2", "::ffff:128.0.0.1", "localhost.example", "mylocalhost"])
def test_others_are(host: str, environment: Callable[..., None]) -> None:
    environment(all_proxy="http://127.0.0.1:1")
    assert Proxy.from_environment(False, [(host, 5044)]) is not None


@pytest.mark.parametrize(
    ("no_proxy", "host", "around"),
    [
        ("*", "logs.example.org", True),
        ("a, *", "logs.example.org", True),
        ("logs.example.org", "logs.example.org", True),
        ("LOGS.example.org.", "logs.EXAMPLE.org", True),
        ("logs.example.org", "logs.example.org.", True),
        ("example.org", "logs.example.org", True),
        (".example.org", "logs.example.org", True),
        ("*.example.org", "logs.example.org", True),
        ("other example.org", "logs.example.org", True),
        ("ample.org", "logs.example.org", False),
        ("logs", "logs.example.org", False),
        ("logs.example.org:5044", "logs.example.org", True),
        ("example.org:5044", "logs.example.org", True),
        ("logs.example.org:80", "logs.example.org", False),
        ("other, 10.1.2.3:5044", "10.1.2.3", True),
        ("10.1.2.3:1", "10.1.2.3", False),
        ("0.1.2.3", "10.1.2.3", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.1.2.0/24,11.0.0.0/8", "10.1.3.3", False),
        ("10.1.2.3/24", "10.1.2.77", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "10.example.org", False),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::7", "2001:db8:0::7", True),
        ("[2001:db8::7]", "2001:db8::7", True),
        ("[2001:db8::7]:5044", "2001:db8::7", True),
        ("[2001:db8::7]:80", "2001:db8::7", False),
        ("2001:db9::/32", "2001:db8::7", False),
        ("", "logs.example.org", False),
        (" , .,:, [],/8", "logs.example.org", False),
    ],
)
def test_no_proxy_lists_names_addresses_and_networks(
    no_proxy: str, host: str, around: bool, environment: Callable[..., None]
) -> None:
    environment(http_proxy="http://127.0.0.1:1", NO_PROXY=no_proxy)
    assert (Proxy.from_environment(False, [(host, 5044)]) is None) == around
    found = Proxy.from_environment(False, [("far.example", 1), (host, 5044)])
    if found is not None:  # else it lists all hosts
        assert found.excludes((host, 5044)) == around and not found.excludes(("far.example", 1))


@pytest.mark.parametrize("scheme", ["lumberjack", "lumberjack+tls", "logux", "logux+tls"])
def test_the_proxy_is_named_when_what_lies_behind_it_fails(
    scheme: str, environment: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The proxy makes a tunnel; its other end speaks nothing that the client understands, and closes."""
    with serving(ProxyServer()) as way, serving(lambda sock: sock.sendall(b"SSH-2.0-x\r\n")) as port:
        environment(all_proxy=f"http://{USERINFO}{HOST}:{way}")
        errors: queue.Queue[str] = queue.Queue()
        url = f"{scheme}://only.proxy.example:{port}"
        with logclient.connect(url, proxy="env", on_error=errors.put, timeout=0) as client:
            client.send({"n": 0})
            shown = errors.get(timeout=PATIENCE)
            assert client.stats().last_error
    assert f"only.proxy.example:{port} through the proxy {HOST}:{way}" in shown, shown
    assert PASSWORD not in shown + capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["lumberjack", "logux"])
def test_a_test_server_is_reached_in_spite_of_a_proxy(
    protocol: str, environment: Callable[..., None]
) -> None:
    environment(
        http_proxy="http://127.0.0.1:1", https_proxy="http://127.0.0.1:1", all_proxy="http://127.0.0.1:1"
    )
    make = import_module(f"logclient.testing.{protocol}").Collector
    with make(keep=True) as server, logclient.connect(server.url, proxy="env") as client:
        assert client.submit({"type": "a"}).result(PATIENCE) == ("acked", "")
