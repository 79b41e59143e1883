"""Rules from Python and from text: matching, random choice, responses, and rejected rules."""

from typing import Any

import pytest

from loanasync.sandbox import Sandbox
from loanasync.sandbox.outcomes import TAG_WORDS, TAGS
from loanasync.sandbox.rules import OPERATIONS, Rules
from support.raw_shop import BODY, CODE, Raw

OTHER = "TSTXYZ00A00A000B"
ERRORS: dict[int | str, tuple[int, Any]] = {
    "already": (400, {"errors": {"domain": ["User already evaluated for approval"]}}),
    "nouser": (400, {"errors": {"domain": ["User not found"]}}),
    "noshop": (400, {"errors": {"domain": ["This sales point cannot apply for a loan"]}}),
    "conflict": (409, {"errors": "The request cannot be completed"}),
    409: (409, {"errors": "The request cannot be completed"}),
    "forbidden": (403, {"error": "Access denied"}),
    403: (403, {"error": "Access denied"}),
    400: (400, {"errors": {"fiscalCode": ["Invalid fiscal code"]}}),
}
# Words that only some operations support. All other words work with each operation.
ONLY = {
    **dict.fromkeys((*TAGS["Decisions"], "invalid.city"), ("approve",)),
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


async def test_rule_matches_one_call_of_one_customer(raw: Raw) -> None:
    raw.sandbox.on("approve", fiscal_code=f" {CODE.lower()} ", call=2).respond(500, phase="after")
    await raw.create()
    await raw("POST", "", {"fiscalCode": OTHER})
    assert (await raw.approve(amount=1))[0] == 400
    assert [(await raw("POST", f"/{OTHER}", BODY))[0] for _ in range(2)] == [201, 400]
    assert (await raw.approve())[0] == 500
    assert raw.sandbox.journal[-1].evaluated
    assert (await raw.approve())[1]["errors"]["domain"] == ["User already evaluated for approval"]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_rule_matches_one_operation(raw: Raw, operation: Any) -> None:
    raw.sandbox.on(operation).respond(500)
    assert [each for each in OPERATIONS if (await call(raw, each))[0] == 500] == [operation]


async def test_newest_rule_applies_until_it_is_removed(raw: Raw) -> None:
    first = raw.sandbox.on().respond(503)
    second = raw.sandbox.on("create_request").respond(502)
    unused = raw.sandbox.on("create_request")  # without response
    assert raw.sandbox.rules == [unused, second, first]
    assert (await raw.create())[0] == 502
    raw.sandbox.off(second)
    assert (await raw.create())[0] == 503
    assert (first.matched, second.matched) == (1, 1)
    raw.sandbox.off()
    assert (await raw.create())[0] == 201


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_response_of_a_rule_is_sent_unchanged(raw: Raw, phase: Any) -> None:
    body = {"tea": "pot"}
    raw.sandbox.on("approve").respond(418, body, phase=phase, headers={"Retry-After": "7"})
    body["tea"] = "spoon"
    await raw.create()
    url = f"{raw.sandbox.base_url}/api/shops/sandbox-shop/requests/{CODE}"
    async with raw.session.post(url, json=BODY, headers={"X-Auth-Token": "sandbox-token"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (418, "7")
        assert await response.json() == {"tea": "pot"}
    entry = raw.sandbox.journal[-1]
    assert (entry.status, entry.evaluated, entry.fault) == (418, phase == "after", f"418{phase}")


@pytest.mark.parametrize(
    ("response", "options", "status"),
    [
        *((201, {}, 201), (422, {}, 422), (500, {}, 500), (502, {}, 502), ("+refused ", {}, 422)),
        *((500, {"headers": {"A": "1"}}, 500), ("invalid.city", {}, 400), ("500", {"phase": "after"}, 500)),
    ],
)
async def test_rule_takes_precedence_over_the_tag(
    raw: Raw, response: int | str, options: dict[str, Any], status: int
) -> None:
    raw.sandbox.on("approve").respond(response, **options)
    await raw.create()
    tag = "approved" if status == 422 else "refused"
    assert (await raw.approve(email=f"anna+{tag}@example.com"))[0] == status


async def test_rule_with_delays_keeps_the_outcome_of_the_tag(raw: Raw) -> None:
    raw.sandbox.on().respond("slow1")
    assert (await raw.approve(email="a+conflict@example.com"))[1]["errors"]["domain"] == ["User not found"]
    await raw.create()
    assert (await raw.approve(email="a+refuse@example.com"))[0] == 400, "unknown tags are still rejected"
    status, response = await raw.approve(email="a+refused.civic.invalid.documentcity@example.com")
    assert (status, response["civicNumber"]) == (422, "12")
    await raw("POST", f"/{CODE}/documents", {})
    assert list((await call(raw, "complete"))[1]["errors"]) == ["documentCity"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("response", ERRORS)
async def test_rule_error_applies_in_any_state(raw: Raw, operation: Any, response: int | str) -> None:
    raw.sandbox.on(operation).respond(response)
    assert await call(raw, operation) == ERRORS[response]  # before the creation
    raw.sandbox.off()
    for each in OPERATIONS:
        await call(raw, each)
    raw.sandbox.on().respond(response)  # for any operation
    assert await call(raw, operation) == ERRORS[response]  # after the completion


BLANK = ["This value should not be blank."]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        *((tag, error) for tag, error in ERRORS.items() if isinstance(tag, str)),
        ("invalid.city.invalid.streetnumber", (400, {"errors": {"city": BLANK, "streetNumber": BLANK}})),
    ],
)
async def test_tag_with_an_error_decides_nothing(raw: Raw, tag: str, expected: object) -> None:
    await raw.create()
    assert await raw.approve(email=f"anna+{tag}@example.com") == expected
    assert (await raw.approve())[0] == 201


async def test_invalid_fields_of_a_rule_apply_to_the_calls_that_have_them(raw: Raw) -> None:
    raw.sandbox.on().respond("invalid.city.invalid.documentcity.invalid.privacy")
    found = {
        each: list((await call(raw, each))[1]["errors"]) for each in ("create_request", "approve", "complete")
    }
    assert found == {"create_request": ["privacy"], "approve": ["city"], "complete": ["documentCity"]}


async def test_rules_and_tags_count_their_own_faults(raw: Raw) -> None:
    await raw.create()
    for words, statuses in (("500x2", [500, 500, 400]), ("500x1", [500, 400])):
        raw.sandbox.on("approve").respond(words)
        assert [(await raw.approve(amount=1))[0] for _ in statuses] == statuses
    raw.sandbox.off()
    assert [(await raw.approve(email="a+500x1@example.com"))[0] for _ in range(2)] == [500, 201]


async def test_rule_fault_applies_to_each_call(raw: Raw) -> None:
    raw.sandbox.on("create_request").respond("emptyafter")
    for _ in range(2):
        assert await raw("POST", "", {"fiscalCode": CODE}, decoded=False) == (201, b"")
    raw.sandbox.on("complete").respond(500, phase="after")
    await raw("POST", f"/{CODE}/documents", {})
    assert [(await call(raw, "complete"))[0] for _ in range(3)] == [500, 500, 500]


def outcomes(seed: int, order: list[int], resets: int = 0) -> dict[tuple[int, int], bool]:
    """Return the calls that the first of two rules chooses from calls of customers, sent in this order."""
    rules = Rules(seed)
    for _ in range(resets):
        rules.add(rate=0.5)
        rules.clear()
    for _ in range(2):
        rules.add(rate=0.5).respond(500)
    calls: dict[int, int] = {}
    chosen = {}
    for customer in order:
        calls[customer] = calls.get(customer, 0) + 1
        found = rules.choose("approve", f"CODE{customer}", calls[customer])
        chosen[customer, calls[customer]] = found is not None
    return chosen


def test_rate_depends_on_the_seed_the_rule_and_the_call_only() -> None:
    one_by_one = [customer for customer in range(200) for _ in range(2)]
    mixed = [*range(199, -1, -1), *range(200)]
    assert outcomes(7, one_by_one) == outcomes(7, mixed) == outcomes(7, mixed, resets=1)
    assert outcomes(7, one_by_one) != outcomes(8, one_by_one)
    assert 250 < sum(outcomes(7, one_by_one).values()) < 350, "rules of one rate draw independently"


@pytest.mark.parametrize(
    ("text", "operation", "rate", "name"),
    [
        ("500", None, 1.0, "500"),
        ("500:0.1:after", None, 0.1, "500after"),
        ("approve=reset:0.05", "approve", 0.05, "reset"),
        ("complete=hang::before", "complete", 1.0, "hangbefore"),
        ("503:0.5:after", None, 0.5, "503after"),
        ("422", None, 1.0, "refused"),
        ("refused.drip", None, 1.0, "refused.drip"),
    ],
)
def test_rule_text_is_parsed(text: str, operation: str | None, rate: float, name: str) -> None:
    rule = Rules(0).add_text(text)
    assert rule.outcome is not None
    assert (rule.operation, rule.rate, rule.outcome.name) == (operation, rate, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the rule has no response"),
        ("approve=:0.5", "the rule has no response"),
        ("approve:500", "write approve=500"),
        ("50", "between 200 and 599"),
        ("5oo", "did you mean"),
        ("500:often", "must be a number between 0 and 1"),
        ("500:nan", "between 0 and 1"),
        ("500:1:during", "'before' or 'after'"),
        ("aprove=500", "did you mean 'approve'"),
        ("garbage:1:before", "invalid response 'garbage' in phase 'before'"),
        ("500after:1:after", "invalid response '500after' in phase 'after'"),
    ],
)
def test_invalid_rule_text_raises(text: str, message: str) -> None:
    rules = Rules(0)
    with pytest.raises(ValueError, match=message):
        rules.add_text(text)
    assert not list(rules), "no rule was added"


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"operation": "compleet"}, "did you mean 'complete'"),
        ({"fiscal_code": ""}, "fiscal_code is empty"),
        ({"fiscal_code": 7}, "fiscal_code must be a str, not int"),
        ({"call": 0}, "call 0 must be a whole number of 1"),
        ({"call": "2"}, "call '2' must be a whole number"),
        ({"call": True}, "call True must be a whole number"),
        ({"rate": 1.5}, "rate 1.5 must be a number between 0 and 1"),
        ({"rate": "0.1"}, "rate '0.1' must be a number between 0 and 1"),
    ],
)
def test_rule_that_no_call_can_match_is_rejected(which: dict[str, Any], message: str) -> None:
    sandbox = Sandbox()
    with pytest.raises((TypeError, ValueError), match=message):
        sandbox.on(**which)
    assert sandbox.rules == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rule_without_effect_is_rejected(operation: Any) -> None:
    for word in WORDS:
        rule = Sandbox().on(operation)
        if operation in ONLY.get(word, OPERATIONS):
            rule.respond(word)
            continue
        with pytest.raises(ValueError, match=f"{operation} cannot respond with '{word}'.*with a body"):
            rule.respond(word)
        with pytest.raises(ValueError, match="cannot respond with"):
            Sandbox(faults=[f"{operation}={word}"])
    if operation != "approve":
        with pytest.raises(ValueError, match="only approve decides"):
            Sandbox().on(operation).respond(422)


