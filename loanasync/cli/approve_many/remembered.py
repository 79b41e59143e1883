"""Who was asked for, as a ledger knows it: also by other commands and programs, and by those that died."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from loanasync.cli.approve_many.resume import Learn, Memory, Nothing, Past
from loanasync.cli.ledger.open import Opened, short
from loanasync.ledger import DecisionLedger, State


class Remembered(Nothing):
    """A ledger, and what the results tell of it already.

    What was learned is for the plan, and for passing over who need not be asked about: a call that is made
    all the same sends nothing for who is known.

    Args:
        ledger: The ledger.
        key_of: A customer's key in it.
        results: What the results say.
    """

    def __init__(self, ledger: DecisionLedger, key_of: Callable[[str], str], results: Memory) -> None:
        self._ledger = ledger
        self._key_of = key_of
        self._results = results
        self._known: dict[str, State] = {}

    @contextmanager
    def learning(self) -> Iterator[Learn]:
        """Look them up, in a loop of its own, which is over before the asking begins.

        Raises:
            UnusableError: The ledger cannot be asked.
        """
        with asyncio.Runner() as runner:
            use = Opened(self._ledger, runner)
            try:
                yield lambda codes: use.run(self._learn(codes))
            finally:
                runner.run(self._ledger.aclose())

    async def _learn(self, codes: Sequence[str]) -> None:
        entries = await asyncio.gather(*(self._ledger.get(self._key_of(code)) for code in codes))
        found = zip(codes, entries, strict=True)
        self._known |= {code: entry.state for code, entry in found if entry is not None}

    def past(self, fiscal_code: str) -> Past:
        """By the ledger; where that has forgotten, by the results: nobody is asked again for a purge."""
        state, told = self._known.get(fiscal_code), self._results.past(fiscal_code)
        match state:
            case State.APPROVED | State.REFUSED:
                return "decided"
            case State.UNKNOWN | State.LOST | State.HELD:
                return "failed" if told == "failed" else "unknown"
            case State.INFLIGHT:
                return "busy"
            case State.RELEASED if told == "unknown":  # a person said so since
                return "new"
            case _:
                return told

    def is_told(self, fiscal_code: str) -> bool:
        """Not so where a run was killed, a person settled it since, or another command asked."""
        return self.past(fiscal_code) == self._results.past(fiscal_code)

    def entry(self, fiscal_code: str) -> str:
        """How its key begins."""
        return short(self._key_of(fiscal_code))

    def close(self) -> None:
        """Let the next run begin."""
        self._results.close()
