"""Count what the modules of a package import from each other: classes, functions and modules.

::

    python tools/coupling.py logclient/delivery
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def imported(path: Path, package: str) -> set[str]:
    """Return what a module imports from its package, constants left out; imports for annotations count."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(f"{package}."):
            found |= {f"{node.module}.{name.name}" for name in node.names if not name.name.isupper()}
    return found


def main() -> None:
    """Print a line for each module, and the sum."""
    folder = Path(sys.argv[1])
    package = ".".join(folder.parts)
    counts = {path: len(imported(path, package)) for path in sorted(folder.rglob("*.py"))}
    for path, count in counts.items():
        print(f"{count:4} {path}")
    print(f"{sum(counts.values()):4} in {len(counts)} modules")


if __name__ == "__main__":
    main()
