"""``python -m fuzz.replay target folder...``: run a target with the inputs in folders, without a fuzzer."""

from __future__ import annotations

import sys
from pathlib import Path

from fuzz import memory  # noqa: F401  (before any extension)
from fuzz.target import exact, load


def main(target: str, folders: list[str]) -> int:
    run = load(target).run
    n = 0
    for folder in folders:
        for file in sorted(Path(folder).iterdir()):
            try:
                run(exact(file.read_bytes()))
            except BaseException:
                print(f"input {file}", file=sys.stderr)
                raise
            n += 1
    print(n)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
