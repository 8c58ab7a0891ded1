"""Tools and configurations change logging for `logclient.Logger` as for the standard library's logger."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger
from tests.client.logger_scenes import KINDS, SCENES
from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """What each scene gives with each kind of logger."""
    if not hasattr(os, "fork"):
        pytest.skip("each scene is a fork")
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.client.logger_scenes", kind],
            cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=6 * PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        found[kind] = dict(json.loads(line) for line in done.stdout.splitlines())
    return found


@pytest.mark.parametrize("name", SCENES)
def test_both_loggers_act_the_same(name: str, results: dict[str, dict[str, Any]]) -> None:
    compiled, plain = results["compiled"][name], results["plain"][name]
    if plain[0] == "skipped":
        pytest.skip(plain[1])
    assert compiled == plain
    assert len(compiled[0]) > 3  # more than before the change


def test_caplog_sees_each_record_once(caplog: pytest.LogCaptureFixture) -> None:
    handler = logclient.Handler(NOWHERE)
    queue = QueueOnly(handler.client)
    logger = Logger("tests.caplog")
    logger.addHandler(handler)
    logger.info("before")
    logger.info("before")
    assert logger.obstacle() == ""
    logger.parent = logging.getLogger()
    logger.info("not captured at WARNING of the root, but of a handler of ours")
    with caplog.at_level(logging.INFO):
        logger.info("one %d", 1)
        logger.error("two")
    logger.parent = None
    logger.info("after")
    messages = [json.loads(body)["message"] for body in queue.take()]
    assert [r.getMessage() for r in caplog.records][-2:] == ["one 1", "two"]
    assert [r.lineno for r in caplog.records][-1] - caplog.records[-2].lineno == 1
    assert len(messages) == 6 and messages[-3:] == ["one 1", "two", "after"]
    handler.client.close(timeout=0)
