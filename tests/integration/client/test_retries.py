"""Retries over sockets: attempts per call, and the quota that all calls of a client share."""

import asyncio

import pytest

from loanasync import LoanClient, RetryPolicy, SystemFaultError, Timeout
from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request, fiscal_code
from support.canned_server import FAULT, approve, serving


async def test_concurrent_retries_count_their_own_attempts(sandbox: Sandbox, client: LoanClient) -> None:
    async def attempts(faults: int) -> int:
        code = fiscal_code()
        await client.create_request({"fiscalCode": code})
        tag = f"500x{faults}" if faults else "approved"
        return (await client.approve(code, approval_request(tag=tag))).meta.attempts

    faults = [0, 1, 2] * 8
    assert await asyncio.gather(*map(attempts, faults)) == [each + 1 for each in faults]
    assert len(sandbox.journal.calls(operation="approve")) == sum(faults) + len(faults)


async def test_retries_to_a_failing_service_end_with_the_quota() -> None:
    async with (
        serving(FAULT) as server,
        server.client(
            retry=RetryPolicy(attempts=5, base=0.001, cap=0.01, quota=30), timeout=Timeout(total=120)
        ) as client,
    ):
        outcomes = await asyncio.gather(*(approve(client) for _ in range(1000)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {SystemFaultError}
        assert server.requests == 1000 + 30
        stopped = [outcome.stopped_by for outcome in outcomes if isinstance(outcome, SystemFaultError)]
        assert stopped.count("quota") >= 1000 - 30
        # The quota is used up: a further call makes its first attempt and no retry.
        with pytest.raises(SystemFaultError) as caught:
            await approve(client)
        assert (caught.value.attempts, caught.value.stopped_by) == (1, "quota")


async def test_copies_of_a_client_share_its_quota() -> None:
    async with (
        serving(FAULT) as server,
        server.client(retry=RetryPolicy(base=0.001, cap=0.001, quota=5)) as client,
    ):
        copies = [client.with_options(retry=RetryPolicy(base=0.001, cap=0.001, quota=500)) for _ in range(20)]
        await asyncio.gather(*(approve(copy) for copy in copies), return_exceptions=True)
        assert server.requests == 20 + 5
