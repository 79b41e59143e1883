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
    Refused,
    UnexpectedResponseError,
    UserNotFoundError,
)
from loanasync._display.masking import Body, Items
from loanasync.sandbox import Readings, Sandbox
from support.builders import FISCAL_CODE, approval_request, user_data


@asynccontextmanager
async def reading(**switches: Any) -> AsyncIterator[LoanClient]:
    """Create a request at a sandbox with these readings, and yield its client."""
    async with Sandbox(readings=Readings(**switches)) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        yield client


@pytest.mark.parametrize("status", ["201", "422"])
async def test_refusal_of_either_status_is_refused(status: Any) -> None:
    async with reading(refusal=status) as client:
        decision = await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
    assert isinstance(decision, Refused)
    assert (decision.meta.status, decision.amount) == (int(status), 45_000)


@pytest.mark.parametrize(
    ("switches", "tag", "kind", "outcome"),
    [
        ({"validation": "422"}, "invalid.lastname", UnexpectedResponseError, "unknown"),
        ({"conflict": "before"}, "conflict", CannotCompleteError, "unknown"),
        ({"conflict": "after"}, "conflict", CannotCompleteError, "unknown"),
        ({"already_evaluated": "400"}, "already", AlreadyEvaluatedError, "unknown"),
        ({"already_evaluated": "409"}, "already", AlreadyEvaluatedError, "unknown"),
        ({"domain": "reworded"}, "already", AlreadyEvaluatedError, "unknown"),
        ({"domain": "localized"}, "already", AlreadyEvaluatedError, "unknown"),
        ({"domain": "verbatim"}, "nouser", UserNotFoundError, "not_evaluated"),
        ({"domain": "reworded"}, "nouser", DomainError, "unknown"),
        ({"domain": "localized"}, "nouser", DomainError, "unknown"),
    ],
)
async def test_error_releases_only_in_the_words_of_the_specification(
    switches: dict[str, Any], tag: str, kind: type[LoanError], outcome: str
) -> None:
    async with reading(**switches) as client:
        with pytest.raises(LoanError) as caught:
            await client.approve(FISCAL_CODE, approval_request(email=f"a+{tag}@example.com"))
    assert type(caught.value) is kind
    assert (caught.value.outcome, caught.value.repeatable) == (outcome, False)


@pytest.mark.parametrize(
    ("switches", "attributes"),
    [
        ({"fiscal_code": "exact"}, {"fiscal_code": FISCAL_CODE}),
        *(({"fiscal_code": echo}, {}) for echo in ("masked", "omocodia", "missing")),
        ({"redirect_url": "missing"}, {"redirect_url": None}),
        ({"redirect_url": "empty"}, {"redirect_url": None}),
    ],
)
async def test_approval_of_any_form_is_approved(switches: dict[str, Any], attributes: dict[str, Any]) -> None:
    async with reading(**switches) as client:
        decision = await client.approve(FISCAL_CODE, approval_request())
    assert isinstance(decision, Approved)
    assert {name: getattr(decision, name) for name in attributes} == attributes
    assert decision.meta.unread == (("redirectUrl",) if switches.get("redirect_url") == "empty" else ())


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
