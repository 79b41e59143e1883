"""The linter: a misuse of the protocol for each rule, and correct clients without findings."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox.linter import RULES
from support.raw_shop import BODY, CODE, Raw

# For each rule, the tags of approvals of a created request, or a call with its path and body.
MISUSES: list[tuple[str, Any]] = [
    ("post-after-422", ["refused", "refused"]),
    ("post-after-201", ["approved", "approved"]),
    ("repeat-after-already-evaluated", ["500after", "approved", "approved"]),
    ("repeat-after-lost-response", ["html502after", "approved"]),
    ("repeat-after-unclear-response", ["conflict", "approved"]),
    ("approve-before-create", ("POST", f"/{CODE}", BODY)),
    ("patch-before-documents", ("PATCH", f"/{CODE}", {"profession": "baker"})),
    ("token-in-url", ("POST", "?token=sandbox-token", {"fiscalCode": CODE}, None)),
    ("token-in-url", ("POST", "/sandbox-token/documents", {})),
    ("token-in-url", ("POST", "?authorization=Bearer%20sandbox%2Dtoken", {})),
    ("person-in-query", ("POST", "?email=anna%40example.com", {"fiscalCode": CODE})),
    ("person-in-query", ("POST", "?customer=TSTXYZ00A00A000A", {"fiscalCode": CODE})),
    ("production-token", ("POST", "", {"fiscalCode": CODE}, "live_0a1B2c3D4e5F6")),
]


def test_every_rule_has_an_example_of_misuse() -> None:
    assert {rule for rule, _ in MISUSES} == RULES.keys()


@pytest.mark.parametrize(("rule", "misuse"), MISUSES)
async def test_misuse_is_found_once_with_its_call_number(raw: Raw, rule: str, misuse: Any) -> None:
    if isinstance(misuse, tuple):
        await raw(*misuse)
    else:
        await raw.create()
        for tag in misuse:
            await raw.approve(email=f"a+{tag}@example.com", decoded=False)
    [finding] = raw.sandbox.findings
    assert (finding.rule, finding.message) == (rule, RULES[rule])
    last = raw.sandbox.journal[-1]
    assert (finding.call, last.findings) == (last.number, (rule,))
    assert str(finding) == f"call {last.number}: {rule}: {RULES[rule]}"
    assert CODE not in str(finding)


@pytest.mark.parametrize("tag", ["500x2", "500after", "invalid.city", "forbidden", "slow1"])
async def test_permitted_repeat_is_not_a_finding(raw: Raw, tag: str) -> None:
    await raw.create()
    await raw.approve(amount=1)  # a correction after a rejection
    await raw.approve(email=f"a+{tag}@example.com")
    if tag != "slow1":
        await raw.approve(email="a@example.com")
    await raw("POST", f"/{CODE}/documents", {})
    await raw("PATCH", f"/{CODE}", {"profession": "baker"})
    assert raw.sandbox.findings == []


LOST, UNCLEAR = ["repeat-after-lost-response"], ["repeat-after-unclear-response"]


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        *((tag, LOST) for tag in ("html502", "resetbefore", "garbage", "emptyafter")),
        ("conflict", UNCLEAR),
        *((tag, []) for tag in ("500", "invalid.city", "forbidden", "noshop", "nouser")),
    ],
)
async def test_only_a_response_without_evaluation_may_be_repeated(
    raw: Raw, tag: str, found: list[str]
) -> None:
    await raw.create()
    with contextlib.suppress(aiohttp.ClientError):
        await raw.approve(email=f"a+{tag}@example.com", decoded=False)
    await raw.approve()
    assert [finding.rule for finding in raw.sandbox.findings] == found


async def test_concurrent_approvals_are_found(raw: Raw) -> None:
    await raw.create()
    await asyncio.gather(raw.approve(), raw.approve())
    assert [finding.rule for finding in raw.sandbox.findings] == ["post-after-201"]


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
    await raw("POST", "?id=CUSTOMER00000002", {"fiscalCode": "CUSTOMER00000002"})  # not known before
    assert raw.sandbox.findings[-1].call == 4


@pytest.mark.parametrize(
    "query",
    [
        "customerIdentity=1&customerIdentityTypes=1",
        "fiscalCode=",
        "trace=0123456789abcdef",
        "trace=abcdef0123456789",
        "id=550e8400-e29b-41d4-a716-446655440000",
        "key=QmFzZTY0U3RyaW5n",
        "at=1700000000000&order=12345678901",
        "word=CharacterisationsOfPeople",
    ],
)
async def test_query_without_personal_data_is_not_a_finding(raw: Raw, query: str) -> None:
    await raw("POST", f"?{query}", {})
    assert raw.sandbox.findings == []
