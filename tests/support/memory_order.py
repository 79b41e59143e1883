"""An order of a shop in memory."""

from collections.abc import Mapping
from typing import Any


class MemoryOrder:
    """An order as `loanasync.checkout` uses it."""

    def __init__(self, number: str = "A-1001") -> None:
        self.number = number
        self.code, self.holds, self.entry = "", 0, ""
        self.stored: Mapping[str, Any] | None = None

    async def decision(self) -> Mapping[str, Any] | None:
        return self.stored

    async def hold(self, fiscal_code: str) -> int:
        if self.holds and self.code != fiscal_code:
            return 0
        self.code, self.holds = fiscal_code, self.holds + 1
        return self.holds

    async def release(self) -> None:
        self.holds -= 1

    async def save(self, entry: str, decision: Mapping[str, Any] | None) -> None:
        self.entry, self.stored = entry, self.stored or decision
