"""Runs the suite of another project as it is, and with logclient in its processes; compares test by test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import venv
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from logclient.testing.lumberjack import Collector
from tests.support import ROOT, clean_environment
from tests.support.patience import PATIENCE

HERE = Path(__file__).parent
FOLDER = ROOT / "build" / "guests"
HEAD = ["guest", "version", "way", "tests", "passed", "same", "unstable", "different", "events", "why"]

Outcomes = dict[str, str]  # by the name of a test: what became of it


class NoIndex(Exception):
    """The package index cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class Guest:
    """An entry of guests.toml, which says what the fields mean."""

    name: str
    version: str
    needs: list[str]
    pytest: str = ""
    unittest: str = ""
    ways: list[str] = field(default_factory=lambda: [""])
    silent: str = ""
    differences: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Result:
    """A suite's outcomes: as it is, with logclient, and with any other class of loggers and handler."""

    guest: Guest
    way: str
    control: Outcomes
    inside: Outcomes
    plain: Outcomes = field(default_factory=dict)  # made where the others differ
    unstable: set[str] = field(default_factory=set)
    events: int = 0  # at the collector

    @property
    def different(self) -> list[str]:
        tests = sorted((self.control | self.inside).keys() - self.unstable)
        return [test for test in tests if self.control.get(test) != self.inside.get(test)]

    def reason(self, test: str) -> str:
        """Return why a test may differ; empty: it may not."""
        if test in self.plain and self.plain[test] == self.inside.get(test):
            return "any handler on the root does so"
        return next((why for part, why in self.guest.differences.items() if part in test), "")

    @property
    def faults(self) -> list[str]:
        """What must not be, in lines."""
        unlisted = [test for test in self.different if not self.reason(test)]
        lines = [f"{test}: {self.control.get(test)}, now {self.inside.get(test)}" for test in unlisted]
        if "passed" not in self.control.values():
            lines.append("no test of the suite has passed as it is")
        if not self.events and not self.guest.silent:
            lines.append("no event has arrived")
        return lines

    def row(self) -> list[str]:
        """Return the cells under HEAD."""
        same = len(self.control | self.inside) - len(self.different) - len(self.unstable)
        passed = list(self.control.values()).count("passed")
        why = {self.reason(test) or "not listed" for test in self.different} or {self.guest.silent}
        counts = [len(self.control), passed, same, len(self.unstable), len(self.different), self.events]
        return [self.guest.name, self.guest.version, self.way, *map(str, counts), "; ".join(sorted(why))]


def guests() -> list[Guest]:
    table = tomllib.loads((HERE / "guests.toml").read_text())
    return [Guest(name=name, **fields) for name, fields in table.items()]


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--retries=1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "Retry(" in done.stderr:
        raise NoIndex(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr


def prepare(guest: Guest) -> Path:
    """Make the folder of a guest, once: ``environment``, ``source``, and ``path`` with logclient alone."""
    place = FOLDER / f"{guest.name}-{guest.version}"
    packages = [f"{guest.name}=={guest.version}", *guest.needs]
    note = place / "packages.txt"
    if not note.exists() or note.read_text().split() != packages:
        shutil.rmtree(place, ignore_errors=True)
        (place / "path").mkdir(parents=True)
        (place / "path" / "logclient").symlink_to(ROOT / "logclient")
        (FOLDER / "pytest.ini").touch()  # else a suite without settings would get those of this tree
        venv.create(place / "environment", symlinks=True)
        pip("download", "--no-binary", guest.name, "--no-deps", "--dest", place, packages[0])
        [archive] = place.glob("*.tar.gz")
        shutil.unpack_archive(archive, place / "source", filter="data")
        pip("--python", place / "environment/bin/python", "install", *packages)
        [installed] = place.glob("environment/lib/python*/site-packages")
        (installed / "guest.pth").write_text(f"{HERE}/inside\n{place}/path\nimport guest_process\n")
        note.write_text("\n".join(packages))
    return place


def read_junit(file: Path) -> Outcomes:
    found: Outcomes = {}
    for case in ElementTree.parse(file).iter("testcase"):
        name = re.sub("0x[0-9a-f]+", "0x", f"{case.get('classname')}::{case.get('name')}")
        tags = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[name] = " ".join([*found.get(name, "").split(), *(tags or ["passed"])])
    return found


def read_unittest(text: str) -> Outcomes:
    """Read what ``unittest`` prints with ``-v``: what a test itself prints may stand between."""
    found, name = Outcomes(), ""
    for line in text.splitlines():
        if test := re.match(r"\w+ \([\w.]+\)", line):
            name = test[0]
        outcome = re.search(r"(ok|FAIL|ERROR|skipped .*|expected failure|unexpected success)$", line)
        if name and outcome:
            found[name] = f"{found.get(name, '')} {outcome[1].replace('ok', 'passed')}".strip()
            name = ""
    return found


def run(guest: Guest, way: str, inside: str) -> Outcomes:
    """Run the suite once; `inside`: a URL, ``plain`` or nothing, as in inside/guest_process.py."""
    place = prepare(guest)
    [tree] = (place / "source").iterdir()
    log = place / f"{inside.partition(':')[0] or 'control'}{way.replace(' ', '')}.log"
    results = log.with_suffix(".xml")
    results.unlink(missing_ok=True)
    pytest = f"-P -m pytest -p no:cacheprovider {way} {guest.pytest}".split()
    command = guest.unittest.split() or [*pytest, f"--junitxml={results}"]
    with log.open("w") as output:  # and no pipe, which a process that a test leaves behind would hold open
        suite = subprocess.Popen(
            [place / "environment/bin/python", *command], cwd=tree, start_new_session=True,
            env=clean_environment(GUEST=inside), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            suite.wait(timeout=10 * PATIENCE)
        with suppress(ProcessLookupError):  # no process that a test leaves behind outlives the suite
            os.killpg(suite.pid, signal.SIGKILL)
        suite.wait()
    return read_unittest(log.read_text(errors="replace")) if guest.unittest else read_junit(results)


def compare(guest: Guest, way: str) -> Result:
    """Run a suite as it is and with logclient; again where they differ, to tell which tests are unstable."""
    with Collector(port=0) as collector:
        url = f"lumberjack://127.0.0.1:{collector.port}"
        result = Result(guest=guest, way=way, control=run(guest, way, ""), inside=run(guest, way, url))
        if result.different:
            for first, inside in ((result.control, ""), (result.inside, url)):
                second = run(guest, way, inside)
                result.unstable |= {test for test in first | second if first.get(test) != second.get(test)}
        if result.different:
            result.plain = run(guest, way, "plain")
        result.events = collector.counts.captured_events
    return result
