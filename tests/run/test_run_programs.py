"""``logclient run`` with programs that log: what arrives, and that the program is the same as without."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logclient.run
from logclient.testing.lumberjack import Collector
from tests.support import ROOT, clean_environment
from tests.support.documents import dotted
from tests.support.patience import PATIENCE

RUN = [sys.executable, "-m", "logclient.run"]
STARTUP = str(Path(logclient.run.__file__).with_name("startup"))


def execute(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment(**{"PYTHONPATH": str(ROOT)} | variables)
    if "LOGCLIENT_URL" not in variables:
        env.pop("LOGCLIENT_URL", None)
    return subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE, env=env)


def seen(done: subprocess.CompletedProcess[str]) -> tuple[str, str, int]:
    """What a program has written, without addresses, and its exit code."""
    stdout, stderr = (re.sub("0x[0-9a-f]+", "0x", text) for text in (done.stdout, done.stderr))
    return stdout, stderr, done.returncode


def same_with_us(*command: str, **variables: str) -> list[tuple[Any, Any]]:
    """Run a program without and with us: what it writes is the same. Return the loggers and messages."""
    before = execute(*command, **variables)
    with Collector(keep=True) as server:
        after = execute(*RUN, *command, LOGCLIENT_URL=server.url, **variables)
        events = [dotted(event) for event in server.events(0)]
    assert seen(after) == seen(before)
    return [(event["log.logger"], event["message"]) for event in events]


def python(program: str, **variables: str) -> list[tuple[Any, Any]]:
    return same_with_us(sys.executable, "-c", program, **variables)


LOOK = """
import logging, sys
def look():
    root = logging.root
    print(root.handlers, root.hasHandlers(), type(root), logging.getLoggerClass(), sys.path, root.level)
    print(sorted(logging.Logger.manager.loggerDict), repr(root), sys.modules.get("sitecustomize") is None)
"""


def test_a_program_that_configures_nothing() -> None:
    """Its warnings are on stderr, by the last resort of logging."""
    program = f"{LOOK}\nlook(); log = logging.getLogger('shop'); log.info('no'); log.warning('yes'); look()"
    program = program.replace(', sys.modules.get("sitecustomize") is None', "")
    assert python(program) == [("shop", "yes")]


CONFIGURED = {
    "basicConfig": ["logging.basicConfig(level='INFO', stream=sys.stdout)"],
    "dictConfig": ["logging.warning('before')", "import logging.config",
        "console = {'console': {'class': 'logging.StreamHandler'}}",
        "root = {'level': 'INFO', 'handlers': ['console']}",
        "logging.config.dictConfig({'version': 1, 'root': root, 'handlers': console, 'loggers': {}})"],
    "force": ["logging.basicConfig()", "logging.warning('before')",
        "logging.basicConfig(level='INFO', force=True)"],
    "propagate": ["shop = logging.getLogger('shop')", "shop.propagate = False", "shop.setLevel('INFO')",
        "shop.addHandler(logging.StreamHandler())", "logging.root.setLevel('INFO')"],
    "own class": ["class Own(logging.Logger):\n    pass", "logging.setLoggerClass(Own)",
        "logging.basicConfig(level='INFO')"],
    "filter": ["shop = logging.getLogger('shop')", "shop.setLevel('INFO')", "logging.root.setLevel('INFO')",
        "shop.addFilter(lambda record: record.msg != 'secret')", "shop.warning('secret')"],
    "multiprocessing": ["logging.basicConfig(level='INFO')", "import multiprocessing",
        "fork = multiprocessing.get_context('fork')",
        "child = fork.Process(target=logging.warning, args=('before',))", "child.start(); child.join()"],
}  # fmt: skip


@pytest.mark.parametrize("how", CONFIGURED)
def test_records_are_shipped_beside_what_the_program_configures(how: str) -> None:
    end = ["logging.getLogger('shop').info('bought %d', 3)", "logging.info('of the root')",
        "logging.getLogger('shop').debug('not enabled')", "look()"]  # fmt: skip
    program = "\n".join([LOOK.replace(", sys.path", ""), *CONFIGURED[how], *end])
    program = program.replace(', sys.modules.get("sitecustomize") is None', "")
    found = python(program)
    assert found[-2:] == [("shop", "bought 3"), ("root", "of the root")]
    assert [message for _, message in found[:-2]] == ["before"] * ("before" in program)


def test_a_handler_of_the_program_ships_its_records_alone() -> None:
    program = """
