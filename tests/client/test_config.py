"""URLs and options: accepted values, the text of each error, and secrets that are never shown."""

from __future__ import annotations

import enum
import fcntl
import os
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.client import connect, open_client
from logclient.config import registry
from logclient.config.hosts import dns_name
from logclient.config.option import all_options, declared_options
from logclient.config.parsing import parse, resolve
from logclient.config.readers import parse_duration, parse_size
from logclient.config.secrets import Secret
from logclient.errors import ConfigError
from logclient.handler import Handler
from logclient.lumberjack import Writer
from tests.support.patience import PATIENCE, assert_returns, wait_until

pytestmark = pytest.mark.unit

URL = "lumberjack://host:5044"


def error_message(url: Any, /, **keywords: Any) -> str:
    """Return the error of a URL that must not parse: always one line."""
    with pytest.raises(ConfigError) as caught:
        parse(url, **keywords)
    text = str(caught.value)
    assert "\n" not in text
    assert text
    return text


class TestEndpoints:
    @pytest.mark.parametrize(
        ("text", "endpoints"),
        [
            ("host", [("host", 5044)]),
            ("host:1", [("host", 1)]),
            ("HOST-1.example_x:65535", [("HOST-1.example_x", 65535)]),
            ("a:1,b,c:3", [("a", 1), ("b", 5044), ("c", 3)]),
            ("127.0.0.1:80", [("127.0.0.1", 80)]),
            ("[::1]", [("::1", 5044)]),
            ("[::1]:9", [("::1", 9)]),
            ("[2001:db8::1]:9,[::ffff:1.2.3.4]", [("2001:db8::1", 9), ("::ffff:1.2.3.4", 5044)]),
            ("[fe80::1%25eth0]:9", [("fe80::1%eth0", 9)]),
            ("bücher.example", [("bücher.example", 5044)]),
        ],
    )
    def test_valid_endpoints_are_parsed(self, text: str, endpoints: list[tuple[str, int]]) -> None:
        assert parse(f"lumberjack://{text}").endpoints == tuple(endpoints)

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("", "URL: must begin with a scheme"),
            ("host:5044", "URL: must begin with a scheme"),
            ("://host", "scheme: must be letters"),
            ("lumber jack://host", "scheme: must be letters"),
            ("http://host", "scheme: 'http' is none of lumberjack"),
            ("lumberjack://", "host: must not be empty"),
            ("lumberjack://a,,b", "host: must not be empty"),
            ("lumberjack://:5044", "host: must not be empty"),
            ("lumberjack://a b", "host: must be a name"),
            ("lumberjack://" + "a" * 300, "host: must be a name"),
            ("lumberjack://host:", "port: must be a whole number from 1 to 65535, got nothing"),
            ("lumberjack://host:0", "port: must be a whole number from 1 to 65535, got 0"),
            ("lumberjack://host:65536", "port: must be a whole number from 1 to 65535, got 65536"),
            ("lumberjack://host:99999999999999999999", ", got a number of 20 digits"),
            ("lumberjack://host:-1", ", got 2 characters that are no number"),
            ("lumberjack://host:+1", "port: must be"),
            ("lumberjack://host:5O44", ", got 4 characters that are no number"),
            ("lumberjack://host:٣", "port: must be"),
            ("lumberjack://::1", "more than one colon"),
            ("lumberjack://[::1", "host: an IPv6 address is written"),
            ("lumberjack://[::1]x", "host: an IPv6 address is written"),
            ("lumberjack://[host]", "must be an IPv6 address"),
            ("lumberjack://[]", "must be an IPv6 address"),
            ("lumberjack://host/path", "path: lumberjack takes none"),
            ("lumberjack://host#part", "must not have a # part"),
            ("lumberjack://host\n:5044", "URL: must not have control characters"),
            ("lumberjack://host?window", "options: each must be name=value"),
            ("lumberjack://host?=5", "options: each must be name=value"),
            ("lumberjack://host?window=5&&", "options: each must be name=value"),
            ("lumberjack://host?win%20dow=5", "options: each must be name=value"),
            ("lumberjack://host?window=5&window=6", "window: given twice"),
            ("lumberjack://host?window=%3", "window: % must be followed by two hexadecimal"),
            ("lumberjack://host?window=%zz", "window: % must be followed by two hexadecimal"),
            ("lumberjack://host?window=%+1", "window: % must be followed by two hexadecimal"),
            ("lumberjack://host?ledger=%ff", "ledger: must be UTF-8"),
            ("lumberjack://host?ledger=a%00b", "ledger: must not have control characters"),
        ],
    )
    def test_invalid_urls_are_refused_with_a_reason(self, url: str, says: str) -> None:
        assert says in error_message(url)

    @pytest.mark.parametrize("url", [5, b"lumberjack://host"])
    def test_a_url_must_be_a_string(self, url: Any) -> None:
        assert "URL: must be a string" in error_message(url)

    def test_port_0_is_for_servers(self) -> None:
        assert resolve("lumberjack://host:0", {}, listen=True).endpoints == (("host", 0),)
        assert resolve("lumberjack://host", {}, listen=True).endpoints == (("host", 5044),)
        with pytest.raises(ConfigError, match="from 0 to 65535"):
            resolve("lumberjack://host:x", {}, listen=True)

    def test_scheme_ignores_case_and_a_slash_is_no_path(self) -> None:
        assert parse("LumberJack://host/").scheme == "lumberjack"
        assert parse("lumberjack://host/?window=5").window == 5

    @pytest.mark.slow
    @given(st.text(max_size=60))
    def test_any_text_parses_or_raises_one_line_config_error(self, text: str) -> None:
        for url in (
            text,
            f"lumberjack://{text}",
            f"lumberjack://host?{text}",
            f"lumberjack://host?ledger={text}",
        ):
            try:
                parse(url)
            except ConfigError as error:
                assert "\n" not in str(error)

    @given(
        st.lists(
            st.tuples(st.sampled_from(["a", "b.c", "::1", "10.0.0.1"]), st.integers(1, 65535)),
            min_size=1,
            max_size=4,
        ),
        st.dictionaries(st.sampled_from(["window", "inflight"]), st.integers(1, 64)),
        st.text(
            st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1
        ),
    )
    def test_the_redacted_url_parses_to_the_same(
        self, endpoints: list[tuple[str, int]], numbers: dict[str, int], ledger: str
    ) -> None:
        places = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in endpoints)
        encoded = "".join(f"%{byte:02x}" for byte in ledger.encode())
        query = "&".join([f"ledger={encoded}", *(f"{key}={value}" for key, value in numbers.items())])
        one = parse(f"lumberjack://{places}?{query}")
        assert one.endpoints == tuple(endpoints)
        assert one.ledger == (None if ledger == "none" else os.path.join(os.getcwd(), ledger))
        assert vars(parse(one.redacted)) == vars(one)


