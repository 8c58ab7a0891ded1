"""Build of the extensions; everything static is in pyproject.toml.

`_ext/` at the top of the tree is installed as the package `logclient._ext`; tools/extensions.py describes
its layout. Between two .pyx files `from logclient._ext.queue cimport EventQueue` must work although no folder
of that name exists: the .pxd files are copied to build/pxd/logclient/_ext/, an include path of cythonize.

Environment: LOGCLIENT_ONLY=name,name builds these extensions only (for development; `-` builds none).
LOGCLIENT_DEBUG=1 builds with symbols, for gdb and perf. LOGCLIENT_LIKE=macos builds for this system what that
one would get, linked to no library: see tests/project/test_fallbacks.py. LOGCLIENT_LIBRARIES: see
tools/libraries.py.
"""

import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build front end does not add it
from tools import extensions as layout  # noqa: E402
from tools import libraries, stubs  # noqa: E402

EXT = ROOT / "_ext"
BUILD = ROOT / "build"
PXD = BUILD / "pxd"

# Macros that leave out what another system lacks. SIMD: Apple's processors have no SSE2.
LIKE = {"": [], "macos": ["LC_LIKE_MACOS", "LC_NO_SIMD"]}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
    "embedsignature.format": "clinic",  # what inspect.signature reads
    "binding": False,  # functions as of C: no object is made for each at import
    "annotation_typing": False,  # annotations are for stubs: tools/stubs.py
    "emit_code_comments": False,
    "auto_pickle": False,  # its __setstate__ would trust any state
    "freethreading_compatible": True,
}


# What gains from -O3, as bench/ shows; and what calls the system or Python most, for which -O1 is enough.
WITH_O3 = re.compile(r"hash|inflight|ledger")
WITH_O1 = re.compile(r"capture|codec_base|constants|pump|spool|tls|tracebacks|udpreceive")


def need_compiler() -> None:
    """Exit with a message if there is no compiler, before Cython works for a minute."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        missing = f"a C compiler, and there is no {compiler} here: install one (Debian: build-essential)"
    elif not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        missing = "the headers of Python: install its development package (Debian: python3-dev)"
    else:
        return
    raise SystemExit(f"logclient is compiled when it is installed from source. That needs {missing}")


def description() -> str:
    """Return the README without its relative links, for a package index."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text)


def lock() -> None:
    """Take the lock of this tree until exit: two builds would write the same C files."""
    import fcntl

    BUILD.mkdir(exist_ok=True)
    lock.file = open(BUILD / ".lock", "w")  # noqa: SIM115  (closing releases the lock)
    fcntl.flock(lock.file, fcntl.LOCK_EX)


def packages() -> list[str]:
    """Return the names of all packages: in `logclient/`, `_ext` with its sub-packages, and that for Spark."""
    found = [*ROOT.glob("logclient/**/__init__.py"), *ROOT.glob("pyspark_logclient/__init__.py")]
    folders = (init.parent.relative_to(ROOT) for init in sorted(found))
    names = [".".join(folder.parts) for folder in folders if "_ext" not in folder.parts]
    return names + [f"logclient._ext.{prefix}".rstrip(".") for prefix, _ in layout.packages(EXT)]


