"""An S3 server on this machine: moto's, over real HTTP, in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests import support

_NUMBERS = count(1)
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def serve(**environment: str) -> Iterator[str]:
    """Run a server, and yield its URL."""
    support.need("moto")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, **CREDENTIALS, **environment},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline().decode().strip()
        assert port, "moto's server does not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def gateway(endpoint: str, answer: Callable[[str, str], int | None]) -> Iterator[str]:
    """Run a server that passes requests to another one, and yield its URL.

    Args:
        endpoint: the URL of the other server.
        answer: called with the method and the path of each request, in a thread of its own; it may return a
            status, with which the request is then answered.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, data = answer(self.command, self.path), {}, b""
            if status is None:
                connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
                connection.request(self.command, self.path, headers=dict(self.headers))
                response = connection.getresponse()
                status, headers, data = response.status, dict(response.headers), response.read()
                connection.close()
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "date", "server", "transfer-encoding"):
                    self.send_header(name, value)
            if not headers:
                self.send_header("Content-Length", "0")
            self.end_headers()
            self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Bucket:
    """A bucket, through the interface that anybody would use."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = f"test-{next(_NUMBERS)}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{self.name}", method="PUT")).close()

    @property
    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint}

    def url(self, *names: str) -> str:
        return "/".join([f"s3://{self.name}", *names])

    @property
    def system(self) -> Any:
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key="testing", secret_key="testing", region="us-east-1",
            endpoint_override=self.endpoint.removeprefix("http://"), scheme="http",
        )  # fmt: skip

    def put(self, name: str, data: bytes) -> None:
        with self.system.open_output_stream(f"{self.name}/{name}") as file:
            file.write(data)

    def get(self, name: str) -> bytes:
        with self.system.open_input_stream(f"{self.name}/{name}") as file:
            return bytes(file.read())

    def delete(self, name: str) -> None:
        self.system.delete_file(f"{self.name}/{name}")

    def objects(self) -> dict[str, int]:
        """Return name -> size of all objects."""
        from pyarrow import fs

        found = self.system.get_file_info(fs.FileSelector(self.name, recursive=True))
        return {x.path[len(self.name) + 1 :]: x.size for x in found if x.type == fs.FileType.File}

    def upload(self, folder: Path, name: str) -> str:
        """Copy the files of a folder, and return the URL of the copy."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return self.url(name)

    def download(self, name: str, folder: Path) -> Path:
        """Copy the objects below a name to a folder, and return the folder."""
        for key in self.objects():
            if key.startswith(f"{name}/"):
                path = folder / key[len(name) + 1 :]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.get(key))
        return folder


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """One server for the whole test run."""
    with serve() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, which this process can use by the environment alone."""
    support.need("pyarrow")
    found = Bucket(s3_endpoint)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found
