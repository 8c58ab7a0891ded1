"""Programs under gevent, with servers that answer, refuse or stall."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cores.sink import Sink
from tests.support import clean_environment, missing, need
from tests.support.dead_servers import KINDS, Mute, Refusing
from tests.support.processes import LOGGING

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs are for POSIX")

LIMIT_S = 60
"""A program that takes longer hangs."""

PAUSE_S = 1.0
"""Ten times as long as the event loop may stand still because of us."""

PRELUDE = (
    """
import sys, warnings
warnings.simplefilter("ignore")
URL = sys.argv[1]

def patch():
    global spawn, sleep
    from gevent import monkey, sleep, spawn
    monkey.patch_all()

if "late" not in sys.argv:
    patch()

import atexit, json, logging, os, signal, threading, time
"""
    + LOGGING
    + """
class Meter:
    # How late a greenlet comes back that sleeps 1 ms, again and again.
    def __init__(self):
        self.late = []
        self.on = True
        spawn(self.run)
    def run(self):
        while self.on:
            begin = time.monotonic()
            sleep(0.001)
            self.late.append(time.monotonic() - begin - 0.001)
    def facts(self):
        self.on = False
        late = sorted(self.late)
        return {"beats": len(late), "p999": late[int(len(late) * 0.999)], "worst": late[-1]}
"""
)


class Run(NamedTuple):
    facts: list[dict[str, Any]]
    code: int
    err: str

    @property
    def clean(self) -> bool:
        return self.code == 0 and self.err == ""


def run(text: str, url: str, *options: str) -> Run:
    if importlib.util.find_spec("gevent") is None:  # an import here would patch a little, and warn
        missing("gevent is not installed")
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + text, url, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(PYTHONFAULTHANDLER="1", PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # faulthandler shows where it hangs
        out, err = process.communicate()
        pytest.fail(f"it hangs\n{out}\n{err}")
    return Run([json.loads(line) for line in out.splitlines()], process.returncode, err)


# -- the loop goes on ----------------------------------------------------------------------------------

WORK = """
meter = Meter()
if URL:
    log, handler = log_to(atexit_timeout=0.2)
    client = handler.client
def work(n):
    for i in range(50):
        if URL:
            log.info("worker %d event %d", n, i)
        sleep(0.005)
    finished.append(n)
finished = []
workers = [spawn(work, n) for n in range(20)]
end = time.monotonic() + 0.4
while time.monotonic() < end or len(finished) < 20:
    sleep(0.01)
facts = {}
if URL:
    begin = time.monotonic()
    left = handler.client.flush(0.3)
    facts = {"left": left, "flush": time.monotonic() - begin, "acked": client.stats().acked}
say(**facts, **meter.facts())
"""


def test_greenlets_deliver_to_a_live_server() -> None:
    with Sink() as sink:
        (facts,), code, err = run(WORK, sink.url)
        assert (code, err) == (0, "")
        (producer,) = sink.got
        sink.exact(producer, 1000)
    assert facts["left"] == 0 and facts["acked"] == 1000
    assert facts["worst"] < PAUSE_S and facts["beats"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Refusing, Mute])
def test_greenlets_go_on_beside_a_dead_server(kind: type[Any]) -> None:
    with kind() as server:
        (facts,), code, err = run(WORK, server.url)
    assert code == 0
    assert f"{facts['left']} events were not delivered before exit" in err
    assert facts["left"] == 1000 and 0.25 < facts["flush"] < 5.0
    assert facts["worst"] < PAUSE_S and facts["beats"] > 100


@pytest.mark.long
@pytest.mark.parametrize("kind", ["live", *KINDS])
def test_the_event_loop_pauses_no_longer_than_without_us(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The p99.9 of its pauses beside that of the same program without logclient."""
    text = WORK.replace("range(50)", "range(4000)").replace("+ 0.4", "+ 24.0")
    plain = run(text, "").facts[0]
    with Sink() if kind == "live" else KINDS[kind]() as server:
        ours = run(text, server.url).facts[0]
    with capsys.disabled():
        print(
            f"\n{kind}: p99.9 {ours['p999'] * 1e3:.1f} ms, worst {ours['worst'] * 1e3:.1f} ms; "
            f"without logclient {plain['p999'] * 1e3:.1f} and {plain['worst'] * 1e3:.1f} ms"
        )
    assert ours["p999"] < plain["p999"] + PAUSE_S


