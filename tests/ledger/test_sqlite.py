"""The ledger in a file of SQLite's keeps all promises of a ledger, to any number of processes."""

import os
from functools import partial
from pathlib import Path

import pytest

from loanasync.ledger import SqliteLedger
from loanasync.testing import SharedLedgerConformance


class TestSqliteLedger(SharedLedgerConformance):
    keys = int(os.environ.get("LEDGER_KEYS", "2000"))

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self, tmp_path: Path) -> None:
        self.opener = partial(SqliteLedger, tmp_path / "decisions.db")
