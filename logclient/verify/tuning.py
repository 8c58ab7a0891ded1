"""Sizes that decide how much memory and time a comparison takes."""

from __future__ import annotations

from typing import NamedTuple

from logclient.evidence.segments import BATCH_UNITS, CHUNK_BYTES


class Tuning(NamedTuple):
    """Sizes that decide memory and speed, never the verdict. Tests make them small."""

    bucket_bits: int = 18
    """A bucket has at most ``2 ** bucket_bits`` sequences, of one large producer or of several small ones. By
    default it takes 20 MB while it is judged."""
    task_places: int = 1 << 22
    """A task compares about so many sequences, which takes a second; with many cores fewer, and more where
    there would be too many tasks."""
    batch_units: int = BATCH_UNITS  # units in one batch
    chunk_bytes: int = CHUNK_BYTES
    """Bytes of one read: some 12,000 single events, which are still in the cache when they are decoded."""
    together_bytes: int = 64 << 20
    """Captures of fewer bytes are compared in one task, without a shuffle, where Spark is on this machine: it
    takes less time than to start the parts of Spark that a shuffle of rows needs."""
