"""The compiled codecs, built at their first use, and their core."""

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
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import support
from tests.cores.plain import PlainCore

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
    headers = [compiled / name for name in ("constants.pxd", "codec.pxd", "codec_base.pxd", "hash.pxd")]
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


class Compiled(PlainCore):
    """The core around a compiled codec."""

    def __init__(self, name: str, producer: bytes, *, inflight: int = 64, silence: float = 30.0) -> None:
        super().__init__(load(name).Codec(producer, inflight, silence))


if __name__ == "__main__":  # build all
    for each in ("fifo", "by_id", "by_message"):
        print(load(each).__file__)
