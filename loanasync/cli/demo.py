"""A demo: complete loan requests against a sandbox, and their spans."""

from rich.console import Console
from rich.markup import escape

from loanasync import Approved, LoanClient, RetryPolicy
from loanasync.sandbox import Sandbox
from loanasync.testing import TelemetryRecorder, approval_request, fiscal_code, user_data

_LABELS = {
    "http.response.status_code": "status",
    "http.request.resend_count": "resend",
    "loanasync.approved": "approved",
    "loanasync.attempts": "attempts",
}


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
        for tag in ("500x2", "refused"):
            console.rule(f"a customer with the tag +{tag}")
            await _run_customer(console, client, fiscal_code(), tag)
    console.rule("spans")
    for span in sorted(recorder.spans(), key=lambda each: each.start_time or 0):
        milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
        values = span.attributes or {}
        shown = [f"{label}={values[name]!r}" for name, label in _LABELS.items() if name in values]
        indent = "" if span.parent is None else "  "
        console.print(f"{indent}{span.name} {milliseconds:.1f} ms", *shown, markup=False)


async def _run_customer(console: Console, client: LoanClient, code: str, tag: str) -> None:
    for problem in client.check(code, approval_request(amount=450)):
        console.print(f"check     invalid, not sent: {escape(str(problem))}")
    await client.create_request({"fiscalCode": code})
    decision = await client.approve(code, approval_request(tag=tag))
    attempt = f"at attempt {decision.meta.attempts}"
    if not isinstance(decision, Approved):
        console.print(f"approve   [red]refused[/] {attempt}; final: offer another way to pay\n")
        return
    net = (decision.net_amount or 0) / 100
    console.print(f"approve   [green]approved[/] {attempt}; the shop receives {net:.2f} euro")
    console.print(f"          send the customer to {escape(decision.redirect_url or '')}", soft_wrap=True)
    await client.upload_documents(code, {"front": "...", "back": "..."})
    console.print("documents uploaded")
    saved = await client.complete(code, user_data())
    console.print(f"complete  saved; the response, masked: {saved}\n")
