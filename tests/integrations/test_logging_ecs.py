"""The standard library's logging with our handler: 2,000 records beside what ecs-logging makes of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import logclient
from logclient.testing.lumberjack import Collector
from tests.integrations.ecs_peer import Peer
from tests.integrations.odd_records import RECORDS, draw_fields, fail
from tests.support.patience import PATIENCE

LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL, 25)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("shop.größe")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)


def _log(logger: logging.Logger, draw: random.Random, n: int) -> None:
    fields = draw_fields(draw)
    stack = draw.random() < 0.05
    if n % 10 == 0:
        try:
            fail(draw)
        except Exception:
            logger.exception("failed %d 😀", n, extra=fields, stack_info=stack)
    elif n % 10 == 1:
        logger.info("%(n)d of %(all)s", {"n": n, "all": "größe"}, extra=fields, stack_info=stack)
    elif n % 10 == 2:
        logger.warning(ValueError(f"not a string {n}"), extra=fields)
    else:
        given = draw.choice(("é€😀\u2028\x00\x1f", 2.5, None, b"bytes", [1], "100%"))
        logger.log(draw.choice(LEVELS), "event %d %s", n, given, extra=fields, stack_info=stack)


@pytest.mark.parametrize("peer_first", [True, False])
def test_records_equal_those_of_ecs_logging(peer_first: bool, logger: logging.Logger, tmp_path: Path) -> None:
    """Formatters write to records: the first handler sees them as they are, the other one as they became."""
    draw = random.Random("logging")
    peer = Peer()
    with Collector(capture=str(tmp_path)) as server:
        handler = logclient.Handler(server.url, overflow="block")
        for one in (peer, handler) if peer_first else (handler, peer):
            logger.addHandler(one)
        with logclient.bind(order={"id": 7, "größe": "ä"}):
            for n in range(RECORDS):
                peer.facts = {"order": {"id": 7, "größe": "ä"}, "request": n, "a.c": [n]}
                with logclient.bind({"request": n, "a.c": [n]}):
                    _log(logger, draw, n)
        assert handler.client.flush(PATIENCE) == 0
        assert handler.client.stats().failed == {}
        handler.client.close()
    assert len(peer.check(tmp_path)) == RECORDS
