"""Generates the tables of docs/reference/sandbox-tags.md by sending each tag to a sandbox."""

import asyncio

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    Decision,
    LoanClient,
    LoanError,
    RetryPolicy,
    Timeout,
)
from loanasync.sandbox import Sandbox
from loanasync.sandbox.outcomes import TAG_WORDS
from loanasync.testing import approval_request, fiscal_code

TAGS = {
    "Decisions": {
        "approved": "201 for any amount; without a tag, amounts above 1,000,000 cents get a 422",
        "refused": "422, final",
        "additional": "a decision if the [conditional fields](service.md#spec-2-1) were sent, else 400",
        "noredirect": "201 without `redirectUrl`, as in one description",
        "civic": "the street number is returned as `civicNumber`",
        "street": "the street number is returned as `streetNumber`",
    },
    "Errors without a decision": {
        "invalid.<field>": (
            "400 for this field of the call that has it: `+invalid.documentcity` is for `complete`"
        ),
        "already": '400 "User already evaluated for approval"',
        "nouser": '400 "User not found"',
        "noshop": '400 "This sales point cannot apply for a loan"',
        "forbidden": "403",
        "conflict": "409",
    },
    "Faults before the decision": {
        "500xN": "500, as many times as the number says",
        "resetbefore": "the connection is reset",
        "hangbefore": "no response, until the client gives up",
        "html502": "502 with HTML, as from a proxy",
    },
    "Faults after the decision": {
        "500after": "500",
        "resetafter": "the connection is reset",
        "hangafter": "no response, until the client gives up",
        "html502after": "502 with HTML, as from a proxy",
        "emptyafter": "the status without a body",
        "truncafter": "the status with half of the body",
        "garbage": "the status with a body that is not JSON",
    },
    "Slow responses": {
        "slow<ms>": "every response 300 milliseconds late",
        "slow<ms>after": "every response 300 milliseconds after the decision",
    },
}


def example(word: str) -> str:
    """Return a tag with example values for its parameters."""
    return word.replace("xN", "x2").replace("<ms>", "300").replace("<field>", "city")


def outcome_text(outcome: Decision | LoanError) -> str:
    name = f"`{type(outcome).__name__}`"
    if isinstance(outcome, Approved) and outcome.redirect_url is None:
        return f"{name}, `redirect_url` None"
    if isinstance(outcome, AlreadyEvaluatedError) and outcome.after_retry:
        return f"{name}, {outcome.outcome}, `after_retry`"
    if isinstance(outcome, LoanError):
        return f"{name}, {outcome.outcome}"
    return name


async def result_of(client: LoanClient, sandbox: Sandbox, tag: str) -> str:
    """Return the last cell of a tag: the result of the call, and the number of requests above one."""
    code = fiscal_code()
    await client.create_request({"fiscalCode": code})
    outcome: Decision | LoanError
    timeout = Timeout(attempt=2, connect=1.9) if tag.startswith("hang") else None
    try:
        outcome = await client.approve(code, approval_request(tag=tag), timeout=timeout)
    except LoanError as error:
        outcome = error
    calls = sandbox.journal.calls(operation="approve", fiscal_code=code)
    requests = f", {len(calls)} requests" if len(calls) > 1 else ""
    return f"{outcome_text(outcome)}{requests}"


async def results_of_all() -> list[str]:
    """Return the results of all tags, whose approvals are requested concurrently."""
    async with Sandbox() as sandbox, sandbox.client(retry=RetryPolicy(base=0.001)) as client:
        return await asyncio.gather(*(result_of(client, sandbox, example(word)) for word in TAG_WORDS))


def tables() -> str:
    """Return all tables."""
    by_word = dict(zip(TAG_WORDS, asyncio.run(results_of_all()), strict=True))
    lines = []
    for title, tags in TAGS.items():
        lines += [f"## {title}", "", "| tag | response | `approve` |", "|---|---|---|"]
        lines += [f"| `+{example(word)}` | {text} | {by_word.pop(word)} |" for word, text in tags.items()]
        lines.append("")
    if by_word:
        raise ValueError(f"add these words to TAGS: {', '.join(by_word)}")
    return "\n".join(lines)
