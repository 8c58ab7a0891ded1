"""``logclient verify``: compare a ledger with the events that arrived. See `logclient.verify`."""

from __future__ import annotations

import argparse
import json
import re
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from logclient.cli.exits import Stopped, signals_handled
from logclient.cli.parser import argument_type
from logclient.cli.progress import ProgressLine
from logclient.config.readers import parse_duration
from logclient.errors import ConfigError, VerifyError
from logclient.readable import escape

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
            return print_verdict(arguments, stop)
    except VerifyError:
        if numbers:
            raise Stopped(numbers[0]) from None
        raise


def print_verdict(arguments: argparse.Namespace, stop: threading.Event | None = None) -> int:
    """Verify, print the verdict and return its exit code; `stop` is that of `job.run`."""
    from logclient.evidence import storage
    from logclient.verify import hourly, job, output, report

    progress = ProgressLine()
    given = vars(arguments)
    names = ("kafka", "kafka_config", "table", "columns", "out", "master", "heap", "packages")
    limits = ("max_missing", "max_duplicated", "max_dropped", "max_lost", "max_unexpected", "max_latency")
    options: dict[str, Any] = {name: given.get(name) for name in (*names, "since", "until")}
    options |= {name: given[name] for name in limits if name in given}
    options |= {
        "conf": dict(given.get("conf") or ()),
        **{name: bool(given.get(name)) for name in ("allow_open", "allow_empty")},
        "others": given.get("others") or "break",
        "match": given.get("match") or "body",
        "runner": "local" if given.get("local") else "spark",
        "progress": progress.show if progress.terminal else None,
        "stop": stop,
    }

    def show(verdict: Verdict, written: bool = True) -> None:
        if given.get("json"):
            print(json.dumps(verdict.to_json()))
            return
        print(report.text(verdict))
        if given.get("out") and written:
            print(escape(storage.join(given["out"], "report.html")))

    try:
        if given.get("append") is not None:
            every = 3600.0 if given.get("every") is None else given["every"]
            folders = given["append"], given["ledger"], given["capture"]
            return hourly.append(*folders, every=every, each=show, **options)
        if given.get("every") is not None:
            raise ConfigError("every: only with --append")
        verdict = job.run(given["ledger"], given["capture"], **options)
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
