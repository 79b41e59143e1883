"""Faults of a sandbox: matching, random choice, outcomes, and rejected texts."""

from collections.abc import Callable
from typing import Any

import pytest

from loanasync.sandbox import Sandbox
from loanasync.sandbox.faults import OPERATIONS, Faults
from loanasync.sandbox.outcomes import TAG_WORDS
from support.raw_shop import BODY, CODE, Raw

OTHER = "TSTXYZ00A00A000B"
ERRORS: dict[str, tuple[int, Any]] = {
    "already": (400, {"errors": {"domain": ["User already evaluated for approval"]}}),
    "nouser": (400, {"errors": {"domain": ["User not found"]}}),
    "noshop": (400, {"errors": {"domain": ["This sales point cannot apply for a loan"]}}),
    "conflict": (409, {"errors": "The request cannot be completed"}),
    "forbidden": (403, {"error": "Access denied"}),
}
# Words that only some operations support. All other words work with each operation.
ONLY = {
    **dict.fromkeys(("approved", "refused", "noredirect", "civic", "street", "invalid.city"), ("approve",)),
    "additional": ("create_request", "approve"),
    "invalid.documentcity": ("complete",),
    "invalid.privacy": ("create_request",),
}
WORDS = {word.replace("xN", "x1").replace("<ms>", "1") for word in TAG_WORDS} - {"invalid.<field>"} | {*ONLY}


async def call(raw: Raw, operation: str) -> tuple[int, Any]:
    match operation:
        case "create_request":
            return await raw.create()
        case "approve":
            return await raw.approve()
        case "upload_documents":
            return await raw("POST", f"/{CODE}/documents", {})
        case _:
            return await raw("PATCH", f"/{CODE}", {"profession": "baker"})


async def test_fault_matches_the_calls_of_one_customer(raw: Raw) -> None:
    raw.sandbox.fault("approve=500after", f" {CODE.lower()} ")
    await raw.create()
    await raw("POST", "", {"fiscalCode": OTHER})
    assert (await raw.approve(amount=1))[0] == 500
    assert [(await raw("POST", f"/{OTHER}", BODY))[0] for _ in range(2)] == [201, 400]
    assert not raw.sandbox.journal[2].evaluated
    assert (await raw.approve())[0] == 500
    assert raw.sandbox.journal[-1].evaluated
    assert (await raw("POST", f"/{CODE.lower()}", BODY))[0] == 500, "a fault has no letter case"
    raw.sandbox.clear_faults()
    assert (await raw.approve())[1]["errors"]["domain"] == ["User already evaluated for approval"]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_fault_matches_one_operation(raw: Raw, operation: str) -> None:
    raw.sandbox.fault(f"{operation}=500")
    assert [each for each in OPERATIONS if (await call(raw, each))[0] == 500] == [operation]


async def test_newest_fault_applies_until_all_are_removed(raw: Raw) -> None:
    raw.sandbox.fault("500")
    raw.sandbox.fault("create_request=html502")
    raw.sandbox.fault("approve=refused")
    assert (await raw("POST", "", {}, decoded=False))[0] == 502
    assert [each.matched for each in raw.sandbox._engine.faults] == [0, 1, 0]
    raw.sandbox.clear_faults()
    assert (await raw.create())[0] == 201


@pytest.mark.parametrize(
    ("text", "status"), [("refused", 422), ("approved", 201), ("500", 500), ("invalid.city", 400)]
)
async def test_fault_takes_precedence_over_the_tag(raw: Raw, text: str, status: int) -> None:
    raw.sandbox.fault(f"approve={text}")
    await raw.create()
    tag = "approved" if status == 422 else "refused"
    assert (await raw.approve(email=f"anna+{tag}@example.com"))[0] == status


async def test_fault_with_delays_keeps_the_outcome_of_the_tag(raw: Raw) -> None:
    raw.sandbox.fault("slow1")
    assert (await raw.approve(email="a+conflict@example.com"))[1]["errors"]["domain"] == ["User not found"]
    await raw.create()
    assert (await raw.approve(email="a+refuse@example.com"))[0] == 400, "unknown tags are still rejected"
    status, response = await raw.approve(email="a+refused.civic.invalid.documentcity@example.com")
    assert (status, response["civicNumber"]) == (422, "12")
    await raw("POST", f"/{CODE}/documents", {})
    assert list((await call(raw, "complete"))[1]["errors"]) == ["documentCity"]
    await raw("POST", "", {"fiscalCode": OTHER})
    _, response = await raw("POST", f"/{OTHER}", {**BODY, "email": "a+noredirect@example.com"})
    assert (response["approved"], "redirectUrl" in response) == (True, False)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("word", ERRORS)
async def test_error_of_a_fault_applies_in_any_state(raw: Raw, operation: str, word: str) -> None:
    raw.sandbox.fault(f"{operation}={word}")
    assert await call(raw, operation) == ERRORS[word]  # before the creation
    raw.sandbox.clear_faults()
    for each in OPERATIONS:
        await call(raw, each)
    raw.sandbox.fault(word)  # for any operation
    assert await call(raw, operation) == ERRORS[word]  # after the completion


BLANK = ["This value should not be blank."]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        *ERRORS.items(),
        ("invalid.city.invalid.streetnumber", (400, {"errors": {"city": BLANK, "streetNumber": BLANK}})),
    ],
)
async def test_tag_with_an_error_decides_nothing(raw: Raw, tag: str, expected: object) -> None:
    await raw.create()
    assert await raw.approve(email=f"anna+{tag}@example.com") == expected
    assert (await raw.approve())[0] == 201


