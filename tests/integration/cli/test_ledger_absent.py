"""Ledger names with a table or a prefix, and commands for a ledger that does not exist."""

import asyncio
from pathlib import Path
from secrets import token_hex

import asyncpg
import pytest
from redis.asyncio import Redis

from loanasync import ConfigurationError
from loanasync.ledger import RedisLedger, State
from loanasync.ledger.address import ledger_at, name_without_password
from loanasync.sandbox import Sandbox
from support.cli import create, make_row, run, write
from support.ledger_clients import KEY
from support.ledger_file import create_at, listed, name_on, put, run_ledger

COMMANDS = {
    "ls": (),
    "show": ("0123abcd",),
    "sweep": (),
    "resolve": (),
    "purge": ("--older-than", "1d", "--yes"),
    "import-orphans": (),
}


@pytest.fixture(params=["file", "valkey", "postgres"])
def ledger_name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a ledger that does not exist yet."""
    if request.param == "file":
        return str(tmp_path / "decisions.db")
    return name_on(request.getfixturevalue(request.param))


def exists(ledger_name: str) -> bool:
    """Return True if anything is stored under a name."""

    async def exists_on_server() -> bool:
        address, _, own = ledger_name.partition("?")
        parameter, _, value = own.partition("=")
        if parameter == "table":
            connection = await asyncpg.connect(address)
            found = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", value)
            await connection.close()
            return bool(found)
        async with Redis.from_url(address) as client:
            return bool([name async for name in client.scan_iter(f"{value.removesuffix('%3A')}:*")])

    return asyncio.run(exists_on_server()) if "://" in ledger_name else Path(ledger_name).exists()


def fill(ledger_name: str, key: str) -> None:
    create_at(ledger_name)
    opened = ledger_at(ledger_name)

    async def filled() -> None:
        async with opened as ledger:
            await put(ledger, "x", State.UNKNOWN, under=key)

    asyncio.run(filled())


@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_a_ledger_fails_and_creates_nothing(
    ledger_name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = run_ledger(command, ledger_name, *COMMANDS[command])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "does not exist: check the name, or run loanasync ledger create" in done.stderr
    assert not exists(ledger_name)


def test_sweep_of_an_empty_file_fails_and_leaves_it_empty(tmp_path: Path) -> None:
    file = tmp_path / "decisions.db"
    file.touch()
    assert run_ledger("sweep", file).exit_code == 2
    assert file.stat().st_size == 0


def test_command_uses_the_named_table_or_prefix(ledger_name: str) -> None:
    key = token_hex(32)
    fill(ledger_name, key)
    assert exists(ledger_name)
    assert run_ledger("sweep", ledger_name).stdout.startswith(f"{key[:12]}  unknown")
    assert (
        run_ledger("resolve", ledger_name, key[:12], "--as", "refused", "--note", "ticket 17").exit_code == 0
    )
    assert run_ledger("show", ledger_name, key[:12]).exit_code == 0


@pytest.mark.parametrize("options", [("--dry-run",), ("-o", "-")])
def test_approve_many_without_its_ledger_is_refused_and_creates_nothing(
    ledger_name: str, tmp_path: Path, served: Sandbox, options: tuple[str, ...]
) -> None:
    file = write(tmp_path / "rows.jsonl", [make_row("approved")])
    done = run(served, "approve-many", file, *options, "--ledger", ledger_name)
    assert (done.returncode, served.journal.calls(operation="approve")) == (2, [])
    assert "does not exist: check the name, or run loanasync ledger create" in done.stderr
    assert not exists(ledger_name)


def test_approve_many_writes_to_the_named_table_or_prefix(
    ledger_name: str, tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make_row("approved")]
    create(served, rows)
    create_at(ledger_name, served.base_url, key=KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    file = write(tmp_path / "rows.jsonl", rows)
    done = run(served, "approve-many", file, "-o", tmp_path / "out.jsonl", "--ledger", ledger_name)
    assert done.returncode == 0, done.stderr
    assert [each["state"] for each in listed(ledger_name)] == ["approved"]


def test_ledger_name_keeps_other_parameters_of_the_address() -> None:
    redis = "redis://shop:SECRET@valkey.example.com/0?socket_timeout=5&prefix=a%3Ab:&health_check_interval=9"
    assert repr(ledger_at(redis)) == "RedisLedger('redis://valkey.example.com/0', prefix='a:b:')"
    opened = ledger_at(redis)
    assert isinstance(opened, RedisLedger)
    assert opened._url.endswith("/0?socket_timeout=5&health_check_interval=9")
    postgres = "postgresql://shop:SECRET@db.example.com/shop?sslmode=require&table=public.decisions"
    name = "PostgresLedger('postgresql://db.example.com/shop', table='public.decisions')"
    assert name_without_password(postgres) == repr(ledger_at(postgres)) == name
    assert name_without_password(postgres.replace("public.", "")) != name, (
        "a run with another ledger is another run"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("redis://host/0?table=t", "redis:// accepts prefix=, not table="),
        ("postgresql://host/shop?prefix=p", "postgresql:// accepts table= and statement_cache_size=, not"),
        ("postgresql://host/shop?table=A", "lower-case letters"),
    ],
)
def test_ledger_name_with_a_wrong_parameter_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ledger_at(name)
