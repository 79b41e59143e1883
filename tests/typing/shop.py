"""A shop as users write it; mypy, basedpyright and ty check it in their strict modes, and it is never run."""

from collections.abc import Mapping
from typing import assert_never, assert_type

from loanasync import ApprovalRequest, LoanClient, LoanError, Problems, Refused, UserData
from loanasync.checkout import Ask, Form, Order, Page, Paid, Redirect, Waiting, checkout, error_page, settle

FIELDS = ("fiscal_code", "email", "instalments")


def needs_more(created: object) -> bool:
    return isinstance(created, Mapping) and "additionalDataNeeded" in created


def exists(error: LoanError) -> bool:
    return error.operation == "create_request" and error.outcome == "unknown"


async def pay(client: LoanClient, order: Order, form: Mapping[str, str]) -> str:
    request = ApprovalRequest.from_form(form, amount=order.amount, order_token="1001")
    page = await checkout(
        client,
        form["fiscal_code"],
        request,
        order=order,
        payload={"fiscalCode": form["fiscal_code"]},
        fields=FIELDS,
        approved_url="/order",
        additional_data_needed=needs_more,
        already_created=exists,
    )
    return shown(page)


async def start_page(client: LoanClient, order: Order) -> str:
    page = await settle(client, order, approved_url="/order")
    return "the form" if page is None else shown(page)


def shown(page: Page) -> str:
    match page:
        case Redirect(url=url):
            return url
        case Refused(meta=meta):
            return meta.entry or "refused"
        case Paid():
            return "paid"
        case Form(problems=problems, for_the_shop=others):
            assert_type(others, Problems)
            return "".join(each.text("it") for found in problems.values() for each in found)
        case Waiting() | Ask():
            return f"{page.text('it')} {page.entry}"
        case _:
            assert_never(page)


async def complete(client: LoanClient, code: str, form: Mapping[str, str]) -> Form | Waiting | Ask | None:
    data = UserData.from_form(form, marketing="marketing" in form)
    beside, others = client.check(code, data).for_fields(["document_code"])
    assert_type(beside, dict[str, Problems])
    assert_type(others, Problems)
    try:
        await client.complete(code, data)
    except LoanError as error:
        return error_page(error, ["document_code"])
    return None


def page_for(error: LoanError) -> str:
    match error.advice:
        case "correct_form":
            return "form"
        case "wait" | "try_later":
            return "button"
        case "ask_service" | "already_decided" | "other_data" | "other_order" | "fix_setup":
            return error.text("it")
        case other:
            assert_never(other)


async def misuse(client: LoanClient, order: Order, page: Page) -> None:
    ApprovalRequest.from_form({})  # type: ignore[call-arg]
    await checkout(client, "code", UserData(), order=order, payload={}, fields=(), approved_url="/")  # type: ignore[arg-type]
    page.url  # type: ignore[union-attr]  # noqa: B018  (a refusal has no URL)
