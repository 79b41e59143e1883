"""Bring the orders of the example shop up to date: run it from cron, and report its output to your staff."""

import asyncio
from pathlib import Path
from typing import Literal

from checkout import open_client
from shop_orders import Order, Orders

from loanasync import LoanClient
from loanasync.checkout import Ask, OrderError, Page, settle


async def settle_orders(client: LoanClient, orders: Orders) -> list[str]:
    """Settle all orders that are held. Return a line for each one that needs a person."""
    open_orders = await orders.where("loan_state = 'held'")
    lines = []
    for order in open_orders:
        try:
            page = await settle(client, order)
        except (OrderError, ValueError) as error:  # the other orders are settled nevertheless
            lines.append(f"order {order.number}: {error}")
        else:
            if isinstance(page, Ask):
                lines.append(f"order {order.number}: {page.advice}, entry {page.entry}")
    return lines


async def state_outcome(
    client: LoanClient, order: Order, outcome: Literal["approved", "refused", "not_evaluated"], ticket: str
) -> Page | None:
    """Write the outcome that the service named for an order of `settle_orders`, and settle the order."""
    await client.resolve(await order.customer(), outcome, source="staff", order_id=order.number, note=ticket)
    return await settle(client, order)


async def main() -> None:
    """Settle the orders of the shop that runs in this folder."""
    async with open_client() as client:
        print(*await settle_orders(client, Orders(Path("orders.db"))), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
