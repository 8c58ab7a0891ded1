"""The client for asyncio: it never blocks the loop.

::

    async with logclient.AsyncClient("lumberjack://127.0.0.1:5044") as client:
        client.send({"message": "hello"})                   # queued
        outcome = await client.submit({"message": "hello"})
        await client.flush()

It is a thin layer over the client of ``logclient.connect``, its attribute ``client``. Other threads that log
through that client share its queue, its sender and its counts. ``on`` and ``actions`` receive what servers
send without being asked (Logux).
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from logclient.client import INFO, Client, Event, Level, check_source, open_client
from logclient.config.parsing import parse
from logclient.delivery import memory
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.delivery.stats import Stats
from logclient.errors import ConfigError, ConnectFailed, described
from logclient.standard import time

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.config.options import Options
    from logclient.delivery.sender import Waiter

__all__ = ["Actions", "AsyncClient"]

CHECK = 1.0
"""Seconds between two checks, while an outcome is awaited, whether there is a sender."""

ENDING = 0.25
"""Seconds that sender and callbacks have to end when `close` has used up its time."""

MAX_WAITING = 10_000
"""Actions that wait in one `Actions`, at most."""

Received = tuple[dict[str, Any], dict[str, Any]]
Callback = Callable[[dict[str, Any], dict[str, Any]], Awaitable[object] | object]


class AsyncClient:
    """A client for asyncio.

    ::

        async with logclient.AsyncClient("lumberjack://127.0.0.1:5044") as client:
            client.send({"message": "hello"})
            outcome = await client.submit({"message": "followed"})

    Methods that wait are coroutines. If you cancel one, the event is still delivered, and a ``close``
    continues. ``send`` and ``stats`` may be called from any thread. ``on`` and ``actions`` must be called in
    the thread of a running loop.

    ``ping`` works with Logux and Logjam. These work only with Logux: ``add``, ``subscribe``, ``unsubscribe``,
    ``on``, ``actions``, ``state``, ``node_id``, ``headers`` and ``server_headers``. With another protocol
    they raise a ConfigError.

    Args:
        url: as for ``logclient.connect``; or a client.
        options: as for ``logclient.connect``.

    Attributes:
        client: the client that this one uses. Other threads may use it too.

    Raises:
        ConfigError: the URL or an option breaks a rule; or ``overflow=block``, which would stop the loop.
        LedgerError: the ledger's directory cannot be used.
        MissingExtra: a package that the protocol needs is not installed.
        TypeError: options are given with a client.
    """

    def __init__(self, url: str | Client | None = None, /, **options: Unpack[Options]) -> None:
        check_source(None, url if isinstance(url, Client) else None, options)
        config = url.config if isinstance(url, Client) else parse(url, **options)
        if config.policy == "block":
            name = config.given.get("overflow", "overflow")
            raise ConfigError(f"{name}: block would stop the loop; use drop_oldest, drop_new or raise")
        self.client: Any = url if isinstance(url, Client) else open_client(config)
        self._waiter: Waiter = self.client._waiter
        self._open: weakref.WeakSet[Actions] = weakref.WeakSet()
        self._listeners: set[asyncio.Task[None]] = set()
        self._awaited: tuple[asyncio.AbstractEventLoop, Delivery] | None = None
        self._checked: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    def send(self, event: Event, level: Level = INFO) -> int:
        """Queue one event without waiting. Arguments and errors are those of ``logclient.Client.send``."""
        return int(self.client.send(event, level))

    async def submit(self, event: Event, level: Level = INFO) -> Outcome:
        """Send an event and await its outcome, whatever it is, as ``logclient.Client.submit``."""
        return await self._outcome(self.client.submit(event, level))

    async def flush(self, timeout: float | None = None) -> int:
        """Wait until all events sent so far have an outcome, as ``logclient.Client.flush``."""
        if self._waiter.inline:
            return int(self.client.flush(timeout))
        if timeout is None:
            timeout = self.client.config.timeout
        return await self._settled(self._waiter.last, timeout)

    async def close(self, timeout: float | None = None) -> int:
        """Deliver the queued events and end, as ``logclient.Client.close``. May be called again."""
        if timeout is None:
            timeout = self.client.config.timeout
        if self._waiter.inline:
            left = int(self.client.close(timeout))
        else:
            deadline = time.monotonic() + timeout
            for done in self._waiter.closing(timeout):
                await self._settled(self._waiter.last, max(0.0, deadline - time.monotonic()))
                await _until(done, max(deadline, time.monotonic() + ENDING))
            left = self._waiter.remaining
        for actions in list(self._open):
            actions.close()
        return left

    def stats(self) -> Stats:
        """Return all counts in one consistent snapshot."""
        found: Stats = self.client.stats()
        return found

    async def ping(self, timeout: float = 5.0) -> Any:
        """Ask the server for a sign of life.

        Args:
            timeout: seconds to wait for the answer.

        Returns:
            The ``Pong`` of the protocol, such as ``logclient.logux.Pong``.

        Raises:
            ConnectFailed: no answer within `timeout` seconds.
            ConfigError: the protocol has no ping.
        """
        ping, peer = self._method("ping"), self.client._peer
        if self._waiter.inline:
            return ping(timeout=timeout)
        future, settle = _promise()
        request = peer.begin_request("ping", None, settle)
        try:
            await self._wait(future, timeout)
        finally:
            answer = partial(peer.finish_request, request, timeout)
            if not future.done():  # cancelled
                with suppress(ConnectFailed, ValueError):
                    answer()
        return self.client.pong(*answer())

    # -- Logux

    async def add(
        self, action: Mapping[str, Any], meta: Mapping[str, Any] | None = None, level: Level = INFO
    ) -> Outcome:
        """Send a whole action and await its outcome; see ``logclient.logux.Client.add``."""
        return await self._outcome(self._method("add")(action, meta, level))

    async def subscribe(self, channel: str, **more: Any) -> Outcome:
        """Subscribe to a channel and await the answer; see ``logclient.logux.Client.subscribe``."""
        return await self._outcome(self._method("subscribe")(channel, **more))

    async def unsubscribe(self, channel: str, **more: Any) -> Outcome:
        """End a subscription and await the answer; see ``logclient.logux.Client.unsubscribe``."""
        return await self._outcome(self._method("unsubscribe")(channel, **more))

    @property
    def state(self) -> str:
        """The state of the connection, one of those of ``logclient.logux.Client.state``."""
        return str(self._method("state"))

    @property
    def node_id(self) -> str:
        """The node id of this client; see ``logclient.logux.Client.node_id``."""
        return str(self._method("node_id"))

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of this client, as a copy. Assign to change them; see ``logclient.logux.Client``."""
        return dict(self._method("headers"))

    @headers.setter
    def headers(self, headers: Mapping[str, Any]) -> None:
        self._method("headers")
        self.client.headers = headers

    @property
    def server_headers(self) -> dict[str, Any]:
        """The last headers of the server, from any connection."""
        return dict(self._method("server_headers"))

    def on(self, type: str | None, callback: Callback) -> Callable[[], None]:
        """Call ``callback(action, meta)`` in this loop with each action of a type that the server sends.

        Exceptions of the callback are written to the error log.

        Args:
            type: the type of the actions; None: every type.
            callback: takes the action and its meta. If it is a coroutine function, each call is awaited
                before the next one.

        Returns:
            A function that removes the callback.

        Raises:
            ConfigError: the callback cannot be called, or the protocol is not Logux.
        """
        if not callable(callback):
            raise ConfigError(f"callback: must be callable, got {callback.__class__.__name__}")
        actions = self.actions(type)
        task = asyncio.get_running_loop().create_task(_serve(actions, callback, self.client.warn_limited))
        self._listeners.add(task)  # a loop holds its tasks weakly
        task.add_done_callback(self._listeners.discard)
        return actions.close

    def actions(self, type: str | None = None) -> Actions:
        """Return an iterator over the actions that the server sends.

        Use it as ``async for action, meta in client.actions("chat/add"): ...``.

        Args:
            type: the type of the actions; None: every type.

        Raises:
            ConfigError: the protocol is not Logux.
        """
        actions = Actions(self._method("on"), type, self.client.config.max_bytes)
        self._open.add(actions)
        return actions

    async def _settled(self, target: int, timeout: float) -> int:
        """Wait until all events up to this sequence are settled; return how many are not."""
        waiter = self._waiter
        if waiter.settled >= target:
            return 0
        future, settle = _promise()
        cancel = waiter.when(target, settle)
        try:
            await self._wait(future, timeout)
        finally:
            cancel()
        return 0 if future.done() else waiter.unsettled(target)

    async def _wait(self, future: asyncio.Future[Any], timeout: float) -> None:
        """Wait for the sender, `timeout` seconds at most, and start another where it is missing."""
        deadline = time.monotonic() + timeout
        while True:
            self._waiter.ensure()
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait({future}, timeout=min(left, CHECK))
            if future.done() or left <= CHECK:
                return

    async def _outcome(self, delivery: Delivery) -> Outcome:
        outcome = delivery.result(0)
        if outcome is not None:  # refused: many of them must not queue as callbacks
            await asyncio.sleep(0)
            return outcome
        future, settle = _promise()
        delivery.add_done_callback(lambda delivery: settle(delivery.result(0)))
        # One request for all events sent in this turn of the loop: for the last of them. A loop that stopped
        # before its next turn has not made its own.
        loop = asyncio.get_running_loop()
        if self._awaited is None or self._awaited[0] is not loop:
            loop.call_soon(self._request_flush)
        self._awaited = loop, delivery
        settled: Outcome = await future
        return settled

    def _request_flush(self) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited[1]._request_flush()
        loop = asyncio.get_running_loop()
        if loop not in self._checked:
            self._checked.add(loop)
            loop.call_later(CHECK, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """While outcomes are awaited, start another sender where it is missing, or fail them."""
        if self._waiter.ensure_outcomes():
            loop.call_later(CHECK, self._check, loop)
        else:
            self._checked.discard(loop)

    def _method(self, name: str) -> Any:
        found = getattr(self.client, name, None)
        if found is None:
            raise ConfigError(f"{name}: not available for {self.client.config.protocol}")
        return found

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self.client)[1:]}"


