"""``loanasync ledger show`` and ``resolve`` find customers: one with ``--customer``, many with ``--from``."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from cryptography.fernet import Fernet

from loanasync.cli.console import listed
from loanasync.ledger import Entry, Settlement, SqliteLedger, State, Subject
from loanasync.ledger.header import keys_of
from loanasync.ledger.keys import Approval, places_of
from loanasync.sandbox import Sandbox
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approval_request,
    approved,
    computed,
    connection_lost,
    refused,
)
from support.cli import Bulk, environment, run
from support.ledger_clients import KEY, Shop
from support.ledger_file import left_orphan, run_ledger

BASE_URL = "https://loans.example.com"
FINAL = "evaluated for another order"
CIPHER = Fernet(Fernet.generate_key())
AS_REFUSED = ("--as", "refused", "--note", "ticket 17")


def code(number: int) -> str:
    return f"TSTX{number:012d}"


@pytest.fixture(autouse=True)
def _shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOANASYNC_BASE_URL", BASE_URL)
    monkeypatch.setenv("LOANASYNC_SHOP_ID", "shop")
    monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", "token")
    monkeypatch.setenv("LOANASYNC_LEDGER", "decisions.db")
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Simulation:
    """Approvals of customers by number, in the ledger file ``decisions.db``.

    Even customers are approved and odd ones refused, unless the response is lost.
    """

    def __init__(self, lost: Iterable[int] = (), **policy: Any) -> None:
        self.lost = frozenset(lost)
        self.policy = policy

    def _respond(self, sent: SentRequest) -> ScriptedResponse:
        number = int(str(sent.fiscal_code)[4:])
        if number in self.lost:
            return connection_lost()
        return refused() if number % 2 else approved()

    async def _approve(self, customers: Iterable[int], order: str, token: str | None) -> None:
        numbers = [*customers]
        async with SqliteLedger("decisions.db") as ledger:
            options = {"auth_token": "token", "shop_id": "shop", "base_url": BASE_URL}
            shop = Shop(
                *[computed(self._respond)] * len(numbers), ledger=ledger, options=options, **self.policy
            )
            request = approval_request(order_token=token)
            for begin in range(0, len(numbers), 500):
                chunk = numbers[begin : begin + 500]
                await asyncio.gather(
                    *(shop.result(code=code(each), request=request, order_id=order) for each in chunk)
                )

    def approve(self, customers: Iterable[int], order: str = "", token: str | None = None) -> None:
        asyncio.run(self._approve(customers, order, token))


def entries() -> list[Entry]:
    async def read() -> list[Entry]:
        async with SqliteLedger("decisions.db") as ledger:
            return [entry async for entry in ledger.scan()]

    return asyncio.run(read())


def states() -> list[str]:
    return sorted(entry.state.value for entry in entries())


def states_by_order() -> dict[str, str]:
    return {entry.order: entry.state.value for entry in entries()}


def resolve_customer(*options: str, stdin: str = f"{code(1).lower()}\n") -> tuple[int, str]:
    done = run(None, "ledger", "resolve", "--customer", *options, stdin=stdin)
    assert code(1) not in done.stdout + done.stderr
    return done.returncode, done.stderr


def resolve(text: str | bytes, *options: str) -> CompletedProcess[str]:
    content = text.encode() if isinstance(text, str) else text
    Path("outcomes.csv").write_bytes(content)
    done = run(None, "ledger", "resolve", "--from", "outcomes.csv", *options)
    assert "TSTX" not in done.stdout + done.stderr
    return done


# One customer


def test_customer_with_several_entries_lists_them() -> None:
    Simulation().approve([1], "A-1")
    Simulation(lost=[1]).approve([1], "A-2")
    exit_code, message = resolve_customer(*AS_REFUSED)
    assert (exit_code, states_by_order()) == (2, {"A-1": "refused", "A-2": "unknown"})
    title, first, second = message.splitlines()
    assert title == "the customer has several entries, name one by its key:"
    assert (first.endswith("  order A-1"), "  order A-2  ConnectionLostError" in second) == (True, True)
    assert run(None, "ledger", "resolve", second[:12], *AS_REFUSED).returncode == 0
    assert states_by_order() == {"A-1": "refused", "A-2": "refused"}
    assert run(None, "ledger", "show", "--customer", stdin=f"{code(1)}\n").returncode == 2


def test_prompt_for_a_fiscal_code_does_not_echo_it() -> None:
    Simulation(lost=[1]).approve([1])
    keyboard, terminal = os.openpty()
    command = (sys.executable, "-m", "loanasync", "ledger", "show", "--customer")
    with subprocess.Popen(
        command, env=environment(None), stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True,  # there is no other terminal that it could read from
    ) as process:  # fmt: skip
        screen = b""
        while b"Fiscal code: " not in screen:
            screen += os.read(keyboard, 1_000)
        os.write(keyboard, f"{code(1)}\n".encode())
    shown = os.read(keyboard, 10_000).decode()
    assert (process.returncode, "unknown since" in shown, code(1) in shown) == (0, True, False)
    os.close(terminal)
    os.close(keyboard)


@pytest.mark.parametrize(
    ("options", "stdin", "message"),
    [
        (AS_REFUSED, f"{code(2)}\n", "no entry of this customer found: check --ledger and LOANASYNC_SHOP_ID"),
        (("--as", "held", "--note", "x"), f"{code(2)}\n", "no entry of this customer found"),
        (AS_REFUSED, "RSSMRA\n", "the fiscal code must be 16 letters and digits"),
        (("--as", "refused"), "", 'ledger resolve --customer --as refused --note "ticket 17"'),
        ((*AS_REFUSED, "0123abcd"), "", "give KEY, --customer or --from, and only one of them"),
    ],
)
def test_resolve_customer_with_wrong_input_writes_nothing(
    options: tuple[str, ...], stdin: str, message: str
) -> None:
    Simulation(lost=[1]).approve([1])
    exit_code, printed = resolve_customer(*options, stdin=stdin)
    assert (exit_code, states()) == (2, ["unknown"])
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
    monkeypatch: pytest.MonkeyPatch, setting: str, value: str, arguments: tuple[str, ...], message: str
) -> None:
    Simulation(lost=[1]).approve([1])
    monkeypatch.setenv(f"LOANASYNC_{setting}", value)
    done = run(None, "ledger", "show", *arguments, stdin=f"{code(1)}\n")
    assert (done.returncode, message in done.stderr, code(1) in done.stdout + done.stderr) == (2, True, False)


def test_commands_find_customers_of_the_default_ledger(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOANASYNC_LEDGER")
    bulk = Bulk(tmp_path, served, "resetafter")
    assert bulk.run()[0] == 3
    show = ("ledger", "--ledger", f"sqlite:///{bulk.ledger}", "show", "--customer")
    assert "state               unknown" in run(served, *show, stdin=f"{bulk.codes[0]}\n").stdout
    monkeypatch.delenv("LOANASYNC_LEDGER_KEY")  # of another ledger
    again = bulk.run("--ledger", bulk.ledger, out=tmp_path / "again.jsonl")
    assert (again[0], bulk.calls) == (3, 1), "other results repeat no request"
    outcomes = tmp_path / "outcomes.csv"
    order = bulk.rows[0]["order_id"]
    outcomes.write_text(f"cf,order_id,esito\n{bulk.codes[0]},{order},approvato\n", encoding="utf-8")
    done = run(served, "ledger", "--ledger", bulk.ledger, "resolve", "--from", outcomes)
    assert (done.returncode, done.stderr) == (0, "1 row settled\n")
    correct = ("ledger", "--ledger", bulk.ledger, "resolve", "--customer", *AS_REFUSED)
    assert "is refused: corrected" in run(served, *correct, stdin=f"{bulk.codes[0]}\n").stderr


# A file


def test_file_settles_the_customers_of_the_file_once() -> None:
    Simulation(lost=range(4)).approve(range(6))
    text = f"fiscal_code,outcome,amount\n{code(0)},approved,45000\n{code(1).lower()},refused,\n"
    done = resolve(text)
    assert done.stderr.startswith("2 rows settled\nin the ledger and not in the file: 1 approved: ")
    assert done.returncode == 3
    assert "in the ledger and not in the file: 2 unknown: " in done.stderr.splitlines()[-1], "and only once"
    settled = entries()
    assert sorted((each.state.value, each.note) for each in settled if each.source == "file") == [
        ("approved", "line 2 of outcomes.csv"), ("refused", "line 3 of outcomes.csv")
    ]  # fmt: skip
    assert resolve(text).stderr.startswith("2 rows already had this outcome\n")
    assert entries() == settled


@pytest.mark.parametrize(
    "text",
    [
        "Codice Fiscale;Esito\n{};Rifiutata\n",
        "codice_fiscale\tNota\tESITO\n{}\tè vero\tRIFIUTATO\n",
        '{{"fiscalCode": "{}", "outcome": "refused"}}\n',
        '{{"fiscal_code": " {} ", "outcome": "refused", "order_id": null, "note": "ticket 17"}}\n',
        "cf,outcome\n{},NOT_EVALUATED\n",
        "cf,outcome\n{}, not evaluated\n",
        "cf,outcome\n{},notEvaluated\n",
        "cf,outcome\n{},Non-valutato\n",
    ],
)
def test_file_reads_each_kind_of_file(text: str) -> None:
    Simulation(lost=[1]).approve([1])
    done = run(None, "ledger", "resolve", "--from", "-", stdin=text.format(code(1)))
    assert (done.returncode, states()) == (0, ["released" if text.startswith("cf") else "refused"])


@pytest.mark.parametrize(
    "row", ["order_id\n{},refused,A-2", "ordine\n{},refused,A-2", "orderToken\n{},refused,T2"]
)
def test_file_with_an_order_or_its_token_settles_only_that_approval(row: str) -> None:
    Simulation().approve([1], "A-1", "T1")
    Simulation(lost=[1]).approve([1], "A-2", "T2")
    assert states_by_order() == {"A-1": "refused", "A-2": "unknown"}
    assert resolve(f"cf,outcome,{row.format(code(1))}\n").returncode == 0
    assert states_by_order() == {"A-1": "refused", "A-2": "refused"}


@pytest.mark.parametrize("policy", [{}, {"encrypt": CIPHER}], ids=["plain", "encrypted"])
def test_file_lists_what_each_side_lacks_and_other_amounts(
    policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if policy:
        monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    Simulation(lost=[1], **policy).approve(range(4))
    rows = f"{code(0)};approved;€ 450,00\n{code(2)};approved;46000\n{code(9)};refused;\n"
    done = resolve(f"fiscal_code;outcome;amount\n{rows}")
    begins = [
        "2 rows already had this outcome",
        "1 row with another amount than the ledger: line 3; ",
        "1 row without entry: line 4; check the fiscal code",
        *(f"in the ledger and not in the file: 1 {state}: " for state in ("refused", "unknown")),
    ]
    lines = done.stderr.splitlines()
    assert [line[: len(each)] for line, each in zip(lines, begins, strict=True)] == begins
    lacking = {each.key[:12] for each in entries() if each.state in ("refused", "unknown")}
    assert (done.returncode, {line[-12:] for line in lines[3:]}) == (3, lacking)


def test_file_does_not_list_what_was_evaluated_for_another_order() -> None:
    Simulation(lost=[1]).approve([1])

    async def add_final() -> None:
        async with SqliteLedger("decisions.db") as ledger:
            final, subject = Settlement(state=State.LOST, note=FINAL), Subject(customer="c" * 32)
            await ledger.settle("f" * 64, token="t", payload="", settlement=final, subject=subject)

    asyncio.run(add_final())
    done = resolve(f"cf,outcome\n{code(1)},refused\n")
    assert (done.returncode, done.stderr) == (0, "1 row settled\n")


def test_file_keeps_the_decisions_of_the_service() -> None:
    Simulation().approve(range(14))
    rows = "".join(f"{code(each)},{'approved' if each % 2 else 'refused'}\n" for each in range(14))
    before = entries()
    done = resolve("fiscal_code,outcome\n" + rows)
    message = "14 rows contradicting the ledger: lines 2, 3, 4,"
    assert (done.returncode, message in done.stderr, entries()) == (1, True, before)
    assert "11 and 4 " in done.stderr
    assert "; nothing was changed" in done.stderr


def request_again() -> Entry:
    """Claim the one entry of the ledger, as a client does before it repeats an unknown request."""

    async def claim() -> Entry:
        async with SqliteLedger("decisions.db") as ledger:
            [entry] = [each async for each in ledger.scan()]
            return await ledger.claim(entry.key, token="t", payload="p", lease=3600, over=entry.token)

    return asyncio.run(claim())


def test_file_during_a_request_leaves_the_row_for_later() -> None:
    Simulation(lost=[1]).approve([1])
    request_again()
    done = resolve(f"cf,outcome\n{code(1)},refused\n")
    message = "1 row with a request in progress: line 2; run the command again later\n"
    assert (done.returncode, done.stderr) == (1, message)


@pytest.mark.parametrize("outcome", ["approved", "refused"])
@pytest.mark.parametrize("is_in_flight", [False, True])
def test_file_imports_the_response_in_a_file_first(
    outcome: str, tmp_path: Path, *, is_in_flight: bool
) -> None:
    Simulation(lost=[1]).approve([1])
    [entry] = [request_again()] if is_in_flight else entries()
    settlement = Settlement(state=State.APPROVED, status=201, body=b'{"approved": true}')
    file = left_orphan(tmp_path / "state" / "loanasync" / "orphans", Path("decisions.db"), entry, settlement)
    text = f"cf,outcome\n{code(1)},{outcome}\n"
    assert (resolve(text, "--dry-run").returncode, file.exists()) == (int(is_in_flight), True)
    done = resolve(text)
    result = (0, "1 row already had this outcome") if outcome == "approved" else (1, "contradicting")
    assert (done.returncode, result[1] in done.stderr) == (result[0], True), done.stderr
    [entry] = entries()
    assert (entry.state, entry.source, entry.body) == (State.APPROVED, "service", settlement.body)
    assert not file.exists()


def test_file_with_a_fiscal_code_in_its_name_is_not_named_in_a_note() -> None:
    Simulation(lost=[1]).approve([1])
    Path(f"{code(1)}.csv").write_text(f"cf,outcome\n{code(1)},refused\n", encoding="utf-8")
    assert run(None, "ledger", "resolve", "--from", f"{code(1)}.csv").returncode == 0
    assert [entry.note for entry in entries()] == ["line 2 of the file"]


@pytest.mark.parametrize("is_in_file", [False, True])
def test_entry_under_an_old_key_is_found(monkeypatch: pytest.MonkeyPatch, *, is_in_file: bool) -> None:
    Simulation(lost=[1]).approve([1])
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", "the new key of the shop")
    monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", KEY.decode())
    assert run_ledger("rotate-key", "decisions.db").exit_code == 0
    if is_in_file:
        assert resolve(f"cf,outcome\n{code(1)},refused\n").returncode == 0
    else:
        assert resolve_customer(*AS_REFUSED)[0] == 0
    assert states() == ["refused"]


def test_file_releases_a_request_only_once() -> None:
    simulation = Simulation(lost=[1])
    simulation.approve([1])
    text = f"cf,outcome\n{code(1)},not_evaluated\n"
    assert (resolve(text).returncode, states()) == (0, ["released"])
    simulation.approve([2])
    assert "not in the file" not in resolve(f"cf,outcome\n{code(2)},approved\n").stderr
    simulation.approve([1])  # the next request, whose outcome is unknown, too
    for line, export in (  # the next export has other rows above the same one, or a note
        (2, text),
        (3, f"cf,outcome\n{code(9)},refused\n{code(1)},not_evaluated\n"),
        (3, f"cf,outcome,note\n{code(9)},refused,ticket 17\n{code(1)},not_evaluated,ticket 18\n"),
    ):
        done = resolve(export, "--note", "back office")
        assert f"may be about an earlier request of the customer: line {line}; if" in done.stderr
        assert states() == ["approved", "unknown"]


def test_file_with_dry_run_writes_nothing() -> None:
    Simulation(lost=range(2)).approve(range(3))
    before = entries()
    done = resolve(f"cf,outcome\n{code(0)},approved\n{code(2)},approved\n", "--dry-run")
    begin = "1 row to settle\n1 row already had this outcome\nin the ledger and not in the file: 1 unknown: "
    assert (done.returncode, done.stderr.startswith(begin), entries()) == (3, True, before)
    assert "still unknown or lost" not in done.stderr


OUTCOME = "outcome: must be approved, refused, not_evaluated or held"
INVALID_AMOUNT = "amount: must be whole euro cents, or an amount such as € 450,00"
INVALID = {
    "RSSMRA,refused,,": "fiscal_code: must be 16 letters and digits",
    ",refused,,": "fiscal_code: is missing",
    f"{code(1)},,,": OUTCOME,
    f"{code(1)},refused,anna@example.com,": (
        "note: must not contain personal data such as a fiscal code or an e-mail address; use a ticket number"
    ),
    f"{code(1)},refused,,450,00": "has 5 cells, but the header has 4",
    f"{code(1)},refused,,a lot": INVALID_AMOUNT,
    f"{code(1)},refused,,450.00": INVALID_AMOUNT,
}
DOUBTFUL = ("approved?", "≠ approved", "¬approved", "(approved)", "-approved", "approved*", "not approved")


def test_file_of_invalid_rows_names_line_and_field() -> None:
    Simulation(lost=[1, 3]).approve([1, 3])
    rows = (f"{code(3)},refused,,", *INVALID, *(f"{code(1)},{outcome},," for outcome in DOUBTFUL))
    done = resolve("cf,outcome,note,amount\n" + "".join(f"{row}\n" for row in rows))
    assert (done.returncode, states()) == (3, ["refused", "unknown"])
    assert "1 row settled" in done.stderr
    printed: dict[str, str] = dict(re.findall(r"  \d+ rows?: (.*): lines? (.*)\n", done.stderr))
    lines: dict[str, list[int]] = defaultdict(list)
    for line, message in enumerate((*INVALID.values(), *[OUTCOME] * len(DOUBTFUL)), 3):
        lines[message].append(line)
    assert printed == {message: listed(each, len(each)) for message, each in lines.items()}


HIDDEN = "a member, not printed because its name may be a value, is unknown"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"order_id": 7}, "order_id: must be text"),
        ({"note": 7}, "note: must be text"),
        ({"amount": True}, "amount: must be whole euro cents"),
        ({"outcome": True}, "outcome: must be approved"),
        ({"ambto": "a"}, "ambto is unknown; the members are"),
        ({"cf": code(3)}, "fiscal_code: appears twice, under two names"),
        ({"anna@example.com": 1}, HIDDEN),
        ({code(1): "approved"}, HIDDEN),
        (None, HIDDEN),  # all names may be values
    ],
)
def test_file_of_an_invalid_member_writes_nothing(members: dict[str, Any] | None, message: str) -> None:
    Simulation(lost=[1]).approve([1])
    row = {"Anna": 1} if members is None else {"fiscal_code": code(1), "outcome": "refused", **members}
    done = resolve(json.dumps(row) + "\n")
    assert (done.returncode, states(), message in done.stderr) == (2, ["unknown"], True), done.stderr
    assert "1 row invalid: line 1" in done.stderr
    assert not [name for name in ("anna@", "Anna") if name in done.stderr + done.stdout]


COLUMNS = (
    "line 1: the columns are fiscal_code, outcome, order_id, order_token, amount, redirect_url and note: "
)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", (), "outcomes.csv: contains no rows"),
        (f"{code(1)};rifiutato\n", (), "line 1: "),
        ("Anna;Prova\n", (), "line 1: no column name is known"),
        ("Anna;x@y;esito\n", (), "line 1: this is not a header"),
        ("cf,outcome\n", (), "the file has a header, but no rows"),
        ("cf,order_id\na,b\n", (), f"{COLUMNS}there is no column outcome"),
        ("cf,outcome,ambto\na,b,c\n", (), f"{COLUMNS}remove 'ambto'"),
        ("cf,codice_fiscale,esito\na,b,c\n", (), ": remove 'cf', 'codice_fiscale'"),
        ("cf,esito,esito\na,b,c\n", (), ": remove a repeated name"),
        ("cf,outcome\n", ("--as", "refused"), "the file of --from has the outcomes"),
        ("cf,outcome\n", ("--customer",), "give KEY, --customer or --from, and only one of them"),
        ("cf,outcome\n", ("--note", "anna@example.com"), "must not contain personal data"),
    ],
)
def test_file_with_wrong_input_writes_nothing(text: str, options: tuple[str, ...], message: str) -> None:
    Simulation(lost=[1]).approve([1])
    done = resolve(text, *options)
    assert (done.returncode, states()) == (2, ["unknown"])
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert not [cell for cell in ("Anna", "x@y", "rifiutato") if cell in done.stderr]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("SHOP_ID", "other", "no entry of any customer in the file: check --ledger and LOANASYNC_SHOP_ID"),
        (
            "BASE_URL",
            "https://other.example.com",
            f"belongs to {BASE_URL}, and the client uses https://other",
        ),
        ("LEDGER_KEY", "another key of the shop", "the ledger decisions.db has another key: set"),
    ],
)
def test_file_with_settings_of_another_shop_says_so(
    setting: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulation(lost=[1]).approve([1])
    monkeypatch.setenv(f"LOANASYNC_{setting}", value)
    done = resolve(f"cf,outcome\n{code(1)},refused\n")
    assert (done.returncode, states(), message in done.stderr) == (2, ["unknown"], True)


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["plain", "encrypted"])
def test_file_with_a_redirect_stores_it(cipher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = {} if cipher is None else {"encrypt": cipher}
    if cipher is not None:
        monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    Simulation(lost=[1], **policy).approve([1])
    assert resolve(f"cf,outcome\n{code(1)},approved\n").returncode == 0
    rows = f"cf,outcome,redirect_url\n{code(1)},approved,https://loans.example.com/#1\n"
    for result in ("settled", "already had this outcome"):
        assert resolve(rows).stderr.startswith(f"1 row {result}")

    async def redirect() -> str | None:
        async with SqliteLedger("decisions.db") as ledger:
            options = {"auth_token": "token", "shop_id": "shop", "base_url": BASE_URL}
            shop = Shop(ledger=ledger, options=options, **policy)
            redirect: str | None = getattr((await shop.client.known(code(1))).decision, "redirect_url", None)
            return redirect

    assert asyncio.run(redirect()) == "https://loans.example.com/#1"
    wrong = resolve(rows.replace("approved", "refused"))
    assert "redirect_url: only an approved row has one: line 2" in wrong.stderr


HELD_FILE = f"cf,outcome\n{code(1)},held\n"


@pytest.mark.parametrize("row", ["", "A-1"])
def test_file_holds_customers_without_entry(row: str) -> None:
    simulation = Simulation()
    simulation.approve([2])
    text = f"cf,outcome,order_id,note\n{code(1)},held,{row},not in the copy\n"
    before = entries()
    created = (
        "1 row without an entry, so a new one blocks the customer: line 2; if you expected entries, "
        "check LOANASYNC_SHOP_ID and the order_id of the rows"
    )
    assert resolve(text, "--dry-run").stderr.splitlines()[0] == created
    assert entries() == before
    for message in (created, "1 row already had this outcome"):
        done = resolve(text)
        assert (done.returncode, done.stderr.splitlines()[0]) == (0, message)
        [held] = [entry for entry in entries() if entry.state is State.HELD]
        assert (held.note, held.source) == ("not in the copy", "file")
    for order in ("", "A-1", "A-2"):
        simulation.approve([1], order)  # blocked
    assert states() == ["approved", "held"]
    decided = resolve(text.replace("held", "refused"))
    assert (decided.returncode, states()) == (0, ["approved", "refused"])


@pytest.mark.parametrize("state", ["unknown", "lost", "released", "held"])
def test_file_holds_entries_without_decision(state: str) -> None:
    async def reset() -> None:
        """Give the only entry a state, as a client would have settled it."""
        async with SqliteLedger("decisions.db") as ledger:
            [entry] = [entry async for entry in ledger.scan()]
            settlement = Settlement(state=State(state), note="Error")
            await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)

    Simulation(lost=[1]).approve([1])
    asyncio.run(reset())
    assert (resolve(HELD_FILE).returncode, states()) == (0, ["held"])
    Simulation().approve([1])  # blocked
    assert states() == ["held"]


def test_file_leaves_decided_entries_that_are_to_be_held() -> None:
    Simulation().approve([1])
    done = resolve(HELD_FILE)
    message = "1 row to be held already decided, so no request is sent\n"
    assert (done.returncode, done.stderr, states()) == (0, message, ["refused"])


@pytest.mark.parametrize("number", [1000, pytest.param(100_000, marks=pytest.mark.scheduled)])
def test_file_settles_every_named_approval_and_none_wrongly(number: int) -> None:
    """3 % of the approvals are unknown. Plant rows and events that could settle an entry wrongly."""
    lost = [each for each in range(number) if each % 33 == 0]
    asyncio.run(record(range(number), lost))
    asyncio.run(record(lost[::5], lost, "spring"))  # other approvals of the same customers
    groups: dict[str, list[int]] = {name: [] for name in ("named", "twice", "disagreeing", "late", "unnamed")}
    for position, each in enumerate(lost):
        groups[[*groups][(0, 0, 0, 0, 0, 1, 2, 3, 4)[position % 9]]].append(each)
    truth = {each: "refused" if each % 2 else "approved" for each in range(number)}
    other = {"approved": "refused", "refused": "approved"}
    rows = [(code(each), truth[each]) for name in groups for each in groups[name] if name != "unnamed"]
    rows += [(code(each).lower(), truth[each]) for each in groups["twice"]]
    rows += [(code(each), other[truth[each]]) for each in groups["disagreeing"]]
    decided = [each for each in range(number) if each % 33]
    rows += [(code(each), truth[each]) for each in decided[::10]]
    rows += [(code(each), other[truth[each]]) for each in decided[1::100]]  # the ledger knows better
    rows += [(code(number + each), "approved") for each in range(50)]  # customers of another shop
    text = "codice fiscale;esito\n" + "".join(f"{customer};{outcome}\n" for customer, outcome in rows)
    asyncio.run(late_responses([code(each) for each in groups["late"]], truth, other))

    expected: dict[tuple[str, str], str] = {(code(each), ""): truth[each] for each in range(number)}
    expected |= {(code(each), ""): "unknown" for each in groups["unnamed"] + groups["disagreeing"]}
    expected |= {(code(each), ""): other[truth[each]] for each in groups["late"]}
    expected |= {(code(each), "spring"): "unknown" for each in lost[::5]}
    started = time.monotonic()
    done = resolve(text)
    print(f"{len(rows):,} rows in {time.monotonic() - started:.1f} s")  # noqa: T201  (shown with -s)
    assert asyncio.run(states_by_customer([*expected])) == expected
    counts = {
        "settled": len(groups["named"]) + len(groups["twice"]),
        "repeated, with the same outcome": len(groups["twice"]),
        "contradicting each other": 2 * len(groups["disagreeing"]),
        "contradicting the ledger": len(groups["late"]) + len(decided[1::100]),
        "already had this outcome": len(decided[::10]),
        "without entry": 50,
    }
    for text, count in counts.items():
        assert f"{count:,} rows {text}" in done.stderr
    assert len(re.findall(r"^[\d,]+ rows? ", done.stderr, re.MULTILINE)) == len(counts)
    assert done.returncode == 3


async def record(customers: Iterable[int], lost: Iterable[int], order: str = "") -> None:
    """Write what clients write, without 100,000 requests: unknown if the response was lost."""
    numbers, unknown = [*customers], frozenset(lost)
    async with SqliteLedger("decisions.db") as ledger:
        keys = await key_maker(ledger)

        async def write(number: int) -> None:
            state = State.UNKNOWN if number in unknown else State.REFUSED if number % 2 else State.APPROVED
            key = await keys(code(number), order)
            await ledger.claim(key, token=key, payload="p", lease=3600, subject=Subject(order=order))
            settlement = Settlement(state=state, body=b"{}")
            await ledger.settle(key, token=key, payload="p", settlement=settlement)

        for begin in range(0, len(numbers), 2000):
            await asyncio.gather(*(write(number) for number in numbers[begin : begin + 2000]))


async def late_responses(customers: Iterable[str], truth: dict[int, str], other: dict[str, str]) -> None:
    """Write responses of the service that arrive after the file was made, and decide otherwise."""
    async with SqliteLedger("decisions.db") as ledger:
        keys = await key_maker(ledger)
        for customer in customers:
            entry = await ledger.get(await keys(customer, ""))
            assert entry is not None
            state = State(other[truth[int(customer[4:])]])
            await ledger.settle(
                entry.key,
                token=entry.token,
                payload=entry.payload,
                settlement=Settlement(state=state, status=422, fault="cut off"),
            )


async def key_maker(ledger: SqliteLedger) -> Any:
    options = {"auth_token": "token", "shop_id": "shop", "base_url": BASE_URL}
    shop = Shop(ledger=ledger, options=options)
    await shop.open_ledger()
    header = await ledger.header()

    async def key(customer: str, order: str) -> str:
        return places_of(Approval("shop", customer, order), keys_of(header, shop.policy))[0].key

    return key


async def states_by_customer(sought: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the state of each customer and order."""
    async with SqliteLedger("decisions.db") as ledger:
        keys = await key_maker(ledger)
        found = {entry.key: entry.state.value async for entry in ledger.scan()}
        return {each: found[await keys(*each)] for each in sought}
