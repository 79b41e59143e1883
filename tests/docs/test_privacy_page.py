"""The page on privacy names all headers that are sent."""

import re
from pathlib import Path

import aiohttp
import pytest

from loanasync import LoanClient
from support.builders import FISCAL_CODE, approval_request
from support.faults.row import http
from support.pages import ROOT
from support.raw_server import Play, RawServer, running

PAGE = ROOT / "docs" / "explanation" / "privacy.md"


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("owned", [True, False])
async def test_privacy_page_names_exactly_the_headers_that_are_sent(
    direct: bool,  # noqa: FBT001  (a parameter of the test)
    owned: bool,  # noqa: FBT001  (a parameter of the test)
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("**Request headers:**")[2].partition("\n- ")[0]
    always, _, session = page.partition("The default headers of your own session")
    named = set(re.findall(r"`([A-Z][\w-]+)`", always)) - ({"Connection"} if direct else set())
    if not owned:
        named |= set(re.findall(r"`([A-Z][\w-]+)`", session))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login anna password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    defaults = {"Cookie": "own=1", "Authorization": "Basic eA=="}
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        running(RawServer((Play.READ, http("201 Created", b'{"approved": true}')))) as server,
        aiohttp.ClientSession(cookies={"jar": "2"}, cookie_jar=jar, headers=defaults) as users,
        LoanClient(
            server.base_url,
            shop_id="s",
            auth_token="t",
            session=None if owned else users,
            direct_connections=direct,
        ) as client,
    ):
        await client.approve(FISCAL_CODE, approval_request())
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    assert {line.partition(":")[0] for line in head} == named
    assert "jar=2" not in "".join(head)
