"""Builds for fuzzing, all in build/fuzz; the normal build is never changed.

======== =====================================================================================
clean    with AddressSanitizer, and with the codecs' coverage for the fuzzer
address  with AddressSanitizer only, for programs (tests/project/test_memory_safety.py)
<plant>  like clean, with one known bug in its codec
lines    with gcov's counters, for the lines of the .pyx and .pxd files
======== =====================================================================================

A build is a copy of the sources of the extensions, with `CHANGES`.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fuzz.target import ROOT, MissingError, Plant, load
from tools import extensions, libraries

OUT = ROOT / "build" / "fuzz"
CLANGS = ("clang", *(f"clang-{n}" for n in range(21, 13, -1)))

# The changes of all builds: buffers are exactly as large as necessary, because spare room would hide an
# overflow by one byte; and large buffers are released at sizes that short inputs reach.
CHANGES = [
    ("_ext/codec.pxd", "capacity = wire.capacity if wire.capacity else 65536\n", "capacity = want\n"),
    (
        "_ext/codec.pxd",
        "capacity = out.capacity * 2 if out.capacity else 64\n",
        "capacity = out.capacity + 1\n",
    ),
    ("_ext/ids.pxd", "capacity = r.capacity * 2 if r.capacity else 1024\n", "capacity = r.capacity + 1\n"),
    ("_ext/ledger/base64.h", "uint8_t some[3072];", "uint8_t some[96];"),
    ("_ext/codec.pxd", "ROOM_KEPT = 1 << 22 ", "ROOM_KEPT = 1 << 10 "),
    ("_ext/plog/reassembler.pyx", "PLACES = 1 << 16 ", "PLACES = 4 "),
    ("_ext/record/json_encode.pyx", "    STACK = 8192 ", "    STACK = 64 "),
    # Longer documents are not ordinary ones: none would be.
    ("_ext/record/line_encoder.pyx", "max_event_bytes, <size_t> STACK)", "max_event_bytes, <size_t> 8192)"),
    (
        "_ext/record/json_encode.pyx",
        "cdef size_t want = 2 * <size_t> (doc.end - doc.base)\n",
        "cdef size_t want = 0\n",
    ),
]
EXACT = {"capacity *= 2": "buffers are exactly as large as necessary in these builds: see fuzz/build.py"}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "annotation_typing": False,
    "auto_pickle": False,
    "freethreading_compatible": True,
}
MEMORY = ["-Dmalloc=lc_malloc", "-Dcalloc=lc_calloc", "-Drealloc=lc_realloc"]


class Command(NamedTuple):
    words: list[str]
    where: Path


@cache
def clang() -> str:
    """Find the compiler, and check its runtime for fuzzing.

    Raises:
        MissingError: the compiler or its runtime is missing.
    """
    wanted = os.environ.get("CLANG")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else CLANGS)), None)
    if found is None:
        raise MissingError(f"no {wanted or 'clang'} (Debian: apt-get install clang libclang-rt-14-dev)")
    for flags in (["-fsanitize=fuzzer,address"], ["-fsanitize=address", "-shared"]):
        source = (
            "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *p, size_t n) { return !p && n; }\n"
        )
        done = subprocess.run(
            [found, *flags, "-fPIC", "-x", "c", "-", "-o", "/dev/null"],
            input=source,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise MissingError(
                f"{found} cannot link -fsanitize=fuzzer,address: its runtime is missing "
                f"(Debian: apt-get install libclang-rt-14-dev)\n{done.stderr.strip()}"
            )
    return found


def gcov() -> str:
    for name in (os.environ.get("GCC", "gcc"), os.environ.get("GCOV", "gcov")):
        if shutil.which(name) is None:
            raise MissingError(f"no {name}: gcc's gcov counts the lines (Debian: apt-get install gcc)")
    return os.environ.get("GCOV", "gcov")


def libpython() -> list[str]:
    """Return the options that link a program with the interpreter.

    Raises:
        MissingError: this interpreter has no shared library.
    """
    where, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY") or ""
    if not name.endswith(".so"):
        raise MissingError(f"{sys.executable} has no shared libpython to link with")
    libs = shlex.split(
        f"{sysconfig.get_config_var('LIBS') or ''} {sysconfig.get_config_var('SYSLIBS') or ''}"
    )
    return [f"-L{where}", f"-Wl,-rpath,{where}", f"-l{name[3:-3]}", *libs]


def codecs(targets: list[str]) -> list[str]:
    return sorted({name for target in targets for name in load(target).EXTENSIONS})


def others(codecs: Collection[str]) -> list[str]:
    """Return the extensions that are not under test."""
    return sorted(extensions.modules(ROOT / "_ext").keys() - codecs)


def change(tree: Path, file: str, old: str, new: str) -> None:
    path = tree / file
    text = path.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"fuzz: {old.strip()!r} is {text.count(old)} times in {file}, not once")
    if old.count("\n") != new.count("\n"):
        raise SystemExit(f"fuzz: {new.strip()!r} has another number of lines than the text that it replaces")
    path.write_text(text.replace(old, new))


def run(it: Command) -> None:
    done = subprocess.run(it.words, cwd=it.where, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"fuzz: {' '.join(it.words)}\n{done.stdout}{done.stderr}")


def translate(tree: Path, name: str, *, lines: bool = False) -> None:
    """Make the C of the extension with this dotted name below `_ext`."""
    from Cython.Build import cythonize
    from Cython.Compiler.Errors import CompileError
    from setuptools import Extension

    before, output = Path.cwd(), io.StringIO()
    os.chdir(tree)
    try:
        with contextlib.redirect_stderr(output):  # the normal build shows the same warnings
            cythonize(
                [Extension(f"logclient._ext.{name}", [f"_ext/{name.replace('.', '/')}.pyx"])],
                include_path=["pxd"], compiler_directives=DIRECTIVES, emit_linenums=lines, force=True,
                quiet=True,
            )  # fmt: skip
    except CompileError:
        raise SystemExit(f"fuzz: {output.getvalue()}") from None
    finally:
        os.chdir(before)


def command(tree: Path, name: str, compiler: list[str]) -> Command:
    """Return the command that compiles and links the extension with this dotted name."""
    path = name.replace(".", "/")
    uses = libraries.flags(name, libraries.find())
    return Command(
        [*compiler, *(f"-D{macro}=1" for macro in uses.macros), *uses.compile, "-shared", "-fPIC", "-w",
         "-I", sysconfig.get_path("include"), "-I", "_ext", f"_ext/{path}.c", *uses.link,
         "-o", f"logclient/_ext/{path}.so"],
        tree,
    )  # fmt: skip


def pin(path: Path) -> None:
    """Repeat the #line directive before every line of C: otherwise gcc would count on from the first one."""
    out, place, joined = [], "", False
    for line in path.read_text().split("\n"):
        if line.startswith("#line "):
            place = line
        elif place and not joined:
            out.append(place)
        out.append(line)
        joined = line.endswith("\\")
    path.write_text("\n".join(out))


