"""A session of the user's is used, and left as it was."""

import aiohttp
from canned import REFUSAL, approve, serving

from loanasync import Refused

COOKIE = REFUSAL.replace(b"\r\n\r\n", b"\r\nSet-Cookie: name=theirs; Path=/\r\n\r\n", 1)


async def test_cookies_of_a_response_stay_out_of_the_jar() -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    jar.update_cookies({"name": "ours"})
    async with serving(COOKIE) as server, aiohttp.ClientSession(cookie_jar=jar) as session:
        assert isinstance(await approve(server.client(session=session)), Refused)
        assert [(each.key, each.value) for each in jar] == [("name", "ours")]
        async with session.get(server.base_url, data=b"{}") as response:  # a request of the user's own
            await response.read()
        assert ("name", "theirs") in {(each.key, each.value) for each in jar}
