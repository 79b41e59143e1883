"""The FastAPI route of docs/howto/fastapi.md, against a sandbox."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkout_api import app

from loanasync import LoanClient
from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.example_shops import CODE, FORM, browsing
from support.processes import credentials

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "fastapi.md"
BODY: dict[str, Any] = {**FORM, "instalments": 12}


@asynccontextmanager
async def serving(client: LoanClient | None, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the app; yield an HTTP client for a new order."""
    async with browsing(app(client, folder / "orders.db")) as api:
        key = (await api.post("/orders")).json()
        api.base_url = api.base_url.join(f"/orders/{key}/")
        yield api


@pytest.fixture
async def api(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(sandbox.client(), tmp_path) as api:
        yield api


def tagged(tag: str) -> dict[str, Any]:
    return {**BODY, "email": f"anna+{tag}@example.com"}


async def test_approval_returns_the_redirect_and_no_personal_data(
    api: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    for _ in range(2):
        response = await api.post("loan", json=BODY)
        assert response.status_code == 200
        assert response.headers["Cache-Control"] == "no-store"
        assert response.json()["status"] == "approved"
        assert response.json()["redirect_url"].startswith(f"{sandbox.base_url}/apply/")
        assert not [value for value in (CODE, "Anna", "Prova", "3330000000") if value in response.text]
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE, body={"amount": 45_000})


@pytest.mark.parametrize(
    ("tag", "status", "result", "text"),
    [
        ("refused", 200, "refused", ""),
        ("resetafter", 202, "ask_service", "We have not received the decision"),
        ("forbidden", 503, "fix_setup", "not available"),
    ],
)
async def test_result_is_the_advice_of_the_page(
    api: httpx.AsyncClient, tag: str, status: int, result: str, text: str
) -> None:
    response = await api.post("loan", json=tagged(tag))
    assert (response.status_code, response.json()["status"]) == (status, result)
    assert text in (response.json()["text"] or "")
    other = await api.post("loan", json={**BODY, "fiscal_code": "TSTABC00A00A000A"})
    assert other.json()["status"] == {"ask_service": "other_data", "fix_setup": "approved"}.get(
        result, result
    )


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"province": "rm", "postal_code": "100"},
            {"province": "province.format", "postal_code": "postal_code.format"},
        ),
        ({"city": 7, "typo": "Anna"}, {"city": "string_type", "typo": "extra_forbidden"}),
        ({"email": "anna+invalid.city@example.com"}, {"city": "city.blank"}),
        ({"email": "anna+nouser@example.com"}, {"fiscal_code": "fiscal_code.user_not_found"}),
        ({"additional": {"salary": "much"}}, {"salary": "salary.type"}),
    ],
)
async def test_problems_are_reported_in_fastapi_shape_without_input(
    api: httpx.AsyncClient, sandbox: Sandbox, changes: dict[str, Any], found: dict[str, str]
) -> None:
    response = await api.post("loan", json={**BODY, **changes})
    assert response.status_code == 422
    detail = response.json()["detail"]
    assert {each["loc"][-1]: each["type"] for each in detail} == found
    assert all(each["loc"][0] == "body" and [*each] == ["type", "loc", "msg"] for each in detail)
    assert "Anna" not in response.text
    assert not sandbox.journal.calls(operation="approve", status=201)


async def test_required_additional_data_are_reported_and_then_sent(
    api: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    sandbox.fault("create_request=additional")
    response = await api.post("loan", json=BODY)
    assert response.status_code == 422
    assert ["body", "additional", "salary"] in [each["loc"] for each in response.json()["detail"]]
    more: dict[str, Any] = {"residence": "rent", "residence_start_date": "2019-05-01", "salary": 1_600}
    more |= {"educational_qualification": "diploma", "children": "2", "salary_type": "net-monthly"}
    response = await api.post("loan", json={**BODY, "additional": more})
    assert response.json()["status"] == "approved"
    sandbox.journal.assert_once(operation="approve", body={"salary": 1_600})


async def test_health_route_says_if_the_ledger_can_be_used(sandbox: Sandbox, tmp_path: Path) -> None:
    for name, status in (("decisions.db", 200), ("missing/decisions.db", 503)):
        async with (
            SqliteLedger(tmp_path / name) as ledger,
            serving(sandbox.client(ledger=ledger), tmp_path) as api,
        ):
            assert (await api.get("../../health")).status_code == status


async def test_unknown_order_is_not_found(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    assert (await api.post("../1002/loan", json=BODY)).status_code == 404
    assert len(sandbox.journal) == 0


async def test_app_of_the_page_creates_its_ledger_file(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in credentials(sandbox).items():
        monkeypatch.setenv(name, value)
    [command] = re.findall(r"^uvicorn --factory (\S+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert command == f"{app.__module__}:{app.__name__}"
    async with serving(None, tmp_path) as api:
        assert (await api.post("loan", json=BODY)).json()["status"] == "approved"
        assert "LoanForm" in (await api.get("../../openapi.json")).text
    assert (tmp_path / "decisions.db").exists()
