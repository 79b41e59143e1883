"""Looking at all rows of a file before any is asked for: what is wrong, who is known, what the plan is."""

from collections.abc import Callable
from itertools import islice

from loanasync.cli.approve_many.report import Plan
from loanasync.cli.approve_many.resume import Memory, Past
from loanasync.cli.rows.orders import Order, Orders
from loanasync.cli.rows.source import Finding

_TO_BE_ASKED: frozenset[Past] = frozenset({"new", "busy"})
_AT_ONCE = 64  # rows that are looked up in a ledger together


def survey(orders: Orders, memory: Memory, tell: Callable[[Finding], object]) -> Plan:
    """Read all rows, tell of what is wrong with any, and ask for none."""
    plan = Plan()
    read = orders.read()
    with memory.looking_up() as look_up:
        while some := tuple(islice(read, _AT_ONCE)):
            look_up([order.code for order in some if order.row is not None])
            for order in some:
                for finding in order.findings:
                    tell(finding)
                _count(plan, order, memory)
    return plan


def _count(plan: Plan, order: Order, memory: Memory) -> None:
    plan.rows += 1
    if order.row is None:
        plan.invalid += 1
        plan.duplicates += order.is_duplicate
        return
    past = memory.past(order.code)
    setattr(plan, past, getattr(plan, past) + 1)
    if past == "new":
        plan.amount += order.row.request.amount
    if past not in _TO_BE_ASKED and not memory.is_reported(order.code):
        plan.untold[past] += 1
