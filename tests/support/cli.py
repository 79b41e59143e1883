"""Files of rows, the command line, and a sandbox that knows the customers of the rows."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeAlias
from unittest import mock

import pytest
from typer.testing import CliRunner

from loanasync.cli.app import app
from loanasync.sandbox import Sandbox, __main__
from loanasync.testing import fiscal_code
from support.processes import credentials

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


def make_row(tag: str, **changes: object) -> dict[str, Any]:
    """Return a row with a tag for the sandbox. A change to None removes a member."""
    own = {"fiscal_code": fiscal_code(), "order_id": token_hex(4), "email": f"anna+{tag}@example.com"}
    row = {**own, **MEMBERS, **changes}
    return {name: value for name, value in row.items() if value is not None}


def write(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def statuses(file: Path) -> dict[str, str]:
    """Return the last status of each customer."""
    return {row["fiscal_code"]: row["status"] for row in read(file) if "fiscal_code" in row}


def table(output: str) -> dict[str, tuple[int, int, str]]:
    """Return the rows, the requests of this run and the euro of each status in a printed table."""
    lines = re.findall(r"^([a-z_ ]+?) +([\d,]+) +([\d,]+) +([\d,.]+)$", output, re.MULTILINE)
    return {
        status: (int(rows.replace(",", "")), int(sent.replace(",", "")), euro)
        for status, rows, sent, euro in lines
    }


def planned(output: str) -> dict[str, int]:
    """Return the rows of each status in a printed plan."""
    return {name: number for name, (number, *_) in table(output).items()}


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """Limit the size of each file that this process writes."""
    import resource  # noqa: PLC0415  (only POSIX has it)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def create(sandbox: Sandbox, rows: Iterable[dict[str, Any]]) -> None:
    """Create the loan requests of all rows."""

    async def create_all() -> None:
        async with sandbox.client() as client:
            codes = [row["fiscal_code"] for row in rows]
            for begin in range(0, len(codes), 50):
                batch = codes[begin : begin + 50]
                await asyncio.gather(*(client.create_request({"fiscalCode": code}) for code in batch))

    asyncio.run(create_all())


def service(sandbox: Sandbox | None) -> dict[str, str]:
    """Return the environment variables that name the service."""
    return {} if sandbox is None else credentials(sandbox)


def name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that name a service, whose address has no server."""
    monkeypatch.setenv("LOANASYNC_BASE_URL", "http://localhost:9")
    for name in ("SHOP_ID", "AUTH_TOKEN"):
        monkeypatch.setenv(f"LOANASYNC_{name}", "shop")


def environment(sandbox: Sandbox | None, *, measured: bool = True) -> dict[str, str]:
    """Return the environment of a command. If it cannot write files, it must not measure coverage."""
    inherited = {name: value for name, value in os.environ.items() if measured or not name.startswith("COV")}
    return {**inherited, **PLAIN, **service(sandbox)}


RunningCommand: TypeAlias = "subprocess.Popen[str]"
STARTED: list[RunningCommand] = []  # a fixture kills those that a failed test leaves


def start(sandbox: Sandbox | None, *arguments: object, **options: Any) -> RunningCommand:
    """Start the command in another process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "loanasync", *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, encoding="utf-8", env=environment(sandbox), **options,
    )  # fmt: skip
    STARTED.append(process)
    return process


def run(
    sandbox: Sandbox | None, *arguments: object, stdin: str | bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    runner = CliRunner(env={**PLAIN, **service(sandbox)})
    raw = stdin if isinstance(stdin, bytes) else (stdin or "").encode()
    done = runner.invoke(app, [*map(str, arguments)], input=raw)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess([*map(str, arguments)], done.exit_code, done.stdout, done.stderr)


class Bulk:
    """A file of rows for a sandbox that knows their customers, and the command that requests them.

    Args:
        folder: Folder of all files.
        sandbox: The service.
        rows: Rows, or their tags.
        out: Name of the results.
        ledger: Name of the ledger; None for the default one.
    """

    def __init__(
        self,
        folder: Path,
        sandbox: Sandbox,
        *rows: str | dict[str, Any],
        out: str = "out.jsonl",
        ledger: object = None,
    ) -> None:
        self.sandbox, self.folder, self.out = sandbox, folder, folder / out
        self.options: tuple[object, ...] = () if ledger is None else ("--ledger", ledger)
        self.rows = [make_row(each) if isinstance(each, str) else each for each in rows]
        self.codes = [row["fiscal_code"] for row in self.rows]
        create(sandbox, self.rows)
        self.file = write(folder / "rows.jsonl", self.rows)

    @property
    def ledger(self) -> Path:
        """The default ledger, in the state folder of the test."""
        [file] = self.folder.rglob("ledgers/*.db")
        return file

    def command(self, *options: object, out: object = None) -> tuple[object, ...]:
        return ("approve-many", self.file, "-o", out or self.out, *self.options, *options)

    def run(self, *options: object, out: object = None) -> tuple[int, str]:
        """Return the exit code and the messages of the command."""
        done = run(self.sandbox, *self.command(*options, out=out))
        return done.returncode, done.stderr

    @property
    def requests(self) -> list[str]:
        """The fiscal codes of the requests that the service received."""
        return [str(call.fiscal_code) for call in self.sandbox.journal.calls(operation="approve")]

    @property
    def calls(self) -> int:
        """Number of requests, of which no customer may have had two."""
        assert len(set(self.requests)) == len(self.requests)
        return len(self.requests)

    @property
    def statuses(self) -> list[str]:
        return [line["status"] for line in read(self.out)]


def run_sandbox(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m loanasync.sandbox`` with arguments that it refuses, in this process."""
    with (
        mock.patch.object(sys, "argv", ["loanasync.sandbox", *arguments]),
        redirect_stdout(StringIO()) as output,
        redirect_stderr(StringIO()) as errors,
        pytest.raises(SystemExit) as ended,
    ):
        __main__.main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess([*arguments], ended.value.code, output.getvalue(), errors.getvalue())


def run_process(
    sandbox: Sandbox | None, *arguments: object, stdin: str = "", measured: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command in another process, for tests of its file descriptors and limits."""
    done = subprocess.run(
        [sys.executable, "-m", "loanasync", *map(str, arguments)],
        input=stdin, capture_output=True, check=False, encoding="utf-8",
        env=environment(sandbox, measured=measured), **options,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


@contextmanager
def meanwhile(ready: Callable[[], bool], action: Callable[[], object]) -> Iterator[None]:
    """Call a function in a thread once a condition is true, while a command runs in this process."""

    def act() -> None:
        wait_for(ready)
        action()

    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act)
        yield
    acted.result()


def wait_for(ready: Callable[[], bool]) -> None:
    """Wait until a condition is true, at most a minute."""
    until = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)
