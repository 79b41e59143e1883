"""Everything that happened in a schedule, as the world saw it from outside of the package."""

from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from loanasync import Approved, LoanError, Refused
from loanasync.ledger.model import SERVICE

if TYPE_CHECKING:
    from loanasync.ledger import Entry
    from simulation.world import Process, World


@frozen
class Key:
    """An approval: the shop, the name of the customer, and the number of the order (0: none)."""

    shop: str
    customer: str
    order: int = 0

    def is_of_customer(self, other: "Key") -> bool:
        """Return True if both approvals are for the same customer of the same shop."""
        return (self.shop, self.customer) == (other.shop, other.customer)

    def __str__(self) -> str:
        shop = "" if self.shop == "shop-1" else f" of {self.shop}"
        return f"customer {self.customer}{f', order {self.order}' if self.order else ''}{shop}"


@define(eq=False)
class Call:
    """A call for an approval: of a caller, for a row of a bulk run, or for a message of the queue."""

    number: int
    kind: str
    process: "Process"
    guard: str
    key: Key
    started: float
    client: int = 0  # its number in the program
    other_data: bool = False
    repeats_unknown: bool = False
    is_cancelled: bool = False
    bound: float | None = None
    ended: float | None = None
    result: object = None  # a decision, an error, a task's result; None if the caller was cancelled

    def is_for_the_same_as(self, other: "Call") -> bool:
        """Return True if both calls have the same client, customer and data."""
        names = (self.process, self.client, self.key, self.other_data)
        return names == (other.process, other.client, other.key, other.other_data)

    @property
    def said(self) -> str | None:
        """The outcome that the caller was given; None without one."""
        match self.result:
            case Approved():
                return "approved"
            case Refused():
                return "refused"
            case LoanError():
                return self.result.outcome
            case dict():
                return str(self.result["outcome"])
        return None

    @property
    def decision(self) -> Approved | Refused | None:
        """The decision that the caller was given, also within an error."""
        if isinstance(self.result, Approved | Refused):
            return self.result
        found = getattr(self.result, "decision", None)
        return found if isinstance(found, Approved | Refused) else None


@define(eq=False)
class Write:
    """A request for an approval, of which at least one byte was written."""

    process: "Process"
    guard: str
    key: Key
    at: float
    behaviour: str = ""
    evaluated: bool = False
    ended: float | None = None
    received: int | None = None  # the status of the response
    proves: bool = False  # the response proves that the service evaluated nothing (readings.md R4)
    says_decided: bool = False  # the response says that the service has decided before
    approved: bool | None = None  # the decision in the received response


@define
class Record:
    """The events of a schedule."""

    world: "World" = field(repr=False)
    story: list[tuple[float, str, str]] = field(factory=list)
    calls: list[Call] = field(factory=list)
    writes: list[Write] = field(factory=list)
    violations: list[tuple[str, str]] = field(factory=list)  # names of invariants, and what happened
    printed: list[str] = field(factory=list)  # log records, spans and errors
    stray: list[str] = field(factory=list)  # errors that only asyncio's handler received
    resolved: set[Key] = field(factory=set)  # by a person
    released: list[tuple[Key, float, float]] = field(factory=list)  # nothing was evaluated between the times

    def violate(self, invariant: str, text: str) -> None:
        """Add a violation of an invariant."""
        self.violations.append((invariant, text))
        self.world.note("VIOLATION", f"{invariant}: {text}")

    def release(self, key: Key, entry: "Entry", until: float) -> None:
        """Note that an entry was released, by a client with proof about this time or by a person."""
        if entry.source == SERVICE:
            self.released.append((key, entry.claimed, until))
        else:
            for write in self.writes:
                write.proves |= write.key == key

    def is_in_flight(self, call: Call) -> bool:
        """Return True if another call may be waiting for the same customer, or a program has a ledger."""
        if self.world.plan.setup.has_ledger or any(each.ended is None for each in self.writes):
            return True
        others = [each for each in self.calls if each is not call and each.key.is_of_customer(call.key)]
        return any(each.ended is None or each.ended == self.world.now for each in others)

    def show(self, *values: Any) -> None:
        """Add texts that the package printed or would print, to be searched for personal data."""
        self.printed += [value if isinstance(value, str) else f"{value!r} {value!s}" for value in values]
