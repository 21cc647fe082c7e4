"""Owns tools: a function or any Work with its schema and its policy.

Schema and validation come from the signature and the docstring, by pydantic. Knows nothing of models and of the
agent's loop.
"""

import copy
import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property, partial
from itertools import islice
from types import MethodType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import from_json, to_json

from ..errors import SafepointError, UsageError
from ..receipt import LeafKind
from ..run.leaf import kind_of, name_of
from ..run.policy import Policy, PolicySettings
from .arguments import invalid_arguments
from .docstring import read_docstring
from .history import NAME
from .json_schema import check_schema, schema_problems
from .model import ToolSpec
from .signature import CallableInfo, ParameterInfo, inspect_callable, is_context, is_method, resolved_hints

__all__ = [
    "AnyTool",
    "BadArguments",
    "Effects",
    "Tool",
    "ToolLike",
    "ToolOptions",
    "tool",
]

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", covariant=True)
Effects: TypeAlias = Literal["read", "idempotent", "reversible", "irreversible"]

# The options of a tool that are not settings of its policy.
MAX_PROBLEMS = 10  # of wrong arguments, that are told to the model
OWN_OPTIONS = frozenset({"name", "description", "effects", "requires_approval", "parallel", "input", "schema"})


class BadArguments(SafepointError):
    """The model's arguments do not fit the tool. The text is for the model to read."""


class ToolOptions(PolicySettings, total=False):
    """The options of a tool: see `tool`."""

    name: str
    description: str
    effects: Effects
    requires_approval: bool
    parallel: bool
    input: object
    schema: Mapping[str, object]


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A tool that a model can call. Make one with `@tool` or `tool(work, name=…)`.

    It has the signature of its function, so that type checkers see through the decorator.

    Attributes:
        name: The name by which the model calls it.
        description: What it does, for the model.
        fn: The function, or the Work.
        policy: How a call is stopped.
        kind: Where a call runs.
        effects: What a stop in the middle of a call may leave behind. None counts as "irreversible".
        requires_approval: Whether the person is asked before each call.
        context_name: The parameter that gets the context, if there is one.
        arguments: The model of pydantic that reads the arguments.
        input_field: For Work whose value is one field of the arguments: that field.
        input_adapter: For Work whose value is the whole object: what reads it.
        inner_tools: For an agent as a tool: its own tools.
        stop_remote: For a tool whose work runs elsewhere: stops what a call with this idempotency key left running
            there. It is used when nothing will ever continue the call.
        parallel: Whether a call may run beside the other ones of its answer.
        schema: The JSON schema of the arguments, if the tool was given one.
        takes_self: Whether it is a method that was decorated in the body of a class. Read from an object, as in
            `shop.buy`, it is a tool of that object; by itself it is none yet.
    """

    name: str
    description: str
    fn: Callable[P, R]
    policy: Policy
    kind: LeafKind
    effects: Effects | None
    requires_approval: bool
    context_name: str | None
    arguments: type[BaseModel]
    input_field: str | None = None
    input_adapter: TypeAdapter[object] | None = None
    inner_tools: "Mapping[str, AnyTool]" = field(default_factory=dict)
    stop_remote: Callable[[str], Awaitable[None]] | None = None
    parallel: bool = True
    takes_self: bool = False
    schema: Mapping[str, Any] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, for tests and other code."""
        return self.fn(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> "Tool[P, R]": ...

    @overload
    def __get__(self: "Tool[Concatenate[S, Q], T]", instance: S, owner: type | None = None) -> "Tool[Q, T]": ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> "Tool[P, R]": ...

    def __get__(self, instance: object, owner: type | None = None) -> "AnyTool":
        """Return the tool of one object, if this is a method; otherwise the tool as it is."""
        if instance is None or not self.takes_self:
            return self
        return replace(self, fn=MethodType(self.fn, instance), takes_self=False)

    @property
    def __wrapped__(self) -> Callable[P, R]:
        """The function itself. A process of its own finds it through the tool's name."""
        return self.fn

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        if self.schema is not None:
            return ToolSpec(name=self.name, description=self.description, parameters=dict(self.schema))
        adapter = self.input_adapter
        try:
            schema = self.arguments.model_json_schema() if adapter is None else adapter.json_schema()
        except PydanticUserError as error:
            raise UsageError(f"{self.name}: no model can give its parameters: {error.message}") from error
        schema.pop("title", None)
        for parameter in schema.get("properties", {}).values():
            parameter.pop("title", None)
        return ToolSpec(name=self.name, description=self.description, parameters=schema)

    def read(self, arguments: str) -> object:
        """Read the arguments of a call.

        Args:
            arguments: The JSON text that the model wrote.

        Returns:
            For a function, a dict with its keyword arguments. For Work, its value.

        Raises:
            BadArguments: They do not fit the tool.
        """
        if (text := invalid_arguments(arguments)) is not None:
            raise self._bad_arguments(f"not a JSON object: {text}")
        if self.schema is not None:
            return self._read_by_schema(arguments, self.schema)
        try:
            if self.input_adapter is not None:
                return self.input_adapter.validate_json(arguments or "{}")
            fields = self.arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()
            )
            raise self._bad_arguments(problems) from None
        except Exception as error:  # from a validator of the tool's own
            raise self._bad_arguments(f"{type(error).__name__}: {error}") from error
        values = {field.alias or name: getattr(fields, name) for name, field in type(fields).model_fields.items()}
        return values[self.input_field] if self.input_field is not None else values

    def _read_by_schema(self, arguments: str, schema: Mapping[str, Any]) -> object:
        try:
            value = from_json(arguments or "{}", allow_inf_nan=False)
            problems = list(islice(schema_problems(value, {"type": "object", **schema}, schema), MAX_PROBLEMS))
        except (ValueError, RecursionError) as error:
            raise self._bad_arguments(str(error)) from None
        if problems:
            raise self._bad_arguments("; ".join(problems))
        return value

    def _bad_arguments(self, problem: str) -> BadArguments:
        return BadArguments(f"The arguments of {self.name} are wrong: {problem}. Correct them and call it again.")

    @property
    def is_work(self) -> bool:
        """Whether `fn` is called as Work, with `(ctx, value)`."""
        return self.input_field is not None or self.input_adapter is not None