class TestOptions:
    def test_defaults_are_those_of_the_declarations(self) -> None:
        plain = parse(URL)
        declared = declared_options(type(plain))
        assert dict(plain.options) == {name: option.default for name, option in declared.items()}
        assert (plain.max_events, plain.max_bytes, plain.max_event_bytes) == (250_000, 64 << 20, 1 << 20)
        assert (plain.window, plain.window_bytes, plain.inflight, plain.compression) == (2048, 1 << 20, 2, 3)
        assert (plain.connect_timeout, plain.silence, plain.progress_timeout) == (10, 30, 300)
        assert (plain.backoff_max, plain.max_age) == (30, None)
        assert (plain.timeout, plain.atexit_timeout) == (5, 2)
        assert (plain.overflow, plain.keep_level, plain.linger) == ("drop_new", 40, 0.005)
        assert plain.given == {}

    def test_an_option_of_another_protocol_is_no_attribute(self) -> None:
        with pytest.raises(AttributeError, match="curve_server"):
            _ = parse(URL).curve_server  # type: ignore[attr-defined]

    def test_replace_copies_with_other_values(self) -> None:
        one = parse(URL, window=5)
        other = one.replace(endpoints=(("h", 1),), silence=1.0)
        assert (other.endpoints, other.silence, other.window) == ((("h", 1),), 1.0, 5)
        assert (one.endpoints, one.silence) == ((("host", 5044),), 30.0)
        assert vars(other.replace(endpoints=one.endpoints, silence=one.silence)) == vars(one)
        with pytest.raises(TypeError, match="has no 'windw'"):
            one.replace(windw=5)
        with pytest.raises(AttributeError, match="cannot be changed"):
            one.silence = 1.0

    @pytest.mark.parametrize(
        ("name", "value"),
        [("verify", "full"), ("format", "otel"), ("overflow", "block:5s"), ("extra_prefix", "a.b")],
    )
    def test_a_member_of_an_enum_is_its_text(self, name: str, value: str) -> None:
        member = enum.Enum("Setting", {"MEMBER": value}, type=str).MEMBER
        assert str(member) == "Setting.MEMBER"
        config = resolve("lumberjack+tls://host", {name: member})
        assert config.options[name] == value and type(config.options[name]) is str
        open_client(config).close(0)

    def test_a_keyword_wins_over_the_url(self) -> None:
        both = parse(URL + "?window=5&inflight=3", window=7)
        assert (both.window, both.inflight) == (7, 3)
        assert set(both.given) == {"window", "inflight"}
        assert parse(URL + "?window=5", window=None).window == 5

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("window", "10000", 10000),
            ("window", 1, 1),
            ("max_events", "250_000", 250000),
            ("max_bytes", "64MiB", 64 << 20),
            ("max_bytes", 65536, 65536),
            ("max_bytes", 1024, 1024),
            ("truncate", "yes", True),
            ("truncate", "OFF", False),
            ("truncate", 1, True),
            ("truncate", False, False),
            ("overflow", "block", "block"),
            ("overflow", "block:1.5s", "block:1.5s"),
            ("overflow", "block:0", "block:0"),
            ("keep_level", "warning", 30),
            ("keep_level", 20, 20),
            ("keep_level", "25", 25),
            ("keep_level", "none", 60),
            ("compression", 0, 0),
            ("version", "1", 1),
            ("identity", "none", "none"),
            ("check", "false", False),
            ("silence", "1.5s", 1.5),
            ("linger", 0, 0.0),
            ("max_age", "2h", 7200.0),
            ("ledger", Path("/tmp/x"), "/tmp/x"),
            ("tags", "a,, b ,", ("a", "b")),
            ("sample", "DEBUG=0.5, shop = 1", {"DEBUG": 0.5, "shop": 1.0}),
            ("metadata", "beat=shop, version = 8", {"beat": "shop", "version": "8"}),
        ],
    )
    def test_valid_options_are_read(self, name: str, value: Any, expected: Any) -> None:
        assert getattr(parse(URL, **{name: value}), name) == expected
        if isinstance(value, str):
            assert getattr(parse(f"{URL}?{name}={value}"), name) == expected

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("window", "0", "must be a whole number from 1 to 10000, got '0'"),
            ("window", 10001, "must be a whole number from 1 to 10000, got 10001"),
            ("window", True, "must be a whole number"),
            ("window", 5.0, "must be a whole number"),
            ("window", "-5", "must be a whole number"),
            ("window", "٣", "must be a whole number"),
            ("window", "9" * 10_000, "must be a whole number"),
            ("window", "", "must be a whole number"),
            ("max_bytes", "1.5", "must be a size in bytes"),
            ("max_bytes", "64 miles", "must be a size in bytes"),
            ("max_bytes", -1, "must be a size in bytes"),
            ("max_bytes", "1", "must be from 1024 to"),
            ("max_bytes", "2048GiB", "must be from 1024 to"),
            ("max_bytes", True, "must be a size in bytes"),
            ("truncate", "maybe", "must be true or false"),
            ("truncate", 2, "must be true or false"),
            ("truncate", [], "must be true or false"),
            ("overflow", "spool", "must be drop_oldest, drop_new, block, block:TIME or raise, got 'spool'"),
            ("overflow", ["block"], "must be drop_oldest"),
            ("overflow", "drop_new:5s", "must be drop_oldest"),
            ("overflow", "block:", "must be a duration such as 5s, 200ms or 5m, got ''"),
            ("overflow", "block:soon", "must be a duration such as 5s, 200ms or 5m, got 'soon'"),
            ("overflow", "block:366d", "must be from 0s to 31536000s"),
            ("keep_level", "LOUD", "must be a level name"),
            ("keep_level", 61, "must be a level name"),
            ("keep_level", True, "must be a level name"),
            ("compression", 10, "must be a whole number from 0 to 9"),
            ("version", 3, "must be a whole number from 1 to 2"),
            ("identity", "uuid", "must be one of id, own, none"),
            ("silence", "soon", "must be a duration such as 5s"),
            ("silence", "-1s", "must be a duration"),
            ("silence", "1e3", "must be a duration"),
            ("silence", True, "must be a duration such as 5s"),
            ("silence", float("nan"), "must be a duration"),
            ("silence", float("inf"), "must be a duration"),
            ("silence", 0, "must be from 1ms to 86400s"),
            ("linger", "2s", "must be from 0s to 1s"),
            ("ledger", "", "must be the path of a directory"),
            ("ledger", 5, "must be the path of a directory"),
            ("ledger", b"/tmp", "must be the path of a directory"),
            ("ledger", "a\0b", "must be the path of a directory"),
            ("fields", "[" * 100_000, "must be a mapping, or a JSON object"),
            ("sample", {"DEBUG": 10**400}, "must have a share from 0 to 1 for each name"),
            ("rename", "user", "must have a text for each name, got {'user': ''}"),
            ("rename", "a=b,b=c", "must give new names, each once, not message or with @, got 'b'"),
            ("rename", "a=c,b=c", "must give new names, each once, not message or with @, got 'c'"),
            ("rename", "a=@timestamp", "must give new names, each once, not message or with @, got "),
            ("rename", {"a": "message"}, "must give new names, each once, not message or with @, got"),
            ("rename", "a=b.", "must have no empty part between dots in a new name, got 'b.'"),
            ("rename", "a=b..c", "must have no empty part between dots in a new name, got 'b..c'"),
            ("extra_prefix", "@metadata", "must be a name of letters, digits, _ and -, or some with dots"),
            ("extra_prefix", "extra.", "must be a name of letters, digits, _ and -, or some with dots, got "),
            ("extra_prefix", 7, "must be a name of letters, digits, _ and -, or some with dots, got 7"),
            ("metadata", "_id=7", "must not have _id, which is the id of each event"),
            ("metadata", {"version": 8}, "must have a text for each name, got {'version': 8}"),
            ("metadata", "beat", "must have a text for each name, got {'beat': ''}"),
            ("metadata", 8, "must be a mapping, or name=text with commas between them, got 8"),
            ("metadata", {"beat": "b" * 1021}, "must be at most 1024 characters"),
            ("sample", {"Debug ": 0}, "must have the names of levels in capitals, got 'Debug '"),
            ("sample", "warn=0", "must have the names of levels in capitals, got 'warn'"),
        ],
    )
    def test_invalid_options_are_refused_by_name(self, name: str, value: Any, says: str) -> None:
        text = error_message(URL, **{name: value})
        assert text.startswith(f"{name}: ")
        assert says in text
        assert len(text) < 160

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("windw", "windw: unknown option; did you mean window?"),
            ("ca_certs", "ca_certs: unknown option; did you mean ca?"),
            ("port", "port: unknown option; the URL says that, as in SCHEME+tls://host:port"),
            ("level", "level: unknown option; it is an argument of a Handler"),
            ("max_event", "max_event: unknown option; did you mean max_events?"),
            ("compresion", "did you mean compression?"),
            ("zzz", "zzz: unknown option"),
            ("url", "url: unknown option"),
            ("token", "token: not an option of lumberjack"),
            ("tls_password", "tls_password: only for a scheme with TLS"),
            ("verify", "verify: only for a scheme with TLS"),
        ],
    )
    def test_unknown_options_suggest_the_nearest_one(self, name: str, says: str) -> None:
        assert says in error_message(URL, **{name: "5"})
        assert says in error_message(f"{URL}?{name}=5")

    def test_contradicting_options_are_refused(self) -> None:
        text = error_message(URL, max_bytes=2048, max_event_bytes=4096)
        assert text.startswith("max_event_bytes: must not")
        assert parse(URL, max_bytes=65536).max_event_bytes == 65536
        tls = URL.replace("://", "+tls://")
        assert error_message(tls, key="key.pem") == "key: needs cert"
        assert error_message(tls, ca="ca.pem", verify="none") == "ca: has no use with verify=none"

    def test_text_may_be_of_a_subclass(self, tmp_path: Path) -> None:
        """As the members of a StrEnum are."""

        class Text(str):
            __slots__ = ()

        with connect("lumberjack://127.0.0.1:9", extra_prefix=Text("extra"), spool=Text(tmp_path)) as client:
            client.close(0)
            assert (client.config.extra_prefix, client.config.spool) == ("extra", str(tmp_path))

    def test_options_of_the_spool_need_each_other(self) -> None:
        assert error_message(URL, spool_age="1h") == "spool_age: needs spool"
        assert error_message(URL, spool="s", spool_sync="batch") == "spool_sync: needs spool_mode=always"
        largest = (4 << 20) - 4096
        assert parse(URL, spool="s", max_event_bytes=largest).max_event_bytes == largest
        text = error_message(URL, spool="s", max_event_bytes=largest + 1)
        assert text == f"max_event_bytes: must not be above {largest} with spool"

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("5", 5),
            ("5s", 5),
            ("200ms", 0.2),
            ("5m", 300),
            ("5min", 300),
            ("1.5h", 5400),
            ("1d", 86400),
            (" 7 s ", 7),
        ],
    )
    def test_durations_are_read_as_seconds(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == pytest.approx(seconds)

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("5", 5),
            ("5B", 5),
            ("1k", 1024),
            ("1KiB", 1024),
            ("1kB", 1000),
            ("1.5MiB", 3 << 19),
            ("2GB", 2 * 10**9),
        ],
    )
    def test_sizes_are_read_as_bytes(self, text: str, size: int) -> None:
        assert parse_size(text) == size

    @given(st.text(max_size=12) | st.floats() | st.integers())
    def test_wrong_durations_and_sizes_raise_value_error(self, value: Any) -> None:
        for read in (parse_duration, parse_size):
            try:
                assert read(value) >= 0
            except ValueError as error:
                assert "\n" not in str(error)


