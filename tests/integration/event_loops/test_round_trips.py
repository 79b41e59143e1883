"""Errors, models and decisions are equal after copying, pickling and a transfer to another process."""

import copy
import pickle
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
)
from support.builders import APPROVAL_REQUESTS, additional_data, approval_request, user_data
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
        for value, returned in zip(everything, pool.map(copy.copy, everything), strict=True):
            same(returned, value)


@given(APPROVAL_REQUESTS)
def test_any_request_survives_pickling(request: ApprovalRequest) -> None:
    same(pickle.loads(pickle.dumps(request)), request)  # noqa: S301  (our own bytes)
    same(copy.deepcopy(request), request)
    assert request.additional is None or isinstance(request.additional, AdditionalData)


# Words that begin a sentence or clause with an instruction.
