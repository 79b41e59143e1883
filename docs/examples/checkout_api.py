"""A JSON checkout route on FastAPI: pydantic validates the body, the client requests the approval."""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from loanasync import ApprovalRequest, LoanClient, Problem, Refused, Timeout
from loanasync.checkout import Ask, Form, Redirect, Waiting, checkout
from loanasync.ledger import SqliteLedger

# A shopper waits at most 20 seconds: 5 for creating the request, 15 for its approval.
CREATION = Timeout(total=5, attempt=4, connect=2)
APPROVAL = Timeout(total=15, attempt=14, connect=2)
ORDER_TOTALS = {"1001": 45_000}  # euro cents; a real shop reads them from its database
OTHER_CUSTOMER = "another customer has already applied for this order"
LANGUAGE = "en"  # of the texts for customers; "it" for Italian
ADDITIONAL = (
    "residence",
    "residence_start_date",
    "educational_qualification",
    "children",
    "salary_type",
    "salary",
)
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


class LoanResult(BaseModel):
    """The JSON response of the route: no personal data except the redirect URL."""

    status: Literal["approved", "refused", "in_progress", "unknown"]
    redirect_url: str | None = None


def app() -> FastAPI:
    """Return the application, with a client configured by environment variables.

    Without LOANASYNC_LEDGER, the first client creates a file. A ledger that the variable names must exist.
    """
    ledger = None if "LOANASYNC_LEDGER" in os.environ else SqliteLedger("decisions.db")
    return make_app(LoanClient.from_env(ledger=ledger, timeout=APPROVAL))


def make_app(client: LoanClient) -> FastAPI:
    """Return the application, which closes the client at shutdown."""
    app = FastAPI(lifespan=client.lifespan)
    app.exception_handler(RequestValidationError)(validation_response)
    holds: dict[str, list[str]] = {}  # of each order: its customer, once for each click

    @app.post("/orders/{number}/loan")
    async def request_loan(number: str, form: LoanForm, response: Response) -> LoanResult:
        if number not in ORDER_TOTALS:
            raise HTTPException(404, "no such order")
        response.headers["Cache-Control"] = "no-store"
        code = form.fiscal_code.strip().upper()
        held = holds.setdefault(number, [])  # in a database: one UPDATE that fails for another customer
        if held and code not in held:
            raise HTTPException(409, OTHER_CUSTOMER)
        held.append(code)
        page = await checkout(
            client,
            code,
            ApprovalRequest(amount=ORDER_TOTALS[number], **form.model_dump(exclude={"fiscal_code"})),
            payload={"fiscalCode": code},
            fields=[*LoanForm.model_fields, *ADDITIONAL],
            approved_url=f"/orders/{number}",
            additional_data_needed=additional_data_needed,
            create_timeout=CREATION,
        )
        match page:
            case Redirect(url=url):  # a real shop stores page.decision first
                return LoanResult(status="approved", redirect_url=url)
            case Refused():
                return LoanResult(status="refused")
            case Form() | Waiting() | Ask():
                logger.warning("order %s, entry %s: %s", number, page.entry, page.error)
                if not page.may_be_evaluated:
                    held.remove(code)  # the shopper may correct it
        return error_result(page, response)

    return app


def error_result(page: Form | Waiting | Ask, response: Response) -> LoanResult:
    """Return the result of an error page and set its status, or raise the error for FastAPI to send."""
    if isinstance(page, Form):
        raise validation_error(each for problems in page.problems.values() for each in problems)
    match page.error.advice:
        case "wait":  # another worker requests the approval, or was killed
            response.status_code = 202  # the browser may send the same body again
            return LoanResult(status="in_progress")
        case "ask_service" | "already_decided":
            response.status_code = 202  # the service may have decided: do not offer a retry
            return LoanResult(status="unknown")
        case "other_data":
            raise HTTPException(409, page.text(LANGUAGE))
    raise HTTPException(503, page.text(LANGUAGE))


def additional_data_needed(created: object) -> bool:
    """Read the response of the creation. Its shape is an agreement with the service (spec §4.3)."""
    return isinstance(created, Mapping) and created.get("additionalDataNeeded") is True


def validation_error(problems: Iterable[Problem]) -> RequestValidationError:
    """Convert problems to the error that FastAPI raises for an invalid body."""
    return RequestValidationError(
        [
            {"type": each.code, "loc": ("body", each.field), "msg": each.message, "ctx": each.params}
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
