"""Exact method, path, headers and bytes of every call, in both dialects (spec §2, §4, §5)."""

import json
from datetime import date
from importlib.metadata import version

import aiohttp
import pytest
from aioresponses import aioresponses
from aioresponses.core import RequestCall
from yarl import URL

from loanasync import Approved, Dialect, LoanClient, UserData
from support.builders import FISCAL_CODE, additional_data, approval_request

BASE = "https://loans.example.com/v"
REQUESTS = f"{BASE}/api/shops/shop%3A1/requests"
REQUEST = f"{REQUESTS}/{FISCAL_CODE}"


def create_client(**options: object) -> LoanClient:
    return LoanClient(BASE + "/", shop_id="shop:1", auth_token="token", **options)  # type: ignore[arg-type]


def only_call(mocked_http: aioresponses) -> tuple[str, str, RequestCall]:
    [((method, url), calls)] = mocked_http.requests.items()
    [call] = calls
    return method, str(url), call


async def test_approve_request_has_exactly_these_headers_and_bytes(mocked_http: aioresponses) -> None:
    mocked_http.post(URL(REQUEST, encoded=True), status=201, payload={"approved": True})
    request = approval_request(last_name="Provà")
    async with create_client() as client:
        assert isinstance(await client.approve(f" {FISCAL_CODE.lower()} ", request), Approved)
    method, url, call = only_call(mocked_http)
    assert (method, url) == ("POST", REQUEST)
    assert call.kwargs["data"].decode() == (
        '{"amount":45000,"instalments":12,"loanFinality":"ecommerce_shop","email":"anna@example.com",'
        '"lastname":"Provà","firstname":"Anna","mobilePhone":"3330000000","city":"Roma",'
        '"address":"Via Prova","province":"RM","postalCode":"00100","streetNumber":"12/A",'
        '"citizenship":"italian"}'
    )
    headers = dict(call.kwargs["headers"])
    agent = headers.pop("User-Agent")
    assert headers == {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Content-Type": "application/json",
        "X-Auth-Token": "token",
    }
    assert agent.startswith(f"loanasync/{version('loanasync')} aiohttp/{version('aiohttp')} Python/3.")
    assert call.kwargs["allow_redirects"] is False
    # with a lower threshold, aiohttp would round longer timeouts up to whole seconds
    timeout = aiohttp.ClientTimeout(total=None, connect=5.0, ceil_threshold=float("inf"))
    assert call.kwargs["timeout"] == timeout


@pytest.mark.parametrize(
    ("dialect", "street_number", "instalments", "italian"),
    [
        (Dialect.street_number(), "streetNumber", "instalments", "italian"),
        (Dialect.civic_number(), "civicNumber", "instalments", "italian"),
        (Dialect(instalments_field="installments"), "streetNumber", "installments", "italian"),
        (Dialect(italian="Italian"), "streetNumber", "instalments", "Italian"),
    ],
)
async def test_approve_request_uses_the_names_of_the_dialect(
    mocked_http: aioresponses, dialect: Dialect, street_number: str, instalments: str, italian: str
) -> None:
    mocked_http.post(URL(REQUEST, encoded=True), status=201, payload={"approved": True})
    request = approval_request(
        street_number="7",
        instalments=9,
        citizenship="italian",
        additional=additional_data(residence_start_date=date(2019, 5, 1)),
    )
    async with create_client(dialect=dialect) as client:
        await client.approve(FISCAL_CODE, request, additional_data_needed=True)
    sent = json.loads(only_call(mocked_http)[2].kwargs["data"])
    assert (sent[street_number], sent[instalments], sent["citizenship"]) == ("7", 9, italian)
    assert len({"streetNumber", "civicNumber"} & sent.keys()) == 1
    assert len({"instalments", "installments"} & sent.keys()) == 1
    assert sent["residenceStartDate"] == "05/2019"


async def test_complete_request_has_iso_dates_and_an_integer_day(mocked_http: aioresponses) -> None:
    mocked_http.patch(URL(REQUEST, encoded=True), status=200, payload={"usPerson": False})
    data = UserData(document_issue_date=date(2022, 5, 7), payment_day_of_month=5, us_person=False)
    async with create_client() as client:
        assert await client.complete(FISCAL_CODE, data) == UserData(us_person=False)
    method, url, call = only_call(mocked_http)
    assert (method, url) == ("PATCH", REQUEST)
    assert call.kwargs["data"] == b'{"documentIssueDate":"2022-05-07","usPerson":false,"paymentDayOfMonth":5}'


async def test_prerequisite_requests_send_the_payload_unchanged(mocked_http: aioresponses) -> None:
    mocked_http.post(URL(REQUESTS, encoded=True), status=201, payload={"a": 1})
    mocked_http.post(URL(f"{REQUEST}/documents", encoded=True), status=204)
    async with create_client() as client:
        assert await client.create_request({"fiscalCode": FISCAL_CODE, "n": [1]}) == {"a": 1}
        assert await client.upload_documents(FISCAL_CODE, {"front": {"x": None}}) == {}
    sent = {
        (method, str(url)): [call.kwargs["data"] for call in calls]
        for (method, url), calls in mocked_http.requests.items()
    }
    assert sent == {
        ("POST", REQUESTS): [f'{{"fiscalCode":"{FISCAL_CODE}","n":[1]}}'.encode()],
        ("POST", f"{REQUEST}/documents"): [b'{"front":{"x":null}}'],
    }
