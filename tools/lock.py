"""Write requirements.lock and requirements-bench.lock: exact versions of everything, transitively.

`make lock` runs this with the Python that .venv is made from. It installs the extras and the
dependency groups of pyproject.toml into an empty environment and lists what came: names and versions
only, so that the files hold on every machine, whatever its package sources are.
"""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHERE = ROOT / "build" / "lock"


def pip(*args: str) -> str:
    python = WHERE / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *args]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def installed() -> list[str]:
    lines = pip("freeze", "--all", "--exclude", "pip").splitlines()
    wrong = [line for line in lines if "==" not in line or "@" in line]
    if wrong:
        raise SystemExit(f"not a plain version: {wrong[0]}")
    return sorted(lines, key=str.lower)


def write(name: str, lines: list[str], what: str) -> None:
    text = f"# {what}. Made by `make lock` from pyproject.toml; do not edit.\n"
    (ROOT / name).write_text(text + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{name}: {len(lines)} packages")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    wanted = [need for name, needs in extras.items() if name != "all" for need in needs]
    for need in groups["dev"]:
        wanted += groups[need["include-group"]] if isinstance(need, dict) else [need]
    venv.create(WHERE, clear=True, with_pip=True)
    pip("install", "--quiet", "--upgrade", *wanted)
    dev = installed()
    write("requirements.lock", dev, "What `make deps` installs")
    pip("install", "--quiet", "--constraint", "requirements.lock", *groups["bench"])
    bench = [line for line in installed() if line not in dev]
    write("requirements-bench.lock", bench, "What `make bench` adds to requirements.lock")


if __name__ == "__main__":
    main()
