"""Shared parts of the ledgers on a server: the error for a missing extra, and the address without secrets."""

from yarl import URL

from loanasync.errors import ConfigurationError

CLOSING = 5.0  # seconds that a server may take to say goodbye


def missing(library: str, extra: str) -> ConfigurationError:
    """What to say when a ledger's library is not installed."""
    return ConfigurationError("ledger", f"needs {library}: pip install 'loanasync[{extra}]'")


def shown(url: str) -> str:
    """An address without whatever could be a password."""
    try:
        plain = str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:  # several hosts, for one
        return "***"
    return "***" if "@" in plain else plain  # a slash in a password, for one
