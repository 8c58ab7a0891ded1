"""Write the lock files: exact versions of all packages, transitively, with the hashes of their files.

    python tools/lock.py [--upgrade]
    python tools/lock.py --show NAME...     print the lines of these packages and of those they need

Each file adds to the ones before it, except for the last two:

    requirements-build.lock   to compile the extensions: [build-system] of pyproject.toml
    requirements-demo.lock    for `make demo`
    requirements-test.lock    for lint and tests
    requirements-docs.lock    for `make docs`; adds to the tests'
    requirements-bench.lock   for `make bench`; adds to the tests'

uv resolves for all platforms and for Python 3.11 and newer, so a line is valid wherever its marker applies.
It lists the hashes of all files of a version. Versions that still fit are kept unless `--upgrade` is given.
The files do not name a package index, so they work on any machine.
"""

import argparse
import re
import subprocess
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHERE = ROOT / "build" / "lock"
UV = "uv==0.13.9"

STAGES = {
    "build": "What compiles the extensions",
    "demo": "What `make demo` adds to requirements-build.lock",
    "test": "What `make deps` adds to requirements-demo.lock",
    "docs": "What `make docs` adds to requirements-test.lock",
    "bench": "What `make bench` adds to requirements-test.lock",
}
AFTER = {"demo": "build", "test": "demo", "docs": "test", "bench": "test"}
"""The stage that each one adds to."""
DEMO_EXTRAS = ("logjam", "logux", "verify", "spark")


def lock_file(stage: str) -> Path:
    """Return the path of a stage's lock file."""
    return ROOT / f"requirements-{stage}.lock"


def normal(name: str) -> str:
    """Normalize the name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(text: str) -> dict[str, str]:
    """Return the lines of each package in a lock file, by its normalized name."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if match := re.match(r"([\w.-]+)==", line):
            name = normal(match[1])
            found[name] = ""
        if name:
            found[name] += line
    return found


def packages() -> dict[str, str]:
    """Return the `entries` of all lock files except that of the benchmarks."""
    files = [lock_file(stage) for stage in ("build", "demo", "test")]
    return entries("".join(file.read_text(encoding="utf-8") for file in files))


def requirement(entry: str) -> str:
    """Return ``name==version`` of an entry, with its marker."""
    return entry.partition(" \\\n")[0]


def pinned(entry: str) -> str:
    """Return ``name==version`` of an entry."""
    return entry.split(maxsplit=1)[0]


def closure(names: Iterable[str], found: dict[str, str]) -> dict[str, str]:
    """Return the entries of packages, and of all packages that these need."""
    missing = [normal(name) for name in names]
    wanted: dict[str, str] = {}
    while missing:
        name = missing.pop()
        wanted[name] = found[name]
        for other, entry in found.items():
            via = re.search(r"# via (.*)", entry)
            if via and name in via[1].split(", ") and other not in wanted:
                missing.append(other)
    return wanted


def needs() -> dict[str, list[str]]:
    """Return the requirements of each stage, as pyproject.toml lists them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # An extra may include another one, which is listed itself.
    extras = {
        name: [need for need in needs if not need.startswith("logclient[")]
        for name, needs in project["project"]["optional-dependencies"].items()
    }
    groups = project["dependency-groups"]
    wanted: dict[str, list[str]] = {"build": project["build-system"]["requires"]}
    wanted["demo"] = [need for name in DEMO_EXTRAS for need in extras[name]] + groups["demo"]
    wanted["test"] = [need for needs in extras.values() for need in needs]
    wanted["test"] += groups["dev"] + groups["test"]
    wanted["docs"] = groups["docs"]
    wanted["bench"] = groups["bench"]
    return wanted


def resolve(python: Path, requirements: list[str], before: str, upgrade: bool) -> str:
    """Resolve requirements with uv.

    Args:
        python: The Python with uv.
        requirements: The requirements.
        before: A lock file whose versions are kept if they fit.
        upgrade: Take the newest versions instead.

    Returns:
        The lock file.
    """
    out = WHERE / "requirements.txt"
    out.write_text("" if upgrade else before, encoding="utf-8")
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--annotation-style", "line"]
    options += ["--quiet", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    command = [str(python), "-m", "uv", "pip", "compile", *options, "--output-file", str(out), "-"]
    subprocess.run(command, check=True, input="\n".join(requirements), text=True, cwd=ROOT)
    return out.read_text(encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Write the lock files.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("--show", nargs="+", metavar="NAME", help="print the lines of some packages")
    arguments = parser.parse_args()
    if arguments.show:
        print("".join(closure(arguments.show, packages()).values()), end="")
    else:
        make(arguments.upgrade)


def make(upgrade: bool) -> None:
    """Write all lock files."""
    venv.create(WHERE, clear=True, with_pip=True)
    python = WHERE / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, UV], check=True)
    files = [lock_file(stage) for stage in STAGES]
    old = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    wanted = needs()
    everything = [need for stage in STAGES for need in wanted[stage]]
    # Resolved together, so that no stage takes a version that conflicts with a later stage.
    fixed = resolve(python, everything, old, upgrade)
    asked: dict[str, list[str]] = {"": []}
    done: dict[str, dict[str, str]] = {"": {}}
    for stage, what in STAGES.items():
        before = AFTER.get(stage, "")
        asked[stage] = asked[before] + wanted[stage]
        found = entries(resolve(python, asked[stage], fixed, upgrade=False))
        # A later stage may need a package on more platforms than an earlier one.
        new = [entry for name, entry in found.items() if requirement(entry) != done[before].get(name)]
        text = f"# {what}. Made by `make lock` from pyproject.toml; do not edit.\n"
        lock_file(stage).write_text(text + "".join(new), encoding="utf-8")
        print(f"{lock_file(stage).name}: {len(new)} packages")
        done[stage] = done[before] | {name: requirement(entry) for name, entry in found.items()}


if __name__ == "__main__":
    main()
