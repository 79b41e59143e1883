"""Rules for each operation: the rule's response is sent, or the rule is rejected."""

from typing import Any

import aiohttp
import pytest

from loanasync import AlreadyEvaluatedError, UnexpectedStatusError
from loanasync.sandbox import Readings, Sandbox
from loanasync.sandbox.outcomes import TAG_WORDS, TAGS
from loanasync.sandbox.rules import OPERATIONS
from support.raw_shop import CODE, Raw

ERRORS = {
    "already": (400, {"errors": {"domain": ["User already evaluated for approval"]}}),
    "nouser": (400, {"errors": {"domain": ["User not found"]}}),
    "noshop": (400, {"errors": {"domain": ["This sales point cannot apply for a loan"]}}),
    "conflict": (409, {"errors": "The request cannot be completed"}),
    "forbidden": (403, {"error": "Access denied"}),
}
# Words that only some operations support. All other words work with each operation.
ONLY = {
    **dict.fromkeys((*TAGS["Decisions"], "invalid.city"), ("approve",)),
    "invalid.documentcity": ("complete",),
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


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("word", ERRORS)
async def test_rule_error_applies_in_any_state(raw: Raw, operation: str, word: str) -> None:
    raw.sandbox.on(operation).respond(word)  # type: ignore[arg-type]  # one of them
    assert await call(raw, operation) == ERRORS[word]  # before the creation
    raw.sandbox.off()
    for each in OPERATIONS:
        await call(raw, each)
    before = raw.sandbox.snapshot()
    raw.sandbox.on(operation).respond(word)  # type: ignore[arg-type]
    assert await call(raw, operation) == ERRORS[word]  # after the completion
    raw.sandbox.restore(before)


@pytest.mark.parametrize(("status", "word"), [(403, "forbidden"), (409, "conflict")])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_rule_responds_with_its_status(raw: Raw, operation: str, status: int, word: str) -> None:
    raw.sandbox.on(operation).respond(status)  # type: ignore[arg-type]
    assert await call(raw, operation) == ERRORS[word]


async def test_rule_for_any_operation_applies_to_each(raw: Raw) -> None:
    raw.sandbox.on().respond("conflict")
    assert [(await call(raw, operation))[0] for operation in OPERATIONS] == [409] * 4


async def test_rule_with_an_invalid_field_applies_in_any_state(raw: Raw) -> None:
    raw.sandbox.on().respond("invalid.city.invalid.documentcity")
    assert list((await raw.approve())[1]["errors"]) == ["city"]
    assert list((await call(raw, "complete"))[1]["errors"]) == ["documentCity"]
    assert (await raw.create())[0] == 201


async def test_tag_error_follows_the_checks(raw: Raw) -> None:
    assert (await raw.approve(email="a+conflict@example.com"))[1]["errors"]["domain"] == ["User not found"]
    raw.sandbox.on().respond("slow1")
    assert (await raw.approve(email="a+conflict@example.com"))[1]["errors"]["domain"] == ["User not found"]


async def test_rule_conflict_after_the_decision_decides() -> None:
    readings = Readings(conflict="after")
    async with Sandbox(readings=readings) as sandbox, aiohttp.ClientSession() as session:
        raw = Raw(sandbox, session)
        await raw.create()
        sandbox.on("approve").respond(409)
        assert (await raw.approve())[0] == 409
        assert sandbox.journal[-1].evaluated


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rule_without_effect_is_rejected(operation: str) -> None:
    for word in WORDS:
        rule = Sandbox().on(operation)  # type: ignore[arg-type]
        if operation in ONLY.get(word, OPERATIONS):
            rule.respond(word)
            continue
        with pytest.raises(ValueError, match=f"{operation} cannot respond with '{word}'.*with a body"):
            rule.respond(word)
        with pytest.raises(ValueError, match="cannot respond with"):
            Sandbox(faults=[f"{operation}={word}"])


@pytest.mark.parametrize(
    ("operation", "status"), [("create_request", 422), ("upload_documents", 422), ("complete", 201)]
)
def test_rule_with_a_decision_status_is_rejected_for_other_calls(operation: str, status: int) -> None:
    with pytest.raises(ValueError, match="which is a decision: only approve decides"):
        Sandbox().on(operation).respond(status)  # type: ignore[arg-type]


async def test_rule_with_201_does_not_change_a_creation(raw: Raw) -> None:
    raw.sandbox.on().respond(503)
    raw.sandbox.on("create_request").respond(201)
    raw.sandbox.on("upload_documents").respond(201)
    assert [(await call(raw, each))[0] for each in OPERATIONS] == [201, 503, 201, 503]


@pytest.mark.parametrize(
    ("response", "error", "message"),
    [
        (None, TypeError, "respond() takes a status or the words of a tag"),
        (b"500", TypeError, "respond() takes a status or the words of a tag"),
        (500.0, TypeError, "respond() takes a status or the words of a tag"),
        (".", ValueError, "the rule has no response"),
        ("+", ValueError, "the rule has no response"),
    ],
)
def test_response_of_another_type_is_rejected(response: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        Sandbox().on().respond(response)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("words", ["refused", "conflict", "approved.500", "invalid.city", "drip", "garbage"])
def test_phase_of_words_without_a_phase_is_rejected(words: str) -> None:
    with pytest.raises(ValueError, match="only faults and delays have a phase"):
        Sandbox().on().respond(words, phase="before")


def test_respond_accepts_words_with_plus_sign() -> None:
    rule = Sandbox().on("approve").respond(" +refused ")
    assert rule.outcome is not None
    assert (rule.outcome.decision, rule.outcome.name) == ("refused", "refused")


async def test_client_reads_the_errors_of_a_creation(sandbox: Sandbox) -> None:
    async with sandbox.client() as client:
        sandbox.on("create_request").respond("conflict")
        with pytest.raises(UnexpectedStatusError):  # spec §4.1 names 409 for the approval only
            await client.create_request({"fiscalCode": CODE})
        sandbox.on("create_request").respond("already")
        with pytest.raises(AlreadyEvaluatedError):
            await client.create_request({"fiscalCode": CODE})
