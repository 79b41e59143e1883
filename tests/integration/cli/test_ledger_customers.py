"""``loanasync ledger show`` and ``resolve`` find customers: one with ``--customer``, many with ``--from``."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
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

pytestmark = pytest.mark.usefixtures("shop_of_commands")
BASE_URL = "https://loans.example.com"
CIPHER = Fernet(Fernet.generate_key())
AS_REFUSED = ("--as", "refused", "--note", "ticket 17")
APPROVAL = Settlement(state=State.APPROVED, status=201, body=b'{"approved": true}')


def code(number: int) -> str:
    return f"TSTX{number:012d}"


@pytest.fixture(autouse=True)
def _ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER", "decisions.db")


@pytest.fixture(params=[{}, {"encrypt": CIPHER}], ids=["plain", "encrypted"])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return options of a ledger policy, which the commands have, too."""
    if request.param:
        monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    options: dict[str, Any] = request.param
    return options


def approve(
    *customers: int, lost: Iterable[int] = (), order: str = "", token: str | None = None, **policy: Any
) -> None:
    """Request approvals of customers by number, in the ledger file ``decisions.db``.

    Even customers are approved and odd ones refused, unless the response is lost.
    """
    unknown = frozenset(lost)

    def respond(sent: SentRequest) -> ScriptedResponse:
        number = int(str(sent.fiscal_code)[4:])
        return connection_lost() if number in unknown else refused() if number % 2 else approved()

    async def request_all() -> None:
        async with SqliteLedger("decisions.db") as ledger:
            shop = Shop(*[computed(respond)] * len(customers), ledger=ledger, **policy)
            request = approval_request(order_token=token)
            for begin in range(0, len(customers), 500):
                chunk = customers[begin : begin + 500]
                await asyncio.gather(
                    *(shop.result(code=code(each), request=request, order_id=order) for each in chunk)
                )

    asyncio.run(request_all())


def entries() -> list[Entry]:
    async def read() -> list[Entry]:
        async with SqliteLedger("decisions.db") as ledger:
            return [entry async for entry in ledger.scan()]

    return asyncio.run(read())


def states() -> list[str]:
    """Return the states of all entries by their orders."""
    return [entry.state.value for entry in sorted(entries(), key=lambda each: (each.order, each.state))]


def settle(*settlements: Settlement, claims: bool = False) -> Entry:
    """Settle the only entry as a client does, or claim it before a client repeats an unknown request."""

    async def write() -> Entry:
        async with SqliteLedger("decisions.db") as ledger:
            [entry] = [each async for each in ledger.scan()]
            if claims:
                entry = await ledger.claim(entry.key, token="t", payload="p", lease=3600, over=entry.token)
            for each in settlements:
                await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=each)
            return entry

    return asyncio.run(write())


def resolve(text: str, *options: str) -> CompletedProcess[str]:
    Path("outcomes.csv").write_text(text, encoding="utf-8")
    done = run(None, "ledger", "resolve", "--from", "outcomes.csv", *options)
    assert "TSTX" not in done.stdout + done.stderr
    return done


def test_customer_with_several_entries_lists_them() -> None:
    approve(1, order="A-1")
    approve(1, order="A-2", lost=[1])
    done = run(None, "ledger", "resolve", "--customer", *AS_REFUSED, stdin=f"{code(1).lower()}\n")
    title, first, second = done.stderr.splitlines()
    assert (done.returncode, title) == (2, "the customer has several entries, name one by its key:")
    assert (first.endswith("  order A-1"), "  order A-2  ConnectionLostError" in second) == (True, True)
    assert (code(1) in done.stderr, states()) == (False, ["refused", "unknown"])
    assert run(None, "ledger", "resolve", second[:12], *AS_REFUSED).returncode == 0
    assert states() == ["refused", "refused"]
    assert run(None, "ledger", "show", "--customer", stdin=f"{code(1)}\n").returncode == 2


def test_prompt_for_a_fiscal_code_does_not_echo_it() -> None:
    approve(1, lost=[1])
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


ONE = ("resolve", "--customer")
FILE = ("resolve", "--from", "outcomes.csv")
NONE_FOUND = "no entry of this customer found: check --ledger and LOANASYNC_SHOP_ID"
TOO_MANY = "give KEY, --customer or --from, and only one of them"
EITHER = "give either KEY or --customer"
PRIVATE = "must not contain personal data"
COLUMNS = "the columns are fiscal_code, outcome, order_id, order_token, amount, redirect_url and note: "
ROW = f"cf,outcome\n{code(1)},refused\n"


