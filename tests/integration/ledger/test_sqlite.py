"""The SQLite ledger: conformance, durability, locked files and foreign files."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from loanasync import ConfigurationError, LedgerUnavailableError
from loanasync.ledger import Entry, Settlement, SqliteLedger, State, sqlite
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


async def settled(ledger: SqliteLedger, key: str, body: bytes = b"{}") -> Entry:
    approval = Settlement(state=State.APPROVED, status=201, body=body)
    return await ledger.settle(key, token="t", payload="p", settlement=approval)


@asynccontextmanager
async def thread_held(ledger: SqliteLedger) -> AsyncIterator[None]:
    """Keep the ledger's thread busy, so that the writes of the block share one commit after it."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait(30)

    reading = asyncio.create_task(ledger._database().read(hold))
    await asyncio.to_thread(begun.wait, 30)
    try:
        yield
        await asyncio.sleep(0)  # the tasks of the block begin to wait
    finally:
        go_on.set()
        await reading


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


async def test_single_claim_and_its_settlement_are_one_statement_each(file: Path) -> None:
    statements: list[str] = []
    async with SqliteLedger(file) as ledger:
        await ledger._database().read(lambda connection: connection.set_trace_callback(statements.append))
        claim = await claimed(ledger, "k")
        entry = await settled(ledger, "k")
        assert [statement.split()[0] for statement in statements] == ["INSERT", "UPDATE"]
        assert entry == await ledger.get("k")
        assert (entry.claimed, entry.expires) == (claim.claimed, claim.expires)


async def test_settlement_of_an_entry_that_another_process_changed_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ledger knows its claim. Another one changes the entry, even at the same time of the clock."""
    monkeypatch.setattr(sqlite, "_uptime", lambda: 1000.0)
    monkeypatch.setattr(sqlite, "_time_of_day", lambda: 1_800_000_000.0)
    async with SqliteLedger(file) as ledger, SqliteLedger(file) as other:
        await ledger.claim("taken", token="t", payload="p", lease=0)
        await other.claim("taken", token="t2", payload="p", lease=60, over="t")
        await claimed(ledger, "decided")
        await settled(other, "decided")
        for key in ("taken", "decided"):
            before = await other.get(key)
            assert before is not None
            lost = Settlement(state=State.LOST, note="AlreadyEvaluatedError")
            assert await ledger.settle(key, token="t", payload="p", settlement=lost) == before
            assert await other.get(key) == before


async def test_settlement_after_the_claim_took_over_itself_is_whole(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        await ledger.claim("k", token="t", payload="p", lease=0)
        assert (await ledger.claim("k", token="t", payload="p", lease=60, over="t")).takeovers == 1
        assert await settled(ledger, "k") == await ledger.get("k")


async def test_claim_older_than_a_thousand_others_is_settled(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        await claimed(ledger, "first")
        await asyncio.gather(
            *(ledger.claim(f"k{n}", token=f"t{n}", payload="p", lease=60) for n in range(1001))
        )
        assert len(ledger._database()._claims) == 1000
        assert (await settled(ledger, "first")).state is State.APPROVED


async def test_claims_of_one_entry_in_one_commit_have_one_owner(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        async with thread_held(ledger):
            claims = asyncio.gather(
                *(ledger.claim("k", token=f"t{n}", payload="p", lease=60) for n in range(5))
            )
        assert {entry.token for entry in await claims} == {"t0"}


async def test_full_disk_fails_all_writes_of_its_commit(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        keys = [f"k{n}" for n in range(5)]
        for key in keys:
            await claimed(ledger, key)
        limit = "PRAGMA max_page_count = {}"
        await ledger._database().read(lambda connection: connection.execute(limit.format(1)))
        async with thread_held(ledger):
            writes = asyncio.gather(
                claimed(ledger, "new"),
                *(settled(ledger, key, b"x" * 10_000) for key in keys),
                return_exceptions=True,
            )
        assert {type(end) for end in await writes} == {sqlite3.OperationalError}
        assert {entry.state async for entry in ledger.scan()} == {State.INFLIGHT}
        assert await ledger.get("new") is None
        await ledger._database().read(lambda connection: connection.execute(limit.format(10_000)))
        assert [(await settled(ledger, key)).state for key in keys] == [State.APPROVED] * 5


async def test_cancelled_write_that_waits_is_not_written(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        async with thread_held(ledger):
            cancelled, kept = (asyncio.create_task(claimed(ledger, key)) for key in ("cancelled", "kept"))
            await asyncio.sleep(0)
            cancelled.cancel()
        await kept
        assert cancelled.cancelled()
        assert [entry.key async for entry in ledger.scan()] == ["kept"]


async def test_failing_operation_does_not_affect_others_in_its_commit(file: Path) -> None:
    async with SqliteLedger(file) as ledger:
        await claimed(ledger, "d")
        wrong = {"token": "t", "payload": object()}
        async with thread_held(ledger):
            writes = asyncio.gather(
                claimed(ledger, "a"),
                ledger.claim("b", lease=60, **wrong),  # type: ignore[arg-type]
                ledger.settle("d", settlement=Settlement(state=State.REFUSED), **wrong),  # type: ignore[arg-type]
                claimed(ledger, "c"),
                return_exceptions=True,
            )
        ends = await writes
        assert isinstance(ends[1], sqlite3.Error)
        assert isinstance(ends[2], sqlite3.Error)
        entries = [(entry.key, entry.state) async for entry in ledger.scan()]
        assert sorted(entries) == [(key, State.INFLIGHT) for key in ("a", "c", "d")]


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


async def test_file_of_another_kind_is_unchanged_and_reported(file: Path) -> None:
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE notes (text)")
    other.close()
    before = file.read_bytes()
    shop = Shop(approved(), ledger=SqliteLedger(file))
    with pytest.raises(ConfigurationError, match=r"decisions\.db is not a ledger: name another file"):
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
