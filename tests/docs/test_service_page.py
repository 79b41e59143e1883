"""Tests of docs/reference/service.md: anchors for citations, and rows of the tables."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import ROOT
from support.specification import SPECIFICATION

PAGE = (ROOT / "docs" / "reference" / "service.md").read_text(encoding="utf-8")
ANCHORS = {name.replace("-", ".") for name in re.findall(r"^\(spec-([\d-]+)\)=$", PAGE, re.MULTILINE)}
OTHER_DOCUMENTS = re.compile(r"RFC \d+ §[\d.]+")
CITATION = re.compile(r"§ ?(\d[\d.]*)")
ROWS = [
    (paragraph, row)
    for paragraph in SPECIFICATION
    if paragraph[0] in "2578"
    for row in SPECIFICATION[paragraph]
]
ROWS += [
    (paragraph, row) for paragraph in ("4.1", "4.2") for row in SPECIFICATION[paragraph] if row.isdigit()
]


def citations(text: str) -> set[str]:
    """Return the paragraphs of the specification that a text cites."""
    return {number.rstrip(".") for number in CITATION.findall(OTHER_DOCUMENTS.sub("", text))}


def sources() -> Iterator[Path]:
    """Yield the files of code, tests and documentation, except this one: it has invented citations."""
    for folder in ("loanasync", "tests", "docs", "benchmarks"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".md"} and "_build" not in file.parts and file != Path(__file__):
                yield file


def section(number: str) -> str:
    """Return the part of the page from the heading of a paragraph to the next heading."""
    return PAGE.partition(f"# §{number} ")[2].partition("\n#")[0]


def test_each_cited_paragraph_has_an_anchor() -> None:
    cited = {
        file.relative_to(ROOT).as_posix(): citations(file.read_text(encoding="utf-8")) for file in sources()
    }
    assert set().union(*cited.values()) >= {"1.1", "2.1", "9"}
    assert {file: numbers - ANCHORS for file, numbers in cited.items() if numbers - ANCHORS} == {}


@pytest.mark.parametrize(("paragraph", "row"), ROWS)
def test_each_row_of_the_specification_is_in_its_section(paragraph: str, row: str) -> None:
    found = section(paragraph.partition(" ")[0])
    assert all(name in found for name in row.split("/"))
