"""A tool call that a crash or a deploy has cut off runs again, or not, as its tool says."""

import shutil
from pathlib import Path

import pytest

from safepoint.session import LocalHost, SqliteStore
from tests.session.cut_off import WORDS, CutOff


async def cut(path: Path, call: CutOff) -> LocalHost:
    """A host whose turn is in the middle of the call."""
    host = LocalHost(call.agent, SqliteStore(path))
    await host.create("s")
    await host.send("s", "go", turn_id="t")
    await call.begun.wait()
    return host


@pytest.mark.parametrize(("effects", "answer", "again"), WORDS)
async def test_a_call_that_a_crash_has_cut_off(
    tmp_path: Path, effects: str | None, answer: str | None, again: bool
) -> None:
    call = CutOff(effects, answer)
    host = await cut(tmp_path / "s.db", call)
    for file in tmp_path.glob("s.db*"):  # what a process that is killed now would leave behind
        if not file.name.endswith("-shm"):
            shutil.copy(file, tmp_path / file.name.replace("s.db", "left.db"))
    await host.close()
    host = LocalHost(call.agent, SqliteStore(tmp_path / "left.db"), resume=True)
    await host.recover()
    await call.check(host, again)
    await host.close()


@pytest.mark.parametrize(("effects", "answer", "again"), WORDS)
async def test_a_call_that_a_deploy_has_cut_off(
    tmp_path: Path, effects: str | None, answer: str | None, again: bool
) -> None:
    call = CutOff(effects, answer)
    await (await cut(tmp_path / "s.db", call)).close()
    host = LocalHost(call.agent, SqliteStore(tmp_path / "s.db"), resume=True)
    await host.recover()
    await call.check(host, again)
    await host.close()
