"""The log calls of the benchmarks: log lines as records, the same for every contender."""

from __future__ import annotations

import functools
import logging
import os
import random
import re
import sys
from typing import Any

from tools.demo import samples

INPUT = "LOGCLIENT_BENCH_INPUT"
"""The environment variable with the files of ``--input``, as a search path; other processes read it, too."""

NEAR = (90.0, 150.0)
"""The range of mean line lengths, in bytes, for which lines of /var/log are used: other lengths would make
documents of another size, and so another benchmark."""

_NUMBER = re.compile(r"(?<![\w.-])\d{1,9}(?![\w.-])")
_WORD = re.compile(r"(?<![\w.%/-])[A-Za-z][\w./-]{5,40}(?![\w./-])")


@functools.cache
def choose_samples() -> samples.Samples:
    """Choose log lines: of the files of ``--input``, of /var/log if their length is usual, or generated."""
    files = [name for name in os.environ.get(INPUT, "").split(os.pathsep) if name]
    return samples.choose(files, near=NEAR)


def source() -> str:
    """Describe the origin and length of the lines."""
    return f"lines from {choose_samples().source}, {choose_samples().mean:.0f} bytes on average"


def lines(count: int, seed: int = 7) -> list[samples.Line]:
    """Draw `count` log lines at random."""
    draw = random.Random(seed)
    return [draw.choice(choose_samples().lines) for _ in range(count)]


def template(line: str, draw: random.Random) -> tuple[str, tuple[Any, ...]]:
    """Split a line into a format and up to three %-arguments, as a programmer would log it."""
    parts = [
        (m.start(), m.end(), "%d", int(m.group()))
        for m in _NUMBER.finditer(line)
        if m.group() == str(int(m.group()))
    ]
    parts += [(m.start(), m.end(), "%s", m.group()) for m in _WORD.finditer(line)]
    chosen = sorted(draw.sample(parts, min(len(parts), draw.randint(1, 3))))
    text, arguments, at = "", [], 0
    for start, end, mark, value in chosen:
        if start < at:
            continue
        text += line[at:start].replace("%", "%%") + mark
        arguments.append(value)
        at = end
    text += line[at:].replace("%", "%%")
    if not arguments:
        text, arguments = "%s", [line]
    return text, tuple(arguments)


def calls(count: int = 1000, seed: int = 7) -> list[tuple[str, int, str, tuple, dict | None]]:
    """Make `count` log calls: logger, level, message, arguments, extra.

    Every second one has %-arguments, every tenth has `extra`.
    """
    draw = random.Random(seed + 1)
    made = []
    for i, line in enumerate(lines(count, seed)):
        message, arguments = template(line.text, draw) if i % 2 else (line.text, ())
        extra = (
            {
                "user_id": draw.randint(1, 10**6),
                "request": f"{draw.getrandbits(64):016x}",
                "took_ms": round(draw.random() * 100, 3),
            }
            if i % 10 == 5
            else None
        )
        made.append((f"app.{line.program}.worker", line.level, message, arguments, extra))
    return made


def records(count: int = 1000, seed: int = 7) -> list[logging.LogRecord]:
    """Make the same calls as prepared records."""
    return [
        logging.getLogger(name).makeRecord(
            name, level, __file__, 40 + i % 50, message, arguments, None, func="serve", extra=extra
        )
        for i, (name, level, message, arguments, extra) in enumerate(calls(count, seed))
    ]


def _raise_at_depth(depth: int) -> None:
    if depth:
        _raise_at_depth(depth - 1)
    else:
        raise ValueError("no such block: blk_38865049064139660")


def failing_records(count: int = 100) -> list[logging.LogRecord]:
    """Make records with `exc_info`, six frames deep."""
    made = []
    for i in range(count):
        try:
            _raise_at_depth(4)
        except ValueError:
            made.append(
                logging.getLogger("app.worker").makeRecord(
                    "app.worker",
                    logging.ERROR,
                    __file__,
                    60,
                    "request %d failed",
                    (i,),
                    sys.exc_info(),
                    func="serve",
                )
            )
    return made


def mapping(i: int = 0) -> dict[str, Any]:
    """Make a mapping of six fields, about 300 bytes as JSON."""
    return {
        "@timestamp": "2026-01-01T12:34:56.789Z",
        "log.level": "INFO",
        "service.name": "checkout",
        "attempt": i,
        "took_ms": 12.75,
        "message": "GET /api/v2/orders/1234567/items?expand=prices,stock 200 " + "x" * 116,
    }
