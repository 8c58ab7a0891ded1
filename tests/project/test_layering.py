"""Directions of imports: read from the sources and tried in fresh interpreters."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import logclient
from tests.support import ROOT, clean_environment
from tests.support.package import PACKAGE, PROTOCOLS, modules
from tests.support.patience import PATIENCE
from tools import extensions

EXT = ROOT / "_ext"

# Anybody may import these.
LEAVES_OWN: dict[str, set[str]] = {
    "config": {"config", "errors", "standard"},
    "descriptors": {"standard"},
    "errors": set(),
    "files": {"descriptors", "errors", "files", "standard"},
    "lazy": set(),
    "readable": set(),
    "standard": set(),
    "threads": {"errors", "standard"},
}
LEAVES = set(LEAVES_OWN)

# Room -> the rooms right below it. What lies below those is allowed too.
ARROWS: dict[str, set[str]] = {
    "root": {"aio", "client", "faces", "handler"},
    "__main__": {"cli"},
    "cli": {"client", "handler", "faces", "testing", "verify", "root", "run"},
    "run": {"handler", "integrations"},
    "testing": {"consumers", "verify"},
    "handler": {"client", "aio", "records"},
    "records": {"_ext records"},
    "integrations": {"client", "aio", "handler", "faces"},
    "faces": {"client", "aio", "consumers"},
    "aio": {"client", "delivery"},
    "client": {"delivery", "records"},
    "codec": {"contract"},
    "delivery": {"contract", "_ext pump", "_ext records"},
    "consumers": {"transports", "protocols", "_ext receivers"},
    "verify": {"evidence"},
    "evidence": {"protocols", "_ext files"},
    "protocols": {"contract", "_ext codecs"},
    "transports": {"contract", "_ext senders"},
    "contract": {"_ext queue"},  # a batch is the queue's
    "_ext codecs": {"_ext base"},
    "_ext records": {"_ext queue"},
    "_ext senders": {"_ext pump"},
    "_ext pump": {"_ext queue"},
    "_ext files": {"_ext base"},
    "_ext receivers": {"_ext queue"},
    "_ext queue": {"_ext sockets"},
    "_ext sockets": {"_ext base"},
    "_ext base": set(),
}

# Modules of a protocol's package that do I/O or need threads; the others are sans-IO.
CLIENT_MODULES = {(), ("agent",), ("client",), ("request",), ("state",)}
CONSUMER_MODULES = {"subscriber", "zeromq"}
"""Modules of a protocol's package that receive."""
EXT_ROOMS = {
    "_ext base": {"buffer", "codec_base", "constants", "decoder", "deflate", "descriptors", "hash", "codec"}
    | {"ids", "jsonscan", "jsontext"},
    "_ext queue": {"queue", "inflight", "spool"},
    "_ext records": {"record", "tracebacks"},
    "_ext codecs": PROTOCOLS | {"window"},
    "_ext pump": {"pump"},
    "_ext senders": {"tls", "websocket"},
    "_ext sockets": {"sockets"},
    "_ext files": {"arrivals", "capture", "ledger"},
    "_ext receivers": {"udpreceive"},
}
# In delivery/, but below protocols and transports: what these and the engine ask of each other.
CONTRACT = {"attempt", "compiled", "contract"}
# Concrete protocols are for those who speak one; the others see the contract and get a core by name.
SPEAKERS = {"faces", "protocols", "consumers", "testing", "evidence", "verify", "cli"}

CORE_FORBIDDEN = {"socket", "ssl", "threading", "time", "random", "asyncio", "zmq", "selectors", "select"}
# `time` is built in and always there; its import statement is looked for in the source instead.
CORE_FORBIDDEN_LOADED = (CORE_FORBIDDEN - {"time"}) | {"_socket", "_ssl"}

pytestmark = [pytest.mark.tree, pytest.mark.unit]


def below(room: str) -> set[str]:
    """Return the rooms that a room may import, without itself."""
    found: set[str] = set()
    todo = set(ARROWS[room])
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo |= ARROWS[one]
    return found


def ext_room(name: str) -> str:
    for room, names in EXT_ROOMS.items():
        if name in names:
            return room
    raise AssertionError(f"_ext/{name} has no room: add it to EXT_ROOMS")


