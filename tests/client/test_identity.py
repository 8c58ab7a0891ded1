"""Ids that applications give to events: the verifier still tells every event apart."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logclient
from logclient.client import Client
from logclient.testing import logjam as logjam
from logclient.testing import logux as logux
from logclient.testing import lumberjack as lumberjack
from logclient.testing import plog as plog
from tests.support.patience import PATIENCE

np = pytest.importorskip("numpy")
decode = pytest.importorskip("logclient.evidence.decode")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

Forge = Callable[[str], list[Any]]


def of_lumberjack(forged: str) -> list[dict[str, Any]]:
    return [
        {"@metadata": {"_id": forged}},
        {"@metadata": {"_id": forged}, "event.id": forged},
        {"event.id": forged},
        {"event": {"id": forged, "action": "x"}},
        {"event": "login"},
        {"event.id": "mine"},
        {"event": {"id": "mine too"}, "@metadata": {"pipeline": "x"}},
        {"@metadata._id": forged},
        {b"event.id": forged},
    ]


def of_field(name: str) -> Forge:
    return lambda forged: [{name: forged}, {name: "mine"}, {name.encode(): forged}, {"event.id": forged}]


def whole_action(client: Any, event: dict[Any, Any]) -> None:
    """Wrap the event unchanged, with names that are strings: others are refused."""
    named = {name.decode() if isinstance(name, bytes) else name: value for name, value in event.items()}
    client.add({"type": "chat/add", **named})


# Of each protocol: its collector, options of the client, what is forged, and how it is sent.
PROTOCOLS: dict[str, tuple[Any, dict[str, Any], Forge, Callable[[Any, Any], object]]] = {
    "lumberjack": (lumberjack.Collector, {}, of_lumberjack, Client.send),
    "lumberjack-1": (lumberjack.Collector, {"version": 1}, of_lumberjack, Client.send),
    "logjam": (logjam.Collector, {}, of_field("request_id"), Client.send),
    "logjam-events": (logjam.Collector, {"topic": "events.app.env"}, of_field("uuid"), Client.send),
    "plog": (plog.Collector, {}, of_field("uuid"), Client.send),
    "logux": (logux.Collector, {}, of_field("id"), Client.send),
    "logux-add": (logux.Collector, {}, of_field("id"), whole_action),
}  # fmt: skip


def connect(server: Any, protocol: str, **options: Any) -> Any:
    url = server.url + ("/app-env" if protocol.startswith("logjam") and "/app-env" not in server.url else "")
    return logclient.connect(url, **PROTOCOLS[protocol][1], **options)


def ids_read(protocol: str, producer: str, documents: list[Any]) -> list[tuple[int, int]]:
    """Return (status, sequence) of each document, as the verifier reads it."""
    name = protocol.partition("-")[0]
    bodies = [json.dumps(document).encode() for document in documents]
    sizes = np.array([len(body) for body in bodies], np.int64)
    decode_bodies = decode.body_decoder(name, bytes.fromhex(producer))
    found = decode_bodies(b"".join(bodies), np.cumsum(sizes) - sizes, sizes)
    return list(zip(found.status.tolist(), found.sequence.tolist(), strict=True))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_forged_ids_do_not_confuse_the_verdict(protocol: str, tmp_path: Path) -> None:
    """Every event carries our own id, and the verdict finds nothing wrong."""
    collector, _, forge, send = PROTOCOLS[protocol]
    with collector(capture=str(tmp_path / "capture"), keep=True) as server:
        client = connect(server, protocol, ledger=str(tmp_path / "ledger"))
        events: list[Any] = [{"number": 0}]
        for n in (1, 2, 5, 2**47):
            events += forge(client.event_id(n))
        for event in events:
            send(client, event)
        documents = server.events(len(events), PATIENCE)
        assert client.flush(PATIENCE) == 0
        stats = client.stats()
        client.close()
    assert ids_read(protocol, client.producer, documents) == [(decode.OK, n + 1) for n in range(len(events))]
    assert stats.moved >= (4 if protocol != "logux" else 0)  # there it is inside the data
    verdict = inprocess.run(tmp_path / "ledger", tmp_path / "capture", out=tmp_path / "out")
    assert verdict.ok
    assert verdict.counts.ok == len(events)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_identity_own_keeps_the_applications_ids(protocol: str, tmp_path: Path) -> None:
    """They stay where they are, and the ledger lists them."""
    collector, _, forge, send = PROTOCOLS[protocol]
    with collector(capture=str(tmp_path / "capture"), keep=True) as server:
        client = connect(server, protocol, ledger=str(tmp_path / "ledger"), identity="own")
        (name,) = forge("")[0]
        own = [{name: {"_id": f"mine {n}"} if name == "@metadata" else f"mine {n}"} for n in range(20)]
        if protocol == "lumberjack-1":
            own = [{"event.id": f"mine {n}"} for n in range(20)]
        if protocol == "logux":
            send = whole_action
        for event in own:
            send(client, event)
            client.send({"n": 1})
        documents = server.events(40, PATIENCE)
        assert client.flush(PATIENCE) == 0
        client.close()
    found = ids_read(protocol, client.producer, documents)
    assert Counter(status for status, _ in found) == {decode.FOREIGN: 20, decode.OK: 20}
    verdict = inprocess.run(tmp_path / "ledger", tmp_path / "capture", out=tmp_path / "out")
    assert verdict.ok
    assert verdict.counts.ok == 40


NAMES = st.sampled_from(
    [
        "@metadata",
        "event.id",
        "event",
        "id",
        "uuid",
        "request_id",
        "_id",
        "@metadata._id",
        "event.id.x",
        "data",
    ]
)


@pytest.fixture(scope="module", params=PROTOCOLS)
def rig(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, Any]]:
    protocol = request.param
    with PROTOCOLS[protocol][0](keep=True) as server:
        client = connect(server, protocol, overflow="block")
        yield protocol, server, client
        client.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_forged_id_is_never_taken_for_another_event(rig: tuple[str, Any, Any], data: st.DataObject) -> None:
    protocol, server, client = rig
    before = client.stats().sent
    ids = st.integers(1, 400).map(client.event_id) | st.sampled_from(["mine", 10**31, None, 7])
    values = ids | st.dictionaries(NAMES, ids, max_size=3) | st.lists(ids, max_size=2)
    keys = NAMES if protocol == "logux-add" else NAMES | NAMES.map(str.encode)
    events = data.draw(st.lists(st.dictionaries(keys, values, max_size=5), min_size=1, max_size=12))
    for event in events:
        PROTOCOLS[protocol][3](client, event)
    documents = server.events(before + len(events), PATIENCE)[before:]
    found = ids_read(protocol, client.producer, documents)
    assert found == [(decode.OK, before + n + 1) for n in range(len(events))]


def test_forged_ids_in_log_records_are_moved(tmp_path: Path) -> None:
    """A Handler gets them in `extra`."""
    with lumberjack.Collector(keep=True) as server:
        handler = logclient.Handler(server.url)
        log = logging.Logger("app", logging.INFO)
        log.addHandler(handler)
        forged = handler.client.event_id(1)
        for extra in (None, {"event.id": forged}, {"@metadata": {"_id": forged}}, {"error": "x"}):
            log.info("hi", extra=extra)
        documents = server.events(4, PATIENCE)
        moved = handler.client.stats().moved
        handler.client.close()
    assert ids_read("lumberjack", forged[:20], documents) == [(decode.OK, n) for n in range(1, 5)]
    ids = [f"{forged[:20]}{n:012x}" for n in range(1, 5)]
    assert [document["event"]["id"] for document in documents] == ids
    assert (documents[1]["labels"], documents[3]["labels"]) == ({"event_id": forged}, {"error": "x"})
    assert moved == 3


def test_trusted_metadata_keeps_its_id(tmp_path: Path) -> None:
    with (
        lumberjack.Collector(keep=True, capture=str(tmp_path)) as server,
        logclient.connect(server.url, trust="metadata", compression=0, timestamp=False) as client,
    ):
        client.send({"@metadata": {"pipeline": "p", "_id": client.event_id(7)}})
        client.send({"@metadata": {"_id": "x"}})
        ids = [client.event_id(1), client.event_id(2)]
        assert server.events(2, PATIENCE) == [
            {"@metadata": {"pipeline": "p", "_id": ids[0]}, "event": {"id": ids[0]}},
            {"@metadata": {"_id": ids[1]}, "event": {"id": ids[1]}},
        ]
        assert client.stats().moved == 2
    (segment,) = tmp_path.glob("*.cap*")
    assert segment.read_bytes().count(b'"_id"') == 2  # never two in one document


@pytest.mark.parametrize("identity", ["id", "own", "none"])
@pytest.mark.parametrize("trust", ["none", "metadata"])
def test_constant_metadata_is_in_every_event(tmp_path: Path, identity: str, trust: str) -> None:
    """With it the ids are found as without it, also after the frames were sent twice."""
    constant = {"beat": 'shop "\u00e4"', "version": "8"}
    own = {"@metadata": {"version": "9", "pipeline": "p"}}
    given: list[Any] = [
        {"n": 1}, own, {"event.id": "mine"}, {"@metadata": {"_id": "m"}},
        b'{"n":2}', b'{"@metadata":{"x":1}}',
    ]  # fmt: skip
    ledger, capture = str(tmp_path / "ledger"), str(tmp_path / "capture")
    options: dict[str, Any] = {"identity": identity, "trust": trust, "metadata": constant}
    with lumberjack.Collector(capture=capture, keep=True, faults="cut-before-ack=every:1:max:1") as server:
        client = logclient.connect(server.url, ledger=ledger, timestamp=False, **options)
        for event in given:
            client.send(event)
        assert client.flush(PATIENCE) == 0
        client.close()
        once = {json.dumps(document): document for document in server.events()}
        found = [document.get("@metadata") for document in once.values()]
    ids = [None if one is None else one.pop("_id", None) for one in found]
    merged = {**constant, **own["@metadata"]} if trust == "metadata" else constant
    assert found == [constant, merged, constant, constant, constant, {"x": 1}]
    ours = [client.event_id(n) for n in range(1, 7)]
    expected = {
        "id": [*ours[:5], None],
        "own": [*ours[:2], None, "m", ours[4], None],
        "none": [None, None, None, "m", None, None],
    }
    assert ids == expected[identity]
    if identity != "none":
        verdict = inprocess.run(tmp_path / "ledger", tmp_path / "capture", out=tmp_path / "out")
        assert verdict.ok
        assert verdict.counts.ok == 6


def test_raw_bytes_with_ids_are_unchanged_and_listed(tmp_path: Path) -> None:
    with lumberjack.Collector(keep=True) as server:
        client = logclient.connect(server.url, ledger=str(tmp_path / "ledger"), timestamp=False)
        forged = client.event_id(1)
        client.send({"n": 1})
        given = [{"@metadata": {"_id": forged}}, {"event.id": "mine"}]
        for event in given:
            client.send(json.dumps(event).encode())
        client.send({"event.id": "beside ours"})
        assert client.flush(PATIENCE) == 0
        client.close()
        arrived = server.events(4)
    assert arrived[1:3] == given
    assert arrived[3] == {"event": {"id": "beside ours"}, "@metadata": {"_id": f"{forged[:20]}{4:012x}"}}
    (ledger,) = (tmp_path / "ledger").iterdir()
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert sum(line["n"] for line in lines if line["t"] == "ids") == 3
