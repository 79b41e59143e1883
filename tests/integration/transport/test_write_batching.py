"""Errors while requests are written that were queued together on the direct path."""

import asyncio
from asyncio import selector_events
from typing import Any
from unittest import mock

import pytest

from loanasync import ConnectionLostError, Refused
from support.builders import approval_request
from support.canned_server import response_bytes, serving
from support.direct_path import needs_direct_path

SOCKET: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]  # a private name
WRITE = SOCKET.write
ANY_REFUSAL = response_bytes(422, b'{"approved":false}')  # of any customer
CODES = ("TSTXYZ00A00A000B", "TSTXYZ00A00A000C", "TSTXYZ00A00A000D")  # the first call is not queued


@needs_direct_path
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_error_in_the_write_of_a_queued_request_repeats_none(error: type[BaseException]) -> None:
    errors = [error]

    def write(self: object, data: bytes) -> None:
        WRITE(self, data)
        if CODES[1].encode() in data and errors:
            raise errors.pop()

    async def calls() -> tuple[int, list[type]]:
        async with serving(ANY_REFUSAL) as server, server.client() as client:
            with mock.patch.object(SOCKET, "write", write):
                made = (client.approve(code, approval_request()) for code in CODES)
                results = await asyncio.gather(*made, return_exceptions=True)
            return server.requests, [type(each) for each in results]

    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(calls())
        if error is not RuntimeError:
            with pytest.raises(error):
                runner.get_loop().run_until_complete(task)
        requests, results = runner.get_loop().run_until_complete(task)
    assert requests == 3
    assert results == [Refused, ConnectionLostError if error is RuntimeError else Refused, Refused]
