"""The model that says what it was told to say."""

import asyncio
import json
from contextlib import aclosing

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, use_clock
from safepoint.agent import CallDelta, ModelError, ModelRequest, TextDelta
from safepoint.errors import UsageError
from safepoint.messages import ToolResult, UserMessage
from safepoint.models.scripted import Answer, Call, Delay, Error, Finish, ScriptedModel, Stall
from safepoint.run import Context, stream
from safepoint.testing import FakeClock, abort_everywhere
from tests.models.asking import ask, asking, calls_of, ending_of, first_text, text_of, usage_of


@pytest.mark.parametrize("text", ["Hello there", "  two  spaces\n\nand lines \t", "", " ", "x", "Größe – 漢字 🙂 end"])
async def test_text_keeps_every_space(text: str):
    chunks = await ask(ScriptedModel(text))
    assert text_of(chunks) == text
    assert ending_of(chunks) == "stop"


async def test_text_is_streamed_word_by_word():
    chunks = await ask(ScriptedModel("one two three"))
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == ["one", " two", " three"]


@pytest.mark.parametrize("arguments", [{}, {"query": "x"}, {"query": "a rather long question " * 10, "n": [1, None]}])
async def test_a_call_is_streamed_in_two_pieces_at_least(arguments: dict[str, object]):
    chunks = await ask(ScriptedModel([Call("search", **arguments)]))
    pieces = [chunk for chunk in chunks if isinstance(chunk, CallDelta)]
    assert len(pieces) >= 2
    assert [(piece.call_id, piece.name) for piece in pieces] == [("call-1", "search")] + [("", "")] * (len(pieces) - 1)
    assert json.loads("".join(piece.arguments for piece in pieces)) == arguments
    assert ending_of(chunks) == "tool_calls"


@pytest.mark.parametrize("text", ["", "{", '{"query": "sa'])
async def test_a_call_can_have_bad_arguments(text: str):
    pieces = [chunk for chunk in await ask(ScriptedModel([Call.raw("search", text)])) if isinstance(chunk, CallDelta)]
    assert len(pieces) >= 2
    assert "".join(piece.arguments for piece in pieces) == text


async def test_texts_and_calls_mix_and_ids_count_on_through_all_answers():
    model = ScriptedModel(["I look", Call("a", x=1), Call("b")], "no call", [Call("a", x=2)])
    first, _, third = [await ask(model) for _ in range(3)]
    assert calls_of(first) == [("call-1", "a", {"x": 1}), ("call-2", "b", {})]
    assert calls_of(third) == [("call-3", "a", {"x": 2})]
    model.done()


async def test_usage_is_plausible():
    chunks = await ask(ScriptedModel("four char word test"), asking("x" * 40))
    assert usage_of(chunks).requests == 1
    assert usage_of(chunks).input_tokens == 10
    assert usage_of(chunks).output_tokens == 5


async def test_a_delay_takes_its_time_on_the_clock_in_use(clock: FakeClock):
    model = ScriptedModel(["before", Delay(3), "after"])
    async with aclosing(model.stream(asking(), signal=AbortSignal.never())) as chunks:
        assert await first_text(chunks) == "before"
        after = asyncio.ensure_future(anext(chunks))
        await clock.elapse(2.9)
        assert not after.done()
        await clock.elapse(0.1)
        assert await after == TextDelta("after")


async def test_every_chunk_is_delayed_if_asked_to(clock: FakeClock):
    answer = asyncio.ensure_future(ask(ScriptedModel("one two three", chunk_delay=0.5)))
    await clock.elapse(1.4)
    assert not answer.done()
    await clock.elapse(0.1)
    assert text_of(await answer) == "one two three"


@pytest.mark.parametrize("answer", [["Once", Stall(), "never"], Stall()])
async def test_a_stall_lasts_until_it_is_aborted(clock: FakeClock, answer: Answer):
    controller = AbortController()
    asked = asyncio.ensure_future(ask(ScriptedModel(answer), signal=controller.signal))
    await clock.elapse(1_000_000)
    assert not asked.done()
    controller.abort("enough")
    with pytest.raises(AbortError, match="enough"):
        await asked


async def test_a_stalled_answer_can_be_cancelled_with_its_task():
    asked = asyncio.ensure_future(ask(ScriptedModel([Stall()])))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_an_error_message_becomes_a_model_error():
    model = ScriptedModel(["Once", Error("slow down", status=429, retryable=True, retry_after=2.0)], [Error("broken")])
    with pytest.raises(ModelError, match="slow down") as caught:
        await ask(model)
    assert (caught.value.status, caught.value.retryable, caught.value.retry_after) == (429, True, 2.0)
    with pytest.raises(ModelError, match="broken") as caught:
        await ask(model)
    assert (caught.value.status, caught.value.retryable, caught.value.retry_after) == (None, False, None)


