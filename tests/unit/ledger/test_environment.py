"""Variables of the ledger: values, mistyped names, and the client that `LoanClient.from_env` creates."""

import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from cryptography.fernet import Fernet

from loanasync import ConfigurationError, LoanClient, Timeout
from loanasync._environment import ledger_variables, shop_settings
from loanasync.ledger import LedgerPolicy, MemoryLedger, PostgresLedger, RedisLedger, SqliteLedger
from loanasync.ledger.address import ledger_at, ledger_settings, name_without_password

KEY = "the present key of sixteen bytes"
SECRETS = ("s3cret", "the present key", "the earlier key")
SHOP = {
    "LOANASYNC_BASE_URL": "https://loans.example.com",
    "LOANASYNC_SHOP_ID": "shop",
    "LOANASYNC_AUTH_TOKEN": "s3cret-token",
}
CIPHER = Fernet(Fernet.generate_key())


@pytest.fixture
def shop_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the module that contains the cipher."""
    module: Any = ModuleType("shop_secrets")
    module.cipher = CIPHER
    module.not_a_cipher = object()
    monkeypatch.setitem(sys.modules, "shop_secrets", module)


def settings(**variables: str) -> Any:
    return ledger_settings({f"LOANASYNC_{name}": value for name, value in variables.items()})


@pytest.mark.usefixtures("shop_secrets")
def test_settings_have_ledger_keys_and_cipher(tmp_path: Path) -> None:
    file = tmp_path / "decisions.db"
    found = settings(
        LEDGER=str(file),
        LEDGER_KEY="0123456789abcde\udcff",
        LEDGER_OLD_KEYS="the earlier key 1,the earlier key 2",
        LEDGER_CIPHER="shop_secrets:cipher",
    )
    assert repr(found.ledger) == f"SqliteLedger('{file}')"
    assert found.policy.key == b"0123456789abcde\xff", "the bytes that were set, also if they are not UTF-8"
    assert found.policy.old_keys == (b"the earlier key 1", b"the earlier key 2")
    assert found.policy.encrypt is CIPHER
    assert not file.exists()
    assert settings(LEDGER=f" {file}\n", LEDGER_KEY="").policy == LedgerPolicy()


def wrong(name: str, value: str, message: str) -> Any:
    return pytest.param({f"LOANASYNC_{name}": value}, f"LOANASYNC_{name}: {message}", id=f"{name}={value}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        wrong("LEDGER", "", "must name the ledger"),
        wrong("LEDGER", " ", "must name the ledger"),
        ({"LOANASYNC_LEDGER_KEY": KEY, "LOANASYNC_LEDGER": ""}, "LOANASYNC_LEDGER: must name the ledger"),
        wrong("LEDGER", "redis//:s3cret@host", "the address of a server must begin with redis://"),
        wrong("LEDGER", "postgersql://shop:s3cret@host", "unknown scheme postgersql://"),
        wrong("LEDGER", "redis://[s3cret", "needs an address that redis-py accepts"),
        wrong("LEDGER", "redis://s3cret?decode_responses=True", "needs an address without decode_responses"),
        wrong("LEDGER", "postgresql://shop:s3/cret@host/shop", "needs an address with a valid host and port"),
        wrong("LEDGER", "postgresql://one:5432,two:s3cret/shop", "needs an address with a valid host"),
        wrong("LEDGER_KEY", "s3cret", "must be at least 16 bytes"),
        wrong("LEDGER_KEY", f"{KEY}\n", "must have no spaces and no line ends around a key"),
        wrong("LEDGER_KEY", f"{KEY},{KEY}", "must be one key, without commas; LOANASYNC_LEDGER_OLD_KEYS has"),
        wrong("LEDGER_OLD_KEYS", "s3cret", "must be keys of at least 16 bytes"),
        wrong("LEDGER_OLD_KEYS", f"{KEY},", "must be keys of at least 16 bytes"),
        wrong("LEDGER_OLD_KEYS", f"{KEY}, {KEY}", "must have no spaces and no line ends around a key"),
        wrong("LEDGER_CIPHER", "s3cret", "must be module:object"),
        wrong("LEDGER_CIPHER", "s3cret_module:cipher", "cannot be imported (ModuleNotFoundError)"),
        wrong("LEDGER_CIPHER", "shop_secrets:s3cret", "cannot be imported (AttributeError)"),
        wrong("LEDGER_CIPHER", "shop_secrets:not_a_cipher", "must be a cipher whose decrypt() returns"),
    ],
)
@pytest.mark.usefixtures("shop_secrets")
def test_invalid_variable_is_named_and_not_shown(
    tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    found = refused({"LOANASYNC_LEDGER": str(tmp_path / "decisions.db"), **variables})
    assert re.sub("^ledger:", "LOANASYNC_LEDGER:", str(found)).startswith(message)


def test_unusable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        settings(LEDGER=str(tmp_path / "missing" / "decisions.db"))
    with pytest.raises(ConfigurationError, match="is a directory"):
        settings(LEDGER=str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    assert "cannot be used (Permission denied)" in str(refused({"LOANASYNC_LEDGER": "decisions.db"}))


def refused(variables: dict[str, str], read: Callable[..., object] = ledger_settings) -> ConfigurationError:
    """Return the error, after a check that neither it nor its traceback shows a secret."""
    secret = {"LOANASYNC_LEDGER_KEY": KEY, "LOANASYNC_LEDGER_OLD_KEYS": "the earlier key 1"}
    # Other variables must not be shown either, for example as locals of a frame.
    others = {} if "LOANASYNC_LEDGER" not in variables else {**secret, **SHOP}
    with pytest.raises(ConfigurationError) as caught:
        read({**others, **variables})
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    shown = "".join(
        text
        for frame in traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
        if frame.filename != __file__
        for text in (frame.locals or {}).values()
    )
    assert not any(secret in f"{shown} {caught.value} {caught.value!r}" for secret in SECRETS)
    return caught.value


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LOANASYNC_LEDGER_CYPHER", "LOANASYNC_LEDGER_CIPHER"),
        ("LOANASYNC_LEDGER_OLD_KEY", "LOANASYNC_LEDGER_OLD_KEYS"),
        ("LOANASYNC_LEDGRE", "LOANASYNC_LEDGER"),
        ("LOANSYNC_LEDGER", "LOANASYNC_LEDGER"),
        ("LOAN_ASYNC_LEDGER_KEY", "LOANASYNC_LEDGER_KEY"),
        ("loanasync_ledger", "LOANASYNC_LEDGER"),
        ("LOANASYNC_LEDGER_KEYS", "LOANASYNC_LEDGER_KEY"),
    ],
)
def test_mistyped_variable_of_the_ledger_is_refused(name: str, meant: str) -> None:
    error = refused({name: "s3cret", "LOANASYNC_LEDGER": "decisions.db"})
    assert error.setting == name
    assert error.message.startswith(f"is unknown; rename it to {meant}")
    assert refused({name: "s3cret"}, ledger_variables) == error


def test_mistyped_variable_of_the_shop_is_refused() -> None:
    error = refused({**SHOP, "LOANASYNC_SHOPID": "s3cret"}, shop_settings)
    assert str(error) == "LOANASYNC_SHOPID: is unknown; rename it to LOANASYNC_SHOP_ID, or remove it"


@pytest.mark.parametrize(
    "name",
    [
        *("LOANASYNC_LEDGER_SERVICE_HOST", "LOANASYNC_LEDGER_SERVICE_PORT_REDIS"),
        *("LOANASYNC_LEDGER_PORT_6379_TCP_ADDR", "LOANASYNC_LEDGER_KEY_SERVICE_HOST", "LOANASYNC_QUEUE"),
        *("LEDGER", "MY_LOANASYNC_LEDGER", "MY_LOANASYNC_SHOP_ID", "LOANASYNC_AUTH_TOKEN_FILE"),
    ],
)
def test_variables_of_others_are_ignored(name: str) -> None:
    environment = {**SHOP, name: "tcp://10.0.0.1:6379"}
    assert ledger_variables(environment) == []
    assert shop_settings(environment)["shop_id"] == "shop"


# Addresses


def test_address_parameters_reach_ledger_or_driver() -> None:
    with mock.patch.object(PostgresLedger, "__init__", return_value=None) as create:
        ledger_at("postgresql://h/shop?sslmode=require&statement_cache_size=0&table=t&application_name=x")
    create.assert_called_once_with(
        "postgresql://h/shop?sslmode=require&application_name=x", statement_cache_size=0, table="t"
    )
    with mock.patch.object(RedisLedger, "__init__", return_value=None) as create:
        ledger_at("redis://h/0?socket_timeout=3&prefix=shop%3A")
    create.assert_called_once_with("redis://h/0?socket_timeout=3", prefix="shop:")


@pytest.mark.parametrize("size", ["none", "-1"])
def test_address_with_a_wrong_cache_size_is_refused(size: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ledger_at(f"postgresql://h/shop?statement_cache_size={size}")
    assert caught.value.message == "statement_cache_size= must be a number, such as 0"


@pytest.mark.parametrize("name", ["~/decisions.db", "sqlite:///~/decisions.db", "~nobody-here/decisions.db"])
def test_home_directory_that_does_not_exist_is_a_configuration_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user without an entry
    for use in (ledger_at, name_without_password, lambda _: settings(LEDGER=name)):
        with pytest.raises(ConfigurationError, match=r"^ledger: ~.*; give the path without ~$"):
            use(name)


# Clients


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the variables of a shop and a ledger."""
    variables = {**SHOP, "LOANASYNC_LEDGER": str(tmp_path / "decisions.db"), "LOANASYNC_LEDGER_KEY": KEY}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def test_from_env_opens_the_ledger(environment: dict[str, str]) -> None:
    client = LoanClient.from_env(timeout=Timeout(total=5))
    assert repr(client.ledger) == f"SqliteLedger('{environment['LOANASYNC_LEDGER']}')"
    assert client.ledger_policy == LedgerPolicy(key=KEY.encode())
    assert client.timeout.total == 5


