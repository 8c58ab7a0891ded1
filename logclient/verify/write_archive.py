"""Write the archive of the classes of Spark's JVM: ``python -m logclient.verify.write_archive``.

A verification starts this program in the background (`class_archive.begin_writing`). Run it by hand where the
first verification shall be as fast as later ones, for example when an image of a container is built.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from logclient.errors import ExitCode
from logclient.exits import run_command
from logclient.verify import class_archive
from logclient.verify.jvm import find_java, jars_folder
from logclient.verify.spark import Session, VerifyError, quiet
from logclient.verify.stages import SparkStages

__all__ = ["launcher_options", "main", "prune", "write"]

LIMIT_S = 900  # seconds after which this process is killed by its own alarm
KEPT = 3  # archives of other versions that stay, the last used ones

SUBMIT = "org.apache.spark.deploy.SparkSubmit"


def write(where: str) -> str | None:
    """Write the archive for this Java and this PySpark, and remove old ones.

    Args:
        where: the folder.

    Returns:
        Its name; None if it is there already, or if another process writes one.

    Raises:
        VerifyError: Spark does not start, or the JVM wrote no archive.
        OSError: the folder cannot be written.
    """
    java = find_java()
    name = class_archive.identify(java.path, java.version, jars_folder())
    with class_archive.locked(where) as ours:
        if not ours or class_archive.find(where, name) is not None:
            return None
        prune(where, name)
        # It stays after a failure, or each verification would try again.
        tried = class_archive.mark_tried(where, name)
        # All files of a writer that is killed are in the folder, for the next one to remove.
        before, tempfile.tempdir = tempfile.tempdir, tempfile.mkdtemp(prefix="new-", dir=where)
        try:
            _write(java.path, os.path.join(where, name), tempfile.tempdir)
            os.unlink(tried)
        finally:
            shutil.rmtree(tempfile.tempdir, ignore_errors=True)
            tempfile.tempdir = before
    return name


def _write(java: str, base: str, temporary: str) -> None:
    options = launcher_options(java)
    new = class_archive.Archive(os.path.join(temporary, "jsa"), os.path.join(temporary, "json"), options)
    with quiet(), Session("local[2]", record=new) as session:
        SparkStages(session).exercise()
    try:
        with open(new.path, "rb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
            facts = {
                "size": os.fstat(file.fileno()).st_size,
                "hash": class_archive.hash_file(file.fileno()),
                "options": options,
            }
    except (OSError, ValueError) as error:
        raise VerifyError("java: it wrote no archive of its classes") from error
    with open(os.open(new.facts, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as text:
        json.dump(facts, text)
    os.replace(new.path, f"{base}.jsa")
    os.replace(new.facts, f"{base}.json")  # the archive counts from now on


def launcher_options(java: str) -> list[str]:
    """Ask Spark's launcher for the options of a driver's JVM: its class path, and packages to open.

    Raises:
        VerifyError: it does not answer.
    """
    jars = jars_folder()
    [core] = [name for name in os.listdir(jars) if name.startswith("spark-core_")]
    variables = {"SPARK_HOME": os.path.dirname(jars), "SPARK_SCALA_VERSION": core.split("_")[1].split("-")[0]}
    done = subprocess.run(
        [
            java, "-Xmx128m", "-cp", os.path.join(jars, "*"), "org.apache.spark.launcher.Main", SUBMIT,
            "pyspark-shell",
        ],
        capture_output=True, env={**os.environ, **variables}, check=False,
    )  # fmt: skip
    _, _, command = done.stdout.decode(errors="replace").partition("\n")
    before, found, _ = command.partition(f"\0{SUBMIT}\0")
    options = [option for option in before.split("\0")[1:] if not option.startswith("-Xmx")]
    if not found or "-cp" not in options:
        raise VerifyError("spark: its launcher gives no command")
    at = options.index("-cp") + 1
    options[at] = os.pathsep.join(_expanded(options[at]))
    return options


def _expanded(path: str) -> list[str]:
    """List all jars of a class path, because the JVM compares their order with that of the archive."""
    found: list[str] = []
    for one in path.split(os.pathsep):
        if one.endswith("*"):
            found += sorted(entry.path for entry in os.scandir(one[:-1]) if entry.name.endswith(".jar"))
        elif os.path.exists(one):
            found.append(one)
    return found


def prune(where: str, name: str) -> None:
    """Remove what stopped writers left, and archives that were not used for the longest time."""
    archives = []
    for entry in os.scandir(where):
        if entry.name.startswith("new-"):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name.endswith(".jsa") and not entry.name.startswith(name):
            archives.append((entry.stat().st_mtime, entry.path.removesuffix(".jsa")))
    for _, base in sorted(archives, reverse=True)[KEPT - 1 :]:
        for kind in (".json", ".jsa", ".tried"):
            with contextlib.suppress(OSError):
                os.unlink(base + kind)


def main() -> int:
    """Write the archive.

    Returns:
        An `ExitCode`.
    """
    os.nice(19)
    signal.alarm(LIMIT_S)
    return run_command(_work)


def _work() -> int:
    where = class_archive.folder()
    if where is None:
        print(f"logclient: {class_archive.ENVIRONMENT}: names no private folder", file=sys.stderr)
        return ExitCode.USAGE
    name = write(where)
    if name is not None:
        print(os.path.join(where, f"{name}.jsa"))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
