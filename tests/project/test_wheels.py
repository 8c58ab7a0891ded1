"""The workflow that makes the wheels, and the checks of a wheel before it is installed."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, clean_environment, need
from tests.support.patience import PATIENCE
from tools import extensions, lock, pythons, wheels

pytestmark = [pytest.mark.slow, pytest.mark.tree]

PYTHONS = {"cp311", "cp312", "cp313", "cp314", "cp314t"}
"""What is promised; cibuildwheel builds those of later versions as soon as it knows them."""

SYSTEMS = {
    "manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64",
    "macosx_x86_64", "macosx_arm64",
}  # fmt: skip


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    found: dict[str, Any] = need("yaml").safe_load((ROOT / "wheels.yml").read_text(encoding="utf-8"))
    return found


def steps(job: dict[str, Any], word: str) -> list[str]:
    return [step[word] for step in job["steps"] if word in step]


def test_the_workflow_equals_its_copy() -> None:
    assert (ROOT / ".github" / "workflows" / "wheels.yml").read_bytes() == (ROOT / "wheels.yml").read_bytes()


def test_the_source_distribution_comes_first(workflow: dict[str, Any]) -> None:
    jobs = workflow["jobs"]
    assert list(jobs) == ["sdist", "wheels", "publish"]
    assert "needs" not in jobs["sdist"]
    assert jobs["wheels"]["needs"] == "sdist"
    assert jobs["publish"]["needs"] == ["sdist", "wheels"]
    assert any(command.endswith("build --sdist") for command in steps(jobs["sdist"], "run"))
    # A wheel's job has nothing but that archive.
    assert not any("checkout" in action for action in steps(jobs["wheels"], "uses"))
    (built,) = [command for command in steps(jobs["wheels"], "run") if "-m cibuildwheel" in command]
    assert built.endswith(" sdist/*.tar.gz")


def test_actions_are_pinned(workflow: dict[str, Any]) -> None:
    text = (ROOT / "wheels.yml").read_text(encoding="utf-8")
    actions = [action for job in workflow["jobs"].values() for action in steps(job, "uses")]
    assert len(actions) >= 7
    # To a commit, with the version behind it; the same one everywhere.
    pinned = re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$", text, re.MULTILINE)
    assert [f"{name}@{commit}" for name, commit, _ in pinned] == actions
    assert len({name for name, _, _ in pinned}) == len(set(pinned))


def test_build_tools_come_from_the_lock(workflow: dict[str, Any]) -> None:
    runs = [run for job in workflow["jobs"].values() for run in steps(job, "run")]
    commands = [line for run in runs for line in run.splitlines()]
    shown = [words for words in map(str.split, commands) if "--show" in words]
    installs = [words for words in map(str.split, commands) if "install" in words]
    assert [words[words.index("--show") + 1] for words in shown] == ["build", "cibuildwheel"]
    # What is shown is what is installed.
    assert [words[-1] for words in shown] == [words[-1] for words in installs]
    assert all({"--require-hashes", "--no-deps", "-r"} <= set(words) for words in installs)


def test_the_workflow_has_minimal_permissions(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == {
        "sdist": {"contents": "read"},
        "wheels": {},
        "publish": {"id-token": "write"},
    }
    assert "secrets." not in (ROOT / "wheels.yml").read_text(encoding="utf-8")
    checkout = workflow["jobs"]["sdist"]["steps"][0]
    assert checkout["with"] == {"persist-credentials": False}


def test_only_a_tag_publishes(workflow: dict[str, Any]) -> None:
    publish = workflow["jobs"]["publish"]
    assert publish["if"] == "github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"
    assert publish["environment"] == "release"
    assert [name for name, job in workflow["jobs"].items() if "environment" in job] == ["publish"]
    # All that the two other jobs have made: the source distribution and every wheel.
    (download,) = [s["with"] for s in publish["steps"] if "download-artifact" in s["uses"]]
    assert download == {"path": "dist", "merge-multiple": True}


def test_every_system_and_python_is_built(workflow: dict[str, Any]) -> None:
    """As cibuildwheel itself says, for the runners that the workflow names."""
    need("cibuildwheel")
    platforms: dict[str, str] = {}
    for runner in workflow["jobs"]["wheels"]["strategy"]["matrix"]["include"]:
        before = platforms.get(runner["platform"])
        platforms[runner["platform"]] = f"{before},{runner['archs']}" if before else runner["archs"]
    assert platforms == wheels.PLATFORMS  # what `make wheels` prints
    names = wheels.promised(platforms)
    print(*names)
    assert {f"{python}-{system}" for python in PYTHONS for system in SYSTEMS} <= set(names)
    assert {name.partition("-")[2] for name in names} == SYSTEMS
    assert all(re.match(r"cp3(1[1-9]|[2-9]\d)t?-", name) for name in names)


def test_wheels_are_tested_from_the_sdist() -> None:
    """The sources that the commands name are in the source distribution, and so are the commands."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    for name in options["test-sources"]:
        assert (ROOT / name).exists()
    assert options["test-command"].split()[1] == "tools/wheels.py"
    assert options["before-test"].split()[1:] == ["{package}/tools/wheels.py", "deps"]
    assert "skip" not in options and "test-skip" not in options


