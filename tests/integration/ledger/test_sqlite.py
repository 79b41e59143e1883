"""The SQLite ledger: transactions, durability, and files that are missing, damaged, locked or foreign."""

import asyncio
import errno
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from loanasync import Approved, LedgerMismatchError, LedgerUnavailableError
from loanasync.ledger import SqliteLedger, State
from loanasync.ledger.address import ledger_at
from loanasync.ledger.header import Header
from loanasync.ledger.sqlite import _SqliteStore
from loanasync.testing import approved
from support.ledger_clients import Shop, create
from support.processes import run_script
from support.store_contract import HOUR, created, draft, new, put

OTHER = "TSTXYZ00A00A000B"
RESTORE = "restore it, or name another file"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "decisions.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[_SqliteStore]:
    opened = _SqliteStore(file, 10.0)
    yield opened
    await opened.aclose()


@pytest.fixture
async def header(store: _SqliteStore) -> Header:
    return await created(store)


async def run_sql(store: _SqliteStore, statement: str) -> Any:
    """Run a statement on the store's own connection, and return the first value."""
    rows = await store.database().read(lambda connection: connection.execute(statement).fetchall())
    return rows[0][0] if rows else None


@asynccontextmanager
async def traced(store: _SqliteStore) -> AsyncIterator[list[str]]:
    """Collect the first words of the statements that the store runs."""
    statements: list[str] = []

    def trace(statement: str) -> None:
        statements.append(statement.split(maxsplit=1)[0])

    await store.database().read(lambda connection: connection.set_trace_callback(trace))
    yield statements


