"""The tables of docs/explanation/privacy.md, out of what the scanner plants and where it looks.

`python docs/_generate/privacy_page.py --write` puts them into the page.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import attrs

from support.privacy.plants import FORMS, MODELS, NOT_PERSONAL
from support.privacy.scanner import PLACES

__all__ = ["PAGE", "with_tables"]

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "privacy.md"


def fields() -> Iterator[str]:
    yield "| model | personal, masked wherever it is shown | nobody's, may be shown |"
    yield "|---|---|---|"
    for model in MODELS:
        names = [each.name for each in attrs.fields(model)]
        personal = ", ".join(f"`{name}`" for name in names if name not in NOT_PERSONAL)
        plain = ", ".join(f"`{name}`" for name in names if name in NOT_PERSONAL)
        yield f"| `{model.__name__}` | {personal} | {plain or 'nothing'} |"


def reasons() -> Iterator[str]:
    yield "| nobody's | why |"
    yield "|---|---|"
    yield from (f"| `{name}` | {why} |" for name, why in NOT_PERSONAL.items())


def places() -> Iterator[str]:
    yield "| where somebody may look | what is there instead |"
    yield "|---|---|"
    yield from (f"| {place.name} | {place.instead} |" for place in PLACES)


def forms() -> Iterator[str]:
    yield from (f"- {form}" for form in FORMS)


TABLES = {"fields": fields, "reasons": reasons, "places": places, "forms": forms}


def with_tables(page: str) -> str:
    """A page with its tables as the scanner has them."""
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