AnyTool: TypeAlias = Tool[..., Any]


class SupportsAsTool(Protocol):
    """An object that makes a tool of itself, as an agent does."""

    def as_tool(self, name: str | None = None) -> AnyTool:
        """Return itself as a tool."""
        ...


# What an agent accepts as a tool.
ToolLike: TypeAlias = AnyTool | SupportsAsTool | Callable[..., object]


@overload
def tool(work: SupportsAsTool, /, **options: Unpack[ToolOptions]) -> AnyTool: ...


@overload
def tool(work: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(work: object = None, /, **options: Unpack[ToolOptions]) -> object:
    """Make a tool: `@tool`, `@tool(timeout=30)`, or `tool(flow, name="report")` for an agent, a flow, any Work.

    Args:
        work: The function or Work.
        **options: Any of these, and every field of a Policy (`on_abort`, `timeout`, `grace`, …):
            name: By default the name of the function.
            description: By default the docstring of the function.
            effects: "read", "idempotent", "reversible" or "irreversible": what a stop in the middle may leave behind.
            requires_approval: True to ask the person before each call.
            parallel: False for calls that run alone, in the order of the answer.
            input: The type of a Work's value, if its annotation does not say it.
            schema: A JSON schema of the arguments, instead of the signature. The function gets them by name.

    Returns:
        The tool; without `work`, a decorator.

    Raises:
        UsageError: This cannot be a tool, or the name or an option is wrong.
    """
    if work is None:
        return lambda work: tool(work, **options)
    if "schema" in options and (isinstance(work, Tool) or hasattr(work, "as_tool")):
        raise UsageError(f"schema= goes with a function, not with {type(work).__name__}, which has its own parameters")
    if isinstance(work, Tool):
        _refuse_unbound(work)
        return _changed(work, options) if options else work
    if isinstance(work, staticmethod):
        work = work.__func__
    if isinstance(work, classmethod):
        raise _class_method(work.__func__)
    if isinstance(work, type):
        name = work.__name__
        raise UsageError(f"{name} is a class: make a tool of an object, tool({name}(…)), or of a function that uses it")
    if not callable(work):
        raise UsageError(f"a tool must be a function or Work, not {type(work).__name__}")
    called = work if isinstance(work, partial) or inspect.isroutine(work) else type(work).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise UsageError(f"{name_of(work)} yields; a tool returns one value, and reports on the way by ctx.progress()")
    if "schema" in options or isinstance(work, partial) or inspect.isroutine(work):
        return _from_function(work, options)
    as_tool = getattr(work, "as_tool", None)
    if as_tool is not None:
        return _changed(as_tool(options.get("name")), options)
    value = _value_of_work(work, options)
    return _from_function(work, options) if value is None else _from_work(work, value, options)


def _path(method: Callable[..., object]) -> str:
    return method.__qualname__.rpartition("<locals>.")[2]


def _class_method(method: Callable[..., object]) -> UsageError:
    path = _path(method)
    return UsageError(f"{path} is a class method, which has no class here: leave it as it is, and give tool({path})")


def _refuse_unbound(method: AnyTool) -> None:
    if method.takes_self:
        within, _, name = _path(method.fn).rpartition(".")
        raise UsageError(f"{within}.{name} is a method: give the tool of an object, {within}(…).{name}")


class _Declaration(TypedDict):
    """The fields that every kind of tool takes from its options or from the attributes of its Work."""

    name: str
    description: str
    policy: Policy
    effects: Effects | None
    requires_approval: bool
    parallel: bool


def _declaration(
    work: Callable[..., object], options: ToolOptions, policy: Policy, documented: str = ""
) -> _Declaration:
    name = options.get("name") or getattr(work, "name", None) or name_of(work)
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a tool name: letters, digits, _ and -, at most 64; give name=…")
    effects = options.get("effects", getattr(work, "effects", None))
    if effects not in (None, "read", "idempotent", "reversible", "irreversible"):
        raise UsageError(f"effects of {name!r} must be read, idempotent, reversible or irreversible, not {effects!r}")
    parallel = options.get("parallel", getattr(work, "parallel", True) is not False)
    if not isinstance(parallel, bool):
        raise UsageError(f"parallel of {name!r} must be True or False, not {parallel!r}")
    description = options.get("description") or getattr(work, "description", None) or documented
    return {
        "name": name,
        "description": inspect.cleandoc(description).strip(),
        "policy": policy,
        "effects": effects,
        "requires_approval": options.get("requires_approval", getattr(work, "requires_approval", False)),
        "parallel": parallel,
    }


def _changed(made: AnyTool, options: ToolOptions) -> AnyTool:
    policy = _policy(options, **asdict(made.policy))
    kind = made.kind if made.kind == "child" else kind_of(made.fn, policy)
    return replace(made, **_declaration(made, options, policy), kind=kind)


def _policy(options: ToolOptions, **defaults: object) -> Policy:
    settings: Any = {**defaults, **{key: value for key, value in options.items() if key not in OWN_OPTIONS}}
    return Policy(**settings)


def _from_function(fn: Callable[..., object], options: ToolOptions) -> AnyTool:
    policy = _policy(options)
    if "schema" in options:
        return _from_schema(fn, options["schema"], options)
    method = is_method(fn)
    if method and next(iter(inspect.signature(fn).parameters)) == "cls":
        raise _class_method(fn)
    info = inspect_callable(fn, skip_first=method)
    _warn_of_unresolved(fn, info)
    declaration = _declaration(fn, options, policy, info.description)
    arguments = _arguments_model(name_of(fn), info, f"{declaration['name']}_arguments")
    kind = kind_of(fn, policy)
    context = info.context_name
    return Tool(**declaration, fn=fn, kind=kind, context_name=context, arguments=arguments, takes_self=method)


def _from_schema(fn: Callable[..., object], given: Mapping[str, object], options: ToolOptions) -> AnyTool:
    policy = _policy(options)
    info = inspect_callable(fn, skip_first=is_method(fn), any_keywords=True)
    declaration = _declaration(fn, options, policy, info.description)
    name = declaration["name"]
    check_schema(given, name)
    schema: dict[str, Any] = copy.deepcopy({"type": "object", **given})
    schema.setdefault("properties", {})
    properties, taken = schema["properties"], {each.name: each for each in info.parameters}
    if info.context_name in properties:
        raise UsageError(f"{name}: the schema has the property {info.context_name!r}, which is the context: rename one")
    if not info.takes_any:
        if strange := [each for each in properties if each not in taken]:
            raise UsageError(f"{name}: the function does not take {', '.join(strange)}: add **arguments to it")
        schema.setdefault("additionalProperties", False)
    given_always = schema.get("required", ())
    for each in info.parameters:
        if each.default is inspect.Parameter.empty and each.name not in given_always:
            raise UsageError(f"{name}: {each.name} has no default, and the schema does not require it: do one of both")
    return Tool(
        **declaration,
        fn=fn,
        kind=kind_of(fn, policy),
        context_name=info.context_name,
        arguments=BaseModel,
        takes_self=is_method(fn),
        schema=schema,
    )


def _warn_of_unresolved(fn: Callable[..., object], info: CallableInfo) -> None:
    if info.unresolved:
        which = ", ".join(f"{name}: {why}" for name, why in info.unresolved.items())
        instead = "import the type outside of `if TYPE_CHECKING`"
        warnings.warn(
            f"{name_of(fn)}: no type for {which}. The model may give any value there; {instead}", stacklevel=4
        )


def _arguments_model(function: str, info: CallableInfo, name: str) -> type[BaseModel]:
    shown = [each for each in info.parameters if not each.bound or _is_for_models(each)]
    # The alias is the real name. Pydantic reserves some names of fields, such as `json` and `_x`.
    fields: dict[str, Any] = {f"p_{each.name}": _field(each) for each in shown}
    try:
        return create_model(name, __config__={"extra": "forbid"}, **fields)
    except PydanticUserError as error:
        wrong = ", ".join(repr(each.name) for each in shown if not _is_for_models(each))
        instead = "bind it with functools.partial, or give it a type of data"
        raise UsageError(f"{function}: no model can give {wrong or 'its parameters'}: {instead}") from error


def _is_for_models(parameter: ParameterInfo) -> bool:
    """Whether a model can give a value of this type, and read its default."""
    default = parameter.default
    try:
        TypeAdapter(parameter.annotation).json_schema()
        if default is not inspect.Parameter.empty and not isinstance(default, FieldInfo):
            to_json(default)
    except (PydanticUserError, ValueError):
        return False
    return True


def _field(parameter: ParameterInfo) -> tuple[object, object]:
    annotation: Any = parameter.annotation
    annotation = Annotated[annotation, Field(alias=parameter.name, description=parameter.description)]
    if isinstance(parameter.default, FieldInfo):
        return annotation, parameter.default
    return annotation, Field(... if parameter.default is inspect.Parameter.empty else parameter.default)


def _value_of_work(work: Callable[..., object], options: ToolOptions) -> tuple[str, object] | None:
    """Return the name and the type of the value of Work, `async (ctx, value)`. None if this is not the shape of it."""
    kind: Any = options.get("input") or getattr(work, "input_type", None)
    call = type(work).__call__
    hints, _ = resolved_hints(work)
    try:
        parameters = list(inspect.signature(work).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if len(parameters) != 2:
        return None if kind is None else ("input", kind)
    first, second = parameters
    asked = kind is not None or second.kind is second.POSITIONAL_ONLY
    has_context = first.name == "ctx" or is_context(hints.get(first.name))
    if not asked and not (has_context and inspect.iscoroutinefunction(call)):
        return None
    name = second.name if second.kind is second.POSITIONAL_OR_KEYWORD and second.name != "value" else "input"
    return name, kind or hints.get(second.name, str)


def _from_work(work: Callable[..., object], value: tuple[str, object], options: ToolOptions) -> AnyTool:
    # An agent or a flow handles an abort itself, leaf by leaf. So it only sees the signal, and is not interrupted.
    policy = _policy(options, on_abort="cooperate")
    declaration = _declaration(work, options, policy, read_docstring(work.__doc__).description)
    name: str = value[0]
    kind: Any = value[1]
    if _is_record(kind):
        adapter: TypeAdapter[object] = TypeAdapter(kind)
        return Tool(**declaration, fn=work, kind="child", context_name=None, arguments=BaseModel, input_adapter=adapter)
    fields: dict[str, Any] = {f"p_{name}": (Annotated[kind, Field(alias=name)], ...)}
    arguments = create_model(f"{declaration['name']}_arguments", __config__={"extra": "forbid"}, **fields)
    return Tool(**declaration, fn=work, kind="child", context_name=None, arguments=arguments, input_field=name)


def _is_record(kind: object) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel))
