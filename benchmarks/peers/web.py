"""Owns what the server is compared with: a bare Starlette app that answers and streams, and knows of nothing."""

from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def echo(request: Request) -> Response:
    return JSONResponse(await request.json(), 202)


async def stream(request: Request) -> Response:
    count, text = int(request.query_params["count"]), "x" * int(request.query_params["size"])

    async def events() -> AsyncIterator[ServerSentEvent]:
        for number in range(count):
            yield ServerSentEvent(text, id=str(number), event="event")

    return EventSourceResponse(events())


def bare() -> Starlette:
    return Starlette(routes=[Route("/echo", echo, methods=["POST"]), Route("/stream", stream)])