def copy(tree: Path) -> None:
    """Copy the sources and the Python half of the package, so that a build imports only from itself."""
    shutil.rmtree(tree, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "_ext", "*.so", "*.c")
    shutil.copytree(ROOT / "logclient", tree / "logclient", ignore=ignored)
    shutil.copytree(ROOT / "_ext", tree / "_ext", ignore=ignored)
    for _, folder in extensions.packages(ROOT / "_ext"):
        package = tree / "logclient" / folder.relative_to(ROOT)
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    for file, old, new in CHANGES:
        change(tree, file, old, new)


def sanitized(name: str, codecs: Collection[str], plant: Plant | None = None) -> Iterator[Command]:
    """Yield the commands for a build with AddressSanitizer, and with the bug `plant` (after `clean`)."""
    tree = OUT / name
    compiler = [clang(), "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"]
    copy(tree)
    if plant is not None:
        change(tree, plant.file, plant.old, plant.new)
    extensions.share_declarations(tree / "_ext", tree / "pxd")
    for extension in others(codecs):
        if plant is None:
            translate(tree, extension)
            yield command(tree, extension, compiler)
        else:
            so = Path("logclient", "_ext", f"{extension}.so")
            (tree / so).symlink_to(OUT / "clean" / so)
    for extension in codecs:
        translate(tree, extension)
        yield command(tree, extension, [*compiler, "-fsanitize=fuzzer-no-link", *MEMORY])


