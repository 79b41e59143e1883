"""Ledgers that block a worker at a named point, where a test kills it."""

import time
from typing import Any

from loanasync.ledger import Entry


def stop(point: str) -> None:
    """Print the point, and block the event loop."""
    print(point, flush=True)  # noqa: T201  (the test waits for it)
    time.sleep(3600)


class StoppingMixin:
    """Mixin for ledgers that stops after a claim or before a settlement ("commit")."""

    point = ""

    async def claim(self, key: str, **options: Any) -> Entry:
        entry: Entry = await super().claim(key, **options)  # type: ignore[misc]  # of the ledger's class
        self._stop_at("after claim")
        return entry

    async def settle(self, key: str, **options: Any) -> Entry:
        self._stop_at("before commit")
        entry: Entry = await super().settle(key, **options)  # type: ignore[misc]  # see `claim`
        return entry

    def _stop_at(self, point: str) -> None:
        if point == self.point:
            stop(point)
