"""Owns the promise that the pages about the server and the command line speak of what is there."""

import argparse
import re
from pathlib import Path

import safepoint.server
from safepoint.cli.main import parser
from safepoint.server.openapi import document
from tests.house import names

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_name_of_the_room_stands_on_a_page():
    assert list(names.faulty_face(safepoint.server, page("server.md"))) == []


def test_every_call_of_the_api_stands_on_its_page():
    text = page("server.md")
    for path, calls in document()["paths"].items():
        for method in calls.keys() - {"parameters"}:
            assert method.upper() in text
        last = path.rpartition("/")[2]
        assert last in text, path


def test_every_flag_of_serve_and_every_command_stands_on_its_page():
    text = page("cli.md")
    (commands,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    for name, command in commands.choices.items():
        assert f"safepoint {name}" in text
        flags = [flag for action in command._actions for flag in action.option_strings if flag.startswith("--")]
        assert [flag for flag in flags if flag not in text] == []


def test_the_examples_on_the_page_are_commands_that_exist():
    shown = re.findall(r"^safepoint (.*?)(?:  +#.*)?$", page("cli.md"), re.MULTILINE)
    assert len(shown) >= 6
    for line in shown:
        parser().parse_args(line.replace('"too slow"', "slow").split())


def test_the_pictures_are_there_and_small():
    for name in re.findall(r"\((pictures/\S+?)\)", page("page.md")):
        assert 5_000 < (DOCS / name).stat().st_size < 80_000


def test_every_file_of_the_page_has_its_owner_named():
    static = Path(safepoint.server.__file__).parent / "static"
    text = page("page.md")
    for path in static.glob("*.js"):
        assert f"`{path.name}`" in text
        assert path.read_text(encoding="utf-8").startswith("// Owns ")
