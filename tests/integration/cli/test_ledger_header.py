"""Commands that create a ledger or change its header, and those that refuse a ledger that does not fit."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from cryptography.fernet import Fernet, MultiFernet

from loanasync import LedgerMismatchError
from loanasync.ledger import LedgerPolicy, State
from loanasync.ledger.address import ledger_at
from loanasync.ledger.header import Header, check_cipher
from loanasync.sandbox import Sandbox
from support.cli import Bulk, read, run, statuses
from support.ledger_clients import KEY
from support.ledger_file import change, create_at, key, listed, name_on, put, run_ledger, using

SERVICE = "https://loans.example.com"
NEW_KEY = "the new key of the shop"
OLD, NEW, CIPHER = (Fernet(Fernet.generate_key()) for _ in range(3))
BOTH = MultiFernet([NEW, OLD])


@pytest.fixture(autouse=True)
def _service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOANASYNC_BASE_URL", SERVICE)


@pytest.fixture(params=["file", "valkey", "postgres"])
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a ledger that does not exist yet."""
    return "decisions.db" if request.param == "file" else name_on(request.getfixturevalue(request.param))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that sets LOANASYNC_LEDGER_KEY and LOANASYNC_LEDGER_OLD_KEYS."""

    def use(key: str, old_keys: str = "") -> None:
        monkeypatch.setenv("LOANASYNC_LEDGER_KEY", key)
        monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", old_keys)

    return use


def header_of(name: str, change: Callable[[Header], Header] | None = None) -> Header:
    """Return the header of a ledger, after a change."""

    async def read() -> Header:
        async with ledger_at(name) as ledger:
            header = await ledger.header()
            if change is not None:
                assert await ledger.change_header(header, change(header))
            return await ledger.header()

    return asyncio.run(read())


def create(name: str) -> tuple[int, str, str]:
    done = run(None, "ledger", "--ledger", name, "create")
    return done.returncode, done.stdout, done.stderr


def refused(command: str, name: str, *arguments: str) -> str:
    """Return the message of a command that fails and changes nothing."""
    before = header_of(name)
    done = run_ledger(command, name, *arguments)
    assert (done.exit_code, done.stdout, header_of(name)) == (2, "", before)
    return done.stderr


def test_create_makes_an_empty_ledger_once(name: str, use: Callable[[str], None]) -> None:
    use(KEY.decode())
    assert create(name) == (0, "", "created\n")
    header = header_of(name)
    assert (header.service, header.secrets, len(header.keys)) == (SERVICE, (), 1)
    assert run_ledger("ls", name).stderr == "no entries\n"
    again = (2, "", "ledger: exists already: name another file, table or prefix\n")
    assert (create(name), header_of(name)) == (again, header)


def test_secrets_of_a_ledger_are_not_printed(name: str) -> None:
    create_at(name)
    secret = KEY.decode() if "://" in name else header_of(name).secrets[0]
    assert [each for each in ("ls", "sweep", "rotate-key") if secret in run_ledger(each, name).output] == []
    assert "://" in name or Path(name).stat().st_mode & 0o077 == 0


def test_create_without_a_key_makes_one(name: str, use: Callable[[str, str], None]) -> None:
    code, printed, message = create(name)
    assert (code, message) == (0, "created\n")
    if name == "decisions.db":
        assert (printed, len(header_of(name).secrets)) == ("", 1)
        return
    variable, _, key = printed.strip().partition("=")
    assert (variable, len(key) >= 32) == ("LOANASYNC_LEDGER_KEY", True)
    assert create(name)[:2] == (2, ""), "no other key is printed"
    use(NEW_KEY, key)
    assert run_ledger("rotate-key", name).exit_code == 0, "it is the key of the ledger"


@pytest.mark.parametrize(
    ("base_url", "message"),
    [
        ("", "LOANASYNC_BASE_URL: must be set in the environment\n"),
        ("loans.example.com", "base_url: must be a URL such as https://loans.example.com"),
    ],
)
def test_create_without_a_service_is_refused(
    name: str, base_url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOANASYNC_BASE_URL", base_url)
    code, printed, errors = create(name)
    assert (code, printed, errors.startswith(message)) == (2, "", True)
    assert run_ledger("ls", name).exit_code == 2


def test_confirm_lets_clients_send_again_also_to_another_base_url(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(name)
    header_of(name, lambda header: evolve(header, mark="lost writes"))
    done = run_ledger("confirm", name)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"clients of {SERVICE} send again\n")
    assert (before := header_of(name)).mark == ""
    wrong = refused("confirm", name, "--service", "loans.example.com")
    assert wrong.startswith("base_url: must be a URL")
    done = run_ledger("confirm", name, "--service", "HTTPS://loans.example.com/v2/")
    message = "clients of https://loans.example.com/v2 send again\n"
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", message)
    moved = header_of(name)
    assert (moved.service, moved.generation) == ("https://loans.example.com/v2", before.generation + 2)
    monkeypatch.setenv("LOANASYNC_SHOP_ID", "shop")
    monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", "token")
    former = run_ledger("show", name, "--customer", stdin="TSTXYZ00A00A000A\n")
    assert former.exit_code == 2
    assert f"belongs to {moved.service}, and the client uses {SERVICE}" in former.stderr


def test_rotate_key_adds_a_key(name: str, use: Callable[..., None]) -> None:
    create_at(name, key=KEY)
    use(NEW_KEY)
    message = "has another key: set LOANASYNC_LEDGER_KEY or LedgerPolicy(key=...) to the key of the ledger\n"
    assert refused("rotate-key", name).endswith(message), "without the present key"
    use(NEW_KEY, KEY.decode())
    done = run_ledger("rotate-key", name)
    assert done.stderr == "new entries have the new key; keep the former one in LOANASYNC_LEDGER_OLD_KEYS\n"
    assert (done.exit_code, done.stdout, len(header_of(name).keys)) == (0, "", 2)
    assert "has this key already: set LOANASYNC_LEDGER_KEY to the new key" in refused("rotate-key", name)
    use("")
    assert "was created with a key: set LOANASYNC_LEDGER_KEY" in refused("rotate-key", name)


def test_rotate_key_of_a_file_with_its_own_secret(use: Callable[[str], None]) -> None:
    create_at("decisions.db")
    before = header_of("decisions.db")
    done = run_ledger("rotate-key", "decisions.db")
    message = "new entries have the new key; the ledger keeps the former one\n"
    assert (done.exit_code, done.stderr) == (0, message)
    assert header_of("decisions.db").secrets[1:] == before.secrets
    use(NEW_KEY)
    message = "has its own secret, so it needs no key: remove LOANASYNC_LEDGER_KEY or LedgerPolicy.key"
    assert message in refused("rotate-key", "decisions.db")


def test_rotate_key_for_a_new_cipher_may_keep_the_key(
    name: str, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards, clients need the former key of the cipher for stored responses only."""
    create_at(name, key=KEY, encrypt=OLD)
    before = header_of(name)
    use(KEY.decode())
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    assert "has another cipher: set LOANASYNC_LEDGER_CIPHER" in refused("rotate-key", name)
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:BOTH")
    done = run_ledger("rotate-key", name)
    message = "the ledger has a new check value of the cipher, and the same key\n"
    assert (done.exit_code, done.stderr, header_of(name).keys) == (0, message, before.keys)
    monkeypatch.delenv("LOANASYNC_LEDGER_CIPHER")  # it is not needed for a new key
    use(NEW_KEY, KEY.decode())
    assert run_ledger("rotate-key", name).exit_code == 0
    check_cipher(header_of(name), LedgerPolicy(encrypt=NEW))
    with pytest.raises(LedgerMismatchError, match="has another cipher"):
        check_cipher(header_of(name), LedgerPolicy(encrypt=OLD))


