"""The code on the pages of docs/ and in the README runs, prints what the page says, and has the right types."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import safepoint
import safepoint.agent
import safepoint.flow
import safepoint.session
import safepoint.turns
import safepoint.worker
from scripts.doc_blocks import Program, programs, write
from tests.architecture import names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PROGRAMS = {program.name: program for program in programs()}
WITH_A_REAL_MODEL = "page_readme_1"
# Programs that only define functions, or show values in comments without printing them.
PRINT_NOTHING = {
    "page_checkpoints",
    "page_models",
    "page_owned_resources",
    "page_readme_4",
    "page_server",
    "page_signal",
    "page_stopping",
    "page_testing",
}


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {WITH_A_REAL_MODEL}))
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    printed = run(PROGRAMS[name], tmp_path)
    promised = [*PROGRAMS[name].promised, *drawn(name)]
    assert bool(promised) == (name not in PRINT_NOTHING)
    for text in promised:
        assert text in printed


def test_the_quick_start_with_a_real_model_prints_the_receipt_of_its_stop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts the request of the model and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        printed = run(PROGRAMS[WITH_A_REAL_MODEL], tmp_path, OPENAI_API_KEY="none", OPENAI_BASE_URL=url)
    assert printed.startswith("Stopped: user")
    assert re.search(r"agent/model +stream +stopped", printed)


def run(program: Program, folder: Path, **environment: str) -> str:
    """What the program prints; its files are in a folder of its own."""
    file = folder / f"{program.name}.py"
    file.write_text(program.text, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(file)]
    settings = {**os.environ, **environment}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def drawn(name: str) -> list[str]:
    """The pictures on the page of flows, which its programs print. The other pages have pictures of the code itself."""
    if name != "page_flows":
        return []
    page = (DOCS / "flows.md").read_text(encoding="utf-8")
    return re.findall(r"^```mermaid\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_code_of_all_pages_has_right_types(checker: str, tmp_path: Path) -> None:
    files = write(tmp_path)
    settings = {"include": ["."], "typeCheckingMode": "standard", "pythonVersion": "3.11"}
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps({**settings, "extraPaths": [str(ROOT / "src")]}), encoding="utf-8")
    commands: dict[str, list[str | Path]] = {
        "mypy": ["-m", "mypy", "--no-incremental", *files],
        "pyright": ["-m", "basedpyright", "-p", project, "--pythonpath", sys.executable],
    }
    done = subprocess.run([sys.executable, *commands[checker]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


PACKAGES = [safepoint.agent, safepoint.flow, safepoint.session, safepoint.turns, safepoint.worker]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_on_a_page(package: ModuleType) -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    assert list(names.faulty_face(package, pages)) == []


def test_the_newest_version_in_the_changelog_is_this_one() -> None:
    versions = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] in ("Unreleased", safepoint.__version__)
    assert safepoint.__version__ in versions


LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if heading:
            assert heading in anchors(file), f"{target}#{heading}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
