"""An emulated network: a client's and a server's namespace, joined by a link that a process carries.

The kernel needs no traffic control for this (netem): each namespace has a TUN device, and what is written to
one of them is read by a process, held back as the `Conditions` say, and written to the other one. The process
owns both namespaces, which vanish with it. Everything inside is real: sockets, TCP, the resolver.

Needs Linux, root, /dev/net/tun, and the commands of iproute2 and util-linux: `why_not` has the reason.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import heapq
import json
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.support import clean_environment

SERVERS = ("10.77.0.2", "10.77.0.3", "10.77.0.4", "10.77.0.66", "fd77::2", "fd77::3")
"""Addresses of the server's side."""

DEAD = ("10.77.0.9", "10.77.0.5", "fd77::9", "fd77::a", "fd77::b")
"""Addresses on the link that nobody has: packets to them vanish, and nothing says so."""

UNROUTED = "2001:db8::9"
"""An address that the client has no route to."""

_CLIENT = ("10.77.0.1", "fd77::1")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
_SYN, _ACK = 0x02, 0x10
_LARGEST = 65_536
UP, DOWN = 0, 1  # from the client to the server, and back


class Conditions(NamedTuple):
    """What the link does to packets. Pairs are for the way up, from the client to the server, and down."""

    rate: tuple[float, float] = (0.0, 0.0)
    """Bytes in a second; 0: no limit."""
    queue: int = 32_768
    """Bytes that wait for a limited rate; what comes more is dropped."""
    delay: float = 0.0
    """Seconds of one way."""
    jitter: float = 0.0
    """Seconds more, at random: packets overtake each other."""
    loss: tuple[float, float] = (0.0, 0.0)
    cut: str = ""
    """``up``, ``down`` or ``both``: the ways that nothing passes."""
    mtu: int = 0
    """Larger packets vanish without a word (a black hole); 0: none do."""
    forget_after: float = 0.0
    """A flow that is idle for so many seconds never passes again, as through a NAT; 0: all do."""
    dead: tuple[str, ...] = ()
    """Addresses that nothing reaches, and that say nothing."""


class Segment(NamedTuple):
    """What the link reads of a packet of TCP or UDP."""

    protocol: int
    source: tuple[bytes, int]
    target: tuple[bytes, int]
    payload: int
    flags: int


def read_segment(packet: bytes) -> Segment | None:
    """Return the segment in an IP packet; None for other protocols, and for all but the first fragment."""
    if packet[0] >> 4 == 4:
        start, protocol = (packet[0] & 15) * 4, packet[9]
        source, target = packet[12:16], packet[16:20]
        if int.from_bytes(packet[6:8]) & 0x1FFF:
            return None
    else:
        start, protocol = 40, packet[6]
        source, target = packet[8:24], packet[24:40]
    if protocol not in (_TCP, _UDP) or len(packet) < start + (20 if protocol == _TCP else 8):
        return None
    ports = struct.unpack_from("!HH", packet, start)
    header, flags = (packet[start + 12] >> 4) * 4 if protocol == _TCP else 8, 0
    if protocol == _TCP:
        flags = packet[start + 13]
    payload = len(packet) - start - header
    return Segment(protocol, (source, ports[0]), (target, ports[1]), payload, flags)


@functools.cache
def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


