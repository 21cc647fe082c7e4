"""What users need to test their own stops. May import everything below the command line; nothing imports it."""

from .clock import FakeClock, settle
from .inject import MODES, abort_everywhere
from .inject_ignore import Ignore
from .inject_points import Mode, Point, point
from .inject_probe import Effect, Probe
from .inject_report import Progress, Report, Violation
from .inject_run import Scenario
from .laws import DEFAULT_LAWS, Ending, Law, Run, pairs

__all__ = [
    "DEFAULT_LAWS",
    "MODES",
    "Effect",
    "Ending",
    "FakeClock",
    "Ignore",
    "Law",
    "Mode",
    "Point",
    "Probe",
    "Progress",
    "Report",
    "Run",
    "Scenario",
    "Violation",
    "abort_everywhere",
    "pairs",
    "point",
    "settle",
]
