"""Owns reading the fields of a JSON object by name and type. Whatever is wrong is a WireError that names the field.

For what must be readable with the standard library alone. Knows nothing of what the fields mean.
"""

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..errors import WireError, describe

__all__ = ["Fields", "parse"]

T = TypeVar("T")
REQUIRED: Any = object()


def parse(what: str, text: str) -> Any:
    """JSON text as data. Raises: WireError, also for brackets nested deeper than the interpreter can follow."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise WireError(f"this {what} is not JSON: {describe(problem)}") from problem


class Fields:
    """The fields of one object. Each method reads one field; without a default the field must be there."""

    def __init__(self, what: str, data: object) -> None:
        if not isinstance(data, dict):
            raise WireError(f"this {what} is not a JSON object but {type(data).__name__}")
        self._what = what
        self._data = data

    def text(self, name: str, default: str = REQUIRED) -> str:
        """A string."""
        return self._read(name, default, "a string", lambda value: isinstance(value, str))

    def optional_text(self, name: str) -> str | None:
        """A string, or None where there is none."""
        return None if self._data.get(name) is None else self.text(name)

    def number(self, name: str) -> float:
        """A finite number."""
        return float(self._read(name, REQUIRED, "a finite number", _is_number))

    def optional_number(self, name: str) -> float | None:
        """A finite number, or None where there is none."""
        return None if self._data.get(name) is None else self.number(name)

    def count(self, name: str, default: int = REQUIRED) -> int:
        """A whole number, 0 or more."""
        return self._read(name, default, "a whole number, 0 or more", _is_count)

    def optional_count(self, name: str) -> int | None:
        """A whole number, or None where there is none."""
        return None if self._data.get(name) is None else self.count(name)

    def flag(self, name: str, default: bool = REQUIRED) -> bool:
        """True or false."""
        return self._read(name, default, "true or false", lambda value: isinstance(value, bool))

    def items(self, name: str) -> list[Any]:
        """A list; empty where the field is missing."""
        return self._read(name, [], "a list", lambda value: isinstance(value, list))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty where the field is missing."""
        return tuple(self._read(name, [], "a list of strings", _is_texts))

    def object(self, name: str, default: dict[str, Any] = REQUIRED) -> dict[str, Any]:
        """An object."""
        return self._read(name, default, "an object", lambda value: isinstance(value, dict))

    def optional_object(self, name: str) -> dict[str, Any] | None:
        """An object, or None where there is none."""
        return None if self._data.get(name) is None else self.object(name)

    def _read(self, name: str, default: T, expected: str, fits: Callable[[Any], bool]) -> T:
        value: Any = self._data.get(name, default)
        if value is REQUIRED:
            raise WireError(f"this {self._what} cannot be read: it has no {name!r}")
        if not fits(value):
            raise WireError(
                f"this {self._what} cannot be read: {name!r} must be {expected}, not {type(value).__name__}"
            )
        return cast(T, value)


def _is_number(value: object) -> bool:
    # A bool is an int in Python but not in JSON; an int may be too large for any float.
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
