"""``loanasync ledger import-orphans``, and ``resolve`` while a response is in an orphan file."""

import os
from pathlib import Path
from typing import Any

import pytest

from loanasync.ledger import Ledger, Settlement, State
from support.ledger_file import entries, key, left_orphan, one_of_each, put, run_ledger, states, using

REFUSED = Settlement(state=State.REFUSED, status=422, body=b'{"approved":false}')


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "decisions.db"
    one_of_each(made)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default orphan folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "state" / "loanasync" / "orphans"


def orphan(folder: Path, file: Path, name: str) -> Path:
    return left_orphan(folder, file, entries(file)[name], REFUSED)


def test_import_prints_its_folders_and_the_option_for_others(
    file: Path, folder: Path, tmp_path: Path
) -> None:
    done = run_ledger("import-orphans", file)
    assert done.exit_code == 0
    spare = tmp_path / "loanasync-orphans"
    assert done.stderr.splitlines() == [
        f"folders searched: {folder} (does not exist), {spare} (does not exist)",
        (
            "clients of other users, and clients with LedgerPolicy(orphan_folder=...), use other folders:"
            " name them with --orphan-folder"
        ),
        "0 responses imported",
    ]
    others = [tmp_path / "a", tmp_path / "b"]
    for each, name in zip(others, ("unknown", "lost"), strict=True):
        orphan(each, file, name)
    done = run_ledger(
        "import-orphans", file, *(argument for each in others for argument in ("--orphan-folder", each))
    )
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        f"folders searched: {others[0]}, {others[1]}",
        "2 responses imported",
    ]
    assert (states(file)["unknown"], states(file)["lost"]) == ("refused", "refused")


def test_import_continues_after_an_unreadable_file(file: Path, folder: Path) -> None:
    orphan(folder, file, "unknown")
    (folder / "0-directory.json").mkdir()
    (folder / "1-deep.json").write_text("[" * 200_000)
    (folder / "2-cut.part").write_text("{")
    content = orphan(folder, file, "lost").read_text()
    (folder / "3-surrogate.json").write_text(content.replace(key("lost"), "\\ud800"))
    done = run_ledger("import-orphans", file)
    assert done.exit_code == 1
    output = {
        line.partition(": ")[0].rpartition("/")[2]: line.partition(": ")[2]
        for line in done.stdout.splitlines()
    }
    assert output == {
        "0-directory.json": "Is a directory",
        "1-deep.json": "RecursionError",
        "2-cut.part": "it is incomplete, or not an orphan file",
        "3-surrogate.json": "UnicodeEncodeError",
    }
    assert done.stderr.endswith("2 responses imported, 4 files left in place\n")
    assert (states(file)["unknown"], states(file)["lost"]) == ("refused", "refused")


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_import_from_an_unreadable_folder_fails(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(folder, file, "unknown")
    listed = Path.iterdir

    def forbidden(path: Path) -> Any:
        if path == folder:  # tests that run as root could read the folder
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", forbidden)
    done = run_ledger("import-orphans", file)
    assert (done.exit_code, done.stdout) == (1, f"{folder}: Permission denied\n")
    assert done.stderr.endswith("0 responses imported, 1 file left in place\n")


@pytest.mark.skipif(os.name != "posix", reason="users of POSIX")
def test_import_lists_the_folder_of_another_user(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = tmp_path / "loanasync-orphans"
    orphan(spare, file, "unknown")
    user = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: user)
    done = run_ledger("import-orphans", file)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"{spare}: belongs to another user")
    assert done.stderr.startswith(f"folders searched: {folder} (does not exist)\n")
    assert run_ledger("import-orphans", file, "--orphan-folder", spare).exit_code == 0
    assert states(file)["unknown"] == "refused"


def test_import_stops_when_the_ledger_fails(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(folder, file, "unknown")

    async def fail(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr("loanasync.ledger.SqliteLedger.get", fail)
    monkeypatch.setattr("loanasync.ledger.SqliteLedger.settle", fail)
    done = run_ledger("import-orphans", file)
    assert done.exit_code == 2
    assert done.stderr.startswith("the ledger is not available (ConnectionError): check --ledger")


@pytest.mark.parametrize("resolution", ["approved", "refused", "released"])
def test_resolve_is_refused_while_a_response_is_in_a_file(file: Path, folder: Path, resolution: str) -> None:
    written = orphan(folder, file, "unknown")
    for done in (
        run_ledger("resolve", file, key("unknown"), "--as", resolution, "--note", "ticket 17"),
        run_ledger("resolve", file, key("unknown"), stdin=f"{resolution[0]}\nticket 17\n"),
    ):
        assert done.exit_code == 1
        assert (
            f"stays unknown: its response may be in {written}. Run: loanasync ledger import-orphans"
            in done.stderr
        )
        assert "What did the service decide" not in done.stderr
    assert states(file)["unknown"] == "unknown"
    assert run_ledger("resolve", file, key("unknown"), "--as", "held", "--note", "ticket 17").exit_code == 0
    assert run_ledger("import-orphans", file).exit_code == 0
    assert states(file)["unknown"] == "refused"


def test_resolve_prompts_only_for_entries_that_can_be_changed(file: Path, folder: Path) -> None:
    assert not folder.exists()
    using(file, lambda ledger: put(ledger, "stated", State.REFUSED, note="ticket 5", source="person"))
    names = ("approved", "inflight", "released", "stated", "held")
    done = run_ledger("resolve", file, *map(key, names), stdin="a\nticket 17\nr\nticket 18\n")
    assert done.exit_code == 1
    assert done.stderr.count("What did the service decide") == 2
    for name, why in {
        "approved": "a decision of the service is never overwritten",
        "inflight": "a request is in progress: wait until its lease expires",
        "released": "it was not evaluated: there is nothing to resolve",
    }.items():
        assert f"{key(name)[:12]} stays {name}: {why}" in done.stderr
    assert (states(file)["stated"], states(file)["held"]) == ("approved", "refused")


def test_resolve_does_not_prompt_for_an_entry_decided_meanwhile(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not folder.exists()
    choices = iter("ssr")

    late = Settlement(state=State.APPROVED, status=201, body=b"{}")

    async def decide(ledger: Ledger) -> None:
        async for entry in ledger.scan():
            await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=late)

    def answer_prompt(*_: object, **__: object) -> str:
        """Decide the other entries while the first prompt is open."""
        using(file, decide)
        return next(choices)

    monkeypatch.setattr("loanasync.cli.ledger.resolve.typer.prompt", answer_prompt)
    done = run_ledger("resolve", file, "--note", "ticket 17")
    assert done.stderr.count("stays approved: a decision of the service is never overwritten") == 2
    assert "".join(choices) == "sr", "one prompt"
