"""The Spark session of a verification: the active one, or a new one that is removed at the end.

Settings made elsewhere are kept. An active session is used unchanged and not stopped. Under ``spark-submit``,
or with ``spark-defaults.conf`` or ``PYSPARK_SUBMIT_ARGS``, only settings that these leave open are set.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from logclient.errors import ConfigError, LedgerError, MissingExtra
from logclient.verify import class_archive
from logclient.verify.jobs import ConnectJobs, ContextJobs, Jobs
from logclient.verify.jvm import Java, Jvm, VerifyError, environment, find_java, found, jars_folder

__all__ = ["Session", "VerifyError", "is_local", "no_pandas", "quiet", "remove", "require_extras"]

HEAP = "1g"
END_S = 10.0  # seconds for the JVM to end, and for its workers to close their files
ANSWER_S = 10.0  # seconds for a server of Spark Connect to accept a connection
RECORD_S = 600.0  # seconds for the JVM to end and to write the archive of its classes


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

_CONNECT = "sc://"  # the beginning of a master's URL

# Settings that only take effect at the start of a JVM.
_AT_START = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.jars.packages", "spark.jars")

# What the driver needs: imported while the JVM starts, and while Spark starts in it.
_FIRST = ("pyspark", "numpy", "pyarrow")
_MEANWHILE = ("logclient.evidence.captures", "logclient.verify.records", "logclient.verify.ledger_merge",
              "logclient.verify.ledger_lines", "logclient.verify.tally", "logclient.verify.summary",
              "logclient.verify.examples", "logclient.verify.report")  # fmt: skip

# Beginnings of the settings that spark-submit acts upon.
_FOR_SUBMIT = ("spark.jars", "spark.files", "spark.archives", "spark.submit.", "spark.driver.extra",
               "spark.driver.default", "spark.kerberos.", "spark.launcher.", "spark.pyspark.")  # fmt: skip

# Variables that do not concern spark-submit; PySpark itself sets the last two.
_HARMLESS = {"SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_HOSTNAME", "SPARK_USER",
             "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}  # fmt: skip


def _spark_defaults() -> set[str]:
    """Return the names that ``spark-defaults.conf`` sets, because our settings would override them."""
    home = os.environ.get("SPARK_HOME") or os.path.dirname(found("pyspark"))
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


def _needs_submit(settings: Mapping[str, str]) -> bool:
    """Return whether files, variables or these settings have work for ``spark-submit``."""
    home = os.path.dirname(found("pyspark"))
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    return (
        any(name.startswith(_FOR_SUBMIT) for name in settings)
        or os.environ.get("PYSPARK_PYTHON", sys.executable) != sys.executable  # it may lack PySpark
        or any(name.startswith(("SPARK_", "HADOOP_", "YARN_")) for name in {*os.environ} - _HARMLESS)
        or os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell").strip() != "pyspark-shell"
        or (os.path.isdir(folder) and bool(os.listdir(folder)))
    )


def _package(error: ImportError) -> str:
    """Return the name of the package that is missing."""
    ask: Any = getattr(error, "getMessageParameters", dict)  # PySpark's own class
    return str((ask() or {}).get("package_name") or error.name or "pyspark")


def _import(modules: Iterable[str]) -> None:
    """Import modules without garbage collection, which would take a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        for module in modules:
            importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def _convert_arrays(gateway: Any, wanted: bool) -> None:
    """Choose whether arguments of calls to the JVM may be numpy's arrays, which only users of frames need.

    To ask whether an argument is one, PySpark imports its utilities for tests, and with them pandas.
    """
    known = importlib.import_module("py4j.protocol").INPUT_CONVERTER
    kept = [one for one in known if not type(one).__name__.startswith("Numpy")]
    gateway._gateway_client.converters = known if wanted else kept


def _active_session() -> Any:
    """Return this thread's session, or that of this process; None: there is none."""
    if "pyspark" not in sys.modules:
        return None  # to import it takes half a second, in which the JVM can start
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if connect is None:
        return None
    return connect.SparkSession.getActiveSession() or connect.SparkSession._get_default_session()


def _jvm_runs() -> bool:
    """Return whether this process is connected to a JVM, or was started by one."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in one JVM on this machine."""
    return master == "local" or master.startswith("local[")