def test_waiting_greenlets_do_not_block_the_loop() -> None:
    """Every kind of wait, in many greenlets, on a server that takes nothing."""
    text = """
meter = Meter()
log, handler = log_to(overflow="block:500ms", max_events=20, atexit_timeout=0.1)
client = handler.client
ends = []
def work(n):
    delivery = client.submit("event %d" % n)
    outcome = delivery.result(0.2)
    ends.append((outcome and outcome.status, client.flush(0.2)))
begin = time.monotonic()
for n in range(300):
    spawn(work, n)
while len(ends) < 300 and time.monotonic() - begin < 30:
    sleep(0.01)
seconds = time.monotonic() - begin
say(seconds=seconds, ends=len(ends), outcomes=sorted({str(s) for s, _ in ends}), **meter.facts())
say(left=client.close(0.2), dropped=client.stats().dropped)
"""
    with Mute() as mute:
        (facts, closed), code, _ = run(text, mute.url)
    assert code == 0
    assert facts["ends"] == 300 and facts["outcomes"] == ["None", "dropped"]
    assert facts["worst"] < PAUSE_S and facts["seconds"] < 20
    assert closed == {"left": 20, "dropped": {"overflow": 280}}


def test_blocked_greenlets_get_room_in_the_queue() -> None:
    text = """
log, handler = log_to(overflow="block", max_events=50)
def work(n):
    for i in range(100):
        log.info("%d %d", n, i)
    done.append(n)
done = []
for n in range(10):
    spawn(work, n)
while len(done) < 10:
    sleep(0.01)
say(left=handler.client.flush(20), dropped=handler.client.stats().dropped)
"""
    with Sink() as sink:
        found = run(text, sink.url)
        assert found.clean and found.facts == [{"left": 0, "dropped": {}}]
        (producer,) = sink.got
        sink.exact(producer, 1000)


EVERY = """
import logclient
meter = Meter()
for url, options in json.loads(URL):
    with logclient.connect(url, **options) as client:
        for i in range(300):
            client.send({"message": "event %d" % i})
            if i % 30 == 0:
                sleep(0.001)
        left = client.flush(20)
        stats = client.stats()
        say(url=url, left=left, settled=stats.acked + stats.handed, error=stats.last_error)
say(**meter.facts())
"""


def test_every_transport_works_under_greenlets(tmp_path: Path) -> None:
    """Compiled and in Python: TCP, TLS, WebSocket over both, ZeroMQ, UDP."""
    need("zmq")
    need("websockets")
    from logclient.testing import logjam as logjam
    from logclient.testing import logux as logux
    from logclient.testing import lumberjack as lumberjack
    from logclient.testing import plog as plog
    from tests.support.tls import Authority, server_context

    ours = Authority(tmp_path / "ours")
    tls = server_context(ours.issue("server"))
    with (
        lumberjack.Collector() as one,
        lumberjack.Collector(tls=tls) as two,
        logux.Collector() as three,
        logux.Collector(tls=tls) as four,
        logjam.Collector() as five,
        plog.Collector() as six,
    ):
        device, *_ = five.url.split("/shop")
        urls = [(one.url, {}), (two.url, {"ca": ours.ca}), (three.url, {}), (four.url, {"ca": ours.ca})]
        urls += [(f"{device}/shop-production", {}), (six.url, {})]
        found = run(EVERY, json.dumps(urls))
    assert found.clean
    *each, meter = found.facts
    assert [(e["left"], e["settled"], e["error"]) for e in each] == [(0, 300, "")] * 6
    assert meter["worst"] < PAUSE_S


# -- threads, fork, exit, signals ----------------------------------------------------------------------


