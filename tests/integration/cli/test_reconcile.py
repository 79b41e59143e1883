"""``loanasync reconcile``: a file of outcomes settles the unknown entries of its customers, and no others."""

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from loanasync.ledger import Entry, Settlement, SqliteLedger, State, Subject
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approval_request,
    approved,
    computed,
    connection_lost,
    refused,
)
from support.cli import run
from support.ledger_clients import KEY, Shop
from support.ledger_file import left_orphan

BASE_URL = "https://loans.example.com"


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

    def __init__(self, lost: Iterable[int] = ()) -> None:
        self.lost = frozenset(lost)

    def _respond(self, sent: SentRequest) -> ScriptedResponse:
        number = int(str(sent.fiscal_code)[4:])
        if number in self.lost:
            return connection_lost()
        return refused() if number % 2 else approved()

    async def _approve(self, customers: Iterable[int], scope: str, order: str | None) -> None:
        numbers = [*customers]
        async with SqliteLedger("decisions.db") as ledger:
            options = {"auth_token": "token", "shop_id": "shop", "base_url": BASE_URL}
            shop = Shop(*[computed(self._respond)] * len(numbers), ledger=ledger, options=options)
            request = approval_request(order_token=order)
            for begin in range(0, len(numbers), 500):
                chunk = numbers[begin : begin + 500]
                await asyncio.gather(
                    *(shop.result(code=code(each), request=request, scope=scope) for each in chunk)
                )

    def approve(self, customers: Iterable[int], scope: str = "", order: str | None = None) -> None:
        asyncio.run(self._approve(customers, scope, order))


def entries() -> list[Entry]:
    async def read() -> list[Entry]:
        async with SqliteLedger("decisions.db") as ledger:
            return [entry async for entry in ledger.scan()]

    return asyncio.run(read())


def states() -> list[str]:
    return sorted(entry.state.value for entry in entries())


def reconcile(text: str | bytes, *options: str) -> CompletedProcess[str]:
    content = text.encode() if isinstance(text, str) else text
    Path("outcomes.csv").write_bytes(content)
    done = run(None, "reconcile", "outcomes.csv", *options)
    assert "TSTX" not in done.stdout + done.stderr
    return done


def test_reconcile_settles_the_customers_of_the_file() -> None:
    Simulation(lost=range(4)).approve(range(6))
    done = reconcile(f"fiscal_code,outcome\n{code(0)},approved\n{code(1).lower()},refused\n")
    assert done.returncode == 3
    assert done.stderr == (
        "2 rows settled\n"
        "still unknown or lost in the ledger: 2 entries; list them with loanasync ledger sweep\n"
    )
    settled = [entry for entry in entries() if entry.source == "file"]
    assert sorted((entry.state.value, entry.note) for entry in settled) == [
        ("approved", "line 2 of outcomes.csv"),
        ("refused", "line 3 of outcomes.csv"),
    ]


def test_reconcile_again_changes_nothing() -> None:
    Simulation(lost=[0]).approve(range(2))
    text = f"fiscal_code,outcome\n{code(0)},approved\n{code(1)},refused\n"
    assert reconcile(text).returncode == 0
    before = entries()
    done = reconcile(text)
    assert (done.returncode, done.stderr) == (0, "2 rows already had this outcome\n")
    assert entries() == before


@pytest.mark.parametrize(
    "text",
    [
        "Codice Fiscale;Esito\n{};Rifiutata\n",
        "codice_fiscale\tApprovato\n{}\tno\n",
        '{{"fiscalCode": "{}", "approved": false}}\n',
        '{{"fiscal_code": " {} ", "outcome": "refused", "approved": null, "note": "ticket 17"}}\n',
    ],
)
def test_reconcile_reads_each_kind_of_file(text: str) -> None:
    Simulation(lost=[1]).approve([1])
    assert reconcile(text.format(code(1))).returncode == 0
    assert states() == ["refused"]


