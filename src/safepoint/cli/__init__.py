"""The `safepoint` command line. Knows nothing of how sessions run."""

from .main import main

__all__ = ["main"]
