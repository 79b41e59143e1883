"""Async Python SDK for a loan request approval service.

Importing the package loads nothing else. The first use of a name, as in ``from loanasync import LoanClient``,
loads the modules of all names and what they need: aiohttp, cattrs, OpenTelemetry's API and tenacity.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from loanasync._api import *  # noqa: F403  (the names that `__getattr__` provides)
    from loanasync._api import __all__ as __all__
    from loanasync.errors import *  # noqa: F403  (mypy does not read `__all__ += errors.__all__`)
else:

    def __getattr__(name: str) -> object:
        api = import_module("loanasync._api")
        globals().update({each: getattr(api, each) for each in ("__all__", *api.__all__)})
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module 'loanasync' has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("loanasync._api").__all__})
