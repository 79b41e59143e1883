"""A page for the staff of the example shop: orders whose outcome is unknown, and a form to state it."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import compare_digest
from typing import Annotated, Literal

from checkout import PAGES, open_client
from fastapi import Depends, FastAPI, Form, HTTPException, Request
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from settle_orders import settle_orders, state_outcome
from shop_orders import Orders

from loanasync import LoanClient, LoanError, Refused
from loanasync.checkout import Ask, OrderError, Page, Redirect, Waiting

logger = logging.getLogger("shop")


def password_login(password: str) -> Callable[..., str]:
    """Return a dependency: the name of a member of the staff. Use the login of your shop instead."""
    if not password:
        raise ValueError("set STAFF_PASSWORD")

    def login(sent: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> str:
        if not compare_digest(sent.password.encode(), password.encode()):
            raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})
        return sent.username

    return login


def app(
    client: LoanClient | None = None,
    file: Path = Path("orders.db"),
    login: Callable[..., str] | None = None,
) -> FastAPI:
    """Return the application, by default configured by environment variables."""
    member = Depends(login or password_login(os.environ.get("STAFF_PASSWORD", "")))
    client, orders = client or open_client(), Orders(file)
    app = FastAPI(lifespan=client.lifespan, openapi_url=None)

    async def render(result: str = "", status: int = 200) -> HTMLResponse:
        questions = await settle_orders(client, orders)
        html = PAGES.get_template("staff.html").render(questions=questions, result=result)
        return HTMLResponse(html, status, {"Cache-Control": "no-store"})

    @app.get("/", dependencies=[member])
    async def unknown_orders() -> HTMLResponse:
        return await render()

    @app.post("/")
    async def state(
        request: Request,
        name: Annotated[str, member],
        number: Annotated[str, Form()],
        entry: Annotated[str, Form()],
        outcome: Annotated[Literal["approved", "refused", "not_evaluated"], Form()],
        ticket: Annotated[str, Form()],
    ) -> HTMLResponse:
        if not _is_of_this_site(request.headers):
            raise HTTPException(403, "the form is of another site")
        found = await orders.where("loan_state = 'held' AND id = ?", number.removeprefix("A-"))
        if not found:
            return await render(f"Order {number} is not held any more.", 409)
        [order] = found
        try:
            page = await state_outcome(client, order, entry, outcome, ticket)
        except (LoanError, OrderError, ValueError) as error:
            return await render(f"Order {number}: {error}", 409)
        logger.info("%r has stated for order %s: %s, %r", name, number, outcome, ticket)
        return await render(f"Order {number}: {_text(page)}")

    return app


def _is_of_this_site(headers: Mapping[str, str]) -> bool:
    """Return True if a page of this site has sent the form, whichever login the shop uses."""
    if "Sec-Fetch-Site" in headers:
        return headers["Sec-Fetch-Site"] == "same-origin"
    host = headers.get("Host")  # browsers send no Sec-Fetch-Site over plain HTTP
    return headers.get("Origin") in (f"http://{host}", f"https://{host}")


def _text(page: Page | None) -> str:
    match page:
        case Redirect():
            return "approved. Send the customer the link that the service gave you with its statement."
        case Refused():
            return "refused."
        case Waiting():
            return "not changed yet. It is free in a few minutes, when no click can use it any more."
        case Ask():
            return f"not changed: {page.error}"
    return "free again."
