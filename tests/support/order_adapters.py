"""Checks of the order adapters of the documentation. Django's runs in a process with its settings."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from attrs import evolve

from loanasync import Refused
from loanasync.checkout import OrderError, Page, Redirect, checkout, settle
from loanasync.ledger import MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approval_request,
    approved,
    computed,
    fiscal_code,
    refused,
    response,
    scripted_client,
)

CREATED = response(201, {})
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
LEAVES = 60

Query = Callable[[str], Awaitable[Any]]  # returns the value that a statement selects


async def click(client: Any, order: Any, code: str) -> Page:
    request = approval_request(amount=order.amount)
    payload, fields = {"fiscalCode": code}, ["fiscal_code"]
    return await checkout(
        client, code, request, order=order, payload=payload, fields=fields, approved_url="/"
    )


async def check_adapter(order_of: Callable[[str], Any], query: Query, *, kept: int = 0) -> None:
    """Check an adapter with orders ``A-1`` to ``A-300`` of 450 euros, which `order_of` returns.

    It may keep a number of connections in its pool.
    """
    before = await query(CONNECTIONS)
    await _decides(order_of)
    await _keeps_connections(order_of, query, before + kept)
    await _shows_no_value(order_of("A-3"), query)


async def _decides(order_of: Callable[[str], Any]) -> None:
    code, first, second = fiscal_code(), order_of("A-1"), order_of("A-2")
    client = scripted_client(CREATED, approved(), CREATED, refused(), ledger=MemoryLedger())
    held = ("held", '{"code": "\\u0000"}')
    changes = [await each.change(("free", ""), held) for each in (first, evolve(first, amount=1), first)]
    assert changes == [True, False, False]
    assert await first.loan() == held
    assert await first.change(held, ("free", ""))
    for order, kind in ((first, Redirect), (second, Refused)):
        pages = [await click(client, order, code), await click(client, order, code)]
        assert [type(page) for page in (*pages, await settle(client, order))] == [kind] * 3


async def _keeps_connections(order_of: Callable[[str], Any], query: Query, most: int) -> None:
    """Shoppers leave while their approval is in progress."""

    async def leave(_: SentRequest) -> ScriptedResponse:
        clicks[len(left)].cancel()
        left.append(None)
        await asyncio.sleep(0)
        return approved()

    left: list[None] = []
    steps = [each for _ in range(LEAVES) for each in (CREATED, computed(leave))]
    client = scripted_client(*steps, ledger=MemoryLedger(), max_concurrency=1)
    orders = [order_of(f"A-{number}") for number in range(101, 101 + LEAVES)]
    clicks: list[asyncio.Task[Page]] = []
    for order in orders:
        clicks.append(asyncio.create_task(click(client, order, fiscal_code())))
        await asyncio.wait(clicks[-1:])
    assert all(each.cancelled() for each in clicks)
    await client.aclose()  # waits for the decisions
    assert [(await order.loan())[0] for order in orders] == ["approved"] * LEAVES
    async with asyncio.timeout(30):
        while await query(CONNECTIONS) > most:  # noqa: ASYNC110  (until the server has noticed their end)
            await asyncio.sleep(0.05)


async def _shows_no_value(order: Any, query: Query) -> None:
    code = fiscal_code()
    await query("ALTER TABLE orders RENAME COLUMN loan TO lost")
    with pytest.raises(OrderError, match=r"Order\.loan failed: ProgrammingError in") as caught:
        await click(scripted_client(), order, code)
    assert code not in f"{caught.value}{caught.value.original}"


def main() -> None:
    """Check the adapter for Django, with the port and the password of a PostgreSQL server."""
    import django  # noqa: PLC0415  (it is configured here)
    from django.conf import settings  # noqa: PLC0415  (likewise)
    from django.db import connection  # noqa: PLC0415  (likewise)

    server = {"HOST": "127.0.0.1", "PORT": sys.argv[1], "USER": "postgres", "PASSWORD": sys.stdin.read()}
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", **server}
    settings.configure(DATABASES={"default": database}, USE_TZ=True)
    django.setup()
    from orders_django import Order, OrderRow, in_database  # noqa: PLC0415  (likewise)

    with connection.schema_editor() as editor:
        editor.create_model(OrderRow)
    OrderRow.objects.bulk_create(OrderRow(number=f"A-{each}", amount=45_000) for each in range(1, 301))
    connection.close()

    async def query(statement: str) -> Any:
        def run() -> Any:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchone()[0] if cursor.description else None

        return await in_database(run)

    asyncio.run(check_adapter(lambda number: Order(number, 45_000), query))


if __name__ == "__main__":
    main()
