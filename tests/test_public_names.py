"""The public import paths: what is where people look for it, and what an import costs."""

import subprocess
import sys
from importlib.metadata import version
from typing import get_args

import pytest

import safepoint
from safepoint import events, messages, models


@pytest.mark.parametrize("module", [safepoint, events, messages, models], ids=lambda module: module.__name__)
def test_every_public_name_can_be_imported(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        assert getattr(module, name) is not None


def test_what_most_programs_need_is_at_the_top() -> None:
    from safepoint.flow import Flow
    from safepoint.models.openai import OpenAIModel
    from safepoint.session import LocalHost, Session, SqliteStore

    assert (safepoint.Flow, safepoint.OpenAIModel) == (Flow, OpenAIModel)
    assert (safepoint.LocalHost, safepoint.Session, safepoint.SqliteStore) == (LocalHost, Session, SqliteStore)
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
    with pytest.raises(ImportError, match="Nonsense"):
        from safepoint.models import Nonsense  # type: ignore[attr-defined]  # noqa: F401


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
    ],
)
def test_an_import_that_needs_an_extra_names_it(missing: str, program: str, told: str) -> None:
    hidden = f"import sys; sys.modules[{missing!r}] = None; import safepoint"
    caught = f"try:\n    {program}\nexcept ImportError as error:\n    print(error)"
    assert run(f"{hidden}\n{caught}").startswith(told)
