"""The list of modules in the documentation is complete and says what the modules say."""

from scripts.module_list import PACKAGE, PACKAGES, PAGE, first_sentence, page


def test_the_page_of_modules_says_what_the_docstrings_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python scripts/module_list.py --write"


def test_the_page_of_modules_names_every_package():
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert folders == {package or "." for package in PACKAGES}


def test_the_first_sentence_ends_at_the_first_full_stop():
    assert first_sentence("One file, `a.py`, is enough. More is not.") == "One file, `a.py`, is enough."
    assert first_sentence("No full stop") == "No full stop"
