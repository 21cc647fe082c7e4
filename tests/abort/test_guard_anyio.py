"""The guard inside an anyio application: scopes and task groups, outside and inside, in every order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from safepoint.abort import AbortController, AbortError

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")
ORDERS = ["cancel", "abort", "cancel abort", "abort cancel", "abort tick cancel", "cancel tick abort"]


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def schedule(order: str, acts: dict[str, Callable[[], object]]) -> None:
    """Do these, in this order; `tick` lets the loop run once in between."""
    loop = asyncio.get_running_loop()

    async def drive() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for act in order.split():
            if act == "tick":
                await asyncio.sleep(0)
            else:
                acts[act]()

    drivers.append(loop.create_task(drive()))


drivers: list["asyncio.Task[None]"] = []


async def nothing_is_left(controller: AbortController) -> None:
    await asyncio.gather(*drivers)
    drivers.clear()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    for _ in range(3):
        await asyncio.sleep(0)
    assert controller.signal.observers == 0


async def one_of(work: Callable[[], Awaitable[Any]]) -> str:
    try:
        return f"value {await work()}"
    except AbortError:
        return "abort"


@pytest.mark.parametrize("order", ORDERS)
async def test_a_scope_outside_ends_the_guarded_await_and_is_not_confused_by_the_abort(order: str):
    controller = AbortController()

    async def work() -> str:
        with anyio.CancelScope() as scope:
            schedule(order, {"cancel": scope.cancel, "abort": controller.abort})
            await controller.signal.run(forever())
        return "scope ended" if scope.cancelled_caught else "?"

    ended = await one_of(work)
    if order in ("abort", "abort tick cancel"):
        assert ended == "abort"
    elif order == "cancel":
        assert ended == "value scope ended"
    else:
        assert ended in ("abort", "value scope ended")
    await nothing_is_left(controller)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_scope_inside_ends_its_body_and_an_abort_passes_through_it(order: str):
    controller = AbortController()

    async def work() -> str:
        with controller.signal.guard():
            with anyio.CancelScope() as scope:
                schedule(order, {"cancel": scope.cancel, "abort": controller.abort})
                await forever()
            await asyncio.sleep(0)
            if "abort" in order:
                await forever()  # the scope ended first; the abort must still come
            return "scope ended"

    assert await one_of(work) == ("abort" if "abort" in order else "value scope ended")
    await nothing_is_left(controller)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_task_group_inside_ends_with_its_children(order: str):
    controller = AbortController()
    ended = []

    async def child() -> None:
        try:
            await forever()
        finally:
            ended.append("child")

    async def work() -> str:
        with controller.signal.guard():
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                group.start_soon(child)
                schedule(order, {"cancel": group.cancel_scope.cancel, "abort": controller.abort})
            return "group ended"

    outcome = await one_of(work)
    assert ended == ["child", "child"]
    assert outcome == "abort" if order == "abort" else outcome in ("abort", "value group ended")
    await nothing_is_left(controller)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_guard_in_a_child_of_a_task_group_outside(order: str):
    controller = AbortController()
    ended = []

    async def child() -> None:
        try:
            await controller.signal.run(forever())
        except AbortError:
            ended.append("abort")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(child)
        schedule(order, {"cancel": group.cancel_scope.cancel, "abort": controller.abort})
    assert len(ended) == 1
    if order == "abort":
        assert ended == ["abort"]
    if order == "cancel":
        assert ended == ["cancelled"]
    await nothing_is_left(controller)


async def test_a_shielded_scope_inside_still_feels_the_abort():
    """anyio's shield is against its own scopes; ours is `shield()`."""
    controller = AbortController()

    async def work() -> str:
        with controller.signal.guard():
            with anyio.CancelScope(shield=True):
                schedule("abort", {"abort": controller.abort})
                await forever()
        return "?"

    assert await one_of(work) == "abort"
    await nothing_is_left(controller)


async def test_fail_after_outside_raises_its_timeout_and_inside_an_abort_passes_it():
    controller = AbortController()
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await controller.signal.run(forever())

    async def work() -> str:
        with controller.signal.guard(), anyio.fail_after(30):
            schedule("abort", {"abort": controller.abort})
            await forever()
        return "?"

    assert await one_of(work) == "abort"
    await nothing_is_left(controller)


async def test_a_thread_of_anyio_may_abort():
    controller = AbortController()

    async def in_thread() -> None:
        await anyio.to_thread.run_sync(controller.abort)

    async def work() -> str:
        with controller.signal.guard():
            async with anyio.create_task_group() as group:
                group.start_soon(in_thread)
                await forever()
        return "?"

    assert await one_of(work) == "abort"
    await nothing_is_left(controller)
