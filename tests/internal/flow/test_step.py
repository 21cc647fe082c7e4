"""Owns the tests that look inside, beside those of `tests/flow/test_step.py`.

One node that is a function: its attempts, its copy of the state, and whether to believe it.
"""

from safepoint.flow.graph import as_work
from tests.kit.flows import Trail, one


async def test_a_node_may_do_without_the_context():
    class Method:
        async def node(self, state: Trail) -> None:
            state.notes.append("method")

    assert (await one(Method().node).execute(Trail())).state.notes == ["method"]
    assert as_work(len)(None, [1, 2]) == 2
