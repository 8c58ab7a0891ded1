"""The ``logclient`` command, also ``python -m logclient``.

Exit codes are `logclient.errors.ExitCode`. Every error is one line on stderr; ``--debug`` shows the
traceback. A command imports what it needs when it runs: ``--help`` starts in no time.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from logclient import config, lines, registry
from logclient.errors import ConfigError, ConnectFailed, ExitCode, LedgerError, LogclientError, MissingExtra

if TYPE_CHECKING:
    from logging import LogRecord

    from logclient.client import Client, Stats

__all__ = ["Complaints", "Progress", "main"]

_PROGRESS_S = 0.25  # between two looks at the client, and two progress lines on a terminal
_SHOWN_REFUSALS = 10  # lines named on stderr; the rest is counted
_PROGRESS_LINE_S = 10.0  # between two progress lines where nobody watches
_ASK_S = 1.0  # for a server's answer to what arrived; one that gives none before is not asked again
_PACE_S = 10.0  # over which the rate is taken
_PACE_FROM_S = 1.0  # before that a rate says little


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Never raises, but for ``--help`` and ``--version``."""
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a screen that lacks a character is no error
    try:
        try:
            arguments = _parser().parse_args(argv)
            debug = arguments.debug
            return int(arguments.run(arguments))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where somebody minds that nobody reads it
    except KeyboardInterrupt:
        return _failed(ExitCode.BROKEN, "interrupted", debug)
    except BrokenPipeError:
        # Whoever read our output went away, as head does. Python would say so again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.BROKEN
    except (ConfigError, _Usage) as error:
        return _failed(ExitCode.USAGE, str(error), debug)
    except (ConnectFailed, MissingExtra) as error:
        return _failed(ExitCode.UNREACHABLE, str(error), debug)
    except (LedgerError, OSError) as error:
        # A file or a directory on the command line that cannot be used.
        where = f"{error.filename}: " if error.filename is not None else ""
        return _failed(ExitCode.USAGE, where + (error.strerror or str(error)), debug)
    except LogclientError as error:
        return _failed(ExitCode.BROKEN, str(error), debug)
    except Exception as error:
        return _failed(
            ExitCode.BROKEN, f"internal error, --debug shows where: {type(error).__name__}: {error}", debug
        )


def _failed(code: ExitCode, why: str, debug: bool) -> ExitCode:
    if debug:
        import traceback

        traceback.print_exc()
    print("logclient: " + " ".join(why.split()), file=sys.stderr)
    return code


# -- the command line


class _Usage(Exception):
    """A command line that cannot be read."""


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line."""

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message} (see {self.prog} --help)")


def _option(read: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """A reader of config.py as an argparse type: its words reach the user."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = name
    return convert


def _duration(text: str) -> float:
    seconds = config.parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be a duration above 0")
    return seconds


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0):
        raise ValueError(f"must be a whole number from 1, got {text[:40]!r}")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536):
        raise ValueError(f"must be a whole number from 1 to 65535, got {text[:40]!r}")
    return int(text)


def _rate(text: str) -> float:
    number = text.removesuffix("/s")
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise ValueError(f"must be events a second such as 500 or 500/s, got {text[:40]!r}")
    return rate


def _limit(text: str) -> str:
    number = text.removesuffix("%")
    if not (number.isascii() and number.replace(".", "", 1).isdigit() and len(number) < 16):
        raise ValueError(f"must be a count such as 100 or a share such as 0.1%, got {text[:40]!r}")
    if number == text and "." in number:
        raise ValueError(f"must be whole, or a share such as 0.1%, got {text[:40]!r}")
    return text


def _columns(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and column for name, _, column in pairs):
        raise ValueError(f"must be as body=value,received=timestamp, got {text[:100]!r}")
    return {name: column for name, _, column in pairs}


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ValueError(f"must be as spark.executor.cores=2, got {name[:100]!r}")
    return name, value


