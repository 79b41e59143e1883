"""``loanasync ledger``: no personal data is shown, and no decision is overwritten."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from loanasync.cli.ledger.open import OpenLedger
from loanasync.ledger import Entry, SqliteLedger, State, Subject
from loanasync.ledger.model import Settlement
from loanasync.ledger.sqlite import _entry
from support.cli import environment
from support.ledger_file import (
    change,
    create_at,
    entries,
    key,
    left_orphan,
    listed,
    one_of_each,
    put,
    run_ledger,
    states,
    using,
)

SECRETS = ("SECRET", "PERSONAL", "UNKNOWN-TO-US", "TOKEN", "PAYLOAD")
CORRECTED = "corrected; the earlier state is kept in the history"
LATE = Settlement(state=State.APPROVED, status=201, body=b"{}")
REFUSED = Settlement(state=State.REFUSED, status=422, body=b'{"approved":false}')


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "decisions.db"
    one_of_each(made)
    return made


def resolve(file: Path, name: str, state: str, note: str = "ticket 17") -> tuple[int, str]:
    done = run_ledger("resolve", file, key(name)[:12], "--as", state, "--note", note)
    return done.exit_code, done.stderr


def decide(file: Path, *names: str) -> None:
    """Write late decisions of the service."""
    found = entries(file)

    async def settle(ledger: SqliteLedger) -> None:
        for entry in (found[name] for name in names):
            await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=LATE)

    using(file, settle)


def shown(file: Path, name: str) -> list[tuple[str, str]]:
    lines = run_ledger("show", file, key(name)[:12]).stdout.splitlines()
    return [(line[:20].strip(), line[20:]) for line in lines]


# ls and show


def test_ls_prints_a_line_per_entry_and_counts_states(file: Path, tmp_path: Path) -> None:
    done = run_ledger("ls", file)
    lines = {line[:12]: line[12:].split() for line in done.stdout.splitlines()}
    names = ("approved", "refused", "released", "lost", "unknown", "held", "inflight", "expired")
    assert {short: words[0] for short, words in lines.items()} == {
        key(name)[:12]: name.replace("expired", "unknown") for name in names
    }
    assert lines[key("unknown")[:12]][-1] == "ReadTimeoutError"
    assert lines[key("expired")[:12]][-3:] == ["the", "lease", "expired"]
    counts = "1 approved, 1 held, 1 inflight, 1 lost, 1 refused, 1 released, 2 unknown\n"
    assert (done.exit_code, done.stderr) == (0, counts)
    done = run_ledger("ls", file, "--state", "approved", "--state", "held", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.stderr, {(each["key"], each["state"], each["has_response"]) for each in found}) == (
        "", {(key("approved"), "approved", True), (key("held"), "held", False)}
    )  # fmt: skip
    create_at(empty := tmp_path / "empty.db")
    assert (run_ledger("ls", empty).stderr, run_ledger("sweep", empty).exit_code) == ("no entries\n", 0)


def test_commands_show_no_personal_data_and_no_token(file: Path) -> None:
    approved = key("approved")
    resolving = (approved, "--as", "refused", "--note", "x")
    for command, *arguments in (
        ("ls",),
        ("ls", "--json"),
        ("show", key("approved")),
        ("resolve", *resolving),
    ):
        done = run_ledger(command, file, *arguments)
        assert key("approved")[:12] in done.output
        assert not [secret for secret in SECRETS if secret in done.output + run_ledger("sweep", file).output]
    revealed = run_ledger("show", file, key("approved").upper(), "--reveal").stdout
    assert ["https://loans.example.com/SECRET" in revealed, "UNKNOWN-TO-US" in revealed] == [True, True]
    assert "TOKEN" not in revealed


def test_show_prints_everything_about_an_entry(file: Path) -> None:
    output = dict(shown(file, "approved"))
    assert output["entry"] == key("approved")
    assert output["state"].startswith("approved since 20")
    assert (output["response"], output["amount"], output["netAmount"]) == ("HTTP 201", "45000", "43650")
    assert (output["redirectUrl"], output["firstname"], output["newMember"]) == ("***", "***", "***")
    assert (output["next"], "redirect" in output) == ("none: the decision is final", False)
    step = f"ask the service for its decision, then run: loanasync ledger --ledger {file} "
    step += f"resolve {key('unknown')[:12]}"
    unknown = dict(shown(file, "unknown"))
    assert (unknown["next"], unknown["response stored"], "body" in unknown) == (step, "no", False)
    assert "taken over" not in str(unknown)
    assert dict(shown(file, "refused"))["response"] == "HTTP 422, not whole"
    found = entries(file)["unknown"]

    async def fill(ledger: SqliteLedger) -> None:
        await ledger.claim(found.key, token="t2", payload=found.payload, lease=60.0, over=found.token)
        await put(ledger, "private", State.APPROVED, status=201, body=b"gAAAA-SECRET")
        cut = {"status": 201, "body": b'{"approved": true, "amount": 45000}', "note": "no redirect"}
        await put(ledger, "cut off", State.APPROVED, **cut)

    using(file, fill)
    assert ", taken over 1 time; the lease ends " in dict(shown(file, "unknown"))["claimed"]
    assert dict(shown(file, "private"))["body"] == "encrypted or not JSON"
    assert key("cut off") in [each["key"] for each in listed(file) if each["lacks_redirect"]]
    assert dict(shown(file, "cut off"))["redirect"] == "missing: ask the service where to send the customer"


def test_show_prints_order_source_response_and_history(file: Path) -> None:
    async def fill(ledger: SqliteLedger) -> None:
        about = Subject(customer="c", order="spring")
        await ledger.claim(key("scoped"), token="t", payload="p", lease=60, subject=about)
        unread = Settlement(state=State.UNKNOWN, note="n", status=201, body=b'{"approved": true}')
        await ledger.settle(key("scoped"), token="t", payload="p", settlement=unread)

    using(file, fill)
    assert {("source", "client"), ("response stored", "yes")} <= {*shown(file, "scoped")}
    resolve(file, "scoped", "approved")
    assert entries(file)["scoped"].body is not None, "the stored response is now that of the decision"
    resolve(file, "scoped", "refused", "ticket 18")
    output = shown(file, "scoped")
    facts = {("order", "spring"), ("source", "person"), ("note", "ticket 18"), ("response stored", "no")}
    assert facts <= {*output}
    history = [text.split("  ", 1)[1].split() for name, text in output if name == "history"]
    assert history == [["unknown", "client", "n"], ["approved", "person", "ticket", "17"]]
    assert output[-1][1] == (
        f"none; to correct this state, which a person entered, run: loanasync ledger --ledger {file} resolve "
        f'{key("scoped")[:12]} --as approved|refused|released|held|unknown --note "ticket 17"'
    )
    [found] = [each for each in listed(file) if each["key"] == key("scoped")]
    assert (found["order"], found["source"], found["has_response"]) == ("spring", "person", False)
    changed = datetime.fromisoformat(found["changed"])
    assert changed.isoformat(timespec="milliseconds") == found["changed"]
    assert -60 < changed.timestamp() - time.time() < 0.001
    assert [tuple(each[name] for name in ("state", "source", "note")) for each in found["history"]] == [
        ("unknown", "service", "n"), ("approved", "person", "ticket 17")
    ]  # fmt: skip


HELD = ("--as", "held", "--note", "x")
LOST = key("lost")
NO_KEY = "no entry has the key '0123abcd': list the keys with loanasync ledger ls"
SHORT_KEY = "'61' is too short: give at least 4 characters of the key"
TWO_KEYS = f"ambiguous: it is the beginning of {key('refused')[:12]}, {key('released')[:12]}"


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        *((command, (given, *more), message)
          for command, more in (("show", ()), ("resolve", HELD))
          for given, message in (("0123abcd", NO_KEY), ("61", SHORT_KEY), (key("re")[:4], TWO_KEYS))),
        ("resolve", (), "give KEY, --customer or --from"),
        ("resolve", ("--as", "held"), "give KEY, --customer or --from"),
        ("resolve", (LOST[:12], "--as", "held"), f"resolve {LOST[:12]} --as refused --note"),
        ("resolve", (LOST[:12], "--note", "x"), f"resolve {LOST[:12]} --as refused --note"),
        ("resolve", (LOST, "--as", "held", "--note", "TSTXYZ00A00A000A rang"), "must not contain personal"),
        ("resolve", (LOST, "--as", "held", "--note", "anna@example.com"), "must not contain personal data"),
        ("resolve", (LOST, "--as", "inflight", "--note", "x"), "inflight"),
    ],
)  # fmt: skip
def test_wrong_key_or_option_changes_nothing(
    file: Path, command: str, arguments: tuple[str, ...], message: str
) -> None:
    before = states(file)
    done = run_ledger(command, file, *arguments)
    assert (done.exit_code, done.stdout, message in done.stderr) == (2, "", True)
    assert states(file) == before


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_commands_read_only_what_they_list_and_end_with_their_pipe(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"note": "ticket 17", "source": "person"}
    using(file, lambda ledger: put(ledger, "stated", State.APPROVED, **stated))
    change(
        file,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)"
        " INSERT INTO entries SELECT printf('%064d', i), state, revision, customer, claimed, changed,"
        " expires, lease_end, document, body FROM entries, n WHERE state = 'refused'",
    )
    read = list[object]()

    def counted(row: Sequence[Any], now: float) -> Entry:
        read.append(row)
        return _entry(row, now)

    monkeypatch.setattr("loanasync.ledger.sqlite._entry", counted)
    assert run_ledger("sweep", file).exit_code == 3
    assert key("lost")[:12] in run_ledger("ls", file, "--state", "lost").stdout
    assert len(read) < 30
    assert run_ledger("show", file, key("stated")[:6]).exit_code == 0
    assert len(read) < 540, "a page for a short key"
    command = [sys.executable, "-m", "loanasync", "ledger", "--ledger", str(file), "ls"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(None)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "refused" in process.stdout.readline()
        process.stdout.close()  # before the rest of the output, which is more than fits into a pipe
        assert (process.stderr.read(), process.wait(60)) == ("", 1)


# resolve


@pytest.mark.parametrize("resolution", ["approved", "refused", "released", "held"])
def test_resolve_changes_unresolved_entries(file: Path, resolution: str) -> None:
    for name in ("unknown", "lost", "held", "expired", *(["released"] if resolution == "held" else [])):
        assert resolve(file, name, resolution) == (0, f"{key(name)[:12]} is {resolution}\n")
        entry = entries(file)[name]
        assert (entry.state.value, entry.note) == (resolution, "ticket 17")
        assert (resolve(file, name, resolution)[0], entries(file)[name]) == (0, entry)


FIXED = {
    "approved": "a decision of the service is never overwritten",
    "released": "it was not evaluated: there is nothing to resolve",
    "inflight": "a request is in progress: wait until its lease expires",
}


def test_resolve_leaves_decided_and_in_flight_entries_unchanged(file: Path) -> None:
    before, names = entries(file), (*FIXED, "lost")
    done = run_ledger("resolve", file, *map(key, names), "--as", "refused", "--note", "ticket 17")
    messages = [f"{key(name)[:12]} stays {name}: {why}" for name, why in FIXED.items()]
    assert (done.exit_code, done.stderr.splitlines()[:-1]) == (1, messages)
    assert {name: each for name, each in entries(file).items() if name != "lost"} == {
        name: each for name, each in before.items() if name != "lost"
    }
    assert states(file)["lost"] == "refused", "the other entry is resolved"


@pytest.mark.parametrize("wrong", ["approved", "refused", "released"])
def test_resolve_corrects_an_earlier_resolution(file: Path, wrong: str) -> None:
    resolve(file, "lost", wrong)
    for right in ("approved", "refused", "released", "held", "unknown"):
        before = entries(file)["lost"]
        code, message = resolve(file, "lost", right, "ticket 18")
        entry, more = entries(file)["lost"], "" if right == before.state else f": {CORRECTED}"
        more = more if before.is_correctable else ""
        assert (code, message) == (0, f"{key('lost')[:12]} is {right}{more}\n")
        assert entry.state == right
        assert entry.history[: len(before.history)] == before.history


DECIDED = "stays approved: a decision of the service is never overwritten"


@pytest.mark.parametrize(
    ("meanwhile", "message"),
    [(lambda file: decide(file, "lost"), DECIDED),
     (lambda file: resolve(file, "lost", "refused", "x"), "stays refused: another person changed it")],
)  # fmt: skip
def test_resolve_of_an_entry_changed_meanwhile_fails(
    file: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Path], object], message: str
) -> None:
    entry = OpenLedger.entry

    def changed(*arguments: Any) -> Entry:
        found = entry(*arguments)
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as pool:  # `meanwhile` runs another event loop
            pool.submit(meanwhile, file).result()
        return found

    monkeypatch.setattr(OpenLedger, "entry", changed)
    code, text = resolve(file, "lost", "released")
    assert (code, message in text) == (1, True)


# sweep and purge


def test_sweep_marks_expired_leases_once_and_lists_unresolved_entries(file: Path) -> None:
    before = entries(file)
    done = run_ledger("sweep", file)
    message = f"lease{{}} expired; 3 entries to resolve, run: loanasync ledger --ledger {file} resolve KEY\n"
    assert (done.exit_code, done.stderr.endswith("; 1 " + message.format(""))) == (3, True)
    listed_keys = {line[:12] for line in done.stdout.splitlines()}
    assert listed_keys == {key(name)[:12] for name in ("expired", "unknown", "lost")}
    after = entries(file)
    expired = after["expired"]
    assert (expired.state, expired.note) == (State.UNKNOWN, "the lease expired")
    assert expired.changed > expired.expires, "the change was written by the sweep"
    assert {**after, "expired": None} == {**before, "expired": None}
    assert run_ledger("sweep", file).stderr.endswith("; 0 " + message.format("s"))
    assert entries(file) == after
    decide(file, "expired")
    assert states(file)["expired"] == "approved", "a late decision is recorded"


def test_purge_deletes_old_entries(file: Path) -> None:
    before, purge = states(file), ("purge", file, "--older-than", "1d")
    assert "older than 1d: 0 entries" in run_ledger(*purge, "--dry-run").stderr
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE entries SET changed = changed - 90000")
    done = run_ledger(*purge, "--dry-run")
    assert (done.exit_code, done.stderr, states(file)) == (0, "older than 1d: 3 entries\n", before)
    assert run_ledger(*purge).stderr == "deleted: 3 entries\n"
    settled = {"approved", "refused", "released"}
    assert states(file) == {name: state for name, state in before.items() if name not in settled}
    assert run_ledger(*purge).stderr == "deleted: 0 entries\n"
    for age in ("0d", "-1d", "1", "d", "1y", "1.5d", "23h", "12h"):
        done = run_ledger("purge", file, f"--older-than={age}")
        message = "must be an age of at least a day, such as 104w, 400d"
        assert (done.exit_code, message in done.stderr, len(states(file))) == (2, True, 5)


# orphans


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default orphan folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "state" / "loanasync" / "orphans"


def orphan(folder: Path, file: Path, name: str) -> Path:
    return left_orphan(folder, file, entries(file)[name], REFUSED)


def test_sweep_imports_from_its_folders_or_the_named_ones(file: Path, folder: Path, tmp_path: Path) -> None:
    done = run_ledger("sweep", file)
    spare, others = tmp_path / "loanasync-orphans", [tmp_path / "a", tmp_path / "b"]
    folders = f"orphan folders: {folder} (does not exist), {spare} (does not exist)"
    assert done.stderr.splitlines()[0] == folders
    for each, name in zip(others, ("unknown", "lost"), strict=True):
        orphan(each, file, name)
    done = run_ledger("sweep", file, *(word for each in others for word in ("--orphan-folder", each)))
    assert done.stderr.startswith(f"orphan folders: {others[0]}, {others[1]}\n2 responses imported; ")
    assert (states(file)["unknown"], states(file)["lost"]) == ("refused", "refused")


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices of POSIX")
def test_import_leaves_files_that_contradict_or_cannot_be_read(file: Path, folder: Path) -> None:
    written = orphan(folder, file, "unknown")
    contradicting = orphan(folder, file, "approved")
    (folder / "0-directory.json").mkdir()
    (folder / "1-deep.json").write_text("[" * 200_000)
    (folder / "2-cut.part").write_text("{")
    content = orphan(folder, file, "lost").read_text()
    (folder / "3-surrogate.json").write_text(content.replace(key("lost"), "\\ud800"))
    os.mkfifo(folder / "4-pipe.json")  # nobody writes to it
    (folder / "5-device.json").symlink_to("/dev/zero")
    counted = json.loads(run_ledger("status", file, "--json").stdout)["orphan_files"]
    left = [each for each in folder.glob("*.*") if each.suffix != ".number"]
    assert counted == len(left), "a pipe hides no other file"
    done = run_ledger("sweep", file)
    output = dict(line.partition(": ")[::2] for line in done.stdout.splitlines() if ": " in line)
    reasons = {
        "0-directory.json": "Is a directory",
        "1-deep.json": "RecursionError",
        "2-cut.part": "it is incomplete, or not an orphan file of this version",
        "3-surrogate.json": "UnicodeEncodeError",
        "4-pipe.json": "it is a pipe or a device",
        "5-device.json": "it is a pipe or a device",
    }
    assert {Path(path).name: why for path, why in output.items() if Path(path).name in reasons} == reasons
    assert (str(contradicting) in output, contradicting.exists(), written.exists()) == (True, True, False)
    assert "2 responses imported; " in done.stderr
    create_at(empty := file.with_name("empty.db"))
    assert run_ledger("sweep", empty).exit_code == 1, "files are left, and no entry"
    found = states(file)
    assert (found["unknown"], found["lost"], found["approved"]) == ("refused", "refused", "approved")


@pytest.mark.skipif(os.name != "posix", reason="users and rights of POSIX")
def test_import_from_a_folder_of_another_user_fails(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare, listed, user = tmp_path / "loanasync-orphans", Path.iterdir, os.geteuid() + 1
    for each in (folder, spare):
        orphan(each, file, "unknown")

    def forbidden(path: Path) -> object:
        if path == folder:  # tests that run as root could read the folder
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", forbidden)
    monkeypatch.setattr("os.geteuid", lambda: user)
    done = run_ledger("sweep", file)
    assert done.stdout.startswith(f"{folder}: Permission denied\n")
    assert f"{spare}: belongs to another user: sweep as that user, too\n" in done.stdout
    assert "0 responses imported; " in done.stderr
    monkeypatch.setattr(Path, "iterdir", listed)
    done = run_ledger("sweep", file)
    assert "1 response imported; " in done.stderr
    done = run_ledger("sweep", file, "--orphan-folder", tmp_path)
    assert str(tmp_path) not in done.stdout


def test_import_stops_when_the_ledger_fails(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ConnectionError

    orphan(folder, file, "unknown")
    monkeypatch.setattr("loanasync.ledger.SqliteLedger.get", fail)
    monkeypatch.setattr("loanasync.ledger.SqliteLedger.settle", fail)
    done = run_ledger("sweep", file)
    message = "the ledger is not available (ConnectionError): check --ledger"
    assert (done.exit_code, done.stderr.startswith(message)) == (2, True)


@pytest.mark.parametrize("resolution", ["approved", "refused", "released"])
def test_resolve_is_refused_while_a_response_is_in_a_file(file: Path, folder: Path, resolution: str) -> None:
    written = orphan(folder, file, "unknown")
    code, text = resolve(file, "unknown", resolution)
    assert code == 1
    assert f"stays unknown: its response may be in {written}. Run: loanasync ledger sweep" in text
    assert states(file)["unknown"] == "unknown"
    assert resolve(file, "unknown", "held")[0] == 0
    run_ledger("sweep", file)
    assert states(file)["unknown"] == "refused"


@pytest.mark.parametrize("command", ["ls", "sweep"])
def test_invalid_ledger_name_is_refused_and_creates_nothing(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    other = tmp_path / "rows.jsonl"
    other.write_text("{}\n" * 2000, encoding="utf-8")
    for name, message in (
        (f"sqlite:///{tmp_path / 'typo.db'}", f"the ledger {tmp_path / 'typo.db'} does not exist"),
        (tmp_path, f"ledger: {tmp_path} is a directory; name a file"),
        (other, f"the ledger {other} is damaged, truncated, or not an SQLite file"),
        ("mongodb://anna:SECRET@host/1", "ledger: unknown scheme mongodb://"),
        ("redis:/anna:SECRET@host/1", "ledger: the address of a server must begin with redis://"),
        ("redis://shop:SECRET@127.0.0.1:1/0?driver=1", "ledger: "),
    ):
        done = run_ledger(command, name)
        assert (done.exit_code, done.stdout, "SECRET" in done.output) == (2, "", False)
        assert done.stderr.startswith(message)
    assert "name the ledger before the command, or in LOANASYNC_LEDGER" in run_ledger(command, "").stderr
    assert list(tmp_path.iterdir()) == [other]
