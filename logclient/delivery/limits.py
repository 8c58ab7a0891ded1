"""Bounds and deadlines of one client's delivery."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """The options of the engine. Durations are in seconds, sizes in bytes."""

    max_events: int = 250_000
    max_bytes: int = 64 << 20
    max_event_bytes: int = 1 << 20
    overflow: str = "drop_new"
    block_timeout: float | None = None
    keep_level: int = 4
    batch_events: int = 2048
    batch_bytes: int = 1 << 20
    linger: float = 0.005
    progress_timeout: float = 300.0
    backoff_min: float = 0.1
    backoff_max: float = 30.0
    auth_backoff_min: float = 30.0
    auth_backoff_max: float = 300.0
    max_age: float | None = None
    poison: str = "fail"
    atexit_timeout: float = 2.0


class SpoolOptions(NamedTuple):
    """Where events outlive their process.

    Attributes:
        directory: of the files.
        always: every event goes there; else only what memory cannot take.
        size: bytes of all files of one process.
        age: seconds after which an event is dropped.
        sync: when the disk has them: ``none`` (the kernel decides), ``interval`` or ``batch``.
    """

    directory: str
    always: bool
    size: int
    age: float
    sync: str
