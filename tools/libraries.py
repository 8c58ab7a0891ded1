"""The compression libraries that the extensions are linked to, where pkg-config knows them.

An extension that is built without one of them calls Python's package in its place, with the GIL
(`_ext/libraries.h`).

Without LOGCLIENT_LIBRARIES every library that is found is linked. LOGCLIENT_LIBRARIES=none links none.
LOGCLIENT_LIBRARIES=zlib,lz4 links exactly these, and ends the build with an error if one of them is missing.
"""

import os
import shlex
import shutil
import subprocess
import sys
from typing import NamedTuple

MODULES = {"zlib": "zlib", "isal": "libisal", "lz4": "liblz4", "snappy": "snappy"}
"""Library -> its name for pkg-config."""

USES = {"lumberjack": ("zlib", "isal"), "logjam": ("zlib", "isal", "lz4", "snappy"), "websocket": ("zlib",)}
"""Extension -> the libraries that it calls."""


class Flags(NamedTuple):
    """How an extension is compiled and linked."""

    macros: list[str]
    compile: list[str]
    link: list[str]


def ask(*arguments: str) -> list[str] | None:
    """Return what pkg-config prints, split into words; None if it fails, or is not there."""
    program = os.environ.get("PKG_CONFIG") or "pkg-config"
    if shutil.which(program) is None:
        return None
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    return shlex.split(done.stdout) if done.returncode == 0 else None


def find() -> dict[str, Flags]:
    """Find the libraries to link: installed with their headers, and wanted.

    Returns:
        Name of a library -> its flags.

    Raises:
        SystemExit: LOGCLIENT_LIBRARIES names a library that is not there.
    """
    wanted = os.environ.get("LOGCLIENT_LIBRARIES", "").replace(",", " ").split()
    if wanted == ["none"]:
        return {}
    found = {}
    for name, module in MODULES.items():
        if wanted and name not in wanted:
            continue
        cflags, libs = ask("--cflags", module), ask("--libs", module)
        if name == "zlib" and libs is None and sys.platform == "darwin":
            cflags, libs = [], ["-lz"]  # part of the system, without a file for pkg-config
        if cflags is not None and libs is not None:
            found[name] = Flags([f"LC_{name.upper()}"], cflags, libs)
    missing = [MODULES.get(name, name) for name in wanted if name not in found]
    if missing:
        raise SystemExit(f"LOGCLIENT_LIBRARIES: pkg-config does not know {', '.join(missing)}")
    return found


def flags(extension: str, found: dict[str, Flags]) -> Flags:
    """Return the flags of one extension.

    Args:
        extension: Its name below `logclient._ext`.
        found: What `find` has returned.
    """
    used = [found[name] for name in USES.get(extension, ()) if name in found]
    return Flags(
        macros=[word for one in used for word in one.macros],
        compile=[word for one in used for word in one.compile],
        link=[word for one in used for word in one.link],
    )
