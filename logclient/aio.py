"""The client in asyncio: nothing here stops the loop.

::

    async with logclient.AsyncClient("lumberjack://127.0.0.1:5044") as client:
        client.send({"message": "hello"})                   # queued, and gone
        outcome = await client.submit({"message": "hello"})
        await client.flush()

It is a thin face over the client of ``logclient.connect``, which is its ``client``: with it share the
queue, the sender and the counts whoever logs in other threads. Servers that speak of their own accord
(Logux) are listened to with ``on`` and ``actions``.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from logclient.client import Client, Event, Level, connect
from logclient.delivery.outcomes import Delivery, Outcome, described
from logclient.delivery.stats import Stats
from logclient.errors import ConfigError, ConnectFailed

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.options import Options

__all__ = ["Actions", "AsyncClient"]

INFO = 20
LOOK = 1.0
"""Seconds between two looks of what waits for a sender, at whether there is one."""

ENDING = 0.25
"""Seconds that a sender, and callbacks, have to end in when `close` has used up its time."""

WAITING = 10_000
"""Actions that wait for one `Actions`, at most."""

Said = tuple[dict[str, Any], dict[str, Any]]
Callback = Callable[[dict[str, Any], dict[str, Any]], Awaitable[object] | object]
T = TypeVar("T")


class AsyncClient:
    """See ``logclient.connect`` for the arguments, or give a client that is there already.

    ``send``, ``stats`` and ``on`` may be called from any thread that runs a loop, the rest is awaited there.
    An await that is cancelled takes nothing back: the event is delivered all the same, a ``close`` goes on.

    What comes behind ``stats`` is Logux's, ``ping`` also plog's and Logjam's: with another protocol these
    raise a ConfigError.

    Raises:
        ConfigError: the URL or an option breaks a rule; or ``overflow=block``, which would stop the loop.
    """

    def __init__(self, url: str | Client, /, **options: Unpack[Options]) -> None:
        self.client: Any = url if isinstance(url, Client) else connect(url, **options)
        if self.client.config.overflow == "block":
            raise ConfigError("overflow: block would stop the loop; use drop_oldest, drop_new or raise")
        self._open: weakref.WeakSet[Actions] = weakref.WeakSet()
        self._listeners: set[asyncio.Task[None]] = set()
        self._awaited: Delivery | None = None

    def send(self, event: Event, level: Level = INFO) -> int:
        """As of the client: its sequence, or 0 when it was dropped at once. Never waits."""
        return int(self.client.send(event, level))

    async def submit(self, event: Event, level: Level = INFO) -> Outcome:
        """Send an event, and wait for its fate; raises what ``send`` raises, nothing for a failed event."""
        return await self._fate(self.client.submit(event, level))

    async def flush(self, timeout: float | None = None) -> int:
        """Wait until what was sent before this call has its fate; how many events still have none."""
        engine = self.client._engine
        if engine.drives:
            return int(self.client.flush(timeout))
        if timeout is None:
            timeout = self.client.config.flush_timeout
        return await self._settled(engine.handoff.next_seq - 1, timeout)

    async def close(self, timeout: float | None = None) -> int:
        """Deliver what is there and end; idempotent. Returns how many events were given up."""
        engine = self.client._engine
        if engine.drives:
            left = int(self.client.close(timeout))
        else:
            left = await self._close(self.client.config.close_timeout if timeout is None else timeout)
        for actions in list(self._open):
            actions.close()
        return left

    async def _close(self, timeout: float) -> int:
        engine = self.client._engine
        deadline = time.monotonic() + timeout
        if engine.begin_close(timeout):
            await self._settled(engine.handoff.next_seq - 1, timeout)
            await _until(lambda: not engine.running, max(deadline, time.monotonic() + ENDING))
            engine.end_idle()
            callbacks = engine.callbacks
            await _until(lambda: not callbacks.waiting, max(deadline, time.monotonic() + ENDING))
            engine.drain_callbacks(0.0, "when close() ended")
        return int(engine.remaining)

    def stats(self) -> Stats:
        found: Stats = self.client.stats()
        return found

    async def ping(self, timeout: float = 5.0) -> Any:
        """As of the client, for protocols that have it.

        Raises:
            ConnectFailed: no answer within `timeout` seconds.
        """
        ping, engine = self._verb("ping"), self.client._engine
        if engine.drives:
            return ping(timeout=timeout)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        call, _ = engine.ask("ping", None, lambda: _tell(loop, future, None, None))
        try:
            await self._wait(future, timeout)
        finally:
            answer = partial(engine.answer, call, timeout)
            if not future.done():  # cancelled: nobody waits for it any more
                with suppress(ConnectFailed, ValueError):
                    answer()
        return self.client.pong(*answer())

    # -- of clients that have actions

    async def add(
        self, action: Mapping[str, Any], meta: Mapping[str, Any] | None = None, level: Level = INFO
    ) -> Outcome:
        """Send a whole action, and wait for its fate; see ``logclient.logux.Client.add``."""
        return await self._fate(self._verb("add")(action, meta, level))

    async def subscribe(self, channel: str, **more: Any) -> Outcome:
        """Ask for what happens in a channel, and wait for the answer; see ``logclient.logux.Client``."""
        return await self._fate(self._verb("subscribe")(channel, **more))

    async def unsubscribe(self, channel: str, **more: Any) -> Outcome:
        """The end of that."""
        return await self._fate(self._verb("unsubscribe")(channel, **more))

    @property
    def state(self) -> str:
        """What the connection does; see ``logclient.logux.Client``."""
        return str(self._verb("state"))

    @property
    def node_id(self) -> str:
        """Our node id; another one after a fork, or after doubt."""
        return str(self._verb("node_id"))

    @property
    def headers(self) -> dict[str, Any]:
        """What we tell the server of ourselves; set it to replace the whole."""
        return dict(self._verb("headers"))

    @headers.setter
    def headers(self, headers: Mapping[str, Any]) -> None:
        self._verb("headers")
        self.client.headers = headers

    @property
    def server_headers(self) -> dict[str, Any]:
        """What the server has last told of itself."""
        return dict(self._verb("server_headers"))

    def on(self, type: str | None, callback: Callback) -> Callable[[], None]:
        """Call ``callback(action, meta)`` in this loop with each action of this type that the server sends.

        It may be a coroutine function, and is then awaited before it is called again. One that raises is
        told of, no more.

        Returns:
            What ends it, when called.
        """
        if not callable(callback):
            raise ConfigError(f"callback: must be callable, got {callback.__class__.__name__}")
        actions = self.actions(type)
        task = asyncio.get_running_loop().create_task(_serve(actions, callback, self.client.complain))
        self._listeners.add(task)  # a loop holds its tasks weakly
        task.add_done_callback(self._listeners.discard)
        return actions.close

    def actions(self, type: str | None = None) -> Actions:
        """What the server sends from now on: ``async for action, meta in client.actions("chat/add"): ...``.

        Args:
            type: None: of every type.
        """
        actions = Actions(self._verb("on"), type)
        self._open.add(actions)
        return actions

    async def _settled(self, target: int, timeout: float) -> int:
        """Wait until all up to this sequence have their fates; how many have none."""
        engine = self.client._engine
        if engine.handoff.settled >= target:
            return 0
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        watch = engine.watch(target, lambda: _tell(loop, future, None, None))
        try:
            await self._wait(future, timeout)
        finally:
            engine.unwatch(watch)
        return 0 if future.done() else int(engine.unsettled(target))

    async def _wait(self, future: asyncio.Future[None], timeout: float) -> None:
        """Wait for the sender to tell, `timeout` seconds at most, and start another where it is missing."""
        deadline = time.monotonic() + timeout
        while True:
            self.client._engine.restart()
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait({future}, timeout=min(left, LOOK))
            if future.done() or left <= LOOK:
                return

    async def _fate(self, delivery: Delivery) -> Outcome:
        outcome = delivery.result(0)
        if outcome is not None:  # refused: many of them must not wait for their turn as callbacks
            await asyncio.sleep(0)
            return outcome
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        delivery.add_done_callback(lambda delivery: _tell(loop, future, delivery.result(0), None))
        # One hurry for all that are sent in this turn of the loop: the last of them.
        if self._awaited is None:
            loop.call_soon(self._hurry)
        self._awaited = delivery
        return await future

    def _hurry(self) -> None:
        delivery, self._awaited = self._awaited, None
        if delivery is not None:
            delivery._hurry()

    def _verb(self, name: str) -> Any:
        found = getattr(self.client, name, None)
        if found is None:
            raise ConfigError(f"{name}: not a verb of {self.client.config.protocol}")
        return found

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self.client)[1:]}"


class Actions:
    """Actions of the server in their order; see ``AsyncClient.actions``. Ends when it, or its client, is
    closed.

    Those that nobody fetches wait here, `WAITING` of them; later ones are dropped, and counted in ``missed``.
    """

    def __init__(self, on: Callable[..., Callable[[], None]], type: str | None) -> None:
        self.missed = 0
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Said] = deque()
        self._wake = asyncio.Event()
        self._roused = False
        self._closed = False
        found = weakref.ref(self)

        def hear(action: dict[str, Any], meta: dict[str, Any]) -> None:
            actions = found()
            if actions is not None:
                actions._hear(action, meta)

        # One that nobody holds any more, as after a `break`, ends by itself.
        self._end = weakref.finalize(self, on(type, hear))
        self._end.atexit = False

    def close(self) -> None:
        """Take nothing more; what waits is still given out. From any thread."""
        self._closed = True
        self._end()
        self._tell_loop()

    def _hear(self, action: dict[str, Any], meta: dict[str, Any]) -> None:
        """On the client's callback thread."""
        if len(self._ready) >= WAITING:
            self.missed += 1
            return
        self._ready.append((action, meta))
        if not self._roused:
            self._roused = True
            self._tell_loop()

    def _tell_loop(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._rouse)
        except RuntimeError:  # it is closed: nobody fetches any more
            self._closed = True
            self._end()

    def _rouse(self) -> None:
        self._roused = False
        self._wake.set()

    def __aiter__(self) -> Actions:
        return self

    async def __anext__(self) -> Said:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._ready.popleft()


async def _serve(actions: Actions, callback: Callback, complain: Callable[[str, str], None]) -> None:
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
                raise  # this task is cancelled, not what the callback awaited
            complain("callback", f"a callback raised {described(error)}")


async def _until(done: Callable[[], bool], deadline: float) -> None:
    """Look until `done` says yes, or the monotonic `deadline`."""
    pause = 0.0005
    while not done() and time.monotonic() < deadline:
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.02)


def _tell(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], found: Any, error: BaseException | None
) -> None:
    """From another thread: the end of a future, unless that is over already."""

    def tell() -> None:
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(found)
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:  # the loop is closed
        pass
