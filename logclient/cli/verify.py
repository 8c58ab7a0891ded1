"""``logclient verify``: compare a ledger with the events that arrived. See `logclient.verify`."""

from __future__ import annotations

import argparse
import json
import re
import threading
from typing import TYPE_CHECKING, NoReturn

from logclient.cli.exits import Stopped, signals_handled
from logclient.cli.parser import argument_type
from logclient.cli.progress import ProgressLine
from logclient.config.readers import parse_duration
from logclient.errors import ConfigError, VerifyError
from logclient.readable import escape

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--ledger",
        action="extend",
        nargs="+",
        required=True,
        metavar="DIR",
        help="folder or URL with the ledgers of the producers; several, and paths with *, are merged",
    )
    arrived = parser.add_mutually_exclusive_group(required=True).add_argument
    arrived(
        "--capture",
        action="extend",
        nargs="+",
        metavar="DIR",
        help="arrived events: folder or URL with the captures of collectors; several as with --ledger",
    )
    arrived("--kafka", metavar="HOST:PORT/TOPIC", help="arrived events: a Kafka topic with their bodies")
    arrived("--table", metavar="TABLE", help="arrived events: a table, files of Parquet, or FORMAT:PATH")
    add("--kafka-config", metavar="FILE", help="settings of the Kafka consumer, as lines of NAME=VALUE")
    add(
        "--columns",
        type=argument_type(_columns, "columns"),
        metavar="NAME=COLUMN,...",
        help="columns of the table, by name: body (default: value), received, key, listener, arrival, id",
    )
    add(
        "--match",
        choices=("body", "id"),
        default="body",
        help="id: find events by their ids alone, where bodies were changed on the way",
    )
    add("--out", metavar="DIR", help="folder or URL for verdict, report and violations")
    add("--json", action="store_true", help="print the verdict as JSON")
    add(
        "--append",
        metavar="TABLE",
        help="judge each hour from --since to --until, and keep its counts in this folder or URL of Parquet",
    )
    add(
        "--every",
        type=argument_type(parse_duration, "time"),
        metavar="TIME",
        help="with --append: judge such intervals in place of hours, as in 5m",
    )
    for word in ("missing", "duplicated", "dropped", "lost", "unexpected"):
        always = word in ("lost", "unexpected")  # without a limit one of them breaks the promise
        add(
            f"--max-{word}",
            type=argument_type(_limit if always else _limit_or_none, "limit"),
            default=argparse.SUPPRESS,
            metavar="N|N%" if always else "N|N%|none",
            help=f"exit with 1 when more than N events are {word}"
            f" (default: {'none' if word == 'duplicated' else 0})",
        )
    add(
        "--max-latency",
        default=argparse.SUPPRESS,
        metavar="QUANTILE=TIME,...",
        help="exit with 1 when a quantile of the latency is longer, as in p50=1s,p99=5s",
    )
    add(
        "--others",
        choices=("break", "count", "ignore"),
        default="break",
        help="what events do that are in none of the ledgers: break the promise, or be counted, or ignored",
    )
    add(
        "--allow-open",
        action="store_true",
        help="accept a ledger without an end: its producer may still be running",
    )
    add("--allow-empty", action="store_true", help="accept a selected time without any event")
    add(
        "--since",
        metavar="TIME",
        help="judge only events made then or later: ISO 8601 (UTC by default), or @ and seconds since 1970",
    )
    add("--until", metavar="TIME", help="judge only events made before that time (as --since)")
    add("--master", metavar="URL", help="Spark master (default: as Spark is configured, else local[*])")
    add(
        "--local",
        action="store_true",
        help="compare in this process, without Spark and Java: for all but a topic",
    )
    add(
        "--conf",
        action="append",
        type=argument_type(_setting, "setting"),
        metavar="K=V",
        help="a setting of Spark; may be repeated",
    )
    add(
        "--heap",
        type=argument_type(_heap, "size"),
        metavar="SIZE",
        help="memory of Spark's driver, as in 700m (default: 1g)",
    )
    add(
        "--packages",
        metavar="WHAT,...",
        help="for Spark: Maven coordinates or folders of jars (with --kafka: Spark's Kafka connector)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict and return its exit code."""
    stop = threading.Event()
    numbers: list[int] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        # Python loses what a handler raises while a process is forked: the event ends that verification.
        numbers.append(number)
        stop.set()
        raise Stopped(number)

    try:
        with signals_handled(interrupt):
            return _print_verdict(arguments, stop)
    except VerifyError:
        if numbers:
            raise Stopped(numbers[0]) from None
        raise


def _print_verdict(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from logclient.evidence import storage
    from logclient.verify import hourly, job, output, report

    progress = ProgressLine()
    own = ("debug", "run", "ledger", "capture", "json", "append", "every", "local")
    options = {name: value for name, value in vars(arguments).items() if name not in own}
    options |= {
        "conf": dict(arguments.conf or ()),
        "runner": "local" if arguments.local else "spark",
        "progress": progress.show if progress.terminal else None,
        "stop": stop,
    }

    def show(verdict: Verdict, written: bool = True) -> None:
        if arguments.json:
            print(json.dumps(verdict.to_json()))
            return
        print(report.text(verdict))
        if arguments.out and written:
            print(escape(storage.join(arguments.out, "report.html")))

    try:
        if arguments.append is not None:
            every = 3600.0 if arguments.every is None else arguments.every
            folders = arguments.append, arguments.ledger, arguments.capture
            return hourly.append(*folders, every=every, each=show, **options)
        if arguments.every is not None:
            raise ConfigError("every: only with --append")
        verdict = job.run(arguments.ledger, arguments.capture, **options)
    except output.UnwrittenVerdict as error:
        show(error.verdict, written=False)
        raise
    show(verdict)
    return verdict.exit_code


def _limit_or_none(text: str) -> str | None:
    return None if text == "none" else _limit(text)


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
    if not re.fullmatch(r"[1-9]\d{0,6}[kmg]", text, re.IGNORECASE):
        raise ValueError(f"must be a size such as 700m or 2g, got {text[:40]!r}")
    return text
