"""The client in asyncio: awaited outcomes, a loop that never stops, and actions from the server."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import logclient
from logclient import AsyncClient, aio
from logclient.aio import MAX_WAITING, Actions
from logclient.config.parsing import parse
from logclient.delivery.outcomes import Outcome
from logclient.errors import ConfigError, ConnectFailed, EncodeError
from logclient.testing.lumberjack import Collector
from tests.support import clean_environment
from tests.support.dead_servers import Mute, Refusing
from tests.support.patience import PATIENCE, assert_returns


def url(port: int, options: str = "") -> str:
    return f"lumberjack://127.0.0.1:{port}{options}"


class LoopTurns:
    """Counts the turns of a loop: a blocked loop counts none."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0.001)

    def stop(self) -> None:
        self._task.cancel()


class TestOutcomes:
    def test_each_submitted_event_can_be_awaited(self) -> None:
        async def main(port: int) -> list[Outcome]:
            async with AsyncClient(url(port)) as client:
                first = client.send({"message": "sent"})
                found = await asyncio.gather(*(client.submit({"message": f"{n}"}) for n in range(200)))
                assert first == 1
                assert await client.flush() == 0
                assert client.stats().acked == 201
                assert repr(client).startswith("<AsyncClient lumberjack://")
                return found

        with Collector(keep=True) as collector:
            assert asyncio.run(main(collector.port)) == [Outcome("acked")] * 200
            assert len(list(collector.events(201))) == 201

    def test_unencodable_events_raise_as_in_the_client(self) -> None:
        async def main(port: int) -> None:
            async with AsyncClient(url(port, "?max_event_bytes=1000")) as client:
                with pytest.raises(EncodeError):
                    await client.submit({"a": "x" * 2000})
                with pytest.raises(TypeError):
                    client.send(5)  # type: ignore[arg-type]
                assert await client.submit(b"no json") == Outcome("failed", "not_json")

        with Collector() as collector:
            asyncio.run(main(collector.port))

    def test_an_existing_client_can_be_wrapped(self) -> None:
        async def main(client: logclient.Client) -> None:
            face = AsyncClient(client)
            assert face.client is client
            assert (await face.submit({"a": 1})).ok
            assert await face.close() == 0
            assert await face.close() == 0
            assert client.closed
            assert await face.submit({"a": 1}) == Outcome("dropped", "closed")

        with Collector() as collector:
            asyncio.run(main(logclient.connect(url(collector.port))))

    def test_options_with_a_client_are_refused(self) -> None:
        client = logclient.connect(url(1))
        with pytest.raises(TypeError, match="overflow: options belong to the client that was given"):
            AsyncClient(client, overflow="block")

    def test_overflow_block_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="overflow: block would stop the loop"):
            AsyncClient(url(1, "?overflow=block"))
        client = logclient.connect(url(1), overflow="block")
        with pytest.raises(ConfigError, match="overflow: block"):
            AsyncClient(client)

    def test_methods_of_other_protocols_are_refused(self) -> None:
        async def main() -> None:
            client = AsyncClient(url(1))
            for use in (lambda: client.ping(), lambda: client.add({"type": "a"})):
                with pytest.raises(ConfigError, match="not available for lumberjack"):
                    await use()
            for name in (lambda: client.on("a", print), lambda: client.actions()):
                with pytest.raises(ConfigError, match="on: not available for lumberjack"):
                    name()

        asyncio.run(main())

    def test_state_and_headers_of_a_connection_are_known(self) -> None:
        pytest.importorskip("websockets")
        from logclient.testing.logux import Collector

        async def main(url: str) -> None:
            async with AsyncClient(url, user="10") as client:
                assert client.state == "disconnected"
                assert client.node_id.startswith("10:")
                assert client.headers == {}
                client.headers = {"locale": "fr"}
                assert client.headers == {"locale": "fr"}
                assert (await client.ping()).node_id == "server:logclient"
                assert client.state == "synchronized"
                while collector.clients.get(client.node_id) != {"locale": "fr"}:
                    await asyncio.sleep(0.001)
                while client.server_headers != {"env": "test"}:
                    await asyncio.sleep(0.001)
            other = AsyncClient(url_of(1))
            with pytest.raises(ConfigError, match="headers: not available for lumberjack"):
                other.headers = {}
            with pytest.raises(ConfigError, match="state: not available for lumberjack"):
                assert other.state

        url_of = url
        with Collector(headers={"env": "test"}) as collector:
            asyncio.run(asyncio.wait_for(main(collector.url), PATIENCE))

    def test_ping_raises_without_an_answer(self) -> None:
        async def main() -> None:
            client = AsyncClient("logux://127.0.0.1:1")
            with pytest.raises(ConnectFailed):
                await client.ping(timeout=0.1)
            assert await client.close(1.0) == 0

        asyncio.run(main())