import logging, logclient, os
handler = logclient.Handler() if "LOGCLIENT_URL" in os.environ else logging.NullHandler()
logging.getLogger("own").addHandler(handler)
logging.getLogger("own.child").error("own")
logging.getLogger("own.alone").addHandler(logging.NullHandler())
logging.getLogger("own.alone").propagate = False
logging.getLogger("own.alone").error("alone")
logging.lastResort = None
logging.raiseExceptions = False
logging.getLogger("other").error("other")
"""
    assert sorted(python(program)) == [("other", "other"), ("own.alone", "alone"), ("own.child", "own")]


@pytest.mark.parametrize("logger", ["false", "true"])
@pytest.mark.parametrize("level", ["WARNING", "warning", "30"])
def test_the_lowest_level_that_is_shipped(level: str, logger: str) -> None:
    program = "import logging; logging.basicConfig(level=10); log = logging.getLogger('shop')\n"
    program += "for log in log, logging.root: log.info('no'); log.warning('yes')"
    variables = {"LOGCLIENT_RUN_LEVEL": level, "LOGCLIENT_RUN_LOGGER": logger}
    assert python(program, **variables) == [("shop", "yes"), ("root", "yes")]


def test_a_level_that_is_none_is_one_line() -> None:
    program = "import logging; logging.warning('shipped')"
    with Collector(keep=True) as server:
        done = execute(*RUN, sys.executable, "-c", program, LOGCLIENT_URL=server.url, LOGCLIENT_RUN_LEVEL="X")
        assert [event["message"] for event in server.events(0)] == ["shipped"]
    line, _ = sorted(done.stderr.splitlines(), reverse=True)
    assert line.startswith("logclient: ") and "LOGCLIENT_RUN_LEVEL: must be a number, or" in line


@pytest.mark.parametrize(
    ("value", "said"), [("flase", "LOGCLIENT_RUN_LOGGER: must be true or false, got 'flase'"), ("off", "")]
)
def test_a_logger_neither_wanted_nor_unwanted_is_one_line(value: str, said: str) -> None:
    program = "import logging; print(logging.getLoggerClass()); logging.error('shipped')"
    with Collector(keep=True) as server:
        variables = {"LOGCLIENT_URL": server.url, "LOGCLIENT_RUN_LOGGER": value}
        done = execute(*RUN, sys.executable, "-c", program, **variables)
        assert [event["message"] for event in server.events(0)] == ["shipped"]
    assert done.stdout == "<class 'logging.Logger'>\n"
    lines = [line for line in done.stderr.splitlines() if line.startswith("logclient: ")]
    assert [line.partition("ValueError: ")[2] for line in lines] == ([said] if said else [])


FAILS = {
    "logging": "import logging; 1/0",
    "silent": "1/0",
    "thread": "import threading\nthread = threading.Thread(target=lambda: 1/0, name='t')\nthread.start()\n"
    "thread.join()",
    "destructor": "import logging\nclass A:\n    def __del__(self): 1/0\nA()",
    "exit": "import logging, sys; sys.exit(3)",
}


@pytest.mark.parametrize("how", FAILS)
def test_uncaught_exceptions_are_shipped(how: str) -> None:
    messages = [message.partition(" <")[0] for _, message in python(FAILS[how])]
    texts = {"thread": "uncaught exception in thread t", "destructor": "exception ignored in"}
    assert messages == [texts.get(how, "uncaught exception")] * (how != "exit")


def test_sigterm_delivers_first() -> None:
    program = """
import logging, os, signal
logging.warning("last words")
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
    assert python(program) == [("root", "last words")]
    assert execute(sys.executable, "-c", program).returncode == -signal.SIGTERM
    assert python("import logging, os; os.kill(os.getpid(), 15)") == []


