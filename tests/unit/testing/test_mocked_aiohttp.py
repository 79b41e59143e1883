import asyncio
import inspect
from unittest import mock

import aiohttp
import pytest
from aioresponses import aioresponses, core

from loanasync.testing import repaired_aioresponses

URL = "https://loans.example.com/requests"


async def mocked_text() -> str:
    with aioresponses() as mocked:
        mocked.get(URL, body="mocked")
        async with aiohttp.ClientSession() as session, session.get(URL) as response:
            return await response.text()


def test_aioresponses_still_needs_the_repair() -> None:
    """If this fails, aioresponses supports aiohttp 3.14: remove the repair with its pages."""
    assert "stream_writer" not in inspect.getsource(core)


def test_repair_makes_mocked_requests_work_and_is_undone() -> None:
    with repaired_aioresponses():
        assert asyncio.run(mocked_text()) == "mocked"
    if "stream_writer" in inspect.signature(aiohttp.ClientResponse.__init__).parameters:
        with pytest.raises(TypeError, match="stream_writer"):
            asyncio.run(mocked_text())


def test_repair_changes_nothing_for_an_older_aiohttp() -> None:
    class OlderResponse:
        def __init__(self) -> None:
            """Take no stream writer."""

    with mock.patch.object(core, "ClientResponse", OlderResponse), repaired_aioresponses():
        assert vars(core)["ClientResponse"] is OlderResponse


def test_repair_keeps_the_stream_writer_of_a_newer_aioresponses() -> None:
    class NewerResponse:
        def __init__(self, stream_writer: object) -> None:
            self.writer = stream_writer

    with mock.patch.object(core, "ClientResponse", NewerResponse), repaired_aioresponses():
        repaired = vars(core)["ClientResponse"]
        assert repaired(stream_writer="own").writer == "own"
        assert repaired().writer is not None