async def test_invalid_fields_of_a_fault_apply_to_the_calls_that_have_them(raw: Raw) -> None:
    raw.sandbox.fault("invalid.city.invalid.documentcity.invalid.privacy")
    found = {
        each: list((await call(raw, each))[1]["errors"]) for each in ("create_request", "approve", "complete")
    }
    assert found == {"create_request": ["privacy"], "approve": ["city"], "complete": ["documentCity"]}


async def test_fault_of_a_creation_requires_additional_data(raw: Raw) -> None:
    raw.sandbox.fault("create_request=additional")
    assert (await raw.create())[1]["additionalDataNeeded"] is True
    assert "salary" in (await raw.approve())[1]["errors"]


async def test_faults_and_tags_are_counted_separately(raw: Raw) -> None:
    await raw.create()
    for words, statuses in (("500x2", [500, 500, 400]), ("500x1", [500, 400])):
        raw.sandbox.fault(f"approve={words}")
        assert [(await raw.approve(amount=1))[0] for _ in statuses] == statuses
    for _ in range(2):  # each fault counts anew, also after others were removed
        raw.sandbox.clear_faults()
        raw.sandbox.fault("create_request=500x2")
        assert [(await raw.create())[0] for _ in range(3)][:2] == [500, 500]
    raw.sandbox.clear_faults()
    assert [(await raw.approve(email="a+500x1@example.com"))[0] for _ in range(2)] == [500, 201]


async def test_fault_without_a_number_applies_to_each_call(raw: Raw) -> None:
    raw.sandbox.fault("create_request=emptyafter")
    for _ in range(2):
        assert await raw("POST", "", {"fiscalCode": CODE}, decoded=False) == (201, b"")
    raw.sandbox.fault("complete=500after")
    await raw("POST", f"/{CODE}/documents", {})
    assert [(await call(raw, "complete"))[0] for _ in range(3)] == [500, 500, 500]


def outcomes(seed: int, order: list[int], resets: int = 0) -> dict[tuple[int, int], bool]:
    """Return the calls that one of two faults chooses from calls of customers, sent in this order."""
    faults = Faults([], seed)
    for _ in range(resets):
        faults.add("500:0.5")
        faults.reset()
    for _ in range(2):
        faults.add("500:0.5")
    calls: dict[int, int] = {}
    chosen = {}
    for customer in order:
        calls[customer] = calls.get(customer, 0) + 1
        found = faults.choose("approve", f"CODE{customer}", calls[customer])
        chosen[customer, calls[customer]] = found is not None
    return chosen


def test_rate_depends_on_the_seed_the_fault_and_the_call_only() -> None:
    one_by_one = [customer for customer in range(200) for _ in range(2)]
    mixed = [*range(199, -1, -1), *range(200)]
    assert outcomes(7, one_by_one) == outcomes(7, mixed) == outcomes(7, mixed, resets=1)
    assert outcomes(7, one_by_one) != outcomes(8, one_by_one)
    found = outcomes(7, one_by_one)
    assert 250 < sum(found.values()) < 350, "faults of one rate draw independently"
    assert {found[customer, 1] is found[customer, 2] for customer in range(200)} == {True, False}


@pytest.mark.parametrize(
    ("text", "operation", "rate", "words"),
    [
        ("500", "", 1.0, "500"),
        (" 500after:0.1 ", "", 0.1, "500after"),
        ("approve=reset:0.05", "approve", 0.05, "reset"),
        ("refused.slow1", "", 1.0, "refused.slow1"),
    ],
)
def test_text_is_parsed(text: str, operation: str, rate: float, words: str) -> None:
    [fault] = Faults(text, 0)
    assert (fault.operation, fault.rate, fault.outcome.name) == (operation, rate, words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "the fault has no outcome") for text in ("", ".", "approve=:0.5", "approve:500")),
        *((text, "did you mean") for text in ("50", "5oo", "garbagebefore", "aprove=500", "503")),
        *((f"500:{rate}", "must be a number between 0 and 1") for rate in ("often", "nan", "1.5", "1:after")),
    ],
)
def test_invalid_text_raises(text: str, message: str) -> None:
    sandbox = Sandbox()
    with pytest.raises(ValueError, match=message):
        sandbox.fault(text)
    assert not list(sandbox._engine.faults), "no fault was added"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("500", ""), "fiscal_code is empty"),
        (("500", 7), "fiscal_code must be a str, not int"),
        ((500,), "faults must be strings"),
    ],
)
def test_invalid_argument_raises(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Sandbox().fault(*arguments)


@pytest.mark.parametrize("collect", [list, set, dict.fromkeys, iter])
def test_faults_of_a_sandbox_are_any_iterable_of_texts(collect: Callable[[list[str]], Any]) -> None:
    sandbox = Sandbox(faults=collect(["500", "complete=forbidden"]))
    assert sorted(each.outcome.name for each in sandbox._engine.faults) == ["500", "forbidden"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_fault_without_effect_is_rejected(operation: str) -> None:
    for word in WORDS:
        if operation in ONLY.get(word, OPERATIONS):
            Sandbox(faults=[f"{operation}={word}"])
            continue
        with pytest.raises(ValueError, match=f"{operation} cannot have the outcome '{word}'"):
            Sandbox(faults=[f"{operation}={word}"])


def test_repr_has_no_personal_data() -> None:
    sandbox = Sandbox()
    sandbox.fault("500", CODE)
    assert CODE not in repr([*sandbox._engine.faults])
