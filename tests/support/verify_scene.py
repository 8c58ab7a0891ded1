"""A run of one producer and one listener, written by hand, for the tests of the verdict and its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support import verify_files as files

P, Q = "0a" * 10, "0b" * 10


class Scene:
    """One producer and one listener to begin with; every part can be put in another way."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger"
        self.capture = folder / "capture"
        self.out = folder / "out"
        self.bodies = {seq: files.body(files.event_id(P, seq), f"event {seq}") for seq in range(1, 21)}

    def write_ledger(
        self,
        *,
        producer: str = P,
        bodies: dict[int, bytes] | None = None,
        outcomes: dict[str, Sequence[int]] | None = None,
        tail: Sequence[Any] | None = None,
        identity: str = "id",
        protocol: str = "lumberjack",
        mode: str = "",
        created: Callable[[int], int] = lambda seq: 1000 * seq,
        extra: Sequence[Any] = (),
        per_batch: int = 1000,
        **about: Any,
    ) -> Scene:
        """`about`: more fields of the open line, or other values."""
        bodies = self.bodies if bodies is None else bodies
        lines: list[Any] = [files.open_line(producer, 1, identity, protocol, mode) | about]
        events = [(s, created(s), files.xxh64(raw)) for s, raw in sorted(bodies.items())]
        lines += [files.batch_line(events[i : i + per_batch]) for i in range(0, len(events), per_batch)]
        lines += extra
        for status, seqs in ({"acked": sorted(bodies)} if outcomes is None else outcomes).items():
            if len(seqs):
                line = files.dropped_line(seqs) if status == "dropped" else files.outcome_line(status, seqs)
                lines.append(line)
        lines += [files.close_line(max(bodies, default=0))] if tail is None else list(tail)
        files.write_part(self.ledger, producer, 1, lines)
        return self

    def write_capture(
        self,
        seqs: Sequence[int | bytes] | None = None,
        *,
        listener: str = "main",
        size: int = 4,
        received: Callable[[int], int] = lambda unit: 50_000 + unit,
        **options: Any,
    ) -> Scene:
        """`seqs` are sequences of P, or whole bodies."""
        raws = [
            self.bodies[s] if isinstance(s, int) else s
            for s in (sorted(self.bodies) if seqs is None else seqs)
        ]
        units: list[tuple[bytes, int, int]] = []
        for i in range(0, len(raws), size):
            units.append((files.window(raws[i : i + size]), 0, received(i // size)))
            units.append((b"2A\0\0\0\4", 1, received(i // size)))
        files.write_segments(self.capture, listener, units, **options)
        return self
