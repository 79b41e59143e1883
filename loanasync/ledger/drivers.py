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


def missing_driver_error(backend: "type[Ledger]") -> ConfigurationError:
    """Return the error for a backend whose driver is not installed."""
    return ConfigurationError(
        "ledger", f"needs {backend.driver}: run pip install '.[{backend.extra}]' in a checkout"
    )


def unsuitable_driver_error(ledger: "Ledger", error: BaseException) -> ConfigurationError | None:
    """Return the error to raise if a ledger's driver does not know an option, otherwise None.

    The address has it, or the driver is too old. It raises TypeError at each connection, so a repeated call
    would fail again.
    """
    option = _UNKNOWN_OPTION.search(str(error)) if isinstance(error, TypeError) else None
    if not ledger.driver or option is None:
        return None
    version = f"{ledger.driver} {getattr(sys.modules.get(ledger.driver), '__version__', '')}".rstrip()
    update = f"run pip install -U '.[{ledger.extra}]' in a checkout"
    return ConfigurationError(
        "ledger", f"{version} has no option {option[1]}: remove it from the address, or {update}"
    )


def masked_url(url: str) -> str:
    """Return the address of a server without the parts that may contain a password."""
    try:
        plain = str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # for example an address with several hosts
        return "***"
    return "***" if "@" in plain else plain  # for example a password that contains a slash