class Actions:
    """Actions of the server in their order; see ``AsyncClient.actions``.

    The iteration ends when this or its client is closed. Actions that are not fetched wait here,
    `MAX_WAITING` of them (or `max_bytes`); later ones are dropped and counted in ``missed``.
    """

    def __init__(self, on: Callable[..., Callable[[], None]], type: str | None, max_bytes: int) -> None:
        self.missed = 0
        self._max_bytes = max_bytes
        self._put = self._fetched = 0  # bytes: each changed by one thread
        self._loop = asyncio.get_running_loop()
        self._ready: deque[tuple[int, Received]] = deque()
        self._wake = asyncio.Event()
        self._wake_due = False
        self._closed = False
        receive = weakref.WeakMethod(self._receive)
        # It ends when it has no references, as after a `break`.
        self._end = weakref.finalize(self, on(type, lambda *given: (found := receive()) and found(*given)))
        self._end.atexit = False

    def close(self) -> None:
        """Take no more actions; those that wait can still be fetched. May be called from any thread."""
        self._closed = True
        self._end()
        self._wake_loop()

    def _receive(self, action: dict[str, Any], meta: dict[str, Any]) -> None:
        """Take an action, on the client's callback thread."""
        size = memory.weight(action)
        held = self._put - self._fetched
        if len(self._ready) >= MAX_WAITING or held + size > max(self._max_bytes, size):
            self.missed += 1
            return
        self._put += size
        self._ready.append((size, (action, meta)))
        if not self._wake_due:
            self._wake_due = True
            self._wake_loop()

    def _wake_loop(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake_up)
        except RuntimeError:  # it is closed
            self._closed = True
            self._end()

    def _wake_up(self) -> None:
        self._wake_due = False
        self._wake.set()

    def __aiter__(self) -> Actions:
        return self

    async def __anext__(self) -> Received:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        size, received = self._ready.popleft()
        self._fetched += size
        return received


async def _serve(actions: Actions, callback: Callback, warn_limited: Callable[[str, str], None]) -> None:
    async for action, meta in actions:
        try:
            found = callback(action, meta)
            if isinstance(found, Awaitable):
                await found
        except (KeyboardInterrupt, SystemExit):  # they end a loop
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # this task is cancelled, not an awaitable of the callback
            warn_limited("callback", f"a callback raised {described(error)}")


async def _until(done: Callable[[], bool], deadline: float) -> None:
    """Poll until ``done()`` is true, or the monotonic `deadline`."""
    pause = 0.0005
    while not done() and time.monotonic() < deadline:
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.02)


def _promise() -> tuple[asyncio.Future[Any], Callable[..., None]]:
    """Make a future, and the function by which another thread settles it, unless it is done."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(found: Any) -> None:
        if not future.done():  # cancelled
            future.set_result(found)

    def settle_soon(found: Any = None) -> None:
        try:
            loop.call_soon_threadsafe(settle, found)
        except RuntimeError:  # the loop is closed
            pass

    return future, settle_soon
