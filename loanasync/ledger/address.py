"""Opening a ledger by its address, for the command line, workers and `LoanClient.from_env`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote

from loanasync.errors import ConfigurationError
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.postgres import PostgresLedger
from loanasync.ledger.redis import RedisLedger
from loanasync.ledger.sqlite import SqliteLedger

_CACHE_SIZE = "statement_cache_size"
_SERVERS: Mapping[str, Callable[..., Ledger]] = {  # by the scheme of their addresses
    **dict.fromkeys(("redis", "rediss", "unix"), RedisLedger),
    **dict.fromkeys(("postgresql", "postgres"), PostgresLedger),
}
# The parameters of an address that the ledger takes as arguments. Its driver gets the other ones.
_OWN: Mapping[Callable[..., Ledger], tuple[str, ...]] = {
    RedisLedger: ("prefix",),
    PostgresLedger: ("table", _CACHE_SIZE),
}


def ledger_at(name: str) -> Ledger:
    """Return the ledger of a name: a path, ``sqlite:///path``, or the address of a server.

    It is not opened, and its clients never create it: a volume may not be mounted, a name may be mistyped.
    The parameter ``prefix=`` of a Redis address, and ``table=`` and ``statement_cache_size=`` of a PostgreSQL
    address belong to the ledger.

    Args:
        name: Value of ``--ledger`` or LOANASYNC_LEDGER.

    Raises:
        ConfigurationError: The name is not a valid path or address.
    """
    scheme, found, _ = name.partition("://")
    if not found and (start := re.split(":|//", name)[0]) in _SERVERS:  # it may contain a password
        raise ConfigurationError("ledger", f"the address of a server must begin with {start}://")
    if not found or scheme == "sqlite":
        return _sqlite_ledger(file_of(name))
    if scheme not in _SERVERS:
        schemes = ", ".join(f"{each}://" for each in _SERVERS)
        raise ConfigurationError("ledger", f"unknown scheme {scheme}://; name a file, or use {schemes}")
    accepted = _OWN[_SERVERS[scheme]]
    address, own = _split_address(name)
    if others := own.keys() - set(accepted):
        names = " and ".join(f"{parameter}=" for parameter in accepted)
        raise ConfigurationError("ledger", f"{scheme}:// accepts {names}, not {min(others)}=")
    arguments: dict[str, object] = {**own}
    if _CACHE_SIZE in own:
        if not own[_CACHE_SIZE].isdecimal():
            raise ConfigurationError("ledger", "statement_cache_size= must be a number, such as 0")
        arguments[_CACHE_SIZE] = int(own[_CACHE_SIZE])
    return _SERVERS[scheme](address, **arguments)


def _sqlite_ledger(file: Path) -> SqliteLedger:
    try:
        is_folder, has_folder = file.is_dir(), file.parent.exists()
    except OSError as error:  # for example, no permission
        raise ConfigurationError("ledger", f"{file} cannot be used ({error.strerror})") from None
    if is_folder:
        raise ConfigurationError("ledger", f"{file} is a directory; name a file")
    if not has_folder:
        raise ConfigurationError("ledger", f"the folder {file.parent} does not exist")
    return SqliteLedger(file, must_exist=True)


def _split_address(name: str) -> tuple[str, dict[str, str]]:
    """Return the address of a server without the ledger's own parameters, and these parameters."""
    address, _, query = name.partition("?")
    own, others = {}, []
    for part in query.split("&"):
        parameter, _, value = part.partition("=")
        if any(parameter in names for names in _OWN.values()):
            own[parameter] = unquote(value)
        elif part:
            others.append(part)
    return "?".join((address, "&".join(others))) if others else address, own


def name_without_password(name: str) -> str:
    """Return a name that identifies the ledger and contains no password."""
    is_server = name.partition("://")[0] in _SERVERS
    return repr(ledger_at(name)) if is_server else str(file_of(name).resolve())


def file_of(name: str) -> Path:
    """Return the path of an SQLite ledger."""
    return Path(name.removeprefix("sqlite:///")).expanduser()
