"""The ledger in PostgreSQL keeps all promises of a ledger, to any number of machines."""

import os
from functools import partial
from secrets import token_hex

import pytest
from servers import Postgres

from loanasync.ledger import PostgresLedger
from loanasync.testing import SharedLedgerConformance


class TestPostgresLedger(SharedLedgerConformance):
    keys = int(os.environ.get("LEDGER_KEYS", "2000"))

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self, postgres: Postgres) -> None:
        self.opener = partial(PostgresLedger, postgres.url, table=f"t{token_hex(4)}")
