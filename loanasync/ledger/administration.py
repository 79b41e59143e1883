"""Changes of a ledger's header by a person: create, move to another service, rotate the key, confirm."""

from attrs import evolve

from loanasync._config import normalized_url
from loanasync.errors import ConfigurationError
from loanasync.ledger.header import Header, mismatch, rotated
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.policy import LedgerPolicy


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
    """Allow clients to send again after a ledger lost writes. A person has restored what is known.

    Clients forget the numbers of the earlier writes. So it can also be called before a client has noticed.

    Raises:
        Exception: The ledger does not exist or cannot be used.
    """
    header = await ledger.header()
    # Later than the epoch of an earlier confirmation, which the restored copy may lack.
    epoch = max(header.epoch + 1, int(await ledger.time_of_day()))
    await _change(ledger, header, evolve(header, has_lost_writes=False, epoch=epoch))


async def _change(ledger: Ledger, header: Header, new: Header) -> None:
    if not await ledger.change_header(header, new):
        raise mismatch(header.name, "was changed by another command at the same time: run this one again")
