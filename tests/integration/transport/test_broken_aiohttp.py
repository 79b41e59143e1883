"""Errors and untested versions of aiohttp: they do not block a call, and the direct path is not used."""

import asyncio
import logging
from importlib.metadata import version
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import http
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from loanasync import Approved, ConfigurationError, ConnectionLostError, LoanClient, Refused, TransportError
from loanasync._transport import aiohttp_internals
from loanasync._transport.aiohttp_internals import is_direct_possible, is_direct_tested
from loanasync._transport.pool import DirectTransport
from loanasync._transport.session import SessionTransport
from support.canned_server import APPROVAL, REFUSAL, approve, response_bytes, serving
from support.direct_path import needs_direct_path
from support.raw_server import PATIENCE


def transport_of(client: LoanClient) -> object:
    resources: Any = client._pipeline._per_loop.current()
    return resources.transport


def close_and_fail(self: Connection, *_: object, close: Any = Connection.close) -> None:
    close(self)
    raise RuntimeError("aiohttp")


HALF = response_bytes(201, b'{"approved":true ,"amount":45000}')[:-3]


@needs_direct_path
@pytest.mark.parametrize("response", [b"", HALF], ids=["no head", "half a body"])
@pytest.mark.parametrize(
    ("owner", "name", "breaks"),
    [
        (ResponseHandler, "connection_lost", mock.Mock(side_effect=RuntimeError("aiohttp"))),
        (Connection, "close", close_and_fail),
        (aiohttp.StreamReader, "_read_nowait", mock.Mock(side_effect=RuntimeError("aiohttp"))),
    ],
    ids=["connection_lost", "close", "read"],
)
async def test_aiohttp_error_on_connection_loss_ends_the_call(
    owner: type, name: str, breaks: Any, response: bytes
) -> None:
    assert is_direct_possible()  # the result is cached before the patch
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    async with serving(response) as server:
        server.closes_after_response = True
        client = server.client()
        with mock.patch.object(owner, name, breaks):
            async with asyncio.timeout(PATIENCE):
                try:
                    result: object = await approve(client)
                except TransportError as error:
                    result = error
        assert isinstance(result, ConnectionLostError if not response or name == "_read_nowait" else Approved)
        async with asyncio.timeout(PATIENCE):
            await client.aclose()


@needs_direct_path
@pytest.mark.parametrize(
    "change", [{"response_with_body": False}, {"read_until_eof": False}, {"unknown": True}], ids=str
)
async def test_other_behaviour_of_the_parser_is_noticed(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = http.HttpResponseParser

    def changed(protocol: object, loop: object, limit: object, **options: Any) -> Any:
        return real(protocol, loop, limit, **{**options, **change})  # type: ignore[arg-type]

    assert aiohttp_internals._has_expected_names()
    monkeypatch.setattr(http, "HttpResponseParser", changed)
    assert not aiohttp_internals._has_expected_names()


def test_direct_connections_are_used_with_the_installed_version() -> None:
    installed = version("aiohttp")
    assert is_direct_tested(installed) or installed.startswith(("3.12.", "3.13."))


@pytest.mark.parametrize("installed", ["3.11.18", "3.15.0", "3.15.0a1", "4.0.0", "3.140.1", "3", ""])
async def test_untested_aiohttp_takes_the_documented_path(
    installed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loanasync")
    is_direct_possible.cache_clear()
    monkeypatch.setattr(aiohttp, "__version__", installed)
    try:
        async with serving(REFUSAL) as server:
            for _ in range(2):
                async with server.client() as client:
                    assert isinstance(await approve(client), Refused)
                    assert type(transport_of(client)) is SessionTransport
    finally:
        is_direct_possible.cache_clear()
    messages = [each.getMessage() for each in caplog.records if "ClientSession.request" in each.getMessage()]
    assert len(messages) == 1
    assert f"aiohttp {installed} was not tested" in messages[0]


@pytest.mark.parametrize("version", ["3.14", "3.14.0", "3.14.99", "3.14.0rc1"])
def test_patch_versions_of_a_tested_minor_are_tested(version: str) -> None:
    assert is_direct_tested(version)


@pytest.mark.parametrize(
    ("setting", "transport"),
    [pytest.param(True, DirectTransport, marks=needs_direct_path), (False, SessionTransport)],
)
async def test_direct_connections_setting_chooses_the_path(setting: bool, transport: type) -> None:  # noqa: FBT001  (parametrised)
    async with serving(APPROVAL) as server, server.client(direct_connections=setting) as client:
        assert isinstance(await approve(client), Approved)
        assert type(transport_of(client)) is transport
        assert type(transport_of(client.with_options(strict=False))) is transport


def test_direct_connections_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="direct_connections: must be of type bool, not str"):
        LoanClient("https://loans.example.com", shop_id="s", auth_token="t", direct_connections="no")  # type: ignore[arg-type]
