"""The query of docs/verify-spark.md: for whole evidence it has the counts of the verdict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from tests import support
from tests.support import ROOT
from tests.verify.histories import World

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def query() -> str:
    page = (ROOT / "docs" / "verify-spark.md").read_text()
    [found] = re.findall(r"```sql\n(WITH .*?)```", page, re.DOTALL)
    return str(found)


def compare(spark: Any, folder: Path, seed: int) -> None:
    # The first of some seeds whose ledgers are all whole.
    worlds = (World(seed + 1000 * i, 15, logjam=0.0, whole=True) for i in range(100))
    for i, world in enumerate(worlds):
        (folder / str(i)).mkdir()
        ledger, capture = world.write(folder / str(i))
        if all(facts.whole for facts in world.expected().facts.values()):
            break
    verify.ledger(spark, ledger).createOrReplaceTempView("sent")
    verify.arrivals(spark, capture).where("sequence IS NOT NULL").createOrReplaceTempView("arrived")
    found: dict[str, int] = dict.fromkeys(("duplicated", "reordered"), 0)
    for row in spark.sql(query()).collect():
        found[row.word] = row.events
        found["duplicated"] += row.duplicated or 0
        found["reordered"] += row.reordered
    counts = job.run(ledger, capture, runner="local").counts._asdict()
    result = world.expected()
    if any(facts.deferred for facts in result.facts.values()):  # the rows of a ledger do not say which
        found["reordered"] = counts["reordered"]
    del counts["events"]
    assert found == {word: n for word, n in counts.items() if n or word in found}, seed


@pytest.mark.parametrize("seed", range(3))
def test_query_has_the_counts_of_the_verdict(spark: Any, tmp_path: Path, seed: int) -> None:
    compare(spark, tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 100))
def test_query_has_the_counts_of_many_verdicts(spark: Any, tmp_path: Path, seed: int) -> None:
    compare(spark, tmp_path, seed)
