"""Pools and processes of multiprocessing and concurrent.futures, with the sample of docs/examples."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.app_servers import EXAMPLES, Site, serving

pytestmark = pytest.mark.tree

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_pool_workers_deliver_all_records(method: str, tmp_path: Path) -> None:
    """Nothing is configured but the handler."""
    command = [sys.executable, "pool.py", method]
    with Site(tmp_path) as site:
        folder = EXAMPLES / "multiprocessing"
        with serving(command, folder, tmp_path / "out", LOG_URL=site.url) as process:
            assert process.wait() == 0
        messages = site.messages()
        assert Counter(process.text.splitlines()) == messages  # the console has the records, and no complaint
        assert all(messages[f"order {number} priced"] == 1 for number in range(1000))
        assert messages["begin"] == 1 and sum(messages.values()) == 1002
        verdict = site.verdict()
        assert verdict.exit_code == 0 and verdict.counts.ok == 1002
        assert all(producer.closed for producer in verdict.producers)


PRELUDE = """
import concurrent.futures, logging, multiprocessing, os, signal, sys, threading, time
from pathlib import Path
import logclient
import pool as example

log = logging.getLogger("shop")
METHOD, FOLDER = sys.argv[1], Path(sys.argv[2])
if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    example.configure_logging()
    log.info("begin")

def begin():
    if METHOD != "fork":
        example.configure_logging()

def say(number):
    log.info("from a child")
    return os.getpid()
"""


RECORDS = {"begin", "from a child", "old", "young", "last words"}


def run_beside_example(site: Site, method: str, text: str, code: int = 0) -> str:
    """Run a program beside the example, which must exit so; return its output without the records' lines."""
    (site.folder / "program.py").write_text(PRELUDE + text)
    command = [sys.executable, "program.py", method, str(site.folder)]
    example = str(EXAMPLES / "multiprocessing")
    with serving(command, site.folder, site.folder / "out", path=example, LOG_URL=site.url) as process:
        assert process.wait() == code, process.text
        return "".join(line for line in process.text.splitlines(keepends=True) if line.strip() not in RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_executor_processes_deliver_all_records(method: str, tmp_path: Path) -> None:
    """ProcessPoolExecutor and Process let their children end by themselves: there is nothing to configure."""
    text = """
def work():
    begin()
    for number in range(100):
        say(number)

if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(2, context, begin) as executor:
        list(executor.map(say, range(100)))
    child = context.Process(target=work)
    child.start()
    child.join()
"""
    with Site(tmp_path) as site:
        assert run_beside_example(site, method, text) == ""
        assert site.messages() == {"begin": 1, "from a child": 200}
        verdict = site.verdict()
        assert verdict.exit_code == 0 and verdict.counts.ok == 201
        assert all(producer.closed for producer in verdict.producers)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "os._exit", "terminate"])
def test_killed_processes_leave_honest_ledgers(how: str, tmp_path: Path) -> None:
    """A process that gets no chance leaves a ledger without an end, and the verdict concludes nothing
    false."""
    text = f"""
def work():
    begin()
    log.info("old")
    logging.getLogger().handlers[-1].flush()
    log.info("young")
    if "{how}" == "os._exit":
        os._exit(0)
    if "{how}" != "terminate":
        os.kill(os.getpid(), signal.{how if how.startswith("SIG") else "SIGTERM"})
    (FOLDER / "young").touch()
    threading.Event().wait(600)

if __name__ == "__main__":
    child = context.Process(target=work)
    child.start()
    if "{how}" == "terminate":
        while not (FOLDER / "young").exists():
            pass
        child.terminate()
    child.join()
"""
    with Site(tmp_path) as site:
        assert run_beside_example(site, "spawn", text) == ""
        messages = site.messages()
        assert messages["begin"] == messages["old"] == 1
        verdict = site.verdict()
        assert verdict.exit_code == 3
        (child,) = (producer for producer in verdict.producers if not producer.closed)
        counts = child.counts
        assert counts.ok + counts.recovered == messages["old"] + messages["young"]
        assert counts.ok + counts.recovered + counts.missing + counts.unknown == counts.events <= 2


def test_terminate_with_flush_on_sigterm_delivers_all(tmp_path: Path) -> None:
    """Process.terminate() sends SIGTERM; the queue is delivered, and the exit code stays."""
    text = """
def work():
    begin()
    logclient.flush_on_sigterm()
    for number in range(1000):
        say(number)
    (FOLDER / "said").touch()
    while True:
        time.sleep(0.01)

if __name__ == "__main__":
    child = context.Process(target=work)
    child.start()
    while not (FOLDER / "said").exists():
        pass
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM
"""
    with Site(tmp_path) as site:
        assert run_beside_example(site, "spawn", text) == ""
        assert site.messages() == {"begin": 1, "from a child": 1000}
        verdict = site.verdict()
        assert verdict.exit_code == 0 and all(producer.closed for producer in verdict.producers)


def test_a_flushed_record_survives_os_exit(tmp_path: Path) -> None:
    """A child of os.fork that ends by os._exit must flush by itself."""
    text = """
if __name__ == "__main__":
    pid = os.fork()
    if pid == 0:
        log.info("from a child")
        logging.shutdown()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
    with Site(tmp_path) as site:
        assert run_beside_example(site, "fork", text) == ""
        assert site.messages() == {"begin": 1, "from a child": 1}
        verdict = site.verdict()
        assert verdict.exit_code == 0 and all(producer.closed for producer in verdict.producers)


def test_sigterm_during_exit_waits_for_the_delivery(tmp_path: Path) -> None:
    """It waits until the last records are delivered, and then ends the process."""
    text = """
from logclient.delivery.sender import Waiter

finish = Waiter.finish
def interrupted(waiter, by, grace):
    os.kill(os.getpid(), signal.SIGTERM)
    return finish(waiter, by, grace)

Waiter.finish = interrupted  # in the middle of what the exit does
logclient.flush_on_sigterm()
log.info("last words")
"""
    with Site(tmp_path) as site:
        assert run_beside_example(site, "fork", text, -signal.SIGTERM) == ""
        assert site.messages() == {"begin": 1, "last words": 1}
        assert site.verdict().exit_code == 0
        ((*_, last),) = site.ledgers().values()
        assert last["t"] == "close" and last["acked"] == 2
