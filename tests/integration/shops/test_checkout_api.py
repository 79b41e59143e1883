"""The FastAPI route of docs/howto/fastapi.md, in process, against a sandbox."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkout import open_client
from checkout_api import OTHER_CUSTOMER, app, make_app

from loanasync import ApprovalRequest, ConfigurationError, LedgerMismatchError
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, create_ledger
from loanasync.sandbox import Sandbox
from support.example_shops import CODE, FORM, lifespan

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "fastapi.md"
BODY: dict[str, Any] = {**FORM, "instalments": 12}
ROUTE = "/orders/1001/loan"
OTHER_CODE = "TSTABC00A00A000A"


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[httpx.AsyncClient]:
    application = make_app(sandbox.client())
    transport = httpx.ASGITransport(application)
    async with (
        lifespan(application),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api,
    ):
        yield api


def tagged(tag: str) -> dict[str, Any]:
    return {**BODY, "email": f"anna+{tag}@example.com"}


async def test_approval_returns_the_redirect_and_no_personal_data(
    api: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    for _ in range(2):
        response = await api.post(ROUTE, json=BODY)
        assert response.status_code == 200
        assert response.headers["Cache-Control"] == "no-store"
        assert response.json()["status"] == "approved"
        assert response.json()["redirect_url"].startswith(f"{sandbox.base_url}/apply/")
        assert not [value for value in (CODE, "Anna", "Prova", "3330000000") if value in response.text]
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE, body={"amount": 45_000})


async def test_refusal_is_a_result(api: httpx.AsyncClient) -> None:
    response = await api.post(ROUTE, json=tagged("refused"))
    assert (response.status_code, response.json()) == (200, {"status": "refused", "redirect_url": None})


async def test_invalid_fields_are_reported_in_fastapi_shape(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    response = await api.post(ROUTE, json={**BODY, "province": "rm", "postal_code": "100"})
    assert response.status_code == 422
    assert [each["loc"] for each in response.json()["detail"]] == [
        ["body", "province"],
        ["body", "postal_code"],
    ]
    assert response.json()["detail"][0]["type"] == "province.format"
    assert "two capital letters" in response.json()["detail"][0]["msg"]
    assert len(sandbox.journal) == 0


async def test_wrong_types_and_missing_fields_are_reported_without_input(
    api: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    body = {**BODY, "city": 7, "typo": "x"}
    del body["email"]
    response = await api.post(ROUTE, json=body)
    assert response.status_code == 422
    detail = response.json()["detail"]
    assert {each["loc"][1]: each["type"] for each in detail} == {
        "email": "missing",
        "city": "string_type",
        "typo": "extra_forbidden",
    }
    assert "Anna" not in response.text
    assert len(sandbox.journal) == 0


async def test_texts_are_in_the_language_of_the_app(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkout_api.LANGUAGE", "it")
    rules = await api.post(ROUTE, json={**BODY, "instalments": 99})
    assert [each["msg"] for each in rules.json()["detail"]] == ["Inserire un numero intero tra 3 e 60."]
    own = await api.post(ROUTE, json={**BODY, "typo": "Anna"})
    assert own.json()["detail"] == [
        {"type": "extra_forbidden", "loc": ["body", "typo"], "msg": "Extra inputs are not permitted"}
    ]
    broken = await api.post(ROUTE, content='{"email": "anna', headers={"Content-Type": "application/json"})
    assert (broken.status_code, [*broken.json()["detail"][0]]) == (422, ["type", "loc", "msg"])


@pytest.mark.parametrize(("tag", "field"), [("invalid.city", "city"), ("nouser", "fiscal_code")])
async def test_fields_rejected_by_the_service_are_reported(
    api: httpx.AsyncClient, tag: str, field: str
) -> None:
    response = await api.post(ROUTE, json=tagged(tag))
    assert response.status_code == 422
    assert [each["loc"] for each in response.json()["detail"]] == [["body", field]]


async def test_unknown_outcome_is_reported_and_not_requested_again(
    api: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    for _ in range(2):
        response = await api.post(ROUTE, json=tagged("resetafter"))
        assert response.status_code == 202
        assert response.json() == {"status": "unknown", "redirect_url": None}
    response = await api.post(ROUTE, json={**BODY, "fiscal_code": OTHER_CODE})
    assert (response.status_code, response.json()["detail"]) == (409, OTHER_CUSTOMER)
    sandbox.journal.assert_once(operation="approve")


@pytest.mark.parametrize(("tag", "status"), [("approved", 409), ("refused", 409), ("resetafter", 202)])
async def test_other_data_of_an_evaluated_customer_is_not_sent(
    sandbox: Sandbox, tag: str, status: int
) -> None:
    application = make_app(sandbox.client(ledger=MemoryLedger()))
    transport = httpx.ASGITransport(application)
    async with lifespan(application), httpx.AsyncClient(transport=transport, base_url="http://test") as api:
        await api.post(ROUTE, json=tagged(tag))
        response = await api.post(ROUTE, json={**tagged(tag), "instalments": 24})
    assert response.status_code == status
    assert ("with other data" in response.text) == (status == 409)
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE)


async def test_request_of_another_worker_is_reported_as_in_progress(sandbox: Sandbox) -> None:
    go = asyncio.Event()

    class BusyLedger(MemoryLedger):
        async def settle(self, key: str, **options: Any) -> Entry:
            await go.wait()
            return await super().settle(key, **options)

    ledger, policy = BusyLedger(), LedgerPolicy(wait=0, patience=600.0)
    application = make_app(sandbox.client(ledger=ledger, ledger_policy=policy))
    transport = httpx.ASGITransport(application)
    async with (
        sandbox.client(ledger=ledger, ledger_policy=policy) as other_worker,
        lifespan(application),
        httpx.AsyncClient(transport=transport, base_url="http://test") as api,
    ):
        fields = {name: value for name, value in BODY.items() if name != "fiscal_code"}
        await other_worker.create_request({"fiscalCode": CODE})
        request = ApprovalRequest(amount=45_000, **fields)
        first = asyncio.create_task(other_worker.approve(CODE, request))
        await sandbox.journal.wait_for(2, timeout=60)
        busy = await api.post(ROUTE, json=BODY)
        go.set()
        await first
        decided = await api.post(ROUTE, json=BODY)
    assert (busy.status_code, busy.json()["status"]) == (202, "in_progress")
    assert decided.json()["status"] == "approved"
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE)


@pytest.mark.parametrize("tag", ["forbidden", "noshop"])
async def test_denied_shop_is_reported_as_unavailable(api: httpx.AsyncClient, tag: str) -> None:
    assert (await api.post(ROUTE, json=tagged(tag))).status_code == 503
    other = {**BODY, "fiscal_code": OTHER_CODE}  # nobody was evaluated, so the code may change
    assert (await api.post(ROUTE, json=other)).status_code == 200


async def test_unknown_order_is_not_found(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    assert (await api.post("/orders/1002/loan", json=BODY)).status_code == 404
    assert len(sandbox.journal) == 0


async def test_required_additional_data_is_reported(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    sandbox.on("create_request").respond(201, {"additionalDataNeeded": True}, phase="after")
    response = await api.post(ROUTE, json=BODY)
    assert response.status_code == 422
    assert ["body", "salary"] in [each["loc"] for each in response.json()["detail"]]
    sandbox.journal.assert_never(operation="approve")


@pytest.fixture
def folder(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory of a shop whose environment variables name the sandbox."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOANASYNC_BASE_URL", sandbox.base_url)
    monkeypatch.setenv("LOANASYNC_SHOP_ID", sandbox.shop_id)
    monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", sandbox.auth_token)
    return tmp_path


async def test_app_of_the_page_creates_its_ledger_file(folder: Path) -> None:
    [command] = re.findall(r"^uvicorn --factory (\S+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert command == f"{app.__module__}:{app.__name__}"
    application = app()
    transport = httpx.ASGITransport(application)
    async with lifespan(application), httpx.AsyncClient(transport=transport, base_url="http://test") as api:
        assert (await api.post(ROUTE, json=BODY)).json()["status"] == "approved"
        assert "LoanForm" in (await api.get("/openapi.json")).text
    assert (folder / "decisions.db").exists()


async def test_named_ledger_must_exist_and_have_the_key(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER", str(folder / "ledger.db"))
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", "32 bytes from your secret store.")
    async with open_client() as client:
        with pytest.raises(LedgerMismatchError, match="does not exist"):
            await client.entry_key(CODE)
        assert client.ledger is not None
        await create_ledger(client.ledger, base_url=sandbox.base_url, policy=client.ledger_policy)
        assert await client.entry_key(CODE)
    monkeypatch.delenv("LOANASYNC_LEDGER_KEY")
    async with open_client() as client:
        with pytest.raises(LedgerMismatchError, match="was created with a key"):
            await client.entry_key(CODE)


@pytest.mark.parametrize("variable", ["LOANASYNC_LEDGR", "LOANASYNC_LEDGER_FILE"])
def test_mistyped_name_of_a_ledger_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, str(folder / "ledger.db"))
    for open_app in (app, open_client):
        with pytest.raises(
            ConfigurationError, match=f"{variable}: is unknown; rename it to LOANASYNC_LEDGER"
        ):
            open_app()