class TestLoopIsNeverBlocked:
    def test_the_loop_runs_while_a_dead_server_is_awaited(self) -> None:
        async def main(url: str) -> None:
            client = AsyncClient(url)
            ticks = LoopTurns()
            outcomes = [asyncio.ensure_future(client.submit({"n": n})) for n in range(10)]
            await asyncio.sleep(0)
            before = ticks.count
            assert await client.flush(0.2) == 10
            assert ticks.count > before + 3
            before = ticks.count
            assert await client.close(0.2) == 10
            assert ticks.count > before + 3
            assert await asyncio.gather(*outcomes) == [Outcome("failed", "closed")] * 10
            ticks.stop()

        with Mute() as server:
            asyncio.run(main(server.url))

    def test_a_full_queue_drops_and_does_not_block(self) -> None:
        async def main(url: str) -> None:
            async with AsyncClient(url + "?max_events=10&timeout=0") as client:
                outcomes = [asyncio.ensure_future(client.submit({"n": n})) for n in range(30)]
                await asyncio.sleep(0)
                assert [f for f in range(30) if client.send({"n": f})] == []
                await client.close(0)
                found = await asyncio.gather(*outcomes)
                assert found[10:] == [Outcome("dropped", "overflow")] * 20

        with Refusing() as server:
            asyncio.run(main(server.url))