@pytest.mark.parametrize(
    "command", [("confirm",), ("copy", "other.db"), ("rotate-key",), ("ls",)], ids=lambda each: each[0]
)
def test_command_for_an_earlier_format_is_refused(command: tuple[str, ...]) -> None:
    create_at("decisions.db")
    change(Path("decisions.db"), "PRAGMA user_version = 3")
    content = Path("decisions.db").read_bytes()
    done = run_ledger(command[0], "decisions.db", *command[1:])
    message = "the ledger decisions.db has another format, which this version of loanasync cannot read"
    assert (done.exit_code, done.stdout, done.stderr.startswith(message)) == (2, "", True)
    assert "finish its approvals with the version that wrote it" in done.stderr
    assert (create("decisions.db")[0], Path("decisions.db").read_bytes()) == (2, content)


# Runs of approve-many


@pytest.fixture(params=["valkey", "postgres"])
def on_server(request: pytest.FixtureRequest) -> str:
    """Return the name of a ledger on a server that does not exist yet."""
    return name_on(request.getfixturevalue(request.param))


def refused_run(bulk: Bulk) -> str:
    """Return the message of a run that sends nothing and creates no file, and of its plan."""
    before, files = bulk.calls, {*bulk.file.parent.iterdir()}
    code, message = bulk.run()
    assert (code, bulk.calls) == (2, before)
    assert {*bulk.file.parent.iterdir()} == files
    plan = run(bulk.sandbox, "approve-many", bulk.file, "--dry-run", *bulk.options)
    assert (plan.returncode, plan.stderr) == (2, message)
    return message


