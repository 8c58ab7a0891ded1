"""Fuzz targets: what a module of ``fuzz/targets`` must have.

::

EXTENSIONS     the codecs it is about: `_ext/<name>.pyx`, the first of them whose lines are counted
MAX_LEN        bytes of an input, at most
DICTIONARY     words that the fuzzer puts in
ROOTS          functions of the codec that the input enters: with all that they call, its lines
APART          what of them is not the target's, and why: functions, as "name()", or what stands in a line
PLANTS         the bugs that must be found
seeds()        inputs to begin with: recorded sessions, and what is made here
run(data)      one input; raises when something is not as it must be
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from ctypes import c_ubyte
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import memory

ROOT = Path(__file__).resolve().parent.parent
TARGETS = Path(__file__).parent / "targets"


class Plant(NamedTuple):
    """A known bug: `old` stands once in `file`, the build that plants it has `new` there."""

    name: str
    file: str
    old: str
    new: str
    shows: tuple[str, ...]
    """One of these is in what the fuzzer reports."""


ASAN = "ERROR: AddressSanitizer"
TIMEOUT = "ERROR: libFuzzer: timeout"
MEMORY = "ERROR: allocation of"  # fuzz/memory.c


def names() -> list[str]:
    return sorted(path.stem for path in TARGETS.glob("*.py") if path.stem != "__init__")


def load(name: str) -> Any:
    return importlib.import_module(f"fuzz.targets.{name}")


class MissingError(Exception):
    """What must be there first."""


def hasten(twin: Any, **compiled: Any) -> None:
    """Under the fuzzer, hashes of the twin by the compiled functions; ``make test`` compares those."""
    if memory.CAN_FAIL:
        for name, function in compiled.items():
            setattr(twin, name, function)


def seeds_of(name: str) -> list[bytes]:
    """Each once; those that are too long are left out."""
    target = load(name)
    return [seed for seed in dict.fromkeys(target.seeds()) if len(seed) <= target.MAX_LEN]


_exact: dict[int, Any] = {}


def exact(data: bytes) -> memoryview:
    """The bytes with nothing behind them: those of a `bytes` object have a zero there."""
    kind = _exact.get(len(data))
    if kind is None:
        kind = _exact[len(data)] = c_ubyte * len(data)
    return memoryview(kind.from_buffer_copy(data)).cast("B") if data else memoryview(b"")


def pieces(data: memoryview, step: int) -> Iterator[memoryview]:
    """All of it (step 0), or so many bytes at a time."""
    if not step or not len(data):
        yield data
        return
    for at in range(0, len(data), step):
        yield data[at : at + step]


def must(true: object, words: str, *values: object) -> None:
    """An assertion that python -O keeps."""
    if not true:
        raise AssertionError(f"{words}: {values!r}" if values else words)
