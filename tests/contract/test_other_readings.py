"""Other readings of the specification: R1, R2 and R6 by the sandbox, all others by scripted responses."""

import asyncio
import json
from typing import Any

import pytest

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    CannotCompleteError,
    DomainError,
    LoanError,
    Refused,
    UnexpectedResponseError,
    UserNotFoundError,
)
from loanasync._models.masking import Body, Items
from loanasync.sandbox import Sandbox
from loanasync.testing import ScriptedResponse, conflict, domain_error, response, scripted_client
from support.builders import FISCAL_CODE, approval_request, user_data


@pytest.mark.parametrize("status", [201, 422])
async def test_refusal_of_either_status_is_refused(status: Any) -> None:
    """Reading R1."""
    async with Sandbox(refusal=status) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        decision = await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
    assert isinstance(decision, Refused)
    assert (decision.meta.status, decision.amount) == (status, 45_000)


async def test_validation_errors_with_422_are_unknown() -> None:
    """Reading R2."""
    async with Sandbox(validation=422) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        with pytest.raises(UnexpectedResponseError) as caught:
            await client.approve(FISCAL_CODE, approval_request(email="a+invalid.lastname@example.com"))
    assert (caught.value.outcome, caught.value.repeatable) == ("unknown", False)
    assert [problem.field for problem in caught.value.problems] == ["last_name"]


@pytest.mark.parametrize(("evaluates", "statuses"), [("customer", [201, 400]), ("order", [201, 201])])
async def test_each_customer_or_each_order_is_evaluated_once(evaluates: Any, statuses: list[int]) -> None:
    """Reading R6."""
    async with Sandbox(evaluates=evaluates) as sandbox, sandbox.client() as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        orders = [
            client.approve(FISCAL_CODE, approval_request(order_token=order), order_id=order)
            for order in ("first", "second")
        ]
        await asyncio.gather(*orders, return_exceptions=True)
        assert sorted(call.status or 0 for call in sandbox.journal.calls(operation="approve")) == statuses


@pytest.mark.parametrize(
    ("scripted", "kind", "outcome"),
    [
        (conflict(), CannotCompleteError, "unknown"),
        (conflict("User already evaluated for approval"), AlreadyEvaluatedError, "unknown"),
        (domain_error("User already evaluated for approval"), AlreadyEvaluatedError, "unknown"),
        (domain_error("This user has been evaluated already."), AlreadyEvaluatedError, "unknown"),
        (domain_error("Utente già valutato per approvazione"), AlreadyEvaluatedError, "unknown"),
        (domain_error("User not found"), UserNotFoundError, "not_evaluated"),
        (domain_error("No user has this code."), DomainError, "unknown"),
        (domain_error("Utente non trovato"), DomainError, "unknown"),
    ],
)
async def test_error_releases_only_in_the_words_of_the_specification(
    scripted: ScriptedResponse, kind: type[LoanError], outcome: str
) -> None:
    with pytest.raises(LoanError) as caught:
        await scripted_client(scripted).approve(FISCAL_CODE, approval_request())
    assert type(caught.value) is kind
    assert (caught.value.outcome, caught.value.repeatable) == (outcome, False)


@pytest.mark.parametrize(
    ("members", "attributes", "unread"),
    [
        ({"fiscalCode": FISCAL_CODE}, {"fiscal_code": FISCAL_CODE}, ()),
        ({"fiscalCode": FISCAL_CODE[:4] + "********" + FISCAL_CODE[-4:]}, {}, ()),
        ({"fiscalCode": FISCAL_CODE[:-2] + "LMNPQRSTUV"[int(FISCAL_CODE[-2])] + FISCAL_CODE[-1]}, {}, ()),
        ({}, {"fiscal_code": None, "redirect_url": None}, ()),
        ({"redirectUrl": ""}, {"redirect_url": None}, ("redirectUrl",)),
    ],
)
async def test_approval_of_any_form_is_approved(
    members: dict[str, Any], attributes: dict[str, Any], unread: tuple[str, ...]
) -> None:
    scripted = response(201, {"approved": True, **members})
    decision = await scripted_client(scripted).approve(FISCAL_CODE, approval_request())
    assert isinstance(decision, Approved)
    assert {name: getattr(decision, name) for name in attributes} == attributes
    assert decision.meta.unread == unread


@pytest.mark.parametrize("day", ["2020-01-31", "2020-01-31T00:00:00+00:00"])
@pytest.mark.parametrize("others", [{}, {"documentCode": "X1"}])
async def test_completion_of_any_shape_is_saved(day: str, others: dict[str, str]) -> None:
    scripted = [response(200, {"documentIssueDate": day, **others}), response(200)]
    client = scripted_client(*scripted)
    whole = await client.complete(FISCAL_CODE, user_data())
    assert (str(whole.document_issue_date), whole.document_code, whole.unread) == (
        "2020-01-31",
        others.get("documentCode"),
        (),
    )
    assert (await client.complete(FISCAL_CODE, user_data())).unread == ()


@pytest.mark.parametrize(
    ("body", "kind"),
    [({"fiscalCode": FISCAL_CODE}, Body), ([{"documents": "received"}], Items), (None, Body)],
)
async def test_prerequisite_responses_are_any_json(body: object, kind: type) -> None:
    scripted = response(201, b"" if body is None else json.dumps(body).encode())
    client = scripted_client(scripted, scripted)
    created = await client.create_request({"fiscalCode": FISCAL_CODE})
    files = await client.upload_documents(FISCAL_CODE, {"front": "x"})
    assert {type(created), type(files)} == {kind}
