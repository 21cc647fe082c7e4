"""Reading a node's definition."""

from typing import Any

import pytest

from safepoint.flow import Flow, FlowError
from tests.kit.flows import NodeRecorder, Trail


def test_a_flow_as_a_function_is_refused_with_the_way_to_do_it():
    flow: Flow[Trail, Any] = Flow("parent", start="sub")
    with pytest.raises(FlowError, match=r"node 'sub': a flow as a node is flow.subflow\('sub', …\)"):
        flow.node("sub", NodeRecorder().line("child", "c"))
