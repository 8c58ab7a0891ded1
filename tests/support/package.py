"""The modules of the package."""

from pathlib import Path

from tests.support import ROOT

PACKAGE = ROOT / "logclient"
PROTOCOLS = {"lumberjack", "logjam", "plog", "logux"}


def modules() -> list[Path]:
    """Return the Python modules, without the extensions."""
    return sorted(p for p in PACKAGE.rglob("*.py") if "_ext" not in p.relative_to(PACKAGE).parts)
