"""A Kafka broker for tests and the demo, and Spark's Kafka connector, from Maven packages.

    python tools/kafka.py fetch                 fetch the packages of kafka-ivy.xml into the environment
    python tools/kafka.py lock                  write the hashes of these packages to kafka.sha256
    python tools/kafka.py start [--port N]      start a broker on 127.0.0.1; print {"bootstrap": …}
    python tools/kafka.py status                print the same line; exit with 1 when there is no broker
    python tools/kafka.py stop                  end the broker and delete its data
    python tools/kafka.py run -- COMMAND        run a command with --kafka and the address of a broker

The broker is one node in KRaft mode. Ivy, which is among PySpark's own jars, fetches the packages, so only
Java and PySpark are needed. Ivy keeps them in its cache for further environments. They must be exactly the
files of kafka.sha256. Tests use `Broker`.
"""

import argparse
import base64
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = Path(__file__).with_name("kafka-ivy.xml")
HASHES = Path(__file__).with_name("kafka.sha256")
"""Lines as sha256sum writes them."""
HERE = Path(sys.prefix) / "kafka"
"""The packages: ``broker/*.jar`` and ``spark/*.jar``."""
STATE = ROOT / "build" / "kafka.json"
"""The state of the broker that `start` started."""

READY = "Kafka Server started"
HEAP = "512m"
FETCH_S = 600.0
START_S = 60.0
STOP_S = 30.0

SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.enable=false
log.retention.ms=-1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n%ex
"""


class Unavailable(Exception):
    """No broker can be had here, for the reason in one line."""


class WrongFileError(Exception):
    """A package differs from its known hash; one line names it."""


def java() -> str:
    """Return the path of Java."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not found or not os.path.exists(found):
        raise Unavailable("Kafka needs Java 17 or newer, and there is none: set JAVA_HOME")
    return found


# -- packages


def jars(what: str) -> list[str]:
    """Return the jars of ``broker`` or ``spark``, and fetch them if they are missing.

    Raises:
        Unavailable: They cannot be fetched.
        WrongFileError: They are not those of `HASHES`.
    """
    fetch()
    return sorted(map(str, (HERE / what).glob("*.jar")))


def present() -> bool:
    """Return whether the packages are there and current."""
    return all(
        (HERE / file.name).exists() and (HERE / file.name).read_bytes() == file.read_bytes()
        for file in (WANTED, HASHES)
    )


def fetch() -> None:
    """Fetch the packages of `WANTED` into `HERE`, unless they are there.

    Raises:
        Unavailable: There is no Java or PySpark, or a package cannot be fetched.
        WrongFileError: A package has another hash, is missing, or is not listed.
    """
    if present():
        return
    HERE.parent.mkdir(parents=True, exist_ok=True)
    with locked(HERE.with_suffix(".lock")):
        if present():
            return
        fresh = HERE.with_suffix(".new")
        retrieve(fresh)
        try:
            check(fresh)
        except WrongFileError:
            shutil.rmtree(fresh)
            raise
        for file in (WANTED, HASHES):
            shutil.copy(file, fresh)
        shutil.rmtree(HERE, ignore_errors=True)
        fresh.rename(HERE)


def retrieve(
    folder: Path, wanted: Path = WANTED, confs: tuple[str, ...] = ("broker", "spark"), owner: str = "Kafka"
) -> None:
    """Let Ivy fetch packages into a folder.

    Args:
        folder: for them; each configuration has its own below.
        wanted: the file that names them.
        confs: its configurations.
        owner: the program that needs them, for messages.

    Raises:
        Unavailable: As for `fetch`.
    """
    spec = importlib.util.find_spec("pyspark")
    ivy = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not ivy:
        raise Unavailable(f"{owner}'s packages are fetched by PySpark's Ivy: PySpark is not installed")
    shutil.rmtree(folder, ignore_errors=True)
    command = [java(), "-jar", str(ivy[-1]), "-warn", "-ivy", str(wanted), "-confs", *confs]
    # Some packages have the type bundle.
    command += ["-types", "jar", "bundle", "-retrieve", f"{folder}/[conf]/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{owner}'s packages cannot be fetched: no end after {FETCH_S:.0f} s") from None
    if done.returncode or not all(any((folder / what).glob("*.jar")) for what in confs):
        why = [line.strip(" :\t") for line in done.stdout.splitlines() if "not found" in line]
        reason = why[0] if why else f"Ivy ends with {done.returncode}"
        raise Unavailable(f"{owner}'s packages cannot be fetched: {reason}")


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each jar by its path in the folder."""
    jars = sorted(folder.glob("*/*.jar"))
    return {jar.relative_to(folder).as_posix(): hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}


def check(folder: Path) -> None:
    """Compare the jars of a folder with `HASHES`.

    Raises:
        WrongFileError: They differ.
    """
    lines = HASHES.read_text(encoding="utf-8").splitlines()
    known = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = hashes(folder)
    for name in sorted(known.keys() | found.keys()):
        if name not in found:
            raise WrongFileError(f"Kafka's packages: {name} is missing")
        if name not in known:
            raise WrongFileError(f"Kafka's packages: {name} is not in tools/{HASHES.name}")
        if found[name] != known[name]:
            difference = f"{name} has SHA-256 {found[name]}, but tools/{HASHES.name} has {known[name]}"
            raise WrongFileError(f"Kafka's packages: {difference}")


def lock() -> None:
    """Write `HASHES` for the packages that Ivy fetches now.

    Raises:
        Unavailable: As for `fetch`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "jars"
        retrieve(folder)
        text = "".join(f"{digest}  {jar}\n" for jar, digest in hashes(folder).items())
    HASHES.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock, so that one process at a time fetches."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- the broker


