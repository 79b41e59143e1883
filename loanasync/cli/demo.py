"""A demo: complete loan requests against a sandbox, and their spans."""

from collections.abc import Mapping, Sequence
from datetime import date

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

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
from loanasync.sandbox import Sandbox
from loanasync.testing import TelemetryRecorder

_LABELS = {
    "http.response.status_code": "status",
    "http.request.resend_count": "resend",
    "loanasync.approved": "approved",
    "loanasync.attempts": "attempts",
}


def span_tree(spans: Sequence[ReadableSpan]) -> Tree:
    """Return a tree of calls, with the attempts of each call below it, in the order of their starts."""
    root = Tree("[bold]spans[/]")
    branches: dict[int, Tree] = {}
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        parent = root if span.parent is None else branches[span.parent.span_id]
        branches[span.context.span_id] = parent.add(_span_label(span))
    return root


def _span_label(span: ReadableSpan) -> str:
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    attributes = span.attributes or {}
    shown = " ".join(f"{label}={attributes[name]!r}" for name, label in _LABELS.items() if name in attributes)
    colour = "red" if span.status.status_code is StatusCode.ERROR else "green"
    return f"[{colour}]{escape(span.name)}[/] {milliseconds:.1f} ms [dim]{escape(shown)}[/]"


_ANNA = "TSTNNA00A00A000A"  # made up, like all data of the demo
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


async def run_demo(console: Console) -> None:
    """Run the loan requests of two customers against a sandbox, and print each step and the spans.

    Raises:
        ConfigurationError: The environment disables the OpenTelemetry SDK.
    """
    recorder = TelemetryRecorder()
    async with (
        Sandbox() as sandbox,
        sandbox.client(retry=RetryPolicy(base=0.05), telemetry=recorder.telemetry) as client,
    ):
        console.print(f"[bold]loanasync[/] with a sandbox at {sandbox.base_url}\n")
        await _approved_customer(console, client)
        await _refused_customer(console, client)
    console.print(span_tree(recorder.spans()))


async def _approved_customer(console: Console, client: LoanClient) -> None:
    console.rule("an approved customer")
    wrong_amount = _request("Anna", "500x2", 450)
    for problem in client.check(_ANNA, wrong_amount):
        console.print(f"check     invalid, not sent: {escape(str(problem))}")
    created = await client.create_request({"fiscalCode": _ANNA})
    needed = isinstance(created, Mapping) and created.get("additionalDataNeeded")
    console.print(f"create    additional data needed: {needed}")
    decision = await client.approve(_ANNA, _request("Anna", "500x2", 45_000))
    _print_decision(console, decision)
    await client.upload_documents(_ANNA, {"front": "...", "back": "..."})
    console.print("documents uploaded")
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
    console.print(f"complete  saved; the response, masked: {saved}\n")


async def _refused_customer(console: Console, client: LoanClient) -> None:
    console.rule("a refused customer")
    await client.create_request({"fiscalCode": _BRUNO})
    _print_decision(console, await client.approve(_BRUNO, _request("Bruno", "refused", 45_000)))
    console.print()


def _print_decision(console: Console, decision: Decision) -> None:
    attempts = decision.meta.attempts
    attempt = "the first attempt" if attempts == 1 else f"attempt {attempts}, after HTTP 500"
    match decision:
        case Approved(redirect_url=url, net_amount=net):
            console.print(
                f"approve   [green]approved[/] at {attempt}; the shop receives {(net or 0) / 100:.2f} euro"
            )
            console.print(f"          send the customer to {escape(url or '')}", soft_wrap=True)
        case _:
            console.print(f"approve   [red]refused[/] at {attempt}; final: offer another way to pay")
