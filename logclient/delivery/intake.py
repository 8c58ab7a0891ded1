"""The caller's side of delivery: put events into the queue, follow them, ask the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient._ext.constants import PUT_FORKED, PUT_FULL, PUT_UNOPENED
from logclient.delivery import error_log, lifecycle
from logclient.delivery.contract import FOREVER
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.delivery.shutdown import Lifetime
from logclient.errors import ConnectFailed

if TYPE_CHECKING:
    from logclient._ext.queue import Turn
    from logclient.delivery.contract import Core
    from logclient.delivery.requests import Request

CHECK = 1.0
"""Seconds after which a caller that waits for room checks whether there is still a sender."""


class Intake(Lifetime):
    """Takes events and requests, from any thread. A base class of `Engine`."""

    core: Core

    def _begin(self) -> None:
        super()._begin()
        self._refusal_reported = False

    # -- events ------------------------------------------------------------------------------------

    def put(self, body: bytes, level: int, kind: int) -> int:
        """Queue one encoded event; return its sequence, or 0 when it was dropped."""
        seq = self.queue.push(body, level, kind)
        if seq < 0:
            return self.put_contended(seq, body, level, kind)
        if self.queue.needs_sender:
            self.ensure_sender()
        return seq

    def put_contended(
        self,
        code: int,
        body: bytes,
        level: int,
        kind: int,
        delivery: Delivery | None = None,
        deadline: float | None = None,
    ) -> int:
        """Finish a put that the queue did not take at once.

        Args:
            code: the result of ``EventQueue.push``.
            body: the event.
            level: logging level // 10.
            kind: a ``K_`` number (``_ext/constants.pxd``).
            delivery: follows the event.
            deadline: the monotonic second at which ``block`` gives up; None: `block_timeout` from now.

        Returns:
            The event's sequence, or 0 when it was dropped.
        """
        if code == PUT_FORKED:
            self.after_fork()
            code = self.submissions.push(body, level, kind, delivery)
        if code == PUT_UNOPENED:
            self._open_spool()
            code = self.submissions.push(body, level, kind, delivery)
        if code == PUT_FULL and self.limits.overflow == "block":
            self.ensure_sender()
            if deadline is None:
                deadline = self._block_until()
            code = self._push_in_turn(body, level, kind, delivery, deadline)
        if code in (PUT_FULL, PUT_UNOPENED):  # a signal handler logs while the spool is opened
            self.queue.refuse()
        if self.queue.needs_sender:
            self.ensure_sender()
        return max(code, 0)

    def _open_spool(self) -> None:
        """Open the spool before the first event of this process."""
        raise NotImplementedError

    def _push_in_turn(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, deadline: float
    ) -> int:
        """Wait for room until the monotonic second `deadline`, first come, first served.

        A caller that must not wait goes first, if there is room.

        Returns:
            The result of ``EventQueue.push``.
        """
        turn = self.queue.turn(len(body))
        try:
            if lifecycle.must_not_block(self.sender_ident):
                return self.submissions.push(body, level, kind, delivery, turn)
            while (left := deadline - time.monotonic()) > 0 and self._wait_room(turn, len(body), left):
                code = self.submissions.push(body, level, kind, delivery, turn)
                if code == PUT_FORKED:  # a signal handler has forked, from C
                    self.after_fork()
                elif code != PUT_FULL:
                    return code
            return PUT_FULL
        finally:
            turn.leave()

    def _wait_room(self, turn: Turn, size: int, seconds: float) -> bool:
        """Wait until a push with this turn finds room; return whether to try it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.inline:  # there is no other thread to make room
                return self._drive(lambda: self.queue.fits(size), min(left, self._patience))
            # In slices: the process may begin to exit meanwhile, or the sender has ended.
            slice_ = min(left, CHECK)
            if threads.wait_until(turn.is_ready, slice_) if threads.is_green() else turn.wait(slice_):
                return True
            self.ensure_sender()
        return False

    def _block_until(self) -> float:
        """Return when a ``block`` gives up that begins now: a monotonic second."""
        timeout = self.limits.block_timeout
        return FOREVER if timeout is None else time.monotonic() + timeout

    def ensure_sender(self) -> None:
        """Start a sender, or be one. Called after a put while the queue asks for it."""
        if self.queue.forked:
            self.after_fork()
        error_log.write_deferred()
        if self.closed:
            self._report_refusal()
            return
        if not self.inline and (self._start() or not self._no_threads):
            return
        if not lifecycle.must_not_block(self.sender_ident):
            self._drive_to(self.queue.next_seq - 1, self._patience)

    def _report_refusal(self) -> None:
        """Report once that events are dropped because they come after ``close``."""
        if self._ended:
            self.queue.needs_sender = False
        if not self._refusal_reported and self.queue.counters()["dropped"].get("closed"):
            self._refusal_reported = True
            text = f"{self.url}: closed, so later events are dropped (stats count them as refused)"
            self.diagnostics.complain(text, "refused")

    def submit(self, body: bytes, level: int, kind: int) -> Delivery:
        """Queue one event and follow it."""
        if self.queue.forked:
            self.after_fork()
        submissions = self.submissions
        delivery = Delivery(0, submissions.callbacks)
        seq, deadline = 0, None
        # A callback makes room by its end.
        crowded = submissions.is_crowded() and not submissions.callbacks.here
        if crowded and self.limits.overflow == "block":
            deadline = self._block_until()
            crowded = not self._wait_uncrowded(deadline)
        if crowded:
            self.queue.refuse()
        else:
            seq = submissions.push(body, level, kind, delivery)
            if seq < 0:
                seq = self.put_contended(seq, body, level, kind, delivery, deadline)
            elif self.queue.needs_sender:
                self.ensure_sender()
        if not seq:
            full = "overflow" if self.spool is None else "spool_full"
            delivery._settle(Outcome("dropped", "closed" if self.closed else full))
        return delivery

    def refuse(self, reason: str) -> Delivery:
        """Return the delivery of an event that was dropped before it was queued."""
        delivery = Delivery(0, self.submissions.callbacks)
        delivery._settle(Outcome("dropped", reason))
        return delivery

    def _wait_uncrowded(self, deadline: float) -> bool:
        """Wait until one more event may be submitted; return whether it may."""
        if lifecycle.must_not_block(self.sender_ident):
            return False
        crowded = self.submissions.is_crowded
        left = deadline - time.monotonic()
        if self.inline:  # there may be no other thread to run them
            self.submissions.callbacks.drain(time.monotonic() + min(left, self._patience))
            return self.closed or not crowded()
        self.ensure_sender()  # a sender that ended has outcomes to report
        return threads.wait_until(lambda: self.closed or not crowded(), left)

    # -- requests ----------------------------------------------------------------------------------

    def request(self, kind: str, payload: Any, timeout: float) -> tuple[Any, float]:
        """Ask the server something, and wait `timeout` seconds at most.

        Returns:
            Its answer, and the seconds that it took.

        Raises:
            ConnectFailed: there is no answer in time, or no connection.
            ValueError: the protocol has no such question.
        """
        if lifecycle.must_not_block(self.sender_ident):
            raise ConnectFailed(f"{kind}: not from here")
        request, begun = self.begin_request(kind, payload)
        if begun:
            request.wait(timeout)
        else:
            self._drive(lambda: request.done, timeout)
        return self.finish_request(request, timeout)

    def begin_request(
        self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None
    ) -> tuple[Request, bool]:
        """Ask the server something, without waiting.

        Returns:
            The request, and whether there is a sender, which calls `when_done` after the answer.

        Raises:
            ConnectFailed: the client is closed.
        """
        if self.queue.forked:
            self.after_fork()
        if self.closed:
            raise ConnectFailed(f"{kind}: the client is closed")
        request = self.requests.add(kind, payload, when_done)
        begun = not self.inline and self._start()
        if begun:
            self.pump.poke()
            self.queue.wake()
        return request, begun

    def finish_request(self, request: Request, timeout: float) -> tuple[Any, float]:
        """End a request that was waited for `timeout` seconds; return and raise as ``request`` does."""
        why = self.diagnostics.last_error or "silence"
        request.settle(error=ConnectFailed(f"{request.kind}: no answer in {timeout:g} s: {why}"))
        if request.error is not None:
            raise request.error
        return request.reply, request.seconds

    def post_command(self, kind: str, payload: Any) -> None:
        """Give the core a command, which has no answer.

        It holds from the next event on; events that were put before go before it. By one thread at a time.

        Raises:
            ValueError: the core does not take it.
        """
        if self.queue.forked:
            self.after_fork()
        self.core.post_command(kind, payload, self.queue.next_seq, self.in_flight)
        if self._running:
            self.pump.poke()
            self.queue.wake()

    def keep_connected(self, on: bool) -> None:
        """Begin or stop keeping a connection even if there is nothing to send.

        In a forked child this holds from its first event on.
        """
        self.keeps_connected = on
        if on:
            if self.queue.forked:
                self.after_fork()
            if not self.closed and not self.inline and self._start():
                self.queue.wake()
