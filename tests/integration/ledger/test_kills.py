"""Workers killed at any point: the request is sent at most once, and an unknown outcome stays unknown."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loanasync import (
    Approved,
    Decision,
    LoanError,
    OutcomeUnknownError,
    Refused,
    Timeout,
)
from loanasync.ledger import SqliteLedger, State
from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request
from support import stopping_worker
from support.builders import FISCAL_CODE
from support.fleet.workers import evaluated, posts, until
from support.processes import start_process

EMAIL = "anna@example.com"
LONG_TIMEOUT = Timeout(total=30, attempt=20, connect=10)  # longer than the lease of a killed worker


@asynccontextmanager
async def killed(sandbox: Sandbox, file: Path, point: str, email: str) -> AsyncIterator[None]:
    """Start a worker, and kill it at a point."""
    await sandbox_client_creates(sandbox)
    service = (sandbox.base_url, sandbox.shop_id, sandbox.auth_token)
    log = file.with_name("worker.log")
    worker = start_process(log, stopping_worker.request_approval, file, point, service, email)
    try:
        await until(lambda: bool(evaluated(sandbox)) if point == "after send" else is_printed(point, log))
    finally:
        worker.kill()
        await asyncio.to_thread(worker.join)
    yield


def is_printed(text: str, log: Path) -> bool:
    return log.exists() and f"{text}\n" in log.read_text(encoding="utf-8")


async def sandbox_client_creates(sandbox: Sandbox) -> None:
    async with sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})


async def result_of_next_worker(
    sandbox: Sandbox, file: Path, email: str
) -> tuple[Decision | LoanError, State]:
    """Return the result of the next worker, which waits for the lease, and the state of its entry."""
    ledger, policy = SqliteLedger(file), stopping_worker.POLICY
    async with ledger, sandbox.client(ledger=ledger, ledger_policy=policy, timeout=LONG_TIMEOUT) as client:
        try:
            ended: Decision | LoanError = await client.approve(
                FISCAL_CODE, approval_request(email=email), wait=math.inf
            )
        except LoanError as error:
            ended = error
        (entry,) = [each async for each in ledger.scan()]
        return ended, entry.state


CASES: list[tuple[Any, ...]] = [
    # point, tag, result of the next worker, state of the entry, number of evaluated requests
    ("before claim", "", Approved, State.APPROVED, 1),
    ("after claim", "", OutcomeUnknownError, State.UNKNOWN, 0),
    ("after send", "+hangafter", OutcomeUnknownError, State.UNKNOWN, 1),
    ("before commit", "", OutcomeUnknownError, State.UNKNOWN, 1),
    ("before commit", "+500after", OutcomeUnknownError, State.UNKNOWN, 1),
    ("before commit", "+resetafter", OutcomeUnknownError, State.UNKNOWN, 1),
    ("after commit", "", Approved, State.APPROVED, 1),
    ("after commit", "+refused", Refused, State.REFUSED, 1),
    ("after commit", "+resetafter", OutcomeUnknownError, State.UNKNOWN, 1),
]
# Before the request, after it, after the response, and after the settlement.
IN_GATE = [("after claim", ""), ("after send", "+hangafter"), ("before commit", ""), ("after commit", "")]


def turns(cases: list[tuple[Any, ...]]) -> list[Any]:
    """Return the parameters of all cases; those outside the gate are scheduled."""
    return [
        pytest.param(
            *case,
            id=f"{case[0]}{case[1]}".replace(" ", "-"),
            marks=[] if case[:2] in IN_GATE else pytest.mark.scheduled,
        )
        for case in cases
    ]


@pytest.mark.parametrize(("point", "tag", "kind", "state", "requests"), turns(CASES))
async def test_next_worker_after_a_kill_sends_only_an_unsent_request(
    point: str, tag: str, kind: type, state: State, requests: int, tmp_path: Path
) -> None:
    file, email = tmp_path / "decisions.db", EMAIL.replace("@", f"{tag}@")
    with Sandbox.in_thread() as sandbox:
        async with killed(sandbox, file, point, email):
            for _ in range(2):  # the same for each redelivery
                ended, then = await result_of_next_worker(sandbox, file, email)
                assert type(ended) is kind
                assert then is state
        assert len(evaluated(sandbox)) == len(posts(sandbox)) == requests
