"""Owns the peer of the server: a bare Starlette app that answers and streams without any work."""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def echo(request: Request) -> Response:
    return JSONResponse(await request.json(), 202)


class Commits:
    """An echo that commits a row in a thread before it answers."""

    def __init__(self) -> None:
        path = f"{tempfile.mkdtemp()}/rows.db"
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE rows (text TEXT)")
        self._thread = ThreadPoolExecutor(1)

    def _commit(self, text: str) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO rows VALUES (?)", (text,))
        self._db.execute("COMMIT")

    async def __call__(self, request: Request) -> Response:
        body = await request.json()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, str(body))
        return JSONResponse(body, 202)


async def stream(request: Request) -> Response:
    count, text = int(request.query_params["count"]), "x" * int(request.query_params["size"])

    async def events() -> AsyncIterator[ServerSentEvent]:
        for number in range(count):
            yield ServerSentEvent(text, id=str(number), event="event")

    return EventSourceResponse(events())


def bare() -> Starlette:
    commits = Commits()

    async def commit(request: Request) -> Response:
        return await commits(request)

    return Starlette(
        routes=[
            Route("/echo", echo, methods=["POST"]),
            Route("/commit", commit, methods=["POST"]),
            Route("/stream", stream),
        ]
    )
