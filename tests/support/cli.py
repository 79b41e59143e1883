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

from typer.testing import CliRunner

from loanasync.cli.app import app
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


def service(sandbox: Sandbox | None) -> dict[str, str]:
    """Return the environment variables that name the service."""
    if sandbox is None:
        return {}
    return {
        "LOANASYNC_BASE_URL": sandbox.base_url,
        "LOANASYNC_SHOP_ID": sandbox.shop_id,
        "LOANASYNC_AUTH_TOKEN": sandbox.auth_token,
    }


def environment(sandbox: Sandbox | None, *, measured: bool = True) -> dict[str, str]:
    """Return the variables of a command's process; it does not measure coverage if it cannot write files."""
    around = {name: value for name, value in os.environ.items() if measured or not name.startswith("COV")}
    return {**around, **PLAIN, **service(sandbox)}


Started: TypeAlias = "subprocess.Popen[str]"


def begin(sandbox: Sandbox | None, *arguments: object, **options: Any) -> Started:
    """The command, started."""
    return subprocess.Popen(
        [sys.executable, "-m", "loanasync", *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, encoding="utf-8", env=environment(sandbox), **options,
    )  # fmt: skip


def run(
    sandbox: Sandbox | None, *arguments: object, given: str | bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, from beginning to end."""
    runner = CliRunner(env={**PLAIN, **service(sandbox)})
    raw = given if isinstance(given, bytes) else (given or "").encode()
    done = runner.invoke(app, [*map(str, arguments)], input=raw)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess([*map(str, arguments)], done.exit_code, done.stdout, done.stderr)


def run_process(
    sandbox: Sandbox | None, *arguments: object, given: str = "", measured: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command in another process, for tests of its file descriptors and limits."""
    done = subprocess.run(
        [sys.executable, "-m", "loanasync", *map(str, arguments)],
        input=given, capture_output=True, check=False, encoding="utf-8",
        env=environment(sandbox, measured=measured), **options,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def wait_for(ready: Callable[[], bool]) -> None:
    """Until something is so; a minute at the most."""
    until = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)
