"""Messages of the service that repeat personal values in any form: errors, logs and spans contain none."""

import html
import json
import unicodedata
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from datetime import date
from typing import Any
from urllib.parse import quote, unquote

import pytest

from loanasync import LoanError, RetryPolicy
from loanasync.ledger import MemoryLedger
from loanasync.testing import approval_request, response, scripted_client, user_data
from support.privacy.scanner import OUTPUT_KINDS, Captured, capturing

CODE = "QZXWVK80L43A000K"
PERSON: dict[str, str] = {
    "first_name": "Zòquim",
    "last_name": "D'Wxyzè",
    "email": "kwyjibo.zqx@example.com",
    "mobile_phone": "3987123465",
    "address": "Via Quxbàrt",
    "city": "Vyzkôl",
    "street_number": "77ZQ",
    "iban": "IT60X0542811101000000987654",
}
DOCUMENT = {"document_code": "CA98712ZQ", "document_city": "Zyxwòv", "profession": "Qwyxer"}
ISSUED = date(2019, 11, 27)
# Letters and digits only, without accents. No other text of an error contains one of these.
MARKS = (
    *("zoquim", "wxyze", "kwyjibo", "3987123465", "quxbart", "vyzkol", "77zq", "542811101000000987654"),
    *("qzxwvk", "80l43a000k", "ca98712zq", "zyxwov", "qwyxer", "27112019", "20191127", "zoquimdwxyze"),
    *("3luglio1980", "03071980", "19800703"),
)
ONCE = RetryPolicy(attempts=1)
REQUEST = approval_request(**PERSON)
DATA = user_data(**DOCUMENT, document_issue_date=ISSUED, iban=PERSON["iban"])
PAYLOAD: dict[str, Any] = {"customer": {**PERSON, **DOCUMENT, "code": CODE}, "issued": ISSUED.isoformat()}

FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper": str.upper,
    "lower": str.lower,
    "HTML": lambda text: "".join(f"&#x{ord(each):x};" for each in text),
    "percent": lambda text: quote(quote(text)),
    "JSON": lambda text: json.dumps({"value": text}),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "ASCII": lambda text: unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode(),
    "wrong charset": lambda text: text.encode().decode("latin-1"),
    "wide": lambda text: "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text),
    "spaced": " ".join,
    "dashed": lambda text: "-".join(text[at : at + 3] for at in range(0, len(text), 3)),
    "within": lambda text: f"user_{text}_1",
}


DATES = ("27/11/2019", "2019-11-27", "27.11.2019")
BIRTHDAYS = ("3 luglio 1980", "03/07/1980", "1980-07-03")
NAME = f"{PERSON['first_name']} {PERSON['last_name']}"
# A message is cleared of the values that its call sends. A completion sends no name.
SENT = {
    "approve": (*PERSON.values(), NAME, CODE, *BIRTHDAYS),
    "complete": (*DOCUMENT.values(), PERSON["iban"], CODE, *BIRTHDAYS, *DATES),
    "create_request": (*PERSON.values(), *DOCUMENT.values(), NAME, CODE, *BIRTHDAYS, *DATES),
    "upload_documents": (*PERSON.values(), *DOCUMENT.values(), NAME, CODE, *BIRTHDAYS, *DATES),
}


def bodies(texts: list[str]) -> Iterator[tuple[int, bytes]]:
    one = texts[-1]
    for body in (
        {"errors": {"lastname": texts}},
        {"errors": {**{text: ["is wrong"] for text in texts}, "domain": texts}},
        {"errors": {"domain": ["User already evaluated for approval", *texts]}},
        {"errors": one},
        {"error": f"{'x ' * 280}{one}"},
    ):
        yield 400, json.dumps(body).encode()
        yield 403, json.dumps(body, ensure_ascii=False).encode()
    yield 409, json.dumps({"errors": f"not now, {one}"}).encode()
    yield 404, f"<p>{one}</p>".encode()
    yield 201, json.dumps({"approved": one, "fiscalCode": one, one: one, "errors": {"city": texts}}).encode()
    yield 422, json.dumps({"errors": {"city": texts}}).encode()
    yield 500, json.dumps({"errors": {"system": texts}}).encode()


def plain(text: str) -> str:
    for _ in range(3):
        text = html.unescape(unquote(text))
    folded = unicodedata.normalize("NFKD", text).casefold()
    return "".join(filter(str.isalnum, folded))


def marks_in(captured: Captured) -> list[str]:
    found = []
    for kind in OUTPUT_KINDS:
        for text in dict.fromkeys(kind.texts(captured)):
            letters = plain(text)
            found += [f"{mark} in {kind.name}: {text[:300]}" for mark in MARKS if mark in letters]
    return found


async def call(operation: str, status: int, body: bytes, captured: Captured) -> None:
    headers = {"X-Request-Id": f"r-{b64encode(body[:9]).decode()}", "Location": f"https://x.example/{CODE}"}
    ledger = MemoryLedger()
    client = scripted_client(response(status, body, headers), ledger=ledger, retry=ONCE, **captured.providers)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "approve": lambda: client.approve(CODE, REQUEST),
        "complete": lambda: client.complete(CODE, DATA),
        "create_request": lambda: client.create_request(PAYLOAD),
        "upload_documents": lambda: client.upload_documents(CODE, PAYLOAD),
    }
    try:
        await calls[operation]()
    except LoanError as error:
        captured.add(error)


@pytest.mark.parametrize("form", FORMS)
async def test_message_in_any_form_shows_no_personal_data(form: str) -> None:
    with capturing() as captured:
        for operation, values in SENT.items():
            texts = [f"The value {FORMS[form](value)} is wrong" for value in values]
            for status, body in bodies(texts):
                await call(operation, status, body, captured)
    assert len(captured.errors) > 40
    assert marks_in(captured) == []
