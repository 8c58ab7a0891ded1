"""Random small breaks of the verifier and the engine: ``python -m tests.mutants.random_ones``.

A comparison is turned, an operator swapped, or a condition negated, anywhere in ``logclient/verify`` and
``logclient/delivery``; each place is as likely as any other, and the seed determines which are taken. What is
only read by people, or by type checkers, is no place: messages, ``__repr__``, annotations, assertions.

Each mutant is applied to a copy of the tree, where the tests of its module run, the quick ones first, until
one fails. A test that hangs fails. The one that failed must pass on the untouched copy, or all is tried
again. Mutants that survive a group of tests wait until all others had it.

With ``--resume FILE`` what is known of each mutant is kept in a file, and a run goes on where one ended.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import queue
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants.__main__ import ROOT, copy_tree, environment
from tools.pythons import test_file

FOLDERS = ("logclient/verify", "logclient/delivery")

HANG_S = 60
"""For one test."""
GROUP_S = 300
"""For a group of them."""
PATIENCE = "10"
"""Of tests that wait for what a mutant makes impossible."""

COMPARISONS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "is": ("is not",), "is not": ("is",), "in": ("not in",), "not in": ("in",),
}  # fmt: skip
OPERATORS = {
    "+": "-", "-": "+", "*": "//", "/": "*", "//": "*", "%": "*", "**": "*", "@": "*",
    "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&",
}  # fmt: skip
BOOLEANS = {"and": "or", "or": "and"}

# Of each package, after `FIRST`: which tests of which files, the quick ones first.
GROUPS = {
    "verify": [
        (
            "not spark",
            """verify_evidence verify_origin verify verify_captures verify_ledger verify_logjam verify_logux
            verify_plog verify_frames verify_report verify_logjam_wire verify_attempts verify_capture""",
        ),
        ("not spark", "identity damage verify_random"),
        (
            "spark",
            "verify_records verify_session verify verify_frames verify_logjam verify_logux verify_plog",
        ),
    ],
    "delivery": [
        (
            "not spark",
            "engine_traces engine_reports engine_contract engine_tcp callbacks isolation ages poison",
        ),
        ("not spark", "engine_lifecycle ends exit_fork_signal lumberjack_client errors aio"),
        ("not spark", "logjam_client plog_client logux_client tls udp zmq websocket prefork_uwsgi"),
    ],
}
# What is most likely to notice a break of a module, by itself.
FIRST = {
    "verify": "verify_evidence verify_origin",
    "verify/captures": "verify_captures",
    "verify/charts": "verify_report",
    "verify/decode": "verify_logjam_wire",
    "verify/examples": "verify",
    "verify/frames": "verify_frames",
    "verify/job": "verify",
    "verify/ledger": "verify_ledger",
    "verify/report": "verify_report",
    "verify/sources": "verify_captures verify_capture",
    "delivery": "engine_traces engine_reports",
    "delivery/books": "logjam_client engine_reports",
    "delivery/isolation": "isolation",
    "delivery/lifecycle": "engine_lifecycle",
    "delivery/outcomes": "callbacks",
}


class Place(NamedTuple):
    """Where one mutant differs from the source."""

    file: str
    line: int
    start: int  # in the bytes of the file
    end: int
    new: str

    @property
    def source(self) -> bytes:
        return (ROOT / self.file).read_bytes()

    def __str__(self) -> str:
        old = " ".join(self.source[self.start : self.end].decode().split())
        return f"{self.file}:{self.line}: {old} -> {self.new}"


class _Finder(ast.NodeVisitor):
    """Finds the places of one file."""

    def __init__(self, file: str, source: bytes, rng: random.Random) -> None:
        self.file = file
        self.source = source
        self.rng = rng
        lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line))
        # All operators and the words among them, by where they begin.
        self.tokens = [
            (self.offset(token.start, lines), self.offset(token.end, lines), token.string)
            for token in tokenize.tokenize(io.BytesIO(source).readline)
            if token.type in (tokenize.OP, tokenize.NAME)
        ]
        self.places: list[Place] = []

    def offset(self, at: tuple[int, int], lines: list[bytes]) -> int:
        """Of a token, whose column is in characters."""
        row, column = at
        return self.starts[row - 1] + len(lines[row - 1].decode()[:column].encode())

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = self.starts[node.lineno - 1] + node.col_offset
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset

    def add(self, start: int, end: int, new: str) -> None:
        line = self.source.count(b"\n", 0, start) + 1
        self.places.append(Place(self.file, line, start, end, new))

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, int, str]:
        """The operator between two operands; brackets and comments may stand there, too."""
        low, high = self.span(left)[1], self.span(right)[0]
        found = [t for t in self.tokens if low <= t[0] and t[1] <= high and t[2] not in "()"]
        return found[0][0], found[-1][1], " ".join(text for *_, text in found)

    def condition(self, node: ast.expr) -> None:
        start, end = self.span(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.add(start, end, self.source[slice(*self.span(node.operand))].decode())
        else:
            self.add(start, end, f"(not ({self.source[start:end].decode()}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            start, end, old = self.between(left, right)
            self.add(start, end, self.rng.choice(COMPARISONS[old]))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        start, end, old = self.between(node.left, node.right)
        self.add(start, end, OPERATORS[old])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            start, end, old = self.between(left, right)
            self.add(start, end, BOOLEANS[old])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        start, end, old = self.between(node.target, node.value)
        self.add(start, end, OPERATORS[old[:-1]] + "=")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if not isinstance(node.test, ast.Constant):
            self.condition(node.test)
        self.generic_visit(node)

    visit_While = visit_If
    visit_IfExp = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.condition(test)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "__repr__":
            for part in (*node.args.defaults, *node.args.kw_defaults, *node.body):
                if part is not None:
                    self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def nothing(self, node: ast.AST) -> None:
        """Messages and assertions."""

    visit_JoinedStr = visit_Raise = visit_Assert = nothing


def found(seed: int) -> list[Place]:
    """All of them, in the order of this seed."""
    rng = random.Random(seed)
    places = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.py")):
            source = path.read_bytes()
            finder = _Finder(str(path.relative_to(ROOT)), source, rng)
            finder.visit(ast.parse(source))
            places += finder.places
    rng.shuffle(places)
    return places


def groups(file: str) -> list[list[str]]:
    """Arguments for pytest: the tests of a group run in one process, one group after the other."""
    package, module = Path(file).parts[-2], Path(file).stem
    first = ("not spark", FIRST.get(f"{package}/{module}", FIRST[package]))
    return [
        ["-m", f"not long and {marks}", *(test_file(name) for name in names.split())]
        for marks, names in (first, *GROUPS[package])
    ]


class Failure(NamedTuple):
    """What noticed a mutant."""

    test: str
    """Empty when the run ended without naming one."""
    words: str


class Tree:
    """A copy of the tree, for one mutant at a time."""

    def __init__(self, folder: Path, prefix: list[str]) -> None:
        self.folder = folder
        self.prefix = prefix
        self.right: set[str] = set()  # tests that pass here without a mutant
        self.changes = 0
        copy_tree(folder)

    def fails(self, tests: list[str]) -> Failure | None:
        """The first test that fails; None when all pass."""
        options = ["-q", "-x", "--no-cov", f"--timeout={HANG_S}"]
        env = {**environment(self.folder), "LOGCLIENT_PATIENCE": PATIENCE}
        del env["PYTHONDONTWRITEBYTECODE"]  # to compile all anew takes longer than most tests
        with tempfile.TemporaryFile() as output:
            # A session of its own: what tests started, and did not stop, ends with them.
            done = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.folder, env=env, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                code = done.wait(GROUP_S)
            except subprocess.TimeoutExpired:
                return Failure("", f"more than {GROUP_S} s")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(done.pid, signal.SIGKILL)
                done.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code == 0:
            return None
        named = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - (.*))?$", text, re.MULTILINE)
        if named:
            return Failure(named[1], named[2] or "")
        return Failure("", (text.strip().splitlines() or [f"exit code {code}"])[-1][:200])

    def change(self, file: str, source: bytes) -> None:
        """Give a file another content, and a time that no compiled form of it has."""
        self.changes += 1
        (self.folder / file).write_bytes(source)
        os.utime(self.folder / file, (self.changes, self.changes))

    def catches(self, place: Place, tests: list[str]) -> str:
        """What notices a mutant; empty when nothing does."""
        flaky = ""
        for _ in range(3):
            self.change(place.file, mutated(place))
            try:
                failure = self.fails(tests)
            finally:
                self.change(place.file, place.source)
            if failure is None:
                return ""
            if "::" not in failure.test:
                return failure.test or failure.words
            if failure.test in self.right or self.fails([failure.test]) is None:
                self.right.add(failure.test)
                return failure.test
            flaky = f"{failure.test}: {failure.words}"
        raise SystemExit(f"it fails without a mutant, too: {flaky}")


class State:
    """What is known of each mutant: how many groups it survived, and what caught it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.known: dict[str, tuple[int, str]] = {}
        if file and os.path.exists(file):
            with open(file) as lines:
                for place, survived, test in map(json.loads, lines):
                    self.known[place] = survived, test

    def of(self, place: Place) -> tuple[int, str]:
        return self.known.get(json.dumps(place), (0, ""))

    def keep(self, place: Place, survived: int, test: str) -> None:
        self.known[json.dumps(place)] = survived, test
        if self.file:
            with open(self.file, "a") as lines:
                lines.write(json.dumps([json.dumps(place), survived, test]) + "\n")


