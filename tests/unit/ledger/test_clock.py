"""The SQLite ledger when the machine's clock changes, and when its file is deleted while open."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loanasync import Approved, LedgerMismatchError, LedgerUnavailableError
from loanasync.ledger import LedgerPolicy, Settlement, SqliteLedger, State, sqlite
from loanasync.testing import approved
from support.ledger_clients import Shop

ORIGIN = "https://loans.example.com"
OTHER, THIRD = "TSTXYZ00A00A000B", "TSTXYZ00A00A000C"
HOUR = 3600.0
YEAR = 365 * 24 * HOUR
REFUSED = Settlement(state=State.REFUSED, status=422)


class Machine:
    """A fake machine: time of day, uptime and boot id."""

    def __init__(self, boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.day, self.running, self._boot = 1_800_000_000.0, 1000.0, boot
        self.start("first")
        monkeypatch.setattr(sqlite, "_BOOT_ID", boot)
        monkeypatch.setattr(sqlite, "_uptime", lambda: self.running)
        monkeypatch.setattr(time, "time", lambda: self.day)

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


@pytest.fixture
async def ledger(machine: Machine, file: Path) -> AsyncIterator[SqliteLedger]:  # noqa: ARG001  (its clocks)
    async with SqliteLedger(file) as opened:
        await opened.open(ORIGIN, LedgerPolicy())
        yield opened


async def state(file: Path) -> State:
    """Return the state of the entry as another process sees it."""
    async with SqliteLedger(file) as ledger:
        entry = await ledger.get("k")
    assert entry is not None
    return entry.state


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_sqlite_lease_ignores_a_change_of_the_clock(
    machine: Machine, ledger: SqliteLedger, file: Path, jump: float
) -> None:
    entry = await ledger.claim("k", token="t", payload="p", lease=60)
    assert entry.claimed == machine.day
    machine.day += jump
    machine.pass_by(59)
    assert await state(file) is State.INFLIGHT
    machine.pass_by(2)
    assert await state(file) is State.UNKNOWN


@pytest.mark.parametrize("wrong_by", [YEAR, -YEAR])
async def test_entries_are_dated_by_a_corrected_clock(machine: Machine, file: Path, wrong_by: float) -> None:
    """The first process after a boot has a wrong clock. Retention must not follow that clock."""
    right = machine.day
    machine.day += wrong_by
    async with SqliteLedger(file) as ledger:
        await ledger.open(ORIGIN, LedgerPolicy())
        await ledger.claim("k", token="t", payload="p", lease=60)
        machine.day = right
        entry = await ledger.settle("k", token="t", payload="p", settlement=REFUSED)
        assert entry.changed == right
    async with SqliteLedger(file) as ledger:
        await ledger.settle("l", token="t", payload="p", settlement=REFUSED)
        machine.pass_by(HOUR)
        assert await ledger.purge(30 * 24 * HOUR) == 0
        machine.pass_by(30 * 24 * HOUR)
        assert await ledger.purge(30 * 24 * HOUR) == 2


@pytest.mark.parametrize("uptime", [10.0, 100_000.0])
async def test_sqlite_leases_expire_when_the_machine_reboots(
    machine: Machine, ledger: SqliteLedger, file: Path, uptime: float
) -> None:
    machine.day += HOUR  # the clock is ahead
    await ledger.claim("k", token="t", payload="p", lease=60)
    await ledger.aclose()
    machine.start("second")
    machine.day, machine.running = machine.day - HOUR, uptime
    assert await state(file) is State.UNKNOWN
    async with SqliteLedger(file) as second:
        await second.claim("k", token="u", payload="p", lease=60, over="t")
    assert await state(file) is State.INFLIGHT


async def test_sqlite_leases_without_a_boot_id_follow_the_time_of_day(machine: Machine, file: Path) -> None:
    machine.start("")
    async with SqliteLedger(file) as ledger:
        await ledger.open(ORIGIN, LedgerPolicy())
        await ledger.claim("k", token="t", payload="p", lease=60)
        machine.day += 59
        assert await state(file) is State.INFLIGHT
        machine.day += 2
        assert await state(file) is State.UNKNOWN


async def test_process_that_may_not_read_the_boot_id_uses_the_same_clock(
    machine: Machine, ledger: SqliteLedger, file: Path
) -> None:
    await ledger.claim("k", token="t", payload="p", lease=60)
    machine.start("")
    assert await state(file) is State.INFLIGHT
    machine.start("first")
    assert await state(file) is State.INFLIGHT
    machine.start("")
    machine.pass_by(61)
    assert await state(file) is State.UNKNOWN


@pytest.mark.parametrize("boots", [("first", ""), ("", "first"), ("first", "", "first")])
async def test_sqlite_leases_expire_on_another_system(
    machine: Machine, file: Path, boots: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was copied between Linux and a system without boot ids."""
    async with SqliteLedger(file) as ledger:
        await ledger.open(ORIGIN, LedgerPolicy())
    for number, boot in enumerate(boots):
        machine.start(boot)
        with monkeypatch.context() as patch:
            if not boot:
                patch.delattr(time, "CLOCK_BOOTTIME")
            async with SqliteLedger(file) as ledger:
                if number:
                    assert await state(file) is State.UNKNOWN
                over = f"t{number - 1}"
                await ledger.claim("k", token=f"t{number}", payload="p", lease=60, over=over)
                assert await state(file) is State.INFLIGHT


async def create_other(file: Path) -> None:
    async with SqliteLedger(file) as other:
        await other.open(ORIGIN, LedgerPolicy())


async def test_sqlite_file_whose_write_ahead_log_was_deleted_sends_nothing(file: Path) -> None:
    """The file was restored in place while it was open: other processes do not see its writes."""
    shop = Shop(approved(), approved(), ledger=SqliteLedger(file))
    await shop.approve()
    file.with_name(f"{file.name}-wal").unlink()
    with pytest.raises(LedgerUnavailableError, match="its -wal file was deleted or replaced while it"):
        await shop.approve(code=OTHER)
    await shop.ledger.aclose()
    assert isinstance(await shop.approve(code=OTHER), Approved)
    await shop.ledger.aclose()


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_sqlite_file_moved_while_open_sends_nothing(
    file: Path, tmp_path: Path, *, is_replaced: bool
) -> None:
    shop = Shop(approved(), approved(), ledger=SqliteLedger(file))
    await shop.approve()
    file.rename(tmp_path / "moved.db")
    if is_replaced:
        await create_other(tmp_path / "other.db")
        (tmp_path / "other.db").rename(file)
    for _ in range(2):
        with pytest.raises(LedgerUnavailableError, match="was deleted or replaced while it was open"):
            await shop.approve(code=OTHER)
    assert file.exists() is is_replaced
    (tmp_path / "moved.db").replace(file)
    assert isinstance(await shop.approve(code=OTHER), Approved)
    await shop.ledger.aclose()
    await create_other(tmp_path / "other.db")
    (tmp_path / "other.db").replace(file)  # while it is closed
    with pytest.raises(LedgerMismatchError, match="was replaced by another ledger"):
        await shop.approve(code=THIRD)
    await shop.ledger.aclose()
