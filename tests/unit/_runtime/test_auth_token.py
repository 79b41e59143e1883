"""Functions that return the auth token: when they are called, and what ends a call."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from loanasync import Approved, LoanError, Timeout, UserData, errors
from loanasync._shop import AuthToken, configure
from loanasync.ledger import State
from loanasync.testing import ScriptedTransport, approved, fiscal_code, response, system_error
from support import ledger_clients
from support.builders import FISCAL_CODE, approval_request
from support.memory_clients import Shop, cancelled
from support.virtual_time import turns

SECRET = "zzqsecret"


class Vault:
    """A function whose next results are listed; an exception is raised."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)

    def __call__(self) -> Any:
        result = self.results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result

    async def later(self) -> Any:
        await asyncio.sleep(0)
        return self()


class Held:
    """An async function that waits until it is cancelled; with `suppresses`, until the second time."""

    def __init__(self, *, suppresses: bool = False) -> None:
        self.called = asyncio.Event()
        self.suppresses = suppresses
        self._never = asyncio.Event()  # referenced, so that the waiting task is not garbage

    async def __call__(self) -> str:
        self.called.set()
        try:
            await self._never.wait()
        except asyncio.CancelledError:
            if not self.suppresses:
                raise
        await self._never.wait()
        return SECRET


def tokens(script: ScriptedTransport) -> list[str]:
    return [sent.headers["X-Auth-Token"] for sent in script.sent]


async def new_token() -> str:
    await asyncio.sleep(0)
    return "new"


def new_future() -> Awaitable[str]:
    return asyncio.ensure_future(new_token())


@pytest.mark.parametrize(
    "function",
    [lambda: "new", new_token, partial(str, "new"), new_future],
    ids=["sync", "async", "partial", "future"],
)
async def test_token_of_a_function_is_sent(function: AuthToken) -> None:
    shop = Shop(approved(), auth_token=function)
    assert isinstance(await shop.approve(), Approved)
    assert tokens(shop.script) == ["new"]
    assert [*shop.script.sent[0].headers][-1] == "X-Auth-Token"


async def test_function_is_called_before_each_attempt_and_each_call() -> None:
    vault = Vault("first", "second", "third", "fourth")
    shop = Shop(system_error(), system_error(), approved(), response(200), auth_token=vault.later)
    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert decision.meta.attempts == 3
    await shop.client.complete(FISCAL_CODE, UserData())
    assert tokens(shop.script) == ["first", "second", "third", "fourth"]


async def test_with_options_accepts_a_function_and_keeps_that_of_the_original() -> None:
    shop = Shop(approved(), approved(), auth_token=Vault("original"))
    other = shop.client.with_options(shop_id="other", auth_token=Vault("copy").later)
    await other.approve(FISCAL_CODE, approval_request())
    await shop.client.with_options(timeout=Timeout(total=5)).approve(FISCAL_CODE, approval_request())
    assert tokens(shop.script) == ["copy", "original"]


async def raised_by(function: object, *steps: Any, **options: Any) -> tuple[LoanError, ScriptedTransport]:
    shop = Shop(*steps, auth_token=function, **options)
    error = await shop.approve()
    assert isinstance(error, LoanError)
    assert SECRET not in f"{error!s} {error!r} {error.args}"
    assert error.__cause__ is error.__context__ is None
    return error, shop.script