def test_monkey_patching_may_follow_the_first_event() -> None:
    """As in gunicorn, whose worker is patched after the application was loaded."""
    text = """
log, handler = log_to()
log.info("before")
pending = handler.client.submit("pending")
patch()
meter = Meter()
for i in range(98):
    log.info("after %d", i)
    sleep(0.001)
say(left=handler.client.flush(20), status=pending.result(10).status, **meter.facts())
"""
    with Sink() as sink:
        found = run(text, sink.url, "late")
        assert found.clean
        assert found.facts[0]["left"] == 0 and found.facts[0]["status"] == "acked"
        assert found.facts[0]["worst"] < PAUSE_S
        (producer,) = sink.got
        sink.exact(producer, 100)


def test_callbacks_run_on_a_native_thread() -> None:
    text = """
log, handler = log_to()
from logclient.threads import get_ident
idents = []
def told(delivery):
    idents.append((get_ident(), delivery.result(5).status))
deliveries = [handler.client.submit("event") for _ in range(10)]
for delivery in deliveries:
    delivery.add_done_callback(told)
while len(idents) < 10:
    sleep(0.001)
ident = get_ident()
say(others=len({i for i, _ in idents} - {ident}), mine=len({i for i, _ in idents} & {ident}),
    statuses=sorted({s for _, s in idents}))
"""
    with Sink() as sink:
        found = run(text, sink.url)
        assert found.clean and found.facts == [{"others": 1, "mine": 0, "statuses": ["acked"]}]


def test_a_callback_may_run_in_a_greenlet() -> None:
    """Where too many callbacks wait the caller runs its own. Other greenlets still wait for its end."""
    text = """
from logclient.delivery.outcomes import CallbackThread
class Crowd:
    def is_crowded(self):
        return True
class Sender:
    class engine:
        submissions = Crowd()
callbacks = CallbackThread(say, Sender)
done = []
def slow():
    sleep(0.2)
    done.append(callbacks.wait_for_all(time.monotonic() + 20))
spawn(callbacks.queue_or_run, slow)
while not callbacks.wait_for_all(0.0):
    sleep(0)
say(left=callbacks.wait_for_all(time.monotonic() + 20), done=done)
"""
    found = run(text, "")
    assert found.clean and found.facts == [{"left": 0, "done": [0]}]


def test_asyncio_works_under_greenlets() -> None:
    text = """
import asyncio, logclient
async def main():
    async with logclient.AsyncClient(URL) as client:
        outcomes = await asyncio.gather(*(client.submit("event %d" % i) for i in range(20)))
        say(acked=sum(outcome.ok for outcome in outcomes), left=await client.flush())
asyncio.run(main())
"""
    with Sink() as sink:
        found = run(text, sink.url)
        assert found.clean and found.facts == [{"acked": 20, "left": 0}]


def test_forks_under_greenlets_lose_nothing() -> None:
    """The child has its own sender; each queued event is delivered once, by the process that logged it.

    No other greenlet runs in the middle of a fork.
    """
    text = """
log, handler = log_to()
log.info("parent 1")
children = []
turns = [0]
def spin():
    while len(children) < 3:
        turns[0] += 1
        sleep(0)
spawn(spin)
sleep(0.01)
switched = 0
for n in range(3):
    before = turns[0]
    pid = os.fork()
    switched += turns[0] - before
    if pid == 0:
        for i in range(100):
            log.info("child %d", i)
            sleep(0)
        sys.exit(0)
    children.append(pid)
    log.info("parent %d", n + 2)
codes = [os.waitpid(pid, 0)[1] for pid in children]
say(codes=codes, left=handler.client.flush(20), switched=switched)
"""
    with Sink() as sink:
        found = run(text, sink.url)
        assert found.clean and found.facts == [{"codes": [0, 0, 0], "left": 0, "switched": 0}]
        assert sorted(map(len, sink.got.values())) == [4, 100, 100, 100]
        for producer, events in sink.got.items():
            sink.exact(producer, len(events))


def test_exit_under_greenlets_delivers_the_queue() -> None:
    text = """
log, handler = log_to()
def late():
    log.info("later")
atexit.register(late)
import logclient
def work(n):
    for i in range(500):
        log.info("%d %d", n, i)
for n in range(8):
    spawn(work, n)
sleep(0.01)
log.info("last")
"""
    with Sink() as sink:
        found = run(text, sink.url)
        assert found.clean
        (producer,) = sink.got
        sink.exact(producer, 4002)


