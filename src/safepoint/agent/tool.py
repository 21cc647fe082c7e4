"""Owns tools: a function or any Work with its schema and its policy.

Schema and validation come from the signature and the docstring, by pydantic. Knows nothing of models and of the
agent's loop.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property, partial
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_type_hints,
    overload,
)

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ..errors import SafepointError, UsageError
from ..receipt import LeafKind
from ..run.context import Context
from ..run.leaf import kind_of, name_of
from ..run.policy import Policy, PolicySettings
from .arguments import invalid_arguments
from .history import NAME
from .model import ToolSpec

__all__ = [
    "AnyTool",
    "BadArguments",
    "Effects",
    "Tool",
    "ToolLike",
    "ToolOptions",
    "as_text",
    "tool",
]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Effects: TypeAlias = Literal["read", "idempotent", "reversible", "irreversible"]

# The options of a tool that are not settings of its policy.
OWN_OPTIONS = frozenset({"name", "description", "effects", "requires_approval", "input"})


class BadArguments(SafepointError):
    """The model's arguments do not fit the tool. The text is for the model to read."""


class ToolOptions(PolicySettings, total=False):
    """The options of a tool: see `tool`."""

    name: str
    description: str
    effects: Effects
    requires_approval: bool
    input: object


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

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, for tests and other code."""
        return self.fn(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, R]:
        """The function itself. A process of its own finds it through the tool's name."""
        return self.fn

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        adapter = self.input_adapter
        schema = self.arguments.model_json_schema() if adapter is None else adapter.json_schema()
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
            input: The type of a Work's value, if its annotation does not say it.

    Returns:
        The tool; without `work`, a decorator.

    Raises:
        UsageError: This cannot be a tool, or the name or an option is wrong.
    """
    if work is None:
        return lambda work: tool(work, **options)
    if isinstance(work, Tool):
        return _changed(work, options) if options else work
    if not callable(work):
        raise UsageError(f"a tool must be a function or Work, not {type(work).__name__}")
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise UsageError(f"{name_of(work)} yields; a tool returns one value, and reports on the way by ctx.progress()")
    if isinstance(work, partial) or inspect.isroutine(work):
        return _from_function(work, options)
    as_tool = getattr(work, "as_tool", None)
    if as_tool is not None:
        return _changed(as_tool(options.get("name")), options)
    return _from_work(work, options)


class _Declaration(TypedDict):
    """The fields that every kind of tool takes from its options or from the attributes of its Work."""

    name: str
    description: str
    policy: Policy
    effects: Effects | None
    requires_approval: bool


def _declaration(work: Callable[..., object], options: ToolOptions, policy: Policy) -> _Declaration:
    name = options.get("name") or getattr(work, "name", None) or name_of(work)
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a tool name: letters, digits, _ and -, at most 64; give name=…")
    effects = options.get("effects", getattr(work, "effects", None))
    if effects not in (None, "read", "idempotent", "reversible", "irreversible"):
        raise UsageError(f"effects of {name!r} must be read, idempotent, reversible or irreversible, not {effects!r}")
    text = options.get("description") or getattr(work, "description", None) or _original(work).__doc__
    description = re.split(r"\n\s*Args:\s*\n", inspect.cleandoc(text or ""))[0].strip()
    return {
        "name": name,
        "description": description,
        "policy": policy,
        "effects": effects,
        "requires_approval": options.get("requires_approval", getattr(work, "requires_approval", False)),
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
    hints = _hints(fn)
    descriptions = _parameter_descriptions(inspect.getdoc(_original(fn)) or "")
    context_name = None
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        kind = hints.get(name, object)
        if name == "ctx" or _is_context(kind):
            context_name = name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"{name_of(fn)}: a tool's parameters must have names; {parameter} has none for a model")
        else:
            # The alias is the real name. Pydantic reserves some names of fields, such as `json` and `_x`.
            fields[f"p_{name}"] = (
                Annotated[kind, Field(alias=name)],
                _field(parameter.default, descriptions.get(name)),
            )
    declaration = _declaration(fn, options, policy)
    arguments = create_model(f"{declaration['name']}_arguments", __config__={"extra": "forbid"}, **fields)
    return Tool(**declaration, fn=fn, kind=kind_of(fn, policy), context_name=context_name, arguments=arguments)


def _is_context(kind: object) -> bool:
    return any(isinstance(one, type) and issubclass(one, Context) for one in (kind, *get_args(kind)))


def _field(default: object, description: str | None) -> object:
    if isinstance(default, FieldInfo):
        return default
    default = ... if default is inspect.Parameter.empty else default
    return Field(default, description=description) if description else Field(default)


def _from_work(work: Callable[..., object], options: ToolOptions) -> AnyTool:
    # An agent or a flow handles an abort itself, leaf by leaf. So it only sees the signal, and is not interrupted.
    declaration = _declaration(work, options, _policy(options, on_abort="cooperate"))
    annotated = _hints(type(work).__call__).get("value", str)
    kind: Any = options.get("input") or getattr(work, "input_type", None) or annotated
    if _is_record(kind):
        adapter: TypeAdapter[object] = TypeAdapter(kind)
        return Tool(**declaration, fn=work, kind="child", context_name=None, arguments=BaseModel, input_adapter=adapter)
    arguments = create_model(f"{declaration['name']}_arguments", __config__={"extra": "forbid"}, input=(kind, ...))
    return Tool(**declaration, fn=work, kind="child", context_name=None, arguments=arguments, input_field="input")


def _is_record(kind: object) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel))


def _original(fn: Callable[..., object]) -> Callable[..., object]:
    """Return the function that a `partial` was made of, or the function itself."""
    return fn.func if isinstance(fn, partial) else fn


def _hints(fn: Callable[..., object]) -> dict[str, object]:
    try:
        return get_type_hints(_original(fn), include_extras=True)
    except (NameError, TypeError):
        return {}


def _parameter_descriptions(docstring: str) -> dict[str, str]:
    """Return the descriptions of the parameters in the `Args:` section of a docstring."""
    _, _, section = docstring.partition("Args:")
    found = re.findall(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.+)$", section, re.MULTILINE)
    return dict(found)


def as_text(value: object) -> str:
    """Return the value of a tool as text for a model. It never raises: a strange value is not a failed call."""
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    else:
        try:
            text = to_json(value, fallback=str, inf_nan_mode="constants").decode()
        except Exception:  # it has no JSON form: its keys are tuples, or it contains itself
            text = str(value)
    # Half of a surrogate pair, as in some file names, cannot be sent to any provider.
    return text.encode(errors="replace").decode() if text.strip() else "(no output)"
