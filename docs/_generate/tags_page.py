"""The tables of docs/reference/sandbox-tags.md: what each tag comes to, by asking the sandbox for it.

`python docs/_generate/tags_page.py --write` puts them into the page.
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
from loanasync.sandbox.outcomes import KNOWN, TAGS
from loanasync.testing import approval_request, fiscal_code

__all__ = ["PAGE", "example", "tables", "with_tables"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sandbox-tags.md"
BEGIN, END = "<!-- what each tag comes to begins -->", "<!-- what each tag comes to ends -->"


def example(word: str) -> str:
    """A word with numbers and a field in it, as a shop sends it."""
    return word.replace("xN", "x2").replace("<ms>", "300").replace("<field>", "city")


def told(outcome: Decision | LoanError) -> str:
    said = f"`{type(outcome).__name__}`"
    if isinstance(outcome, Approved) and outcome.redirect_url is None:
        return f"{said}, `redirect_url` None"
    if isinstance(outcome, AlreadyEvaluatedError) and outcome.after_retry:
        return f"{said}, `outcome` {outcome.outcome}, `after_retry`"
    if isinstance(outcome, LoanError):
        return f"{said}, `outcome` {outcome.outcome}"
    return said


async def comes_to(client: LoanClient, sandbox: Sandbox, tag: str) -> str:
    """The two cells of a tag: what a call makes of it, and what the sandbox did."""
    code = fiscal_code()
    await client.create_request({"fiscalCode": code})
    outcome: Decision | LoanError
    patience = Timeout(attempt=2, connect=1.9) if tag.startswith("hang") else None
    try:
        outcome = await client.approve(code, approval_request(tag=tag), timeout=patience)
    except LoanError as error:
        outcome = error
    calls = sandbox.journal.calls(operation="approve", fiscal_code=code)
    asked = f", asked {len(calls)} times" if len(calls) > 1 else ""
    return f"{told(outcome)}{asked} | {'yes' if any(call.evaluated for call in calls) else 'no'}"


async def tables() -> str:
    """All of them, each tag asked for at the same time as the others."""
    async with Sandbox() as sandbox, sandbox.client(retry=RetryPolicy(base=0.001)) as client:
        asked = [example(word) for word in KNOWN]
        cells = await asyncio.gather(*(comes_to(client, sandbox, tag) for tag in asked))
    by_word = dict(zip(KNOWN, cells, strict=True))
    lines = []
    for title, tags in TAGS.items():
        lines += [f"## {title}", "", "| tag | what is answered | `approve` | decided |", "|---|---|---|---|"]
        lines += [f"| `+{example(word)}` | {tag.text} | {by_word[word]} |" for word, tag in tags.items()]
        lines.append("")
    return "\n".join(lines)


def with_tables(page: str, written: str) -> str:
    """A page with its tables as they were made."""
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
