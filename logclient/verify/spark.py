"""The Spark session of a verification: the active one, or one of our own; and what is told while it works.

What somebody has set stands: an active session is used as it is and not stopped; under ``spark-submit``, and
where ``spark-defaults.conf`` or ``PYSPARK_SUBMIT_ARGS`` say something, only what they leave open is set.
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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from logclient.errors import ConfigError, LedgerError, LogclientError, MissingExtra

__all__ = ["Session", "VerifyError", "Watch", "no_pandas", "quiet", "remove"]

HEAP = "1g"
LOOK_S = 0.25  # between two looks at what Spark has done
END_S = 10.0  # for the JVM to end, and for its workers to let go of their files


class VerifyError(LogclientError):
    """The comparison itself could not be done: Java, Spark or a worker failed. One line says why."""


def _java() -> str:
    """The java program PySpark will start.

    Raises:
        VerifyError: there is none, or it is too old.
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


def extras() -> None:
    """Raises `MissingExtra` when something that every verification needs is not installed."""
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
    # Trivial plans: compiling them costs more than it can save.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

# The part of a JVM is small and short: one compiler and the simplest collector cost least.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# What a JVM that runs already cannot be told any more.
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
    """The names that ``spark-defaults.conf`` sets: the JVM reads it, and what we pass would override it."""
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
    """All of Spark is in one JVM on this machine."""
    return master == "local" or master.startswith("local[")


