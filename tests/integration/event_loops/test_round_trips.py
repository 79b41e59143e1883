"""Errors, models and decisions are equal after copying, pickling and a transfer to another process."""

import copy
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import attrs
import pytest
from hypothesis import given

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Approved,
    Dialect,
    Limits,
    LoanError,
    Meta,
    Problem,
    RawResponse,
    Refused,
    RetryPolicy,
    Timeout,
    UserData,
    errors,
)
from loanasync.testing import approved, domain_error, refused, response, scripted_client, system_error
from support.builders import APPROVAL_REQUESTS, USER_DATA, additional_data, approval_request, user_data
from support.process_functions import again, fail
from unit.errors.test_errors import EXAMPLES

META = Meta(status=201, attempts=2, elapsed=0.25, trace_id="0" * 32, unread=("netAmount",), request_id="r-1")
VALUES: list[Any] = [
    approval_request(additional=additional_data(), extra={"new": {"deep": [1, None]}}),
    additional_data(),
    AdditionalData(children="2"),
    user_data(extra={"new": "x"}, unread=("iban",)),
    Approved(amount=45_000, redirect_url="https://example.com/#t", meta=META),
    Refused(first_name="Anna", meta=META),
    META,
    Problem("email", "email", "is taken"),
    RawResponse(201, b"{"),
    Dialect.civic_number(),
    Limits(amount_max=10_000, mobile_phone="[0-9]+"),
    RetryPolicy(attempts=2),
    Timeout(total=9),
]
PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def contents(value: Any) -> dict[str, Any]:
    if isinstance(value, LoanError):
        return {**vars(value), "args": value.args, "str": str(value)}
    return attrs.asdict(value, recurse=False)


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    assert one == other
    assert contents(one) == contents(other)
    assert repr(one) == repr(other)


@pytest.mark.parametrize("value", [*VALUES, *EXAMPLES], ids=lambda value: type(value).__name__)
def test_value_survives_each_way_to_copy_it(value: Any) -> None:
    same(copy.copy(value), value)
    same(copy.deepcopy(value), value)
    for protocol in PROTOCOLS:
        same(pickle.loads(pickle.dumps(value, protocol)), value)  # noqa: S301  (our own bytes)


def test_values_and_errors_pass_to_a_spawned_process_and_back() -> None:
    everything = [*VALUES, *EXAMPLES]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for value, returned in zip(everything, pool.map(again, everything), strict=True):
            same(returned, value)


def test_error_raised_in_another_process_keeps_its_type() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for error in EXAMPLES:
            with pytest.raises(type(error)) as caught:
                pool.submit(fail, error).result()
            assert caught.value == error
            assert caught.value.__notes__ == ["seen by worker 7"]


@pytest.mark.parametrize(
    "step",
    [
        approved(amount=1, street_number="1"),
        refused(),
        response(201, {"approved": True, "amount": "1", "new": [{"a": None}], "redirectUrl": None}),
        response(422, {"approved": False, "citizenship": "martian"}),
    ],
    ids=["approved", "refused", "unread", "open"],
)
async def test_received_decision_keeps_its_raw_body_and_meta(step: Any) -> None:
    decision = await scripted_client(step).approve("TSTXYZ00A00A000A", approval_request())
    for other in (copy.copy(decision), copy.deepcopy(decision), pickle.loads(pickle.dumps(decision))):  # noqa: S301
        same(other, decision)
        assert (dict(other.raw), other.meta) == (dict(decision.raw), decision.meta)


@pytest.mark.parametrize(
    "step", [domain_error("User not found"), system_error(), response(418, {}), response(201, b"{")]
)
async def test_raised_error_keeps_its_attributes_and_text(step: Any) -> None:
    with pytest.raises(LoanError) as caught:
        await scripted_client(step, step, step).approve("TSTXYZ00A00A000A", approval_request())
    for other in (copy.copy(caught.value), copy.deepcopy(caught.value)):
        same(other, caught.value)
    same(pickle.loads(pickle.dumps(caught.value)), caught.value)  # noqa: S301  (our own bytes)


@given(APPROVAL_REQUESTS)
def test_any_request_survives_pickling(request: ApprovalRequest) -> None:
    same(pickle.loads(pickle.dumps(request)), request)  # noqa: S301  (our own bytes)
    same(copy.deepcopy(request), request)
    assert request.additional is None or isinstance(request.additional, AdditionalData)


@given(USER_DATA)
def test_any_user_data_survives_pickling(data: UserData) -> None:
    same(pickle.loads(pickle.dumps(data)), data)  # noqa: S301  (our own bytes)


# Words that begin a sentence or clause with an instruction.
ADVICE = "Ask|Call|Catch|Check|Correct|Create|Do not|Let|Look|Make|Raise|Repair|Repeat|Send|Settle|Show"


@pytest.mark.parametrize("name", errors.__all__)
def test_error_docstring_explains_cause_and_remedy(name: str) -> None:
    text = (getattr(errors, name).__doc__ or "").partition("Args:")[0]
    sentences = [sentence for sentence in re.split(r"(?<=[.;:,])\s+", text.strip()) if sentence]
    when, advice = sentences[0], sentences[1:]
    assert not re.match(ADVICE, when), "the first sentence states the cause"
    assert any(re.match(rf"({ADVICE})\b", sentence, re.IGNORECASE) for sentence in advice), text