class TestLogux:
    URL = "logux://host/some/path"

    def test_defaults_of_logux(self) -> None:
        plain = parse(self.URL)
        assert plain.endpoints == (("host", 31337),)
        assert plain.path == "/some/path"
        assert (plain.window, plain.window_bytes, plain.inflight) == (100, 256 << 10, 4)
        assert (plain.user, plain.subprotocol, plain.strict_spec) == ("false", 1, False)
        assert (plain.action_type, plain.ack, plain.on_doubt) == ("log/add", "processed", "new_client")
        assert (plain.ping, plain.processing_timeout, plain.silence) == (10, 20, 30)
        assert (plain.deflate, plain.max_message, plain.proxy) == ("off", 16 << 20, "env")
        assert (plain.identity, plain.check, plain.token) == ("id", True, None)

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("user", "10", "10"),
            ("user", "bücher", "bücher"),
            ("subprotocol", "7", 7),
            ("subprotocol", 0, 0),
            ("strict_spec", "true", True),
            ("action_type", "audit/add", "audit/add"),
            ("ack", "synced", "synced"),
            ("on_doubt", "same", "same"),
            ("on_doubt", "drop", "drop"),
            ("ping", "500ms", 0.5),
            ("processing_timeout", "1m", 60.0),
            ("deflate", "on", "on"),
            ("proxy", "none", "none"),
            ("inflight", 1, 1),
            ("window", 500, 500),
        ],
    )
    def test_valid_logux_options_are_read(self, name: str, value: Any, expected: Any) -> None:
        assert getattr(parse(self.URL, **{name: value}), name) == expected
        assert getattr(parse(f"{self.URL}?{name}={value}"), name) == expected

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("user", "", "must be 1 to 128 characters without a colon"),
            ("user", "a:b", "without a colon"),
            ("user", "a b", "without a colon or a space"),
            ("user", "server", "not server"),
            ("user", "x" * 129, "1 to 128"),
            ("user", 10, "1 to 128"),
            ("user", "\ud800", "1 to 128"),
            ("subprotocol", -1, "must be a whole number"),
            ("subprotocol", "1.0", "must be a whole number"),
            ("subprotocol", 1.5, "must be a whole number"),
            ("subprotocol", 1 << 53, "must be a whole number"),
            ("subprotocol", "1.0.0", "a version such as 1.0.0 goes with strict_spec"),
            ("action_type", "", "must be 1 to 256 characters"),
            ("action_type", "logux/undo", "not begin with logux/"),
            ("ack", "received", "must be one of processed, synced"),
            ("on_doubt", "keep", "must be one of new_client, same, drop"),
            ("ping", 0, "must be from 1ms"),
            ("processing_timeout", "never", "must be a duration"),
            ("deflate", True, "must be one of off, on"),
            ("proxy", "http://h", "must be one of env, none"),
            ("inflight", 65, "must be a whole number from 1 to 64"),
        ],
    )
    def test_invalid_logux_options_are_refused_by_name(self, name: str, value: Any, says: str) -> None:
        text = error_message(self.URL, **{name: value})
        assert text.startswith(f"{name}: ")
        assert says in text

    @pytest.mark.parametrize(
        "value",
        [
            {"Cookie": "a=hunter2; b=1", "X-Two": "  env:mine "},
            {"Cookie": Secret("a=hunter2; b=1"), "X-Two": "env:mine"},
            "Cookie: a=hunter2; b=1\r\n\nX-Two:env:mine\n",
        ],
    )
    def test_http_headers_are_read_as_secrets(
        self, value: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("mine", "of two")
        two = "of two" if isinstance(value, dict) and value["X-Two"] == "env:mine" else "env:mine"
        expected = [("Cookie", "a=hunter2; b=1"), ("X-Two", two)]
        one = parse(self.URL, http_headers=value)
        assert [(name, content.reveal()) for name, content in one.http_headers] == expected
        assert "Cookie" in repr(one) and "hunter2" not in repr(one) + repr(one.options)
        if isinstance(value, str):
            monkeypatch.setenv("TEST_HEADERS", value)
            (tmp_path / "headers").write_text(value)
            for place in ("env:TEST_HEADERS", f"file:{tmp_path / 'headers'}"):
                one = parse(f"{self.URL}?http_headers={place}")
                assert [(name, content.reveal()) for name, content in one.http_headers] == expected
                assert "headers=***" in one.redacted and "hunter2" not in repr(one)

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ({"Host": "x"}, "http_headers: Host is the WebSocket handshake's own"),
            ({"sec-websocket-Protocol": "x"}, "sec-websocket-Protocol is the WebSocket handshake's own"),
            ({"Proxy-Authorization": "x"}, "Proxy-Authorization is the WebSocket handshake's own"),
            ({"Cookie": "hunter2\r\nX: y"}, "the value of Cookie must be printable ASCII in one line"),
            ({"Cookie": "hunter2\n"}, "the value of Cookie must be printable ASCII in one line"),
            ({"Cookie": "hunter2\0"}, "the value of Cookie must be printable ASCII in one line"),
            ({"Cookie": "hunter2\u00fc"}, "the value of Cookie must be printable ASCII in one line"),
            ({"Cookie": " "}, "the value of Cookie must be printable ASCII in one line"),
            ({"Cookie": ""}, "Cookie: must be the secret, env:NAME, file:PATH or a function"),
            ({"Cookie": 5}, "Cookie: must be the secret, env:NAME, file:PATH or a function"),
            ({"Cookie": "env:NOT_SET_HERE"}, "Cookie: environment variable 'NOT_SET_HERE' is not set"),
            ({"Cookie: hunter2": "x"}, "a name must be 1 to 256 ASCII letters"),
            ({"hunter2\n": "x"}, "a name must be 1 to 256 ASCII letters"),
            ({"": "hunter2"}, "a name must be 1 to 256 ASCII letters"),
            ({5: "hunter2"}, "a name must be 1 to 256 ASCII letters"),
            ("hunter2", "each line must be Name: value"),
            ("Cookie: a\nhunter2", "each line must be Name: value"),
            ({"A": "hunter2", "a": "x"}, "a is given twice"),
            ({"A": "hunter2" * 2500}, "must have 16384 bytes together at most"),
            (["Cookie: hunter2"], "must be a mapping of names to values"),
        ],
    )
    def test_invalid_http_headers_are_refused_unseen(self, value: Any, says: str) -> None:
        text = error_message(self.URL, http_headers=value)
        assert text.startswith("http_headers: ") and says in text
        assert "hunter2" not in text

    def test_http_headers_in_a_url_are_refused(self) -> None:
        text = error_message(f"{self.URL}?http_headers=Cookie%3A hunter2")
        assert text.startswith("http_headers: must not be written in a URL") and "hunter2" not in text

    def test_the_subprotocol_of_strict_spec_is_a_version(self) -> None:
        assert parse(self.URL, strict_spec=True).subprotocol == "1.0.0"
        for version in ("2.0.0", "1.2.3-rc.1", "1.2.3+build.5"):
            assert parse(self.URL, strict_spec=True, subprotocol=version).subprotocol == version
        assert "goes with strict_spec" in error_message(self.URL, strict_spec=True, subprotocol=2)

    def test_no_new_name_is_below_the_prefix(self) -> None:
        says = "rename: must not give a name below extra_prefix"
        assert error_message(URL, rename="a=extra.b", extra_prefix="extra") == says
        assert parse(URL, rename="a=my.extra.b", extra_prefix="extra").extra_prefix == "extra"

    def test_pairs_of_strings_hold_no_metadata(self) -> None:
        says = "metadata: needs frames=json, as pairs of strings have no objects"
        assert error_message("lumberjack://h?version=1", metadata="beat=shop") == says
        assert parse("lumberjack://h?strict_spec=true", metadata="beat=shop").metadata == {"beat": "shop"}

    def test_options_of_other_protocols_are_refused(self) -> None:
        assert error_message(self.URL, mtu=1400) == "mtu: not an option of logux"
        assert error_message(URL, on_doubt="drop") == "on_doubt: not an option of lumberjack"
        assert error_message(self.URL, ca="x.pem") == "ca: only for a scheme with TLS"
        assert parse("logux+tls://host", ca="x.pem").tls

    def test_the_token_is_a_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TEST_TOKEN", "hunter2")
        one = parse(f"{self.URL}?token=env:TEST_TOKEN")
        assert one.token.reveal() == "hunter2"
        assert "hunter2" not in repr(one) + one.redacted + repr(one.options)
        assert "must not be written in a URL" in error_message(f"{self.URL}?token=hunter2")


