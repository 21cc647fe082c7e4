"""Owns the public names for testing stops. May import everything below the command line; nothing imports it."""

from .clock import FakeClock, drain_ready_tasks
from .inject.everywhere import MODES, abort_everywhere
from .inject.points import Mode, Point, point
from .inject.probe import Probe, RecordedEffect
from .inject.report import Ignore, Progress, Report, Violation
from .inject.run import RunTimings, Scenario
from .laws import DEFAULT_LAWS, Law, RecordedRun, RunEnding, pairs

__all__ = [
    "DEFAULT_LAWS",
    "MODES",
    "FakeClock",
    "Ignore",
    "Law",
    "Mode",
    "Point",
    "Probe",
    "Progress",
    "RecordedEffect",
    "RecordedRun",
    "Report",
    "RunEnding",
    "RunTimings",
    "Scenario",
    "Violation",
    "abort_everywhere",
    "drain_ready_tasks",
    "pairs",
    "point",
]
