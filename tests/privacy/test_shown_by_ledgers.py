"""No error of a ledger shows anybody, not even one whose backend quotes what it was given."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loanasync import (
    ApprovalRequest,
    DecisionNotRecordedError,
    InFlightError,
    LedgerError,
    LedgerUnavailableError,
    LoanClient,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
    Timeout,
)
from loanasync.ledger import DecisionLedger, LedgerPolicy, MemoryLedger, PostgresLedger, RedisLedger
from loanasync.testing import ScriptedResponse, ScriptedTransport, response, timed_out
from support.ledger_clients import FailingLedger, held
from support.privacy.plants import CODE, ECHO, LIMITS, REDIRECT, TOKEN, planted
from support.privacy.scanner import PLACES, Seen, leaks, watching
from support.servers.process import free_port

APPROVED = response(201, {**ECHO, "approved": True})
REFUSED = response(422, {**ECHO, "approved": False})


def quoting() -> None:
    raise OSError(f"{CODE} {TOKEN} {REDIRECT} {ECHO}")


class Case:
    """A client with a ledger, whatever it comes to."""

    def __init__(
        self, seen: Seen, orphan_folder: Path, ledger: DecisionLedger, *steps: ScriptedResponse
    ) -> None:
        policy = LedgerPolicy(orphan_folder=orphan_folder, patience=5)
        options: Any = {"auth_token": TOKEN, "limits": LIMITS, "ledger": ledger, "ledger_policy": policy}
        self._seen = seen
        self.ledger = ledger
        self.client: LoanClient = ScriptedTransport(*steps).client(**options, **seen.providers)

    async def ends(self, **changes: Any) -> LoanError:
        """The error that a call comes to."""
        options = {"timeout": changes.pop("timeout", None)}
        with pytest.raises(LoanError) as caught:
            await self.client.approve(CODE, planted(ApprovalRequest, **changes), **options)
        self._seen.add(caught.value)
        return caught.value

    async def end(self) -> None:
        """What a debugger shows of what is left."""
        self._seen.values += [self.client, self.ledger, *[entry async for entry in self.ledger.scan()]]


async def in_flight(seen: Seen, orphan_folder: Path) -> LoanError:
    step, arrived, go = held(APPROVED)
    case = Case(seen, orphan_folder, MemoryLedger(), step)
    asking = asyncio.create_task(case.client.approve(CODE, planted(ApprovalRequest)))
    await arrived.wait()
    error = await case.ends(timeout=Timeout(total=0.05, attempt=0.04, connect=0.01))
    go.set()
    await asking
    await case.end()
    return error


async def unknown(seen: Seen, orphan_folder: Path) -> LoanError:
    case = Case(seen, orphan_folder, MemoryLedger(), timed_out())
    await case.ends()
    error = await case.ends()
    await case.end()
    return error


async def mismatched(seen: Seen, orphan_folder: Path) -> LoanError:
    case = Case(seen, orphan_folder, MemoryLedger(), REFUSED)
    await case.client.approve(CODE, planted(ApprovalRequest))
    error = await case.ends(amount=99_000)
    await case.end()
    return error


async def unavailable(seen: Seen, orphan_folder: Path) -> LoanError:
    return await Case(seen, orphan_folder, FailingLedger(claim=quoting), APPROVED).ends()


async def no_valkey(seen: Seen, orphan_folder: Path) -> LoanError:
    ledger = RedisLedger(f"redis://{TOKEN}:{TOKEN}@127.0.0.1:{free_port()}/0?password={TOKEN}")
    seen.values.append(ledger)
    return await Case(seen, orphan_folder, ledger, APPROVED).ends()


async def no_postgres(seen: Seen, orphan_folder: Path) -> LoanError:
    url = f"postgresql://{TOKEN}:{TOKEN}@127.0.0.1:{free_port()}/shop?password={TOKEN}&sslmode=disable"
    ledger = PostgresLedger(url)
    seen.values.append(ledger)
    return await Case(seen, orphan_folder, ledger, APPROVED).ends()


ENDS: list[tuple[Callable[[Seen, Path], Any], type[LedgerError]]] = [
    (in_flight, InFlightError),
    (unknown, OutcomeUnknownError),
    (mismatched, PayloadMismatchError),
    (unavailable, LedgerUnavailableError),
    (no_valkey, LedgerUnavailableError),
    (no_postgres, LedgerUnavailableError),
]


@pytest.mark.parametrize(("end", "kind"), ENDS, ids=[end.__name__ for end, _ in ENDS])
async def test_what_keeps_a_client_from_asking_shows_no_one(
    end: Callable[[Seen, Path], Any], kind: type[LedgerError], tmp_path: Path
) -> None:
    with watching() as seen:
        assert type(await end(seen, tmp_path)) is kind
    assert leaks(seen) == []


@pytest.mark.parametrize("step", [APPROVED, REFUSED], ids=["approved", "refused"])
async def test_a_decision_that_was_not_recorded_shows_no_one_but_to_who_unpickles_it(
    step: ScriptedResponse, tmp_path: Path
) -> None:
    with watching() as seen:
        error = await Case(seen, tmp_path, FailingLedger(settle=quoting), step).ends()
        assert isinstance(error, DecisionNotRecordedError)
    assert leaks(seen, tuple(place for place in PLACES if "pickles" not in place.name)) == []
    assert CODE.encode() in pickle.dumps(error)
    assert CODE not in f"{copy.deepcopy(error)!r} {pickle.loads(pickle.dumps(error))!r}"  # noqa: S301  (our own)


def test_every_error_of_a_ledger_was_searched() -> None:
    searched = {kind for _, kind in ENDS} | {DecisionNotRecordedError}
    assert searched == set(LedgerError.__subclasses__())
