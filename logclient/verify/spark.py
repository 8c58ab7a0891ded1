"""The Spark session of a verification: the application's, or a new one that is stopped at the end.

A session that the application brings, or has active, is used unchanged and not stopped. Under
``spark-submit``, or with ``spark-defaults.conf`` or ``PYSPARK_SUBMIT_ARGS``, only settings that these leave
open are set.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from logclient.errors import ConfigError, LedgerError, MissingExtra, VerifyError

ANSWER_S = 10.0  # seconds for a server of Spark Connect to accept a connection
STOP_S = 10.0  # seconds for Spark to stop

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32",  # a row may be large
}

# Defaults for a JVM that is started here: once it runs, it has values of its own for these.
_LAUNCH_DEFAULTS = {
    "spark.app.name": "logclient verify",
    "spark.ui.showConsoleProgress": "false",
    # Most of a short run is code that runs once: the second compiler takes more time than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

# Settings that only take effect at the start of a JVM.
_AT_START = {"spark.driver.memory", "spark.driver.extraJavaOptions", "spark.jars.packages", "spark.jars"}


def require_spark() -> None:
    """Check that PySpark is installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtra("pyspark", "spark", 'or verify without Spark: --local (runner="local")')


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in one JVM on this machine."""
    return master == "local" or master.startswith("local[")


def _active_session() -> Any:
    """Return this thread's session, or that of this process; None: there is none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.errors import PySparkException

    for module in ("pyspark.sql.session", "pyspark.sql.connect.session"):
        with contextlib.suppress(PySparkException):
            if module in sys.modules:
                return sys.modules[module].SparkSession.active()
    return None


