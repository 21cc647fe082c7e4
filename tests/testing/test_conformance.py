"""The conformance suite finds what a host does wrong, and says which cell it is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from safepoint.run import StopAck, StopAt
from safepoint.session import LocalHost
from safepoint.testing.conformance import CASES, PHASES, SOURCES, Case, Cast, Rig, table
from tests.kit.hosts import local


def case(phase: str, source: str) -> Case:
    return next(case for case in CASES if (case.phase, case.source) == (phase, source))


def test_every_phase_and_every_source_has_its_cases() -> None:
    assert {case.phase for case in CASES} == set(PHASES)
    assert {case.source for case in CASES} == set(SOURCES)
    assert len({str(case) for case in CASES}) == len(CASES) == 73


def test_the_table_has_a_row_for_each_phase_and_a_cell_for_each_case() -> None:
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table().splitlines()]
    assert rows[0] == ["the stop comes", *SOURCES]
    assert [row[0] for row in rows[2:]] == list(PHASES)
    assert sum(cell != "–" for row in rows[2:] for cell in row[1:]) == len(CASES)


async def test_a_host_far_away_is_told_what_was_not_tried() -> None:
    @asynccontextmanager
    async def far(cast: Cast, on_disconnect: float | None) -> AsyncIterator[Rig]:
        async with local(cast, on_disconnect) as rig:
            yield replace(rig, session=None, store_gate=None)

    assert await case("mid-stream", "stop by id").check(far)
    assert not await case("mid-stream", "caller's signal").check(far)
    assert not await case("while it is stored", "stop by id").check(far)
    assert not await case("while its event loop stands still", "stop by id").check(far)


class Deaf(LocalHost):
    """Says that it stops, and does not."""

    async def stop(self, session_id: str, turn_id: str, at: StopAt | None = None, **options: Any) -> StopAck:
        return StopAck("accepted")


class Broad(LocalHost):
    """Stops whatever runs, whoever was meant."""

    async def stop(self, session_id: str, turn_id: str, at: StopAt | None = None, **options: Any) -> StopAck:
        for turn in (await self.live("s")).turns.values():
            turn.stop()
        return await super().stop(session_id, turn_id, at, **options)


class Forgetful(LocalHost):
    """Does not remember a stop for a turn it has not seen."""

    async def stop(self, session_id: str, turn_id: str, at: StopAt | None = None, **options: Any) -> StopAck:
        session = await self.live(session_id)
        ack = session.stop(turn_id, at, **options)
        session._engine.stops.early_stops.forget(turn_id)
        return ack


@pytest.mark.parametrize(
    ("host", "phase", "told"),
    [
        (Deaf, "mid-stream", None),
        (Broad, "wrong id", "wrong id, stop by id: it was touched"),
        (Broad, "queued", "already_finished"),
        (Forgetful, "an id not seen yet", "the caller was told"),
    ],
    ids=["deaf", "broad", "broad in the queue", "forgetful"],
)
async def test_a_host_that_stops_wrongly_is_found_out(host: type[LocalHost], phase: str, told: str | None) -> None:
    @asynccontextmanager
    async def make(cast: Cast, on_disconnect: float | None) -> AsyncIterator[Rig]:
        wrong = host(cast.agents)
        try:
            async with local(cast, on_disconnect) as rig:
                yield replace(rig, host=wrong, session=wrong.live, store_gate=None, seconds=0.5)
        finally:
            await wrong.close()

    with pytest.raises((AssertionError, TimeoutError), match=told):
        await case(phase, "stop by id").check(make)


async def test_a_host_whose_worker_stands_still_and_forgets_the_stop_is_found_out() -> None:
    @asynccontextmanager
    async def make(cast: Cast, on_disconnect: float | None) -> AsyncIterator[Rig]:
        wrong = Deaf(cast.agents)
        try:
            async with local(cast, on_disconnect) as rig:
                yield replace(rig, host=wrong, session=None, store_gate=None, elsewhere=lambda: nullcontext(wrong))
        finally:
            await wrong.close()

    with pytest.raises(AssertionError, match="stands still, stop by id: it is completed"):
        await case("while its event loop stands still", "stop by id").check(make)