def refuse_threads(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """Let no thread of ours start, with this error, until the list that it returns is cleared."""
    short = [text]
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if short and thread.name.startswith("logclient"):
            raise RuntimeError(short[0])
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return short


class TestThreads:
    """No call has its own thread."""

    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The threads of the library and of the loop that are started, beside those that each client has."""
        names: list[str] = []
        start = threading.Thread.start

        def note(thread: threading.Thread) -> None:
            if thread.name.startswith(("logclient", "asyncio")):
                names.append(thread.name)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", note)
        return names

    def test_many_flushes_and_closes_need_no_thread(self, started: list[str]) -> None:
        async def main(url: str) -> None:
            client = AsyncClient(url)
            client.send({"n": 1})
            flushes = [asyncio.ensure_future(client.flush(0.3)) for _ in range(100)]
            assert await asyncio.gather(*flushes) == [1] * 100
            closes = [asyncio.ensure_future(client.close(0.2)) for _ in range(100)]
            assert await asyncio.gather(*closes) == [1] * 100
            assert client.client._sender.engine.submissions._watched == {}

        with Mute() as server:
            asyncio.run(main(server.url))
        assert set(started) <= {"logclient-sender", "logclient-callbacks"}, started
        assert "logclient-sender" in started

    def test_many_pings_need_no_thread(self, started: list[str]) -> None:
        async def main() -> None:
            client = AsyncClient("logux://127.0.0.1:1")
            pings = [asyncio.ensure_future(client.ping(timeout=0.2)) for _ in range(50)]
            found = await asyncio.gather(*pings, return_exceptions=True)
            assert all(isinstance(one, ConnectFailed) for one in found)
            await client.close(1.0)

        asyncio.run(main())
        assert set(started) <= {"logclient-sender", "logclient-callbacks"}, started
        assert "logclient-sender" in started

    def test_the_sender_ends_a_flush(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody sleeps until the next check, nor until the deadline."""
        monkeypatch.setattr(aio, "CHECK", 3600.0)

        async def main(port: int) -> None:
            async with AsyncClient(url(port)) as client:
                for n in range(200):
                    client.send({"n": n})
                    assert await client.flush(3600) == 0
                client.send({"n": 0})
                found = await asyncio.gather(*(client.flush(3600) for _ in range(20)))
                assert found == [0] * 20

        with Collector() as collector:
            asyncio.run(asyncio.wait_for(main(collector.port), PATIENCE))

    def test_a_cancelled_flush_leaves_no_watcher(self) -> None:
        async def main(url: str) -> None:
            client = AsyncClient(url)
            client.send({"n": 1})
            for _ in range(50):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.flush(3600), 0.001)
            assert client.client._sender.engine.submissions._watched == {}
            await client.close(0)

        with Refusing() as server:
            asyncio.run(main(server.url))

    @pytest.mark.parametrize("text", ["can't start new thread"])
    def test_the_loop_runs_when_no_thread_can_start(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setattr(aio, "CHECK", 0.02)

        async def main(port: int, dead: str) -> None:
            short = refuse_threads(monkeypatch, text)
            client, other = AsyncClient(url(port)), AsyncClient(dead)
            client.send({"n": 1})
            other.send({"n": 1})
            ticks = LoopTurns()
            assert await client.flush(0.3) == 1
            assert await other.close(0.3) == 1
            with pytest.raises(ConnectFailed):
                await AsyncClient("logux://127.0.0.1:1").ping(timeout=0.1)
            assert ticks.count > 20
            asyncio.get_running_loop().call_later(0.05, short.clear)
            assert await client.flush(PATIENCE) == 0, "as soon as there is a thread again"
            assert await client.close(PATIENCE) == 0
            ticks.stop()

        with Collector() as collector, Refusing() as dead:
            asyncio.run(main(collector.port, dead.url))

    def test_a_loop_after_one_that_stopped_gets_its_outcomes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first loop stops before it asks for its outcome. The second one starts the missing sender."""
        monkeypatch.setattr(aio, "CHECK", 0.02)

        async def main(client: AsyncClient) -> Outcome:
            second = asyncio.ensure_future(client.submit({"n": 2}))
            await asyncio.sleep(0)
            short.clear()
            return await asyncio.wait_for(second, PATIENCE)

        with Collector() as collector:
            short = refuse_threads(monkeypatch, "can't start new thread")
            client = AsyncClient(url(collector.port))
            loop = asyncio.new_event_loop()
            first = loop.create_task(client.submit({"n": 1}))
            loop.call_soon(loop.stop)
            loop.run_forever()
            assert asyncio.run(main(client)) == Outcome("acked")
            assert loop.run_until_complete(first) == Outcome("acked")
            loop.close()
            assert client.client.close(PATIENCE) == 0

    def test_refused_events_never_stop_the_loop(self) -> None:
        """An outcome that is there at once needs no callback and lets other tasks run."""

        async def main(url: str) -> None:
            client = AsyncClient(url + "?max_events=1&timeout=0")
            client.send({"n": 0})
            ticks = LoopTurns()
            for n in range(100):
                assert await client.submit({"n": n}) == Outcome("dropped", "overflow")
            assert ticks.count > 0 and client.stats().callbacks == 0
            ticks.stop()
            await client.close(0)

        with Refusing() as server:
            asyncio.run(main(server.url))


class TestCancelled:
    def test_a_cancelled_await_still_delivers_the_event(self) -> None:
        async def main(port: int) -> None:
            errors: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
            async with AsyncClient(url(port)) as client:
                tasks = [asyncio.ensure_future(client.submit({"n": n})) for n in range(50)]
                await asyncio.sleep(0)
                for task in tasks[::2]:
                    task.cancel()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                assert [isinstance(one, asyncio.CancelledError) for one in found] == [True, False] * 25
                assert await client.flush() == 0
                assert client.stats().acked == 50
                # Outcomes come in order: with this one the cancelled awaits have got theirs.
                assert (await client.submit({"n": 50})).ok
            assert errors == []

        with Collector() as collector:
            asyncio.run(main(collector.port))

    def test_a_cancelled_flush_does_not_delay_the_loops_end(self) -> None:
        async def main(url: str) -> AsyncClient:
            client = AsyncClient(url)
            client.send({"a": 1})
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.flush(3600), 0.05)
            return client

        with Refusing() as server:
            client = assert_returns(lambda: asyncio.run(main(server.url)))
            client.client.close(0)

    def test_a_cancelled_close_goes_on(self) -> None:
        async def main(port: int) -> logclient.Client:
            client = AsyncClient(url(port))
            client.send({"a": 1})
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            found: logclient.Client = client.client
            return found

        with Collector(keep=True) as collector:
            client = asyncio.run(main(collector.port))
            assert len(list(collector.events(1))) == 1
            assert client.flush(PATIENCE) == 0

    def test_delivery_goes_on_after_the_loop_has_ended(self) -> None:
        async def main(port: int) -> AsyncClient:
            client = AsyncClient(url(port))
            tasks = [asyncio.ensure_future(client.submit({"n": n})) for n in range(10)]
            await asyncio.sleep(0)
            assert not tasks[0].done()
            return client

        with Collector() as collector:
            client = asyncio.run(main(collector.port))
            assert client.client.flush(PATIENCE) == 0
            assert client.stats().acked == 10
            # From another loop it goes on.
            assert asyncio.run(client.submit({"a": 1})).ok
            assert asyncio.run(client.close()) == 0


class ActionSource:
    """A source of actions to which an `Actions` subscribes."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[..., object]] = []
        self.types: list[str | None] = []

    def on(self, type: str | None, callback: Callable[..., object]) -> Callable[[], None]:
        self.types.append(type)
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def say(self, *numbers: int) -> None:
        """From a thread of its own, as the client does."""

        def run() -> None:
            for number in numbers:
                for callback in list(self.callbacks):
                    callback({"type": "n", "n": number}, {"id": number})

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


MANY = 64 << 20


class TestActions:
    def test_actions_come_in_order_until_closed(self) -> None:
        async def main() -> list[int]:
            speaker = ActionSource()
            actions = Actions(speaker.on, "n", MANY)
            speaker.say(1, 2)
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, speaker.say, 3)
            loop.call_later(0.02, actions.close)
            found = [action["n"] async for action, meta in actions if meta == {"id": action["n"]}]
            assert speaker.types == ["n"] and speaker.callbacks == []
            actions.close()
            return found

        assert asyncio.run(main()) == [1, 2, 3]

    def test_several_tasks_may_share_one_iterator(self) -> None:
        async def main() -> list[int]:
            speaker = ActionSource()
            actions = Actions(speaker.on, None, MANY)

            async def fetch() -> int:
                return int((await anext(actions))[0]["n"])

            tasks = [asyncio.ensure_future(fetch()) for _ in range(5)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            speaker.say(1, 2)
            speaker.say(3, 4)
            return await asyncio.gather(*tasks[1:])

        assert sorted(asyncio.run(main())) == [1, 2, 3, 4]

    def test_a_cancelled_fetch_takes_no_action(self) -> None:
        async def main() -> int:
            speaker = ActionSource()
            actions = Actions(speaker.on, None, MANY)
            for _ in range(20):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(actions), 0.001)
            speaker.say(7)
            return int((await anext(actions))[0]["n"])

        assert asyncio.run(main()) == 7

    def test_actions_beyond_the_bound_are_counted(self) -> None:
        async def main() -> None:
            speaker = ActionSource()
            actions = Actions(speaker.on, None, MANY)
            speaker.say(*range(MAX_WAITING + 5))
            assert actions.missed == 5
            actions.close()
            assert [action["n"] async for action, _ in actions] == list(range(MAX_WAITING))

        asyncio.run(main())

    def test_bytes_beyond_the_bound_are_counted_until_some_are_fetched(self) -> None:
        async def main() -> None:
            speaker = ActionSource()
            actions = Actions(speaker.on, None, 1024)
            speaker.say(*range(50))
            missed = actions.missed
            assert 0 < missed < 50
            for n in range(50 - missed):
                assert (await anext(actions))[0]["n"] == n
            speaker.say(50)
            assert actions.missed == missed
            assert (await anext(actions))[0]["n"] == 50
            actions.close()

        asyncio.run(main())

    def test_an_unreferenced_iterator_unsubscribes(self) -> None:
        async def main() -> None:
            speaker = ActionSource()
            actions = Actions(speaker.on, None, MANY)
            speaker.say(1)
            async for _ in actions:
                break
            await asyncio.sleep(0)  # what roused it is over
            found = weakref.ref(actions)
            del actions
            gc.collect()
            assert found() is None
            assert speaker.callbacks == []

        asyncio.run(main())

    def test_a_closed_loop_gets_no_more_actions(self) -> None:
        async def main() -> tuple[ActionSource, Actions]:
            speaker = ActionSource()
            return speaker, Actions(speaker.on, None, MANY)

        speaker, actions = asyncio.run(main())
        speaker.say(1)
        assert speaker.callbacks == []
        actions.close()


