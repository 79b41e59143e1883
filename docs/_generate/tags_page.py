"""Generates the tables of docs/reference/sandbox-tags.md by sending an approval with each tag to a sandbox.

Run `python docs/_generate/tags_page.py --write`.
"""

import argparse
import asyncio
from pathlib import Path

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

__all__ = ["PAGE", "example", "tables", "with_tables"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sandbox-tags.md"
BEGIN, END = "<!-- the table of tags begins -->", "<!-- the table of tags ends -->"


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


async def tables() -> str:
    """Return all tables. The approvals of all tags are requested concurrently."""
    async with Sandbox() as sandbox, sandbox.client(retry=RetryPolicy(base=0.001)) as client:
        examples = [example(word) for word in TAG_WORDS]
        cells = await asyncio.gather(*(cells_of(client, sandbox, tag) for tag in examples))
    by_word = dict(zip(TAG_WORDS, cells, strict=True))
    lines = []
    for title, tags in TAGS.items():
        lines += [f"## {title}", "", "| tag | response | `approve` | decided |", "|---|---|---|---|"]
        lines += [f"| `+{example(word)}` | {tag.text} | {by_word[word]} |" for word, tag in tags.items()]
        lines.append("")
    return "\n".join(lines)


def with_tables(page: str, written: str) -> str:
    """Return a page with the given tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{written}\n{END}{after}"


def main() -> None:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(page, asyncio.run(tables())), encoding="utf-8")


if __name__ == "__main__":
    main()
