"""Ledger commands read only the entries that they list, not the whole ledger."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loanasync.ledger import Entry, SqliteLedger, State
from loanasync.ledger.sqlite import _entry
from support.ledger_file import key, put, run_ledger, using


def test_commands_read_only_the_entries_that_they_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "many.db"

    async def fill(ledger: SqliteLedger) -> None:
        many = (put(ledger, f"{number}", State.REFUSED, under=f"{number:064}") for number in range(1500))
        await asyncio.gather(*many)

    using(file, fill)
    using(file, lambda ledger: put(ledger, "lost", State.LOST))
    using(file, lambda ledger: put(ledger, "stated", State.APPROVED, note="ticket 17", source="person"))
    read: list[object] = []

    def counted(row: Sequence[Any], now: float) -> Entry:
        read.append(row)
        return _entry(row, now)

    monkeypatch.setattr("loanasync.ledger.sqlite._entry", counted)
    assert run_ledger("sweep", file).exit_code == 3
    assert key("lost")[:12] in run_ledger("ls", file, "--state", "lost").stdout
    assert run_ledger("ls", file, "--without-redirect").stdout.startswith(key("stated")[:12])
    assert run_ledger("resolve", file, stdin="s\n").exit_code == 3
    assert len(read) < 10
    assert run_ledger("show", file, key("stated")[:6]).exit_code == 0
    assert run_ledger("resolve", file, key("lost")[:6], "--as", "held", "--note", "x").exit_code == 0
    assert len(read) < 1020, "a page for each short key"
