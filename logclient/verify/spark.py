"""The Spark session of a verification: the active one, or a new one that is removed at the end.

Settings made elsewhere are kept. An active session is used unchanged and not stopped. Under ``spark-submit``,
or with ``spark-defaults.conf`` or ``PYSPARK_SUBMIT_ARGS``, only settings that these leave open are set.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
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
import uuid
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from logclient.errors import ConfigError, LedgerError, LogclientError, MissingExtra

__all__ = ["Session", "VerifyError", "is_local", "no_pandas", "quiet", "remove", "require_extras"]

HEAP = "1g"
END_S = 10.0  # seconds for the JVM to end, and for its workers to close their files


class VerifyError(LogclientError):
    """A failure of Java, Spark or a worker that prevented the comparison, described in one line."""


def _java() -> str:
    """Find the java program for PySpark to start.

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
    found = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', found)
    if version is None or int(version[1]) < 17:
        is_ = f"version {version[1]}" if version else "of no version"
        raise VerifyError(f"java: Spark needs Java 17 or newer, and {java} is {is_}: set JAVA_HOME")
    return java


def require_extras() -> None:
    """Check that the packages of the extra ``verify`` are installed.

    Raises:
        MissingExtra: a package is not installed.
    """
    for module in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "verify")


_LOG4J = """\
status = fatal
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:logclient.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""

_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.app.name": "logclient verify",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32",
    # The plans are trivial, and compiling them costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

# The JVM has little work and ends soon: one compiler and the simplest collector cost least.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Settings that only take effect at the start of a JVM.
_AT_START = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.jars.packages", "spark.jars")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
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


def _spark_defaults() -> set[str]:
    """Return the names that ``spark-defaults.conf`` sets, because our settings would override them."""
    home = os.environ.get("SPARK_HOME") or os.path.dirname(_found("pyspark"))
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    names = set()
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, "spark-defaults.conf"), errors="replace") as file,
    ):
        for line in file:
            if match := re.match(r"\s*([^\s#!=:]+)", line):
                names.add(match[1])
    return names


def _found(module: str) -> str:
    spec = importlib.util.find_spec(module)
    return (spec.origin if spec else None) or ""


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in one JVM on this machine."""
    return master == "local" or master.startswith("local[")


