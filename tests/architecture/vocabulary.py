"""Owns the words: each class name once, no metaphors in names, and a glossary that names the nouns of the code."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.architecture.names import bindings, parameters, stored_attributes
from tests.architecture.source import Function, Source

MAX_GLOSSARY = 40

# Metaphors that were names once, and verbs and pronouns that say nothing of the subject. A reader searches for the
# technical word: engine for lane, executor for seat, successor for heir, access for door.
METAPHOR_LIST = """
lane bell seat workshop journey heir room door house talk shelf tombstone heed heeds strike told said heard hears walked
nobody somebody whoever hurry minds stands
"""
METAPHORS = frozenset(METAPHOR_LIST.split())

# Words every programmer knows, and the past participles in which the names of events end.
GENERAL_LIST = """
answer at body builder call clock commands completed connection delta effect end ended error events exceeded exit failed
fields finished idle ignored info limit loop message options position process program progress reader recorded refused
report request result returned settings source started state stops stream streams thread threads timeout timer
timings unreadable use view writer
"""
GENERAL = frozenset(GENERAL_LIST.split())

# Names with such a word that are part of a public or stored format: path:name → why.
KEPT_NAMES: dict[str, str] = {
    "worker/protocol.py:heard": "a field of the replies that workers send, older versions included",
}


def words(name: str) -> set[str]:
    """The words of a name in lower case: `BrokerConnection` and `broker_connection` give the same."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def metaphors(source: Source) -> Iterator[str]:
    """Names, also private and local ones, in which a metaphor stands for the technical word."""
    found = set()
    for node in ast.walk(source.tree):
        match node:
            case ast.Module() | ast.ClassDef():
                found |= {*bindings(node, imports=False)}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found |= {*parameters(node), *stored_attributes(node)}
            case ast.Name(name, ast.Store()):
                found.add((node.lineno, name))
            case ast.Attribute(_, name, ast.Store()):
                found.add((node.lineno, name))
            case _:
                pass
    found |= {(1, part) for part in source.path.with_suffix("").parts}
    for line, name in sorted(found):
        for word in sorted(words(name) & METAPHORS):
            if f"{source.path}:{name}" not in KEPT_NAMES:
                yield source.at(line, f"the name {name} says {word}")


def repeated_classes(sources: Iterable[Source]) -> Iterator[str]:
    """Class names that more than one module defines, private ones left out."""
    places = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(source.path))
    yield from (f"{name}: {', '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1)


def glossary(page: str) -> list[str]:
    """The nouns in bold at the beginning of the rows of the section called Glossary."""
    section = re.search(r"^## Glossary$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return [] if section is None else re.findall(r"^\| \*\*([^*]+)\*\* \|", section[1], re.MULTILINE)


def faulty_glossary(page: str, sources: Iterable[Source]) -> Iterator[str]:
    """Where the glossary and the classes differ.

    A noun in which two or more public classes end is a concept of the code, and has its line. A line whose noun is in
    no name of the code explains a word that nobody meets.
    """
    listed = glossary(page)
    if len(listed) > MAX_GLOSSARY:
        yield f"the glossary has {len(listed)} nouns"
    yield from (f"{noun} is listed twice" for noun in sorted({noun for noun in listed if listed.count(noun) > 1}))
    heads: dict[str, set[str]] = defaultdict(set)
    known: set[str] = set()
    for source in sources:
        known |= {word for part in source.path.with_suffix("").parts for word in words(part)}
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef | Function):
                known |= words(node.name)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                heads[re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", node.name)[-1].lower()].add(node.name)
    explained = {word for noun in listed for word in words(noun)}
    for head, classes in sorted(heads.items()):
        if len(classes) > 1 and head not in explained | GENERAL:
            yield f"{head} is no word of the glossary, and {', '.join(sorted(classes))} end in it"
    yield from (f"{noun} is in no name of the code" for noun in listed if not words(noun) & known)
