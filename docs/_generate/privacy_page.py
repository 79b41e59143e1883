"""Generates the tables of docs/explanation/privacy.md and docs/contributing/privacy.md.

They come from the models, the errors, and the planted values and the scanner of the tests.

The table of monitoring agents shows docs/figures/agents.json, which `nox -s agents` compares with the agents.

Run `python docs/_generate/privacy_page.py --write`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from loanasync import errors
from support.privacy.plants import FORMS, MODELS, NOT_PERSONAL
from support.privacy.scanner import OUTPUT_KINDS

__all__ = ["AGENTS", "PAGE", "TABLES", "USERS_PAGE", "with_tables", "write"]

DOCS = Path(__file__).parents[2] / "docs"
USERS_PAGE = DOCS / "explanation" / "privacy.md"
PAGE = DOCS / "contributing" / "privacy.md"
AGENTS = DOCS / "figures" / "agents.json"


def fields() -> Iterator[str]:
    yield "| model | personal: masked | not personal: shown |"
    yield "|---|---|---|"
    for model in MODELS:
        names = [each.name for each in attrs.fields(model)]
        personal = ", ".join(f"`{name}`" for name in names if name not in NOT_PERSONAL)
        plain = ", ".join(f"`{name}`" for name in names if name in NOT_PERSONAL)
        yield f"| `{model.__name__}` | {personal} | {plain or 'none'} |"


PERSONAL_TYPES = ("Decision", "RawResponse", "Problem")  # of the attributes of errors


def attributes() -> Iterator[str]:
    yield "| attribute | of |"
    yield "|---|---|"
    owners: dict[str, list[str]] = {}
    for name in errors.__all__:
        kind: Any = getattr(errors, name)
        # The problems of this error are those of the SDK, which contain no values.
        if kind is errors.InvalidRequestError or "__attrs_attrs__" not in vars(kind):
            continue
        for each in attrs.fields(kind):
            if not each.inherited and any(map(str(each.type).count, PERSONAL_TYPES)):
                owners.setdefault(each.name, []).append(f"`{name}`")
    yield from (f"| `{name}` | {', '.join(names)} |" for name, names in sorted(owners.items()))


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


def agents() -> Iterator[str]:
    record = json.loads(AGENTS.read_text(encoding="utf-8"))
    sessions = list(next(iter(record["sentry"]["results"].values())))
    yield f"| agent | settings of the agent | {' | '.join(f'session: {each}' for each in sessions)} |"
    yield f"|---|---|{'---|' * len(sessions)}"
    for agent in record.values():
        name = ", ".join(f"{package} {version}" for package, version in agent["versions"].items())
        for setting, results in agent["results"].items():
            cells = ("**personal data**" if each["personal"] else "nothing" for each in results.values())
            yield f"| {name} | {setting} | {' | '.join(cells)} |"


TABLES = {
    "fields": fields,
    "attributes": attributes,
    "reasons": reasons,
    "outputs": outputs,
    "forms": forms,
    "agents": agents,
}


def with_tables(page: str) -> str:
    """Return a page with the current tables, of those that it has."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
        if begin not in page:
            continue
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        lines = "\n".join(table())
        page = f"{before}{begin}\n\n{lines}\n\n{end}{after}"
    return page


def write(page: Path) -> None:
    """Write the tables into a page."""
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    """Write the tables into the pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    write(USERS_PAGE)
    write(PAGE)


if __name__ == "__main__":
    main()
