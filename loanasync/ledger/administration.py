"""Operations on a whole ledger: create, sweep, copy, forget a customer, rotate the key, confirm."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from loanasync._shop import normalized_url
from loanasync.errors import ConfigurationError
from loanasync.ledger.header import Header, check_cipher, cipher_check, mismatch, rotated
from loanasync.ledger.keys import Place
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import Entry, Settlement, State
from loanasync.ledger.orphans import orphan_files
from loanasync.ledger.policy import Cipher, LedgerPolicy
from loanasync.ledger.transitions import LEASE_EXPIRED

_AT_ONCE = 64  # operations of the ledger in progress
_LEASE_MARGIN = 1.0  # seconds


async def create_ledger(ledger: Ledger, *, base_url: str, policy: LedgerPolicy | None = None) -> None:
    """Create an empty ledger for the clients of one service.

    Clients never create a ledger on a server: an empty server would be requested for every customer again.

    Args:
        ledger: The ledger to create.
        base_url: Base URL of the service, as the clients use it.
        policy: The policy of the clients. Its key and its cipher are the ledger's from then on.

    Raises:
        ConfigurationError: The ledger exists, or the URL is invalid.
        LedgerMismatchError: The policy has no key and needs one, or there are other data.
        Exception: The ledger cannot be used; `create_ledger` can be repeated.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loanasync.ledger import SqliteLedger, create_ledger
        >>> with TemporaryDirectory() as folder:
        ...     ledger = SqliteLedger(f"{folder}/decisions.db", must_exist=True)
        ...     run(create_ledger(ledger, base_url="https://loans.example.com"))
        ...     run(ledger.get("missing"))
        ...     run(ledger.aclose())
    """
    if not await ledger.create(normalized_url(base_url), policy or LedgerPolicy()):
        raise ConfigurationError("ledger", "exists already: name another file, table or prefix")


async def sweep(ledger: Ledger) -> list[Entry]:
    """Settle every claim whose lease has expired as UNKNOWN.

    Run it periodically, and alert on the entries that it returns. A decision that arrives later is still
    written. Calls treat such an entry as UNKNOWN with or without a sweep.

    Args:
        ledger: The ledger.

    Returns:
        The entries that were settled, as they are now. Entries that an earlier sweep
            settled are not returned again.

    Raises:
        Exception: The ledger cannot be used; `sweep` can be repeated.

    Example:
        >>> from loanasync.ledger import MemoryLedger, sweep
        >>> ledger = MemoryLedger()
        >>> _ = run(ledger.claim("k", token="t", payload="p", lease=0.0))
        >>> [entry.state for entry in run(sweep(ledger))]
        [<State.UNKNOWN: 'unknown'>]
        >>> run(sweep(ledger))
        []
    """
    settlement = Settlement(state=State.UNKNOWN, note=LEASE_EXPIRED)
    # An UNKNOWN entry that is stored as INFLIGHT has `changed == expires`: it changed when its lease expired.
    expired = [entry async for entry in ledger.scan(State.UNKNOWN) if entry.changed == entry.expires]
    return [
        await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)
        for entry in expired
    ]


async def move_service(ledger: Ledger, base_url: str) -> None:
    """Change the base URL that a ledger belongs to, after the service has moved.

    Raises:
        Exception: The URL is invalid, or the ledger does not exist or cannot be used.
    """
    header = await ledger.header()
    await _change(ledger, header, evolve(header, service=normalized_url(base_url)))


async def rotate_key(ledger: Ledger, policy: LedgerPolicy) -> None:
    """Change the key of new entries to that of the policy, or to a new secret of the ledger.

    The check value of the cipher is written again. If only the cipher has changed, the key may stay.

    Args:
        ledger: The ledger.
        policy: A policy with the new key and, in `LedgerPolicy.old_keys`, all keys of the ledger.

    Raises:
        Exception: The policy lacks a key of the ledger, or the ledger does not exist or cannot be used.
    """
    header = await ledger.header()
    await _change(ledger, header, rotated(header, policy))


async def confirm(ledger: Ledger) -> None:
    """Allow clients to send again after a ledger lost writes, or was copied. It has all that is known.

    Clients forget the numbers of the earlier writes. So it can also be called before a client has noticed.

    Raises:
        Exception: The ledger does not exist or cannot be used.
    """
    header = await ledger.header()
    # Later than the epoch of an earlier confirmation, which the restored copy may lack.
    epoch = max(header.epoch + 1, int(await ledger.time_of_day()))
    await _change(ledger, header, evolve(header, mark="", epoch=epoch))


async def _change(ledger: Ledger, header: Header, new: Header) -> None:
    if not await ledger.change_header(header, new):
        raise mismatch(header.name, "was changed by another command at the same time: run this one again")


@frozen
class Copied:
    """The result of a copy: entries by state, and the keys of those that both ledgers decided otherwise."""

    counts: Counter[str] = field(factory=Counter)
    contradictions: list[str] = field(factory=list)


async def copy_ledger(source: Ledger, target: Ledger, policy: LedgerPolicy, *, moves: bool = False) -> Copied:
    """Copy the identity and all entries of a ledger to another one, which no client uses until `confirm`.

    The target is created, or has the id of the source; then nothing is weakened there. With a cipher in the
    policy, the responses are encrypted again.

    Args:
        source: The ledger to copy. Clients may use it.
        target: The ledger to write.
        policy: The policy of the command.
        moves: Mark the source first, so that no claim is written there, and wait for requests in progress.

    Raises:
        LedgerMismatchError: The target is another ledger, or the cipher is not that of a ledger.
        Exception: A ledger cannot be used; the copy can be repeated.
    """
    header, cipher = await source.refresh(), policy.encrypt
    await _prepare(header, target, policy)
    if moves and header.mark != "moved":
        await _change(source, header, evolve(header, mark="moved"))
    copied, in_flight = Copied(), []

    async def copy(entry: Entry) -> None:
        current = await target.put(_encrypted_again(entry, cipher, is_encrypted=bool(header.cipher)))
        if entry.state.is_decided and current.state.is_decided and entry.state is not current.state:
            copied.contradictions.append(entry.key)

    waiting: list[Entry] = []
    async for entry in source.scan():
        copied.counts[entry.state.value] += 1
        if entry.state is State.INFLIGHT:  # copied as unknown now, it would stay so if it is released
            in_flight.append(entry)
            continue
        waiting.append(entry)
        if len(waiting) == _AT_ONCE:
            await asyncio.gather(*map(copy, waiting))
            waiting.clear()
    await asyncio.gather(*map(copy, waiting))
    for entry in in_flight:  # it may be decided by now
        within = entry.left + _LEASE_MARGIN if moves else 0.0
        if (latest := await source.wait(entry.key, within)) is not None:
            copied.counts.update({entry.state.value: -1, latest.state.value: 1})
            await copy(latest)
    return copied


async def _prepare(header: Header, target: Ledger, policy: LedgerPolicy) -> None:
    """Create the target of a copy of the ledger with this header, or add the keys that it lacks."""
    if header.cipher:
        check_cipher(header, policy)
    check = "" if policy.encrypt is None else cipher_check(policy.encrypt, header.id)
    if await target.create_with(evolve(header, mark="copy", cipher=check)):
        return
    stored = await target.refresh()
    if stored.id != header.id:
        raise mismatch(stored.name, "is another ledger: name one that does not exist, or an earlier copy")
    check_cipher(stored, policy)
    keys, secrets = (
        (*old, *(each for each in new if each not in old))
        for old, new in ((stored.keys, header.keys), (stored.secrets, header.secrets))
    )
    if keys != stored.keys:  # that of the source was rotated since the earlier copy
        await _change(target, stored, evolve(stored, keys=keys, secrets=secrets))


def _encrypted_again(entry: Entry, cipher: Cipher | None, *, is_encrypted: bool) -> Entry:
    if cipher is None or entry.body is None:
        return entry
    return evolve(entry, body=cipher.encrypt(cipher.decrypt(entry.body) if is_encrypted else entry.body))


async def forget(ledger: Ledger, places: Sequence[Place], folders: Iterable[Path]) -> int | None:
    """Erase the entries and the orphan files of a customer, and stop all orders until a person releases them.

    Args:
        ledger: The ledger.
        places: The places of the customer's approval without an order.
        folders: The folders with orphan files.

    Returns:
        The number of entries and files that were erased; None if a request is in progress. Then nothing was.

    Raises:
        Exception: The ledger cannot be used; the call can be repeated.
    """
    found = [entry for each in places for entry in await ledger.entries_of(each.subject.customer)]
    if any(entry.state is State.INFLIGHT for entry in found):
        return None
    number = 0
    for folder in folders:
        for key in {entry.key for entry in found}:
            for file in await asyncio.to_thread(orphan_files, folder, key):
                await asyncio.to_thread(file.unlink, missing_ok=True)
                number += 1
    await ledger.erase(places[0].key, places[0].subject.customer)
    for entry in found:
        await ledger.erase(entry.key, entry.customer)
    return number + sum(entry.state is not State.ERASED for entry in found)
