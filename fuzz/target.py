"""Fuzz targets: the required content of a module of ``fuzz/targets``.

::

EXTENSIONS     the codecs under test, `_ext/<name>.pyx`; lines are counted in these
MAX_LEN        the most bytes of an input
DICTIONARY     words that the fuzzer inserts
ROOTS          functions of the codec that the input enters; lines are counted in them and all that they call
APART          exceptions from these lines, with reasons: functions, as "name()", or text in a line
PLANTS         the bugs that must be found
seeds()        the first inputs: recorded sessions, and inputs made by the target
run(data)      runs one input; raises if a result is wrong
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from ctypes import c_ubyte
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import memory
from logclient._ext.constants import STOP_MEMORY

ROOT = Path(__file__).resolve().parent.parent
TARGETS = Path(__file__).parent / "targets"


class Plant(NamedTuple):
    """A known bug: the text `old`, which is once in `file`, becomes `new` in the build with the bug."""

    name: str
    file: str
    old: str
    new: str
    shows: tuple[str, ...]
    """Texts, one of which must be in the fuzzer's report."""


ASAN = "ERROR: AddressSanitizer"
TIMEOUT = "ERROR: libFuzzer: timeout"
MEMORY = "ERROR: allocation of"  # fuzz/memory.c


def names() -> list[str]:
    return sorted(path.stem for path in TARGETS.glob("*.py") if path.stem != "__init__")


def load(name: str) -> Any:
    return importlib.import_module(f"fuzz.targets.{name}")


class MissingError(Exception):
    """The error of a missing requirement."""


def use_compiled_hashes(reference: Any, **compiled: Any) -> None:
    """Let the reference use compiled hashes under the fuzzer, for speed; ``make test`` compares hashes."""
    if memory.CAN_FAIL:
        for name, function in compiled.items():
            setattr(reference, name, function)


def seeds_of(name: str) -> list[bytes]:
    """Return the distinct seeds of a target that are not too long."""
    target = load(name)
    return [seed for seed in dict.fromkeys(target.seeds()) if len(seed) <= target.MAX_LEN]


class Outcomes(list[tuple[int, int, int]]):
    """What a codec and its core report, also of what is not in flight: (sequence, status, reason).

    It stands in for ``InflightBatches``, which ignores that.
    """

    def apply(self, ranges: Iterable[tuple[int, int]], status: int, reason: int = 0) -> None:
        for first, last in ranges:
            self += [(seq, status, reason) for seq in range(first, last + 1)]


def read(core: Any) -> tuple[Outcomes, list[Any]]:
    """Return the outcomes since the last call, and the other events; ``CloseWanted`` as "closed"."""
    found = Outcomes()
    for first, last, status, reason in core.codec.outcomes()[0]:
        found.apply([(first, last)], status, reason)
    events, fatal, closed, _ = core.take_events(found)
    return found, [*events, *([fatal] if fatal else []), *(["closed"] if closed else [])]


def enough_memory(stop: int) -> None:
    """Raise MemoryError where a function of a codec says so."""
    if stop == STOP_MEMORY:
        raise MemoryError


_exact: dict[int, Any] = {}


def exact(data: bytes) -> memoryview:
    """Copy the bytes to a buffer of exactly their size: a `bytes` object has a zero behind them."""
    kind = _exact.get(len(data))
    if kind is None:
        kind = _exact[len(data)] = c_ubyte * len(data)
    return memoryview(kind.from_buffer_copy(data)).cast("B") if data else memoryview(b"")


def pieces(data: memoryview, step: int) -> Iterator[memoryview]:
    """Yield the data in pieces of `step` bytes; 0: as a whole."""
    if not step or not len(data):
        yield data
        return
    for at in range(0, len(data), step):
        yield data[at : at + step]


def check(true: object, words: str, *values: object) -> None:
    """Assert a condition, even under python -O."""
    if not true:
        raise AssertionError(f"{words}: {values!r}" if values else words)
