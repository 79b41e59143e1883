"""Exceptions during an exchange that are no errors of the network, such as those of a signal handler."""

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import aiohttp
import pytest
from aioresponses import aioresponses

from loanasync import ConnectError, ConnectionLostError, LoanClient, Refused
from support.builders import FISCAL_CODE
from support.canned_server import REFUSAL, approve, serving
from support.direct_path import client_of, each_path
from support.raw_server import RawServer, running


class SoftTimeLimitExceeded(Exception):  # noqa: N818  (Celery's name)
    """A time limit of the user's program."""


each_error = pytest.mark.parametrize("error", [AssertionError, TimeoutError, SoftTimeLimitExceeded])


@pytest.fixture
def _signal_raises(error: type[Exception]) -> Iterator[None]:
    def handle(_: int, __: FrameType | None) -> None:
        raise error("of the program")

    earlier = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, earlier)


class Interrupted(aiohttp.TCPConnector):
    """A connector during whose work a signal arrives."""

    async def _create_connection(self, *_: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)


@each_error
@each_path
@pytest.mark.usefixtures("_signal_raises")
async def test_exception_while_connecting_is_not_sent(error: type[Exception], *, is_direct: bool) -> None:
    async with (
        aiohttp.ClientSession(connector=Interrupted()) as session,
        client_of("https://loans.example.com", session, direct_connections=is_direct) as client,
    ):
        with pytest.raises(ConnectError) as caught:
            await approve(client)
    assert caught.value.outcome == "not_sent"
    assert str(caught.value) == (
        f"approve: an exception in this program ended the attempt (program: {error.__name__}): "
        "request not sent; the call may be repeated"
    )


async def test_refused_connection_in_a_timeout_handler_blames_the_network() -> None:
    server = RawServer()
    async with running(server, RawServer.refuse), client_of(server.base_url) as client:
        try:
            raise TimeoutError  # noqa: TRY301  (the context of the next error)
        except TimeoutError:
            with pytest.raises(ConnectError, match="no connection; check base_url and the network"):
                await client.create_request({"fiscalCode": FISCAL_CODE})


@each_error
async def test_exception_while_reading_is_unknown(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise error

    async with serving(REFUSAL) as server, server.client(direct_connections=False) as client:
        monkeypatch.setattr(aiohttp.ClientResponse, "start", fail)
        with pytest.raises(ConnectionLostError) as caught:
            await approve(client)
    assert (caught.value.outcome, caught.value.cause_type) == ("unknown", f"program: {error.__name__}")
    assert "an exception in this program ended the attempt" in str(caught.value)


@each_error
async def test_exception_while_reading_the_body_keeps_the_decision(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise error

    async with serving(REFUSAL) as server, server.client(direct_connections=False) as client:
        monkeypatch.setattr(aiohttp.StreamReader, "readany", fail)
        assert isinstance(await approve(client), Refused)


async def test_assertion_of_a_mock_reaches_the_test(mocked_http: aioresponses) -> None:
    def check(*_: object, **__: object) -> None:
        raise AssertionError("of the test")

    url = f"https://loans.example.com/api/shops/s/requests/{FISCAL_CODE}"
    mocked_http.post(url, callback=check)
    async with LoanClient("https://loans.example.com", shop_id="s", auth_token="t") as client:
        with pytest.raises(AssertionError, match="of the test") as caught:
            await approve(client)
    assert caught.traceback[-1].name == "check"
