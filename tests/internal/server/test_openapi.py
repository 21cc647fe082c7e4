"""Owns the tests of the description of the API: it is the API, and whatever fits it gets an answer that fits it."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from safepoint.agent import Agent, AnswerEnded, ModelRequest, TextDelta
from safepoint.server import Limits
from safepoint.server.api import Api
from safepoint.server.metrics import Metrics
from safepoint.server.schemas import document
from safepoint.session import LocalHost
from tests.conftest import counts
from tests.kit.background import Background
from tests.kit.servers import ControlledModel, Served, serving

PARTS = [(path, method) for path, calls in document()["paths"].items() for method in calls if method != "parameters"]
OPERATIONS = [part for part in PARTS if part[0] != "/api/sessions/{session}/events"]


class Parrot:
    """A model that has an answer to everything."""

    name = "parrot"

    async def stream(self, request: ModelRequest, *, signal: Any) -> Any:
        yield TextDelta("quite so")
        yield AnswerEnded("stop")


async def test_the_document_is_served_and_describes_every_route_and_no_other():
    described = {(method.upper(), path) for path, method in PARTS}
    routes: list[Route] = Api(LocalHost(Agent(ControlledModel())), Limits(), Metrics()).routes()
    there = {(method, route.path) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    assert described == there | {("GET", "/healthz"), ("GET", "/metrics")}
    async with serving(Agent(ControlledModel())) as served:
        assert (await served.call("GET", "/openapi.json")).json() == document()


def test_every_parameter_of_a_path_is_described():
    for path, calls in document()["paths"].items():
        named = [one["name"] for one in calls.get("parameters", ())]
        assert named == re.findall(r"{(\w+)}", path)


def test_the_document_is_valid():
    schema = schemathesis.openapi.from_dict(document())
    schema.validate()
    assert len(list(schema.get_all_operations())) == len(PARTS)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Background() as background:
        yield background.enter(serving(Agent(Parrot()), limits=Limits(sessions=10_000, queued_turns=1_000)))


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: part.replace("/api/", ""))
def test_no_request_breaks_it_and_every_answer_is_as_described(served: Served, path: str, method: str):
    operation = schemathesis.openapi.from_dict(document())[path][method]

    @settings(
        max_examples=counts(8, 300),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(), st.booleans())
    def fuzz(case: Any, there: bool) -> None:
        if there:
            open_session(served)
            known = {"session": "fuzzed", "turn": "turn"}
            case.path_parameters = {name: known[name] for name in case.path_parameters}
        response = case.call(base_url=served.url, timeout=20)
        assert response.status_code < 500, response.text
        case.validate_response(response)

    fuzz()


@settings(max_examples=counts(10, 300), deadline=None, database=None, derandomize=True)
@given(st.text() | st.integers().map(str))
def test_no_number_of_an_event_breaks_it(served: Served, after: str):
    open_session(served)
    path = f"{served.url}/api/sessions/fuzzed/events"
    with httpx.stream("GET", path, params={"after": after}, timeout=20, trust_env=False, verify=False) as response:
        assert response.status_code in (200, 422)


def open_session(served: Served) -> None:
    """The one that is fuzzed, with a turn that has ended."""
    with httpx.Client(base_url=served.url, timeout=20, trust_env=False, verify=False) as client:
        client.post("/api/sessions", json={"id": "fuzzed"})
        client.post("/api/sessions/fuzzed/messages", json={"text": "hello", "turn_id": "turn"})
