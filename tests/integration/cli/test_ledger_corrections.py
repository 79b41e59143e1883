"""``loanasync ledger resolve`` corrects an earlier resolution, and ``show`` prints the history."""

import json
from pathlib import Path

import pytest

from loanasync.ledger import Ledger, Settlement, SqliteLedger, State, Subject
from support.ledger_file import entries, key, one_of_each, put, run_ledger, states, using

CORRECTED = "corrected; the earlier state is kept in the history"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "decisions.db"
    one_of_each(made)
    return made


def resolve(file: Path, name: str, state: str, note: str) -> tuple[int, str]:
    done = run_ledger("resolve", file, key(name), "--as", state, "--note", note)
    return done.exit_code, done.stderr


def shown(file: Path, name: str) -> list[tuple[str, str]]:
    lines = run_ledger("show", file, key(name)).stdout.splitlines()
    return [(line[:20].strip(), line[20:]) for line in lines]


@pytest.mark.parametrize("wrong", ["approved", "refused", "released"])
@pytest.mark.parametrize("right", ["approved", "refused", "released", "held", "unknown"])
def test_resolve_corrects_an_earlier_resolution(file: Path, wrong: str, right: str) -> None:
    resolve(file, "lost", wrong, "ticket 17")
    code, message = resolve(file, "lost", right, "ticket 18")
    more = "" if right == wrong else f": {CORRECTED}"
    assert (code, message) == (0, f"{key('lost')[:12]} is {right}{more}\n")
    entry = entries(file)["lost"]
    assert entry.state == right
    assert [change.state.value for change in entry.history] == ["lost", *([wrong] if more else [])]


def test_resolve_prompts_for_state_and_note_of_a_correction(file: Path) -> None:
    resolve(file, "lost", "approved", "ticket 17")
    done = run_ledger("resolve", file, key("lost"), stdin="r\n \nticket 18\n")
    assert done.exit_code == 0, done.output
    assert "must not be empty" in done.stderr
    assert CORRECTED in done.stderr
    assert (entries(file)["lost"].note, states(file)["lost"]) == ("ticket 18", "refused")


def test_resolve_of_an_entry_changed_meanwhile_fails(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(file, "lost", "approved", "ticket 17")

    def answer_prompt(*_: object, **__: object) -> str:
        resolve(file, "lost", "held", "ticket 18")
        resolve(file, "lost", "released", "ticket 19")
        return "r"

    monkeypatch.setattr("loanasync.cli.ledger.resolve.typer.prompt", answer_prompt)
    done = run_ledger("resolve", file, key("lost"), "--note", "ticket 20")
    assert done.exit_code == 1
    assert "stays released: another person changed it in the meantime" in done.stderr
    assert states(file)["lost"] == "released"


def test_show_prints_scope_source_response_and_history(file: Path) -> None:
    async def fill(ledger: SqliteLedger) -> None:
        about = Subject(customer="c", order="o", scope="spring")
        await ledger.claim(key("scoped"), token="t", payload="p", lease=60, subject=about)
        unread = Settlement(state=State.UNKNOWN, note="n", status=201, body=b'{"approved": true}')
        await ledger.settle(key("scoped"), token="t", payload="p", settlement=unread)

    using(file, fill)
    assert {("source", "client"), ("response stored", "yes")} <= {*shown(file, "scoped")}
    resolve(file, "scoped", "approved", "ticket 17")
    resolve(file, "scoped", "refused", "ticket 18")
    output = shown(file, "scoped")
    assert [text for name, text in output if name in ("scope", "source", "response stored")] == [
        *("spring", "person", "no")
    ]
    history = [text.split("  ", 1)[1].split() for name, text in output if name == "history"]
    assert history == [["unknown", "client", "n"], ["approved", "person", "ticket", "17"]]
    assert output[-1][1] == (
        "none; to correct this state, which a person entered, run: loanasync ledger resolve"
        f" {key('scoped')[:12]}"
        ' --as approved|refused|released|held|unknown --note "ticket 17"'
    )
    facts = json.loads(run_ledger("show", file, key("scoped"), "--json").stdout)
    assert (facts["scope"], facts["source"], facts["has_response"]) == ("spring", "person", False)
    assert [(each["state"], each["source"], each["note"]) for each in facts["history"]] == [
        ("unknown", "service", "n"),
        ("approved", "person", "ticket 17"),
    ]


def test_resolve_makes_a_stored_response_the_decision(file: Path) -> None:
    body = b'{"approved": true, "redirectUrl": "https://loans.example.com/x"}'
    using(file, lambda ledger: put(ledger, "kept", State.UNKNOWN, status=201, body=body))
    assert resolve(file, "kept", "approved", "ticket 17")[0] == 0
    entry = entries(file)["kept"]
    assert (entry.state, entry.status, entry.body) == (State.APPROVED, 201, body)


def test_ls_without_redirect_lists_approvals_without_a_redirect(tmp_path: Path) -> None:
    file = tmp_path / "decisions.db"
    bodies = {
        "whole": b'{"approved": true, "redirectUrl": "https://loans.example.com/SECRET"}',
        "cut off": b'{"approved": true, "amount": 45000}',
        "empty": b'{"approved": true, "redirectUrl": ""}',
        "by a person": None,
        "encrypted": b"gAAAAAB",
    }

    async def fill(ledger: Ledger) -> None:
        for name, body in bodies.items():
            note = "no redirect" if name in {"cut off", "empty"} else ""
            await put(ledger, name, State.APPROVED, status=201, body=body, note=note)
        await put(ledger, "refused", State.REFUSED, status=422)
        await put(ledger, "unknown", State.UNKNOWN)

    using(file, fill)
    done = run_ledger("ls", file, "--without-redirect", "--json")
    wanted = {key(name) for name in ("cut off", "empty", "by a person")}
    assert {json.loads(line)["key"] for line in done.stdout.splitlines()} == wanted
    assert run_ledger("ls", file, "--without-redirect").stderr == "3 approved\n"
    assert (
        "missing: ask the service where to send the customer"
        in run_ledger("show", file, key("cut off")).stdout
    )
    assert "where to send the customer" not in run_ledger("show", file, key("whole")).stdout