def extensions() -> list[Extension]:
    """Translate the Cython sources and return the extensions to compile."""
    only = os.environ.get("LOGCLIENT_ONLY", "")
    sources = layout.modules(EXT)
    names = sorted(sources)
    if only:
        wanted = {n for n in only.replace(",", " ").split() if n != "-"}
        unknown = wanted.difference(names)
        if unknown:
            raise SystemExit(f"LOGCLIENT_ONLY: no such extension: {', '.join(sorted(unknown))}")
        names = [n for n in names if n in wanted]
    like = os.environ.get("LOGCLIENT_LIKE", "")
    if like not in LIKE:
        raise SystemExit(f"LOGCLIENT_LIKE: {like!r} must be macos")
    if not names or {"egg_info", "dist_info"} & set(sys.argv):
        return []
    if "sdist" not in sys.argv:
        need_compiler()
    lock()
    layout.share_declarations(EXT, PXD)
    stubs.write(EXT)
    import multiprocessing

    from Cython.Build import cythonize

    # A process that is spawned would run this file again.
    workers = (os.cpu_count() or 1) if multiprocessing.get_start_method() == "fork" else 0

    runtime = f"logclient._ext.{layout.RUNTIME}"

    def below_root(paths: Iterable[Path]) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in paths]

    found = {} if like else libraries.find()
    # -g0: debug information makes a wheel ten times larger. What only tests use is not optimized. -w: to look
    # for what gcc warns of in the C that Cython writes takes a quarter of its time.
    debug = os.environ.get("LOGCLIENT_DEBUG", "")
    flags = ["-Og", "-g3"] if debug else ["-g0", "-w", "-fvisibility=hidden"]

    def optimize(name: str) -> list[str]:
        if debug:
            return []
        if like:
            return ["-O0"]
        return ["-O1" if WITH_O1.fullmatch(name) else "-O3" if WITH_O3.fullmatch(name) else "-O2"]

    # Whoever installs a library compiles what links it anew; other flags concern every extension.
    linked, flagged = BUILD / f"linked{like}.json", BUILD / f"flags{like}.json"
    for file, now in ((linked, json.dumps(found, indent=1)), (flagged, json.dumps(flags))):
        if not file.exists() or file.read_text() != now:
            file.write_text(now)
    uses = {name: libraries.flags(name, found) for name in names}
    # A change here (flags, directives) affects every file.
    generated = [(BUILD / "cython" / sources[name].relative_to(ROOT)).with_suffix(".c") for name in names]
    changed = Path(__file__).stat().st_mtime
    return cythonize(
        [
            Extension(
                f"logclient._ext.{name}",
                below_root([sources[name]]),
                include_dirs=["_ext"],
                depends=[
                    *below_root(sorted(layout.depends(sources[name], EXT))),
                    "setup.py",
                    *below_root([flagged, *([linked] if name in libraries.USES else [])]),
                ],
                extra_compile_args=[*flags, *optimize(name), *uses[name].compile],
                extra_link_args=uses[name].link,
                define_macros=[(macro, "1") for macro in [*LIKE[like], *uses[name].macros]],
            )
            for name in names
        ]
        + [Extension(runtime, [f"_ext/{layout.RUNTIME}.c"], extra_compile_args=[*flags, "-O1"])],
        shared_utility_qualified_name=runtime,
        nthreads=workers,
        include_path=[str(PXD.relative_to(ROOT))],
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
        force=any(c.exists() and c.stat().st_mtime < changed for c in generated),
        show_all_warnings=False,
    )


def sbom(version: str) -> dict[str, Any]:
    """Return the software bill of materials as CycloneDX; equal builds give equal bytes."""

    def component(name: str, version: str, **more: Any) -> dict[str, Any]:
        purl = f"pkg:pypi/{name}@{version}"
        about = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        return about | {"licenses": [{"license": {"id": "Apache-2.0"}}]} | more

    cython = component(
        "cython",
        metadata.version("cython"),
        description="Its run-time code is compiled into the extensions.",
    )
    tool = {"type": "application", "name": "setuptools", "version": metadata.version("setuptools")}
    ours = component("logclient", version)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}, "component": ours},
        "components": [cython],
        "dependencies": [
            {"ref": ours["bom-ref"], "dependsOn": [cython["bom-ref"]]},
            {"ref": cython["bom-ref"], "dependsOn": []},
        ],
    }


class Wheel(bdist_wheel):
    """A wheel with its software bill of materials, as in PEP 770."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: Any, **more: Any) -> None:
        """Write the metadata, and the bill of materials beside it."""
        super().write_wheelfile(wheelfile_base, *arguments, **more)
        folder = Path(wheelfile_base) / "sboms"
        folder.mkdir(exist_ok=True)
        text = json.dumps(sbom(self.distribution.get_version()), indent=1) + "\n"
        (folder / "logclient.cdx.json").write_text(text, encoding="utf-8")


os.chdir(ROOT)
setup(
    packages=packages(),
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=extensions(),
    cmdclass={"bdist_wheel": Wheel},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
