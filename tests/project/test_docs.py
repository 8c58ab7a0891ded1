"""The documents are true: links work, and tests and code that they name exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from logclient._ext.constants import REASONS
from logclient.delivery.stats import Stats
from tests.mutants.__main__ import LISTS, read_list
from tests.mutants.random_ones import found, mutated
from tests.project.pages import PAGES
from tests.support import ROOT
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.tree, pytest.mark.unit]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_pages_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


def test_the_readme_leads_to_security_reports() -> None:
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


def test_operations_lists_every_reason_and_counter() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    reasons = {reason for reason in REASONS if reason}
    assert reasons == set(re.findall(r"^\| `(\w+)` \| ", page.partition("| reason |")[2], re.MULTILINE))
    assert set(Stats._fields) <= set(re.findall(r"`(\w+)`", page))


def names_in(path: Path) -> set[str]:
    """What a source file defines: functions, classes, constants, and the members of classes."""
    text = path.read_text()
    if path.suffix != ".py":
        return compiled_names(text)
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign):
                found.update(prefix + one.id for one in node.targets if isinstance(one, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)

    walk(ast.parse(text).body, "")
    return found


def compiled_names(text: str) -> set[str]:
    """The same for Cython, as far as the pages need it: functions, methods, classes and structures."""
    found: set[str] = set()
    owner = ""
    for line in text.splitlines():
        if made := re.match(r"(?:cdef )?class (\w+)|ctypedef struct (\w+)", line):
            owner = made[1] or ""
            found.add(made[1] or made[2])
        elif made := re.match(r"(    )?(?:cdef|cpdef|def) (?:[\w *]+[ *])?(\w+)\(", line):
            found.add(f"{owner}.{made[2]}" if made[1] else made[2])
    return found


def places_in(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.(?:py|pyx|pxd|pxi))(?:::([\w.]+))?`", page.read_text())


def unknown_places(places: list[tuple[str, str]], root: Path = ROOT) -> list[str]:
    known = {path: names_in(root / path) for path, _ in places if (root / path).is_file()}
    return [
        f"{path}::{name}" if name else path
        for path, name in places
        if path not in known or (name and name not in known[path])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_every_place_named_in_the_code_exists(page: str) -> None:
    places = places_in(ROOT / "docs" / page)
    assert places
    assert unknown_places(places) == []


def test_a_missing_place_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class C:\n    def m(self): ...\n\n\ndef f(): ...\n\n\nX: int = 1\n")
    (tmp_path / "b.pyx").write_text(
        "cdef class K:\n    cdef ssize_t go(self, int n) noexcept nogil:\n        return 0\n\n"
        "cdef inline const uint8_t *find(int n) noexcept nogil:\n    return f(n)\n"
    )
    there = ["a.py::C.m", "a.py::f", "a.py::X", "b.pyx::K.go", "b.pyx::find"]
    gone = ["a.py::m", "a.py::C.f", "b.pyx::go", "b.pyx::K.find", "b.pyx::f", "c.py"]
    page = tmp_path / "page.md"
    page.write_text(" ".join(f"`{place}`" for place in there + gone))
    assert unknown_places(places_in(page), tmp_path) == gone


def test_every_name_in_the_glossary_is_in_the_code() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", page, re.M)
    sources = [*(ROOT / "logclient").rglob("*.py"), *(ROOT / "_ext").rglob("*.[ph]*")]
    sources = [path for path in sources if path.suffix in (".py", ".pyx", ".pxd", ".pxi", ".h")]
    words = set(re.findall(r"\w+", " ".join(path.read_text() for path in sources)))
    named = [(term, name) for term, where in rows for name in re.findall(r"`([\w.()]+)`", where)]
    assert len(named) > 20
    assert [one for one in named if not set(re.findall(r"\w+", one[1])) <= words] == []


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


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.parent.name)
def test_every_mutant_still_applies(path: Path) -> None:
    mutants = read_list(path)
    assert not [m.name for m in mutants if (ROOT / m.file).read_text().count(m.old) != 1]
    for mutant in mutants:
        file, *names = mutant.test.partition("[")[0].split("::")
        text = (ROOT / file).read_text()
        assert (ROOT / file).parent == path.parent, mutant.name
        assert all(re.search(rf"(?:def|class) {name}\b", text) for name in names), mutant.test


@pytest.mark.slow
def test_nearly_all_tests_of_mutants_are_part_of_make_test() -> None:
    needed = [mutant.test.partition("[")[0] for path in LISTS for mutant in read_list(path)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow and not long", "tests"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE).stdout
    names = {line.partition("[")[0] for line in shown.splitlines()}
    absent = [
        test for test in needed if not any(name == test or name.startswith(f"{test}::") for name in names)
    ]
    assert len(absent) <= 0.03 * len(needed), absent


@pytest.mark.slow
def test_random_mutants_are_valid_programs() -> None:
    places = found(seed=1)
    assert places == found(seed=1) and places != found(seed=2)
    for place in places[:25]:
        assert ast.dump(ast.parse(mutated(place))) != ast.dump(ast.parse(place.source)), place


def test_the_pages_of_the_site_can_be_read() -> None:
    """They have at most 60,000 words, with a letter or digit each. The site has no decisions."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    words = sum(len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))) for page in pages)
    assert words <= 60_000
