"""The sandbox over raw HTTP, without the SDK (spec §1 to §8)."""

import socket
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from loanasync.sandbox.outcomes import UnknownTagError, parse_email
from support.raw_shop import BODY, CODE, Raw


def dialect(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("raw", [name], indirect=True)


@pytest.mark.parametrize("token", [None, "", "wrong", "sandbox-tokens"])
async def test_missing_or_wrong_token_is_403(raw: Raw, token: str | None) -> None:
    calls = {"": "POST", f"/{CODE}": "POST", f"/{CODE}/documents": "POST"}
    for path, method in (*calls.items(), (f"/{CODE}", "PATCH")):
        assert await raw(method, path, {}, token) == (403, {"error": "Access denied"})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b"\xff", b"[" * 10_000, b'{"a": 1e999}', b'{"a": NaN}'],
    ids=lambda body: body[:3],
)
async def test_body_that_is_not_an_object_is_400(raw: Raw, body: bytes) -> None:
    status, response = await raw("POST", "", body)
    assert (status, list(response["errors"])) == (400, ["body"])


async def test_all_invalid_fields_are_reported_together(raw: Raw) -> None:
    await raw.create()
    status, response = await raw("POST", f"/{CODE}", {})
    assert status == 400
    assert set(response["errors"]) == BODY.keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", "45000"),
        ("amount", True),
        ("instalments", 12.0),
        ("email", "anna"),
        ("province", "rm"),
        ("postalCode", 100),
        ("zeroInterestRate", "false"),
        ("paymentDayOfMonth", 5),
        ("paymentDayOfMonth", "32"),
        ("countryCallingCode", ""),
        ("residence", "castle"),
        ("residenceStartDate", "13/2019"),
        ("salary", -1),
        ("salary", "5"),
        ("children", 2),
    ],
)
async def test_wrong_type_or_format_is_rejected(raw: Raw, field: str, value: object) -> None:
    await raw.create()
    changes: dict[str, Any] = {field: value}
    status, response = await raw.approve(**changes)
    assert (status, list(response["errors"])) == (400, [field])
    assert (await raw.approve())[0] == 201, "a rejected call decides nothing"


@pytest.mark.parametrize(
    ("field", "value"), [("privacy", 1), ("additionalDataNeeded", "true"), ("additionalDataNeeded", None)]
)
async def test_creation_with_wrong_type_is_rejected(raw: Raw, field: str, value: object) -> None:
    status, response = await raw.create(**{field: value})
    assert (status, list(response["errors"])) == (400, [field])


async def test_additional_data_is_required_if_the_creation_needs_it(raw: Raw) -> None:
    assert (await raw.create(additionalDataNeeded=True))[1]["additionalDataNeeded"] is True
    status, response = await raw.approve()
    assert (status, len(response["errors"])) == (400, 6)


