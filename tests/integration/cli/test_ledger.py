"""``loanasync ledger``: no personal data is shown, and no decision is overwritten."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loanasync.ledger import SqliteLedger, State
from loanasync.ledger.model import Settlement
from support.cli import environment, wait_for
from support.ledger_file import entries, key, left_orphan, one_of_each, put, run_ledger, states, using

SECRETS = ("SECRET", "PERSONAL", "UNKNOWN-TO-US", "TOKEN", "PAYLOAD")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "decisions.db"
    one_of_each(made)
    return made


def test_ls_prints_a_line_per_entry_and_counts_states(file: Path) -> None:
    done = run_ledger("ls", file)
    assert done.exit_code == 0
    lines = {line[:12]: line[12:].split() for line in done.stdout.splitlines()}
    assert {short: words[0] for short, words in lines.items()} == {
        key(name)[:12]: state
        for name, state in [
            ("approved", "approved"), ("refused", "refused"), ("released", "released"), ("lost", "lost"),
            ("unknown", "unknown"), ("held", "held"), ("inflight", "inflight"), ("expired", "unknown"),
        ]
    }  # fmt: skip
    assert lines[key("unknown")[:12]][-1] == "ReadTimeoutError"
    assert lines[key("expired")[:12]][-3:] == ["the", "lease", "expired"]
    assert done.stderr == "1 approved, 1 held, 1 inflight, 1 lost, 1 refused, 1 released, 2 unknown\n"


def test_ls_with_states_and_json_prints_json_lines(file: Path) -> None:
    done = run_ledger("ls", file, "--state", "approved", "--state", "held", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(each["key"], each["state"]) for each in found} == {
        (key(name), name) for name in ("approved", "held")
    }
    assert done.stderr == ""
    assert {each["has_response"] for each in found} == {True, False}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("ls", ()),
        ("ls", ("--json",)),
        ("show", (key("approved"),)),
        ("show", (key("approved"), "--json")),
        ("sweep", ()),
        ("resolve", (key("approved"), "--as", "refused", "--note", "x")),
    ],
)
def test_commands_show_no_personal_data_and_no_token(
    file: Path, command: str, arguments: tuple[str, ...]
) -> None:
    done = run_ledger(command, file, *arguments)
    assert key("approved")[:12] in done.output or command == "sweep"
    assert not [secret for secret in SECRETS if secret in done.output]


def test_show_finds_an_entry_by_the_beginning_of_its_key(file: Path) -> None:
    done = run_ledger("show", file, key("approved")[:12])
    output = {line[:20].strip(): line[20:] for line in done.stdout.splitlines()}
    assert output["entry"] == key("approved")
    assert output["state"].startswith("approved since 20")
    assert (output["response"], output["amount"], output["netAmount"]) == ("HTTP 201", "45000", "43650")
    assert (output["redirectUrl"], output["firstname"], output["newMember"]) == ("***", "***", "***")
    assert output["next"] == "none: the decision is final"
    again = run_ledger("show", file, key("approved").upper()[:12]).stdout
    age = re.compile(r"\(\d+ s\)")  # of the entry; it may be a second older now
    assert age.sub("", again) == age.sub("", done.stdout)


def test_show_prints_the_next_step(file: Path) -> None:
    output = run_ledger("show", file, key("unknown")).stdout
    assert (
        f"ask the service for its decision, then run: loanasync ledger resolve {key('unknown')[:12]}"
        in output
    )
    assert "HTTP 422, not whole" in run_ledger("show", file, key("refused")).stdout


def test_show_with_reveal_prints_masked_values(file: Path) -> None:
    shown = json.loads(run_ledger("show", file, key("approved"), "--json", "--reveal").stdout)
    assert shown["response"]["redirectUrl"] == "https://loans.example.com/SECRET"
    assert shown["response"]["newMember"] == "UNKNOWN-TO-US"
    assert "TOKEN" not in json.dumps(shown)


def test_show_of_an_encrypted_response_says_so(file: Path) -> None:
    using(file, lambda ledger: put(ledger, "private", State.APPROVED, status=201, body=b"gAAAA-SECRET"))
    shown = run_ledger("show", file, key("private")).stdout
    assert "encrypted" in shown
    assert "SECRET" not in shown
    assert json.loads(run_ledger("show", file, key("private"), "--json").stdout)["response"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0123abcd", "no entry has the key '0123abcd': list the keys with loanasync ledger ls"),
        ("61", "'61' is too short: give at least 4 characters of the key"),
        (
            key("re")[:4],
            f"ambiguous: it is the beginning of {key('refused')[:12]}, {key('released')[:12]}",
        ),
    ],
)
def test_key_that_matches_no_single_entry_is_refused(file: Path, given: str, message: str) -> None:
    for command, more in (("show", ()), ("resolve", ("--as", "held", "--note", "x"))):
        done = run_ledger(command, file, given, *more)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr
    assert states(file)["refused"] == "refused"


@pytest.mark.parametrize("resolution", ["approved", "refused", "released", "held"])
@pytest.mark.parametrize("name", ["unknown", "lost", "held", "expired"])
def test_resolve_changes_unresolved_entries(file: Path, name: str, resolution: str) -> None:
    done = run_ledger("resolve", file, key(name)[:10], "--as", resolution, "--note", "ticket 17")
    assert (done.exit_code, done.stderr) == (0, f"{key(name)[:12]} is {resolution}\n")
    entry = entries(file)[name]
    assert (entry.state.value, entry.note) == (resolution, "ticket 17")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("approved", "a decision of the service is never overwritten"),
        ("released", "it was not evaluated: there is nothing to resolve"),
        ("inflight", "a request is in progress: wait until its lease expires"),
    ],
)
def test_resolve_leaves_decided_and_in_flight_entries_unchanged(file: Path, name: str, why: str) -> None:
    before = entries(file)
    done = run_ledger("resolve", file, key(name), key("lost"), "--as", "refused", "--note", "ticket 17")
    assert done.exit_code == 1
    assert f"{key(name)[:12]} stays {name}: {why}\n" in done.stderr
    assert entries(file)[name] == before[name]
    assert states(file)["lost"] == "refused", "the other entry is resolved"


def test_resolve_keeps_a_decision_that_arrives_during_the_prompt(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Settlement(state=State.APPROVED, status=201, body=b"{}")

    def answer_prompt(*_: object, **__: object) -> str:
        unknown = entries(file)["unknown"]
        using(
            file,
            lambda ledger: ledger.settle(
                unknown.key, token=unknown.token, payload=unknown.payload, settlement=late
            ),
        )
        return "r"

    monkeypatch.setattr("loanasync.cli.ledger.resolve.typer.prompt", answer_prompt)
    done = run_ledger("resolve", file, key("unknown"), "--note", "ticket 17")
    assert done.exit_code == 1
    assert "stays approved: a decision of the service is never overwritten" in done.stderr
    assert states(file)["unknown"] == "approved"


def test_resolve_without_key_prompts_for_unknown_and_lost_entries(file: Path) -> None:
    then = entries(file)
    done = run_ledger("resolve", file, stdin="?\nr\nanna@example.com\nticket 17\nn\nticket 18\ns\n")
    assert done.exit_code == 3, "one was skipped"
    assert "1 of 3: " in done.stderr
    assert "must not contain personal data" in done.stderr
    now = entries(file)
    oldest, second, third = sorted(
        ("unknown", "lost", "expired"), key=lambda name: (then[name].changed, key(name))
    )
    assert (now[oldest].state.value, now[oldest].note) == ("refused", "ticket 17")
    assert (now[second].state.value, now[second].note) == ("released", "ticket 18")
    assert not now[third].state.is_decided


def test_resolve_quit_or_end_of_input_leaves_other_entries_unchanged(file: Path) -> None:
    assert run_ledger("resolve", file, "--note", "ticket 17", stdin="a\nq\n").exit_code == 3
    assert sorted(states(file).values()).count("approved") == 2
    cut = run_ledger("resolve", file, stdin="a\n")
    assert (cut.exit_code, cut.stderr.splitlines()[-1][-11:]) == (130, "interrupted")
    assert sorted(states(file).values()).count("approved") == 2


def test_commands_without_unresolved_entries_say_so(tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    using(file, lambda ledger: ledger.get("x"))
    done = run_ledger("resolve", file)
    assert (done.exit_code, done.stderr) == (0, "no entry is unknown or lost\n")
    assert run_ledger("ls", file).stderr == "no entries\n"
    assert run_ledger("sweep", file).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--as", "held"),
            "needs KEY or --customer, and --note, for example: loanasync ledger resolve KEY --as held",
        ),
        ((key("lost")[:12], "--as", "held"), f"ledger resolve {key('lost')[:12]} --as held --note"),
        ((key("lost"), "--as", "held", "--note", "TSTXYZ00A00A000A rang"), "must not contain personal data"),
        ((key("lost"), "--as", "held", "--note", "anna@example.com"), "must not contain personal data"),
        ((key("lost"), "--as", "inflight", "--note", "x"), "inflight"),
    ],
)
def test_resolve_with_invalid_options_changes_nothing(
    file: Path, arguments: tuple[str, ...], message: str
) -> None:
    before = states(file)
    done = run_ledger("resolve", file, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert states(file) == before


def test_sweep_marks_expired_leases_once_and_lists_unresolved_entries(file: Path) -> None:
    before = entries(file)
    done = run_ledger("sweep", file)
    assert done.exit_code == 3
    assert done.stderr.startswith("1 lease expired; 3 entries to resolve")
    listed_keys = {line[:12] for line in done.stdout.splitlines()}
    assert listed_keys == {key(name)[:12] for name in ("expired", "unknown", "lost")}
    after = entries(file)
    assert (after["expired"].state, after["expired"].note) == (State.UNKNOWN, "the lease expired")
    assert after["expired"].changed > after["expired"].expires, "the change was written by the sweep"
    assert {name: each for name, each in after.items() if name != "expired"} == {
        name: each for name, each in before.items() if name != "expired"
    }
    again = run_ledger("sweep", file)
    assert again.stderr == "0 leases expired; 3 entries to resolve, run: loanasync ledger resolve\n"
    assert entries(file) == after


def test_decision_is_recorded_after_a_sweep(file: Path) -> None:
    run_ledger("sweep", file)
    swept = entries(file)["expired"]
    late = Settlement(state=State.APPROVED, status=201)
    using(
        file,
        lambda ledger: ledger.settle(swept.key, token=swept.token, payload=swept.payload, settlement=late),
    )
    assert states(file)["expired"] == "approved"


def test_purge_deletes_old_entries_after_confirmation(file: Path) -> None:
    settled = {"approved", "refused", "released"}
    before = states(file)
    assert "older than 1h: 0 entries" in run_ledger("purge", file, "--older-than", "1h", stdin="").stderr
    wait_for(lambda: "3 entries" in run_ledger("purge", file, "--older-than", "1s", stdin="n\n").stderr)
    refused = run_ledger("purge", file, "--older-than", "1s", stdin="n\n")
    assert refused.exit_code == 2
    assert states(file) == before
    done = run_ledger("purge", file, "--older-than", "1s", stdin="y\n")
    assert done.exit_code == 0
    assert done.stderr.endswith("deleted: 3 entries\n")
    assert states(file) == {name: state for name, state in before.items() if name not in settled}
    assert "deleted: 0 entries" in run_ledger("purge", file, "--older-than", "1s", "--yes").stderr


@pytest.mark.parametrize("age", ["0d", "-1d", "1", "d", "1y", "1.5d"])
def test_purge_with_an_invalid_age_is_refused(file: Path, age: str) -> None:
    done = run_ledger("purge", file, f"--older-than={age}", "--yes")
    assert done.exit_code == 2
    assert "must be an age such as 52w, 400d, 12h, 30m" in done.stderr
    assert len(states(file)) == 8


def test_ls_with_responses_prints_personal_data_only_as_json(file: Path) -> None:
    assert not [secret for secret in SECRETS if secret in run_ledger("ls", file, "--responses").stdout]
    done = run_ledger("ls", file, "--json", "--responses")
    (approved,) = [line for line in done.stdout.splitlines() if "SECRET" in line]
    assert json.loads(approved)["response"]["redirectUrl"] == "https://loans.example.com/SECRET"


def test_import_orphans_leaves_a_contradicting_file(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "orphans"
    folder.mkdir()
    for name in ("unknown", "approved"):
        left_orphan(folder, file, entries(file)[name], Settlement(state=State.REFUSED, status=422))
    done = run_ledger("import-orphans", file, "--orphan-folder", folder)
    assert done.exit_code == 1
    assert done.stderr.endswith("1 response imported, 1 file left in place\n")
    assert (states(file)["unknown"], states(file)["approved"]) == ("refused", "approved")
    (left,) = folder.iterdir()
    left.unlink()
    assert run_ledger("import-orphans", file, "--orphan-folder", folder).exit_code == 0


@pytest.mark.parametrize("command", ["ls", "sweep", "import-orphans", "resolve"])
def test_invalid_ledger_name_is_refused_and_creates_nothing(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    other = tmp_path / "rows.jsonl"
    other.write_text("{}\n" * 2000, encoding="utf-8")
    for name, message in (
        (tmp_path / "typo.db", f"the ledger {tmp_path / 'typo.db'} does not exist"),
        (f"sqlite:///{tmp_path / 'typo.db'}", f"the ledger {tmp_path / 'typo.db'} does not exist"),
        (tmp_path, f"ledger: {tmp_path} is a directory; name a file"),
        (other, f"the ledger {other} is damaged, truncated, or not an SQLite file"),
        ("mongodb://anna:SECRET@host/1", "ledger: unknown scheme mongodb://"),
        ("redis:/anna:SECRET@host/1", "ledger: the address of a server must begin with redis://"),
    ):
        done = run_ledger(command, name)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(message)
        assert "SECRET" not in done.output
    assert list(tmp_path.iterdir()) == [other]


def test_show_customer_reads_the_fiscal_code_from_standard_input(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(None).items():
        monkeypatch.setenv(name, value)
    missing = run_ledger("show", file, "--customer", stdin="TSTXYZ00A00A000A\n")
    assert (missing.exit_code, "LOANASYNC_BASE_URL" in missing.stderr) == (2, True)
    monkeypatch.setenv("LOANASYNC_BASE_URL", "https://loans.example.com")
    monkeypatch.setenv("LOANASYNC_SHOP_ID", "shop")
    monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", "token")
    done = run_ledger("show", file, "--customer", stdin="TSTXYZ00A00A000A\n")
    assert done.exit_code == 2
    assert "no entry of this customer found: check --ledger and LOANASYNC_SHOP_ID" in done.stderr
    assert "TSTXYZ" not in done.output
    wrong = run_ledger("show", file, "--customer", stdin="unknown\n")
    assert (wrong.exit_code, wrong.stderr) == (2, "the fiscal code must be 16 letters and digits\n")
    assert (
        run_ledger("show", file).exit_code
        == run_ledger("show", file, key("lost"), "--customer").exit_code
        == 2
    )
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", "too short")
    assert (
        "must be at least 16 bytes" in run_ledger("show", file, "--customer", stdin="TSTXYZ00A00A000A").stderr
    )


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_ls_ends_quietly_when_its_pipe_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "many.db"

    async def fill(ledger: SqliteLedger) -> None:  # more output than fits into a pipe
        each = (put(ledger, f"{number}", State.INFLIGHT, lease=0.0) for number in range(1500))
        await asyncio.gather(*each)

    using(file, fill)
    command = [sys.executable, "-m", "loanasync", "ledger", "ls", "--ledger", str(file)]
    reads = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(None)
    )
    assert reads.stdout is not None
    assert reads.stderr is not None
    assert "unknown" in reads.stdout.readline()
    reads.stdout.close()
    assert reads.stderr.read() == ""
    assert reads.wait(60) == 1
    reads.stderr.close()


def test_resolve_interrupted_at_a_prompt_keeps_earlier_resolutions(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter("r")

    def answer_prompt(*_: object, **__: object) -> str:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    monkeypatch.setattr("loanasync.cli.ledger.resolve.typer.prompt", answer_prompt)
    done = run_ledger("resolve", file, "--note", "x")
    assert (done.exit_code, done.stderr.splitlines()[-1].strip()) == (130, "interrupted")
    assert list(states(file).values()).count("refused") == 2


@pytest.mark.scheduled  # the same with a real signal
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_resolve_ctrl_c_at_a_prompt_keeps_earlier_resolutions(file: Path) -> None:
    command = [sys.executable, "-m", "loanasync", "ledger", "resolve", "--ledger", str(file), "--note", "x"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None)
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"r\n")
    process.stdin.flush()
    output = b""
    while output.count(b"[q]uit") < 2:  # until the second prompt
        output += os.read(process.stderr.fileno(), 1000)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.splitlines()[-1]) == (130, b"interrupted")
    assert list(states(file).values()).count("refused") == 2
