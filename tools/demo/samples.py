"""Sample log lines: from files, from this machine, or generated from a seed."""

from __future__ import annotations

import logging
import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from logclient.errors import ConfigError

SYSTEM = Path("/var/log")

_MAX_LINES = 100_000
_MAX_BYTES = 32 << 20  # of log lines kept in memory
_MADE = 10_000  # lines, when they are generated
_SEED = 7
_LEVELS = {"error": 40, "warn": 30, "fail": 30, "debug": 10}


class Line(NamedTuple):
    """A log line and where it comes from."""

    program: str  # name of the program that wrote it, or of the file
    text: str
    file: str

    @property
    def level(self) -> int:
        """The level of `logging` that its text suggests."""
        low = self.text.lower()
        return next((level for word, level in _LEVELS.items() if word in low), logging.INFO)


class Samples(NamedTuple):
    """Log lines and a description of their source."""

    lines: list[Line]
    source: str  # description of the source

    @property
    def mean(self) -> float:
        """Mean length of a line in bytes."""
        return sum(len(line.text.encode()) for line in self.lines) / len(self.lines)


def choose(
    files: Sequence[str] = (), *, near: tuple[float, float] | None = None, system: Path = SYSTEM
) -> Samples:
    """Take lines of files; without files those of the system's text logs; else generated ones.

    These are at most 100,000 lines or 32 MiB. The system's are taken if their mean length in bytes is `near`.

    Raises:
        ConfigError: The files hold no lines.
        OSError: One of the files cannot be read.
    """
    if files:
        lines, count = _read([Path(name) for name in files], strict=True)
        if not lines:
            raise ConfigError(f"no log lines found in {', '.join(files)}")
        return Samples(lines, _counted(count, "file"))
    lines, count = _read(sorted(path for path in system.rglob("*") if _is_text(path)), strict=False)
    found = Samples(lines, f"{_counted(count, 'text log')} in {system}")
    if lines and (near is None or near[0] <= found.mean <= near[1]):
        return found
    return Samples(list(generate(_MADE)), f"the generator (seed {_SEED})")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _read(paths: Sequence[Path], *, strict: bool) -> tuple[list[Line], int]:
    """Return lines, and the number of their files. Leave out files that cannot be read, unless `strict`."""
    lines: list[Line] = []
    files = 0
    size = 0
    for path in paths:
        before = len(lines)
        try:
            with open(path, "rb") as file:
                for raw in file:
                    text = raw.decode("utf-8", "replace").rstrip("\r\n")
                    if text:
                        lines.append(Line(path.stem, text, str(path)))
                        size += len(raw)
                    if len(lines) >= _MAX_LINES or size >= _MAX_BYTES:
                        break
        except OSError:
            if strict:
                raise
        files += len(lines) > before
        if len(lines) >= _MAX_LINES or size >= _MAX_BYTES:
            break
    return lines, files


