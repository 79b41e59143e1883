"""Opening the ledger that an option names, and reading its entries."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from attrs import frozen

from loanasync import ConfigurationError
from loanasync._config import Shop, configure, from_environment
from loanasync.ledger import (
    BACKENDS,
    DecisionLedger,
    Entry,
    LedgerPolicy,
    MemoryLedger,
    SqliteLedger,
    State,
)
from loanasync.ledger.backend import StoredLedger, unsuitable_driver_error

SANDBOX_WITHOUT_LEDGER = (
    "with --sandbox the ledger is not used: the sandbox forgets its customers when the command ends"
)
SHORT_KEY_LENGTH = 12  # characters; enough to be unique, and the same as in error messages
_MIN_KEY_LENGTH = 4  # characters of a key that an argument must have
# Classes by the scheme of their addresses. Each names the extra that it needs.
_SERVERS: Mapping[str, type[StoredLedger]] = {
    scheme: kind for kind in BACKENDS if kind is not SqliteLedger for scheme in kind.address.schemes
}
_CREATED_BY_CLIENT = "; a client creates the ledger at its first approval"
_PAGE_SIZE = 500  # entries

T = TypeVar("T")


class NotFoundError(Exception):
    """There is no entry for a key, or more than one. The text is shown to the user."""


class UnusableError(Exception):
    """The ledger is not available. The text says why, and is shown to the user."""


def short(key: str) -> str:
    """Return the short form of a key, for display. The commands accept it in place of the key."""
    return key[:SHORT_KEY_LENGTH]


def ledger_at(name: str) -> StoredLedger:
    """Return the ledger of a name: a path, ``sqlite:///path``, or the address of a server.

    The parameter ``prefix=`` of a Redis address and ``table=`` of a PostgreSQL address are removed from the
    address and passed to the ledger.

    Args:
        name: Value of ``--ledger``.

    Raises:
        ConfigurationError: The name is not a valid path or address.
    """
    scheme, found, _ = name.partition("://")
    if not found and (start := name.partition(":")[0]) in _SERVERS:  # mistyped, and it may contain a password
        raise ConfigurationError("ledger", f"the address of a server must begin with {start}://")
    if not found or scheme == "sqlite":
        file = _file_of(name)
        if file.is_dir():
            raise ConfigurationError("ledger", f"{file} is a directory; name a file")
        if not file.parent.exists():
            raise ConfigurationError("ledger", f"the folder {file.parent} does not exist")
        return SqliteLedger(file)
    if scheme not in _SERVERS:
        schemes = ", ".join(f"{each}://" for each in _SERVERS)
        raise ConfigurationError("ledger", f"unknown scheme {scheme}://; name a file, or use {schemes}")
    kind = _SERVERS[scheme]
    own = kind.address.parameter
    address, arguments = _split_address(name)
    if others := arguments.keys() - {own}:
        raise ConfigurationError("ledger", f"{scheme}:// accepts {own}=, not {min(others)}=")
    opener: Callable[..., StoredLedger] = kind
    return opener(address, **arguments)


def _split_address(name: str) -> tuple[str, dict[str, str]]:
    """Return the address of a server without the ledger's own parameters, and these parameters."""
    parameters = {kind.address.parameter for kind in _SERVERS.values()}
    address, _, query = name.partition("?")
    own, others = {}, []
    for part in query.split("&"):
        parameter, _, value = part.partition("=")
        if parameter in parameters:
            own[parameter] = unquote(value)
        elif part:
            others.append(part)
    return "?".join((address, "&".join(others))) if others else address, own


def client_options(name: str | None, *, only_reads: bool = False) -> dict[str, Any]:
    """Return the options of a client for the ledger of a name. Without a name there are no options.

    Args:
        name: Value of ``--ledger``.
        only_reads: If the ledger does not exist, use an empty one in memory.

    Raises:
        ConfigurationError: The name is not valid, the shop is not configured, or the key cannot be used.
        UnusableError: `only_reads` is set, and the ledger cannot be read.
    """
    if name is None:
        return {}
    ledger: DecisionLedger = ledger_at(name)
    if only_reads and not _exists(ledger_at(name)):
        ledger = MemoryLedger()
    policy = policy_of(name, shop_from_environment(os.environ), os.environ)
    return {"ledger": ledger, "ledger_policy": policy}


def _exists(ledger: StoredLedger) -> bool:
    with asyncio.Runner() as runner:
        try:
            return OpenLedger(ledger, runner).run(ledger.exists())
        finally:
            runner.run(ledger.aclose())


def name_without_password(name: str) -> str:
    """Return a name that identifies the ledger and contains no password."""
    is_server = name.partition("://")[0] in _SERVERS
    return repr(ledger_at(name)) if is_server else str(_file_of(name).resolve())


def _file_of(name: str) -> Path:
    return Path(name.removeprefix("sqlite:///")).expanduser()


