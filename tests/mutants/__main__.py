"""Small deliberate breaks, each with the test that must notice it: ``make mutants``.

``mutants.toml`` in each folder of tests lists those that its tests must notice::

    [[mutant]]
    name = "no edge is stitched"
    file = "logclient/verify/compare.py"
    old = "late += int((tail > later).sum())"
    new = "pass"
    test = "tests/verify/test_verify_random.py::test_random_histories_on_spark_equal_the_reference"

Each is applied to a copy of the tree, extensions rebuilt where it touches one, and its test run
there: the test must fail. First every such test must pass on the untouched copy, or its failure
would say nothing.

``make mutants ARGS="name-part ..."`` runs those whose name or file contains one of the words. Breaks that are
chosen at random are those of ``random_ones.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tools import extensions

ROOT = Path(__file__).parents[2]
TEST_S = 900


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str = ""


LISTS = sorted((ROOT / "tests").glob("*/mutants.toml"))


def read_list(path: Path) -> list[Mutant]:
    """Read the mutants of one folder."""
    return [Mutant(**entry) for entry in tomllib.loads(path.read_text())["mutant"]]


def listed(words: list[str]) -> list[Mutant]:
    """Return all mutants whose name or file contains one of `words`; without words, all."""
    found = [mutant for path in LISTS for mutant in read_list(path)]
    return [m for m in found if not words or any(w in m.name or w in m.file for w in words)]


def copy_tree(target: Path) -> None:
    """What git tracks, as it is in the working tree, and the extensions built from it."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    names = [n for n in tracked.split("\0") if n and (ROOT / n).is_file()]
    names += [str(p.relative_to(ROOT)) for p in (ROOT / "_ext").rglob("*.so")]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    (target / "logclient" / "_ext").symlink_to("../_ext")
    generated = ROOT / "build" / "cython"
    if generated.is_dir():
        shutil.copytree(generated, target / "build" / "cython")


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def passes(tree: Path, tests: list[str]) -> bool:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-cov", *tests],
            cwd=tree, env=environment(tree), capture_output=True, timeout=TEST_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    if done.returncode in (2, 3, 4, 5):
        raise SystemExit(f"cannot run {' '.join(tests)}: pytest ended with {done.returncode}")
    return done.returncode == 0


def rebuild(tree: Path, name: str) -> None:
    env = {**environment(tree), "LOGCLIENT_ONLY": name}
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=tree, env=env, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"a mutant of {name} does not compile:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def affected(mutant: Mutant) -> list[str]:
    """The extensions to rebuild: those that are made from the file."""
    path = ROOT / mutant.file
    if Path(mutant.file).parts[0] != "_ext":
        return []
    folder = ROOT / "_ext"
    sources = extensions.modules(folder).items()
    return [name for name, pyx in sources if path == pyx or path in extensions.depends(pyx, folder)]


@contextmanager
def applied(tree: Path, mutant: Mutant) -> Iterator[None]:
    """The tree with the mutant in it, extensions built."""
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: `old` is {text.count(mutant.old)} times in {mutant.file}, not once")
    stat = path.stat()
    compiled = affected(mutant)
    paths = {name: Path("_ext", *name.split(".")) for name in compiled}
    built = (p for path in paths.values() for p in (tree / path).parent.glob(f"{path.name}.*.so"))
    kept = {p: p.read_bytes() for p in built}
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        for name in compiled:
            rebuild(tree, name)
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        for so, content in kept.items():
            so.write_bytes(content)
        shutil.rmtree(tree / "build" / "temp", ignore_errors=True)
        for path in paths.values():
            (tree / "build" / "cython" / path.with_suffix(".c")).unlink(missing_ok=True)


def run(tree: Path, mutant: Mutant) -> bool:
    """Whether the mutant's test noticed it."""
    with applied(tree, mutant):
        return not passes(tree, [mutant.test])


def main() -> int:
    mutants = listed(sys.argv[1:])
    if not mutants:
        print("no such mutant", file=sys.stderr)
        return 2
    survived = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        tests = sorted({m.test for m in mutants})
        if not passes(tree, tests):
            print("the untouched tree does not pass these tests", file=sys.stderr)
            return 1
        print(f"{len(tests)} tests pass on the untouched tree", flush=True)
        for mutant in mutants:
            begin = time.monotonic()
            caught = run(tree, mutant)
            if not caught:
                survived.append(mutant)
            word = "caught" if caught else "SURVIVED"
            print(f"{word:8}  {time.monotonic() - begin:5.1f} s  {mutant.file}: {mutant.name}", flush=True)
    print(f"{len(mutants)} mutants, {len(mutants) - len(survived)} caught, {len(survived)} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
