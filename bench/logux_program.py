"""A Python contender of row `logux` as a process: `python -m bench.logux_program KIND URL ACTION`.

``websockets``, ``picows``: loops that only do what the protocol demands: a connect, syncs made as text, the
outcome of each action found by a text search, and an answer to each of the server's syncs. ``logclient``: our
client, one ``send`` for each action, then a ``flush``.

Input and output are lines as in logux_peers.js; ``each`` is the number of actions in a sync, and ``options``
are those of our client.
"""

from __future__ import annotations

import asyncio
import json
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Any

PLACE = "0" * 32
CREDENTIALS = {"token": "secret", "subprotocol": 1}


def used() -> float:
    """Return the CPU seconds of this process."""
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


class Clock:
    """The wall and CPU time since its creation."""

    def __init__(self) -> None:
        self._cpu, self._wall = used(), time.perf_counter()

    def report(self, processed: int) -> dict[str, float]:
        wall = time.perf_counter() - self._wall
        return {"processed": processed, "wall": wall, "cpu": used() - self._cpu}


def syncs(action: str, numbers: Iterator[int], base: int) -> Callable[[int], str]:
    """Return a function that makes a sync of a number of actions, each with a new id."""
    head, tail = action.split(PLACE)

    def made(n: int) -> str:
        shift, parts = int(time.time() * 1000) - base, []
        for number in (next(numbers) for _ in repeat(None, n)):
            parts.append(f'{head}{number:032}{tail},{{"id":[{shift},{number}],"time":{shift}}}')
        return f'["sync",{number},{",".join(parts)}]'

    return made


class Loop:
    """A sender of `warm` actions, then `n` timed ones: `each` in a sync, at most `ahead` unsettled."""

    def __init__(self, action: str, given: dict[str, Any], send_text: Callable[[str], object]) -> None:
        self._action, self._each, self._ahead = action, given["each"], given["ahead"]
        self._send = send_text
        self._runs = [given["warm"], given["n"]]
        self._numbers = count(1)
        self._wanted = self._sent = self._done = 0
        self._make: Callable[[int], str] | None = None
        self._clock = Clock()
        self.took: dict[str, float] | None = None

    def opened(self) -> None:
        self._send(json.dumps(["connect", 5, f"bench:{secrets.token_hex(4)}:tab", 0, CREDENTIALS]))

    def message_received(self, text: str) -> None:
        """Handle a message of the server."""
        if text.startswith('["sync",'):
            self._send('["synced",0]')
            if '"type":"logux/processed"' not in text:
                raise RuntimeError(f"not processed: {text[:200]}")
            self._done += 1
            self._more()
        elif text.startswith('["connected",'):
            self._make = syncs(self._action, self._numbers, json.loads(text)[3][1])
            self._more()
        elif text.startswith('["ping",'):
            self._send('["pong",0]')
        elif not text.startswith(('["synced",', '["pong",')):
            raise RuntimeError(f"an unexpected message: {text[:200]}")

    def _more(self) -> None:
        if self._done == self._wanted and self.took is None:
            if not self._runs:
                self.took = self._clock.report(self._done)
                return
            self._sent, self._done, self._wanted = 0, 0, self._runs.pop(0)
            self._clock = Clock()
        assert self._make is not None
        while self._sent < self._wanted and self._sent - self._done <= self._ahead - self._each:
            n = min(self._each, self._wanted - self._sent)
            self._sent += n
            self._send(self._make(n))


async def websockets_run(url: str, action: str, given: dict[str, Any]) -> dict[str, float] | None:
    """Run the loop with websockets' asyncio client."""
    from websockets.asyncio.client import connect

    async with connect(url, compression=None, ping_interval=None, max_size=1 << 24) as connection:
        outgoing: list[str] = []
        loop = Loop(action, given, outgoing.append)
        loop.opened()
        while loop.took is None:
            for text in outgoing:
                await connection.send(text)
            outgoing.clear()
            loop.message_received(await connection.recv())  # type: ignore[arg-type]
        for text in outgoing:
            await connection.send(text)
        return loop.took


async def picows_run(url: str, action: str, given: dict[str, Any]) -> dict[str, float] | None:
    """Run the loop with picows' callbacks, which answer a frame at once."""
    import picows

    class Listener(picows.WSListener):  # type: ignore[misc]
        def on_ws_connected(self, transport: Any) -> None:
            kind = picows.WSMsgType.TEXT
            self.transport = transport
            self.loop = Loop(action, given, lambda text: transport.send(kind, text.encode()))
            self.loop.opened()

        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            self.loop.message_received(frame.get_payload_as_utf8_text())
            if self.loop.took is not None:
                transport.disconnect()

    transport, listener = await picows.ws_connect(Listener, url)
    await transport.wait_disconnected()
    return listener.loop.took  # type: ignore[no-any-return]


def ours_run(url: str, action: str, given: dict[str, Any]) -> dict[str, float]:
    """Send the data of the same action with our client, which adds its own ids."""
    import logclient

    body = json.dumps(json.loads(action)["data"], separators=(",", ":")).encode()
    with logclient.connect(url, overflow="block", **given["options"]) as made:

        def send_all(n: int) -> int:
            send = made.send
            for _ in repeat(None, n):
                send(body)
            if left := made.flush(60.0):
                raise RuntimeError(f"{left} actions were not processed")
            return n

        send_all(given["warm"])
        clock = Clock()
        return clock.report(send_all(given["n"]))


def main() -> None:
    kind, url, action = sys.argv[1:]
    for line in sys.stdin:
        given = json.loads(line)
        if kind == "logclient":
            result: dict[str, float] | None = ours_run(url, action, given)
        else:
            run = {"websockets": websockets_run, "picows": picows_run}[kind]
            result = asyncio.run(run(url, action, given))
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
