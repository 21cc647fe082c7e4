"""The public import paths: what is where people look for it, and what an import costs."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import get_args

import pytest

import safepoint
import safepoint.models
from safepoint import LocalHost, Session, events, messages, models
from safepoint.agent import AgentRun
from safepoint.flow import FlowRun
from safepoint.session import SessionTurn, TurnView
from safepoint.turns import TurnLoop
from safepoint.worker import RemoteHost, Worker


@pytest.mark.parametrize("module", [safepoint, events, messages, models], ids=lambda module: module.__name__)
def test_every_public_name_can_be_imported(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        assert getattr(module, name) is not None


def test_what_most_programs_need_is_at_the_top() -> None:
    from safepoint.flow import Flow
    from safepoint.models.openai import OpenAIModel
    from safepoint.session import MemoryStore, SqliteStore

    assert (safepoint.Flow, safepoint.OpenAIModel) == (Flow, OpenAIModel)
    assert (safepoint.LocalHost, safepoint.Session, safepoint.SqliteStore) == (LocalHost, Session, SqliteStore)
    assert (safepoint.MemoryStore, safepoint.RemoteHost, safepoint.Worker) == (MemoryStore, RemoteHost, Worker)
    assert get_args(safepoint.Event) == get_args(events.Event)
    assert get_args(safepoint.Message) == get_args(messages.Message)


def test_the_version_is_that_of_the_package() -> None:
    assert safepoint.__version__ == version("safepoint")


@pytest.mark.parametrize("name", ["checkpoint", "fence", "on_abort_timeout"])
def test_a_name_that_has_moved_works_once_more_and_says_where_it_is_now(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"import {name} from safepoint\.abort"):
        moved = getattr(safepoint, name)
    assert moved is getattr(safepoint.abort, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'safepoint' has no attribute 'Nonsense'"):
        safepoint.Nonsense  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'safepoint\.models' has no attribute 'Nonsense'"):
        safepoint.models.Nonsense  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("package", ["safepoint", "safepoint.run"])
@pytest.mark.parametrize(
    ("name", "module"), [("TextStreamed", "safepoint.events"), ("UserMessage", "safepoint.messages")]
)
def test_an_event_or_message_that_is_looked_for_elsewhere_is_named_with_its_module(
    package: str, name: str, module: str
) -> None:
    with pytest.raises(ImportError, match=f"from {module} import {name}"):
        exec(f"from {package} import {name}", {})


def parameters(method: Callable[..., object], *left_out: str) -> list[tuple[str, object, object]]:
    """Name, kind and default of what a method takes, without the ids that say of what."""
    given = inspect.signature(method).parameters.values()
    return [(one.name, one.kind, one.default) for one in given if one.name not in ("self", *left_out)]


STOPS = [AgentRun.stop, FlowRun.stop, SessionTurn.stop, Session.stop, LocalHost.stop, RemoteHost.stop]


@pytest.mark.parametrize("method", STOPS)
def test_stop_takes_the_same_everywhere(method: Callable[..., object]) -> None:
    assert parameters(method, "session_id", "turn_id") == parameters(AgentRun.stop)


@pytest.mark.parametrize("method", [AgentRun.wait, FlowRun.wait, SessionTurn.wait, TurnLoop.wait, Worker.wait])
def test_wait_takes_the_same_everywhere(method: Callable[..., object]) -> None:
    assert parameters(method) == [("timeout", inspect.Parameter.POSITIONAL_OR_KEYWORD, None)]


@pytest.mark.parametrize("method", [Session.close, LocalHost.close, RemoteHost.close, Worker.close])
def test_close_takes_the_same_everywhere(method: Callable[..., object]) -> None:
    taken = {name: (kind, default) for name, kind, default in parameters(method, "reason", "give_back")}
    assert taken == {"within": (inspect.Parameter.KEYWORD_ONLY, 0.0)}
    assert inspect.signature(method).parameters["reason"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("method", [Session.continue_turn, LocalHost.continue_turn, RemoteHost.continue_turn])
def test_continue_turn_takes_a_turn_and_does_not_wait(method: Callable[..., object]) -> None:
    first = parameters(method, "session_id")[0]
    assert first == ("turn_id", inspect.Parameter.POSITIONAL_OR_KEYWORD, None)
    assert inspect.signature(method).return_annotation in ("SessionTurn", SessionTurn, "TurnView", TurnView)


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def test_importing_safepoint_imports_no_flow_no_session_and_no_sdk() -> None:
    heavy = "safepoint.flow", "safepoint.session", "safepoint.worker", "openai", "anthropic", "ollama", "starlette"
    assert run(f"import sys, safepoint; print([name for name in {heavy} if name in sys.modules])") == "[]"


@pytest.mark.parametrize(
    ("missing", "program", "told"),
    [
        ("starlette", "import safepoint.server", "safepoint.server needs the package starlette: pip install"),
        ("openai", "safepoint.OpenAIModel('m')", "OpenAIModel needs the package openai: pip install"),
        ("anthropic", "safepoint.AnthropicModel('m')", "AnthropicModel needs the package anthropic: pip install"),
        ("ollama", "safepoint.OllamaModel('m')", "OllamaModel needs the package ollama: pip install"),
        (
            "nats",
            "import asyncio, safepoint.worker as w; asyncio.run(safepoint.RemoteHost(w.NatsBroker('nats://x')).sessions())",
            "NatsBroker needs the package nats: pip install",
        ),
    ],
)
def test_an_import_that_needs_an_extra_names_it(missing: str, program: str, told: str) -> None:
    hidden = f"import sys; sys.modules[{missing!r}] = None; import safepoint"
    caught = f"try:\n    {program}\nexcept ImportError as error:\n    print(error)"
    assert run(f"{hidden}\n{caught}").startswith(told)
