"""Owns what a callable says of its parameters: their types, their texts, and which one is the context.

An annotation that cannot be resolved, such as a name that is imported for type checkers only, costs its own type and
not that of the other parameters. Knows nothing of schemas and of tools.
"""

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from ..errors import UsageError
from ..run.context import Context
from ..run.leaf import name_of
from .docstring import ReadDocstring, read_docstring

__all__ = ["CallableInfo", "ParameterInfo", "inspect_callable", "is_context", "is_method", "resolved_hints"]

CONTEXT_NAMES = re.compile(r"\b(ToolContext|Context)\b")


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter of a callable that a model may give.

    Attributes:
        name: Its name.
        annotation: Its type; `object` if there is none, or if it cannot be resolved.
        default: Its default; `inspect.Parameter.empty` if it has none.
        description: Its text, from its annotation or from the docstring.
        bound: Whether a `functools.partial` has given it a value.
    """

    name: str
    annotation: Any
    default: object
    description: str | None
    bound: bool


@dataclass(frozen=True, slots=True)
class CallableInfo:
    """What a callable says of itself.

    Attributes:
        description: Its docstring without the parameters.
        parameters: What a model may give.
        context_name: The parameter for the context; None if there is none.
        takes_any: Whether it takes keyword arguments of any name.
        unresolved: The annotations that cannot be resolved, by the name of the parameter, with the reason.
    """

    description: str
    parameters: tuple[ParameterInfo, ...]
    context_name: str | None
    takes_any: bool
    unresolved: Mapping[str, str]


def inspect_callable(
    fn: Callable[..., object], *, skip_first: bool = False, any_keywords: bool = False
) -> CallableInfo:
    """Read a function, a method, a `functools.partial` or an object with `__call__`.

    Args:
        fn: What to read.
        skip_first: Whether to leave out the first parameter: the `self` of a method.
        any_keywords: Whether `**arguments` is allowed.

    Raises:
        UsageError: It has no signature, or a parameter that cannot be given by name.
    """
    documented, hints, unresolved = _docstring(fn), *resolved_hints(fn)
    context_name = None
    takes_any = False
    parameters: list[ParameterInfo] = []
    for name, parameter in list(_signature(fn).parameters.items())[skip_first:]:
        annotation = hints.get(name, object)
        if name == "ctx" or is_context(annotation):
            context_name = name
            unresolved.pop(name, None)
        elif any_keywords and parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
            unresolved.pop(name, None)
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"{name_of(fn)}: a tool's parameters must have names; {parameter} has none for a model")
        else:
            text = _annotated_text(annotation) or documented.parameters.get(name)
            bound = isinstance(fn, functools.partial) and name in fn.keywords
            parameters.append(ParameterInfo(name, annotation, parameter.default, text, bound))
    shown = {each.name for each in parameters}
    unresolved = {name: why for name, why in unresolved.items() if name in shown}
    return CallableInfo(documented.description, tuple(parameters), context_name, takes_any, unresolved)


def _signature(fn: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        raise UsageError(f"{name_of(fn)} has no signature that can be read: write a function that calls it") from None


def is_context(annotation: object) -> bool:
    """Whether a parameter with this annotation gets the context."""
    return any(isinstance(one, type) and issubclass(one, Context) for one in (annotation, *get_args(annotation)))


def is_method(fn: object) -> bool:
    """Whether this is a function in the body of a class, whose first parameter is the object."""
    if not isinstance(fn, types.FunctionType):
        return False
    within = fn.__qualname__.rpartition(".")[0]
    parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    return bool(within) and not within.endswith("<locals>") and parameters[:1] in (("self",), ("cls",))


def beneath(fn: Callable[..., object]) -> Callable[..., object]:
    """Return what has the annotations and the docstring: the function of a `partial`, an object's `__call__`."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type) or inspect.isroutine(fn) or hasattr(fn, "__wrapped__"):
        return fn
    return type(fn).__call__


def resolved_hints(fn: Callable[..., object]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the types of the parameters, and for each that cannot be resolved the reason.

    A context that cannot be resolved is recognised by the words of its annotation.
    """
    function = beneath(fn)
    try:
        return get_type_hints(function, include_extras=True), {}
    except Exception:  # an annotation is any expression: read them one by one
        pass
    function = inspect.unwrap(function)
    variables = getattr(function, "__globals__", {})
    hints: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        try:
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            hints.update(get_type_hints(alone, variables, include_extras=True))
        except Exception as error:
            words = annotation if isinstance(annotation, str) else repr(annotation)
            if CONTEXT_NAMES.search(words):
                hints[name] = Context
            else:
                unresolved[name] = f"{words!r} ({error})"
    return hints, unresolved


def _docstring(fn: Callable[..., object]) -> ReadDocstring:
    function = beneath(fn)
    own = read_docstring(function.__doc__)
    original = fn.func if isinstance(fn, functools.partial) else fn
    if inspect.isroutine(original) or own.description:
        return own
    return ReadDocstring(read_docstring(original.__doc__).description, own.parameters)


def _annotated_text(annotation: object) -> str | None:
    """Return the text in `Annotated[str, "text"]`, `Field(description="text")` or `Doc("text")`."""
    for extra in getattr(annotation, "__metadata__", ()):
        text = extra if isinstance(extra, str) else getattr(extra, "description", None)
        text = text or getattr(extra, "documentation", None)
        if isinstance(text, str) and text.strip():
            return inspect.cleandoc(text)
    return None
