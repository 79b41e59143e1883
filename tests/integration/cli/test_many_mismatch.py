"""``approve-many`` with a ledger that does not fit: nothing is sent, and the message says what to do."""

import json
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, run, statuses, write
from support.ledger_clients import KEY
from support.ledger_file import change, create_at, name_on, run_ledger

NEW_KEY = "the new key of the shop"
CIPHER = Fernet(Fernet.generate_key())
OTHER_CIPHER = Fernet(Fernet.generate_key())


@pytest.fixture(params=["file", "valkey", "postgres"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the name of a ledger that does not exist yet."""
    if request.param == "file":
        return str(tmp_path / "decisions.db")
    return name_on(request.getfixturevalue(request.param))


class Bulk:
    """A file with one row, and its results."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        row = make_row("approved")
        create(sandbox, [row])
        self.file = write(folder / "rows.jsonl", [row])
        self.out = folder / "out.csv"

    @property
    def requested(self) -> int:
        return len(self.sandbox.journal.calls(operation="approve"))

    def run(self, *options: object) -> tuple[int, str]:
        done = run(self.sandbox, "approve-many", self.file, "-o", self.out, *options)
        return done.returncode, done.stderr

    def refused(self, *options: object) -> str:
        """Return the message of a run that sends nothing, and of its plan."""
        before = self.requested
        code, message = self.run(*options)
        assert (code, self.requested) == (2, before)
        plan = run(self.sandbox, "approve-many", self.file, "--dry-run", *options)
        assert (plan.returncode, plan.stderr) == (2, message)
        return message


@pytest.fixture
def bulk(tmp_path: Path, served: Sandbox) -> Bulk:
    return Bulk(tmp_path, served)


def test_wrong_or_missing_key_sends_nothing(bulk: Bulk, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_at(name, bulk.sandbox.base_url, key=KEY)
    assert "was created with a key: set LOANASYNC_LEDGER_KEY" in bulk.refused("--ledger", name)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", NEW_KEY)
    message = bulk.refused("--ledger", name)
    assert message.startswith("the ledger ")
    assert "has another key: set LOANASYNC_LEDGER_KEY" in message
    assert not bulk.out.exists()
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    assert (bulk.run("--ledger", name)[0], bulk.requested) == (0, 1)


def test_key_of_a_ledger_with_its_own_secret_sends_nothing(
    bulk: Bulk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "decisions.db"
    create_at(ledger, bulk.sandbox.base_url)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", NEW_KEY)
    assert f"the ledger {ledger} has its own secret, so it needs no key" in bulk.refused("--ledger", ledger)


def test_old_key_after_a_rotation_sends_nothing(
    bulk: Bulk, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(name, bulk.sandbox.base_url, key=KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    assert bulk.run("--ledger", name)[0] == 0
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", NEW_KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", KEY.decode())
    assert run_ledger("rotate-key", name).exit_code == 0
    bulk.out = tmp_path / "again.jsonl"
    for key, old, message in (
        (KEY.decode(), "", "has another key: set LOANASYNC_LEDGER_KEY"),
        (NEW_KEY, "", "has entries under an earlier key: add that key to LOANASYNC_LEDGER_OLD_KEYS"),
    ):
        monkeypatch.setenv("LOANASYNC_LEDGER_KEY", key)
        monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", old)
        assert message in bulk.refused("--ledger", name)
    monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", KEY.decode())
    assert (bulk.run("--ledger", name)[0], bulk.requested) == (0, 1), "a decided customer is not sent again"
    assert [*statuses(bulk.out).values()] == ["approved"]


def test_wrong_or_missing_cipher_sends_nothing(
    bulk: Bulk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(name, bulk.sandbox.base_url, key=KEY, encrypt=CIPHER)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    assert "is encrypted: set LOANASYNC_LEDGER_CIPHER" in bulk.refused("--ledger", name)
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:OTHER_CIPHER")
    assert "has another cipher: set LOANASYNC_LEDGER_CIPHER" in bulk.refused("--ledger", name)
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    assert (bulk.run("--ledger", name)[0], bulk.requested) == (0, 1)


def test_cipher_also_encrypts_the_records_of_a_job(
    bulk: Bulk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    assert (bulk.run()[0], bulk.requested) == (0, 1)
    job, written = tmp_path / "out.csv.ledger", bulk.out.read_bytes()
    assert b"/apply/" in written, "the redirect"
    assert b"/apply/" not in b"".join(path.read_bytes() for path in tmp_path.glob("out.csv.ledger*"))
    assert run(None, "export", job).returncode == 0
    assert bulk.out.read_bytes() == written
    monkeypatch.delenv("LOANASYNC_LEDGER_CIPHER")
    assert "is encrypted: set LOANASYNC_LEDGER_CIPHER" in bulk.run()[1]
    refused = run(None, "export", job)
    assert (refused.returncode, "LOANASYNC_LEDGER_CIPHER" in refused.stderr) == (2, True)


def test_cipher_of_a_ledger_without_one_sends_nothing(
    bulk: Bulk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "decisions.db"
    create_at(ledger, bulk.sandbox.base_url)
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    message = bulk.refused("--ledger", ledger)
    assert f"the ledger {ledger} was created without a cipher: remove LOANASYNC_LEDGER_CIPHER" in message


def test_ledger_of_another_service_sends_nothing(
    bulk: Bulk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(name, f"{bulk.sandbox.base_url}/v1", key=KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    message = bulk.refused("--ledger", name)
    service = bulk.sandbox.base_url
    assert f"belongs to {service}/v1, and the client uses {service}: " in message
    assert "If the service has moved, run loanasync ledger move-service" in message
    assert run_ledger("move-service", name, service).exit_code == 0
    assert (bulk.run("--ledger", name)[0], bulk.requested) == (0, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty or truncated: restore it, or name another file"),
        (b"SQLite format 3\0" + bytes(50), "is empty or truncated: restore it, or name another file"),
        (b"SQLite format 3\0" + bytes(5000), "is damaged, truncated, or not an SQLite file"),
    ],
    ids=["empty", "truncated", "damaged"],
)
def test_damaged_ledger_sends_nothing(bulk: Bulk, tmp_path: Path, content: bytes, message: str) -> None:
    ledger = tmp_path / "decisions.db"
    ledger.write_bytes(content)
    assert f"the ledger {ledger} {message}" in bulk.refused("--ledger", ledger)
    assert ledger.read_bytes() == content


def test_earlier_format_sends_nothing(bulk: Bulk, tmp_path: Path) -> None:
    ledger = tmp_path / "decisions.db"
    create_at(ledger, bulk.sandbox.base_url)
    change(ledger, "PRAGMA user_version = 3")
    assert f"the ledger {ledger} has an earlier format, which this version" in bulk.refused(
        "--ledger", ledger
    )


@pytest.mark.parametrize("size", [50, 8192])
def test_truncated_job_file_sends_nothing(bulk: Bulk, tmp_path: Path, size: int) -> None:
    assert bulk.run()[0] == 0
    bulk.out.unlink()
    own = tmp_path / "out.csv.ledger"
    content = own.read_bytes()
    own.write_bytes(content[:size])
    code, printed = bulk.run()
    assert (code, bulk.requested) == (2, 1)
    assert f"{own} is " in printed
    assert "truncated" in printed
    own.write_bytes(content)
    assert (bulk.run()[0], bulk.requested) == (0, 1)


def test_earlier_copy_of_the_job_file_sends_nothing(bulk: Bulk, tmp_path: Path) -> None:
    """A restored copy lacks the customers of later runs."""
    own, rows = tmp_path / "out.csv.ledger", [json.loads(bulk.file.read_text(encoding="utf-8"))]
    assert bulk.run()[0] == 0
    copy = own.read_bytes()
    rows.append(make_row("approved"))
    create(bulk.sandbox, rows[1:])
    write(bulk.file, rows)
    assert (bulk.run()[0], bulk.requested) == (0, 2)
    bulk.out.unlink()
    own.write_bytes(copy)
    for _ in range(2):
        code, printed = bulk.run()
        assert (code, bulk.requested) == (2, 2)
        assert f"the ledger {own} has lost writes" in printed
        assert "then run loanasync ledger confirm" in printed
