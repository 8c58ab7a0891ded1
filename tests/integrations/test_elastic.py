"""The files of docs/elastic: the index template, with a real OpenSearch, and the files of Logstash."""

from __future__ import annotations

import fnmatch
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.integrations.request_fields import RequestFields
from logclient.records.host import fields_of
from logclient.testing.lumberjack import Collector
from tests.oracle import ecs_fields
from tests.oracle.ecs_fields import TYPES
from tests.support import ROOT, need
from tests.support.opensearch import OpenSearch
from tests.support.patience import PATIENCE

yaml = need("yaml")

pytestmark = pytest.mark.tree

FILES = ROOT / "docs" / "elastic"
PIPELINE = (FILES / "logstash.conf").read_text("ascii")
TEMPLATE: dict[str, Any] = json.loads((FILES / "index-template.json").read_text("ascii"))
MAPPINGS: dict[str, Any] = TEMPLATE["template"]["mappings"]
STREAM = "logs-logclient-default"


def mapped(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return each field that the template maps, with its mapping."""
    for name, mapping in properties.items():
        if "type" in mapping:
            yield above + name, mapping
        else:
            yield from mapped(mapping["properties"], f"{above}{name}.")


FIELDS = dict(mapped(MAPPINGS["properties"]))
TYPES_OF_JSON = {bool: "boolean", int: "long", float: "double", str: "string"}


def type_in_index(name: str, value: Any) -> str:
    """Return the type that a field gets: that of its mapping, or of the first dynamic template that fits."""
    if name in FIELDS:
        return str(FIELDS[name]["type"])
    one = value[0] if isinstance(value, list) else value
    kind = TYPES_OF_JSON[type(one)]
    for named in MAPPINGS["dynamic_templates"]:
        [rule] = named.values()
        if rule["match_mapping_type"] == kind and fnmatch.fnmatchcase(name, rule.get("path_match", "*")):
            return str(rule["mapping"]["type"])
    return kind


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """1,000 documents as a collector gets them, with all fields that logclient makes."""
    root = tmp_path_factory.mktemp("root")
    for path, text in {
        "etc/os-release": 'NAME="Debian"\nID=debian\nVERSION_ID="12"\n',
        "etc/machine-id": "abc",
        "etc/podinfo/labels": 'app="shop"\n',
        "proc/self/cgroup": f"0::/docker/{'0123456789abcdef' * 4}\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    pod = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        **dict.fromkeys(("POD_NAME", "POD_UID", "POD_NAMESPACE", "NODE_NAME"), "shop-1"),
        "POD_IP": "10.0.0.7",
    }
    here = fields_of(["host", "container", "kubernetes"], str(root), pod)
    with Collector(keep=True) as server:
        handler = logclient.Handler(
            server.url,
            fields={**here, "service.version": "2.4.1"},
            service="shop",
            environment="production",
            tags=["eu"],
            error_fingerprint=True,
            truncate=True,
            max_event_bytes=20_000,
        )
        logger = logging.getLogger("test-elastic")
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        request = RequestFields("GET", "/orders", None, f"00-{'a' * 32}-{'b' * 16}-01", "10.0.0.9")
        task = {"celery.task.name": "shop.confirm", "celery.task.id": "t-1", "span.id": "b" * 16}
        try:
            for n in range(200):
                with logclient.bind(task):
                    logger.warning("order %d is late", n, extra={"order.number": n, "user": "ann", "host": n})
                logger.info("m" * 30_000, extra={"error": n / 3, "agent": True})
                handler.client.send({"message": "sent", "n": n, "event": "x", "user.name": "ann"})
                handler.client.send("text")
                try:
                    raise LookupError("grüße")
                except LookupError:
                    logger.exception("failed", stack_info=True)
        finally:
            request.end()
            logger.removeHandler(handler)
        assert handler.client.flush(PATIENCE) == 0
        arrived = server.events(1_000, PATIENCE)
        handler.client.close()
    return arrived


def test_mapped_fields_have_the_types_of_ecs() -> None:
    beyond = {name for name in FIELDS if name not in TYPES}
    assert beyond == {"log.flags", "error.fingerprint", "kubernetes.pod.ip"}
    for name in FIELDS.keys() - beyond:
        assert FIELDS[name]["type"] == TYPES[name], name


def test_every_field_of_ours_gets_its_type(documents: list[dict[str, Any]]) -> None:
    seen: dict[str, Any] = {}
    for document in documents:
        seen |= ecs_fields.flatten({name: document[name] for name in document if name != "@metadata"})
    assert {name for name in FIELDS if name != "labels"} <= set(seen)  # no mapping is idle
    theirs = {"order.number": "long", "n": "long", "user.name": "keyword"}
    for name, value in seen.items():
        found = type_in_index(name, value)
        wanted = "keyword" if name.startswith("labels.") else TYPES.get(name)
        if wanted is None:
            wanted = theirs.get(name) or (str(FIELDS[name]["type"]) if name in FIELDS else "keyword")
        assert found == wanted, name
    assert {type(value) for name, value in seen.items() if name.startswith("labels.")} >= {str, float, bool}


def test_template_is_for_the_data_stream_of_the_pipeline() -> None:
    setting = dict(re.findall(r'^ +(\w+) => "?(.+?)"?$', PIPELINE, re.MULTILINE))
    parts = (setting[f"data_stream_{part}"] for part in ("type", "dataset", "namespace"))
    assert "-".join(parts) == STREAM
    assert any(fnmatch.fnmatchcase(STREAM, pattern) for pattern in TEMPLATE["index_patterns"])
    assert (
        TEMPLATE["data_stream"] == {} and TEMPLATE["priority"] > 100
    )  # that of Elasticsearch's own for logs-*-*
    assert (setting["action"], setting["document_id"]) == ("create", "%{[@metadata][_id]}")
    assert PIPELINE.count("{") == PIPELINE.count("}")


def test_compose_file_uses_the_files_beside_it() -> None:
    compose = yaml.safe_load((FILES / "compose.yaml").read_text("ascii"))
    services = compose["services"]
    mounts = [mount for service in services.values() for mount in service["volumes"]]
    files = {mount.split(":")[0] for mount in mounts if mount.startswith("./")}
    assert files - {"./certificates"} == {f"./{file.name}" for file in FILES.iterdir()} - {"./compose.yaml"}
    assert {mount.split(":")[0] for mount in mounts if not mount.startswith("./")} == set(compose["volumes"])
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        # published on this machine only, as there are no passwords
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    settings = yaml.safe_load((FILES / "logstash.yml").read_text("ascii"))
    assert settings["pipeline.ecs_compatibility"] == "v8"
    assert settings["dead_letter_queue.enable"] is True


@pytest.mark.long
def test_opensearch_takes_the_template_and_the_documents(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    """1,000 documents, each sent twice as after a broken connection; in dotted and in nested form."""
    with OpenSearch(tmp_path / "node") as node:
        assert node.ask("PUT", "_index_template/logclient", json.dumps(TEMPLATE).encode()) == {
            "acknowledged": True
        }
        bodies = {
            document["@metadata"]["_id"]: json.dumps(form(document, n % 2 == 0)).encode()
            for n, document in enumerate(documents)
        }
        assert len(bodies) == 1_000
        first = node.create(STREAM, bodies)
        assert {answer.get("error") and answer["error"]["reason"] for answer in first.values()} == {None}
        again = node.create(STREAM, bodies)
        assert {answer["error"]["type"] for answer in again.values()} == {"version_conflict_engine_exception"}
        assert node.ask("GET", f"{STREAM}/_count")["count"] == 1_000
        [index] = node.ask("GET", f"{STREAM}/_mapping").values()
        found = dict(mapped(index["mappings"]["properties"]))
        for name, mapping in found.items():
            if name in TYPES and name != "labels":
                assert mapping["type"] == TYPES[name], name
            elif name.startswith("labels."):
                assert mapping["type"] == "keyword", name
        query = {"query": {"term": {"labels.user": "ann"}}}
        hits = node.ask("GET", f"{STREAM}/_search?size=0", json.dumps(query).encode())["hits"]["total"]
        assert hits["value"] == 200
        # A value of a wrong type costs its field only, a name with an empty part the document.
        odd = {"@timestamp": "2026-11-24T09:00:00Z", "message": "odd"}
        bodies = {
            "wrong": json.dumps({**odd, "process.pid": "[redacted]", "client.ip": "none"}).encode(),
            "empty": json.dumps({**odd, "a..b": 1}).encode(),
        }
        answers = node.create(STREAM, bodies)
        assert {name: answer["status"] for name, answer in answers.items()} == {"wrong": 201, "empty": 400}


def form(document: Mapping[str, Any], nested: bool) -> dict[str, Any]:
    """Return a document as its file of the index has it, with objects or with dots."""
    kept = {name: value for name, value in document.items() if name != "@metadata"}
    return ecs_fields.tree(kept) if nested else ecs_fields.flatten(kept)