@pytest.mark.parametrize("early", [True, False])
def test_children_of_multiprocessing_end_by_sigterm_at_once(early: bool, tmp_path: Path) -> None:
    """A child that waits in C code would miss it."""
    path = tmp_path / "program.py"
    path.write_text(
        ("import logging" if early else "")
        + """
import multiprocessing, signal
def child():
    import logging
    print(signal.getsignal(signal.SIGTERM), flush=True)
    logging.error("child")
if __name__ == "__main__":
    import logging
    for method in "fork", "spawn", "forkserver":
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
"""
    )
    assert same_with_us(sys.executable, str(path)) == [("root", "child")] * 3


def test_a_fork_while_the_first_record_loads_us_does_not_hang_its_child() -> None:
    program = """
import logging, os, signal, sys, threading
logging.root.setLevel("INFO")
thread = threading.Thread(target=logging.root.info, args=("first",))
thread.start()
while "logclient.handler" not in sys.modules:
    pass
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    logging.root.info("child")
    os._exit(0)
print(os.waitpid(pid, 0)[1])
thread.join()
"""
    with Collector(keep=True) as server:
        done = execute(*RUN, sys.executable, "-c", program, LOGCLIENT_URL=server.url)
        assert (done.stdout, done.stderr) == ("0\n", "")
        assert sorted(event["message"] for event in server.events(2, PATIENCE)) == ["child", "first"]


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_an_isolated_python_runs_unchanged(option: str) -> None:
    program = "import logging, sys; logging.warning('here'); print(sys.meta_path)"
    assert same_with_us(sys.executable, option, "-c", program) == []


def test_a_python_without_logclient_runs_unchanged(tmp_path: Path) -> None:
    program = "import logging; logging.warning('here')"
    plain = execute(sys.executable, "-I", "-S", "-c", program)
    path = shutil.copytree(STARTUP, tmp_path / "startup")
    import venv

    venv.create(tmp_path / "venv", with_pip=False)
    bare = str(tmp_path / "venv" / "bin" / "python")
    found = execute(bare, "-c", program, PYTHONPATH=str(path), LOGCLIENT_URL="lumberjack://127.0.0.1:1")
    assert seen(found) == seen(plain)


@pytest.mark.parametrize("error", ["", "raise SystemError('broken')", "import nonesuch"])
def test_the_next_sitecustomize_runs_as_without_us(error: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.mark = 'theirs'\n{error}\n")
    program = "import logging, sys; logging.error(sys.mark); print(sys.path)"
    if not error:
        program += "; import sitecustomize; print(sitecustomize.__file__)"
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    before = execute(sys.executable, "-c", program, PYTHONPATH=path)
    with Collector(keep=True) as server:
        ours = {"PYTHONPATH": os.pathsep.join((STARTUP, path)), "LOGCLIENT_URL": server.url}
        assert seen(execute(sys.executable, "-c", program, **ours)) == seen(before)
        assert [event["message"] for event in server.events(0)] == ["theirs"]


def test_a_failure_of_ours_is_one_line() -> None:
    program = "import logging; logging.basicConfig(); logging.error('a'); logging.error('b')"
    done = execute(
        sys.executable, "-c", program,
        PYTHONPATH=os.pathsep.join((STARTUP, str(ROOT))), LOGCLIENT_URL="lumberjack://host?window=x",
    )  # fmt: skip
    assert done.returncode == 0
    first, *ours, last = done.stderr.splitlines()
    assert (first, last) == ("ERROR:root:a", "ERROR:root:b")
    assert len(ours) == 1 and "window" in ours[0] and ours[0].startswith("logclient: ")


@pytest.mark.parametrize("url", [None, "", "none", "none:", "lumberjack://host:x", "smtp://host"])
def test_without_a_usable_url_the_command_runs_unchanged(url: str | None) -> None:
    program = "import sys, os; print(sys.path, sys.excepthook, sys.meta_path, os.environ.get('PYTHONPATH'))"
    before = execute(sys.executable, "-c", program)
    given = {} if url is None else {"LOGCLIENT_URL": url}
    done = execute(*RUN, "--", sys.executable, "-c", program, **given)
    assert seen(done)[0] == seen(before)[0] and done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("logclient: nothing is shipped: ") and "LOGCLIENT_URL" in line


def test_the_command_keeps_exit_code_pid_and_signals() -> None:
    url = {"LOGCLIENT_URL": "lumberjack://127.0.0.1:1"}
    assert execute(*RUN, "sh", "-c", "exit 7", **url).returncode == 7
    assert execute(*RUN, "sh", "-c", "kill -TERM $$", **url).returncode == -signal.SIGTERM
    process = subprocess.Popen(
        [*RUN, "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True,
        env=clean_environment(PYTHONPATH=str(ROOT), **url),
    )  # fmt: skip
    assert process.communicate(timeout=PATIENCE)[0] == f"{process.pid}\n"
    done = execute("sh", "-c", f"{' '.join(RUN)} yes | head -1; exit ${{PIPESTATUS:-0}}", **url)
    assert (done.stdout, done.stderr) == ("y\n", "")  # SIGPIPE ended `yes`, which would complain


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["nonesuch"], 127, "nonesuch: No such file"),
        (["a.py"], 127, "; a script needs its Python: logclient run python a.py"),
        (["/"], 126, "/: Permission denied"),
        ([], 2, "COMMAND"),
    ],
)
def test_a_command_that_cannot_run_is_one_line(command: list[str], code: int, said: str) -> None:
    for run in (RUN, [sys.executable, "-m", "logclient", "run"]):
        done = execute(*run, *command, LOGCLIENT_URL="lumberjack://127.0.0.1:1")
        assert (done.returncode, done.stdout) == (code, "")
        (line,) = done.stderr.splitlines()
        assert said in line


