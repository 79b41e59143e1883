"""What ledgers on a server have in common: an extra to install, an address to show, a version of entries."""

from yarl import URL

from loanasync.errors import ConfigurationError

__all__ = ["CLOSING", "VERSION", "check_version", "missing", "shown"]

VERSION = 1  # of what an entry consists of; each carries it, so that versions can live side by side
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


def check_version(version: int) -> None:
    """Leave entries alone that a later version wrote.

    Raises:
        ConfigurationError: This is one.
    """
    if version != VERSION:
        raise ConfigurationError(
            "ledger", "has entries of a later version of loanasync: install that version here, too"
        )
