"""Snapshots, resets and state files, also after a kill of the process."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from loanasync.sandbox.sqlite import StateFileError
from support.raw_shop import BODY, CODE, Raw

ALREADY = {"errors": {"domain": ["User already evaluated for approval"]}}


@contextlib.asynccontextmanager
async def shop_at(sandbox: Any) -> Any:
    async with aiohttp.ClientSession() as session:
        yield Raw(sandbox, session)


async def test_state_file_is_loaded_by_the_next_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    async with Sandbox(state=file) as sandbox, shop_at(sandbox) as raw:
        await raw.create(additionalDataNeeded=False)
        await raw.approve(email="a+civic.500x2@example.com")
        await raw.approve(email="a+civic.500x2@example.com")
        _, approved = await raw.approve(email="a+civic.500x2@example.com")
        await raw("POST", f"/{CODE}/documents", {})
        before = sandbox.snapshot()
    page = approved["redirectUrl"].partition("#")[0].rpartition("/")[2]
    async with Sandbox(state=str(file)) as sandbox, shop_at(sandbox) as raw:
        assert sandbox.snapshot() == before
        assert await raw.approve() == (400, ALREADY)
        assert (await raw("PATCH", f"/{CODE}", {"profession": "baker"}))[0] == 500, "its tag is stored, too"
        async with raw.session.get(f"{sandbox.base_url}/apply/{page}") as response:
            assert response.status == 200


async def test_restarted_sandbox_keeps_its_customers(tmp_path: Path) -> None:
    sandbox = Sandbox(state=tmp_path / "shop.sqlite")
    async with sandbox, shop_at(sandbox) as raw:
        await raw.create()
    sandbox.reset(CODE)
    async with sandbox, shop_at(sandbox) as raw:
        assert (await raw.approve())[1]["errors"]["domain"] == ["User not found"]
    async with Sandbox(state=tmp_path / "shop.sqlite") as other:
        assert other.snapshot() == {}, "the file was replaced by the state of the object"


async def test_state_file_in_use_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    async with Sandbox(state=file):
        with pytest.raises(StateFileError, match="another sandbox uses it"):
            await Sandbox(state=file).start()
    async with Sandbox(state=file):
        pass


async def test_other_file_is_rejected_and_unchanged(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("some text that is longer than the header of a database" * 20)
    foreign = tmp_path / "foreign.sqlite"
    with contextlib.closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE friends (name TEXT)")
    kept = foreign.read_bytes()
    for file, message in ((text, "file is not a database"), (foreign, "not a state file of this sandbox")):
        with pytest.raises(StateFileError, match=message):
            await Sandbox(state=file).start()
    with pytest.raises(StateFileError, match="unable to open"):
        await Sandbox(state=tmp_path / "nowhere" / "shop.sqlite").start()
    assert foreign.read_bytes() == kept


async def test_restore_undoes_decisions(raw: Raw) -> None:
    await raw.create()
    created = raw.sandbox.snapshot()
    assert (await raw.approve())[0] == 201
    approved = raw.sandbox.snapshot()
    raw.sandbox.restore(created)
    assert (await raw.approve(email="a+refused@example.com"))[0] == 422
    raw.sandbox.restore(approved)
    assert await raw.approve() == (400, ALREADY)
    assert raw.sandbox.snapshot().keys() == {CODE}
    assert str(approved) == "<Snapshot of 1 customer>"
    for wrong in ({CODE: "nonsense"}, {CODE: "[]"}, {CODE: '{"name": 1}'}):
        with pytest.raises(ValueError, match="pass the value that snapshot"):
            raw.sandbox.restore(wrong)
    assert await raw.approve() == (400, ALREADY), "the state is unchanged"


async def test_snapshot_can_be_restored_in_another_sandbox(raw: Raw, tmp_path: Path) -> None:
    await raw.create()
    await raw.approve()
    text = json.dumps(raw.sandbox.snapshot())
    async with Sandbox(state=tmp_path / "shop.sqlite") as other, shop_at(other) as shop:
        other.restore(json.loads(text))
        assert await shop.approve() == (400, ALREADY)
    async with Sandbox(state=tmp_path / "shop.sqlite") as again, shop_at(again) as shop:
        assert await shop.approve() == (400, ALREADY)


async def test_one_customer_or_all_can_be_reset(tmp_path: Path) -> None:
    other = "TSTXYZ00A00A000B"
    async with Sandbox(state=tmp_path / "shop.sqlite") as sandbox, shop_at(sandbox) as raw:
        for code in (CODE, other):
            await raw("POST", "", {"fiscalCode": code})
            await raw("POST", f"/{code}", BODY)
        sandbox.reset(CODE)
        assert (await raw.create())[0] == 201
        assert (await raw("POST", f"/{other}", BODY))[1] == ALREADY
        with pytest.raises(KeyError, match="unknown fiscal code"):
            sandbox.reset("TSTXYZ00A00A000C")
        sandbox.on().respond(500)
        sandbox.reset()
        assert (len(sandbox.journal), sandbox.findings, sandbox.snapshot()) == (0, [], {})
        assert (await raw("POST", f"/{other}", BODY))[1]["errors"]["domain"] == ["User not found"]


async def test_oldest_customers_are_forgotten_beyond_the_limit(tmp_path: Path) -> None:
    codes = [f"TSTXYZ00A00A00{number}A" for number in range(4)]
    async with Sandbox(customers=3, state=tmp_path / "shop.sqlite") as sandbox, shop_at(sandbox) as raw:
        for code in codes:
            await raw("POST", "", {"fiscalCode": code})
            await raw("POST", f"/{code}", BODY)
        assert list(sandbox.snapshot()) == codes[1:]
        async with raw.session.get(f"{sandbox.base_url}/_sandbox/") as page:
            assert "1 older customer forgotten" in await page.text()
        assert len(sandbox._engine.customers._by_page) == 3
    async with Sandbox(customers=3, state=tmp_path / "shop.sqlite") as sandbox:
        assert list(sandbox.snapshot()) == codes[1:]


async def approve_until_it_ends(
    raw: Raw, worker: int, statuses: dict[str, int], enough: asyncio.Event
) -> None:
    """Approve one customer after another until the connection fails; store each received status."""
    number = 0
    while True:
        code = f"TST{worker:03d}{number:010d}"
        tag = "+refused" if number % 2 else ""
        try:
            await raw("POST", "", {"fiscalCode": code})
            status, _ = await raw("POST", f"/{code}", {**BODY, "email": f"a{tag}@example.com"})
        except aiohttp.ClientError:
            return
        statuses[code] = status
        if len(statuses) >= 100:
            enough.set()
        number += 1


async def test_received_decision_survives_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    statuses: dict[str, int] = {}
    enough = asyncio.Event()
    with Sandbox.subprocess(state=file) as process:
        async with shop_at(process) as raw:
            workers = [
                asyncio.ensure_future(approve_until_it_ends(raw, each, statuses, enough)) for each in range(8)
            ]
            await enough.wait()
            process.kill()
            await asyncio.gather(*workers)
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    async with Sandbox(state=file, customers=100_000) as sandbox, shop_at(sandbox) as raw:
        remembered = {code: json.loads(record) for code, record in sandbox.snapshot().items()}
        assert {code: remembered[code]["approved"] for code in statuses} == {
            code: status == 201 for code, status in statuses.items()
        }
        for code in list(statuses)[:5]:
            assert await raw("POST", f"/{code}", BODY) == (400, ALREADY)
