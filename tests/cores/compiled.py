"""The compiled cores, built at their first use, with the interface of ``delivery.contract``."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from logclient._ext.constants import ACKED, PENDING, STOP_FATAL
from logclient._ext.inflight import Batch
from logclient.delivery.contract import (
    Alive,
    Core,
    CoreEvent,
    Fatal,
    Progress,
    Retry,
    Settled,
    Wire,
)
from tests import support
from tests.cores.messages import frames_of
from tests.cores.plain import Refused

HERE = Path(__file__).parent

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
name, where = sys.argv[1:]
directives = {
    "language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True,
    "freethreading_compatible": True,
}
extension = Extension(name, [f"{where}/{name}.pyx"], include_dirs=[where], extra_compile_args=["-O2", "-g0"])
modules = cythonize([extension], include_path=[f"{where}/pxd"], compiler_directives=directives, quiet=True)
command = build_ext(Distribution({"ext_modules": modules}))
command.build_lib = where
command.build_temp = f"{where}/{name}.o"
command.ensure_finalized()
command.run()
"""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def load(name: str) -> ModuleType:
    """Load the extension `name` of this folder, built once for each state of its sources."""
    if importlib.util.find_spec("logclient._ext.pump") is None:
        pytest.skip("no compiled pump on this system")
    compiled = support.ROOT / "_ext"
    headers = [compiled / name for name in ("constants.pxd", "codec.pxd", "hash.pxd")]
    included = sorted(compiled.glob("*.h"))
    if not all(header.exists() for header in headers):
        support.missing("no _ext/*.pxd to compile against: the tests run outside the source tree")
    sources = [HERE / f"{name}.pyx", *sorted(HERE.glob("*.pxi"))]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    texts = [path.read_bytes() for path in [*headers, *included, *sources]]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
    where = support.ROOT / "build" / "cores" / f"{sys.implementation.cache_tag}-{digest}"
    target = where / f"{name}{suffix}"
    with _locked(where.parent / ".lock"):
        if not target.exists():
            package = where / "pxd" / "logclient" / "_ext"
            package.mkdir(parents=True, exist_ok=True)
            for folder in (package, package.parent):
                (folder / "__init__.pxd").touch()
            for path in headers:
                shutil.copy(path, package)
            for path in [*sources, *included]:
                shutil.copy(path, where)
            done = subprocess.run(
                [sys.executable, "-c", BUILD, name, str(where)],
                capture_output=True, text=True, env=support.clean_environment(),
            )  # fmt: skip
            if done.returncode:
                if "No module named" in done.stderr:
                    support.missing("Cython is not installed")
                raise AssertionError(done.stdout + done.stderr)
    spec = importlib.util.spec_from_file_location(name, target)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Compiled(Core):
    """A core around a ``Codec``, which tests drive byte by byte, and pumps through ``codec``."""

    compressor = ""

    def __init__(self, name: str, producer: bytes, *, inflight: int = 64, silence: float = 30.0) -> None:
        self._codec: Any = load(name).Codec(producer, inflight, silence)
        self.messages = name == "by_message"
        self._begin()

    def _begin(self) -> None:
        self._told = self._silent = False

    @property
    def codec(self) -> object:
        return self._codec.capsule

    def connected(self, now: float, random: Callable[[], float]) -> None:
        self._begin()
        self._codec.begin(now)

    def connection_lost(self) -> None:
        self._codec.begin(0.0)

    def credit(self, now: float) -> tuple[int, int]:
        return self._codec.credit(now)

    def encode(self, batch: Batch, events: int, now: float) -> int:
        return int(self._codec.encode(batch.capsule, events, now))

    def data_to_send(self) -> list[Wire]:
        data = self._codec.data()
        if self.messages:
            return [Wire(frames) for frames in frames_of(data)]
        return [Wire([data])] if data else []

    def sent(self, rest: int = 0) -> None:
        self._codec.sent()

    def receive_data(self, data: bytes, now: float) -> None:
        self._codec.receive(data, now)

    def events_received(self) -> Iterator[CoreEvent]:
        found, alive, progress = self._codec.outcomes()
        for first, last, status in found:
            ranges = [(first, last)]
            if status == PENDING:
                yield Retry(ranges, "again")
            else:
                acked = status == ACKED
                yield Settled("acked", "", ranges) if acked else Settled("failed", "rejected", ranges)
        if progress:
            yield Progress()
        elif alive:
            yield Alive()
        if self._silent and not self._told:
            self._told = True
            yield Fatal(TimeoutError("silence"))
        if self._codec.over and not self._told:
            self._told = True
            forever = self._codec.over == STOP_FATAL
            yield Fatal(Refused("wrong version") if forever else ValueError("no reply"), forever)

    def next_timeout(self, now: float) -> float | None:
        return self._codec.deadline() or None

    def handle_timeout(self, now: float) -> None:
        timeout = self.next_timeout(now)
        self._silent = timeout is not None and now >= timeout


if __name__ == "__main__":  # build all
    for each in ("fifo", "by_id", "by_message"):
        print(load(each).__file__)
