"""Extension points of the client: custom transport, clock, ledger, and closing without an event loop."""

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Self, cast

import pytest

from loanasync import (
    Approved,
    ClientClosedError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    LoanClient,
    NoResponse,
    OutcomeUnknownError,
    Request,
    Response,
    Timeout,
    Transport,
)
from loanasync._client import ClientOptions
from loanasync.ledger import LedgerPolicy, MemoryLedger, State
from loanasync.testing import ScriptedTransport, approved, scripted_client
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, broken

APPROVAL = Response(status=201, headers={}, body=b'{"approved": true}')


class Recorded(Transport):
    """Returns or raises the same result for each request, and counts requests."""

    def __init__(self, result: object = APPROVAL, *, is_sent: bool = True) -> None:
        self.sent = self.opened = self.closed = 0
        self._result = result
        self._is_sent = is_sent

    def __call__(self) -> Self:
        self.opened += 1
        return self

    def check(self) -> None:
        """Accept each call."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        assert 0 < connect < within
        assert request.url.endswith(FISCAL_CODE)
        self.sent += 1
        request.is_sent = self._is_sent
        if isinstance(self._result, BaseException):
            raise self._result
        return cast("Response", self._result)

    async def aclose(self) -> None:
        self.closed += 1


class Unclosable(Recorded):
    async def aclose(self) -> None:
        raise OSError("cannot be closed")


def client_of(**options: object) -> LoanClient:
    return LoanClient("https://loans.example.com", shop_id="shop", auth_token="token", **options)  # type: ignore[arg-type]


def test_transport_is_opened_once_in_each_event_loop() -> None:
    transport = Recorded()
    client = client_of(transport=transport)

    async def approve_twice(loop: int) -> None:
        for number in range(2):
            decision = await client.approve(FISCAL_CODE, approval_request(), order_id=f"{loop} {number}")
            assert isinstance(decision, Approved)

    for loops in (1, 2):
        asyncio.run(approve_twice(loops))
        assert (transport.opened, transport.closed) == (loops, loops)


@pytest.mark.parametrize("has_ledger", [False, True])
@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (NoResponse(error=ConnectionLostError, cause_type="OSError", is_sent=True), "OSError"),
        # These break a rule of the protocol.
        (RuntimeError(FISCAL_CODE), "RuntimeError"),
        (ConnectError("approve", "OSError", "not_sent", 1), "ConnectError"),
        (asyncio.CancelledError(), "CancelledError"),
        (None, "NoneType"),
        (NoResponse(error=ValueError, cause_type="OSError", is_sent=False), "NoResponse"),  # type: ignore[arg-type]
    ],
)
async def test_transport_without_response_ends_in_an_unknown_outcome(
    result: object, cause: str, *, has_ledger: bool
) -> None:
    transport = Recorded(result)
    client = client_of(transport=transport, ledger=MemoryLedger() if has_ledger else None)
    with pytest.raises(ConnectionLostError) as caught:
        await client.approve(FISCAL_CODE, approval_request())
    assert (caught.value.outcome, caught.value.cause_type) == ("unknown", cause)
    assert caught.value.__context__ is None
    assert FISCAL_CODE not in str(caught.value)
    with pytest.raises(OutcomeUnknownError):
        await client.approve(FISCAL_CODE, approval_request())
    assert transport.sent == 1


@pytest.mark.parametrize("error", [RuntimeError(FISCAL_CODE), asyncio.CancelledError()])
async def test_transport_error_before_the_first_byte_is_not_sent(error: BaseException) -> None:
    client = client_of(transport=Recorded(error, is_sent=False))
    with pytest.raises(ConnectError) as caught:
        await client.approve(FISCAL_CODE, approval_request())
    assert (caught.value.outcome, caught.value.cause_type) == ("not_sent", type(error).__name__)


async def test_transport_that_cannot_be_closed_leaves_no_claim() -> None:
    ledger = FailingLedger(settle=broken)
    transport = Unclosable(RuntimeError(), is_sent=False)
    client = client_of(transport=transport, ledger=ledger, ledger_policy=LedgerPolicy(patience=0.1))
    with pytest.raises(ConnectError):
        await client.approve(FISCAL_CODE, approval_request())
    ledger.faults.clear()
    with pytest.raises(OSError, match="cannot be closed"):
        await client.aclose()
    assert [entry.state async for entry in ledger.scan()] == [State.RELEASED]


def test_transport_that_cannot_be_closed_does_not_keep_the_ledger_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a running event loop; the client has opened the ledger."""
    ledger = FailingLedger()
    monkeypatch.setattr("loanasync.ledger.address.ledger_at", lambda *_, **__: ledger)
    monkeypatch.setenv("LOANASYNC_LEDGER", str(tmp_path / "ledger"))
    shop = {"base_url": "https://loans.example.com", "shop_id": "shop", "auth_token": "token"}
    for name, value in shop.items():
        monkeypatch.setenv(f"LOANASYNC_{name.upper()}", value)
    client = LoanClient.from_env(transport=Unclosable)
    with asyncio.Runner() as runner:
        runner.run(client.approve(FISCAL_CODE, approval_request()))
        with pytest.raises(OSError, match="cannot be closed"):
            client.close()
    assert ledger.operations[-1] == "aclose"


@pytest.mark.parametrize("option", ["session", "ssl"])
def test_transport_with_a_session_or_ssl_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}: cannot be used with transport=: omit one"):
        client_of(transport=Recorded, **{option: "anything"})


def test_transport_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="transport: must be a function or class that returns"):
        client_of(transport="http")


async def test_close_in_an_event_loop_raises_runtime_error() -> None:
    async with scripted_client(approved()) as client:
        with pytest.raises(RuntimeError, match=r"use `await client.aclose\(\)`"):
            client.close()
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)


def test_close_outside_a_loop_closes_the_transport() -> None:
    script = ScriptedTransport(approved())
    client = script.client()
    with asyncio.Runner() as runner:
        runner.run(client.approve(FISCAL_CODE, approval_request()))
        client.close()
        assert script.closed == 1
        with pytest.raises(ClientClosedError):
            runner.run(client.approve(FISCAL_CODE, approval_request()))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_client_copy_is_refused_with_advice(duplicate: Callable[[LoanClient], object]) -> None:
    with pytest.raises(TypeError, match=r"create one in each process; with_options\(\) returns a light copy"):
        duplicate(scripted_client())


def test_from_env_has_the_arguments_of_the_client() -> None:
    names = list(inspect.signature(LoanClient).parameters)
    assert [*ClientOptions.__annotations__] == names


async def test_client_stays_open_until_the_last_application_shuts_down() -> None:
    client = scripted_client(approved())
    async with client.lifespan():
        async with client.with_options(timeout=Timeout(total=5)).lifespan():
            pass
        assert (await client.approve(FISCAL_CODE, approval_request())).approved
    with pytest.raises(ClientClosedError):
        await client.create_request({})
