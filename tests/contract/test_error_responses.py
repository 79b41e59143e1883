"""Spec §5, §7, §8: each status, message and limit, over a real socket to the sandbox.

Our own rules are disabled where they would prevent the request.
"""

from functools import partial
from typing import Any

import pytest

from loanasync import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    InvalidFiscalCodeError,
    InvalidRequestError,
    LoanClient,
    LoanError,
    RejectedError,
    ServiceError,
    ShopNotAllowedError,
    SystemFaultError,
    UserNotFoundError,
)
from loanasync._protocol.endpoints import Endpoint
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, approval_request, user_data

BLANK = "This value should not be blank."


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "problems", lambda *_, **__: ())


async def rejected(client: LoanClient, **changes: Any) -> ServiceError:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    with pytest.raises(ServiceError) as caught:
        await client.approve(FISCAL_CODE, approval_request(**changes))
    return caught.value


# spec §7, table "400 validation messages"; those of the create call are below
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("field", "value", "wire_name", "message"),
    [
        ("address", "", "address", BLANK),
        ("amount", 4_999, "amount", "This value should be between 5000 and 1500000"),
        ("citizenship", "martian", "citizenship", "This value should be one of the available options."),
        ("street_number", "", "streetNumber", BLANK),
        ("email", "", "email", BLANK),
        ("first_name", "", "firstname", BLANK),
        ("instalments", 2, "instalments", "The number of installments must be between 3 and 60"),
        ("last_name", "", "lastname", BLANK),
        ("mobile_phone", "", "mobilePhone", BLANK),
        ("postal_code", "", "postalCode", BLANK),
    ],
)
async def test_validation_message_has_its_field_name(
    client: LoanClient, field: str, value: object, wire_name: str, message: str
) -> None:
    error = await rejected(client, **{field: value})
    assert type(error) is RejectedError
    assert [(each.field, each.wire_name, each.message) for each in error.problems] == [
        (field, wire_name, message)
    ]
    assert (error.status, error.attempts, error.operation) == (400, 1, "approve")


@pytest.mark.usefixtures("unchecked")
async def test_invalid_fiscal_code_has_its_field_name(client: LoanClient) -> None:
    with pytest.raises(RejectedError) as caught:
        await client.approve("SHORT", approval_request())
    assert [(each.field, each.message) for each in caught.value.problems] == [
        ("fiscal_code", "Invalid fiscal code")
    ]


@pytest.mark.parametrize(
    ("payload", "name", "message"),
    [
        ({"actualJobEndingDate": "soon"}, "actualJobEndingDate", "Invalid date format"),
        ({"privacy": False}, "privacy", "This value should be equal to 'true'."),
        ({"fiscalCode": "SHORT"}, "fiscal_code", "Invalid fiscal code"),
    ],
    ids=["actualJobEndingDate", "privacy", "fiscalCode"],
)
async def test_validation_message_of_create_request(
    client: LoanClient, payload: dict[str, Any], name: str, message: str
) -> None:
    with pytest.raises(RejectedError) as caught:
        await client.create_request({"fiscalCode": FISCAL_CODE, **payload})
    assert [(each.field, each.message) for each in caught.value.problems] == [(name, message)]


# spec §7, table "400 domain errors"
@pytest.mark.parametrize(
    ("tag", "error", "message"),
    [
        ("nouser", UserNotFoundError, "User not found"),
        ("already", AlreadyEvaluatedError, "User already evaluated for approval"),
        ("noshop", ShopNotAllowedError, "This sales point cannot apply for a loan"),
    ],
)
async def test_each_domain_error_has_its_class(
    client: LoanClient, tag: str, error: type[LoanError], message: str
) -> None:
    caught = await rejected(client, email=f"a+{tag}@example.com")
    assert type(caught) is error
    assert caught.outcome == ("unknown" if error is AlreadyEvaluatedError else "not_evaluated")
    assert [each.message for each in caught.problems] == [message]


@pytest.mark.usefixtures("unchecked")
async def test_invalid_fiscal_code_of_complete_is_a_domain_error(client: LoanClient) -> None:
    with pytest.raises(InvalidFiscalCodeError) as caught:
        await client.complete("SHORT", user_data())
    assert [each.message for each in caught.value.problems] == ["Invalid fiscalCode."]


