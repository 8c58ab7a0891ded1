"""The program in tests/interop/golumber: go-lumber, Elastic's own implementation of Lumberjack."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from tests.support import ROOT, clean_environment
from tests.support.patience import PATIENCE


class Missing(Exception):
    """The program cannot be built here; the text is the reason."""


@functools.cache
def program() -> Path:
    """Build the program, from pinned modules. The first time takes longest: Go compiles its own library.

    Raises:
        Missing: There is no Go, which `make deps` does not install, or its modules cannot be fetched.
    """
    go = shutil.which("go")
    if go is None:
        raise Missing("no go")
    source, built = ROOT / "tests" / "interop" / "golumber", ROOT / "build" / "interop" / "golumber"
    # Go must not download another toolchain.
    environment = clean_environment(GOTOOLCHAIN="local")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [go, *command], cwd=source, env=environment, capture_output=True, text=True, timeout=8 * PATIENCE
        )

    try:
        fetched = run("mod", "download")
    except subprocess.TimeoutExpired:
        raise Missing("go-lumber cannot be fetched: no answer") from None
    if fetched.returncode:
        raise Missing(f"go-lumber cannot be fetched: {fetched.stderr.strip()[-200:]}")
    built.parent.mkdir(parents=True, exist_ok=True)
    made = run("build", "-buildvcs=false", "-o", str(built), ".")
    assert made.returncode == 0, made.stderr
    return built
