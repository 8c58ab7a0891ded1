"""What a client asks of its server, and hears from it: requests, commands, messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from logclient.delivery import lifecycle
from logclient.delivery.books import Request
from logclient.delivery.contract import Core, CoreEvent
from logclient.errors import ConnectFailed

if TYPE_CHECKING:
    from logclient.delivery.sender import Sender


class Peer:
    """The server of a client: requests, commands, messages. It holds the sender, never the client."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    @property
    def core(self) -> Core:
        """The core of the protocol."""
        return self._sender.engine.core

    @property
    def connection(self) -> str:
        """``connected``, ``disconnected``, ``refused`` by each server, or ``stopped``: nothing is sent."""
        return self._sender.engine.lanes.first.state

    def request(self, kind: str, payload: Any, timeout: float) -> tuple[Any, float]:
        """Ask the server something, and wait `timeout` seconds at most; return its answer and its seconds.

        Raises:
            ConnectFailed: there is no answer in time, or no connection.
            ValueError: the protocol has no such question.
        """
        if lifecycle.must_not_block(self._sender.role.ident):
            raise ConnectFailed(f"{kind}: not from here")
        sender = self._sender
        sender.notice_fork()
        # The child of a signal handler that forks from here on does not wait: its parent gets the answer.
        engine = sender.engine
        request = self.begin_request(kind, payload)
        wait = request.answered.wait
        sender.waiter.until(lambda: request.done or sender.engine is not engine, wait, timeout)
        return self.finish_request(request, timeout)

    def begin_request(
        self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None
    ) -> Request:
        """Ask the server something, without waiting.

        Raises:
            ConnectFailed: the client is closed.
        """
        sender = self._sender
        sender.notice_fork()
        if sender.closed:
            raise ConnectFailed(f"{kind}: the client is closed")
        request = sender.engine.books.requests.add(kind, payload, when_done)
        if not sender.ending.inline and sender.start():
            sender.engine.wake()
        return request

    def finish_request(self, request: Request, timeout: float) -> tuple[Any, float]:
        """End a request that was waited for `timeout` seconds; return and raise as ``request`` does."""
        why = self._sender.engine.diagnostics.last_error or "silence"
        request.settle(error=ConnectFailed(f"{request.kind}: no answer in {timeout:g} s: {why}"))
        if request.error is not None:
            raise request.error
        return request.reply, request.seconds

    def post_command(self, kind: str, payload: Any) -> None:
        """Give the core a command, which has no answer.

        It takes effect for events that are put after this call. Only one thread may call this at a time.

        Raises:
            ValueError: the core does not take it.
        """
        sender = self._sender
        sender.notice_fork()
        engine = sender.engine
        engine.core.post_command(kind, payload, sender.queue.next_seq, engine.in_flight)
        if sender.running:
            engine.wake()

    def keep_connected(self, on: bool) -> None:
        """Begin or stop keeping a connection even if there is nothing to send.

        In a forked child this holds from its first event on.
        """
        sender = self._sender
        if on:
            sender.notice_fork()
        keeps = sender.setup.keeps_connected = on and not sender.closed
        if keeps and not sender.ending.inline and sender.start():
            sender.queue.wake()

    # -- what the server says ----------------------------------------------------------------------

    def on_message(self, take: Callable[[CoreEvent], object]) -> None:
        """Have the sender call ``take(event)`` with messages that answer no request."""
        self._sender.setup.on_message = take

    def on_end(self, call: Callable[[], object]) -> None:
        """Have ``call()`` called when the client has ended, before its last callbacks have run."""
        self._sender.setup.on_end = call

    def explain(self, seq: int, details: Mapping[str, Any]) -> None:
        """Add details to the outcome of an event that is not settled yet. Called by the sender."""
        self._sender.engine.submissions.explain(seq, details)

    def queue_callback(self, callback: Callable[..., object], *given: Any) -> None:
        """Queue a callback on the client's thread for callbacks."""
        self._sender.engine.submissions.callbacks.queue(callback, *given)

    @property
    def callbacks(self) -> int:
        """Callbacks that are due and have not begun."""
        return self._sender.engine.submissions.callbacks.waiting

    def warn(self, kind: str, text: str) -> None:
        """Write a line about this server to the error log."""
        log = self._sender.setup.log
        log.warn_limited(kind, f"{self._sender.setup.config.redacted}: {text}")
