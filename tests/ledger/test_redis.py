"""The ledger on Valkey or Redis keeps all promises of a ledger, to any number of machines."""

import os
from functools import partial
from secrets import token_hex

import pytest
from servers import Valkey

from loanasync.ledger import RedisLedger
from loanasync.testing import SharedLedgerConformance


class TestRedisLedger(SharedLedgerConformance):
    keys = int(os.environ.get("LEDGER_KEYS", "2000"))

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self, valkey: Valkey) -> None:
        self.opener = partial(RedisLedger, valkey.url, prefix=f"{token_hex(4)}:")