READ = ("ca", "environment", "fallback", "ledger", "service", "spool")
"""The options that have a variable."""


class TestEnvironment:
    """Variables: LOGCLIENT_URL, and those of a few options."""

    def test_a_variable_comes_after_keyword_and_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGCLIENT_SERVICE", "a")
        assert parse(URL).service == parse(URL, service=None).service == "a"
        assert resolve(URL, {}, defaults={"service": "d"}).service == "a"
        assert parse(URL + "?service=b").service == "b"
        assert parse(URL, service="c").service == "c"
        assert "service" in parse(URL).given

    @pytest.mark.parametrize("name", sorted(all_options()))
    @pytest.mark.parametrize(
        "value", ["0.1.0", "tcp://10.0.0.1:5044", "true", "unit", "none of its business"]
    )
    def test_only_those_are_read_whose_name_means_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        """What other programs name so, as Dockerfiles and Kubernetes do, changes and breaks nothing."""
        monkeypatch.setenv(f"LOGCLIENT_{name.upper()}", value)
        for scheme, row in registry.SCHEMES.items():
            url = f"{scheme}://host{'/shop-test' if row.protocol == 'logjam' else ''}"
            found = parse(url)
            if name not in READ:
                assert vars(found) == vars(resolve(url, {}, environ={}))
            elif name in found.given:
                assert found.given[name] == f"LOGCLIENT_{name.upper()}"

    def test_a_variable_without_a_use_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in READ:
            monkeypatch.setenv(f"LOGCLIENT_{name.upper()}", "x")
        assert parse(URL, service="y").service == "y"
        assert parse("plog://host").given.keys() == {"fallback", "ledger", "spool"}
        assert not resolve(URL, {}, listen=True).given
        for name in READ:
            monkeypatch.setenv(f"LOGCLIENT_{name.upper()}", "")
        assert vars(parse(URL)) == vars(resolve(URL, {}, environ={}))

    @pytest.mark.parametrize("name", ["defaults", "environ", "keywords", "listen", "url"])
    def test_what_is_no_option_is_refused_as_one(self, name: str) -> None:
        for make in (parse, connect, Writer):
            with pytest.raises(ConfigError, match=f"^{name}: unknown option"):
                make(URL, **{name: {}})  # type: ignore[operator]
        if name != "url":
            with pytest.raises(ConfigError, match=f"^{name}: unknown option"):
                Handler(URL, **{name: {}})  # type: ignore[call-overload]

    def test_the_url_may_be_a_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGCLIENT_URL", "lumberjack://a:1,b?window=5&inflight=3")
        one = parse(window=7)
        assert one.endpoints == (("a", 1), ("b", 5044)) and (one.window, one.inflight) == (7, 3)
        assert parse(URL).endpoints == (("host", 5044),)

    def test_without_any_url_the_error_says_where_to_give_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LOGCLIENT_URL", raising=False)
        assert error_message(None) == "URL: give one, or set the variable LOGCLIENT_URL"
        assert "URL: give one" in error_message(None, window=5)

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("LEDGER", "a\0b", "LOGCLIENT_LEDGER: "),
            ("URL", "http://host", "LOGCLIENT_URL: scheme: 'http' is none of"),
            ("URL", "lumberjack://host?window=0", "LOGCLIENT_URL: window: must be a whole number"),
            ("URL", "lumberjack://host?windw=5", "LOGCLIENT_URL: windw: unknown option"),
            ("URL", "lumberjack://host?spool_bytes=16MiB", "LOGCLIENT_URL: spool_bytes: needs spool"),
        ],
    )
    def test_errors_name_the_variable(self, name: str, value: str, says: str) -> None:
        with pytest.raises(ConfigError) as caught:
            resolve(None if name == "URL" else URL, {}, environ={f"LOGCLIENT_{name}": value})
        assert str(caught.value).startswith(says)

    def test_a_secret_is_named_and_not_written(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TEST_TOKEN", "hunter2")
        tmp_path.joinpath("token").write_text("hunter3\n", encoding="utf-8")
        for place, value in (("env:TEST_TOKEN", "hunter2"), (f"file:{tmp_path / 'token'}", "hunter3")):
            monkeypatch.setenv("LOGCLIENT_URL", f"logux://host?token={place}")
            assert parse().token.reveal() == value
        monkeypatch.setenv("LOGCLIENT_URL", "logux://host?token=hunter2")
        text = error_message(None)
        assert text.startswith("LOGCLIENT_URL: token: must not be written in a URL or a variable; give")
        assert "hunter2" not in text


class TestInternationalNames:
    """IDNA 2008 with the package idna; without it, names that IDNA 2003 spells alike."""

    @pytest.mark.parametrize(
        ("host", "spelled"),
        [
            ("fa\u00df.de", b"xn--fa-hia.de"),
            ("\u03b2\u03cc\u03bb\u03bf\u03c2.com", b"xn--nxasmm1c.com"),
            ("B\u00fccher.example", b"xn--bcher-kva.example"),
            ("my_host.b\u00fccher.Example.", b"my_host.xn--bcher-kva.Example."),
            ("2001:db8::1", b"2001:db8::1"),
        ],
    )
    def test_names_are_spelled_by_idna_2008(self, host: str, spelled: bytes) -> None:
        pytest.importorskip("idna")
        assert dns_name(host) == spelled

    def test_names_that_need_idna_2008_are_refused_without_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "idna", None)
        assert dns_name("B\u00fccher.example") == b"xn--bcher-kva.example"
        for host in ("fa\u00df.de", "\u03b2\u03cc\u03bb\u03bf\u03c2.com"):
            text = f'{host!r} needs IDNA 2008, and the package idna for it: pip install "logclient[idna]"'
            assert error_message(f"lumberjack://{host}") == f"host: {text}"
            assert error_message("lumberjack+tls://host", server_name=host) == f"server_name: {text}"

    @pytest.mark.parametrize("package", [True, False])
    def test_invalid_international_names_are_refused(
        self, monkeypatch: pytest.MonkeyPatch, package: bool
    ) -> None:
        if package:
            pytest.importorskip("idna")
        else:
            monkeypatch.setitem(sys.modules, "idna", None)
        for host in ("\u00fc" * 64, "a..\u00fc.." + "\u00fc" * 70):
            assert error_message(f"lumberjack://{host}").endswith(" is no host name")

    def test_a_name_is_shown_as_it_was_given(self) -> None:
        assert parse("lumberjack://b\u00fccher.example").redacted == "lumberjack://b\u00fccher.example:5044"


