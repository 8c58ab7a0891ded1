"""Programs for test_starvation.py: each takes descriptors, threads or memory from its own process."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

from logclient._ext.constants import HANDED
from logclient.delivery.attempt import Attempt
from tests.support import transports
from tests.support.patience import PATIENCE

UID = 54_321  # of no other process
kept: list[object] = []


@contextlib.contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Leave so many descriptors to the process while the block runs."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [int(name) for name in os.listdir("/proc/self/fd")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(used) + 100, limit[1]), limit[1]))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for fd in taken:
            os.close(fd)


def drops(url: str, ledger: str) -> None:
    """Drop events from a full queue while there is no descriptor for the ledger, then deliver the others."""
    import logclient

    options = {"max_events": 100, "overflow": "drop_oldest", "backoff_max": 0.05}
    with logclient.connect(url, ledger=ledger, **options) as client:
        with descriptors(0):
            first = client.submit({"n": 0})
            for n in range(1, 500):
                client.send({"n": n})
            assert first.result(PATIENCE) == ("dropped", "overflow")
            print(client.stats().last_error)
        assert client.flush(PATIENCE) == 0
        assert client.stats().dropped == {"overflow": 400}


def zmq_connects(kind: str, host: str) -> None:
    """Connect ZeroMQ with each number of descriptors left: it succeeds or raises OSError."""
    import zmq

    context = zmq.Context()
    with context, context.socket(zmq.ROUTER if kind == "DEALER" else zmq.PULL) as server:
        server.linger = 0
        endpoint = (host, server.bind_to_random_port("tcp://127.0.0.1"))
        used = transports.zmq(0.1, kind=kind)
        used.connect(endpoint, Attempt()).close()
        for left in range(24):
            for transport in (transports.zmq(0.1, kind=kind), used):
                made = None
                with descriptors(left):
                    try:
                        made = transport.connect(endpoint, Attempt())
                    except OSError as error:
                        print(left, transport is used, error)
                if made is not None:
                    made.close()
                transport.connect_timeout = 5.0
                transport.connect(endpoint, Attempt()).close()
                transport.connect_timeout = 0.1
                if transport is not used:
                    transport.close()
        assert made is not None, "there are enough now"
        used.close()


def zmq_breaks(kind: str, address: str) -> None:
    """Break a connection of ZeroMQ while no descriptor is left."""
    import zmq

    with zmq.Context() as context:
        server = context.socket(zmq.ROUTER if kind == "DEALER" else zmq.PULL)
        server.linger = 0
        server.ipv6 = True
        port = server.bind_to_random_port(f"tcp://[{address}]" if ":" in address else f"tcp://{address}")
        transport = transports.zmq(PATIENCE, kind=kind)
        link = transport.connect((address, port), Attempt())
        server.close()  # its descriptors are free again
        assert link.monitor.poll(1000 * PATIENCE)
        with descriptors(0):
            end = time.monotonic() + PATIENCE
            while (found := link.receive()) is None and time.monotonic() < end:
                link.wait(0.1, False)
            assert found == b"", "the connection is over"
            for _ in range(20):  # libzmq tells itself a little later, and acts when it is asked the next time
                link.wait(0.1, False)
            link.close()
            transport.close()


def zmq_contended(seconds: str) -> None:
    """Connect ZeroMQ while another thread keeps taking and returning descriptors."""
    import zmq

    over = threading.Event()

    def hog() -> None:
        taken: list[int] = []
        turn = 0
        while not over.is_set():
            try:
                while True:
                    taken.append(os.dup(2))
            except OSError:
                pass
            turn += 1
            for fd in taken[: turn % 24]:
                os.close(fd)
            del taken[: turn % 24]
        for fd in taken:
            os.close(fd)

    context = zmq.Context()
    with context, context.socket(zmq.ROUTER) as server:
        server.linger = 0
        endpoint = ("localhost", server.bind_to_random_port("tcp://127.0.0.1"))
        transport = transports.zmq(0.05)
        transport.connect(endpoint, Attempt()).close()
        end = time.monotonic() + float(seconds)
        outcomes = {True: 0, False: 0}
        with descriptors(30):
            thread = threading.Thread(target=hog, daemon=True)
            thread.start()
            while time.monotonic() < end:
                try:
                    transport.connect(endpoint, Attempt()).close()
                    outcomes[True] += 1
                except OSError:
                    outcomes[False] += 1
            over.set()
            thread.join()
        print(outcomes)
        transport.connect(endpoint, Attempt()).close()
        transport.close()


def delivers(url: str, ledger: str, most: str) -> None:
    """Deliver all events once there are descriptors for a connection."""
    import logclient

    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("logclient").addHandler(Lines())
    paces = {"backoff_max": 0.05, "connect_timeout": 0.5}
    with logclient.connect(url, **paces) as first:  # everything is imported
        first.send({"n": -1})
        assert first.flush(PATIENCE) == 0, first.stats()
    print("warm", lines)
    lines.clear()
    for left in range(int(most)):
        client = logclient.connect(url, ledger=ledger or None, **paces)
        with descriptors(left):
            for n in range(5):
                assert client.send({"n": 5 * left + n})
            until(lambda made=client: made.flush(0.0) == 0 or made.stats().last_error)
            failed = client.stats().last_error
        assert client.flush(PATIENCE) == 0, client.stats()
        stats = client.stats()
        assert stats.acked + stats.handed == 5 and not stats.ledger_error, stats
        assert left or failed, "that was enough"
        assert client.close(PATIENCE) == 0
        print(left, failed)
    print(*lines, sep="\n")
    assert not any("mended" in line or "stopped" in line for line in lines)


def forks(url: str) -> None:
    """Log in a child that was forked without descriptors; it delivers once there are some."""
    import logclient

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Called before the client's own.
    os.register_at_fork(after_in_child=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1])))
    client = logclient.connect(url, backoff_max=0.05)
    client.send({"n": 0})
    assert client.flush(PATIENCE) == 0, client.stats()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert client.send({"n": 1})
            until(lambda: client.stats().last_error)
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            code = 0 if client.flush(PATIENCE) == 0 and client.stats().acked == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.send({"n": 2})
    assert client.close(PATIENCE) == 0


def threads(url: str, most: str) -> None:
    """Deliver once threads can be started, the client's own and libzmq's."""
    import logclient

    paces = {"backoff_max": 0.05, "connect_timeout": 0.5}
    with logclient.connect(url, **paces) as first:
        first.send({"n": -1})
        assert first.flush(PATIENCE) == 0, first.stats()
    os.setuid(UID)  # root has no limit
    limit = resource.getrlimit(resource.RLIMIT_NPROC)
    for left in range(int(most)):
        client = logclient.connect(url, **paces)
        resource.setrlimit(resource.RLIMIT_NPROC, (len(os.listdir("/proc/self/task")) + left, limit[1]))
        for n in range(5):
            assert client.send({"n": 5 * left + n})
        until(lambda made=client, n=left: made.stats().last_error or (n and made.flush(0.0) == 0))
        failed = client.stats().last_error
        resource.setrlimit(resource.RLIMIT_NPROC, limit)
        assert left or "thread" in failed
        assert client.send({"n": 5 * left + 5})
        assert client.flush(PATIENCE) == 0, client.stats()
        assert client.close(PATIENCE) == 0
        print(left, failed)


def ends(url: str, ledger: str, how: str) -> None:
    """Log, and end the process while the server does not answer or a name look-up hangs."""
    import logclient

    if how == "no name":
        socket.getaddrinfo = lambda *_, **__: time.sleep(1000.0)  # type: ignore[assignment, return-value]
    client = logclient.connect(url, ledger=ledger, atexit_timeout=0.2)
    for n in range(100):
        assert client.send({"n": n})
    kept.append(client)


def memory() -> None:
    """Drain a burst of events: its memory returns to the system, whatever else was allocated."""
    from logclient._ext.inflight import InflightBatches
    from logclient._ext.queue import EventQueue

    def resident() -> float:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)

    queue = EventQueue(free_after=0.05)
    in_flight = InflightBatches(queue)
    others: list[bytearray] = []
    begin = resident()
    for n in range(30_000):
        assert queue.push(b"x" * (900 if n % 100 else 90_000))
        if n % 10 == 0:
            others.append(bytearray(600))  # an application's own: it lives on
    full = resident()
    while (batch := in_flight.take(2048, 1 << 20)) is not None:
        events = batch.pending()
        for event in events:
            batch.mark(event.seq, HANDED)
        del events
        in_flight.encoded(batch)
        in_flight.commit()
    assert queue.settled == queue.next_seq - 1
    assert full - begin > 45

    end = time.monotonic() + PATIENCE
    while resident() - begin >= 16 and time.monotonic() < end:
        in_flight.commit()  # as an idle sender does each second
        time.sleep(0.005)
    assert resident() - begin < 16
    print(begin, full, resident(), len(others))
    for _ in range(1000):
        queue.push(b"x" * 900)
    del in_flight, queue
    assert resident() - begin < 16


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "never"
        time.sleep(0.005)


if __name__ == "__main__":
    import sys

    socket.getaddrinfo("localhost", 1)
    globals()[sys.argv[1]](*sys.argv[2:])
    print("alive")
