"""Naming of public classes and functions by the package where users import them."""

from types import FunctionType
from typing import Any


def name_by_package(namespace: dict[str, Any]) -> None:
    """Set `__module__` of everything in a package's `__all__` to the package.

    Tracebacks, pickles and the documentation then name each by the place where users find it, and the files
    within the package may move.

    Args:
        namespace: The package's `globals()`.
    """
    for name in namespace["__all__"]:
        public = namespace.get(name)
        if isinstance(public, type | FunctionType):
            public.__module__ = namespace["__name__"]
