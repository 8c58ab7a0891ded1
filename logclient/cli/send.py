"""``logclient send``: ship the lines of files, and report their outcomes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from base64 import b64decode
from typing import Any

from logclient.cli.exits import Stopped, TerminationSignals, check_input
from logclient.cli.log_files import STDIN, LogFile, check, display_name
from logclient.cli.parser import UsageError, duration, parse_url, positive, rate
from logclient.cli.progress import ClientMessages, ProgressLine, RateEstimate
from logclient.client import Client, Stats, open_client
from logclient.config.documents import DocumentConfig
from logclient.config.parsing import resolve
from logclient.errors import ExitCode
from logclient.records.formatters import timestamp

_PROGRESS_S = 0.25  # seconds between two checks of the client, and between two progress lines on a terminal
_CLOSE_S = 5.0
_BLOCK_BEYOND_S = 60.0  # beyond ``--timeout``, for a full queue: the main thread gives up first
_SHOWN_REFUSALS = 10  # the number of refused lines that are named on stderr; further ones are only counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", help="scheme://host[:port][,host...][?option=value&...]")
    # Without a default, argparse would require the argument.
    add(
        "files",
        nargs="*",
        default=[],
        metavar="FILE",
        help="text, plain or compressed (gzip, bzip2, xz, zstd); - is standard input, the default",
    )
    add("--ledger", metavar="DIR", help="keep a ledger in this directory, for verify")
    add("--repeat", type=positive, default=1, metavar="N", help="send the files N times")
    add("--rate", type=rate, metavar="N/s", help="send at most N events a second")
    add(
        "--format",
        choices=("text", "ndjson", "fallback"),
        default="text",
        help="text: each line is a message (default); ndjson: each line is a JSON object; fallback: each "
        "line was written by the option fallback",
    )
    add(
        "--timeout",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="give up after this time without progress (default: 30s)",
    )
    add("--json", action="store_true", help="print the outcomes as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Send the lines and report their outcomes.

    OK: every event is acknowledged or handed over; UNREACHABLE: none is; else BROKEN.
    """
    files = arguments.files or [STDIN]
    if STDIN in files:
        check_input()
        if arguments.repeat > 1:
            raise UsageError("--repeat: standard input cannot be read again")
    given = parse_url(arguments.url, {"ledger": arguments.ledger})
    sizes = [check(name) for name in files]  # report a wrong name before the first event is sent
    defaults: dict[str, Any] = {
        "overflow": f"block:{arguments.timeout + _BLOCK_BEYOND_S:.3f}s",
        # An attempt must end before the command gives up, so that its error is known.
        "connect_timeout": min(given.connect_timeout, arguments.timeout / 2),
    }
    with TerminationSignals() as signals:
        client = open_client(resolve(arguments.url, {"ledger": arguments.ledger}, defaults=defaults))
        return _FileSender(client, files, sizes, arguments, signals).run()


