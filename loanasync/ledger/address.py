"""The ledger that an address names, and the ledger and the policy of the environment variables.

Used by the command line, by workers and by `LoanClient.from_env`.
"""

import pkgutil
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from attrs import frozen

from loanasync._environment import LEDGER, LEDGER_CIPHER, LEDGER_KEY, LEDGER_OLD_KEYS, ledger_variables
from loanasync.errors import ConfigurationError
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.policy import Cipher, LedgerPolicy
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
_SETTINGS: Mapping[str, str] = {
    "ledger_policy.key": LEDGER_KEY,
    "ledger_policy.old_keys": LEDGER_OLD_KEYS,
    "ledger_policy.encrypt": LEDGER_CIPHER,
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


@frozen
class LedgerSettings:
    """The arguments ``ledger`` and ``ledger_policy`` of a client."""

    ledger: Ledger
    policy: LedgerPolicy


def ledger_settings(environment: Mapping[str, str]) -> LedgerSettings:
    """Return the ledger of LOANASYNC_LEDGER, and its policy.

    No other function reads the variables of the ledger. The ledger is neither opened nor created.

    Args:
        environment: The environment variables. An empty variable of the policy is ignored. An empty
            LOANASYNC_LEDGER is an error: a client without its ledger would request known customers again.

    Raises:
        ConfigurationError: LOANASYNC_LEDGER is not set, a value is invalid, or a name is mistyped.
    """
    try:
        return _settings(environment)
    except ConfigurationError as error:
        setting, message = error.setting, error.message
    # The traceback of the new error contains neither these secrets nor the frames of `_settings`.
    del environment
    raise ConfigurationError(_SETTINGS.get(setting, setting), message)


def _settings(environment: Mapping[str, str]) -> LedgerSettings:
    ledger_variables(environment)
    address = environment.get(LEDGER, "").strip()
    if not address:
        raise ConfigurationError(
            LEDGER, "must name the ledger: a file's path, redis://... or postgresql://..."
        )
    keys = _keys(environment, LEDGER_KEY)
    if len(keys) > 1:
        raise ConfigurationError(
            LEDGER_KEY, f"must be one key, without commas; {LEDGER_OLD_KEYS} has earlier keys"
        )
    policy = LedgerPolicy(
        key=keys[0] if keys else None,
        old_keys=_keys(environment, LEDGER_OLD_KEYS),
        encrypt=cipher_of(environment.get(LEDGER_CIPHER)),
    )
    return LedgerSettings(ledger_at(address), policy)


def _keys(environment: Mapping[str, str], variable: str) -> tuple[bytes, ...]:
    """Return the keys of a variable, which are separated by commas."""
    if not (value := environment.get(variable)):
        return ()
    keys = value.split(",")
    if any(key != key.strip() for key in keys):
        raise ConfigurationError(variable, "must have no spaces and no line ends around a key")
    return tuple(key.encode(errors="surrogateescape") for key in keys)  # as the bytes were set


def cipher_of(name: str | None) -> Cipher | None:
    """Import the cipher with a name ``module:object``; return None without a name.

    Raises:
        ConfigurationError: It cannot be imported.
    """
    if not name:
        return None
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ConfigurationError(LEDGER_CIPHER, "must be module:object, such as shop.secrets:cipher")
    try:
        return pkgutil.resolve_name(name)  # type: ignore[no-any-return]  # `LedgerPolicy` checks it
    except Exception as error:  # noqa: BLE001  (its text may contain a secret of the user's module)
        raise ConfigurationError(
            LEDGER_CIPHER,
            f"cannot be imported ({type(error).__name__}): check the name, and PYTHONPATH if the module is "
            "not installed",
        ) from None
