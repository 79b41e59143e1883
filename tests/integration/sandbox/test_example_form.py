"""The form that creates and approves a request without a shop."""

import re

import pytest

from support.raw_shop import Raw
from support.sandbox_pages import get, post

FORM = "/_sandbox/try"


async def filled_in(raw: Raw) -> dict[str, str]:
    status, page = await get(raw, FORM)
    assert status == 200
    return dict(re.findall('<input name="(.+?)" value="(.*?)"', page))


async def test_form_as_it_is_leads_to_an_approval(raw: Raw) -> None:
    for _ in range(2):  # each time with a new customer
        status, page = await post(raw, FORM, None, **await filled_in(raw))
        assert status == 200
        assert "201, evaluated by this call" in page
    assert [call.status for call in raw.sandbox.journal] == [201] * 4
    assert not raw.sandbox.findings


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({"email": "anna+refused@example.com"}, [201, 422]),
        ({"email": "anna+refuse@example.com"}, [201, 400]),
        ({"amount": "a lot"}, [201, 400]),
        ({"fiscalCode": ""}, [400, 400]),
        ({"fiscalCode": "\x00"}, [400, 400]),
    ],
)
async def test_changed_form_has_the_response_of_the_service(
    raw: Raw, changes: dict[str, str], statuses: list[int]
) -> None:
    status, page = await post(raw, FORM, None, **{**await filled_in(raw), **changes})
    assert status == 200
    assert "Call 2: approve" in page
    assert [call.status for call in raw.sandbox.journal] == statuses


async def test_form_with_an_unknown_field_is_refused(raw: Raw) -> None:
    status, text = await post(raw, FORM, amout="45000")
    assert status == 400
    assert "did you mean 'amount'" in text
    assert not raw.sandbox.journal