@asynccontextmanager
async def thread_held(store: _SqliteStore) -> AsyncIterator[None]:
    """Keep the store's thread busy, so that the writes of the block share one commit after it."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(30)

    holding = asyncio.create_task(store.database().run(hold))
    await asyncio.to_thread(begun.wait, 30)
    try:
        yield
        await asyncio.sleep(0)  # the tasks of the block begin to wait
    finally:
        go_on.set()
        await holding


# Transactions


async def test_writes_are_synced_and_deletions_overwritten(store: _SqliteStore, header: Header) -> None:
    extra = 3
    pragmas = {"journal_mode": "wal", "synchronous": extra, "fullfsync": 1, "secure_delete": 1}
    assert {name: await run_sql(store, f"PRAGMA {name}") for name in pragmas} == pragmas
    assert (await store.read("k", header)).entry is None


async def test_claim_and_its_settlement_are_one_transaction_each(store: _SqliteStore, header: Header) -> None:
    async with traced(store) as statements:
        claim = draft("k", customer="c")
        for write in (
            put(store, header, claim, lease=HOUR),
            put(store, header, draft("k", state=State.REFUSED), claim),
        ):
            await write
            assert statements == ["BEGIN", "SELECT", "SELECT", "REPLACE", "UPDATE", "COMMIT"]
            statements.clear()


async def test_concurrent_writes_share_one_commit_and_number(store: _SqliteStore, header: Header) -> None:
    async with traced(store) as statements:
        async with thread_held(store):
            claims = asyncio.gather(*(put(store, header, draft(f"{n}"), lease=HOUR) for n in range(200)))
        swaps = await claims
        assert all(each.is_written for each in swaps)
        assert {each.number for each in swaps} == {2}
        assert statements.count("COMMIT") == 1


async def test_claims_of_one_entry_in_one_commit_have_one_owner(store: _SqliteStore, header: Header) -> None:
    async with thread_held(store):
        claims = asyncio.gather(*(put(store, header, draft("k", token=f"{n}"), lease=HOUR) for n in range(5)))
    assert [each.is_written for each in await claims] == [True] + [False] * 4
    assert {each.entry.token for each in await claims if each.entry} == {"0"}
    # A number that was not written would look like lost writes to the next reader.
    assert [each.number for each in await claims] == [2, 1, 1, 1, 1]


async def test_full_disk_fails_all_writes_of_its_commit(store: _SqliteStore, header: Header) -> None:
    claims = [draft(f"k{n}") for n in range(5)]
    for claim in claims:
        await put(store, header, claim, lease=HOUR)
    settled = [draft(claim.key, state=State.APPROVED, body=b"x" * 10_000) for claim in claims]
    await run_sql(store, "PRAGMA max_page_count = 1")
    async with thread_held(store):
        writes = asyncio.gather(
            put(store, header, draft("new"), lease=HOUR),
            *(put(store, header, *pair) for pair in zip(settled, claims, strict=True)),
            return_exceptions=True,
        )
    for error in await writes:
        assert isinstance(error, sqlite3.OperationalError)
        assert store.reason(error) == "the disk is full: free some space"
    assert {entry.state for entry in await store.page("", "", "", "", header)} == {State.INFLIGHT}
    assert (await store.read("new", header)).entry is None
    await run_sql(store, "PRAGMA max_page_count = 10000")
    for pair in zip(settled, claims, strict=True):
        assert (await put(store, header, *pair)).is_written


async def test_cancelled_write_that_waits_is_not_written(store: _SqliteStore, header: Header) -> None:
    async with thread_held(store):
        cancelled, kept = (
            asyncio.create_task(put(store, header, draft(key), lease=HOUR)) for key in ("cancelled", "kept")
        )
        await asyncio.sleep(0)
        cancelled.cancel()
    await kept
    assert cancelled.cancelled()
    assert [entry.key for entry in await store.page("", "", "", "", header)] == ["kept"]


async def test_failing_write_does_not_affect_others_in_its_commit(
    store: _SqliteStore, header: Header
) -> None:
    async with thread_held(store):
        writes = asyncio.gather(
            put(store, header, draft("a"), lease=HOUR),
            put(store, header, draft("b", customer=object()), lease=HOUR),
            put(store, new(store), draft("c"), lease=HOUR),
            put(store, header, draft("d"), lease=HOUR),
            return_exceptions=True,
        )
    ends = await writes
    assert isinstance(ends[1], sqlite3.Error)
    assert isinstance(ends[2], LedgerMismatchError)
    assert [entry.key for entry in await store.page("", "", "", "", header)] == ["a", "d"]


# Files


async def refusal(file: Path, **options: Any) -> str:
    """Check that a client sends nothing and leaves the file as it is; return the message."""
    before = file.read_bytes() if file.exists() else None
    shop = Shop(approved(), ledger=SqliteLedger(file, **options))
    with pytest.raises(LedgerMismatchError) as raised:
        await shop.approve()
    await shop.ledger.aclose()
    assert shop.script.left == 1
    assert (file.read_bytes() if file.exists() else None) == before
    assert [each.name for each in file.parent.iterdir()] == [file.name] * (before is not None)
    assert str(file) in str(raised.value)
    return str(raised.value)


NOBODY = 65534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may open, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
@pytest.mark.parametrize(("of_file", "of_folder"), [(0o444, 0o755), (0, 0o755), (0o666, 0o555), (0o666, 0)])
async def test_file_without_permission_sends_nothing(open_folder: Path, of_file: int, of_folder: int) -> None:
    file = open_folder / "loans.db"
    await create(SqliteLedger(file))
    file.chmod(of_file)
    open_folder.chmod(of_folder)
    shop, is_root = Shop(approved(), ledger=SqliteLedger(file, must_exist=True)), os.geteuid() == 0
    try:
        if is_root:  # may do everything
            os.seteuid(NOBODY)
        error = await shop.result()
    finally:
        if is_root:
            os.seteuid(0)
        open_folder.chmod(0o755)
    assert isinstance(error, LedgerUnavailableError)
    assert (error.outcome, shop.script.left) == ("not_sent", 1)
    assert re.search("let this user (read and )?write", str(error))


async def test_missing_file_that_must_exist_is_not_created(file: Path) -> None:
    assert "does not exist" in await refusal(file, must_exist=True)


@pytest.mark.parametrize(
    ("folder", "error", "advice"),
    [
        ("missing", None, "create its folder"),
        (".", FileNotFoundError, "make its folder writable"),
        (".", PermissionError, "make its folder writable"),
    ],
)
async def test_file_that_cannot_be_created_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, error: type[OSError] | None, advice: str
) -> None:
    if error is not None:
        refused = mock.Mock(side_effect=error)
        monkeypatch.setattr("loanasync.ledger.sqlite.tempfile.mkstemp", refused)
    shop = Shop(approved(), ledger=SqliteLedger(tmp_path / folder / "decisions.db"))
    with pytest.raises(LedgerMismatchError, match=f"cannot be created: {advice}, or check the name"):
        await shop.approve()
    await shop.ledger.aclose()


async def test_claim_without_space_for_its_settlement_sends_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(approved(), ledger=SqliteLedger(file))
    free = shutil.disk_usage(file.parent)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free._replace(free=999_999))
    with pytest.raises(LedgerUnavailableError, match="the disk is full: free some space"):
        await shop.approve()
    monkeypatch.setattr("shutil.disk_usage", lambda _: free._replace(free=1_000_000))
    assert isinstance(await shop.approve(), Approved)
    await shop.ledger.aclose()


@pytest.mark.parametrize(
    ("mounted", "is_refused"), [("a b/{}.db", True), ("a b", False), ("other.db", False)]
)
async def test_file_mounted_without_its_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: str, *, is_refused: bool
) -> None:
    """Another container would have another -wal file, and not see the decisions in this one."""
    (folder := tmp_path / "a b").mkdir()
    store = _SqliteStore(file := folder / "{}.db", 10.0)
    await created(store)
    await store.aclose()
    (mounts := tmp_path / "mountinfo").write_text(
        "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        f"36 22 8:1 /x {tmp_path}/{mounted.replace(' ', chr(92) + '040')} rw - ext4 /dev/sda1 rw\n"
    )
    monkeypatch.setattr("loanasync.ledger.sqlite._MOUNTS", mounts)
    shop = Shop(approved(), ledger=SqliteLedger(file))
    result = await shop.result()
    assert ("is mounted without its folder" in str(result)) is is_refused
    await shop.ledger.aclose()


LOCAL = ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "fuseblk", "virtiofs"]
REMOTE = ["nfs", "nfs4", "cifs", "smb3", "smb2", "smbfs", "fuse", "fuse.sshfs", "9p", "ceph", "lustre"]


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """Mount a file system on a folder, as /proc says."""
    (mounts := tmp_path / "mountinfo").write_text("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr("loanasync.ledger.sqlite._MOUNTS", mounts)

    def add(point: Path, kind: str) -> None:
        escaped = str(point).replace(" ", r"\040")
        with mounts.open("a") as lines:
            lines.write(f"36 22 0:50 / {escaped} rw,relatime shared:2 master:1 - {kind} h:/a rw,vers=4.2\n")

    return add


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    ("kind", "is_refused"), [*((each, True) for each in REMOTE), *((each, False) for each in LOCAL)]
)
async def test_file_on_a_network_file_system_is_refused_unless_a_setting_says_so(
    tmp_path: Path, mount: Callable[[Path, str], None], kind: str, *, is_refused: bool, exists: bool
) -> None:
    """It is reached by a link."""
    (folder := tmp_path / "a shared folder").mkdir()
    (link := tmp_path / "link").symlink_to(folder)
    if exists:
        await create(SqliteLedger(folder / "loans.db"))
    mount(folder, kind)
    if is_refused:
        advice = rf"file system \({re.escape(kind)}\), whose locks may not work: put it on a local disk"
        assert re.search(advice, await refusal(link / "loans.db"))
    for opened in (
        SqliteLedger(link / "loans.db", local_only=not is_refused),
        ledger_at(f"sqlite:///{link}/loans.db" + "?local_only=no" * is_refused),
        SqliteLedger(tmp_path / "local.db"),
    ):
        async with opened as ledger:
            assert isinstance(await Shop(approved(), ledger=ledger).approve(), Approved)


async def test_visible_mount_of_several_counts(tmp_path: Path, mount: Callable[[Path, str], None]) -> None:
    """The innermost one, and of two on the same point the later one, as of an automounter."""
    (inner := tmp_path / "shared" / "local").mkdir(parents=True)
    (other := tmp_path / "shared" / "other").mkdir()
    for point, kind in ((tmp_path / "shared", "nfs4"), (inner, "cifs"), (inner, "ext4"), (tmp_path, "9p")):
        mount(point, kind)
    async with SqliteLedger(inner / "loans.db") as ledger:
        await create(ledger)
    assert "(nfs4)" in await refusal(other / "loans.db")


async def test_systems_without_mountinfo_accept_every_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.ledger.sqlite._MOUNTS", file.with_name("missing"))
    async with SqliteLedger(file) as ledger:
        await create(ledger)


async def test_file_deleted_without_its_write_ahead_log_is_not_created(
    store: _SqliteStore, header: Header, file: Path
) -> None:
    await put(store, header, draft("k"), lease=HOUR)
    file.rename(moved := file.with_name("moved.db"))
    with pytest.raises(LedgerMismatchError, match="was deleted, but not its -wal file: restore it"):
        await created(_SqliteStore(file, 10.0))
    assert not file.exists()
    moved.rename(file)
    assert not await store.swap_header(new(store), replaces=None)
    assert (await store.read("k", header)).entry


def sql(*statements: str) -> Callable[[Path], None]:
    def run(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return run


def create_notes(file: Path) -> None:
    file.unlink()
    sql("CREATE TABLE notes (text)")(file)


NO_LEDGER = f"is empty, or is not a ledger: {RESTORE}"
DAMAGED = f"is damaged, truncated, or not an SQLite file: {RESTORE}"
OTHER_FORMAT = "has another format, .* keep it, and finish its approvals with the version that wrote it"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b""), NO_LEDGER),
        (create_notes, NO_LEDGER),
        (lambda file: os.truncate(file, 60), NO_LEDGER),
        *((lambda file, size=size: os.truncate(file, size), DAMAGED) for size in (600, 4096)),
        (lambda file: os.truncate(file, file.stat().st_size - 4096), DAMAGED),
        (lambda file: file.write_text("a text file\n" * 1000), DAMAGED),
        (sql("DELETE FROM ledger"), f"has no header: {RESTORE}"),
        (sql("DROP TABLE ledger"), f"has no header: {RESTORE}"),
        *((sql(f"PRAGMA user_version = {number}"), OTHER_FORMAT) for number in (0, 4, 6)),
    ],
)
async def test_file_that_is_not_a_whole_ledger_is_refused(
    file: Path, damage: Callable[[Path], object], message: str
) -> None:
    shop = Shop(approved(), ledger=SqliteLedger(file))
    await shop.approve()
    await shop.ledger.aclose()
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    damage(file)
    for must_exist in (True, False):
        assert re.search(message, await refusal(file, must_exist=must_exist))


async def test_creation_that_fails_leaves_no_file(
    store: _SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of the creation fails, as on a file system without hard links."""

    def fail(*_: object) -> None:
        assert not file.exists()
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", fail)
        with pytest.raises(PermissionError) as raised:
            await created(store)
    assert "has no hard links: put the ledger on another local disk" in store.reason(raised.value)
    assert [*file.parent.iterdir()] == []
    await created(store)
    assert [each.name for each in file.parent.iterdir() if each.suffix == ".new"] == []


