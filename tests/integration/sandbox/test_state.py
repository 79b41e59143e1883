"""Resets and state files, also after a kill of the process and with resets in another thread."""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Sandbox, StateFileError
from support.processes import sandbox_process
from support.raw_shop import BODY, CODE, Raw, codes

ALREADY = {"errors": {"domain": ["User already evaluated for approval"]}}
OTHER = "TSTXYZ00A00A000B"


@contextlib.asynccontextmanager
async def shop_at(sandbox: Any) -> AsyncIterator[Raw]:
    async with aiohttp.ClientSession() as session:
        yield Raw(sandbox, session)


@contextlib.asynccontextmanager
async def serving(sandbox: Sandbox) -> AsyncIterator[Raw]:
    async with sandbox, shop_at(sandbox) as raw:
        yield raw


async def test_state_file_is_loaded_by_the_next_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    sandbox = Sandbox(state="shop.sqlite")
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with serving(sandbox) as raw:
        await raw.create(additionalDataNeeded=False)
        for _ in range(2):
            await raw.approve(email="a+civic.500x2@example.com")
        _, approved = await raw.approve(email="a+civic.500x2@example.com")
        await raw("POST", f"/{CODE}/documents", {})
        before = raw.sandbox._engine.customers.items()
    assert os.listdir() == []  # noqa: PTH208  (a list to compare)
    page = approved["redirectUrl"].partition("#")[0].rpartition("/")[2]
    async with serving(Sandbox(state=tmp_path / "shop.sqlite")) as raw:
        assert raw.sandbox._engine.customers.items() == before
        assert await raw.approve() == (400, ALREADY)
        assert (await raw("PATCH", f"/{CODE}", {"profession": "baker"}))[0] == 500, "its tag is stored, too"
        async with raw.session.get(f"{raw.sandbox.base_url}/apply/{page}") as response:
            assert response.status == 200


async def test_restarted_sandbox_reads_its_file_again(tmp_path: Path) -> None:
    first, second = (Sandbox(state=tmp_path / "shop.sqlite") for _ in range(2))
    for sandbox, code in ((first, CODE), (second, OTHER)):
        async with serving(sandbox) as raw:
            await raw("POST", "", {"fiscalCode": code})
    async with first:
        assert codes(first) == [CODE, OTHER]
        first.reset(CODE)
    async with serving(second) as raw:
        assert codes(second) == [OTHER]
        await raw("POST", "", {"fiscalCode": CODE})
    async with first:
        assert codes(first) == [OTHER, CODE]


async def test_faults_of_a_tag_are_stored_and_others_are_not(tmp_path: Path) -> None:
    for status in (500, 201):
        sandbox = Sandbox(state=tmp_path / "shop.sqlite", faults=["upload_documents=500x1"])
        async with serving(sandbox) as raw:
            await raw.create()
            assert (await raw.approve(email="a+500x1@example.com"))[0] == status
            assert [(await raw("POST", f"/{CODE}/documents", {}))[0] for _ in range(2)] == [500, 201]


async def test_unusable_state_file_is_rejected_and_unchanged(tmp_path: Path) -> None:
    file, text, foreign = (tmp_path / name for name in ("shop.sqlite", "text", "foreign.sqlite"))
    text.write_text("some text that is longer than the header of a database" * 20)
    with contextlib.closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE friends (name TEXT)")
    kept = foreign.read_bytes()
    for wrong, message in (
        (text, "file is not a database"),
        (foreign, "not a state file of this version"),
        (tmp_path / "nowhere" / "shop.sqlite", "unable to open"),
    ):
        with pytest.raises(StateFileError, match=message):
            await Sandbox(state=wrong).start()
    assert foreign.read_bytes() == kept
    async with Sandbox(state=file):
        with pytest.raises(StateFileError, match="another sandbox uses it"):
            await Sandbox(state=file).start()
    for record in ('{"name": "maybe"}', "[]", "nonsense", '{"orders": {"a": 1}}'):
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute("REPLACE INTO customers VALUES (?, ?)", (CODE, record))
        for _ in range(2):
            with pytest.raises(StateFileError, match="not a state file of this version"):
                await Sandbox(state=file).start()
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("DELETE FROM customers")
    with pytest.raises(OverflowError):
        await Sandbox(port=70_000, state=file).start()
    async with Sandbox(state=file):  # each failed start has released the file
        pass


async def test_one_customer_or_all_can_be_reset(tmp_path: Path) -> None:
    async with serving(Sandbox(state=tmp_path / "shop.sqlite")) as raw:
        sandbox = raw.sandbox
        for code in (CODE, OTHER):
            await raw("POST", "", {"fiscalCode": code})
            await raw("POST", f"/{code}", BODY)
        sandbox.reset(f" {CODE.lower()} ")
        assert (await raw.create())[0] == 201
        assert (await raw("POST", f"/{OTHER}", BODY))[1] == ALREADY
        await raw("POST", "/tstxyz00a00a000c", {})  # another client may send it like this
        sandbox.reset("tstxyz00a00a000c")
        sandbox.fault("500")
        sandbox.reset()
        assert (len(sandbox.journal), sandbox.findings, [*sandbox._engine.faults]) == (0, [], [])
        assert codes(sandbox) == []
        assert (await raw("POST", f"/{OTHER}", BODY))[1]["errors"]["domain"] == ["User not found"]


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (None, TypeError, "fiscal_code must be a str, not NoneType"),
        ("", ValueError, "fiscal_code is empty"),
        (OTHER, KeyError, "unknown fiscal code"),
    ],
)
async def test_reset_of_an_unknown_code_is_an_error(
    raw: Raw, code: Any, error: type[Exception], message: str
) -> None:
    await raw.create()
    with pytest.raises(error, match=message):
        raw.sandbox.reset(code)
    assert codes(raw.sandbox) == [CODE]


