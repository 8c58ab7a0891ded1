"""The search of the site answers what users type with the right page first.

`make docs` builds the site and runs these tests. They ask the site's own search, in node.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import support
from tests.support import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.tree]

SITE = ROOT / "build" / "site"
INDEX = SITE / "search.json"

PAGES = {
    "airflow": "programs.html#airflow",
    "alpine": "platforms.html",
    "asyncio": "programs.html#asyncio",
    "batch job": "programs.html#a-batch-job",
    "benchmark": "bench.html",
    "celery": "web.html#celery",
    "buffer debug": "filters.html#debug-records-only-with-an-error",
    "certificate": "troubleshooting.html#a-certificate-is-refused",
    "correlation id": "web.html#request-id-or-correlation-id",
    "custom protocol": "codec.html#a-custom-protocol",
    "disable in tests": "options.html#turn-it-off-or-disable-it-in-tests",
    "django": "web.html#django",
    "docker": "kubernetes.html#a-docker-image",
    "duplicate log lines": "troubleshooting.html#a-record-arrives-twice",
    "elasticsearch": "elastic.html",
    "environment variables": "run.html#variables",
    "extra_prefix": "options.html#extra_prefix",
    "fastapi": "web.html#fastapi-and-starlette",
    "filebeat": "coming-from.html#filebeat",
    "flask": "web.html#flask",
    "fork": "fork-and-exit.html",
    "graylog": "receivers.html#graylog",
    "great expectations": "verify.html",
    "gunicorn": "fork-and-exit.html#gunicorn",
    "health check": "web.html#leave-out-health-checks",
    "healthcheck": "web.html#leave-out-health-checks",
    "hide passwords": "filters.html#redact-secrets",
    "hourly": "verify.html",
    "install": "tutorial/first-steps.html#install",
    "kafka": "verify.html",
    "kubernetes": "kubernetes.html",
    "lambda": "programs.html#aws-lambda",
    "logstash": "receivers.html#logstash",
    "loguru": "other-loggers.html#loguru",
    "macos": "platforms.html",
    "management command": "web.html#management-commands",
    "memory": "api/client.html",
    "multiprocessing": "fork-and-exit.html",
    "opentelemetry": "opentelemetry.html",
    "own CA": "tls.html#make-your-own-ca-for-tests",
    "parquet": "verify.html",
    "pcap": "commands.html#wireshark-and-tcpdump-read-a-pcap",
    "performance": "performance.html",
    "prometheus": "metrics.html",
    "pypy": "platforms.html#windows-and-pypy",
    "pytest": "testing.html#in-pytest",
    "python-logstash": "coming-from.html#python-logstash-async",
    "redact": "filters.html#redact-secrets",
    "retry": "operations.html#retry-and-fail-over",
    "runserver": "web.html",
    "sampling": "filters.html#sampling-send-fewer-records",
    "sans-io": "codec.html",
    "secrets": "filters.html#redact-secrets",
    "sensitive data": "filters.html#redact-secrets",
    "sentry": "coming-from.html#sentry-sdk",
    "sigterm": "fork-and-exit.html#sigterm",
    "spark": "verify-spark.html",
    "spool": "spool.html",
    "structlog": "other-loggers.html#structlog",
    "syslog": "coming-from.html#sysloghandler-from-syslog-and-an-agent",
    "tls": "tls.html",
    "turn off": "options.html#turn-it-off-or-disable-it-in-tests",
    "unable to configure handler": "troubleshooting.html#nothing-arrives",
    "uncaught exception": "uncaught.html",
    "uvicorn": "fork-and-exit.html#uvicorn",
    "vector": "receivers.html#vector",
    "windows": "platforms.html#windows-and-pypy",
    "wireshark": "commands.html#wireshark-and-tcpdump-read-a-pcap",
}
"""What people type, and where the first answer must lead: a page, or a part of it."""

AMONG = {
    "frames": ("options.html#frames", 1),
    "http": ("options.html", 1),
    "password": ("options.html", 1),
    "proxy": ("options.html#proxy", 1),
    "request id": ("web.html#request-id-or-correlation-id", 2),
    "timeout": ("options.html#timeout", 3),
    "version": ("options.html#version", 3),
}
"""Words whose page must be among so many first answers: a name of the API may have the word more often."""


@pytest.fixture(scope="module")
def hits() -> dict[str, list[str]]:
    if shutil.which("node") is None:
        support.missing("node is not installed")
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "mkdocs.yml"]
    if not INDEX.exists() or INDEX.stat().st_mtime < max(page.stat().st_mtime for page in pages):
        pytest.skip("make docs builds the site, and runs this test")
    words = [*PAGES, *AMONG]
    script = Path(__file__).with_name("search.cjs")
    done = subprocess.run(["node", script, SITE, *words], capture_output=True, encoding="utf-8", check=True)
    return dict(zip(words, map(json.loads, done.stdout.splitlines()), strict=True))


def test_the_first_answer_is_the_right_page(hits: dict[str, list[str]]) -> None:
    wrong = {word: hits[word][:3] for word, page in PAGES.items() if not _leads(hits[word][:1], page)}
    assert wrong == {}


def test_options_are_found_with_their_help(hits: dict[str, list[str]]) -> None:
    wrong = {word: hits[word][:n] for word, (page, n) in AMONG.items() if not _leads(hits[word][:n], page)}
    assert wrong == {}
    items = json.loads(INDEX.read_text())["items"]
    bare = [item["location"] for item in items if "options.Options." in item["location"]]
    assert bare == []


def test_each_option_has_an_anchor(hits: dict[str, list[str]]) -> None:
    from logclient.config.option import all_options

    anchors = set(re.findall(r'<h3 id="(\w+)">', (SITE / "options.html").read_text()))
    assert set(all_options()) <= anchors


def test_pages_load_nothing_from_another_server(hits: dict[str, list[str]]) -> None:
    parts = re.compile(r'<(?:script|img|iframe|link rel="stylesheet")[^>]*"(?:https?:)?//')
    wrong = [page for page in SITE.rglob("*.html") if parts.search(page.read_text())]
    assert wrong == []


def _leads(found: list[str], page: str) -> bool:
    return any(one == page or one.partition("#")[0] == page for one in found)