class ClientWithActions(logclient.Client):
    """A client whose server sends actions."""

    speaker = ActionSource()

    def on(self, type: str | None, callback: Callable[..., object]) -> Callable[[], None]:
        return self.speaker.on(type, callback)

    def warn_limited(self, kind: str, text: str) -> None:
        self.complaints.append((kind, text))

    complaints: list[tuple[str, str]]


class TestOn:
    @pytest.fixture
    def client(self) -> ClientWithActions:
        client = ClientWithActions(parse(url(1)))
        client.speaker = ActionSource()
        client.complaints = []
        return client

    def test_callbacks_run_in_the_loop_in_order(self, client: ClientWithActions) -> None:
        async def main() -> None:
            face = AsyncClient(client)
            plain: list[int] = []
            awaited: list[str] = []

            def hear(action: dict[str, Any], meta: dict[str, Any]) -> None:
                assert asyncio.get_running_loop()
                plain.append(action["n"])

            async def listen(action: dict[str, Any], meta: dict[str, Any]) -> None:
                awaited.append(f"+{action['n']}")
                await asyncio.sleep(0.001)
                awaited.append(f"-{action['n']}")
                if action["n"] == 1:
                    raise ZeroDivisionError("oops")

            end = face.on("n", hear)
            face.on(None, listen)
            client.speaker.say(1, 2, 3)
            while len(awaited) < 6:
                await asyncio.sleep(0.001)
            assert plain == [1, 2, 3]
            assert awaited == ["+1", "-1", "+2", "-2", "+3", "-3"]
            end()
            client.speaker.say(4)
            await face.close()
            while len(awaited) < 8:
                await asyncio.sleep(0.001)
            assert plain == [1, 2, 3]
            assert client.speaker.callbacks == []

        asyncio.run(main())
        assert client.complaints == [("callback", "a callback raised ZeroDivisionError: oops")]

    def test_a_callback_goes_on_after_a_cancelled_await(self, client: ClientWithActions) -> None:
        async def main() -> None:
            face = AsyncClient(client)
            received: list[int] = []

            async def listen(action: dict[str, Any], meta: dict[str, Any]) -> None:
                received.append(action["n"])
                if action["n"] == 1:
                    raise asyncio.CancelledError
                if action["n"] == 2:
                    raise pytest.fail.Exception("oops")

            face.on(None, listen)
            client.speaker.say(1, 2, 3)
            while len(received) < 3:
                await asyncio.sleep(0.001)
            await face.close()

        asyncio.run(asyncio.wait_for(main(), PATIENCE))
        assert client.complaints == [
            ("callback", "a callback raised CancelledError"),
            ("callback", "a callback raised Failed: oops"),
        ]

    def test_a_callback_must_be_callable(self, client: ClientWithActions) -> None:
        async def main() -> None:
            with pytest.raises(ConfigError, match="callback: must be callable, got int"):
                AsyncClient(client).on("n", 5)  # type: ignore[arg-type]

        asyncio.run(main())


def test_asyncio_is_imported_only_when_used() -> None:
    code = (
        "import sys, logclient\n"
        "client = logclient.connect('lumberjack://127.0.0.1:1'); client.send('a'); client.close(0)\n"
        "assert 'asyncio' not in sys.modules\n"
        "logclient.AsyncClient\n"
        "assert 'asyncio' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(PYTHONPATH=":".join(sys.path)),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
