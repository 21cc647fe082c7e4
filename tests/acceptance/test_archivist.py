"""Owns the acceptance lines of Archivist: flows under a signal and a deadline."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safepoint import AbortController, Aborted, AbortSignal, Completed, Failed, Retry, TimedOut
from safepoint.flow import END, Checkpoint, Flow, FlowResult, NodeContext
from safepoint.testing import FakeClock, drain_ready_tasks

ROOT = Path(__file__).parents[2]


@dataclass
class Shelf:
    """What the archivist has found."""

    books: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Library:
    """A server that never answers, and sees when a reader goes away."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.asked = asyncio.Event()

    async def __aenter__(self) -> "Library":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await reader.read()  # until the other side closes
        self.left.set()
        writer.close()

    async def ask(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            return (await reader.readline()).decode()
        finally:
            writer.close()


def one_node(body: Any, **options: Any) -> Flow[Shelf, Any]:
    flow: Flow[Shelf, Any] = Flow("the-archivist", start="scout")
    flow.node("scout", body, **options)
    flow.route("scout", **dict.fromkeys(options.get("outputs", ("done",)), END))
    return flow


async def test_01_execute_takes_a_signal_a_deadline_both_or_neither_and_nodes_see_one_signal(clock: FakeClock) -> None:
    """`execute` takes a signal, a deadline, both or neither; nodes see one composed signal."""
    seen: list[AbortSignal] = []

    async def scout(state: Shelf, ctx: NodeContext[None]) -> None:
        seen.append(ctx.signal)

    flow = one_node(scout)
    controller = AbortController()
    for options in (
        {},
        {"signal": controller.signal},
        {"timeout": 5.0},
        {"signal": controller.signal, "timeout": 5.0},
    ):
        assert isinstance((await flow.execute(Shelf(), **options)).outcome, Completed)
    assert [each.deadline is not None for each in seen] == [False, False, True, True]
    controller.abort()
    assert [each.aborted for each in seen] == [False, True, False, True]


async def test_02_an_abort_by_the_caller_while_a_scout_waits_gives_aborted_and_closes_its_request(
    clock: FakeClock,
) -> None:
    """The caller aborts after 800 ms while a scout waits for a slow server → `Aborted` with the caller's reason;
    the scout's request is closed.
    """
    controller = AbortController()
    async with Library() as library:

        async def scout(state: Shelf, ctx: NodeContext[None]) -> None:
            state.books.append(await library.ask())

        flow = one_node(scout)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(flow.execute(Shelf(), signal=controller.signal, timeout=5.0))
            await library.asked.wait()
            clock.call_at(clock.monotonic() + 0.8, lambda: controller.abort("visitor closed page"))
            clock.advance(0.8)
        result = task.result()
        assert isinstance(result.outcome, Aborted)
        assert (result.outcome.reason.kind, result.outcome.reason.message) == ("user", "visitor closed page")
        assert result.cursor == "scout"
        await library.left.wait()


async def test_03_a_passed_deadline_gives_timed_out_distinct_from_an_abort(clock: FakeClock) -> None:
    """The deadline passes → `TimedOut`, with the time it finished; distinct from an abort, also when both are given."""

    async def scout(state: Shelf, ctx: NodeContext[None]) -> None:
        await ctx.signal.sleep(60)

    async def run(act: Any, **options: Any) -> FlowResult[Shelf]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(one_node(scout).execute(Shelf(), **options))
            await drain_ready_tasks()
            act()
        return task.result()

    controller = AbortController()
    late = await run(lambda: clock.advance(5.0), signal=controller.signal, timeout=5.0)
    assert isinstance(late.outcome, TimedOut)
    assert late.outcome.reason.kind == "deadline"
    assert late.outcome.finished_at == clock.time()
    assert late.outcome.finished_at - late.outcome.started_at == 5.0
    stopped = await run(lambda: controller.abort("enough"), signal=controller.signal, timeout=5.0)
    assert isinstance(stopped.outcome, Aborted)
    assert stopped.outcome.reason.message == "enough"


async def test_04_all_nodes_done_gives_completed_with_the_state() -> None:
    """All nodes done → `Completed`, with the state."""

    async def scout(state: Shelf, ctx: NodeContext[None]) -> None:
        state.books.append("a book")

    result = await one_node(scout).execute(Shelf())
    assert isinstance(result.outcome, Completed)
    assert result.outcome.value == result.state == Shelf(["a book"])


def test_05_a_match_on_the_outcome_covers_all_cases_for_the_type_checker(tmp_path: Path) -> None:
    """`match` on the outcome covers all cases, checked by the type checker."""
    head = """
from safepoint import Aborted, Completed, Failed, TimedOut
from safepoint.flow import FlowResult

def told(result: FlowResult[int]) -> str:
    match result.outcome:
        case Completed(value):
            return f"{value + 1}"
        case Aborted(reason):
            return reason.message
        case TimedOut():
            return "late"
"""
    whole = tmp_path / "whole.py"
    whole.write_text(head + "        case Failed(error):\n            return str(error)\n")
    partly = tmp_path / "partly.py"
    partly.write_text(head)
    command = [sys.executable, "-m", "mypy", "--strict", "--enable-error-code", "exhaustive-match"]
    command += ["--config-file", "", "--cache-dir", str(tmp_path), str(whole), str(partly)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "partly.py" in checked.stdout, checked.stdout + checked.stderr
    assert "Failed[int]" in checked.stdout
    assert "whole.py" not in checked.stdout, checked.stdout


async def test_06_a_retry_in_its_back_off_wakes_up_on_abort_and_never_tries_again(clock: FakeClock) -> None:
    """A retry in its back-off wakes up at once on abort and starts no further attempt, ever."""
    attempts: list[int] = []
    controller = AbortController()

    async def scout(state: Shelf, ctx: NodeContext[None]) -> None:
        attempts.append(ctx.attempt)
        raise OSError("no answer")

    flow = one_node(scout, retry=Retry(attempts=4, delay=10.0, jitter=0))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(flow.execute(Shelf(), signal=controller.signal))
        await drain_ready_tasks()
        before = clock.monotonic()
        controller.abort("enough")
    assert isinstance(task.result().outcome, Aborted)
    assert clock.monotonic() == before
    clock.advance(1000.0)
    await drain_ready_tasks()
    assert attempts == [1]


async def test_07_node_timeouts_are_the_nodes_own(clock: FakeClock) -> None:
    """Node timeouts are the node's own."""
    flow: Flow[Shelf, None] = Flow("the-archivist", start="scout")

    @flow.node(timeout=2.0)
    async def scout(state: Shelf, ctx: NodeContext[None]) -> None:
        await ctx.signal.sleep(60)

    @flow.node
    async def salvage(state: Shelf, ctx: NodeContext[None]) -> None:
        assert not ctx.signal.aborted
        state.notes.append("salvaged")

    flow.route("scout", END, timeout="salvage")
    flow.route("salvage", END)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(flow.execute(Shelf()))
        await drain_ready_tasks()
        clock.advance(2.0)
    assert task.result().outcome.unwrap().notes == ["salvaged"]
    assert [error.operation for error in task.result().errors] == ["scout"]

    unrouted = one_node(scout, timeout=2.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(unrouted.execute(Shelf()))
        await drain_ready_tasks()
        clock.advance(2.0)
    failed = task.result().outcome
    assert isinstance(failed, Failed)
    assert "scout" in str(failed.error)
    assert "2 s" in str(failed.error)


async def test_08_a_node_that_collects_an_error_and_returns_another_output_takes_that_route(clock: FakeClock) -> None:
    """A node that catches its errors, collects one (code, message, operation, recoverable, timestamp) and returns
    another output → the flow goes on by that route; the collected errors come with the result.
    """
    flow: Flow[Shelf, None] = Flow("the-archivist", start="scout")

    @flow.node(outputs=("found", "empty"))
    async def scout(state: Shelf, ctx: NodeContext[None]) -> str:
        try:
            raise OSError("the catalogue is closed")
        except OSError as error:
            ctx.collect_error("CATALOGUE", str(error), recoverable=True)
            return "empty"

    @flow.node
    async def rank(state: Shelf, ctx: NodeContext[None]) -> None:
        state.notes.append("ranked")

    flow.route("scout", found="rank", empty=END)
    flow.route("rank", END)
    result = await flow.execute(Shelf())
    assert result.outcome.unwrap().notes == []
    assert result.executed == ("scout",)
    (error,) = result.errors
    assert (error.code, error.message, error.operation) == ("CATALOGUE", "the catalogue is closed", "scout")
    assert error.recoverable
    assert error.timestamp == clock.time()


async def test_09_the_cursor_is_the_next_or_the_interrupted_node_and_none_when_completed() -> None:
    """`cursor` is the next node that would have run, or the interrupted one; `None` when completed."""
    flow: Flow[Shelf, None] = Flow("the-archivist", start="plan")
    inside = asyncio.Event()

    @flow.node
    async def plan(state: Shelf, ctx: NodeContext[None]) -> None:
        state.notes.append("planned")

    @flow.node
    async def scout(state: Shelf, ctx: NodeContext[None]) -> None:
        inside.set()
        await ctx.signal.sleep(0.001 if state.books else 1000)

    flow.route("plan", "scout")
    flow.route("scout", END)
    before = await flow.execute(Shelf(), signal=AbortSignal.already("no"))
    assert (before.cursor, before.executed) == ("plan", ())
    run = flow.start(Shelf())
    async with run:
        await inside.wait()
        run.abort("enough")
        assert (await run).cursor == "scout"
    assert (await flow.execute(Shelf(["one"]))).cursor is None


PROGRAM = """
import asyncio, sys
from dataclasses import dataclass, field
from safepoint import AbortController
from safepoint.flow import END, Checkpoint, Flow

@dataclass
class State:
    log: list[str] = field(default_factory=list)

flow = Flow("the-archivist", start="plan")
visitor = AbortController()

def visit(name):
    async def node(state: State, ctx):
        state.log.append(name)
        if sys.argv[1] == name:
            visitor.abort("visitor closed page")
            await ctx.signal.sleep(60)
    flow.node(name, node)

for name in ("plan", "scout", "rank", "tell"):
    visit(name)
for name, target in (("plan", "scout"), ("scout", "rank"), ("rank", "tell"), ("tell", END)):
    flow.route(name, target)

async def main():
    given = {"resume": Checkpoint.load(sys.argv[2])} if sys.argv[1] == "resume" else {}
    result = await flow.execute(*([] if given else [State()]), signal=visitor.signal, **given)
    print(result.outcome.status, result.cursor, result.state.log, result.executed)
    if result.cursor:
        Checkpoint.from_result(result).save(sys.argv[2])

asyncio.run(main())
"""


def test_10_a_checkpoint_resumes_in_a_later_process_and_ends_as_the_uninterrupted_run(tmp_path: Path) -> None:
    """A checkpoint made from the result resumes in a later process and ends as the uninterrupted run would have."""
    path = tmp_path / "archive.json"

    def run(how: str) -> str:
        command = [sys.executable, "-c", PROGRAM, how, str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    whole = run("never")
    assert whole.startswith("completed None ['plan', 'scout', 'rank', 'tell']")
    assert run("rank") == "aborted rank ['plan', 'scout'] ('plan', 'scout')"
    assert run("resume") == whole


async def test_11_services_are_given_to_nodes_by_the_caller_typed(tmp_path: Path) -> None:
    """Services are given to nodes by the caller, typed."""

    @dataclass
    class Services:
        catalogue: dict[str, str]

    flow: Flow[Shelf, Services] = Flow("the-archivist", start="scout")

    @flow.node
    async def scout(state: Shelf, ctx: NodeContext[Services]) -> None:
        state.books.append(ctx.services.catalogue["owls"])

    flow.route("scout", END)
    result = await flow.execute(Shelf(), services=Services({"owls": "Strigiformes"}))
    assert result.state.books == ["Strigiformes"]

    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from safepoint.flow import Flow, NodeContext\n"
        "async def node(state: int, ctx: NodeContext[str]) -> None:\n"
        "    ctx.services + 1\n"
        "async def main(flow: Flow[int, str]) -> None:\n"
        "    await flow.execute(1, services=2)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), str(wrong)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "wrong.py:3" in checked.stdout, checked.stdout
    assert "wrong.py:5" in checked.stdout, checked.stdout


async def test_12_a_composite_interrupted_inside_resumes_inside() -> None:
    """A composite (sub-flow, parallel, scatter) interrupted inside resumes inside."""
    ran: list[str] = []
    stop_in: set[str] = set()

    def visit(flow: Flow[Shelf, None], name: str, target: Any) -> None:
        async def node(state: Shelf, ctx: NodeContext[None]) -> None:
            ran.append(name)
            if name in stop_in:
                stop_in.remove(name)
                controllers[-1].abort("enough")
                await ctx.signal.sleep(60)
            state.notes.append(name)

        flow.node(name, node)
        flow.route(name, target)

    controllers: list[AbortController] = []
    child: Flow[Shelf, None] = Flow("child", start="c1")
    for name, target in (("c1", "c2"), ("c2", "c3"), ("c3", END)):
        visit(child, name, target)

    async def each(item: str, ctx: NodeContext[None]) -> str:
        ran.append(item)
        if item in stop_in:
            stop_in.remove(item)
            controllers[-1].abort("enough")
            await ctx.signal.sleep(60)
        return item

    flow: Flow[Shelf, None] = Flow("parent", start="sub")
    flow.subflow("sub", child)
    left: Flow[Shelf, None] = Flow("left", start="l1")
    visit(left, "l1", "l2")
    visit(left, "l2", END)
    right: Flow[Shelf, None] = Flow("right", start="r1")
    visit(right, "r1", END)

    def join(state: Shelf, branches: dict[str, Shelf]) -> None:
        state.notes = branches["left"].notes + branches["right"].notes[len(state.notes) :]

    flow.parallel("both", {"left": left, "right": right}, join=join)
    flow.scatter(
        "each",
        items=lambda state: ["i0", "i1", "i2"],
        body=each,
        concurrency=1,
        gather=lambda state, results: state.books.extend(results),
    )
    for name, to in (("sub", "both"), ("both", "each"), ("each", END)):
        flow.route(name, to)

    whole = await flow.execute(Shelf())
    all_of_it, expected = list(ran), whole.state
    ran.clear()
    stop_in |= {"c2", "l2", "i1"}
    cursors = []
    options: dict[str, Any] = {}
    state: tuple[Shelf, ...] = (Shelf(),)
    while True:
        controllers.append(AbortController())
        result = await flow.execute(*state, signal=controllers[-1].signal, **options)
        if result.cursor is None:
            break
        cursors.append(result.cursor)
        state, options = (), {"resume": Checkpoint.from_json(Checkpoint.from_result(result).to_json())}
    assert cursors == ["sub/c2", "both/left/l2", "each/1"]
    assert result.state == expected
    assert result.executed == whole.executed
    assert sorted(ran) == sorted([*all_of_it, "c2", "l2", "i1"])  # only the interrupted ones ran twice
