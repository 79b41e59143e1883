"""The tables of docs/explanation/reliability.md, out of the rows that the tests play.

`python docs/_generate/faults_page.py --write` puts them into the page.
"""

import argparse
from pathlib import Path

from loanasync import TransportError, UnexpectedResponseError
from support.faults.connections import CONNECTING, HEADS, KEEPING, SENDING, TRUSTING
from support.faults.responses import BODIES, FAULTS, REDIRECTS, STATUSES
from support.faults.row import SESSIONS, Comes, Row

__all__ = ["PAGE", "ROWS", "with_tables"]

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "reliability.md"
GROUPS = {
    "Before the connection stands": CONNECTING,
    "Certificates": TRUSTING,
    "While the request is sent, and before the answer": SENDING,
    "On a connection that was kept": KEEPING,
    "In the head of the answer": HEADS,
    "In the body of the answer": BODIES,
    "Redirects": REDIRECTS,
    "Statuses that the specification does not name": STATUSES,
    "System faults": FAULTS,
}
ROWS = [row for rows in GROUPS.values() for row in rows]
BEGIN, END = "<!-- the rows of the tests begin -->", "<!-- the rows of the tests end -->"


def told(comes: Comes) -> str:
    if comes.in_part:
        return "the decision, without a redirect, and `body` in `meta.unread`"
    if comes.error is None:
        return "the answer, as if nothing had been"
    words = f"`{comes.error.__name__}`"
    if issubclass(comes.error, TransportError) or comes.error is UnexpectedResponseError:
        words += f", outcome: `{comes.outcome}`"
    else:
        words += f", status {comes.status}"
    return words if comes.or_else is None else f"{words}, or {other_words(comes.or_else)}"


def other_words(comes: Comes) -> str:
    return f"{told(comes)} when it was noticed before the request left"


def line(row: Row) -> str:
    result = told(row.comes)
    if row.over_https is not None:
        result += f"; over https {told(row.over_https)}"
    if row.says:
        result += f', "{row.says}"'
    return f"| {row.fault} | {result} | {row.seen} | {row.advice} | `{row.name}` |"


def tables() -> str:
    lines: list[str] = []
    for title, rows in GROUPS.items():
        lines += [f"### {title}", ""]
        lines += [
            "| what happens | what comes of it | requests read | what to do | test |",
            "|---|---|---|---|---|",
        ]
        lines += [*map(line, rows), ""]
    played = len(SESSIONS) * sum(len(row.schemes) * len(row.operations) for row in ROWS)
    lines += [f"{len(ROWS)} failures, which each run of the tests makes happen {played} times in all.", ""]
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """A page with its tables as the rows have them."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def main() -> None:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
