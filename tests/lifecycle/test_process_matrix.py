"""The matrix of processes: a row a test, each over one protocol in turn; all cells in the long run."""

from pathlib import Path

import pytest

from tests.lifecycle import process_matrix
from tests.support import need
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.timeout(20 * PATIENCE)

ROWS = list(enumerate(process_matrix.KINDS))
ALL = [
    pytest.param(kind, scheme, id=f"{kind.name} {scheme}", marks=[pytest.mark.slow] * (row % 4 != column))
    for row, kind in ROWS
    for column, scheme in enumerate(process_matrix.SCHEMES)
]


@pytest.mark.parametrize(("kind", "scheme"), ALL)
def test_all_arrives_without_a_word(kind: process_matrix.Kind, scheme: str, tmp_path: Path) -> None:
    if scheme in ("logux", "logjam"):
        need({"logux": "websockets", "logjam": "zmq"}[scheme])
    assert process_matrix.run(scheme, kind, tmp_path) == ""