def _heap(text: str) -> str:
    import re

    if not re.fullmatch(r"[1-9]\d{0,6}[kmg]", text, re.IGNORECASE):
        raise ValueError(f"must be a size such as 700m or 2g, got {text[:40]!r}")
    return text


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from logclient import __version__

        print(f"logclient {__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="logclient",
        description="Ships logs, and can prove what arrived.",
        epilog="logclient COMMAND --help tells what a command takes. Exit codes: 0 all acknowledged, the "
        "promise holds; 1 events lost or failed, the promise is broken; 2 wrong command "
        "line, option or file; 3 nothing could be reached, or it cannot be told.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    duration = _option(_duration, "duration")
    positive = _option(_positive, "number")
    limit = _option(_limit, "limit")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, example: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"Example: logclient {name} {example}",
        )
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        sub.set_defaults(run=run)
        return sub

    demo = command(
        "demo", _demo, "ship log lines to servers with faults and let Spark judge them", "--out demo"
    )
    demo.add_argument(
        "--input",
        nargs="+",
        metavar="FILE",
        default=[],
        help="log files to send (default: those of /var/log, or generated lines)",
    )
    demo.add_argument(
        "--events", type=positive, default=200_000, metavar="N", help="in the honest run (at least 40000)"
    )
    demo.add_argument(
        "--kafka", metavar="HOST:PORT", help="a broker: plog's events go through it, and are judged there"
    )
    demo.add_argument("--packages", metavar="WHAT,...", help="as for verify, with --kafka")
    demo.add_argument("--out", default="logclient-demo", metavar="DIR", help="where everything goes")

    send = command(
        "send",
        _send,
        "ship the lines of files",
        "lumberjack://127.0.0.1:5044 /var/log/syslog --ledger run/ledger",
    )
    send.add_argument("url", metavar="URL", help="scheme://host[:port][,host...][?option=value&...]")
    # The default is given because argparse takes the argument for required without one.
    send.add_argument(
        "files",
        nargs="*",
        default=[],
        metavar="FILE",
        help="text, plain or compressed (gzip, bzip2, xz, zstd); - is standard input, and the default",
    )
    send.add_argument("--ledger", metavar="DIR", help="keep a ledger there, for verify")
    send.add_argument("--repeat", type=positive, default=1, metavar="N", help="send the files N times")
    send.add_argument("--rate", type=_option(_rate, "rate"), metavar="N/s", help="at most N events a second")
    send.add_argument(
        "--format", choices=("text", "ndjson"), default="text", help="a line is a message, or a JSON object"
    )
    send.add_argument(
        "--timeout",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="give up after so long without progress (30s)",
    )
    send.add_argument("--json", action="store_true", help="print the fates as JSON")

    collect = command(
        "collect",
        _collect,
        "run servers that keep what they receive",
        "lumberjack://127.0.0.1:5044 --capture run/capture",
    )
    collect.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="where to listen; port 0 picks a free one; with TLS ?cert=FILE; logjam+sub:// of a device to "
        "listen to",
    )
    collect.add_argument("--capture", required=True, metavar="DIR", help="where the wire units go")
    collect.add_argument("--faults", metavar="SPEC", help="such as cut-before-ack=every:5,seed=3")
    collect.add_argument("--fault-log", metavar="FILE", help="where the ids that a fault changed go")
    collect.add_argument("--for", dest="seconds", type=duration, metavar="TIME", help="stop after so long")
    collect.add_argument("--json", action="store_true", help="print the counts as JSON")

    verify = command(
        "verify",
        _verify,
        "let Spark compare a ledger with a capture",
        "--ledger run/ledger --capture run/capture --out run",
    )
    verify.add_argument("--ledger", required=True, metavar="DIR", help="what the producers wrote")
    arrived = verify.add_mutually_exclusive_group(required=True)
    arrived.add_argument("--capture", metavar="DIR", help="what arrived, at our collectors")
    arrived.add_argument(
        "--kafka", metavar="HOST:PORT/TOPIC", help="what arrived, in a Kafka topic: bodies of events"
    )
    arrived.add_argument(
        "--table", metavar="TABLE", help="what arrived, in a table, a folder of Parquet files, or FORMAT:PATH"
    )
    verify.add_argument(
        "--kafka-config", metavar="FILE", help="settings of Kafka's consumer, lines of NAME=VALUE"
    )
    verify.add_argument(
        "--columns",
        type=_option(_columns, "columns"),
        metavar="NAME=COLUMN,...",
        help="of the table: body (value), received, key, listener, arrival",
    )
    verify.add_argument("--out", metavar="DIR", help="where verdict, report and violations go")
    verify.add_argument("--json", action="store_true", help="print the verdict as JSON")
    for word in ("missing", "duplicated", "dropped"):
        verify.add_argument(
            f"--max-{word}", type=limit, metavar="N|N%", help=f"more {word} events than this end with exit 1"
        )
    verify.add_argument(
        "--allow-open",
        action="store_true",
        help="a ledger without an end is no fault: its producer may be alive",
    )
    verify.add_argument(
        "--until",
        metavar="TIME",
        help="with --allow-open: what was made later may be undecided (ISO 8601, or seconds since 1970)",
    )
    verify.add_argument(
        "--master", metavar="URL", help="Spark master (local[*], unless Spark is configured with another)"
    )
    verify.add_argument(
        "--work", metavar="DIR", help="for what workers write; on a cluster all machines must share it"
    )
    verify.add_argument(
        "--conf",
        action="append",
        type=_option(_setting, "setting"),
        metavar="K=V",
        help="a setting of Spark; may be given again",
    )
    verify.add_argument(
        "--heap", type=_option(_heap, "size"), metavar="SIZE", help="memory of Spark's driver, as 700m (1g)"
    )
    verify.add_argument(
        "--packages",
        metavar="WHAT,...",
        help="for Spark: Maven coordinates, folders of jars (with --kafka: Spark's Kafka connector)",
    )

    ping = command(
        "ping",
        _ping,
        "ask servers whether they are there and speak the protocol",
        "lumberjack+tls://a.example.org,b.example.org",
    )
    ping.add_argument("url", metavar="URL", help="each endpoint of it is asked by itself")
    ping.add_argument("--count", type=positive, default=1, metavar="N", help="round trips to measure (1)")
    ping.add_argument("--timeout", type=duration, default=5.0, metavar="TIME", help="for each answer (5s)")
    ping.add_argument("--event", action="store_true", help="send one event too, and wait for its ack")
    ping.add_argument("--json", action="store_true", help="print what was found as JSON, an endpoint a line")

    doctor = command(
        "doctor",
        _doctor,
        "find out what keeps events from a server, and say what to mend",
        "lumberjack+tls://logs.example.org",
    )
    doctor.add_argument("url", metavar="URL", help="each endpoint of it is looked at by itself")
    doctor.add_argument("--timeout", type=duration, default=5.0, metavar="TIME", help="for each step (5s)")
    doctor.add_argument("--no-event", action="store_true", help="send no event")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON, an endpoint a line")

    stat = command(
        "stat", _stat, "print the counters of plog servers and Logjam devices", "plog://logs.example.org:23456"
    )
    stat.add_argument("url", metavar="URL", help="each endpoint of it is asked by itself")
    stat.add_argument(
        "--port", type=_option(_port, "port"), metavar="N", help="of the counters of Logjam devices (9621)"
    )
    stat.add_argument("--timeout", type=duration, default=5.0, metavar="TIME", help="for the answer (5s)")
    stat.add_argument("--json", action="store_true", help="print them as JSON, an endpoint a line")

    envi = command(
        "envi",
        _envi,
        "print the settings of plog servers, secrets among them",
        "plog://logs.example.org:23456",
    )
    envi.add_argument("url", metavar="URL", help="each endpoint of it is asked by itself")
    envi.add_argument("--timeout", type=duration, default=5.0, metavar="TIME", help="for the answer (5s)")
    envi.add_argument("--json", action="store_true", help="print them as JSON, an endpoint a line")

    decode = command(
        "decode",
        _decode,
        "show captured bytes as frames, and what is wrong with them",
        "lumberjack run/capture --limit 20",
    )
    decode.add_argument("protocol", metavar="PROTOCOL", choices=registry.protocols(), help="%(choices)s")
    decode.add_argument(
        "file",
        metavar="FILE",
        help="a capture, a segment of one (.cap), or the bytes of one direction; - is standard input",
    )
    decode.add_argument("--hex", action="store_true", help="FILE is hexadecimal digits")
    decode.add_argument("--json", action="store_true", help="print each frame as a line of JSON")
    decode.add_argument("--limit", type=positive, metavar="N", help="stop after N frames")
    decode.add_argument(
        "--bytes", type=positive, metavar="N", help="show N bytes of what a frame carries (200)"
    )

    completion = command(
        "completion",
        _completion,
        "print what a shell needs to complete this command line",
        "zsh > ~/.zfunc/_logclient",
    )
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="%(choices)s")
    return parser


