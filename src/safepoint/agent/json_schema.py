"""Owns checking JSON values against a JSON schema, for tools whose parameters are not those of a Python function.

Knows the keywords that describe parameters: types, `enum` and `const`, limits, `properties` and `items`, `anyOf` and
its relatives, and references inside the schema. Other keywords, such as `format` and `default`, are only shown to the
model, as JSON Schema allows. Pure functions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import UsageError, shorten

__all__ = ["check_schema", "schema_problems"]

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
# For each keyword of a limit: whether the value, or its length, keeps it; and how to say it.
NUMBER_LIMITS: Mapping[str, tuple[Any, str]] = {
    "minimum": (lambda value, limit: value >= limit, "must be at least"),
    "maximum": (lambda value, limit: value <= limit, "must be at most"),
    "exclusiveMinimum": (lambda value, limit: value > limit, "must be greater than"),
    "exclusiveMaximum": (lambda value, limit: value < limit, "must be less than"),
    "multipleOf": (lambda value, limit: abs(value / limit - round(value / limit)) < 1e-9, "must be a multiple of"),
}
LENGTH_LIMITS: Mapping[type, tuple[str, str, str]] = {
    str: ("minLength", "maxLength", "characters"),
    list: ("minItems", "maxItems", "items"),
    dict: ("minProperties", "maxProperties", "properties"),
}


def check_schema(schema: object, tool: str) -> None:
    """Check that this can be the schema of a tool's arguments. Raises: UsageError."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise UsageError(f'{tool}: schema must be a JSON schema of the type "object", not {shorten(repr(schema), 100)}')
    if not isinstance(schema.get("properties", {}), Mapping):
        raise UsageError(f"{tool}: the properties of the schema must be a dict of schemas")
    for part in _parts(schema):
        kinds = part.get("type", [])
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind not in TYPES:
                raise UsageError(f"{tool}: the schema has the type {kind!r}: the types are {', '.join(TYPES)}")
        if "$ref" in part and _resolved(schema, part["$ref"]) is None:
            raise UsageError(f"{tool}: the schema refers to {part['$ref']!r}, which is not in it")


def _parts(schema: object) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and the schemas inside it."""
    if isinstance(schema, Mapping):
        yield schema
        for keyword in ("properties", "patternProperties", "$defs", "definitions"):
            if isinstance(named := schema.get(keyword), Mapping):
                for part in named.values():
                    yield from _parts(part)
        for keyword in ("items", "additionalProperties", "not"):
            yield from _parts(schema.get(keyword))
        for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for part in schema.get(keyword, ()):
                yield from _parts(part)


def _resolved(root: Mapping[str, Any], reference: object) -> object | None:
    """Return the part of the schema that a reference such as `#/$defs/Line` names; None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            return None
        found = found[step]
    return found


def schema_problems(value: object, schema: object, root: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield what is wrong with a value, in words for the model.

    Args:
        value: The value, as read from JSON.
        schema: The schema, or the part of it for this value.
        root: The whole schema, in which references are looked up.
        where: The path to the value.
    """
    place = where or "arguments"
    if schema is False:
        yield f"{place}: nothing is allowed here"
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        yield from schema_problems(value, _resolved(root, schema["$ref"]), root, where)
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        yield f"{place}: must be of the type {' or '.join(kinds)}"
        return
    if "enum" in schema and not any(_equal(value, each) for each in schema["enum"]):
        yield f"{place}: must be one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not _equal(value, schema["const"]):
        yield f"{place}: must be {schema['const']!r}"
    yield from (f"{place}: {problem}" for problem in _beyond_limits(value, schema))
    if isinstance(value, dict):
        yield from _in_object(value, schema, root, where)
    if isinstance(value, list):
        yield from _in_array(value, schema, root, where)
    yield from _in_alternatives(value, schema, root, where)


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind]) and (kind != "integer" or not isinstance(value, float) or value.is_integer())


def _equal(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _beyond_limits(value: object, schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for keyword, (keeps, words) in NUMBER_LIMITS.items():
            limit = schema.get(keyword)
            if isinstance(limit, int | float) and not isinstance(limit, bool) and not keeps(value, limit):
                yield f"{words} {limit}"
    if isinstance(value, str | list | dict):
        least, most, unit = LENGTH_LIMITS[type(value)]
        if len(value) < schema.get(least, 0):
            yield f"must have at least {schema[least]} {unit}"
        if len(value) > schema.get(most, len(value)):
            yield f"must have at most {schema[most]} {unit}"
    if isinstance(value, str) and not _matches(value, schema.get("pattern")):
        yield f"must match {schema['pattern']}"


def _matches(text: str, pattern: object) -> bool:
    try:
        return not isinstance(pattern, str) or re.search(pattern, text) is not None
    except re.error:
        return True  # JSON schemas use the syntax of JavaScript, which knows more than Python's: the tool checks it


def _in_object(
    value: Mapping[str, object], schema: Mapping[str, Any], root: Mapping[str, Any], where: str
) -> Iterator[str]:
    inside = f"{where}." if where else ""
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    yield from (f"{inside}{name}: Field required" for name in schema.get("required", ()) if name not in value)
    for name, each in value.items():
        parts = [part for pattern, part in patterns.items() if _matches(name, pattern)]
        if name in properties:
            parts.append(properties[name])
        if not parts and schema.get("additionalProperties") is False:
            yield f"{inside}{name}: there is no such parameter"
            continue
        for part in parts or [schema.get("additionalProperties", True)]:
            yield from schema_problems(each, part, root, f"{inside}{name}")


def _in_array(value: Sequence[object], schema: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Iterator[str]:
    first = schema.get("prefixItems", ())
    for index, each in enumerate(value):
        part = first[index] if index < len(first) else schema.get("items", True)
        yield from schema_problems(each, part, root, f"{where}.{index}" if where else str(index))


def _in_alternatives(value: object, schema: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Iterator[str]:
    place = where or "arguments"
    for part in schema.get("allOf", ()):
        yield from schema_problems(value, part, root, where)
    if "not" in schema and not any(schema_problems(value, schema["not"], root, where)):
        yield f"{place}: this value is not allowed"
    for keyword in ("anyOf", "oneOf"):
        if keyword not in schema:
            continue
        found = [list(schema_problems(value, part, root, where)) for part in schema[keyword]]
        fitting = sum(not problems for problems in found)
        if not fitting:
            yield f"{place}: fits none of its forms ({'; '.join(problems[0] for problems in found)})"
        elif keyword == "oneOf" and fitting > 1:
            yield f"{place}: fits {fitting} of its forms, and must fit one"
