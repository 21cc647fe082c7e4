"""The probe: a controller like any other, which also knows what was done, when, and whom its abort has interrupted."""

import asyncio
import contextlib
import os

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal
from safepoint.testing import Probe, RecordedEffect

HERE = os.path.relpath(__file__)


def test_a_probe_is_the_controller_it_is_used_as():
    probe = Probe()
    assert probe.controller is probe
    assert isinstance(probe, AbortController)
    heard = []
    probe.signal.add_listener(lambda: heard.append(probe.signal.aborted))
    assert probe.abort("enough")
    assert not probe.abort("again")
    assert heard == [True]
    assert probe.signal.reason is not None
    assert (probe.signal.reason.kind, probe.signal.reason.message) == ("user", "enough")
    assert (probe.signal.reason.origin or "").startswith(f"{__file__}:")


def test_effects_are_late_once_the_abort_has_returned():
    probe = Probe()
    probe.signal.add_listener(lambda: probe.record("during"))
    probe.record("before")
    probe.abort()
    probe.record("after")
    probe.record("closing", cleanup=True)
    line = test_effects_are_late_once_the_abort_has_returned.__code__.co_firstlineno
    assert probe.effects == [
        RecordedEffect("before", False, False, f"{HERE}:{line + 3}"),
        RecordedEffect("during", False, False, f"{HERE}:{line + 2}"),
        RecordedEffect("after", True, False, f"{HERE}:{line + 5}"),
        RecordedEffect("closing", True, True, f"{HERE}:{line + 6}"),
    ]


def test_events_are_kept_before_they_are_told():
    seen = []
    probe = Probe(lambda: seen.append(list(probe.events)))
    probe.event("first")
    probe.event("second")
    assert seen == [["first"], ["first", "second"]]


def test_a_signal_nobody_looked_at_was_not_heard():
    probe = Probe()
    assert not probe.observed
    probe.record("an effect")
    probe.event("an event")
    assert not probe.observed


@pytest.mark.parametrize(
    "look",
    [
        lambda signal: signal.aborted,
        lambda signal: signal.raise_if_aborted(),
        lambda signal: signal.add_listener(print),
        lambda signal: AbortSignal.any([signal]).aborted,
        lambda signal: AbortController(signal).signal.aborted,
    ],
)
def test_whoever_looks_or_listens_has_heard(look):
    probe = Probe()
    look(probe.signal)
    assert probe.observed


async def test_a_guard_looks():
    probe = Probe()
    with probe.signal.guard():
        pass
    assert probe.observed


async def interrupted_in(probe, block):
    asyncio.get_running_loop().call_soon(probe.abort)
    with contextlib.suppress(AbortError):
        await block()
    return probe.interrupted


async def test_an_interrupted_await_is_remembered_with_its_place():
    probe = Probe()

    async def block():
        await probe.signal.sleep(1000)

    assert await interrupted_in(probe, block) == (f"{HERE}:{block.__code__.co_firstlineno + 1}",)


async def test_an_interruption_is_remembered_also_when_it_is_swallowed_inside_the_guard():
    probe = Probe()

    async def block():
        with probe.signal.guard():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    assert len(await interrupted_in(probe, block)) == 1


@pytest.mark.parametrize("make", [lambda signal: signal, lambda signal: AbortController(signal).signal])
async def test_an_abort_error_that_is_raised_without_a_guard_is_remembered(make):
    probe = Probe()
    signal = make(probe.signal)
    probe.abort()
    assert probe.interrupted == ()
    with pytest.raises(AbortError):
        signal.raise_if_aborted()
    assert len(probe.interrupted) == 1


async def test_asking_for_the_reason_interrupts_nobody():
    probe = Probe()
    child = AbortController(probe.signal)
    probe.abort("x")
    assert probe.signal.reason == child.signal.reason
    assert child.signal.aborted
    assert probe.interrupted == ()


async def test_a_value_that_was_there_in_time_was_not_interrupted():
    probe = Probe()

    async def one_turn():
        await asyncio.sleep(0)
        return "value"

    asyncio.get_running_loop().call_soon(probe.abort)
    assert await probe.signal.run(one_turn()) == "value"
    assert probe.interrupted == ()


async def test_the_private_abort_of_a_child_is_not_ours():
    probe = Probe()
    child = AbortController(probe.signal)
    asyncio.get_running_loop().call_soon(child.abort)
    with pytest.raises(AbortError):
        await child.signal.sleep(1000)
    assert probe.interrupted == ()


def test_watched_signals_come_after_the_probes_own():
    probe, other = Probe(), AbortController().signal
    probe.watch(other)
    assert probe.watched == [probe.signal, other]