@pytest.mark.usefixtures("environment")
def test_from_env_arguments_win_unless_they_are_none() -> None:
    policy = LedgerPolicy(key=b"another key of the shop")
    assert LoanClient.from_env(ledger_policy=policy).ledger_policy is policy
    client = LoanClient.from_env(ledger=None, ledger_policy=None)
    assert isinstance(client.ledger, SqliteLedger)
    assert client.ledger_policy == LedgerPolicy(key=KEY.encode())
    ledger = MemoryLedger()
    client = LoanClient.from_env(ledger=ledger, shop_id="other")
    assert client.ledger is ledger
    assert client.ledger_policy == LedgerPolicy()
    assert "shop_id='other'" in repr(client)


@pytest.mark.parametrize(
    ("name", "value"),
    [("LOANASYNC_LEDGER", ""), ("LOANASYNC_LEDGRE", "x"), ("LOANASYNC_LEDGER_KEY", "s3cret")],
)
def test_from_env_refuses_wrong_variables_of_the_ledger(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    error = refused({**environment, name: value}, lambda _: LoanClient.from_env())
    assert error.setting == name


@pytest.mark.usefixtures("environment")
async def test_from_env_client_closes_its_ledger() -> None:
    client = LoanClient.from_env()
    assert isinstance(client.ledger, SqliteLedger)
    with mock.patch.object(SqliteLedger, "aclose", autospec=True) as close:
        await client.with_options(timeout=Timeout(total=5)).aclose()
    close.assert_awaited_once_with(client.ledger)
    ledger = MemoryLedger()
    with mock.patch.object(MemoryLedger, "aclose") as close:
        await LoanClient.from_env(ledger=ledger).aclose()
    close.assert_not_called()
