"""Migration of ledgers from format 1, after which programs that write format 1 fail."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, TypeAlias

import asyncpg
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from loanasync import Approved, ConfigurationError, OutcomeUnknownError
from loanasync.ledger import (
    DecisionLedger,
    Entry,
    PostgresLedger,
    RedisLedger,
    Settlement,
    SqliteLedger,
    State,
    Subject,
    resolve,
)
from support.ledger_clients import Shop
from support.servers import Postgres, Valkey

ScriptsOfOldClient: TypeAlias = dict[str, tuple[Any, ...]]

# Data and statements of the last version that wrote format 1: an entry in each state, and two by a client.
FOLDER = Path(__file__).with_name("format_1")
KEY = b"0123456789abcdef"  # an entry that a client wrote
DECIDED, UNKNOWN = "TSTXYZ00A00A000A", "TSTXYZ00A00A000B"  # an entry that a client wrote
SOURCES = {
    "approved": (State.APPROVED, "service"),
    "refused": (State.REFUSED, "service"),
    "released": (State.RELEASED, "service"),
    "unknown": (State.UNKNOWN, "service"),
    "lost": (State.LOST, "service"),
    "held": (State.HELD, "service"),
    "inflight": (State.INFLIGHT, ""),
    "expired": (State.UNKNOWN, ""),
    "person": (State.APPROVED, "person"),
}
REFUSED = Settlement(state=State.REFUSED, status=422, body=b"{}")


def stored(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def statements(name: str) -> dict[str, str]:
    read: dict[str, str] = json.loads(stored(name))
    return read


class OldFile:
    """A file of format 1, and a program that still writes format 1."""

    failure, statements = sqlite3.OperationalError, statements("sqlite_statements.json")
    operations: ClassVar[ScriptsOfOldClient] = {
        "find": ("fresh",),
        "write": (*"kstp", 0, 0, 9e9, 0, "", None, None, None),
        "pages": ("",),
        "purge": (0,),
    }

    def __init__(self, file: Path) -> None:
        self.ledger: Callable[[], SqliteLedger] = partial(SqliteLedger, file)
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._connection.executescript(stored("sqlite.sql"))
        self._connection.execute("PRAGMA journal_mode = WAL")

    async def run(self, statement: str, *arguments: Any) -> Any:
        execute = partial(self._connection.execute, self.statements[statement], arguments)
        return (await asyncio.to_thread(execute)).fetchall()

    async def aclose(self) -> None:
        self._connection.close()


class OldTable:
    """A PostgreSQL table of format 1, and a program that still writes format 1."""

    failure, statements = asyncpg.UndefinedColumnError, statements("postgres_statements.json")
    operations: ClassVar[ScriptsOfOldClient] = {
        "look": ("fresh",),
        "claim": ("fresh", "t", "p", 60.0, None),
        "settle": ("inflight", "token of inflight", "payload", "refused", "", 422, None, None),
        "scan": ("",),
        "purge": (0.0,),
    }

    def __init__(self, connection: Any, url: str) -> None:
        self.table = f"t{token_hex(4)}"
        self.ledger = partial(PostgresLedger, url, table=self.table)
        self.connection = connection

    async def fill(self) -> None:
        await self.connection.execute(stored("postgres.sql").replace("{table}", self.table))

    async def run(self, statement: str, *arguments: Any) -> Any:
        return await self.connection.fetch(self.statements[statement].format(table=self.table), *arguments)

    async def aclose(self) -> None:
        await self.connection.close()


class OldKeys:
    """Valkey data of format 1, and a program that still writes format 1."""

    failure, statements = ResponseError, statements("redis_scripts.json")
    operations: ClassVar[ScriptsOfOldClient] = {
        "claim": ("fresh", "1", "t", "p", 60.0),
        "settle": ("fresh", "1", "t", "p", "released", "not sent"),
        "page": ("-", "500"),
        "purge": ("-", "500", "1", 0),
    }

    def __init__(self, url: str) -> None:
        self.prefix = f"{token_hex(4)}:"
        self.ledger = partial(RedisLedger, url, prefix=self.prefix)
        self.client = Redis.from_url(url)

    async def fill(self) -> None:
        for command, name, *arguments in json.loads(stored("redis.json")):
            await self.do(command, name.replace("loanasync:", self.prefix), *arguments)

    async def do(self, *command: Any) -> Any:
        return await self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def run(self, statement: str, *arguments: Any) -> Any:
        names = [f"{self.prefix}entries"]
        if statement in ("page", "purge"):
            arguments = (f"{self.prefix}entry:", *arguments)
        else:
            names.insert(0, f"{self.prefix}entry:{arguments[0]}")
        return await self.do("EVAL", self.statements[statement], len(names), *names, *arguments)

    async def version(self, key: str) -> str:
        """Return the version of an entry, which the old program converts to an int."""
        text, _ = await self.do("EVAL", self.statements["look"], 1, f"{self.prefix}entry:{key}")
        return str(json.loads(text)[1])

    async def aclose(self) -> None:
        await self.client.aclose()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[OldFile]:
    old = OldFile(tmp_path / "decisions.db")
    yield old
    await old.aclose()


@pytest.fixture
async def table(postgres: Postgres) -> AsyncIterator[OldTable]:
    old = OldTable(await asyncpg.connect(postgres.url), postgres.url)
    await old.fill()
    yield old
    await old.aclose()


@pytest.fixture
async def keys(valkey: Valkey) -> AsyncIterator[OldKeys]:
    old = OldKeys(valkey.url)
    await old.fill()
    yield old
    await old.aclose()


@pytest.fixture(params=["file", "table", "keys"])
def old(request: pytest.FixtureRequest) -> Any:
    """Return data of format 1 on each backend."""
    return request.getfixturevalue(request.param)


async def every(ledger: DecisionLedger) -> dict[str, Entry]:
    return {entry.key: entry async for entry in ledger.scan()}


async def test_format_1_each_entry_is_read_with_its_source(old: Any) -> None:
    ledger = old.ledger()
    entries = await every(ledger)
    assert len(entries) == len(SOURCES) + 2
    assert {key: (entries[key].state, entries[key].source) for key in SOURCES} == SOURCES
    assert entries["held"].note == "ticket 5, è \U0001f600 '\"\\"
    assert (entries["refused"].status, entries["refused"].fault) == (422, "not whole")
    body = entries["approved"].body
    assert body is not None
    assert json.loads(body)["redirectUrl"] == "https://loans.example.com/x"
    for entry in entries.values():
        assert (entry.customer, entry.order, entry.scope, entry.history) == ("", "", "", ())
        assert await ledger.get(entry.key) == entry
    await ledger.aclose()
    again = old.ledger()
    assert await every(again) == entries
    await again.aclose()


async def test_format_1_decision_is_replayed_and_unknown_is_held(old: Any) -> None:
    shop = Shop(ledger=old.ledger(), key=KEY)
    assert isinstance(await shop.approve(code=DECIDED), Approved)
    with pytest.raises(OutcomeUnknownError):
        await shop.approve(code=UNKNOWN)
    assert shop.script.sent == []
    await shop.ledger.aclose()


async def test_format_1_entries_are_claimed_settled_and_found(old: Any) -> None:
    ledger = old.ledger()
    about = Subject(customer="anna", order="1", scope="spring")
    claimed = await ledger.claim("released", token="u", payload="p", lease=60, subject=about)
    assert claimed.is_claimed_by("u")
    assert [(each.state, each.note, each.source) for each in claimed.history] == [
        (State.RELEASED, "RejectedError", "service")
    ]
    assert await ledger.find(customer="anna") == [claimed]
    over = await ledger.claim("expired", token="u", payload="p", lease=60, over="token of expired")
    assert over.is_claimed_by("u")
    assert [(each.note, each.source) for each in over.history] == [("the lease expired", "")]
    late = await ledger.settle("inflight", token="token of inflight", payload="payload", settlement=REFUSED)
    assert (late.state, late.source) == (State.REFUSED, "service")
    entry = await ledger.claim("held", token="u", payload="p", lease=60)
    assert (entry.state, entry.token) == (State.HELD, "token of held")
    assert await ledger.purge(0) == 5
    assert sorted(key for key in await every(ledger) if key in SOURCES) == [
        *("expired", "held", "lost", "released", "unknown")
    ]
    await ledger.aclose()


async def test_format_1_entries_are_resolved_and_corrected(old: Any) -> None:
    ledger = old.ledger()
    entries = await every(ledger)
    unknown = await resolve(ledger, entries["unknown"], State.REFUSED, "ticket 17")
    assert (unknown.state, unknown.source) == (State.REFUSED, "person")
    corrected = await resolve(ledger, entries["person"], State.REFUSED, "ticket 18")
    assert corrected.state is State.REFUSED
    assert [(each.state, each.note, each.source) for each in corrected.history] == [
        (State.APPROVED, "ticket 7", "person")
    ]
    for key in ("approved", "refused", "released"):
        assert await resolve(ledger, entries[key], State.HELD, "ticket 19") == entries[key]
    await ledger.aclose()


async def test_format_1_is_migrated_by_several_clients_at_once(old: Any) -> None:
    ledgers = [old.ledger() for _ in range(8)]
    claims = [
        ledger.claim("released", token=f"t{number}", payload="p", lease=60)
        for number, ledger in enumerate(ledgers)
    ]
    assert len({entry.token for entry in await asyncio.gather(*claims)}) == 1
    for ledger in ledgers:
        assert len(await every(ledger)) == len(SOURCES) + 2
        await ledger.aclose()


async def test_format_1_statement_fails_after_the_migration(old: Any) -> None:
    ledger = old.ledger()
    before = await every(ledger)
    for statement, arguments in old.operations.items():
        with pytest.raises(old.failure, match=r"WRONGTYPE|no such table|does not exist"):
            await old.run(statement, *arguments)
    assert await every(ledger) == before
    await ledger.aclose()


async def test_format_1_statement_works_before_the_migration(old: Any) -> None:
    """Check the statements: the test above would also pass with statements that never worked."""
    for statement, arguments in old.operations.items():
        await old.run(statement, *arguments)


async def test_format_1_script_cannot_read_the_version_and_changes_nothing(keys: OldKeys) -> None:
    ledger = keys.ledger()
    before = await every(ledger)
    for key in before:
        await keys.run("claim", key, "1", "u", "p", 60.0, f"token of {key}")
        await keys.run("settle", key, "1", f"token of {key}", "p", "released", "not sent")
        with pytest.raises(ValueError, match="invalid literal"):
            int(await keys.version(key))
    assert await every(ledger) == before
    await ledger.aclose()


async def test_format_1_script_cut_off_before_claim_leaves_it_released(keys: OldKeys) -> None:
    """An old worker's claim fails after it wrote the entry; the worker then releases it."""
    ledger = keys.ledger()
    await every(ledger)
    for statement in ("claim", "settle"):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await keys.run(statement, *keys.operations[statement])
    entry = await ledger.get("fresh")
    assert entry is not None
    assert (entry.state, entry.note, entry.source) == (State.RELEASED, "not sent", "service")
    claimed = await ledger.claim("fresh", token="u", payload="p", lease=60)
    assert claimed.is_claimed_by("u")
    assert (await every(ledger))["fresh"] == claimed
    await ledger.aclose()


