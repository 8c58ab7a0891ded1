"""A Python contender of row `logux` as a process: `python -m bench.logux_program KIND URL ACTION`.

``websockets``, ``picows``: loops that do what the protocol demands and nothing more: a connect, syncs made of
text, each action's fate counted by a search in the text of the message, each of the server's syncs answered.
``logclient``: a client of ours, ``send`` by ``send``, then a ``flush``.

It speaks lines as logux_peers.js does; ``each`` is how many actions go into a sync, ``options`` are ours.
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
    """CPU seconds of this process."""
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


class Clock:
    """Wall and CPU since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = used(), time.perf_counter()

    def said(self, processed: int) -> dict[str, float]:
        wall = time.perf_counter() - self._wall
        return {"processed": processed, "wall": wall, "cpu": used() - self._cpu}


def syncs(action: str, numbers: Iterator[int], base: int) -> Callable[[int], str]:
    """What makes a sync of so many actions, with ids of their own."""
    head, tail = action.split(PLACE)

    def made(n: int) -> str:
        shift, parts = int(time.time() * 1000) - base, []
        for number in (next(numbers) for _ in repeat(None, n)):
            parts.append(f'{head}{number:032}{tail},{{"id":[{shift},{number}],"time":{shift}}}')
        return f'["sync",{number},{",".join(parts)}]'

    return made


class Loop:
    """Send `warm` actions, then `n` that are timed: `each` in a sync, at most `ahead` without an outcome."""

    def __init__(self, action: str, given: dict[str, Any], say: Callable[[str], object]) -> None:
        self._action, self._each, self._ahead = action, given["each"], given["ahead"]
        self._say = say
        self._runs = [given["warm"], given["n"]]
        self._numbers = count(1)
        self._wanted = self._sent = self._done = 0
        self._make: Callable[[int], str] | None = None
        self._clock = Clock()
        self.took: dict[str, float] | None = None

    def opened(self) -> None:
        self._say(json.dumps(["connect", 5, f"bench:{secrets.token_hex(4)}:tab", 0, CREDENTIALS]))

    def heard(self, text: str) -> None:
        """A message of the server's."""
        if text.startswith('["sync",'):
            self._say('["synced",0]')
            if '"type":"logux/processed"' not in text:
                raise RuntimeError(f"not processed: {text[:200]}")
            self._done += 1
            self._more()
        elif text.startswith('["connected",'):
            self._make = syncs(self._action, self._numbers, json.loads(text)[3][1])
            self._more()
        elif text.startswith('["ping",'):
            self._say('["pong",0]')
        elif not text.startswith(('["synced",', '["pong",')):
            raise RuntimeError(f"a message of another kind: {text[:200]}")

    def _more(self) -> None:
        if self._done == self._wanted and self.took is None:
            if not self._runs:
                self.took = self._clock.said(self._done)
                return
            self._sent, self._done, self._wanted = 0, 0, self._runs.pop(0)
            self._clock = Clock()
        assert self._make is not None
        while self._sent < self._wanted and self._sent - self._done <= self._ahead - self._each:
            n = min(self._each, self._wanted - self._sent)
            self._sent += n
            self._say(self._make(n))


async def websockets_run(url: str, action: str, given: dict[str, Any]) -> dict[str, float] | None:
    """By its asyncio client."""
    from websockets.asyncio.client import connect

    async with connect(url, compression=None, ping_interval=None, max_size=1 << 24) as connection:
        said: list[str] = []
        loop = Loop(action, given, said.append)
        loop.opened()
        while loop.took is None:
            for text in said:
                await connection.send(text)
            said.clear()
            loop.heard(await connection.recv())  # type: ignore[arg-type]
        for text in said:
            await connection.send(text)
        return loop.took


async def picows_run(url: str, action: str, given: dict[str, Any]) -> dict[str, float] | None:
    """By its callbacks: a frame is answered where it is heard."""
    import picows

    class Listener(picows.WSListener):  # type: ignore[misc]
        def on_ws_connected(self, transport: Any) -> None:
            kind = picows.WSMsgType.TEXT
            self.transport = transport
            self.loop = Loop(action, given, lambda text: transport.send(kind, text.encode()))
            self.loop.opened()

        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            self.loop.heard(frame.get_payload_as_utf8_text())
            if self.loop.took is not None:
                transport.disconnect()

    transport, listener = await picows.ws_connect(Listener, url)
    await transport.wait_disconnected()
    return listener.loop.took  # type: ignore[no-any-return]


def ours_run(url: str, action: str, given: dict[str, Any]) -> dict[str, float]:
    """The data of the same action by `send(bytes)`; the id is ours."""
    import logclient

    body = json.dumps(json.loads(action)["data"], separators=(",", ":")).encode()
    options = {"token": "secret", "subprotocol": 1, "overflow": "block"} | given["options"]
    with logclient.connect(url, **options) as made:
        def run(n: int) -> int:
            send = made.send
            for _ in repeat(None, n):
                send(body)
            if left := made.flush(60.0):
                raise RuntimeError(f"{left} actions were not processed")
            return n

        run(given["warm"])
        clock = Clock()
        return clock.said(run(given["n"]))


def main() -> None:
    kind, url, action = sys.argv[1:]
    for line in sys.stdin:
        given = json.loads(line)
        if kind == "logclient":
            said: dict[str, float] | None = ours_run(url, action, given)
        else:
            run = {"websockets": websockets_run, "picows": picows_run}[kind]
            said = asyncio.run(run(url, action, given))
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