async def test_rule_with_201_does_not_change_a_creation(raw: Raw) -> None:
    raw.sandbox.on().respond(503)
    raw.sandbox.on("create_request").respond(201)
    raw.sandbox.on("upload_documents").respond(201)
    assert [(await call(raw, each))[0] for each in OPERATIONS] == [201, 503, 201, 503]


@pytest.mark.parametrize(
    ("response", "options", "message"),
    [
        (None, {}, "takes a status or the words of a tag"),
        (500.0, {}, "takes a status or the words of a tag"),
        (".", {}, "the rule has no response"),
        ("refused", {"body": {}}, "need a status"),
        *(
            (words, {"phase": "before"}, "only faults and delays have a phase")
            for words in ("refused", "drip")
        ),
        (503, {"headers": {"Retry-After": 7}}, "a string of one line, such as '7'"),
        (503, {"headers": {"X-A": "a\r\nX-B: b"}}, "a string of one line"),
        (503, {"headers": {"X A": "b"}}, "is not a valid header name"),
        (503, {"headers": {"content-type": "text/html"}}, "is set by the server"),
        (503, {"body": {"a": {1, 2}}}, "cannot be sent as JSON"),
        (503, {"body": {"a": float("nan")}}, "cannot be sent as JSON"),
        (503, {"body": [1]}, "must be a JSON object"),
        (204, {"body": {"a": 1}}, "status 204 has no body in HTTP"),
        (503, {"phase": "later"}, "'before' or 'after'"),
    ],
)
def test_response_that_cannot_be_sent_is_rejected(response: Any, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Sandbox().on().respond(response, **options)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (None, "takes a rule that on"),
        ("500", "takes a rule that on"),
        (Sandbox().on().respond(500), "is not active"),
    ],
)
def test_off_with_an_unknown_rule_is_an_error(rule: Any, message: str) -> None:
    sandbox = Sandbox()
    kept = sandbox.on().respond(500)
    with pytest.raises((TypeError, ValueError), match=message):
        sandbox.off(rule)
    assert sandbox.rules == [kept]


def test_rule_repr_has_no_personal_data() -> None:
    rule = Sandbox().on(fiscal_code=CODE).respond(503, {"email": "mario@bianchi.example"})
    assert not [name for name in (CODE, "mario") if name in repr(rule) + repr(rule.outcome)]