class Session:
    """A Spark session: the active one, or one of our own. A context manager.

    One of our own is quiet, on this Python, and leaves nothing behind. An active one is not stopped.

    Args:
        master: where to run; when nobody says it, ``local[*]``: this machine, on the loopback address.
        heap: of the JVM (the driver's, with ``local``); 1g when nobody says it.
        packages: Maven coordinates and folders of jars, with commas between them.
        connector: packages that a JVM of our own brings when nobody names any.
        spark: a session to use as an active one.
        log: the JVM's log and stderr go to this folder; one of its own, deleted at the end, when empty.
        conf: more settings.

    Raises:
        MissingExtra: no PySpark.
        ConfigError: a setting that a session or JVM which is there already cannot take any more.
        LedgerError: a folder of `packages` without jars.
        VerifyError: no Java, or Spark does not start.
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
        extras()
        from pyspark import SparkContext

        given = {"spark.master": master, "spark.driver.memory": heap}
        asked = {**(conf or {}), **{name: value for name, value in given.items() if value}}
        if packages:
            for name, value in _packages(packages).items():
                asked[name] = ",".join(filter(None, (asked.get(name), value)))
        self.log = ""
        self._own = ""  # a folder
        self._gateway: Any = None  # of a JVM that is ours
        self._stops = True
        self._group = f"logclient-{uuid.uuid4().hex}"
        if spark is not None or SparkContext._active_spark_context is not None:
            self._attach(asked, spark)
        elif SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
            self._submitted(asked)
        else:
            self._launch(asked, connector, log)

    def _attach(self, asked: dict[str, str], spark: Any) -> None:
        from pyspark.sql import SparkSession

        if asked:
            names = ", ".join(sorted(asked))
            raise ConfigError(f"spark: a session is active already, and cannot be told {names} any more")
        self.spark = spark or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        self.context: Any = self.spark.sparkContext
        self._stops = False

    def _submitted(self, asked: dict[str, str]) -> None:
        """A session in the JVM of ``spark-submit``, or in one that an earlier session left."""
        late = [name for name in _AT_START if name in asked]
        if late:
            raise ConfigError(
                f"spark: its JVM runs already: what started it (spark-submit) must be told {', '.join(late)}"
            )
        from pyspark import SparkContext

        try:
            SparkContext._ensure_initialized()
            self._connect(asked, ours=False)
        except Exception as error:
            raise VerifyError(f"spark: it does not start: {str(error).splitlines()[0]}") from error

    def _launch(self, asked: dict[str, str], connector: str, log: str) -> None:
        """A session in a JVM of our own."""
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
        # All that a shell of PySpark would set by itself; the master it takes from wherever it is said.
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
        said, _, _ = os.environ.get("PYSPARK_SUBMIT_ARGS", "").rpartition("pyspark-shell")
        brought = {"spark.jars", "spark.jars.packages"} & {*others, *asked}
        if connector and "packages" not in said and not brought:
            asked = {**asked, **_packages(connector)}
        # On its command line the last word holds: ours, then the environment's, then what was asked for.
        last = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in asked.items()]
        environment = {"PYSPARK_SUBMIT_ARGS": " ".join([said, *last, "pyspark-shell"])}
        elsewhere = "spark.master" in others or "MASTER" in os.environ or "master" in said
        if is_local(asked.get("spark.master", "" if elsewhere else "local")):
            environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        gateway = None
        try:
            with open(os.path.join(self._own, "stderr"), "wb") as errors, _environment(environment):
                # Not inherited: the JVM and its workers write there what is of no use to a user.
                gateway = launch_gateway(conf, {"stderr": errors, "stdout": errors})  # type: ignore[no-untyped-call]
                self._gateway = gateway
                SparkContext._ensure_initialized(gateway=gateway)
                self._connect(asked, ours=True)
        except BaseException as error:
            why = self._why() or str(error).split("\n")[0]
            self.stop(hard=True)
            if isinstance(error, Exception):
                raise VerifyError(f"spark: it does not start: {why}") from error
            raise

    def _connect(self, asked: dict[str, str], *, ours: bool) -> None:
        """The session, on the settings that its JVM has and those that nobody has set."""
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        conf = SparkConf()
        for name, value in asked.items():
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
            # The setting alone does not do: without the variable, workers are whatever `python3` is on PATH.
            for name in ("spark.pyspark.python", "spark.pyspark.driver.python"):
                conf.setIfMissing(name, os.environ.get("PYSPARK_PYTHON") or sys.executable)
            environment["PYSPARK_PYTHON"] = str(conf.get("spark.pyspark.python"))
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if main else None
        with _environment(environment):
            self.context = SparkContext(conf=conf)
        if ours:
            # It ends by our own hand, or whoever waits for it says so: no traceback of a broken connection.
            self.context._accumulatorServer.handle_error = lambda *_: None
        if before is not None:
            # PySpark's handler talks to the JVM in the middle of whatever is being said to it.
            signal.signal(signal.SIGINT, before)
        self.spark = SparkSession(self.context)

    def _why(self) -> str:
        """The last error line of the JVM, for one-line reports."""
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
        """End what runs, from another thread than the one that waits for it: that one gets an error."""
        if self._gateway is not None:
            if self._gateway.proc is not None:
                self._gateway.proc.terminate()
        else:
            with contextlib.suppress(Exception):
                self.context.cancelJobGroup(self._group)

    def stop(self, *, hard: bool = False) -> None:
        """End the session and its JVM, if they are ours. Idempotent.

        Args:
            hard: somebody was interrupted while talking to the JVM, which cannot be talked to any more.
        """
        if not self._stops:
            return
        self._stops = False
        if self._gateway is not None:
            self._end_jvm(hard)
        elif hasattr(self, "context"):
            # Whoever was interrupted has a connection that is out of step: a new thread has one of its own.
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
                self.context._jsc = None  # nothing is said to it any more
                with contextlib.suppress(Exception):
                    self.context.stop()
        else:
            self._end_context()
        # SparkContext keeps the gateway for the next one of this process; the JVM would stay with it.
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
    """Settings that bring Maven coordinates and the jars of folders.

    Raises:
        LedgerError: a folder without jars.
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
    """Delete a folder that workers on their way out may still write to."""
    end = time.monotonic() + END_S
    while folder and os.path.lexists(folder):
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > end:
            return
        time.sleep(0.01)


