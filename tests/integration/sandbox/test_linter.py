"""The linter: a misuse of the protocol for each rule, and correct clients without findings."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loanasync.sandbox.linter import RULES
from support.raw_shop import BODY, CODE, Raw

Misuse = Callable[[Raw], Awaitable[object]]


async def repeat_after_refusal(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="a+refused@example.com")
    await raw.approve(email="a+refused@example.com")


async def repeat_after_approval(raw: Raw) -> None:
    await raw.create()
    await raw.approve()
    await raw.approve()


async def repeat_after_already_evaluated(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="a+500after@example.com")
    await raw.approve()
    await raw.approve()


async def repeat_after_lost_response(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="a+html502after@example.com", decoded=False)
    await raw.approve()


async def approve_before_creation(raw: Raw) -> None:
    await raw.approve()


async def complete_before_documents(raw: Raw) -> None:
    await raw.create()
    await raw("PATCH", f"/{CODE}", {"profession": "baker"})


async def send_token_in_query(raw: Raw) -> None:
    await raw("POST", "?token=sandbox-token", {"fiscalCode": CODE}, None)


async def send_token_in_path(raw: Raw) -> None:
    url = f"{raw.sandbox.base_url}/api/sandbox-token/requests"
    async with raw.session.post(url, json={"fiscalCode": CODE}):
        pass


async def send_email_in_query(raw: Raw) -> None:
    await raw("POST", "?email=anna%40example.com", {"fiscalCode": CODE})


async def send_fiscal_code_in_query(raw: Raw) -> None:
    await raw("POST", "?customer=TSTXYZ00A00A000A", {"fiscalCode": CODE})


async def send_production_token(raw: Raw) -> None:
    await raw("POST", "", {"fiscalCode": CODE}, "live_0a1B2c3D4e5F6")


MISUSES: list[tuple[str, Misuse]] = [
    ("post-after-422", repeat_after_refusal),
    ("post-after-201", repeat_after_approval),
    ("repeat-after-already-evaluated", repeat_after_already_evaluated),
    ("repeat-after-lost-response", repeat_after_lost_response),
    ("approve-before-create", approve_before_creation),
    ("patch-before-documents", complete_before_documents),
    ("token-in-url", send_token_in_query),
    ("token-in-url", send_token_in_path),
    ("person-in-query", send_email_in_query),
    ("person-in-query", send_fiscal_code_in_query),
    ("production-token", send_production_token),
]


def test_every_rule_has_an_example_of_misuse() -> None:
    assert {rule for rule, _ in MISUSES} == RULES.keys()


@pytest.mark.parametrize(("rule", "misuse"), MISUSES, ids=lambda each: getattr(each, "__name__", each))
async def test_misuse_is_found_once_with_its_call_number(raw: Raw, rule: str, misuse: Misuse) -> None:
    await misuse(raw)
    [finding] = raw.sandbox.findings
    assert (finding.rule, finding.message) == (rule, RULES[rule])
    last = raw.sandbox.journal[-1]
    assert (finding.call, last.findings) == (last.number, (rule,))
    assert str(finding) == f"call {last.number}: {rule}: {RULES[rule]}"
    assert CODE not in str(finding)


@pytest.mark.parametrize(
    "tag", ["500x2", "500after", "invalid.city", "conflict", "forbidden", "slow1", "drip"]
)
async def test_permitted_repeat_is_not_a_finding(raw: Raw, tag: str) -> None:
    await raw.create()
    await raw.approve(email=f"a+{tag}@example.com")
    if tag not in ("slow1", "drip"):
        await raw.approve(email="a@example.com")
    await raw("POST", f"/{CODE}/documents", {})
    await raw("PATCH", f"/{CODE}", {"profession": "baker"})
    assert raw.sandbox.findings == []


async def test_correction_after_a_rejection_is_not_a_finding(raw: Raw) -> None:
    await raw.create()
    await raw.approve(amount=1)
    await raw.approve()
    assert raw.sandbox.findings == []


async def test_concurrent_approvals_are_found(raw: Raw) -> None:
    await raw.create()
    await asyncio.gather(raw.approve(), raw.approve())
    assert [finding.rule for finding in raw.sandbox.findings] == ["post-after-201"]


async def test_findings_are_reset_and_work_without_a_journal(raw: Raw) -> None:
    raw.sandbox.journal.on = False
    await raw("POST", f"/{CODE}", BODY)
    assert [finding.rule for finding in raw.sandbox.findings] == ["approve-before-create"]
    raw.sandbox.reset()
    assert raw.sandbox.findings == []


@pytest.mark.parametrize(
    "query",
    [
        "customer=TSTXYZ00Z00A000A",  # no such month
        "customer=TSTXYZO0A0OA000A",  # letters for digits
        "customer=tstxyz00z00a000a",
        "customer=%54STXYZ00Z00A000A",
        "customer=%2554STXYZ00Z00A000A",
        "customer=TST%20XYZ%2000Z00%20A000A",
        "customer=TST-XYZ-00Z00-A000A",
        "next=/customers/TSTXYZ00Z00A000A/page",
        "TSTXYZ00Z00A000A",
        "fiscalCode=anything",
        "fiscal_code=TSTXYZ",
        "codice-fiscale=TSTXYZ00A00A000",
        "cf=TSTXYZ00A00A000AA",
        "q=anna%2540example.com",
    ],
)
async def test_query_with_a_wrong_fiscal_code_is_found(raw: Raw, query: str) -> None:
    await raw("POST", f"?{query}", {})
    assert [finding.rule for finding in raw.sandbox.findings] == ["person-in-query"]


@pytest.mark.parametrize("code", ["CUSTOMER00000001", "12345678901"])
async def test_query_with_the_code_of_a_known_customer_is_found(raw: Raw, code: str) -> None:
    await raw("POST", f"/{code}/documents?id={code}", {})
    await raw("GET", f"?id={code}", {})
    await raw("POST", f"?id={code}9", {"fiscalCode": code})
    assert [(finding.rule, finding.call) for finding in raw.sandbox.findings] == [
        ("person-in-query", 1),
        ("person-in-query", 2),
    ]


async def test_creation_with_its_own_code_in_the_query_is_found(raw: Raw) -> None:
    await raw("POST", "?id=CUSTOMER00000001", {"fiscalCode": "CUSTOMER00000001"})
    assert [finding.rule for finding in raw.sandbox.findings] == ["person-in-query"]


@pytest.mark.parametrize(
    "query",
    [
        "page=1",
        "trace=0123456789abcdef",
        "trace=abcdef0123456789",
        "id=550e8400-e29b-41d4-a716-446655440000",
        "key=QmFzZTY0U3RyaW5n",
        "at=1700000000000&order=12345678901",
        "fiscalCode=",
        "word=CharacterisationsOfPeople",
    ],
)
async def test_query_without_personal_data_is_not_a_finding(raw: Raw, query: str) -> None:
    await raw("POST", f"?{query}", {})
    assert raw.sandbox.findings == []
