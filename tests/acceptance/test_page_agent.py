"""Owns the acceptance lines of page-agent: one signal for the model and the tools."""

import asyncio
import threading
from pathlib import Path

import pytest

from safepoint import AbortController, AbortError, AbortSignal, fence, on_abort_timeout, run_in_thread
from safepoint.testing import FakeClock
from tests.acceptance.lines import not_built, open_line
from tests.house.source import read
from tests.house.triggers import table_rows, unlisted_triggers

ROOT = Path(__file__).parents[2]


@open_line
def test_01_every_tool_is_handed_the_signal_and_a_tool_without_context_works_unchanged() -> None:
    """Every tool is handed `ctx.signal` as part of its context; a tool written without `ctx` still works unchanged."""
    not_built()


@open_line
def test_02_a_stop_during_ask_user_withdraws_the_question_and_ends_the_run_aborted() -> None:
    """Stop during `ask_user` → the callback's signal fires, the question is withdrawn, the run ends `aborted`, and
    the panel or page has nothing left to clean up.
    """
    not_built()


@open_line
def test_03_an_ask_user_callback_may_take_the_signal_or_not_and_cannot_hang_the_stop() -> None:
    """A callback for `ask_user` may take the signal or not; one that ignores it cannot hang the stop."""
    not_built()


@open_line
def test_04_a_stop_during_wait_ends_it_at_once() -> None:
    """Stop during `wait` → it ends at once, not when its time is up."""
    not_built()


@open_line
def test_05_a_stop_during_a_near_instant_tool_discards_its_result_and_ends_the_run_aborted() -> None:
    """Stop during a near-instant tool → its result is discarded if the signal was aborted, and the run ends
    `aborted`.
    """
    not_built()


@open_line
def test_06_closing_during_any_tool_is_the_same_as_stop_and_then_the_closed_event() -> None:
    """Closing the agent or session (dispose) during any tool → the same as stop, then the closed event, in that
    order.
    """
    not_built()


@open_line
def test_07_a_tool_that_ignores_the_signal_blocks_visibly_and_is_warned_about_exactly_once() -> None:
    """A tool that ignores the signal: the run stays visibly blocked; after 3 s exactly one warning names the tool
    and says what to do; nothing is masked; when the tool returns, the run ends `aborted`.
    """
    not_built()


@open_line
def test_08_normal_execution_has_no_warning_no_timer_left_and_no_change() -> None:
    """Normal execution: no warning, no timer left, no behavioural change."""
    not_built()


def test_09_on_abort_timeout_fires_when_its_time_is_up_and_never_once_removed(clock: FakeClock) -> None:
    """`on_abort_timeout(signal, seconds, callback)`: already aborted → the callback runs (its time is up at once);
    aborted later → after `seconds`; removed before → never.
    """
    rang: list[str] = []
    on_abort_timeout(AbortSignal.already(), 3, lambda: rang.append("already aborted"))
    assert rang == ["already aborted"]

    controller = AbortController()
    on_abort_timeout(controller.signal, 3, lambda: rang.append("aborted later"))
    removed_before_the_abort = on_abort_timeout(controller.signal, 3, lambda: rang.append("never"))
    removed_after_the_abort = on_abort_timeout(controller.signal, 3, lambda: rang.append("never"))
    clock.advance(60)
    assert removed_before_the_abort.remove()
    controller.abort()
    clock.advance(2.9)
    assert rang == ["already aborted"]
    assert removed_after_the_abort.remove()
    clock.advance(0.1)
    assert rang == ["already aborted", "aborted later"]
    assert clock.pending == 0


@open_line
def test_10_the_status_follows_from_the_end_of_the_tool_and_stop_itself_sets_none() -> None:
    """The status follows by itself from the tool's end through the one boundary; stop itself sets no status."""
    not_built()


@open_line
def test_11_what_decides_is_the_signal_however_the_error_was_thrown_or_wrapped() -> None:
    """What decides is `signal.aborted`, however the error was thrown or wrapped: a stop plus an ordinary error is
    `aborted`, with no retry and no "retrying" event; a tool's private abort without a stop is a failure of the
    tool.
    """
    not_built()


def test_12_the_list_of_abort_triggers_is_complete_and_nothing_aborts_as_a_side_effect() -> None:
    """The trigger audit: the list of places that may abort is in `docs/abort-triggers.md`, complete (a test
    compares), and says for each whether it can hit a running tool; no clean-up path, error path or reset aborts as
    a side effect.
    """
    page = (ROOT / "docs" / "abort-triggers.md").read_text(encoding="utf-8")
    assert list(unlisted_triggers(read(ROOT / "src" / "safepoint"), page)) == []
    answers = [row[2] for row in table_rows(page)]
    assert answers
    assert all(answer.startswith(("yes", "no")) for answer in answers), "each row says whether it can hit running work"


@open_line
def test_13_a_stop_before_the_body_of_a_tool_begins_keeps_it_from_beginning() -> None:
    """The entry guard: a stop before the tool's body begins → the body never begins."""
    not_built()


async def test_14_a_fenced_resource_refuses_calls_after_the_abort() -> None:
    """The controller guard (their future layer): a resource handed to a tool through `fence` refuses calls after
    the abort, so that an orphaned tool has no further effect.
    """

    class Page:
        def __init__(self) -> None:
            self.clicks: list[str] = []

        def click(self, button: str) -> None:
            self.clicks.append(button)

    page, controller = Page(), AbortController()
    clicked, go_on, refused = threading.Event(), threading.Event(), threading.Event()

    def orphan(page: Page) -> None:
        page.click("search")
        clicked.set()
        go_on.wait(10)  # deaf to its signal
        try:
            page.click("buy")
        except AbortError:
            refused.set()

    async def run() -> None:
        await run_in_thread(orphan, fence(page, controller.signal), signal=controller.signal)

    task = asyncio.ensure_future(run())
    assert await asyncio.to_thread(clicked.wait, 10)
    controller.abort("stop")
    with pytest.raises(AbortError):
        await task
    go_on.set()
    assert await asyncio.to_thread(refused.wait, 10)
    assert page.clicks == ["search"]


@open_line
def test_15_the_signal_of_a_run_is_readable_from_outside_and_fresh_for_each_run() -> None:
    """The signal of a run is readable from outside (`run.signal`); each run has a fresh one."""
    not_built()


@open_line
def test_16_the_model_request_receives_the_same_signal_and_its_connection_closes() -> None:
    """The model request receives the same signal: the HTTP connection closes."""
    not_built()