@contextlib.contextmanager
def no_pandas() -> Iterator[None]:
    """`mapInArrow` asks for pandas although nothing here ever makes a DataFrame of it: not asked then."""
    functions: Any = importlib.import_module("pyspark.sql.pandas.functions")
    asked = functions.require_minimum_pandas_version
    if importlib.util.find_spec("pandas") is None:
        functions.require_minimum_pandas_version = lambda: None
    try:
        yield
    finally:
        functions.require_minimum_pandas_version = asked


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What goes wrong is told in one line: PySpark and py4j do not print their own pages of it."""
    loggers = [logging.getLogger(name) for name in ("py4j", "SQLQueryContextLogger")]
    before = [logger.disabled for logger in loggers]
    loggers[1].disabled = True
    # A connection that breaks is told to the root logger, which makes itself a handler for it: py4j's own has
    # one that prints nothing, and what a user has set for it gets it still.
    gateway: Any = importlib.import_module("py4j.java_gateway")
    gateway.logging = loggers[0]
    try:
        yield
    finally:
        gateway.logging = logging
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


class Watch:
    """Tells how far a verification is, and ends it on request. A context manager.

    Args:
        progress: called a few times a second, from a thread of its own, with a line of text; with an empty
            one when it is over.
        stop: once it is set, the verification ends with a `VerifyError`.
    """

    def __init__(
        self, progress: Callable[[str], None] | None = None, stop: threading.Event | None = None
    ) -> None:
        self.progress = progress
        self.stop = stop or threading.Event()
        self.stage = "starting Spark"
        self.began = time.monotonic()
        self.session: Session | None = None
        self._tracker: Any = None
        self._theirs: str | None = None  # the job group of an active session
        self._before: set[int] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logclient-verify", daemon=True)
        self._runs = progress is not None or stop is not None

    def __enter__(self) -> Watch:
        if self._runs:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._runs:
            self._thread.join()

    def use(self, session: Session) -> None:
        """Look at the jobs of this session, those that the calling thread starts."""
        if not self._runs:
            return
        self._theirs = session.context.getLocalProperty("spark.jobGroup.id")
        session.context.setLocalProperty("spark.jobGroup.id", session._group)
        self._tracker = session.context.statusTracker()
        self.session = session

    def release(self) -> None:
        """Look no more: it is going to be stopped."""
        session, self.session = self.session, None
        if session is not None and not session._stops:
            with contextlib.suppress(Exception):
                session.context.setLocalProperty("spark.jobGroup.id", self._theirs)

    def step(self, stage: str) -> None:
        """What comes now.

        Raises:
            VerifyError: it was asked to stop.
        """
        self.check()
        if self.session is not None:
            with contextlib.suppress(Exception):
                self._before = set(self._tracker.getJobIdsForGroup(self.session._group))
        self.stage = stage

    def check(self) -> None:
        """Raises `VerifyError` when it was asked to stop."""
        if self.stop.is_set():
            raise VerifyError("stopped")

    def line(self) -> str:
        """Stage, share and seconds."""
        share = self._share()
        told = "" if share is None else f" {share:.0%}"
        return f"{self.stage}{told}, {time.monotonic() - self.began:.0f} s"

    def _share(self) -> float | None:
        """Of the tasks that are known so far; None where there are none."""
        done = total = 0
        session = self.session
        if session is None:
            return None
        with contextlib.suppress(Exception):
            for job in set(self._tracker.getJobIdsForGroup(session._group)) - self._before:
                info = self._tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    about = self._tracker.getStageInfo(stage)
                    if about is not None:
                        total += about.numTasks
                        done += about.numCompletedTasks
        return done / total if total else None

    def _run(self) -> None:
        while not self._done.wait(LOOK_S):
            if self.stop.is_set() and self.session is not None:
                self.session.cancel()
            if self.progress is not None and not self.stop.is_set():
                self.progress(self.line())
        if self.progress is not None:
            self.progress("")
