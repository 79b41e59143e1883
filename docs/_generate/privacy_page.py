"""Generates the tables of docs/explanation/privacy.md from the planted values and the scanner of the tests.

Run `python docs/_generate/privacy_page.py --write`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import attrs

from support.privacy.plants import FORMS, MODELS, NOT_PERSONAL
from support.privacy.scanner import OUTPUT_KINDS

__all__ = ["PAGE", "with_tables"]

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "privacy.md"


def fields() -> Iterator[str]:
    yield "| model | personal: masked | not personal: shown |"
    yield "|---|---|---|"
    for model in MODELS:
        names = [each.name for each in attrs.fields(model)]
        personal = ", ".join(f"`{name}`" for name in names if name not in NOT_PERSONAL)
        plain = ", ".join(f"`{name}`" for name in names if name in NOT_PERSONAL)
        yield f"| `{model.__name__}` | {personal} | {plain or 'none'} |"


def reasons() -> Iterator[str]:
    yield "| not personal | describes |"
    yield "|---|---|"
    yield from (f"| `{name}` | {why} |" for name, why in NOT_PERSONAL.items())


def outputs() -> Iterator[str]:
    yield "| output | shown instead of personal values |"
    yield "|---|---|"
    yield from (f"| {kind.name} | {kind.instead} |" for kind in OUTPUT_KINDS)


def forms() -> Iterator[str]:
    yield from (f"- {form}" for form in FORMS)


TABLES = {"fields": fields, "reasons": reasons, "outputs": outputs, "forms": forms}


def with_tables(page: str) -> str:
    """Return a page with the current tables."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        lines = "\n".join(table())
        page = f"{before}{begin}\n\n{lines}\n\n{end}{after}"
    return page


def main() -> None:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
