"""Opening the ledger that an option names, and finding entries in it."""

import asyncio
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
from loanasync.ledger.backend import StoredLedger

WITHOUT_LEDGER = "with --sandbox the ledger is not used: it is for a service that stays"
SHORT = 12  # characters of a key that tell it from all others, as errors show it
_FEWEST = 4  # characters of a key that a person may give
# By the scheme of their addresses; each says which extra it needs.
_SERVERS: Mapping[str, type[StoredLedger]] = {
    scheme: kind for kind in BACKENDS if kind is not SqliteLedger for scheme in kind.address.schemes
}
_MADE = "; a client makes the ledger with its first approval"
_PAGE = 500  # entries that are read before any is shown

T = TypeVar("T")


class NotFoundError(Exception):
    """No such entry, or several; the text says which."""


class UnusableError(Exception):
    """A ledger that cannot be used; the text says why."""


def short(key: str) -> str:
    """A key as people see it and may give it back."""
    return key[:SHORT]


def ledger_at(name: str) -> StoredLedger:
    """The ledger of this name: a path, ``sqlite:///path``, or the address of a server.

    The parameter ``prefix=`` of a Redis address and ``table=`` of a PostgreSQL address belong to the ledger.

    Args:
        name: As an option gives it.

    Raises:
        ConfigurationError: It names none.
    """
    scheme, found, _ = name.partition("://")
    if not found and (begun := name.partition(":")[0]) in _SERVERS:  # mistyped, and it may hold a password
        raise ConfigurationError("ledger", f"the address of a server begins with {begun}://")
    if not found or scheme == "sqlite":
        file = _file(name)
        if file.is_dir():
            raise ConfigurationError("ledger", f"{file} is a directory")
        if not file.parent.exists():
            raise ConfigurationError("ledger", f"{file} is not there")
        return SqliteLedger(file)
    if scheme not in _SERVERS:
        told = f"{scheme}:// is no ledger; give a path, {', '.join(f'{each}://' for each in _SERVERS)}"
        raise ConfigurationError("ledger", told)
    kind = _SERVERS[scheme]
    own = kind.address.parameter
    address, given = _split(name)
    if others := given.keys() - {own}:
        raise ConfigurationError("ledger", f"{scheme}:// takes {own}=, and not {min(others)}=")
    opener: Callable[..., StoredLedger] = kind
    return opener(address, **given)


def _split(name: str) -> tuple[str, dict[str, str]]:
    """Return the address of a server without the ledger's own parameters, and these."""
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


def used_by_a_client(name: str | None, *, only_reads: bool = False) -> dict[str, Any]:
    """Return the arguments of a client for the ledger of this name; none without a name.

    Args:
        name: As an option gives it.
        only_reads: If the ledger does not exist, use an empty one in memory.

    Raises:
        ConfigurationError: It names none, or the key is too short.
        UnusableError: It only reads, and the ledger cannot be read.
    """
    if name is None:
        return {}
    ledger: DecisionLedger = ledger_at(name)
    if only_reads and not _exists(ledger_at(name)):
        ledger = MemoryLedger()
    return {"ledger": ledger, "ledger_policy": policy_of(os.environ)}


def _exists(ledger: StoredLedger) -> bool:
    with asyncio.Runner() as runner:
        try:
            return Opened(ledger, runner).run(ledger.exists())
        finally:
            runner.run(ledger.aclose())


def name_of(name: str) -> str:
    """What tells this ledger from others, without a password."""
    is_server = name.partition("://")[0] in _SERVERS
    return repr(ledger_at(name)) if is_server else str(_file(name).resolve())


def _file(name: str) -> Path:
    return Path(name.removeprefix("sqlite:///")).expanduser()


def policy_of(environment: Mapping[str, str]) -> LedgerPolicy:
    """How the shop's programs use their ledger: as the environment says, and else as by default.

    Raises:
        ConfigurationError: The key is too short.
    """
    key = environment.get("LOANASYNC_LEDGER_KEY")
    return LedgerPolicy(
        key=None if not key else key.encode(), environment=environment.get("LOANASYNC_LEDGER_ENVIRONMENT", "")
    )


def shop_of(environment: Mapping[str, str]) -> Shop:
    """Whose approvals are meant, by LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN.

    Raises:
        ConfigurationError: One of them is not set, or cannot work.
    """
    return configure(**from_environment(environment))


@frozen
class Opened:
    """A ledger in use by a command, which stands in no event loop: a person may be asked in between."""

    ledger: DecisionLedger
    _runner: asyncio.Runner

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        """Wait for a move.

        Raises:
            UnusableError: The ledger cannot make it.
        """
        try:
            return self._runner.run(what)
        except ConfigurationError:  # it says what it is
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:  # a file: why not, is said
                raise
            # Whatever a server's library raises: its text may hold a password.
            raise UnusableError(
                f"the ledger cannot be used ({type(error).__name__}): check --ledger, its disk, or "
                "that its server can be reached"
            ) from None

    def entries(self, *states: State, begins: str = "", without_redirect: bool = False) -> Iterator[Entry]:
        """All in these states, or all there are; never all of them in memory.

        Args:
            states: States of the entries; all if none is given.
            begins: Beginning of their keys.
            without_redirect: Only approvals without a redirect.

        Raises:
            UnusableError: The ledger cannot be read.
        """
        scan = self.ledger.scan(*states, begins=begins, without_redirect=without_redirect)
        while page := self.run(_page(scan)):
            yield from page

    def entry(self, key: str) -> Entry:
        """The entry whose key this is, or begins with this.

        Raises:
            NotFoundError: There is none, or more than one.
        """
        begins = key.lower()
        whole = self.run(self.ledger.get(begins))
        if whole is not None:
            return whole
        if len(key) < _FEWEST:
            raise NotFoundError(f"{key}: is too short for a key: {_FEWEST} characters at least")
        found = [*self.entries(begins=begins)]
        if len(found) == 1:
            return found[0]
        several = ", ".join(short(entry.key) for entry in found)
        raise NotFoundError(f"{key}: {f'could be any of {several}' if found else 'there is no such entry'}")


async def _page(scan: AsyncIterator[Entry]) -> list[Entry]:
    page: list[Entry] = []
    async for entry in scan:
        page.append(entry)
        if len(page) == _PAGE:
            break
    return page


@contextmanager
def opened(name: str) -> Iterator[Opened]:
    """A ledger by its name, closed afterwards. A ledger that does not exist is not created.

    Raises:
        ConfigurationError: The name is wrong, or the ledger does not exist.
        UnusableError: It cannot be used.
    """
    ledger = ledger_at(name)
    with asyncio.Runner() as runner:
        use = Opened(ledger, runner)
        try:
            if not use.run(ledger.exists()):
                raise ConfigurationError("ledger", ledger.address.absent.format(file=_file(name)) + _MADE)
            use.run(ledger.get(""))  # so that a ledger of which nothing can be had is told of before all else
            yield use
        finally:
            runner.run(ledger.aclose())
