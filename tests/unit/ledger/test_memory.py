"""Conformance of the memory ledger."""

import pytest

from loanasync.ledger import DecisionLedger, MemoryLedger
from loanasync.testing import LedgerConformance


class TestMemoryLedger(LedgerConformance):
    keys = 1000

    @pytest.mark.scheduled
    async def test_very_large_ledger_returns_all_entries(self) -> None:
        self.keys = 100_000
        await self.test_large_ledger_returns_all_entries()

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self) -> None:
        ledger = MemoryLedger()
        self.opener = lambda: ledger


def test_memory_ledger_is_a_decision_ledger() -> None:
    assert isinstance(MemoryLedger(), DecisionLedger)