def test_old_key_after_a_rotation_sends_nothing(
    tmp_path: Path, served: Sandbox, name: str, use: Callable[..., None]
) -> None:
    create_at(name, served.base_url, key=KEY)
    bulk = Bulk(tmp_path, served, "approved", ledger=name)
    use(KEY.decode())
    assert bulk.run()[0] == 0
    use(NEW_KEY, KEY.decode())
    assert run_ledger("rotate-key", name).exit_code == 0
    use(KEY.decode())
    assert "has another key: set LOANASYNC_LEDGER_KEY" in refused_run(bulk)
    use(NEW_KEY)
    assert "has entries under an earlier key: add that key to LOANASYNC_LEDGER_OLD_KEYS" in refused_run(bulk)
    use(NEW_KEY, KEY.decode())
    assert (bulk.run()[0], statuses(bulk.out)) == (0, {bulk.codes[0]: "approved"})
    assert (bulk.run(out=tmp_path / "again.jsonl")[0], bulk.calls) == (0, 1), "it is decided"
    assert [each["state"] for each in listed(name)] == ["approved"]


def test_cipher_encrypts_the_responses_of_the_default_ledger(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", f"{__name__}:CIPHER")
    bulk = Bulk(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    written = bulk.out.read_bytes()
    assert b"/apply/" in written, "the redirect"
    ledger = bulk.ledger
    assert b"/apply/" not in b"".join(path.read_bytes() for path in ledger.parent.glob("*"))
    [entry] = listed(ledger)
    assert "/apply/" in run_ledger("show", ledger, entry["key"], "--reveal").stdout
    using(ledger, lambda ledger: put(ledger, "clear", State.APPROVED, body=b'{"amount": 45000}'))
    assert "amount            45000" in run_ledger("show", ledger, key("clear")).stdout
    monkeypatch.delenv("LOANASYNC_LEDGER_CIPHER")
    for code, message in (bulk.run(), bulk.run("--dry-run")):
        assert (code, "is encrypted: set LOANASYNC_LEDGER_CIPHER" in message) == (2, True)


def test_ledger_of_another_service_sends_nothing(
    tmp_path: Path, served: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(name, f"{served.base_url}/v1", key=KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    bulk = Bulk(tmp_path, served, "approved", ledger=name)
    message = refused_run(bulk)
    assert f"belongs to {served.base_url}/v1, and the client uses {served.base_url}: " in message
    assert "If the service has moved, run loanasync ledger confirm --service URL" in message
    assert run_ledger("confirm", name, "--service", served.base_url).exit_code == 0
    assert (bulk.run()[0], bulk.calls) == (0, 1)


COMMANDS = {
    "ls": (),
    "show": ("0123abcd",),
    "sweep": (),
    "resolve": ("0123abcd", "--as", "held", "--note", "x"),
    "purge": ("--older-than", "1d"),
    "confirm": (),
    "copy": ("other.db",),
    "forget": (),
    "rotate-key": (),
}


def test_commands_without_their_ledger_fail_and_create_nothing(
    tmp_path: Path, served: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    missing = "does not exist: check the name, or run loanasync ledger create"
    assert missing in refused_run(Bulk(tmp_path, served, "approved", ledger=name))
    (empty := tmp_path / "empty.db").touch()
    message = f"the ledger {empty} is empty, or is not a ledger: restore it, or name another file"
    assert message in refused_run(Bulk(tmp_path, served, "approved", ledger=empty))
    assert empty.read_bytes() == b""
    for command, arguments in COMMANDS.items():
        done = run_ledger(command, name, *arguments)
        assert (done.exit_code, done.stdout, missing in done.stderr) == (2, "", True)
    create_at(name)  # which a part of a ledger would prevent


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
    assert (code, "s3cret" in output, "s3cret" in Path(f"{bulk.out}.ledger").read_text()) == (3, False, False)
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
