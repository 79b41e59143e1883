"""Bring the orders of the example shop up to date: run it from cron, and report its output to your staff."""

import asyncio
import json
from pathlib import Path
from typing import Literal

from attrs import field, frozen
from checkout import open_client
from shop_orders import Order, Orders

from loanasync import LoanClient
from loanasync.checkout import Ask, OrderError, Page, settle


@frozen
class Question:
    """An order that needs a person. Without an entry, no outcome can be stated."""

    order: Order
    text: str
    entry: str = ""
    customer: str = field(default="", repr=False)


async def settle_orders(client: LoanClient, orders: Orders) -> list[Question]:
    """Settle all orders that are held. Return those that need a person."""
    found: list[Question] = []
    for order in await orders.where("loan_state = 'held'"):
        try:
            page = await settle(client, order)
        except (OrderError, ValueError) as error:  # the other orders are settled nevertheless
            found.append(Question(order, str(error)))
        else:
            if isinstance(page, Ask):
                entry, customer = await open_entry(order, page)
                text = f"Ask the service for its decision. Entry in the ledger: {entry}"
                found.append(Question(order, text if entry else str(page.error), entry, customer))
    return found


async def open_entry(order: Order, page: Ask) -> tuple[str, str]:
    """Return the entry and the fiscal code for which the service must be asked, or empty texts."""
    state, loan = await order.loan()
    if state == "held" and page.advice == "ask_service":
        members = json.loads(loan)  # of another customer, if the order has changed since `settle`
        if page.entry and members["entry"] == page.entry:
            return page.entry, members["code"]
    return "", ""


async def state_outcome(
    client: LoanClient,
    order: Order,
    entry: str,
    outcome: Literal["approved", "refused", "not_evaluated"],
    ticket: str,
) -> Page | None:
    """Write the outcome that the service named for an entry of `settle_orders`, and settle the order."""
    page = await settle(client, order)
    if not isinstance(page, Ask):  # its outcome has arrived meanwhile
        return page
    found, customer = await open_entry(order, page)
    if found != entry:
        raise ValueError("nothing was written, because the order has changed; read it again")
    await client.resolve(customer, outcome, source="staff", order_id=order.number, note=ticket)
    return await settle(client, order)


async def main() -> None:
    """Settle the orders of the shop in this folder; fail without the ledger."""
    async with open_client() as client:
        await client.check_ledger()
        for each in await settle_orders(client, Orders(Path("orders.db"))):
            print(f"Order {each.order.number}: {each.text}")


if __name__ == "__main__":
    asyncio.run(main())
