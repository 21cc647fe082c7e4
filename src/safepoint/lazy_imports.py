"""Owns names that a package imports when they are first used. Knows nothing of what they are.

The packages at the top offer names from below that are slow to import, or that need an extra. Importing these only when
somebody asks for them keeps `import safepoint` quick, and possible without the extra.
"""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_imports"]


def lazy_imports(
    package: str, modules: Mapping[str, str], *, moved: Mapping[str, str] | None = None
) -> Callable[[str], object]:
    """Make the `__getattr__` of a package that imports some of its names on first use.

    Args:
        package: The `__name__` of the package.
        modules: The module that defines a name, by name, relative to the package (`{"Flow": ".flow"}`).
        moved: Names that were public here before, with the package where they are now. They work once more, with a
            DeprecationWarning that says where to import them from.

    Returns:
        A function to be bound to `__getattr__` in the package. It raises AttributeError for every other name, as Python
        does for a module without that function.
    """
    moved = moved or {}

    def load(name: str) -> object:
        module = modules.get(name)
        if module is None:
            module = moved.get(name)
            if module is None:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            told = f"import {name} from {package}{module}: {package}.{name} will be removed in version 0.3"
            warnings.warn(told, DeprecationWarning, stacklevel=2)
        return getattr(import_module(module, package), name)

    return load