def test_reconcile_reads_named_columns_and_an_encoding() -> None:
    Simulation(lost=[1]).approve([1])
    text = f"Città;Cliente;Risposta\nForlì;{code(1)};refused\n".encode("cp1252")
    options = ("--column", "fiscal_code=Cliente", "--column", "outcome=Risposta", "--encoding", "cp1252")
    assert "column 'Città'" in reconcile(text, *options).stderr
    assert reconcile(text, *options, "--ignore-unknown").returncode == 0
    assert states() == ["refused"]


def test_reconcile_with_scope_or_order_settles_only_that_approval() -> None:
    simulation = Simulation(lost=[1])
    for scope, order in (("", None), ("spring", "A1"), ("autumn", "A2")):
        simulation.approve([1], scope, order)
    done = reconcile(f"cf,outcome,scope,order_token\n{code(1)},refused,spring,\n")
    assert done.returncode == 3
    assert {entry.scope: entry.state.value for entry in entries()} == {
        "": "unknown",
        "spring": "refused",
        "autumn": "unknown",
    }
    assert reconcile(f"cf,outcome,order_token\n{code(1)},refused,A2\n").returncode == 3
    assert {entry.scope for entry in entries() if entry.state is State.REFUSED} == {"spring", "autumn"}


def test_reconcile_of_rows_that_name_one_entry_differently_uses_none() -> None:
    Simulation(lost=[1]).approve([1], "spring", "A1")
    done = reconcile(f"cf,outcome,scope,order_token\n{code(1)},refused,spring,\n{code(1)},approved,,A1\n")
    assert done.returncode == 3
    assert "2 rows contradicting each other: lines 2, 3; none of them was used" in done.stderr
    assert states() == ["unknown"]


@pytest.mark.parametrize("scope", ["", "a"])
def test_reconcile_of_an_order_in_two_scopes_names_the_row(scope: str) -> None:
    simulation = Simulation(lost=[1])
    simulation.approve([1], scope, "A1")
    simulation.approve([1], "b", "A1")
    done = reconcile(f"cf,outcome,order_token\n{code(1)},refused,A1\n")
    assert "1 row with an order token of several scopes: line 2; add the scope" in done.stderr
    assert states() == ["unknown", "unknown"]


def test_reconcile_keeps_the_decisions_of_the_service() -> None:
    Simulation().approve(range(14))
    rows = "".join(f"{code(each)},{'approved' if each % 2 else 'refused'}\n" for each in range(14))
    before = entries()
    done = reconcile("fiscal_code,outcome\n" + rows)
    assert done.returncode == 1
    assert "14 rows contradicting the ledger: lines 2, 3, 4," in done.stderr
    assert ", 10, 11 and 4 more lines; nothing was changed" in done.stderr
    assert entries() == before


def test_reconcile_during_a_request_leaves_the_row_for_later() -> None:
    async def claim() -> None:
        async with SqliteLedger("decisions.db") as ledger:
            [entry] = [each async for each in ledger.scan()]
            await ledger.claim(entry.key, token="t", payload="p", lease=3600, over=entry.token)

    Simulation(lost=[1]).approve([1])
    asyncio.run(claim())
    done = reconcile(f"cf,outcome\n{code(1)},refused\n")
    assert done.returncode == 1
    assert done.stderr == "1 row with a request in progress: line 2; run the command again later\n"


@pytest.mark.parametrize("outcome", ["approved", "refused"])
def test_reconcile_imports_the_response_in_a_file_first(outcome: str, tmp_path: Path) -> None:
    Simulation(lost=[1]).approve([1])
    [entry] = entries()
    settlement = Settlement(state=State.APPROVED, status=201, body=b'{"approved": true}')
    file = left_orphan(tmp_path / "state" / "loanasync" / "orphans", Path("decisions.db"), entry, settlement)
    assert reconcile(f"cf,outcome\n{code(1)},{outcome}\n", "--dry-run").returncode == 0
    assert file.exists()
    done = reconcile(f"cf,outcome\n{code(1)},{outcome}\n")
    assert done.returncode == (0 if outcome == "approved" else 1)
    [entry] = entries()
    assert (entry.state, entry.source, entry.body) == (State.APPROVED, "service", settlement.body)
    assert not file.exists()


