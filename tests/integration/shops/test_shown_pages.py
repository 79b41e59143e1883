"""The page that a shopper sees when the clicks of an order end differently, over real sockets."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loanasync.ledger import LedgerPolicy, SqliteLedger, create_ledger
from loanasync.sandbox import Sandbox
from support.example_shops import FORM, address_of, listen, serving

OTHER_CUSTOMER = {**FORM, "fiscal_code": "TSTXYZ00A00A000B"}
NOT_AVAILABLE = "We are sorry: payment in instalments is not available now."
WAIT = "Your request is still being decided"
OTHER_DATA = "You have already applied with other data"


@asynccontextmanager
async def worker(sandbox: Sandbox, folder: Path, **policy: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A worker of a shop; all workers share the ledger and the orders in a folder."""
    ledger = SqliteLedger(folder / "decisions.db")
    client = sandbox.client(ledger=ledger, ledger_policy=LedgerPolicy(**policy))
    with listen() as sock:
        async with (
            ledger,
            serving("fastapi", client, sock, folder),
            httpx.AsyncClient(base_url=address_of(sock), timeout=60) as browser,
        ):
            yield browser


def tagged(tag: str) -> dict[str, str]:
    return {**FORM, "email": f"anna+{tag}@example.com"}


def heading(page: httpx.Response) -> str:
    return "".join(re.findall("<h1>(.*)</h1>", page.text))


def other_ways(page: httpx.Response) -> bool:
    return "pay by card" in page.text or "another payment method" in page.text


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no database": lambda file: file.write_bytes(b"garbage" * 400),
    "wrong header": lambda file: file.write_bytes(b"\xff" * 100 + file.read_bytes()[100:]),
    "empty": lambda file: file.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_ledger_never_sells_an_evaluated_order_twice(
    sandbox: Sandbox, tmp_path: Path, damage: str
) -> None:
    """The service may have approved the loan of the first order."""
    async with worker(sandbox, tmp_path) as browser:
        await browser.get("/")
        await browser.post("/pay", data=tagged("resetafter"))
        cookies = browser.cookies
    DAMAGES[damage](tmp_path / "decisions.db")
    async with worker(sandbox, tmp_path) as browser:
        browser.cookies = cookies
        page = await browser.post("/pay", data=tagged("resetafter"))
        assert (heading(page)[:35], other_ways(page)) == (WAIT, False)
        browser.cookies.clear()
        page = await browser.post("/pay", data=OTHER_CUSTOMER)
        assert (heading(page)[: len(NOT_AVAILABLE)], other_ways(page)) == (NOT_AVAILABLE, True)
    sandbox.journal.assert_once(operation="approve")


async def test_unavailable_ledger_never_sells_an_evaluated_order_twice(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    file, hidden = tmp_path / "decisions.db", tmp_path / "hidden"
    async with worker(sandbox, tmp_path) as browser:
        await browser.get("/")
        first = await browser.post("/pay", data=tagged("resetafter"))
        file.rename(hidden)
        page = await browser.post("/pay", data=tagged("resetafter"))
        assert (heading(page)[:35], other_ways(page)) == (WAIT, False)
        hidden.rename(file)
        again = await browser.post("/pay", data=tagged("resetafter"))
    assert (heading(again), other_ways(again)) == (heading(first), False)
    sandbox.journal.assert_once(operation="approve")


async def test_click_that_only_waited_does_not_hold_the_order(sandbox: Sandbox, tmp_path: Path) -> None:
    """The first click is not evaluated, so the shopper may correct the fiscal code."""
    denied = tagged("slow1000.forbidden")
    async with (
        SqliteLedger(tmp_path / "decisions.db") as ledger,
        worker(sandbox, tmp_path) as browser,
        worker(sandbox, tmp_path, wait=0) as other,
    ):
        await create_ledger(ledger, base_url=sandbox.base_url)
        await browser.get("/")
        other.cookies = browser.cookies
        first = asyncio.create_task(browser.post("/pay", data=denied))
        while not [entry async for entry in ledger.scan()]:  # noqa: ASYNC110  (another thread writes it)
            await asyncio.sleep(0.02)
        assert heading(await other.post("/pay", data=denied)).startswith(WAIT)
        busy = await other.post("/pay", data=OTHER_CUSTOMER)
        assert (busy.status_code, heading(busy)[:40]) == (409, OTHER_DATA)
        assert heading(await first).startswith(NOT_AVAILABLE)
        assert (await other.post("/pay", data=OTHER_CUSTOMER)).status_code == 303


@pytest.mark.parametrize("tag", ["approved", "refused"])
@pytest.mark.parametrize("mistyped", [{"fiscal_code": "TSTXYZ00A00A000B"}, {"city": ""}, {"city": "Rom"}])
async def test_decided_order_shows_its_decision_whatever_is_typed(
    sandbox: Sandbox, tmp_path: Path, tag: str, mistyped: dict[str, str]
) -> None:
    async with worker(sandbox, tmp_path) as browser:
        await browser.get("/")
        first = await browser.post("/pay", data=tagged(tag))
        again = await browser.post("/pay", data=tagged(tag) | mistyped)
    assert again.headers["Location"] == first.headers["Location"]
    sandbox.journal.assert_once(operation="approve")


@pytest.mark.parametrize("tag", ["approved", "refused"])
async def test_second_order_with_other_data_offers_other_ways(
    sandbox: Sandbox, tmp_path: Path, tag: str
) -> None:
    async with worker(sandbox, tmp_path) as browser:
        await browser.post("/pay", data=tagged(tag))
        browser.cookies.clear()
        page = await browser.post("/pay", data=tagged(tag) | {"instalments": "24"})
    assert (heading(page)[:40], "For another order, please choose another" in heading(page)) == (
        OTHER_DATA,
        True,
    )
