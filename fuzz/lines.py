"""The lines of a codec that a corpus reaches, by gcov's counters, out of those that its target can reach."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import build

KINDS = (".pyx", ".pxi", ".pxd")

_WORD = re.compile(r"[A-Za-z_]\w*")
_TEXT = re.compile(r"""[A-Za-z]*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_HEAD = re.compile(r"^( *)(?:cpdef|cdef|def)\s(?!extern|enum|struct|class)[^=]*?(\w+)\(")
_CLASS = re.compile(r"^(?:cdef )?class (\w+)")


class Function(NamedTuple):
    """A function or method of the Cython sources."""

    name: str
    owner: str  # the class, or empty
    file: str
    first: int
    last: int
    words: frozenset[str]


class Lines(NamedTuple):
    """The lines of a target that were reached, out of how many."""

    reached: int
    of: int
    missed: list[str]
    apart: dict[str, int]
    """The number of lines that do not belong to the target, by reason."""

    @property
    def percent(self) -> float:
        return 100.0 * self.reached / self.of if self.of else 0.0


def functions(tree: Path) -> list[Function]:
    """Find all functions and methods of the Cython sources, with the words in their bodies."""
    found = []
    for path in sorted(p for p in (tree / "_ext").rglob("*.p*") if p.suffix in KINDS):
        text = [_TEXT.sub('""', line).split("#")[0].rstrip() for line in path.read_text().split("\n")]
        owner = ""
        for i, line in enumerate(text):
            if line and not line.startswith((" ", ")", '"')):
                kind = _CLASS.match(line)
                owner = kind[1] if kind else ""
            head = _HEAD.match(line)
            if not head:
                continue
            begin = i
            while begin < len(text) and text[begin] and not text[begin].endswith(":"):
                begin += 1
            if begin == len(text) or not text[begin]:
                continue  # a declaration
            end = last = begin + 1
            while end < len(text) and (
                not text[end] or len(text[end]) - len(text[end].lstrip()) > len(head[1])
            ):
                end += 1
                last = end if text[end - 1] else last
            words = frozenset(_WORD.findall("\n".join(text[begin + 1 : last])))
            found.append(Function(head[2], owner, path.relative_to(tree).as_posix(), i + 1, last, words))
    return found


def reachable(
    tree: Path, codecs: Collection[str], roots: Iterable[str], apart: Iterable[str]
) -> list[Function]:
    """Find the functions that are reachable from the roots, in the codecs and in .pxd files.

    Args:
        tree: the folder of the sources.
        codecs: the names of the extensions under test.
        roots: functions, methods as Class.name, or classes.
        apart: functions to leave out, as "name()"; other texts are ignored.
    """
    parts = tuple(f"_ext/{codec}{end}" for codec in codecs for end in (".pyx", "/"))
    every = [f for f in functions(tree) if f.file.startswith(parts) or f.file.endswith(".pxd")]
    classes = {f.owner for f in every if f.owner}
    by_name: dict[str, list[Function]] = {}
    for f in every:
        by_name.setdefault(f"{f.owner}.{f.name}" if f.owner else f.name, []).append(f)
        if f.owner and f.name in ("__init__", "__cinit__", "__dealloc__"):
            by_name.setdefault(f.owner, []).append(f)
    todo = []
    for root in roots:
        if root in classes:
            todo += [f for f in every if f.owner == root]
        elif root in by_name:
            todo += by_name[root]
        else:
            raise SystemExit(f"fuzz: no {root} in {', '.join(parts)} or a .pxd file")
    left = {name.removesuffix("()") for name in apart if name.endswith("()")}
    seen: list[Function] = []
    while todo:
        f = todo.pop()
        if f in seen or f.name in left:
            continue
        seen.append(f)
        for word in f.words:
            todo += by_name.get(word, [])
            if f.owner:
                todo += by_name.get(f"{f.owner}.{word}", [])
    return sorted(seen)


def measure(
    tree: Path, where: Path, codecs: Collection[str], roots: Iterable[str], apart: dict[str, str]
) -> Lines:
    """Measure the lines reached by runs with the build `tree`, with counters in `where` (gcov's prefix)."""
    counts: dict[tuple[str, int], int] = {}
    for notes in (note for codec in codecs for note in (tree / "logclient" / "_ext").glob(f"*{codec}.gcno")):
        counters = where / notes.relative_to("/").with_suffix(".gcda")
        if counters.exists():
            shutil.copy(notes, counters.parent)
        done = subprocess.run(
            [build.gcov(), "--json-format", "--stdout", str(counters)],
            cwd=tree,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"fuzz: {done.stderr}")
        for text in done.stdout.splitlines():
            _add(counts, json.loads(text))
    mine = reachable(tree, codecs, roots, apart)
    reached = 0
    missed: list[str] = []
    by_reason: dict[str, int] = {}
    seen = set()
    for f in mine:
        source = (tree / f.file).read_text().split("\n")
        for number in range(f.first, f.last + 1):
            if (f.file, number) in seen or (f.file, number) not in counts:
                continue
            seen.add((f.file, number))
            text = source[number - 1].strip()
            reason = next((why for what, why in apart.items() if what.removesuffix(")") in text), None)
            if reason and not counts[f.file, number]:
                by_reason[reason] = by_reason.get(reason, 0) + 1
            elif counts[f.file, number]:
                reached += 1
            else:
                missed.append(f"{f.file}:{number}: {text}")
    return Lines(reached, reached + len(missed), missed, by_reason)


def _add(counts: dict[tuple[str, int], int], report: dict[str, Any]) -> None:
    for file in report["files"]:
        name = file["file"]
        if name.endswith(KINDS):
            name = f"_ext/{name.rpartition('_ext/')[2]}"
            for line in file["lines"]:
                key = name, line["line_number"]
                counts[key] = counts.get(key, 0) + line["count"]
