"""Exact method, path, headers and bytes of every call (spec §2, §4, §5)."""

from collections.abc import Callable, Coroutine
from datetime import date
from importlib.metadata import version
from typing import Any

import aiohttp
import pytest
from aioresponses import aioresponses
from yarl import URL

from loanasync import LoanClient, UserData
from support.builders import FISCAL_CODE, approval_request

BASE = "https://loans.example.com/v"
REQUESTS = f"{BASE}/api/shops/shop%3A1/requests"
REQUEST = f"{REQUESTS}/{FISCAL_CODE}"
COMPLETION = UserData(document_issue_date=date(2022, 5, 7), payment_day_of_month=5, us_person=False)


async def sent_by(
    mocked_http: aioresponses, method: str, url: str, call: Callable[[LoanClient], Coroutine[Any, Any, Any]]
) -> dict[str, Any]:
    """Return the arguments of the only request of a call, which is answered with 200 or 201."""
    status = 200 if method == "PATCH" else 201
    mocked_http.add(URL(url, encoded=True), method, status=status, payload={"approved": True})
    async with LoanClient(BASE + "/", shop_id="shop:1", auth_token="token") as client:
        await call(client)
    [((found, address), [request])] = mocked_http.requests.items()
    assert (found, str(address)) == (method, url)
    return dict(request.kwargs)


async def test_approve_request_has_exactly_these_headers_and_bytes(mocked_http: aioresponses) -> None:
    request, code = approval_request(last_name="Provà"), f" {FISCAL_CODE.lower()} "
    sent = await sent_by(mocked_http, "POST", REQUEST, lambda client: client.approve(code, request))
    assert sent["data"].decode() == (
        '{"amount":45000,"instalments":12,"loanFinality":"ecommerce_shop","email":"anna@example.com",'
        '"lastname":"Provà","firstname":"Anna","mobilePhone":"3330000000","city":"Roma",'
        '"address":"Via Prova","province":"RM","postalCode":"00100","streetNumber":"12/A",'
        '"citizenship":"italian"}'
    )
    headers = dict(sent["headers"])
    agent = headers.pop("User-Agent")
    assert headers == {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Content-Type": "application/json",
        "X-Auth-Token": "token",
    }
    assert agent.startswith(f"loanasync/{version('loanasync')} aiohttp/{version('aiohttp')} Python/3.")
    assert sent["allow_redirects"] is False
    # with a lower threshold, aiohttp would round longer timeouts up to whole seconds
    timeout = aiohttp.ClientTimeout(total=None, connect=5.0, ceil_threshold=float("inf"))
    assert sent["timeout"] == timeout


async def test_complete_request_has_iso_dates_and_an_integer_day(mocked_http: aioresponses) -> None:
    sent = await sent_by(
        mocked_http, "PATCH", REQUEST, lambda client: client.complete(FISCAL_CODE, COMPLETION)
    )
    assert sent["data"] == b'{"documentIssueDate":"2022-05-07","usPerson":false,"paymentDayOfMonth":5}'


@pytest.mark.parametrize("creates", [True, False])
async def test_prerequisite_requests_send_the_payload_unchanged(
    mocked_http: aioresponses, *, creates: bool
) -> None:
    payload: Any = {"n": [1], "è": {"x": None}}

    def call(client: LoanClient) -> Coroutine[Any, Any, Any]:
        return client.create_request(payload) if creates else client.upload_documents(FISCAL_CODE, payload)

    url = REQUESTS if creates else f"{REQUEST}/documents"
    sent = await sent_by(mocked_http, "POST", url, call)
    assert sent["data"] == '{"n":[1],"è":{"x":null}}'.encode()
