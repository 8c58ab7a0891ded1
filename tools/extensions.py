"""The layout of `_ext/`, for everything that builds, packs or checks the extensions.

================================  =========================================================
`_ext/NAME.pyx`                   the extension `logclient._ext.NAME`
`_ext/NAME/PART.pyx` (or `.pxi`)  a part of it, which it includes: `include "NAME/PART.pyx"`
`_ext/ROOM/__init__.py`           makes the folder a sub-package
`_ext/ROOM/NAME.pyx`              then is the extension `logclient._ext.ROOM.NAME`
================================  =========================================================

A folder without `__init__.py` holds parts, never extensions.

`logclient._ext._runtime` is an extension without a source here: Cython's own run-time code, which the others
share.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

PARTS = {".pyx", ".pxi", ".h"}
RUNTIME = "_runtime"


def packages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the package in `folder` as `""`, then its sub-packages as `"room."`, each with its folder."""
    yield "", folder
    for init in sorted(folder.glob("*/__init__.py")):
        for prefix, deeper in packages(init.parent):
            yield f"{init.parent.name}.{prefix}", deeper


def modules(folder: Path, suffix: str = ".pyx") -> dict[str, Path]:
    """Map dotted names below `logclient._ext` to the files with this suffix, all but that of `RUNTIME`.

    Args:
        folder: `_ext` of the tree, or `logclient/_ext` of an installation.
        suffix: how the files end: `.pyx` (sources), `.pyi` (stubs), `.pxd` (declarations), or what this
            interpreter's compiled extensions end with.
    """
    found = {}
    for prefix, where in packages(folder):
        found |= {prefix + path.name.removesuffix(suffix): path for path in sorted(where.glob(f"*{suffix}"))}
    found.pop(RUNTIME, None)
    return found


def parts(pyx: Path) -> list[Path]:
    """Return the files that an extension may include from the folder of its name."""
    folder = pyx.with_suffix("")
    if (folder / "__init__.py").exists():
        return []
    return sorted(path for path in folder.rglob("*") if path.suffix in PARTS)


_NAMED = re.compile(
    r'''(?:extern[ \t]+from|#[ \t]*include|^include)[ \t]+"(?P<file>[^"]+)"'''
    r"""|from[ \t]+logclient\._ext(?P<room>[\w.]*)[ \t]+cimport[ \t]+(?P<names>\([^)]*\)|[^\n]*)""",
    re.MULTILINE,
)


def depends(pyx: Path, folder: Path) -> set[Path]:
    """Return the parts, declarations and headers that an extension is made from, at any depth."""
    found = {path for path in (pyx, pyx.with_suffix(".pxd")) if path.exists()}
    todo = [*found]
    while todo:
        for named in _NAMED.finditer(todo.pop().read_text(encoding="utf-8")):
            names = [named["file"]] if named["file"] else []
            if named["room"] is not None:
                room = named["room"].strip(".").replace(".", "/")
                words = re.findall(r"\w+", named["names"])
                names = [f"{room}.pxd", *(f"{room}/{word}.pxd".strip("/") for word in words)]
            new = {folder / name for name in names if (folder / name).is_file()} - found
            found |= new
            todo += new
    return found - {pyx}


def share_declarations(folder: Path, target: Path) -> None:
    """Copy every .pxd of `_ext` to where a cimport by the installed name finds it.

    Files that have not changed keep their time stamps; files without a source are deleted.

    Args:
        folder: `_ext` of a tree.
        target: a folder that will be on Cython's include path.
    """
    package = target / "logclient" / "_ext"
    wanted = {target / "logclient" / "__init__.pxd"}
    for prefix, where in packages(folder):
        room = package.joinpath(*prefix.split("."))
        room.mkdir(parents=True, exist_ok=True)
        wanted.add(room / "__init__.pxd")
        for pxd in where.glob("*.pxd"):
            copy = room / pxd.name
            wanted.add(copy)
            if not copy.exists() or copy.read_bytes() != pxd.read_bytes():
                shutil.copyfile(pxd, copy)
    for path in wanted:
        if not path.exists():
            path.touch()
    for old in package.rglob("*.pxd"):
        if old not in wanted:
            old.unlink()
