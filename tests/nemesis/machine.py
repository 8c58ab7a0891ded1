"""Resources of the machine for the processes of one scene: ports, names, clocks, certificates."""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom

from tests.nemesis.schedule import SERVERS
from tests.support import ROOT, missing

ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Of the servers, unless there is an emulated link to them."""
LIBRARIES = (ROOT / "tests" / "clock_shift.c", ROOT / "tests" / "nemesis" / "hosts.c")

# Below the kernel's ports for outgoing connections: such a connection could take the port of a server that is
# down, or connect to itself there.
_PORTS = range(12_000, 32_000)
_given: set[int] = set()
_lock = threading.Lock()


def ports(n: int) -> list[int]:
    """Reserve ports that are free on both addresses, for TCP and UDP."""
    found: list[int] = []
    with _lock:
        while len(found) < n:
            port = SystemRandom().choice(_PORTS)
            if port not in _given and _free(port):
                _given.add(port)
                found.append(port)
    return found


def release_ports(given: list[int]) -> None:
    with _lock:
        _given.difference_update(given)


def _free(port: int) -> bool:
    with ExitStack() as opened:
        for address in ADDRESSES:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                sock = opened.enter_context(socket.socket(socket.AF_INET, kind))
                try:
                    sock.bind((address, port))
                except OSError:
                    return False
    return True


@functools.cache
def libraries() -> str:
    """Return the libraries for LD_PRELOAD, built once in the tree's build folder."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        missing("no C compiler for the preloaded clock and names")
    folder = ROOT / "build" / "nemesis"
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for source in LIBRARIES:
        target = folder / f"{source.stem}.so"
        if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            with tempfile.TemporaryDirectory(dir=folder) as beside:
                new = Path(beside) / target.name
                subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", new, source, "-ldl"], check=True)
                new.replace(target)
        built.append(str(target))
    return ":".join(built)


class Names:
    """A file of names and addresses (see hosts.c)."""

    def __init__(self, folder: Path, addresses: Sequence[str] = ADDRESSES) -> None:
        self.path = folder / "hosts"
        self._addresses = addresses
        self.address = dict.fromkeys(SERVERS, addresses[0])
        self._said = dict(self.address)
        self._write()

    def moved(self, server: str) -> str:
        """Return the next address of a server, before its name changes."""
        self.address[server] = next(a for a in self._addresses if a != self.address[server])
        return self.address[server]

    def say(self, server: str, how: str = "") -> None:
        """Set the answer to look-ups; empty `how`: the true address."""
        address = self.address[server]
        self._said[server] = {"": address, "slow": f"slow {address}"}.get(how, how)
        self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{name}.nemesis {said}\n" for name, said in self._said.items()))
        new.replace(self.path)


class Clock:
    """A wall clock that can be set (see tests/clock_shift.c)."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        self.path = path
        with path.open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), 8)

    def jump(self, seconds: int) -> None:
        (before,) = struct.unpack("=q", self._file[:])
        self._file[:] = struct.pack("=q", before + seconds * 1_000_000_000)

    def environment(self, names: Names) -> dict[str, str]:
        return {"LD_PRELOAD": libraries(), "CLOCK_SHIFT": str(self.path), "NEMESIS_HOSTS": str(names.path)}


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Have a file system of `size` MiB in a folder.

    Raises:
        OSError: this process may not mount one.
    """
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=700", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{folder}: no file system of {size} MiB: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Certificates:
    """An authority that producers trust, and a certificate for each server; authorities can be added."""

    def __init__(self, folder: Path) -> None:
        from tests.support.tls import Authority

        self._new = Authority
        self._folder = folder
        self._authorities = [Authority(folder / "authority-0")]
        self.ca = folder / "ca.pem"
        self._publish()
        for server in SERVERS:
            self.renew(server)

    def path(self, server: str) -> Path:
        return self._folder / f"{server}.pem"

    def renew(self, server: str, name: str = "") -> None:
        """Issue a new certificate by the newest authority; `name`: for another name."""
        issued = self._authorities[-1].issue(server, f"{name or server}.nemesis")
        shutil.copyfile(issued, self.path(server))

    def another_authority(self) -> None:
        """Add an authority, which producers also trust from their next connection on."""
        self._authorities.append(self._new(self._folder / f"authority-{len(self._authorities)}"))
        self._publish()

    def _publish(self) -> None:
        new = self.ca.with_suffix(".new")
        new.write_text("".join(Path(authority.ca).read_text() for authority in self._authorities))
        os.replace(new, self.ca)
