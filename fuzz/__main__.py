"""``make fuzz``: run targets and their planted bugs, count lines, print a verdict. See docs/fuzzing.md."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import build, lines
from fuzz.target import ROOT, MissingError, Plant, load, names, seeds_of

ENOUGH = 95.0  # the least percentage of lines
PLANT_S = 300.0  # seconds for each planted bug
HANG_S = 10  # seconds for one input


class Ran(NamedTuple):
    """The result of one run of the fuzzer."""

    executions: int
    seconds: float
    failed: str
    """The fuzzer's error line; empty: it found none."""
    text: str


class Verdict(NamedTuple):
    """The result of one target."""

    target: str
    ran: Ran
    corpus: int
    covered: lines.Lines
    plants: dict[str, float | None]
    """Seconds until each planted bug was found; None: not found."""
    wrong: list[str]


def print_progress(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def fuzz(tree: Path, name: str, folder: Path, seconds: float, corpora: list[Path], *more: str) -> Ran:
    """Run the fuzzer once. Its findings go to `folder`, and new inputs to the first of `corpora`."""
    target = load(name)
    folder.mkdir(parents=True, exist_ok=True)
    words = folder / "dictionary"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in dict.fromkeys(target.DICTIONARY)))
    began = time.monotonic()
    done = subprocess.run(
        [str(build.OUT / "driver"), f"-dict={words}", f"-max_len={target.MAX_LEN}", f"-timeout={HANG_S}",
         "-rss_limit_mb=2048", "-print_final_stats=1", "-reload=0",
         f"-artifact_prefix={folder}/", f"-max_total_time={max(1, round(seconds))}", *more, *map(str,
         corpora)],
        env=build.environment(tree, name), cwd=folder, capture_output=True,
    )  # fmt: skip
    took = time.monotonic() - began
    text = (done.stdout + done.stderr).decode("utf-8", "backslashreplace")
    (folder / "log").write_text(text)
    count = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    failed = ""
    if done.returncode:
        found = re.search(r"^.*(?:ERROR: |Error: )(.*)$", text, re.MULTILINE)
        failed = found[0].strip() if found else f"exit code {done.returncode}"
    return Ran(int(count[1]) if count else 0, took, failed, text)


def _escaped(word: bytes) -> str:
    return "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\x{c:02x}" for c in word)


def write_seeds(name: str) -> None:
    folder = build.OUT / name / "seeds"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for data in seeds_of(name):
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def search(name: str, seconds: float) -> Ran:
    """Fuzz the target from its seeds and the corpus of earlier runs."""
    folder = build.OUT / name
    fresh, saved = folder / "fresh", folder / "corpus"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    saved.mkdir(exist_ok=True)
    for old in folder.glob("*-*"):
        old.unlink()  # findings of an earlier run
    ran = fuzz(build.OUT / "clean", name, folder, seconds, [fresh, saved, folder / "seeds"])
    found = f": {ran.failed}" if ran.failed else ""
    print_progress(f"{name}: {ran.executions:,} inputs in {ran.seconds:.0f} s{found}")
    return ran


def minimise(name: str) -> int:
    """Save a smaller corpus with the same coverage, and return the number of its inputs."""
    folder = build.OUT / name
    less = folder / "less"
    shutil.rmtree(less, ignore_errors=True)
    less.mkdir()
    from_ = [folder / which for which in ("corpus", "fresh", "seeds")]
    ran = fuzz(build.OUT / "clean", name, folder / "merge", 3600, [less, *from_], "-merge=1")
    if ran.failed:
        print_progress(f"{name}: the corpus could not be minimised and is kept: {ran.failed}")
        for which in from_:
            for file in which.iterdir():
                shutil.copy(file, less)
    shutil.rmtree(folder / "corpus")
    less.rename(folder / "corpus")
    return sum(1 for _ in (folder / "corpus").iterdir())


def count_lines(name: str) -> lines.Lines:
    """Count the lines that the saved corpus reaches."""
    target = load(name)
    tree = build.OUT / "lines"
    corpus = build.OUT / name / "corpus"
    counts = build.OUT / name / "counts"  # separate for each target, because targets may run in parallel
    shutil.rmtree(counts, ignore_errors=True)
    environment = build.environment(tree, name) | {"GCOV_PREFIX": str(counts)}
    del environment["PYTHONMALLOC"]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.replay", name, str(corpus)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print_progress(f"{name}: {done.stderr}")
    return lines.measure(tree, counts, target.EXTENSIONS, target.ROOTS, {**build.EXACT, **target.APART})


def plant_tree(name: str, plant: Plant) -> str:
    return f"{name}-{plant.name}"


