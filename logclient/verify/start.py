"""Start Spark's JVM for a short run, and end it with this process.

PySpark keeps one JVM per process and starts it with ``spark-submit``, which reads Spark's own configuration.
Added here are options of Java, a folder for its output and files, and an end before it answers.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from logclient.errors import VerifyError

END_S = 10.0  # seconds for the JVM to end, and for its workers to close their files
POLL_S = 0.05  # seconds between two looks whether to stop

# Most of a short run is code that runs once: the second compiler takes three more seconds of CPU.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# What is imported while Java starts. PySpark imports the last one at its first call to the JVM.
_MEANWHILE = ("logclient.verify.comparison", "logclient.verify.report.pages", "pyspark.testing.utils")

# Whether this process ends after its verification. `SparkContext.stop` takes a second, so that another one
# can be made. Spark also stops when its JVM ends.
ends_process = False


class _Jvm:
    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="logclient-spark-")
        self.output = os.path.join(self.folder, "output")
        self.process: subprocess.Popen[bytes] | None = None
        # PySpark does not tell its process before it answers, but has it join a process group, which can be
        # ended at any time and gets no Ctrl-C. The program that has the group ends with this process.
        self.group: subprocess.Popen[bytes] | None = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
        )


_ours: _Jvm | None = None


def launch(settings: Mapping[str, str], local: bool, stop: threading.Event) -> Any:
    """Start the JVM of this process, and return py4j's gateway to it."""
    global _ours
    from pyspark import SparkConf
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    java = _find_java()
    jvm = _ours = _Jvm()
    atexit.register(end)
    first = {
        "spark.app.name": "logclient verify",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} -Djava.io.tmpdir={jvm.folder}",
    }
    conf = SparkConf(loadDefaults=False)
    conf.setAll([(name, value) for name, value in first.items() if name not in spark_defaults()])
    # The last option on the command line wins: ours, then the environment's, then the arguments.
    submitted, _, _ = os.environ.get("PYSPARK_SUBMIT_ARGS", "").rpartition("pyspark-shell")
    last = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    variables = {
        "PYSPARK_SUBMIT_ARGS": " ".join([submitted, *last, "pyspark-shell"]),
        # The JVM runs sources of DataFrames, which it finds by name, in a Python of the driver's machine.
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
    }
    if local:
        variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    with open(jvm.output, "wb") as output, environment(variables), ThreadPoolExecutor(1) as thread:
        options: dict[str, Any] = {"stdout": output, "stderr": output}
        if jvm.group is not None:
            options["process_group"] = jvm.group.pid
        starting = thread.submit(launch_gateway, conf, options)
        for module in _MEANWHILE:
            importlib.import_module(module)
        try:
            while not wait([starting], POLL_S).done:
                if stop.is_set():
                    raise VerifyError("stopped")
            gateway: Any = starting.result()
        except BaseException as error:
            why = explain(error)
            end(0)
            if isinstance(error, PySparkException):
                _check_version(java)
                raise VerifyError(why) from error
            raise
    jvm.process = gateway.proc
    return gateway


def end(patience: float = END_S) -> None:
    """End the JVM that was started here, and remove its files. PySpark cannot start another one then."""
    global _ours
    jvm, _ours = _ours, None
    if jvm is None:
        return
    if jvm.process is not None and jvm.process.stdin is not None:
        jvm.process.stdin.close()  # its sign to stop Spark and to end
        with contextlib.suppress(subprocess.TimeoutExpired):
            jvm.process.wait(patience)
    if jvm.group is not None:
        os.killpg(jvm.group.pid, signal.SIGKILL)
        jvm.group.communicate()
        if jvm.process is not None:
            jvm.process.wait()
    # Ending workers may still write to its folder.
    limit = time.monotonic() + END_S
    while os.path.lexists(jvm.folder):
        shutil.rmtree(jvm.folder, ignore_errors=True)
        if time.monotonic() > limit:
            return
        time.sleep(0.01)


def folder() -> str:
    """Return the folder of the JVM that was started here; empty: there is none."""
    return _ours.folder if _ours is not None else ""


def explain(error: BaseException) -> str:
    """Return one line about a failed start: the last error that the JVM has printed, or else this one."""
    with open(_ours.output if _ours is not None else os.devnull, errors="replace") as file:
        lines = [line.strip() for line in file if re.search("ERROR|Exception|Error", line)]
    return f"spark: it does not start: {lines[-1][:500] if lines else str(error).splitlines()[0]}"


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise VerifyError(
            f"java: Spark needs Java 17 or newer, and there is none ({where}): install a JRE "
            "(Debian: openjdk-17-jre-headless) or set JAVA_HOME"
        )
    return java


def _check_version(java: str) -> None:
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    if version is None or int(version[1]) < 17:
        is_ = f"version {version[1]}" if version else "of no version"
        raise VerifyError(f"java: Spark needs Java 17 or newer, and {java} is {is_}: set JAVA_HOME")


def spark_defaults() -> set[str]:
    """Return the names of settings in ``spark-defaults.conf``, which arguments would override."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    place = os.environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    try:
        with open(os.path.join(place, "spark-defaults.conf"), errors="replace") as file:
            return {match[1] for line in file if (match := re.match(r"\s*([^\s#!=:]+)", line))}
    except OSError:
        return set()


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for the time of the context."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)
