"""Measures the paths of a message and of a stop through the package, and draws them in docs/architecture.md.

The paths are read from real call stacks of one turn, so the page cannot show a path that the code does not take.

python scripts/call_paths.py            print the paths
python scripts/call_paths.py --write    put them into docs/architecture.md
"""

import argparse
import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import safepoint
from safepoint import Agent, LocalHost, RemoteHost, Worker, tool
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.session import MemoryStore
from safepoint.worker import MemoryBroker
from safepoint.worker.protocol import StopCall, to_json

PACKAGE = Path(safepoint.__file__).parent
PAGE = PACKAGE.parent.parent / "docs" / "architecture.md"
BEGIN = "<!-- paths:begin -->"
END = "<!-- paths:end -->"
ENGINE = "session/engine.py"
GUARD = "abort/guard.py"
ON_REQUEST = "OrderLease._handle_request"


@dataclass(frozen=True)
class Frame:
    """One call on a stack.

    Attributes:
        file: The path below the package.
        function: The qualified name.
    """

    file: str
    function: str


Stack = tuple[Frame, ...]
name_of = attrgetter("function")


@dataclass(frozen=True)
class Part:
    """A piece of a path that runs in one task without a break.

    Attributes:
        title: What runs it, and why it begins.
        stack: The frames of the package, the outermost first.
    """

    title: str
    stack: Stack


@dataclass(frozen=True)
class Paths:
    """What was measured."""

    message: tuple[Part, ...]
    stop: tuple[Part, ...]
    remote_stop: tuple[Part, ...]


@cache
def frame_of(code: CodeType) -> Frame | None:
    """The frame as the page shows it, or None if the code is not of this package."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    return Frame(path.relative_to(PACKAGE).as_posix(), code.co_qualname.replace(".<locals>", ""))


def stack_of(frame: FrameType | None) -> Stack:
    """The frames of the package on the stack that ends with this frame."""
    found = []
    while frame is not None:
        found.append(frame_of(frame.f_code))
        frame = frame.f_back
    return tuple(each for each in reversed(found) if each is not None)


def awaits_of(coroutine: Any) -> Stack:
    """The frames of a suspended task, from its outermost coroutine to the one that waits."""
    found = []
    while (code := getattr(coroutine, "cr_code", None)) is not None:
        found.append(frame_of(code))
        coroutine = coroutine.cr_await
    return tuple(each for each in found if each is not None)


def stacks_of_calls(record: list[Stack], of: CodeType | None = None) -> Callable[[FrameType, str, Any], None]:
    """A profile function that records the stack of every Python call, or of the calls of one function."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and of in (None, frame.f_code):
            record.append(stack_of(frame))

    return profile


async def measure() -> Paths:
    """Measure all paths."""
    return Paths(*await measure_local(), await measure_remote())


async def measure_remote() -> tuple[Part, ...]:
    """Stop a turn on a worker that runs it in its own process, inside its tool, and record the stacks."""
    in_tool = asyncio.Event()

    @tool
    async def read() -> None:
        in_tool.set()
        await asyncio.sleep(60)

    agent, broker = Agent(ScriptedModel([Call("read")]), tools=[read]), MemoryBroker()
    stopping: list[Stack] = []
    record = stacks_of_calls(stopping)
    begun = threading.Event()
    # For the thread of the supervisor, which is started next.
    threading.setprofile(lambda frame, event, argument: record(frame, event, argument) if begun.is_set() else None)
    async with Worker(agent, broker):
        threading.setprofile(None)
        host = RemoteHost(broker)
        await host.create("s1")
        turn = await host.send("s1", "What do owls see?")
        await in_tool.wait()
        begun.set()
        sys.setprofile(record)
        # Only the request, without the record that `RemoteHost.stop()` writes too: the record could be read first.
        connection = await broker.connect("paths")
        await connection.request(("ctl", "s1"), to_json(StopCall(turn.id, "NOW")), timeout=5.0)
        await (await host.stop("s1", turn.id)).settled()
        sys.setprofile(None)
        begun.clear()
        await connection.close()
        await host.close()
    wake = next(stack for stack in stopping if stack and stack[-1].file == GUARD and ON_REQUEST in map(name_of, stack))
    callback = [name_of(frame) for frame in wake].index(ON_REQUEST)
    deliver = max((stack for stack in stopping if stack and stack[0].file == GUARD), key=len)
    return (
        Part("the supervisor's event loop, when the request to stop arrives", wake[callback:]),
        Part("a callback on the event loop of the tool's task", deliver),
    )


