"""Owns the number of this version. The build of the package reads it from here."""

__all__ = ["__version__"]

__version__ = "0.2.0"
