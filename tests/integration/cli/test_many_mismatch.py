"""Commands with a ledger on a server, or one that does not fit or is missing: the message says what to do."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from cryptography.fernet import Fernet
from redis.asyncio import Redis

from loanasync.ledger import State
from loanasync.sandbox import Sandbox
from support.cli import Bulk, read, run, statuses
from support.ledger_clients import KEY
from support.ledger_file import change, create_at, key, listed, name_on, put, run_ledger, using

NEW_KEY = "the new key of the shop"
CIPHER = Fernet(Fernet.generate_key())
OTHER_CIPHER = Fernet(Fernet.generate_key())


@pytest.fixture(params=["file", "valkey", "postgres"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the name of a ledger that does not exist yet."""
    if request.param == "file":
        return str(tmp_path / "decisions.db")
    return name_on(request.getfixturevalue(request.param))


@pytest.fixture(params=["valkey", "postgres"])
def on_server(request: pytest.FixtureRequest) -> str:
    """Return the name of a ledger on a server that does not exist yet."""
    return name_on(request.getfixturevalue(request.param))


def refused(bulk: Bulk) -> str:
    """Return the message of a run that sends nothing and creates no file, and of its plan."""
    before, files = bulk.calls, {*bulk.file.parent.iterdir()}
    code, message = bulk.run()
    assert (code, bulk.calls, {*bulk.file.parent.iterdir()}) == (2, before, files)
    plan = run(bulk.sandbox, "approve-many", bulk.file, "--dry-run", *bulk.options)
    assert (plan.returncode, plan.stderr) == (2, message)
    return message


@pytest.mark.parametrize(
    ("policy", "settings", "message"),
    [
        ({"key": KEY}, {}, "was created with a key: set LOANASYNC_LEDGER_KEY"),
        ({"key": KEY}, {"KEY": NEW_KEY}, "has another key: set LOANASYNC_LEDGER_KEY"),
        ({}, {"KEY": NEW_KEY}, "has its own secret, so it needs no key"),
        ({"encrypt": CIPHER}, {}, "is encrypted: set LOANASYNC_LEDGER_CIPHER"),
        (
            {"encrypt": CIPHER},
            {"CIPHER": f"{__name__}:OTHER_CIPHER"},
            "has another cipher: set LOANASYNC_LED",
        ),
        (
            {},
            {"CIPHER": f"{__name__}:CIPHER"},
            "was created without a cipher: remove LOANASYNC_LEDGER_CIPHER",
        ),
    ],
)
def test_wrong_key_or_cipher_sends_nothing(
    tmp_path: Path,
    served: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    policy: dict[str, Any],
    settings: dict[str, str],
    message: str,
) -> None:
    ledger = tmp_path / "decisions.db"
    create_at(ledger, served.base_url, **policy)
    for variable, value in settings.items():
        monkeypatch.setenv(f"LOANASYNC_LEDGER_{variable}", value)
    assert f"the ledger {ledger} {message}" in refused(Bulk(tmp_path, served, "approved", ledger=ledger))


