"""Unclassified responses are stored in the ledger or in an orphan file until a person resolves the entry."""

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from cryptography.fernet import Fernet, MultiFernet

from loanasync import Approved, LoanError, Refused, errors
from loanasync.ledger import Entry, MemoryLedger, SqliteLedger, State, import_orphans, resolve
from loanasync.ledger.header import cipher_check
from loanasync.testing import ScriptedResponse, approved, response
from support.builders import FISCAL_CODE
from support.ledger_clients import FailingLedger, Shop, broken, orphans_in

ANOTHER = "TSTXYZ00A00A000Z"
REDIRECT = "https://pay.example.com/#t"


def about_another(*, is_approved: bool = True) -> ScriptedResponse:
    """Return a decision that echoes the fiscal code of another customer."""
    body = {"approved": is_approved, "fiscalCode": ANOTHER, "redirectUrl": REDIRECT, "firstName": "Berta"}
    return response(201 if is_approved else 422, json.dumps(body).encode())


@pytest.mark.parametrize("options", [{}, {"encrypt": Fernet(Fernet.generate_key())}])
async def test_kept_response_of_another_customer_becomes_the_decision(options: dict[str, Any]) -> None:
    shop = Shop(about_another(), **options)
    error = await shop.result()
    assert isinstance(error, errors.UnexpectedResponseError)
    assert error.response is not None
    assert json.loads(error.response.body)["redirectUrl"] == REDIRECT
    assert ANOTHER not in str(error) + repr(error) + repr(error.response)

    entry = await shop.entry()
    fault = "fiscalCode: belongs to another customer"
    assert (entry.state, entry.status, entry.fault) == (State.UNKNOWN, 201, fault)
    if not options:
        assert json.loads(entry.body or b"") == {"approved": True, "redirectUrl": REDIRECT}
    assert isinstance(await shop.result(), errors.OutcomeUnknownError)
    await resolve(shop.ledger, entry, State.APPROVED, "ticket 17")
    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.fiscal_code) == (REDIRECT, FISCAL_CODE)
    assert (decision.meta.status, decision.meta.attempts) == (201, 0)
    assert len(shop.script.sent) == 1


@pytest.mark.parametrize("status", [202, 400, 403, 404, 422, 500])
async def test_kept_response_of_any_status_becomes_the_approval(status: int) -> None:
    """The service returned `approved: true` with a status that contradicts it (readings R1, R4)."""
    shop = Shop(response(status, {"approved": True, "redirectUrl": REDIRECT}))
    assert (await shop.result()).outcome == "unknown"  # type: ignore[union-attr]
    await resolve(shop.ledger, await shop.entry(), State.APPROVED, "ticket 17")
    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.status, decision.meta.unread) == (REDIRECT, status, ())


@pytest.mark.parametrize(
    ("step", "state", "unread"),
    [
        (about_another(is_approved=False), State.REFUSED, ()),
        (about_another(), State.REFUSED, ("body",)),  # it contradicts the person
        *(
            (response(502, body), State.APPROVED, ("body",))
            for body in (b"<html>", b"[1]", b'{"approved": tr')
        ),
    ],
)
async def test_kept_response_is_in_the_decision_unless_it_contradicts(
    step: ScriptedResponse, state: State, unread: tuple[str, ...]
) -> None:
    shop = Shop(step)
    await shop.result()
    await resolve(shop.ledger, await shop.entry(), state, "by telephone")
    decision = await shop.approve()
    assert isinstance(decision, Approved if state is State.APPROVED else Refused)
    assert decision.meta.unread == unread


async def test_kept_response_of_a_failing_ledger_is_in_an_orphan_file(tmp_path: Path) -> None:
    ledger = FailingLedger(settle=broken)
    shop = Shop(about_another(), ledger=ledger, orphan_folder=tmp_path)
    assert isinstance(await shop.result(order_id="spring"), errors.UnexpectedResponseError)
    [file] = tmp_path.iterdir()
    assert FISCAL_CODE not in file.read_text()
    assert ANOTHER not in file.read_text()
    ledger.faults.clear()
    assert await import_orphans(ledger, tmp_path) == 1
    entry = await shop.entry()
    assert (entry.state, entry.status, entry.order) == (State.UNKNOWN, 201, "spring")
    await resolve(ledger, entry, State.APPROVED, "ticket 17")
    decision = await shop.approve(order_id="spring")
    assert isinstance(decision, Approved)
    assert decision.redirect_url == REDIRECT


