"""Runs every command and imports every module in an environment of `test_plain_install`, and prints the ends.

It must not import anything of the tests: the environment has the package and the extras named by its test.
"""

import contextlib
import importlib
import io
import json
import pkgutil
import sys
from pathlib import Path

import logclient
from logclient.cli import main
from logclient.testing.lumberjack import Collector


def run(*arguments: str) -> tuple[int | str, str]:
    """Return the exit code of a command, and what it wrote on both streams."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code: int | str = main(arguments)
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code = repr(error)
    return code, out.getvalue()


def modules() -> list[str]:
    names = ["logclient", "pyspark_logclient"]
    folders = [logclient.__path__[0]]
    while folders:
        folder = folders.pop()
        prefix = ".".join(Path(folder).relative_to(Path(logclient.__path__[0]).parent).parts)
        for found in pkgutil.iter_modules([folder]):
            if found.name not in ("__main__", "pytest_plugin"):  # which pytest loads
                names.append(f"{prefix}.{found.name}")
            if found.ispkg:
                folders.append(f"{folder}/{found.name}")
    return names


def imported(name: str) -> tuple[int | str, str]:
    try:
        importlib.import_module(name)
    except Exception as error:
        return type(error).__name__, str(error)
    return 0, ""


folder = Path(sys.argv[1])
lines, zst = folder / "lines.txt", folder / "lines.zst"
lines.write_text("one\ntwo\n")
zst.write_bytes(b"\x28\xb5\x2f\xfd\x04\x00\x09\x00\x00a\n")
ledger, capture = str(folder / "ledger"), str(folder / "capture")
results: dict[str, tuple[int | str, str]] = {}
with Collector(capture=capture) as collector:
    results["send"] = run("send", collector.url, str(lines), "--ledger", ledger)
    results["check"] = run("check", collector.url, "--timeout", "20s")
judge = ["verify", "--local", "--ledger", ledger, "--capture", capture]
HOUR = ["--since", "2026-05-01T12:00:00Z", "--until", "2026-05-01T13:00:00Z"]
KAFKA = "kafka=127.0.0.1:1&kafka_topic=t"
COMMANDS: dict[str, list[str]] = {
    "decode": ["decode", capture],
    "verify": judge,
    "verify to a file": [*judge, "--out", str(folder / "verdict")],
    "verify hours": [*judge, "--append", str(folder / "hours"), *HOUR],
    "spool": ["spool", "ls", str(folder)],
    "stat logjam": ["stat", "logjam://127.0.0.1:1", "--port", "1", "--timeout", "10ms"],
    "stat plog": ["stat", "plog://127.0.0.1:1", "--timeout", "10ms"],
    "completion": ["completion", "bash"],
    "send zst": ["send", "lumberjack://127.0.0.1:1", str(zst), "--timeout", "10ms"],
    "logjam": ["send", "logjam://127.0.0.1:1/shop-test", str(lines), "--timeout", "100ms"],
    "logux": ["send", "logux://127.0.0.1:1", str(lines), "--timeout", "100ms"],
    "check logjam": ["check", "logjam://127.0.0.1:1/shop-test", "--timeout", "100ms"],
    "check logux": ["check", "logux://127.0.0.1:1", "--timeout", "100ms"],
    "plog": ["send", "plog://127.0.0.1:1", str(lines)],
    "snappy": ["send", "logjam://127.0.0.1:1/shop-test?compression=snappy", str(lines), "--timeout", "100ms"],
    "lz4": ["send", "logjam://127.0.0.1:1/shop-test?compression=lz4", str(lines), "--timeout", "100ms"],
    "spans": ["send", "lumberjack://127.0.0.1:1?opentelemetry=true", str(lines), "--timeout", "100ms"],
    "collect lumberjack": ["collect", "lumberjack://127.0.0.1:0", "--print", "--for", "10ms"],
    "collect logjam": ["collect", "logjam://127.0.0.1:0", "--print", "--for", "10ms"],
    "collect recompressed": ["collect", "logjam://127.0.0.1:0?recompress=lz4", "--print", "--for", "10ms"],
    "collect devices": ["collect", "logjam+sub://127.0.0.1:1", "--print", "--for", "10ms"],
    "collect logux": ["collect", "logux://127.0.0.1:0", "--print", "--for", "10ms"],
    "collect plog": ["collect", "plog://127.0.0.1:0", "--print", "--for", "10ms"],
    "collect kafka": [
        "collect",
        "plog://127.0.0.1:0?kafka=127.0.0.1:1&kafka_topic=t",
        "--print",
        "--for",
        "10ms",
    ],
}
if importlib.util.find_spec("pyspark") is None:  # with it they start Spark
    COMMANDS |= {
        "verify on Spark": ["verify", "--ledger", ledger, "--capture", capture],
        "verify a topic": ["verify", "--ledger", ledger, "--kafka", "127.0.0.1:1/t"],
    }
results |= {name: run(*arguments) for name, arguments in COMMANDS.items()}
for name in ["", *(arguments[0] for arguments in COMMANDS.values())]:
    results[f"{name} --help"] = run(*filter(None, [name, "--help"]))
results |= {f"import {name}": imported(name) for name in modules()}
print(json.dumps(results))