async def test_oldest_customers_are_forgotten_beyond_the_limit(tmp_path: Path) -> None:
    sent = [f"TSTXYZ00A00A00{number}A" for number in range(4)]
    async with serving(Sandbox(customers=3, state=tmp_path / "shop.sqlite")) as raw:
        for code in sent:
            await raw("POST", "", {"fiscalCode": code})
            await raw("POST", f"/{code}", BODY)
        assert codes(raw.sandbox) == sent[1:]
        async with raw.session.get(f"{raw.sandbox.base_url}/_sandbox/") as page:
            assert "1 older customer forgotten" in await page.text()
    async with Sandbox(customers=2, state=tmp_path / "shop.sqlite") as sandbox:
        assert codes(sandbox) == sent[2:]


@pytest.mark.parametrize("alone", [True, False])
async def test_call_that_waits_during_a_reset_changes_nothing(tmp_path: Path, *, alone: bool) -> None:
    async with serving(Sandbox(state=tmp_path / "shop.sqlite")) as shop:
        await shop.create()
        waiting = asyncio.ensure_future(shop.approve(email="a+slow300@example.com"))
        customer = shop.sandbox._engine.customers.of(CODE)
        while not customer.calls.get("approve"):  # noqa: ASYNC110  (a waiting call sends no event)
            await asyncio.sleep(0)
        shop.sandbox.reset(*[CODE] * alone)
        assert (await waiting)[0] == 500
        assert (codes(shop.sandbox), shop.sandbox.findings) == ([], [])
        assert shop.sandbox.journal.calls(operation="approve") == []
    async with Sandbox(state=tmp_path / "shop.sqlite") as again:
        assert codes(again) == []


async def test_call_of_a_reset_customer_whose_shop_disconnects_is_not_saved(tmp_path: Path) -> None:
    async with serving(Sandbox(state=tmp_path / "shop.sqlite")) as shop:
        await shop.create()
        customer = shop.sandbox._engine.customers.of(CODE)
        waiting = asyncio.ensure_future(shop.approve(email="a+slow60000after@example.com"))
        while not customer.order.approved:  # noqa: ASYNC110  (a waiting call sends no event)
            await asyncio.sleep(0)
        shop.sandbox.reset(CODE)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with Sandbox(state=tmp_path / "shop.sqlite") as again:
        assert codes(again) == []


async def test_response_that_was_lost_is_known_after_a_restart(tmp_path: Path) -> None:
    async with serving(Sandbox(state=tmp_path / "shop.sqlite")) as shop:
        await shop.create()
        waiting = asyncio.ensure_future(shop.approve(email="a+slow60000after@example.com"))
        while not shop.sandbox._engine.customers.of(CODE).order.approved:  # noqa: ASYNC110  (it sends no event)
            await asyncio.sleep(0)
        waiting.cancel()
        await shop.sandbox.journal.wait_for(operation="approve")
    async with serving(Sandbox(state=tmp_path / "shop.sqlite")) as again:
        await again.approve()
        assert [finding.rule for finding in again.sandbox.findings] == ["repeat-after-lost-response"]


def test_concurrent_resets_leave_a_working_sandbox(tmp_path: Path) -> None:
    """Two clients send requests during resets: all responses are regular and no call hangs."""
    with Sandbox.in_thread(state=tmp_path / "shop.sqlite") as sandbox:
        ended = threading.Event()

        def reset() -> None:
            while not ended.is_set():
                sandbox.reset()

        async def send(code: str, times: int) -> set[int]:
            async with shop_at(sandbox) as raw:
                paths = (("", {"fiscalCode": code}), (f"/{code}/documents", {})) * times
                return {(await raw("POST", path, data))[0] for path, data in paths}

        with ThreadPoolExecutor(3) as pool:
            resetting = pool.submit(reset)
            futures = [pool.submit(asyncio.run, send(code, 40)) for code in (CODE, OTHER)]
            try:
                found = set().union(*(each.result(60) for each in futures))
            finally:
                ended.set()
            resetting.result(30)
        assert found <= {201, 400, 500}, "a call that was reset while waiting is a 500"
        sandbox.reset()
        assert (len(sandbox.journal), codes(sandbox), sandbox.findings) == (0, [], [])
        assert asyncio.run(send(CODE, 1)) == {201}


async def test_received_decision_survives_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    statuses: dict[str, int] = {}
    enough = asyncio.Event()

    async def approve_until_it_ends(raw: Raw, worker: int) -> None:
        number = 0
        with contextlib.suppress(aiohttp.ClientError):
            while True:
                code, tag = f"TST{worker:03d}{number:010d}", "+refused" if number % 2 else ""
                await raw("POST", "", {"fiscalCode": code})
                statuses[code] = (await raw("POST", f"/{code}", {**BODY, "email": f"a{tag}@example.com"}))[0]
                if len(statuses) >= 100:
                    enough.set()
                number += 1

    with sandbox_process("-m", "loanasync.sandbox", "--state", str(file)) as (process, base_url):
        async with shop_at(SimpleNamespace(base_url=base_url)) as raw:
            workers = [asyncio.ensure_future(approve_until_it_ends(raw, each)) for each in range(8)]
            await enough.wait()
            process.kill()
            await asyncio.gather(*workers)
    async with serving(Sandbox(state=file)) as raw:
        remembered = dict(raw.sandbox._engine.customers.items())
        assert {code: remembered[code].order.approved for code in statuses} == {
            code: status == 201 for code, status in statuses.items()
        }
        assert await raw("POST", f"/{next(iter(statuses))}", BODY) == (400, ALREADY)
