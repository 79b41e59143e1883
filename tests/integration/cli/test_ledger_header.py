"""``loanasync ledger create``, ``move-service``, ``rotate-key`` and ``confirm``, and what they refuse."""

import asyncio
import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from loanasync import LedgerMismatchError
from loanasync.ledger import LedgerPolicy
from loanasync.ledger.address import ledger_at
from loanasync.ledger.header import Header, check_cipher
from support.cli import run
from support.ledger_clients import KEY
from support.ledger_file import change, create_at, name_on, run_ledger

SERVICE = "https://loans.example.com"
NEW_KEY = "the new key of the shop"


@pytest.fixture(autouse=True)
def _service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOANASYNC_BASE_URL", SERVICE)


@pytest.fixture(params=["file", "valkey", "postgres"])
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a ledger that does not exist yet."""
    return "decisions.db" if request.param == "file" else name_on(request.getfixturevalue(request.param))


@pytest.fixture(params=["valkey", "postgres"])
def server_name(request: pytest.FixtureRequest) -> str:
    """Return the name of a ledger on a server that does not exist yet."""
    return name_on(request.getfixturevalue(request.param))


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
    done = run(None, "ledger", "create", name)
    return done.returncode, done.stdout, done.stderr


def refused(command: str, name: str, *arguments: str) -> str:
    """Return the message of a command that fails and changes nothing."""
    before = header_of(name)
    done = run_ledger(command, name, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert header_of(name) == before
    return done.stderr


# create


def test_create_makes_an_empty_ledger_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    assert create(name) == (0, "", "created\n")
    header = header_of(name)
    assert (header.service, header.secrets, len(header.keys)) == (SERVICE, (), 1)
    assert run_ledger("ls", name).stderr == "no entries\n"
    again = (2, "", "ledger: exists already: name another file, table or prefix\n")
    assert create(name) == again
    assert header_of(name) == header


def test_create_on_a_server_prints_a_new_key_once(server_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed, message = create(server_name)
    variable, _, key = printed.strip().partition("=")
    assert (code, variable, message) == (0, "LOANASYNC_LEDGER_KEY", "created\n")
    assert len(key) >= 32
    assert create(server_name)[:2] == (2, ""), "no other key is printed"
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", NEW_KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", key)
    assert run_ledger("rotate-key", server_name).exit_code == 0, "it is the key of the ledger"


def test_create_of_a_file_without_a_key_makes_its_own_secret() -> None:
    assert create("decisions.db") == (0, "", "created\n")
    assert len(header_of("decisions.db").secrets) == 1


@pytest.mark.parametrize(
    ("base_url", "message"),
    [
        (None, "LOANASYNC_BASE_URL: must be set in the environment\n"),
        ("", "LOANASYNC_BASE_URL: must be set in the environment\n"),
        ("loans.example.com", "base_url: must be a URL such as https://loans.example.com"),
    ],
)
def test_create_without_a_service_is_refused(
    name: str, base_url: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOANASYNC_BASE_URL")
    if base_url is not None:
        monkeypatch.setenv("LOANASYNC_BASE_URL", base_url)
    code, printed, errors = create(name)
    assert (code, printed) == (2, "")
    assert errors.startswith(message)
    assert run_ledger("ls", name).exit_code == 2


# move-service


def test_move_service_changes_the_base_url(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_at(name)
    before = header_of(name)
    done = run_ledger("move-service", name, "HTTPS://loans.example.com/v2/")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "the ledger belongs to https://loans.example.com/v2\n"
    after = header_of(name)
    assert (after.id, after.generation) == (before.id, before.generation + 1)
    assert after.service == "https://loans.example.com/v2"
    monkeypatch.setenv("LOANASYNC_SHOP_ID", "shop")
    monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", "token")
    former = run_ledger("show", name, "--customer", stdin="TSTXYZ00A00A000A\n")
    assert former.exit_code == 2
    assert f"belongs to https://loans.example.com/v2, and the client uses {SERVICE}" in former.stderr
    assert "run loanasync ledger move-service" in former.stderr


def test_move_service_to_an_invalid_url_is_refused(name: str) -> None:
    create_at(name)
    assert refused("move-service", name, "loans.example.com").startswith("base_url: must be a URL")


# rotate-key


def test_rotate_key_adds_a_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_at(name, key=KEY)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", NEW_KEY)
    message = "has another key: set LOANASYNC_LEDGER_KEY or LedgerPolicy(key=...) to the key of the ledger\n"
    assert refused("rotate-key", name).endswith(message), "without the present key"
    monkeypatch.setenv("LOANASYNC_LEDGER_OLD_KEYS", KEY.decode())
    done = run_ledger("rotate-key", name)
    assert done.stderr == "new entries have the new key; keep the former one in LOANASYNC_LEDGER_OLD_KEYS\n"
    assert (done.exit_code, done.stdout, len(header_of(name).keys)) == (0, "", 2)
    assert "has this key already: set LOANASYNC_LEDGER_KEY to the new key" in refused("rotate-key", name)
    monkeypatch.delenv("LOANASYNC_LEDGER_KEY")
    monkeypatch.delenv("LOANASYNC_LEDGER_OLD_KEYS")
    assert "was created with a key: set LOANASYNC_LEDGER_KEY" in refused("rotate-key", name)


def test_rotate_key_of_a_file_with_its_own_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    create_at("decisions.db")
    before = header_of("decisions.db")
    done = run_ledger("rotate-key", "decisions.db")
    assert (done.exit_code, done.stderr) == (
        0,
        "new entries have the new key; the ledger keeps the former one\n",
    )
    assert header_of("decisions.db").secrets[1:] == before.secrets
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", NEW_KEY)
    message = "has its own secret, so it needs no key: remove LOANASYNC_LEDGER_KEY or LedgerPolicy.key"
    assert message in refused("rotate-key", "decisions.db")


def test_rotate_key_writes_the_check_value_of_a_new_cipher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards, clients need the former key of the cipher for stored responses only."""
    (tmp_path / "shop_ciphers.py").write_text(
        "from cryptography.fernet import Fernet, MultiFernet\n"
        "old, new, other = (Fernet(Fernet.generate_key()) for _ in range(3))\n"
        "both = MultiFernet([new, old])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ciphers = importlib.import_module("shop_ciphers")
    create_at("decisions.db", encrypt=ciphers.old)
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", "shop_ciphers:other")
    assert "has another cipher: set LOANASYNC_LEDGER_CIPHER" in refused("rotate-key", "decisions.db")
    monkeypatch.setenv("LOANASYNC_LEDGER_CIPHER", "shop_ciphers:both")
    assert run_ledger("rotate-key", "decisions.db").exit_code == 0
    check_cipher(header_of("decisions.db"), LedgerPolicy(encrypt=ciphers.new))
    with pytest.raises(LedgerMismatchError, match="has another cipher"):
        check_cipher(header_of("decisions.db"), LedgerPolicy(encrypt=ciphers.old))
    monkeypatch.delenv("LOANASYNC_LEDGER_CIPHER")
    assert run_ledger("rotate-key", "decisions.db").exit_code == 0, "the cipher is not needed"
    check_cipher(header_of("decisions.db"), LedgerPolicy(encrypt=ciphers.new))


# confirm


def test_confirm_lets_clients_send_again(name: str) -> None:
    create_at(name)
    header_of(name, lambda header: evolve(header, has_lost_writes=True))
    done = run_ledger("confirm", name)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "clients send again\n")
    assert not header_of(name).has_lost_writes


