"""An order of a shop in memory."""

import json
from typing import Any


class MemoryOrder:
    """An order as `loanasync.checkout` uses it.

    Attributes:
        row: The columns ``(loan_state, loan)``.
    """

    def __init__(self, number: str = "A-1001", amount: int = 45_000) -> None:
        self.number, self.amount = number, amount
        self.row = ("free", "")

    async def loan(self) -> tuple[str, str]:
        return self.row

    async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        is_same = self.row == old
        if is_same:
            self.row = new
        return is_same

    def is_held_until(self, seconds: float, code: str = "TSTXYZ00A00A000A") -> None:
        """Hold the order, as a click does that another process runs."""
        held = {"order": self.number, "amount": self.amount, "code": code, "holds": {"other": seconds}}
        self.row = ("held", json.dumps(held))

    @property
    def members(self) -> dict[str, Any]:
        """Return the members of the text."""
        members: dict[str, Any] = json.loads(self.row[1] or "{}")
        return members

    @property
    def holds(self) -> int:
        """Return the number of clicks that hold the order; 1 if it is decided."""
        return {"free": 0, "held": len(self.members.get("holds", ()))}.get(self.row[0], 1)

    @property
    def code(self) -> str:
        return str(self.members.get("code", ""))

    @property
    def entry(self) -> str:
        return str(self.members.get("entry", ""))

    @property
    def stored(self) -> Any:
        """Return the stored decision, None before."""
        return self.members.get("decision")