async def measure_local() -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Send one message to a session of a local host, stop the turn inside its tool, and record the stacks."""
    in_tool: asyncio.Future[tuple[Stack, Stack]] = asyncio.get_running_loop().create_future()

    @tool
    async def read() -> None:
        waiting = [awaits_of(task.get_coro()) for task in asyncio.all_tasks()]
        [loop_task] = [stack for stack in waiting if any(frame.file.startswith("agent/") for frame in stack)]
        in_tool.set_result((loop_task, stack_of(sys._getframe())))
        await asyncio.sleep(60)

    host = LocalHost(Agent(ScriptedModel([Call("read")]), tools=[read]), MemoryStore())
    await host.create("s1")
    session = await host.live("s1")
    sending: list[Stack] = []
    sys.setprofile(stacks_of_calls(sending, asyncio.Event.set.__code__))
    turn = session.send("What do owls see?")
    sys.setprofile(None)
    loop_task, tool_task = await in_tool

    stopping: list[Stack] = []
    sys.setprofile(stacks_of_calls(stopping))
    await host.stop("s1", turn.id)
    await turn
    sys.setprofile(None)
    await host.close()

    # `send` sets two events: that of the task which writes the log, and that of the task which runs the turns.
    [enqueue] = [stack for stack in sending if stack[-1].file == ENGINE]
    wake = next(stack for stack in stopping if len(stack) > 1 and stack[-1].file == GUARD)
    deliver = max((stack for stack in stopping if stack and stack[0].file == GUARD), key=len)
    message = (
        Part("the caller of `session.send`", enqueue),
        Part("the task that runs the turns, woken by `send`", loop_task),
        Part("the task of the tool call", tool_task),
    )
    stop = (
        Part("the caller of `host.stop`", wake),
        Part("a callback on the event loop of the tool's task", deliver),
    )
    return message, stop


def by_file(stack: Stack) -> Iterator[tuple[str, list[str]]]:
    """The stack with neighbouring frames of one file together."""
    for file, frames in groupby(stack, key=lambda frame: frame.file):
        yield file, [frame.function for frame in frames]


def drawn(parts: tuple[Part, ...]) -> str:
    """The parts of a path as a picture, one box for each file."""
    lines = ["```mermaid", "flowchart TB"]
    boxes: list[str] = []
    for number, part in enumerate(parts, start=1):
        title = part.title.replace("`", "")
        lines.append(f'    subgraph p{number}["{number}: {title}"]')
        for file, functions in by_file(part.stack):
            boxes.append(f"b{len(boxes) + 1}")
            lines.append(f'        {boxes[-1]}["<b>{file}</b><br>{"<br>".join(functions)}"]')
        lines.append("    end")
    lines.extend(f"    {one} --> {next_}" for one, next_ in pairwise(boxes))
    return "\n".join([*lines, "```"])


def listed(parts: tuple[Part, ...]) -> str:
    """The same in words, with the counts."""
    rows = ["| part | runs in | frames | files |", "|---|---|---:|---:|"]
    for number, part in enumerate(parts, start=1):
        rows.append(f"| {number} | {part.title} | {len(part.stack)} | {len({each.file for each in part.stack})} |")
    everything = [each for part in parts for each in part.stack]
    rows.append(f"| | **together** | **{len(everything)}** | **{len({each.file for each in everything})}** |")
    return "\n".join(rows)


def section(paths: Paths) -> str:
    """What stands between the marks of the page."""
    parts = []
    for title, path in (
        ("A message", paths.message),
        ("A stop", paths.stop),
        ("A stop on a worker", paths.remote_stop),
    ):
        parts.append(f"### {title}\n\n{listed(path)}\n\n{drawn(path)}")
    return "\n\n".join(parts)


def page_with(text: str, new: str) -> str:
    """The page with another section between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main() -> None:
    """Print the paths, or write them."""
    parser = argparse.ArgumentParser(description="The measured paths in docs/architecture.md.")
    parser.add_argument("--write", action="store_true", help="put them into docs/architecture.md")
    new = section(asyncio.run(measure()))
    if parser.parse_args().write:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), new), encoding="utf-8")
    else:
        print(new)


if __name__ == "__main__":
    main()
