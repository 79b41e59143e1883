"""The SQLite ledger when the machine's clock changes, and when its file is deleted while open."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from loanasync import Approved, DecisionNotRecordedError, LedgerUnavailableError
from loanasync.ledger import SqliteLedger, State, import_orphans, sqlite
from loanasync.testing import approved
from support.ledger_clients import Shop, held_response

HOUR = 3600.0


class Machine:
    """A fake machine: time of day, uptime and boot id."""

    def __init__(self, boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.day, self.running, self._boot = 1_800_000_000.0, 1000.0, boot
        self.start("first")
        monkeypatch.setattr(sqlite, "_BOOT_ID", boot)
        monkeypatch.setattr(sqlite, "_time_of_day", lambda: self.day)
        monkeypatch.setattr(sqlite, "_uptime", lambda: self.running)

    def start(self, mark: str) -> None:
        self._boot.write_text(mark)

    def pass_by(self, seconds: float) -> None:
        self.day += seconds
        self.running += seconds


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "boot_id", monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "decisions.db"


async def state(file: Path) -> State:
    """Return the state of the entry as another process sees it."""
    async with SqliteLedger(file) as ledger:
        entry = await ledger.get("k")
    assert entry is not None
    return entry.state


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_sqlite_lease_ignores_a_change_of_the_clock(machine: Machine, file: Path, jump: float) -> None:
    async with SqliteLedger(file) as ledger:
        entry = await ledger.claim("k", token="t", payload="p", lease=60)
        assert entry.claimed == machine.day
        machine.day += jump
        machine.pass_by(59)
        assert await state(file) is State.INFLIGHT
        machine.pass_by(2)
        assert await state(file) is State.UNKNOWN
        entry_now = await ledger.get("k")
        assert entry_now is not None
        assert entry_now.state is State.UNKNOWN


async def test_repeat_after_a_change_of_the_clock_sends_nothing_twice(machine: Machine, file: Path) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, ledger=SqliteLedger(file))
    call = asyncio.create_task(shop.approve())
    await arrived.wait()
    machine.day += HOUR
    other = shop.new_client(ledger=SqliteLedger(file))
    second = asyncio.create_task(shop.approve(other, repeat_unknown=True))
    done, _ = await asyncio.wait({second}, timeout=0.1)
    assert not done
    go.set()
    assert isinstance(await call, Approved)
    assert isinstance(await second, Approved)
    assert len(shop.script.sent) == 1
    await shop.ledger.aclose()
    await other._recorder.ledger.aclose()  # type: ignore[union-attr]


async def test_sqlite_leases_expire_when_the_machine_reboots(machine: Machine, file: Path) -> None:
    machine.day += HOUR  # the clock is ahead
    async with SqliteLedger(file) as ledger:
        await ledger.claim("k", token="t", payload="p", lease=60)
    machine.start("second")
    machine.day, machine.running = machine.day - HOUR, 10.0
    assert await state(file) is State.UNKNOWN


async def test_sqlite_clock_without_a_boot_id_is_the_time_of_day(machine: Machine, file: Path) -> None:
    machine.start("")
    async with SqliteLedger(file) as ledger:
        await ledger.claim("k", token="t", payload="p", lease=60)
        machine.day += 61
        assert await state(file) is State.UNKNOWN


async def test_sqlite_file_without_a_clock_starts_at_the_time_of_day(machine: Machine, file: Path) -> None:
    """A system without a boot id wrote the file; the owners of its leases may still be running."""
    async with SqliteLedger(file) as ledger:
        await ledger.claim("k", token="t", payload="p", lease=60)
    with sqlite3.connect(file) as other:
        other.execute("DROP TABLE clock")
    other.close()
    machine.pass_by(30)
    assert await state(file) is State.INFLIGHT


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_sqlite_file_deleted_while_open_sends_nothing(file: Path, *, is_replaced: bool) -> None:
    shop = Shop(approved(), approved(), ledger=SqliteLedger(file))
    await shop.approve()
    file.unlink()
    if is_replaced:
        async with SqliteLedger(file) as other:
            await other.get("k")
    with pytest.raises(LedgerUnavailableError, match="FileNotFoundError"):
        await shop.approve()
    assert len(shop.script.sent) == 1
    await shop.ledger.aclose()  # a person has handled it
    assert isinstance(await shop.approve(), Approved)
    await shop.ledger.aclose()


async def test_sqlite_file_deleted_during_a_request_loses_no_decision(file: Path, tmp_path: Path) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, ledger=SqliteLedger(file), orphan_folder=tmp_path / "orphans")
    call = asyncio.create_task(shop.result())
    await arrived.wait()
    file.unlink()
    go.set()
    assert isinstance(await call, DecisionNotRecordedError)
    await shop.ledger.aclose()
    assert await import_orphans(shop.ledger, tmp_path / "orphans") == 1
    assert (await shop.entry()).state is State.APPROVED
    await shop.ledger.aclose()
