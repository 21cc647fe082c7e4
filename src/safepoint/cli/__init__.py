"""The `safepoint` command. Owns the command line. Knows nothing of how sessions run."""

from .main import main

__all__ = ["main"]