def _jvm_runs() -> bool:
    """Return whether this process is connected to a JVM, or was started by one."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    return "pyspark" in sys.modules and sys.modules["pyspark"].SparkContext._gateway is not None


class Session:
    """A Spark session: `spark`, the active one, or a new one. A context manager.

    A new session runs on this Python. Its JVM prints nothing and stays until this process ends. An active
    session is not stopped.

    The options are those of `job.run`. A new JVM loads the packages of `connector` when none are configured.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        heap: str | None = None,
        packages: str | None = None,
        connector: str = "",
        spark: Any = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        require_spark()
        given = {"spark.master": master, "spark.driver.memory": heap}
        settings = {**(conf or {}), **{name: value for name, value in given.items() if value}}
        for name, value in _packages(packages or "").items():
            settings[name] = ",".join(filter(None, (settings.get(name), value)))
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.spark = spark or _active_session()
        self.stops = self.spark is None  # whether `stop` ends the session
        url = master or os.environ.get("SPARK_REMOTE", "")
        if self.spark is not None:
            _refuse(settings, "a session is active already: too late to set {}")
        elif url.startswith("sc://"):
            self.spark = _connect(url, settings)
        else:
            self.spark = self._start(settings, connector)
        self.context: Any = getattr(self.spark, "sparkContext", None)  # there is none with Spark Connect

    def _start(self, settings: dict[str, str], connector: str) -> Any:
        """Make a session, in a new JVM unless this process has one."""
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        if _jvm_runs():
            late = _AT_START & settings.keys()
            _refuse(late, "its JVM runs already: set {} where it is started (spark-submit)")
            SparkContext._ensure_initialized()
        else:
            _launch(settings, connector)
        configured = SparkConf()  # with what the JVM was started with
        defaults = {**_DEFAULTS}
        if is_local(settings.get("spark.master", configured.get("spark.master", ""))):
            defaults["spark.driver.host"] = "127.0.0.1"
        if not configured.contains("spark.sql.warehouse.dir"):  # Spark makes it where it looks for a table
            self._folder = tempfile.TemporaryDirectory(prefix="logclient-spark-")
            defaults["spark.sql.warehouse.dir"] = self._folder.name
        missing = {name: value for name, value in defaults.items() if not configured.contains(name)}
        # The setting alone does nothing. Without the variable, workers run the first `python3` on PATH.
        python = {**dict(configured.getAll()), **settings}.get("spark.pyspark.python", sys.executable)
        os.environ.setdefault("PYSPARK_PYTHON", python)
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if main else None
        try:
            return SparkSession.builder.config(map={**missing, **settings}).getOrCreate()
        except BaseException:
            self.stop()
            raise
        finally:
            if before is not None:
                # PySpark's handler calls the JVM in the middle of another call to it.
                signal.signal(signal.SIGINT, before)

    def stop(self) -> None:
        """End the session if it was made here. Idempotent."""
        if self.stops and self.spark is not None:
            # An interrupted call leaves its thread's connection out of step; a new thread gets its own.
            thread = threading.Thread(target=self._end, daemon=True)
            thread.start()
            thread.join(STOP_S)
        if self._folder is not None:
            self._folder.cleanup()
        self.stops = False

    def _end(self) -> None:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.spark.stop()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _launch(settings: Mapping[str, str], connector: str) -> None:
    """Start the JVM of this process. It prints into a file, of which an error quotes the last one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    # The JVM runs sources of DataFrames, which it finds by name, in a Python of the driver's machine.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    gateways: Any = importlib.import_module("pyspark.java_gateway")
    java = _find_java()
    defaults = {**_LAUNCH_DEFAULTS}
    if connector and not {"spark.jars", "spark.jars.packages"} & settings.keys():
        defaults["spark.jars.packages"] = connector
    # Arguments win over the files of Spark.
    configured = _spark_defaults() + os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    missing = {name: value for name, value in defaults.items() if name not in configured}
    conf = SparkConf(loadDefaults=False).setAll([*{**missing, **settings}.items()])
    if is_local(settings.get("spark.master", "" if "spark.master" in configured else "local")):
        try:
            socket.gethostbyname(socket.gethostname())
        except OSError:  # without a network, or its name in the list of hosts: Spark would look for it
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            gateway = gateways.launch_gateway(conf, {"stdout": output, "stderr": output})
        except BaseException as error:
            # PySpark's own variable is the only place with the process, which may not end by itself.
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if (process := frame.f_locals.get("proc")) is not None:
                    process.kill()
                    process.communicate()
            if not isinstance(error, PySparkException):
                raise
            _check_version(java)
            output.seek(0)
            lines = [line.strip() for line in output if re.search("ERROR|Exception|Error", line)]
            why = lines[-1][:500] if lines else str(error).splitlines()[0]
            raise VerifyError(f"spark: it does not start: {why}") from error
    SparkContext._ensure_initialized(gateway=gateway)


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


def _spark_defaults() -> str:
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    place = os.environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    try:
        with open(os.path.join(place, "spark-defaults.conf"), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _refuse(settings: Collection[str], why: str) -> None:
    if settings:
        raise ConfigError("spark: " + why.format(", ".join(sorted(settings))))


def _connect(url: str, settings: Mapping[str, str]) -> Any:
    shown = url.partition(";")[0].rstrip("/")  # parameters may have a token
    _refuse(_AT_START & settings.keys(), f"{shown} runs already: set {{}} where it is started")
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        ask: Any = getattr(error, "getMessageParameters", dict)  # PySpark's own class
        package = (ask() or {}).get("package_name") or error.name or "pyspark"
        raise MissingExtra(str(package), "connect") from error
    from pyspark.errors import AnalysisException, PySparkException

    try:
        channels = DefaultChannelBuilder(url)
    except PySparkException as error:
        raise ConfigError(f"master: {shown} must be as sc://HOST:PORT/;NAME=VALUE") from error
    with channels.toChannel() as channel:
        try:  # PySpark's own attempts go on for minutes
            grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
        except grpc.FutureTimeoutError as error:
            raise VerifyError(f"spark: {shown} does not answer") from error
    spark: Any = None
    name = ""
    try:
        spark = SparkSession.builder.channelBuilder(channels).create()
        configured = spark.conf.getAll
        ours = {name: value for name, value in _DEFAULTS.items() if name.startswith("spark.sql.")}
        for name, value in {**ours, **configured, **settings}.items():
            if name != "spark.master" and configured.get(name) != value:
                spark.conf.set(name, value)
    except BaseException as error:
        if spark is not None:
            with contextlib.suppress(Exception):
                spark.stop()
        if isinstance(error, AnalysisException):
            raise ConfigError(f"spark: {name} must be set where the server is started") from error
        if isinstance(error, Exception):
            raise VerifyError(f"spark: {shown}: {str(error).splitlines()[0][:300]}") from error
        raise
    return spark


def _packages(given: str) -> dict[str, str]:
    """Return the settings for Maven coordinates and the jars in folders."""
    coordinates: list[str] = []
    jars: list[str] = []
    for one in filter(None, given.split(",")):
        if not os.path.isdir(one):
            coordinates.append(one)
            continue
        found = sorted(entry.path for entry in os.scandir(one) if entry.name.endswith(".jar"))
        if not found:
            raise LedgerError(f"packages: {one} has no jar")
        jars += map(os.path.abspath, found)
    settings = {"spark.jars.packages": ",".join(coordinates), "spark.jars": ",".join(jars)}
    return {name: value for name, value in settings.items() if value}


@contextlib.contextmanager
def no_pandas() -> Iterator[None]:
    """Let `mapInArrow` work with no pandas, or with any version: it asks for one but does not use it here."""
    functions: Any = importlib.import_module("pyspark.sql.pandas.functions")
    original = functions.require_minimum_pandas_version
    functions.require_minimum_pandas_version = lambda: None
    try:
        yield
    finally:
        functions.require_minimum_pandas_version = original


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the long output of PySpark and py4j about errors that we report in one line."""
    loggers = [logging.getLogger(name) for name in ("py4j", "SQLQueryContextLogger")]
    before = [logger.disabled for logger in loggers]
    loggers[1].disabled = True
    # py4j logs a Ctrl-C and a broken connection with `logging.exception` and the like to the root logger. Its
    # own logger has a handler that prints nothing, and still reaches handlers that a user has set.
    gateway: Any = importlib.import_module("py4j.java_gateway")
    gateway.logging = loggers[0]
    try:
        with warnings.catch_warnings():
            # PySpark may import pandas, which is not used here, and complain about its version.
            warnings.filterwarnings("ignore", "PySpark does not yet", FutureWarning)
            yield
    finally:
        gateway.logging = logging
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
