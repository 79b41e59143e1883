"""A JSON checkout route on FastAPI: pydantic validates the body, the client requests the approval."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import fields_dict
from checkout import CART, SHORT, additional_data_needed, open_client
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from shop_orders import Orders

from loanasync import AdditionalData, ApprovalRequest, LedgerError, LoanClient, Problem, Refused
from loanasync.checkout import Ask, Form, Page, Paid, Redirect, Waiting, checkout

LANGUAGE = "en"  # of the texts for customers; "it" for Italian
ADDITIONAL = fields_dict(AdditionalData)
logger = logging.getLogger("shop")


class LoanForm(BaseModel):
    """The JSON body of the route. The names are those of `ApprovalRequest`."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    fiscal_code: str
    instalments: int
    email: str
    first_name: str
    last_name: str
    mobile_phone: str
    city: str
    address: str
    province: str
    postal_code: str
    street_number: str
    citizenship: str
    additional: AdditionalData | None = None


class LoanResult(BaseModel):
    """The JSON response of the route: no personal data except the redirect URL."""

    status: str  # approved, refused, paid, or the advice of the error
    redirect_url: str | None = None
    text: str | None = None


def app(client: LoanClient | None = None, orders: Path = Path("orders.db")) -> FastAPI:
    """Return the application, by default with a client configured by environment variables."""
    client, stored = client or open_client(), Orders(orders)
    app = FastAPI(lifespan=client.lifespan)  # closes the client at shutdown
    app.exception_handler(RequestValidationError)(validation_response)

    @app.get("/health")
    async def ready() -> str:
        try:
            await client.check_ledger()
        except LedgerError as error:
            logger.error("not ready: %s", error)  # noqa: TRY400  (the text says what to do)
            raise HTTPException(503, "not ready") from None
        return "ready"

    @app.post("/orders", status_code=201)
    async def add_order() -> str:
        return (await stored.add(sum(CART.values()))).cookie

    @app.post("/orders/{key}/loan")
    async def request_loan(key: str, form: LoanForm, response: Response) -> LoanResult:
        if not (found := await stored.where("cookie = ?", key)):
            raise HTTPException(404, "no such order")
        [order] = found
        values = dict(form)
        code = values.pop("fiscal_code").strip().upper()
        page = await checkout(
            client,
            code,
            ApprovalRequest(amount=order.amount, **values),
            order=order,
            payload={"fiscalCode": code},
            fields=[*LoanForm.model_fields, *ADDITIONAL],
            approved_url=f"/orders/{key}",
            additional_data_needed=additional_data_needed,
            create_timeout=SHORT,
        )
        response.headers["Cache-Control"] = "no-store"
        response.status_code = getattr(page, "status", 200)
        return result_of(page)

    return app


def result_of(page: Page) -> LoanResult:
    """Return the body for a page.

    Raises:
        RequestValidationError: The body of the request must be corrected.
    """
    match page:
        case Redirect(url=url):
            return LoanResult(status="approved", redirect_url=url)
        case Refused():
            return LoanResult(status="refused")
        case Paid():
            return LoanResult(status="paid")
    logger.warning("entry %s: %s", page.entry, page.error)
    match page:
        case Form(problems=problems):
            raise validation_error(each for found in problems.values() for each in found)
        case Waiting() | Ask():
            return LoanResult(status=page.advice, text=page.text(LANGUAGE))


def validation_error(problems: Iterable[Problem]) -> RequestValidationError:
    """Convert problems to the error that FastAPI raises for an invalid body."""
    return RequestValidationError(
        [
            {
                "type": each.code,
                "loc": ("body", *(["additional"] if each.field in ADDITIONAL else []), each.field),
                "msg": each.message,
                "ctx": each.params,
            }
            for each in problems
        ]
    )


def text_of(error: Mapping[str, Any]) -> str:
    """Return the text of a problem, or the message of an error of pydantic, such as ``missing``."""
    return Problem("", "", error["msg"], error["type"], error.get("ctx", {})).text(LANGUAGE)


async def validation_response(_: Request, error: RequestValidationError) -> JSONResponse:
    """Return status 422 in FastAPI's shape, with texts for customers and without their `input`."""
    detail = [{"type": each["type"], "loc": each["loc"], "msg": text_of(each)} for each in error.errors()]
    return JSONResponse({"detail": detail}, status_code=422)
