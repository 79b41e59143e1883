"""The commands that a page shows run as they stand, one after the other, in an empty folder."""

import asyncio
import csv
import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import FISCAL_CODE

from loanasync.sandbox import Sandbox
from loanasync.testing import fiscal_code

DOCS = Path(__file__).parent.parent / "docs"
END = "=== end of a step ==="
ORDER = {
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


def steps(page: Path) -> list[tuple[str, str]]:
    """Each block of commands, with the text that is said to come of it."""
    return re.findall(r"```sh\n(.*?)```\n(?:```text\n(.*?)```)?", page.read_text(encoding="utf-8"), re.DOTALL)


async def given(folder: Path, sandbox: Sandbox) -> None:
    """The reader's own files: orders in euro, whose requests are created, and one in euro cents."""
    orders = [ORDER, {**ORDER, "fiscal_code": fiscal_code()}]
    with (folder / "orders.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ORDER)
        writer.writeheader()
        writer.writerows(orders)
    (folder / "order.json").write_text(json.dumps({**ORDER, "amount": 45_000}), encoding="utf-8")
    async with sandbox.client() as client:
        for order in orders:
            await client.create_request({"fiscalCode": str(order["fiscal_code"])})


@pytest.mark.parametrize("name", ["index.md", "howto/bulk.md"])
def test_the_commands_of_a_page_run_and_say_what_is_told(name: str, tmp_path: Path) -> None:
    if not shutil.which("bash"):
        assert not os.environ.get("CI"), "the gate needs bash"
        pytest.skip("there is no bash")
    shown = steps(DOCS / name)
    assert shown
    programs = Path(sys.executable).parent
    with Sandbox.in_thread() as sandbox:
        asyncio.run(given(tmp_path, sandbox))
        environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "LOANASYNC_BASE_URL": sandbox.base_url,
            "LOANASYNC_SHOP_ID": sandbox.shop_id,
            "LOANASYNC_AUTH_TOKEN": sandbox.auth_token,
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail"],  # noqa: S607  (whichever there is)
            input=f"\necho '{END}'\n".join(commands for commands, _ in shown),
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
    assert done.returncode == 0, done.stderr
    checker = doctest.OutputChecker()
    for (commands, wanted), got in zip(shown, done.stdout.split(f"{END}\n"), strict=True):
        told = f"{commands}\nwanted:\n{wanted}\ngot:\n{got}"
        assert checker.check_output(wanted.rstrip(), got.rstrip(), doctest.ELLIPSIS), told
