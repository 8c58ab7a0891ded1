"""What is logged in the benchmarks: real lines as records, the same for every contender."""

from __future__ import annotations

import logging
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("LOGCLIENT_SHARED") or Path(__file__).resolve().parent.parent.parent / "shared")
_NUMBER = re.compile(r"(?<![\w.-])\d{1,9}(?![\w.-])")
_WORD = re.compile(r"(?<![\w.%/-])[A-Za-z][\w./-]{5,40}(?![\w./-])")
_LEVELS = {"error": logging.ERROR, "warn": logging.WARNING, "failed": logging.WARNING, "debug": logging.DEBUG}


def lines(count: int, seed: int = 7) -> tuple[list[tuple[str, str]], str]:
    """`count` pairs (source, line), and where they come from: real log lines when there are any."""
    draw = random.Random(seed)
    pool = []
    for path in sorted((SHARED / "data").glob("*.log")):
        text = path.read_bytes().decode("utf-8", "replace").splitlines()
        pool += [(path.stem.split("_")[0].lower(), line) for line in text if line.strip()]
    if pool:
        return [draw.choice(pool) for _ in range(count)], "real lines (Apache, HDFS, Mac, OpenSSH, Spark)"
    words = ["session", "opened", "for", "user", "root", "from", "host", "closed", "block", "served", "size"]
    made = [
        ("made", " ".join(draw.choices(words, k=draw.randint(6, 24))) + f" {draw.randint(1, 99999)}")
        for _ in range(count)
    ]
    return made, "generated lines (no shared data here)"


def template(line: str, draw: random.Random) -> tuple[str, tuple[Any, ...]]:
    """The line as a programmer would log it: up to three of its parts as %-arguments."""
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


def calls(count: int = 1000, seed: int = 7) -> tuple[list[tuple[str, int, str, tuple, dict | None]], str]:
    """`count` log calls (logger, level, message, arguments, extra): every second one with %-arguments,
    every tenth with `extra`. And where the lines come from."""
    draw = random.Random(seed + 1)
    found, source = lines(count, seed)
    made = []
    for i, (name, line) in enumerate(found):
        lower = line.lower()
        level = next((value for word, value in _LEVELS.items() if word in lower), logging.INFO)
        message, arguments = template(line, draw) if i % 2 else (line, ())
        extra = (
            {
                "user_id": draw.randint(1, 10**6),
                "request": f"{draw.getrandbits(64):016x}",
                "took_ms": round(draw.random() * 100, 3),
            }
            if i % 10 == 5
            else None
        )
        made.append((f"app.{name}.worker", level, message, arguments, extra))
    return made, source


def records(count: int = 1000, seed: int = 7) -> tuple[list[logging.LogRecord], str]:
    """The same calls as prepared records."""
    made, source = calls(count, seed)
    return [
        logging.getLogger(name).makeRecord(
            name, level, __file__, 40 + i % 50, message, arguments, None, func="serve", extra=extra
        )
        for i, (name, level, message, arguments, extra) in enumerate(made)
    ], source


def _deeper(depth: int) -> None:
    if depth:
        _deeper(depth - 1)
    else:
        raise ValueError("no such block: blk_38865049064139660")


def failing_records(count: int = 100) -> list[logging.LogRecord]:
    """Records with `exc_info`, six frames deep."""
    made = []
    for i in range(count):
        try:
            _deeper(4)
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
    """Six fields, about 300 bytes as JSON."""
    return {
        "@timestamp": "2026-01-01T12:34:56.789Z",
        "log.level": "INFO",
        "service.name": "checkout",
        "attempt": i,
        "took_ms": 12.75,
        "message": "GET /api/v2/orders/1234567/items?expand=prices,stock 200 " + "x" * 116,
    }
