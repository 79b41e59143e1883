"""Readings of the specification, simulated by the sandbox over a real socket (spec §1.3, §2, §3, §4, §7)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    CannotCompleteError,
    DomainError,
    LoanClient,
    LoanError,
    Problem,
    Refused,
    UnexpectedResponseError,
    UserNotFoundError,
)
from loanasync._display.masking import Body, Items
from loanasync._protocol.endpoints import Endpoint
from loanasync.ledger import MemoryLedger, State
from loanasync.sandbox import Readings, Sandbox
from support.builders import FISCAL_CODE, approval_request, user_data


@asynccontextmanager
async def reading(**switches: Any) -> AsyncIterator[LoanClient]:
    """Create a request at a sandbox with these readings, and yield its client."""
    async with Sandbox(readings=Readings(**switches)) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        yield client


async def failure(client: LoanClient, code: str = FISCAL_CODE, **changes: Any) -> LoanError:
    with pytest.raises(LoanError) as caught:
        await client.approve(code, approval_request(**changes))
    return caught.value


@pytest.mark.parametrize("status", ["201", "422"])
async def test_refusal_of_either_status_is_refused(status: Any) -> None:
    async with reading(refusal=status) as client:
        decision = await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
    assert isinstance(decision, Refused)
    assert (decision.meta.status, decision.amount) == (int(status), 45_000)


async def test_validation_errors_of_422_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "problems", lambda *_, **__: ())
    async with reading(validation="422") as client:
        error = await failure(client, last_name="")
    assert isinstance(error, UnexpectedResponseError)
    assert (error.outcome, error.status) == ("unknown", 422)
    assert error.problems == (Problem("last_name", "lastname", "This value should not be blank."),)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_conflict_is_always_unknown(when: Any) -> None:
    async with reading(conflict=when) as client:
        error = await failure(client, email="a+conflict@example.com")
    assert type(error) is CannotCompleteError
    assert (error.outcome, error.repeatable) == ("unknown", False)


@pytest.mark.parametrize("status", ["400", "409"])
async def test_already_evaluated_of_either_status_is_lost(status: Any) -> None:
    ledger = MemoryLedger()
    async with (
        Sandbox(readings=Readings(already_evaluated=status)) as sandbox,
        sandbox.client(ledger=ledger) as client,
    ):
        await client.create_request({"fiscalCode": FISCAL_CODE})
        error = await failure(client, email="a+already@example.com")
    assert isinstance(error, AlreadyEvaluatedError)
    assert (error.status, error.outcome) == (int(status), "unknown")
    assert error.entry is not None
    entry = await ledger.get(error.entry)
    assert entry is not None
    assert entry.state is State.LOST


@pytest.mark.parametrize(
    ("domain", "kind", "outcome"),
    [
        ("verbatim", UserNotFoundError, "not_evaluated"),
        ("reworded", DomainError, "unknown"),
        ("localized", DomainError, "unknown"),
    ],
)
async def test_domain_text_releases_only_verbatim(domain: Any, kind: type[LoanError], outcome: str) -> None:
    async with reading(domain=domain) as client:
        error = await failure(client, email="a+nouser@example.com")
    assert (type(error), error.outcome) == (kind, outcome)


@pytest.mark.parametrize("domain", ["verbatim", "reworded", "localized"])
async def test_already_evaluated_is_never_released(domain: Any) -> None:
    async with reading(domain=domain) as client:
        error = await failure(client, email="a+already@example.com")
    assert isinstance(error, DomainError)
    assert error.outcome == "unknown"


@pytest.mark.parametrize("echo", ["exact", "masked", "omocodia", "missing"])
async def test_echo_of_the_customer_in_any_form_is_accepted(echo: Any) -> None:
    async with reading(fiscal_code=echo) as client:
        decision = await client.approve(FISCAL_CODE, approval_request())
    assert isinstance(decision, Approved)
    assert (decision.fiscal_code == FISCAL_CODE) is (echo == "exact")


@pytest.mark.parametrize(("url", "unread"), [("missing", ()), ("empty", ("redirectUrl",))])
async def test_redirect_that_is_blank_is_none(url: Any, unread: tuple[str, ...]) -> None:
    async with reading(redirect_url=url) as client:
        decision = await client.approve(FISCAL_CODE, approval_request())
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread) == (None, unread)


@pytest.mark.parametrize("completion", ["complete", "partial", "empty"])
@pytest.mark.parametrize("dates", ["day", "time"])
async def test_completion_of_any_shape_is_saved(completion: Any, dates: Any) -> None:
    async with reading(completion=completion, dates=dates) as client:
        await client.upload_documents(FISCAL_CODE, {"front": "x"})
        saved = await client.complete(FISCAL_CODE, user_data())
    assert saved.unread == ()
    if completion == "complete":
        assert saved.document_issue_date == user_data().document_issue_date


@pytest.mark.parametrize(("shape", "kind"), [("object", Body), ("array", Items), ("empty", Body)])
async def test_prerequisite_responses_are_any_json(shape: Any, kind: type) -> None:
    readings = Readings(creation=shape, documents=shape)
    async with Sandbox(readings=readings) as sandbox, sandbox.client() as client:
        created = await client.create_request({"fiscalCode": FISCAL_CODE})
        files = await client.upload_documents(FISCAL_CODE, {"front": "x"})
    assert {type(created), type(files)} == {kind}