@pytest.mark.parametrize("operation", ["claim", "settle"])
async def test_format_1_script_cut_off_after_claim_leaves_it_unknown(keys: OldKeys, operation: str) -> None:
    """An old worker dies after its failed claim: the entry is listed, and a person must resolve it."""
    ledger = keys.ledger()
    await every(ledger)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await keys.run("claim", "fresh", "1", "t", "p", 0.0)
    if operation == "claim":
        entry_after = await ledger.claim("fresh", token="u", payload="p", lease=60)
    else:
        lost = Settlement(state=State.LOST)
        entry_after = await ledger.settle("fresh", token="u", payload="p", settlement=lost)
    assert (entry_after.state, entry_after.token) == (State.UNKNOWN, "t")
    assert (await every(ledger))["fresh"] == entry_after
    assert entry_after in [entry async for entry in ledger.scan(State.UNKNOWN)]
    assert (await resolve(ledger, entry_after, State.RELEASED, "ticket 17")).state is State.RELEASED
    await ledger.aclose()


async def test_format_1_index_of_many_pages_is_migrated(keys: OldKeys) -> None:
    for number in range(1200):
        await keys.run("claim", f"k{number}", "1", "t", "p", 60.0)
    ledgers = [keys.ledger() for _ in range(2)]
    found = await asyncio.gather(*(every(ledger) for ledger in ledgers))
    assert [len(entries) for entries in found] == [1200 + len(SOURCES) + 2] * 2
    assert {await keys.version(key) for key in found[0]} == {"2.0"}
    for ledger in ledgers:
        await ledger.aclose()


