"""Claims whose request was never sent, and their release."""

import asyncio
import os
import time
from collections import OrderedDict
from contextlib import suppress
from logging import DEBUG

from attrs import define

from loanasync._lifecycle import was_cancelled
from loanasync._log import log
from loanasync.ledger.model import Entry, Settlement
from loanasync.ledger.protocol import DecisionLedger

_MAX_CLAIMS = 10_000
_LATE_CLAIM_LIMIT = 120.0  # seconds after which an abandoned claim no longer reaches the ledger
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0  # seconds between two attempts in the background


@define
class _Claim:
    key: str
    payload: str
    settlement: Settlement
    abandoned_at: float


class UnsentClaims:
    """The claims of a client that were abandoned before their request was sent.

    A claim can reach the ledger long after its call has abandoned it, for example while the server hangs. So
    each abandoned claim is stored here until its release is written. The call itself, a background task, or a
    later call that finds the claim's token in the entry writes the release. If the release may have arrived
    before the claim, it is repeated for two minutes.

    Args:
        ledger: The ledger.
        patience: Seconds that one release may take.
    """

    def __init__(self, ledger: DecisionLedger, patience: float) -> None:
        self._ledger = ledger
        self._patience = patience
        self._claims: OrderedDict[str, _Claim] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._process = os.getpid()  # the background task does not exist in a forked child

    def owns(self, entry: Entry) -> bool:
        """Return True if one of these claims owns the entry and its release has not been written."""
        claim = self._claims.get(entry.token)
        return claim is not None and (entry.state, entry.note) != (
            claim.settlement.state,
            claim.settlement.note,
        )

    def add(self, token: str, key: str, payload: str, settlement: Settlement) -> None:
        """Add a claim and the settlement that releases it. Drop the oldest claim if there are too many."""
        self._claims[token] = _Claim(key, payload, settlement, time.monotonic())
        while len(self._claims) > _MAX_CLAIMS:
            self._claims.popitem(last=False)

    async def release(self, token: str) -> Entry:
        """Release a claim, and return its current entry.

        Raises:
            Exception: The ledger cannot be used; call `release` again later.
        """
        claim = self._claims[token]
        entry = await self._ledger.settle(
            claim.key, token=token, payload=claim.payload, settlement=claim.settlement
        )
        is_late = time.monotonic() - claim.abandoned_at > _LATE_CLAIM_LIMIT
        # A release that arrives before its claim creates the entry with a lease of zero seconds. The late
        # claim could then succeed after another owner has released the entry, so repeat the release.
        is_written = entry.token == token and entry.expires > entry.claimed
        if is_written or is_late:
            self._claims.pop(token, None)
        return entry

    def start_background_release(self) -> None:
        """Start a task that releases the remaining claims, unless one is running in a live event loop."""
        task = self._task
        is_running = task is not None and not task.done() and task.get_loop().is_running()
        if self._claims and not (is_running and self._process == os.getpid()):
            self._process = os.getpid()
            self._task = asyncio.get_running_loop().create_task(self._release_in_background())

    async def _release_in_background(self) -> None:
        pause = _FIRST_PAUSE
        while self._claims:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            await self._release_all(self._patience)

    async def _release_all(self, within: float) -> None:
        """Release all claims. Stop if the ledger fails or a release takes more than `within` seconds."""
        try:
            for token in tuple(self._claims):
                async with asyncio.timeout(within):
                    await self.release(token)
        except (Exception, asyncio.CancelledError) as error:  # from the backend; it may work later
            if isinstance(error, asyncio.CancelledError) and was_cancelled():
                raise
            log(DEBUG, "claims could not be released (%s); trying again later", type(error).__name__)

    async def aclose(self, within: float) -> None:
        """Stop the background task of this event loop, then try once more for at most `within` seconds."""
        task, self._task = self._task, None
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait({task})
        if self._claims:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._release_all(within)
