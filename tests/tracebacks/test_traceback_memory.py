"""The tests of this part under AddressSanitizer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE

NEEDED = ["hash", "tracebacks"]


@pytest.mark.long
@pytest.mark.tree
def test_texts_and_cache_pass_address_sanitizer() -> None:
    """The tests beside this one that need no other extension. There, no memory is used again at once."""
    from fuzz import build
    from fuzz.target import MissingError

    try:
        preload = build.runtime()
        tree = build.address(NEEDED)
    except MissingError as error:
        pytest.skip(str(error))
    environment = build.environment(tree) | {"LD_PRELOAD": preload}
    folder = build.ROOT / "tests" / "tracebacks"
    tests = [str(folder / "test_traceback_texts.py"), str(folder / "test_traceback_cache.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-m", "not long", "-p", "no:xdist",
         "-k", "not memory and not old_address", *tests],
        cwd=tree, env=environment, capture_output=True, text=True, timeout=100 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
