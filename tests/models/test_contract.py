"""What every model that talks to a server must do, on each of the SDKs: answer, stop, hang up, say what went wrong."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal
from safepoint.agent import CallDelta, Model, ModelError, TextDelta
from safepoint.messages import AssistantMessage, SystemMessage, ToolCall, ToolResult, UserMessage
from safepoint.models.anthropic import AnthropicModel
from safepoint.models.ollama import OllamaModel
from safepoint.models.openai import OpenAIModel
from safepoint.run import Context, Retry, stream
from safepoint.testing import drain_ready_tasks
from tests.kit.providers import script
from tests.kit.providers.anthropic import Anthropic
from tests.kit.providers.ollama import Ollama
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Cut, End, Fails, Pause, Raw, Refusal, ScriptedServer, Silence, Stall
from tests.kit.providers.wire import Exchange, bounded
from tests.models.asking import ask, asking, calls_of, ending_of, first_text, text_of, usage_of

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")

SEARCH = script.ToolCall("search", {"query": "safe points"})
LENGTH = {"openai": "length", "ollama": "length", "anthropic": "max_tokens"}
HANG_UP_SECONDS = 2.0  # usually a millisecond; the machine may be busy with other tests


@dataclass
class Rig:
    """A model and the server it talks to."""

    kind: str
    server: ScriptedServer
    make: Callable[..., Any]

    def model(self, **options: Any) -> Any:
        return self.make(self.server, **options)

    async def request(self, number: int = 0) -> Exchange:
        """The n-th request, once it is there and the server has begun to do what is scripted."""
        async with asyncio.timeout(5):
            while len(self.server.exchanges) <= number:
                await asyncio.sleep(0.001)  # real time: the server is another thread
        return self.server.exchanges[number]


RIGS: dict[str, tuple[type[ScriptedServer], Callable[..., Any]]] = {
    "openai": (Provider, lambda s, **o: OpenAIModel("tiny", base_url=f"{s.url}/v1", api_key="any", **o)),
    "ollama": (Ollama, lambda s, **o: OllamaModel("tiny", host=s.url, **o)),
    "anthropic": (Anthropic, lambda s, **o: AnthropicModel("tiny", base_url=s.url, api_key="any", **o)),
}


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    server, make = RIGS[request.param]
    with server() as running:
        yield Rig(request.param, running, make)


async def hung_up(exchange: Exchange, since: float) -> float:
    """Seconds from `since` until the server saw the client close the connection."""
    assert await bounded(exchange.closed, HANG_UP_SECONDS), "the client did not hang up"
    assert exchange.hung_up
    assert exchange.closed_at is not None
    return exchange.closed_at - since


async def failure_of(model: Model) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(model)
    return caught.value


# Answers


async def test_text_arrives_in_pieces_and_ends_with_usage_and_a_reason(rig: Rig):
    rig.server.will("Press Stop,  keep\nthe talk")
    async with rig.model() as model:
        chunks = await ask(model)
    assert text_of(chunks) == "Press Stop,  keep\nthe talk"
    assert len(chunks) > 5
    assert ending_of(chunks) == "stop"
    assert (usage_of(chunks).requests, usage_of(chunks).input_tokens, usage_of(chunks).output_tokens) == (1, 10, 5)


async def test_tool_calls_are_put_together_from_their_pieces(rig: Rig):
    rig.server.will(["Let me see.", SEARCH, script.ToolCall("noop", {})])
    async with rig.model() as model:
        chunks = await ask(model)
    (first, *called), (second, *other) = calls_of(chunks)
    assert called == ["search", {"query": "safe points"}]
    assert other == ["noop", {}]
    assert first
    assert second
    assert first != second
    assert text_of(chunks) == "Let me see."
    assert ending_of(chunks) == "tool_calls"


async def test_a_server_that_does_not_stream_gives_the_same_answer(rig: Rig):
    rig.server.will(["Let me see.", SEARCH, script.ToolCall("noop", {})])
    async with rig.model(stream=False) as model:
        chunks = await ask(model)
    assert rig.server.exchanges[0].body["stream"] is False
    assert text_of(chunks) == "Let me see."
    assert [call[1:] for call in calls_of(chunks)] == [("search", {"query": "safe points"}), ("noop", {})]
    assert ending_of(chunks) == "tool_calls"
    assert usage_of(chunks).output_tokens == 5


async def test_a_cut_answer_says_that_it_reached_its_limit(rig: Rig):
    rig.server.will(["one two", End(LENGTH[rig.kind])])
    async with rig.model() as model:
        chunks = await ask(model, asking(max_tokens=2))
    assert ending_of(chunks) == "length"


async def test_a_history_with_every_kind_of_message_is_accepted(rig: Rig):
    calls = tuple(
        ToolCall(call_id=f"c{n}", name="search", arguments=a) for n, a in enumerate(['{"query": 1}', "", "{"])
    )
    rig.server.will("ok")
    async with rig.model() as model:
        chunks = await ask(
            model,
            asking(
                SystemMessage(text="Be brief."),
                UserMessage(text="hello"),
                AssistantMessage(text="", interrupted=True),
                UserMessage(text="again"),
                AssistantMessage(text="I look", calls=calls, interrupted=True),
                ToolResult(call_id="c0", name="search", content="found"),
                ToolResult(call_id="c1", name="search", content="", status="not_started"),
                ToolResult(call_id="c2", name="search", content="", status="failed"),
                AssistantMessage(text=""),
                UserMessage(text="and now?"),
            ),
        )
    assert text_of(chunks) == "ok"
    told = repr(rig.server.exchanges[0].body["messages"])
    assert "I look [interrupted]" in told
    assert "This call was not started" in told
    assert "This call failed" in told


async def test_a_connection_serves_one_answer_after_the_other(rig: Rig):
    rig.server.will("one", "two")
    async with rig.model() as model:
        assert [text_of(await ask(model)), text_of(await ask(model))] == ["one", "two"]
    assert rig.server.connections == 1


# Stopping


async def test_an_aborted_signal_asks_nothing(rig: Rig):
    async with rig.model() as model:
        with pytest.raises(AbortError):
            await ask(model, signal=AbortSignal.already("no"))
    assert rig.server.connections == 0


@pytest.mark.parametrize("answer", [[Silence()], [Stall()]], ids=["before the headers", "before the first byte"])
@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
async def test_an_abort_hangs_up_before_anything_came(rig: Rig, answer: list[script.Piece], whole: bool):
    rig.server.will(answer)
    controller = AbortController()
    async with rig.model(stream=not whole) as model, asyncio.TaskGroup() as group:
        waiting = group.create_task(refused_by_abort(model, controller.signal))
        exchange = await rig.request()
        if answer == [Stall()] and not whole:
            assert await bounded(exchange.began)
        since = time.monotonic()
        controller.abort("enough")
        assert (await waiting).reason is controller.signal.reason
        await hung_up(exchange, since)


async def refused_by_abort(model: Model, signal: AbortSignal) -> AbortError:
    with pytest.raises(AbortError) as caught:
        await ask(model, signal=signal)
    return caught.value


@pytest.mark.parametrize("said", ["Once upon a time", SEARCH], ids=["text", "call"])
async def test_an_abort_in_the_middle_hangs_up(rig: Rig, said: script.Piece):
    rig.server.will([said, Stall()])
    controller = AbortController()
    async with rig.model() as model:
        chunks = model.stream(asking(), signal=controller.signal)
        while not isinstance(await anext(chunks), TextDelta if said != SEARCH else CallDelta):
            pass
        since = time.monotonic()
        threading.Timer(0.02, controller.abort).start()
        with pytest.raises(AbortError):
            while True:
                await anext(chunks)
        await hung_up(rig.server.exchanges[0], since)
        assert await anext(chunks, None) is None, "nothing comes after the end"
        await drain_ready_tasks()


async def test_an_abort_between_two_chunks_hands_out_no_more_of_them(rig: Rig):
    rig.server.will(["Once upon a time", Stall()])
    controller = AbortController()
    async with rig.model() as model:
        chunks = model.stream(asking(), signal=controller.signal)
        await first_text(chunks)
        controller.abort()
        with pytest.raises(AbortError):
            await anext(chunks)
        await hung_up(rig.server.exchanges[0], 0)
        await drain_ready_tasks()


@pytest.mark.parametrize("said", ["Once upon a time", SEARCH], ids=["text", "call"])
async def test_closing_the_iterator_hangs_up(rig: Rig, said: script.Piece):
    rig.server.will([said, Stall()])
    async with rig.model() as model:
        async with aclosing(model.stream(asking(), signal=AbortSignal.never())) as chunks:
            await anext(chunks)
            since = time.monotonic()
        await hung_up(rig.server.exchanges[0], since)
        await drain_ready_tasks()


async def test_an_iterator_that_is_dropped_hangs_up(rig: Rig):
    rig.server.will(["Once upon a time", Stall()])
    async with rig.model() as model:
        async for _ in model.stream(asking(), signal=AbortSignal.never()):
            break
        await drain_ready_tasks()
        await hung_up(rig.server.exchanges[0], 0)


async def test_cancelling_the_task_hangs_up_and_passes_through(rig: Rig):
    rig.server.will(["Once upon a time", Stall()])
    async with rig.model() as model:
        asked = asyncio.create_task(ask(model))
        exchange = await rig.request()
        assert await bounded(exchange.began)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await hung_up(exchange, 0)


async def test_a_model_is_a_leaf_of_a_run(rig: Rig):
    rig.server.will(["Once upon a time", Stall()])
    controller = AbortController()
    ctx = Context(signal=controller.signal)
    async with rig.model() as model:
        with pytest.raises(AbortError):
            async with stream(ctx, model.stream(asking(), signal=ctx.signal), name="model") as chunks:
                async for _ in chunks:
                    asyncio.get_running_loop().call_later(0.01, controller.abort)
        await hung_up(rig.server.exchanges[0], 0)
        await drain_ready_tasks()
    [entry] = ctx.receipt_builder.receipt(controller.signal).entries
    assert (entry.kind, entry.fate) == ("stream", "stopped")


async def test_a_busy_loop_hangs_up_all_the_same(rig: Rig):
    rig.server.will(["Once upon a time", Stall()])
    controller = AbortController()
    over = False

    async def hog() -> None:
        while not over:
            time.sleep(0.02)  # real time: the loop is kept from everything else
            await asyncio.sleep(0)

    async with rig.model() as model, asyncio.TaskGroup() as group:
        group.create_task(hog())
        chunks = model.stream(asking(), signal=controller.signal)
        await first_text(chunks)
        since = time.monotonic()
        controller.abort()
        with pytest.raises(AbortError):
            await anext(chunks)
        took = time.monotonic() - since
        await hung_up(rig.server.exchanges[0], since)
        over = True
    await drain_ready_tasks()
    assert took < HANG_UP_SECONDS


async def test_a_hundred_streams_are_hung_up_at_once(rig: Rig):
    count = 100
    rig.server.always(["Once upon a time", Stall()])
    controller = AbortController()

    async def one(model: Model) -> None:
        with pytest.raises(AbortError):
            async with stream(Context(signal=controller.signal), model.stream(asking(), signal=controller.signal)) as s:
                async for _ in s:
                    pass

    async with rig.model() as model, asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one(model))
        for exchange in [await rig.request(number) for number in range(count)]:
            assert await bounded(exchange.began)
        controller.abort()
    await drain_ready_tasks()
    for exchange in rig.server.exchanges:
        assert await bounded(exchange.closed, HANG_UP_SECONDS)
        assert exchange.hung_up
    assert len(rig.server.exchanges) == count


async def test_after_a_stop_the_model_answers_again(rig: Rig):
    rig.server.will(["Once upon a time", Stall()], "Hello")
    async with rig.model() as model:
        async with aclosing(model.stream(asking(), signal=AbortSignal.never())) as chunks:
            await anext(chunks)
        assert text_of(await ask(model)) == "Hello"


# Failures


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *((status, False) for status in (400, 401, 403, 404, 413, 422)),
        *((status, True) for status in (408, 409, 429, 500, 502, 503, 529)),
    ],
)
async def test_a_status_says_whether_to_try_again(rig: Rig, status: int, retryable: bool):
    rig.server.will(Refusal(status, "so sorry"))
    async with rig.model() as model:
        error = await failure_of(model)
    assert (error.status, error.retryable, error.retry_after) == (status, retryable, None)
    assert str(error) == f"tiny: so sorry (status {status})"
    assert len(rig.server.exchanges) == 1, "one attempt: trying again is the caller's"


async def test_a_refusal_says_when_to_come_back(rig: Rig):
    rig.server.will(Refusal(429, retry_after="2.5"), Refusal(503, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"))
    async with rig.model() as model:
        assert (await failure_of(model)).retry_after == 2.5
        assert (await failure_of(model)).retry_after == 0.0, "that date has passed"


async def test_a_retry_comes_back_when_it_was_asked_to(rig: Rig):
    rig.server.will(Refusal(429, retry_after="0.1"), "Hello")
    retry = Retry(delay=0, on=lambda error: isinstance(error, ModelError) and error.retryable)
    async with rig.model() as model:
        chunks = await retry.run(lambda: ask(model), signal=AbortSignal.never())
    assert text_of(chunks) == "Hello"
    first, second = rig.server.exchanges
    assert second.came_at - first.came_at >= 0.1


async def test_an_error_that_is_not_json_is_still_told(rig: Rig):
    rig.server.will(Refusal(502, body=b"<html>bad gateway</html>"))
    async with rig.model() as model:
        error = await failure_of(model)
    assert (error.status, error.retryable) == (502, True)


@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
async def test_a_connection_that_is_cut_in_the_middle_of_a_chunk_is_worth_another_attempt(rig: Rig, whole: bool):
    rig.server.will(["Once upon", Cut()])
    async with rig.model(stream=not whole) as model:
        error = await failure_of(model)
    assert (error.status, error.retryable) == (None, True)
    assert "the connection failed" in str(error)


async def test_nobody_there_is_worth_another_attempt(rig: Rig):
    async with rig.model() as model:
        rig.server.close()
        error = await failure_of(model)
    assert (error.status, error.retryable) == (None, True)
    assert "the connection failed" in str(error)


async def test_an_answer_that_just_ends_broke_off(rig: Rig):
    rig.server.will(["Once upon", End(None)])
    async with rig.model() as model:
        error = await failure_of(model)
    assert (error.status, error.retryable) == (None, True)
    assert "broke off" in str(error)


async def test_an_answer_without_the_last_mark_is_whole(rig: Rig):
    rig.server.will(["Hello", End(done=False)])
    async with rig.model() as model:
        assert ending_of(await ask(model)) == "stop"


@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
async def test_malformed_data_is_called_so(rig: Rig, whole: bool):
    rig.server.will(
        [Raw(b'event: content_block_delta\ndata: {"oops": \n\n' if rig.kind != "ollama" else b'{"oops": \n')]
    )
    async with rig.model(stream=not whole) as model:
        error = await failure_of(model)
    assert "malformed" in str(error)
    assert error.retryable


async def test_json_that_is_no_answer_is_malformed(rig: Rig):
    odd = b'event: content_block_delta\ndata: {"type": "content_block_delta", "choices": [5], "index": 0}\n\n'
    rig.server.will([Raw(odd if rig.kind != "ollama" else b'{"message": 5}\n')])
    async with rig.model() as model:
        assert "malformed" in str(await failure_of(model))


async def test_a_failure_in_the_middle_of_an_answer_is_told_in_the_providers_words(rig: Rig):
    kind = {"openai": "server_error", "ollama": None, "anthropic": "overloaded_error"}[rig.kind]
    rig.server.will(["Once upon", Fails("the model fell over", type=kind)])
    async with rig.model() as model:
        error = await failure_of(model)
    assert str(error) == "tiny: the model fell over"
    assert error.retryable


async def test_a_slow_first_byte_is_waited_for(rig: Rig):
    rig.server.will([Silence(0.05), Pause(0.05), "Hello"])
    async with rig.model() as model:
        assert text_of(await ask(model)) == "Hello"


# Use


async def test_a_wrong_option_is_the_callers_mistake(rig: Rig):
    async with rig.model(temprature=1) as model:
        with pytest.raises(TypeError, match="temprature"):
            await ask(model)
    assert rig.server.connections == 0