async def test_copy_without_write_ahead_log_is_switched_back(
    store: _SqliteStore, header: Header, tmp_path: Path
) -> None:
    await put(store, header, draft("k"), lease=HOUR)
    await run_sql(store, f"VACUUM INTO '{tmp_path}/copy.db'")
    copies = [_SqliteStore(tmp_path / "copy.db", 10.0) for _ in range(4)]
    founds = await asyncio.gather(*(each.read("k", header) for each in copies))
    assert all(found.entry for found in founds)
    assert {await run_sql(each, "PRAGMA journal_mode") for each in copies} == {"wal"}
    for each in copies:
        await each.aclose()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux shows the process that has a lock"
)
async def test_file_locked_by_another_process_names_it(file: Path) -> None:
    async with SqliteLedger(file, patience=0.1) as ledger:
        shop = Shop(approved(), ledger=ledger)
        await shop.open_ledger()
        script = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
            "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
        )
        command, pipe = [sys.executable, "-c", script, str(file)], subprocess.PIPE
        process = await asyncio.to_thread(subprocess.Popen, command, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"locked\n"
        error = await shop.result()
        await asyncio.to_thread(process.communicate)
        assert isinstance(error, LedgerUnavailableError)
        assert f"process {process.pid} locks the file: end that process" in str(error)


async def test_file_locked_for_too_long_sends_nothing(file: Path) -> None:
    shop = Shop(approved(), approved(), ledger=SqliteLedger(file, patience=0.05))
    await shop.approve()
    other = await asyncio.to_thread(sqlite3.connect, file, isolation_level=None, check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailableError, match="another process locks the file: end that process"):
        await shop.approve(code=OTHER)
    await asyncio.to_thread(other.close)
    assert (await shop.approve(code=OTHER)).approved
    await shop.ledger.aclose()


def failure(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("text")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (failure(sqlite3.SQLITE_FULL), "the disk is full"),
        (failure(sqlite3.SQLITE_IOERR_FSYNC), "the disk failed to read or write"),
        (failure(sqlite3.SQLITE_READONLY_DIRECTORY), "is not writable"),
        (failure(sqlite3.SQLITE_CANTOPEN), "cannot be opened"),
        (failure(sqlite3.SQLITE_CORRUPT_INDEX), "is damaged"),
        (failure(sqlite3.SQLITE_NOTADB), "is damaged"),
        (OSError(errno.ENOSPC, ""), "the disk is full"),
        (OSError(errno.EROFS, ""), "is not writable"),
        (OSError(), ""),
        (ValueError(), ""),
    ],
)
def test_reason_names_the_cause_and_the_remedy(file: Path, error: Exception, cause: str) -> None:
    reason = _SqliteStore(file, 10.0).reason(error)
    assert cause in reason
    assert (": " in reason) is bool(cause)


