"""Owns the tests that look inside, beside those of `tests/server/test_docs.py`.

Owns the promise that the pages about the server and the command line speak of what is there.
"""

import argparse
import re

from safepoint.cli.main import parser
from safepoint.server.schemas import document
from tests.server.test_docs import page


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
