"""``make demo``: run everything, and say whether it went as expected."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from logclient.cli.exits import run_command
from logclient.cli.parser import positive
from logclient.errors import ConfigError, ExitCode, MissingExtra
from tools.demo import judgement as judged
from tools.demo.processes import Collector, Verifier, print_line, ship
from tools.demo.samples import Line, choose
from tools.demo.scenarios import PROTOCOLS, Protocol, Run

_MARKER = ".logclient-demo"  # a file that marks a folder of a demo, which the next demo may delete

Verify = Callable[[Path, Path, Mapping[str, Any]], tuple[int, dict[str, Any]]]  # as `Verifier.verify`


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, and return its exit code. OK: every run went as expected, else BROKEN."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    add = parser.add_argument
    add(
        "--input",
        nargs="+",
        metavar="FILE",
        default=[],
        help="log files to send (default: text logs of /var/log, else generated lines)",
    )
    add(
        "--events",
        type=positive,
        default=200_000,
        metavar="N",
        help="events of an honest run, at least 40000 (default: 200000)",
    )
    add(
        "--kafka",
        metavar="HOST:PORT",
        help="a Kafka broker: plog's events go through it, and the verifier reads them from there",
    )
    add("--packages", metavar="WHAT,...", help="with --kafka: as for verify")
    add(
        "--out",
        default="build/demo",
        metavar="DIR",
        help="directory for everything (default: %(default)s)",
    )
    given = parser.parse_args(argv)
    return run_command(lambda: demo(given.input, given.events, given.out, None, given.kafka, given.packages))


def demo(
    inputs: Sequence[str] = (),
    events: int = 200_000,
    out: str = "build/demo",
    verify: Verify | None = None,
    kafka: str | None = None,
    packages: str | None = None,
) -> ExitCode:
    """Run everything and print the results; return OK when every run went as expected, else BROKEN.

    `verify` judges a run in place of a `Verifier`, for tests. The events of plog's collector go through the
    broker `kafka`. Other runs than honest ones send as many events as their faults need.
    """
    extras = {"pyspark": "spark", "pyarrow": "verify", "numpy": "verify", "jinja2": "verify", "zmq": "logjam"}
    for module, extra in {**extras, "websockets": "logux"}.items():
        if verify is None and find_spec(module) is None:
            raise MissingExtra(module, extra)
    runs = [(protocol, run) for protocol in PROTOCOLS for run in protocol.runs]
    least = max((1 + run.senders) * run.least for _, run in runs)
    if events < least:
        raise ConfigError(f"events: must be at least {least}, which the faults need")
    folder = Path(out)
    lines, source = choose(inputs)
    for _, run in runs:
        clear(folder / run.name)
    print_line(f"{len(lines):,} log lines from {source}, repeated as needed; everything goes to {folder}")
    begun = time.monotonic()
    with ExitStack() as stack:
        if verify is None:
            from logclient.verify import job

            read_topic = None if kafka is None else packages or job.connector()
            # Spark starts while the first events are sent.
            verify = stack.enter_context(Verifier(read_topic)).verify
        results = [
            _run(protocol, run, lines, events, folder / run.name, verify, kafka) for protocol, run in runs
        ]
    judged.write_verdict(folder / "verdict.json", results)
    judged.write_index(folder / "index.html", results)
    print_line()
    print_line(judged.tables(results))
    print_line()
    for result in results:
        print_line(f"{result.run.name}: {result.sentence}")
        for trouble in result.troubles:
            print_line(f"  NOT AS EXPECTED: {trouble}")
    print_line()
    print_line(f"reports: {folder / 'index.html'}")
    waited = sum(result.seconds for result in results)
    took = f"{time.monotonic() - begun:.0f}s in all, {waited:.0f}s of them for {len(results)} verdicts"
    print_line(f"verdict: {folder / 'verdict.json'} ({took})")
    return ExitCode.BROKEN if any(result.troubles for result in results) else ExitCode.OK


def clear(folder: Path) -> None:
    """Make an empty folder, also in place of one of an earlier demo; any other is a ConfigError."""
    if folder.exists() and not (folder / _MARKER).exists():
        if not folder.is_dir() or any(folder.iterdir()):
            raise ConfigError(f"out: {folder} exists and is not from a demo")
    elif folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()


def _run(
    protocol: Protocol, run: Run, lines: list[Line], events: int, folder: Path, verify: Verify, kafka: Any
) -> judged.Result:
    clients = 1 + run.senders
    wanted = clients * run.least if run.liar else events
    ledger, capture, out = folder / "ledger", folder / "capture", folder / "verify"
    units = wanted // run.unit
    planned = run.faults.format(seventh=units // 7, third=units // 3, half=units // 2)
    print_line(f"\n{run.name}")
    listen = f"{protocol.name}://127.0.0.1:0"
    options: dict[str, Any] = {"capture": str(capture)}
    if kafka is not None and protocol.name == "plog":
        topic = f"{run.name}-{os.urandom(4).hex()}"  # a new one, without events of an earlier demo
        listen += f"?kafka={kafka}&kafka_topic={topic}"
        options = {"kafka": f"{kafka}/{topic}"}
    logs_faults = run.liar or not protocol.acks
    faults: judged.FaultLog = {}
    # Until the verdict exists, the fault log is in a folder that the verifier does not know.
    with tempfile.TemporaryDirectory(prefix="logclient-faults-") as separate:
        fault_log = Path(separate) / "faults.jsonl"
        with Collector(listen, planned, capture, fault_log if logs_faults else None, folder) as collector:
            ship(collector.url + protocol.path, protocol, run, lines, wanted, ledger, folder / "client.log")
            counts = collector.stop()
        # Without acknowledgements, missing events are what the liar's faults must break the promise by.
        options |= {"max_missing": 0 if run.liar and not protocol.acks else None, "max_dropped": None}
        begun = time.monotonic()
        code, verdict = verify(ledger, out, options)
        seconds = time.monotonic() - begun
        if logs_faults:
            faults = judged.read_fault_log(fault_log)
            shutil.copy(fault_log, folder / "faults.jsonl")
    found = judged.read_violations(out) if logs_faults else {}
    if run.liar:
        troubles = judged.judge_liar(protocol, code, verdict, found, faults, counts, planned)
    elif protocol.acks:
        troubles = judged.judge_honest(code, verdict, counts, wanted)
    else:
        troubles = judged.judge_network(protocol, code, verdict, found, faults, counts, wanted)
    text = judged.sentence(protocol, run, wanted, verdict, counts, faults, as_expected=not troubles)
    report = out / "report.html"
    return judged.Result(run, protocol.name, wanted, counts, verdict, code, seconds, troubles, text, report)


if __name__ == "__main__":
    sys.exit(main())