async def test_file_names_are_never_special(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {":memory:", "a?mode=memory#%41.db", "file:x.db", "link.db"}
    Path("link.db").symlink_to("target.db")  # which is created
    for name in names:
        store = _SqliteStore(Path(name), 10.0)
        await put(store, await created(store), draft("k"), lease=HOUR)
        await store.aclose()
    assert {each.name for each in tmp_path.iterdir()} == {*names, "target.db"}
    assert Path("link.db").is_symlink()


# Threads and processes


def ledger_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("loanasync-ledger")}


async def test_aclose_ends_the_thread(file: Path) -> None:
    earlier = ledger_threads()  # ledgers of other tests may still be open in this process
    store = _SqliteStore(file, 10.0)
    await created(store)
    (thread,) = ledger_threads() - earlier
    await store.aclose()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


def test_end_of_the_process_closes_the_file(file: Path) -> None:
    unclosed = (
        "import asyncio, sys; from loanasync.ledger import LedgerPolicy, SqliteLedger; "
        "asyncio.run(SqliteLedger(sys.argv[1]).open('https://loans.example.com', LedgerPolicy()))"
    )
    done = run_script(unclosed, file, warning="default")
    assert (done.returncode, done.stderr) == (0, "")  # Python 3.13 warns of an unclosed connection
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_files_are_readable_only_by_their_owner(file: Path) -> None:
    async def modes() -> set[int]:
        store = _SqliteStore(file, 10.0)
        await put(store, await created(store), draft("k"), lease=HOUR)
        found = {stat.S_IMODE(each.stat().st_mode) for each in file.parent.iterdir()}
        await store.aclose()
        return found

    before = os.umask(0)
    try:
        assert asyncio.run(modes()) == {0o600}
    finally:
        os.umask(before)
