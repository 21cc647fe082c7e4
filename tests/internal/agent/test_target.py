"""Owns the tests of finding an agent by `module:agent`."""

from pathlib import Path

import pytest

from safepoint.agent import Agent
from safepoint.agent.target import load_agent
from safepoint.errors import UsageError

MODULE = """
from safepoint.agent import Agent
from safepoint.models.scripted import ScriptedModel

helper = Agent(ScriptedModel(), name="found")
def made(): return Agent(ScriptedModel(), name="made")
def broken(): raise RuntimeError("no key")
number = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_agents.py").write_text(MODULE)
    (tmp_path / "bad_syntax.py").write_text("def :")
    (tmp_path / "needs_more.py").write_text("import surely_not_installed")
    (tmp_path / "fails.py").write_text("{}['key']")
    (tmp_path / "half.py").write_text("import json\njson.nothing_like_it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_an_agent_or_what_makes_one_is_found():
    assert load_agent("some_agents:helper").name == "found"
    assert load_agent("some_agents:made").name == "made"
    assert isinstance(load_agent("some_agents:made"), Agent)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("some_agents", "is not module:agent, such as my_agents:helper"),
        ("some_agents:", "is not module:agent"),
        (":helper", "is not module:agent"),
        (".some_agents:helper", "is not module:agent"),
        ("some_agents.py:helper", "there is no module"),
        ("some-agents:helper", "is not module:agent"),
        ("some_agents:nobody", "module 'some_agents' has no 'nobody'"),
        ("some_agents:number", "is int, not an Agent"),
        ("some_agents:broken", "was called and failed: RuntimeError: no key"),
        ("not_there:helper", "there is no module 'not_there'"),
        ("needs_more:helper", "there is no module 'surely_not_installed'"),
        ("bad_syntax:helper", "cannot be imported: SyntaxError"),
        ("fails:helper", "cannot be imported: KeyError"),
        ("half:helper", "cannot be imported: AttributeError"),
    ],
)
def test_whatever_is_wrong_is_said(target: str, told: str):
    with pytest.raises(UsageError) as wrong:
        load_agent(target)
    assert told in str(wrong.value)
