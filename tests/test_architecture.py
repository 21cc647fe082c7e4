"""Applies each architecture rule to this repository, and says what to do when one is broken."""

import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath

import pytest

import safepoint
from tests.architecture import calls, layers, names, patches, privacy, shape, triggers, vocabulary
from tests.architecture.source import Rule, Source, read

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@cache
def package() -> list[Source]:
    return read(ROOT / "src" / "safepoint")


@cache
def suite() -> list[Source]:
    return read(ROOT / "tests")


def tracked() -> list[Source]:
    """The text files of the repository, those not added yet included."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of the project's files")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        try:
            found.append(Source(PurePosixPath(name), (ROOT / name).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return found


def require(offenders: Iterable[str], otherwise: str) -> None:
    """Fail with what to do, and all offenders, unless there are none."""
    __tracebackhide__ = True
    if found := list(offenders):
        pytest.fail("\n  ".join([otherwise, *found]), pytrace=False)


def each(rule: Rule, sources: list[Source]) -> list[str]:
    assert sources, "no files to check"
    return [offender for source in sources for offender in rule(source)]


def test_imports_point_down() -> None:
    require(
        each(layers.upward_imports, package()),
        "Imports point down and never sideways or to the public face: import the name from a lower layer, "
        "or move it there; a new folder gets its layer in tests/architecture/layers.py.",
    )


def test_the_core_needs_only_the_standard_library() -> None:
    require(
        each(layers.foreign_imports, package()),
        "abort/, run/, the data types and errors.py work without any other package: move this up, or to wire.py.",
    )


def test_files_and_functions_are_small() -> None:
    require(
        each(shape.oversized, package()),
        f"At most {shape.MAX_FILE_LINES} lines of code per file and {shape.MAX_FUNCTION_LINES} per function, "
        "docstrings and comments not counted: find the second noun, or the second verb, and give it its own.",
    )


def test_every_file_is_named_after_what_it_owns() -> None:
    require(each(shape.nameless, package()), "Name the file after its one noun; what has no name has no place.")


def test_every_module_says_what_it_owns() -> None:
    require(each(shape.undescribed, package()), 'Begin the file with a docstring: "Owns X. Knows nothing of Y."')


def test_public_names_are_few_and_documented() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    require(
        names.faulty_face(safepoint, pages),
        f"safepoint.__all__: at most {names.MAX_PUBLIC_NAMES} names, each once, each there, each with a docstring, "
        "and each in backticks on a page in docs/.",
    )


def test_every_name_in_all_resolves() -> None:
    require(each(names.unresolved_exports, package()), "Remove the name from __all__, or define it in the module.")


def test_packages_export_exactly_what_they_import() -> None:
    require(
        each(names.uneven_exports, package()),
        "A package's __all__ is the list of its public names: add it there, or import it as a private name.",
    )


def test_only_the_guard_touches_cancellation() -> None:
    require(
        each(calls.cancel_calls, package()),
        f"Only {calls.CANCEL_FILE} speaks to the event loop about cancelling: use the guard, or a function there.",
    )


def test_no_public_name_says_cancel() -> None:
    require(each(names.cancel_names, package()), "Our words are abort (now) and stop (a request): rename it.")


def test_every_abort_trigger_is_listed() -> None:
    page = DOCS / "abort-triggers.md"
    if not page.exists():
        pytest.fail(
            "docs/abort-triggers.md is missing: write it, with a table whose columns are "
            f"| {' | '.join(triggers.COLUMNS)} |",
            pytrace=False,
        )
    require(
        triggers.unlisted_triggers(package(), page.read_text(encoding="utf-8")),
        "docs/abort-triggers.md lists every place that may abort, and no other:",
    )


def test_nothing_waits_with_wait_for() -> None:
    require(
        each(calls.lossy_waits, package()),
        "asyncio.wait_for can swallow a cancellation on Python 3.11: use asyncio.timeout or a guard.",
    )


def test_a_task_group_owns_every_task() -> None:
    require(
        each(calls.stray_tasks, package()),
        "Start the task in an asyncio.TaskGroup; if none can own it, add the file and the reason to TASK_OWNERS "
        "in tests/architecture/calls.py.",
    )


def test_only_the_cli_prints() -> None:
    require(each(calls.prints, package()), "Emit an event or log a warning instead; printing is for cli/.")


def test_nothing_is_left_unfinished() -> None:
    require(each(shape.unfinished, package()), "Finish it, or take it out; plans do not live in the source.")


def test_tests_do_not_sleep() -> None:
    require(
        each(calls.real_sleeps, suite()),
        "Wait for an event, or drive the fake clock; where only real time will do, "
        "say so on the line: # real time: <why>",
    )


def test_tests_pass_values_and_do_not_patch_constants() -> None:
    require(
        each(patches.patched_constants, suite()),
        "Make the value a parameter whose default is the constant, and pass it; where there is no other way, add it "
        "and the reason to PATCHED_CONSTANTS in tests/architecture/patches.py.",
    )


def test_the_project_speaks_of_itself_alone() -> None:
    require(
        each(shape.private_paths, tracked()),
        "A path of one machine means nothing on another: make it relative, or take it from tmp_path.",
    )


def test_functions_take_few_parameters() -> None:
    require(
        each(shape.many_parameters, package()),
        f"At most {shape.MAX_PARAMETERS} parameters: give those that travel together a dataclass, or add the function "
        "and the reason to MANY_PARAMETERS in tests/architecture/shape.py.",
    )


def test_protocols_are_small() -> None:
    require(
        each(shape.wide_protocols, package()),
        f"At most {shape.MAX_PROTOCOL_METHODS} methods in a Protocol: split it by who calls it, or add it and the "
        "reason to WIDE_PROTOCOLS in tests/architecture/shape.py.",
    )


def test_the_package_is_typed() -> None:
    lines = sum(len(source.text.splitlines()) for source in package())
    untyped = sorted(((shape.untyped(source), str(source.path)) for source in package()), reverse=True)
    share = 1000 * sum(count for count, _ in untyped) / lines
    if share > shape.MAX_ANY_PER_1000_LINES:
        most = ", ".join(f"{path} ({count})" for count, path in untyped[:10])
        pytest.fail(
            f"{share:.1f} times Any in 1,000 lines, at most {shape.MAX_ANY_PER_1000_LINES}: {most}", pytrace=False
        )


def test_modules_use_no_private_names_of_each_other() -> None:
    require(
        each(privacy.foreign_privates, package()),
        "A name with an underscore is for its own module: make it public there, or add it and the reason to "
        "FOREIGN_PRIVATES in tests/architecture/privacy.py.",
    )


def test_no_name_is_a_metaphor() -> None:
    require(
        each(vocabulary.metaphors, package()),
        "Use the word that engineers search for (engine, queue, lease, executor, state): rename it, or, where it is "
        "part of a stored or public format, add it and the reason to KEPT_NAMES in tests/architecture/vocabulary.py.",
    )


def test_each_class_name_stands_once() -> None:
    require(vocabulary.repeated_classes(package()), "One name, one class: rename the more special one.")


def test_the_glossary_has_the_nouns_of_the_code() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    require(
        vocabulary.faulty_glossary(page, package()),
        f"The glossary in docs/architecture.md: every noun of the code, at most {vocabulary.MAX_GLOSSARY}.",
    )


def public_modules() -> dict[str, set[str]]:
    """The modules a user may import from, with the names they promise."""
    paths = ["safepoint", *(f"safepoint.{name}" for name in privacy.PUBLIC_MODULES)]
    return {path: {*import_module(path).__all__} for path in paths}


def test_only_internal_tests_import_internal_names() -> None:
    public = public_modules()
    require(
        each(lambda source: privacy.internal_imports(source, public), suite()),
        "Test through the public API, or move the test to tests/internal/.",
    )


def test_most_tests_stand_on_public_names(record_property: Callable[[str, object], None]) -> None:
    public, everyone = privacy.count_tests(suite())
    lines = {name: sum(len(source.text.splitlines()) for source in files) for name, files in counted()}
    record_property("tests on public names", f"{public} of {everyone}")
    record_property("lines of tests per line of source", f"{lines['tests'] / lines['src']:.2f}")
    assert public / everyone >= 0.6, f"{public} of {everyone} tests import public names only: at least 60 %"


def counted() -> list[tuple[str, list[Source]]]:
    return [("src", package()), ("tests", suite())]


def test_no_test_depends_on_the_name_of_the_folder_of_the_checkout() -> None:
    """A checkout is usually called safepoint: a test that looks for that word in paths finds itself."""
    require(
        each(shape.checkout_paths, suite()),
        "Compare with the folder of the package (Path(safepoint.__file__).parent), not with a part of a path.",
    )