@pytest.mark.parametrize(
    ("command", "text", "setting", "message"),
    [
        ((*ONE, *AS_REFUSED), f"{code(2)}\n", "", NONE_FOUND),
        ((*ONE, *AS_REFUSED), "RSSMRA\n", "", "the fiscal code must be 16 letters and digits"),
        ((*ONE, "--as", "refused"), "", "", 'ledger resolve --customer --as refused --note "ticket 17"'),
        ((*ONE, *AS_REFUSED, "0123abcd"), "", "", TOO_MANY),
        (("show", "--customer"), f"{code(1)}\n", "BASE_URL=", "LOANASYNC_BASE_URL"),
        (("show", "--customer"), f"{code(1)}\n", "LEDGER_KEY=too short", "must be at least 16 bytes"),
        (("show",), f"{code(1)}\n", "", EITHER),
        (("show", "0123abcd", "--customer"), f"{code(1)}\n", "", EITHER),
        (FILE, "", "", "outcomes.csv: contains no rows"),
        (FILE, f"{code(1)};rifiutato\n", "", "line 1: "),
        (FILE, "Anna;Prova\n", "", "line 1: no column name is known"),
        (FILE, "Anna;x@y;esito\n", "", "line 1: this is not a header"),
        (FILE, "cf,outcome\n", "", "the file has a header, but no rows"),
        (FILE, "cf,order_id\na,b\n", "", f"line 1: {COLUMNS}there is no column outcome"),
        (FILE, "cf,outcome,ambto\na,b,c\n", "", f"{COLUMNS}remove 'ambto'"),
        (FILE, "cf,codice_fiscale,esito\na,b,c\n", "", ": remove 'cf', 'codice_fiscale'"),
        (FILE, "cf,esito,esito\na,b,c\n", "", ": remove a repeated name"),
        ((*FILE, "--as", "refused"), "cf,outcome\n", "", "the file of --from has the outcomes"),
        ((*FILE, "--customer"), "cf,outcome\n", "", TOO_MANY),
        ((*FILE, "--note", "anna@example.com"), "cf,outcome\n", "", PRIVATE),
        (FILE, ROW, "SHOP_ID=b", "no entry of any customer in the file: check --ledger and LOANASYNC_SHOP"),
        (FILE, ROW, "BASE_URL=https://b.example.com", f"to {BASE_URL}, and the client uses https://b.example"),
        (FILE, ROW, "LEDGER_KEY=another key of the shop", "the ledger decisions.db has another key: set"),
    ],
)  # fmt: skip
def test_wrong_input_or_settings_write_nothing(
    command: tuple[str, ...], text: str, setting: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(1, lost=[1])
    Path("outcomes.csv").write_text(text, encoding="utf-8")
    if setting:
        monkeypatch.setenv(*f"LOANASYNC_{setting}".split("=", 1))
    done = run(None, "ledger", *command, stdin=text)
    assert (done.returncode, states()) == (2, ["unknown"])
    assert message in " ".join(done.stderr.replace("│", " ").split())
    personal = (code(1), "Anna", "x@y", "rifiutato")
    assert not [each for each in personal if each in done.stdout + done.stderr]


def test_commands_find_customers_of_the_default_ledger(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOANASYNC_LEDGER")
    bulk = Bulk(tmp_path, served, "resetafter")
    assert bulk.run()[0] == 3
    ledger, [customer], order = ("ledger", "--ledger", bulk.ledger), bulk.codes, bulk.rows[0]["order_id"]
    show = ("ledger", "--ledger", f"sqlite:///{bulk.ledger}", "show", "--customer")
    assert "state               unknown" in run(served, *show, stdin=f"{customer}\n").stdout
    monkeypatch.delenv("LOANASYNC_LEDGER_KEY")  # of another ledger
    again = bulk.run("--ledger", bulk.ledger, out=tmp_path / "again.jsonl")
    assert (again[0], bulk.calls) == (3, 1), "other results repeat no request"
    Path("outcomes.csv").write_text(f"cf,order_id,esito\n{customer},{order},approvato\n", encoding="utf-8")
    done = run(served, *ledger, "resolve", "--from", "outcomes.csv")
    assert (done.returncode, done.stderr) == (0, "1 row settled\n")
    done = run(served, *ledger, "resolve", "--customer", *AS_REFUSED, stdin=f"{customer}\n")
    assert "is refused: corrected" in done.stderr


def test_file_settles_the_customers_of_the_file_once() -> None:
    approve(*range(6), lost=range(4))
    text = f"fiscal_code,outcome,amount\n{code(0)},approved,45000\n{code(1).lower()},refused,\n"
    planned, before = resolve(text, "--dry-run"), entries()
    done = resolve(text)
    for found, verb in ((planned, "to settle"), (done, "settled")):
        assert found.stderr.startswith(f"2 rows {verb}\nin the ledger and not in the file: 1 approved: ")
        assert found.returncode == 3
        assert "in the ledger and not in the file: 2 unknown: " in found.stderr.splitlines()[-1]
    assert {each.state for each in before} == {State.UNKNOWN, State.APPROVED, State.REFUSED}
    settled = entries()
    assert sorted((each.state.value, each.note) for each in settled if each.source == "file") == [
        ("approved", "line 2 of outcomes.csv"), ("refused", "line 3 of outcomes.csv")
    ]  # fmt: skip
    assert resolve(text).stderr.startswith("2 rows already had this outcome\n")
    assert entries() == settled


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Codice Fiscale;Esito\n{};Rifiutata\n", "refused"),
        ("codice_fiscale\tNota\tESITO\n{}\tè vero\tRIFIUTATO\n", "refused"),
        ('{{"fiscalCode": "{}", "outcome": "refused"}}\n', "refused"),
        ('{{"fiscal_code": " {} ", "outcome": "refused", "order_id": null, "note": "x"}}\n', "refused"),
        *((f"cf,outcome\n{{}},{each}\n", "released")
          for each in ("NOT_EVALUATED", " not evaluated", "notEvaluated", "Non-valutato")),
        *((f"cf,outcome,{name}\n{{}},refused,{value}\n", "refused refused")
          for name, value in (("order_id", "A-2"), ("ordine", '" A-2\u200b"'), ("orderToken", "T2"))),
        ("cf,outcome,order_id,order_token\n{},refused,A-2,T9\n", "refused refused"),  # by the order
    ],
)  # fmt: skip
def test_file_of_each_kind_settles_its_approval(text: str, found: str) -> None:
    if " " in found:  # of two orders
        approve(1, order="A-1", token="T1")
        approve(1, order="A-2", token="T2", lost=[1])
    else:
        approve(1, lost=[1])
    done = run(None, "ledger", "resolve", "--from", "-", stdin=text.format(code(1)))
    assert (done.returncode, states()) == (0, found.split())