class Session:
    """A Spark session: the active one, or a new one. A context manager.

    A new session prints nothing, runs on this Python and removes its files. An active one is not stopped.

    Args:
        master: the Spark master, or ``sc://HOST:PORT`` for a server of Spark Connect. The default is the one
            configured elsewhere, else ``local[*]``: this machine, on the loopback address.
        heap: memory of the JVM (of the driver, with ``local``). The default is the one configured elsewhere,
            else 1g.
        packages: Maven coordinates and folders of jars, separated by commas.
        connector: packages that a new JVM loads when none are configured.
        spark: a session to use as the active one.
        log: the folder for the JVM's log and stderr; empty: a temporary one.
        conf: more settings.
        stop: once it is set, the start of a JVM ends with an error.
        record: an archive for the JVM to write when it ends.
        meanwhile: called once, before any error of Spark's start, and while it starts where that is possible.

    Attributes:
        context: the SparkContext; None: with Spark Connect there is none.
        jobs: the jobs of a verification on it.
        jvm: the JVM that was started for it; None: it uses another one.
        stops: whether `stop` ends the session.
        log: the JVM's log file.

    Raises:
        MissingExtra: PySpark is not installed, or what Spark Connect needs.
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
        stop: threading.Event | None = None,
        record: class_archive.Archive | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        require_extras()
        given = {"spark.master": master, "spark.driver.memory": heap}
        settings = {**(conf or {}), **{name: value for name, value in given.items() if value}}
        if packages:
            for name, value in _packages(packages).items():
                settings[name] = ",".join(filter(None, (settings.get(name), value)))
        self.log = ""
        self._own = ""  # a temporary folder
        self.jvm: Jvm | None = None  # one that we started
        self.context: Any = None
        self._spark: Any = None
        self._opening: Future[bool] | None = None  # the start of Spark in another thread
        self._stop = stop or threading.Event()
        self._record = record
        self._disposable = False  # whether the JVM may be killed at the end
        self._missing: tuple[str, str] | None = None  # folder and name of an archive that is not there
        self.stops = True
        self._group = f"logclient-{uuid.uuid4().hex}"
        spark = spark or _active_session()
        master = master or os.environ.get("SPARK_REMOTE")
        serves = master is not None and master.startswith(_CONNECT)
        if spark is None and not serves and not _jvm_runs():
            self._launch(settings, connector, log, meanwhile)
            return
        meanwhile()
        if spark is not None:
            self._attach(settings, spark)
        elif master is not None and serves:
            self._use_server(master, settings)
        else:
            self._use_running_jvm(settings)

    @property
    def spark(self) -> Any:
        """The SparkSession. Where Spark was started for it, it is made at its first use: that takes time."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            if self.jvm is not None:
                _convert_arrays(self.jvm.gateway, True)
            self._spark = SparkSession(self.context)
        return self._spark

    def _attach(self, settings: dict[str, str], spark: Any) -> None:
        if settings:
            names = ", ".join(sorted(settings))
            raise ConfigError(f"spark: a session is active already: too late to set {names}")
        self._spark = spark
        self.stops = False
        self.jobs: Jobs = ConnectJobs(spark, self._group)
        if hasattr(spark, "sparkContext"):  # not with Spark Connect
            self.context = spark.sparkContext
            self.jobs = ContextJobs(self.context, self._group)

    def _use_server(self, url: str, settings: dict[str, str]) -> None:
        """Make a session of Spark Connect."""
        shown = url.partition(";")[0].rstrip("/")  # parameters may have a token
        late = [name for name in _AT_START if name in settings]
        if late:
            raise ConfigError(f"spark: {shown} runs already: set {', '.join(late)} where it is started")
        try:
            import grpc
            from pyspark.sql.connect.client import DefaultChannelBuilder
            from pyspark.sql.connect.session import SparkSession
        except ImportError as error:
            raise MissingExtra(_package(error), "connect") from error
        from pyspark.errors import PySparkException

        try:
            channels = DefaultChannelBuilder(url)
        except PySparkException as error:
            raise ConfigError(f"master: {shown} must be as sc://HOST:PORT/;NAME=VALUE") from error
        with channels.toChannel() as channel:
            try:  # PySpark's own attempts go on for minutes
                grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
            except grpc.FutureTimeoutError as error:
                raise VerifyError(f"spark: {shown} does not answer") from error
        try:
            self._spark = SparkSession.builder.channelBuilder(channels).create()
            configured = self._spark.conf.getAll
            for name, value in _DEFAULTS.items():
                if name.startswith("spark.sql.") and name not in configured:
                    self._spark.conf.set(name, value)
            for name, value in settings.items():
                if name != "spark.master":
                    self._set(name, value)
            self.jobs = ConnectJobs(self._spark, self._group)
        except BaseException as error:
            self.stop(hard=True)
            if isinstance(error, Exception) and not isinstance(error, ConfigError):
                raise VerifyError(f"spark: {shown}: {str(error).splitlines()[0][:300]}") from error
            raise

    def _set(self, name: str, value: str) -> None:
        from pyspark.errors import AnalysisException

        try:
            self._spark.conf.set(name, value)
        except AnalysisException as error:
            raise ConfigError(f"spark: {name} must be set where the server is started") from error

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

    def _launch(
        self, settings: dict[str, str], connector: str, log: str, meanwhile: Callable[[], None]
    ) -> None:
        """Start Spark in a new JVM."""
        try:
            java = find_java()
        except VerifyError:
            meanwhile()
            raise
        self._own = tempfile.mkdtemp(prefix="logclient-spark-")
        self.log = os.path.join(log or self._own, "spark.log")
        with open(os.path.join(self._own, "log4j2.properties"), "w") as file:
            file.write(_LOG4J)
        defaults = _spark_defaults()
        submitted, _, _ = os.environ.get("PYSPARK_SUBMIT_ARGS", "").rpartition("pyspark-shell")
        configured = {"spark.jars", "spark.jars.packages"} & {*defaults, *settings}
        if connector and "packages" not in submitted and not configured:
            settings = {**settings, **_packages(connector)}
        elsewhere = "spark.master" in defaults or "MASTER" in os.environ or "master" in submitted
        local = is_local(settings.get("spark.master", "" if elsewhere else "local"))
        # The JVM runs sources of DataFrames, which it finds by name, in a Python of the driver's machine.
        variables = {"PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable}
        if local:
            variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        archive = self._archive(java, settings) if local else None
        if archive is not None:
            with self._ended_on_error():
                self._start_directly(java, archive, settings, variables)
        try:
            meanwhile()
        except BaseException:
            self.stop(hard=True)
            raise
        with self._ended_on_error():
            if archive is not None and not self._has_started():
                # The JVM died with this archive, or because there is too little memory. Try the other way.
                archive.remove()
                archive = None
            if archive is None:
                self._submit(settings, defaults, submitted, variables)
                self._open(settings)

    @contextlib.contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        """End the JVM if it does not start."""
        try:
            yield
        except BaseException as error:
            why = self._why() or str(error).split("\n")[0]
            self.stop(hard=True)
            if isinstance(error, Exception) and not self._stop.is_set():
                raise VerifyError(f"spark: it does not start: {why}") from error
            raise

    def _open(self, settings: dict[str, str]) -> bool:
        """Start Spark in the JVM.

        Returns:
            False if the JVM has ended without an answer.
        """
        from pyspark import SparkContext

        assert self.jvm is not None
        if not self.jvm.connect(self._stop):
            return False
        _convert_arrays(self.jvm.gateway, False)
        SparkContext._ensure_initialized(gateway=self.jvm.gateway)
        self._connect(settings, ours=True)
        return True

    def _logging(self) -> list[str]:
        return [
            f"-Dlog4j2.configurationFile=file:{self._own}/log4j2.properties",
            f"-Dlogclient.log={self.log}",
        ]

    def _archive(self, java: Java, settings: dict[str, str]) -> class_archive.Archive | None:
        """Return the archive for a direct start; None: there is none, or this needs ``spark-submit``."""
        if _needs_submit(settings):
            return None
        folder = class_archive.folder() if self._record is None else None
        if folder is None:
            return self._record
        name = class_archive.identify(java.path, java.version, jars_folder())
        archive = class_archive.find(folder, name)
        if archive is None:
            self._missing = folder, name
        return archive

    def _start_directly(
        self,
        java: Java,
        archive: class_archive.Archive,
        settings: dict[str, str],
        variables: Mapping[str, str],
    ) -> None:
        """Start the JVM with an archive of its classes, and let a thread start Spark in it."""
        heap = settings.get("spark.driver.memory", HEAP)
        options = [f"-Xmx{heap}", f"-Djava.io.tmpdir={self._own}", *self._logging()]
        record = self._record is not None
        # All of its files are in our folder, and no setting asks for more, such as a log of its events.
        self._disposable = not record and settings.keys() <= {"spark.master", "spark.driver.memory"}
        self.jvm = Jvm.start(java.path, archive, options, self._own, variables, record=record)
        _import(_FIRST)
        thread = ThreadPoolExecutor(1, "logclient-spark")
        self._opening = thread.submit(self._open, settings)
        thread.shutdown(wait=False)
        _import(_MEANWHILE)
        # pyarrow imports pandas, if it is installed, when it converts the first list. Here it costs no time.
        importlib.import_module("pyarrow").array([0])

    def _has_started(self) -> bool:
        """Wait for the thread that starts Spark.

        Returns:
            False if the JVM has ended without an answer. It is forgotten then.
        """
        assert self.jvm is not None
        assert self._opening is not None
        if self._opening.result():
            return True
        self.jvm.end(END_S)
        self.jvm = self._opening = None
        self._disposable = False
        return False

    def _submit(
        self, settings: Mapping[str, str], defaults: set[str], submitted: str, variables: Mapping[str, str]
    ) -> None:
        """Start the JVM through ``spark-submit``.

        Args:
            settings: given as arguments.
            defaults: names of the settings in Spark's own file.
            submitted: options from the environment.
            variables: for the environment of the JVM.
        """
        from pyspark import SparkConf

        first = {
            **self._first(),
            "spark.driver.extraJavaOptions": " ".join([*class_archive.OPTIONS, *self._logging()]),
        }
        conf = SparkConf(loadDefaults=False)
        for name, value in first.items():
            if name not in defaults:
                conf.set(name, value)
        # The last option on the command line wins: ours, then the environment's, then the arguments.
        last = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
        arguments = " ".join([submitted, *last, "pyspark-shell"])
        self.jvm = Jvm.submit(conf, self._own, {**variables, "PYSPARK_SUBMIT_ARGS": arguments})

    def _first(self) -> dict[str, str]:
        """Return the settings of PySpark's own shell, except for the master, which may be set elsewhere."""
        return {
            **{name: value for name, value in _DEFAULTS.items() if name != "spark.master"},
            "spark.driver.memory": HEAP,
            "spark.executor.extraJavaOptions": " ".join(class_archive.OPTIONS),
            "spark.sql.warehouse.dir": os.path.join(self._own, "warehouse"),
        }

    def _connect(self, settings: dict[str, str], *, ours: bool) -> None:
        """Make the context with the settings of its JVM, and ours where none are set."""
        from pyspark import SparkConf, SparkContext

        conf = SparkConf()
        for name, value in settings.items():
            conf.set(name, value)
        if ours:
            for name, value in self._first().items():
                conf.setIfMissing(name, value)
        for name, value in _DEFAULTS.items():
            conf.setIfMissing(name, value)
        local = is_local(str(conf.get("spark.master")))
        for name, value in _LOCAL.items() if local else ():
            conf.setIfMissing(name, value)
        if ours and local:
            conf.setIfMissing("spark.local.dir", self._own)
            conf.setIfMissing("spark.python.daemon.module", "logclient.verify.daemon")
        variables = {}
        if ours or local:
            # The setting is not enough: without the variable, workers run the first `python3` on PATH.
            for name in ("spark.pyspark.python", "spark.pyspark.driver.python"):
                conf.setIfMissing(name, os.environ.get("PYSPARK_PYTHON") or sys.executable)
            variables["PYSPARK_PYTHON"] = str(conf.get("spark.pyspark.python"))
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if main else None
        with environment(variables):
            self.context = SparkContext(conf=conf)
        if ours:
            # No traceback of a broken connection: we end the JVM ourselves, or the waiting call raises.
            self.context._accumulatorServer.handle_error = lambda *_: None
        if before is not None:
            # PySpark's handler calls the JVM in the middle of another call to it.
            signal.signal(signal.SIGINT, before)
        self.jobs = ContextJobs(self.context, self._group)

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
        if self.jvm is not None:
            self.jvm.process.terminate()
        else:
            self.jobs.cancel()

    def stop(self, *, hard: bool = False) -> None:
        """End the session and its JVM, if we started them. Idempotent.

        Args:
            hard: whether a call to the JVM was interrupted, so that no further call is possible.
        """
        if not self.stops:
            return
        self.stops = False
        if self.jvm is not None:
            self._end_jvm(self.jvm, hard)
        elif self.context is not None or self._spark is not None:
            # An interrupted call leaves its thread's connection out of step; a new thread gets its own.
            thread = threading.Thread(target=self._end_context, daemon=True)
            thread.start()
            thread.join(END_S)
        remove(self._own)
        if self._missing is not None and not hard:
            class_archive.begin_writing(*self._missing)

    def _end_context(self) -> None:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (self._spark or self.context).stop()

    def _end_jvm(self, jvm: Jvm, hard: bool) -> None:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        # The JVM stops Spark when it ends. `SparkContext.stop` would also wait for a server in this process,
        # which only looks once a second whether it should end.
        if self._disposable:
            jvm.process.kill()  # Spark takes half a second to stop, without a use
        jvm.end(END_S if self._record is None else RECORD_S, hard=hard)
        if self._opening is not None:
            wait([self._opening], END_S)
        if self.context is not None:
            self.context._jsc = None
            server, self.context._accumulatorServer = self.context._accumulatorServer, None
            threading.Thread(target=server.shutdown, daemon=True).start()
        # SparkContext keeps the gateway for the next one in this process, and the JVM with it.
        if SparkContext._gateway is jvm.gateway:
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
