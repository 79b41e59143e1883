"""Whole loan requests, told step by step: an approved customer, a retried fault, a refused customer."""

from collections.abc import Mapping
from datetime import date

from rich.console import Console
from rich.markup import escape

from loanasync import (
    ApprovalRequest,
    Approved,
    Citizenship,
    Decision,
    DocumentType,
    LoanClient,
    RetryPolicy,
    UserData,
)
from loanasync.cli.recorded import Recorded
from loanasync.cli.spans import tree_of
from loanasync.sandbox import Sandbox

_ANNA = "TSTNNA00A00A000A"  # made up, as is all else
_BRUNO = "TSTBRN00A00A000B"


def _request(first_name: str, tag: str, amount: int) -> ApprovalRequest:
    return ApprovalRequest(
        amount=amount,
        instalments=12,
        email=f"{first_name.lower()}+{tag}@example.com",
        last_name="Prova",
        first_name=first_name,
        mobile_phone="3330000000",
        city="Roma",
        address="Via Prova",
        province="RM",
        postal_code="00100",
        street_number="12/A",
        citizenship=Citizenship.ITALIAN,
    )


async def demo(console: Console) -> Recorded:
    """Start a sandbox, walk two customers through it, print what happened, and hand on what was recorded."""
    recorded = Recorded()
    async with (
        Sandbox() as sandbox,
        LoanClient(
            sandbox.base_url,
            shop_id=sandbox.shop_id,
            auth_token=sandbox.auth_token,
            retry=RetryPolicy(base=0.05),
            tracer_provider=recorded.tracer_provider,
            meter_provider=recorded.meter_provider,
        ) as client,
    ):
        console.print(f"[bold]loanasync[/] against a sandbox at {sandbox.base_url}\n")
        await _approved(console, client)
        await _refused(console, client)
    console.print(tree_of(recorded.spans))
    return recorded


async def _approved(console: Console, client: LoanClient) -> None:
    console.rule("a customer who is approved")
    typo = _request("Anna", "500x2", 450)
    for problem in client.check(_ANNA, typo):
        console.print(f"check     nothing was sent yet: {escape(str(problem))}")
    created = await client.create_request({"fiscalCode": _ANNA})
    needed = isinstance(created, Mapping) and created.get("additionalDataNeeded")
    console.print(f"create    additional data needed: {needed}")
    decision = await client.approve(_ANNA, _request("Anna", "500x2", 45_000))
    _tell(console, decision)
    await client.upload_documents(_ANNA, {"front": "...", "back": "..."})
    console.print("documents handed in")
    saved = await client.complete(
        _ANNA,
        UserData(
            document_type=DocumentType.IDENTITY_CARD,
            document_code="AA00000AA",
            document_city="Roma",
            document_issue_date=date(2022, 5, 17),
            document_expiration_date=date(2032, 5, 17),
            politically_exposed=False,
            us_person=False,
            marketing=False,
        ),
    )
    console.print(f"complete  saved, printed masked: {saved}\n")


async def _refused(console: Console, client: LoanClient) -> None:
    console.rule("a customer who is refused")
    await client.create_request({"fiscalCode": _BRUNO})
    _tell(console, await client.approve(_BRUNO, _request("Bruno", "refused", 45_000)))
    console.print()


def _tell(console: Console, decision: Decision) -> None:
    attempts = decision.meta.attempts
    how = (
        "at the first attempt"
        if attempts == 1
        else f"at attempt {attempts}, the others were answered with 500"
    )
    match decision:
        case Approved(redirect_url=url, net_amount=net):
            console.print(
                f"approve   [green]approved[/] {how}; the shop receives {(net or 0) / 100:.2f} euro"
            )
            console.print(f"          send the customer to {escape(url or '')}", soft_wrap=True)
        case _:
            console.print(f"approve   [red]refused[/] {how}; final, offer another way to pay")