def test_a_run_in_a_run_is_one() -> None:
    program = "import logging; logging.error('once')"
    with Collector(keep=True) as server:
        execute(*RUN, *RUN, sys.executable, "-c", program, LOGCLIENT_URL=server.url)
        assert [event["message"] for event in server.events(0)] == ["once"]


def test_nothing_of_ours_is_loaded_until_a_record() -> None:
    program = "import sys; print(*sorted(m for m in sys.modules if m.startswith('logclient')))"
    path = {"PYTHONPATH": os.pathsep.join((STARTUP, str(ROOT))), "LOGCLIENT_URL": "lumberjack://127.0.0.1:1"}
    plain, silent = (execute(sys.executable, "-c", text, **path).stdout.split() for text in (
        program, f"import logging; {program}"))  # fmt: skip
    assert plain == ["logclient", "logclient.run", "logclient.run.early", "logclient.run.process"]
    more = {"logclient.records", "logclient.records.uncaught", "logclient.run.attach"}
    assert silent == sorted({*plain, *more})


FAST = """
import logging, logclient
from logging.handlers import QueueHandler
console = logging.StreamHandler()
console.setLevel("ERROR")
logging.root.setLevel("INFO")
{configure}
log = logging.getLogger("shop")
log.info("first %d", 1)
for n in range(3):
    log.info("bought %d", n, extra=dict(order=n))
for n in range(3):
    log.error("failed")
print(type(log) is logclient.Logger, logclient.Logger.why_slow("shop"))
"""


@pytest.mark.parametrize(
    ("configure", "why"),
    [
        ("", ""),
        ("logging.root.addHandler(console)", ""),
        ("logging.root.addHandler(logclient.Handler())", ""),
        ("logging.basicConfig()", "StreamHandler is no logclient.Handler"),
    ],
)
def test_a_faster_logger_on_request(configure: str, why: str) -> None:
    program = FAST.format(configure=configure)
    with Collector(keep=True) as server:
        variables = {"LOGCLIENT_URL": server.url, "LOGCLIENT_RUN_LOGGER": "true"}
        done = execute(*RUN, sys.executable, "-c", program, **variables)
        events = [dotted(event) for event in server.events(0)]
    assert done.stdout == f"True {why}\n"
    assert done.stderr.count("failed") == 3 * ("logclient.Handler" not in configure)
    assert [event["message"] for event in events][:4] == ["first 1", *(f"bought {n}" for n in range(3))]
    assert [event.get("order") for event in events] == [None, 0, 1, 2, None, None, None]
