"""A real server on loopback, an agent whose words the test releases, an HTTP client and a reader of events."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import uvicorn

from safepoint import AbortSignal
from safepoint.agent import Agent, AnswerEnded, CallDelta, Chunk, ModelError, ModelRequest, TextDelta
from safepoint.server import App, Limits, create_app
from safepoint.session import Host, LocalHost, Store

SECONDS = 20.0


class ControlledModel:
    """A model that says what the test lets out, when it lets it out. `asked` counts the requests."""

    name = "faucet"

    def __init__(self) -> None:
        self._words: asyncio.Queue[Any] = asyncio.Queue()
        self.asked = 0

    def say(self, *words: str) -> None:
        for word in words:
            self._words.put_nowait(TextDelta(word))

    def call(self, *names: str, **arguments: Any) -> None:
        """Call these tools side by side, with the same arguments; that is the end of the answer."""
        self._call([(name, arguments) for name in names])

    def call_each(self, name: str, *arguments: dict[str, Any]) -> None:
        """Call one tool side by side, each time with other arguments; that is the end of the answer."""
        self._call([(name, each) for each in arguments])

    def _call(self, calls: list[tuple[str, dict[str, Any]]]) -> None:
        for index, (name, arguments) in enumerate(calls):
            self._words.put_nowait(CallDelta(index=index, call_id=f"call-{index}", name=name))
            self._words.put_nowait(CallDelta(index=index, arguments=json.dumps(arguments)))
        self._words.put_nowait(AnswerEnded("tool_calls"))

    def end(self, *words: str) -> None:
        self.say(*words)
        self._words.put_nowait(AnswerEnded("stop"))

    def dry(self) -> None:
        """Forget what nobody has heard."""
        while not self._words.empty():
            self._words.get_nowait()

    def break_down(self, why: str) -> None:
        self._words.put_nowait(ModelError(why))

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        self.asked += 1
        while True:
            item = await signal.run(self._words.get())
            if isinstance(item, Exception):
                raise item
            yield item
            if isinstance(item, AnswerEnded):
                return


@dataclass
class Served:
    """A server that runs, and somebody who talks to it."""

    app: App
    host: Host
    url: str
    client: httpx.AsyncClient

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        more = {} if body is None else {"json": body}
        return await self.client.request(method, path, **more, **options)

    async def session(self, session_id: str | None = None) -> str:
        answer = await self.call("POST", "/api/sessions", {} if session_id is None else {"id": session_id})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def send(self, session: str, text: str = "hello", **more: Any) -> str:
        answer = await self.call("POST", f"/api/sessions/{session}/messages", {"text": text, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def stop(self, session: str, turn: str, **body: Any) -> dict[str, Any]:
        answer = await self.call("POST", f"/api/sessions/{session}/turns/{turn}/stop", body)
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    async def turn(self, session: str, turn: str) -> dict[str, Any]:
        return dict((await self.call("GET", f"/api/sessions/{session}/turns/{turn}")).json())

    @asynccontextmanager
    async def reading(self, session: str, after: int = 0, **headers: str) -> AsyncIterator["Reader"]:
        given = {"last-event-id": str(after), **headers}
        async with self.client.stream("GET", f"/api/sessions/{session}/events", headers=given) as response:
            assert response.status_code == 200, await response.aread()
            async with aclosing(_messages(response)) as messages:
                yield Reader(messages)

    async def until(self, session: str, kind: str, after: int = 0, **fields: Any) -> dict[str, Any]:
        """The first event of this kind, and with these fields."""
        async with self.reading(session, after) as reader:
            return (await reader.until(kind, **fields))[-1][1]

    async def all_events(self, session: str) -> list[tuple[int, dict[str, Any]]]:
        """Everything there is so far."""
        last = (await self.call("GET", f"/api/sessions/{session}")).json()["last_seq"]
        async with self.reading(session) as reader:
            return await reader.take(last)


class Reader:
    """Reads numbered events from an open stream."""

    def __init__(self, messages: AsyncGenerator[tuple[int, str, str], None]) -> None:
        self._messages = messages

    async def next(self) -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(SECONDS):
            number, name, data = await anext(self._messages)
        assert name == "event", name
        return number, json.loads(data)

    async def take(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        return [await self.next() for _ in range(count)]

    async def until(self, kind: str, **fields: Any) -> list[tuple[int, dict[str, Any]]]:
        """All events up to and with the first of this kind."""
        read = []
        while True:
            read.append(await self.next())
            event = read[-1][1]
            if event["kind"] == kind and all(event[name] == value for name, value in fields.items()):
                return read

    async def last_word(self) -> str:
        """The name of the message after which the stream ended."""
        async with asyncio.timeout(SECONDS):
            names = [name async for _, name, _ in self._messages]
        return names[-1]


async def _messages(response: httpx.Response) -> AsyncGenerator[tuple[int, str, str], None]:
    number, name, data = 0, "", ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        match field:
            case "id":
                number = int(value)
            case "event":
                name = value
            case "data":
                data = value
            case "" if name and not value:
                yield number, name, data
                name = data = ""
            case _:
                pass


@asynccontextmanager
async def serving(
    agent: Agent,
    store: Store | None = None,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    on_disconnect: Literal["continue"] | float = "continue",
    port: int = 0,
) -> AsyncIterator[Served]:
    """A server over this agent, until the block ends."""
    host = LocalHost(agent, store, on_disconnect=on_disconnect)
    async with serving_host(host, token=token, limits=limits, port=port) as served:
        yield served


@asynccontextmanager
async def serving_host(
    host: Host, *, token: str | None = None, limits: Limits | None = None, port: int = 0
) -> AsyncIterator[Served]:
    """A server over this host, which is closed with it."""
    app = create_app(host, token=token, limits=limits)
    async with listening(app, port) as url:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=SECONDS, trust_env=False, verify=False
        ) as client:
            try:
                yield Served(app, host, url, client)
            finally:
                await host.close()


@asynccontextmanager
async def listening(app: Any, port: int = 0) -> AsyncIterator[str]:
    """An ASGI application at an address of its own."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
    listener.close()
    await _let_the_watcher_go()


async def _let_the_watcher_go() -> None:
    """The SSE library has one task per loop that looks for the end of the process."""
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__qualname__", "") == "_shutdown_watcher":
            task.cancel()
            await asyncio.wait([task])
