"""Opening a ledger by its address, for the command line, workers and `LoanClient.from_env`."""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from loanasync.errors import ConfigurationError
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.postgres import PostgresLedger
from loanasync.ledger.redis import RedisLedger
from loanasync.ledger.sqlite import SqliteLedger

_ANY_DISK = "?local_only=no"  # the only parameter of an SQLite address
_CACHE_SIZE = "statement_cache_size"
# By the scheme of an address: the ledger, and the parameters of the address that it takes as arguments. Its
# driver gets the other ones.
_SERVERS: Mapping[str, tuple[Callable[..., Ledger], tuple[str, ...]]] = {
    **dict.fromkeys(("redis", "rediss", "unix"), (RedisLedger, ("prefix",))),
    **dict.fromkeys(("postgresql", "postgres"), (PostgresLedger, ("table", _CACHE_SIZE))),
}


def open_ledger(url: str) -> Ledger:
    """Return the ledger with an address, for example of an object with the settings of your program.

    No connection is opened. Like `LoanClient.from_env`, its clients never create it: a volume may not be
    mounted, a name may be mistyped. Pass its key as ``LedgerPolicy(key=...)``.

    Args:
        url: Path of a file, or an address ``redis://``, ``rediss://``, ``unix://`` or ``postgresql://``.

    Raises:
        ConfigurationError: The address is invalid, or its folder does not exist.

    Example:
        >>> from loanasync.ledger import open_ledger
        >>> open_ledger("postgresql://shop:secret@db.example.com/shop")
        PostgresLedger('postgresql://db.example.com/shop')
    """
    try:
        return ledger_at(url)
    except ConfigurationError as error:
        message = error.message
    del url  # may contain a password: must not be in a traceback
    raise ConfigurationError("ledger", message)


def ledger_at(name: str) -> Ledger:
    """Return the ledger of a name: a path, ``sqlite:///path``, or the address of a server.

    It is not opened, and its clients never create it: a volume may not be mounted, a name may be mistyped.
    The parameter ``prefix=`` of a Redis address, and ``table=`` and ``statement_cache_size=`` of a PostgreSQL
    address belong to the ledger. ``sqlite:///path?local_only=no`` accepts any file system.

    Args:
        name: Value of ``--ledger`` or LOANASYNC_LEDGER.

    Raises:
        ConfigurationError: The name is not a valid path or address.
    """
    scheme, found, _ = name.partition("://")
    if not found and (start := re.split(":|//", name)[0]) in _SERVERS:  # it may contain a password
        raise ConfigurationError("ledger", f"the address of a server must begin with {start}://")
    if not found or scheme == "sqlite":
        return _sqlite_ledger(file_of(name), local_only=not name.endswith(_ANY_DISK))
    if scheme not in _SERVERS:
        schemes = ", ".join(f"{each}://" for each in _SERVERS)
        raise ConfigurationError("ledger", f"unknown scheme {scheme}://; name a file, or use {schemes}")
    kind, own = _SERVERS[scheme]
    address, found_own = split_parameters(name, own)
    arguments: dict[str, Any] = {each: unquote(value) for each, value in found_own.items()}
    if _CACHE_SIZE in arguments:
        if not arguments[_CACHE_SIZE].isdecimal():
            raise ConfigurationError("ledger", "statement_cache_size= must be a number, such as 0")
        arguments[_CACHE_SIZE] = int(arguments[_CACHE_SIZE])
    return kind(address, **arguments)


def split_parameters(url: str, own: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return an address without some of its parameters, and the values of these, still percent-encoded."""
    address, _, query = url.partition("?")
    parameters = [each.partition("=") for each in query.split("&") if each]
    others = "&".join("".join(each) for each in parameters if each[0] not in own)
    found = {name: value for name, _, value in parameters if name in own}
    return (f"{address}?{others}" if others else address), found


def _sqlite_ledger(file: Path, *, local_only: bool) -> SqliteLedger:
    try:
        is_folder, has_folder = file.is_dir(), file.parent.exists()
    except OSError as error:  # for example, no permission
        raise ConfigurationError("ledger", f"{file} cannot be used ({error.strerror})") from None
    if is_folder:
        raise ConfigurationError("ledger", f"{file} is a directory; name a file")
    if not has_folder:
        raise ConfigurationError("ledger", f"the folder {file.parent} does not exist")
    return SqliteLedger(file, must_exist=True, local_only=local_only)


def name_without_password(name: str) -> str:
    """Return a name that identifies the ledger and contains no password."""
    is_server = name.partition("://")[0] in _SERVERS
    return repr(ledger_at(name)) if is_server else str(file_of(name).resolve())


def file_of(name: str) -> Path:
    """Return the path of an SQLite ledger.

    Raises:
        ConfigurationError: The path begins with ``~``, and there is no such home directory.
    """
    path = Path(name.removeprefix("sqlite:///").removesuffix(_ANY_DISK))
    try:
        return path.expanduser()
    except RuntimeError:
        raise ConfigurationError(
            "ledger", f"{path} begins with a home directory that does not exist; give the path without ~"
        ) from None
