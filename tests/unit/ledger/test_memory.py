"""Conformance of the memory ledger."""

import os

import pytest

from loanasync.ledger import DecisionLedger, MemoryLedger
from loanasync.testing import LedgerConformance


class TestMemoryLedger(LedgerConformance):
    keys = int(os.environ.get("LEDGER_KEYS", "2000"))

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self) -> None:
        ledger = MemoryLedger()
        self.opener = lambda: ledger


def test_memory_ledger_is_a_decision_ledger() -> None:
    assert isinstance(MemoryLedger(), DecisionLedger)
