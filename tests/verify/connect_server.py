"""A server of Spark Connect on this machine, from PySpark's own package."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from tests import support
from tests.support.patience import PATIENCE


class ConnectServer:
    """A running server, as a context manager.

    Args:
        folder: for its log and its files.
        master: of its Spark.
        python: the program that its workers run.
        paths: where that Python looks for modules.
        settings: more settings.
    """

    def __init__(
        self, folder: Path, master: str = "local[2]", *, python: str = sys.executable,
        paths: Iterable[str] = (), settings: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.master = master
        self.python = python
        self.paths = list(paths) or [str(support.ROOT), *filter(None, sys.path)]
        self.settings = settings or {}
        self.url = ""

    def __enter__(self) -> ConnectServer:
        self.folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        home = Path(support.need("pyspark").__file__).parent
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false", "spark.local.dir": str(self.folder),
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **self.settings,
        }  # fmt: skip
        command = [str(home / "bin" / "spark-submit"), "--master", self.master]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        variables = support.clean_environment(
            PYTHONPATH=os.pathsep.join(self.paths), PYSPARK_PYTHON=self.python, SPARK_LOCAL_IP="127.0.0.1"
        )
        self.log = self.folder / "server.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, "--class", server, "spark-internal"], stdout=log, stderr=log, env=variables,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        end = time.monotonic() + 4 * PATIENCE
        while "Spark Connect server started at" not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise AssertionError(self.log.read_text(errors="replace")[-2000:])
            time.sleep(0.05)
        self.url = f"sc://127.0.0.1:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
