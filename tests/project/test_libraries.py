"""Which compression libraries a build is linked to."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, clean_environment, missing
from tests.support.patience import PATIENCE
from tools import libraries

pytestmark = pytest.mark.tree

PC = "Name: {name}\nDescription: a test\nVersion: 1\nLibs: -L/nowhere -l{name}\nCflags: -I/nowhere/{name}\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pkg-config that knows zlib and lz4 only."""
    if shutil.which("pkg-config") is None:
        missing("no pkg-config")
    for name in ("zlib", "liblz4"):
        (tmp_path / f"{name}.pc").write_text(PC.format(name=name))
    monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path))
    monkeypatch.delenv("PKG_CONFIG_PATH", raising=False)
    monkeypatch.delenv("LOGCLIENT_LIBRARIES", raising=False)
    return tmp_path


def test_every_library_found_is_linked(known: Path) -> None:
    found = libraries.find()
    assert list(found) == ["zlib", "lz4"]
    assert libraries.flags("lumberjack", found) == (
        ["LC_ZLIB"], ["-I/nowhere/zlib"], ["-L/nowhere", "-lzlib"],
    )  # fmt: skip
    assert libraries.flags("logjam", found).macros == ["LC_ZLIB", "LC_LZ4"]
    assert libraries.flags("plog", found) == ([], [], [])


def test_none_links_no_library(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGCLIENT_LIBRARIES", "none")
    assert libraries.find() == {}


def test_named_libraries_are_linked_and_no_others(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGCLIENT_LIBRARIES", "zlib,lz4")
    assert list(libraries.find()) == ["zlib", "lz4"]
    monkeypatch.setenv("LOGCLIENT_LIBRARIES", "lz4")
    assert list(libraries.find()) == ["lz4"]
    monkeypatch.setenv("LOGCLIENT_LIBRARIES", "zlib,isal,zstd")
    with pytest.raises(SystemExit, match="pkg-config does not know libisal, zstd"):
        libraries.find()


def test_nothing_is_linked_without_pkg_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PKG_CONFIG", "no-such-pkg-config")
    monkeypatch.delenv("LOGCLIENT_LIBRARIES", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert libraries.find() == {}
    monkeypatch.setattr(sys, "platform", "darwin")
    assert libraries.find() == {"zlib": (["LC_ZLIB"], [], ["-lz"])}


@pytest.mark.parametrize("command", ["apt-get", "dnf", "apk"])
def test_a_failed_installation_is_silent(command: str, known: Path) -> None:
    """Every package is requested, and a failure ends nothing and prints nothing."""
    shell = shutil.which("sh")
    assert shell is not None
    asked = known / "asked"
    for name in ("id", command):
        program = known / name
        does = "echo 0" if name == "id" else f'echo "$@" >>{asked}; exit 1'
        program.write_text(f"#!{shell}\n{does}\n")
        program.chmod(0o755)
    (known / "pkg-config").symlink_to(str(shutil.which("pkg-config")))
    done = subprocess.run(
        [shell, str(ROOT / "tools" / "system.sh"), "libraries"],
        env=clean_environment(PATH=str(known)), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = asked.read_text().splitlines()
    assert all(any(word in line for line in lines) for word in ("zlib", "isa", "lz4", "snappy", "pk"))


def test_every_extension_with_libraries_exists() -> None:
    assert set(libraries.USES) <= {path.stem for path in (ROOT / "_ext").glob("*.pyx")}
    assert {name for names in libraries.USES.values() for name in names} == set(libraries.MODULES)
