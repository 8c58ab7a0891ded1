"""Warnings that a new client prints when its options reveal secrets."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from pathlib import Path

import pytest

import logclient
from logclient.cli import collect as collectors
from logclient.config.parsing import parse
from logclient.delivery import error_log
from logclient.errors import ConfigError

TOKEN = "hunter2"
IN_CLEAR = "token: sent unencrypted, so others on the path may read and use it; logux+tls encrypts"

needs_modes = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no modes of files")


def warnings(capsys: pytest.CaptureFixture[str], url: str, **options: object) -> list[str]:
    error_log.process = error_log.ErrorLog()  # which holds no line back; each test has one of its own
    logclient.connect(url, **options).close(0)
    return capsys.readouterr().err.splitlines()


class TestTokens:
    @pytest.mark.parametrize("host", ["192.0.2.1", "logs.example.org", "[2001:db8::1]", "127.0.0.1,10.0.0.1"])
    def test_a_clear_text_token_to_another_host_warns(
        self, capsys: pytest.CaptureFixture[str], host: str
    ) -> None:
        pytest.importorskip("websockets")
        (line,) = warnings(capsys, f"logux://{host}", token=TOKEN, user="10")
        assert line.startswith("logclient: logux://")
        assert line.endswith(f": {IN_CLEAR}")

    @pytest.mark.parametrize(
        "host",
        ["127.0.0.1", "127.8.9.10", "localhost", "LocalHost.", "a.localhost", "[::1]", "[::ffff:127.0.0.1]"],
    )
    def test_a_clear_text_token_to_this_host_does_not_warn(
        self, capsys: pytest.CaptureFixture[str], host: str
    ) -> None:
        pytest.importorskip("websockets")
        assert warnings(capsys, f"logux://{host}", token=TOKEN) == []

    def test_clear_text_headers_to_another_host_warn(self, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("websockets")
        headers = {"Cookie": TOKEN}
        (line,) = warnings(capsys, "logux://192.0.2.1", http_headers=headers)
        assert line.endswith(f": {IN_CLEAR.replace('token', 'http_headers')}")
        assert TOKEN not in line
        assert warnings(capsys, "logux+tls://192.0.2.1", http_headers=headers) == []

    def test_tls_or_no_token_does_not_warn(self, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("websockets")
        assert warnings(capsys, "logux+tls://192.0.2.1", token=TOKEN) == []
        assert warnings(capsys, "logux://192.0.2.1") == []


@needs_modes
class TestFiles:
    @pytest.mark.parametrize("mode", [0o644, 0o604, 0o666, 0o602])
    def test_a_token_file_open_to_others_warns(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: int
    ) -> None:
        pytest.importorskip("websockets")
        file = tmp_path / "token"
        file.write_text(TOKEN)
        file.chmod(mode)
        (line,) = warnings(capsys, f"logux://127.0.0.1?token=file:{file}")
        assert line.endswith(": token: every user of this machine may read or change its file; chmod 600 it")
        assert str(tmp_path) not in line

    @pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
    def test_a_private_token_file_does_not_warn(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: int
    ) -> None:
        pytest.importorskip("websockets")
        file = tmp_path / "token"
        file.write_text(TOKEN)
        file.chmod(mode)
        assert warnings(capsys, f"logux://127.0.0.1?token=file:{file}") == []

    def test_a_tls_key_open_to_others_warns(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        rig = pytest.importorskip("tests.support.tls")
        both = rig.Authority(tmp_path / "ca").issue("client")
        url = f"lumberjack+tls://127.0.0.1?cert={both}"
        assert warnings(capsys, url) == []
        os.chmod(both, 0o644)
        (line,) = warnings(capsys, url)
        assert ": cert: every user of this machine may read or change its file" in line
        key = shutil.copyfile(both, tmp_path / "client.key")
        key.chmod(0o644)
        (line,) = warnings(capsys, f"{url}&key={key}")
        assert ": key: every user of this machine may read or change its file" in line
        key.chmod(0o600)
        assert warnings(capsys, f"{url}&key={key}") == []

    def test_a_collectors_tls_key_open_to_others_warns(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        rig = pytest.importorskip("tests.support.tls")
        both = rig.Authority(tmp_path / "ca").issue("server")
        for mode, said in ((0o600, 0), (0o644, 1)):
            os.chmod(both, mode)
            collectors.collect([f"lumberjack+tls://127.0.0.1:0?cert={both}"], capture=None, seconds=0)
            text = f"{both}: every user of this machine may read or change it; chmod 600 it"
            assert capsys.readouterr().err.count(text) == said

    def test_a_curve_secret_open_to_others_warns(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        zmq = pytest.importorskip("zmq")
        public, secret = zmq.curve_keypair()
        file = tmp_path / "curve"
        file.write_bytes(secret)
        file.chmod(0o644)
        (line,) = warnings(
            capsys,
            "logjam://127.0.0.1/shop-test",
            curve_server=public.decode(),
            curve_secret=f"file:{file}",
        )
        assert ": curve_secret: every user of this machine" in line


class TestLeaks:
    def test_a_secret_is_not_pickled(self) -> None:
        one = parse("logux://127.0.0.1", token=TOKEN)
        with pytest.raises(TypeError, match="a secret is not pickled"):
            pickle.dumps(one)
        assert copy.deepcopy(one).token.reveal() == copy.copy(one).token.reveal() == TOKEN

    def test_a_pickle_names_the_source_of_a_secret(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "token").write_text(TOKEN)
        monkeypatch.setenv("TEST_TOKEN", TOKEN)
        for source in ("env:TEST_TOKEN", f"file:{tmp_path}/token"):
            one = parse(f"logux://127.0.0.1?token={source}")
            kept = pickle.dumps(one)
            assert TOKEN.encode() not in kept
            again = pickle.loads(kept)
            assert (again.redacted, again.given) == (one.redacted, one.given)
            assert again.token.reveal() == TOKEN

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("proxy", f"http://user:{TOKEN}@127.0.0.1:1"),
            ("proxy", f"user:{TOKEN}"),
            ("ack", f"http://user:{TOKEN}@host"),
            ("ping", f"user:{TOKEN}@host"),
            ("inflight", f"{TOKEN}@host"),
        ],
    )
    def test_no_error_shows_a_password(self, option: str, value: str) -> None:
        for url, keywords in ((f"logux://127.0.0.1?{option}={value}", {}), ("logux://host", {option: value})):
            with pytest.raises(ConfigError, match=f"^{option}: must be ") as caught:
                parse(url, **keywords)
            assert TOKEN not in str(caught.value)
