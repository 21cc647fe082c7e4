"""What an execution of a flow gives back."""

import dataclasses

import pytest

from safepoint import Aborted, Completed
from safepoint.flow import FlowResult
from tests.kit.flows import NodeRecorder, Trail


async def test_outcome_state_cursor_executed_errors_come_in_this_order():
    result = await NodeRecorder().line("flow", "a").execute(Trail())
    outcome, state, cursor, executed, errors, *_ = (
        getattr(result, field.name) for field in dataclasses.fields(FlowResult)
    )
    assert isinstance(outcome, Completed)
    assert (state.notes, cursor, executed, errors) == (["a"], None, ("a",), ())


async def test_a_stopped_run_says_what_there_is():
    lab = NodeRecorder()
    result = await lab.stop_in("b", lab.line("flow", "a", "b").start(Trail()))
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.partial is result.state
    assert result.run_id
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.cursor = None  # type: ignore[misc]


async def test_the_picture_shows_the_run():
    lab = NodeRecorder()
    result = await lab.stop_in("b", lab.line("flow", "a", "b").start(Trail()))
    assert 'n_a["a"]:::executed' in result.to_mermaid()
    assert 'n_b["b"]:::interrupted' in result.to_mermaid()
