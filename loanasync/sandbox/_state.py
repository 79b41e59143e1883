"""What the sandbox remembers of each customer of a shop (spec §3)."""

import secrets
from collections import deque
from typing import Any

from attrs import define, field, frozen

__all__ = ["Customer", "Entry", "Memory"]

_LONGEST_JOURNAL = 1000


@define
class Customer:
    """One request, identified by shop and fiscal code (spec §2.1)."""

    additional_data_needed: bool = False
    approved: bool | None = None  # spec §3: created, then approved or refused, and no further states
    documents: bool = False
    faults_answered: int = 0
    request: dict[str, Any] = field(factory=dict, repr=False)
    page: str = field(factory=lambda: secrets.token_urlsafe(12))
    finished: bool = False


@frozen
class Entry:
    """One call in the journal; nothing personal is in it.

    Args:
        method: HTTP method.
        route: Path template, such as ``/api/shops/{shopId}/requests``.
        status: HTTP status that was answered.
        evaluated: Whether this very call decided the request.
    """

    method: str
    route: str
    status: int
    evaluated: bool


class Memory:
    """All customers by fiscal code, for the one shop that the sandbox knows, and the journal."""

    def __init__(self) -> None:
        self.customers: dict[str, Customer] = {}
        self.journal: deque[Entry] = deque(maxlen=_LONGEST_JOURNAL)

    def page(self, name: str) -> Customer | None:
        """The customer whose web application has this address."""
        return next((each for each in self.customers.values() if each.page == name), None)
