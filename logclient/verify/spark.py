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
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from logclient.errors import ConfigError, LedgerError, MissingExtra, VerifyError
from logclient.verify import start

ANSWER_S = 10.0  # seconds for a server of Spark Connect to accept a connection
STOP_S = 10.0  # seconds for Spark to stop

_DEFAULTS = {
    "spark.app.name": "logclient verify",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32",  # a row may be large
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


def _connected() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkConf

    return bool(SparkConf().getAll())  # a JVM has some, such as the name of the application


def _jvm_runs() -> bool:
    """Return whether this process is connected to a JVM, or was started by one."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or _connected()


class Session:
    """A Spark session: `spark`, the active one, or a new one. A context manager.

    A new session prints nothing and runs on this Python. Its JVM and files stay until this process ends. An
    active session is not stopped.

    The options are those of `job.run`. A new JVM loads the packages of `connector` when none are configured;
    once `stop` is set, its start ends with an error.
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
        stop: threading.Event | None = None,
    ) -> None:
        require_spark()
        given = {"spark.master": master, "spark.driver.memory": heap}
        settings = {**(conf or {}), **{name: value for name, value in given.items() if value}}
        for name, value in _packages(packages or "").items():
            settings[name] = ",".join(filter(None, (settings.get(name), value)))
        self.context: Any = None  # there is none with Spark Connect
        self._spark = spark or _active_session()
        self.stops = self._spark is None  # whether `stop` ends the session
        url = master or os.environ.get("SPARK_REMOTE", "")
        if self._spark is not None:
            _refuse(settings, "a session is active already: too late to set {}")
            self.context = getattr(self._spark, "sparkContext", None)  # not with Spark Connect
        elif url.startswith("sc://"):
            self._spark = _connect(url, settings)
        else:
            self._start(settings, connector, stop or threading.Event())

    @property
    def spark(self) -> Any:
        """The SparkSession. It is made at its first use: that takes longer than a small comparison."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            self._spark = SparkSession.builder.getOrCreate()
        return self._spark

    def _start(self, settings: dict[str, str], connector: str, stop: threading.Event) -> None:
        """Make a context, in a new JVM unless this process has one."""
        gateway: Any = None
        if _jvm_runs():
            late = _AT_START & settings.keys()
            _refuse(late, "its JVM runs already: set {} where it is started (spark-submit)")
            if not _connected():
                gateway = importlib.import_module("pyspark.java_gateway").launch_gateway()  # only connects
        else:
            configured = {*start.spark_defaults(), *settings}
            submitted = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
            jars = configured & {"spark.jars", "spark.jars.packages"}
            if connector and not jars and "packages" not in submitted:
                settings = {**settings, **_packages(connector)}
            elsewhere = "spark.master" in configured or "MASTER" in os.environ or "master" in submitted
            local = is_local(settings.get("spark.master", "" if elsewhere else "local"))
            gateway = start.launch(settings, local, stop)
        from pyspark import SparkConf, SparkContext

        conf = SparkConf().setAll([*settings.items()])
        known = conf if gateway is None else gateway.jvm.SparkConf()  # what the JVM was started with
        missing = {**_DEFAULTS}
        if folder := start.folder():
            missing["spark.sql.warehouse.dir"] = os.path.join(folder, "warehouse")
        for name, value in missing.items():
            if not known.contains(name):
                conf.setIfMissing(name, value)
        # The setting alone does nothing. Without the variable, workers run the first `python3` on PATH.
        python = known.get("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON") or sys.executable)
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if main else None
        began = time.time()
        try:
            with start.environment({"PYSPARK_PYTHON": python}):
                if gateway is not None:
                    self.context = SparkContext(conf=conf, gateway=gateway)
                else:
                    self.context = SparkContext.getOrCreate(conf)
        except Exception as error:
            raise VerifyError(start.explain(error)) from error
        if before is not None:
            # PySpark's handler calls the JVM in the middle of another call to it.
            signal.signal(signal.SIGINT, before)
        self.stops = self.context.startTime >= began * 1000 - 1

    def stop(self) -> None:
        """End the session if it was made here. Idempotent."""
        if not self.stops:
            return
        self.stops = False
        if start.ends_process and start.folder():
            start.end()
            return
        # An interrupted call leaves its thread's connection out of step; a new thread gets its own.
        thread = threading.Thread(target=self._end, daemon=True)
        thread.start()
        thread.join(STOP_S)

    def _end(self) -> None:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (self._spark or self.context).stop()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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
    # py4j logs a broken connection with `logging.debug` and the like, which add a handler to the root logger.
    # Its own logger has one that prints nothing, and still reaches handlers that a user has set.
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