async def test_kept_response_that_the_entry_does_not_accept_is_in_an_orphan_file(tmp_path: Path) -> None:
    """A person has blocked the entry after the end of its lease."""

    class Held(MemoryLedger):
        async def settle(self, key: str, **_: Any) -> Entry:
            entry = await self.get(key)
            assert entry is not None
            return evolve(entry, state=State.HELD, token="of a person")

    shop = Shop(about_another(), ledger=Held(), orphan_folder=tmp_path)
    assert isinstance(await shop.result(), errors.UnexpectedResponseError)
    assert orphans_in(tmp_path) == 1


async def test_kept_response_that_cannot_be_encrypted_is_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cipher = Fernet(Fernet.generate_key())
    shop = Shop(about_another(), encrypt=cipher)
    await shop.open_ledger()
    cipher.encrypt = lambda _: broken()  # type: ignore[method-assign, assignment]
    assert isinstance(await shop.result(), errors.UnexpectedResponseError)
    entry = await shop.entry()
    assert (entry.state, entry.body) == (State.UNKNOWN, None)
    assert "was not stored" in caplog.text


@pytest.mark.parametrize(("state", "kind"), [(State.APPROVED, Approved), (State.REFUSED, Refused)])
async def test_entry_without_a_body_is_a_decision_without_redirect(
    state: State, kind: type[Approved | Refused]
) -> None:
    shop = Shop()
    entry = await resolve(shop.ledger, await shop.put(State.UNKNOWN), state, "by telephone")
    decision = await shop.approve()
    assert isinstance(decision, kind)
    assert (decision.raw, decision.amount, decision.meta.unread) == ({}, None, ("body",))
    assert (decision.meta.status, decision.meta.entry) == (201 if kind is Approved else 422, entry.key)
    assert getattr(decision, "redirect_url", None) is None


async def test_file_has_no_personal_data(tmp_path: Path) -> None:
    shop = Shop(approved(), ledger=SqliteLedger(tmp_path / "decisions.db"))
    await shop.approve()
    texts = [repr(shop.ledger), repr(await shop.entry())]
    await shop.ledger.aclose()
    stored = (tmp_path / "decisions.db").read_bytes()
    for personal in (FISCAL_CODE, "anna@example.com", "Prova"):
        assert personal not in "".join(texts)
        assert personal.encode() not in stored


async def test_redirect_of_a_body_that_is_not_json_is_stored() -> None:
    body = json.dumps({"approved": True, "redirectUrl": REDIRECT, "firstName": "Anna"}).encode()
    shop = Shop(response(201, body + b" <b>Notice</b>"))
    for _ in range(2):
        decision = await shop.approve()
        assert isinstance(decision, Approved)
        assert (decision.redirect_url, decision.raw, decision.meta.unread) == (REDIRECT, {}, ("body",))
    entry = await shop.entry()
    assert (entry.status, entry.fault, b"Anna" in (entry.body or b"Anna")) == (201, "not whole", False)


async def test_text_in_a_member_of_the_decision_is_not_stored() -> None:
    shop = Shop(
        response(201, b'{"approved": true, "amount": "Anna", "netAmount": "43,10", "instalments": ["Anna"]}')
    )
    await shop.approve()
    assert json.loads((await shop.entry()).body or b"") == {"approved": True, "netAmount": "43,10"}


async def test_cipher_without_the_key_of_a_response_is_named() -> None:
    ledger = MemoryLedger()
    old, new = Fernet(Fernet.generate_key()), Fernet(Fernet.generate_key())
    shop = Shop(approved(), ledger=ledger, encrypt=MultiFernet([old]))
    await shop.approve()
    header = await ledger.header()
    await ledger.change_header(header, evolve(header, cipher=cipher_check(new, header.id)))
    other = Shop(ledger=ledger, encrypt=new)
    for error in (await other.result(), await failed(other.client.known(FISCAL_CODE))):
        assert isinstance(error, errors.LedgerUnavailableError)
        assert "give the cipher, LOANASYNC_LEDGER_CIPHER, the key with which it was encrypted" in str(error)


async def failed(call: Awaitable[object]) -> LoanError | None:
    try:
        await call
    except LoanError as error:
        return error
    return None