def policy_from_environment(environment: Mapping[str, str]) -> LedgerPolicy:
    """Return the policy of LOANASYNC_LEDGER_KEY.

    Raises:
        ConfigurationError: The key is too short.
    """
    key = environment.get("LOANASYNC_LEDGER_KEY")
    return LedgerPolicy(key=None if not key else key.encode())


def policy_of(name: str, shop: Shop, environment: Mapping[str, str]) -> LedgerPolicy:
    """Return the policy whose keys find the customers of a ledger.

    The ledger that ``approve-many`` writes beside its results has its own secret, in ``OUT.resume``. The
    other ledgers have the policy of the environment. LOANASYNC_LEDGER_KEY has precedence.

    Args:
        name: Value of ``--ledger``.
        shop: The shop whose customers are sought.
        environment: The environment variables.

    Raises:
        ConfigurationError: The key of the environment is too short, or ``OUT.resume`` cannot be read, is
            damaged, or belongs to another service or shop.
    """
    ledger = _file_of(name)
    has_secret = ledger.suffix == ".ledger" and not environment.get("LOANASYNC_LEDGER_KEY")
    if not has_secret or not (file := ledger.with_suffix(".resume")).is_file():
        return policy_from_environment(environment)
    try:
        members = json.loads(file.read_text(encoding="utf-8").partition("\n")[0])
        service, secret = members["service"], str(members["secret"])
    except OSError as error:
        raise ConfigurationError("ledger", f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError):
        raise ConfigurationError(
            "ledger",
            f"{file} is damaged: restore it, because it contains the secret that finds customers in {ledger}",
        ) from None
    if service != f"{shop.base_url} {shop.shop_id}":
        raise ConfigurationError(
            "ledger",
            f"{ledger} belongs to another service or shop: check LOANASYNC_BASE_URL and LOANASYNC_SHOP_ID",
        )
    return LedgerPolicy(key=secret.encode())


def shop_from_environment(environment: Mapping[str, str]) -> Shop:
    """Return the shop of LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN.

    Raises:
        ConfigurationError: A variable is not set, or its value is invalid.
    """
    return configure(**from_environment(environment))


@frozen
class OpenLedger:
    """A ledger in use by a command. The event loop runs only during an operation, so prompts may block."""

    ledger: DecisionLedger
    _runner: asyncio.Runner

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run a ledger operation and return its result.

        Raises:
            ConfigurationError: The ledger's library does not know an option of the address, or is too old.
            UnusableError: The operation failed for another reason.
        """
        try:
            return self._runner.run(operation)
        except ConfigurationError:  # its text is for the user
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:  # the caller prints file and reason
                raise
            if (wrong := unsuitable_driver_error(self.ledger, error)) is not None:
                raise wrong from None
            # The texts of other errors come from the server's library and may contain a password.
            raise UnusableError(
                f"the ledger is not available ({type(error).__name__}): check --ledger, the disk, and "
                "that the server can be reached"
            ) from None

    def entries(self, *states: State, begins: str = "", without_redirect: bool = False) -> Iterator[Entry]:
        """Yield entries, reading one page at a time.

        Args:
            states: Only entries in these states. No states: all entries.
            begins: Only entries whose key begins with this text.
            without_redirect: Only approvals without a redirect.

        Raises:
            UnusableError: The ledger cannot be read.
        """
        scan = self.ledger.scan(*states, begins=begins, without_redirect=without_redirect)
        while page := self.run(_page(scan)):
            yield from page

    def entry(self, key: str) -> Entry:
        """Return the entry of a key, or of the beginning of a key.

        Raises:
            NotFoundError: No entry or more than one entry matches.
        """
        begins = key.lower()
        exact = self.run(self.ledger.get(begins))
        if exact is not None:
            return exact
        if len(key) < _MIN_KEY_LENGTH:
            raise NotFoundError(
                f"'{key}' is too short: give at least {_MIN_KEY_LENGTH} characters of the key"
            )
        found = [*self.entries(begins=begins)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise NotFoundError(f"no entry has the key '{key}': list the keys with loanasync ledger ls")
        keys = ", ".join(short(entry.key) for entry in found)
        raise NotFoundError(f"'{key}' is ambiguous: it is the beginning of {keys}")


async def _page(scan: AsyncIterator[Entry]) -> list[Entry]:
    page: list[Entry] = []
    async for entry in scan:
        page.append(entry)
        if len(page) == _PAGE_SIZE:
            break
    return page


@contextmanager
def open_ledger(name: str) -> Iterator[OpenLedger]:
    """Open a ledger, and close it afterwards. A ledger that does not exist is not created.

    Raises:
        ConfigurationError: The name is not valid, or the ledger does not exist.
        UnusableError: The ledger is not available.
    """
    ledger = ledger_at(name)
    with asyncio.Runner() as runner:
        use = OpenLedger(ledger, runner)
        try:
            if not use.run(ledger.exists()):
                message = ledger.address.absent.format(file=_file_of(name))
                raise ConfigurationError("ledger", message + _CREATED_BY_CLIENT)
            use.run(ledger.get(""))  # fail early if the ledger cannot be read
            yield use
        finally:
            runner.run(ledger.aclose())