def room_of(parts: tuple[str, ...]) -> str:
    """Return the room of a module, given by the parts of its name after `logclient`."""
    if not parts:
        return "root"
    first = parts[0]
    if first == "_ext":
        return ext_room(".".join(parts[1:])) if len(parts) > 1 else "_ext base"
    if first == "delivery" and parts[1:2] and parts[1] in CONTRACT:
        return "contract"
    if first in PROTOCOLS:
        if parts[1:2] == ("config",):
            return "config"
        if parts[1:2] and parts[1] in CONSUMER_MODULES:
            return "consumers"
        return "faces" if parts[1:] in CLIENT_MODULES else "protocols"
    if first == "off":
        return "root"  # it stands in for the clients of all protocols
    if first in LEAVES or first in ARROWS:
        return first
    raise AssertionError(f"logclient.{'.'.join(parts)} has no room: add it to ARROWS")


def protocol_of(parts: tuple[str, ...]) -> str:
    """Return the protocol to which a module belongs; empty when it belongs to none."""
    if parts[:1] == ("_ext",):
        parts = parts[1:]
    return parts[0] if parts and parts[0] in PROTOCOLS else ""


def parts_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def is_module(parts: tuple[str, ...]) -> bool:
    if parts[:1] == ("_ext",):
        name = ".".join(parts[1:])
        return not name or any(name in extensions.modules(EXT, kind) for kind in (".pyx", ".pxd"))
    where = PACKAGE.joinpath(*parts)
    return where.with_suffix(".py").exists() or (where / "__init__.py").exists()


