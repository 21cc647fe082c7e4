"""Reading the fields of a JSON object by name and type. Every problem is a WireError that names the field.

It is for data that must be readable with the standard library alone. It does not know what the fields mean.
"""

import json
import math
from collections.abc import Callable
from typing import Final, TypeAlias, TypeGuard, TypeVar

from .errors import WireError, describe

__all__ = ["Fields", "parse"]

T = TypeVar("T")
JsonValue: TypeAlias = object  # a name of its own, because `Fields` has a method called `object`
JsonObject: TypeAlias = dict[str, object]


class _Required:
    """The type of `REQUIRED`, the default of fields that must be there."""


REQUIRED: Final = _Required()


def parse(what: str, text: str) -> object:
    """Parse JSON text.

    Args:
        what: What the text is, for the error.
        text: The text.

    Raises:
        WireError: It is not JSON, or nested deeper than the interpreter can follow.
    """
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise WireError(f"this {what} is not JSON: {describe(problem)}") from problem
    return data


class Fields:
    """The fields of one JSON object. Each method reads one field; without a default, the field must be there.

    Args:
        what: What the object is, for errors.
        data: The object.

    Raises:
        WireError: The data is not an object. Every method raises it too, if the field is missing or has another type.
    """

    def __init__(self, what: str, data: object) -> None:
        if not isinstance(data, dict):
            raise WireError(f"this {what} is not a JSON object but {type(data).__name__}")
        self._what = what
        self._data: dict[str, object] = data

    def text(self, name: str, default: str | _Required = REQUIRED) -> str:
        """Read a string."""
        return self._read(name, default, "a string", _is_text)

    def optional_text(self, name: str) -> str | None:
        """Read a string, or None where there is none."""
        return None if self._data.get(name) is None else self.text(name)

    def number(self, name: str) -> float:
        """Read a finite number."""
        return float(self._read(name, REQUIRED, "a finite number", _is_number))

    def optional_number(self, name: str) -> float | None:
        """Read a finite number, or None where there is none."""
        return None if self._data.get(name) is None else self.number(name)

    def count(self, name: str, default: int | _Required = REQUIRED) -> int:
        """Read a whole number, 0 or more."""
        return self._read(name, default, "a whole number, 0 or more", _is_count)

    def optional_count(self, name: str) -> int | None:
        """Read a whole number, 0 or more, or None where there is none."""
        return None if self._data.get(name) is None else self.count(name)

    def flag(self, name: str, default: bool | _Required = REQUIRED) -> bool:
        """Read true or false."""
        return self._read(name, default, "true or false", _is_flag)

    def items(self, name: str) -> list[JsonValue]:
        """Read a list; it is empty where the field is missing."""
        return self._read(name, [], "a list", _is_list)

    def texts(self, name: str) -> tuple[str, ...]:
        """Read a list of strings; it is empty where the field is missing."""
        return tuple(self._read(name, [], "a list of strings", _is_texts))

    def object(self, name: str, default: JsonObject | _Required = REQUIRED) -> JsonObject:
        """Read an object."""
        return self._read(name, default, "an object", _is_object)

    def optional_object(self, name: str) -> JsonObject | None:
        """Read an object, or None where there is none."""
        return None if self._data.get(name) is None else self.object(name)

    def _read(self, name: str, default: T | _Required, expected: str, fits: Callable[[JsonValue], TypeGuard[T]]) -> T:
        value = self._data.get(name, default)
        if isinstance(value, _Required):
            raise WireError(f"this {self._what} cannot be read: it has no {name!r}")
        if not fits(value):
            raise WireError(
                f"this {self._what} cannot be read: {name!r} must be {expected}, not {type(value).__name__}"
            )
        return value


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_flag(value: object) -> TypeGuard[bool]:
    return isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    # A bool is an int in Python but not in JSON; an int may be too large for any float.
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _is_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)