def test_old_key_after_a_rotation_sends_nothing(
    tmp_path: Path, served: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(key: str, old: str) -> None:
        monkeypatch.setenv("LOANASYNC_LEDGER_KEY", key)
        monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", old)

    create_at(name, served.base_url, key=KEY)
    bulk = Bulk(tmp_path, served, "approved", ledger=name)
    use(KEY.decode(), "")
    assert bulk.run()[0] == 0
    use(NEW_KEY, KEY.decode())
    assert run_ledger("rotate-key", name).exit_code == 0
    use(KEY.decode(), "")
    assert "has another key: set LOANASYNC_LEDGER_KEY" in refused(bulk)
    use(NEW_KEY, "")
    assert "has entries under an earlier key: add that key to LOANASYNC_LEDGER_OLD_KEYS" in refused(bulk)
    use(NEW_KEY, KEY.decode())
    assert (bulk.run()[0], statuses(bulk.out)) == (0, {bulk.codes[0]: "approved"})
    assert (bulk.run(out=tmp_path / "again.jsonl")[0], bulk.calls) == (0, 1), "it is decided"
    assert [each["state"] for each in listed(name)] == ["approved"]


def test_cipher_also_encrypts_the_records_of_a_job(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    bulk = Bulk(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    written = bulk.out.read_bytes()
    assert b"/apply/" in written, "the redirect"
    assert b"/apply/" not in b"".join(path.read_bytes() for path in tmp_path.glob("out.jsonl.ledger*"))
    assert (bulk.export()[0], bulk.out.read_bytes()) == (0, written)
    [entry] = listed(bulk.job)
    assert "/apply/" in run_ledger("ls", bulk.job, "--json", "--responses").stdout
    assert "/apply/" in run_ledger("show", bulk.job, entry["key"], "--reveal").stdout
    using(bulk.job, lambda ledger: put(ledger, "clear", State.APPROVED, body=b'{"amount": 45000}'))
    assert "amount            45000" in run_ledger("show", bulk.job, key("clear")).stdout
    monkeypatch.delenv("LOANASYNC_LEDGER_CIPHER")
    for code, message in (bulk.run(), bulk.export()):
        assert (code, "is encrypted: set LOANASYNC_LEDGER_CIPHER" in message) == (2, True)


def test_ledger_of_another_service_sends_nothing(
    tmp_path: Path, served: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(name, f"{served.base_url}/v1", key=KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    bulk = Bulk(tmp_path, served, "approved", ledger=name)
    message = refused(bulk)
    assert f"belongs to {served.base_url}/v1, and the client uses {served.base_url}: " in message
    assert "If the service has moved, run loanasync ledger move-service" in message
    assert run_ledger("move-service", name, served.base_url).exit_code == 0
    assert (bulk.run()[0], bulk.calls) == (0, 1)


def test_decisions_of_another_service_in_the_ledger_of_a_job_are_kept(
    tmp_path: Path, served: Sandbox
) -> None:
    bulk, service = Bulk(tmp_path, served, "approved"), "https://loans.example.com"
    create_at(bulk.job, service)
    using(bulk.job, lambda ledger: put(ledger, "approved", State.APPROVED))
    for options in ((), ("--sandbox",)):
        code, message = bulk.run(*options)
        assert (code, bulk.calls, f"belongs to {service}" in message) == (2, 0, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, or is not a ledger: restore it, or name another file"),
        (b"SQLite format 3\0" + bytes(5000), "is damaged, truncated, or not an SQLite file"),
        (None, "has another format, which this version"),
    ],
    ids=["empty", "damaged", "another format"],
)
def test_unreadable_ledger_sends_nothing(
    tmp_path: Path, served: Sandbox, content: bytes | None, message: str
) -> None:
    ledger = tmp_path / "decisions.db"
    if content is None:
        create_at(ledger, served.base_url)
        change(ledger, "PRAGMA user_version = 3")
    else:
        ledger.write_bytes(content)
    before = ledger.read_bytes()
    assert f"the ledger {ledger} {message}" in refused(Bulk(tmp_path, served, "approved", ledger=ledger))
    assert ledger.read_bytes() == before


def exists(name: str) -> bool:
    """Return True if anything is stored under a name."""

    async def exists_on_server() -> bool:
        address, _, own = name.partition("?")
        parameter, _, value = own.partition("=")
        if parameter == "table":
            connection = await asyncpg.connect(address)
            found = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", value)
            await connection.close()
            return bool(found)
        async with Redis.from_url(address) as client:
            return bool([name async for name in client.scan_iter(f"{value.removesuffix('%3A')}:*")])

    return asyncio.run(exists_on_server()) if "://" in name else Path(name).exists()


COMMANDS = {
    "ls": (),
    "show": ("0123abcd",),
    "sweep": (),
    "resolve": (),
    "purge": ("--older-than", "1d", "--yes"),
    "import-orphans": (),
    "confirm": (),
    "move-service": ("https://loans.example.com",),
    "rotate-key": (),
}


def test_commands_without_their_ledger_fail_and_create_nothing(
    tmp_path: Path, served: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    missing = "does not exist: check the name, or run loanasync ledger create"
    assert missing in refused(Bulk(tmp_path, served, "approved", ledger=name))
    for command, arguments in COMMANDS.items():
        done = run_ledger(command, name, *arguments)
        assert (done.exit_code, done.stdout, missing in done.stderr) == (2, "", True)
    assert not exists(name)
    create_at(name)
    assert exists(name)


def test_approve_many_resumes_from_a_ledger_on_a_server(
    tmp_path: Path, on_server: str, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(on_server, served.base_url)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    # Both servers accept any password of this user.
    scheme, _, rest = on_server.partition("://")
    user = "default" if scheme == "redis" else "postgres"
    secret = f"{scheme}://{user}:s3cret@{rest.rpartition('@')[2]}"
    bulk = Bulk(tmp_path, served, "approved", "refused", "resetafter", ledger=secret)
    code, output = bulk.run()
    assert (code, "s3cret" in output, b"s3cret" in bulk.job.read_bytes()) == (3, False, False)
    unknown = read(bulk.out)[2]["entry"]
    run_ledger("resolve", on_server, unknown, "--as", "approved", "--note", "ticket 17")
    elsewhere = tmp_path / "elsewhere.jsonl"
    assert bulk.run(out=elsewhere)[0] == 0
    assert [*statuses(elsewhere).values()] == ["approved", "refused", "approved"]
    assert bulk.calls == 3


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_unreachable_server_is_reported_without_its_password(
    tmp_path: Path, served: Sandbox, scheme: str
) -> None:
    url = f"{scheme}://shop:SECRET@127.0.0.1:1/0"
    done = run_ledger("ls", url)
    code, output = Bulk(tmp_path, served, "approved", ledger=url).run()
    for exit_code, text in ((done.exit_code, done.output), (code, output)):
        assert exit_code == 2
        assert text.startswith("the ledger is not available (")
        assert "SECRET" not in text
    assert served.journal.calls(operation="approve") == []
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]
