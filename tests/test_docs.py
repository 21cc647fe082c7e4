"""Owns the promise that what the pages in docs/ show is what happens."""

import ast
import asyncio
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import safepoint.agent
import safepoint.flow
import safepoint.session
import safepoint.turns
import safepoint.worker
from tests.architecture import names

DOCS = Path(__file__).parent.parent / "docs"
# Pages that are one program from top to bottom. The others show fragments.
PROGRAMS = [
    "agents.md",
    "effects.md",
    "events.md",
    "flows.md",
    "history.md",
    "sessions.md",
    "stores.md",
    "tools.md",
    "turns.md",
    "workers.md",
]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_every_room_is_on_the_map() -> None:
    map_ = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^## Rooms of `(\w+)/`$(.*?)(?=^## |\Z)", map_, re.DOTALL | re.MULTILINE)
    assert {"abort", "run", "agent", "flow", "turns", "session", "worker", "server"} <= {room for room, _ in rooms}
    for room, text in rooms:
        rows = " ".join(re.findall(r"^\| (.+?) \|", text, re.MULTILINE))
        there = {path.name for path in (DOCS.parent / "src" / "safepoint" / room).glob("*.py")} - {"__init__.py"}
        assert set(re.findall(r"`(\w+\.py)`", rows)) == there, f"the map of {room}/"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_runs_and_says_what_it_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)

    async def run() -> None:
        for block in blocks(page, "python"):
            result = eval(compile(block, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), vars(module))
            if inspect.iscoroutine(result):
                await result

    asyncio.run(run())
    told = capsys.readouterr().out
    drawn = [block for block in blocks(page, "mermaid") if block.startswith("flowchart")]  # the others are ours
    promised = re.findall(r"^ *print\(.*\) +# (.+)$", page, re.MULTILINE) + drawn
    assert promised, "nothing is printed on this page"
    for text in promised:
        assert text in told


ROOMS = [safepoint.agent, safepoint.flow, safepoint.session, safepoint.turns, safepoint.worker]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_every_name_of_the_room_stands_on_a_page(room: ModuleType) -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    assert list(names.faulty_face(room, pages)) == []
