"""Shell commands of pages run unchanged, and print the shown output."""

import csv
import shlex
from pathlib import Path
from secrets import token_hex

import pytest

from loanasync.sandbox import Sandbox
from loanasync.testing import fiscal_code
from support import page_commands
from support.builders import FISCAL_CODE
from support.cli import run
from support.ledger_file import listed
from support.processes import credentials
from support.servers import Postgres

DOCS = Path(__file__).parents[2] / "docs"
ORDER = {
    "order_id": "A-1",
    "fiscal_code": FISCAL_CODE,
    "amount": "450,00",
    "instalments": 12,
    "email": "anna@example.com",
    "first_name": "Anna",
    "last_name": "Prova",
    "mobile_phone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postal_code": "00100",
    "street_number": "12/A",
    "citizenship": "italian",
}


def commands(page: Path) -> list[list[str]]:
    """Return the words of each ``loanasync`` command in the shell blocks of a page."""
    lines = "".join(block for block, _ in page_commands.steps(page)).splitlines()
    return [shlex.split(line) for line in lines if line.startswith("loanasync ")]


def create_files(folder: Path) -> None:
    """Create the file that a page assumes: orders in euro."""
    orders = [ORDER, {**ORDER, "fiscal_code": fiscal_code(), "order_id": "A-2"}]
    with (folder / "orders.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ORDER)
        writer.writeheader()
        writer.writerows(orders)


@pytest.mark.parametrize(
    "page",
    [page for page in sorted(DOCS.rglob("*.md")) if commands(page)],
    ids=lambda page: page.relative_to(DOCS).as_posix(),
)
def test_commands_on_page_have_existing_options(page: Path) -> None:
    for command in commands(page):
        done = run(None, *command[1:], "--help")  # which is printed unless an option is unknown
        assert done.returncode == 0, done.stderr


@pytest.mark.scheduled
def test_commands_of_the_bulk_page_run_and_print_the_shown_output(tmp_path: Path) -> None:
    page = DOCS / "howto" / "bulk.md"
    assert page_commands.steps(page)
    with Sandbox.in_thread() as sandbox:
        create_files(tmp_path)
        page_commands.run(page, tmp_path, credentials(sandbox), {})


def test_commands_of_the_ledger_page_run(postgres: Postgres, tmp_path: Path) -> None:
    """`tests/integration/cli/test_whole_ledger.py` runs those of "Back up, move, restore"."""
    shown = "postgresql://db.example.com/shop?table=loans"
    shop = {"LOANASYNC_SHOP_ID": "shop", "LOANASYNC_AUTH_TOKEN": "token"}
    environment = {**shop, "LOANASYNC_LEDGER_KEY": "0123456789abcdef"}
    address = f"{postgres.url}?table=t{token_hex(4)}"
    page = DOCS / "howto" / "ledger.md"
    assert len(page_commands.steps(page)) == 3
    page_commands.run(page, tmp_path, environment, {shown: address})
    assert listed(address) == []