def run(places: list[Place], state: State, jobs: int, prefix: list[str]) -> None:
    """Try each group of tests with all mutants that survived the groups before."""
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()

    def one(place: Place) -> None:
        survived, _ = state.of(place)
        tree, begin = trees.get(), time.monotonic()
        try:
            test = tree.catches(place, groups(place.file)[survived])
        finally:
            trees.put(tree)
        state.keep(place, survived + (not test), test)
        word = f"caught by {test}" if test else f"survived group {survived + 1}"
        print(f"{time.monotonic() - begin:5.1f} s  {place}: {word}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        for i in range(jobs):
            trees.put(Tree(Path(folder) / str(i), prefix))
        for number in range(max(len(groups(place.file)) for place in places)):
            due = [x for x in places if state.of(x) == (number, "") and number < len(groups(x.file))]
            for _ in pool.map(one, due):
                pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.random_ones", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="test runs at a time")
    parser.add_argument("--resume", default="", metavar="FILE", help="where what is known is kept")
    parser.add_argument("--prefix", default="", metavar="COMMAND", help="before each test run, as in nice")
    options = parser.parse_args()
    places = found(options.seed)[: options.count]
    state = State(options.resume)
    run(places, state, options.jobs, shlex.split(options.prefix))
    survived = [place for place in places if not state.of(place)[1]]
    for place in survived:
        print(f"SURVIVED  {place}")
    print(f"{len(places)} mutants, {len(places) - len(survived)} caught, {len(survived)} survived")
    return 1 if survived else 0


def mutated(place: Place) -> bytes:
    source = place.source
    return source[: place.start] + place.new.encode() + source[place.end :]


if __name__ == "__main__":
    sys.exit(main())
