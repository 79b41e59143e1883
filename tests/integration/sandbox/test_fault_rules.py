"""Rules from Python and from text: matching, random choice, and rejected rules."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Rule, Sandbox
from loanasync.sandbox.rules import OPERATIONS, Rules
from support.raw_shop import BODY, CODE, Raw


async def test_rule_matches_one_call_of_one_customer(raw: Raw) -> None:
    raw.sandbox.on(operation="approve", fiscal_code=CODE, call=2).respond(500, phase="after")
    other = "TSTXYZ00A00A000B"
    await raw.create()
    await raw("POST", "", {"fiscalCode": other})
    assert (await raw.approve(amount=1))[0] == 400
    assert (await raw("POST", f"/{other}", BODY))[0] == 201
    assert (await raw.approve())[0] == 500
    assert raw.sandbox.journal[-1].evaluated
    assert (await raw.approve())[1]["errors"]["domain"] == ["User already evaluated for approval"]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_rule_matches_one_operation(raw: Raw, operation: str) -> None:
    raw.sandbox.on(operation=operation).respond(500)  # type: ignore[arg-type]
    calls: dict[str, Callable[[], Awaitable[tuple[int, Any]]]] = {
        "create_request": raw.create,
        "approve": raw.approve,
        "upload_documents": lambda: raw("POST", f"/{CODE}/documents", {}),
        "complete": lambda: raw("PATCH", f"/{CODE}", {}),
    }
    statuses = {name: (await call())[0] for name, call in calls.items()}
    assert [name for name, status in statuses.items() if status == 500] == [operation]


async def test_newest_rule_applies_and_rules_can_be_cleared(raw: Raw) -> None:
    raw.sandbox.on().respond(500)
    raw.sandbox.on(operation="create_request").respond(503, {"a": 1}, headers={"Retry-After": "7"})
    assert await raw.create() == (503, {"a": 1})
    assert (await raw.approve())[0] == 500
    raw.sandbox.reset()
    assert (await raw.create())[0] == 201


async def test_rule_response_is_sent_unchanged(raw: Raw) -> None:
    raw.sandbox.on(operation="approve").respond(503, {"later": True}, headers={"Retry-After": "7"})
    await raw.create()
    url = f"{raw.sandbox.base_url}/api/shops/sandbox-shop/requests/{CODE}"
    async with raw.session.post(url, json=BODY, headers={"X-Auth-Token": "sandbox-token"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "7")
        assert await response.json() == {"later": True}


async def test_rule_response_can_follow_the_decision(raw: Raw) -> None:
    raw.sandbox.on(operation="approve").respond(418, {"tea": "pot"}, phase="after")
    await raw.create()
    assert await raw.approve() == (418, {"tea": "pot"})
    entry = raw.sandbox.journal[-1]
    assert (entry.status, entry.evaluated, entry.fault) == (418, True, "418after")


@pytest.mark.parametrize(
    ("respond", "status"),
    [
        (lambda rule: rule.respond(201), 201),
        (lambda rule: rule.respond(422), 422),
        (lambda rule: rule.respond(403), 403),
        (lambda rule: rule.respond(409), 409),
        (lambda rule: rule.respond(500), 500),
        (lambda rule: rule.respond(500, headers={"Retry-After": "1"}), 500),
        (lambda rule: rule.respond(502), 502),
        (lambda rule: rule.respond("invalid.city"), 400),
        (lambda rule: rule.respond("500", phase="after"), 500),
    ],
)
async def test_rule_takes_a_status_or_words(raw: Raw, respond: Callable[[Rule], Rule], status: int) -> None:
    respond(raw.sandbox.on(operation="approve"))
    await raw.create()
    assert (await raw.approve(email="anna+refused@example.com"))[0] == status


async def test_rule_takes_precedence_over_the_tag(raw: Raw) -> None:
    raw.sandbox.on(operation="approve").respond("approved")
    await raw.create()
    assert (await raw.approve(email="anna+refused@example.com"))[0] == 201


async def test_rule_without_response_has_no_effect(raw: Raw) -> None:
    raw.sandbox.on(operation="create_request")
    assert (await raw.create())[0] == 201


def outcomes(seed: int, order: list[int]) -> dict[tuple[int, int], bool]:
    """Return the calls that a rule chooses from two calls of each customer, sent in this order."""
    rules = Rules(seed)
    rules.add(rate=0.5).respond(500)
    calls: dict[int, int] = {}
    chosen = {}
    for customer in order:
        calls[customer] = calls.get(customer, 0) + 1
        found = rules.choose("approve", f"CODE{customer}", calls[customer])
        chosen[customer, calls[customer]] = found is not None
    return chosen


def test_rate_does_not_depend_on_the_order_of_calls() -> None:
    one_by_one = [customer for customer in range(200) for _ in range(2)]
    mixed = [*range(199, -1, -1), *range(200)]
    assert outcomes(7, one_by_one) == outcomes(7, mixed)
    assert outcomes(7, one_by_one) != outcomes(8, one_by_one)
    assert 140 < sum(outcomes(7, one_by_one).values()) < 260


async def test_rate_does_not_depend_on_concurrency() -> None:
    async def statuses(concurrency: int) -> dict[str, int]:
        codes = [f"TSTXYZ00A00A{number:03d}A" for number in range(60)]
        slots = asyncio.Semaphore(concurrency)
        found = {}
        async with (
            Sandbox(faults=["create_request=500:0.3"], seed=3) as sandbox,
            aiohttp.ClientSession() as session,
        ):
            raw = Raw(sandbox, session)

            async def one(code: str) -> None:
                async with slots:
                    found[code] = (await raw("POST", "", {"fiscalCode": code}))[0]

            await asyncio.gather(*map(one, codes))
        return found

    alone = await statuses(1)
    assert alone == await statuses(30)
    assert {201, 500} == set(alone.values())


@pytest.mark.parametrize(
    ("text", "operation", "rate", "name"),
    [
        ("500", None, 1.0, "500"),
        ("500:0.1:after", None, 0.1, "500after"),
        ("approve=reset:0.05", "approve", 0.05, "reset"),
        ("complete=hang::before", "complete", 1.0, "hangbefore"),
        ("slow300:0.5", None, 0.5, "slow300"),
        ("503:0.5:after", None, 0.5, "503after"),
        ("422", None, 1.0, "refused"),
        ("refused.drip", None, 1.0, "refused.drip"),
    ],
)
def test_rule_text_is_parsed(text: str, operation: str | None, rate: float, name: str) -> None:
    rule = Rules(0).add_text(text)
    assert (rule.operation, rule.rate) == (operation, rate)
    assert rule.outcome is not None
    assert rule.outcome.name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the rule has no response"),
        ("50", "between 200 and 599"),
        ("400", "needs a body"),
        ("5oo", "did you mean"),
        ("500:often", "must be a number between 0 and 1"),
        ("500:1.5", "between 0 and 1"),
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


def test_invalid_rule_arguments_raise() -> None:
    sandbox = Sandbox()
    with pytest.raises(ValueError, match="did you mean 'complete'"):
        sandbox.on(operation="compleet")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="call 0 must be 1"):
        sandbox.on(call=0)
    with pytest.raises(ValueError, match="status 400 needs a body"):
        sandbox.on().respond(400)
    with pytest.raises(ValueError, match="between 200 and 599"):
        sandbox.on().respond(99)
    with pytest.raises(ValueError, match="need a status"):
        sandbox.on().respond("refused", {"a": 1})
    with pytest.raises(ValueError, match="'before' or 'after'"):
        sandbox.on().respond(500, phase="during")  # type: ignore[arg-type]


def test_rule_can_have_its_own_seed() -> None:
    def chosen(seed: int | None) -> list[bool]:
        rule = Sandbox(seed=1).on(rate=0.5, seed=seed).respond(500)
        return [rule.matches("approve", CODE, call) for call in range(1, 50)]

    assert chosen(None) == chosen(1)
    assert chosen(2) != chosen(1)


async def test_rule_with_faults_keeps_the_decision_of_the_tag(raw: Raw) -> None:
    raw.sandbox.on("approve").respond("slow1")
    await raw.create()
    assert (await raw.approve(email="a+refuse@example.com"))[0] == 400, "unknown tags are still rejected"
    status, response = await raw.approve(email="a+refused.civic@example.com")
    assert (status, response["civicNumber"]) == (422, "12")


async def test_off_removes_a_rule(raw: Raw) -> None:
    first = raw.sandbox.on("create_request").respond(503)
    second = raw.sandbox.on("create_request").respond(502)
    assert raw.sandbox.rules == [second, first]
    assert (await raw.create())[0] == 502
    raw.sandbox.off(second)
    assert (await raw.create())[0] == 503
    assert (first.matched, second.matched) == (1, 1)
    raw.sandbox.off()
    assert (await raw.create())[0] == 201


def test_rule_ignores_case_of_the_fiscal_code() -> None:
    assert Sandbox().on(fiscal_code=f" {CODE.lower()} ").respond(500).matches("approve", CODE, 1)


def test_rule_text_with_operation_as_response_raises() -> None:
    with pytest.raises(ValueError, match="write approve=500"):
        Sandbox(faults=["approve:500"])


@pytest.mark.parametrize(
    ("shop", "token", "hint"),
    [
        ("sandbox-shop", None, "X-Auth-Token is missing"),
        ("sandbox-shop", "other", "X-Auth-Token belongs to another shop"),
        ("other", "sandbox-token", "the shop in the path does not match X-Auth-Token"),
    ],
)
async def test_403_has_a_hint_header(raw: Raw, shop: str, token: str | None, hint: str) -> None:
    address = f"{raw.sandbox.base_url}/api/shops/{shop}/requests"
    headers = {} if token is None else {"X-Auth-Token": token}
    async with raw.session.post(address, json={}, headers=headers) as response:
        assert (response.status, response.headers["X-Sandbox-Hint"]) == (403, hint)


async def test_rule_fault_applies_to_all_and_tag_fault_to_the_decision(raw: Raw) -> None:
    raw.sandbox.on("create_request").respond("emptyafter")
    assert await raw("POST", "", {"fiscalCode": CODE}, decoded=False) == (201, b"")
    raw.sandbox.on("approve", call=1).respond("500", phase="after")
    assert (await raw.approve(amount=1))[0] == 500
    assert (await raw.approve(amount=1, email="a+500after@example.com"))[0] == 400


async def test_rule_with_delays_keeps_the_response_of_the_tag(raw: Raw) -> None:
    raw.sandbox.on("approve").respond("slow1")
    await raw.create()
    assert "redirectUrl" not in (await raw.approve(email="a+noredirect@example.com"))[1]