def find(name: str, plant: Plant, seconds: float) -> float | None:
    """Return the seconds until the planted bug is found from the seeds; None: not found, or another error."""
    folder = build.OUT / name / plant.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "fresh").mkdir(parents=True)
    tree = build.OUT / plant_tree(name, plant)
    ran = fuzz(tree, name, folder, seconds, [folder / "fresh", build.OUT / name / "seeds"])
    found = bool(ran.failed) and any(words in ran.text for words in plant.shows)
    print_progress(
        f"{name}: planted {plant.name}: "
        f"{f'found in {ran.seconds:.0f} s' if found else 'NOT FOUND'} ({ran.failed})"
    )
    return ran.seconds if found else None


def test_target(name: str, seconds: float, plant_seconds: float) -> Verdict:
    target = load(name)
    ran = search(name, seconds)
    corpus = minimise(name)
    covered = count_lines(name)
    print_progress(f"{name}: {covered.percent:.1f} % of {covered.of} lines, by {corpus} inputs")
    plants = (
        {plant.name: find(name, plant, plant_seconds) for plant in target.PLANTS} if plant_seconds else {}
    )
    wrong = []
    if ran.failed:
        wrong.append(f"{ran.failed}; see {build.OUT / name / 'log'} and the input in the same folder")
    if covered.percent < ENOUGH:
        wrong.append(f"{covered.percent:.1f} % of the lines, must be at least {ENOUGH:.0f}")
    wrong += [f"planted {plant} was not found" for plant, took in plants.items() if took is None]
    return Verdict(name, ran, corpus, covered, plants, wrong)


def prepare(targets: list[str], plants: bool, jobs: int) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        commands = [*build.driver()]
        commands += build.sanitized("clean", build.codecs(targets))
        commands += build.lines(build.codecs(targets))
        for name in targets if plants else ():
            for plant in load(name).PLANTS:
                commands += build.sanitized(plant_tree(name, plant), load(name).EXTENSIONS, plant)
        list(pool.map(build.run, commands))
    print_progress(f"built in {time.monotonic() - began:.0f} s")


def report(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        if verdict.covered.missed:
            print(f"\n{verdict.target}: lines not reached by the corpus")
            print(*(f"  {line}" for line in verdict.covered.missed), sep="\n")
        if verdict.covered.apart:
            print(f"\n{verdict.target}: lines not counted, because they do not belong to the target")
            print(*(f"  {n:3} {why}" for why, n in verdict.covered.apart.items()), sep="\n")
    head = ("target", "execs", "seconds", "corpus", "lines", "crashes", "planted bugs found after")
    rows = [head]
    for v in verdicts:
        plants = ", ".join(f"{plant} {'NO' if s is None else f'{s:.0f} s'}" for plant, s in v.plants.items())
        share = f"{v.covered.percent:.1f} % of {v.covered.of}"
        rows.append((v.target, f"{v.ran.executions:,}", f"{v.ran.seconds:.0f}", str(v.corpus), share,
                     str(int(bool(v.ran.failed))), plants or "-"))  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
    for v in verdicts:
        for words in v.wrong:
            print(f"{v.target}: {words}")
    print("fuzz: PASSED" if not any(v.wrong for v in verdicts) else "fuzz: FAILED")


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(names())} (default: all)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="time for each target (1200)")
    parser.add_argument(
        "--plant-seconds", type=float, default=PLANT_S, help="time for each planted bug (300); 0: skip them"
    )
    parser.add_argument("--jobs", type=int, default=1, help="targets at one time (1)")
    parser.add_argument("--no-build", action="store_true", help="use the builds of an earlier run")
    chosen = parser.parse_args(given)
    unknown = set(chosen.targets).difference(names())
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    chosen.targets = chosen.targets or names()
    return chosen


def main(given: list[str]) -> int:
    chosen = arguments(given)
    build.lock()
    with contextlib.suppress(OSError):
        os.nice(5)  # give precedence to other programs
    try:
        for name in chosen.targets:
            write_seeds(name)
        if chosen.no_build and not (build.OUT / "driver").exists():
            raise MissingError("there is no build: omit --no-build")
        if not chosen.no_build:
            prepare(chosen.targets, bool(chosen.plant_seconds), chosen.jobs)
    except MissingError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return 2
    each: Callable[[str], Any] = lambda name: test_target(name, chosen.seconds, chosen.plant_seconds)  # noqa: E731
    with ThreadPoolExecutor(chosen.jobs) as pool:
        verdicts = list(pool.map(each, chosen.targets))
    report(verdicts)
    return int(any(v.wrong for v in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