@pytest.mark.parametrize("is_in_file", [False, True])
def test_entry_under_an_old_key_is_found(monkeypatch: pytest.MonkeyPatch, *, is_in_file: bool) -> None:
    approve(1, lost=[1])
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", "the new key of the shop")
    monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", KEY.decode())
    assert run_ledger("rotate-key", "decisions.db").exit_code == 0
    command, text = (FILE, ROW) if is_in_file else ((*ONE, *AS_REFUSED), f"{code(1)}\n")
    Path("outcomes.csv").write_text(text)
    assert run(None, "ledger", *command, stdin=text).returncode == 0
    assert states() == ["refused"]


def test_file_lists_what_each_side_lacks_and_other_amounts(policy: dict[str, Any]) -> None:
    approve(*range(4), lost=[1], **policy)
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
    approve(1, lost=[1])

    async def add_final() -> None:
        async with SqliteLedger("decisions.db") as ledger:
            final, subject = Settlement(state=State.LOST, note=FINAL), Subject(customer="c" * 32)
            await ledger.settle("f" * 64, token="t", payload="", settlement=final, subject=subject)

    asyncio.run(add_final())
    assert (resolve(ROW).returncode, resolve(ROW).stderr) == (0, "1 row already had this outcome\n")


FINAL = "evaluated for another order"


def test_file_keeps_the_decisions_of_the_service() -> None:
    approve(*range(14))
    rows = "".join(f"{code(each)},{'approved' if each % 2 else 'refused'}\n" for each in range(14))
    before = entries()
    done = resolve("fiscal_code,outcome\n" + rows)
    message = "14 rows contradicting the ledger: lines 2, 3, 4,"
    assert (done.returncode, message in done.stderr, entries()) == (1, True, before)
    assert "11 and 4 others; nothing was changed" in done.stderr


