"""A ledger as the clients of a service use it: its keys, its time limits, and settlements not written yet."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from attrs import field, frozen

from loanasync._models.masking import mask
from loanasync._runtime.run import copy_error
from loanasync._transport.waits import cancellations
from loanasync.errors import (
    ConfigurationError,
    DecisionNotRecordedError,
    LedgerMismatchError,
    LedgerUnavailableError,
    LoanError,
)
from loanasync.ledger.drivers import may_repeat, unsuitable_driver_error
from loanasync.ledger.header import Header, check_cipher, check_service, keys_of, marked
from loanasync.ledger.keys import Approval, Place, places_of
from loanasync.ledger.last_number import LastNumber
from loanasync.ledger.ledger import HeaderChangedError, Ledger
from loanasync.ledger.memory import MemoryLedger
from loanasync.ledger.model import Entry, Settlement, State
from loanasync.ledger.orphans import import_from_folders
from loanasync.ledger.policy import LedgerPolicy
from loanasync.ledger.transitions import LEASE_EXPIRED

T = TypeVar("T")
Action: TypeAlias = Callable[[], Awaitable[T]]

OPERATION = "approve"
_MAX_UNWRITTEN = 10_000  # settlements
_REPEAT_TIME = 2.0  # seconds for a claim and its repeat, during which it holds a slot
_PAUSE = 0.1  # seconds before a repeat
_IMPORT_TIMEOUT = 2.0  # seconds for the orphan files of earlier processes
_FILE_TIMEOUT = 0.5  # seconds for the file with the number of the last write
_CLOSE_TIMEOUT = 5.0  # seconds for the remaining settlements while a client closes


@frozen
class Keys:
    """The keys of a ledger, the present one first, and the header that they belong to."""

    header: Header
    secrets: tuple[bytes, ...] = field(repr=mask)


@frozen
class Unwritten:
    """A settlement that could not be written, or that undoes a claim which may still be written."""

    at: Place
    state: State
    settlement: Callable[[], Settlement]  # may raise an error of the user's cipher
    until: float = 0.0  # monotonic time after which the claim is not written any more
    error: DecisionNotRecordedError | None = None  # which a caller has received


class LedgerAccess:
    """A ledger with its policy and its service, shared by a client and its light copies.

    Raises:
        ConfigurationError: The ledger or the policy has the wrong type.
    """

    def __init__(self, ledger: object, policy: object, service: str) -> None:
        if not isinstance(ledger, Ledger):
            raise ConfigurationError("ledger", "must be a ledger, such as loanasync.ledger.SqliteLedger")
        if type(ledger).__hash__ is None:  # clients find their common memory by it
            raise ConfigurationError("ledger", "must be hashable: its class has __eq__ and needs __hash__")
        if policy is None:
            policy = LedgerPolicy()
        if not isinstance(policy, LedgerPolicy):
            raise ConfigurationError("ledger_policy", "must be a loanasync.ledger.LedgerPolicy")
        self.ledger = ledger
        self.policy = policy
        self.never_waits: bool = type(ledger) is MemoryLedger  # so its operations need no time limit
        self._outlives_process = not isinstance(ledger, MemoryLedger)
        self._service = service
        self._keys: Keys | None = None
        self._last_number = LastNumber(lambda: policy.orphan_folders)
        # By token, the oldest one first. Any client of this ledger object writes them.
        self.unwritten: dict[str, Unwritten] = ledger.unwritten

    async def keys(self) -> Keys:
        """Return the keys of the ledger, if it fits this client.

        Raises:
            LedgerMismatchError: The ledger does not fit.
            Exception: The ledger cannot be used.
        """
        if (keys := self.known_keys) is not None:
            return keys
        header = await self.ledger.open(self._service, self.policy)
        if self._keys is None and self._outlives_process:
            header = await self.ledger.expect_number(*await in_thread(self._last_number.read, header))
        secrets = keys_of(header, self.policy)
        check_cipher(header, self.policy)
        is_first, self._keys = self._keys is None, Keys(header, secrets)
        if is_first and self._outlives_process:
            with suppress(Exception):  # for example a folder that cannot be read: a sweep lists it
                async with asyncio.timeout(_IMPORT_TIMEOUT):
                    folders = await in_thread(lambda: self.policy.orphan_folders)
                    await import_from_folders(self.ledger, folders)
        return self._keys

    @property
    def known_keys(self) -> Keys | None:
        """The keys as they were last read, None if they must be read."""
        keys = self._keys
        return keys if keys is not None and keys.header is self.ledger.known_header else None

    async def attempt(
        self, action: Action[T], within: float, key: str = "", call: str = OPERATION, *, once: bool = True
    ) -> T | LoanError:
        """Run operations of the ledger for a call; return an error if the ledger cannot be used.

        While the server restarts or is replaced, the operations are repeated.

        Args:
            action: The operations, which can be repeated.
            within: Seconds that they may take.
            key: Key of the call's entry, for the error.
            call: Name of the call, for the error.
            once: Repeat them once, within two seconds, and not if the server refuses connections or starts: a
                claim holds a slot. False: repeat them until the time is over, for a settlement.

        Raises:
            HeaderChangedError: A claim was not written.
        """
        if within <= 0:
            return self._unavailable(TimeoutError(), call, key)
        earlier = cancellations()  # a settlement may run in a task that was cancelled before
        try:
            async with asyncio.timeout(None if self.never_waits else within) as limit:
                return await self._repeat(action, limit, _REPEAT_TIME if once else within, once=once)
        except HeaderChangedError:
            raise
        except LedgerMismatchError as error:
            return LedgerMismatchError(call, key, error.ledger, error.reason)
        except LoanError as error:  # for example ConfigurationError: the driver is not installed
            return type(error)(*error.args)  # a copy without traceback: its frames contain personal data
        except asyncio.CancelledError as error:
            if cancellations() > earlier:
                raise
            # Raised by the store, which was closed meanwhile; or by the timeout, in early releases of 3.11.
            return self._unavailable(error, call, key)
        except Exception as error:  # noqa: BLE001  (any exception of a store means that it cannot be used)
            return unsuitable_driver_error(self.ledger, error) or self._unavailable(error, call, key)

    async def _repeat(self, action: Action[T], limit: asyncio.Timeout, within: float, *, once: bool) -> T:
        """Run operations, again if a new connection may help and some seconds are not over."""
        now = asyncio.get_running_loop().time
        until = now() + within
        while True:
            try:
                return await action()
            except Exception as error:
                is_over = limit.expired() or now() + _PAUSE >= until
                if is_over or not may_repeat(self.ledger, error, once=once):
                    raise
            limit.reschedule(min(until, limit.when() or until))
            until = now() if once else until  # the next attempt is the last one
            await asyncio.sleep(_PAUSE)

    def _unavailable(self, error: BaseException, operation: str, key: str) -> LedgerUnavailableError:
        return LedgerUnavailableError(operation, key, type(error).__name__, self.ledger.reason(error))

    async def check_header(self, within: float, *, again: bool = False) -> LoanError | None:
        """Return an error if the ledger does not fit this client or cannot be used. Create nothing.

        Args:
            within: Seconds that this may take.
            again: Read the header even if it is known.
        """
        compare = partial(self._compare, again=again)
        found = await self.attempt(compare, min(within, self.policy.patience), call="check_ledger")
        return found if isinstance(found, LoanError) else None

    async def _compare(self, *, again: bool) -> None:
        known = self.ledger.known_header
        header = await self.ledger.find_header() if again or known is None else known
        if header is None:
            return
        check_service(header, self._service)
        if header.mark:
            raise marked(header)
        keys_of(header, self.policy)
        check_cipher(header, self.policy)
        await self.ledger.header()  # it is known now

    async def open(self) -> LoanError | None:
        """Open the ledger. Return an error if it does not fit this client or cannot be used."""
        found = await self.attempt(self.keys, self.policy.patience)
        return found if isinstance(found, LoanError) else None

    async def places(self, approval: Approval) -> tuple[Place, ...]:
        """Return the places of an approval's entry with each key of the ledger, the present key first.

        Raises:
            Exception: The ledger does not fit this client, or cannot be used.
        """
        await self.ledger.refresh()  # the key may have been rotated
        return places_of(approval, (await self.keys()).secrets)

    def remember(self, token: str, unwritten: Unwritten) -> None:
        """Remember a settlement until it is written, by the token of its claim. Forget the oldest of many."""
        self.unwritten[token] = unwritten
        if len(self.unwritten) > _MAX_UNWRITTEN:
            del self.unwritten[next(iter(self.unwritten))]

    def is_unwritten(self, entry: Entry) -> bool:
        """Return True if a settlement of the entry's last claim is not written yet."""
        is_open = entry.state is State.INFLIGHT or entry.note == LEASE_EXPIRED
        return is_open and entry.token in self.unwritten

    def unwritten_of(self, at: Place, entry: Entry | None) -> str | None:
        """Return the token of a settlement that is not written yet, if the entry at a place accepts it."""
        if not self.unwritten or (entry is not None and entry.state.is_decided):
            return None
        if entry is not None and self.is_unwritten(entry):
            return entry.token
        # A decision is accepted from any claim, also after a repeat has taken over the entry.
        unwritten = tuple(self.unwritten.items())  # other threads may add some meanwhile
        decided = (token for token, each in unwritten if each.state.is_decided and each.at.key == at.key)
        return next(decided, None)

    async def write(self, token: str) -> Entry | None:
        """Write a settlement, if its claim was written; return the current entry.

        Raises:
            Exception: The ledger cannot be used. A later call writes the settlement.
        """
        claim, now = self.unwritten[token], time.monotonic()
        key, payload = claim.at.key, claim.at.payload
        entry = await self.ledger.get(key)
        if claim.state.is_decided or (entry is not None and self.is_unwritten(entry)):
            settlement = claim.settlement()
            entry = await self.ledger.settle(key, token=token, payload=payload, settlement=settlement)
        elif claim.until >= now:
            return entry
        self.unwritten.pop(token, None)
        return entry

    def error_of(self, at: Place) -> LoanError | None:
        """Return the error with the decision about an approval, if it is not written yet."""
        unwritten = tuple(self.unwritten.values())  # other threads may add some meanwhile
        errors = [each.error for each in unwritten if each.at == at and each.error is not None]
        return copy_error(errors[0]) if errors else None

    @property
    def has_unwritten(self) -> bool:
        """True if `write_unwritten` has something to do."""
        is_due = self._outlives_process and self._last_number.is_due(self.ledger.number)
        return bool(self.unwritten) or is_due

    async def write_unwritten(self, within: float, number: int = 1) -> None:
        """Write some settlements of earlier approvals, and the number of the last write to its file.

        Args:
            within: Seconds that one settlement may take.
            number: Settlements to write at most.
        """
        for token in tuple(self.unwritten)[:number]:
            with suppress(KeyError):  # another call has written it meanwhile
                # After a failure, for example of the user's cipher, the next call tries another one.
                self.unwritten[token] = self.unwritten.pop(token)
                await self.attempt(partial(self.write, token), within)
        header = self.ledger.known_header
        if self._outlives_process and header is not None:
            with suppress(Exception):  # the decision is stored: a folder that hangs or fails changes nothing
                async with asyncio.timeout(_FILE_TIMEOUT):
                    await in_thread(self._last_number.write, header, self.ledger.number)

    async def aclose(self) -> None:
        """Write the remaining settlements. Leave the ledger open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self.write_unwritten(self.policy.patience, _MAX_UNWRITTEN)


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run a function that uses files in a thread, or here while the interpreter shuts down."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except RuntimeError:  # no thread can be started any more
        return function(*arguments)


async def claim_until(ledger: Ledger, until: float, **arguments: Any) -> Entry:
    """Claim an entry as `Ledger.claim` does, unless a monotonic time has passed, also if this is repeated."""
    return await ledger.claim(**arguments, within=until - time.monotonic())
