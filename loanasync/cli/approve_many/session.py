"""The session of a run: its options, its ledger, and the clients that use the ledger."""

import asyncio
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from loanasync import Dialect
from loanasync._environment import LEDGER_CIPHER, shop_settings
from loanasync._shop import Shop, configure
from loanasync.cli.approve_many.client import BulkClient
from loanasync.cli.approve_many.files import Output, check_distinct_files, files_of_ledger
from loanasync.cli.ledger.open import OpenLedger, UnusableError, settings_of
from loanasync.ledger import Ledger, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.ledger.address import cipher_of, name_without_password
from loanasync.ledger.guard import LedgerGuard
from loanasync.ledger.policy import state_folder


@frozen(kw_only=True)
class RunOptions:
    """The options of a run.

    Args:
        out: The results.
        ledger: Name of the ledger; None for the default one.
        members: Columns by member of the body of a creation. None: create no request.
        rejected: Path of the file of rejected rows.
        dialect: The dialect of the requests.
        limits: The options of `LoanClient.approve_many`.
    """

    out: Output
    ledger: str | None
    members: Mapping[str, str] | None
    rejected: str | None
    dialect: Dialect
    limits: Mapping[str, Any]


@frozen(kw_only=True)
class Session:
    """An open ledger, which is that of the results, and the settings of its clients.

    Args:
        runner: The event loop.
        use: The ledger.
        settings: The arguments of a client.
        name: Name of the ledger for messages.
        ledger_id: Its id.
        is_new: True if this run has created it.
    """

    runner: asyncio.Runner
    use: OpenLedger
    settings: Mapping[str, Any]
    name: str
    ledger_id: str
    is_new: bool

    def client(self) -> BulkClient:
        """Return a client with the ledger."""
        return BulkClient(**self.settings, ledger=self.use.ledger, ledger_policy=self.use.policy)


@contextmanager
def open_session(options: RunOptions, *, creates: bool) -> Iterator[Session]:
    """Open the ledger of a run, and close it afterwards.

    Args:
        options: The options.
        creates: Create the default ledger, if it is missing. A plan creates no file.

    Raises:
        ConfigurationError: A variable is not set, or an option or a value is invalid.
        UnusableError: The ledger cannot be used, or the results were written with another one.
    """
    settings = shop_settings(os.environ)
    shop = configure(**settings)
    is_new = False
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        ledger: Ledger
        if options.ledger is not None:
            found = settings_of(options.ledger)
            ledger, policy, name = found.ledger, found.policy, name_without_password(options.ledger)
        else:
            policy = LedgerPolicy(encrypt=cipher_of(os.environ.get(LEDGER_CIPHER)))
            file = _default_file(shop, creates=creates)
            name, is_new = str(file), not file.exists()
            check_distinct_files(files_of_ledger(name), (*options.out.files, options.rejected))
            if is_new:
                options.out.check(None, name)  # before the ledger is created
            ledger = SqliteLedger(file) if creates or not is_new else MemoryLedger()
        stack.callback(lambda: runner.run(ledger.aclose()))
        use = OpenLedger(ledger, runner, policy)
        try:
            ledger_id = use.run(LedgerGuard(ledger, policy, shop.base_url).keys()).header.id
        except UnusableError as error:
            if options.ledger is not None:
                raise
            raise UnusableError(f"{name}: {error}; pass --ledger") from None
        options.out.check(ledger_id, name)
        arguments = {**settings, "dialect": options.dialect}
        yield Session(
            runner=runner, use=use, settings=arguments, name=name, ledger_id=ledger_id, is_new=is_new
        )


def _default_file(shop: Shop, *, creates: bool) -> Path:
    """Return the file of the ledger of a service and a shop. All runs of this user share it."""
    digest = hashlib.sha256(f"{shop.base_url} {shop.shop_id}".encode()).hexdigest()[:12]
    try:
        folder = state_folder() / "ledgers"
        if creates:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (RuntimeError, OSError) as error:
        reason = getattr(error, "strerror", None) or "there is no home directory"
        raise UnusableError(f"the default ledger cannot be used ({reason}): pass --ledger") from None
    return folder / f"{urlsplit(shop.base_url).hostname}-{digest}.db"
