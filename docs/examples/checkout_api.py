"""A JSON checkout route on FastAPI: pydantic validates the body, the client requests the approval."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from loanasync import (
    AlreadyEvaluatedError,
    ApprovalRequest,
    Approved,
    Decision,
    DecisionNotRecordedError,
    InFlightError,
    InvalidFiscalCodeError,
    InvalidRequestError,
    LoanClient,
    LoanError,
    PayloadMismatchError,
    Problem,
    Refused,
    RejectedError,
    Timeout,
    UserNotFoundError,
)
from loanasync.ledger import SqliteLedger

# A shopper waits at most 20 seconds: 5 for creating the request, 15 for its approval.
CREATION = Timeout(total=5, attempt=4, connect=2)
APPROVAL = Timeout(total=15, attempt=14, connect=2)
ORDER_TOTALS = {"1001": 45_000}  # euro cents; a real shop reads them from its database
LANGUAGE = "en"  # of the texts for customers; "it" for Italian
NOT_KNOWN = Problem("fiscal_code", "fiscalCode", "is not known", "fiscal_code.user_not_found")


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

    @app.post("/orders/{number}/loan")
    async def request_loan(number: str, form: LoanForm, response: Response) -> LoanResult:
        if number not in ORDER_TOTALS:
            raise HTTPException(404, "no such order")
        response.headers["Cache-Control"] = "no-store"
        code = form.fiscal_code.strip().upper()
        fields = form.model_dump(exclude={"fiscal_code"})
        request = ApprovalRequest(amount=ORDER_TOTALS[number], **fields)
        if problems := client.check(code, request):
            raise validation_error(problems)
        try:
            decision = await request_approval(client, code, request)
        except InFlightError:  # another worker requests the approval, or was killed
            response.status_code = 202  # the browser may send the same body again
            return LoanResult(status="in_progress")
        except LoanError as error:
            if getattr(error, "operation", "") == "approve" and error.outcome == "unknown":
                response.status_code = 202  # the service may have decided: do not offer a retry
                return LoanResult(status="unknown")
            raise http_error(error) from None
        match decision:
            case Approved(redirect_url=url):
                return LoanResult(status="approved", redirect_url=url)
            case Refused():
                return LoanResult(status="refused")

    return app


async def request_approval(client: LoanClient, code: str, request: ApprovalRequest) -> Decision:
    """Create the request and return the decision on it."""
    created: object = None
    with suppress(AlreadyEvaluatedError):  # evaluated before: approve returns the known decision
        created = await client.create_request({"fiscalCode": code}, timeout=CREATION)
    needed = isinstance(created, Mapping) and created.get("additionalDataNeeded") is True
    try:
        return await client.approve(code, request, additional_data_needed=needed)
    except DecisionNotRecordedError as error:
        return error.decision  # the ledger could not be written; the decision stands


def http_error(error: LoanError) -> HTTPException | RequestValidationError:
    """Convert an error of the client to an error of FastAPI."""
    match error:
        case InvalidRequestError() | RejectedError():
            return validation_error(error.problems)
        case UserNotFoundError() | InvalidFiscalCodeError():
            return validation_error([NOT_KNOWN])
        case PayloadMismatchError():  # the service decided on an earlier request
            return HTTPException(409, "this customer already applied for a loan with other data")
        case _:
            return HTTPException(503, "no loan available at the moment")


def validation_error(problems: Sequence[Problem]) -> RequestValidationError:
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
