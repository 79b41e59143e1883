"""Public classes and functions are named after the package that users import them from."""

from types import FunctionType
from typing import Any


def name_by_package(namespace: dict[str, Any], package: str = "") -> None:
    """Set `__module__` of all classes and functions in a module's `__all__` to their package.

    Tracebacks, pickles and the documentation then show the public import path, so private modules can move.

    Args:
        namespace: The module's `globals()`.
        package: The package that has these names, by default the module.
    """
    for name in namespace["__all__"]:
        public = namespace.get(name)
        if isinstance(public, type | FunctionType):
            public.__module__ = package or namespace["__name__"]