@pytest.mark.parametrize("outcome", ["approved", "refused"])
@pytest.mark.parametrize("is_in_flight", [False, True])
def test_file_imports_the_response_in_a_file_first(
    outcome: str, tmp_path: Path, *, is_in_flight: bool
) -> None:
    approve(1, lost=[1])
    entry = settle(claims=is_in_flight)
    text = f"cf,outcome\n{code(1)},{outcome}\n"
    if is_in_flight:
        message = "1 row with a request in progress: line 2; run the command again later\n"
        done = resolve(text)
        assert (done.returncode, done.stderr) == (1, message)
    file = left_orphan(tmp_path / "state" / "loanasync" / "orphans", Path("decisions.db"), entry, APPROVAL)
    assert (resolve(text, "--dry-run").returncode, file.exists()) == (int(is_in_flight), True)
    done = resolve(text)
    result = (0, "1 row already had this outcome") if outcome == "approved" else (1, "contradicting")
    assert (done.returncode, result[1] in done.stderr) == (result[0], True), done.stderr
    [entry] = entries()
    assert (entry.state, entry.source, entry.body) == (State.APPROVED, "service", APPROVAL.body)
    assert not file.exists()


def test_file_with_a_fiscal_code_in_its_name_is_not_named_in_a_note() -> None:
    approve(1, lost=[1])
    Path(f"{code(1)}.csv").write_text(ROW, encoding="utf-8")
    assert run(None, "ledger", "resolve", "--from", f"{code(1)}.csv").returncode == 0
    assert [entry.note for entry in entries()] == ["line 2 of the file"]


def test_file_releases_a_request_only_once() -> None:
    approve(1, lost=[1])
    text = f"cf,outcome\n{code(1)},not_evaluated\n"
    assert (resolve(text).returncode, states()) == (0, ["released"])
    approve(2)
    assert "not in the file" not in resolve(f"cf,outcome\n{code(2)},approved\n").stderr
    approve(1, lost=[1])  # the next request, whose outcome is unknown, too
    for line, export in (  # the next export has other rows above the same one, or a note
        (2, text),
        (3, f"cf,outcome\n{code(9)},refused\n{code(1)},not_evaluated\n"),
        (3, f"cf,outcome,note\n{code(9)},refused,ticket 17\n{code(1)},not_evaluated,ticket 18\n"),
    ):
        done = resolve(export, "--note", "back office")
        assert f"may be older than the last request of the customer: line {line}; if" in done.stderr
        assert states() == ["approved", "unknown"]


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
HIDDEN = "a member, not printed because its name may be a value, is unknown"


def test_file_of_invalid_rows_names_line_and_field() -> None:
    approve(1, 3, lost=[1, 3])
    rows = (f"{code(3)},refused,,", *INVALID, *(f"{code(1)},{outcome},," for outcome in DOUBTFUL))
    done = resolve("cf,outcome,note,amount\n" + "".join(f"{row}\n" for row in rows))
    assert (done.returncode, states()) == (3, ["refused", "unknown"])
    assert "1 row settled" in done.stderr
    printed: dict[str, str] = dict(re.findall(r"  \d+ rows?: (.*): lines? (.*)\n", done.stderr))
    lines: dict[str, list[int]] = defaultdict(list)
    for line, message in enumerate((*INVALID.values(), *[OUTCOME] * len(DOUBTFUL)), 3):
        lines[message].append(line)
    assert printed == {message: listed(each, len(each)) for message, each in lines.items()}


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
    approve(1, lost=[1])
    row = {"Anna": 1} if members is None else {"fiscal_code": code(1), "outcome": "refused", **members}
    done = resolve(json.dumps(row) + "\n")
    assert (done.returncode, states(), message in done.stderr) == (2, ["unknown"], True), done.stderr
    assert "1 row invalid: line 1" in done.stderr
    assert not [name for name in ("anna@", "Anna") if name in done.stderr + done.stdout]


