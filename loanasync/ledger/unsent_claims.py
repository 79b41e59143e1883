"""Claims whose request was never sent, and their release."""

import asyncio
import os
import time
from collections import OrderedDict
from contextlib import suppress

from attrs import define

from loanasync._log import LOGGER
from loanasync._transport.failures import was_cancelled
from loanasync.ledger.model import Entry, Settlement
from loanasync.ledger.protocol import DecisionLedger

_MOST = 10_000  # claims
_LATEST = 120.0  # seconds after which no claim reaches a ledger that answers
_FIRST, _LAST = 0.5, 10.0  # seconds between two attempts


@define
class _Claim:
    key: str
    payload: str
    settlement: Settlement
    given_up: float


class UnsentClaims:
    """The claims of a client that were given up before their request was sent.

    A claim can reach the ledger long after its call gave it up, such as when the server hangs. So it is kept
    here until its release is written: by its own call, in the background, or by a later call that finds its
    token in the entry. A release that arrives before its claim is repeated for two minutes.

    Args:
        ledger: The ledger.
        patience: Seconds that one release may take.
    """

    def __init__(self, ledger: DecisionLedger, patience: float) -> None:
        self._ledger = ledger
        self._patience = patience
        self._claims: OrderedDict[str, _Claim] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._process = os.getpid()  # a forked child has no task of its parent's

    def has(self, entry: Entry) -> bool:
        """Return True if one of these claims owns the entry, and its release is not written yet."""
        claim = self._claims.get(entry.token)
        return claim is not None and (entry.state, entry.note) != (
            claim.settlement.state,
            claim.settlement.note,
        )

    def add(self, token: str, key: str, payload: str, settlement: Settlement) -> None:
        """Remember a claim, and how it is to be settled."""
        self._claims[token] = _Claim(key, payload, settlement, time.monotonic())
        while len(self._claims) > _MOST:
            self._claims.popitem(last=False)

    async def release(self, token: str) -> Entry:
        """Release a claim, and return its entry as it stands now.

        Raises:
            Exception: The ledger cannot be used; `release` can be repeated.
        """
        claim = self._claims[token]
        entry = await self._ledger.settle(
            claim.key, token=token, payload=claim.payload, settlement=claim.settlement
        )
        is_late = time.monotonic() - claim.given_up > _LATEST
        # A release that made the entry itself was there before the claim. That claim could still be won, once
        # the entry has been claimed and released with another token.
        has_landed = entry.token == token and entry.expires > entry.claimed
        if has_landed or is_late:
            self._claims.pop(token, None)
        return entry

    def go_on(self) -> None:
        """Release what is left in the background, as long as the event loop runs."""
        task = self._task
        is_running = task is not None and not task.done() and task.get_loop().is_running()
        if self._claims and not (is_running and self._process == os.getpid()):
            self._process = os.getpid()
            self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def _repeat(self) -> None:
        pause = _FIRST
        while self._claims:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST)
            await self._release_all(self._patience)

    async def _release_all(self, within: float) -> None:
        """Release each claim, until the ledger fails or needs more than `within` seconds for one."""
        try:
            for token in tuple(self._claims):
                async with asyncio.timeout(within):
                    await self.release(token)
        except (Exception, asyncio.CancelledError) as error:  # of a backend: it may work later
            if isinstance(error, asyncio.CancelledError) and was_cancelled():
                raise
            LOGGER.debug("claims are still to be released (%s)", type(error).__name__)

    async def aclose(self, within: float) -> None:
        """End the background task of this event loop, after a last attempt of at most `within` seconds."""
        task, self._task = self._task, None
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait({task})
        if self._claims:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._release_all(within)
