"""Restored copies of ledgers: no client sends until a person confirms."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from attrs import evolve

from loanasync import Approved, LedgerMismatchError
from loanasync.ledger import LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.ledger.administration import confirm, move_service
from loanasync.ledger.header import new_header
from loanasync.ledger.last_number import LastNumber
from loanasync.testing import approved
from support.ledger_clients import Shop, of_another_process

OTHER, THIRD = "TSTXYZ00A00A000B", "TSTXYZ00A00A000C"


async def restored() -> tuple[Shop, MemoryLedger]:
    """Return a shop whose ledger lost its last decision, and the ledger of another process."""
    ledger = MemoryLedger()
    shop = Shop(approved(), approved(), approved(), ledger=ledger)
    await shop.approve()
    store: Any = ledger._store
    entries, number = dict(store._entries), store._number
    await shop.approve(code=OTHER)
    store._entries, store._number = entries, number
    return shop, of_another_process(ledger)


async def close(shop: Shop) -> None:
    await shop.client.aclose()
    await shop.ledger.aclose()


async def refused(shop: Shop, **options: Any) -> None:
    error = await shop.result(**options)
    assert isinstance(error, LedgerMismatchError)
    assert "has lost writes" in error.reason


async def test_lower_number_stops_all_clients_until_a_person_confirms() -> None:
    shop, other = await restored()
    await refused(shop, code=THIRD)
    await refused(Shop(ledger=other), code=THIRD)
    assert shop.script.left == 1
    await confirm(other)
    assert isinstance(await shop.approve(code=THIRD), Approved)


async def test_copy_that_lacks_one_write_is_refused() -> None:
    """Its next write has the number of the last write that the client saw."""
    ledger = MemoryLedger()
    shop = Shop(approved(), approved(), ledger=ledger)
    await shop.approve()
    store: Any = ledger._store
    store._number -= 1
    await refused(shop, code=OTHER)
    assert shop.script.left == 1


@pytest.mark.parametrize("is_absolute", [True, False])
async def test_restarted_process_notices_a_restored_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    file, copy = tmp_path / "decisions.db", tmp_path / "copy.db"
    for codes in ((OTHER,), (THIRD,)):
        shop = Shop(approved(), ledger=SqliteLedger(file), orphan_folder=tmp_path / "orphans")
        for code in codes:
            await shop.approve(code=code)
        await close(shop)
        if not copy.exists():
            shutil.copy(file, copy)
    shutil.copy(copy, file)
    again = file if is_absolute else file.name
    shop = Shop(approved(), ledger=SqliteLedger(again), orphan_folder=tmp_path / "orphans")
    await refused(shop, code=THIRD)
    assert shop.script.sent == []
    await shop.ledger.aclose()


async def test_each_confirmation_of_the_same_copy_has_a_later_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients know the epoch of the earlier one, which the copy lacks."""
    ledger, epochs = MemoryLedger(), []
    store: Any = ledger._store
    copy = store._header
    for now in (1000.0, 2000.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        store._header = copy
        await confirm(other := of_another_process(ledger))
        epochs.append((await other.header()).epoch)
    assert epochs == [1000, 2000]


async def test_copy_from_before_a_confirmation_is_refused() -> None:
    """Its number may be higher than that of the last write after the confirmation."""
    ledger = MemoryLedger()
    header = await ledger.header()
    with pytest.raises(LedgerMismatchError, match="has lost writes"):
        await ledger.expect_number(header.epoch + 1, 0)


async def test_each_of_several_first_calls_notices_a_restored_copy() -> None:
    ledger = MemoryLedger()
    header = await ledger.header()
    calls = [ledger.expect_number(header.epoch, 99) for _ in range(2)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [LedgerMismatchError] * 2


async def test_copy_of_a_ledger_for_another_service_has_its_own_numbers(tmp_path: Path) -> None:
    file, copy = tmp_path / "decisions.db", tmp_path / "copy.db"
    shop = Shop(approved(), ledger=SqliteLedger(file), orphan_folder=tmp_path / "orphans")
    await shop.approve()
    await close(shop)
    shutil.copy(file, copy)
    moved = SqliteLedger(copy)
    await move_service(moved, "https://test.example.com")
    for number in range(3):
        options = {"base_url": "https://test.example.com"}
        test = Shop(approved(), ledger=moved, orphan_folder=tmp_path / "orphans", options=options)
        await test.approve(code=f"TSTXYZ00A00A001{number}")
        await test.client.aclose()
    await moved.aclose()
    again = Shop(approved(), ledger=SqliteLedger(file), orphan_folder=tmp_path / "orphans")
    assert isinstance(await again.approve(code=THIRD), Approved)
    await again.ledger.aclose()


def test_number_file_is_never_lowered(tmp_path: Path) -> None:
    header = asyncio.run(MemoryLedger().header())
    one, other = (LastNumber(lambda: (tmp_path / "orphans",)) for _ in range(2))
    assert one.read(header) == (0, 0)
    one.write(header, 7)
    other.write(header, 5)
    assert one.read(header) == other.read(header) == (header.epoch, 7)
    assert len(list((tmp_path / "orphans").iterdir())) == 1


def test_number_file_on_a_full_disk_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = asyncio.run(MemoryLedger().header())
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    LastNumber(lambda: (tmp_path,)).write(header, 7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["table loanasync_decisions", os.fsdecode(b"caff\xe9.db")])
def test_number_of_a_server_does_not_depend_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    header = evolve(asyncio.run(MemoryLedger().header()), name=name)
    last = LastNumber(lambda: (tmp_path,))
    last.write(header, 7)
    monkeypatch.chdir(tmp_path)
    assert last.read(header) == (header.epoch, 7)


async def test_failing_number_file_keeps_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no folder")

    monkeypatch.setattr(LastNumber, "write", fail)
    shop = Shop(
        approved(), ledger=SqliteLedger(tmp_path / "decisions.db"), orphan_folder=tmp_path / "orphans"
    )
    assert isinstance(await shop.approve(), Approved)
    await close(shop)


def test_number_is_written_again_after_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Mock(monotonic=Mock(side_effect=[100.0, 100.5, 101.0]))
    monkeypatch.setattr("loanasync.ledger.last_number.time", clock)
    file = LastNumber(lambda: [tmp_path])
    file.write(new_header("x", "https://loans.example.com", LedgerPolicy(), makes_secret=True), 5)
    assert [file.is_due(number) for number in (5, 6, 6)] == [False, False, True]
