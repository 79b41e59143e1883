"""The SQLite ledger: conformance, durability, locked files and foreign files."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from loanasync import ConfigurationError, LedgerUnavailableError
from loanasync.ledger import Entry, Settlement, SqliteLedger, State
from loanasync.testing import SharedLedgerConformance, approved
from support.ledger_clients import Shop


class TestSqliteLedger(SharedLedgerConformance):
    keys = 1000

    @pytest.mark.scheduled
    async def test_very_large_ledger_returns_all_entries(self) -> None:
        self.keys = 100_000
        await self.test_large_ledger_returns_all_entries()

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self, tmp_path: Path) -> None:
        self.opener = partial(SqliteLedger, tmp_path / "decisions.db")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "decisions.db"


async def claimed(ledger: SqliteLedger, key: str) -> Entry:
    return await ledger.claim(key, token="t", payload="p", lease=60)


async def test_write_is_synced_before_it_returns(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        pragmas = ("journal_mode", "synchronous", "fullfsync")

        def inspect(connection: sqlite3.Connection) -> list[object]:
            return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]

        full = 2
        assert await ledger._database().read(inspect) == ["wal", full, 1]


async def test_concurrent_operations_share_one_commit(file: Path) -> None:
    statements: list[str] = []
    async with SqliteLedger(file) as ledger:
        await ledger._database().read(lambda connection: connection.set_trace_callback(statements.append))
        entries = await asyncio.gather(*(claimed(ledger, f"k{number}") for number in range(200)))
        assert all(entry.is_claimed_by("t") for entry in entries)
        assert statements.count("COMMIT") < 20


async def test_failing_operation_does_not_affect_others_in_its_commit(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        ends = await asyncio.gather(
            claimed(ledger, "a"),
            ledger.claim("b", token="t", payload=object(), lease=60),  # type: ignore[arg-type]
            claimed(ledger, "c"),
            return_exceptions=True,
        )
        assert isinstance(ends[1], sqlite3.Error)
        assert [entry.key async for entry in ledger.scan()] == ["a", "c"]


async def test_full_disk_raises_and_writes_nothing(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        await claimed(ledger, "k")
        limit = "PRAGMA max_page_count = {}"
        await ledger._database().read(lambda connection: connection.execute(limit.format(1)))
        large = Settlement(state=State.APPROVED, status=201, body=b"x" * 100_000)
        settle = partial(ledger.settle, "k", token="t", payload="p", settlement=large)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            await settle()
        entry = await ledger.get("k")
        assert entry is not None
        assert entry.state is State.INFLIGHT
        await ledger._database().read(lambda connection: connection.execute(limit.format(10_000)))
        assert (await settle()).state is State.APPROVED


async def test_file_locked_for_too_long_sends_nothing(file: Path) -> None:
    shop = Shop(approved(), ledger=SqliteLedger(file, patience=0.05))
    await shop.ledger.get("k")
    other = await asyncio.to_thread(sqlite3.connect, file, isolation_level=None, check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailableError, match="OperationalError"):
        await shop.approve()
    await asyncio.to_thread(other.close)
    assert (await shop.approve()).approved
    await shop.ledger.aclose()


@pytest.mark.parametrize(
    ("sql", "advice"),
    [
        ("CREATE TABLE notes (text)", "is not a ledger: name another file"),
        (
            "PRAGMA user_version = 3",
            "was written by a later version of loanasync: install that version here, too",
        ),
    ],
)
async def test_file_of_another_kind_or_version_is_unchanged_and_reported(
    file: Path, sql: str, advice: str
) -> None:
    if sql.startswith("PRAGMA"):
        async with SqliteLedger(file) as ledger:
            await claimed(ledger, "k")
    with sqlite3.connect(file) as other:
        other.execute(sql)
    other.close()
    before = file.read_bytes()
    shop = Shop(approved(), ledger=SqliteLedger(file))
    with pytest.raises(ConfigurationError, match=rf"decisions\.db {advice}"):
        await shop.approve()
    await shop.ledger.aclose()
    assert file.read_bytes() == before
    assert shop.script.left == 1


async def test_file_names_are_never_special(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with SqliteLedger(":memory:") as ledger:
        await claimed(ledger, "k")
    assert (tmp_path / ":memory:").stat().st_size > 0


def ledger_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("loanasync-ledger")}


async def test_aclose_ends_the_thread(file: Path) -> None:
    earlier = ledger_threads()  # ledgers of other tests may still be open in this process
    ledger = SqliteLedger(file)
    await claimed(ledger, "k")
    (thread,) = ledger_threads() - earlier
    await ledger.aclose()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


def test_end_of_the_process_closes_the_file(file: Path) -> None:
    unclosed = (
        "import asyncio, sys; from loanasync.ledger import SqliteLedger; ledger = SqliteLedger(sys.argv[1]);"
        " asyncio.run(ledger.claim('k', token='t', payload='p', lease=60))"
    )
    command = [sys.executable, "-X", "dev", "-c", unclosed, str(file)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=60)
    assert done.stderr == ""  # Python 3.13 warns of an unclosed connection
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_repr_has_the_file(file: Path) -> None:
    assert repr(SqliteLedger(file)) == f"SqliteLedger('{file}')"


def test_files_are_readable_only_by_their_owner(file: Path) -> None:
    async def modes() -> set[int]:
        async with SqliteLedger(file) as ledger:
            await claimed(ledger, "k")
            return {stat.S_IMODE(each.stat().st_mode) for each in file.parent.iterdir()}

    before = os.umask(0)
    try:
        assert asyncio.run(modes()) == {0o600}
    finally:
        os.umask(before)
