"""The JSON API: a few lines for each route on top of a host. Every bad input is answered with a 4xx status."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import UsageError
from ..outcome import Completed
from ..run.stop import StopAck, StopAt
from ..session.host import NotFound, SessionAccess
from ..session.session import SessionBusy, SessionEnded
from ..session.store import SessionInUse, StoreError
from ..worker.broker import BrokerError
from . import schemas
from .metrics import Metrics
from .sse import Streams

__all__ = ["Api", "Limits", "Refused"]

B = TypeVar("B", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server. Requests beyond them are refused with status 413 or 429.

    Attributes:
        body_bytes: The largest request body.
        sessions: How many sessions may be live.
        queued_turns: How many turns of one session may wait.
        streams: How many event streams may be open.
    """

    body_bytes: int = 1_000_000
    sessions: int = 1_000
    queued_turns: int = 100
    streams: int = 500


class Refused(Exception):
    """Raised by a handler to answer with an error.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The handlers of the API for one host.

    Attributes:
        draining: True if the server is shutting down and accepts no new work.
    """

    def __init__(self, host: SessionAccess, limits: Limits, metrics: Metrics) -> None:
        self._host = host
        self._limits = limits
        self._metrics = metrics
        self._streams = Streams(host, metrics)
        self.draining = False

    def routes(self) -> list[Route]:
        """The routes of the API."""
        turn = "/api/sessions/{session}/turns/{turn}"
        table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", f"{turn}/stop", self.stop),  # first, because routes are tried in order and nothing is as urgent
            ("GET", "/api/agents", self.agents),
            ("GET", "/api/sessions", self.sessions),
            ("POST", "/api/sessions", self.create),
            ("GET", "/api/sessions/{session}", self.session),
            ("DELETE", "/api/sessions/{session}", self.close),
            ("POST", "/api/sessions/{session}/messages", self.send),
            ("POST", "/api/sessions/{session}/answers", self.answer),
            ("GET", "/api/sessions/{session}/events", self.events),
            ("GET", turn, self.turn),
            ("PATCH", turn, self.edit),
            ("DELETE", turn, self.remove),
            ("POST", f"{turn}/continue", self.continue_turn),
            ("POST", f"{turn}/forget", self.forget),
            ("GET", f"{turn}/receipt", self.receipt),
        ]
        return [Route(path, _with_errors(handler), methods=[method]) for method, path, handler in table]

    async def agents(self, request: Request) -> Response:
        return JSONResponse(await self._host.agents())

    async def sessions(self, request: Request) -> Response:
        return JSONResponse([schemas.session_data(view) for view in await self._host.sessions()])

    async def create(self, request: Request) -> Response:
        body = await _body(request, schemas.NewSessionBody)
        self._require_not_draining()
        live = [view.id for view in await self._host.sessions() if view.live]
        if len(live) >= self._limits.sessions and body.id not in live:
            raise Refused(429, f"{self._limits.sessions} sessions are live already: close some")
        return JSONResponse(schemas.session_data(await self._host.create(body.id, body.agent)), 201)

    async def session(self, request: Request) -> Response:
        return JSONResponse(schemas.session_data(await self._host.session(_id(request, "session"))))

    async def close(self, request: Request) -> Response:
        await self._host.close_session(_id(request, "session"))
        return Response(status_code=204)

    async def send(self, request: Request) -> Response:
        body = await _body(request, schemas.NewMessageBody)
        self._require_not_draining()
        session = _id(request, "session")
        if len((await self._host.session(session)).turns) > self._limits.queued_turns:
            raise Refused(429, f"{self._limits.queued_turns} turns wait already: stop or remove some")
        turn = await self._host.send(
            session, body.text, turn_id=body.turn_id, timeout=body.seconds, when_busy=body.when_busy
        )
        self._metrics.turns.inc()
        headers = {"Deprecation": "true"} if body.uses_old_name else None
        return JSONResponse(schemas.turn_data(turn), 202, headers)

    async def answer(self, request: Request) -> Response:
        body = await _body(request, schemas.AnswerBody)
        if not await self._host.answer(_id(request, "session"), body.question_id, body.text):
            raise Refused(409, f"question {body.question_id!r} is not waiting for an answer")
        return JSONResponse({"accepted": True})

    async def events(self, request: Request) -> Response:
        last = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        if not last.isdecimal() or len(last) > 18:
            raise Refused(422, f"after must be the number of an event, not {last!r}")
        self._require_not_draining()  # a reader that reconnects now would open a session that is being closed
        session = _id(request, "session")
        await self._host.session(session)  # to answer 404 here, and not inside the stream
        if self._streams.open >= self._limits.streams:
            raise Refused(429, f"{self._limits.streams} streams are open already")
        return self._streams.response(session, int(last))

    async def turn(self, request: Request) -> Response:
        return JSONResponse(schemas.turn_data(await self._host.turn(_id(request, "session"), _id(request, "turn"))))

    async def edit(self, request: Request) -> Response:
        body = await _body(request, schemas.EditBody)
        ack = await self._host.edit(_id(request, "session"), _id(request, "turn"), body.text)
        if not ack:
            raise Refused(409, "this turn is not waiting in the queue")
        return JSONResponse(schemas.change_data(ack))

    async def remove(self, request: Request) -> Response:
        ack = await self._host.remove(_id(request, "session"), _id(request, "turn"))
        if not ack:
            raise Refused(409, "this turn is not waiting in the queue: stop it instead")
        return Response(status_code=204) if ack.level == "recorded" else JSONResponse(schemas.change_data(ack), 202)

    async def stop(self, request: Request) -> Response:
        began = time.perf_counter()
        body = await _body(request, schemas.StopBody)
        at = None if body.at is None else StopAt[body.at]
        session, turn = _id(request, "session"), _id(request, "turn")
        ack = await self._host.stop(
            session, turn, at, scope=body.scope, within=body.within, abandon=body.abandon, reason=body.reason
        )
        return JSONResponse(schemas.ack_data(ack), 202, background=BackgroundTask(self._measure_stop, ack, began))

    async def _measure_stop(self, ack: StopAck, began: float) -> None:
        """Measure how long the acknowledgement took, and the stop itself. Runs after the response was sent."""
        self._metrics.stops.labels(ack.status).inc()
        self._metrics.ack_seconds.observe(time.perf_counter() - began)
        if ack.status == "accepted":
            await ack.settled()
            self._metrics.settle_seconds.observe(time.perf_counter() - began)

    async def continue_turn(self, request: Request) -> Response:
        self._require_not_draining()
        turn = await self._host.continue_turn(_id(request, "session"), _id(request, "turn"))
        return JSONResponse(schemas.turn_data(turn), 202)

    async def forget(self, request: Request) -> Response:
        await self._host.forget(_id(request, "session"), _id(request, "turn"))
        return Response(status_code=204)

    async def receipt(self, request: Request) -> Response:
        view = await self._host.turn(_id(request, "session"), _id(request, "turn"))
        if view.outcome is None:
            raise Refused(409, f"turn {view.id!r} is {view.status}: it has no receipt yet")
        if isinstance(view.outcome, Completed) and not view.outcome.receipt.entries:
            raise Refused(409, f"turn {view.id!r} has completed: nothing was stopped")
        if "text/plain" in request.headers.get("accept", ""):
            return PlainTextResponse(str(view.outcome.receipt))
        return Response(view.outcome.receipt.to_json(), media_type="application/json")

    def _require_not_draining(self) -> None:
        if self.draining:
            raise Refused(503, "the server is shutting down: it takes no new work")


def _id(request: Request, name: str) -> str:
    return str(request.path_params[name])


async def _body(request: Request, kind: type[B]) -> B:
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Refused(413, "the body is too large or incomplete") from None
    try:
        return kind.model_validate_json(raw or b"{}")
    except ValidationError as problem:
        errors = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in problem.errors()]
        raise Refused(422, "; ".join(errors)) from None


def _with_errors(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler so that errors which a caller can do something about become responses with a matching status."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused as refused:
            return _error(refused.status, str(refused))
        except NotFound as error:
            return _error(404, str(error))
        except (SessionBusy, SessionEnded, SessionInUse, UsageError) as error:
            return _error(409, str(error))  # the body was valid: the current state forbids the request
        except (StoreError, BrokerError) as error:  # the request was right, and may be sent again
            return _error(503, str(error))

    return handle


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
