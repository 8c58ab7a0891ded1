"""Ids that applications give to events: each is still told from every other, by what verify reads."""

from __future__ import annotations

import json
from pathlib import Path

import logclient
from logclient.collectors.lumberjack import Collector


def test_an_event_with_an_id_of_its_own_carries_it_alone_and_is_listed(tmp_path: Path) -> None:
    with Collector("127.0.0.1", 0, keep=True) as server:
        client = logclient.connect(server.url, ledger=str(tmp_path / "ledger"))
        forged = client.event_id(1)
        client.send({"n": 1})
        given = [{"@metadata": {"_id": forged}}, {"@metadata": {"_id": "mine"}}, {"event.id": forged},
                 {"event": {"id": "mine too"}}]  # fmt: skip
        for event in given:
            client.send(event)
        client.send(b'{"@metadata":{"_id":"raw"}}')
        assert client.flush(10) == 0
        client.close()
        arrived = list(server.events())
    assert arrived[1:] == [*given, {"@metadata": {"_id": "raw"}}]
    (ledger,) = (tmp_path / "ledger").iterdir()
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    ids = [(line["seqs"], line["n"]) for line in lines if line["t"] == "ids"]
    assert sum(n for _, n in ids) == len(given) + 1
