"""Functions that the ledgers on servers share: addresses without passwords, and errors of their drivers."""

import re
import sys
from typing import TYPE_CHECKING

from yarl import URL

from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    from loanasync.ledger.ledger import Ledger

CLOSE_TIMEOUT = 5.0  # seconds to wait for a server when connections are closed
# Seconds after which a connection is opened again. The name of the server may mean another one by then, and
# firewalls forget idle connections.
MAX_AGE = 300.0

# In the name, SQLSTATE and text of an error. Before Redis 7, only the text of a script's error has a code.
_CHANGED = r"(?i)readonly|masterdown|loading|noreplicas|^\w+ (25006|57P0[123]|08\w{3}) "
_TRANSIENT = rf"{_CHANGED}|^(Connection|Timeout)|connection is closed"
_REFUSED = r"(?i)^(FileNotFound|gaierror|CannotConnect)|loading|connection ?refused|call failed|connecting to"
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


def has_changed(error: BaseException) -> bool:
    """Return True if the server is not the primary any more, starts or stops, or has lost its connection."""
    return re.search(_CHANGED, _text(error)) is not None


def may_repeat(ledger: "Ledger", error: BaseException, *, once: bool) -> bool:
    """Return True if an operation may succeed on a new connection.

    Args:
        ledger: The ledger of the operation.
        error: The error of its last attempt.
        once: It is repeated only once, so it needs a server that accepts connections.
    """
    is_refused = once and re.search(_REFUSED, _text(error))
    is_transient = isinstance(error, OSError) or re.search(_TRANSIENT, _text(error))
    return bool(ledger.driver and is_transient and not is_refused)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__} {getattr(error, 'sqlstate', '')} {error}"


def masked_url(url: str) -> str:
    """Return the address of a server without the parts that may contain a password."""
    try:
        plain = str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # for example an address with several hosts
        return "***"
    return "***" if "@" in plain else plain  # for example a password that contains a slash