@pytest.mark.usefixtures("unchecked")
async def test_invalid_fiscal_code_of_one_dialect_is_a_domain_error() -> None:
    async with (
        Sandbox(dialect="civic_number") as sandbox,
        LoanClient(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token) as client,
    ):
        with pytest.raises(InvalidFiscalCodeError):
            await client.approve("SHORT", approval_request())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("field", "wire_name"),
    [("document_city", "documentCity"), ("document_expiration_date", "documentExpirationDate")],
)
async def test_complete_rejection_in_italian_has_each_field(
    client: LoanClient, field: str, wire_name: str
) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    await client.upload_documents(FISCAL_CODE, {})
    wrong = user_data().__class__(extra={wire_name: ""})
    with pytest.raises(RejectedError) as caught:
        await client.complete(FISCAL_CODE, wrong)
    [problem] = caught.value.problems
    assert (problem.field, problem.wire_name) == (field, wire_name)
    assert problem.message.startswith("Questo valore")


@pytest.mark.parametrize(("shop_id", "auth_token"), [("other", "sandbox-token"), ("sandbox-shop", "wrong")])
@pytest.mark.parametrize("operation", ["create_request", "approve", "upload_documents", "complete"])
async def test_wrong_credentials_are_denied_in_every_call(
    client: LoanClient, operation: str, shop_id: str, auth_token: str
) -> None:
    stranger = client.with_options(shop_id=shop_id, auth_token=auth_token)
    calls: dict[str, Any] = {
        "create_request": partial(stranger.create_request, {"fiscalCode": FISCAL_CODE}),
        "approve": partial(stranger.approve, FISCAL_CODE, approval_request()),
        "upload_documents": partial(stranger.upload_documents, FISCAL_CODE, {}),
        "complete": partial(stranger.complete, FISCAL_CODE, user_data()),
    }
    with pytest.raises(AccessDeniedError) as caught:
        await calls[operation]()
    assert (caught.value.status, caught.value.operation) == (403, operation)
    assert [each.message for each in caught.value.problems] == ["Access denied"]


async def test_request_that_cannot_be_completed_is_409_with_a_string(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    with pytest.raises(CannotCompleteError) as caught:
        await client.approve(FISCAL_CODE, approval_request(email="a+conflict@example.com"))
    assert caught.value.status == 409
    assert [each.message for each in caught.value.problems] == ["The request cannot be completed"]


async def test_permanent_fault_is_500_with_a_system_error(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    with pytest.raises(SystemFaultError) as caught:
        await client.approve(FISCAL_CODE, approval_request(email="a+500x9@example.com"))
    assert (caught.value.status, caught.value.attempts, caught.value.stopped_by) == (500, 3, "attempts")
    assert [(each.wire_name, each.message) for each in caught.value.problems] == [("system", "System error")]


# spec §8: the service and our rules have the same limits
@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("amount", (5_000, 1_500_000), (4_999, 1_500_001)),
        ("instalments", (3, 60), (2, 61)),
        ("province", ("RM",), ("R", "Rm", "ROM", "12")),
        ("postal_code", ("00100",), ("0010", "001000", "0010A", "\u0660" * 5)),
    ],
    ids=["amount", "instalments", "province", "postalCode"],
)
async def test_limits_equal_those_of_the_service(
    client: LoanClient,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    inside: tuple[object, ...],
    outside: tuple[object, ...],
) -> None:
    for number, value in enumerate(inside):
        code = f"TSTXYZ00A00A00{number}Z"
        await client.create_request({"fiscalCode": code})
        await client.approve(code, approval_request(**{field: value}))
    for value in outside:
        with pytest.raises(InvalidRequestError) as caught:
            await client.approve(FISCAL_CODE, approval_request(**{field: value}))
        assert [each.field for each in caught.value.problems] == [field]
        with monkeypatch.context() as patched:
            patched.setattr(Endpoint, "problems", lambda *_, **__: ())
            error = await rejected(client, **{field: value})
        assert [each.field for each in error.problems] == [field]
