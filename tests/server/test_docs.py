"""Owns the promise that the pages about the server and the command line speak of what is there."""

import re
from pathlib import Path

import safepoint.server
from tests.architecture import names

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_name_of_the_room_stands_on_a_page():
    assert list(names.faulty_face(safepoint.server, page("server.md"))) == []


def test_the_pictures_are_there_and_small():
    for name in re.findall(r"\((pictures/\S+?)\)", page("page.md")):
        assert 5_000 < (DOCS / name).stat().st_size < 80_000


def test_every_script_of_the_page_is_listed_and_says_what_it_is_for():
    static = Path(safepoint.server.__file__).parent / "static"
    text = page("page.md")
    for path in static.glob("*.js"):
        assert f"`{path.name}`" in text
        assert re.match(r"// [A-Z].{30}", path.read_text(encoding="utf-8"))