def test_reconcile_releases_a_request_only_once() -> None:
    simulation = Simulation(lost=[1])
    simulation.approve([1])
    text = f"cf,outcome\n{code(1)},not_evaluated\n"
    assert reconcile(text).returncode == 0
    assert states() == ["released"]
    simulation.approve([1])  # the next request, whose outcome is unknown, too
    done = reconcile(text)
    assert "1 row may be about an earlier request of the customer: line 2; if" in done.stderr
    assert states() == ["unknown"]
    for export in (  # the next export has other rows above the same one, or a note
        f"cf,outcome\n{code(9)},refused\n{code(1)},not_evaluated\n",
        f"cf,outcome,note\n{code(9)},refused,ticket 17\n{code(1)},not_evaluated,ticket 18\n",
    ):
        done = reconcile(export, "--source", "back office")
        assert "may be about an earlier request of the customer: line 3" in done.stderr
        assert states() == ["unknown"]


def test_reconcile_with_dry_run_writes_nothing() -> None:
    Simulation(lost=range(2)).approve(range(3))
    before = entries()
    done = reconcile(f"cf,outcome\n{code(0)},approved\n{code(2)},approved\n", "--dry-run")
    assert done.returncode == 3
    assert done.stderr.startswith(
        "1 row to settle\n1 row already had this outcome\nstill unknown or lost in the ledger: 1 entry"
    )
    assert entries() == before


def test_reconcile_writes_a_report_with_line_numbers() -> None:
    Simulation(lost=range(2)).approve(range(3))
    rows = [(0, "approved"), (0, "approved"), (2, "refused"), (9, "refused"), (1, "yes")]
    text = "cf,outcome\n" + "".join(f"{code(each)},{outcome}\n" for each, outcome in rows)
    done = reconcile(text, "--report", "report.json")
    assert done.returncode == 3
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert report == {
        "dry_run": False,
        "rows": 5,
        "results": {"settled": 1, "repeats": 1, "contradicts": 1, "missing": 1, "invalid": 1},
        "lines": {"repeats": [3], "contradicts": [4], "missing": [5], "invalid": [6]},
        "disagreeing": [],
        "problems": [
            {"line": 6, "field": "outcome", "message": "must be approved, refused or not_evaluated"}
        ],
        "still_unknown": 1,
    }


@pytest.mark.parametrize("outcome", ["NOT_EVALUATED", " not evaluated", "notEvaluated", "Non-valutato"])
def test_reconcile_reads_an_outcome_of_two_words(outcome: str) -> None:
    Simulation(lost=[1]).approve([1])
    assert reconcile(f"cf,outcome\n{code(1)},{outcome}\n").returncode == 0
    assert states() == ["released"]


