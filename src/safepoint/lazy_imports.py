"""Names that a package imports when they are first used.

The packages at the top export names that are slow to import, or that need an optional extra. Importing these only when
they are used keeps `import safepoint` quick, and possible without the extra.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import resolve_name

__all__ = ["lazy_imports"]


def lazy_imports(
    package: str,
    modules: Mapping[str, str],
    *,
    moved: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, Iterable[str]] | None = None,
) -> Callable[[str], object]:
    """Make the `__getattr__` of a package that imports some of its names on first use.

    Args:
        package: The `__name__` of the package.
        modules: For each name the module that defines it, relative to the package (`{"Flow": ".flow"}`).
        moved: For each name that has moved to another package, that package. The old name still works, with a
            DeprecationWarning that says where to import it from.
        elsewhere: For each other module the names that people look for in this one. Importing such a name from here
            raises an ImportError that says where it is. An AttributeError would not do: `from package import name`
            replaces its message.

    Returns:
        The function to bind to `__getattr__` in the package. It raises AttributeError for every other name, as Python
        does for a module without that function.
    """
    moved = moved or {}
    module_of = {name: module for module, names in (elsewhere or {}).items() for name in names}

    def load(name: str) -> object:
        module = modules.get(name)
        if module is None:
            module = moved.get(name)
            if module is None:
                if name in module_of:
                    raise ImportError(f"{name} is not in {package}: from {module_of[name]} import {name}", name=package)
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            home = resolve_name(module, package)
            message = f"import {name} from {home}: {package}.{name} will be removed in version 0.3"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(module, package), name)

    return load