def _is_text(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            head = file.read(4096)
        head[:-4].decode()  # a character may be cut at the end
    except (OSError, UnicodeDecodeError):
        return False
    return bool(head) and b"\0" not in head


_BEGIN = datetime(2026, 3, 14, 6, 25)
_HOSTS = ("web-1", "web-2", "db-main", "cache-07", "build-host", "laptop-of-ana")
_NAMES = ("root", "deploy", "backup", "ana", "jens", "postgres", "www-data", "maria.lopez", "test", "guest")
_PATHS = (
    "/", "/health", "/login", "/static/site.css", "/api/v2/orders", "/api/v2/orders/{n}", "/search?q={hex}",
    "/images/{hex}.jpg", "/cart/items?session={hex}", "/api/v1/users/{n}/settings", "/downloads/{hex}.tar.gz",
)  # fmt: skip
_AGENTS = ("curl/8.5.0", "python-requests/2.32", "Mozilla/5.0 (X11; Linux x86_64)", "kube-probe/1.31")

# The value of {name} in a template.
_FIELDS: dict[str, Callable[[random.Random], str]] = {
    "n": lambda r: str(int(10 ** r.uniform(0, 6))),
    "small": lambda r: str(r.randrange(64)),
    "pid": lambda r: str(r.randint(300, 32_000)),
    "port": lambda r: str(r.randint(32_768, 60_999)),
    "ip": lambda r: f"10.{r.randrange(4)}.{r.randrange(256)}.{r.randrange(1, 255)}",
    "far": lambda r: f"203.0.{r.choice((112, 113))}.{r.randrange(1, 255)}",
    "hex": lambda r: f"{r.getrandbits(48):012x}",
    "block": lambda r: f"blk_{r.getrandbits(62) - (1 << 61)}",
    "host": lambda r: r.choice(_HOSTS),
    "name": lambda r: r.choice(_NAMES),
    "path": lambda r: r.choice(_PATHS),
    "agent": lambda r: r.choice(_AGENTS),
    "ms": lambda r: f"{r.expovariate(0.05):.2f}",
}

# program -> (share in 100, the head of its lines, the rest of them), with codes of strftime
_PROGRAMS = {
    "access": (16, "{ip} - - [%d/%b/%Y:%H:%M:%S +0000] ", """\
"GET {path} HTTP/1.1" 200 {n} "-" "{agent}"
"GET {path} HTTP/1.1" 304 0 "-" "{agent}"
"POST {path} HTTP/1.1" 201 {n} "-" "{agent}"
"GET {path} HTTP/1.1" 404 196 "-" "{agent}\""""),
    "httpd": (14, "[%a %b %d %H:%M:%S %Y] ", """\
[notice] worker {pid} takes slot {small}
[error] worker {pid} of slot {small} has left its queue in state {small}
[error] [client {far}] no index of /srv/www/{hex}/, and listing it is forbidden
[warn] [client {ip}] request took {ms} ms, more than the limit"""),
    "store": (20, "%y%m%d %H%M%S {pid} INFO ", """\
store.DataNode$Receiver: Receiving {block} from /{ip}:{port}, to be kept at /{ip}:50010
store.DataNode$Responder: Responder {small} for block {block} of size {n} from /{ip} ends
store.Names: BLOCK* added to the map: {ip}:50010 now holds {block}, of size {n}
store.Names: BLOCK* allocated for /user/{name}/_temporary/_task_{hex}_m_{n}_0/part-{small}: {block}
store.DataNode$Sender: {ip}:50010 served {block} to /{ip} in {ms} ms, {small} readers wait"""),
    "sshd": (18, "%b %d %H:%M:%S {host} sshd[{pid}]: ", """\
Failed password for {name} from {far} port {port} ssh2
Accepted publickey for {name} from {ip} port {port} ssh2: ED25519 SHA256:{hex}{hex}
session opened for user {name}(uid={small}) by (uid=0), request {hex} from the jump host
connection of user {name} closed by {far} port {port} before authentication ended
user {name} is in no group that may log in to this host [preauth]"""),
    "worker": (16, "%y/%m/%d %H:%M:%S INFO ", """\
executor.Executor: Task {small}.0 in stage {small}.0 (TID {n}) has ended. {n} bytes go to the driver
memory.Store: Block rdd_{small}_{small} kept as bytes (size {ms} KB, free {ms} MB)
python.Runner: Times: total = {n}, start = -{small}, prepare = {small}, finish = {small}
storage.Fetcher: Getting {small} blocks of which {small} are local, in {ms} ms"""),
    "system": (10, "%b %d %H:%M:%S {host} ", """\
kernel[0]: [{n}.{pid}] eth0: link is up at 1000 Mbps, full duplex, flow control rx/tx, {n} packets lost
systemd[1]: session-{n}.scope: ended as it should, used {ms} s of CPU time, {n} KiB at its peak
networkd[{pid}]: [connection {hex} evaluate] {far}:443 does not answer check {small}, next in {ms} s
power[{pid}]: assertion {hex} of process {name}[{pid}] keeps the machine awake, for {n} s of {ms}
desktop[{pid}]: layer {hex} of window {n} has no surface, {small} frames were dropped since {ms} ms, \
compositor {hex} restarts the stream for display {small} at {n} by {n}"""),
    "orders": (6, "", """\
{{"time":"%Y-%m-%dT%H:%M:%SZ","level":"info","message":"order accepted","order":{n},"took_ms":{ms}}}
{{"time":"%Y-%m-%dT%H:%M:%SZ","level":"debug","message":"cache miss","key":"{hex}","user":"{name}"}}"""),
}  # fmt: skip


class _Fields(dict[str, str]):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw

    def __missing__(self, name: str) -> str:
        return _FIELDS[name](self.draw).format_map(self)


def generate(count: int, seed: int = _SEED) -> Iterator[Line]:
    """Make lines as programs of several kinds write them: web servers, a block store, sshd, JSON.

    They have 116 bytes on average. The same arguments make the same lines.
    """
    draw = random.Random(seed)
    fields = _Fields(draw)
    programs = list(_PROGRAMS)
    shares = list(accumulate(share for share, _, _ in _PROGRAMS.values()))
    now = _BEGIN
    for _ in range(count):
        now += timedelta(seconds=draw.expovariate(2.0))
        program = programs[bisect(shares, draw.randrange(shares[-1]))]
        _, head, rest = _PROGRAMS[program]
        text = now.strftime(head + draw.choice(rest.split("\n"))).format_map(fields)
        yield Line(program, text, f"generated/{program}.log")
