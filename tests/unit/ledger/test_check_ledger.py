"""A ledger that does not fit stops the start of a program, not its first customer."""

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from loanasync import ConfigurationError, LedgerMismatchError, LedgerUnavailableError, LoanClient
from loanasync.ledger import LedgerPolicy, MemoryLedger, SqliteLedger, create_ledger, open_ledger

URL = "https://loans.example.com"
KEY, OTHER_KEY = b"0123456789abcdef", b"fedcba9876543210"


def client_of(ledger: Any, key: bytes | None = KEY, url: str = URL) -> LoanClient:
    return LoanClient(url, shop_id="s", auth_token="t", ledger=ledger, ledger_policy=LedgerPolicy(key=key))


@pytest.mark.parametrize(
    ("created", "options", "reason"),
    [
        (False, {}, "does not exist"),
        (True, {"url": "https://test.example.com"}, "belongs to https://loans.example.com"),
        (True, {"key": OTHER_KEY}, "key"),
    ],
)
async def test_ledger_that_does_not_fit_stops_the_start(
    tmp_path: Path, options: dict[str, Any], reason: str, *, created: bool
) -> None:
    file = tmp_path / "decisions.db"
    async with SqliteLedger(file, must_exist=True) as ledger:
        if created:
            await create_ledger(ledger, base_url=URL, policy=LedgerPolicy(key=KEY))
        client = client_of(ledger, **options)
        for start in (client.__aenter__, client.lifespan().__aenter__, client.check_ledger):
            with pytest.raises(LedgerMismatchError, match=reason):
                await start()
    assert file.exists() == created


async def test_ledger_that_was_replaced_is_not_ready(tmp_path: Path) -> None:
    first, other = tmp_path / "decisions.db", tmp_path / "other.db"
    for file in (first, other):
        async with SqliteLedger(file) as ledger:
            await create_ledger(ledger, base_url=URL, policy=LedgerPolicy(key=KEY))
    async with SqliteLedger(first) as ledger, client_of(ledger) as client:
        await client.check_ledger()
        await client.known("TSTXYZ00A00A000A")
        await ledger.aclose()
        other.replace(first)
        with pytest.raises(LedgerMismatchError, match="was replaced by another ledger"):
            await client.check_ledger()


async def test_start_creates_no_ledger(tmp_path: Path) -> None:
    """The first call creates it, since a volume may be mounted later."""
    file = tmp_path / "decisions.db"
    async with SqliteLedger(file) as ledger, client_of(ledger) as client:
        await client.check_ledger()
    assert not file.exists()


async def test_ledger_that_is_away_is_a_warning_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteLedger(tmp_path / "missing" / "decisions.db") as ledger, client_of(ledger) as client:
        assert "the ledger is not available" in caplog.text
        assert "no request is sent until the ledger works" in caplog.text
        with pytest.raises(LedgerUnavailableError, match="check_ledger: the ledger is not available"):
            await client.check_ledger()


async def test_start_reads_a_known_ledger_no_second_time(tmp_path: Path) -> None:
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        await create_ledger(ledger, base_url=URL, policy=LedgerPolicy(key=KEY))
        async with client_of(ledger), client_of(ledger) as client:
            with mock.patch.object(ledger._store, "header", wraps=ledger._store.header) as header:
                async with client_of(ledger):
                    assert header.call_count == 0
                known = ledger.known_header
                await client.check_ledger()
                assert (header.call_count, ledger.known_header) == (1, known)


@pytest.mark.parametrize("ledger", [None, MemoryLedger()])
async def test_client_without_a_store_is_in_order(ledger: MemoryLedger | None) -> None:
    async with LoanClient(URL, shop_id="s", auth_token="t", ledger=ledger) as client:
        await client.check_ledger()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:secret@db.example.com/shop?table=loans", "PostgresLedger("),
        ("rediss://:secret@db.example.com/0?prefix=loans:", "RedisLedger("),
        ("decisions.db", "SqliteLedger('decisions.db')"),
    ],
)
def test_open_ledger_returns_the_ledger_of_an_address(url: str, shown: str) -> None:
    assert repr(open_ledger(url)).startswith(shown)


def test_open_ledger_hides_the_password_of_a_wrong_address() -> None:
    with pytest.raises(ConfigurationError, match="unknown scheme") as caught:
        open_ledger("mysql://shop:secret@db.example.com/shop")
    traceback, ours = caught.value.__traceback__, ""
    while traceback is not None:
        if re.search("loanasync.ledger", traceback.tb_frame.f_code.co_filename):
            ours += str(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next
    assert "name" in ours, "a frame of the package was found"
    assert "secret" not in ours + str(caught.value)
    assert caught.value.__context__ is None