# -- the commands


def _demo(arguments: argparse.Namespace) -> int:
    from logclient import demo

    return demo.run(
        inputs=arguments.input,
        events=arguments.events,
        out=arguments.out,
        kafka=arguments.kafka,
        packages=arguments.packages,
    )


def _collect(arguments: argparse.Namespace) -> int:
    from logclient.collectors import main as collectors

    return collectors.run(
        arguments.urls,
        capture=arguments.capture,
        faults=arguments.faults,
        fault_log=arguments.fault_log,
        seconds=arguments.seconds,
        as_json=arguments.json,
    )


def _ping(arguments: argparse.Namespace) -> int:
    from logclient import ping

    return ping.run(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from logclient import doctor

    return doctor.run(arguments)


def _stat(arguments: argparse.Namespace) -> int:
    from logclient import stat

    return stat.run(arguments)


def _envi(arguments: argparse.Namespace) -> int:
    from logclient import stat

    return stat.envi(arguments)


def _completion(arguments: argparse.Namespace) -> int:
    from logclient import completion

    print(completion.script(arguments.shell, _parser()), end="")
    return ExitCode.OK


def _decode(arguments: argparse.Namespace) -> int:
    from logclient import decode

    return decode.run(arguments)


def _verify(arguments: argparse.Namespace) -> int:
    from logclient.verify import job

    progress = Progress()
    stop = threading.Event()
    ended: list[int | BaseException] = []

    def show(text: str) -> None:
        if text:
            progress.show(text)
        else:
            progress.done()

    def work() -> None:
        try:
            ended.append(job.main(arguments, show if progress.terminal else None, stop))
        except BaseException as error:
            ended.append(error)

    # Python's signals come to the main thread: in another one nothing is interrupted halfway.
    with _Signals() as signals:
        thread = threading.Thread(target=work, name="logclient-verify-main", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_PROGRESS_S)
            if signals.first:
                stop.set()
    [end] = ended
    if not isinstance(end, BaseException):
        return end
    if not signals.first:
        raise end
    print(f"logclient: {signals.word}", file=sys.stderr)
    return ExitCode.BROKEN


def _send(arguments: argparse.Namespace) -> int:
    files = arguments.files or [lines.STDIN]
    if lines.STDIN in files and arguments.repeat > 1:
        raise _Usage("--repeat: standard input cannot be read again")
    given = config.parse(arguments.url, ledger=arguments.ledger)
    sizes = [lines.check(name) for name in files]  # a wrong name is an error before anything is sent
    from logclient.client import connect

    options: dict[str, Any] = {"ledger": arguments.ledger}
    if "connect_timeout" not in given.given:
        # An attempt must end before we give up, or nobody could say why.
        options["connect_timeout"] = min(given.connect_timeout, arguments.timeout / 2)
    if "overflow" not in given.given:
        # Lines can wait. The limit is a safety net: the main thread gives up first.
        options.update(overflow="block", block_timeout=arguments.timeout + 60.0)
    with _Signals() as signals:
        client = connect(arguments.url, **options)
        job = _Shipment(client, files, sizes, arguments, given, signals)
        return job.run(given.redacted)


class _Signals:
    """While entered, SIGINT and SIGTERM are noted, and end nothing in the middle. One that comes after the
    first while the command `waits` raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.first = 0
        self.waits = False
        self._before: dict[int, Any] = {}

    @property
    def word(self) -> str:
        """What the first one did to the command; empty: there was none."""
        return {0: "", int(signal.SIGINT): "interrupted"}.get(self.first, "terminated")

    def _note(self, number: int, frame: object) -> None:
        if self.first and self.waits:
            raise KeyboardInterrupt
        self.first = number

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Shipment:
    """One ``send``: a thread reads and sends, the main thread watches and gives up."""

    def __init__(
        self,
        client: Client,
        files: list[str],
        sizes: list[int | None],
        arguments: argparse.Namespace,
        given: config.Config,
        signals: _Signals,
    ) -> None:
        from logclient.formatters import timestamp

        self.client = client
        self.signals = signals
        self.files = files
        self.total: int | None = None  # bytes of all files, where the sizes of all are known
        if None not in sizes:
            self.total = sum(size or 0 for size in sizes) * arguments.repeat
        # A plain text is enough where the client makes the protocol's own document of it.
        self.timestamp = timestamp if registry.lookup(given.scheme).document == "ecs" else None
        self.repeat: int = arguments.repeat
        self.rate: float | None = arguments.rate
        self.ndjson: bool = arguments.format == "ndjson"
        self.timeout: float = arguments.timeout
        self.as_json: bool = arguments.json
        # A longer line is cut there: the client then says too_large (or truncates), and a file
        # without line ends does not have to fit into memory.
        self.longest = given.max_event_bytes + 1
        self.input: lines.Input | None = None  # the file that is being read
        self.read = 0  # bytes of those before it
        self.sent = 0
        self.blank = 0
        self.replaced = 0
        self.refused = 0
        self.reading = ""
        self.error: Exception | None = None
        self.stop = threading.Event()
        self.begun = time.monotonic()
        self.loss: Any = None  # a plog.Loss, where the protocol can tell

    def run(self, redacted: str) -> int:
        feeder = threading.Thread(target=self._feed, name="logclient-send", daemon=True)
        progress = Progress()
        with Complaints(f"{redacted}: ") as complaints:
            # Where nothing is acknowledged, the server's own counters may tell what arrived.
            look: Callable[[float], Any] | None = getattr(self.client, "watch", None)
            watch = None if look is None else look(_ASK_S)
            self.begun = time.monotonic()
            feeder.start()
            try:
                stalled = not self._watch(feeder, progress, complaints)
            finally:
                progress.done()
            self.stop.set()
            if watch is not None and not stalled and not self.signals.first:
                self.loss = watch.loss()
            before = self.client.stats()
            # Whoever interrupts what never got anywhere does not want to wait for it either.
            hopeless = stalled or (self.signals.first and not before.connects)
            try:
                self.signals.waits = True
                self.client.close(timeout=0.0 if hopeless else 5.0)
                self.signals.waits = False
            except KeyboardInterrupt:
                self.signals.waits = False
                self.client.close(timeout=0.0)
            stats = self.client.stats()
            interrupted = self.signals.word
            if not stalled:
                # What was given up is counted in the report.
                complaints.show(but=" given up: ")
        failed, dropped = sum(stats.failed.values()), sum(stats.dropped.values())
        code = ExitCode.OK
        left = stats.queued or stats.inflight
        lost = self.loss is not None and self.loss.lost
        if failed or dropped or left or lost or self.refused or self.error or interrupted:
            code = ExitCode.BROKEN
        if stalled and not stats.acked and not stats.handed:
            code = ExitCode.UNREACHABLE
        self._report(redacted, stats, code)
        if stats.ledger_error:
            print(f"logclient: the ledger stopped: {stats.ledger_error}", file=sys.stderr)
        if stalled:
            print(f"logclient: {redacted}: {self._why(redacted, before)}", file=sys.stderr)
        elif isinstance(self.error, OSError):
            why = self.error.strerror or self.error
            print(f"logclient: {lines.shown(self.reading)}: {why}: the rest was not sent", file=sys.stderr)
        elif self.error is not None:
            raise self.error
        elif interrupted:
            print(f"logclient: {interrupted}", file=sys.stderr)
        return code

    def _why(self, redacted: str, stats: Stats) -> str:
        """Why nothing moved any more."""
        if not stats.connects:
            said = "nothing could be reached"
        elif not stats.acked and not stats.handed:
            said = "connected, but nothing was acknowledged"
        else:
            said = "no progress"
        last = stats.last_error.removeprefix(f"{redacted}: ")
        if not last and not stats.connects:
            last = "no answer to the name look-up"
        return f"{said} for {self.timeout:g}s{last and f': {last}'}"

    def _watch(self, feeder: threading.Thread, progress: Progress, complaints: Complaints) -> bool:
        """Wait until everything has its fate; False when nothing moved for the timeout."""
        moved = taken = waited = 0
        since = time.monotonic()
        pace = Pace()
        while True:
            patience = min(_PROGRESS_S, max(0.0, since + self.timeout - time.monotonic()))
            if feeder.is_alive():
                feeder.join(patience)
                left = -1
            else:
                left = self.client.flush(timeout=patience)
            stats = self.client.stats()
            settled = stats.acked + stats.handed + sum(stats.failed.values()) + sum(stats.dropped.values())
            now = time.monotonic()
            waiting = stats.queued + stats.inflight
            # Nothing to wait for (a slow input, a low rate) is no lack of progress; what is seen to wait
            # for the first time may have come a moment ago.
            if settled != moved or not waiting or not waited:
                moved, since = settled, now
            waited = waiting
            if complaints.kept and stats.acked + stats.handed > taken:
                progress.done()
                complaints.show()  # it went on; what does not go on is said once, at the end
            taken = stats.acked + stats.handed
            text = pace.text(now, settled, self._share(settled))
            text += f"sent {self.sent}, {'handed' if stats.handed else 'acked'} {taken}, waiting {waiting}"
            progress.show(f"{text}; {complaints.kept[-1]}" if complaints.kept else text)
            if self.signals.first or (left == 0 and not feeder.is_alive()):
                return True
            if now - since >= self.timeout:
                return False

    def _share(self, settled: int) -> float | None:
        """How much of the input has its fate; None where nobody knows how much there is."""
        if not self.total:
            return None
        read = self.read
        if self.input is not None:
            read += self.input.position()
        return min(1.0, read / self.total) * min(1.0, settled / max(1, self.sent))

    # -- the feeder's side

    def _feed(self) -> None:
        try:
            for _ in range(self.repeat):
                for name in self.files:
                    self._feed_file(name)
        except Exception as error:
            self.error = error

    def _feed_file(self, name: str) -> None:
        self.reading = name
        path = None if name == lines.STDIN else os.path.abspath(name)
        with lines.Input(name) as file:
            self.input = file if self.total else None
            for number, raw in file.lines(self.longest):
                if self.stop.is_set():
                    return
                body = self._ndjson(name, number, raw) if self.ndjson else self._text(raw, path)
                if body is None:
                    continue
                if self.rate is not None:
                    early = self.begun + self.sent / self.rate - time.monotonic()
                    if early > 0.002 and self.stop.wait(early):
                        return
                try:
                    if not self.client.send(body) and self.client.closed:
                        return  # given up while this one waited for room
                except (TypeError, ValueError, BufferError):
                    pass  # the client has counted it as failed or dropped
                self.sent += 1
            self.input, self.read = None, self.read + file.position()

    def _text(self, raw: bytes, path: str | None) -> str | dict[str, str] | None:
        if not raw:
            self.blank += 1
            return None
        text = self._decode(raw)
        if self.timestamp is None:
            return text
        event = {"@timestamp": self.timestamp(), "message": text}
        if path is not None:
            event["log.file.path"] = path
        return event

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
            # EF BF BD always decodes as itself, so what is left over was put there.
            self.replaced += text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
            return text

    def _ndjson(self, name: str, number: int, raw: bytes) -> bytes | None:
        if not raw.strip():
            self.blank += 1
            return None
        import json

        if len(raw) == self.longest:
            why = f"longer than {self.longest - 1} bytes"
        else:
            text = self._decode(raw)
            try:
                if isinstance(json.loads(text, parse_constant=_no_constant), dict):
                    return text.strip().encode()
            except (ValueError, RecursionError):
                pass
            why = "not a JSON object"
        self.refused += 1
        if self.refused <= _SHOWN_REFUSALS:
            print(f"logclient: {lines.shown(name)}:{number}: {why}", file=sys.stderr)
        return None

    def _report(self, redacted: str, stats: Any, code: ExitCode) -> None:
        seconds = time.monotonic() - self.begun
        if self.as_json:
            import json

            result = {
                "url": redacted,
                "sent": self.sent,
                "acked": stats.acked,
                "handed": stats.handed,
                "failed": dict(stats.failed),
                "dropped": dict(stats.dropped),
                "outstanding": stats.queued + stats.inflight,
                "resent": stats.resent,
                "mangled": stats.mangled,
                "moved": stats.moved,
                "connects": stats.connects,
                "blank": self.blank,
                "replaced": self.replaced,
                "refused": self.refused,
                "lost": None if self.loss is None else self.loss.lost,
                "loss_reason": "" if self.loss is None else self.loss.reason,
                "seconds": round(seconds, 3),
                "exit": int(code),
            }
            print(json.dumps(result))
            return
        print(f"sent {self.sent} in {seconds:.1f}s: acked {stats.acked}, handed {stats.handed}", end="")
        for word, reasons in (("failed", stats.failed), ("dropped", stats.dropped)):
            print(f", {word} {sum(reasons.values())}", end="")
            if reasons:
                print(f" ({', '.join(f'{reason} {n}' for reason, n in sorted(reasons.items()))})", end="")
        for word, number in (
            ("outstanding", stats.queued + stats.inflight),
            ("resent", stats.resent),
            ("blank lines", self.blank),
            ("bytes replaced", self.replaced),
            ("lines refused", self.refused),
        ):
            if number:
                print(f", {word} {number}", end="")
        if self.loss is not None and self.loss.lost != 0:
            shown = f"{self.loss.lost} by the server's counters" if self.loss.lost else "unknown"
            print(f", lost {shown}{self.loss.reason and f' ({self.loss.reason})'}", end="")
        print()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are Python's, not JSON's


class Complaints:
    """While entered, what a client complains of is kept, not printed: the command says it itself.

    Args:
        prefix: of every line, to be left out.
    """

    def __init__(self, prefix: str = "") -> None:
        import logging

        self.prefix = prefix

        self.handler = logging.Handler()
        self.handler.emit = self._keep  # type: ignore[method-assign]
        self.logger = logging.getLogger("logclient")
        self.kept: list[str] = []

    def __enter__(self) -> Complaints:
        self.logger.addHandler(self.handler)
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self.handler)

    def _keep(self, record: LogRecord) -> None:
        self.kept.append(record.getMessage().removeprefix(self.prefix))

    def show(self, but: str = "") -> None:
        """Print them after all, except those with `but` in them."""
        for text in self.kept:
            if not but or but not in text:
                print(f"logclient: {text}", file=sys.stderr, flush=True)
        self.kept.clear()


class Pace:
    """How fast a work gets on, over the last seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, float]] = deque()  # time, done, share

    def text(self, now: float, done: int, share: float | None) -> str:
        """What to put before a line of progress: percent, rate and time left, as far as they are known.

        Args:
            now: on a monotonic clock.
            done: how many are done.
            share: of the whole work, from 0 to 1; None where nobody knows its size.
        """
        self._looks.append((now, done, share or 0.0))
        while now - self._looks[0][0] > _PACE_S and len(self._looks) > 2:
            self._looks.popleft()
        since, done_then, share_then = self._looks[0]
        text = "" if share is None else f"{int(share * 100)}%, "
        if now - since >= _PACE_FROM_S:
            text += f"{(done - done_then) / (now - since):,.0f}/s, "
            if share is not None and share > share_then:
                left = (1.0 - share) * (now - since) / (share - share_then)
                text += f"{_clock(left)} left, " if left < 100 * 3600 else ""
        return text


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Progress:
    """A line on stderr: rewritten on a terminal, now and then where there is none."""

    def __init__(self) -> None:
        self.terminal = sys.stderr is not None and sys.stderr.isatty()
        self.last = time.monotonic()
        self.width = 0

    def show(self, text: str) -> None:
        if self.terminal:
            import shutil

            text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be rewritten
            print("\r" + text.ljust(self.width), end="", file=sys.stderr, flush=True)
            self.width = len(text)
        elif time.monotonic() - self.last >= _PROGRESS_LINE_S:
            self.last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        """Before anything else is said, and at the end."""
        if self.width:
            print("\r" + " " * self.width + "\r", end="", file=sys.stderr, flush=True)
            self.width = 0
