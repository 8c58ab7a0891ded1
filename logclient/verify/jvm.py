"""The JVM that a verification starts for Spark: how it begins, and how it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from logclient.errors import VerifyError
from logclient.verify.class_archive import OPTIONS, Archive

__all__ = ["Java", "Jvm", "VerifyError", "environment", "find_java", "found", "jars_folder"]

POLL_S = 0.01  # seconds between two looks whether the JVM has answered
GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
_VARIABLES = {"SPARK_CONNECT_MODE": "0", "PYTHONHASHSEED": "0"}  # as spark-submit sets them


class Java(NamedTuple):
    """A program that starts a JVM.

    Attributes:
        path: of the program.
        version: what it, or the file ``release`` of its JDK, says about its version.
    """

    path: str
    version: str


def find_java() -> Java:
    """Find the program that PySpark would start.

    Raises:
        VerifyError: there is no such program, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if not java or not os.path.exists(java):
        raise VerifyError(
            f"java: Spark needs Java 17 or newer, and there is none ({where}): install a JRE or set JAVA_HOME"
        )
    text = _release(java) or subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version[ =]"(?:1\.)?(\d+)', text, re.IGNORECASE)
    if version is None or int(version[1]) < 17:
        is_ = f"version {version[1]}" if version else "of no version"
        raise VerifyError(f"java: Spark needs Java 17 or newer, and {java} is {is_}: set JAVA_HOME")
    return Java(java, text)


def _release(java: str) -> str:
    """Read what a JDK says about itself, because a JVM takes longer to say it; empty: it says nothing."""
    folder = os.path.dirname(os.path.dirname(os.path.realpath(java)))
    try:
        with open(os.path.join(folder, "release"), encoding="utf-8") as file:
            text = file.read(1 << 16)
    except (OSError, ValueError):
        return ""
    return text if "\nJAVA_VERSION=" in f"\n{text}" else ""


def found(module: str) -> str:
    """Return the file of a module without importing it; empty: there is none."""
    spec = importlib.util.find_spec(module)
    return (spec.origin if spec else None) or ""


def jars_folder() -> str:
    """Return the folder of Spark's jars in PySpark's package."""
    return os.path.join(os.path.dirname(found("pyspark")), "jars")


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for the time of the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Jvm:
    """A JVM with PySpark's gateway, a child of this process. It ends when its stdin is closed.

    Args:
        process: the process.
        answer: the file in which the JVM names its port; empty: it has answered.

    Attributes:
        gateway: py4j's gateway to it; None before `connect`.
    """

    def __init__(self, process: subprocess.Popen[bytes], answer: str = "") -> None:
        self.process = process
        self.gateway: Any = None
        self._answer = answer

    @classmethod
    def submit(cls, conf: Any, folder: str, variables: Mapping[str, str]) -> Jvm:
        """Start a JVM through ``spark-submit``.

        Args:
            conf: a SparkConf.
            folder: for its output.
            variables: of its environment.
        """
        from pyspark.java_gateway import launch_gateway

        with open(os.path.join(folder, "stderr"), "wb") as output, environment(variables):
            # Not inherited, because the output of the JVM and its workers is of no use to a user.
            gateway: Any = launch_gateway(conf, {"stderr": output, "stdout": output})  # type: ignore[no-untyped-call]
        jvm = cls(gateway.proc)
        jvm.gateway = gateway
        return jvm

    @classmethod
    def start(
        cls, java: str, archive: Archive, options: list[str], folder: str, variables: Mapping[str, str],
        *, record: bool = False,
    ) -> Jvm:  # fmt: skip
        """Start a JVM directly, and return before it answers.

        Args:
            java: the program.
            archive: its classes.
            options: more options.
            folder: for its output.
            variables: of its environment.
            record: write the archive when the JVM ends, instead of using it.
        """
        answer = os.path.join(folder, "gateway")
        share = f"-XX:{'ArchiveClassesAtExit' if record else 'SharedArchiveFile'}={archive.path}"
        crash = ["-XX:-CreateCoredumpOnCrash", f"-XX:ErrorFile={os.path.join(folder, 'stderr')}"]
        # A terminal's Ctrl-C goes to this process alone, which then ends the JVM.
        command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", java, *archive.options, *OPTIONS]
        with open(os.path.join(folder, "stderr"), "wb") as output:
            process = subprocess.Popen(
                [*command, share, "-Xshare:auto", *crash, *options, GATEWAY],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
                env={**os.environ, **variables, "_PYSPARK_DRIVER_CONN_INFO_PATH": answer, **_VARIABLES},
            )  # fmt: skip
        return cls(process, answer)

    def connect(self, stop: threading.Event) -> bool:
        """Wait for the answer of the JVM, and connect to it.

        Args:
            stop: once it is set, the wait ends.

        Returns:
            False if the JVM has ended without an answer.

        Raises:
            VerifyError: a stop was requested.
        """
        from pyspark.java_gateway import launch_gateway

        if self.gateway is not None:
            return True
        while not os.path.exists(self._answer):
            if self.process.poll() is not None:
                return False
            if stop.wait(POLL_S):
                raise VerifyError("stopped")
        with open(self._answer, "rb") as file:
            port, length = struct.unpack(">ii", file.read(8))
            secret = file.read(length).decode()
        with environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            self.gateway = launch_gateway()  # type: ignore[no-untyped-call]
        return True

    def end(self, patience: float, *, hard: bool = False) -> None:
        """End the process, and wait until it has ended.

        Args:
            patience: seconds for it to end by itself.
            hard: whether to interrupt what it does.
        """
        if hard:
            self.process.terminate()
        if self.gateway is not None:
            with contextlib.suppress(Exception):
                self.gateway.shutdown()
        if self.process.stdin is not None:
            self.process.stdin.close()  # its sign to stop Spark and to end
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
