"""Where this process runs, as fields of ECS: the host, the container, the Kubernetes pod.

docs/fields.md lists the fields and where they come from. What cannot be read is left out.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

PODINFO = "etc/podinfo"
MOST = 1 << 16  # bytes that are read of a file at most

_CONTAINER = re.compile(r"(?:^|[/:\-])([0-9a-f]{64})(?:\.scope)?(?=[/\s]|$)")
_LABEL = re.compile(r'^([^=\s"]{1,317})="((?:[^"\\]|\\.)*)"$')


def node_name() -> str:
    """Return this machine's name."""
    return os.uname().nodename


def fields_of(
    words: Iterable[str], root: str = "/", environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return the fields that the words ``host``, ``container`` and ``kubernetes`` stand for.

    Files are read below the directory `root`.
    """
    makers = {"host": _host, "container": _container, "kubernetes": _kubernetes}
    found: dict[str, Any] = {}
    for word in words:
        found |= makers[word](root, environment)
    return {name: value for name, value in found.items() if value}


def _read(root: str, path: str) -> str:
    """Return the text of a file, without blanks around it; empty: it cannot be read."""
    try:
        with open(os.path.join(root, path), "rb") as file:
            return file.read(MOST).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _host(root: str, environment: Mapping[str, str]) -> dict[str, Any]:
    import platform

    release = {}
    for line in _read(root, "etc/os-release").splitlines():
        name, _, value = line.partition("=")
        release[name] = value.strip("\"'")
    types = {"linux": "linux", "darwin": "macos"}
    return {
        "host.name": platform.node(),
        "host.id": _read(root, "etc/machine-id"),
        "host.architecture": platform.machine(),
        "host.os.type": types.get(sys.platform, ""),
        "host.os.kernel": platform.release(),
        "host.os.platform": release.get("ID", ""),
        "host.os.name": release.get("NAME", ""),
        "host.os.version": release.get("VERSION_ID", ""),
    }


def _container(root: str, environment: Mapping[str, str]) -> dict[str, Any]:
    # Version 1 of cgroups has the id in the path; with version 2 only what is mounted tells.
    mounts = [line for line in _read(root, "proc/self/mountinfo").splitlines() if "/containers/" in line]
    match = _CONTAINER.search(_read(root, "proc/self/cgroup")) or _CONTAINER.search("\n".join(mounts))
    return {"container.id": match[1]} if match else {}


def _kubernetes(root: str, environment: Mapping[str, str]) -> dict[str, Any]:
    if not environment.get("KUBERNETES_SERVICE_HOST"):
        return {}

    def given(variable: str, file: str) -> str:
        return environment.get(variable) or _read(root, f"{PODINFO}/{file}")

    account = _read(root, "var/run/secrets/kubernetes.io/serviceaccount/namespace")
    found = {
        "kubernetes.pod.name": given("POD_NAME", "name") or environment.get("HOSTNAME", ""),
        "kubernetes.pod.uid": given("POD_UID", "uid"),
        "kubernetes.pod.ip": environment.get("POD_IP", ""),
        "kubernetes.namespace": given("POD_NAMESPACE", "namespace") or account,
        "kubernetes.node.name": environment.get("NODE_NAME", ""),
    }
    for line in _read(root, f"{PODINFO}/labels").splitlines():
        match = _LABEL.match(line)
        if match:
            found[f"kubernetes.labels.{match[1].replace('.', '_')}"] = re.sub(r"\\(.)", r"\1", match[2])
    return found
