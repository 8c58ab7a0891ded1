"""The formatter alone, on the lines of row `handler`; run by `make bench ROW=functions`."""

from __future__ import annotations

import json

import pytest

from bench.data import failing_records, mapping, records
from logclient._ext.record import Encoder
from logclient.logjam import Agent

MADE = records(1000)
FAILING = failing_records(100)


@pytest.mark.benchmark(group="1000 records to ECS documents")
@pytest.mark.parametrize("pairs", [False, True], ids=["object", "pair block"])
def test_records(benchmark, pairs):
    encode = Encoder(pairs=pairs).encode_record
    made = benchmark(lambda: [encode(record) for record in MADE])
    assert len(made) == 1000
    assert sum(sanitized for _, _, sanitized, _ in made) == 0


@pytest.mark.benchmark(group="1000 records to ECS documents")
@pytest.mark.parametrize("kind", ["plain", "arguments", "extra"])
def test_one_kind(benchmark, kind):
    chosen = {
        "plain": [r for r in MADE if not r.args],
        "arguments": [r for r in MADE if r.args and not hasattr(r, "user_id")],
        "extra": [r for r in MADE if hasattr(r, "user_id")],
    }[kind]
    some = (chosen * 1000)[:1000]
    encode = Encoder().encode_record
    bodies = benchmark(lambda: [encode(record)[0] for record in some])
    assert json.loads(bodies[0])["message"] == some[0].getMessage()


@pytest.mark.benchmark(group="1000 records to Logjam's documents")
@pytest.mark.parametrize("how", ["compiled", "in Python"])
def test_lines(benchmark, how):
    taken = []
    agent = Agent(lambda body, level, kind: taken.append(body), "shop-production")
    encode = agent.line_encoder().encode if how == "compiled" else agent.ship
    made = benchmark(lambda: [encode(record) for record in MADE])
    assert all(made)
    assert json.loads(made[7][0] if how == "compiled" else taken[7])["lines"][0][2] == MADE[7].getMessage()


@pytest.mark.benchmark(group="100 records with exc_info")
def test_exc_info(benchmark):
    encode = Encoder().encode_record

    def forget():
        for record in FAILING:
            record.exc_text = None

    benchmark.pedantic(
        lambda: [encode(record) for record in FAILING], setup=forget, rounds=50, warmup_rounds=3
    )
    assert all("ValueError" in record.exc_text for record in FAILING)


@pytest.mark.benchmark(group="1000 mappings of six fields, 300 bytes")
@pytest.mark.parametrize("how", ["ours", "json.dumps"])
def test_mappings(benchmark, how):
    events = [mapping(i) for i in range(1000)]
    encode = Encoder().encode if how == "ours" else lambda e: json.dumps(e, separators=(",", ":")).encode()
    benchmark(lambda: [encode(event) for event in events])
    assert json.loads(Encoder().encode(events[7])[0]) == events[7]


@pytest.mark.benchmark(group="1000 strings of 200 characters")
@pytest.mark.parametrize("kind", ["ascii", "quotes", "latin", "wide"])
def test_strings(benchmark, kind):
    unit = {"ascii": "a", "quotes": 'say "x"\n', "latin": "caf\u00e9 ", "wide": "\u65e5\u672c "}[kind]
    text = (unit * 200)[:200]
    events = [{"message": text}] * 1000
    encode = Encoder().encode
    benchmark(lambda: [encode(event) for event in events])
    assert json.loads(Encoder().encode(events[0])[0]) == events[0]
