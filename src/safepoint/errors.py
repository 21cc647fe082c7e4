"""The root of every error that Safepoint raises, and how errors become text.

SafepointError
├── UsageError               the call was wrong; also a ValueError
│   └── FlowError            the definition of a flow does not fit together
├── AbortError               the work was aborted: .reason, .partial
│   └── AbortTimeout         … because its time was up; also a TimeoutError
├── LeafTimeout              the time limit of one operation was up; also a TimeoutError
├── LeafExit                 a function called sys.exit()
├── ChildDied                the process of an isolated function ended without an answer
├── ModelError               a request to a model failed: .retryable, .retry_after
├── LimitExceeded            an agent has used up its steps or its tokens
├── BadArguments             a model's arguments do not fit the tool
├── HistoryError             a provider would refuse this conversation
├── StepLimitExceeded        a flow took more steps than max_steps
├── JoinConflict             two branches of a flow have written the same field
├── UnknownOutput            a node of a flow returned an output that it has not declared
├── NodeDisrupted            a node of a flow ended by a CancelledError that no abort caused
├── CheckpointError          a checkpoint could not be saved, loaded or leased
│   ├── CheckpointInUse      another owner has leased it: .holder
│   ├── CheckpointUnreadable what is stored is not text
│   ├── CheckpointMismatch   it belongs to another flow, or to another shape of this one
│   ├── CheckpointUnfinished a new run would overwrite one that has not completed
│   └── CheckpointCompleted  the run has completed before, and its result was not kept
├── NotFound                 there is no such session, turn or agent
├── SessionBusy              a turn runs, and the caller did not want to wait
├── SessionEnded             the session was closed
├── StoreError               a store could not be read or written
│   └── SessionInUse         the session is open in another process
├── BrokerError              the broker could not be reached, or has refused
│   ├── LeaseInForce         a worker was started with another lease than the others
│   ├── Fenced               another worker owns the session now
│   ├── NoResponders         there is no responder at that subject
│   ├── RequestTimeout       no answer came in time; also a TimeoutError
│   └── Unreadable           a message cannot be understood
├── CannotStart              the processes of a worker end before they are ready
├── ServerRefused            the server refused a request of the command line: .status
├── ServerUnreachable        no server answers
├── MissingExtra             a package of an optional extra is not installed; also an ImportError
├── RemoteError              an exception of another process or machine: its type name and its text
└── WireError                a document cannot be understood; also a ValueError
"""

__all__ = ["MissingExtra", "RemoteError", "SafepointError", "UsageError", "WireError"]

# The limit for texts of errors in records, receipts, events and logs. A tool may put a whole response into its error.
TEXT_LIMIT = 2_000


class SafepointError(Exception):
    """The root of every error that Safepoint raises by itself."""


class UsageError(SafepointError, ValueError):
    """The call was wrong: the message says what, which argument, and what to do instead."""


class MissingExtra(SafepointError, ImportError):
    """A package of an optional extra is not installed: the message says which one, and how to install it.

    Args:
        needed_by: What needs the package, for the message.
        extra: The name of the extra.
        problem: The failed import.
    """

    def __init__(self, needed_by: str, extra: str, problem: ImportError) -> None:
        package = f"the package {problem.name.partition('.')[0]}" if problem.name else "more packages"
        super().__init__(f'{needed_by} needs {package}: pip install "safepoint[{extra}]"', name=problem.name)


class RemoteError(SafepointError):
    """An exception from another process or machine, known only by the name of its type and its text.

    Attributes:
        type_name: The name of the type.
        message: The text.
    """

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class WireError(SafepointError, ValueError):
    """A document cannot be understood: the message says which part, and why."""


def require_method(value: object, method: str, wanted: str) -> None:
    """Refuse an argument of the wrong type where it is passed, and not later when it is first used.

    Args:
        value: The argument.
        method: A method that every value of the right type has.
        wanted: The parameter and what it takes, such as `store must be a store such as SqliteStore("chat.db")`.

    Raises:
        UsageError: The value has no such method, or is a class instead of an instance.
    """
    if isinstance(value, type):
        raise UsageError(f"{wanted}, not the class {value.__name__}: make one with {value.__name__}(…)")
    if not callable(getattr(value, method, None)):
        raise UsageError(f"{wanted}, not {shorten(repr(value), 100)}")


def describe(error: BaseException) -> str:
    """Describe an error for a note, a record or a log: `TypeName: text`, of limited length.

    It never raises, whatever the error's own `__str__` does, so that an error can always be recorded.
    """
    name, text = name_of(error), text_of(error)
    return shorten(f"{name}: {text}" if text else name)


def name_of(error: BaseException) -> str:
    """Return the name of the error's type; for a RemoteError, the name that it had in the other process."""
    return error.type_name if isinstance(error, RemoteError) else type(error).__name__


def text_of(error: BaseException) -> str:
    """Return the whole text of an error, without its type. It never raises."""
    try:
        return error.message if isinstance(error, RemoteError) else str(error)
    except BaseException as problem:  # `__str__` raised, recursed without end, or did not return a string
        return f"(its text cannot be read: {type(problem).__name__})"


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """Cut a text to at most `limit` characters. A text that was cut ends with its full length."""
    if len(text) <= limit:
        return text
    ending = f"… ({len(text)} characters)"
    return text[: max(0, limit - len(ending))] + ending