def test_file_with_a_redirect_stores_it(policy: dict[str, Any]) -> None:
    approve(1, lost=[1], **policy)
    assert resolve(f"cf,outcome\n{code(1)},approved\n").returncode == 0
    rows = f"cf,outcome,redirect_url\n{code(1)},approved,https://loans.example.com/#1\n"
    for result in ("settled", "already had this outcome"):
        assert resolve(rows).stderr.startswith(f"1 row {result}")

    async def redirect() -> Any:
        async with SqliteLedger("decisions.db") as ledger:
            return (await Shop(ledger=ledger, **policy).client.known(code(1))).decision

    assert asyncio.run(redirect()).redirect_url == "https://loans.example.com/#1"
    wrong = resolve(rows.replace("approved", "refused"))
    assert "redirect_url: only an approved row has one: line 2" in wrong.stderr


@pytest.mark.parametrize("row", ["", "A-1"])
def test_file_holds_customers_without_entry(row: str) -> None:
    approve(2)
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
        approve(1, order=order)  # blocked
    assert sorted(states()) == ["approved", "held"]
    assert resolve(text.replace("held", "refused")).returncode == 0
    assert sorted(states()) == ["approved", "refused"]


@pytest.mark.parametrize("state", ["unknown", "lost", "released", "held", "refused"])
def test_file_holds_entries_without_decision(state: str) -> None:
    approve(1, lost=[1])
    settle(Settlement(state=State(state), note="Error"))
    done, found = resolve(f"cf,outcome\n{code(1)},held\n"), "refused" if state == "refused" else "held"
    assert (done.returncode, states()) == (0, [found])
    message = "1 row to be held already decided, so no request is sent\n"
    assert (done.stderr == message) == (state == "refused")
    approve(1)  # blocked
    assert states() == [found]


async def key_maker(ledger: SqliteLedger) -> Callable[[tuple[int, str]], str]:
    shop = Shop(ledger=ledger)
    await shop.open_ledger()
    secrets = keys_of(await ledger.header(), shop.policy)
    return lambda each: places_of(Approval("test-shop", code(each[0]), each[1]), secrets)[0].key


async def write(states: Mapping[tuple[int, str], str], **response: Any) -> None:
    """Write the states of customers and orders as clients do, without their requests."""
    async with SqliteLedger("decisions.db") as ledger:
        key_of = await key_maker(ledger)
        for each, state in states.items():
            key = key_of(each)
            if await ledger.get(key) is None:
                await ledger.claim(key, token=key, payload="p", lease=3600, subject=Subject(order=each[1]))
            settlement = Settlement(state=State(state), **response)
            await ledger.settle(key, token=key, payload="p", settlement=settlement)


async def read(sought: Iterable[tuple[int, str]]) -> dict[tuple[int, str], str]:
    """Return the states of customers and orders."""
    async with SqliteLedger("decisions.db") as ledger:
        key_of = await key_maker(ledger)
        found = {entry.key: entry.state.value async for entry in ledger.scan()}
        return {each: found[key_of(each)] for each in sought}


@pytest.mark.parametrize("number", [330, pytest.param(100_000, marks=pytest.mark.scheduled)])
def test_file_settles_every_named_approval_and_none_wrongly(number: int) -> None:
    """3 % of the approvals are unknown. Plant rows and events that could settle an entry wrongly."""
    lost = [*range(0, number, 33)]
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
    stored = {(each, ""): truth[each] if each % 33 else "unknown" for each in range(number)}
    stored |= {(each, "spring"): "unknown" for each in lost[::5]}  # other approvals of the same customers
    late = {(each, ""): other[truth[each]] for each in groups["late"]}
    settled = {(each, ""): truth[each] for name in ("named", "twice") for each in groups[name]}
    asyncio.run(write(stored, body=b"{}"))
    asyncio.run(write(late, status=422, fault="cut off"))  # responses that arrive after the file was made
    done = resolve(text)
    assert asyncio.run(read(stored)) == stored | late | settled
    counts = {
        "settled": len(groups["named"]) + len(groups["twice"]),
        "repeated, with the same outcome": len(groups["twice"]),
        "contradicting each other": 2 * len(groups["disagreeing"]),
        "contradicting the ledger": len(groups["late"]) + len(decided[1::100]),
        "already had this outcome": len(decided[::10]),
        "without entry": 50,
    }
    for text, count in counts.items():
        assert re.search(rf"^{count:,} rows? {text}", done.stderr, re.MULTILINE)
    assert len(re.findall(r"^[\d,]+ rows? ", done.stderr, re.MULTILINE)) == len(counts)
    assert done.returncode == 3
