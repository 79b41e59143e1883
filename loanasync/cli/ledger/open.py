"""Opening the ledger that an option names, and reading its entries."""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from attrs import evolve, frozen

from loanasync._environment import LEDGER, shop_settings
from loanasync._shop import Shop, configure
from loanasync.errors import ConfigurationError, LedgerMismatchError
from loanasync.ledger import Entry, Ledger, LedgerPolicy, State
from loanasync.ledger.address import LedgerSettings, ledger_settings
from loanasync.ledger.drivers import unsuitable_driver_error
from loanasync.ledger.header import check_service, keys_of

SHORT_KEY_LENGTH = 12  # characters; enough to be unique, and the same as in error messages
_MIN_KEY_LENGTH = 4  # characters of a key that an argument must have
_UNKNOWN_CAUSE = "check --ledger, the disk, and that the server can be reached"
_PAGE_SIZE = 500  # entries

LEDGER_HELP = "a file's path, redis://...?prefix=... or postgresql://...?table=..."

T = TypeVar("T")


class NotFoundError(Exception):
    """There is no entry for a key, or more than one. The text is shown to the user."""


class UnusableError(Exception):
    """The ledger is not available. The text says why, and is shown to the user."""


def short(key: str) -> str:
    """Return the short form of a key, for display. The commands accept it in place of the key."""
    return key[:SHORT_KEY_LENGTH]


def ledger_option(name: str) -> str:
    """Return the option that names a ledger in an advised command, with a space behind it.

    It is empty if the variable LOANASYNC_LEDGER names the ledger. It has no address of a server.
    """
    if os.environ.get(LEDGER) == name:
        return ""
    return f"--ledger {'NAME' if '://' in name else shlex.quote(name)} "


def settings_of(name: str) -> LedgerSettings:
    """Return the ledger of the option ``--ledger``, and its policy.

    Raises:
        ConfigurationError: The option or a variable is invalid, or the name of a variable is mistyped.
    """
    return ledger_settings({**os.environ, LEDGER: name})


def shop_from_environment(environment: Mapping[str, str]) -> Shop:
    """Return the shop of LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN.

    Raises:
        ConfigurationError: A variable is not set, or its value is invalid.
    """
    return configure(**shop_settings(environment))


@frozen
class OpenLedger:
    """A ledger in use by a command. The event loop runs only during an operation, so prompts may block.

    Args:
        ledger: The ledger.
        runner: The event loop.
        policy: The policy of the command.
    """

    ledger: Ledger
    _runner: asyncio.Runner
    policy: LedgerPolicy

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run a ledger operation and return its result.

        Raises:
            ConfigurationError: The ledger's library does not know an option of the address, or is too old.
            UnusableError: The ledger does not fit, or cannot be used.
        """
        try:
            return self._runner.run(operation)
        except ConfigurationError:  # its text is for the user
            raise
        except LedgerMismatchError as error:
            raise UnusableError(f"the ledger {error.ledger} {error.reason}") from None
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:  # the caller prints file and reason
                raise
            if (wrong := unsuitable_driver_error(self.ledger, error)) is not None:
                raise wrong from None
            # The texts of other errors come from the server's library and may contain a password.
            reason = self.ledger.reason(error) or _UNKNOWN_CAUSE
            raise UnusableError(f"the ledger is not available ({type(error).__name__}): {reason}") from None

    def secrets(self, shop: Shop | None = None) -> tuple[bytes, ...]:
        """Return the keys under which the ledger has entries, the present one first.

        Raises:
            UnusableError: It belongs to another service than the shop, or lacks LOANASYNC_LEDGER_KEY.
        """
        return self.run(self._secrets(shop))

    async def _secrets(self, shop: Shop | None) -> tuple[bytes, ...]:
        header = await self.ledger.header()
        if shop is not None:
            check_service(header, shop.base_url)
        # LOANASYNC_LEDGER_KEY may be set for another ledger than one with its own secret.
        policy = evolve(self.policy, key=None, old_keys=()) if header.secrets else self.policy
        return keys_of(header, policy)

    def entries(self, *states: State, begins: str = "") -> Iterator[Entry]:
        """Yield entries, reading one page at a time.

        Args:
            states: Only entries in these states. No states: all entries.
            begins: Only entries whose key begins with this text.

        Raises:
            UnusableError: The ledger cannot be read.
        """
        scan = self.ledger.scan(*states, begins=begins)
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