@dialect("civic_number")
async def test_civic_number_dialect_needs_its_spelling_and_an_order_token(raw: Raw) -> None:
    await raw.create()
    status, response = await raw.approve()
    assert (status, set(response["errors"])) == (400, {"streetNumber", "orderToken"})
    status, response = await raw.approve(
        streetNumber="absent", civicNumber="7", orderToken="o", instalments="absent", installments=9
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
    assert (status, response["civicNumber"]) == (201, "7")
    assert "streetNumber" not in response


@pytest.mark.parametrize(
    ("amount", "status"),
    [(5_000, 201), (1_000_000, 201), (1_000_001, 422), (1_500_000, 422), (1_500_001, 400)],
)
async def test_amounts_above_ten_thousand_euro_are_refused(raw: Raw, amount: int, status: int) -> None:
    await raw.create()
    assert (await raw.approve(amount=amount))[0] == status


async def test_decision_is_final_after_a_new_creation(raw: Raw) -> None:
    await raw.create()
    await raw.create()
    assert (await raw.approve(email="a+refused@example.com"))[0] == 422
    evaluated = (400, {"errors": {"domain": ["User already evaluated for approval"]}})
    assert await raw.approve() == evaluated
    assert await raw.create() == evaluated
    assert [entry.evaluated for entry in raw.sandbox.journal] == [False, False, True, False, False]


async def test_tags_can_be_combined(raw: Raw) -> None:
    await raw.create()
    responses = [await raw.approve(email="a+500x1.refused@example.com") for _ in range(2)]
    assert [status for status, _ in responses] == [500, 422]
    assert responses[0][1] == {"errors": {"system": ["System error"]}}


async def test_500_after_the_decision_hides_the_evaluation(raw: Raw) -> None:
    await raw.create()
    assert (await raw.approve(email="a+500after@example.com"))[0] == 500
    assert (await raw.approve())[1]["errors"]["domain"] == ["User already evaluated for approval"]


async def test_unknown_tag_is_400(raw: Raw) -> None:
    await raw.create()
    status, response = await raw.approve(email="a+refuse@example.com")
    assert status == 400
    assert "did you mean +refused?" in response["errors"]["email"][0]


def test_tag_is_read_from_the_local_part_only() -> None:
    assert parse_email("a@b+refused.example").decision is None
    assert parse_email(5).name == ""
    assert parse_email("a+Refused.500x12@b").before == ("500",) * 12
    with pytest.raises(UnknownTagError):
        parse_email("a+500x@b")


async def test_documents_and_completion_need_a_request(raw: Raw) -> None:
    missing = (400, {"errors": {"domain": ["User not found"]}})
    assert await raw("POST", f"/{CODE}/documents", {}) == missing
    assert await raw("PATCH", f"/{CODE}", {}) == missing
    assert await raw.approve() == missing


async def test_completion_needs_documents_and_has_italian_messages(raw: Raw) -> None:
    await raw.create()
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


async def test_journal_is_masked_and_keeps_a_thousand_calls(raw: Raw) -> None:
    await raw.create()
    await raw.approve()
    assert CODE not in str(list(raw.sandbox.journal))
    assert [entry.route for entry in raw.sandbox.journal] == [
        "/api/shops/{shopId}/requests",
        "/api/shops/{shopId}/requests/{fiscalCode}",
    ]
    for _ in range(1000):
        await raw.create()
    assert len(raw.sandbox.journal) == 1000


async def test_host_must_be_loopback() -> None:
    for host in ("0.0.0.0", "192.168.0.1", "::", "example.com"):  # noqa: S104  (refused)
        with pytest.raises(ValueError, match="is not a loopback address"):
            Sandbox(host=host)
    async with Sandbox(host="localhost") as sandbox:
        assert "//" in sandbox.base_url
    with pytest.raises(ValueError, match="must be street_number"):
        Sandbox(dialect="both")  # type: ignore[arg-type]


def ipv6_is_there() -> bool:
    with socket.socket(socket.AF_INET6) as attempt:
        try:
            attempt.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not ipv6_is_there(), reason="this machine has no IPv6 loopback")
async def test_sandbox_serves_ipv6() -> None:
    async with Sandbox(host="::1") as sandbox, aiohttp.ClientSession() as session:
        async with session.get(f"{sandbox.base_url}/apply/x") as page:
            assert page.status == 404
        assert sandbox.base_url.startswith("http://[::1]:")


async def test_second_start_raises() -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(RuntimeError, match="already running at http"):
            await sandbox.start()


async def test_base_url_needs_a_running_sandbox() -> None:
    sandbox = Sandbox()
    with pytest.raises(RuntimeError, match="async with Sandbox"):
        _ = sandbox.base_url
    await sandbox.start()
    assert sandbox.base_url
    await sandbox.stop()
    await sandbox.stop()
    with pytest.raises(RuntimeError):
        _ = sandbox.base_url


async def test_port_in_use_leaves_nothing_open() -> None:
    async with Sandbox() as first:
        second = Sandbox(port=int(first.base_url.rpartition(":")[2]))
        with pytest.raises(OSError, match="address already in use"):
            await second.start()
        assert second._runner is None
