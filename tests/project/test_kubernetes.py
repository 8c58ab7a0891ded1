"""The Deployment of docs/kubernetes.md agrees with what the code reads, and with itself."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from logclient.config.parsing import parse
from logclient.config.readers import parse_size
from logclient.records.host import PODINFO, fields_of
from tests.project.pages import FOUND
from tests.support import need

yaml = need("yaml")

pytestmark = pytest.mark.tree

MANIFESTS = {
    page: [
        yaml.safe_load(text.text) for text in FOUND.samples if (text.page, text.language) == (page, "yaml")
    ]
    for page in ("docs/kubernetes.md", "docs/fields.md")
}
[DEPLOYMENT] = MANIFESTS["docs/kubernetes.md"]
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
[SHOP] = POD["containers"]
VARIABLES = {variable["name"]: variable for variable in SHOP["env"]}


class Recorder(dict[str, str]):
    """An environment that remembers what is asked of it."""

    def __init__(self) -> None:
        super().__init__(KUBERNETES_SERVICE_HOST="h")
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def test_its_variables_are_those_that_enrich_reads(tmp_path: Path) -> None:
    recorder = Recorder()
    fields_of(["kubernetes"], str(tmp_path), recorder)
    given_by_kubernetes = {"KUBERNETES_SERVICE_HOST", "HOSTNAME"}
    assert set(VARIABLES) - {"LOGCLIENT_URL"} == recorder.asked - given_by_kubernetes
    env, volumes = MANIFESTS["docs/fields.md"]
    assert env["env"] == [VARIABLES[name] for name in VARIABLES if name != "LOGCLIENT_URL"]
    assert volumes["volumes"][0] in POD["volumes"]


def test_every_mount_has_its_volume_and_the_labels_are_where_they_are_read(tmp_path: Path) -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in SHOP["volumeMounts"]}
    assert set(mounts) == set(volumes)
    assert mounts["podinfo"] == f"/{PODINFO}"
    for item in volumes["podinfo"]["downwardAPI"]["items"]:
        folder = tmp_path / PODINFO
        folder.mkdir(parents=True, exist_ok=True)
        (folder / item["path"]).write_text('app="shop"\n')
    found = fields_of(["kubernetes"], str(tmp_path), {"KUBERNETES_SERVICE_HOST": "h"})
    assert found["kubernetes.labels.app"] == "shop"
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels


def test_the_grace_period_is_long_enough_and_the_volume_large_enough() -> None:
    config = parse(VARIABLES["LOGCLIENT_URL"]["value"])
    command = SHOP["command"]
    requests = int(command[command.index("--graceful-timeout") + 1])
    workers = int(command[command.index("--workers") + 1])
    before = int(SHOP["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = before + requests + config.atexit_timeout
    assert needed < POD["terminationGracePeriodSeconds"] <= needed + 10
    [spool] = [volume["emptyDir"] for volume in POD["volumes"] if volume["name"] == "spool"]
    assert workers * config.spool_bytes < parse_size(spool["sizeLimit"] + "B")
    limit = parse_size(SHOP["resources"]["limits"]["memory"] + "B")
    assert 2 * workers * config.max_bytes < limit
    mount = next(mount["mountPath"] for mount in SHOP["volumeMounts"] if mount["name"] == "spool")
    # below the mount, as the volume itself belongs to root
    assert config.spool is not None
    assert PurePosixPath(mount) in PurePosixPath(config.spool).parents