def metadata(folder: Path) -> Message:
    """Return the metadata of a wheel of this tree, as an index would show it."""
    program = (
        "import sys; from setuptools import build_meta; "
        "print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    found = folder / done.stdout.split()[-1] / "METADATA"
    return message_from_string(found.read_text(encoding="utf-8"))


def test_the_metadata_suits_an_index(tmp_path: Path) -> None:
    """No link is relative, and no extra installs a dependency that only benchmarks use."""
    shown = metadata(tmp_path)
    text = str(shown.get_payload())
    assert shown["Description-Content-Type"] == "text/markdown" and "## Guarantees" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert all(link.startswith("https://") for link in links), links
    assert "[TLS]" in (ROOT / "README.md").read_text(encoding="utf-8") and "TLS" in text
    fast = [need for need in shown.get_all("Requires-Dist") or [] if 'extra == "fast"' in need]
    assert [need.partition(";")[0].strip() for need in fast] == ["isal"]


def test_a_missing_compiler_is_named_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext"],
        cwd=ROOT, env=clean_environment(CC="no-such-compiler -O2"), capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "logclient is compiled when it is installed from source. That needs a C compiler, and there is no "
        "no-such-compiler here: install one (Debian: build-essential)"
    )


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = pythons.others()
    if not found:
        pytest.skip("no other Python 3.11 or newer on this machine")
    return pythons.wheel(found[-1])


@pytest.mark.timeout(30 * PATIENCE)
def test_a_damaged_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    count = len(extensions.modules(ROOT / "_ext")) + 1  # and the run-time code that they share
    assert wheels.check_wheel(wheel).startswith(f"{count} extensions")

    def changed(*, without: str = "", extra: str = "") -> Path:
        target = tmp_path / wheel.name
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w") as new:
            for name in old.namelist():
                if not (without and without in name):
                    new.writestr(name, old.read(name))
            if extra:
                new.writestr(extra, b"")
        return target

    for how, words in (
        ({"without": "_ext/hash.cp"}, "without the extension hash"),
        ({"without": "_ext/_runtime.cp"}, "without the extension _runtime"),
        ({"without": "_ext/hash.pyi"}, "without logclient/_ext/hash.pyi"),
        ({"without": "py.typed"}, "without logclient/py.typed"),
        ({"without": "LICENSE"}, "without its licence"),
        ({"without": "sboms/"}, "without a list of its parts"),
        ({"extra": "logclient/_ext/hash.c"}, r"with logclient/_ext/hash\.c"),
        ({"extra": "tests/client/test_hash.py"}, "with tests"),
    ):
        with pytest.raises(SystemExit, match=words):
            wheels.check_wheel(changed(**how))


@pytest.mark.timeout(30 * PATIENCE)
@pytest.mark.parametrize(
    ("more", "well"),
    [("tests/clock.c", True), (".github/ci.yml", True), ("_ext/record.c", False), ("_ext/record.so", False)],
)
def test_the_sdist_has_no_generated_c(tmp_path: Path, more: str, well: bool) -> None:
    """Cython's output is made anew at each build; C files of tests are sources."""
    folders = ("_ext", "docs", "licenses", "tests", "tools", "logclient", "pyspark_logclient")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".git")]
    names = {path.relative_to(ROOT).as_posix() for path in files}
    kept = {n for n in names if not n.endswith((".c", ".so", ".pyc")) and not n.startswith("logclient/_ext")}
    archive = tmp_path / "logclient-0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in sorted(kept | {more}):
            tar.addfile(tarfile.TarInfo(f"logclient-0/{name}"))
    if well:
        assert wheels.check_sdist(archive).startswith(f"{len(kept) + 1} files")
    else:
        with pytest.raises(SystemExit, match=re.escape(f"not wanted ['{more}']")):
            wheels.check_sdist(archive)


def test_a_wheel_lists_its_components(wheel: Path) -> None:
    """In CycloneDX, where PEP 770 wants it; it is the same in each build."""
    version, info = wheel.name.split("-")[1], "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    with zipfile.ZipFile(wheel) as file:
        parts = json.loads(file.read(f"{info}/sboms/logclient.cdx.json"))
        assert f"{info}/sboms/logclient.cdx.json,sha256=" in file.read(f"{info}/RECORD").decode()
    assert (parts["bomFormat"], parts["specVersion"]) == ("CycloneDX", "1.6")
    assert parts["metadata"]["component"]["version"] == version
    (cython,) = parts["components"]
    assert f"cython=={cython['version']}" == lock.pinned(lock.packages()["cython"])
    references = {parts["metadata"]["component"]["bom-ref"], cython["bom-ref"]}
    assert {one["ref"] for one in parts["dependencies"]} == references
    assert not {"serialNumber", "timestamp"} & {*parts, *parts["metadata"]}


@pytest.mark.timeout(30 * PATIENCE)
def test_a_damaged_installation_is_refused(wheel: Path, tmp_path: Path) -> None:
    """A missing extension, or the tree in place of an installation, is an error."""
    python = pythons.make(pythons.others()[-1]).path
    tool = tmp_path / "tools"
    shutil.copytree(ROOT / "tools", tool)
    command = [python, "-I", str(tool / "wheels.py"), "check"]
    assert "extensions, " in wheels.output(command, tmp_path)
    # Beside the environment's own: a copy with one extension torn.
    broken = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(broken)
    program = f"import sys; sys.path[:0] = {[str(broken), str(tmp_path)]!r}\nfrom tools import wheels\n"
    with pytest.raises(SystemExit, match="is no installation"):
        wheels.output([python, "-I", "-c", f"{program}wheels.check()"], tmp_path)
    (torn,) = (broken / "logclient" / "_ext").glob("hash.cp*")
    torn.unlink()
    pretend = f"import sysconfig; sysconfig.get_path = lambda kind: {str(broken)!r}\n"
    with pytest.raises(SystemExit, match="hash"):
        wheels.output([python, "-I", "-c", f"{program}{pretend}wheels.check()"], tmp_path)
