"""Tests of docs/contributing/spec-coverage.md: each open point of the specification has a line."""

import re

import pytest

from loanasync.sandbox import Readings
from support.pages import ROOT

LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "contributing" / "spec-coverage.md")
    .read_text("utf-8")
    .partition("## Not shown")[2]
    .splitlines()
    if line.startswith("| [§")
]
LINKS = re.compile(r"\[(§[\d.]+)\]\(\.\./reference/service\.md#spec-[\d-]+\)")

# Paragraph, and a part of the line, for each open point.
DECIDED = {
    "refusal with 201": ("§3, §4.1", "a 201 with `approved: false` is `Refused`"),
    "201 without a decision": ("§3, §4.1", "a 201 without a readable boolean `approved`"),
    "422 without a decision": ("§7", "a 422 without `approved: false`"),
    "422 without a body": ("§7", "empty: `Refused` (assumed)"),
    "409": ("§4.1, §7", "`CannotCompleteError` with the outcome `unknown`"),
    "domain messages": ("§7", "every other message is a `DomainError` with the outcome `unknown`"),
    "proof of no evaluation": (
        "§4.1, §7",
        "After an earlier attempt that was answered with 500, none of them",
    ),
    "another customer": ("§2.1", "any other code is another customer's"),
    "evaluated once": ("§3", "the customer (assumed)"),
    "completion": ("§4.2", "the data are saved"),
    "descriptions": ("§2.1", "a preset changes only the setting in its name"),
    "conditional fields": ("§2.1", "each is optional then"),
    "mobile phone": ("§2.1", "`Limits(mobile_phone=..., country_calling_code=...)`"),
    "creation and documents": ("§4.3", "any JSON value"),
    "privacy": ("§7", "the creation (assumed)"),
    "fiscal code message": ("§7", "both put their problem at `fiscal_code`"),
    "empty redirect": ("§1.3", "None, and named in `meta.unread`"),
}


@pytest.mark.parametrize("point", DECIDED)
def test_spec_coverage_lists_each_open_point_once(point: str) -> None:
    paragraph, part = DECIDED[point]
    found = [line for line in LINES if LINKS.sub(r"\1", line[0]) == paragraph and part in " | ".join(line)]
    assert len(found) == 1


def test_spec_coverage_lines_have_three_cells() -> None:
    assert LINES
    assert {len(line) for line in LINES} == {3}


@pytest.mark.parametrize("switch", Readings.choices())
def test_sandbox_guide_lists_each_reading(switch: str) -> None:
    guide = (ROOT / "docs" / "howto" / "sandbox.md").read_text(encoding="utf-8")
    values = ", ".join(f"`{value}`" for value in Readings.choices()[switch])
    assert f"| `{switch}=` | {values} |" in guide
