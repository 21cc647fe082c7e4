"""The number of this version. The build of the package reads it from this file."""

__all__ = ["__version__"]

__version__ = "0.2.0"
