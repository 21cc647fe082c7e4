"""Owns what a tool is: a function or any Work, its schema, its policy, and the context it may ask for.

Schema and validation come from the signature and the docstring, by pydantic. Knows nothing of models and of the loop.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
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
from ..run.context import Context
from ..run.journal import ChildProcessJournal
from ..run.leaf import kind_of, name_of, wait
from ..run.once import once
from ..run.policy import Policy, PolicySettings
from ..run.receipt import LeafKind, Usage
from .history import NAME, unreadable
from .model import ToolSpec

__all__ = ["AnyTool", "BadArguments", "Effects", "Tool", "ToolContext", "ToolLike", "ToolOptions", "tool"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Effects: TypeAlias = Literal["read", "idempotent", "reversible", "irreversible"]
AskUserFn: TypeAlias = Callable[[Context, str, tuple[str, ...]], Awaitable[str]]


class BadArguments(SafepointError):
    """The model's arguments do not fit the tool. The text is for the model to read."""


class ToolContext(Context):
    """What a tool is given if it asks for it.

    call_id          the model's name for this call
    idempotency_key  the same for this call for life, also after a crash or on another worker: for effects that must
                     happen once
    kept             of a call that was stopped before: what it had left behind, an AgentResult or KeptWork; or None
    spent            what models inside the call have cost
    """

    __slots__ = ("_ask", "_inside", "call_id", "idempotency_key", "kept", "spent")

    _ask: AskUserFn
    _inside: int
    call_id: str
    idempotency_key: str
    kept: Any
    spent: Usage

    async def ask_user(self, question: str, options: tuple[str, ...] = ()) -> str:
        """Ask the person, and wait for the answer. A stop withdraws the question. Raises: AbortError."""
        return await self._ask(self, question, options)

    def inner_key(self, name: str) -> str:
        """The key of work inside this call: another one for each, and the same ones when the call runs again."""
        self._inside = getattr(self, "_inside", 0) + 1
        return f"{self.idempotency_key}/{name}#{self._inside}"

    async def wait(self, seconds: float) -> None:
        """Pause; a stop ends it at once. Raises: AbortError."""
        await wait(self, seconds)

    @overload
    async def once(self, key: str, fn: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    @overload
    async def once(self, key: str, fn: Callable[[], T]) -> T: ...

    async def once(self, key: str, fn: Callable[[], Any]) -> Any:
        """Run a part of this call once, even if the call runs again: what `fn` returned is recorded under `key`.

        Args:
            key: The name of the part, the same each time.
            fn: A function without parameters, sync (it runs in a thread) or async, that returns plain JSON data.

        Raises:
            AbortError: The run was stopped before the part had a result.
            UsageError: The result is not plain JSON data.
        """
        return await once(self, self.idempotency_key, key, fn)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        carry, about = super().__reduce__()
        return _carried, (carry, about, self.call_id, self.idempotency_key)


def _carried(carry: Callable[..., Context], about: tuple[object, ...], call_id: str, key: str) -> ToolContext:
    ctx = carry(*about).child("", context_class=ToolContext)
    assert isinstance(ctx, ToolContext)  # for the type checker: it was asked for
    ctx.path, ctx.call_id, ctx.idempotency_key, ctx.kept, ctx.spent = ctx.path[:-1], call_id, key, None, Usage()
    ctx._ask = _nobody
    ctx.journal = ChildProcessJournal()
    return ctx


async def _nobody(ctx: Context, question: str, options: tuple[str, ...]) -> str:
    raise UsageError(f"{ctx.operation} runs in a process of its own, where nobody can be asked: use isolation='thread'")


class ToolOptions(PolicySettings, total=False):
    """What can be said of a tool: see `tool`."""

    name: str
    description: str
    effects: Effects
    requires_approval: bool
    input: Any


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A tool that a model can call. Make one with `@tool` or `tool(work, name=…)`.

    It has the signature of its function, so that a type checker sees through the decorator.

    Attributes:
        inside: Of an agent as a tool: its own tools.
        stop_left: Of a tool whose work is elsewhere: stops what a call with this idempotency key has left running
            there. It is asked where nobody will go on with the call.
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
    single: str | None = None  # the value is this field of the arguments
    whole: Any = None  # the value is made of all arguments
    inside: "Mapping[str, AnyTool]" = field(default_factory=dict)
    stop_left: Callable[[str], Awaitable[None]] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function as it is, for tests and other code."""
        return self.fn(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, R]:
        """By which a process finds the function under the tool's name."""
        return self.fn

    @cached_property
    def spec(self) -> ToolSpec:
        """As a model sees it."""
        schema = self.arguments.model_json_schema() if self.whole is None else self.whole.json_schema()
        schema.pop("title", None)
        for one in schema.get("properties", {}).values():
            one.pop("title", None)
        return ToolSpec(name=self.name, description=self.description, parameters=schema)

    def read(self, arguments: str) -> Any:
        """What the model wrote, as the function wants it. Raises: BadArguments."""
        if (written := unreadable(arguments)) is not None:
            raise self._wrong(f"not a JSON object: {written}")
        try:
            if self.whole is not None:
                return self.whole.validate_json(arguments or "{}")
            fields = self.arguments.model_validate_json(arguments or "{}")
        except ValidationError as problem:
            told = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in problem.errors()
            )
            raise self._wrong(told) from None
        except Exception as problem:  # a validator of the tool's own
            raise self._wrong(f"{type(problem).__name__}: {problem}") from problem
        values = {field.alias or name: getattr(fields, name) for name, field in type(fields).model_fields.items()}
        return values[self.single] if self.single is not None else values

    def _wrong(self, told: str) -> BadArguments:
        return BadArguments(f"The arguments of {self.name} are wrong: {told}. Correct them and call it again.")

    @property
    def is_work(self) -> bool:
        """True: it is called as Work, `(ctx, value)`."""
        return self.single is not None or self.whole is not None


