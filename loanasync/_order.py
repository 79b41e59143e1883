"""The columns for the loan in an order of a shop, and how clicks change them at the same time."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from logging import ERROR, WARNING
from traceback import walk_tb
from typing import Any, Protocol

from attrs import asdict, evolve, field, frozen

from loanasync._models.classes import name_by_package
from loanasync._models.masking import mask
from loanasync._models.texts import Advice
from loanasync._telemetry.log import log

_TRIES = 50  # other clicks may change an order meanwhile


class Order(Protocol):
    """Protocol of an order in your database, which all workers share.

    The order has two columns for its loan. Only `checkout` and `settle` write them, by `change`, except as
    stated here:

    ``loan_state``
        ``free``, the default: no click holds the order. You may change its amount, in a statement with
        ``WHERE loan_state = 'free'``.

        ``held``: a click holds it for a customer. The hold of an approval with an unknown outcome, or of a
        killed worker, stays until `settle` frees the order.

        ``approved`` or ``refused``: decided for good.

        ``paid``: write this when the customer pays otherwise, in one statement: ``UPDATE orders SET
        loan_state = 'paid' WHERE number = :number AND loan_state IN ('free', 'refused')``.
    ``loan``
        A text, by default empty. Otherwise it is JSON with personal data: protect and delete it like the
        order. Its member ``code`` is the fiscal code, ``entry`` the key of the entry in the ledger, for your
        staff, and ``decision`` that of `Approved.to_dict`.

    If the shopper leaves, the last methods run after the request has ended, so each method opens a new
    database connection.

    Example:
        >>> changed = run(order.change(("free", ""), ("paid", "")))
        >>> order.number, order.amount, changed, run(order.loan())
        ('A-1001', 45000, True, ('paid', ''))
    """

    @property
    def number(self) -> str:
        """Number of the order, the `order_id` of `LoanClient.approve`: not personal, and not the cookie."""

    @property
    def amount(self) -> int:
        """Amount of the order, in euro cents."""

    async def loan(self) -> tuple[str, str]:
        """Return the columns ``(loan_state, loan)``, as they are stored now."""

    async def change(self, old: tuple[str, str], new: tuple[str, str], /) -> bool:
        """Change both columns in one statement, and return True if this changed the row.

        ``UPDATE orders SET loan_state = :new_state, loan = :new_loan WHERE number = :number AND amount =
        :amount AND loan_state = :old_state AND loan = :old_loan``

        Args:
            old: The columns that the row must still have.
            new: The new columns.
        """


class OrderError(Exception):
    """A method of your `Order` failed. Its text has the class of the error, and the line of your code.

    Attributes:
        original: The error of your method. Its text and its traceback may contain personal values, such as
            those of a statement: do not log it. A pickle contains it.

    Example:
        >>> print(OrderError("loan", "OSError", "/shop/orders.py", 17))
        Order.loan failed: OSError in /shop/orders.py, line 17
    """

    original: Exception | None = None

    def __str__(self) -> str:
        return "Order.{} failed: {} in {}, line {}".format(*self.args)


@frozen
class Loan:
    """The columns of an order: the state, and the members of the text."""

    state: str
    order: str = ""
    amount: int = 0  # for which the order is held or decided
    code: str = field(default="", repr=mask)
    holds: Mapping[str, float] = field(factory=dict)  # clicks, and when their approvals cannot begin any more
    entry: str = ""
    advice: Advice = "wait"  # of the last error
    decision: Mapping[str, Any] | None = field(default=None, repr=mask)
    stored: tuple[str, str] = field(default=("free", ""), eq=False, repr=mask)

    @property
    def columns(self) -> tuple[str, str]:
        """Return the columns to store."""
        members = asdict(self, filter=lambda each, _: each.name not in ("state", "stored"))
        return self.state, "" if self.state == "free" else json.dumps(members)

    def noted(self, entry: str | None, advice: Advice) -> "Loan":
        """Return a held order with the entry and the advice of an error."""
        return evolve(self, entry=entry or "", advice=advice) if self.state == "held" else self

    def without(self, hold: str) -> "Loan":
        """Return the order without a hold. The last one frees the order."""
        others = {key: until for key, until in self.holds.items() if key != hold}
        if self.state != "held" or others == self.holds:
            return self
        return evolve(self, holds=others) if others else FREE


FREE = Loan("free")


async def _call(order: Order, method: str, *columns: tuple[str, str]) -> Any:  # noqa: ANN401  (not checked yet)
    """Call a method of an order.

    Raises:
        OrderError: The method failed. Neither its error nor its frames are in the traceback.
    """
    try:
        return await getattr(order, method)(*columns)
    except Exception as error:  # noqa: BLE001  (raised again, without its text)
        frame, line = [*walk_tb(error.__traceback__)][:2][-1]  # of the shop, behind that of this function
        failure = OrderError(method, type(error).__name__, frame.f_code.co_filename, line)
        failure.original = error
        del frame  # a cycle would keep the values of the shop's function
    finally:
        del columns
    try:
        raise failure
    finally:
        del failure  # breaks the reference cycle of error, traceback and frame


def described(error: BaseException) -> str:
    """Return the text of an `OrderError`. That of another error may contain personal values."""
    return str(error) if isinstance(error, OrderError) else type(error).__name__


async def read_loan(order: Order) -> Loan:
    """Return the columns of an order.

    Raises:
        OrderError: `Order.loan` failed.
        ValueError: They are not as `Order.change` wrote them.
    """
    columns = await _call(order, "loan")
    with suppress(TypeError, ValueError, LookupError):  # their texts and frames may be personal
        is_open = columns[0] in ("free", "paid")
        loan = Loan(columns[0], stored=columns[:2], **({} if is_open else json.loads(columns[1])))
        if is_open or loan.order == order.number:
            return loan
    del columns
    raise ValueError(
        "Order.loan must return the columns (loan_state, loan) as Order.change wrote them for this order, "
        "or ('free', '')"
    )


async def change_loan(order: Order, change: Callable[[Loan], Loan]) -> Loan:
    """Change the columns of an order, again if another click was faster. Return them.

    Raises:
        OrderError: A method of the order failed.
        TypeError: `Order.change` returned no bool.
    """
    loan = await read_loan(order)
    for _ in range(_TRIES):
        if (new := change(loan)) == loan:
            return loan
        is_changed: object = await _call(order, "change", loan.stored, new.columns)
        if not isinstance(is_changed, bool):  # such as the result of an UPDATE, which is true for 0 rows
            raise TypeError(f"Order.change must return a bool, not {type(is_changed).__name__}")
        if is_changed:
            return new
        loan = await read_loan(order)
    log(WARNING, "checkout: Order.change changed nothing: check its WHERE, and the amount of the order")
    return loan


async def change_or_log(order: Order, entry: str, change: Callable[[Loan], Loan]) -> Loan | None:
    """Change an order whose page is known and is shown. Log an error, and return None.

    The text of an error may contain personal values.
    """
    try:
        return await change_loan(order, change)
    except (Exception, asyncio.CancelledError) as error:  # also the end of the event loop
        log(ERROR, "checkout, entry %s: the order was not changed: %s", entry or "-", described(error))
        if isinstance(error, asyncio.CancelledError):
            raise
    return None


__all__ = ["Order", "OrderError"]

name_by_package(globals(), "loanasync.checkout")
