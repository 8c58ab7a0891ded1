"""Replacements for Linux features on macOS, forced here.

The simulated build links no compression library: it also tests Python's packages in their place.
"""

import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from logclient._ext import queue
from logclient.delivery.attempt import Attempt
from logclient.transports import addresses, tcp_link
from tests.support import ROOT, clean_environment, transports
from tests.support.patience import PATIENCE
from tools import pythons

pytestmark = pytest.mark.slow

SHORT = {
    # Without SIMD; compression by Python's packages in the compiled pumps.
    "macos": [
        "capture", "engine_contract", "engine_lifecycle", "engine_tcp", "logjam_compression", "logjam_core",
        "lumberjack_check", "lumberjack_core", "lumberjack_zlib", "queue",
    ],
}  # fmt: skip
"""The rooms that differ most: these in every run, the long form has all that a system would run."""

LONG = {
    "macos": [
        "capture", "collector", "engine_contract", "engine_reports", "engine_traces", "exit_fork_signal",
        "inflight", "ledger_lines", "logjam_core", "lumberjack_check", "lumberjack_core", "lumberjack_reader",
        "lumberjack_writer", "records", "verify_capture",
    ],
}  # fmt: skip

HAS = """
from importlib.util import find_spec
from logclient._ext import capture, logjam, lumberjack
pump = find_spec("logclient._ext.pump") is not None
compressor = lumberjack.Codec(bytes(10), compression=9).compressor
print(pump, capture.CRC_FOLDS, compressor, logjam.LINKED)
"""


@functools.cache
def build_like(like: str) -> Path:
    """Build logclient as `like` would get it when a source has changed; return a folder for the path."""
    base = ROOT / "build" / f"like-{like}"
    with pythons.locked(base.with_suffix(".lock")):
        environment = clean_environment(LOGCLIENT_LIKE=like)
        for old in base.glob("lib*/logclient/**/*.py"):  # else a deleted module stays
            old.unlink()
        command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(base)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, done.stdout
    (lib,) = base.glob("lib*")
    return lib


def run(like: str, names: list[str], where: Path, *options: str) -> None:
    lib = build_like(like)
    pythons.copy_tests(where)
    shutil.copytree(ROOT / "_ext", where / "_ext", ignore=shutil.ignore_patterns("*.so", "*.c"))
    environment = clean_environment(PYTHONPATH=str(lib), LOGCLIENT_TREE=str(where))
    environment.pop("LOGCLIENT_REQUIRE", None)  # what is missing is missing on purpose
    files = [pythons.test_file(name) for name in dict.fromkeys(names)]
    command = [sys.executable, "-m", "pytest", "-q", "-m", pythons.WITHOUT, *options, *files]
    done = subprocess.run(
        command, cwd=where, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    last = done.stdout.strip().splitlines()[-1]
    passed = re.search(r"(\d+) passed", last)
    print(f"as on {like}: {last}")
    assert passed is not None and int(passed[1]) > 100


TARGETS = ["aarch64-macos", "x86_64-macos", "aarch64-linux-musl", "x86_64-linux-musl"]


@pytest.mark.long
@pytest.mark.tree
@pytest.mark.parametrize("target", TARGETS)
def test_the_c_code_compiles_for_other_systems(target: str, tmp_path: Path) -> None:
    zig = shutil.which("zig") or shutil.which("python-zig")
    if zig is None:
        pytest.skip("no zig, which has every system's C headers")
    include = tmp_path / "include"
    shutil.copytree(sysconfig.get_path("include"), include)
    sources = sorted((ROOT / "build" / "cython" / "_ext").glob("*.c"))
    assert {s.stem for s in sources} >= {p.stem for p in (ROOT / "_ext").glob("*.pyx")}
    for source in sources:
        if not (ROOT / "_ext" / f"{source.stem}.pyx").exists():
            continue
        command = [zig, "cc", "-target", target, "-c", "-O1", "-Wall", "-Wno-unused-function"]
        command += ["-Wno-unreachable-code", f"-I{include}", f"-I{ROOT / '_ext'}", str(source)]
        done = subprocess.run([*command, "-o", str(tmp_path / "o")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


linux = pytest.mark.skipif(sys.platform != "linux", reason="forced where it is not the only way")
slow = [pytest.mark.tree, pytest.mark.timeout(30 * PATIENCE), linux]  # compiles


class TestBuilds:
    pytestmark = slow

    @pytest.mark.parametrize(("like", "has"), [("macos", "True False python zlib 9 ()")])
    def test_simulated_builds_use_the_fallbacks(self, like: str, has: str, tmp_path: Path) -> None:
        environment = clean_environment(PYTHONPATH=str(build_like(like)))
        command = [sys.executable, "-c", HAS]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == has, done.stderr

    @pytest.mark.parametrize("like", SHORT)
    def test_different_parts_pass_their_tests(self, like: str, tmp_path: Path) -> None:
        run(like, SHORT[like], tmp_path / "run", "--hypothesis-profile=check")

    @pytest.mark.long
    @pytest.mark.timeout(120 * PATIENCE)
    @pytest.mark.parametrize("like", LONG)
    def test_all_portable_tests_pass_in_simulated_builds(self, like: str, tmp_path: Path) -> None:
        run(like, [*LONG[like], *SHORT[like]], tmp_path / "run")


@pytest.fixture
def listener() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def connect(port: int) -> tcp_link.TcpLink:
    return transports.tcp(5.0).connect(("127.0.0.1", port), Attempt())


def test_the_pump_uses_pythons_clock() -> None:
    """Deadlines pass between them; on macOS two monotonic clocks differ after each sleep of the machine."""
    assert time.monotonic() <= queue.monotonic() <= time.monotonic()


def test_sigpipe_is_disabled_on_the_socket(listener: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any option stands for macOS's.
    monkeypatch.setattr(addresses, "NO_SIGPIPE", socket.SO_OOBINLINE)
    link = connect(listener.getsockname()[1])
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        assert same.getsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE)
    link.close()
