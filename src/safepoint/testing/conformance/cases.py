"""Owns what every host must do when a turn is stopped: each phase of a turn, by each source of a stop.

`CASES` is the table. `await case.check(make)` plays one cell on a host of its own and raises AssertionError unless
caller, events and store agree on what the cell promises. Knows nothing of transports.
"""

import asyncio
from dataclasses import dataclass

from .play import GOES_ON, GRACE, LATE, NEVER, STILL, STORING, WAITS, Play
from .rig import Cast, Make

__all__ = ["CASES", "PHASES", "SOURCES", "Case", "table"]

# The sources of a stop, each with the outcome of a turn that it has stopped.
SOURCES = {
    "caller's signal": "aborted (user)",
    "stop by id": "aborted (user)",
    "deadline": "timed_out (deadline)",
    "parent tool": "aborted (user)",
    "host shutdown": "aborted (shutdown)",
    "disconnect policy": "aborted (disconnected)",
    "closing the stream": "aborted (disconnected)",
}
# The phases of a turn, each with the message that brings a turn there.
PHASES = {
    "pre-aborted": "quick",
    "an id not seen yet": "quick",
    "queued": "quick",
    "while it is stored": "quick",
    "before the first token": "wait",
    "mid-stream": "talk",
    "in a tool": "tool",
    "while its event loop stands still": "freeze",
    "in ask_user": "ask",
    "twice": "talk",
    "while its end is saved": "ask",
    "after the end": "quick",
    "wrong id": "talk",
    "wrong session": "talk",
}
BY_ID = ("an id not seen yet", "wrong id", "wrong session")
# The sources that work while the event loop of the turn is blocked, from another thread or process.
ANY_THREAD = ("caller's signal", "stop by id", "parent tool")
NEEDS_SESSION = ("caller's signal", "parent tool", "closing the stream")


def promise(phase: str, source: str) -> str:
    """The content of the cell: how the turn ends. Empty if there is no such case."""
    if phase in BY_ID:
        ending = "aborted (user)" + NEVER if phase == "an id not seen yet" else "goes on"
        return ending if source == "stop by id" else ""
    if phase == "pre-aborted":
        if source in ("stop by id", "disconnect policy", "closing the stream"):
            return ""
        return "refused" if source == "host shutdown" else SOURCES[source] + NEVER
    if phase in LATE:
        return "completed"
    if phase == STILL and source not in ANY_THREAD:
        return ""
    if source == "host shutdown":  # that is no stop of the turn: the next host continues it
        return WAITS if phase == "queued" else SOURCES[source] + GOES_ON
    return SOURCES[source] + (NEVER if phase == "queued" else "")


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the table.

    Attributes:
        phase: The phase in which the stop comes.
        source: The source of the stop.
        promise: How the turn must end.
    """

    phase: str
    source: str
    promise: str

    def __str__(self) -> str:
        return f"{self.phase}, {self.source}"

    async def check(self, make: Make) -> bool:
        """Play the cell on a host of its own.

        Args:
            make: `make(cast, on_disconnect)` gives the rig.

        Returns:
            False if the rig cannot try this cell.

        Raises:
            AssertionError: The host does not keep the promise.
        """
        grace = GRACE if self.source == "disconnect policy" else None
        async with make(Cast(), grace) as rig:
            unable = rig.session is None and self.source in NEEDS_SESSION
            unable = unable or (self.phase == STILL and rig.session is None and rig.elsewhere is None)
            if unable or (rig.store_gate is None and self.phase in STORING):
                return False
            try:
                async with asyncio.timeout(rig.seconds), asyncio.TaskGroup() as group:
                    await Play(self.phase, self.source, self.promise, PHASES[self.phase], rig, group).run()
            except ExceptionGroup as several:
                raise several.exceptions[0] from None
        return True


CASES: tuple[Case, ...] = tuple(
    Case(phase, source, promised) for phase in PHASES for source in SOURCES if (promised := promise(phase, source))
)


def table() -> str:
    """The table of phases and sources as Markdown. Each cell is a case, and says how the turn ends."""
    rows = [f"| the stop comes | {' | '.join(SOURCES)} |", f"|---|{'---|' * len(SOURCES)}"]
    rows += (f"| {phase} | {' | '.join(promise(phase, source) or '–' for source in SOURCES)} |" for phase in PHASES)
    return "\n".join(rows)
