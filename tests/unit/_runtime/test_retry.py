"""Number and waits of retries, as a table and with random policies."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import Approved, LoanError, Refused, RetryPolicy, Timeout, errors
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approved,
    computed,
    connection_lost,
    domain_error,
    response,
    system_error,
    timed_out,
)
from support.memory_clients import request, started
from support.separate import Run

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "retries.json").read_bytes())["vectors"]
BODIES: dict[int, dict[str, Any]] = {201: {"approved": True}, 422: {"approved": False}}


def scripted_response(
    status: int, run: Run | None = None, takes: float = 0, retry_after: int | None = None
) -> ScriptedResponse:
    """Return a response with this status, which advances the clock of `run` by `takes` seconds."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    scripted = response(status, BODIES.get(status, {}), headers)

    def respond(_: SentRequest) -> ScriptedResponse:
        if run is not None:
            run.clock.time += takes
        return scripted

    return computed(respond)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["claim"])
async def test_retry_table_row_gives_its_requests_and_waits(
    vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jitter = vector.get("jitter", 1)
    monkeypatch.setattr(random, "uniform", lambda least, most: least + (most - least) * jitter)
    run = Run(quota=vector.get("quota", 50))
    run.transport.add(
        *(
            scripted_response(status, run, vector.get("takes", 0), vector.get("retry_after"))
            for status in vector["statuses"]
        )
    )
    names = ("attempts", "base", "cap")
    policy = RetryPolicy(**{name: vector[name] for name in names if name in vector})
    outcome: object
    try:
        outcome = await run.approve(timeout=Timeout(total=60, attempt=30), retry=policy)
    except LoanError as error:
        outcome = error
    assert type(outcome).__name__ == vector["outcome"]
    assert len(run.transport.sent) == vector["sent"]
    assert run.clock.slept == pytest.approx(vector["waits"])
    assert getattr(outcome, "stopped_by", None) == vector.get("stopped_by")


ROUNDING = 1e-9
STATUSES = st.sampled_from([200, 201, 301, 400, 403, 408, 409, 422, 425, 429, 500, 500, 500, 502, 503, 504])
ENDINGS = st.sampled_from([connection_lost(), timed_out()])


@given(
    statuses=st.lists(STATUSES, min_size=1, max_size=10),
    ending=ENDINGS,
    takes=st.floats(0, 40),
    attempts=st.integers(1, 7),
    base=st.floats(0.001, 10),
    cap=st.floats(0.001, 30),
    total=st.floats(0.5, 90),
    quota=st.integers(0, 4),
    retry_after=st.none() | st.integers(0, 100),
)
async def test_retries_stay_within_policy_statuses_and_deadline(
    statuses: list[int],
    ending: ScriptedResponse,
    takes: float,
    attempts: int,
    base: float,
    cap: float,
    total: float,
    quota: int,
    retry_after: int | None,
) -> None:
    run = Run(quota=quota)
    run.transport.add(*(scripted_response(status, run, takes, retry_after) for status in statuses), ending)
    started = run.clock.time
    policy = RetryPolicy(attempts=attempts, base=base, cap=cap)
    try:
        outcome: object = await run.approve(
            timeout=Timeout(total=total, attempt=20, connect=0.5), retry=policy
        )
    except LoanError as error:
        outcome = error
    sent = len(run.transport.sent)
    assert 1 <= sent <= min(attempts, quota + 1)
    assert all(status == 500 for status in statuses[: sent - 1]), "retried after another status than 500"
    assert len(run.clock.slept) <= sent
    assert sum(run.clock.slept) < total
    for number, wait in enumerate(run.clock.slept):
        backoff = min(cap, base * 2**number)
        assert wait <= max(backoff, min(retry_after or 0, backoff + 5))
    for each in run.transport.sent:
        assert each.within == 20
    waited = sum(run.clock.slept) + takes * (sent - 1)
    assert waited < total + ROUNDING, "an attempt began after the deadline"
    assert run.clock.time - started == pytest.approx(waited + takes * (sent <= len(statuses)))
    assert isinstance(outcome, LoanError | Approved | Refused)


async def test_client_that_closes_during_a_wait_returns_the_fault() -> None:
    waiting = asyncio.Event()

    async def wait(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    script = ScriptedTransport(system_error(), approved())
    script.clock.sleep = wait  # type: ignore[assignment,method-assign]
    client = script.client(timeout=Timeout(total=0.01, attempt=0.01))
    call = await started(request(client, timeout=Timeout(total=60)), waiting)
    await client.aclose()
    fault = await call
    assert isinstance(fault, errors.SystemFaultError)
    assert (fault.stopped_by, fault.attempts, script.left) == ("closed", 1, 1)


@pytest.mark.parametrize("faults", [0, 1])
async def test_already_evaluated_error_tells_if_an_attempt_failed_before(faults: int) -> None:
    evaluated = domain_error("User already evaluated for approval")
    script = ScriptedTransport(*[system_error()] * faults, evaluated)
    error = await request(script.client())
    assert isinstance(error, errors.AlreadyEvaluatedError)
    assert error.after_retry is bool(faults)
