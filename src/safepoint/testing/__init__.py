"""What users need to test their own stops. May import everything below the command line; nothing imports it."""

from .clock import FakeClock, settle

__all__ = ["FakeClock", "settle"]