def imports(path: Path) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield every import at any depth: line, top-level name, and for our own the parts after `logclient`."""
    me = parts_of(path)
    here = me if path.name == "__init__.py" else me[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, *rest = alias.name.split(".")
                yield node.lineno, top, tuple(rest)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ("logclient", *here[: len(here) - (node.level - 1)])
            else:
                base = ()
            top, *rest = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                deeper = (*rest, alias.name)
                yield node.lineno, top, deeper if top == "logclient" and is_module(deeper) else tuple(rest)


def wrong_import(me: tuple[str, ...], it: tuple[str, ...]) -> str:
    """Return why module `me` may not import module `it` (both without `logclient`); empty when it may."""
    mine, its = room_of(me), room_of(it)
    own = protocol_of(me)
    if mine in LEAVES:
        return "" if its in LEAVES_OWN[mine] else f"{mine} is a leaf"
    if its in LEAVES:
        return ""
    if its == "_ext senders" and mine != "transports":
        return "senders are for transports only"
    if its == mine == "protocols":
        return "" if protocol_of(it) in ("", own) else "one protocol never imports another"
    if mine == "faces" and its in ("faces", "protocols") and protocol_of(it) not in ("", own):
        return "a face knows its own protocol only"
    if its == "_ext codecs" and mine == "protocols" and protocol_of(it) != own:
        return "a core knows its own codec only"
    if its == mine:
        return ""
    if its == "protocols" and mine not in SPEAKERS:
        return "a concrete protocol is found through the registry"
    if its == "_ext codecs" and mine not in SPEAKERS:
        return "a codec is for its core"
    return "" if its in below(mine) else f"{its} is not below {mine}"


def test_the_rule_refuses_wrong_imports() -> None:
    wrong = [
        ("transports.tcp", "lumberjack.core"),
        ("transports.tcp", "delivery.engine"),
        ("lumberjack.core", "delivery.engine"),
        ("delivery.contract", "delivery.engine"),
        ("delivery.contract", "transports.tcp"),
        ("delivery.engine", "transports.tcp"),
        ("delivery.engine", "lumberjack.core"),
        ("lumberjack.core", "transports.tcp"),
        ("lumberjack.core", "logjam.core"),
        ("lumberjack.core", "plog.core"),
        ("plog.core", "logux.messages"),
        ("plog.core", "plog.client"),
        ("plog.core", "transports.udp"),
        ("lumberjack.core", "_ext.plog"),
        ("lumberjack.core", "_ext.pump"),
        ("delivery.engine", "client"),
        ("delivery.engine", "lumberjack.core"),
        ("delivery.engine", "_ext.lumberjack"),
        ("delivery.engine", "_ext.tls"),
        ("client", "handler"),
        ("testing.lumberjack", "delivery.engine"),
        ("verify.job", "testing.faults"),
        ("client", "testing.lumberjack"),
        ("delivery.engine", "evidence.segments"),
        ("verify.job", "transports.tcp"),
        ("errors", "config"),
        ("config", "client"),
        ("handler", ""),
        ("lumberjack.client", "plog.core"),
        ("plog.client", "logux.client"),
        ("delivery.engine", "plog.core"),
        ("logjam.client", "integrations.wsgi"),
        ("logjam.document", "logjam.agent"),
        ("logjam.core", "logjam.client"),
    ]
    right = [
        ("cli", "client"),
        ("handler", "client"),
        ("handler", "_ext.record"),
        ("client", "_ext.queue"),
        ("delivery.engine", "delivery.contract"),
        ("transports.tcp", "delivery.contract"),
        ("delivery.engine", "_ext.inflight"),
        ("lumberjack.core", "delivery.contract"),
        ("logux.core", "logux.messages"),
        ("logux.client", "logux.core"),
        ("logux", "lazy"),
        ("lumberjack.core", "_ext.lumberjack"),
        ("evidence.frames.logux", "_ext.logux"),
        ("transports.tcp", "_ext.pump"),
        ("testing.lumberjack", "lumberjack.core"),
        ("evidence.wires", "_ext.lumberjack"),
        ("lumberjack.client", "lumberjack.core"),
        ("delivery.batch", "delivery.retry"),
        ("transports.tcp", "errors"),
        ("integrations.wsgi", "logjam"),
    ]

    def judge(pair: tuple[str, str]) -> str:
        me, it = (tuple(name.split(".")) if name else () for name in pair)
        return wrong_import(me, it)

    assert [pair for pair in wrong if not judge(pair)] == []
    assert [(pair, judge(pair)) for pair in right if judge(pair)] == []


@pytest.mark.slow
def test_imports_follow_the_arrows() -> None:
    broken = []
    for path in modules():
        me = parts_of(path)
        for line, top, it in imports(path):
            if top == "logclient" and (why := wrong_import(me, it)):
                broken.append(f"{path.relative_to(ROOT)}:{line}: imports logclient.{'.'.join(it)}: {why}")
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_the_package_imports_no_tests_or_tools() -> None:
    strange = {"tests", "tools", "bench", "setup", "_ext"}
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {top}"
        for path in modules()
        for line, top, _ in imports(path)
        if top in strange
    ]
    assert not broken, "\n".join(broken)


def test_only_the_registry_names_modules_in_strings() -> None:
    """`module:attribute` is an import too, which would evade every rule above."""
    name = re.compile(r"""["']logclient(\.\w+)+:\w+["']""")
    others = [path for path in modules() if path.name != "registry.py"]
    assert [str(p.relative_to(ROOT)) for p in others if name.search(p.read_text(encoding="utf-8"))] == []


def sans_io() -> list[Path]:
    """Modules without I/O, clocks and threads."""
    return [path for path in modules() if room_of(parts_of(path)) == "protocols"]


def test_cores_import_no_clock_and_no_socket() -> None:
    broken = []
    for path in sans_io():
        for line, top, _ in imports(path):
            if top in CORE_FORBIDDEN:
                broken.append(f"{path.relative_to(ROOT)}:{line}: {top}")
    assert not broken, "\n".join(broken)


IMPORT = re.compile(
    r"^[ \t]*from[ \t]+logclient([\w.]*)[ \t]+c?import[ \t]*(?:\(([^)]*)\)|([^\n]*))"
    r"|^[ \t]*c?import[ \t]+logclient([\w.]*)",
    re.MULTILINE,
)


def cimports(text: str) -> Iterator[tuple[str, ...]]:
    """Yield what a Cython file imports of ours, by either kind of import: parts after `logclient`."""
    for match in IMPORT.finditer(re.sub(r"#.*", "", text)):
        base = tuple(part for part in (match[1] or match[4] or "").split(".") if part)
        names = [name.split()[0] for name in (match[2] or match[3] or "").split(",") if name.strip()]
        deeper = [(*base, name) for name in names if is_module((*base, name))]
        yield from deeper or [base]


def test_both_forms_of_cimport_are_found() -> None:
    text = """
from libc.stdlib cimport free
from logclient._ext cimport (
    codec,  # why
    hash as h,
)
    from logclient._ext.codec cimport lc_codec, \\
        lc_wire
import logclient.errors
"""
    assert list(cimports(text)) == [("_ext", "codec"), ("_ext", "hash"), ("_ext", "codec"), ("errors",)]


def ext_sources() -> Iterator[tuple[Path, str, str]]:
    """Yield every Cython file, its name to show, and the module or sub-package directly below `_ext`."""
    for path in sorted(EXT.rglob("*.p*")):
        if path.suffix in (".pyx", ".pxd", ".pxi"):
            name = path.relative_to(EXT)
            yield path, f"_ext/{name.as_posix()}", name.parts[0].partition(".")[0]


def test_extensions_follow_the_arrows() -> None:
    broken = []
    for path, shown, name in ext_sources():
        mine = ext_room(name)
        for it in cimports(path.read_text(encoding="utf-8")):
            its = room_of(it)
            same = its == mine and (mine not in ("_ext codecs", "_ext senders") or it[1] == name)
            if not (same or its in below(mine) or its == "errors"):
                broken.append(f"{shown}: imports logclient.{'.'.join(it)}: {its} is not below {mine}")
    assert not broken, "\n".join(broken)


def test_codecs_make_no_system_call() -> None:
    headers = r"sys/|netinet/|arpa/|unistd|fcntl|poll|netdb|pthread|time\.h|signal|winsock|windows"
    system = re.compile(rf"""["<]({headers})|(cimport|from)\s+posix""")
    quiet = {"_ext base", "_ext codecs", "_ext records", "_ext framing", "_ext files"}
    broken = [
        f"{shown}: {match[0]}"
        for path, shown, name in ext_sources()
        if ext_room(name) in quiet and (match := system.search(path.read_text(encoding="utf-8")))
    ]
    assert not broken


def test_ext_in_the_package_is_no_folder() -> None:
    """logclient/_ext may be the link that `make build` sets, never a folder."""
    where = PACKAGE / "_ext"
    assert where.is_symlink() or not where.exists()


@pytest.mark.parametrize("name", [".".join(parts_of(path)) for path in sans_io()])
def test_a_core_loads_without_clock_and_socket(name: str) -> None:
    """In an interpreter that has loaded nothing else, not even `site`."""
    module = f"logclient.{name}"
    home = Path(logclient.__file__).parent.parent
    program = (
        f"import sys; sys.path.insert(0, {str(home)!r}); import {module}; "
        f"print(*sorted({CORE_FORBIDDEN_LOADED!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of nodes that can all reach each other."""
    reached = {node: set(graph[node]) for node in graph}
    grown = True
    while grown:
        grown = False
        for some in reached.values():
            more = set().union(*(reached.get(it, ()) for it in some)) - some
            some |= more
            grown |= bool(more)
    return [both for node in graph if (both := {it for it in reached[node] if node in reached.get(it, ())})]


@pytest.mark.slow
def test_no_files_or_folders_import_each_other() -> None:
    files: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    for path in modules():
        me = ".".join(parts_of(path))
        its = {".".join(it) for _, top, it in imports(path) if top == "logclient" and it[:1] != ("_ext",)}
        files[me] = its - {me, ""}
        folder = me.partition(".")[0]
        folders.setdefault(folder, set()).update({it.partition(".")[0] for it in files[me]} - {folder})
    assert circles(files) == []
    assert circles(folders) == []
    assert circles({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == [{"a", "b"}] * 2


FACES = {"_sender", "sender", "_waiter", "_peer", "sink", "_sink"}


def reached_through(tree: ast.AST) -> Iterator[str]:
    """Yield expressions that use an attribute of an attribute of the objects that clients hold."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            of = node.value.value
            name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            if name in FACES:
                yield ast.unparse(node)


def test_reaching_through_is_found() -> None:
    text = "self._sender.stats()\nclient._sender.engine.lanes\nsink.log.warn()\nself._sink.closed"
    found = list(reached_through(ast.parse(text)))
    assert found == ["client._sender.engine.lanes", "sink.log.warn"]
    assert not list(reached_through(ast.parse("_sender.engine")))


def test_nobody_reaches_through_what_clients_hold() -> None:
    outside = [path for path in modules() if parts_of(path)[:1] != ("delivery",)]
    found = {str(path): list(reached_through(ast.parse(path.read_text()))) for path in outside}
    assert len(found) > 50 and not {path: some for path, some in found.items() if some}


def test_what_an_application_loads_is_the_client_alone() -> None:
    names = ["", "client", "handler", "aio", "logjam.core", "logux.client", "lumberjack.core", "plog.client"]
    names += [f"transports.{one}" for one in ("tcp", "tls", "udp", "websocket")]
    names += [f"integrations.{one}" for one in ("asgi", "wsgi", "stdlib") if is_module(("integrations", one))]
    program = (
        "import importlib, sys; "
        f"[importlib.import_module(f'logclient.{{name}}'.rstrip('.')) for name in {names!r}]; "
        "print(*{m.split('.')[1] for m in sys.modules if m.startswith('logclient.')}"
        " & {'testing', 'evidence', 'verify', 'cli'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env=clean_environment(), timeout=2 * PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
