"""Whatever goes wrong, nothing of the customer and nothing of the token shows."""

import logging
import pickle
import socket
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from builders import additional_data, approval_request, user_data
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loanasync import Approved, Limits, LoanClient, LoanError, Refused, RetryPolicy
from loanasync.sandbox import Sandbox

CODE = "ZZQMRK00A00A000A"
TOKEN = "zzqmark-token"
PERSONAL: dict[str, Any] = {
    "last_name": "Zzqmark",
    "first_name": "Zzqmarkina",
    "mobile_phone": "3339998887",
    "city": "Zzqmarkcity",
    "address": "Via Zzqmark",
    "street_number": "zzqmark 9",
    "iban": "ITZZQMARK",
    "order_token": "zzqmark-order",
}
MARKS = ("zzqm", "3339998887")


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(auth_token=TOKEN) as running:
        yield running


@pytest.fixture
async def client(sandbox: Sandbox, tracing: TracerProvider) -> AsyncIterator[LoanClient]:
    async with LoanClient(
        sandbox.base_url,
        shop_id=sandbox.shop_id,
        auth_token=TOKEN,
        retry=RetryPolicy(base=0.001),
        tracer_provider=tracing,
    ) as made:
        yield made


def marked(text: str) -> list[str]:
    return [mark for mark in MARKS if mark in text.lower()]


def everything_shown_by(error: LoanError) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if frame.f_globals["__name__"].startswith("loanasync")]
    assert ours
    local = "".join(repr(frame.f_locals) for frame in ours)
    chain = repr(error.__cause__) + repr(error.__context__)
    return str(error) + repr(error) + str(error.args) + pickle.dumps(error).decode("latin-1") + chain + local


@pytest.mark.parametrize(
    ("tag", "changes"),
    [
        ("nouser", {}),
        ("already", {}),
        ("noshop", {}),
        ("conflict", {}),
        ("500x9", {}),
        ("500after", {}),
        ("zzqmark-unknown", {}),
        ("approved", {"amount": 1}),
        ("approved", {"province": "zzqmark", "postal_code": "zzqmark", "citizenship": "zzqmark"}),
        ("approved", {"extra": {"zzqmark": float("nan")}}),
        ("approved", {"extra": {"email": "zzqmark"}}),
    ],
)
async def test_an_approval_that_fails_shows_no_one(
    client: LoanClient,
    exporter: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
    tag: str,
    changes: dict[str, Any],
) -> None:
    caplog.set_level(logging.DEBUG)
    await client.create_request({"fiscalCode": CODE})
    request = approval_request(**{**PERSONAL, "email": f"zzqmark+{tag}@example.com", **changes})
    with pytest.raises(LoanError) as caught:
        await client.approve(CODE, request)
    assert marked(everything_shown_by(caught.value)) == []
    assert marked("".join(span.to_json() for span in exporter.get_finished_spans())) == []
    assert marked(caplog.text) == []
    assert marked(repr(client) + repr(request) + str(vars(client))) == []


@pytest.mark.parametrize("operation", ["create_request", "approve", "upload_documents", "complete"])
@pytest.mark.parametrize("broken", ["credentials", "no connection", "gone", "bad input"])
async def test_every_call_that_fails_shows_no_one(
    sandbox: Sandbox, client: LoanClient, operation: str, broken: str
) -> None:
    code, payload = CODE, {"zzqmark": "zzqmark"}
    if broken == "credentials":
        client = client.with_options(shop_id="other", auth_token=TOKEN)
    elif broken == "no connection":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        client = LoanClient(f"http://127.0.0.1:{port}", shop_id="s", auth_token=TOKEN)
    elif broken == "bad input":
        code, payload = "zzqmark\n", {"zzqmark": object()}  # type: ignore[dict-item]
    calls: dict[str, Any] = {
        "create_request": lambda: client.create_request(payload),
        "approve": lambda: client.approve(code, approval_request(**PERSONAL)),
        "upload_documents": lambda: client.upload_documents(code, payload),
        "complete": lambda: client.complete(code, user_data(document_code="zzqmark")),
    }
    if broken == "gone":
        await sandbox.stop()
    with pytest.raises(LoanError) as caught:
        await calls[operation]()
    assert marked(everything_shown_by(caught.value)) == []
    await client.aclose()


async def test_answers_are_read_plainly_and_printed_masked(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": CODE, "additionalDataNeeded": True})
    request = approval_request(**PERSONAL, additional=additional_data(), email="zzqmark@example.com")
    decision = await client.approve(CODE, request, additional_data_needed=True)
    assert isinstance(decision, Approved)
    assert (decision.last_name, decision.raw["lastname"], decision.fiscal_code) == (
        "Zzqmark",
        "Zzqmark",
        CODE,
    )
    assert marked(repr(decision) + str(decision) + repr(decision.raw)) == []
    assert "#token" not in repr(decision)
    await client.upload_documents(CODE, {})
    saved = await client.complete(CODE, user_data(document_code="zzqmark", extra={"zzqmark": 1}))
    assert saved.document_code == "zzqmark"
    assert marked(repr(saved)) == []


async def test_a_refusal_is_printed_masked(client: LoanClient) -> None:
    await client.create_request({"fiscalCode": CODE})
    strict = client.with_options(limits=Limits(amount_max=2_000_000))
    decision = await strict.approve(
        CODE, approval_request(**PERSONAL, amount=1_100_000, email="zzqmark@example.com")
    )
    assert isinstance(decision, Refused)
    assert marked(repr(decision)) == []