class Session:
    """A Spark session: the active one, or a new one. A context manager.

    A new session prints nothing, runs on this Python and removes its files. An active one is not stopped.

    Args:
        master: the Spark master. The default is the one configured elsewhere, else ``local[*]``: this
            machine, on the loopback address.
        heap: memory of the JVM (of the driver, with ``local``). The default is the one configured elsewhere,
            else 1g.
        packages: Maven coordinates and folders of jars, separated by commas.
        connector: packages that a new JVM loads when none are configured.
        spark: a session to use as the active one.
        log: the folder for the JVM's log and stderr; empty: a temporary one.
        conf: more settings.

    Attributes:
        spark: the SparkSession.
        context: its SparkContext.
        group: name of the job group of a verification.
        stops: whether `stop` ends the session.
        log: the JVM's log file.

    Raises:
        MissingExtra: PySpark is not installed.
        ConfigError: a setting comes too late for a running session or JVM.
        LedgerError: a folder of `packages` has no jars.
        VerifyError: there is no Java, or Spark does not start.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        heap: str | None = None,
        packages: str | None = None,
        connector: str = "",
        spark: Any = None,
        log: str = "",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        require_extras()
        from pyspark import SparkContext

        given = {"spark.master": master, "spark.driver.memory": heap}
        settings = {**(conf or {}), **{name: value for name, value in given.items() if value}}
        if packages:
            for name, value in _packages(packages).items():
                settings[name] = ",".join(filter(None, (settings.get(name), value)))
        self.log = ""
        self._own = ""  # a temporary folder
        self._gateway: Any = None  # of a JVM that we started
        self.stops = True
        self.group = f"logclient-{uuid.uuid4().hex}"
        if spark is not None or SparkContext._active_spark_context is not None:
            self._attach(settings, spark)
        elif SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
            self._use_running_jvm(settings)
        else:
            self._launch(settings, connector, log)

    def _attach(self, settings: dict[str, str], spark: Any) -> None:
        from pyspark.sql import SparkSession

        if settings:
            names = ", ".join(sorted(settings))
            raise ConfigError(f"spark: a session is active already: too late to set {names}")
        self.spark = spark or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        self.context: Any = self.spark.sparkContext
        self.stops = False

    def _use_running_jvm(self, settings: dict[str, str]) -> None:
        """Make a session in the JVM of ``spark-submit``, or in the JVM of an earlier session."""
        late = [name for name in _AT_START if name in settings]
        if late:
            raise ConfigError(
                f"spark: its JVM runs already: set {', '.join(late)} where it is started (spark-submit)"
            )
        from pyspark import SparkContext

        try:
            SparkContext._ensure_initialized()
            self._connect(settings, ours=False)
        except Exception as error:
            raise VerifyError(f"spark: it does not start: {str(error).splitlines()[0]}") from error

    def _launch(self, settings: dict[str, str], connector: str, log: str) -> None:
        """Make a session in a new JVM."""
        _java()
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        self._own = tempfile.mkdtemp(prefix="logclient-spark-")
        self.log = os.path.join(log or self._own, "spark.log")
        with open(os.path.join(self._own, "log4j2.properties"), "w") as file:
            file.write(_LOG4J)
        options = [
            _JVM,
            f"-Dlog4j2.configurationFile=file:{self._own}/log4j2.properties",
            f"-Dlogclient.log={self.log}",
        ]
        # The settings of PySpark's own shell, except for the master, which may be set elsewhere.
        first = {
            **{name: value for name, value in _DEFAULTS.items() if name != "spark.master"},
            "spark.driver.memory": HEAP,
            "spark.driver.extraJavaOptions": " ".join(options),
            "spark.executor.extraJavaOptions": _JVM,
            "spark.sql.warehouse.dir": os.path.join(self._own, "warehouse"),
        }
        others = _spark_defaults()
        conf = SparkConf(loadDefaults=False)
        for name, value in first.items():
            if name not in others:
                conf.set(name, value)
        submitted, _, _ = os.environ.get("PYSPARK_SUBMIT_ARGS", "").rpartition("pyspark-shell")
        configured = {"spark.jars", "spark.jars.packages"} & {*others, *settings}
        if connector and "packages" not in submitted and not configured:
            settings = {**settings, **_packages(connector)}
        # The last option on the command line wins: ours, then the environment's, then the arguments.
        last = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
        environment = {"PYSPARK_SUBMIT_ARGS": " ".join([submitted, *last, "pyspark-shell"])}
        elsewhere = "spark.master" in others or "MASTER" in os.environ or "master" in submitted
        if is_local(settings.get("spark.master", "" if elsewhere else "local")):
            environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        gateway = None
        try:
            with open(os.path.join(self._own, "stderr"), "wb") as errors, _environment(environment):
                # Not inherited, because the output of the JVM and its workers is of no use to a user.
                gateway = launch_gateway(conf, {"stderr": errors, "stdout": errors})  # type: ignore[no-untyped-call]
                self._gateway = gateway
                SparkContext._ensure_initialized(gateway=gateway)
                self._connect(settings, ours=True)
        except BaseException as error:
            why = self._why() or str(error).split("\n")[0]
            self.stop(hard=True)
            if isinstance(error, Exception):
                raise VerifyError(f"spark: it does not start: {why}") from error
            raise

    def _connect(self, settings: dict[str, str], *, ours: bool) -> None:
        """Make the session with the settings of its JVM, and ours where none are set."""
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        conf = SparkConf()
        for name, value in settings.items():
            conf.set(name, value)
        for name, value in _DEFAULTS.items():
            conf.setIfMissing(name, value)
        local = is_local(str(conf.get("spark.master")))
        for name, value in _LOCAL.items() if local else ():
            conf.setIfMissing(name, value)
        if ours and local:
            conf.setIfMissing("spark.local.dir", self._own)
        environment = {}
        if ours or local:
            # The setting is not enough: without the variable, workers run the first `python3` on PATH.
            for name in ("spark.pyspark.python", "spark.pyspark.driver.python"):
                conf.setIfMissing(name, os.environ.get("PYSPARK_PYTHON") or sys.executable)
            environment["PYSPARK_PYTHON"] = str(conf.get("spark.pyspark.python"))
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if main else None
        with _environment(environment):
            self.context = SparkContext(conf=conf)
        if ours:
            # No traceback of a broken connection: we end the JVM ourselves, or the waiting call raises.
            self.context._accumulatorServer.handle_error = lambda *_: None
        if before is not None:
            # PySpark's handler calls the JVM in the middle of another call to it.
            signal.signal(signal.SIGINT, before)
        self.spark = SparkSession(self.context)

    def _why(self) -> str:
        """Return the last error line of the JVM."""
        lines = []
        for path in (self.log, os.path.join(self._own, "stderr")):
            try:
                with open(path, errors="replace") as file:
                    lines += [
                        line.strip()
                        for line in file
                        if "ERROR" in line or "Exception" in line or "Error" in line
                    ]
            except OSError:
                continue
        return lines[-1][:500] if lines else ""

    def cancel(self) -> None:
        """Cancel the running job from another thread; the thread that waits for it gets an error."""
        if self._gateway is not None:
            if self._gateway.proc is not None:
                self._gateway.proc.terminate()
        else:
            with contextlib.suppress(Exception):
                self.context.cancelJobGroup(self.group)

    def stop(self, *, hard: bool = False) -> None:
        """End the session and its JVM, if we started them. Idempotent.

        Args:
            hard: whether a call to the JVM was interrupted, so that no further call is possible.
        """
        if not self.stops:
            return
        self.stops = False
        if self._gateway is not None:
            self._end_jvm(hard)
        elif hasattr(self, "context"):
            # An interrupted call leaves its thread's connection out of step; a new thread gets its own.
            thread = threading.Thread(target=self._end_context, daemon=True)
            thread.start()
            thread.join(END_S)
        remove(self._own)

    def _end_context(self) -> None:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if hasattr(self, "spark"):
                self.spark.stop()
            else:
                self.context.stop()

    def _end_jvm(self, hard: bool) -> None:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        gateway = self._gateway
        proc = getattr(gateway, "proc", None)
        if hard and proc is not None:
            proc.terminate()
            if hasattr(self, "context"):
                self.context._jsc = None  # so that `stop` does not call it
                with contextlib.suppress(Exception):
                    self.context.stop()
        else:
            self._end_context()
        # SparkContext keeps the gateway for the next one in this process, and the JVM with it.
        with contextlib.suppress(Exception):
            gateway.shutdown()
        if proc is not None:
            if proc.stdin is not None:
                proc.stdin.close()
            try:
                proc.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                proc.kill()
                proc.wait()
        if SparkContext._gateway is gateway:
            SparkContext._gateway = None
            SparkContext._jvm = None
            SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(hard=kind is not None and not issubclass(kind, Exception))


def _packages(given: str) -> dict[str, str]:
    """Return the settings for Maven coordinates and the jars in folders.

    Raises:
        LedgerError: a folder has no jars.
    """
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


def remove(folder: str) -> None:
    """Delete a folder, although ending workers may still write to it."""
    end = time.monotonic() + END_S
    while folder and os.path.lexists(folder):
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > end:
            return
        time.sleep(0.01)


@contextlib.contextmanager
def no_pandas() -> Iterator[None]:
    """Let `mapInArrow` work without pandas, which it requires but does not use here."""
    functions: Any = importlib.import_module("pyspark.sql.pandas.functions")
    original = functions.require_minimum_pandas_version
    if importlib.util.find_spec("pandas") is None:
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
    # py4j logs a broken connection with `logging.debug` and the like, which add a handler to the root logger.
    # Its own logger has one that prints nothing, and still reaches handlers that a user has set.
    gateway: Any = importlib.import_module("py4j.java_gateway")
    gateway.logging = loggers[0]
    try:
        yield
    finally:
        gateway.logging = logging
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