class VaultError(Exception):
    """Any error of a user."""


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "exception",
    [
        VaultError(SECRET),
        TimeoutError(SECRET),
        errors.ConfigurationError("auth_token", SECRET),
        AssertionError(SECRET),
        asyncio.CancelledError(SECRET),  # for example of a task of the vault that was cancelled
    ],
    ids=lambda exception: type(exception).__name__,
)
async def test_function_that_raises_ends_the_call_unsent(exception: BaseException, *, is_async: bool) -> None:
    vault = Vault(exception)
    error, script = await raised_by(vault.later if is_async else vault)
    assert type(error) is errors.ConnectError
    assert (error.outcome, error.repeatable, error.attempts) == ("not_sent", True, 0)
    assert error.cause_type == f"auth_token: {type(exception).__name__}"
    assert str(error).startswith("approve: no valid token from the function auth_token (auth_token: ")
    assert script.sent == []


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (None, "is required"),
        (7, "must be text; use a str, not int"),
        (SECRET.encode(), "must be text; use a str, not bytes"),
        ("", "must not be blank"),
        (f"{SECRET}\r\nX: y", "must not contain line breaks or other control characters"),
        (f"{SECRET} {SECRET}", "must be printable ASCII without spaces"),
        (f"{SECRET}é", "must be printable ASCII without spaces"),
    ],
    ids=repr,
)
async def test_function_that_returns_no_token_ends_the_call_unsent(value: object, rule: str) -> None:
    for function in (Vault(value), Vault(value).later):
        error, script = await raised_by(function)
        assert error == errors.ConnectError("approve", f"auth_token: {rule}", "not_sent", 0)
        assert script.sent == []


@pytest.mark.parametrize("suppresses", [False, True])
async def test_slow_function_ends_at_the_deadline(*, suppresses: bool) -> None:
    error, script = await raised_by(Held(suppresses=suppresses), timeout=Timeout(total=0.01))
    assert error == errors.DeadlineExceededError("approve", "auth_token: TimeoutError", "not_sent", 0)
    assert script.sent == []


@pytest.mark.parametrize(("seconds", "within"), [(15, [5]), (21, [])])
async def test_time_of_a_sync_function_counts_towards_the_deadline(seconds: int, within: list[int]) -> None:
    script = ScriptedTransport(response(200))

    def function() -> str:
        script.clock.time += seconds
        return "token"

    with suppress(errors.DeadlineExceededError):
        await script.client(auth_token=function).complete(FISCAL_CODE, UserData())
    assert [sent.within for sent in script.sent] == within


@pytest.mark.parametrize("suppresses", [False, True])
async def test_cancelled_approval_sends_nothing_and_releases_its_claim(*, suppresses: bool) -> None:
    held = Held(suppresses=suppresses)
    vault = Vault()
    shop = ledger_clients.Shop(approved(), options={"auth_token": vault})
    vault.results = [held(), "token"]
    call = asyncio.create_task(shop.approve())
    await held.called.wait()
    assert (await shop.entry()).state is State.INFLIGHT
    await cancelled(call)
    await shop.client.aclose()
    assert (await shop.entry()).state is State.RELEASED
    assert shop.script.sent == []
    assert isinstance(await shop.approve(shop.new_client()), Approved)


@pytest.mark.parametrize("suppresses", [False, True])
async def test_closing_the_client_ends_the_wait(*, suppresses: bool) -> None:
    held = Held(suppresses=suppresses)
    shop = Shop(auth_token=held, timeout=Timeout(total=0.01, attempt=0.01))
    call = asyncio.create_task(shop.approve(timeout=Timeout(total=3600)))
    await held.called.wait()
    await shop.client.aclose()
    assert await call == errors.ConnectError("approve", "SessionClosed", "not_sent", 0)
    assert shop.sent == 0


def test_repr_masks_the_function() -> None:
    client = Shop(auth_token=partial(str, SECRET)).client
    assert "auth_token=***" in repr(client)
    shop = configure("https://loans.example.com", "my-shop", partial(str, SECRET))
    assert SECRET not in f"{client!r} {shop!r}"


async def test_call_that_leaves_does_not_cancel_a_shared_refresh() -> None:
    """All calls of a shop may await one task that fetches the token."""

    async def fetch() -> str:
        await fetched.wait()
        return "shared"

    fetched = asyncio.Event()
    refresh = asyncio.create_task(fetch())
    shop = Shop(approved(), auth_token=lambda: refresh)
    first, second = (asyncio.create_task(shop.approve(code)) for code in (FISCAL_CODE, fiscal_code()))
    await turns()
    await cancelled(first)
    fetched.set()
    assert isinstance(await second, Approved)
