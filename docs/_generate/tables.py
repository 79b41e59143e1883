"""Writes the generated tables of the documentation.

`PYTHONPATH=tests python docs/_generate/tables.py reference/cli.md` writes those of one page.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import cli_page
import errors_page
import faults_page
import performance_page
import privacy_page
import problems_page
import tags_page

DOCS = Path(__file__).parents[1]
# The tables of each page, by the name in the two comments that enclose them.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "contributing/performance.md": performance_page.TABLES,
    "contributing/privacy.md": privacy_page.CONTRIBUTORS_TABLES,
    "contributing/reliability.md": {"faults": faults_page.tables},
    "explanation/privacy.md": privacy_page.USERS_TABLES,
    "reference/cli.md": {"exit codes": cli_page.exit_codes, "commands": cli_page.sections},
    "reference/errors.md": {"errors": errors_page.tables, "problems": problems_page.table},
    "reference/sandbox-tags.md": {"tags": tags_page.tables},
}


def generated(page: str) -> str:
    """Return the text of a page with its current tables."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, table in TABLES[page].items():
        begin, end = f"<!-- {name} begins -->\n", f"<!-- {name} ends -->\n"
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n{table().strip()}\n\n{end}{after}"
    return text


def write(*pages: str) -> None:
    """Write the current tables into pages."""
    for page in pages:
        (DOCS / page).write_text(generated(page), encoding="utf-8")


if __name__ == "__main__":
    write(*(sys.argv[1:] or TABLES))
