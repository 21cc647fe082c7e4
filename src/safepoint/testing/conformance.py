"""Owns what every host must do when a turn is stopped: each phase of a turn, by each source of a stop.

`CASES` is the table. `await case.check(make)` plays one cell on a host of its own and raises AssertionError unless
caller, events and store agree on what the cell promises. Knows nothing of transports.
"""

import asyncio
from dataclasses import dataclass

from .conformance_play import GOES_ON, GRACE, LATE, NEVER, STILL, STORING, WAITS, Play
from .conformance_rig import Cast, Make, Rig

__all__ = ["CASES", "PHASES", "SOURCES", "Case", "Cast", "Make", "Rig", "table"]

# What a source leaves behind in the outcome of the turn it has stopped.
SOURCES = {
    "caller's signal": "aborted (user)",
    "stop by id": "aborted (user)",
    "deadline": "timed_out (deadline)",
    "parent tool": "aborted (user)",
    "host shutdown": "aborted (shutdown)",
    "disconnect policy": "aborted (disconnected)",
    "closing the stream": "aborted (disconnected)",
}
# Each phase, and what the turn is told to do so that it gets there.
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
# What can come while nothing moves in the event loop of the turn: it comes from another thread, or another process.
ANY_THREAD = ("caller's signal", "stop by id", "parent tool")
NEEDS_SESSION = ("caller's signal", "parent tool", "closing the stream")


def promise(phase: str, source: str) -> str:
    """What the cell says: how the turn ends. Empty: there is no such case."""
    if phase in BY_ID:
        told = "aborted (user)" + NEVER if phase == "an id not seen yet" else "goes on"
        return told if source == "stop by id" else ""
    if phase == "pre-aborted":
        if source in ("stop by id", "disconnect policy", "closing the stream"):
            return ""
        return "refused" if source == "host shutdown" else SOURCES[source] + NEVER
    if phase in LATE:
        return "completed"
    if phase == STILL and source not in ANY_THREAD:
        return ""
    if source == "host shutdown":  # nobody has stopped the turn: it goes on with the next host
        return WAITS if phase == "queued" else SOURCES[source] + GOES_ON
    return SOURCES[source] + (NEVER if phase == "queued" else "")


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the table. `promise`: how the turn ends."""

    phase: str
    source: str
    promise: str

    def __str__(self) -> str:
        return f"{self.phase}, {self.source}"

    async def check(self, make: Make) -> bool:
        """False: this rig cannot try it. `make(cast, on_disconnect)` gives the rig. Raises: AssertionError."""
        grace = GRACE if self.source == "disconnect policy" else None
        async with make(Cast(), grace) as rig:
            unable = rig.session is None and self.source in NEEDS_SESSION
            unable = unable or (self.phase == STILL and rig.session is None and rig.elsewhere is None)
            if unable or (rig.hold is None and self.phase in STORING):
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
    """Phases × sources as Markdown; each cell is a case, and says how the turn ends."""
    rows = [f"| the stop comes | {' | '.join(SOURCES)} |", f"|---|{'---|' * len(SOURCES)}"]
    rows += (f"| {phase} | {' | '.join(promise(phase, source) or '–' for source in SOURCES)} |" for phase in PHASES)
    return "\n".join(rows)
