"""`LoanClient.resolve` with each shared ledger: processes that wait, concurrent claims and statements."""

import asyncio
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from loanasync import LoanError, NotResolvedError, Refused
from loanasync.ledger import Entry, Ledger, Settlement, SqliteLedger, State
from loanasync.testing import approval_request, approved, connection_lost
from support.builders import FISCAL_CODE
from support.ledger_clients import Shop, create, held_response
from support.server_ledgers import PostgresStore, ValkeyStore
from support.servers import Valkey


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Ledger]:
    if request.param == "sqlite":
        opener: Callable[[], Ledger] = partial(SqliteLedger, tmp_path / "decisions.db")
    else:
        server = request.getfixturevalue(request.param)
        opener = (ValkeyStore(server) if isinstance(server, Valkey) else PostgresStore(server)).opener()
    async with opener() as ledger:
        await create(ledger)
    return opener


@pytest.fixture(autouse=True)
def _own_orphan_folder(opened: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del opened  # its server has started, with the usual temporary folder
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def end_of(shop: Shop, outcome: str) -> Entry | LoanError:
    try:
        return await shop.client.resolve(FISCAL_CODE, outcome, source="webhook")  # type: ignore[arg-type]
    except LoanError as error:
        return error


async def test_resolve_settles_and_repeats_without_change(opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger, opened() as other:
        shop = Shop(connection_lost(), ledger=ledger)
        await shop.result()
        first = await end_of(shop, "refused")
        assert isinstance(first, Entry)
        assert [change.state for change in first.history] == [State.UNKNOWN]
        another = Shop(ledger=other)
        assert await end_of(another, "refused") == first
        contradiction = await end_of(another, "approved")
        assert isinstance(contradiction, NotResolvedError)
        assert contradiction.state == "refused"
        assert isinstance(await another.approve(), Refused)


async def test_resolve_wakes_a_process_that_waits(opened: Callable[[], Ledger]) -> None:
    """A worker died: another one waits, and the webhook's statement is written when the lease ends."""
    async with opened() as ledger, opened() as other:
        shop = Shop(ledger=ledger)
        ended = await shop.put(State.RELEASED)
        await ledger.claim(ended.key, token="dead", payload=ended.payload, lease=0.2)
        waiting = asyncio.create_task(other.wait(ended.key, 60))
        entry = await end_of(shop, "refused")
        assert isinstance(entry, Entry)
        assert entry.state is State.REFUSED
        assert (await waiting) is not None
        assert await other.wait(ended.key, 60) == entry


async def test_resolve_finds_the_entry_by_its_order(opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        shop = Shop(connection_lost(), ledger=ledger)
        await shop.result(request=approval_request(order_token="A1"), scope="spring")
        entry = await shop.client.resolve(FISCAL_CODE, "refused", source="webhook", order_token="A1")
        assert (entry.scope, entry.state) == ("spring", State.REFUSED)
        with pytest.raises(NotResolvedError, match="no entry"):
            await shop.client.resolve(FISCAL_CODE, "refused", source="webhook", order_token="A2")


async def test_concurrent_statements_leave_one_decision(opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger, opened() as other:
        shop = Shop(connection_lost(), ledger=ledger)
        await shop.result()
        another = Shop(ledger=other)
        ends = await asyncio.gather(
            *(end_of(each, outcome) for each in (shop, another) for outcome in ("approved", "refused") * 4)
        )
        entry = await shop.entry()
        settled = [end for end in ends if isinstance(end, Entry)]
        assert len(settled) == len(ends) / 2
        assert {end.state for end in settled} == {entry.state}
        contradicted = [end for end in ends if isinstance(end, NotResolvedError)]
        assert {error.state for error in contradicted} == {entry.state}
        assert len(entry.history) == 1


async def test_statement_and_late_response_leave_one_decision(opened: Callable[[], Ledger]) -> None:
    """The lease ends, and the response arrives while the statement is written."""
    async with opened() as ledger, opened() as other:
        for number in range(4):
            step, arrived, go = held_response(approved())
            shop = Shop(step, ledger=ledger)
            scope = f"{number}"
            call = asyncio.create_task(shop.result(scope=scope))
            await arrived.wait()
            [entry] = [each async for each in ledger.scan(State.INFLIGHT)]
            unknown = Settlement(state=State.UNKNOWN, note="the lease expired")
            await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=unknown)
            resolving = Shop(ledger=other).client.resolve(
                FISCAL_CODE, "refused", source="webhook", scope=scope
            )
            statement = asyncio.create_task(resolving)
            for _ in range(number):
                await asyncio.sleep(0)
            go.set()
            await asyncio.wait({call, statement})
            found = await ledger.get(entry.key)
            assert found is not None
            if found.source == "service":
                assert found.state is State.APPROVED
                assert isinstance(statement.exception(), NotResolvedError)
            else:
                assert statement.result() == found
                assert found.state is State.REFUSED
