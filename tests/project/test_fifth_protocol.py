"""A new protocol costs one package, here or elsewhere, as a sample and the sources show."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import shutil
import socket
import sys
import threading
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import logclient
from logclient import cli
from logclient.client import Outcome
from logclient.codec import Connection, Settled
from logclient.delivery.contract import Fatal
from tests.support import ROOT
from tests.support.package import PACKAGE, PROTOCOLS, modules
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.tree

EXAMPLE = ROOT / "docs" / "examples" / "protocol"

# Modules outside the protocols' own packages that name a protocol in their code, and why. A fifth protocol
# is added to the tables among them only if it wants that service: a collector, faults, a verdict, a command.
# Delivery, client, handler, formatting and configuration are not among them, but for texts.
MAY_NAME_A_PROTOCOL = {
    "config/registry.py": "the table of protocols",
    "__init__.py": "public names of the protocols' packages",
    "cli/": "examples in help texts, commands for servers of one protocol, and the table of probes",
    "testing/faults.py": "the table of faults that a collector of each protocol has",
    "testing/kafka.py": "only the plog collector writes to Kafka",
    "cli/collect.py": "the table of collectors",
    "testing/pytest_plugin.py": "the collectors that the fixture starts",
    "off.py": "requests of Logjam, which a program makes, whatever it ships",
    "config/url.py": "an example of a URL in an error",
    "integrations/": "middleware that makes Logjam's documents of requests",
    "transports/websocket.py": "the extra to install where websockets is missing",
    "transports/zmq.py": "the extra to install where pyzmq is missing",
    "evidence/": "the table of decoders",
    "verify/": "the table of columns",
}


class LineServer:
    """Reads lines of the toy protocol and answers their sequences."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> LineServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock, sock.makefile("rb") as file:
                for line in file:
                    number, _, body = line.rstrip(b"\n").partition(b" ")
                    self.got.append((int(number), body))
                    sock.sendall(number + b"\n")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the sample of a protocol; nothing of logclient knows of it."""
    metadata = tmp_path / "toy_protocol-1.0.dist-info"
    metadata.mkdir()
    shutil.copytree(EXAMPLE / "toy_protocol", tmp_path / "toy_protocol")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (group, rows), *others = project["entry-points"].items()
    assert not others
    points = "".join(f"{name} = {row}\n" for name, row in rows.items())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-protocol\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "toy_protocol"]:
        del sys.modules[name]


@pytest.mark.usefixtures("toy")
def test_an_installed_protocol_works_with_a_client() -> None:
    with LineServer() as server, logclient.connect(f"toy://127.0.0.1:{server.port}?inflight=3") as client:
        deliveries = [client.submit({"n": n}) for n in range(100)]
        assert [delivery.result(PATIENCE) for delivery in deliveries] == [Outcome("acked")] * 100
        assert client.config.protocol == "toy" and client.stats().acked == 100
        assert [number for number, _ in server.got] == list(range(1, 101))
        assert [json.loads(body)["n"] for _, body in server.got] == list(range(100))


@pytest.mark.usefixtures("toy")
def test_an_installed_protocol_works_with_a_handler() -> None:
    log = logging.Logger("app")
    with LineServer() as server:
        handler = logclient.Handler(f"toy://127.0.0.1:{server.port}")
        log.addHandler(handler)
        log.warning("%d of %s", 1, "two")
        assert handler.client.flush(PATIENCE) == 0
        handler.close()
        ((number, body),) = server.got
    assert number == 1 and json.loads(body)["message"] == "1 of two"


@pytest.mark.usefixtures("toy")
def test_options_of_an_installed_protocol_are_checked() -> None:
    with pytest.raises(logclient.ConfigError, match="inflight: must be a whole number from 1 to 1000"):
        logclient.connect("toy://127.0.0.1?inflight=0")
    with pytest.raises(logclient.ConfigError, match="compression: not an option of toy"):
        logclient.connect("toy://127.0.0.1", compression=3)


@pytest.mark.usefixtures("toy")
def test_an_installed_protocol_without_decoder_and_probe_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    decode = pytest.importorskip("logclient.evidence.decode")
    known = "logjam, logux, lumberjack, plog"
    with pytest.raises(logclient.ConfigError, match=f"^protocol: 'toy' cannot be decoded: {known}$"):
        decode.wire("toy")
    assert cli.main(["check", "toy://127.0.0.1"]) == 2
    assert capsys.readouterr().err == f"logclient: protocol: 'toy' cannot be checked: {known}\n"
    assert cli.main(["collect", "toy://127.0.0.1:0", "--print"]) == 2
    assert capsys.readouterr().err == f"logclient: scheme: toy has no collector: {known}\n"
    with pytest.raises(logclient.ConfigError, match=r"'toi' is none of lumberjack, .*, toy$"):
        logclient.connect("toi://127.0.0.1")


@pytest.mark.usefixtures("toy")
def test_an_installed_protocol_works_without_io() -> None:
    connection = Connection.to("toy://server?inflight=1")
    connection.connected(0.0)
    assert [connection.put(b"{}"), connection.put(b"[]")] == [1, 2]
    assert connection.send(0.0) == b"1 {}\n"
    assert connection.receive(b"1\n", 0.1) == [Settled(1, 1, "acked")]
    assert connection.send(0.1) == b"2 []\n"
    (fatal,) = connection.receive(b"3\n", 0.2)
    assert isinstance(fatal, Fatal) and str(fatal.error) == "an answer to nothing"
    assert connection.lost() == []
    connection.connected(1.0)
    assert connection.send(1.0) == b"2 []\n"


@pytest.mark.usefixtures("toy")
def test_an_error_in_a_codec_is_raised() -> None:
    connection = Connection.to("toy://server")
    connection.connected(0.0)
    connection.codec.target.inflight = None
    connection.put(b"{}")
    connection.send(0.0)
    with pytest.raises(TypeError, match="unsupported operand"):
        connection.events()
    connection.codec.target.inflight = 1
    connection.codec.target.encode = lambda batch, events, now, wire, out: 1
    connection.send(0.0)
    with pytest.raises(RuntimeError, match="encode: 1 events, but the first one that waits is not marked"):
        connection.events()


def test_bounds_of_a_connection_are_those_of_its_options() -> None:
    connection = Connection.to("plog://h", max_events=2)
    assert [connection.put(body) for body in (b"a", b"b", b"c")] == [1, 2, 0]
    connection = Connection.to("plog://h", max_event_bytes=64)
    connection.connected(0.0)
    connection.put(bytes(70_000))
    connection.send(0.0)
    assert connection.events() == [Settled(1, 1, "failed", "too_large")]
    with pytest.raises(logclient.ConfigError, match="none is the off switch"):
        Connection.to("none:")


def test_events_at_time_zero_are_of_1970() -> None:
    def sent(now: float) -> bytes:
        connection = Connection.to("logjam://h/shop-test", producer=bytes(10), compression="none")
        connection.connected(now)
        connection.put(b"{}")
        return connection.send(now)

    assert sent(0.0) == sent(0.0)


def names_a_protocol(path: Path) -> bool:
    """Whether the code of a module names a protocol: its comments and docstrings do not count."""
    source = path.read_text(encoding="utf-8")
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    name = re.compile("|".join(sorted(PROTOCOLS)), re.IGNORECASE)
    return any(
        name.search(token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.NAME, tokenize.STRING) and token.start[0] not in texts
    )


@pytest.mark.slow
def test_only_listed_modules_name_a_protocol() -> None:
    outside = [path.relative_to(PACKAGE) for path in modules()]
    outside = [path for path in outside if path.parts[0] not in PROTOCOLS]
    # Servers for tests have a file for each protocol, named after it.
    outside = [path for path in outside if path.stem.partition("_")[0] not in PROTOCOLS]
    naming = {path.as_posix() for path in outside if names_a_protocol(PACKAGE / path)}
    listed = tuple(MAY_NAME_A_PROTOCOL)

    def is_listed(name: str) -> bool:
        return any(name == one or (one.endswith("/") and name.startswith(one)) for one in listed)

    assert sorted(name for name in naming if not is_listed(name)) == []
    stale = [one for one in listed if not any(is_listed(name) and name.startswith(one) for name in naming)]
    assert stale == [], "listed, but names none any more"
