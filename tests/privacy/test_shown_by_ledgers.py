"""Ledger errors contain no personal data, not even if the backend repeats its arguments."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loanasync import (
    ApprovalRequest,
    DecisionForgottenError,
    DecisionNotRecordedError,
    InFlightError,
    InvalidRequestError,
    LedgerError,
    LedgerMismatchError,
    LedgerUnavailableError,
    LoanClient,
    LoanError,
    NotResolvedError,
    OutcomeUnknownError,
    PayloadMismatchError,
    Timeout,
)
from loanasync._runtime.guard import ProcessGuard
from loanasync.ledger import Ledger, LedgerPolicy, MemoryLedger, PostgresLedger, RedisLedger
from loanasync.testing import ScriptedResponse, ScriptedTransport, response, scripted_client, timed_out
from support.ledger_clients import FailingLedger, held_response
from support.privacy.plants import CODE, ECHO, LIMITS, REDIRECT, TOKEN, planted
from support.privacy.scanner import OUTPUT_KINDS, Captured, capturing, leaks
from support.servers.process import free_port

APPROVED = response(201, {**ECHO, "approved": True})
REFUSED = response(422, {**ECHO, "approved": False})


def quoting() -> None:
    raise OSError(f"{CODE} {TOKEN} {REDIRECT} {ECHO}")


class Case:
    """A client with a ledger whose output is captured."""

    def __init__(
        self, captured: Captured, orphan_folder: Path, ledger: Ledger, *steps: ScriptedResponse
    ) -> None:
        policy = LedgerPolicy(orphan_folder=orphan_folder, patience=5)
        options: Any = {"auth_token": TOKEN, "limits": LIMITS, "ledger": ledger, "ledger_policy": policy}
        self._seen = captured
        self.ledger = ledger
        self.client: LoanClient = ScriptedTransport(*steps).client(**options, **captured.providers)

    async def error_of_call(self, **changes: Any) -> LoanError:
        """Return the error of a call."""
        options = {"timeout": changes.pop("timeout", None)}
        with pytest.raises(LoanError) as caught:
            await self.client.approve(CODE, planted(ApprovalRequest, **changes), **options)
        self._seen.add(caught.value)
        return caught.value

    async def capture_values(self) -> None:
        """Add client, ledger and entries to the captured values."""
        self._seen.values += [self.client, self.ledger, *[entry async for entry in self.ledger.scan()]]


async def in_flight(captured: Captured, orphan_folder: Path) -> LoanError:
    step, arrived, go = held_response(APPROVED)
    case = Case(captured, orphan_folder, MemoryLedger(), step)
    approving = asyncio.create_task(case.client.approve(CODE, planted(ApprovalRequest)))
    await arrived.wait()
    error = await case.error_of_call(timeout=Timeout(total=0.05, attempt=0.04, connect=0.01))
    go.set()
    await approving
    await case.capture_values()
    return error


async def unknown(captured: Captured, orphan_folder: Path) -> LoanError:
    case = Case(captured, orphan_folder, MemoryLedger(), timed_out())
    await case.error_of_call()
    error = await case.error_of_call()
    await case.capture_values()
    return error


async def mismatched(captured: Captured, orphan_folder: Path) -> LoanError:
    case = Case(captured, orphan_folder, MemoryLedger(), REFUSED)
    await case.client.approve(CODE, planted(ApprovalRequest))
    error = await case.error_of_call(amount=99_000)
    await case.capture_values()
    return error


async def unavailable(captured: Captured, orphan_folder: Path) -> LoanError:
    return await Case(captured, orphan_folder, FailingLedger(claim=quoting), APPROVED).error_of_call()


async def no_valkey(captured: Captured, orphan_folder: Path) -> LoanError:
    ledger = RedisLedger(f"redis://{TOKEN}:{TOKEN}@127.0.0.1:{free_port()}/0?password={TOKEN}")
    captured.values.append(ledger)
    return await Case(captured, orphan_folder, ledger, APPROVED).error_of_call()


async def no_postgres(captured: Captured, orphan_folder: Path) -> LoanError:
    url = f"postgresql://{TOKEN}:{TOKEN}@127.0.0.1:{free_port()}/shop?password={TOKEN}&sslmode=disable"
    ledger = PostgresLedger(url)
    captured.values.append(ledger)
    return await Case(captured, orphan_folder, ledger, APPROVED).error_of_call()


async def contradicted(captured: Captured, orphan_folder: Path) -> LoanError:
    case = Case(captured, orphan_folder, MemoryLedger(), REFUSED)
    await case.client.approve(CODE, planted(ApprovalRequest))
    with pytest.raises(LoanError) as caught:
        await case.client.resolve(CODE, "approved", source="webhook", order_token=TOKEN)
    captured.add(caught.value)
    with pytest.raises(InvalidRequestError) as refused:
        await case.client.resolve(CODE, "approved", source="webhook", note=CODE)
    captured.add(refused.value)
    await case.capture_values()
    return caught.value


async def unavailable_to_resolve(captured: Captured, orphan_folder: Path) -> LoanError:
    case = Case(captured, orphan_folder, FailingLedger(get=quoting))
    with pytest.raises(LoanError) as caught:
        await case.client.resolve(CODE, "approved", source="webhook")
    captured.add(caught.value)
    return caught.value


async def of_another_service(captured: Captured, orphan_folder: Path) -> LoanError:
    ledger = MemoryLedger()
    await ledger.open("https://other.example.com", LedgerPolicy(key=b"0123456789abcdef"))
    return await Case(captured, orphan_folder, ledger).error_of_call()


async def forgotten(captured: Captured, _: Path) -> LoanError:
    client = scripted_client(APPROVED, auth_token=TOKEN, limits=LIMITS, **captured.providers)
    client._flights._guard = ProcessGuard(max_responses=0)
    await client.approve(CODE, planted(ApprovalRequest))
    with pytest.raises(LoanError) as caught:
        await client.approve(CODE, planted(ApprovalRequest))
    captured.add(caught.value)
    return caught.value


CASES: list[tuple[Callable[[Captured, Path], Any], type[LedgerError]]] = [
    (forgotten, DecisionForgottenError),
    (in_flight, InFlightError),
    (unknown, OutcomeUnknownError),
    (mismatched, PayloadMismatchError),
    (contradicted, NotResolvedError),
    (unavailable_to_resolve, LedgerUnavailableError),
    (unavailable, LedgerUnavailableError),
    (of_another_service, LedgerMismatchError),
    (no_valkey, LedgerUnavailableError),
    (no_postgres, LedgerUnavailableError),
]


@pytest.mark.parametrize(("case", "kind"), CASES, ids=[case.__name__ for case, _ in CASES])
async def test_ledger_error_shows_no_personal_data(
    case: Callable[[Captured, Path], Any], kind: type[LedgerError], tmp_path: Path
) -> None:
    with capturing() as captured:
        assert type(await case(captured, tmp_path)) is kind
    assert leaks(captured) == []


@pytest.mark.parametrize("step", [APPROVED, REFUSED], ids=["approved", "refused"])
async def test_unrecorded_decision_is_shown_only_in_a_pickle(step: ScriptedResponse, tmp_path: Path) -> None:
    with capturing() as captured:
        error = await Case(captured, tmp_path, FailingLedger(settle=quoting), step).error_of_call()
        assert isinstance(error, DecisionNotRecordedError)
    assert leaks(captured, tuple(each for each in OUTPUT_KINDS if "pickles" not in each.name)) == []
    assert CODE.encode() in pickle.dumps(error)
    assert CODE not in f"{copy.deepcopy(error)!r} {pickle.loads(pickle.dumps(error))!r}"  # noqa: S301  (our own)


def test_every_ledger_error_is_covered() -> None:
    searched = {kind for _, kind in CASES} | {DecisionNotRecordedError}
    assert searched == set(LedgerError.__subclasses__())
