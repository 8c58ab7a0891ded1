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
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from logclient.client import Client, Event, connect
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.delivery.stats import Stats
from logclient.errors import ConfigError

__all__ = ["Actions", "AsyncClient"]

INFO = 20
WAITING = 10_000
"""Actions that wait for one `Actions`, at most."""

Said = tuple[dict[str, Any], dict[str, Any]]
Callback = Callable[[dict[str, Any], dict[str, Any]], Awaitable[object] | object]
T = TypeVar("T")


class AsyncClient:
    """See ``logclient.connect`` for the arguments, or give a client that is there already.

    ``send``, ``stats`` and ``on`` may be called from any thread that runs a loop, the rest is awaited there.
    An await that is cancelled takes nothing back: the event is delivered all the same, a ``close`` goes on.

    Raises:
        ConfigError: the URL or an option breaks a rule; or ``overflow=block``, which would stop the loop.
    """

    def __init__(self, url: str | Client, /, **options: Any) -> None:
        self.client: Any = url if isinstance(url, Client) else connect(url, **options)
        if self.client.config.overflow == "block":
            raise ConfigError("overflow: block would stop the loop; use drop_oldest, drop_new or raise")
        self._open: weakref.WeakSet[Actions] = weakref.WeakSet()
        self._listeners: set[asyncio.Task[None]] = set()
        self._awaited: Delivery | None = None

    def send(self, event: Event, level: int = INFO) -> int:
        """As of the client: its sequence, or 0 when it was dropped at once. Never waits."""
        return int(self.client.send(event, level))

    async def submit(self, event: Event, level: int = INFO) -> Outcome:
        """Send an event, and wait for its fate; raises what ``send`` raises, nothing for a failed event."""
        return await self._fate(self.client.submit(event, level))

    async def flush(self, timeout: float | None = None) -> int:
        """Wait until what was sent before this call has its fate; how many events still have none."""
        return await _in_thread(lambda: int(self.client.flush(timeout)))

    async def close(self, timeout: float | None = None) -> int:
        """Deliver what is there and end; idempotent. Returns how many events were given up."""
        left = await _in_thread(lambda: int(self.client.close(timeout)))
        for actions in list(self._open):
            actions.close()
        return left

    def stats(self) -> Stats:
        found: Stats = self.client.stats()
        return found

    async def ping(self, timeout: float = 5.0) -> Any:
        """As of the client, for protocols that have it.

        Raises:
            ConnectFailed: no answer within `timeout` seconds.
        """
        ping = self._verb("ping")
        return await _in_thread(lambda: ping(timeout=timeout))

    # -- of clients that have actions

    async def add(
        self, action: Mapping[str, Any], meta: Mapping[str, Any] | None = None, level: int = INFO
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

    async def _fate(self, delivery: Delivery) -> Outcome:
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
            delivery.hurry()

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
        except Exception as error:
            complain("callback", f"a callback raised {type(error).__name__}: {error}")


async def _in_thread(work: Callable[[], T]) -> T:
    """What may wait, on a thread of its own. Not of the loop's executor: ``asyncio.run`` waits for that at
    its end, however long a cancelled call still takes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            found = work()
        except BaseException as error:
            _tell(loop, future, None, error)
        else:
            _tell(loop, future, found, None)

    try:
        threading.Thread(target=run, name="logclient-async", daemon=True).start()
    except RuntimeError:  # none can be started any more while the interpreter exits
        return work()
    return await future


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
