"""Functions that the ledgers on servers share: addresses without passwords, and errors of their drivers."""

import re
import sys
from typing import TYPE_CHECKING

from yarl import URL

from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    from loanasync.ledger.ledger import Ledger

CLOSE_TIMEOUT = 5.0  # seconds to wait for a server when connections are closed

_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")  # of a TypeError
_UNKNOWN_NAME = re.compile(r"^module '\S+' has no attribute '(\w+)'")  # of an AttributeError


def missing_driver_error(backend: "type[Ledger]") -> ConfigurationError:
    """Return the error for a backend whose driver is not installed."""
    return ConfigurationError(
        "ledger", f"needs {backend.driver}: run pip install '.[{backend.extra}]' in a checkout"
    )


def unsuitable_driver_error(ledger: "Ledger", error: BaseException) -> ConfigurationError | None:
    """Return the error to raise if the version of a ledger's driver does not suit, otherwise None.

    For example, an old driver does not know an option, and raises TypeError at each connection. A repeated
    call would fail again.
    """
    if not ledger.driver:
        return None
    version = f"{ledger.driver} {getattr(sys.modules.get(ledger.driver), '__version__', '')}".rstrip()
    update = f"run pip install -U '.[{ledger.extra}]' in a checkout"
    if isinstance(error, TypeError) and (option := _UNKNOWN_OPTION.search(str(error))):
        return ConfigurationError(
            "ledger", f"{version} has no option {option[1]}: remove it from the address, or {update}"
        )
    name = _UNKNOWN_NAME.search(str(error)) if isinstance(error, AttributeError) else None
    if name is None and not isinstance(error, ImportError):
        return None
    return ConfigurationError("ledger", f"{version} does not suit {type(ledger).__name__}: {update}")


def masked_url(url: str) -> str:
    """Return the address of a server without the parts that may contain a password."""
    try:
        plain = str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # for example an address with several hosts
        return "***"
    return "***" if "@" in plain else plain  # for example a password that contains a slash
