"""The documents are true: links lead somewhere, and tests exist. (Their commands: test_docs_run.py.)"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from logclient._ext.handoff import REASONS
from logclient.delivery.stats import Stats
from tests.mutants.__main__ import listed
from tests.mutants.random_ones import found, mutated
from tests.pages import PAGES
from tests.shared import ROOT

pytestmark = pytest.mark.tree


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


def test_the_way_to_report_is_found() -> None:
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text()
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text
    assert "@" not in text  # no address of anybody


@pytest.mark.parametrize("page", ["guarantees.md", "fork-and-exit.md"])
def test_every_guarantee_names_a_test(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / page).read_text())
    assert len(named) > 20
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    assert not missing


def test_operations_know_every_reason_and_counter() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    reasons = {reason for reason in REASONS if reason}
    assert reasons == set(re.findall(r"^\| `(\w+)` \| ", page.partition("| reason |")[2], re.MULTILINE))
    assert set(Stats._fields) <= set(re.findall(r"`(\w+)`", page))


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    listed_pages = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \|", (folder / "README.md").read_text(), re.M)
    assert [name for _, _, name in listed_pages] == pages
    sections = ["Context", "Decision", "Reason", "Measurement", "Consequences"]
    for number, title, name in listed_pages:
        text = (folder / name).read_text()
        assert text.startswith(f"# {number}. {title}\n") and name.startswith(f"{int(number):04d}-"), name
        assert re.findall(r"^## (.+)$", text, re.M) == sections, name


def test_every_mutant_still_applies() -> None:
    stale = [m.name for m in listed([]) if (ROOT / m.file).read_text().count(m.old) != 1]
    assert not stale


def test_random_mutants_are_programs() -> None:
    places = found(seed=1)
    assert places == found(seed=1) and places != found(seed=2)
    for place in places[:25]:
        assert ast.dump(ast.parse(mutated(place))) != ast.dump(ast.parse(place.source)), place
