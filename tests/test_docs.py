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
    printed = capsys.readouterr().out
    drawn = [block for block in blocks(page, "mermaid") if block.startswith("flowchart")]  # the others are ours
    promised = re.findall(r"^ *print\(.*\) +# (.+)$", page, re.MULTILINE) + drawn
    assert promised, "nothing is printed on this page"
    for text in promised:
        assert text in printed


PACKAGES = [safepoint.agent, safepoint.flow, safepoint.session, safepoint.turns, safepoint.worker]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_on_a_page(package: ModuleType) -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    assert list(names.faulty_face(package, pages)) == []
