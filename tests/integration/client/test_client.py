import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import loanasync
from loanasync import (
    ClientClosedError,
    ConfigurationError,
    Dialect,
    InvalidRequestError,
    Limits,
    LoanClient,
    RetryPolicy,
    Telemetry,
    Timeout,
)
from loanasync._results import Problems
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


async def approval(client: LoanClient, fiscal_code: str = FISCAL_CODE) -> loanasync.Decision:
    await client.create_request({"fiscalCode": fiscal_code})
    return await client.approve(fiscal_code, approval_request())


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
    ],
)
def test_client_with_an_invalid_setting_names_it(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create_client(**{setting: value})
    assert caught.value.setting == setting


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
    monkeypatch.setattr("loanasync._config.find_spec", lambda _: None)
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


async def test_error_frames_have_no_personal_values(client: LoanClient) -> None:
    request = approval_request(amount=1, email="marker@example.com")
    with pytest.raises(InvalidRequestError) as caught:
        await client.approve(FISCAL_CODE, request)
    traceback = caught.value.__traceback__
    seen = 0
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals["__name__"].startswith("loanasync"):
            seen += 1
            assert FISCAL_CODE not in repr(frame.f_locals)
            assert "marker@" not in repr(frame.f_locals)
        traceback = traceback.tb_next
    assert seen


async def test_with_options_shares_sessions_and_changes_options(sandbox: Sandbox, client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    small = client.with_options(limits=Limits(amount_max=10_000), timeout=Timeout(total=9))
    assert small.check(FISCAL_CODE, approval_request())
    assert not client.check(FISCAL_CODE, approval_request())
    civic = client.with_options(dialect=Dialect.civic_number(), retry=RetryPolicy(attempts=1), strict=False)
    decision = await civic.approve(FISCAL_CODE, approval_request(order_token="o"))
    assert decision.approved
    other = client.with_options(shop_id="other", auth_token="t")
    with pytest.raises(loanasync.AccessDeniedError):
        await other.create_request({})
    with pytest.raises(ConfigurationError, match="must be given together with auth_token"):
        client.with_options(shop_id="other")
    await small.aclose()
    with pytest.raises(ClientClosedError):
        await client.create_request({})
    assert len(sandbox.journal) == 3


async def test_call_with_its_own_timeout_and_retry(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    request = approval_request(email="anna+500x1@example.com")
    with pytest.raises(loanasync.SystemFaultError):
        await client.approve(FISCAL_CODE, request, retry=RetryPolicy(attempts=1))
    with pytest.raises(ConfigurationError, match="timeout: must be of type Timeout"):
        await client.approve(FISCAL_CODE, request, timeout=3)  # type: ignore[arg-type]


class ServedInThread:
    """A sandbox in a separate event loop that outlives the loops of its clients."""

    def __enter__(self) -> Sandbox:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._sandbox = Sandbox()
        asyncio.run_coroutine_threadsafe(self._sandbox.start(), self._loop).result()
        return self._sandbox

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._sandbox.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def test_unclosed_client_of_a_closed_loop_works_in_the_next() -> None:
    script = """
import asyncio, sys
from loanasync import LoanClient
client = LoanClient(sys.argv[1], shop_id="sandbox-shop", auth_token="sandbox-token")
for number in range(3):
    print(asyncio.run(client.create_request({"fiscalCode": f"TSTXYZ00A00A00{number}Z"}))["fiscalCode"])
"""
    with ServedInThread() as sandbox:
        done = subprocess.run(
            [sys.executable, "-c", script, sandbox.base_url], capture_output=True, text=True, check=False
        )
    assert done.stdout.split() == [f"TSTXYZ00A00A00{number}Z" for number in range(3)]
    assert "Event loop is closed" not in done.stderr


def test_one_client_serves_two_threads_and_closes_both_sessions() -> None:
    with ServedInThread() as sandbox:
        client = LoanClient(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        there = asyncio.run_coroutine_threadsafe(approval(client, "TSTXYZ00A00A001Z"), loop)

        async def here() -> bool:
            decision = await approval(client, "TSTXYZ00A00A002Z")
            assert (await asyncio.wrap_future(there)).approved
            lanes = [entry.value for entry in client._pipeline._per_loop._values.values()]
            await client.aclose()
            sessions = [lane.transport._session for lane in lanes]  # type: ignore[attr-defined]  # is no script
            assert [session.closed for session in sessions] == [True, True]
            return decision.approved

        assert asyncio.run(here())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, which this platform has not")
def test_forked_child_opens_its_own_connections() -> None:
    script = """
import asyncio, os, sys
from loanasync import LoanClient
client = LoanClient(sys.argv[1], shop_id="sandbox-shop", auth_token="sandbox-token")
async def create(number):
    return (await client.create_request({"fiscalCode": f"TSTXYZ00A00A00{number}Z"}))["fiscalCode"]
async def last(number):
    print(await create(number), flush=True)
    await client.aclose()
with asyncio.Runner() as runner:
    print(runner.run(create(0)), flush=True)
    child = os.fork()
    if child == 0:
        asyncio.run(last(1))
        os._exit(0)
    os.waitpid(child, 0)
    runner.run(last(2))
"""
    with ServedInThread() as sandbox:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, sandbox.base_url],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert done.stdout.split() == [f"TSTXYZ00A00A00{number}Z" for number in range(3)], done.stderr


def test_close_closes_the_ledger_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ledger = FailingLedger()
    monkeypatch.setattr("loanasync.ledger.environment.ledger_at", lambda *_, **__: ledger)
    for name, value in {
        "BASE_URL": "https://loans.example.com",
        "SHOP_ID": "shop",
        "AUTH_TOKEN": "token",
        "LEDGER": str(tmp_path / "ledger"),
    }.items():
        monkeypatch.setenv(f"LOANASYNC_{name}", value)
    LoanClient.from_env().close()
    assert ledger.operations == ["aclose"]
