"""Layout of extensions below `_ext/`, tried with a small tree that setup.py builds."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT, clean_environment
from tests.support.patience import PATIENCE
from tools import extensions

pytestmark = [pytest.mark.slow, pytest.mark.tree]

FILES = {
    "LICENSE": "",
    "licenses/library.txt": "",
    "README.md": "",
    "logclient/__init__.py": "",
    "_ext/__init__.py": "",
    "_ext/whole.pyx": 'include "whole/first.pyx"\ninclude "whole/second.pxi"\n',
    "_ext/whole/first.pyx": "def first():\n    return 1\n",
    "_ext/whole/second.pxi": "def second():\n    return first() + 1\n",
    "_ext/room/__init__.py": "",
    "_ext/room/base.pxd": "cdef class Base:\n    cdef public int number\n",
    "_ext/room/base.pyx": "cdef class Base:\n    pass\n",
    "_ext/user.pyx": (
        "from logclient._ext.room.base cimport Base\n\n\n"
        "def use():\n    cdef Base it = Base()\n    it.number = 7\n    return it.number\n"
    ),
}
PROGRAM = """
from logclient._ext import user, whole
print(whole.second(), user.use())
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tools").mkdir()
    for name in ("__init__.py", "extensions.py", "libraries.py", "stubs.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
    (tmp_path / "logclient" / "_ext").symlink_to("../_ext")
    return tmp_path


def run(tree: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=clean_environment(), text=True, timeout=10 * PATIENCE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(tree: Path) -> None:
    run(tree, "setup.py", "--quiet", "build_ext", "--inplace")


def test_parts_and_sub_packages_are_distinguished(tree: Path) -> None:
    ext = tree / "_ext"
    assert sorted(extensions.modules(ext)) == ["room.base", "user", "whole"]
    assert extensions.modules(ext, ".pxd") == {"room.base": ext / "room" / "base.pxd"}
    assert extensions.parts(ext / "whole.pyx") == [ext / "whole" / "first.pyx", ext / "whole" / "second.pxi"]
    assert extensions.parts(ext / "user.pyx") == []
    assert extensions.parts(ext / "room.pyx") == []  # would be beside the sub-package


def test_a_declaration_without_a_source_is_removed(tree: Path) -> None:
    shared = tree / "shared" / "logclient" / "_ext" / "room" / "base.pxd"
    extensions.share_declarations(tree / "_ext", tree / "shared")
    before = shared.stat().st_mtime_ns
    extensions.share_declarations(tree / "_ext", tree / "shared")
    assert shared.stat().st_mtime_ns == before
    (tree / "_ext" / "room" / "base.pxd").unlink()
    extensions.share_declarations(tree / "_ext", tree / "shared")
    assert [path.name for path in shared.parent.iterdir()] == ["__init__.pxd"]


@pytest.mark.timeout(20 * PATIENCE)
def test_extensions_are_rebuilt_when_a_part_changes(tree: Path) -> None:
    build(tree)
    assert run(tree, "-c", PROGRAM).split() == ["2", "7"]
    part = tree / "_ext" / "whole" / "second.pxi"
    later = (tree / "build" / "cython" / "_ext" / "whole.c").stat().st_mtime + 5
    part.write_text(part.read_text().replace("+ 1", "+ 40"))
    os.utime(part, (later, later))
    build(tree)
    assert run(tree, "-c", PROGRAM).split() == ["41", "7"]


@pytest.mark.timeout(20 * PATIENCE)
def test_an_extension_depends_on_what_it_includes_and_declares_at_any_depth(tree: Path) -> None:
    ext = tree / "_ext"
    (ext / "deep.h").write_text("")
    (ext / "near.h").write_text('#include "deep.h"\n')
    (ext / "room" / "base.pxd").write_text('cdef extern from "near.h":\n    pass\n')
    for name in ("user.pyx", "room/base.pyx"):
        assert extensions.depends(ext / name, ext) == {ext / "room/base.pxd", ext / "near.h", ext / "deep.h"}
    assert extensions.depends(ext / "whole.pyx", ext) == set(extensions.parts(ext / "whole.pyx"))


def test_every_header_is_of_some_extension() -> None:
    ext = ROOT / "_ext"
    used = set().union(*(extensions.depends(pyx, ext) for pyx in extensions.modules(ext).values()))
    assert set(ext.rglob("*.h")) <= used


def test_a_wheel_holds_sub_packages_and_no_parts(tree: Path) -> None:
    run(tree, "setup.py", "--quiet", "bdist_wheel")
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if name.startswith("logclient/")}
    compiled = {name.split(".")[0] for name in names if name.endswith((".so", ".pyd"))}
    assert compiled == {f"logclient/_ext/{name}" for name in ("_runtime", "room/base", "user", "whole")}
    assert {name for name in names if name.endswith((".py", ".pyi"))} == {
        "logclient/__init__.py",
        "logclient/_ext/__init__.py",
        "logclient/_ext/room/__init__.py",
        "logclient/_ext/room/base.pyi",
        "logclient/_ext/user.pyi",
        "logclient/_ext/whole.pyi",
    }
    assert not [name for name in names if "whole/" in name]
