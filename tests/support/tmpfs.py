"""File systems of their own, in memory and in a file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """Mount a file system of its own in memory; skip the test where that is refused."""
    place.mkdir(mode=0o700, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(("mode=0700", *options)), "none", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount: {error}")
    if done.returncode:
        pytest.skip(f"mount is refused: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def on_btrfs(place: Path) -> Iterator[None]:
    """Mount a file system of btrfs from a file beside its place; skip the test where that is refused."""
    place.mkdir(mode=0o700)
    image = place.with_name(f"{place.name}.btrfs")
    with image.open("wb") as file:
        file.truncate(256 << 20)
    try:
        for command in (["mkfs.btrfs", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{command[0]}: {done.stderr.strip()}")
    except OSError as error:
        pytest.skip(f"no btrfs: {error}")
    place.chmod(0o700)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
