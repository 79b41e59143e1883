"""Files of rows, the command that asks for them, and a sandbox that knows their customers."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from loanasync.sandbox import Sandbox
from loanasync.testing import fiscal_code

PLAIN = {"NO_COLOR": "1", "COLUMNS": "200", "PYTHONWARNINGS": "error"}

MEMBERS: dict[str, Any] = {
    "amount": 45_000,
    "instalments": 12,
    "last_name": "Prova",
    "first_name": "Anna",
    "mobile_phone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postal_code": "00100",
    "street_number": "12/A",
    "citizenship": "italian",
}


def member(word: str, **changes: object) -> dict[str, Any]:
    """A row for the sandbox, whose tag says what becomes of it; None leaves a member out."""
    row = {"fiscal_code": fiscal_code(), "email": f"anna+{word}@example.com", **MEMBERS, **changes}
    return {name: value for name, value in row.items() if value is not None}


def write(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def statuses(file: Path) -> dict[str, str]:
    """What became of each customer last."""
    return {row["fiscal_code"]: row["status"] for row in read(file) if "fiscal_code" in row}


def create(sandbox: Sandbox, rows: Iterable[dict[str, Any]]) -> None:
    async def all_of_them() -> None:
        async with sandbox.client() as client:
            codes = [row["fiscal_code"] for row in rows]
            for begin in range(0, len(codes), 50):
                some = codes[begin : begin + 50]
                await asyncio.gather(*(client.create_request({"fiscalCode": code}) for code in some))

    asyncio.run(all_of_them())


def environment(sandbox: Sandbox | None, *, measured: bool = True) -> dict[str, str]:
    """What the command finds; unmeasured where the process may not even write down what it ran."""
    service = {} if sandbox is None else {
        "LOANASYNC_BASE_URL": sandbox.base_url,
        "LOANASYNC_SHOP_ID": sandbox.shop_id,
        "LOANASYNC_AUTH_TOKEN": sandbox.auth_token,
    }  # fmt: skip
    around = {name: value for name, value in os.environ.items() if measured or not name.startswith("COV")}
    return {**around, **PLAIN, **service}


Started: TypeAlias = "subprocess.Popen[str]"


def begin(sandbox: Sandbox | None, *arguments: object, **options: Any) -> Started:
    """The command, started."""
    return subprocess.Popen(
        [sys.executable, "-m", "loanasync", *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, encoding="utf-8", env=environment(sandbox), **options,
    )  # fmt: skip


def run(
    sandbox: Sandbox | None,
    *arguments: object,
    given: str | bytes | None = None,
    measured: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """The command, from beginning to end."""
    raw = given if isinstance(given, bytes) else (given or "").encode()
    done = subprocess.run(
        [sys.executable, "-m", "loanasync", *map(str, arguments)],
        input=raw, capture_output=True, check=False, env=environment(sandbox, measured=measured), **options,
    )  # fmt: skip
    told, errors = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in errors, errors
    return subprocess.CompletedProcess(done.args, done.returncode, told, errors)


def wait_for(ready: Callable[[], bool]) -> None:
    """Until something is so; a minute at the most."""
    until = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)
