"""The sandbox over raw HTTP, without the SDK (spec §1 to §8), also for hostile and careless requests."""

import asyncio
import contextlib
import gzip
import json
import logging
from typing import Any

import aiohttp
import pytest

from support.raw_shop import BODY, CODE, TOKEN, Raw
from support.sandbox_pages import get

EVALUATED = (400, {"errors": {"domain": ["User already evaluated for approval"]}})


def dialect(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("raw", [name], indirect=True)


def url(raw: Raw, shop: str = "sandbox-shop") -> str:
    return f"{raw.sandbox.base_url}/api/shops/{shop}/requests"


@pytest.mark.parametrize(
    ("shop", "token", "hint"),
    [
        ("sandbox-shop", None, "X-Auth-Token is missing"),
        ("sandbox-shop", "sandbox-tokens", "X-Auth-Token belongs to another shop"),
        ("other", TOKEN, "the shop in the path does not match X-Auth-Token"),
    ],
)
async def test_wrong_credentials_are_403_with_a_hint(
    raw: Raw, shop: str, token: str | None, hint: str
) -> None:
    headers = {} if token is None else {"X-Auth-Token": token}
    for method, path in (("POST", ""), ("POST", "/x"), ("POST", "/x/documents"), ("PATCH", "/x")):
        async with raw.session.request(method, url(raw, shop) + path, json={}, headers=headers) as response:
            assert (response.status, await response.json()) == (403, {"error": "Access denied"})  # spec §7
            assert response.headers["X-Sandbox-Hint"] == hint


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b"\xff", b"[" * 10_000, b'{"a": 1e999}', b'{"a": NaN}'],
    ids=lambda body: body[:3],
)
async def test_body_that_is_not_an_object_is_400(raw: Raw, body: bytes) -> None:
    status, response = await raw("POST", "", body)
    assert (status, list(response["errors"])) == (400, ["body"])


async def test_each_redirect_has_its_own_token(raw: Raw) -> None:
    tokens = set()
    for code in (CODE, f"{CODE[:-1]}B"):
        await raw.create(fiscalCode=code)
        _, response = await raw("POST", f"/{code}", BODY)
        tokens.add(response["redirectUrl"].partition("#")[2])
    assert len(tokens) == 2


@pytest.mark.parametrize("depth", [200, 300, 980, 5000])
async def test_too_deeply_nested_body_is_400(raw: Raw, depth: int) -> None:
    await raw.create()
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    body = json.dumps(BODY).encode()[:-1] + b',"extra":' + deep + b"}"
    assert (await raw("POST", f"/{CODE}", body))[0] == (201 if depth == 200 else 400)
    assert (await get(raw, "/_sandbox/calls/2?personal=shown"))[0] == 200


async def test_too_long_body_is_413(raw: Raw) -> None:
    await raw.create()
    status, response = await raw.approve(city="x" * (1 << 20))
    assert (status, response) == (413, {"errors": {"body": ["This value is too long."]}})
    assert (await raw("POST", f"/{CODE}/documents", {"front": "x" * (2 << 20)}))[0] == 201
    assert (await raw("POST", f"/{CODE}/documents", {"front": "x" * (17 << 20)}))[0] == 413
    assert (await raw.approve())[0] == 201


async def test_broken_compression_is_400(raw: Raw) -> None:
    headers = {"X-Auth-Token": TOKEN, "Content-Encoding": "gzip"}
    data = gzip.compress(b"{}")[:-4] + b"xxxx"
    # The next request in such a stream cannot be found.
    with contextlib.suppress(aiohttp.ServerDisconnectedError):
        async with raw.session.post(url(raw), data=data, headers=headers) as response:
            assert response.status == 400
    assert (await get(raw, "/_sandbox/"))[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /api/shops/s/requests/RSSMRA85T10A562S HTTP/1.1\r\nX-Auth-Token: SECRET\x00Mario\r\n\r\n",
        b"POST /api/shops/s/requests/RSSMRA85T10A562S?a b HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_malformed_request_is_not_logged(
    raw: Raw, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    reader, writer = await asyncio.open_connection("127.0.0.1", raw.sandbox.base_url.rpartition(":")[2])
    writer.write(sent)
    assert b" 400 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert "a request could not be handled: " in caplog.text
    assert not [name for name in ("Mario", "RSSMRA85T10A562S", "SECRET") if name in caplog.text]


async def test_token_that_is_not_utf_8_is_a_wrong_token(raw: Raw) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", raw.sandbox.base_url.rpartition(":")[2])
    path = b"/api/shops/sandbox-shop/requests"
    writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: \xff\r\n\r\n")
    assert b" 403 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_all_invalid_fields_are_reported_together(raw: Raw) -> None:
    await raw.create()
    status, response = await raw("POST", f"/{CODE}", {})
    assert (status, set(response["errors"])) == (400, set(BODY))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("amount", 4_999), ("amount", 1_500_001), ("amount", "45000"), ("amount", True)),
        *(("instalments", 12.0), ("email", "anna"), ("province", "rm"), ("province", "RM\n")),
        *(("postalCode", 100), ("zeroInterestRate", "false"), ("paymentDayOfMonth", 5)),
        *(("paymentDayOfMonth", "32"), ("countryCallingCode", ""), ("residence", "castle")),
        *(("residenceStartDate", "13/2019"), ("salary", -1), ("salary", "5"), ("children", 2)),
    ],
)
async def test_wrong_type_or_format_is_rejected(raw: Raw, field: str, value: object) -> None:
    await raw.create()
    changes: dict[str, Any] = {field: value}
    status, response = await raw.approve(**changes)
    assert (status, list(response["errors"])) == (400, [field])
    assert (await raw.approve())[0] == 201, "a rejected call decides nothing"


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        *(("privacy", 1, 400), ("privacy", True, 201), ("privacy", "true", 201)),
        *(("additionalDataNeeded", "true", 400), ("additionalDataNeeded", None, 400)),
        *(("actualJobEndingDate", date, 201) for date in ("01/2030", "2030-01-31")),
        *(("actualJobEndingDate", date, 400) for date in ("13/2030", "1/2030", "2030-02-30", 2030, None)),
    ],
)
async def test_fields_of_a_creation_are_checked(raw: Raw, field: str, value: object, status: int) -> None:
    found, response = await raw.create(**{field: value})
    assert (found, list(response.get("errors", []))) == (status, [field] if status == 400 else [])