class Link:
    """The rules of the link, without a clock: which packets pass, and when they arrive."""

    def __init__(self, conditions: Conditions, seed: int = 1) -> None:
        self.conditions = conditions
        self.flows: dict[Any, float] = {}
        self.forgotten: set[Any] = set()
        self.attempts: list[tuple[float, str]] = []
        self.packets, self.bytes, self.payload, self.dropped = [0, 0], [0, 0], [0, 0], [0, 0]
        self._idle_at = [0.0, 0.0]
        self._random = random.Random(seed)

    def forget_flows(self) -> None:
        self.forgotten.update(self.flows)

    def carry(self, way: int, packet: bytes, now: float) -> float | None:
        """Return when a packet that is sent now arrives; None: it never does."""
        self.packets[way] += 1
        self.bytes[way] += len(packet)
        segment = read_segment(packet)
        if not self._passes(way, packet, segment, now):
            self.dropped[way] += 1
            return None
        given = self.conditions
        at = now
        if rate := given.rate[way]:
            begin = max(now, self._idle_at[way])
            if (begin - now) * rate > given.queue:
                self.dropped[way] += 1
                return None
            at = self._idle_at[way] = begin + len(packet) / rate
        if segment is not None and segment.protocol == _TCP:
            self.payload[way] += segment.payload
        return at + given.delay + given.jitter * self._random.random()

    def _passes(self, way: int, packet: bytes, segment: Segment | None, now: float) -> bool:
        given = self.conditions
        if segment is not None:
            self._note(way, segment, now)
            flow = (segment.protocol, *sorted((segment.source, segment.target)))
            last = self.flows.get(flow, now)
            if given.forget_after and now - last > given.forget_after:
                self.forgotten.add(flow)
            self.flows[flow] = now
            if flow in self.forgotten:
                return False
            if any(_packed(one) in (segment.source[0], segment.target[0]) for one in given.dead):
                return False
        if given.cut in ("both", ("up", "down")[way]) or 0 < given.mtu < len(packet):
            return False
        return not given.loss[way] or self._random.random() >= given.loss[way]

    def _note(self, way: int, segment: Segment, now: float) -> None:
        if segment.protocol == _TCP and way == UP and segment.flags & (_SYN | _ACK) == _SYN:
            address, port = segment.target
            family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
            self.attempts.append((now, f"{socket.inet_ntop(family, address)} {port}"))

    def counts(self) -> dict[str, Any]:
        names = ("packets", "bytes", "payload", "dropped", "attempts")
        return {name: getattr(self, name) for name in names}


# -- the process that carries -----------------------------------------------------------------------------


