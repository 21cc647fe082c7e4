"""Owns what all models that use an official SDK have in common: the client, one request, and the end of its answer.

A subclass converts the conversation into a request, and the events of the response into chunks. This class sends the
request under the signal, closes everything on every way out, turns failures into a ModelError, and decides when an
answer is complete. Makes one attempt per request. Knows nothing of any provider's format, nor of retries.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from ..abort import AbortError, AbortSignal
from ..agent.model import AnswerEnded, Chunk, ModelError, ModelRequest
from ..errors import SafepointError, UsageError
from ..messages import FinishReason
from .connection import ResponseEvents, close_interrupted_handshakes
from .failure import MALFORMED, cut_off, malformed, transport_errors, unreachable

__all__ = ["AnswerReader", "SdkModel"]

ClientT = TypeVar("ClientT")
EventT = TypeVar("EventT")
EventT_contra = TypeVar("EventT_contra", contravariant=True)

# How long what follows the end of an answer is waited for: usage, and the end of the response, after which the
# connection can be used again. Some servers leave the response open.
REST_SECONDS = 1.0


class AnswerReader(Protocol[EventT_contra]):
    """What translates the events of one answer into chunks."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None as long as it has not."""
        ...

    def read(self, event: EventT_contra) -> Iterator[Chunk]:
        """Yield the chunks in one event. Raises: ModelError."""
        ...


class SdkModel(ABC, Generic[ClientT, EventT]):
    """A model behind an SDK."""

    # The options of the SDK's method that belong to the request or to `Retry`.
    reserved: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        model: str,
        client: ClientT | None,
        *,
        settings: Mapping[str, object],
        stream: bool,
        options: Mapping[str, object],
    ) -> None:
        """Make a model.

        Args:
            model: The name of the model.
            client: The client of the caller, if there is one.
            settings: What a client is made with otherwise; None is the default of the SDK.
            stream: Whether the answer is streamed.
            options: What is sent with every request.

        Raises:
            UsageError: An option belongs to the request or to `Retry`, or to a client that was given.
        """
        if reserved := self.reserved & options.keys():
            raise UsageError(f"{sorted(reserved)} cannot be options: they belong to the request, or to `Retry`")
        self._settings = {name: value for name, value in settings.items() if value is not None}
        if client is not None and self._settings:
            raise UsageError(f"{' and '.join(settings)} belong to the client: give either a client or these")
        self.name = model
        self._stream = stream
        self._options = dict(options)
        self._given = None if client is None else self._without_retries(client)
        # A client belongs to one event loop, so each loop has its own. The first is made now, for its errors, and
        # because the SDK imports modules meanwhile, which would block the loop.
        self._unused = None if self._given is not None else self._made()
        self._clients: dict[asyncio.AbstractEventLoop, ClientT] = {}

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Send one request and yield the answer. Closing the iterator closes the connection.

        Raises:
            ModelError: The request failed, or the answer was cut off.
            AbortError: The signal was aborted.
        """
        signal.raise_if_aborted()
        answer = self._reader()
        source = self._events(self._client(), self._body(request))
        try:
            async with signal.stream(source) as events:
                async for event in events:
                    for chunk in answer.read(event):
                        yield chunk
                    if answer.finish_reason is not None:
                        break
                rest: list[EventT] = []
                if answer.finish_reason is not None:
                    await _read_rest(events, rest, signal)
                for event in rest:
                    for chunk in answer.read(event):
                        yield chunk
            if answer.finish_reason is None:
                raise _unfinished(self.name, source)
        except SafepointError:
            raise
        except self._failures() as error:
            # After the finish reason the answer is complete: what breaks then is only the connection.
            if answer.finish_reason is None:
                raise self._model_error(error) from error
        yield AnswerEnded(answer.finish_reason)

    async def aclose(self) -> None:
        """Close the connections of this event loop, unless the client was given by the caller."""
        unused, self._unused = self._unused, None
        client = self._clients.pop(asyncio.get_running_loop(), unused)
        if client is not None:
            await self._close(client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _client(self) -> ClientT:
        """Return the client of the running event loop."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for ended in [each for each in self._clients if each.is_closed()]:
                del self._clients[ended]  # nothing can close its connections in an orderly way any more
            client, self._unused = self._unused or self._made(), None
            self._clients[loop] = client
        return client

    def _made(self) -> ClientT:
        client = self._connect(self._settings)
        close_interrupted_handshakes(client)
        return client

    def _failures(self) -> tuple[type[Exception], ...]:
        return (*self._sdk_errors(), *MALFORMED, *transport_errors())

    def _model_error(self, error: Exception) -> ModelError:
        """Return the ModelError for an exception of the SDK or of its HTTP client."""
        if isinstance(error, MALFORMED):
            return malformed(self.name, error)
        if isinstance(error, self._sdk_errors()):
            return self._explained(error)
        return unreachable(self.name, error)

    @abstractmethod
    def _connect(self, settings: Mapping[str, object]) -> ClientT:
        """Make a client. Raises: MissingExtra, or UsageError if something such as a key is missing."""

    @abstractmethod
    def _without_retries(self, client: ClientT) -> ClientT:
        """Return the caller's client, with its own retries switched off."""

    @abstractmethod
    async def _close(self, client: ClientT) -> None:
        """Close a client."""

    @abstractmethod
    def _body(self, request: ModelRequest) -> dict[str, object]:
        """Return the arguments of the SDK's method."""

    @abstractmethod
    def _events(self, client: ClientT, body: dict[str, object]) -> AsyncIterable[EventT]:
        """Return the events of the response. The request is sent when the first one is read."""

    @abstractmethod
    def _reader(self) -> AnswerReader[EventT]:
        """Return what reads the events of one answer."""

    @abstractmethod
    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        """Return the exceptions of the SDK."""

    @abstractmethod
    def _explained(self, error: Exception) -> ModelError:
        """Return the ModelError for an exception of the SDK."""


async def _read_rest(events: AsyncIterable[EventT], rest: list[EventT], signal: AbortSignal) -> None:
    """Read what follows the end of an answer into `rest`, for a limited time."""
    limit = AbortSignal.timeout(REST_SECONDS)
    try:
        with limit.guard():
            async for event in events:
                rest.append(event)  # noqa: PERF401  # what has come counts, also when the limit ends this
    except AbortError:
        if signal.aborted:
            raise  # otherwise only the limit was reached: the answer is complete


def _unfinished(model: str, source: object) -> ModelError:
    """Return the error for a response that ended without a finish reason."""
    if isinstance(source, ResponseEvents):
        return cut_off(model, content_type=source.content_type, head=source.head)
    return cut_off(model)
