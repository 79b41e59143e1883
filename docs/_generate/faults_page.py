"""Generates the tables of docs/contributing/reliability.md from the rows of the fault matrix."""

from loanasync import TransportError, UnexpectedResponseError
from support.faults.connections import CERTIFICATES, CONNECTING, HEADS, KEEP_ALIVE, SENDING
from support.faults.responses import BODIES, REDIRECTS, STATUSES, SYSTEM_FAULTS
from support.faults.row import SESSIONS, Expected, Row

GROUPS = {
    "Connecting": CONNECTING,
    "TLS certificates": CERTIFICATES,
    "Sending, and waiting for the response": SENDING,
    "Reused connections": KEEP_ALIVE,
    "Response headers": HEADS,
    "Response body": BODIES,
    "Redirects": REDIRECTS,
    "Statuses that the specification does not name": STATUSES,
    "System errors (HTTP 500)": SYSTEM_FAULTS,
}
ROWS = [row for rows in GROUPS.values() for row in rows]


def result_text(expected: Expected) -> str:
    """Return the cell with the result of a call."""
    if expected.is_partial:
        return "the decision, without a redirect, and `body` in `meta.unread`"
    if expected.error is None:
        return "success"
    text = f"`{expected.error.__name__}`"
    if issubclass(expected.error, TransportError) or expected.error is UnexpectedResponseError:
        text += f", outcome `{expected.outcome}`"
    else:
        text += f", status {expected.status}"
    if expected.alternative is None:
        return text
    return f"{text}; {result_text(expected.alternative)} if it was noticed before sending"


def line(row: Row) -> str:
    """Return the line of a row."""
    result = result_text(row.expected)
    if row.expected_over_https is not None:
        result += f"; over https {result_text(row.expected_over_https)}"
    if row.expected_through_aiohttp is not None:
        result += f"; without direct connections {result_text(row.expected_through_aiohttp)}"
    if row.message:
        result += f', "{row.message}"'
    return f"| {row.fault} | {result} | {row.requests_read} | `{row.name}` |"


def tables() -> str:
    """Return all tables."""
    lines: list[str] = []
    for title, rows in GROUPS.items():
        lines += [f"### {title}", ""]
        lines += ["| fault | result | requests read | test |", "|---|---|---|---|"]
        lines += [*map(line, rows), ""]
    cases = sum(len(row.schemes) * len(row.operations) * len(SESSIONS) for row in ROWS)
    lines += [
        f"The tests play these {len(ROWS)} faults in {cases} combinations each night. For each commit they",
        "play all combinations of a fault with one scheme or one operation. They play each other fault with",
        "each kind of session, with each pair of a scheme and an operation, and always with an approval over",
        "https through the client's own session.",
        "",
    ]
    return "\n".join(lines)