def test_flush_on_sigterm_works_under_greenlets() -> None:
    """The signal comes while the event loop itself waits: nothing else can run until the handler ends."""
    text = """
log, handler = log_to()
import logclient
logclient.flush_on_sigterm()
for i in range(5000):
    log.info("event %d", i)
threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
sleep(30)
"""
    with Sink() as sink:
        found = run(text, sink.url)
        assert found.code == -signal.SIGTERM and found.err == ""
        (producer,) = sink.got
        sink.exact(producer, 5000)


def test_log_calls_in_the_hub_do_not_wait() -> None:
    """A wait in the event loop's own greenlet would stop every other one."""
    text = """
log, handler = log_to(overflow="block", max_events=10, atexit_timeout=0.1)
client = handler.client
ends = []
first = client.submit("first")
def in_hub():
    begin = time.monotonic()
    for i in range(19):
        log.info("event %d", i)
    left = client.flush(5)
    outcome = client.submit("one more").result(5)
    pending = first.result(5)
    quick = time.monotonic() - begin < 2.5
    ends.append({"left": left, "outcome": list(outcome), "pending": pending, "quick": quick})
import gevent
gevent.get_hub().loop.run_callback(in_hub)
while not ends:
    sleep(0.01)
say(**ends[0])
say(dropped=client.stats().dropped)
"""
    with Refusing() as dead:
        found = run(text, dead.url)
    assert found.code == 0
    assert found.facts == [
        {"left": 10, "outcome": ["dropped", "overflow"], "pending": None, "quick": True},
        {"dropped": {"overflow": 11}},
    ]


def test_own_errors_are_logged_by_a_greenlet() -> None:
    """Locks of handlers are locks of greenlets: a native thread could wait for them for ever."""
    text = """
from logclient.threads import get_ident
said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append((get_ident(), record.getMessage()))
logging.getLogger("logclient").addHandler(Keep())
log, handler = log_to(atexit_timeout=0.1)
begin = time.monotonic()
while not said and time.monotonic() - begin < 20:
    log.info("event")
    sleep(0.01)
say(mine=said[0][0] == get_ident(), line=said[0][1])
"""
    with Refusing() as dead:
        found = run(text, dead.url)
        assert found.facts == [
            {"mine": True, "line": f"{dead.url}: cannot connect to {dead.url[13:]}: connection refused"}
        ]


def test_two_hubs_and_a_thread_pool_may_log() -> None:
    """A native thread of gevent's pool may wait as any thread does."""
    text = """
log, handler = log_to()
client = handler.client
def work():
    for i in range(100):
        log.info("pool %d", i)
    return client.submit("pool").result(10).status, client.flush(10)
from gevent.threadpool import ThreadPool
found = ThreadPool(1).apply(work)
say(found=list(found))
"""
    with Sink() as sink:
        found = run(text, sink.url)
        assert found.clean and found.facts == [{"found": ["acked", 0]}]
        (producer,) = sink.got
        sink.exact(producer, 101)


def test_unknown_replacements_of_threads_are_refused() -> None:
    """By one clear line, when the client is made."""
    text = """
import _thread
def get_ident(): return 1
_thread.get_ident = get_ident
import logclient
try:
    logclient.connect("lumberjack://127.0.0.1:9")
except logclient.ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("threads: replaced by __main__, which hides the original ones")
    assert done.stdout.count("\n") == 1


def test_a_debugger_may_wrap_thread_starts() -> None:
    text = """
import _thread, sys, threading
begin = _thread.start_new_thread
def start_new_thread(*given): return begin(*given)
_thread.start_new_thread = threading._start_new_thread = start_new_thread
import logclient
with logclient.connect(sys.argv[1]) as client:
    print(client.submit("event").result(20).status)
"""
    with Sink() as sink:
        command = [sys.executable, "-c", text, sink.url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("acked\n", "")