async def test_an_exception_is_raised_as_it_is():
    error = KeyError("odd")
    with pytest.raises(KeyError) as caught:
        await ask(ScriptedModel([Error(error)]))
    assert caught.value is error


async def test_an_answer_can_end_for_another_reason_or_break_off():
    model = ScriptedModel(["too long", Finish("length")], ["broken", Finish(None)])
    assert ending_of(await ask(model)) == "length"
    assert await ask(model) == [TextDelta("broken")]


async def test_asking_too_often_is_a_clear_error():
    model = ScriptedModel("one", name="demo")
    await ask(model)
    with pytest.raises(UsageError, match="'demo' was asked 2 times and has 1 answers"):
        await ask(model)
    with pytest.raises(AssertionError, match="2 times"):
        model.done()


async def test_asking_too_seldom_is_found_at_the_end():
    model = ScriptedModel("one", "two")
    await ask(model)
    with pytest.raises(AssertionError, match="asked 1 times and has 2 answers"):
        model.done()
    await ask(model)
    model.done()


async def test_it_records_what_it_was_asked():
    model = ScriptedModel("one", "two")
    requests = [asking("a"), asking("b")]
    for request in requests:
        await ask(model, request)
    assert model.requests == requests


async def test_an_answer_can_depend_on_the_history():
    def react(request: ModelRequest) -> Answer:
        last = request.messages[-1]
        return f"you had {last.content}" if isinstance(last, ToolResult) else [Call("search", query="x")]

    model = ScriptedModel(react, react)
    assert calls_of(await ask(model)) == [("call-1", "search", {"query": "x"})]
    result = ToolResult(call_id="call-1", name="search", content="3 hits")
    assert text_of(await ask(model, asking("hello", result))) == "you had 3 hits"


async def test_runs_at_the_same_time_get_their_answers_in_order_of_asking():
    answers: list[Answer] = [(f"answer {n}", Call("tool", n=n)) for n in range(20)]
    model = ScriptedModel(*answers)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(model, asking(f"question {n}"))) for n in range(20)]
    for n, task in enumerate(asked):
        assert text_of(task.result()) == f"answer {n}"
        assert calls_of(task.result()) == [(f"call-{n + 1}", "tool", {"n": n})]
        assert model.requests[n].messages == (UserMessage(text=f"question {n}"),)


async def test_an_aborted_signal_uses_up_no_answer():
    model = ScriptedModel("one")
    with pytest.raises(AbortError):
        await ask(model, signal=AbortSignal.already("no"))
    assert model.requests == []
    assert text_of(await ask(model)) == "one"


async def test_others_run_between_the_chunks_and_can_stop_it():
    controller = AbortController()
    said = []
    with pytest.raises(AbortError):
        async for chunk in ScriptedModel("one two three").stream(asking(), signal=controller.signal):
            said.append(chunk)
            asyncio.get_running_loop().call_soon(controller.abort)
    assert said == [TextDelta("one")]


def test_a_scripted_answer_can_be_stopped_at_every_point():
    async def scenario(probe):
        ctx = Context(signal=probe.signal)
        model = ScriptedModel(["one two", Delay(1), Call("search", query="x"), "three"])
        async with stream(ctx, model.stream(asking(), signal=ctx.signal), name="model") as chunks:
            return text_of([chunk async for chunk in chunks])

    abort_everywhere(scenario, clock=FakeClock)


@pytest.mark.parametrize("answer", [5, None, [1], ["x", None], [Stall], Stall, b"x", {"x": 1}])
def test_what_is_no_answer_is_refused_at_once(answer: object):
    with pytest.raises(UsageError, match="answer 2"):
        ScriptedModel("one", answer)  # type: ignore[arg-type]


def test_a_negative_time_is_refused_at_once():
    with pytest.raises(UsageError):
        Delay(-1)
    with pytest.raises(UsageError):
        ScriptedModel(chunk_delay=-1)


async def test_a_function_that_returns_no_answer_is_named():
    with pytest.raises(UsageError, match="answer 1"):
        await ask(ScriptedModel(lambda request: 5))  # type: ignore[arg-type,return-value]


async def test_it_runs_on_the_clock_of_its_caller():
    with use_clock(FakeClock()) as clock:
        asked = asyncio.ensure_future(ask(ScriptedModel([Delay(60), "Hello"])))
        await clock.elapse(60)
        assert text_of(await asked) == "Hello"
