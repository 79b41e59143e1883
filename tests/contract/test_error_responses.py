"""Spec §5, §7, §8: each status, message and limit, over a real socket to the sandbox.

Our own rules are disabled where they would prevent the request.
"""

from functools import partial
from typing import Any

import pytest

from loanasync import LoanClient, LoanError, UserData, errors
from loanasync._protocol.endpoints import Endpoint
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, approval_request, user_data

BLANK = "This value should not be blank."
NOT_ALLOWED = "This sales point cannot apply for a loan"


def without_problems(endpoint: Endpoint, _: object, code: str, *__: object, **___: object) -> Any:
    return code if endpoint.has_customer else None, []


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "checked", without_problems)


async def rejected(client: LoanClient, code: str = FISCAL_CODE, **changes: Any) -> errors.ServiceError:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    with pytest.raises(errors.ServiceError) as caught:
        await client.approve(code, approval_request(**changes))
    return caught.value


def texts(error: errors.ServiceError) -> list[str]:
    return [each.message for each in error.problems]


# spec §7, table "400 validation messages"; those of the creation are below
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
    client: LoanClient, field: str, value: Any, wire_name: str, message: str
) -> None:
    error = await rejected(client, **{field: value})
    assert type(error) is errors.RejectedError
    [problem] = error.problems
    assert (problem.field, problem.wire_name, problem.message) == (field, wire_name, message)
    assert (error.status, error.attempts, error.operation) == (400, 1, "approve")


@pytest.mark.parametrize(
    ("payload", "name", "message"),
    [
        ({"actualJobEndingDate": "soon"}, "actualJobEndingDate", "Invalid date format"),
        ({"privacy": False}, "privacy", "This value should be equal to 'true'."),
        ({"fiscalCode": "SHORT"}, "fiscal_code", "Invalid fiscal code"),
    ],
)
async def test_validation_message_of_create_request(
    client: LoanClient, payload: dict[str, Any], name: str, message: str
) -> None:
    with pytest.raises(errors.RejectedError) as caught:
        await client.create_request({"fiscalCode": FISCAL_CODE, **payload})
    assert [(each.field, each.message) for each in caught.value.problems] == [(name, message)]


# spec §7, table "400 domain errors", and the other statuses
@pytest.mark.parametrize(
    ("tag", "kind", "status", "outcome", "message"),
    [
        ("nouser", errors.UserNotFoundError, 400, "not_evaluated", "User not found"),
        ("already", errors.AlreadyEvaluatedError, 400, "unknown", "User already evaluated for approval"),
        ("noshop", errors.ShopNotAllowedError, 400, "not_evaluated", NOT_ALLOWED),
        ("conflict", errors.CannotCompleteError, 409, "unknown", "The request cannot be completed"),
        ("500x9", errors.SystemFaultError, 500, "unknown", "System error"),
    ],
)
async def test_each_error_has_its_class_and_outcome(
    client: LoanClient, tag: str, kind: type[LoanError], status: int, outcome: str, message: str
) -> None:
    error = await rejected(client, email=f"a+{tag}@example.com")
    assert type(error) is kind
    assert (error.status, error.outcome, texts(error)) == (status, outcome, [message])
    assert error.attempts == (3 if status == 500 else 1)


@pytest.mark.usefixtures("unchecked")
async def test_invalid_fiscal_code_is_a_field_or_a_domain_error(client: LoanClient) -> None:
    error = await rejected(client, "SHORT")
    assert [(each.field, each.message) for each in error.problems] == [("fiscal_code", "Invalid fiscal code")]
    with pytest.raises(errors.InvalidFiscalCodeError) as caught:
        await client.complete("SHORT", user_data())
    assert texts(caught.value) == ["Invalid fiscalCode."]
    async with Sandbox(dialect="civic_number") as sandbox, sandbox.client() as other:
        assert type(await rejected(other, "SHORT")) is errors.InvalidFiscalCodeError


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
    with pytest.raises(errors.RejectedError) as caught:
        await client.complete(FISCAL_CODE, UserData(extra={wire_name: ""}))
    [problem] = caught.value.problems
    assert (problem.field, problem.wire_name) == (field, wire_name)
    assert problem.message.startswith("Questo valore")


@pytest.mark.parametrize(("shop_id", "auth_token"), [("other", "sandbox-token"), ("sandbox-shop", "wrong")])
async def test_wrong_credentials_are_denied_in_every_call(
    client: LoanClient, shop_id: str, auth_token: str
) -> None:
    stranger = client.with_options(shop_id=shop_id, auth_token=auth_token)
    calls: dict[str, Any] = {
        "create_request": partial(stranger.create_request, {"fiscalCode": FISCAL_CODE}),
        "approve": partial(stranger.approve, FISCAL_CODE, approval_request()),
        "upload_documents": partial(stranger.upload_documents, FISCAL_CODE, {}),
        "complete": partial(stranger.complete, FISCAL_CODE, user_data()),
    }
    for operation, call in calls.items():
        with pytest.raises(errors.AccessDeniedError) as caught:
            await call()
        assert (caught.value.status, caught.value.operation) == (403, operation)
        assert texts(caught.value) == ["Access denied"]


# spec §8: the service and our rules have the same limits
@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("amount", (5_000, 1_500_000), (4_999, 1_500_001)),
        ("instalments", (3, 60), (2, 61)),
        ("province", ("RM",), ("R", "Rm", "ROM", "12")),
        ("postal_code", ("00100",), ("0010", "001000", "0010A", "\u0660" * 5)),
    ],
)
async def test_limits_equal_those_of_the_service(
    client: LoanClient, monkeypatch: pytest.MonkeyPatch, field: str, inside: Any, outside: Any
) -> None:
    for number, value in enumerate(inside):
        code = f"TSTXYZ00A00A00{number}Z"
        await client.create_request({"fiscalCode": code})
        await client.approve(code, approval_request(**{field: value}))
    for value in outside:
        with pytest.raises(errors.InvalidRequestError) as caught:
            await client.approve(FISCAL_CODE, approval_request(**{field: value}))
        assert [each.field for each in caught.value.problems] == [field]
        with monkeypatch.context() as patched:
            patched.setattr(Endpoint, "checked", without_problems)
            error = await rejected(client, **{field: value})
        assert [each.field for each in error.problems] == [field]