def _namespace(side: str) -> tuple[int, int]:
    """Go into a new network namespace; return descriptors of it and of its TUN device, which is up."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", b"tun0", _IFF_TUN | _IFF_NO_PI))
    lines = ["link set lo up"]
    for address in _CLIENT if side == "client" else SERVERS:
        six = ":" in address
        lines.append(f"{'-6 ' * six}addr add {address}/{64 if six else 24} dev tun0{' nodad' * six}")
    for line in [*lines, "link set tun0 mtu 1500 up"]:
        subprocess.run(["ip", *line.split()], check=True)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY), device


def _obey(link: Link, order: dict[str, Any]) -> dict[str, Any]:
    if change := order.get("change"):
        link.conditions = link.conditions._replace(**_conditions(change))
    if order.get("forget"):
        link.forget_flows()
    return link.counts()


def _conditions(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _carry(settings: dict[str, Any]) -> None:
    """Carry packets, and obey orders, a line of JSON each, until the input ends."""
    link = Link(Conditions(**_conditions(settings)))
    sides = [_namespace("client"), _namespace("server")]
    devices = [device for _, device in sides]
    print(json.dumps([f"/proc/{os.getpid()}/fd/{namespace}" for namespace, _ in sides]), flush=True)
    due: list[tuple[float, int, int, bytes]] = []
    number = 0
    text = b""
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        readable, _, _ = select.select([0, *devices], [], [], wait)
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, way, packet = heapq.heappop(due)
            try:
                os.write(devices[1 - way], packet)
            except OSError:
                link.dropped[way] += 1
        for way, device in enumerate(devices):
            for packet in _packets(device) if device in readable else ():
                number += 1
                if (at := link.carry(way, packet, now)) is not None:
                    heapq.heappush(due, (at, number, way, packet))
        if 0 in readable:
            piece = os.read(0, 65_536)
            if not piece:
                return
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                print(json.dumps(_obey(link, json.loads(line))), flush=True)


def _packets(device: int) -> list[bytes]:
    found = []
    while len(found) < 64:
        try:
            found.append(os.read(device, _LARGEST))
        except OSError:
            break
    return found


# -- a name server ----------------------------------------------------------------------------------------


class Answers(NamedTuple):
    """What the name server answers for each name that it is asked for."""

    a: tuple[str, ...] = ()
    aaaa: tuple[str, ...] = ()
    delay: float = 0.0
    code: int = 0
    """2: SERVFAIL, 3: NXDOMAIN."""
    silent: bool = False


def answer(query: bytes, given: Answers) -> bytes:
    """Return the answer to a query for addresses."""
    end = 12
    while query[end]:
        end += query[end] + 1
    (kind,) = struct.unpack_from("!H", query, end + 1)
    end += 5
    addresses = [] if given.code else {1: given.a, 28: given.aaaa}.get(kind, ())
    said = query[:2] + struct.pack("!HHHHH", 0x8180 | given.code, 1, len(addresses), 0, 0) + query[12:end]
    for data in map(_packed, addresses):
        said += struct.pack("!HHHIH", 0xC00C, kind, 1, 1, len(data)) + data
    return said


def _serve_names(address: str, settings: dict[str, Any]) -> None:
    """Answer queries as the last line of the input says; each line is answered by the number of queries."""
    given = Answers(**settings)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    asked = 0
    print("ready", flush=True)
    text = b""
    while True:
        readable, _, _ = select.select([0, server], [], [])
        if server in readable:
            query, peer = server.recvfrom(512)
            asked += 1
            if not given.silent:
                reply = functools.partial(server.sendto, answer(query, given), peer)
                timer = threading.Timer(given.delay, reply)
                timer.daemon = True
                timer.start()
        if 0 in readable:
            piece = os.read(0, 65_536)
            if not piece:
                return
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                given = Answers(**json.loads(line)) if line.strip() else given
                print(asked, flush=True)


# -- for tests --------------------------------------------------------------------------------------------


@functools.cache
def why_not() -> str:
    """Return the reason why there can be no emulated network here; empty: there can."""
    if sys.platform != "linux":
        return "an emulated network needs Linux"
    if os.geteuid() != 0:
        return "an emulated network needs root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "an emulated network needs /dev/net/tun"
    if lacking := [name for name in ("ip", "nsenter", "unshare", "mount") if shutil.which(name) is None]:
        return f"an emulated network needs the commands {', '.join(lacking)}"
    try:
        with Network():
            return ""
    except OSError as error:
        return f"no emulated network: {error}"


class _Helper:
    """A part of this module as a process, which obeys lines and answers each."""

    def __init__(self, command: list[str]) -> None:
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(PYTHONPATH=path),
        )
        self.first = self._line()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        _, errors = self.process.communicate()
        raise OSError(f"{' '.join(self.process.args[-3:])}: {errors.strip()[-500:]}")  # type: ignore[index]

    def end(self) -> None:
        self.process.communicate()


def _part(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.networks", name, *arguments]


class Network:
    """A client's and a server's side, and the link between them. A context manager.

    Args:
        folder: where the client's ``resolv.conf`` is written, if there are names.
        names: what a name server on the server's side answers; None: the machine's resolver stays.
        conditions: of the link, by name, as in `Conditions`.
    """

    def __init__(
        self, folder: Path | None = None, names: dict[str, Any] | None = None, **conditions: Any
    ) -> None:
        self._folder = folder
        self._names = names
        self._conditions = conditions
        self._name_server: _Helper | None = None

    def __enter__(self) -> Network:
        self._carrier = _Helper(_part("link", json.dumps(self._conditions)))
        self._sides = dict(zip(("client", "server"), json.loads(self._carrier.first), strict=True))
        if self._names is not None:
            assert self._folder is not None
            (self._folder / "resolv.conf").write_text(f"nameserver {SERVERS[0]}\n")
            part = _part("names", SERVERS[0], json.dumps(self._names))
            self._name_server = _Helper(self._inside("server", part))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._name_server is not None:
            self._name_server.end()
        self._carrier.end()

    def change(self, **conditions: Any) -> None:
        """Change some conditions of the link."""
        self._order(change=conditions)

    def forget_flows(self) -> None:
        """Let nothing pass any more that belongs to a flow of now; new ones do."""
        self._order(forget=True)

    def counts(self) -> dict[str, Any]:
        """Return what the link has seen.

        ``packets``, ``bytes``, ``dropped``, and ``payload`` (of TCP, carried) have a number for each way;
        ``attempts`` has the time and the target of each SYN of the client.
        """
        return self._order()

    def rename(self, **answers: Any) -> int:
        """Change all that the name server answers, as in `Answers`; return how often it was asked."""
        assert self._name_server is not None
        return int(self._name_server.ask(json.dumps(answers) if answers else ""))

    def inside(self, side: str, command: list[str]) -> list[str]:
        """Return the command that runs `command` in the namespace of ``client`` or ``server``."""
        if side == "client" and self._names is not None:
            script = 'mount --make-rprivate / && mount --bind "$0" /etc/resolv.conf && exec "$@"'
            file = f"{self._folder}/resolv.conf"
            command = ["unshare", "-m", "sh", "-c", script, file, *command]
        return self._inside(side, command)

    def _inside(self, side: str, command: list[str]) -> list[str]:
        return ["nsenter", f"--net={self._sides[side]}", *command]

    def _order(self, **order: Any) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self._carrier.ask(json.dumps(order)))
        return said


if __name__ == "__main__":
    if sys.argv[1] == "link":
        _carry(json.loads(sys.argv[2]))
    else:
        _serve_names(sys.argv[2], json.loads(sys.argv[3]))