AnyTool: TypeAlias = Tool[..., Any]


class SupportsAsTool(Protocol):
    """What can make a tool of itself, as an agent does."""

    def as_tool(self, name: str | None = None) -> AnyTool:
        """Itself as a tool."""
        ...


# What an agent takes as a tool.
ToolLike: TypeAlias = AnyTool | SupportsAsTool | Callable[..., Any]


@overload
def tool(work: SupportsAsTool, /, **options: Unpack[ToolOptions]) -> AnyTool: ...


@overload
def tool(work: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(work: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool: `@tool`, `@tool(timeout=30)`, or `tool(flow, name="report")` for an agent, a flow, any Work.

    name, description  by default the function's name and docstring
    effects            "read", "idempotent", "reversible" or "irreversible": what a stop in the middle may leave behind
    requires_approval  ask the person before each call
    input              the type of a Work's value, where its annotation does not tell it
    and every field of a Policy: on_abort, timeout, grace, warn_after, abandon_after, isolation
    """
    if work is None:
        return lambda work: tool(work, **options)
    if isinstance(work, Tool):
        return _changed(work, options) if options else work
    if not callable(work):
        raise UsageError(f"a tool must be a function or Work, not {type(work).__name__}")
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise UsageError(f"{name_of(work)} yields; a tool returns one value, and reports on the way by ctx.progress()")
    if inspect.isroutine(work) or isinstance(work, partial):
        return _from_function(work, options)
    as_tool = getattr(work, "as_tool", None)
    if as_tool is not None:
        return _changed(as_tool(options.get("name")), options)
    return _from_work(work, options)


def _common(work: Any, options: ToolOptions, policy: Policy) -> dict[str, Any]:
    name = options.get("name") or getattr(work, "name", None) or name_of(work)
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a tool name: letters, digits, _ and -, at most 64; give name=…")
    effects = options.get("effects", getattr(work, "effects", None))
    if effects not in (None, "read", "idempotent", "reversible", "irreversible"):
        raise UsageError(f"effects of {name!r} must be read, idempotent, reversible or irreversible, not {effects!r}")
    told = options.get("description") or getattr(work, "description", None) or _written(work).__doc__
    description = inspect.cleandoc(told or "")
    return {
        "name": name,
        "description": re.split(r"\n\s*Args:\s*\n", description)[0].strip(),
        "fn": work,
        "policy": policy,
        "effects": effects,
        "requires_approval": options.get("requires_approval", getattr(work, "requires_approval", False)),
    }


def _changed(made: AnyTool, options: ToolOptions) -> AnyTool:
    policy = _policy(options, **asdict(made.policy))
    kind = made.kind if made.kind == "child" else kind_of(made.fn, policy)
    return replace(made, **{**_common(made, options, policy), "fn": made.fn, "kind": kind})


def _policy(options: ToolOptions, **defaults: Any) -> Policy:
    own = {"name", "description", "effects", "requires_approval", "input"}
    settings: Any = {**defaults, **{key: value for key, value in options.items() if key not in own}}
    return Policy(**settings)


def _from_function(fn: Callable[..., Any], options: ToolOptions) -> AnyTool:
    policy = _policy(options)
    hints = _hints(fn)
    told = _told_of_parameters(inspect.getdoc(_written(fn)) or "")
    context_name = None
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        kind = hints.get(name, Any)
        if name == "ctx" or _is_context(kind):
            context_name = name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"{name_of(fn)}: a tool's parameters must have names; {parameter} has none for a model")
        else:
            # The alias is the name: a parameter may be called `json` or `_x`, which pydantic keeps for itself.
            fields[f"p_{name}"] = (Annotated[kind, Field(alias=name)], _field(parameter.default, told.get(name)))
    common = _common(fn, options, policy)
    arguments = create_model(f"{common['name']}_arguments", __config__={"extra": "forbid"}, **fields)
    return Tool(**common, kind=kind_of(fn, policy), context_name=context_name, arguments=arguments)


def _is_context(kind: Any) -> bool:
    return any(isinstance(one, type) and issubclass(one, Context) for one in (kind, *get_args(kind)))


def _field(default: Any, told: str | None) -> Any:
    if isinstance(default, FieldInfo):
        return default
    default = ... if default is inspect.Parameter.empty else default
    return Field(default, description=told) if told else Field(default)


def _from_work(work: Any, options: ToolOptions) -> AnyTool:
    # An agent or a flow handles the abort itself, leaf by leaf: from outside it is only shown the signal.
    common = _common(work, options, _policy(options, on_abort="cooperate"))
    annotated = _hints(type(work).__call__).get("value", str)
    kind: Any = options.get("input") or getattr(work, "input_type", None) or annotated
    if _is_record(kind):
        return Tool(**common, kind="child", context_name=None, arguments=BaseModel, whole=TypeAdapter(kind))
    arguments = create_model(f"{common['name']}_arguments", __config__={"extra": "forbid"}, input=(kind, ...))
    return Tool(**common, kind="child", context_name=None, arguments=arguments, single="input")


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel))


def _written(fn: Any) -> Any:
    """The function as somebody wrote it."""
    return fn.func if isinstance(fn, partial) else fn


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(_written(fn), include_extras=True)
    except (NameError, TypeError):
        return {}


def _told_of_parameters(doc: str) -> dict[str, str]:
    """What the docstring's `Args:` section says of each parameter."""
    _, _, section = doc.partition("Args:")
    found = re.findall(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.+)$", section, re.MULTILINE)
    return dict(found)


def as_text(value: Any) -> str:
    """A tool's value as a model reads it: whatever it returned, it did not fail by that."""
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    else:
        try:
            text = to_json(value, fallback=str, inf_nan_mode="constants").decode()
        except Exception:  # what has no JSON: keys that are tuples, something that contains itself
            text = str(value)
    # Half a character, as in the name of a file, cannot be sent to any provider.
    return text.encode(errors="replace").decode() if text.strip() else "(no output)"
