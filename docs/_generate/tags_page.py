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
from loanasync.sandbox.outcomes import TAG_WORDS, TAGS
from loanasync.testing import approval_request, fiscal_code


def example(word: str) -> str:
    """Return a tag with example values for its parameters."""
    return word.replace("xN", "x2").replace("<ms>", "300").replace("<field>", "city")


def outcome_text(outcome: Decision | LoanError) -> str:
    name = f"`{type(outcome).__name__}`"
    if isinstance(outcome, Approved) and outcome.redirect_url is None:
        return f"{name}, `redirect_url` None"
    if isinstance(outcome, AlreadyEvaluatedError) and outcome.after_retry:
        return f"{name}, `outcome` {outcome.outcome}, `after_retry`"
    if isinstance(outcome, LoanError):
        return f"{name}, `outcome` {outcome.outcome}"
    return name


async def cells_of(client: LoanClient, sandbox: Sandbox, tag: str) -> str:
    """Return the last two cells of a tag: the result of the call, and if the sandbox decided."""
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
    return f"{outcome_text(outcome)}{requests} | {'yes' if any(call.evaluated for call in calls) else 'no'}"


async def cells_of_all() -> list[str]:
    """Return the cells of all tags, whose approvals are requested concurrently."""
    async with Sandbox() as sandbox, sandbox.client(retry=RetryPolicy(base=0.001)) as client:
        return await asyncio.gather(*(cells_of(client, sandbox, example(word)) for word in TAG_WORDS))


def tables() -> str:
    """Return all tables."""
    by_word = dict(zip(TAG_WORDS, asyncio.run(cells_of_all()), strict=True))
    lines = []
    for title, tags in TAGS.items():
        lines += [f"## {title}", "", "| tag | response | `approve` | decided |", "|---|---|---|---|"]
        lines += [f"| `+{example(word)}` | {tag.text} | {by_word[word]} |" for word, tag in tags.items()]
        lines.append("")
    return "\n".join(lines)
