"""Module names of public classes and functions, and modules that only their annotations need."""

from importlib import import_module
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


class NotInstalled:
    """Replaces, in annotations, the classes of an optional package that is not installed."""

    def __class_getitem__(cls, _: object) -> type:
        return cls


class LazyModule:
    """A module that is optional or slow to import. It is imported when an annotation is evaluated.

    A name that is imported under `TYPE_CHECKING` has no value, and `typing.get_type_hints` raises NameError.

    Args:
        name: The full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # of an object that a tool inspects, such as `__wrapped__`
            raise AttributeError(name)
        try:
            return getattr(import_module(self._name), name)
        except ModuleNotFoundError:
            return NotInstalled