@pytest.mark.parametrize(
    "outcome",
    ["approved?", "≠ approved", "¬approved", "(approved)", "-approved", "approved*", "not approved"],
)
def test_reconcile_of_a_doubtful_outcome_settles_nothing(outcome: str) -> None:
    Simulation(lost=[1]).approve([1])
    done = reconcile(f"cf,outcome\n{code(1)},{outcome}\n")
    assert "outcome: must be approved, refused or not_evaluated: line 2" in done.stderr
    assert states() == ["unknown"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize(("lost", "code_of_results"), [([1], 1), ([1, 3], 3)])
def test_reconcile_report_write_failure_keeps_the_results(lost: list[int], code_of_results: int) -> None:
    Simulation(lost=lost).approve(lost)
    done = reconcile(f"cf,outcome\n{code(1)},refused\n", "--report", "/dev/full")
    assert done.returncode == code_of_results
    assert done.stderr.startswith("1 row settled\n")
    assert done.stderr.endswith(
        "the report /dev/full could not be written (No space left on device); "
        "the results above are complete\n"
    )
    assert "refused" in states()


INVALID = {
    "RSSMRA,refused": "fiscal_code: must be 16 letters and digits",
    ",refused": "fiscal_code: is missing",
    f"{code(1)},": "outcome: must be approved, refused or not_evaluated",
    f"{code(1)},refused,anna@example.com": "note: must not contain personal data",
    f"{code(1)},refused,,true": "outcome: the row has both outcome and approved",
    f"{code(1)},,,perhaps": "outcome: must be true or false",
    f"{code(1)},refused,,,": "has 5 cells, but the header has 4",
}


@pytest.mark.parametrize("row", INVALID)
def test_reconcile_of_an_invalid_row_names_line_and_field(row: str) -> None:
    Simulation(lost=[1, 3]).approve([1, 3])
    filled = row if row.count(",") > 3 else row + "," * (3 - row.count(","))
    done = reconcile(f"cf,outcome,note,approved\n{code(3)},refused,,\n{filled}\n")
    assert done.returncode == 3
    assert "1 row settled" in done.stderr
    message = INVALID[row]
    assert f"  1 row: {message}" in done.stderr
    assert ": line 3\n" in done.stderr
    assert states() == ["refused", "unknown"]


@pytest.mark.parametrize(
    "member",
    [
        '"scope": 7',
        '"order_token": 7',
        '"note": 7',
        '"approved": 1',
        '"outcome": true',
        '"ambto": "a"',
        f'"cf": "{code(3)}"',
    ],
)
def test_reconcile_of_an_invalid_member_writes_nothing(member: str) -> None:
    Simulation(lost=[1]).approve([1])
    outcome = "" if "approved" in member or "outcome" in member else '"outcome": "refused", '
    done = reconcile(f'{{"fiscal_code": "{code(1)}", {outcome}{member}}}\n')
    assert (done.returncode, states()) == (2, ["unknown"])
    assert "1 row invalid: line 1" in done.stderr


@pytest.mark.parametrize("options", [(), ("--ignore-unknown",)])
@pytest.mark.parametrize("header", ["{code};approvato", "{code};rifiutato", "Anna;Prova", "Anna;x@y;esito"])
def test_reconcile_of_a_file_without_header_prints_no_cell(header: str, options: tuple[str, ...]) -> None:
    Simulation(lost=[1]).approve([1])
    done = reconcile(f"{header.format(code=code(1))}\n", *options)
    assert (done.returncode, states()) == (2, ["unknown"])
    assert done.stderr.startswith("outcomes.csv: line 1: ")
    assert "above" in done.stderr
    assert "Anna" not in done.stderr
    assert "rifiutato" not in done.stderr


@pytest.mark.parametrize(
    "row",
    [
        {code(1): "approved"},
        {"Anna": "approved"},
        {"fiscal_code": code(1), "outcome": "refused", "anna@example.com": 1},
    ],
)
def test_reconcile_of_members_that_look_like_values_prints_none(row: dict[str, object]) -> None:
    Simulation(lost=[1]).approve([1])
    done = reconcile(json.dumps(row) + "\n", "--report", "report.json")
    assert (done.returncode, states()) == (2, ["unknown"])
    assert "1 row: unknown members, not printed because their names may be values" in done.stderr
    shown = done.stderr + Path("report.json").read_text(encoding="utf-8")
    assert [name for name in ("TSTX", "Anna", "anna@") if name in shown] == []


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", (), "outcomes.csv: contains no rows"),
        ("cf,outcome\n", (), "the file has a header, but no rows"),
        ("cf,scope\na,b\n", (), "line 1: outcome: no column for this field"),
        ("outcome\nrefused\n", (), "line 1: fiscal_code: no column for this field"),
        ("cf,outcome,ambto\na,b,c\n", (), "line 1, column 'ambto': unknown column. Map it, for example"),
        ("cf,codice_fiscale,esito\na,b,c\n", (), "column 'cf': fiscal_code: this field has two columns"),
        ("cf,outcome\n", ("--column", "scope=ambito x"), "there is no column 'ambito x'"),
        ("cf,Cliente,outcome\n", ("--column", "fiscal_code=Cliente"), "column 'cf': unknown column"),
        ("cf,outcome\n", ("--column", "name=cf"), "unknown field 'name'; the fields are approved"),
        ("cf,outcome\n", ("--source", "service"), "must name the source"),
        ("cf,outcome\n", ("--report", "outcomes.csv"), "is also the file of outcomes or the ledger"),
        ("cf,outcome\n", ("--report", "./decisions.db"), "is also the file of outcomes or the ledger"),
        ("cf,outcome\n", ("--ledger", "other.db"), "other.db does not exist"),
    ],
)
def test_reconcile_with_wrong_input_writes_nothing(text: str, options: tuple[str, ...], message: str) -> None:
    Simulation(lost=[1]).approve([1])
    done = reconcile(text, *options)
    assert (done.returncode, states()) == (2, ["unknown"])
    assert message in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        (
            *("LOANASYNC_SHOP_ID", "other"),
            "the ledger has no entry of any customer in the file: check --ledger and LOANASYNC_SHOP_ID",
        ),
        (
            *("LOANASYNC_BASE_URL", "https://other.example.com"),
            "the ledger decisions.db belongs to https://loans.example.com, and the client uses https://other",
        ),
        ("LOANASYNC_LEDGER_KEY", "another key of the shop", "the ledger decisions.db has another key: set"),
    ],
)
def test_reconcile_with_settings_of_another_shop_says_so(
    setting: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulation(lost=[1]).approve([1])
    monkeypatch.setenv(setting, value)
    done = reconcile(f"cf,outcome\n{code(1)},refused\n")
    assert (done.returncode, states()) == (2, ["unknown"])
    assert message in done.stderr


def test_reconcile_reads_standard_input() -> None:
    Simulation(lost=[1]).approve([1])
    done = run(None, "reconcile", "-", stdin=f"cf,outcome\n{code(1)},refused\n")
    assert (done.returncode, states()) == (0, ["refused"])


@pytest.mark.parametrize("number", [1000, pytest.param(100_000, marks=pytest.mark.scheduled)])
def test_reconcile_settles_every_named_approval_and_none_wrongly(number: int) -> None:
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
    done = reconcile(text, "--report", "report.json")
    print(f"{len(rows):,} rows in {time.monotonic() - started:.1f} s")  # noqa: T201  (shown with -s)
    assert asyncio.run(states_by_customer([*expected])) == expected
    results: dict[str, Any] = json.loads(Path("report.json").read_text(encoding="utf-8"))["results"]
    assert results == {
        "settled": len(groups["named"]) + len(groups["twice"]),
        "repeats": len(groups["twice"]),
        "disagrees": 2 * len(groups["disagreeing"]),
        "contradicts": len(groups["late"]) + len(decided[1::100]),
        "unchanged": len(decided[::10]),
        "missing": 50,
    }
    assert done.returncode == 3


async def record(customers: Iterable[int], lost: Iterable[int], scope: str = "") -> None:
    """Write what clients write, without 100,000 requests: unknown if the response was lost."""
    numbers, unknown = [*customers], frozenset(lost)
    async with SqliteLedger("decisions.db") as ledger:
        keys = await key_maker(ledger)

        async def write(number: int) -> None:
            state = State.UNKNOWN if number in unknown else State.REFUSED if number % 2 else State.APPROVED
            key = await keys(code(number), scope=scope)
            await ledger.claim(key, token=key, payload="p", lease=3600, subject=Subject(scope=scope))
            settlement = Settlement(state=state, body=b"{}")
            await ledger.settle(key, token=key, payload="p", settlement=settlement)

        for begin in range(0, len(numbers), 2000):
            await asyncio.gather(*(write(number) for number in numbers[begin : begin + 2000]))


async def late_responses(customers: Iterable[str], truth: dict[int, str], other: dict[str, str]) -> None:
    """Write responses of the service that arrive after the file was made, and decide otherwise."""
    async with SqliteLedger("decisions.db") as ledger:
        keys = await key_maker(ledger)
        for customer in customers:
            entry = await ledger.get(await keys(customer, scope=""))
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
    return shop.client.entry_key


async def states_by_customer(sought: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the state of each customer and scope."""
    async with SqliteLedger("decisions.db") as ledger:
        keys = await key_maker(ledger)
        found = {entry.key: entry.state.value async for entry in ledger.scan()}
        return {each: found[await keys(each[0], scope=each[1])] for each in sought}