# Ledgers that no command uses

COMMANDS = {"confirm": (), "move-service": (SERVICE,), "rotate-key": (), "ls": ()}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_for_an_earlier_format_is_refused(command: str) -> None:
    create_at("decisions.db")
    change(Path("decisions.db"), "PRAGMA user_version = 3")
    content = Path("decisions.db").read_bytes()
    done = run_ledger(command, "decisions.db", *COMMANDS[command])
    assert (done.exit_code, done.stdout) == (2, "")
    message = "the ledger decisions.db has another format, which this version of loanasync cannot read"
    assert done.stderr.startswith(message)
    assert "finish its approvals with the version that wrote it" in done.stderr
    assert create("decisions.db")[0] == 2
    assert Path("decisions.db").read_bytes() == content


@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_its_ledger_is_refused(name: str, command: str) -> None:
    done = run_ledger(command, name, *COMMANDS[command])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "does not exist: check the name, or run loanasync ledger create " in done.stderr


def test_secrets_of_a_ledger_are_not_printed(name: str) -> None:
    create_at(name)
    secret = KEY.decode() if "://" in name else header_of(name).secrets[0]
    for command in ("ls", "sweep", "rotate-key"):
        assert secret not in run_ledger(command, name).output
    if "://" not in name:
        assert secret in json.dumps(header_of(name).secrets)
        assert Path(name).stat().st_mode & 0o077 == 0