class Broker:
    """A broker with its data in a temporary folder, which `stop` deletes. A context manager.

    Attributes:
        bootstrap: The address for clients, as in ``127.0.0.1:9092``.
    """

    def __init__(self, port: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="logclient-kafka-"))
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        try:
            path = os.pathsep.join(jars("broker"))
            (self.folder / "log4j2.properties").write_text(LOGGING)
            for left in (2, 1, 0):
                # Another program may take the port before the broker does.
                port_, controller = _free_ports(port)
                self.bootstrap = f"127.0.0.1:{port_}"
                if self._run(path, port_, controller):
                    return
                if not left or port:
                    raise Unavailable(f"Kafka does not start: {self.last_words()}")
        except BaseException:
            self.stop()
            raise

    def _run(self, path: str, port: int, controller: int) -> bool:
        data, settings = self.folder / "data", self.folder / "server.properties"
        shutil.rmtree(data, ignore_errors=True)
        settings.write_text(SETTINGS.format(port=port, controller=controller, data=data))
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path]
        options.append(f"-Dlog4j2.configurationFile=file:{self.folder}/log4j2.properties")
        with open(self.log, "wb") as log:
            tool = ["kafka.tools.StorageTool", "format", "-t", _cluster(), "-c", str(settings)]
            subprocess.run(
                [java(), "-Xmx128m", *options, *tool], stdout=log, stderr=log, timeout=START_S, check=False
            )
            self.process = subprocess.Popen(
                [java(), f"-Xmx{HEAP}", *options, "kafka.Kafka", str(settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            if READY in self.log.read_text(errors="replace"):
                return True
            time.sleep(0.05)
        self.process.kill()
        self.process.wait()
        return False

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        assert self.process is not None
        return self.process.pid

    def last_words(self) -> str:
        """Return the last line of the log, preferably an error."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        wrong = [line for line in lines if "ERROR" in line or "Exception" in line or "FATAL" in line]
        return (wrong or lines or ["the log is empty"])[-1].strip()[:300]

    def stop(self) -> None:
        """End the broker and delete its data. May be repeated."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _cluster() -> str:
    """Make a cluster id. It must not begin with a dash, or it would be taken for an option."""
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def _free_ports(port: int) -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for one, number in ((first, port), (second, 0)):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", number))
            except OSError as error:
                raise Unavailable(f"Kafka does not start: port {number}: {error.strerror}") from error
        return first.getsockname()[1], second.getsockname()[1]


# -- the command


def running() -> dict[str, object] | None:
    """Return the state of the broker that `start` started, if it still runs."""
    try:
        state: dict[str, object] = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return None
    # The process id may belong to another program by now. The command line of ours has its folder.
    command = ["ps", "-ww", "-o", "args=", "-p", str(state["pid"])]
    shown = subprocess.run(command, capture_output=True, text=True)
    return state if str(state["folder"]) in shown.stdout else None


def start(port: int) -> dict[str, object]:
    """Start a broker that keeps running, unless one runs; return its state."""
    state = running()
    if state is None:
        broker = Broker(port)
        state = {"bootstrap": broker.bootstrap, "pid": broker.pid, "folder": str(broker.folder)}
        STATE.parent.mkdir(exist_ok=True)
        STATE.write_text(json.dumps(state))
        broker.process = None  # keeps running after us
    return state


def status() -> int:
    """Print the state of the broker."""
    state = running()
    print(json.dumps(state or {"bootstrap": None}))
    return 0 if state else 1


def stop() -> int:
    """End the broker and delete its data."""
    state = running()
    if state is not None:
        pid = int(str(state["pid"]))
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while running() and time.monotonic() < end:
            time.sleep(0.05)
        if running():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(str(state["folder"]), ignore_errors=True)
    STATE.unlink(missing_ok=True)
    return 0


def run(command: list[str]) -> int:
    """Start a broker, run a command that uses it, and stop it; return the command's exit code."""
    bootstrap = str(start(0)["bootstrap"])
    try:
        return subprocess.run([*command, "--kafka", bootstrap]).returncode
    finally:
        stop()


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="kafka.py", description="A Kafka broker for tests and demo.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("fetch", "lock", "status", "stop"):
        commands.add_parser(name)
    commands.add_parser("start").add_argument("--port", type=int, default=0, help="0, the default, picks one")
    commands.add_parser("run").add_argument("words", nargs="+", metavar="COMMAND")
    arguments = parser.parse_args(argv)
    try:
        match arguments.command:
            case "fetch":
                fetch()
            case "lock":
                lock()
            case "start":
                print(json.dumps(start(arguments.port)), flush=True)
            case "status":
                return status()
            case "run":
                return run(arguments.words)
            case _:
                return stop()
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 3
    except WrongFileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
