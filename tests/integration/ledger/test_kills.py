"""Workers killed at any point: the request is sent at most once, and an unknown outcome stays unknown."""

import asyncio
import math
from pathlib import Path

import pytest

from loanasync import (
    Approved,
    Decision,
    LoanError,
    OutcomeUnknownError,
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


@pytest.mark.parametrize(
    ("point", "tag", "kind", "state", "requests"),
    [
        ("after claim", "", OutcomeUnknownError, State.UNKNOWN, 0),
        ("after send", "+hangafter", OutcomeUnknownError, State.UNKNOWN, 1),
        ("before commit", "", OutcomeUnknownError, State.UNKNOWN, 1),
        ("after commit", "", Approved, State.APPROVED, 1),
    ],
)
async def test_next_worker_after_a_kill_sends_only_an_unsent_request(
    point: str, tag: str, kind: type, state: State, requests: int, tmp_path: Path
) -> None:
    file, email, log = tmp_path / "decisions.db", EMAIL.replace("@", f"{tag}@"), tmp_path / "worker.log"

    def is_there() -> bool:
        return log.exists() and f"{point}\n" in log.read_text(encoding="utf-8")

    with Sandbox.in_thread() as sandbox:
        async with sandbox.client() as client:
            await client.create_request({"fiscalCode": FISCAL_CODE})
        service = (sandbox.base_url, sandbox.shop_id, sandbox.auth_token)
        worker = start_process(log, stopping_worker.request_approval, file, point, service, email)
        try:
            await until(lambda: bool(evaluated(sandbox)) if point == "after send" else is_there())
        finally:
            worker.kill()
            await asyncio.to_thread(worker.join)
        for _ in range(2):  # the same for each redelivery
            ended, then = await result_of_next_worker(sandbox, file, email)
            assert type(ended) is kind
            assert then is state
        assert len(evaluated(sandbox)) == len(posts(sandbox)) == requests