class TestSecrets:
    @pytest.mark.parametrize(
        "url",
        [
            "lumberjack://user:hunter2@host:5044",
            "lumberjack://user:hunter2@host:5044?window=5",
            "lumberjack://user:hun/ter2@host:5044",
            "lumberjack://user:hun?ter2@host:5044",
            "lumberjack://user:12?ter2@host:5044",
            "lumberjack://user:hunter2@[::1]:5044",
            "lumberjack://a:1,user:hunter2@host:5044",
            "lumberjack://hunter2@host",
            "lumberjack:/user:hunter2@host",
            "user:hunter2@host",
            "http://user:hunter2@host",
            "lumberjack://user:hunter2",
            "lumberjack://host/hunter2",
            "lumberjack://host?hunter2",
            "lumberjack://host?token=hunter2",
            "lumberjack://host?tls_password=hunter2",
            "lumberjack://host?password=hunter2",
            "lumberjack://user:hunter2\n@host",
        ],
    )
    def test_a_password_in_a_url_is_refused_unseen(self, url: str) -> None:
        text = error_message(url)
        assert "hunter2" not in text
        assert "ter2" not in text

    def test_userinfo_is_refused_with_advice(self) -> None:
        assert "user:password@ is not accepted" in error_message("lumberjack://user:hunter2@host")

    @pytest.fixture
    def tls(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """A scheme with TLS and a path, as later versions have them."""
        row = registry.SCHEMES["lumberjack"]
        monkeypatch.setitem(registry.SCHEMES, "test+tls", row._replace(tls=True, path=True, port=1))
        return "test+tls://host/some%20path"

    def test_secrets_come_from_env_file_or_keyword(
        self, tls: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("TEST_SECRET", "hunter2")
        file = tmp_path / "secret"
        file.write_text("hunter2\n", encoding="utf-8")
        for one in (
            parse(f"{tls}?tls_password=env:TEST_SECRET"),
            parse(f"{tls}?tls_password=file:{file}"),
            parse(tls, tls_password="env:TEST_SECRET"),
            parse(tls, tls_password=f"file:{file}"),
            parse(tls, tls_password="hunter2"),
            parse(tls, tls_password=Secret("hunter2")),
        ):
            assert one.tls_password is not None
            assert one.tls_password.reveal() == "hunter2"
            assert one.path == "/some path"
            assert one.endpoints == (("host", 1),)
            for shown in (repr(one), str(one), f"{one}", one.redacted, repr(one.options)):
                assert "hunter2" not in shown
        assert parse(f"{tls}?tls_password=env:TEST_SECRET").redacted.endswith("?tls_password=***")

    def test_invalid_secrets_are_refused(
        self, tls: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("TEST_SECRET", raising=False)
        (tmp_path / "empty").touch()
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        assert "tls_password: must not be written in a URL" in error_message(f"{tls}?tls_password=hunter2")
        assert "variable 'TEST_SECRET' is not set" in error_message(f"{tls}?tls_password=env:TEST_SECRET")
        assert "cannot be read: No such file" in error_message(tls, tls_password=f"file:{tmp_path}/none")
        assert "cannot be read: is no UTF-8" in error_message(tls, tls_password=f"file:{tmp_path}/binary")
        assert "must hold 1 to 65536 characters" in error_message(tls, tls_password=f"file:{tmp_path}/empty")
        assert "must be the secret, env:NAME, file:PATH or a function" in error_message(tls, tls_password=5)

    def test_a_fifo_without_a_writer_is_not_waited_for(self, tls: str, tmp_path: Path) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        says = assert_returns(lambda: error_message(tls, tls_password=f"file:{fifo}"))
        assert "must hold 1 to 65536 characters" in says

    def test_a_secret_is_read_to_its_end_from_a_pipe(self, tls: str) -> None:
        reader, writer = os.pipe()
        os.write(writer, b"hunter")

        def write_the_rest() -> None:
            wait_until(lambda: fcntl.ioctl(reader, termios.FIONREAD, bytes(4)) == bytes(4), "it is read")
            os.write(writer, b"2\n")
            os.close(writer)

        thread = threading.Thread(target=write_the_rest)
        thread.start()
        secret = assert_returns(lambda: parse(tls, tls_password=f"file:/dev/fd/{reader}").tls_password)
        thread.join(PATIENCE)
        os.close(reader)
        assert secret.reveal() == "hunter2"

    def test_repr_shows_the_given_options(self) -> None:
        assert repr(parse(URL, window=5)) == "Config('lumberjack://host:5044', window=5)"


class TestRegistry:
    def test_every_scheme_has_a_protocol_and_a_port(self) -> None:
        for name, row in registry.SCHEMES.items():
            assert name.split("+")[0] == row.protocol
            assert name.endswith("+tls") == row.tls
            assert row.core.startswith(f"logclient.{row.protocol}.core:")
            assert row.config.startswith(f"logclient.{row.protocol}.config:")
            assert 1 <= row.port <= 65535

    def test_load_imports_the_named_attribute(self) -> None:
        assert registry.load("logclient.config.parsing:parse") is parse

    def test_lookup_gives_a_loadable_core_and_transport(self) -> None:
        row = registry.lookup("lumberjack")
        assert registry.load(row.core).__name__ == "Lumberjack"
        assert registry.load(row.transport).__name__ == "Tcp"


def test_the_engine_reads_the_options_of_its_client() -> None:
    config = parse("plog://h", keep_level="critical", max_event_bytes=5000)
    with open_client(config) as client:
        assert client._sender.engine.config is client.config is config
        assert (config.batch_limits, config.queued_event_bytes) == ((2048, 1 << 20), 5000 + 2 + 65_507)
