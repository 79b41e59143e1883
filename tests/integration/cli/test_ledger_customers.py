"""``loanasync ledger show`` and ``resolve`` with ``--customer``: the fiscal code is read, not an argument."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request, connection_lost
from support.builders import FISCAL_CODE
from support.cli import Bulk, environment, run
from support.ledger_clients import KEY, Shop
from support.ledger_file import run_ledger

OTHER = "TSTXYZ00A00A000B"
SETTINGS = {
    "BASE_URL": "https://loans.example.com",
    "SHOP_ID": "shop",
    "AUTH_TOKEN": "token",
    "LEDGER_KEY": KEY.decode(),
}
AS_REFUSED = ("--as", "refused", "--note", "ticket 17")


@pytest.fixture(autouse=True)
def _shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"LOANASYNC_{name}", value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def file_of(tmp_path: Path, *approvals: tuple[str, str | None], **policy: str) -> Path:
    """Create a ledger with an unknown entry for each scope and order token."""
    file = tmp_path / "decisions.db"

    async def fill() -> None:
        async with SqliteLedger(file) as ledger:
            options = {"auth_token": "token", "shop_id": "shop", "base_url": "https://loans.example.com"}
            shop = Shop(*[connection_lost()] * len(approvals), ledger=ledger, options=options, **policy)
            for scope, order in approvals:
                await shop.result(request=approval_request(order_token=order), scope=scope)

    asyncio.run(fill())
    return file


def states(file: Path) -> dict[str, str]:
    """Return the states by scope."""

    async def read() -> dict[str, str]:
        async with SqliteLedger(file) as ledger:
            return {entry.scope: entry.state.value async for entry in ledger.scan()}

    return asyncio.run(read())


def resolve(file: Path, *options: str, stdin: str = f"{FISCAL_CODE.lower()}\n") -> tuple[int, str]:
    done = run_ledger("resolve", file, "--customer", *options, stdin=stdin)
    assert FISCAL_CODE not in done.output
    return done.exit_code, done.stderr


@pytest.mark.parametrize("policy", [{}, {"scope": "order_token"}])
def test_customer_with_several_entries_lists_them(tmp_path: Path, policy: dict[str, Any]) -> None:
    file = file_of(tmp_path, ("", "A1"), ("spring", "A2"), **policy)
    code, message = resolve(file, *AS_REFUSED)
    assert (code, states(file)) == (2, {"": "unknown", "spring": "unknown"})
    title, first, second = message.splitlines()
    assert title == "the customer has several entries, name one by its key:"
    assert (first.endswith("Error"), second.endswith("Error  scope spring")) == (True, True)
    assert run_ledger("resolve", file, second[:12], *AS_REFUSED).exit_code == 0
    assert states(file) == {"": "unknown", "spring": "refused"}
    assert run_ledger("show", file, "--customer", stdin=f"{FISCAL_CODE}\n").exit_code == 2


def test_resolve_customer_without_an_outcome_asks_for_it(tmp_path: Path) -> None:
    file = file_of(tmp_path, ("", None))
    code, _ = resolve(file, stdin=f"{FISCAL_CODE}\na\nticket 17\n")
    assert (code, states(file)) == (0, {"": "approved"})


def test_prompt_for_a_fiscal_code_does_not_echo_it(tmp_path: Path) -> None:
    file = file_of(tmp_path, ("", None))
    keyboard, terminal = os.openpty()
    command = (sys.executable, "-m", "loanasync", "ledger", "show", "--customer", "--ledger", file)
    with subprocess.Popen(
        command, env=environment(None), stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True,  # there is no other terminal that it could read from
    ) as process:  # fmt: skip
        screen = b""
        while b"Fiscal code: " not in screen:
            screen += os.read(keyboard, 1_000)
        os.write(keyboard, f"{FISCAL_CODE}\n".encode())
    shown = os.read(keyboard, 10_000).decode()
    assert (process.returncode, "unknown since" in shown, FISCAL_CODE in shown) == (0, True, False)
    os.close(terminal)
    os.close(keyboard)


@pytest.mark.parametrize(
    ("options", "stdin", "message"),
    [
        (AS_REFUSED, f"{OTHER}\n", "no entry of this customer found: check --ledger and LOANASYNC_SHOP_ID"),
        (("--as", "held", "--note", "x"), f"{OTHER}\n", "no entry of this customer found"),
        (AS_REFUSED, "RSSMRA\n", "the fiscal code must be 16 letters and digits"),
        (("--as", "refused"), "", 'ledger resolve --customer --as refused --note "ticket 17"'),
        ((*AS_REFUSED, "0123abcd"), "", "give only one of KEY, --customer and --from"),
    ],
)
def test_resolve_customer_with_wrong_input_writes_nothing(
    tmp_path: Path, options: tuple[str, ...], stdin: str, message: str
) -> None:
    file = file_of(tmp_path, ("", None))
    code, printed = resolve(file, *options, stdin=stdin)
    assert (code, states(file)) == (2, {"": "unknown"})
    assert message in " ".join(printed.replace("│", " ").split())


@pytest.mark.parametrize(
    ("setting", "value", "arguments", "message"),
    [
        ("BASE_URL", "", ("--customer",), "LOANASYNC_BASE_URL"),
        ("LEDGER_KEY", "too short", ("--customer",), "must be at least 16 bytes"),
        ("SHOP_ID", "shop", (), "give either KEY or --customer"),
        ("SHOP_ID", "shop", ("0123abcd", "--customer"), "give either KEY or --customer"),
    ],
)
def test_show_with_wrong_settings_or_arguments_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    value: str,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    file = file_of(tmp_path, ("", None))
    monkeypatch.setenv(f"LOANASYNC_{setting}", value)
    done = run_ledger("show", file, *arguments, stdin=f"{FISCAL_CODE}\n")
    assert (done.exit_code, message in done.stderr, FISCAL_CODE in done.output) == (2, True, False)


def test_customer_is_found_under_an_old_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(tmp_path, ("", None))
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", "the new key of the shop")
    monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", KEY.decode())
    assert run_ledger("rotate-key", file).exit_code == 0
    assert (resolve(file, *AS_REFUSED)[0], states(file)) == (0, {"": "refused"})


def test_commands_find_customers_of_a_ledger_beside_results(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = Bulk(tmp_path, served, "resetafter")
    assert bulk.run()[0] == 3
    show = ("ledger", "show", "--customer", "--ledger", f"sqlite:///{bulk.job}")
    assert "state               unknown" in run(served, *show, stdin=f"{bulk.codes[0]}\n").stdout
    monkeypatch.delenv("LOANASYNC_LEDGER_KEY")  # of another ledger
    again = bulk.run("--ledger", bulk.job, out=tmp_path / "again.jsonl")
    assert (again[0], bulk.calls) == (3, 1), "other results repeat no request"
    outcomes = tmp_path / "outcomes.csv"
    outcomes.write_text(f"cf,esito\n{bulk.codes[0]},approvato\n", encoding="utf-8")
    done = run(served, "ledger", "resolve", "--from", outcomes, "--ledger", bulk.job)
    assert (done.returncode, done.stderr) == (0, "1 row settled\n")
    correct = ("ledger", "resolve", "--customer", *AS_REFUSED, "--ledger", bulk.job)
    assert "is refused: corrected" in run(served, *correct, stdin=f"{bulk.codes[0]}\n").stderr