class _FileSender:
    """One run of ``send``: a thread reads and sends, while the main thread waits and may give up."""

    def __init__(
        self,
        client: Client,
        files: list[str],
        sizes: list[int | None],
        arguments: argparse.Namespace,
        signals: TerminationSignals,
    ) -> None:
        self.client = client
        given = client.config
        self.url = given.redacted
        self.signals = signals
        self.files = files
        self.total: int | None = None  # bytes of all files; None: unknown
        if None not in sizes:
            self.total = sum(size or 0 for size in sizes) * arguments.repeat
        # The clients of other protocols turn a plain text into a document.
        self.timestamp = timestamp if isinstance(given, DocumentConfig) else None
        self.arguments = arguments
        self.timeout: float = arguments.timeout
        # Longer lines are cut here: the client still reports them as too_large (or truncates them), and a
        # file without line ends need not fit into memory.
        self.longest = given.max_event_bytes + 1
        self.file: LogFile | None = None  # the current file
        self.read = 0  # bytes of the files before the current one
        self.sent = self.blank = self.replaced = self.refused = 0
        self.reading = ""
        self.error: Exception | None = None
        self.stopped: Stopped | None = None  # by a signal before every event had its outcome
        self.stop = threading.Event()
        self.begun = time.monotonic()

    def run(self) -> int:
        """Send everything and print the report; returns the exit code."""
        reader = threading.Thread(target=self._read_files, name="logclient-send", daemon=True)
        progress = ProgressLine()
        with ClientMessages(f"{self.url}: ") as messages:
            self.begun = time.monotonic()
            reader.start()
            try:
                stalled = not self._wait(reader, progress, messages)
            finally:
                progress.clear()
            self.stop.set()
            before = self.client.stats()
            # After a signal, do not wait for a client that never connected.
            abandon = stalled or (self.stopped and not before.connects)
            try:
                self.signals.raises = True
                self.client.close(timeout=0.0 if abandon else _CLOSE_S)
                self.signals.raises = False
            except KeyboardInterrupt:
                self.signals.raises = False
                self.client.close(timeout=0.0)
            stats = self.client.stats()
            if not stalled:
                # The report counts the events that were given up.
                messages.print(skip=" given up: ")
        code = self._exit_code(stats, stalled)
        self._report(stats, code)
        if stats.ledger_error:
            print(f"logclient: the ledger stopped: {stats.ledger_error}", file=sys.stderr)
        if stalled:
            print(f"logclient: {self.url}: {self._why_stalled(before)}", file=sys.stderr)
        elif isinstance(self.error, OSError):
            why = self.error.strerror or self.error
            print(f"logclient: {display_name(self.reading)}: {why}: the rest was not sent", file=sys.stderr)
        elif self.error is not None:
            raise self.error
        if self.stopped is not None:
            raise self.stopped
        return code

    def _exit_code(self, stats: Stats, stalled: bool) -> ExitCode:
        if self.stopped is not None:
            return self.stopped.code
        if stalled and not stats.acked and not stats.handed:
            return ExitCode.UNREACHABLE
        undelivered = any(stats.failed.values()) or any(stats.dropped.values())
        left = stats.queued or stats.inflight
        if undelivered or left or self.refused or self.error:
            return ExitCode.BROKEN
        return ExitCode.OK

    def _why_stalled(self, stats: Stats) -> str:
        last = stats.last_error.removeprefix(f"{self.url}: ")
        why = "no progress"
        if not stats.connects:
            why, last = "nothing could be reached", last or "no answer to the name look-up"
        elif not stats.acked and not stats.handed:
            why = "connected, but nothing was acknowledged"
        return f"{why} for {self.timeout:g}s{last and f': {last}'}"

    def _wait(self, reader: threading.Thread, progress: ProgressLine, messages: ClientMessages) -> bool:
        """Wait until every event has its outcome; returns False after the timeout without progress."""
        settled_before = delivered = waited = 0
        since = time.monotonic()
        estimate = RateEstimate()
        while True:
            wait_s = min(_PROGRESS_S, max(0.0, since + self.timeout - time.monotonic()))
            if reader.is_alive():
                reader.join(wait_s)
                left = -1
            else:
                left = self.client.flush(timeout=wait_s)
            stats = self.client.stats()
            settled = stats.acked + stats.handed + sum(stats.failed.values()) + sum(stats.dropped.values())
            now = time.monotonic()
            waiting = stats.queued + stats.inflight
            # Time counts only while events wait for longer than one check. A slow input or a low rate is no
            # reason to give up.
            if settled != settled_before or not waiting or not waited:
                settled_before, since = settled, now
            waited = waiting
            if messages.kept and stats.acked + stats.handed > delivered:
                progress.clear()
                messages.print()  # only of problems that have passed; the last one is reported at the end
            delivered = stats.acked + stats.handed
            fraction = None
            if self.total:
                read = self.read + (self.file.position() if self.file is not None else 0)
                fraction = min(1.0, read / self.total) * min(1.0, settled / max(1, self.sent))
            text = estimate.text(now, settled, fraction)
            sent = max(self.sent, settled + waiting)  # the reader counts an event when the client has it
            text += f"sent {sent}, {'handed' if stats.handed else 'acked'} {delivered}, waiting {waiting}"
            progress.show(f"{text}; {messages.kept[-1]}" if messages.kept else text)
            if left == 0 and not reader.is_alive():
                return True
            if self.signals.first:
                self.stopped = Stopped(self.signals.first)
                return True
            if now - since >= self.timeout:
                return False

    def _read_files(self) -> None:
        try:
            for _ in range(self.arguments.repeat):
                for name in self.files:
                    self._read_file(name)
        except Exception as error:
            self.error = error

    def _read_file(self, name: str) -> None:
        self.reading = name
        path = None if name == STDIN else os.path.abspath(name)
        text, rate = self.arguments.format == "text", self.arguments.rate
        # In a string, a byte can take six characters; ids and a reason stand before it.
        longest = self.longest if self.arguments.format != "fallback" else 6 * self.longest + 1024
        with LogFile(name) as file:
            self.file = file if self.total else None
            for number, raw in file.lines(longest):
                if self.stop.is_set():
                    return
                event = self._text_event(raw, path) if text else self._json_event(name, number, raw, longest)
                if event is None:
                    continue
                if rate is not None:
                    early = self.begun + self.sent / rate - time.monotonic()
                    if early > 0.002 and self.stop.wait(early):
                        return
                try:
                    if not self.client.send(event) and self.client.closed:
                        return  # the main thread gave up while this event waited for room
                except (TypeError, ValueError, BufferError):
                    pass  # the client counts it as failed or dropped
                self.sent += 1
            self.file, self.read = None, self.read + file.position()

    def _text_event(self, raw: bytes, path: str | None) -> str | dict[str, str] | None:
        if not raw:
            self.blank += 1
            return None
        text = self._decode(raw)
        if self.timestamp is None:
            return text
        return {"@timestamp": self.timestamp(), "message": text} | ({"log.file.path": path} if path else {})

    def _decode(self, raw: bytes) -> str:
        """Decode UTF-8, and count the characters that replace invalid bytes."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
            # Subtract characters U+FFFD that are in the input.
            self.replaced += text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
            return text

    def _json_event(self, name: str, number: int, raw: bytes, longest: int) -> bytes | None:
        if not raw.strip():
            self.blank += 1
            return None
        if len(raw) == longest:
            why = f"longer than {longest - 1} bytes"
        else:
            text = self._decode(raw)
            why = "not a JSON object"
            try:
                # int() refuses NaN and Infinity, which Python accepts and JSON does not have, and
                # overflows for 1e999, which float() makes infinite.
                event = json.loads(text, parse_constant=int, parse_float=lambda digits: int(float(digits)))
                if isinstance(event, dict):
                    if self.arguments.format == "ndjson":
                        return text.strip().encode()
                    why = "no event, only what became of it"
                    if (lost := _lost_event(text, event)) is not None:
                        return lost
            except OverflowError:
                why = "a number is too large"
            except (ValueError, RecursionError):
                pass
        self.refused += 1
        if self.refused <= _SHOWN_REFUSALS:
            print(f"logclient: {display_name(name)}:{number}: {why}", file=sys.stderr)
        return None

    def _report(self, stats: Stats, code: ExitCode) -> None:
        seconds = time.monotonic() - self.begun
        outstanding = stats.queued + stats.inflight
        if self.arguments.json:
            result = {
                "url": self.url,
                "sent": self.sent,
                **{name: getattr(stats, name) for name in ("acked", "handed", "failed", "dropped")},
                "outstanding": outstanding,
                **{name: getattr(stats, name) for name in ("resent", "sanitized", "moved", "connects")},
                **{name: getattr(self, name) for name in ("blank", "replaced", "refused")},
                "seconds": round(seconds, 3),
                "exit": int(code),
            }
            print(json.dumps(result))
            return
        parts = [f"acked {stats.acked}", f"handed {stats.handed}"]
        for word, reasons in (("failed", stats.failed), ("dropped", stats.dropped)):
            by_reason = ", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items()))
            parts.append(f"{word} {sum(reasons.values())}" + (f" ({by_reason})" if by_reason else ""))
        more = {"outstanding": outstanding, "resent": stats.resent, "blank lines": self.blank}
        more |= {"bytes replaced": self.replaced, "lines refused": self.refused}
        parts += [f"{word} {number}" for word, number in more.items() if number]
        print(f"sent {self.sent} in {seconds:.1f}s: {', '.join(parts)}")


def _lost_event(line: str, fields: dict[str, Any]) -> bytes | None:
    """Return the event of a line that ``delivery.fallback`` wrote; None: it has only ids."""
    if "event" in fields:  # the last one, cut out: each digit stays as it was sent
        return line.partition(',"event":')[2].rstrip()[:-1].encode()
    if isinstance(text := fields.get("text"), str):
        return text.encode()
    return b64decode(fields["base64"], validate=True) if isinstance(fields.get("base64"), str) else None
