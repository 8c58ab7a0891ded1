"""One node of OpenSearch, from Maven packages, for the tests of documents and their index template."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import support
from tests.support.patience import PATIENCE
from tools import kafka

SOURCES = support.ROOT / "tests" / "interop" / "opensearch"
INSTALLED = Path(sys.prefix) / "opensearch"


def jars() -> Path:
    """Return the folder of the jars, which are fetched the first time."""
    listed = (SOURCES / "jars.sha256").read_text("ascii")
    kept = INSTALLED / "jars.sha256"
    with kafka.locked(INSTALLED.with_suffix(".lock")):
        if not kept.exists() or kept.read_text("ascii") != listed:
            fresh = INSTALLED.with_suffix(".new")
            kafka.retrieve(fresh, SOURCES / "ivy.xml", ("node",), "OpenSearch")
            found = "".join(f"{digest}  {jar}\n" for jar, digest in kafka.hashes(fresh).items())
            assert found == listed, "the jars of OpenSearch are not those of jars.sha256"
            (fresh / kept.name).write_text(listed)
            shutil.rmtree(INSTALLED, ignore_errors=True)
            fresh.rename(INSTALLED)
    return INSTALLED / "node"


class OpenSearch:
    """A node with its data in a folder. A context manager.

    Args:
        folder: for its data.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "config").mkdir(parents=True)
        try:
            java, packages = kafka.java(), jars()
        except kafka.Unavailable as error:
            support.missing(str(error))
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [java, "-Xmx512m", "-cp", f"{packages}/*", str(SOURCES / "Node.java"), str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        said = ""
        for said in self.process.stdout:
            if said.startswith("listens "):
                break
        self.url = f"http://{said.removeprefix('listens ').strip()}"

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        """Send a request; return its answer, also of an error."""
        request = urllib.request.Request(
            f"{self.url}/{path}", data=body or None, method=method, headers={"Content-Type": kind}
        )
        try:
            with urllib.request.urlopen(request, timeout=2 * PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)

    def create(self, stream: str, documents: dict[str, bytes]) -> dict[str, Any]:
        """Create documents by their ids in a data stream; return the answers by id."""
        lines = [b'{"create":{"_id":"%s"}}\n%s\n' % (key.encode(), body) for key, body in documents.items()]
        found = self.ask("POST", f"{stream}/_bulk?refresh=true", b"".join(lines), "application/x-ndjson")
        return {item["create"]["_id"]: item["create"] for item in found["items"]}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()  # which ends it
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
