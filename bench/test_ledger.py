"""Reading ledgers; run by `make bench ROW=functions`. 20 batches of 2,048 events, with their outcomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logclient._ext.ledger import LineReader
from tests.oracle import ledger as reference
from tests.support import verify_files as files

BATCHES, EVENTS = 20, 2048


def lines(batch: int) -> bytes:
    made = [(seq, 10**15 + seq * 80, seq * 0x9E3779B97F4A7C15 % 2**64) for seq in range(1, EVENTS + 1)]
    made = [(seq + batch * EVENTS, created, value) for seq, created, value in made]
    outcome = {**files.outcome_line("acked", [seq for seq, _, _ in made]), "reason": ""}
    return files.encode_line(files.batch_line(made)) + files.encode_line(outcome)


DATA = b"".join(map(lines, range(BATCHES)))


@pytest.mark.benchmark(group="ledger lines of 40,960 events")
def test_line_reader(benchmark: Any) -> None:
    hashes, created = np.zeros(BATCHES * EVENTS, np.uint64), np.zeros(BATCHES * EVENTS, np.int64)

    def read() -> int:
        reader = LineReader()
        reader.begin_file(0)
        reader.know(b"", 0)
        return reader.read(DATA, 0, len(DATA), hashes, created)

    assert benchmark(read) == len(DATA)


@pytest.mark.benchmark(group="ledger lines of 40,960 events")
def test_line_reader_reference(benchmark: Any) -> None:
    def read() -> int:
        reader = reference.LineReader()
        reader.begin_file(0)
        reader.know(b"", 0)
        return reader.read(DATA, 0, len(DATA), BATCHES * EVENTS)

    assert benchmark(read) == len(DATA)
