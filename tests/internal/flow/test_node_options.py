"""Owns the tests that look inside, beside those of `tests/flow/test_node_options.py`.

Reading a node's definition.
"""

import functools
from typing import Any

import pytest

from safepoint import Retry
from safepoint.errors import UsageError
from safepoint.flow import FlowError
from safepoint.flow.graph import checked_name, checked_on_failure, field_reader, make_step
from tests.kit.flows import Trail


async def scout(state: Trail) -> str:
    return "found"


def test_a_node_is_called_like_its_function():
    assert make_step(None, scout).name == "scout"
    assert make_step("other", scout).name == "other"


def test_the_defaults_of_a_node():
    step = make_step(None, scout)
    assert step.outputs == ("done",)
    assert step.retry is None
    assert not step.final
    assert step.kind == "await"
    assert step.result_type is str


def test_the_kind_says_where_it_runs():
    def sync(state: Trail) -> None: ...

    class Callable:
        async def __call__(self, state: Trail) -> None: ...

    assert make_step("x", sync).kind == "thread"
    assert make_step("x", sync, isolation="process").kind == "process"
    assert make_step("x", scout, isolation="process").kind == "process"
    assert make_step("x", Callable()).kind == "await"
    assert make_step("x", functools.partial(scout)).kind == "await"


def test_a_node_that_may_finish_is_believed_unless_it_says_otherwise():
    assert make_step("x", scout, on_abort="finish").final
    assert not make_step("x", scout, on_abort="finish", final=False).final
    assert make_step("x", scout, final=True).final


def test_options_are_kept():
    retry = Retry(attempts=2)
    step = make_step("x", scout, outputs=("found", "empty"), retry=retry, timeout=3.0, warn_after=1.0)
    assert step.retry is retry
    assert step.outputs == ("found", "empty")
    assert (step.policy.timeout, step.policy.warn_after) == (3.0, 1.0)


@pytest.mark.parametrize("outputs", ["found", (), (1,), ("",)])
def test_outputs_that_are_no_names_are_refused(outputs: Any):
    with pytest.raises(FlowError, match=r"node 'x': outputs must be a tuple of names, such as \('found', 'empty'\)"):
        make_step("x", scout, outputs=outputs)


def test_an_unknown_option_is_refused_by_name():
    wrong: dict[str, Any] = {"timout": 3.0}
    with pytest.raises(FlowError, match=r"node 'x': there is no option 'timout'"):
        make_step("x", scout, **wrong)


def test_wrong_settings_are_refused():
    with pytest.raises(UsageError, match="on_abort must be one of"):
        make_step("x", scout, on_abort="hope")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout"):
        make_step("x", scout, timeout=-1)


def test_what_is_no_function_is_refused():
    with pytest.raises(FlowError, match="node 'x': expected a function, not int"):
        make_step("x", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a/b", 5, None])
def test_a_name_is_a_text_that_can_be_part_of_a_path(name: Any):
    with pytest.raises(FlowError, match="a node's name must be a text without '/'"):
        checked_name(name, "node")
    assert checked_name("a b", "node") == "a b"


def test_on_failure_is_one_of_two():
    assert checked_on_failure("collect") == "collect"
    with pytest.raises(FlowError, match="on_failure must be 'interrupt' or 'collect', not 'ignore'"):
        checked_on_failure("ignore")  # type: ignore[arg-type]


def test_a_field_is_read_from_any_kind_of_state():
    assert field_reader("notes")(Trail(["a"])) == ["a"]
    assert field_reader("notes")({"notes": ["b"]}) == ["b"]
