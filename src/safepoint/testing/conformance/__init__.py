"""Owns the conformance suite for hosts, `CASES`, and its public names."""

from .cases import CASES, PHASES, SOURCES, Case, table
from .rig import Cast, Make, Rig, StoreGate

__all__ = ["CASES", "PHASES", "SOURCES", "Case", "Cast", "Make", "Rig", "StoreGate", "table"]
