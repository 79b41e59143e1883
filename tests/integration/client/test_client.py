"""Settings of a client, its checks, and its copies."""

from pathlib import Path
from traceback import TracebackException
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import loanasync
from loanasync import (
    ClientClosedError,
    ConfigurationError,
    InvalidRequestError,
    LoanClient,
    RetryPolicy,
    Telemetry,
    Timeout,
)
from loanasync._models.decisions import Problems
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, approval_request, user_data
from support.ledger_clients import FailingLedger


def create_client(**options: object) -> LoanClient:
    settings: dict[str, object] = {
        "base_url": "https://loans.example.com",
        "shop_id": "shop",
        "auth_token": "secret-token",
        **options,
    }
    return LoanClient(**settings)  # type: ignore[arg-type]


def test_client_is_created_without_a_loop_and_masks_its_token() -> None:
    client = create_client()
    assert repr(client) == "LoanClient('https://loans.example.com', shop_id='shop', auth_token=***)"
    assert "secret-token" not in str(vars(client))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("base_url", "loans.example.com"),
        ("shop_id", "a/b"),
        ("auth_token", "a b"),
        ("dialect", "street_number"),
        ("limits", {}),
        ("retry", 3),
        ("timeout", 10.0),
        ("session", object()),
        ("max_concurrency", 0),
        ("max_concurrency", True),
        ("max_concurrency", "5"),
        ("strict", 1),
        ("telemetry", TracerProvider()),
        ("direct_connections", "no"),
        ("breaker", True),
    ],
)
def test_client_with_an_invalid_setting_names_it(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create_client(**{setting: value})
    assert caught.value.setting == setting
    frames = TracebackException.from_exception(caught.value, capture_locals=True).stack
    ours = [frame.locals for frame in frames if frame.filename.endswith("loanasync/_client.py")]
    assert "secret-token" not in str(ours)
    assert "failed" not in str(ours), "the client is printed, although it was not created"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("propagate", "b3"),
        ("tracer_provider", MeterProvider()),  # both are easily confused
        ("meter_provider", TracerProvider()),
        ("tracer_provider", "console"),
    ],
)
def test_telemetry_with_an_invalid_setting_names_it(setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Telemetry(**{setting: value})
    assert caught.value.setting == f"telemetry.{setting}"


def test_strict_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync._settings.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"strict: needs python-stdnum.*\.\[strict\]"):
        create_client(strict=True)


def test_strict_checks_the_check_letter() -> None:
    assert [
        problem.field for problem in create_client(strict=True).check(FISCAL_CODE, approval_request())
    ] == ["fiscal_code"]
    assert create_client().check(FISCAL_CODE, approval_request()) == ()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda client: client.create_request([]), id="create_request"),
        pytest.param(lambda client: client.approve("x", approval_request()), id="approve"),
        pytest.param(lambda client: client.approve(FISCAL_CODE, user_data()), id="approve with user data"),
        pytest.param(lambda client: client.upload_documents(FISCAL_CODE, {"a": b""}), id="documents"),
        pytest.param(lambda client: client.complete(FISCAL_CODE, approval_request()), id="complete"),
        pytest.param(lambda client: client.complete("a/b\n", user_data()), id="path characters"),
        pytest.param(lambda client: client.create_request(None), id="none"),
    ],
)
async def test_invalid_input_is_reported_and_not_sent(
    sandbox: Sandbox, client: LoanClient, call: object
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await call(client)  # type: ignore[operator]
    assert caught.value.problems
    assert not sandbox.journal


def test_check_returns_a_tuple_that_notebooks_show_as_a_table() -> None:
    found = create_client().check(FISCAL_CODE, approval_request(amount=1))
    assert isinstance(found, Problems)
    assert found == tuple(found)
    assert "amount.range</td>" in found._repr_html_()
    assert create_client().check(FISCAL_CODE, approval_request()) == ()


def test_check_accepts_user_data() -> None:
    assert create_client().check(FISCAL_CODE, user_data()) == ()
    problems = create_client().check("short", user_data(marketing="yes"))
    assert [problem.field for problem in problems] == ["fiscal_code", "marketing"]


async def test_with_options_shares_sessions_and_changes_options(sandbox: Sandbox, client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    small = client.with_options(timeout=Timeout(total=9))
    assert (small.timeout.total, client.timeout.total) == (9, 20)
    decision = await small.approve(FISCAL_CODE, approval_request(order_token="o"))
    assert decision.approved
    other = client.with_options(shop_id="other", auth_token="t")
    with pytest.raises(loanasync.AccessDeniedError):
        await other.create_request({})
    for half in ({"shop_id": "other"}, {"auth_token": "t"}):
        with pytest.raises(ConfigurationError, match="must be given together with auth_token"):
            client.with_options(**half)  # type: ignore[arg-type]  # one of two strings
    await small.aclose()
    with pytest.raises(ClientClosedError):
        await client.create_request({})
    assert len(sandbox.journal) == 3


async def test_call_with_its_own_timeout_and_retry(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    request = approval_request(email="anna+500x1@example.com")
    with pytest.raises(loanasync.SystemFaultError):
        await client.approve(FISCAL_CODE, request, retry=RetryPolicy(attempts=1))
    wrong: Any = 3
    for call in (
        client.approve(FISCAL_CODE, request, timeout=wrong),
        client.known(FISCAL_CODE, timeout=wrong),
    ):
        with pytest.raises(ConfigurationError, match="timeout: must be of type Timeout"):
            await call


def test_close_closes_the_ledger_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ledger = FailingLedger()
    monkeypatch.setattr("loanasync.ledger.address.ledger_at", lambda *_, **__: ledger)
    for name, value in {
        "BASE_URL": "https://loans.example.com",
        "SHOP_ID": "shop",
        "AUTH_TOKEN": "token",
        "LEDGER": str(tmp_path / "ledger"),
    }.items():
        monkeypatch.setenv(f"LOANASYNC_{name}", value)
    LoanClient.from_env().close()
    assert ledger.operations == ["aclose"]
