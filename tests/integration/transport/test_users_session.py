"""A user's session is not changed by calls."""

from unittest import mock

import aiohttp
import pytest
from yarl import URL

from loanasync import ConfigurationError, Refused
from loanasync._transport.aiohttp_internals import SplittingProtocol
from support.canned_server import REFUSAL, approve, serving
from support.direct_path import each_path

COOKIE = REFUSAL.replace(b"\r\n\r\n", b"\r\nSet-Cookie: name=theirs; Path=/\r\n\r\n", 1)


@each_path
async def test_cookies_of_a_response_stay_out_of_the_jar(*, is_direct: bool) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    jar.update_cookies({"name": "ours"}, URL("http://127.0.0.2/"))  # another service
    async with serving(COOKIE) as server, aiohttp.ClientSession(cookie_jar=jar) as session:
        client = server.client(session=session, direct_connections=is_direct)
        assert isinstance(await approve(client), Refused)
        assert [(each.key, each.value) for each in jar] == [("name", "ours")]
        async with session.get(server.base_url, data=b"{}") as response:  # a request of the user
            await response.read()
        assert ("name", "theirs") in {(each.key, each.value) for each in jar}


@each_path
async def test_session_closed_before_the_first_call_is_refused(*, is_direct: bool) -> None:
    async with serving(REFUSAL) as server:
        session = aiohttp.ClientSession()
        client = server.client(session=session, direct_connections=is_direct)
        await session.close()
        with pytest.raises(ConfigurationError, match="session: is closed"):
            await approve(client)
        assert server.requests == 0


INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_splitter_passes_each_head_separately(size: int) -> None:
    handler = mock.Mock(exception=mock.Mock(return_value=None))
    splitter = SplittingProtocol(mock.Mock(get_protocol=mock.Mock(return_value=handler)), aborts=False)
    received = INTERIM * 2 + REFUSAL
    ends: list[int] = []
    for at in range(0, len(received), size):
        splitter.data_received(received[at : at + size])
    passed = [call.args[0] for call in handler.data_received.call_args_list]
    assert b"".join(passed) == received
    for part in passed:
        ends.append((ends[-1] if ends else 0) + len(part))
    body = received.rindex(b"\r\n\r\n") + 4
    assert {len(INTERIM), 2 * len(INTERIM), body} <= set(ends)


def test_splitter_buffers_only_the_end_of_a_long_head() -> None:
    """Copying the whole head for each packet would take quadratic time."""
    splitter = SplittingProtocol(mock.Mock(), aborts=False)
    splitter.data_received(b"HTTP/1.1 201 Created\r\n")
    for number in range(100):
        splitter.data_received(b"X-%d: %s\r\n" % (number, b"x" * 1000))
    assert sum(len(each) for each in vars(splitter).values() if isinstance(each, bytes)) < 100
