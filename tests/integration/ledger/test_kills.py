"""Workers killed at any point: the request is sent at most once, and an unknown outcome stays unknown."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from loanasync import (
    AlreadyEvaluatedError,
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

EMAIL = "anna@example.com"
LONG_TIMEOUT = Timeout(total=30, attempt=20, connect=10)  # longer than the lease of a killed worker


@asynccontextmanager
async def killed(sandbox: Sandbox, file: Path, point: str, email: str) -> AsyncIterator[None]:
    """Start a worker, and kill it at a point."""
    await sandbox_client_creates(sandbox)
    arguments = [sandbox.base_url, sandbox.shop_id, sandbox.auth_token, FISCAL_CODE, email]
    worker = await asyncio.create_subprocess_exec(
        sys.executable, stopping_worker.__file__, str(file), point, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        if point == "after send":
            while not evaluated(sandbox):  # noqa: ASYNC110  (in another process and another thread)
                await asyncio.sleep(0.01)
        else:
            assert worker.stdout is not None
            assert (await worker.stdout.readline()).decode().strip() == point
    finally:
        worker.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        await worker.communicate()
    yield


async def sandbox_client_creates(sandbox: Sandbox) -> None:
    async with sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})


def posts(sandbox: Sandbox) -> list[Any]:
    return [entry for entry in sandbox.journal if entry.operation == "approve"]


def evaluated(sandbox: Sandbox) -> list[Any]:
    return [entry for entry in posts(sandbox) if entry.evaluated]


async def result_of_next_worker(
    sandbox: Sandbox, file: Path, email: str, **policy: Any
) -> tuple[Decision | LoanError, State]:
    """Return the result of the next worker, and the state of the entry after it."""
    ledger = SqliteLedger(file)
    policies = attrs.evolve(stopping_worker.POLICY, **policy)
    async with ledger, sandbox.client(ledger=ledger, ledger_policy=policies, timeout=LONG_TIMEOUT) as client:
        try:
            ended: Decision | LoanError = await client.approve(FISCAL_CODE, approval_request(email=email))
        except LoanError as error:
            ended = error
        (entry,) = [each async for each in ledger.scan()]
        return ended, entry.state


CASES = [
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
NAMES = [f"{point}{tag}".replace(" ", "-") for point, tag, *_ in CASES]


@pytest.mark.parametrize(("point", "tag", "kind", "state", "requests"), CASES, ids=NAMES)
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


PROBED = [
    ("after claim", "", Approved, State.APPROVED, 1),
    ("after send", "+hangafter", AlreadyEvaluatedError, State.LOST, 2),
    ("before commit", "+refused", AlreadyEvaluatedError, State.LOST, 2),
]


@pytest.mark.parametrize(
    ("point", "tag", "kind", "state", "requests"), PROBED, ids=[f"{point}{tag}" for point, tag, *_ in PROBED]
)
async def test_probe_after_a_kill_sends_once_more(
    point: str, tag: str, kind: type, state: State, requests: int, tmp_path: Path
) -> None:
    file, email = tmp_path / "decisions.db", EMAIL.replace("@", f"{tag}@")
    with Sandbox.in_thread() as sandbox:
        async with killed(sandbox, file, point, email):
            ended, then = await result_of_next_worker(sandbox, file, email, unknown="probe")
            assert type(ended) is kind
            assert then is state
            again, _ = await result_of_next_worker(sandbox, file, email, unknown="probe")
            assert type(again) is (kind if state.is_decided else OutcomeUnknownError)
        assert len(posts(sandbox)) == requests
        assert len(evaluated(sandbox)) == 1