def address(names: Iterable[str]) -> Path:
    """Make the build for programs, and return its tree. Without clang, gcc makes it.

    Raises:
        MissingError: both compilers, or their runtimes, are missing.
    """
    tree = OUT / "address"
    compiler = [*_for_programs()[0], "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"]
    copy(tree)
    extensions.share_declarations(tree / "_ext", tree / "pxd")
    for extension in names:
        translate(tree, extension)
        run(command(tree, extension, compiler))
    return tree


def runtime() -> str:
    """Return the library that an ordinary interpreter must preload for `address`.

    Raises:
        MissingError: it is missing.
    """
    compiler, names = _for_programs()
    for name in names:
        done = subprocess.run([compiler[0], f"-print-file-name={name}"], capture_output=True, text=True)
        if os.path.isabs(done.stdout.strip()):
            return os.path.realpath(done.stdout.strip())
    raise MissingError(f"{compiler[0]} has no shared AddressSanitizer")


def _for_programs() -> tuple[list[str], list[str]]:
    # A compiler, and the names of its shared runtime.
    try:
        machine = os.uname().machine
        return [clang(), "-shared-libasan"], ["libclang_rt.asan.so", f"libclang_rt.asan-{machine}.so"]
    except MissingError:
        if (gcc := shutil.which(os.environ.get("GCC", "gcc"))) is None:
            raise
        return [gcc], ["libasan.so"]


def lines(codecs: Collection[str]) -> Iterator[Command]:
    """Yield the commands for the build that counts lines."""
    tree = OUT / "lines"
    gcc = os.environ.get("GCC", "gcc")
    gcov()
    copy(tree)
    extensions.share_declarations(tree / "_ext", tree / "pxd")
    for extension in (extensions.RUNTIME, *others(codecs)):
        so = f"{extension}{sysconfig.get_config_var('EXT_SUFFIX')}"  # of the normal build
        (tree / "logclient" / "_ext" / so).symlink_to(ROOT / "_ext" / so)
    for extension in codecs:
        translate(tree, extension, lines=True)
        pin(tree / "_ext" / f"{extension}.c")
        yield command(tree, extension, [gcc, "-O0", "--coverage", *MEMORY])


def driver() -> Iterator[Command]:
    """Yield the commands that make the fuzzer and its allocator."""
    OUT.mkdir(parents=True, exist_ok=True)
    source = ROOT / "fuzz"
    yield Command([clang(), "-O1", "-shared", "-fPIC", str(source / "memory.c"), "-o", "memory.so"], OUT)
    yield Command(
        [clang(), "-O1", "-g", "-fsanitize=fuzzer,address", "-rdynamic", "-I", sysconfig.get_path("include"),
         str(source / "driver.c"), "-o", "driver", *libpython()],
        OUT,
    )  # fmt: skip


def environment(tree: Path, target: str = "") -> dict[str, str]:
    """Return the environment of a program that uses a build."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_", "COVERAGE_"))}
    return kept | {
        "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}",
        "PYTHONMALLOC": "malloc",  # the interpreter's own allocator would hide reads beyond an object
        "PYTHONHASHSEED": "0",
        "PYTHONSAFEPATH": "1",  # without the current folder
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOGCLIENT_FUZZ_MEMORY": str(OUT / "memory.so"),
        "LOGCLIENT_FUZZ_PYTHON": sys.executable,
        "LOGCLIENT_FUZZ_TARGET": f"fuzz.targets.{target}",
        # Objects that the interpreter keeps until its end are not leaks. Our own leaks show as growth.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=32",
    }


def lock() -> None:
    """Allow one run at a time, until the process ends: runs share builds and corpora."""
    OUT.mkdir(parents=True, exist_ok=True)
    lock.file = open(OUT / ".lock", "w")  # type: ignore[attr-defined]  # noqa: SIM115
    try:
        fcntl.flock(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[attr-defined]
    except BlockingIOError:
        raise SystemExit("fuzz: another run uses build/fuzz") from None
