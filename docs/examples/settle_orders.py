"""Bring the orders of the example shop up to date: run it from cron, and report its output to your staff."""

import asyncio
from pathlib import Path
from typing import Literal

from checkout import open_client
from shop_orders import Order, Orders

from loanasync import LoanClient
from loanasync.checkout import Ask, OrderError, Page, settle


async def settle_orders(client: LoanClient, orders: Orders) -> list[tuple[Order, Ask | None, str]]:
    """Settle all orders that are held. Return those that need a person, each with its page and a text."""
    found: list[tuple[Order, Ask | None, str]] = []
    for order in await orders.where("loan_state = 'held'"):
        try:
            page = await settle(client, order)
        except (OrderError, ValueError) as error:  # the other orders are settled nevertheless
            found.append((order, None, str(error)))
        else:
            if isinstance(page, Ask):
                found.append((order, page, f"{page.advice}, entry {page.entry}"))
    return found


async def state_outcome(
    client: LoanClient, order: Order, outcome: Literal["approved", "refused", "not_evaluated"], ticket: str
) -> Page | None:
    """Write the outcome that the service named for an order of `settle_orders`, and settle the order."""
    page = await settle(client, order)
    if not isinstance(page, Ask):  # its outcome has arrived meanwhile
        return page
    await client.resolve(await order.customer(), outcome, source="staff", order_id=order.number, note=ticket)
    return await settle(client, order)


async def main() -> None:
    """Settle the orders of the shop that runs in this folder."""
    async with open_client() as client:
        for order, _, text in await settle_orders(client, Orders(Path("orders.db"))):
            print(f"order {order.number}: {text}")


if __name__ == "__main__":
    asyncio.run(main())