async def test_later_format_of_an_index_is_rejected(keys: OldKeys) -> None:
    ledger = keys.ledger()
    await every(ledger)
    await keys.do("SET", f"{keys.prefix}entries", "3.0")
    tries: Iterable[Callable[[], Any]] = (
        partial(every, ledger),
        partial(ledger.claim, "k", token="t", payload="p", lease=60),
        partial(ledger.settle, "k", token="t", payload="p", settlement=REFUSED),
        partial(ledger.find, customer="anna"),
        partial(ledger.purge, 0),
    )
    for attempt in tries:
        with pytest.raises(ConfigurationError, match="later version"):
            await attempt()
    await ledger.aclose()


async def test_migrated_file_has_format_2_for_an_older_program(file: OldFile, tmp_path: Path) -> None:
    """The older program compares the number with its own, and raises ConfigurationError."""
    ledger = file.ledger()
    await every(ledger)
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    await ledger.aclose()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_format_1_table_is_migrated_at_each_isolation_level(table: OldTable, isolation: str) -> None:
    setting = isolation.replace(" ", "%20")
    url = f"{table.ledger.args[0]}?default_transaction_isolation={setting}"
    ledgers = [PostgresLedger(url, table=table.table) for _ in range(8)]
    found = await asyncio.gather(*(every(ledger) for ledger in ledgers))
    assert {len(entries) for entries in found} == {len(SOURCES) + 2}
    for ledger in ledgers:
        await ledger.aclose()


async def test_user_who_may_not_alter_the_table_gets_the_statement(
    table: OldTable, postgres: Postgres
) -> None:
    user = f"user{token_hex(4)}"
    await table.connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'word'")
    await table.connection.execute(f"GRANT SELECT, INSERT, UPDATE ON {table.table} TO {user}")
    url = f"postgresql://{user}:word@127.0.0.1:{postgres.port}/postgres"
    async with PostgresLedger(url, table=table.table) as ledger:
        with pytest.raises(ConfigurationError, match="owner must run: DO") as caught:
            await ledger.get("approved")
        await table.connection.execute(str(caught.value).partition("must run: ")[2])
        assert len(await every(ledger)) == len(SOURCES) + 2
        assert (await ledger.claim("fresh", token="t", payload="p", lease=60)).is_claimed_by("t")
    await table.connection.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