@dialect("civic_number")
async def test_civic_number_dialect_needs_its_spelling(raw: Raw) -> None:
    await raw.create()
    status, response = await raw.approve()
    assert (status, set(response["errors"])) == (400, {"streetNumber"})
    status, response = await raw.approve(
        streetNumber="absent", civicNumber="7", instalments="absent", installments=9
    )
    assert (status, response["civicNumber"], response["instalments"]) == (201, "7", 9)


@dialect("street_number")
async def test_street_number_dialect_rejects_installments(raw: Raw) -> None:
    await raw.create()
    status, response = await raw.approve(instalments="absent", installments=9)
    assert (status, list(response["errors"])) == (400, ["instalments"])


async def test_both_spellings_are_accepted_without_a_dialect(raw: Raw) -> None:
    await raw.create()
    status, response = await raw.approve(streetNumber="absent", civicNumber="7")
    assert (status, response["civicNumber"], "streetNumber" in response) == (201, "7", False)


async def test_decision_is_final_after_a_new_creation(raw: Raw) -> None:
    await raw.create()
    await raw.create()
    assert (await raw.approve(email="a+refused@example.com"))[0] == 422
    assert await raw.approve() == await raw.create() == EVALUATED
    assert [entry.evaluated for entry in raw.sandbox.journal] == [False, False, True, False, False]


@pytest.mark.parametrize(
    "tag", ["refuse", "500x0", "x" * 201, ".".join(["500x99"] * 40), "approved.nouser", "forbidden.approved"]
)
async def test_unreadable_tag_is_400_and_its_words_are_not_shown(raw: Raw, tag: str) -> None:
    await raw.create()
    status, response = await raw.approve(email=f"a+{tag}@example.com")
    [message] = response["errors"]["email"]
    assert status == 400
    assert ("did you mean +refused?" in message) == (tag == "refuse")
    assert ("exclude each other" in message) == (".approved" in tag or "approved." in tag)
    assert tag not in (await get(raw, "/_sandbox/journal.jsonl"))[1].replace("+refused", "")


async def test_documents_and_completion_need_a_request(raw: Raw) -> None:
    missing = (400, {"errors": {"domain": ["User not found"]}})
    assert await raw("POST", f"/{CODE}/documents", {}) == missing
    assert await raw("PATCH", f"/{CODE}", {}) == missing
    assert await raw.approve() == missing


async def test_completion_needs_documents_and_has_italian_messages(raw: Raw) -> None:
    await raw.create()
    await raw("POST", f"/{CODE}/documents", {})
    await raw.create()  # a new creation needs documents again
    assert (await raw("PATCH", f"/{CODE}", {"iban": "x"}))[1] == {
        "errors": {"documents": ["Questo valore non dovrebbe essere vuoto."]}
    }
    await raw("POST", f"/{CODE}/documents", {})
    wrong = {
        "documentOfType": "x",
        "documentCity": "",
        "documentIssueDate": "2022-02-30",
        "documentExpirationDate": "soon",
        "usPerson": "no",
        "paymentDayOfMonth": "5",
    }
    status, response = await raw("PATCH", f"/{CODE}", wrong)
    assert (status, set(response["errors"])) == (400, set(wrong))
    assert all(message.startswith("Questo valore") for [message] in response["errors"].values())
    assert await raw("PATCH", f"/{CODE}", {"usPerson": True}) == (200, {"usPerson": True})
